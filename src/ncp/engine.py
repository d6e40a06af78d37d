"""One function over many blocks of work: here, on all cores, or on Dask.

    map_blocks(work, blocks, shared)  yields  (block, work(shared value, block))

as results are ready: one after another in this process (`engine=None`), in any order in processes
of this machine (`"processes"`) or on the workers of a Dask cluster (`"dask"` with an address, or a
client). The engine knows nothing of what the work is. Away from this process

* what all blocks share (a trained network, say) is a `Parcel`: sent once to each worker as bytes,
  unpacked the first time a worker needs it and kept there;
* no more tasks are handed over than keep the workers busy, so neither a scheduler nor the caller
  ever holds a million blocks or results;
* the tasks of a worker that dies run again elsewhere.

Processes of this machine talk over pipes, so nothing listens on a port. (A local cluster of Dask
would: an open scheduler runs whatever it is sent, by any user of the machine. `"dask"` without an
address therefore means `"processes"`.) A Dask worker whose code or libraries differ from the
caller's is refused, since it would give other results without a word.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["ENGINES", "Parcel", "map_blocks"]

T = TypeVar("T")
Block = TypeVar("Block")
Result = TypeVar("Result")

ENGINES = ("processes", "dask")
AHEAD = 3  # tasks handed over for each thread of the workers
ATTEMPTS = 5  # to send the parcel again when every copy was lost
PATIENCE = 60  # seconds until the first worker must be there
LIBRARIES = ("numpy", "scipy", "numba", "torch")  # whose versions decide about the last bits


@dataclass(frozen=True)
class Parcel(Generic[T]):
    """What all blocks share, and how it travels.

    Args:
        value: The thing itself.
        pack: Makes bytes of it.
        unpack: Makes it of bytes; a function that can be imported on the workers.
    """

    value: T
    pack: Callable[[T], bytes]
    unpack: Callable[[bytes], T]


def map_blocks(
    work: Callable[[T, Block], Result],
    blocks: Iterable[Block],
    shared: Parcel[T],
    *,
    engine: str | Client | None = None,
    address: str | None = None,
) -> Iterator[tuple[Block, Result]]:
    """Do work on blocks; yields (block, result) as they are ready.

    Args:
        work: A function that can be imported on the workers (or a `functools.partial` of one).
        blocks: Whatever it takes; they are taken up as they are needed.
        shared: Its first argument.
        engine: `None` for this process, `"processes"` for one process a core, `"dask"`, or a
            `distributed.Client`.
        address: Of a Dask scheduler, as in `tcp://10.0.0.1:8786`.

    Example:
        >>> three = Parcel(3, str.encode, int)
        >>> list(map_blocks(lambda factor, block: factor * block, [1, 2], three))
        [(1, 3), (2, 6)]
    """
    if engine is None:
        if address is not None:
            raise ValueError(f"Expected engine='dask' with an address but got {address!r} alone")
        return ((block, work(shared.value, block)) for block in blocks)
    if isinstance(engine, str) and engine not in ENGINES:
        raise ValueError(f"Expected engine None or one of {ENGINES} but got {engine!r}")
    if isinstance(engine, str) and address is None:
        return _Pool(work, shared).results(iter(blocks))
    if engine == "processes":
        raise ValueError("Expected engine='dask' with an address but got 'processes'")
    return _on_dask(work, blocks, shared, engine, address)


# -- processes of this machine -----------------------------------------------------------------


class _Pool:
    """Keeps a process a core busy with blocks."""

    def __init__(self, work: Callable[[T, Block], Result], shared: Parcel[T]) -> None:
        self.work, self.unpack = work, shared.unpack
        self.content = shared.pack(shared.value)
        self.size = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1

    def results(self, blocks: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        waiting: list[Any] = []  # blocks of a pool that broke
        for attempt in range(ATTEMPTS):
            pool = self._start()
            running: dict[futures.Future[Any], Any] = {}
            try:
                yield from self._drain(pool, chain(waiting, blocks), running)
                return
            except futures.process.BrokenProcessPool:
                waiting = list(running.values())
                if attempt == ATTEMPTS - 1:
                    raise MemoryError("worker processes were killed again and again") from None
            finally:
                _stop(pool)

    def _start(self) -> futures.ProcessPoolExecutor:
        # A fork would copy locks that a thread of torch or numba may hold.
        context = multiprocessing.get_context("spawn")
        return futures.ProcessPoolExecutor(self.size, context, _begin, (self.content,))

    def _drain(
        self,
        pool: futures.ProcessPoolExecutor,
        blocks: Iterator[Any],
        running: dict[futures.Future[Any], Any],
    ) -> Iterator[tuple[Any, Any]]:
        while True:
            for block in islice(blocks, AHEAD * self.size - len(running)):
                running[self._submit(pool, block)] = block
            if not running:
                return
            done, _ = futures.wait(running, return_when=futures.FIRST_COMPLETED)
            for future in done:
                result = future.result()
                yield running.pop(future), result

    def _submit(self, pool: futures.ProcessPoolExecutor, block: Any) -> futures.Future[Any]:
        try:
            return pool.submit(_in_process, self.work, self.unpack, block)
        except futures.process.BrokenProcessPool as error:  # the block was taken: it must not go
            failed: futures.Future[Any] = futures.Future()
            failed.set_exception(error)
            return failed


def _stop(pool: futures.ProcessPoolExecutor) -> None:
    """At once, whatever the processes are doing: nobody waits for it any more."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
        process.join()


def _begin(content: bytes) -> None:
    """In a new process, before torch is imported: one thread, and an end with the parent's end."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _HERE["content"] = content


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _in_process(
    work: Callable[[Any, Block], Result], unpack: Callable[[bytes], Any], block: Block
) -> Result:
    if "value" not in _HERE:
        _HERE["value"] = unpack(_HERE.pop("content"))
    return work(_HERE["value"], block)


_HERE: dict[str, Any] = {}  # of a worker process: the parcel


# -- Dask --------------------------------------------------------------------------------------


def _on_dask(
    work: Callable[[T, Block], Result],
    blocks: Iterable[Block],
    shared: Parcel[T],
    engine: str | Client,
    address: str | None,
) -> Iterator[tuple[Block, Result]]:
    with _client(engine, address) as client:
        yield from _Run(client, work, shared).results(iter(blocks))


@contextmanager
def _client(engine: str | Client, address: str | None) -> Iterator[Client]:
    try:
        from distributed import Client
    except ImportError:
        raise ValueError(
            "Expected Dask to be installed for engine='dask': "
            "pip install 'neural-clustering-process[dask]'"
        ) from None
    if not isinstance(engine, str):
        if not isinstance(engine, Client):
            raise ValueError(f"Expected engine None, 'dask' or a Dask client but got {engine!r}")
        if address is not None:
            raise ValueError("Expected a Dask client or an address but got both")
        yield engine
        return
    assert address is not None
    with _remote(address) as client:
        yield client


def _remote(address: str) -> Client:
    from distributed import Client

    try:
        return Client(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(
            f"Expected a Dask scheduler at {address!r} but there is none: {error}"
        ) from error


class _Run:
    """Keeps the workers of a client busy with blocks."""

    def __init__(self, client: Client, work: Callable[..., Any], shared: Parcel[Any]) -> None:
        self.client, self.work, self.unpack = client, work, shared.unpack
        self.content = shared.pack(shared.value)
        self.digest = hashlib.sha256(self.content).hexdigest()
        self.expected = versions(_package(work))
        self.blocks: dict[Future, Any] = {}
        self.where = client.scheduler.address
        self.sent = self._send()

    def _send(self) -> Any:
        try:
            self.client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError:
            raise ValueError(
                f"Expected a Dask worker at {self.where} within {PATIENCE} s but none came; "
                "start one with: dask worker ADDRESS"
            ) from None
        return self.client.scatter(self.content, broadcast=True, hash=False)

    def _submit(self, block: Any) -> Future:
        what = (self.work, self.unpack, self.sent, self.digest, self.expected, block)
        future = self.client.submit(_on_worker, *what, pure=False, retries=ATTEMPTS)
        self.blocks[future] = block
        return future

    def results(self, blocks: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        try:
            yield from self._drain(blocks)
        except (OSError, RuntimeError, futures.CancelledError) as error:
            if self.client.status == "running" and not _is_cut_off(error):  # not Dask's
                raise
            raise ConnectionError(
                f"The Dask scheduler at {self.where} went away; results so far are kept"
            ) from error
        finally:
            with suppress(OSError, RuntimeError, futures.CancelledError):
                self.client.cancel(list(self.blocks))

    def _drain(self, blocks: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        from distributed import as_completed

        first = [self._submit(block) for block in islice(blocks, self._ahead())]
        waiting = as_completed(first, loop=self.client.loop)
        attempts = ATTEMPTS
        for future in waiting:
            block = self.blocks.pop(future)
            if future.status != "finished":
                if attempts == 0 or not _was_lost(future):
                    future.result()  # raises what was raised over there
                attempts -= 1
                self.sent = self._send()
                waiting.add(self._submit(block))
                continue
            result = future.result()
            future.release()
            for following in islice(blocks, max(0, self._ahead() - len(self.blocks))):
                waiting.add(self._submit(following))
            yield block, result

    def _ahead(self) -> int:
        """How many tasks keep the workers busy, as many as there are of them now."""
        threads: int = sum(self.client.nthreads().values())
        return AHEAD * max(1, threads)


def _is_cut_off(error: BaseException) -> bool:
    """Whether a connection of Dask's broke, which its client may not have noticed yet."""
    from distributed.comm import CommClosedError

    return isinstance(error, CommClosedError)


def _was_lost(future: Future) -> bool:
    """Whether a task failed because what it needs died with its workers, not in our code."""
    from distributed.scheduler import KilledWorker

    return future.status in ("cancelled", "lost") or isinstance(future.exception(), KilledWorker)


# -- on a worker -------------------------------------------------------------------------------

_UNPACKED: dict[str, Any] = {}  # the parcel that was last sent, by its hash


def _on_worker(
    work: Callable[[Any, Block], Result],
    unpack: Callable[[bytes], Any],
    content: bytes,
    digest: str,
    expected: dict[str, str],
    block: Block,
) -> Result:
    found = versions(_package(work))
    if found != expected:
        raise ValueError(_difference(expected, found))
    if digest not in _UNPACKED:
        value = unpack(content)
        _UNPACKED.clear()
        _UNPACKED[digest] = value
    return work(_UNPACKED[digest], block)


def _difference(expected: dict[str, str], found: dict[str, str]) -> str:
    differ = [name for name in expected if found.get(name) != expected[name]]
    wanted = ", ".join(f"{name} {expected[name]}" for name in differ)
    got = ", ".join(f"{name} {found.get(name, 'missing')}" for name in differ)
    return f"Expected Dask workers with {wanted}, as here, but one has {got}"


def _package(work: Callable[..., Any]) -> str:
    """The top-level package of a function."""
    while isinstance(work, functools.partial):
        work = work.func
    return str(work.__module__).partition(".")[0]


@functools.cache
def versions(package: str) -> dict[str, str]:
    """The hash of a package's source, and the versions of what it computes with.

    Example:
        >>> sorted(versions("json"))[:2]
        ['Python', 'json']
    """
    found = {"Python": ".".join(map(str, sys.version_info[:2])), package: _source_hash(package)}
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _source_hash(package: str) -> str:
    spec = importlib.util.find_spec(package) if package != "__main__" else None
    places: Sequence[str] = (spec.submodule_search_locations or []) if spec is not None else []
    digest = hashlib.sha256()
    for root in map(Path, places):
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"of source {digest.hexdigest()[:12]}"
