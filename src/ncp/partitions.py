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

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

__all__ = [
    "as_labels",
    "as_tensor",
    "bell_number",
    "canonical",
    "check_labels",
    "check_unmasked",
    "counts",
    "enumerate_partitions",
    "is_canonical",
    "n_clusters",
    "random_orders",
    "shape_of",
]

ArrayLike: TypeAlias = Tensor | np.ndarray | Sequence[Any]

LARGEST_ENUMERATION = 12  # Bell(12) is 4.2 million rows, 400 MB; Bell(13) would be 2.9 GB


def as_tensor(array: ArrayLike) -> Tensor:
    """A tensor with the array's values, those of lists in float64 or int64.

    Read-only, reversed and foreign-endian numpy arrays are copied, which torch cannot share.
    """
    check_unmasked(array)
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


def check_unmasked(array: object) -> None:
    """Refuse masked cells of NumPy's arrays, which would be read as if they were not masked.

    Example:
        >>> check_unmasked(np.ma.masked_equal([1, -999], -999))
        Traceback (most recent call last):
        ...
        ValueError: Expected numbers but some are masked; leave them out or fill them in
    """
    parts = array if isinstance(array, list | tuple) else [array]
    if any(np.ma.is_masked(part) for part in parts):
        raise ValueError("Expected numbers but some are masked; leave them out or fill them in")


def as_labels(labels: ArrayLike) -> Int64[Tensor, "*batch n"]:
    tensor = as_tensor(labels)
    if tensor.ndim == 0 or tensor.shape[-1] == 0:
        raise ValueError(f"Expected labels of at least one point but got shape {shape_of(tensor)}")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"Expected integer labels but got {tensor.dtype}")
    return tensor.long()


def shape_of(tensor: Tensor) -> tuple[int, ...]:
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
    labels = as_labels(labels)
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
    labels = as_labels(labels)
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
    tensor = as_labels(labels)
    if n_points is not None and tensor.shape[-1] != n_points:
        raise ValueError(f"Expected labels of {n_points} points but got shape {shape_of(tensor)}")
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
    return as_labels(labels).amax(dim=-1) + 1


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
    labels = as_labels(labels)
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


@cache
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
