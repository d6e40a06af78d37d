"""A folder of results that is whole or not there."""

from __future__ import annotations

import secrets
import shutil
from glob import escape as glob_escape
from pathlib import Path

from ncp.files import write_atomically

__all__ = ["write_files"]


def write_files(directory: Path, files: dict[str, bytes]) -> None:
    """Write files to a folder, all of them or none.

    A new folder appears by a rename when it is complete. In one that is there, each file appears by
    a rename, the summary last: where that is, the others are.
    """
    if not directory.exists():
        return _write_folder(directory, files)
    (directory / "summary.json").unlink(missing_ok=True)  # of results that are being replaced
    written: list[Path] = []
    try:
        for name, content in files.items():
            for left_over in directory.glob(f".{name}.????????"):  # by a run that was killed
                left_over.unlink()
            write_atomically(directory / name, content)
            written.append(directory / name)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def _write_folder(directory: Path, files: dict[str, bytes]) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    for left_over in directory.parent.glob(f".{glob_escape(directory.name)}.????????"):
        shutil.rmtree(left_over, ignore_errors=True)
    hidden = directory.parent / f".{directory.name}.{secrets.token_hex(4)}"
    hidden.mkdir()
    try:
        for name, content in files.items():
            write_atomically(hidden / name, content)
        hidden.rename(directory)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
