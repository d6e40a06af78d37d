"""The data of the next steps, drawn by a process of its own while this one trains.

Drawing holds Python's lock (NumPy, compiled loops, small tensors), so a thread would not help. The
process gets keys and sends back data. What is drawn for a key depends on nothing but the key, so
it does not matter who draws: when the process is gone, or was asked for other keys than turn out
to be needed, this one draws for itself.

It owns nothing and may be killed at any moment. It ends by itself when this process has ended,
however that came about, since its pipes are closed then.
"""

from __future__ import annotations

import multiprocessing
import queue
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from ncp.training import data
from ncp.training.data import Sequences
from ncp.training.recipe import Recipe

__all__ = ["Prefetcher"]

Key = tuple[int, ...]


class Prefetcher:
    """Draws the data of steps, with `recipe.prefetch` those of so many steps ahead.

    Args:
        recipe: What to draw.
        rank: The number of this process among those that train together.
    """

    def __init__(self, recipe: Recipe, rank: int = 0) -> None:
        self.recipe, self.rank = recipe, rank
        self.asked: deque[Key] = deque()  # keys sent whose data have not been received
        self.process: Any = None

    def __enter__(self) -> Prefetcher:
        if self.recipe.prefetch:
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.join()
            self.keys.close()
            self.results.close()
            self.process = None

    def next(self, rollbacks: int, step: int) -> list[Sequences]:
        """The data of a step."""
        key = (rollbacks, self.rank, step)
        pieces = self._received(key) if self.process is not None else None
        return data.draw(self.recipe, *key) if pieces is None else pieces

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # nothing of this process's state
        get_keys, self.keys = context.Pipe(duplex=False)
        self.results, put_results = context.Pipe(duplex=False)
        self.process = context.Process(
            target=_serve,
            args=(self.recipe, torch.get_num_threads(), get_keys, put_results),
            daemon=True,
            name="ncp-prefetch",
        )
        try:
            with _without_interrupts():
                self.process.start()
        except (TypeError, AttributeError, ValueError, RuntimeError) as error:
            self.process = None
            raise ValueError(
                "Expected a recipe that another process can read for prefetch > 0 "
                f"but got {type(error).__name__}: {error}"
            ) from error
        get_keys.close()  # the other's ends: without them here, the end of it is seen
        put_results.close()

    def _received(self, key: Key) -> list[Sequences] | None:
        """What the process has drawn for a key, the next ones being asked for; None if nothing."""
        try:
            while self.asked and self.asked[0] != key:  # after a rollback
                self.results.recv()
                self.asked.popleft()
            self._ask(key)
            packed = self.results.recv()
            self.asked.popleft()
        except (EOFError, OSError):
            self.__exit__()
            warnings.warn("The process that draws data ahead has ended", stacklevel=3)
            return None
        return None if packed is None else [_unpacked(piece) for piece in packed]

    def _ask(self, key: Key) -> None:
        *rest, step = self.asked[-1] if self.asked else (*key[:-1], key[-1] - 1)
        last = min(key[-1] + self.recipe.prefetch, self.recipe.steps - 1)
        for later in range(step + 1, last + 1):
            self.keys.send((*rest, later))
            self.asked.append((*rest, later))


def _serve(recipe: Recipe, n_threads: int, keys: Connection, results: Connection) -> None:
    """Draw what is asked for until nobody is there to ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's, which ends this too
    torch.set_num_threads(n_threads)  # so that sums round as they do there
    drawn: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_send, args=(drawn, results), daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            key = keys.recv()
            try:
                drawn.put([_packed(piece) for piece in data.draw(recipe, *key)])
            except Exception:  # the trainer draws for itself then, and says what is wrong
                drawn.put(None)


def _send(drawn: queue.SimpleQueue[Any], results: Connection) -> None:
    """Hand over what is drawn, so that drawing does not wait for the trainer."""
    with suppress(OSError):
        while True:
            results.send(drawn.get())


def _packed(piece: Sequences) -> Any:
    """As arrays, which travel through a pipe; tensors would go by way of shared memory."""
    as_array: Callable[[Any], Any] = Tensor.numpy
    return piece.map(as_array)


def _unpacked(piece: Any) -> Sequences:
    as_tensor: Callable[[Any], Tensor] = torch.from_numpy
    return Sequences(*piece).map(as_tensor)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process that is started here never gets Ctrl-C, not even before its own first line."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
