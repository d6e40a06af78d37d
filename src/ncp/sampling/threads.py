"""Thread discipline: our threads, and nobody else's.

Compiled loops run without Python's lock, one sequence each, on plain threads that wait without
spinning. BLAS and torch would each start threads of their own inside ours; on a busy machine two
torch threads were seen to be ten times slower than one. So both are held to one thread while we
work. The calling thread only watches: it can be interrupted, and it reports progress.

A forked process has none of its parent's threads, and torch would wait for them for ever: a child
gets one thread of torch and locks that nobody holds. (joblib, Dask and our engines do not fork.)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch

__all__ = [
    "Watch",
    "denormals_are_zero",
    "fast_products",
    "n_threads",
    "run_jobs",
    "single_threads",
]

Progress = Callable[[int, int], None]
TICK = 0.1  # seconds between looks at the clock, the progress and Ctrl-C


def n_threads() -> int:
    """As many as this process may use cores, or what `NCP_NUM_THREADS` says."""
    wanted = os.environ.get("NCP_NUM_THREADS", "")
    if wanted:
        if not wanted.isdigit() or int(wanted) < 1:
            raise ValueError(f"Expected NCP_NUM_THREADS to be an integer >= 1 but got {wanted!r}")
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


class _Held:
    """How many callers want BLAS on one thread, and what to put back when the last one leaves."""

    lock = threading.Lock()
    callers = 0
    restore = ExitStack()


def _after_fork() -> None:
    _Held.lock, _Held.callers, _Held.restore = threading.Lock(), 0, ExitStack()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def denormals_are_zero() -> Iterator[None]:
    """In this thread numbers below 1e-38 are zeros, to torch and to compiled loops.

    Kernels of distances are fourth powers of each other, so those of far points are numbers that
    the processor has no digits for (denormal), with which it computes a hundred times as slowly.

    Example:
        >>> with denormals_are_zero():
        ...     (torch.tensor([1e-20]) * 1e-20).item()
        0.0
        >>> (torch.tensor([1e-20]) * 1e-20).item() > 0
        True
    """
    before = bool((torch.full((1,), 1e-20) * 1e-20) == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def fast_products() -> Iterator[None]:
    """Torch's float32 products are oneDNN's, if those are as precise here as its other library's.

    MKL leaves half of a processor idle that is not of its own maker. What asks torch for oneDNN is
    called a lower precision, and is one on processors with products of bfloat16 matrices alone.

    Example:
        >>> a = torch.linspace(-1, 1, 4096).view(64, 64)
        >>> with fast_products():
        ...     torch.allclose(a @ a, (a.double() @ a.double()).float(), rtol=1e-4, atol=1e-4)
        True
    """
    before = torch.get_float32_matmul_precision()
    if _is_precise():
        torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@cache
def _is_precise() -> bool:
    """Whether products of "medium" precision have all digits of float32 on this processor."""
    before = torch.get_float32_matmul_precision()
    a = torch.linspace(-1, 1, 128 * 128).view(128, 128).sin()
    try:
        torch.set_float32_matmul_precision("medium")
        error = (a @ a).double() - a.double() @ a.double()
    finally:
        torch.set_float32_matmul_precision(before)
    return bool(error.abs().max() < 1e-4)  # 1e-6 in float32, 1e-2 in bfloat16


@contextmanager
def single_threads() -> Iterator[None]:
    """BLAS and torch on one thread each, for as long as this lasts anywhere in the process.

    And numbers that are next to nothing are zeros, in the calling thread.
    """
    import scipy.linalg.cython_blas  # noqa: F401  numba's BLAS: loaded before it is looked for

    own = torch.get_num_threads()  # of the calling thread: each has a number, which BLAS may set
    with _Held.lock:
        if _Held.callers == 0:
            _Held.restore.enter_context(_controller().limit(limits=1, user_api="blas"))
        _Held.callers += 1
    torch.set_num_threads(1)
    try:
        with denormals_are_zero():
            yield
    finally:
        with _Held.lock:
            _Held.callers -= 1
            if _Held.callers == 0:
                _Held.restore.close()
        torch.set_num_threads(own)


class Watch:
    """What a loop and its watcher share: a flag to stop, and how far each job is."""

    def __init__(self, n_jobs: int, total: int, progress: Progress | None) -> None:
        self.stop = np.zeros(1, np.uint8)
        self.done = np.zeros((n_jobs, 1), np.int64)
        self.total, self.progress = total, progress
        self.told = 0

    def tell(self) -> None:
        """Report to the caller's hook; a loop that starts again with more room takes none back."""
        self.told = max(self.told, min(int(self.done.sum()), self.total))
        if self.progress is not None:
            self.progress(self.told, self.total)

    def finish(self) -> None:
        """Report that all is done."""
        if self.progress is not None:
            self.progress(self.total, self.total)


def run_jobs(jobs: list[Callable[[], None]], watch: Watch, small: bool) -> None:
    """Run all jobs; a `small` lot in this thread, else on several, watched from here."""
    if small or not jobs:
        for job in jobs:
            job()
    else:
        _run_watched(jobs, watch)


def _run_watched(jobs: list[Callable[[], None]], watch: Watch) -> None:
    waiting = iter(jobs)
    lock = threading.Lock()

    def work() -> None:
        with denormals_are_zero():
            while not watch.stop[0]:
                with lock:
                    job = next(waiting, None)
                if job is None:
                    return
                job()

    pool = ThreadPoolExecutor(
        min(n_threads(), len(jobs)), initializer=torch.set_num_threads, initargs=(1,)
    )
    running: set[Future[None]] = set()
    try:
        running = {pool.submit(work) for _ in range(min(n_threads(), len(jobs)))}
        while running:
            ready, running = wait(running, timeout=TICK, return_when=FIRST_COMPLETED)
            for one in ready:
                one.result()
            watch.tell()
    except BaseException:
        watch.stop[0] = 1  # every loop looks at it once a point
        raise
    finally:
        pool.shutdown(wait=True)
