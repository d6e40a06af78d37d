r"""The O(NK) sampler, as a tree of prefixes over an arena of clusters.

Algorithm 1 of the paper draws c_1, c_2, ... in turn. S iid samples of one data set in one order
share prefixes, so the state is the list of *distinct* prefixes ("rows"), each with the number of
samples that went through it; at step n the samples of a row are split over its K + 1 children.
The result is S exact iid samples, and the cost follows the number of distinct prefixes.

Clusters are shared as well: a cluster is a subset of the first n points, and most prefixes consist
of the same few. Each distinct live cluster stands once in an arena with its sums U and its folded
value ĝ (see `ncp.network.network`), and a row holds integer references only. So at step n

* g runs once per live cluster:   a = embed(U + u_n + b_1),  ĝ' = V_G g,  and V_C g, pair features
* f runs once per (row, k):       logit(S_row - ĝ + ĝ' + ... + base(n))

A *sequence* is one data set in one order; it is one compiled loop (`ncp.sampling.kernels`), and
threads take sequences. How the children of a row are chosen is a policy: split the samples (iid),
or keep the B most probable prefixes (beam search), both among those that constraints allow
(`ncp.sampling.constraints`). On an accelerator all sequences go through one
loop of torch (`ncp.sampling.torch_tree`), which is also the oracle of the compiled one.

**The same samples in any company.** The samples of a data set depend on the seed and on its number
in the list only: not on the data sets beside it, on how the work is cut into pieces, on threads or
on machines. Random numbers are a hash of (seed, data set, sequence, point, sample), a sequence is
worked on by itself, and encodings are made in tiles (`Network.encode_many`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.special import logsumexp
from torch import Tensor

from ncp.network.network import Network, Points, check_memory
from ncp.partitions import bell_number
from ncp.sampling.compiled_tree import CompiledTree
from ncp.sampling.constraints import Constraints, free
from ncp.sampling.keys import Keys, data_set_keys, numbered_orders, piece_keys
from ncp.sampling.threads import Progress, Watch, run_jobs, single_threads
from ncp.sampling.torch_tree import TorchTree
from ncp.sampling.weights import fold_once

__all__ = ["ORDER_SAMPLES", "OUT_OF_REACH", "Drawn", "Impossible", "beam_search", "sample_many"]

PIECE_SAMPLES = 12_288  # samples whose prefixes are held at once
PIECE_POSITIONS = 16_777_216  # the same, times the length of their sequences
LABEL = 2 * 8  # bytes of a label of the result: it is there twice while rows are collected
ROW_VALUES = 10  # vectors of the network's width per row of a beam; 21 were measured
SMALL = 200_000  # points times samples that are not worth a thread
LEAST_PROBABLE = 1e-12  # constraints below it are refused
ORDER_SAMPLES = 16  # samples of an order that can be weighted among themselves
BATCH_POINTS = 65_536  # points that are encoded before their sequences run

OUT_OF_REACH = (
    "Expected data within reach of the network but its values overflow; "
    "are the data in the units that it was trained for?"
)


class Drawn(NamedTuple):
    """Distinct rows of labels in the caller's order of points."""

    labels: Int64[np.ndarray, "rows N"]
    counts: Int64[np.ndarray, " rows"]
    log_q: Float64[np.ndarray, " rows"]  # of what drew them, in the order of the draw
    log_weights: Float64[np.ndarray, " rows"] | None = None  # their mean is P(constraints)
    runs: Int64[np.ndarray, " rows"] | None = None  # the order of each, if there are weights


class Impossible(ValueError):
    """Constraints that the network gives (nearly) no probability.

    Attributes:
        point: At which point, or None if it is the number of clusters.
        log_probability: Of what was said about it, given the rest.
    """

    def __init__(self, point: int | None, log_probability: float, known: Constraints) -> None:
        self.point, self.log_probability = point, log_probability
        what = "the number of clusters" if point is None else f"row {known.name(point)}"
        super().__init__(
            f"Expected constraints that some partition obeys but at {what} no choice was left; "
            "allow more clusters or take back a link"
            if log_probability == -np.inf
            else f"Expected constraints that the model finds possible but what was said about "
            f"{what} has a probability of 1e{log_probability / np.log(10):.0f} under it; take it "
            "back, or say at_any_price=True"
        )


class _Sequence(NamedTuple):
    """A piece of the work: samples of one data set in one order."""

    data_set: int
    order: int  # which of the data set's orders
    piece: int  # which of the data set's pieces, for its random numbers
    n_samples: int


@torch.no_grad()
def sample_many(
    network: Network,
    xs: Sequence[Any],
    n_samples: int = 1000,
    *,
    orders: int | str = 1,
    seed: int | None = None,
    streams: Sequence[int] | None = None,
    given: Sequence[Constraints | None] | None = None,
    at_any_price: bool = False,
    progress: Progress | None = None,
) -> list[Drawn]:
    """Samples of q(c | x) for many data sets of any sizes at once.

    Args:
        network: a trained network.
        xs: data sets, `(N_i, *event_shape)` each.
        n_samples: S.
        orders: the number of random orders that the samples are spread over; 1 is the given order,
            `"each"` gives every sample an order of its own.
        seed: makes the call reproducible.
        streams: the numbers of the data sets, which their samples depend on; 0, 1, ... by default.
        given: what is known of each data set's partition; samples then have weights.
        at_any_price: obey constraints whose probability is below `LEAST_PROBABLE` as well.
        progress: called with (points assigned, points in all).
    """
    data = [network.check_points(x) for x in xs]
    sizes = [len(x) for x in data]
    n_orders = _check_orders(n_samples, orders)
    n_labels = sum(min(n_samples, bell_number(min(n, 30))) * n for n in sizes)
    check_memory(LABEL * n_labels, LABEL * max(1, sum(sizes)), "samples")
    keys = data_set_keys(seed, range(len(data)) if streams is None else streams)
    if len(keys) != len(data):
        raise ValueError(f"Expected {len(data)} streams but got {len(keys)}")
    if not data:
        return []
    work = [s for d, n in enumerate(sizes) for s in _sequences(d, n, n_samples, n_orders)]
    known = _check_given(given, sizes)
    tree = _Tree(network, data, keys, known, in_given_order=orders == 1, beam=0)
    rows = tree.run(work, progress)
    pieces = np.bincount([s.data_set for s in work], minlength=len(data))
    merged = [_merge(one) if bool(pieces[d] > n_orders) else one for d, one in enumerate(rows)]
    return [
        _collect(one) if what is None else _weigh(one, what, at_any_price)
        for one, what in zip(merged, known, strict=True)
    ]


@torch.no_grad()
def beam_search(
    network: Network, x: Any, beam: int = 32, given: Constraints | None = None
) -> Drawn:
    """The most probable partitions that a beam of prefixes finds, in no order.

    Args:
        network: a trained network.
        x: one data set, `(N, *event_shape)`.
        beam: prefixes to keep.
        given: what is known of the partition; constrained points then come first.
    """
    if isinstance(beam, bool) or not isinstance(beam, int | np.integer) or beam < 1:
        raise ValueError(f"Expected beam to be an integer >= 1 but got {beam!r}")
    data = [network.check_points(x)]
    n = len(data[0])
    beam = min(int(beam), bell_number(min(n, 30)))  # there are no more prefixes than that
    width = network.spec.f.width
    row = LABEL * n + ROW_VALUES * network.location.element_size() * width
    check_memory(beam * row, row, "prefixes in the beam")
    known = _check_given([given], [n])
    tree = _Tree(network, data, np.zeros(1, np.uint64), known, in_given_order=True, beam=beam)
    (found,) = tree.run([_Sequence(0, 0, 0, 1)], None)[0]
    if known[0] is not None:
        _check_possible([found], known[0], at_any_price=True)
    return _collect([found])


def _check_given(
    given: Sequence[Constraints | None] | None, sizes: list[int]
) -> list[Constraints | None]:
    known = [None] * len(sizes) if given is None else list(given)
    if len(known) != len(sizes):
        raise ValueError(f"Expected constraints for {len(sizes)} data sets but got {len(known)}")
    for one, n in zip(known, sizes, strict=True):
        if one is not None and len(one.groups) != n:
            raise ValueError(f"Expected constraints of {n} points but got {len(one.groups)}")
    return [None if one is None or not one.active else one for one in known]


def _check_orders(n_samples: int, orders: int | str) -> int:
    if isinstance(n_samples, bool) or not isinstance(n_samples, int | np.integer) or n_samples < 1:
        raise ValueError(f"Expected n_samples to be an integer >= 1 but got {n_samples!r}")
    if orders == "each":
        return int(n_samples)
    if isinstance(orders, bool) or not isinstance(orders, int | np.integer) or orders < 1:
        raise ValueError(f"Expected orders to be an integer >= 1 or 'each' but got {orders!r}")
    return min(int(orders), int(n_samples))


def _sequences(d: int, n_points: int, n_samples: int, n_orders: int) -> list[_Sequence]:
    """The samples of each order, in pieces that fit in memory."""
    limit = max(1, min(PIECE_SAMPLES, PIECE_POSITIONS // n_points))
    found: list[_Sequence] = []
    for order in range(n_orders):
        share = n_samples // n_orders + (order < n_samples % n_orders)
        parts = -(-share // limit)
        for part in range(parts):
            count = share // parts + (part < share % parts)
            found.append(_Sequence(d, order, len(found), count))
    return found


class _Rows(NamedTuple):
    """Final rows of a sequence, in the caller's order of points."""

    order: int
    labels: Int64[np.ndarray, "rows N"]
    counts: Int64[np.ndarray, " rows"]
    log_q: Float64[np.ndarray, " rows"]
    log_w: Float64[np.ndarray, " rows"]
    log_z: Float64[np.ndarray, " N"]
    visited: Int64[np.ndarray, " N"]  # the points by position


class _Tree:
    """Runs sequences of data sets, compiled on the CPU and in torch elsewhere."""

    def __init__(
        self,
        network: Network,
        data: list[Tensor],
        keys: Keys,
        given: list[Constraints | None],
        in_given_order: bool,
        beam: int,
    ) -> None:
        self.network, self.data, self.keys, self.given = network, data, keys, given
        self.in_given_order, self.beam = in_given_order, beam
        self.folded = fold_once(network)
        kind = CompiledTree if network.device.type == "cpu" else TorchTree
        self.tree: CompiledTree | TorchTree = kind(network, self.folded)

    def run(self, work: list[_Sequence], progress: Progress | None) -> list[list[_Rows]]:
        """The rows of each data set, by sequence."""
        sizes = [len(self.data[s.data_set]) for s in work]
        results: list[_Rows | None] = [None] * len(work)
        watch = Watch(len(work), sum(sizes), progress)
        small = sum(s.n_samples * n for s, n in zip(work, sizes, strict=True)) <= SMALL
        with single_threads():
            for first, end in self._batches(work):
                jobs = self._jobs(work, first, end, results, watch)
                run_jobs(jobs, watch, small)
        watch.finish()
        rows: list[list[_Rows]] = [[] for _ in self.data]
        for one, found in zip(work, results, strict=True):
            assert found is not None
            rows[one.data_set].append(found)
        return rows

    def _batches(self, work: list[_Sequence]) -> list[tuple[int, int]]:
        """Consecutive sequences whose data sets are encoded together."""
        cuts, points, last = [0], 0, -1
        for i, one in enumerate(work):
            if one.data_set != last:
                last = one.data_set
                if points and points + len(self.data[last]) > BATCH_POINTS:
                    cuts.append(i)
                    points = 0
                points += len(self.data[last])
        return list(zip(cuts, [*cuts[1:], len(work)], strict=True))

    def _jobs(
        self,
        work: list[_Sequence],
        first: int,
        end: int,
        results: list[_Rows | None],
        watch: Watch,
    ) -> list[Callable[[], None]]:
        sets = sorted({one.data_set for one in work[first:end]})
        encoded = self.network.encode_many([self.data[d] for d in sets], self.folded)
        ends = np.cumsum([len(self.data[d]) for d in sets]).tolist()
        points_of = {
            d: Points(*(table[a:b] for table in encoded))
            for d, a, b in zip(sets, [0, *ends], ends, strict=False)
        }

        @torch.no_grad()  # a thread starts with gradients
        def job(i: int) -> None:
            one = work[i]
            order = self._order(one)
            known = self.given[one.data_set] or free(len(order))
            order = known.first(order)
            key = piece_keys(self.keys[one.data_set : one.data_set + 1], 0, np.array([one.piece]))
            how = one.n_samples, key[0], self.beam, known.rules(order)
            found = self.tree.run(points_of[one.data_set], order, *how, watch.stop, watch.done[i])
            if watch.stop[0]:
                return
            if not np.isfinite(found.log_q).all():
                raise ValueError(OUT_OF_REACH)
            results[i] = _Rows(one.order, *found, order)

        return [(lambda i=i: job(i)) for i in range(first, end)]  # type: ignore[misc]

    def _order(self, one: _Sequence) -> Int64[np.ndarray, " N"]:
        n = len(self.data[one.data_set])
        if self.in_given_order:
            return np.arange(n)
        key = self.keys[one.data_set : one.data_set + 1]
        return np.asarray(numbered_orders(key, np.array([one.order]), n)[0])


def _merge(rows: list[_Rows]) -> list[_Rows]:
    """Equal rows of one order that several pieces drew, as one."""
    merged = []
    for number in sorted({one.order for one in rows}):
        pieces = [one for one in rows if one.order == number]
        table = np.concatenate([one.labels for one in pieces])
        labels, inverse = np.unique(table, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        counts, log_q, log_w = (
            np.concatenate([one[column] for one in pieces]) for column in (2, 3, 4)
        )
        total = np.bincount(inverse, weights=counts)
        # q = r w is the same for equal rows; w of each piece is unbiased, and so is their mean
        log_plain = np.empty(len(labels))
        log_plain[inverse] = log_q + log_w
        top = log_w.max(initial=-np.inf)
        mean = np.bincount(inverse, weights=counts * np.exp(log_w - top)) / total
        weights = np.log(mean) + top
        shares = np.array([one.counts.sum() for one in pieces])
        log_z = logsumexp([one.log_z for one in pieces], 0, shares[:, None] / shares.sum())
        merged.append(
            _Rows(
                number,
                labels,
                total.astype(np.int64),
                log_plain - weights,
                weights,
                log_z,
                pieces[0].visited,
            )
        )
    return merged


def _collect(rows: list[_Rows]) -> Drawn:
    """One result of all sequences."""
    columns = (np.concatenate([one[column] for one in rows]) for column in (1, 2, 3))
    return Drawn(*columns)


def _weigh(rows: list[_Rows], known: Constraints, at_any_price: bool) -> Drawn:
    """One result of all sequences; orders count equally, and the mean weight is P(constraints)."""
    _check_possible(rows, known, at_any_price)
    log_means = np.array([one.log_z[-1] for one in rows])
    alive = [one for one in rows if one.log_z[-1] > -np.inf]
    samples = np.array([one.counts.sum() for one in alive])
    lost = np.log(len(alive) / len(rows))  # orders in which no choice was left weigh nothing
    log_weights = np.concatenate([one.log_w for one in alive]) + lost
    if samples.min() >= ORDER_SAMPLES:
        own = log_means[log_means > -np.inf]
        overall = logsumexp(own, b=samples / samples.sum())
        log_weights += np.repeat(overall - own, [len(one.counts) for one in alive])
    runs = np.repeat(np.arange(len(alive)), [len(one.counts) for one in alive])
    return _collect(alive)._replace(log_weights=log_weights, runs=runs)


def _check_possible(rows: list[_Rows], known: Constraints, at_any_price: bool) -> None:
    """Refuse constraints of (nearly) no probability: what was said of a point, given the rest."""
    if all(one.log_z[-1] == -np.inf for one in rows):
        raise Impossible(int(rows[0].visited[np.argmin(rows[0].log_z)]), -np.inf, known)
    if at_any_price:
        return
    # A link costs the point of it that comes last, another one in another order: each order is
    # judged by its own, and the kindest decides.
    alive = [one for one in rows if one.log_z[-1] > -np.inf]
    least = max((_least_probable(one, known) for one in alive), key=lambda one: one[1])
    if least[1] < np.log(LEAST_PROBABLE):
        raise Impossible(*least, known)


def _least_probable(one: _Rows, known: Constraints) -> tuple[int | None, float]:
    """The point (None: the number of clusters) of the least probable statement, and its log p."""
    steps = np.diff(one.log_z, prepend=0.0)
    is_free = known.groups[one.visited] < 0
    number, at = float(steps[is_free].sum()), int(np.where(is_free, 0.0, steps).argmin())
    return (None, number) if number < steps[at] else (int(one.visited[at]), float(steps[at]))
