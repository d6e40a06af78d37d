"""Compiled loops, kept on disk where there is a place for them: the one way to use numba here.

numba keeps compiled functions beside their source or in the user's cache directory, and fails where
neither can be written. Another process may overwrite its index between two writes, and it looks at
the file of a function but not at those of the functions that it calls. So each compiled function
has a file of its own here, named by all that determines it:

    name = hash(signature, code, CPU, numba's version, text of all source files that it reaches),

written beside its place and moved there. Whatever cannot be read is compiled anew; what cannot be
written stays in memory, and one warning says so. Import this module where numba is needed and not
before: numba is slow to import.

Logarithms and exponentials of the C library are computed one by one; those here, by arithmetic
alone, several at a time.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import inspect
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, overload

import numba
import numba.extending
import numpy as np
from numba.core import config
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.event import Event, Listener, register

__all__ = ["FAST", "INSIDE", "compile_elsewhere", "exp_minus", "log1p", "njit"]

MOST_SECONDS = 60.0  # to wait for another process, which takes five
_ELSEWHERE: dict[str, subprocess.Popen[bytes]] = {}  # by the name of what it will write

# Division by zero gives infinity or NaN: a loop that could raise is not made of vectors. Functions
# are called, never handed over as values: that would take a further way in, compiled for each.
DEFAULTS = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
# Sums may be taken in any order, and fused: vectors. Infinity and NaN keep their meaning.
FAST = {"fastmath": {"reassoc", "contract", "arcp", "nsz"}}
INSIDE = {"no_cpython_wrapper": True}  # for what compiled functions call and Python does not
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
        found = None
        with suppress(Exception):  # a torn file, or no access: as if it were not there
            found = super().load_overload(sig, target_context)
        if found is None:
            _compiles()
        return found

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
        name = self._name(key)
        if (other := _ELSEWHERE.pop(name, None)) is not None:
            _compiles()
            with suppress(subprocess.TimeoutExpired):
                other.wait(MOST_SECONDS)
        return self._load_data(name)

    def missing(self, key: Any) -> str | None:
        """The name of a file that is not there."""
        name = self._name(key)
        return None if os.path.exists(self._data_path(name)) else name

    def save(self, key: Any, data: Any) -> None:
        self._save_data(self._name(key), data)

    def flush(self) -> None:
        """Nothing to forget: what is out of date is never asked for."""


def compile_elsewhere(function: Any, types: Callable[[], tuple[Any, ...]]) -> None:
    """Have another process compile a function, if it is not on the disk; its first call waits.

    Where that fails, the first call compiles as always.

    Args:
        function: What `njit` made, at the top of a module.
        types: Gives numba's types of the arguments; at the top of the same module.
    """
    cache, python = function._cache, "" if hasattr(sys, "frozen") else sys.executable
    if not python or not isinstance(cache, _Cache) or os.cpu_count() == 1:
        return
    key = cache._index_key(types(), function.targetctx.codegen())
    name = cache._cache_file.missing(key)
    if name is None or name in _ELSEWHERE:
        return
    module = function.py_func.__module__
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; import {module} as m; "
        f"m.{function.py_func.__name__}.compile(m.{types.__name__}())"
    )
    with suppress(OSError):
        _ELSEWHERE[name] = subprocess.Popen(
            [python, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


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
def _compiles() -> None:
    logging.getLogger("ncp").info("compiling for this machine, once: some seconds")


@functools.cache  # said once
def _stays_in_memory() -> None:
    warnings.warn(
        "Compiled code is kept in memory only, because no cache directory can be written; "
        "starting takes longer. Set NUMBA_CACHE_DIR to a directory of yours.",
        RuntimeWarning,
        stacklevel=2,
    )


class _Compiling(Listener):
    """What is different while numba compiles: a sixth of the time was spent without any use.

    No garbage is looked for, since there is little of it among many objects. And what only compiled
    functions call is optimised again as a part of each, so it is optimised lightly by itself.
    """

    def __init__(self) -> None:
        self.before: list[tuple[bool, Any]] = []  # of this function and those that need it

    def on_start(self, event: Event) -> None:  # numba holds its lock, so one thread at a time
        self.before.append((gc.isenabled(), config.OPT))
        gc.disable()
        full = self.before[0][1]
        inside = INSIDE.items() <= event.data["dispatcher"].targetoptions.items()
        config.OPT = type(full)(min(full, 1)) if inside else full

    def on_end(self, event: Event) -> None:
        collects, config.OPT = self.before.pop()
        if collects:
            gc.enable()


register("numba:compile", _Compiling())

# -- arithmetic ---------------------------------------------------------------------------------

_inlined = njit(forceinline=True, **FAST, **INSIDE)


@_inlined
def log1p(x: Any) -> Any:
    """log(1 + x) of x >= 0, to 4e-16: arithmetic only, so that a loop of it becomes vectors.

    With 1 + x = 2^e m, sqrt(1/2) <= m < sqrt(2), and s = (m - 1) / (m + 1), it is
    e log 2 + 2 (s + s^3 / 3 + s^5 / 5 + ...).
    """
    bits = np.float64(1.0 + x).view(np.int64)
    e = (bits - np.int64(0x3FE6A09E667F3BCD)) >> np.int64(52)
    m = np.int64(bits - (e << np.int64(52))).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = ((1 / 19 * z + 1 / 17) * z + 1 / 15) * z + 1 / 13
    series = (((series * z + 1 / 11) * z + 1 / 9) * z + 1 / 7) * z + 1 / 5
    series = (series * z + 1 / 3) * z
    return np.int32(e) * 0.6931471805599453 + 2.0 * s * (1.0 + series)


def exp_minus(x: Any) -> Any:
    """exp(-x) of x >= 0 in compiled loops: arithmetic only, as `log1p` is, in the precision of x.

    To 4e-16, and next to nothing beyond 708; to 2e-7 and beyond 87 if x is of single precision.
    With -x = n log 2 + r, |r| <= log(2) / 2, it is 2^n (1 + r + r^2 / 2 + ...).
    """
    raise NotImplementedError("only numba calls it")


@numba.extending.overload(exp_minus, jit_options={"forceinline": True, **FAST, **INSIDE})
def _exp_minus(x: Any) -> Any:
    chosen = _exp_minus_single if x == numba.float32 else _exp_minus_double
    return inspect.unwrap(chosen)  # of a type checker's wrapper


exp_minus.py_func = exp_minus  # type: ignore[attr-defined]  # as numba's own have, for `_stamp`


def _exp_minus_double(x: Any) -> Any:
    x = min(np.float64(x), 708.0)
    n = np.int32(x * 1.4426950408889634 + 0.5)
    r = (n * 0.6931471803691238 - x) + n * 1.9082149292705877e-10
    series = ((r / 479001600 + 1 / 39916800) * r + 1 / 3628800) * r + 1 / 362880
    series = (((series * r + 1 / 40320) * r + 1 / 5040) * r + 1 / 720) * r + 1 / 120
    series = (((series * r + 1 / 24) * r + 1 / 6) * r + 1 / 2) * r * r + r + 1.0
    return series * np.int64((1023 - np.int64(n)) << np.int64(52)).view(np.float64)


_f = np.float32  # a plain literal would turn the loop into one of doubles


def _exp_minus_single(x: Any) -> Any:
    x = min(x, _f(87))
    n = np.int32(x * _f(1.4426950408889634) + _f(0.5))
    r = (_f(n) * _f(0.693145751953125) - x) + _f(n) * _f(1.428606820309417e-06)
    series = ((r * _f(1 / 5040) + _f(1 / 720)) * r + _f(1 / 120)) * r + _f(1 / 24)
    series = ((series * r + _f(1 / 6)) * r + _f(1 / 2)) * r * r + r + _f(1)
    return series * np.int32((np.int32(127) - n) << np.int32(23)).view(np.float32)
