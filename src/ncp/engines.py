"""Many data sets, here or on Dask.

The data sets of a list are cut into blocks, and a block is one task: `work(model, numbers, items)`
gives one result for each of its items. Here (`engine=None`) the tasks run one after the other. On
Dask (`engine="dask"`) they run on the workers of a cluster:

* the weights are sent once to each worker, as the bytes of a checkpoint; a worker builds the model
  the first time it sees them and keeps it, by their hash;
* no more tasks are handed over than keep the workers busy, so neither the scheduler nor the caller
  ever holds a million data sets or results;
* results come back as they are ready, each with the number of its item. Dask runs the tasks of a
  worker that dies again elsewhere; should all copies of the weights die, they are sent again.

The samples of a data set depend on the seed and its number only (see `ncp.sampling.sample`), so any
engine, number of workers, size of block or death of a worker gives the same labels.
"""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ncp.model import NCP, load_model
from ncp.network.checkpoint import Checkpoint, save_model, write
from ncp.posterior import Partitions
from ncp.sampling.threads import Progress

if TYPE_CHECKING:
    from distributed import Client, Future

# (model, numbers of the items, items) -> one result for each item
Work = Callable[[NCP, list[int], list[Any]], list[Any]]

ENGINES = ("dask",)
BLOCK_SETS = 64  # data sets of a task
BLOCK_POINTS = 2_000_000  # and the same, in points times samples
AHEAD = 3  # tasks handed over for each thread of the workers
ATTEMPTS = 5  # to send the weights again when every copy was lost


def sample_stream(
    model: NCP,
    xs: Iterable[Any],
    n_samples: int = 1000,
    *,
    orders: int | str = 1,
    seed: int | None = None,
    engine: str | Client | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> Generator[tuple[int, Partitions], None, None]:
    """Samples of one data set after another, as they are ready: (its number, its samples).

    Arguments:
        model: A trained network.
        xs: Data sets `(N, *event_shape)`; they are taken up as they are needed.
        n_samples, orders, seed: As for `NCP.sample_many`, with the same results.
        engine: `None` for this process, `"dask"`, or a `distributed.Client`.
        address: Of a Dask scheduler, as in `tcp://10.0.0.1:8786`; without one, workers are
            started on this machine, one for each core, and stopped at the end.
        progress: Called with (data sets done, data sets in all, as far as that is known).

    >>> from ncp import NetworkSpec
    >>> model = NCP(NetworkSpec(event_shape=1))
    >>> [i for i, samples in sample_stream(model, [[[0.0], [1.0]], [[3.0]]], 10, seed=0)]
    [0, 1]
    """
    seed = secrets.randbits(62) if seed is None else seed
    total = len(xs) if isinstance(xs, Sized) else 0
    points = max(1, BLOCK_POINTS // max(1, int(n_samples)))
    work = partial(_sample, n_samples=n_samples, orders=orders, seed=seed)
    blocks = _blocks((_checked(model, i, x) for i, x in enumerate(xs)), BLOCK_SETS, points)
    # Samplers need no mixture, and its classes may be known to the caller's process only.
    results = run(work, model, blocks, engine, address, with_mixture=False)
    for done, (number, samples) in enumerate(results, 1):
        if progress is not None:
            progress(done, max(total, done))
        yield number, samples


def gather(model: NCP, xs: Iterable[Any], n_samples: int = 1000, **how: Any) -> list[Partitions]:
    """All results of `sample_stream`, in the order of the data sets."""
    results = dict(sample_stream(model, xs, n_samples, **how))
    return [results[i] for i in range(len(results))]


def _checked(model: NCP, number: int, x: Any) -> np.ndarray:
    try:
        model.check_points(x)
    except ValueError as error:
        raise ValueError(f"Data set {number}: {error}") from error
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)


def _sample(model: NCP, numbers: list[int], xs: list[Any], **how: Any) -> list[Partitions]:
    return model.sample_many(xs, streams=numbers, **how)


def _blocks(xs: Iterable[Any], most: int, points: int) -> Iterator[list[tuple[int, Any]]]:
    """Consecutive items with their numbers, at most `most` and (unless one alone) `points`."""
    block: list[tuple[int, Any]] = []
    size = 0
    for item in enumerate(xs):
        n = len(item[1])
        if block and (len(block) == most or size + n > points):
            yield block
            block, size = [], 0
        block.append(item)
        size += n
    if block:
        yield block


def run(
    work: Work,
    model: NCP,
    blocks: Iterable[list[tuple[int, Any]]],
    engine: str | Client | None = None,
    address: str | None = None,
    *,
    with_mixture: bool = True,
) -> Iterator[tuple[int, Any]]:
    """Do work on blocks of numbered items; yields (number, result) as they are ready.

    Arguments:
        work: A function that can be imported on the workers (or a `functools.partial` of one).
        model: Handed to `work`; on a worker, a copy of it.
        blocks: Lists of (number, item).
        engine, address: As for `sample_stream`.
        with_mixture: Whether the copies have the model's mixture.
    """
    if engine is None:
        if address is not None:
            raise ValueError(f"Expected engine='dask' with an address but got {address!r} alone")
        return _run_here(work, model, blocks)
    return _run_on_dask(work, model, blocks, engine, address, with_mixture)


def _run_here(
    work: Work, model: NCP, blocks: Iterable[list[tuple[int, Any]]]
) -> Iterator[tuple[int, Any]]:
    for block in blocks:
        numbers, items = [i for i, _ in block], [item for _, item in block]
        yield from zip(numbers, work(model, numbers, items), strict=True)


# -- Dask --------------------------------------------------------------------------------------


def _run_on_dask(
    work: Work,
    model: NCP,
    blocks: Iterable[list[tuple[int, Any]]],
    engine: str | Client,
    address: str | None,
    with_mixture: bool,
) -> Iterator[tuple[int, Any]]:
    content = model_bytes(model, with_mixture)
    with _client(engine, address) as client:
        yield from _Run(client, work, content).results(iter(blocks))


@contextmanager
def _client(engine: str | Client, address: str | None) -> Iterator[Client]:
    if isinstance(engine, str) and engine not in ENGINES:
        raise ValueError(f"Expected engine None, 'dask' or a Dask client but got {engine!r}")
    try:
        from distributed import Client, LocalCluster
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
    elif address is not None:
        try:
            client = Client(address, timeout="10s", set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(
                f"Expected a Dask scheduler at {address!r} but there is none: {error}"
            ) from error
        with client:
            yield client
    else:
        with (
            LocalCluster(threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            yield client


class _Run:
    """Keeps the workers of a client busy with blocks."""

    def __init__(self, client: Client, work: Work, content: bytes) -> None:
        self.client, self.work, self.content = client, work, content
        self.digest = hashlib.sha256(content).hexdigest()
        self.blocks: dict[Future, list[tuple[int, Any]]] = {}
        self.weights = self._send()

    def _send(self) -> Any:
        self.client.wait_for_workers(1, timeout=60)
        return self.client.scatter(self.content, broadcast=True, hash=False)

    def _submit(self, block: list[tuple[int, Any]]) -> Future:
        future = self.client.submit(
            _on_worker, self.work, self.weights, self.digest, block, pure=False, retries=ATTEMPTS
        )
        self.blocks[future] = block
        return future

    def results(self, blocks: Iterator[list[tuple[int, Any]]]) -> Iterator[tuple[int, Any]]:
        from distributed import as_completed

        try:
            first = [self._submit(block) for block in islice(blocks, self._ahead())]
            waiting = as_completed(first, loop=self.client.loop)
            attempts = ATTEMPTS
            for future in waiting:
                block = self.blocks.pop(future)
                if future.status != "finished":
                    if attempts == 0 or not _was_lost(future):
                        future.result()  # raises what was raised over there
                    attempts -= 1
                    self.weights = self._send()
                    waiting.add(self._submit(block))
                    continue
                results = future.result()
                future.release()
                for following in islice(blocks, max(0, self._ahead() - len(self.blocks))):
                    waiting.add(self._submit(following))
                yield from zip((i for i, _ in block), results, strict=True)
        finally:
            self.client.cancel(list(self.blocks))

    def _ahead(self) -> int:
        """How many tasks keep the workers busy, as many as there are of them now."""
        threads: int = sum(self.client.nthreads().values())
        return AHEAD * max(1, threads)


def _was_lost(future: Future) -> bool:
    """Whether a task failed because what it needs died with its workers, not in our code."""
    from distributed.scheduler import KilledWorker

    return future.status in ("cancelled", "lost") or isinstance(future.exception(), KilledWorker)


_MODELS: dict[str, NCP] = {}  # on a worker: the model it was last sent, by the hash of its bytes


def _on_worker(work: Work, content: bytes, digest: str, block: list[tuple[int, Any]]) -> list[Any]:
    model = _MODELS.get(digest) or _build(content, digest)
    return work(model, [i for i, _ in block], [item for _, item in block])


def _build(content: bytes, digest: str) -> NCP:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.safetensors"
        path.write_bytes(content)
        model = load_model(path)
    _MODELS.clear()
    _MODELS[digest] = model
    return model


def model_bytes(model: NCP, with_mixture: bool = True) -> bytes:
    """The bytes of a model's checkpoint."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.safetensors"
        if with_mixture:
            save_model(path, model)
        else:
            write(path, Checkpoint(model.spec, None, dict(model.state_dict())))
        return path.read_bytes()
