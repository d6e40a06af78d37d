"""Files written whole or not at all, locks; NumPy files from strangers: numbers, and not too many.

A header may promise any shape, and an archive may unpack to any size. So an array is read only if
the bytes that its header promises are there, and a member of an archive only up to `LARGEST` bytes.
Whatever is wrong is a `ValueError`.
"""

from __future__ import annotations

import io
import math
import os
import re
import secrets
import shutil
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

import numpy as np

__all__ = [
    "Archive",
    "Refused",
    "create_file",
    "is_temporary",
    "lock_file",
    "locked",
    "read_array",
    "read_header",
    "read_some",
    "refusing",
    "sync_directory",
    "temporary_name",
    "write_atomically",
]

LARGEST = 2**31  # bytes of a member or a compressed file, unpacked
PIECE = 2**20
FAULTS = (OSError, EOFError, LookupError, RuntimeError, ArithmeticError, MemoryError)
PARSING = (SyntaxError, TypeError, AttributeError, TokenError, BadZipFile, zlib.error, Warning)


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file whole or not at all; its permissions are those of the file it replaces, if any.

    It is written beside its place, under a name that is ours and nobody else's, and moved there.
    """
    path = Path(path)
    temporary = path.parent / temporary_name(path.name)
    try:
        create_file(temporary, content)
        with suppress(OSError):
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def temporary_name(name: str) -> str:
    """An unmistakable name of our own, beside a file or folder.

    Example:
        >>> is_temporary(temporary_name("labels.csv"), "labels.csv")
        True
        >>> is_temporary(".labels.csv.mybackup", "labels.csv")
        False
    """
    return f".{name[:40]}.ncp-{secrets.token_hex(8)}"  # a name has at most 255 bytes


def is_temporary(found: str, name: str) -> bool:
    """Whether a name is one that `temporary_name` gives for the other."""
    return re.fullmatch(re.escape(f".{name[:40]}.ncp-") + "[0-9a-f]{16}", found) is not None


def create_file(path: Path, content: bytes) -> None:
    """Write a file that must not be there yet, down to the disk; the umask decides who may read."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Write the names in a directory down to the disk, where the system can do that."""
    with suppress(OSError):  # Windows opens no directories, some file systems sync none
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[IO[bytes]]:
    """Hold the lock of a file of its own, which is there while it is held.

    Args:
        path: Of the lock file; its folder must be there.
        wait: Whether to wait for another process that holds it, or raise `BlockingIOError`.
    """
    file = _lock(path, wait)
    try:
        yield file
    finally:
        with suppress(OSError):  # while it is still held: whoever waits for it looks again
            path.unlink()
        file.close()


def _lock(path: Path, wait: bool) -> IO[bytes]:
    while True:
        file = open(path, "a+b")  # noqa: SIM115  closed by whoever holds the lock
        try:
            lock_file(file, wait)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        except FileNotFoundError:  # removed by the one who held it before
            pass
        except BaseException:
            file.close()
            raise
        file.close()


def lock_file(file: IO[bytes], wait: bool) -> None:
    """Take the lock of an open file; it is given back when the file is closed."""
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)
        while True:
            try:
                return msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            except PermissionError:
                if not wait:
                    raise BlockingIOError(f"{file.name} is locked") from None
                time.sleep(0.05)
    else:
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:
            return  # a file system without locks: as before there were any


class Refused(ValueError):
    """What is wrong with a file, in our own words."""


@contextmanager
def refusing(kind: str) -> Iterator[None]:
    """Whatever goes wrong is the file's fault."""
    try:
        yield
    except Refused:
        raise
    except (*FAULTS, *PARSING, ValueError) as error:
        raise Refused(f"is not {kind} ({error})") from error


def read_header(file: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of the array of an NPY file; the file is read up to where its bytes begin."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise Refused(f"is not a NumPy file of numbers (format {version})")
    read = np.lib.format.read_array_header_1_0
    if version == (2, 0):
        read = np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise Refused("is not a NumPy file of numbers (it holds Python objects)")
    return shape, dtype


def read_array(content: bytes) -> np.ndarray:
    """The array of an NPY file.

    Example:
        >>> file = io.BytesIO()
        >>> np.save(file, np.arange(3))
        >>> read_array(file.getvalue())
        array([0, 1, 2])
    """
    file = io.BytesIO(content)
    with refusing("a NumPy file of numbers"):
        shape, dtype = read_header(file)
        promised = math.prod(shape) * dtype.itemsize
        there = len(content) - file.tell()
        if any(side < 0 for side in shape) or promised > there:
            raise Refused(
                f"is not a complete NumPy file: shape {shape} takes {promised} bytes, {there} are "
                "there"
            )
        return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))


def read_some(file: Any, kind: str, most: int = LARGEST) -> bytes:
    """All of a file that is unpacked as it is read, unless that is too much."""
    content = bytearray()
    with refusing(kind):
        while part := file.read(PIECE):  # a reader may take up as much memory as it is asked for
            content += part
            if len(content) > most:
                raise Refused(
                    f"unpacks to more than {most / 2**30:.3g} GiB, which is not read; see "
                    "--max-memory"
                )
    return bytes(content)


class Archive:
    """The arrays of an NPZ file, by name.

    Args:
        content: The file.
    """

    def __init__(self, content: bytes) -> None:
        with refusing("a complete zip file"):
            self._zip = ZipFile(io.BytesIO(content))
            self.members = self._zip.namelist()
            self.total_size = sum(member.file_size for member in self._zip.infolist())
        self.names = [name.removesuffix(".npy") for name in self.members if name.endswith(".npy")]

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and type of an array, which is not read."""
        with refusing("a NumPy file of numbers"), self._zip.open(f"{name}.npy") as file:
            return read_header(file)

    def read(self, name: str, most: int = LARGEST) -> np.ndarray:
        """An array, unless it unpacks to more bytes."""
        with refusing("a complete zip file"), self._zip.open(f"{name}.npy") as file:
            content = read_some(file, "a complete zip file", most)
        return read_array(content)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.read(name)

    def text(self, name: str) -> str:
        """A member that is text."""
        with refusing("a complete zip file"), self._zip.open(name) as file:
            return read_some(file, "a complete zip file").decode()
