r"""What is known of a partition beforehand, and what it means for a sequence of choices.

Three kinds of statements are understood: points that are together, points that are apart, and how
many clusters there are. Being together is an equivalence, so its statements are closed first:
*groups* of points that share a cluster, and pairs of groups that must not. Labels that are known
are groups which are all apart from each other.

A sampler that draws c_1, c_2, ... from q(c_n | c_{1:n-1}, x) obeys by masking: of the choices at
position n only a set A_n(c_{1:n-1}) is allowed,

* the cluster of the point's group, if that has a member already; else all clusters
* without those of groups that are apart from its own,
* without a new one once there are `most` clusters,
* without the old ones if every group and point still to come must open one to reach `least`.

What is drawn then has the density r(c) = prod_n q(c_n | c_{1:n-1}) / m_n with the allowed mass
m_n = q(A_n | c_{1:n-1}). So a sample with the weight

    w(c) = prod_n m_n = q(c) / r(c),        E_r[w] = q(C),   E_r[w h] = q(C) E_q[h | C],

stands for q given the constraint C, and the mean weight is the probability of C. Constrained points
come first in every order: the weights are then known early, and for known labels alone they are
equal (nothing is left to chance: exact samples of q given C). Of those, one of each group comes
first, next always the one with most conflicts with those before it, as in colouring a graph
(Brelaz 1979): with a given K few samples run into a dead end, and with two clusters none.
Prefixes whose weight is small against the others' are exchanged for them on the way: when the
effective number of samples falls below a half, counts are drawn anew in proportion to the weights
(systematic resampling; the weights stay unbiased, `log_q` is shifted so that q = r w still holds).

Several orders are several samplers. Each is worth the same, however probable it finds C: for an
exchangeable q that would not depend on the order, so the difference is noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

__all__ = ["Constraints", "Rules", "constrain", "free"]

NamedRow = Callable[[int], str]


class Rules(NamedTuple):
    """Constraints along a sequence, for `ncp.sampling.kernels`."""

    group: Int64[np.ndarray, " N"]  # of the point at each position, or -1
    apart: Bool[np.ndarray, "G G"]
    left: Int64[np.ndarray, " N"]  # groups and points from a position on that may open a cluster
    least: int
    most: int
    active: bool


@dataclass(frozen=True, eq=False)
class Constraints:
    """What is known of a partition of N points; made by `constrain`.

    Attributes:
        groups: The group of each point, -1 for points of which nothing is known, `(N,)`.
        apart: Which groups must not share a cluster, `(G, G)`, symmetric.
        least: The fewest clusters.
        most: The most clusters.
        name: What to call a point in a sentence.
    """

    groups: Int64[np.ndarray, " N"]
    apart: Bool[np.ndarray, "G G"]
    least: int
    most: int
    name: NamedRow = str

    @property
    def active(self) -> bool:
        """Whether anything is ruled out."""
        return len(self.apart) > 0 or self.least > 1 or self.most < len(self.groups)

    @property
    def n_units(self) -> int:
        """Groups and free points: the most clusters that there can be."""
        return len(self.apart) + int((self.groups < 0).sum())

    @property
    def constrained(self) -> Int64[np.ndarray, " n"]:
        """The points of which something is known."""
        return np.flatnonzero(self.groups >= 0)

    def allow(self, labels: Int64[np.ndarray, "rows N"]) -> Bool[np.ndarray, " rows"]:
        """Which rows of labels obey.

        Example:
            >>> constrain(3, apart=[(0, 2)]).allow(np.array([[0, 0, 0], [0, 0, 1]]))
            array([False,  True])
        """
        k = labels.max(1) + 1
        good = (k >= self.least) & (k <= self.most)
        first = np.array([np.argmax(self.groups == g) for g in range(len(self.apart))], np.int64)
        for i in self.constrained:
            good &= labels[:, i] == labels[:, first[self.groups[i]]]
        for g, h in zip(*np.nonzero(np.triu(self.apart)), strict=True):
            good &= labels[:, first[g]] != labels[:, first[h]]
        return np.asarray(good)

    def first(self, order: Int64[np.ndarray, " N"]) -> Int64[np.ndarray, " N"]:
        """The same order with constrained points first, of those one of each group first."""
        n_groups = len(self.apart)
        if n_groups == 0:
            return order
        group = self.groups[order]
        heads = np.unique(group, return_index=True)[1][-n_groups:]
        key = np.where(group < 0, n_groups + 1, n_groups)
        key[heads] = self._ranks(heads)
        return np.asarray(order[np.argsort(key, kind="stable")])

    def _ranks(self, heads: Int64[np.ndarray, " G"]) -> Int64[np.ndarray, " G"]:
        """Places of groups: next is what has most conflicts with those before, then with any."""
        degree, met = self.apart.sum(1), np.zeros(len(heads), np.int64)
        ranks = np.full(len(heads), -1)
        for place in range(len(heads)):
            left = np.flatnonzero(ranks < 0)
            best = left[np.lexsort((heads[left], -degree[left], -met[left]))[0]]
            ranks[best] = place
            met += self.apart[best]
        return ranks

    def rules(self, order: Int64[np.ndarray, " N"]) -> Rules:
        """For the kernels, along an order."""
        group = self.groups[order]
        opens = group < 0
        opens[np.unique(group, return_index=True)[1]] = True
        left = np.cumsum(opens[::-1])[::-1]
        return Rules(
            group, self.apart, np.ascontiguousarray(left), self.least, self.most, self.active
        )


def free(n_points: int) -> Constraints:
    """Nothing is known."""
    return Constraints(np.full(n_points, -1), np.zeros((0, 0), dtype=bool), 1, n_points)


def constrain(
    n_points: int,
    known: Any = None,
    together: Any = (),
    apart: Any = (),
    *,
    n_clusters: Any = None,
    at_least: Any = None,
    at_most: Any = None,
    name: NamedRow = str,
) -> Constraints:
    """Close what was said, or say what contradicts.

    Args:
        n_points: N.
        known: A label for each point, -1 where it is not known: equal ones are together, different
            ones apart, and the others may join them or not.
        together: Points that share a cluster, in pairs or longer lists.
        apart: Points of which no two share a cluster, the same.
        n_clusters: How many clusters there are.
        at_least: The fewest that there are.
        at_most: The most that there are.
        name: What to call a point in a sentence.

    Example:
        >>> constrain(5, known=[7, -1, 7, 3, -1], together=[(1, 4)]).groups
        array([0, 1, 0, 2, 1])
        >>> constrain(9, together=[(3, 5), (5, 7)], apart=[(3, 7)])
        Traceback (most recent call last):
        ...
        ValueError: Expected what is known to agree but rows 3 and 7 must be together and apart
    """
    labels = _check_known(known, n_points)
    joined, separate = _check_links(together, n_points), _check_links(apart, n_points)
    parent = _close(labels, joined, n_points)
    heads = [int(np.flatnonzero(labels == label)[0]) for label in np.unique(labels[labels >= 0])]
    separate.append(heads)
    used = np.zeros(n_points, bool)
    for link in (*joined, *separate):
        used[link] = True
    used |= labels >= 0
    groups = np.full(n_points, -1)
    groups[used] = _by_appearance(parent[used])
    matrix = np.zeros((groups.max() + 1, groups.max() + 1), dtype=bool)
    for link in separate:
        _set_apart(matrix, groups, link, name)
    least, most = _check_number(n_clusters, at_least, at_most, n_points)
    found = Constraints(groups, matrix, least, most, name)
    _check_possible(found, heads)
    return found


def _check_known(known: Any, n_points: int) -> Int64[np.ndarray, " N"]:
    if known is None:
        return np.full(n_points, -1)
    labels = np.asarray(known)
    if labels.shape != (n_points,) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"Expected known integer labels of {n_points} rows, -1 for unknown, but got "
            f"{labels.dtype} of shape {labels.shape}"
        )
    if labels.min(initial=0) < -1:
        raise ValueError(f"Expected known labels >= -1 but got {labels.min()}")
    return labels.astype(np.int64)


def _check_links(links: Any, n_points: int) -> list[list[int]]:
    found = []
    for link in links:
        rows = list(link)
        if (
            any(isinstance(i, bool) or not isinstance(i, int | np.integer) for i in rows)
            or len(rows) < 2
        ):
            raise ValueError(f"Expected links of two or more rows but got {link!r}")
        if missing := [i for i in rows if not 0 <= i < n_points]:
            raise ValueError(f"Expected rows 0 to {n_points - 1} but got {missing[0]}")
        found.append([int(i) for i in rows])
    return found


def _close(
    labels: Int64[np.ndarray, " N"], joined: list[list[int]], n_points: int
) -> Int64[np.ndarray, " N"]:
    """The smallest point that each one is together with, by chains of statements."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    chains = list(joined)
    chains += [
        np.flatnonzero(labels == label).tolist() for label in np.unique(labels) if label >= 0
    ]
    pairs = [pair for chain in chains for pair in pairwise(chain)]
    if not pairs:
        return np.arange(n_points)
    a, b = np.array(pairs).T
    graph = coo_array((np.ones(len(a)), (a, b)), shape=(n_points, n_points))
    return np.asarray(connected_components(graph, directed=False)[1], np.int64)


def _by_appearance(names: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse])


def _set_apart(
    matrix: Bool[np.ndarray, "G G"],
    groups: Int64[np.ndarray, " N"],
    link: list[int],
    name: NamedRow,
) -> None:
    own = groups[link]
    same = own[:, None] == own[None]
    np.fill_diagonal(same, False)
    if same.any():
        i, j = (link[place] for place in np.argwhere(same)[0])
        raise ValueError(
            "Expected what is known to agree but rows "
            f"{name(i)} and {name(j)} must be together and apart"
        )
    matrix[np.ix_(own, own)] = True
    matrix[own, own] = False


def _check_number(exactly: Any, at_least: Any, at_most: Any, n_points: int) -> tuple[int, int]:
    given = {"n_clusters": exactly, "at_least": at_least, "at_most": at_most}
    for what, value in given.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"Expected {what} to be an integer >= 1 but got {value!r}")
        if value > n_points and what != "at_most":
            raise ValueError(f"Expected {what} <= {n_points}, the number of rows, but got {value}")
    least = max(value for value in (exactly, at_least, 1) if value is not None)
    most = min(value for value in (exactly, at_most, n_points) if value is not None)
    if least > most:
        raise ValueError(f"Expected at_least <= at_most but got {least} and {most} clusters")
    return int(least), int(most)


def _check_possible(found: Constraints, heads: list[int]) -> None:
    if found.most < len(heads):
        raise ValueError(
            f"Expected at least as many clusters as there are known labels, {len(heads)}, but "
            f"got {found.most}"
        )
    if found.least > found.n_units:
        raise ValueError(
            f"Expected at most {found.n_units} clusters, as rows that are together leave no "
            f"more, but got {found.least}"
        )
