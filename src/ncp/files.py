"""Files written whole or not at all; NumPy files from strangers: only numbers, and not too many.

A header may promise any shape, and an archive may unpack to any size. So an array is read only if
the bytes that its header promises are there, and a member of an archive only up to `LARGEST` bytes.
Whatever is wrong is a `ValueError`.
"""

from __future__ import annotations

import io
import math
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

LARGEST = 2**31  # bytes of a member or a compressed file, unpacked
PIECE = 2**20
FAULTS = (OSError, EOFError, LookupError, RuntimeError, ArithmeticError, MemoryError)
PARSING = (SyntaxError, TypeError, AttributeError, TokenError, BadZipFile, zlib.error, Warning)


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file whole or not at all."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


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


def read_array(content: bytes) -> np.ndarray:
    """The array of an NPY file.

    >>> file = io.BytesIO()
    >>> np.save(file, np.arange(3))
    >>> read_array(file.getvalue())
    array([0, 1, 2])
    """
    file = io.BytesIO(content)
    with refusing("a NumPy file of numbers"):
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise Refused(f"is not a NumPy file of numbers (format {version})")
        read = np.lib.format.read_array_header_1_0
        if version == (2, 0):
            read = np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.hasobject:
            raise Refused("is not a NumPy file of numbers (it holds Python objects)")
        promised = math.prod(shape) * dtype.itemsize
        there = len(content) - file.tell()
        if any(side < 0 for side in shape) or promised > there:
            raise Refused(
                f"is not a complete NumPy file: shape {shape} takes {promised} bytes, {there} are "
                "there"
            )
        return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))


def read_some(file: Any, kind: str) -> bytes:
    """All of a file that is unpacked as it is read, unless that is too much."""
    content = bytearray()
    with refusing(kind):
        while part := file.read(PIECE):  # a reader may take up as much memory as it is asked for
            content += part
            if len(content) > LARGEST:
                raise Refused(f"unpacks to more than {LARGEST / 2**30:.3g} GiB, which is not read")
    return bytes(content)


class Archive:
    """The arrays of an NPZ file, by name."""

    def __init__(self, content: bytes) -> None:
        with refusing("a complete zip file"):
            self._zip = ZipFile(io.BytesIO(content))
            self.members = self._zip.namelist()
        self.names = [name.removesuffix(".npy") for name in self.members if name.endswith(".npy")]

    def __getitem__(self, name: str) -> np.ndarray:
        with refusing("a complete zip file"), self._zip.open(f"{name}.npy") as file:
            content = read_some(file, "a complete zip file")
        return read_array(content)
