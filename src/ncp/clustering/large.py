r"""Tables with more rows than a network looks at at once: samples of all rows.

**Parts.** Several random parts of the rows are clustered, each in all uncertainty. Every row that
a part left out has *twins* there, rows that stand for it,

    c^s_i = c^s_t,        t a twin of row i in the part that sample s is of,

so its label goes with the part's samples, and so does its uncertainty. Of tables that can be
afforded, twins are drawn from what the network says of the row: a cluster j from
p(c_i = j | c^s, x) of some of the samples s, and of this cluster the nearest row. Of larger tables
they are the nearest rows. Different samples go by different twins. How far the parts agree is
`stability`.

**Sharper parts.** Where clusters overlap, the samples of a part disagree, while rows that no part
has seen know where clusters are. So a part whose samples disagree is clustered once more with each
row moved to the mean of its nearest rows among *half* of the table, twice (mean shift, Fukunaga and
Hostetler 1975): towards where rows are dense. Noise is made clusters of by that as well, but each
half of the table and each order has others; so these samples count only if they agree with each
other far better than those of the rows as they are. The nearest are half of a cluster's rows: where
so many clusters appear that these were far too many, it is done once more with fewer.

**Strays.** Rows that belong to nothing which a part has seen ("a new cluster" is more probable
than not, in most parts) are looked at together: a small group that has a row or two in a part has
all of its rows there.

**Islands.** A small group that is farther from all other rows than it is wide, twice, is a cluster
of its own. A part has a few of its rows, which the network takes for outliers of a cluster.

**Looking again.** The rows of a cluster are looked at alone, standardised anew; where one cluster
is improbable, each sample is divided as a sample of that look says. So what is found is finer than
a part of the table alone would show. It is done where the look has far more of the cluster's rows
than a part had, which called them one cluster and saw what is around them besides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import cast

import numpy as np
from jaxtyping import Bool, Float64, Int, Int16, Int64
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from ncp.clustering.prepare import Preparation, Prepared, Settings, fit_preparation
from ncp.inference.importance import resample_counts
from ncp.model import NCP
from ncp.output.columns import Columns
from ncp.posterior import Partitions
from ncp.summary.estimate import Estimator, point_estimate
from ncp.summary.rand_index import expected_rand_index
from ncp.summary.rows import as_row, as_rows

__all__ = [
    "Part",
    "Whole",
    "carry_over",
    "complete",
    "covering",
    "equal_samples",
    "islands",
    "representatives",
    "shifted",
]

Tell = Callable[[int, int], None]

N_TWINS = 8  # of a row in a part
CELLS = 8_000_000  # labels of all samples; so a table of very many rows has fewer samples
LEAST_SAMPLES, MOST_SAMPLES = 100, 400
SCORED = 8_000  # rows that the network scores, in all parts
SCORED_SAMPLES = 4  # samples of a part that they are scored under
BLOCK = 2000  # rows at once
COMPARED = 6  # samples of a part, for stability
FAR = 3.0  # times the largest gap but few in a part: beyond it, a row may be a stray
FEWEST_STRAYS = 5
MAPPED = 8_000  # rows among which islands are looked for
FEWEST_ISLANDERS, NEIGHBOURS = 8, 12
LOOK_ROWS = 500  # of a cluster that is looked at again
LOOK_SAMPLES, LOOK_ORDERS = 64, 8
LOOK_DEPTH = 3
LEAST_ROWS = 40  # of a cluster that is worth another look
MORE_ROWS = 2.0  # times as many rows of a cluster as were seen before
ONE_CLUSTER = 0.3  # probability of one cluster below which a cluster is divided
SMALL = 0.02  # share of the rows of a cluster that might be missed
TOPPED_UP = 8  # rows of a small cluster among the representatives
MORE_TABLE = 1.5  # times as many rows as a part has, for these to tell more than it does
CLEAR = 0.8  # agreement of samples above which nothing is sharpened
BETTER, ENOUGH = 0.1, 0.4  # agreement gained by that, and reached
SHIFTS = 2
LEAST_NEAREST, MOST_NEAREST = 10, 100  # rows that are nearest, or half of those of a cluster
NARROWED, NARROWER = 3, 0.7  # times that this is tried, each of at most that share of the rows
MOST_DENSE = 20_000  # rows that density is taken from
SHARP_ORDERS = 8


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows of a table, clustered.

    Attributes:
        index: Which rows of the table, `(n,)`.
        preparation: Brings further rows to where these are.
        features: What the network saw of them.
        samples: Partitions of them, of equal weight, `(S, n)`.
    """

    index: Int64[np.ndarray, " n"]
    preparation: Preparation
    features: np.ndarray
    samples: Int[np.ndarray, "S n"]

    @classmethod
    def of(cls, prepared: Prepared, posterior: Partitions, n_samples: int, seed: int) -> Part:
        samples = equal_samples(posterior, n_samples, seed)
        return cls(prepared.index, prepared.preparation, prepared.features, samples)


@dataclass(frozen=True, eq=False)
class Whole:
    """Samples of all rows.

    Attributes:
        samples: `(S, N)`, -1 for rows that cannot be clustered.
        stability: Mean adjusted Rand index of samples of different parts, relative to that of
            samples of one part: 1 if it does not matter which rows were looked at.
        is_sharpened: Whether rows were moved to where rows are dense, to tell clusters apart.
    """

    samples: Int16[np.ndarray, "S N"]
    stability: float
    is_sharpened: bool = False


def equal_samples(posterior: Partitions, n_samples: int, seed: int | None) -> np.ndarray:
    """Samples of equal weight."""
    if posterior.log_weights is None and posterior.n_samples == n_samples:
        counts = posterior.counts
    else:
        counts = resample_counts(posterior.weights, n_samples, seed=seed)
    return np.repeat(posterior.labels.astype(np.int16), counts, axis=0)


def n_complete(n_rows: int, n_samples: int) -> int:
    """Samples of all rows that are kept."""
    return min(n_samples, int(np.clip(CELLS // n_rows, LEAST_SAMPLES, MOST_SAMPLES)))


def complete(
    model: NCP,
    columns: Columns,
    usable: Bool[np.ndarray, " N"],
    looks: Sequence[tuple[Prepared, Partitions]],
    settings: Settings,
    known: Int64[np.ndarray, " N"] | None = None,
    tell: Tell | None = None,
) -> Whole:
    """Samples of all rows from parts of them.

    Args:
        model: The network.
        columns: All rows.
        usable: Which of them can be clustered.
        looks: The parts with their samples.
        settings: How they were made; the seed decides everything here, too.
        known: Numbers of known labels, -1 for unknown. Then nothing is looked at again, since
            that would not obey what is known.
        tell: Called with (done, total) rows.
    """
    rng = np.random.default_rng(settings.seed)
    assert settings.n_samples is not None
    each = -(-n_complete(len(columns), settings.n_samples) // len(looks))
    parts = [Part.of(p, q, each, int(rng.integers(2**31))) for p, q in looks]
    rows = np.flatnonzero(usable)
    work = _Completion(model, columns, rows, settings, rng)
    sharper = work.sharpened(parts) if known is None else None
    parts = sharper or parts
    samples, stray = work.fill(parts, known, tell)
    stability = _stability(samples[:, rows], len(parts), rng)
    if known is None:
        if stray.sum() >= FEWEST_STRAYS:
            work.regroup(samples, rows[stray])
        work.look_again(samples, [part.index for part in parts])
        work.part_islands(samples, parts[0])
    return Whole(_renumbered(samples), stability, sharper is not None)


@dataclass(frozen=True, eq=False)
class _Completion:
    """What all steps of `complete` share."""

    model: NCP
    columns: Columns
    rows: Int64[np.ndarray, " n"]  # all that can be clustered
    settings: Settings
    rng: np.random.Generator

    # -- parts

    def sharpened(self, parts: Sequence[Part]) -> list[Part] | None:
        """The parts clustered by where rows are dense, if that tells more; None if not."""
        if not self._can_be_sharpened(parts):
            return None
        plain = _agreement_within(parts, self.rng)
        if plain >= CLEAR:
            return None
        halves = [h[:MOST_DENSE] for h in np.array_split(self.rng.permutation(self.rows), 2)]
        best, least = None, max(plain + BETTER, ENOUGH)
        found, nearest = parts, np.inf
        for _ in range(NARROWED):
            n_clusters = np.median([part.samples.max(1) + 1 for part in found])
            wanted = np.clip(len(halves[0]) / n_clusters / 2, LEAST_NEAREST, MOST_NEAREST)
            if wanted > NARROWER * nearest:
                break
            nearest = int(wanted)
            found = self._drawn_again(parts, halves, nearest)
            sharp = _agreement_within(found, self.rng)
            if sharp >= least:
                best, least = found, sharp
        return best

    def _drawn_again(
        self, parts: Sequence[Part], halves: Sequence[Int64[np.ndarray, " m"]], nearest: int
    ) -> list[Part]:
        """The parts clustered with each row moved among one half of the rows."""
        moved = [self._moved(part, halves[i % 2], nearest) for i, part in enumerate(parts)]
        n_samples, seed = len(parts[0].samples), int(self.rng.integers(2**31))
        drawn = self.model.sample_many(moved, n_samples, orders=SHARP_ORDERS, seed=seed)
        return [
            replace(part, samples=equal_samples(posterior, n_samples, seed))
            for part, posterior in zip(parts, drawn, strict=True)
        ]

    def _can_be_sharpened(self, parts: Sequence[Part]) -> bool:
        """Positions without categories, of a model that is not exact, in a table of more rows.

        And samples enough to be compared.
        """
        mixture = self.model.mixture
        is_exact = mixture is not None and mixture.has_density
        enough = len(self.rows) >= MORE_TABLE * max(len(part.index) for part in parts)
        plain = n_positions(self.model) > 0 and not self.columns.categorical.any()
        n_samples = min(len(part.samples) for part in parts)
        return enough and plain and not is_exact and n_samples >= SHARP_ORDERS

    def _moved(self, part: Part, among: Int64[np.ndarray, " m"], nearest: int) -> np.ndarray:
        """What the network would see of a part's rows nearer to where rows are dense."""
        dense = self._positions(part, among)
        before = positions(self.model, part.features)
        after = shifted(before, dense, nearest)
        features = part.features.reshape(len(before), -1).copy()
        features[:, : before.shape[1]] = after * (before.std() / max(float(after.std()), 1e-9))
        return features.reshape(part.features.shape)

    def fill(
        self, parts: Sequence[Part], known: Int64[np.ndarray, " N"] | None, tell: Tell | None
    ) -> tuple[Int16[np.ndarray, "S N"], Bool[np.ndarray, " n"]]:
        """Samples of all rows, and which of the rows most parts call strays."""
        n_samples = sum(len(part.samples) for part in parts)
        samples = np.full((n_samples, len(self.columns)), -1, dtype=np.int16)
        votes = np.zeros(len(self.columns))
        first = 0
        is_scored = len(parts) * len(self.rows) <= SCORED + sum(len(p.index) for p in parts)
        for number, part in enumerate(parts):
            mine = samples[first : first + len(part.samples)]
            mine[:, part.index] = part.samples
            rest = np.setdiff1d(self.rows, part.index)
            twins = _Twins(self.model, part, self.rng, is_scored)
            for start in range(0, len(rest), BLOCK):
                here = rest[start : start + BLOCK]
                found, stray = twins.of(self.columns.values[here])
                if known is not None:
                    found = _same_label(found, known[here], known[part.index], self.rng)
                mine[:, here] = _follow(part.samples, found)
                votes[here] += stray
                if tell is not None:
                    tell(number * len(rest) + start + len(here), len(parts) * len(rest))
            first += len(mine)
        return samples, votes[self.rows] > 0.5 * len(parts)

    # -- looking again

    def regroup(self, samples: Int16[np.ndarray, "S N"], strays: Int64[np.ndarray, " m"]) -> None:
        """Strays become clusters of their own, as a look at them together says."""
        look = self._look(self._prepared([strays]), len(samples))[0]
        labels = self._everyone(look.part, strays)
        base = samples.max(1).astype(np.int16) + 1
        samples[:, strays] = base[:, None] + labels

    def look_again(
        self, samples: Int16[np.ndarray, "S N"], seen_before: Sequence[np.ndarray]
    ) -> int:
        """Divide clusters that more rows of them alone show to be several; how many were."""
        assert self.settings.max_points is not None
        index = representatives(samples, self.rows, self.settings.max_points, self.rng)
        estimate = _estimate(samples[:, index], self.settings)
        labels = carry_over(samples, index, estimate)
        groups = [np.flatnonzero(labels == k) for k in range(estimate.max() + 1)]
        n_divided = 0
        for _ in range(LOOK_DEPTH):
            groups = [rows for rows in groups if _worth_a_look(rows, seen_before)]
            if not groups:
                break
            below: list[np.ndarray] = []
            looks = self._look(self._prepared(groups), len(samples))
            seen_before = [np.concatenate([look.part.index for look in looks])]
            for rows, look in zip(groups, looks, strict=True):
                if look.one_cluster >= ONE_CLUSTER:
                    continue
                n_divided += 1
                labels = self._everyone(look.part, rows)
                _divide(samples, rows, labels)
                below += look.groups(rows, labels, self.settings)
            groups = below
        return n_divided

    def part_islands(self, samples: Int16[np.ndarray, "S N"], part: Part) -> None:
        """Islands are clusters of their own; where rows are is what the part says."""
        if n_positions(self.model) == 0 or self.columns.categorical.any():
            return  # rare levels are islands, too
        some = self.rng.permutation(self.rows)[:MAPPED]
        mapped = self._positions(part, some)
        reach = reach_of(positions(self.model, part.features))
        found = islands(mapped, _standardised(self.columns.values[some]), reach)
        if not (found >= 0).any():
            return
        nearest = cKDTree(mapped)
        island = np.full(len(self.rows), -1)
        for start in range(0, len(self.rows), BLOCK):
            here = self._positions(part, self.rows[start : start + BLOCK])
            distance, at = nearest.query(here)
            island[start : start + BLOCK] = np.where(distance <= reach, found[at], -1)
        for sample in samples:
            for k in range(found.max() + 1):
                sample[self.rows[island == k]] = sample.max() + 1

    def _positions(self, part: Part, rows: Int64[np.ndarray, " m"]) -> Float64[np.ndarray, "m D"]:
        return positions(self.model, part.preparation.apply(self.columns.values[rows]))

    def _prepared(self, groups: Sequence[np.ndarray]) -> list[Part]:
        """Some rows of each group, standardised on their own, not clustered yet."""
        found = []
        for rows in groups:
            some = np.sort(self.rng.permutation(rows)[:LOOK_ROWS])
            preparation, features = fit_preparation(self.model, self.columns, some, self.settings)
            found.append(Part(some, preparation, features, np.zeros((0, len(some)), np.int16)))
        return found

    def _look(self, parts: Sequence[Part], n_samples: int) -> list[_Look]:
        """Cluster some rows of each group on their own."""
        seed = int(self.rng.integers(2**31))
        drawn = self.model.sample_many(
            [part.features for part in parts], LOOK_SAMPLES, orders=LOOK_ORDERS, seed=seed
        )
        found = []
        for part, posterior in zip(parts, drawn, strict=True):
            one = float(posterior.weights[posterior.n_clusters == 1].sum())
            order = self.rng.permutation(n_samples)
            some = equal_samples(posterior, n_samples, seed)[order]
            clustered = Part(part.index, part.preparation, part.features, some)
            found.append(_Look(clustered, one))
        return found

    def _everyone(self, part: Part, rows: Int64[np.ndarray, " m"]) -> Int16[np.ndarray, "S m"]:
        """Samples of all rows of a group from those of some of them."""
        labels = np.empty((len(part.samples), len(rows)), np.int16)
        seen = np.isin(rows, part.index)
        labels[:, seen] = part.samples
        rest = np.flatnonzero(~seen)
        twins = _Twins(self.model, part, self.rng, is_scored=len(rest) <= BLOCK)
        for start in range(0, len(rest), BLOCK):
            here = rest[start : start + BLOCK]
            labels[:, here] = _follow(part.samples, twins.of(self.columns.values[rows[here]])[0])
        return labels


def _worth_a_look(rows: Int64[np.ndarray, " m"], seen_before: Sequence[np.ndarray]) -> bool:
    """Whether a look at a group sees far more of its rows than any before, which called it one."""
    most = max(int(np.isin(rows, index).sum()) for index in seen_before)
    return len(rows) >= LEAST_ROWS and min(len(rows), LOOK_ROWS) >= MORE_ROWS * most


@dataclass(frozen=True, eq=False)
class _Look:
    """Some rows of a group, clustered on their own, and P(one cluster)."""

    part: Part
    one_cluster: float

    def groups(
        self,
        rows: Int64[np.ndarray, " m"],
        samples: Int16[np.ndarray, "S m"],
        settings: Settings,
    ) -> list[np.ndarray]:
        """The clusters that it found among all rows of the group, from samples of them."""
        estimate = _estimate(self.part.samples, settings)
        where = np.searchsorted(rows, self.part.index)
        labels = carry_over(samples, where, estimate)
        return [rows[labels == k] for k in range(estimate.max() + 1)]


def n_positions(model: NCP) -> int:
    """How many of a row's features are where it is, if the network goes by that."""
    attention = model.spec.attention
    return 0 if attention is None else attention.n_coordinates(model.spec.event_shape)


def positions(model: NCP, features: np.ndarray) -> Float64[np.ndarray, "M D"]:
    """What of the features is where a row is; all, if the network does not go by that."""
    flat = features.reshape(len(features), -1).astype(np.float64)
    return flat[:, : n_positions(model) or None]


def shifted(
    points: Float64[np.ndarray, "n D"], dense: Float64[np.ndarray, "m D"], nearest: int
) -> Float64[np.ndarray, "n D"]:
    """Points at the mean of those nearest to them, one time after the other.

    Example:
        >>> shifted(np.zeros((1, 1)), np.arange(9.0)[:, None], 3).tolist()
        [[1.0]]
    """
    tree = cKDTree(dense)
    for _ in range(SHIFTS):
        points = dense[tree.query(points, k=min(nearest, len(dense)))[1]].mean(1)
    return points


def reach_of(points: Float64[np.ndarray, "n D"]) -> float:
    """How far rows may be from a part's that are not beyond them: few gaps in it are so large."""
    gaps = np.asarray(cKDTree(points).query(points, k=[min(2, len(points))])[0])
    return FAR * float(np.quantile(gaps, 0.99))


def islands(
    points: Float64[np.ndarray, "n D"], values: Float64[np.ndarray, "n P"], reach: float
) -> Int64[np.ndarray, " n"]:
    """The number of each row's island, -1 for none: small groups that are far from all others.

    Args:
        points: Where rows are to the network, which bends and caps tails.
        values: Where they are without that; a group is far in both.
        reach: The least distance; that of few different points from their nearest is another.

    Example:
        >>> body = np.linspace(0, 10, 1000)[:, None]
        >>> rows = np.concatenate([body, 20 + np.linspace(0, 1, 8)[:, None]])
        >>> islands(rows, rows, 2.0)[[0, -1]]
        array([-1,  0])
    """
    n, k = len(points), min(NEIGHBOURS + 1, len(points))
    reach = max(reach, reach_of(np.unique(points, axis=0)))
    distance, near = map(np.asarray, cKDTree(points).query(points, k=np.arange(1, k + 1)))
    row, column = np.nonzero(distance <= reach)
    graph = csr_array((np.ones(len(row)), (row, near[row, column])), shape=(n, n))
    group = connected_components(graph, directed=False)[1]
    sizes, found, number = np.bincount(group), np.full(n, -1), 0
    for one in np.flatnonzero((sizes >= FEWEST_ISLANDERS) & (sizes <= SMALL * n)):
        mine = group == one
        if _gap(points, mine) > reach and all(_is_far(z, mine) for z in (points, values)):
            found[mine] = number
            number += 1
    return found


def _standardised(rows: np.ndarray) -> Float64[np.ndarray, "n P"]:
    """Columns of like spread, whatever is far out in them; missing values in the middle."""
    flat = rows.reshape(len(rows), -1)
    flat = flat[:, ~np.isnan(flat).all(0)]
    low, middle, high = np.nanquantile(flat, [0.05, 0.5, 0.95], axis=0)
    spread = np.where(high > low, high - low, np.fmax(np.nanstd(flat, axis=0), 1e-300))
    return np.asarray(np.nan_to_num((flat - middle) / spread))


def _is_far(points: Float64[np.ndarray, "n D"], mine: Bool[np.ndarray, " n"]) -> bool:
    """Whether some rows are farther from all others than twice their width."""
    radius = float(np.linalg.norm(points[mine] - points[mine].mean(0), axis=1).max())
    return _gap(points, mine) > 4 * radius


def _gap(points: Float64[np.ndarray, "n D"], mine: Bool[np.ndarray, " n"]) -> float:
    return float(np.min(cKDTree(points[~mine]).query(points[mine])[0]))


class _Twins:
    """Which rows of a part stand for other rows."""

    def __init__(self, model: NCP, part: Part, rng: np.random.Generator, is_scored: bool) -> None:
        self.model, self.part, self.rng, self.is_scored = model, part, rng, is_scored
        self.points = positions(model, part.features)
        self.tree = cKDTree(self.points)
        self.reach = reach_of(self.points)
        which = rng.permutation(len(part.samples))[:SCORED_SAMPLES]
        self.labels = as_rows(part.samples[which])

    def of(self, rows: np.ndarray) -> tuple[Int64[np.ndarray, "M T"], Bool[np.ndarray, " M"]]:
        """Twins of rows, and which of them are strays."""
        features = self.part.preparation.apply(rows)
        at = positions(self.model, features)
        if self.is_scored:
            return self._drawn(features, at)
        k = min(N_TWINS // 2, len(self.points))
        distance, twins = map(np.asarray, self.tree.query(at, k=np.arange(1, k + 1)))
        stray = distance[:, 0] > self.reach
        if stray.any():  # few: the network is asked
            stray[stray] = self._drawn(features[stray], at[stray])[1]
        return twins.astype(np.int64), stray

    def _drawn(
        self, features: np.ndarray, at: np.ndarray
    ) -> tuple[Int64[np.ndarray, "M T"], Bool[np.ndarray, " M"]]:
        """The nearest rows of clusters that are drawn as the network says."""
        each = self.model.assign_each(features, self.part.features, self.labels, mutual=False)
        chances = [p.cpu().numpy().astype(np.float64) for p in each]
        stray = np.mean([p[:, -1] for p in chances], axis=0) > 0.5
        distance = cdist(at, self.points)
        twins = np.empty((len(at), N_TWINS), np.int64)
        for t in range(N_TWINS):
            labels, p = self.labels[t % len(self.labels)], chances[t % len(chances)][:, :-1]
            total = p.cumsum(1)
            u = self.rng.random((len(at), 1)) * total[:, -1:]
            cluster = np.minimum((u >= total).sum(1), p.shape[1] - 1)
            twins[:, t] = np.where(labels == cluster[:, None], distance, np.inf).argmin(1)
        return twins, stray


def _follow(
    samples: Int[np.ndarray, "S n"], twins: Int64[np.ndarray, "M T"]
) -> Int[np.ndarray, "S M"]:
    """Labels of rows by those of their twins, one twin after the other from sample to sample."""
    which = np.arange(len(samples)) % twins.shape[1]
    return np.asarray(samples[np.arange(len(samples))[:, None], twins.T[which]])


def _same_label(
    twins: Int64[np.ndarray, "M T"],
    known: Int64[np.ndarray, " M"],
    among: Int64[np.ndarray, " n"],
    rng: np.random.Generator,
) -> Int64[np.ndarray, "M T"]:
    """Rows of a known label have twins of that label."""
    twins = twins.copy()
    for label in np.unique(known[known >= 0]):
        homes = np.flatnonzero(among == label)
        rows = known == label
        if len(homes):
            twins[rows] = homes[rng.integers(len(homes), size=(int(rows.sum()), twins.shape[1]))]
        else:  # of so many labels that a part has not all
            twins[rows] = twins[rows.argmax()]
    return twins


def _divide(
    samples: Int16[np.ndarray, "S N"],
    rows: Int64[np.ndarray, " m"],
    labels: Int16[np.ndarray, "S m"],
) -> None:
    """In each sample the largest piece of a cluster stays as it is, others leave it."""
    for sample, pieces in zip(samples, labels, strict=True):
        largest = np.bincount(pieces).argmax()
        leaves = pieces != largest
        sample[rows[leaves]] = sample.max() + 1 + pieces[leaves]


def representatives(
    samples: Int16[np.ndarray, "S N"],
    rows: Int64[np.ndarray, " n"],
    most: int,
    rng: np.random.Generator,
) -> Int64[np.ndarray, " a"]:
    """Some rows that stand for all: at random, with a few of every cluster of some samples.

    Args:
        samples: Of all rows.
        rows: Those that may be chosen.
        most: How many.
        rng: What chooses.
    """
    order = rng.permutation(rows)
    first = np.zeros(samples.shape[1], dtype=bool)  # members of clusters that have few
    for sample in samples[rng.permutation(len(samples))[:SCORED_SAMPLES]]:
        for k in np.unique(sample[rows]):
            members = order[sample[order] == k]
            first[members[: TOPPED_UP if len(members) < SMALL * len(rows) else 0]] = True
    few = order[first[order]][: most // 2]
    rest = order[~np.isin(order, few)][: most - len(few)]
    return np.sort(np.concatenate([few, rest]))


def covering(
    samples: Int[np.ndarray, "S N"], index: Int64[np.ndarray, " a"]
) -> Int64[np.ndarray, " b"]:
    """The rows `index`, and more of them so that each cluster of each sample has one.

    Example:
        >>> covering(np.array([[0, 0, 1, -1], [0, 0, 0, -1]]), np.array([0]))
        array([0, 2])
    """
    for sample in samples:
        sizes = np.bincount(sample + 1)[1:]  # but of -1
        sizes[sample[index]] = 0
        more = [np.flatnonzero(sample == k)[0] for k in np.flatnonzero(sizes)]
        index = np.append(index, more).astype(np.int64)
    return np.sort(index)


def carry_over(
    samples: Int[np.ndarray, "S N"],
    index: Int64[np.ndarray, " a"],
    estimate: Int64[np.ndarray, " a"],
    known: Int64[np.ndarray, " N"] | None = None,
) -> Int64[np.ndarray, " N"]:
    """The cluster of an estimate of some rows that every row is most together with.

        argmax_k  sum_s  #{m in index: c^s_m = c^s_i, a_m = k} / #{m in index: c^s_m = c^s_i}

    Rows of a known label go with those of it in the index, and rows that were left out have label
    -1.
    """
    n_clusters = int(estimate.max()) + 1
    total = np.zeros((samples.shape[1], n_clusters), np.float32)
    for sample in samples:
        shared = np.zeros((int(sample.max()) + 2, n_clusters), np.float32)  # -1 is the last line
        np.add.at(shared, (sample[index], estimate), 1.0)
        shared /= np.maximum(shared.sum(1, keepdims=True), 1.0)
        total += shared[sample]
    labels = total.argmax(1)
    labels[index] = estimate
    if known is not None:
        for label, at in zip(*np.unique(known[index], return_index=True), strict=True):
            labels[(known == label) & (label >= 0)] = estimate[at]
    labels[samples[0] < 0] = -1
    return np.asarray(labels)


def _estimate(samples: Int[np.ndarray, "S n"], settings: Settings) -> Int64[np.ndarray, " n"]:
    wanted = cast(Estimator, settings.estimate)
    return point_estimate(samples, None, wanted, n_restarts=4, seed=0).labels


def _renumbered(samples: Int16[np.ndarray, "S N"]) -> Int16[np.ndarray, "S N"]:
    """Without numbers that no row has."""
    usable = samples[0] >= 0
    for sample in samples:
        sample[usable] = as_row(sample[usable])
    return samples


def _stability(samples: Int16[np.ndarray, "S n"], n_parts: int, rng: np.random.Generator) -> float:
    """Agreement between samples of different parts, relative to that within parts."""
    if n_parts < 2:
        return 1.0
    some = rng.permutation(samples.shape[1])[:BLOCK]
    groups = np.array_split(samples[:, some].astype(np.int64), n_parts)
    picked = [group[rng.permutation(len(group))[:COMPARED]] for group in groups]
    within = _within(picked)
    between = [_agreement(one, q) for p, q in combinations(picked, 2) for one in p]
    return float(np.clip(np.mean(between) / max(within, 0.01), 0.0, 1.0))


def _agreement_within(parts: Sequence[Part], rng: np.random.Generator) -> float:
    """Mean adjusted Rand index of samples of the same part."""
    picked = [as_rows(p.samples[rng.permutation(len(p.samples))[: 2 * COMPARED]]) for p in parts]
    return _within(picked)


def _within(picked: Sequence[Int64[np.ndarray, "m n"]]) -> float:
    """Mean agreement of samples with the others of their own part."""
    each = [_agreement(one, np.delete(some, i, 0)) for some in picked for i, one in enumerate(some)]
    return float(np.mean(each))


def _agreement(one: Int64[np.ndarray, " n"], others: Int64[np.ndarray, "m n"]) -> float:
    """Mean adjusted Rand index of a sample and others; 1 if there are none."""
    if not len(others):
        return 1.0
    return expected_rand_index(one, others, np.ones(len(others)) / len(others))
