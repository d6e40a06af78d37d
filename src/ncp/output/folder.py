"""A folder of results that is whole, the old one or the new one, at every moment.

All files are written to a new folder beside it, which then takes its place:

* where there is no folder yet, by a rename;
* where there is one that holds files only, by exchanging the two in one step of the file system.
  Files in it that are not ours go along as a second name of the same file (a hard link);
* where that cannot be done (folders below it, a mount point, the folder that somebody stands in, a
  system that cannot exchange): the old files are moved out, the summary first, and the new ones in,
  the summary last. Where that is, the others are; what was moved out comes back after a failure.

What is ours is what the folder's `summary.json` lists under `files`, if it also says what data it
is of, as those of other programs do not: nothing else is ever replaced or removed. Names of
temporary folders are random and written to a lock file before they are made; the next run that gets
the lock clears away what a killed one left, or brings it back.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ncp.files import create_file, is_temporary, locked, sync_directory, temporary_name

__all__ = ["check_folder", "replace_folder", "tidy_folder"]

SUMMARY = "summary.json"
SWAP = 2  # RENAME_EXCHANGE of Linux and RENAME_SWAP of macOS


def check_folder(directory: Path, names: Iterable[str]) -> None:
    """Refuse a folder in which a name is taken by a file that is not ours.

    Args:
        directory: Where results are to be written; it need not be there.
        names: Of their files.
    """
    taken = sorted(name for name in set(names) - ours(directory) if _exists(directory / name))
    if taken:
        raise ValueError(
            f"{directory / taken[0]}: is there and was not written by ncp; move it away or name "
            "another folder"
        )


def ours(directory: Path) -> set[str]:
    """The names of the files in a folder that we made, by its summary."""
    try:
        found = json.loads((directory / SUMMARY).read_bytes())
        listed = found["files"] if found["inputs"]["sha256"] else None
    except (FileNotFoundError, NotADirectoryError, ValueError, LookupError, TypeError):
        return set()
    if not isinstance(listed, list):
        return set()
    return {SUMMARY, *(name for name in listed if isinstance(name, str) and _is_plain(name))}


def replace_folder(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files to a folder in place of those that were written there before, all or nothing.

    Args:
        directory: It need not be there, nor those above it.
        files: Contents by name. `summary.json` is among them and lists them all as `files`.
    """
    directory = Path(os.path.realpath(directory))  # a link to a folder stays one
    directory.parent.mkdir(parents=True, exist_ok=True)
    base, lock = _lock_of(directory)
    with locked(lock) as record:
        _Replacement(directory, base, record).run(files)


def tidy_folder(directory: Path) -> None:
    """Clear away what a run left beside a result that was whole when it was killed."""
    directory = Path(os.path.realpath(directory))
    base, lock = _lock_of(directory)
    if not lock.exists():
        return
    with suppress(BlockingIOError), locked(lock, wait=False) as record:  # else somebody writes
        _Replacement(directory, base, record).clear_after_a_kill()


def _lock_of(directory: Path) -> tuple[Path, Path]:
    """Where temporary folders of a folder are made, and the file that is locked meanwhile."""
    alone = os.path.ismount(directory) or not os.access(directory.parent, os.W_OK)
    base = directory if alone else directory.parent
    return base, base / f".{directory.name[:40]}.ncp-lock"


class _Replacement:
    """One replacement, while its lock is held."""

    def __init__(self, directory: Path, base: Path, record: IO[bytes]) -> None:
        self.directory, self.base, self.record = directory, base, record
        self.new = base / temporary_name(directory.name)
        self.old = base / temporary_name(directory.name)

    def run(self, files: Mapping[str, bytes]) -> None:
        self.clear_after_a_kill()
        check_folder(self.directory, files)
        names = {"new": self.new.name, "old": self.old.name, "files": sorted(files)}
        self._write_record(names)
        try:
            self._write(files)
            self._put_in_place(sorted(files, key=lambda name: name == SUMMARY))
        except BaseException:
            self._bring_back(names)
            raise
        sync_directory(self.base)

    def _write_record(self, names: Mapping[str, Any]) -> None:
        self.record.truncate(0)
        self.record.write(json.dumps(names).encode())
        self.record.flush()
        os.fsync(self.record.fileno())

    def _write(self, files: Mapping[str, bytes]) -> None:
        self.new.mkdir()
        for name, content in files.items():
            create_file(self.new / name, content)
        sync_directory(self.new)

    def _put_in_place(self, names: list[str]) -> None:
        if not _exists(self.directory):
            self.new.rename(self.directory)
        elif not self._exchange():
            self._move(names)

    # -- in one step ---------------------------------------------------------------------------

    def _exchange(self) -> bool:
        if self.base == self.directory or not _holds_files_only(self.directory):
            return False
        former = ours(self.directory)
        try:
            for entry in os.scandir(self.directory):
                if entry.name not in former:
                    os.link(entry.path, self.new / entry.name, follow_symlinks=False)
            _give(self.new, os.stat(self.directory))
        except (OSError, NotImplementedError):  # no second names here
            return False
        if not exchange(self.new, self.directory):
            return False
        _drop(self.new, former, self.directory)  # it is the former folder now
        return True

    # -- file by file --------------------------------------------------------------------------

    def _move(self, names: list[str]) -> None:
        former = sorted(ours(self.directory), key=lambda name: name != SUMMARY)
        self.old.mkdir()
        for name in former:
            with suppress(FileNotFoundError):
                (self.directory / name).rename(self.old / name)
        for name in names:
            (self.new / name).rename(self.directory / name)
        _drop(self.old, former, self.directory)
        _drop(self.new, names, self.directory)

    # -- after a failure -----------------------------------------------------------------------

    def clear_after_a_kill(self) -> None:
        self.record.seek(0)
        try:
            names = json.loads(self.record.read())
            found = [names["new"], names["old"]]
            plain = all(_is_plain(name) for name in names["files"])
        except (ValueError, LookupError, TypeError):
            return
        if plain and all(is_temporary(str(name), self.directory.name) for name in found):
            self._bring_back(names)

    def _bring_back(self, names: Mapping[str, Any]) -> None:
        """Undo a replacement that was not finished, or tidy up after one that was."""
        old, new = self.base / names["old"], self.base / names["new"]
        if _exists(old) and not _exists(self.directory / SUMMARY):
            for name in names["files"]:
                if _exists(self.directory / name) and not _exists(new / name):  # it came from there
                    (self.directory / name).rename(new / name)
            for name in sorted(os.listdir(old), key=lambda name: name == SUMMARY):
                (old / name).rename(self.directory / name)
        _drop(old, ours(old), self.directory)
        _drop(new, {*names["files"], *ours(new)}, self.directory)


def _drop(folder: Path, names: Iterable[str], kept: Path) -> None:
    """Remove a folder of ours: files by name, and further names of files that are kept."""
    with suppress(FileNotFoundError):
        # The summary last: should this be killed, it says what the others are.
        for name in sorted(os.listdir(folder), key=lambda name: name == SUMMARY):
            path = folder / name
            if name in names or _is_same(path, kept / name):
                path.unlink()
            elif not _exists(kept / name):  # came in the meantime, and is not ours
                path.rename(kept / name)
        if not os.listdir(folder):  # what is not ours stays
            folder.rmdir()


def _give(folder: Path, like: os.stat_result) -> None:
    """The owner and the permissions of another folder."""
    if sys.platform != "win32":
        with suppress(PermissionError):
            os.chown(folder, like.st_uid, like.st_gid)
    os.chmod(folder, stat.S_IMODE(like.st_mode))


def _holds_files_only(directory: Path) -> bool:
    here = os.path.realpath(os.getcwd())
    if here == str(directory) or os.path.ismount(directory):
        return False
    return not any(entry.is_dir(follow_symlinks=False) for entry in os.scandir(directory))


def exchange(one: Path, other: Path) -> bool:
    """Let two folders take each other's place in one step; False where that cannot be done."""
    try:
        system = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            done = system.renamex_np(os.fsencode(one), os.fsencode(other), SWAP)
        else:
            here = -100  # AT_FDCWD
            done = system.renameat2(here, os.fsencode(one), here, os.fsencode(other), SWAP)
    except (OSError, AttributeError, TypeError):
        return False
    return bool(done == 0)


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def _is_plain(name: Any) -> bool:
    """Whether it is the name of a file in a folder, and not a way out of it."""
    return isinstance(name, str) and Path(name).name == name
