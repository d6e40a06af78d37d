"""What a partition is.

A partition of N points is a row of labels ``c_0, ..., c_{N-1}`` in *order of appearance*: the
first point has label 0, and every later point has either a label seen before it or the next
unused one,

    c_0 = 0,    0 <= c_n <= 1 + max(c_0, ..., c_{n-1}).

Such a row is a restricted growth string; each partition has exactly one, so equality of
partitions is equality of rows. There are Bell(N) of them. All functions work on the last axis
and accept any number of axes before it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ncp._files import Archive, write_atomically

if TYPE_CHECKING:
    from arviz import InferenceData
    from pandas import DataFrame

    from ncp.importance import Report
    from ncp.mixture import Mixture
    from ncp.summary import PointEstimate, Summary

ArrayLike: TypeAlias = Tensor | np.ndarray | Sequence[Any]

LARGEST_ENUMERATION = 12  # Bell(12) is 4.2 million rows, 400 MB; Bell(13) would be 2.9 GB


def as_tensor(array: ArrayLike) -> Tensor:
    """A tensor with the array's values, those of lists in float64 or int64.

    Read-only, reversed and foreign-endian numpy arrays are copied, which torch cannot share.
    """
    tensors = isinstance(array, Sequence) and any(isinstance(item, Tensor) for item in array)
    if not isinstance(array, Tensor) and not tensors:
        array = np.asarray(array)
    if isinstance(array, np.ndarray):
        if array.dtype.kind not in "biuf":
            raise ValueError(f"Expected an array of numbers but got dtype {array.dtype}")
        # of the several names that NumPy has for a type of number, torch knows one
        plain = np.dtype(f"{array.dtype.kind}{min(array.dtype.itemsize, 8)}")
        if array.dtype.char != plain.char or not array.dtype.isnative:
            array = array.astype(plain)
        if not array.flags.writeable or any(stride < 0 for stride in array.strides):
            array = array.copy()
    return torch.as_tensor(array)


def _as_labels(labels: ArrayLike) -> Int64[Tensor, "*batch n"]:
    tensor = as_tensor(labels)
    if tensor.ndim == 0 or tensor.shape[-1] == 0:
        raise ValueError(f"Expected labels of at least one point but got shape {_shape(tensor)}")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"Expected integer labels but got {tensor.dtype}")
    return tensor.long()


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def canonical(labels: ArrayLike) -> Int64[Tensor, "*batch n"]:
    """Relabel to order of appearance.

    Args:
        labels: any integers, of shape (..., N); equal integers mean the same cluster.

    Returns:
        The same partitions with canonical labels, of shape (..., N).

    Example:
        >>> canonical([7, 7, -1, 7, 3])
        tensor([0, 0, 1, 0, 2])
    """
    labels = _as_labels(labels)
    # A stable sort brings each cluster together with its earliest point in front.
    ordered, points = labels.sort(dim=-1, stable=True)
    position = torch.arange(labels.shape[-1], device=labels.device).expand_as(labels)
    starts = torch.ones_like(labels, dtype=torch.bool)
    starts[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    start = torch.where(starts, position, 0).cummax(dim=-1).values
    first = torch.empty_like(labels).scatter_(-1, points, points.gather(-1, start))
    rank = (first == position).cumsum(dim=-1) - 1
    return rank.gather(-1, first)


def is_canonical(labels: ArrayLike) -> Bool[Tensor, "*batch"]:
    """Whether each row is in order of appearance.

    Args:
        labels: integers of shape (..., N).

    Returns:
        Booleans of shape (...).

    Example:
        >>> is_canonical([[0, 1, 0], [1, 0, 1]])
        tensor([ True, False])
    """
    labels = _as_labels(labels)
    next_label = torch.zeros_like(labels)
    next_label[..., 1:] = labels.cummax(dim=-1).values[..., :-1] + 1
    return ((labels >= 0) & (labels <= next_label)).all(dim=-1)


def check_labels(labels: ArrayLike, n_points: int | None = None) -> Int64[Tensor, "*batch n"]:
    """The labels as an int64 tensor, or a ``ValueError`` that says what is wrong with them.

    Args:
        labels: canonical labels of shape (..., N).
        n_points: the N to insist on, if any.

    Example:
        >>> check_labels([0, 2])
        Traceback (most recent call last):
        ...
        ValueError: Expected labels in order of appearance (0, then a label seen before or the \
next unused one) but got [0, 2]; relabel with ncp.partitions.canonical
    """
    tensor = _as_labels(labels)
    if n_points is not None and tensor.shape[-1] != n_points:
        raise ValueError(f"Expected labels of {n_points} points but got shape {_shape(tensor)}")
    good = is_canonical(tensor)
    if not bool(good.all()):
        row = tensor[~good][0] if tensor.ndim > 1 else tensor
        shown = f"{row[:10].tolist()}{'...' if len(row) > 10 else ''}"
        raise ValueError(
            "Expected labels in order of appearance (0, then a label seen before or the next "
            f"unused one) but got {shown}; relabel with ncp.partitions.canonical"
        )
    return tensor


def n_clusters(labels: ArrayLike) -> Int64[Tensor, "*batch"]:
    """The number of clusters K of canonical labels.

    Example:
        >>> n_clusters([[0, 0, 0], [0, 1, 2]])
        tensor([1, 3])
    """
    return _as_labels(labels).amax(dim=-1) + 1


def counts(labels: ArrayLike, n_clusters: int | None = None) -> Int64[Tensor, "*batch k"]:
    """The cluster sizes ``n_k = #{i : c_i = k}``.

    Args:
        labels: canonical labels of shape (..., N).
        n_clusters: the number of columns K; by default the largest K among the rows.

    Returns:
        Sizes of shape (..., K); rows with fewer clusters end in zeros.

    Example:
        >>> counts([[0, 0, 0], [0, 1, 0]])
        tensor([[3, 0],
                [2, 1]])
    """
    labels = _as_labels(labels)
    largest = int(labels.max()) + 1 if labels.numel() else 0
    width = largest if n_clusters is None else n_clusters
    if largest > width or (labels.numel() and int(labels.min()) < 0):
        raise ValueError(
            f"Expected labels between 0 and {width - 1} but got "
            f"{int(labels.min())} to {int(labels.max())}"
        )
    sizes = torch.zeros((*labels.shape[:-1], width), dtype=torch.long, device=labels.device)
    return sizes.scatter_add_(-1, labels, torch.ones_like(labels))


def random_orders(
    n_orders: int, n_points: int, generator: torch.Generator | None = None
) -> Int64[Tensor, "n_orders n_points"]:
    """Independent uniform permutations, one a row: row r visits point ``orders[r, 0]`` first.

    Example:
        >>> orders = random_orders(3, 5, torch.Generator().manual_seed(0))
        >>> orders.sort(dim=1).values[0]
        tensor([0, 1, 2, 3, 4])
    """
    if n_orders < 0 or n_points < 1:
        raise ValueError(
            f"Expected n_orders >= 0 and n_points >= 1 but got {n_orders} and {n_points}"
        )
    # float64 keys: ties (which would favour one permutation) have probability 2^-53 a pair
    keys = torch.rand((n_orders, n_points), dtype=torch.float64, generator=generator)
    return keys.argsort(dim=1)


def inverse_order(orders: ArrayLike) -> Int64[Tensor, "*batch n"]:
    """The inverse permutations: ``x[order][inverse_order(order)]`` is ``x``.

    Example:
        >>> inverse_order([2, 0, 1])
        tensor([1, 2, 0])
    """
    orders = _as_labels(orders)
    position = torch.arange(orders.shape[-1], device=orders.device).expand_as(orders)
    if not bool((orders.sort(dim=-1).values == position).all()):
        raise ValueError("Expected permutations of 0, ..., N - 1 but a row is not one")
    return torch.empty_like(orders).scatter_(-1, orders, position)


def bell_number(n: int) -> int:
    """The number of partitions of n points.

    Example:
        >>> [bell_number(n) for n in range(9)]
        [1, 1, 2, 5, 15, 52, 203, 877, 4140]
    """
    if n < 0:
        raise ValueError(f"Expected n >= 0 but got {n}")
    row = [1]  # the Bell triangle: each row starts with the last entry of the row before
    for _ in range(n):
        following = [row[-1]]
        for entry in row:
            following.append(following[-1] + entry)
        row = following
    return row[0]


def enumerate_partitions(n: int) -> Int64[Tensor, "bell n"]:
    """All partitions of n points, as canonical rows in lexicographic order.

    Args:
        n: the number of points, 1 to 12.

    Returns:
        Labels of shape (Bell(n), n).

    Example:
        >>> enumerate_partitions(3).tolist()
        [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1], [0, 1, 2]]
    """
    if not 1 <= n <= LARGEST_ENUMERATION:
        size = f" ({bell_number(n)} partitions)" if n > 0 else ""
        raise ValueError(
            f"Expected between 1 and {LARGEST_ENUMERATION} points to enumerate "
            f"but got n = {n}{size}"
        )
    rows = torch.zeros((1, 1), dtype=torch.int8)
    for _ in range(n - 1):
        children = rows.amax(dim=1).long() + 2
        parents = torch.repeat_interleave(children)
        first_child = children.cumsum(0) - children
        child = torch.arange(len(parents)) - first_child[parents]
        rows = torch.cat([rows[parents], child.to(torch.int8)[:, None]], dim=1)
    return rows.long()


@dataclass(frozen=True, eq=False, repr=False)
class Partitions:
    """Samples of partitions of one data set, each distinct one once.

    Row u stands for ``counts[u]`` samples of the partition ``labels[u]``; its weight is

        w_u = counts_u exp(log_weights_u) / sum_v counts_v exp(log_weights_v)

    with ``log_weights = 0`` when there are none. The same labels may occur in two rows when they
    were drawn in different orders of the points, with a different ``log_q`` each.

    Args:
        labels: canonical labels in the caller's order of points, of shape (U, N).
        counts: how many samples each row stands for, of shape (U,).
        log_q: the log probability of the row under the sampler, of shape (U,).
        log_weights: unnormalised log importance weights of one sample of the row, of shape (U,).
        x: the data set, of shape (N, ...), so that the samples can be weighted; not saved.

    Iteration and integer indices give rows of labels; slices, masks and index arrays give
    `Partitions`.

    Example:
        >>> two = Partitions(np.array([[0, 0], [0, 1]]), np.array([3, 1]), np.log([0.75, 0.25]))
        >>> two
        Partitions(4 samples of 2 points, 2 distinct)
        >>> two.weights
        array([0.75, 0.25])
        >>> two.expand()[:, 1]
        array([0, 0, 0, 1])
    """

    labels: np.ndarray
    counts: np.ndarray
    log_q: np.ndarray
    log_weights: np.ndarray | None = None
    x: np.ndarray | None = None

    def __post_init__(self) -> None:
        labels = _as_labels(self.labels)
        if labels.ndim != 2:
            raise ValueError(f"Expected labels of shape (U, N) but got shape {_shape(labels)}")
        n_rows = len(labels)
        counts = as_tensor(self.counts)
        if counts.is_floating_point() or counts.dtype == torch.bool:
            raise ValueError(f"Expected integer counts but got {counts.dtype}")
        object.__setattr__(self, "labels", check_labels(labels).numpy())
        object.__setattr__(self, "counts", counts.long().numpy())
        for name in ("log_q", "log_weights"):
            column = getattr(self, name)
            if column is not None:
                object.__setattr__(self, name, as_tensor(column).double().numpy())
        for name in ("counts", "log_q", "log_weights"):
            column = getattr(self, name)
            if column is not None and column.shape != (n_rows,):
                raise ValueError(f"Expected {name} of shape ({n_rows},) but got {column.shape}")
        if n_rows and int(self.counts.min()) < 1:
            raise ValueError(f"Expected counts >= 1 but got {int(self.counts.min())}")
        if self.x is not None and len(self.x) != labels.shape[1]:
            raise ValueError(f"Expected x of {labels.shape[1]} points but got {len(self.x)}")

    @property
    def n_samples(self) -> int:
        """The number of samples S, the sum of the counts."""
        return int(self.counts.sum())

    @property
    def n_points(self) -> int:
        """The number of points N."""
        return int(self.labels.shape[1])

    @property
    def n_clusters(self) -> np.ndarray:
        """The number of clusters of each row, of shape (U,)."""
        return np.asarray(self.labels.max(axis=1) + 1)

    @property
    def weights(self) -> np.ndarray:
        """Normalised weights of the rows, of shape (U,)."""
        weights = self.counts.astype(np.float64)
        if self.log_weights is not None:
            top = self.log_weights.max(initial=-np.inf)
            if not np.isfinite(top):
                raise ValueError(f"Expected a largest log weight that is finite but got {top}")
            weights = weights * np.exp(self.log_weights - top)
        return np.asarray(weights / weights.sum())

    def expand(self) -> np.ndarray:
        """One row per sample, of shape (S, N), in the order of the distinct rows."""
        return np.repeat(self.labels, self.counts, axis=0)

    def to_numpy(self) -> dict[str, np.ndarray]:
        """The fields as a dict of arrays; ``log_weights`` only when there are any."""
        fields = {"labels": self.labels, "counts": self.counts, "log_q": self.log_q}
        if self.log_weights is not None:
            fields["log_weights"] = self.log_weights
        return fields

    def save(self, path: str | PathLike[str]) -> None:
        """Write to a compressed ``.npz`` file at exactly this path, whole or not at all."""
        buffer = io.BytesIO()
        # mypy takes the unpacked arrays for the allow_pickle flag
        np.savez_compressed(buffer, **self.to_numpy())  # type: ignore[arg-type]
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Partitions:
        """Read what `save` wrote; anything else is refused with a `ValueError`."""
        file = Archive(Path(path).read_bytes())
        if not {"labels", "counts", "log_q"} <= set(file.names):
            raise ValueError(
                f"Expected a file with labels, counts and log_q but got {sorted(file.names)}"
            )
        log_weights = file["log_weights"] if "log_weights" in file.names else None
        return cls(file["labels"], file["counts"], file["log_q"], log_weights)

    # -- answers: the code is in ncp.importance and ncp.summary, imported when asked for ---------

    def reweight(self, mixture: Mixture, x: ArrayLike | None = None) -> Partitions:
        """The same samples with log w = log p(c, x) - log q(c | x): exact, up to Monte Carlo error.

        Args:
            mixture: the conjugate model to be exact for; usually ``model.mixture``.
            x: the data, if these partitions do not know theirs (as after `load`).

        Returns:
            Weighted partitions; `report` says whether to trust the weights.
        """
        from ncp.importance import reweight

        data = self.x if x is None else as_tensor(x).numpy()
        if data is None:
            raise ValueError("Expected the data x, which these partitions do not carry")
        return replace(reweight(self, mixture, data).partitions, x=data)

    @property
    def report(self) -> Report:
        """ESS, k-hat, log evidence and a verdict on the weights (1, if there are none)."""
        from ncp.importance import diagnose

        weights = np.zeros(len(self)) if self.log_weights is None else self.log_weights
        return diagnose(weights, self.counts)

    def similarity_matrix(self) -> np.ndarray:
        """P(c_i = c_j), of shape (N, N)."""
        from ncp.summary import similarity

        return similarity(self.labels, self.weights)

    def point_estimate(
        self, loss: Literal["vi", "binder", "pear", "map"] = "vi", max_clusters: int | None = None
    ) -> PointEstimate:
        """The partition that stands for the samples; see `ncp.summary.point_estimate`."""
        from ncp.summary import point_estimate

        return point_estimate(self.labels, self.weights, loss, max_clusters=max_clusters)

    def summary(self, loss: Literal["vi", "binder", "pear", "map"] = "vi") -> str:
        """What the samples say, in words: K, cluster sizes, confidence and trust in the weights."""
        from ncp.summary import summarise

        said = in_words(summarise(self.labels, self.weights, loss))
        return "\n".join([repr(self), *said, _trust(self)])

    def to_pandas(self) -> DataFrame:
        """One line a row: weight, count, K, log q, and the labels in columns 0, ..., N - 1."""
        from pandas import DataFrame, concat

        about = {
            "weight": self.weights,
            "count": self.counts,
            "n_clusters": self.n_clusters,
            "log_q": self.log_q,
        }
        if self.log_weights is not None:
            about["log_weight"] = self.log_weights
        return concat([DataFrame(about), DataFrame(self.labels)], axis=1)

    def to_arviz(self) -> InferenceData:
        """An ArviZ ``InferenceData`` of one chain: labels, n_clusters and log_q of every sample.

        Weighted samples are resampled to equal weights first.
        """
        from arviz import from_dict

        from ncp.importance import resample

        equal = self if self.log_weights is None else resample(self, seed=0)
        row = np.repeat(np.arange(len(equal)), equal.counts)[None]
        posterior = {"labels": equal.labels[row], "n_clusters": equal.n_clusters[row]}
        return from_dict(
            posterior=posterior,
            sample_stats={"log_q": equal.log_q[row]},
            dims={"labels": ["point"]},
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.labels)

    @overload
    def __getitem__(self, index: int | np.integer) -> np.ndarray: ...

    @overload
    def __getitem__(self, index: slice | np.ndarray | list[int] | list[bool]) -> Partitions: ...

    def __getitem__(self, index: Any) -> np.ndarray | Partitions:
        if isinstance(index, int | np.integer):
            return np.asarray(self.labels[index])
        log_weights = None if self.log_weights is None else self.log_weights[index]
        return Partitions(
            self.labels[index], self.counts[index], self.log_q[index], log_weights, self.x
        )

    def __repr__(self) -> str:
        weighted = "" if self.log_weights is None else ", weighted"
        return (
            f"Partitions({self.n_samples} samples of {self.n_points} points, "
            f"{len(self)} distinct{weighted})"
        )


def in_words(summary: Summary) -> list[str]:
    """Sentences about K, the sizes of the estimate's clusters and how sure the points are."""
    k = summary.n_clusters
    likely = np.argsort(-k.probabilities, kind="stable")[:4]
    shown = [i for i in likely if k.probabilities[i] >= 0.005]
    chances = ", ".join(f"{k.values[i]:.0f} ({percent(k.probabilities[i])})" for i in shown)
    sizes = np.sort(summary.estimate.sizes)[::-1]
    listed = ", ".join(str(n) for n in sizes[:12]) + (", ..." if len(sizes) > 12 else "")
    sure = summary.confidence
    doubtful = int((sure < 0.9).sum())
    n = len(sizes)
    return [
        f"Number of clusters, with its probability: {chances}.",
        f"Best single partition: {n} cluster{'s' if n > 1 else ''} of {listed} points.",
        f"Confidence: {percent(sure.mean())} on average; {doubtful} of {len(sure)} points are "
        f"less than 90% sure of their cluster, the least sure is point {sure.argmin()} "
        f"({percent(sure.min())}).",
    ]


def percent(probability: float) -> str:
    """A probability for people: never 0% or 100% unless it is.

    Example:
        >>> percent(0.314), percent(0.9996), percent(1.0)
        ('31%', 'over 99%', '100%')
    """
    if 0.0 < probability < 0.01:
        return "under 1%"
    if 0.99 < probability < 1.0 - 1e-12:
        return "over 99%"
    return f"{probability:.0%}"


def _trust(partitions: Partitions) -> str:
    """One line on how good the samples are."""
    if partitions.log_weights is None:
        return (
            "Weights: none; these are the network's own samples. "
            "reweight(mixture) makes them exact for a conjugate mixture."
        )
    report = partitions.report
    return (
        f"Weights: {report.verdict}. They are worth {report.ess:.0f} of {report.n_samples} samples "
        f"(ESS {report.ess_fraction:.0%}); {tail_in_words(report.k_hat)}; "
        f"log evidence {report.log_evidence}."
    )


def tail_in_words(k_hat: float) -> str:
    """What k-hat, the shape of the weights' Pareto tail, means."""
    if k_hat == -np.inf:
        return "no weight stands out (k-hat -inf)"
    if k_hat == np.inf:
        return "too few large weights to judge their tail (k-hat inf)"
    kind = "light" if k_hat < 0.5 else "heavy, yet usable" if k_hat < 0.7 else "too heavy"
    return f"their tail is {kind} (k-hat {k_hat:.2f})"
