r"""What is on trial, as callables and arrays, and data sets whose true partition is known.

A sampler q(c | x) is judged on data sets whose true partition is known because we drew it:

    c* ~ p(c),   x ~ p(x | c*),   c_1, ..., c_L ~ q(c | x).

If q is the posterior, then c* is one more draw from it: (c*, c_1, ..., c_L) are exchangeable
given x. What follows from that is tested in the other modules of this folder.

`sample_many(data_sets, n_samples=..., seed=...)` returns, for each data set, rows of labels with
weights (anything with `labels`, `weights` and `log_q`, or a tuple of labels (U, N), weights (U,)
and, for importance weights, log q (U,)). `log_prob(x, labels)` takes x (N, *event) with labels
(R, N), or x (B, N, *event) with labels (B, N).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ncp.generative.model import GenerativeModel

__all__ = [
    "Draws",
    "LogProb",
    "Progress",
    "SampleMany",
    "Samples",
    "Simulation",
    "as_draws",
    "as_numpy",
    "evaluate",
    "evaluate_rows",
    "seeds_of",
    "simulate",
    "tell",
]

Progress = Callable[[str, int, int], None]
LogProb = Callable[[Tensor, Tensor], Any]

POINTS_AT_ONCE = 50_000
LEVEL = 0.01  # a right posterior fails a test this often


@runtime_checkable
class SampleMany(Protocol):
    """Draws from q(c | x) for many data sets at once; `NCP.sample_many` is one."""

    def __call__(self, xs: Sequence[Any], /, *, n_samples: int, seed: int) -> Sequence[Any]: ...


@runtime_checkable
class Samples(Protocol):
    """Samples of one data set that know their weights; `ncp.Partitions` are."""

    @property
    def labels(self) -> np.ndarray: ...

    @property
    def weights(self) -> np.ndarray: ...

    @property
    def log_q(self) -> np.ndarray: ...


class Draws(NamedTuple):
    """Posterior draws of one data set: distinct rows, normalised weights, log q if known."""

    labels: Int64[np.ndarray, "rows points"]
    weights: Float64[np.ndarray, " rows"]
    log_q: Float64[np.ndarray, " rows"] | None = None


def as_draws(result: Any) -> Draws:
    """What a sampler returned for one data set, as `Draws`.

    Example:
        >>> as_draws((np.array([[0, 0], [0, 1]]), np.array([3, 1]))).weights
        array([0.75, 0.25])
    """
    if isinstance(result, Samples):
        return Draws(result.labels, result.weights, result.log_q)
    labels, weights, *rest = result
    labels, weights = np.asarray(labels, dtype=np.int64), np.asarray(weights, dtype=np.float64)
    if labels.ndim != 2 or weights.shape != labels.shape[:1] or not len(labels):
        raise ValueError(
            "Expected labels of shape (U, N) and weights of shape (U,) "
            f"but got {labels.shape} and {weights.shape}"
        )
    log_q = np.asarray(rest[0], dtype=np.float64) if rest and rest[0] is not None else None
    return Draws(labels, weights / weights.sum(), log_q)


@dataclass(frozen=True, eq=False)
class Simulation:
    """Data sets from the prior, their true partitions, and what the sampler says about them."""

    x: tuple[Tensor, ...]
    labels: tuple[np.ndarray, ...]
    draws: tuple[Draws, ...]
    n_samples: int

    def __len__(self) -> int:
        return len(self.x)


def simulate(
    sample_many: SampleMany,
    mixture: GenerativeModel,
    *,
    n_datasets: int = 1000,
    n_points: int | None = None,
    n_samples: int = 200,
    seed: int = 0,
    batch_size: int = 50,
    progress: Progress | None = None,
) -> Simulation:
    """Draw c* ~ p(c), x ~ p(x | c*) and L samples of q(c | x), for many data sets.

    Args:
        sample_many: the sampler on trial.
        mixture: the model that it claims to invert.
        n_datasets: the number of data sets D.
        n_points: N; by default uniform in `mixture.sizes`, anew for every batch.
        n_samples: L.
        seed: fixes the data and is passed on, changed for every batch, to the sampler.
        batch_size: data sets per call of the sampler.
        progress: called as `progress(what, done, total)`.
    """
    seeds = seeds_of(seed, 1 + -(-n_datasets // batch_size))
    generator = torch.Generator().manual_seed(seeds[0])
    x: list[Tensor] = []
    labels: list[np.ndarray] = []
    draws: list[Draws] = []
    for start, batch_seed in zip(range(0, n_datasets, batch_size), seeds[1:], strict=True):
        size = min(batch_size, n_datasets - start)
        batch = mixture.sample(size, n_points, generator=generator)
        result = sample_many(list(batch.x), n_samples=n_samples, seed=batch_seed)
        if len(result) != size:
            raise ValueError(f"Expected samples for {size} data sets but got {len(result)}")
        x.extend(batch.x)
        labels.extend(batch.labels.numpy())
        draws.extend(as_draws(one) for one in result)
        tell(progress, f"{n_samples} samples a data set", start + size, n_datasets)
    return Simulation(tuple(x), tuple(labels), tuple(draws), n_samples)


def evaluate(log_prob: LogProb, x: Tensor, labels: Tensor) -> np.ndarray:
    with torch.no_grad():
        return as_numpy(log_prob(x, labels)).astype(np.float64)


def evaluate_rows(
    log_prob: LogProb,
    x: Tensor,
    row: Tensor,
    labels: Tensor,
    what: str,
    progress: Progress | None,
    orders: Tensor | None = None,
) -> np.ndarray:
    """log q of labels (R, N) for data sets x[row], the points of each in its own order."""
    step = max(1, POINTS_AT_ONCE // labels.shape[1])
    parts = []
    for i in range(0, len(row), step):
        points = x[row[i : i + step]]
        if orders is not None:
            points = points[torch.arange(len(points))[:, None], orders[i : i + step]]
        parts.append(evaluate(log_prob, points, labels[i : i + step]))
        tell(progress, what, min(i + step, len(row)), len(row))
    return np.concatenate(parts)


def as_numpy(array: Any) -> np.ndarray:
    return array.detach().cpu().numpy() if isinstance(array, Tensor) else np.asarray(array)


def tell(progress: Progress | None, what: str, done: int, total: int) -> None:
    if progress is not None:
        progress(what, done, total)


def seeds_of(seed: int, n: int) -> list[int]:
    """Unrelated seeds: data and sampler seeded alike would share their random numbers."""
    return [int(s) for s in np.random.SeedSequence(seed).generate_state(n)]
