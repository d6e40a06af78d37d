"""Samples of one data set after another, here or on Dask.

Data sets are cut into blocks, and a block is one task of an engine (`ncp.engine`). The samples of a
data set depend on the seed and its number only (see `ncp.sampling.sample`), so any engine, number
of workers, size of block or death of a worker gives the same labels.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from torch import Tensor

from ncp.engine import Parcel, map_blocks
from ncp.network.checkpoint import Checkpoint, read, save_model, write
from ncp.network.network import Network
from ncp.sampling.sample import Drawn, sample_many

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["from_bytes", "sample_stream", "to_bytes"]

BLOCK_SETS = 64  # data sets of a task
BLOCK_POINTS = 2_000_000  # and the same, in points times samples

N = TypeVar("N", bound=Network)
Numbered = list[tuple[int, Any]]


def sample_stream(
    network: Network,
    xs: Iterable[Any],
    n_samples: int = 1000,
    *,
    orders: int | str = 1,
    seed: int | None = None,
    engine: str | Client | None = None,
    address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Generator[tuple[int, np.ndarray, Drawn], None, None]:
    """Samples of one data set after another, as they are ready: (number, data set, samples).

    Args:
        network: A trained one.
        xs: Data sets `(N, *event_shape)`; they are taken up as they are needed.
        n_samples: Of each data set.
        orders: As for `ncp.sampling.sample.sample_many`, with the same results.
        seed: The same.
        engine: `None` for this process, `"dask"`, or a `distributed.Client`.
        address: Of a Dask scheduler, as for `ncp.engine.map_blocks`.
        progress: Called with (data sets done, data sets in all, as far as that is known).

    Example:
        >>> from ncp.network.network import NetworkSpec
        >>> network = Network(NetworkSpec(event_shape=1))
        >>> [i for i, x, drawn in sample_stream(network, [[[0.0], [1.0]], [[3.0]]], 10, seed=0)]
        [0, 1]
    """
    seed = secrets.randbits(62) if seed is None else seed
    total = len(xs) if isinstance(xs, Sized) else 0
    points = max(1, BLOCK_POINTS // max(1, int(n_samples)))
    work = partial(_sample, n_samples=n_samples, orders=orders, seed=seed)
    blocks = _blocks((_checked(network, i, x) for i, x in enumerate(xs)), BLOCK_SETS, points)
    # Samplers need no mixture, and its classes may be known to the caller's process only.
    parcel = Parcel(
        network, partial(to_bytes, with_mixture=False), partial(from_bytes, kind=Network)
    )
    done = 0
    for block, results in map_blocks(work, blocks, parcel, engine=engine, address=address):
        for (number, x), drawn in zip(block, results, strict=True):
            done += 1
            if progress is not None:
                progress(done, max(total, done))
            yield number, x, drawn


def _checked(network: Network, number: int, x: Any) -> np.ndarray:
    try:
        network.check_points(x)
    except ValueError as error:
        raise ValueError(f"Data set {number}: {error}") from error
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)


def _sample(network: Network, block: Numbered, **how: Any) -> list[Drawn]:
    return sample_many(network, [x for _, x in block], streams=[i for i, _ in block], **how)


def _blocks(xs: Iterable[Any], most: int, points: int) -> Iterator[Numbered]:
    """Consecutive items with their numbers, at most `most` and (unless one alone) `points`."""
    block: Numbered = []
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


# -- a network on its way to a worker ----------------------------------------------------------


def to_bytes(network: Network, with_mixture: bool = True) -> bytes:
    """The bytes of its checkpoint."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.safetensors"
        if with_mixture:
            save_model(path, network)
        else:
            write(path, Checkpoint(network.spec, None, dict(network.state_dict())))
        return path.read_bytes()


def from_bytes(content: bytes, kind: type[N]) -> N:
    """A network of the kind, in evaluation mode."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.safetensors"
        path.write_bytes(content)
        return read(path).build(kind)
