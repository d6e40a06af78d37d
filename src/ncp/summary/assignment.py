"""Which cluster of an estimate a point belongs to, and how sure that is."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike

from ncp.summary.rows import as_row, merge_rows, weighted_rows

__all__ = ["assignment", "confidence"]


def assignment(
    estimate: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None
) -> Float64[np.ndarray, "points clusters"]:
    """How much point i belongs to cluster k of the estimate, whatever cluster it was put in.

        A_ik = mean over j != i with a_j = k of P(c_i = c_j),

    the probability that i is together with a random (other) member of cluster k. For a point
    that the estimate leaves alone, A_ik of its own cluster is the probability that it is alone.

    Example:
        >>> assignment([0, 0, 1], [[0, 0, 1], [0, 0, 0]], [3, 1])
        array([[1.  , 0.25],
               [1.  , 0.25],
               [0.25, 0.75]])
    """
    from ncp.summary.kernels import affinity, alone

    rows, w = merge_rows(labels, weights)
    a = as_row(estimate, rows.shape[1])
    sizes = np.bincount(a)
    others = sizes[None, :] - (a[:, None] == np.arange(len(sizes)))
    total = affinity(rows, w, a, len(sizes))
    single = alone(rows, w)[:, None]
    mean = np.where(others > 0, total / np.maximum(others, 1), single)
    return np.asarray(np.clip(mean, 0.0, 1.0))


def confidence(
    estimate: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None
) -> Float64[np.ndarray, " points"]:
    """How sure the posterior is of each point's cluster: the overlap to expect.

        f_i = sum_u w_u |A_i n C_u(i)| / |A_i u C_u(i)|

    with A_i the cluster of point i in the estimate and C_u(i) its cluster in draw u: what the two
    share, of what either has. It falls when draws split the cluster and when they merge it with
    another, and it is one only if all draws have this very cluster.

    Example:
        >>> confidence([0, 0, 1], [[0, 0, 1], [0, 0, 0]], [3, 1])
        array([0.91666667, 0.91666667, 0.83333333])
    """
    from ncp.summary.kernels import overlap

    rows, w = weighted_rows(labels, weights)
    a = as_row(estimate, rows.shape[1])
    return np.asarray(np.clip(overlap(rows, w, a, int(a.max()) + 1), 0.0, 1.0))
