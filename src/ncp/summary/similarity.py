"""The similarity (co-clustering) matrix ``S_ij = P(c_i = c_j) = sum_u w_u [c_u(i) = c_u(j)]``.

And as an average-linkage tree whose cuts are candidates for a point estimate.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import ArrayLike

from ncp.summary.rows import Labels, Weights, as_rows, merge_rows

__all__ = ["linkage_cuts", "similarity"]

LINKAGE_POINTS = 500  # points above which searches leave the tree out


def similarity(
    labels: ArrayLike, weights: ArrayLike | None = None
) -> Float64[np.ndarray, "points points"]:
    """S_ij = P(c_i = c_j): the posterior similarity (co-clustering) matrix.

    Example:
        >>> similarity([[0, 0, 1], [0, 1, 1]], [3, 1])
        array([[1.  , 0.75, 0.  ],
               [0.75, 1.  , 0.25],
               [0.  , 0.25, 1.  ]])
    """
    from ncp.summary.kernels import group_points, similarity_matrix

    rows, w = merge_rows(labels, weights)
    matrix = similarity_matrix(*group_points(rows), w)
    return np.minimum(matrix, 1.0, out=matrix)


def linkage_cuts(rows: Labels, w: Weights, limit: int) -> Int64[np.ndarray, "cuts points"]:
    """The cuts of the average-linkage tree of the similarity matrix, into 1, 2, ... clusters.

    Up to about twice those of any draw, and up to `limit`.
    """
    n_points, most = rows.shape[1], min(limit, 2 * int(rows.max()) + 4)
    if n_points == 1:
        return np.zeros((1, 1), dtype=np.int64)
    from scipy.cluster.hierarchy import cut_tree, linkage

    matrix = similarity(rows, w)
    tree = linkage(1.0 - matrix[np.triu_indices(n_points, 1)], "average")
    return as_rows(cut_tree(tree, n_clusters=np.arange(1, min(most, n_points) + 1)).T)
