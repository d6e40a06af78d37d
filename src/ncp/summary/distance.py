"""Distances of partitions, both metrics. With the contingency table ``n_ac``,

    Binder:  d(a, c) = (sum_a n_a^2 + sum_c n_c^2 - 2 sum_ac n_ac^2) / N^2
    VI:      d(a, c) = (sum_a n_a log2 n_a + sum_c n_c log2 n_c - 2 sum_ac n_ac log2 n_ac) / N

Binder's is the fraction of ordered pairs of points on which the partitions disagree; the
variation of information, in bits, is ``H(a | c) + H(c | a)``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike

from ncp.summary.rows import as_row, as_rows, weighted_rows

__all__ = ["Agreement", "Loss", "agreement", "distance", "expected_loss", "increments"]

Loss: TypeAlias = Literal["vi", "binder"]

# Pairs of rows times points up to which every draw is compared with every other; above, only the
# heaviest draws are.
PAIRWISE_WORK = 200_000_000


def increments(loss: str, n_points: int) -> Float64[np.ndarray, " points"]:
    """delta(n) = phi(n + 1) - phi(n) for n = 0, ..., N - 1, see `ncp.summary.kernels`."""
    n = np.arange(n_points + 1, dtype=np.float64)
    if loss == "binder":
        return np.diff(n**2) / n_points**2
    if loss == "vi":
        return np.diff(n * np.log2(np.maximum(n, 1.0))) / n_points
    raise ValueError(f"Expected loss 'vi' or 'binder' but got {loss!r}")


def distance(
    labels: ArrayLike, reference: ArrayLike, loss: Loss = "vi"
) -> Float64[np.ndarray, "*rows"]:
    """d(c, reference) of one row (N,) or of each of many (U, N); VI in bits.

    Example:
        >>> distance([[0, 0, 1, 1], [0, 0, 0, 0]], [1, 1, 0, 0]).tolist()
        [0.0, 1.0]
    """
    from ncp.summary.kernels import distances

    array = np.asarray(labels)
    rows = as_rows(array[None] if array.ndim == 1 else array)
    centre = as_row(reference, rows.shape[1])
    result = distances(rows, centre, increments(loss, rows.shape[1]))
    return result.reshape(array.shape[:-1])


def expected_loss(
    estimate: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None, loss: Loss = "vi"
) -> float:
    """sum_u w_u d(estimate, c_u).

    Example:
        >>> expected_loss([0, 0, 0, 0], [[0, 0, 1, 1], [0, 0, 0, 0]], loss="binder")
        0.25
    """
    rows, w = weighted_rows(labels, weights)
    return float(distance(rows, estimate, loss) @ w)


class Agreement(NamedTuple):
    """How close partitions are to a reference: numbers, or one for each row.

    Attributes:
        ari: adjusted Rand index, 1 for equality, 0 expected by chance.
        ami: adjusted mutual information, 1 for equality, 0 expected by chance.
        vi: variation of information in bits, 0 for equality.
        binder: fraction of ordered pairs that disagree, 0 for equality.
    """

    ari: Float64[np.ndarray, "*rows"]
    ami: Float64[np.ndarray, "*rows"]
    vi: Float64[np.ndarray, "*rows"]
    binder: Float64[np.ndarray, "*rows"]


def agreement(labels: ArrayLike, reference: ArrayLike) -> Agreement:
    """ARI, AMI (scikit-learn), VI and Binder's distance to a reference, (N,) or (U, N).

    Example:
        >>> a = agreement([0, 0, 1, 1], [1, 1, 0, 0])
        >>> float(a.ari), float(a.ami), float(a.vi)
        (1.0, 1.0, 0.0)
    """
    from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

    array = np.asarray(labels)
    rows = as_rows(array[None] if array.ndim == 1 else array)
    centre = as_row(reference, rows.shape[1])
    scores = [
        [f(centre, row) for row in rows] for f in (adjusted_rand_score, adjusted_mutual_info_score)
    ]
    ari, ami = (np.array(s, dtype=np.float64).reshape(array.shape[:-1]) for s in scores)
    return Agreement(ari, ami, distance(array, centre, "vi"), distance(array, centre, "binder"))
