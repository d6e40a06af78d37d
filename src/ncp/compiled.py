"""Compiled loops, kept on disk where there is a place for them: the one way to use numba here.

numba keeps compiled functions beside their source or in the user's cache directory, and fails where
neither can be written. Another process may overwrite its index between two writes, and it looks at
the file of a function but not at those of the functions that it calls. So each compiled function
has a file of its own here, named by all that determines it:

    name = hash(signature, code, CPU, numba's version, text of all source files that it reaches),

written beside its place and moved there. Whatever cannot be read is compiled anew; what cannot be
written stays in memory, and one warning says so. Import this module where numba is needed and not
before: numba is slow to import.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, overload

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

__all__ = ["njit"]

# Division by zero gives infinity or NaN: a loop that could raise is not made of vectors.
DEFAULTS = {"nogil": True, "error_model": "numpy"}
Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def njit(function: Function) -> Function: ...


@overload
def njit(**options: Any) -> Callable[[Function], Function]: ...


def njit(function: Any = None, **options: Any) -> Any:
    """`numba.njit` without the GIL, cached on disk if possible.

    A type checker's wrapper (in the tests) is taken off. Threads of your own around such functions
    are safe, also after a fork; `parallel=True` is not, whatever the threading layer.

    Args:
        function: What to compile; without it, a decorator is returned.
        **options: Of `numba.njit`.

    Example:
        >>> @njit
        ... def double(x):
        ...     return 2 * x
        >>> double(21)
        42
    """
    if function is None:
        return lambda function: njit(function, **options)
    dispatcher = numba.njit(**DEFAULTS | options)(inspect.unwrap(function))
    if os.path.exists(inspect.getfile(dispatcher.py_func)):  # not typed at a prompt
        try:
            dispatcher._cache = _Cache(dispatcher.py_func)
        except (RuntimeError, OSError):  # no directory can be written
            _stays_in_memory()
    return dispatcher


class _Cache(FunctionCache):
    """That of one function; it never fails."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = _stamp(function)
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a torn file, or no access: as if it were not there
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError:
            _stays_in_memory()


class _Files(IndexDataCacheFile):
    """A file for each key, without an index that could disagree with them."""

    def _name(self, key: Any) -> str:
        everything = repr((key, self._source_stamp, self._version))
        number = int(hashlib.sha256(everything.encode()).hexdigest()[:16], 16)
        return str(self._data_name(number))

    def load(self, key: Any) -> Any:
        return self._load_data(self._name(key))

    def save(self, key: Any, data: Any) -> None:
        self._save_data(self._name(key), data)

    def flush(self) -> None:
        """Nothing to forget: what is out of date is never asked for."""


def _stamp(function: Callable[..., Any]) -> str:
    """The hash of all source files that a function and the compiled functions it names are in."""
    waiting, seen = [function], {function}
    while waiting:
        current = waiting.pop()
        for name in current.__code__.co_names:
            called = getattr(current.__globals__.get(name), "py_func", None)
            if called is not None and called not in seen:
                seen.add(called)
                waiting.append(called)
    digest = hashlib.sha256()
    for path in sorted({inspect.getfile(each) for each in seen}):
        with open(path, "rb") as file:
            digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


@functools.cache  # said once
def _stays_in_memory() -> None:
    warnings.warn(
        "Compiled code is kept in memory only, because no cache directory can be written; "
        "starting takes longer. Set NUMBA_CACHE_DIR to a directory of yours.",
        RuntimeWarning,
        stacklevel=2,
    )
