"""The similarity (co-clustering) matrix ``S_ij = P(c_i = c_j) = sum_u w_u [c_u(i) = c_u(j)]``.

Whole, in blocks for many points, with standard errors for importance weights, and as an
average-linkage tree whose cuts are candidates for a point estimate.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import ArrayLike

from ncp.inference.importance import Estimate, effective_sample_size, influence, unseen
from ncp.summary.rows import Labels, Weights, as_rows, merge_rows

__all__ = ["linkage_cuts", "similarity", "similarity_blocks", "similarity_estimate"]

LINKAGE_POINTS = 500  # points above which searches leave the tree out


def similarity_blocks(
    labels: ArrayLike, weights: ArrayLike | None = None, block_size: int = 512
) -> Iterator[tuple[slice, Float64[np.ndarray, "block points"]]]:
    """The similarity matrix as (rows, block) pairs, for N too large to hold N x N numbers.

    Example:
        >>> for rows, block in similarity_blocks([[0, 0, 1], [0, 1, 1]], block_size=2):
        ...     print(rows.start, rows.stop, block.shape)
        0 2 (2, 3)
        2 3 (1, 3)
    """
    from ncp.summary.kernels import group_points, similarity_block

    if block_size < 1:
        raise ValueError(f"Expected block_size >= 1 but got {block_size}")
    rows, w = merge_rows(labels, weights)
    groups = group_points(rows)
    for start in range(0, rows.shape[1], block_size):
        stop = min(start + block_size, rows.shape[1])
        block = similarity_block(*groups, w, start, stop)
        yield slice(start, stop), np.minimum(block, 1.0)


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


def similarity_estimate(
    labels: ArrayLike, log_weights: ArrayLike, counts: ArrayLike | None = None
) -> Estimate:
    """The similarity matrix from importance weights, with a standard error for each pair.

    Equals ``importance.expectation`` of the indicators [c_i = c_j] with bounds (0, 1), without
    forming U matrices.

    Args:
        labels: rows of labels, of shape (U, N).
        log_weights: log w of one draw of each row, in any scale, of shape (U,).
        counts: how many draws each row stands for, of shape (U,); one when left out.

    Example:
        >>> similarity_estimate([[0, 0], [0, 1]], [0.0, 0.0], [50, 50]).standard_error.round(3)
        array([[0.02 , 0.052],
               [0.052, 0.02 ]])
    """
    from ncp.summary.kernels import group_points, similarity_matrix

    share, pull = influence(log_weights, counts)
    rows = as_rows(labels)
    if len(rows) != len(share):
        raise ValueError(
            f"Expected {len(rows)} log weights, one for each row, but got {len(share)}"
        )
    groups = group_points(rows)
    mean = np.asarray(similarity_matrix(*groups, share))
    if np.isinf(pull).any():
        variance = np.where(np.eye(len(mean)) > 0, 0.0, np.inf)
    else:
        # sum_u b_u ([together] - m)^2, with the square multiplied out; on the diagonal it is 0
        together = np.asarray(similarity_matrix(*groups, pull))
        variance = np.maximum(together * (1 - 2 * mean) + mean**2 * pull.sum(), 0.0)
        np.fill_diagonal(variance, 0.0)
    variance = variance + unseen(mean, effective_sample_size(log_weights, counts), (0.0, 1.0))
    return Estimate(mean, np.sqrt(variance))


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
