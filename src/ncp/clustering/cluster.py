r"""From a table to an answer: prepare, sample, weight, summarise, and assign what was left out.

A table of more than `max_points` rows is looked at in parts, and their samples are completed to
samples of all rows (`ncp.clustering.large`). A table with missing values is looked at several
times, with other values filled in, so that the samples show what these leave open.

What is known of the rows (`ncp.clustering.knowledge`) constrains the samples, and the estimate.
Rows that something is known of are in every part (of very many labels, some of each).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Float64, Int, Int64

from ncp.clustering.assign import Scorer
from ncp.clustering.copies import Copies
from ncp.clustering.gaussian import FamilyTable, check_family_options, family_of, prepare_family
from ncp.clustering.gaussian_result import family_exact, family_result
from ncp.clustering.knowledge import Heard, Knowledge, Translated, row_names
from ncp.clustering.large import (
    carry_over,
    complete,
    covering,
    equal_samples,
    representatives,
)
from ncp.clustering.prepare import (
    Preparation,
    Prepared,
    Range,
    Settings,
    as_columns,
    as_frame,
    fit_preparation,
    look_again,
    prepare,
    preprocessing_of,
)
from ncp.clustering.result import Clustering, number_by_size
from ncp.clustering.verdict import is_worth_little
from ncp.inference.finish import Goal
from ncp.inference.importance import log_evidence
from ncp.model import NCP, load
from ncp.network.pretrained import DEFAULT
from ncp.output.words import (
    exact_sentence,
    sharpened_sentence,
    stability_sentence,
    unused_sentence,
    weights_sentence,
)
from ncp.posterior import Partitions, pool, resample
from ncp.sampling.constraints import Constraints
from ncp.sampling.sample import ORDER_SAMPLES
from ncp.summary.assignment import confidence
from ncp.summary.estimate import Estimator
from ncp.summary.summary import summarise

__all__ = ["cluster", "cluster_given", "cluster_many", "make_exact"]

Progress = Callable[[str, int, int], None]

KEPT_SAMPLES = 16  # samples that new rows are scored under
ENOUGH_OBEY = 100  # samples that obey what is said later, for an answer without new ones


def cluster(
    x: Any,
    model: str | os.PathLike[str] | NCP = DEFAULT,
    *,
    known: Any = None,
    together: Any = (),
    apart: Any = (),
    n_clusters: Any = None,
    at_least: Any = None,
    at_most: Any = None,
    at_any_price: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> Clustering:
    """Cluster a table.

    Args:
        x: Numbers, `(N, P)`, NaN for missing, or a pandas `DataFrame`, whose text and codes are
            categories and whose dates are days; columns that name rows are left out.
        model: The name of a model, the path of a checkpoint, or a model.
        known: A label for each row, None, NaN, "" or -1 where it is not known, or a dict from rows
            to labels. Rows of equal labels are together, of different ones apart; the others may
            join them or not.
        together: Rows that share a cluster, in pairs or longer lists, by position or index label.
        apart: Rows of which no two share a cluster, the same.
        n_clusters: How many clusters there are.
        at_least: The fewest that there are.
        at_most: The most that there are.
        at_any_price: Whether to obey what the model gives a probability below 1e-12.
        progress: Called with (what is being done, done, total).
        settings: Those of `Settings`: `n_samples`, `orders`, `estimate`, `reweight`, `seed`, ...
    """
    said = Knowledge(known, together, apart, n_clusters, at_least, at_most, at_any_price)
    return cluster_many([x], model, knowledge=[said], progress=progress, **settings)[0]


def cluster_many(
    xs: Sequence[Any],
    model: str | os.PathLike[str] | NCP = DEFAULT,
    *,
    knowledge: Sequence[Knowledge] | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> list[Clustering]:
    """Cluster many tables at once; see `cluster`.

    Args:
        xs: The tables.
        model: The name of a model, the path of a checkpoint, or a model.
        knowledge: What is known of each.
        progress: Called with (what is being done, done, total).
        settings: Those of `Settings`.
    """
    known = [one.name for one in fields(Settings)]
    if unknown := sorted(settings.keys() - set(known)):
        raise TypeError(f"Expected settings among {', '.join(known)} but got {', '.join(unknown)}")
    asked = Settings(**settings)
    network = model if isinstance(model, NCP) else load(model)
    how = asked.for_model(network)
    check_family_options(network, asked)
    name = network.name or "a model of your own"
    started = time.monotonic()
    ranges: dict[int, Range] = {}
    said = [Knowledge()] * len(xs) if knowledge is None else list(knowledge)
    tables = [
        _Table.prepare(network, as_frame(x), how, ranges, one)
        for x, one in zip(xs, said, strict=True)
    ]
    tell = None if progress is None else _sampling_progress(progress)
    enough = how if asked.n_samples else replace(how, n_samples=_enough_given(how))
    drawn = _draw(network, tables, how, tell)
    posteriors = [
        _draw_given(network, table, enough, tell) if of_table is None else of_table
        for table, of_table in zip(tables, drawn, strict=True)
    ]
    each = (time.monotonic() - started) / max(1, len(xs))
    found = []
    for table, of_table in zip(tables, posteriors, strict=True):
        at = time.monotonic()
        one = _exact_answer(table, network, name, how, of_table, progress)
        one = one if table.copies is None else table.copies.all_rows(one)
        found.append(replace(one, seconds=each + time.monotonic() - at))
    return found


def _exact_answer(
    table: _Table,
    network: NCP,
    name: str,
    how: Settings,
    drawn: Sequence[Partitions],
    progress: Progress | None,
) -> Clustering:
    """What samples of the network say, made exact if they can be."""
    heard, family = _hear(table, drawn[0]), table.prepared.preparation
    if isinstance(family, FamilyTable):
        exact = family_exact(drawn[0], network, family, how, table.constraints[0])
        found = _answer(table, network, name, how, [exact.partitions], heard, progress)
        found = family_result(found, family, exact)
        own = replace(drawn[0], x=family.z)
        unused = exact.partitions.report.method == "none"
        return (
            _with_doubts(found, partial(own.reweight, family.mixture()), how) if unused else found
        )
    made = [
        _make_exact(one, network, how, table, progress, constraints)
        for one, constraints in zip(drawn, table.constraints, strict=True)
    ]
    doubtful = [one.report.verdict for one in made if not one.report.trusted]
    if how.exact is True and doubtful:
        raise ValueError(f"Expected exact samples but the verdict is {doubtful[0]!r}")
    found = _answer(table, network, name, how, made, heard, progress)
    raw = [own for own, one in zip(drawn, made, strict=True) if one.report.method == "none"]
    if not raw or not has_exact_finish(network):
        return found
    weigh = partial(_make_exact, raw[0], network, replace(how, reweight=True, exact=None), table)
    return _with_doubts(found, weigh, how)


def _make_exact(
    drawn: Partitions,
    network: NCP,
    how: Settings,
    table: _Table,
    progress: Progress | None = None,
    constraints: Constraints | None = None,
) -> Partitions:
    tell = None if progress is None else partial(progress, "making exact")
    return make_exact(drawn, network, how, not table.prepared.warnings, constraints, tell)


def _with_doubts(found: Clustering, weigh: Callable[[], Partitions], how: Settings) -> Clustering:
    """A clustering with a note or a warning of what weights that were not used would say."""
    try:
        weights = weigh().report
    except ValueError as error:  # of numbers so large that no density is left
        said = f"The samples have no importance weights: {error}."
        return replace(found, warnings=(*found.warnings, said))
    said = unused_sentence(weights.verdict, weights.ess, weights.n_samples)
    if weights.trusted and how.reweight is False:
        return replace(found, notes=(*found.notes, said))
    return replace(found, warnings=(*found.warnings, said))


def cluster_given(result: Clustering, knowledge: Knowledge) -> Clustering:
    """A clustering with more knowledge: of the samples that obey, or drawn anew if few do.

    Args:
        result: What was found before.
        knowledge: What is known, too.
    """
    x = result.data if result.frame is None else result.frame
    if not result.has_table:
        raise ValueError("Expected a clustering with its table but it was saved without")
    if result.model is None:
        raise ValueError("Expected a clustering with its network but it was loaded without")
    said = knowledge if result.heard is None else knowledge.added_to(result.heard.knowledge, x)
    how = result.settings
    table = _Table.prepare(result.model, x, how, {}, said)
    found = _condition(result, result.model, table)
    if found is None:
        how = replace(how, n_samples=_enough_given(how))
        found = cluster_many([x], result.model, knowledge=[said], **asdict(how))[0]
    return replace(found, names=result.names, model_name=result.model_name, columns=result.columns)


def _condition(result: Clustering, model: NCP, table: _Table) -> Clustering | None:
    """From the samples that obey, if they are enough."""
    constraints = table.constraints[0]
    if family_of(model) is not None:
        return None
    if constraints is None or not np.array_equal(table.prepared.index, result.index):
        return None
    obey = constraints.allow(result.posterior.labels)
    share = float(result.posterior.weights[obey].sum())
    if share * result.n_draws < ENOUGH_OBEY:
        return None
    assert table.rows is not None
    before = 0.0 if result.heard is None else result.heard.log_probability
    heard = Heard(table.knowledge, table.rows, before + np.log(share), share * result.n_draws)
    kept, how = result.posterior[obey], result.posterior.finish
    if how is not None:
        kept = replace(kept, finish=replace(how, ess=share * how.ess))
    return _answer(table, model, "", result.settings, [kept], heard)


class _Table(NamedTuple):
    """A table, what is known of it, and both as the network sees them, look by look."""

    x: Any
    knowledge: Knowledge
    rows: Translated | None  # None: nothing is known
    looks: tuple[Prepared, ...]
    constraints: tuple[Constraints | None, ...]  # of each look
    copies: Copies | None  # among rows that nothing is known of; looks have each row once

    @classmethod
    def prepare(
        cls, model: NCP, x: Any, how: Settings, ranges: dict[int, Range], knowledge: Knowledge
    ) -> _Table:
        rows = knowledge.translate(x) if knowledge.said() else None
        limits = partial(_constraints, rows, knowledge, x)
        table, copies = x, None
        if preprocessing_of(model) is not None:
            table = as_columns(x, how)
            copies = None if rows is not None else Copies.among(table)
            table = table if copies is None else copies.different
        if family_of(model) is None:
            first = prepare(model, table, how, ranges, rows)
        else:
            first = prepare_family(model, x, how, limits)
        more = (look_again(model, first, i, how, rows) for i in range(1, first.n_looks))
        looks = (first, *more)
        constraints = tuple(limits(look.index) for look in looks)
        return cls(x, knowledge, rows, looks, constraints, copies)

    @property
    def prepared(self) -> Prepared:
        """The first look."""
        return self.looks[0]


def _constraints(
    rows: Translated | None, knowledge: Knowledge, x: Any, index: Int64[np.ndarray, " n"]
) -> Constraints | None:
    if rows is None:
        return None
    found = rows.constraints(index, knowledge.called or row_names(x, len(x)))
    return found if found.active else None


def _draw(
    network: NCP, tables: Sequence[_Table], how: Settings, tell: Callable[[int, int], None] | None
) -> list[list[Partitions] | None]:
    """Samples of all tables of which nothing is known, at once; a list for the looks at each."""
    assert how.orders is not None
    posteriors: list[list[Partitions] | None] = [
        [] if table.constraints[0] is None else None for table in tables
    ]
    for n_looks in sorted({len(table.looks) for table in tables}):
        wanted = [
            (number, i)
            for number, table in enumerate(tables)
            for i in range(n_looks)
            if len(table.looks) == n_looks and posteriors[number] is not None
        ]
        # With a seed, a table has the same samples alone, among others and after a resumption.
        streams = None if how.seed is None else [i for _, i in wanted]
        drawn = network.sample_many(
            [tables[number].looks[i].features for number, i in wanted],
            _of_look(how, n_looks),
            orders=_orders_of_look(how, n_looks),
            seed=how.seed,
            streams=streams,
            progress=tell,
        )
        for (number, _), posterior in zip(wanted, drawn, strict=True):
            cast(list[Partitions], posteriors[number]).append(posterior)
    return posteriors


def _of_look(how: Settings, n_looks: int) -> int:
    """Samples of each look."""
    assert how.n_samples is not None
    return -(-how.n_samples // n_looks)


def _orders_of_look(how: Settings, n_looks: int) -> int | str:
    assert how.orders is not None
    return how.orders if isinstance(how.orders, str) else -(-how.orders // n_looks)


def _enough_given(how: Settings) -> int:
    """Samples under constraints, if nobody says how many: those of an order are weighted."""
    assert how.n_samples is not None
    orders = how.orders if isinstance(how.orders, int) else 1
    return max(how.n_samples, ORDER_SAMPLES * orders)


def _draw_given(
    network: NCP, table: _Table, how: Settings, tell: Callable[[int, int], None] | None
) -> list[Partitions]:
    """Weighted samples of the looks at a table that obey what is known of it."""
    found = []
    for number, (look, constraints) in enumerate(zip(table.looks, table.constraints, strict=True)):
        drawn = network.sample(
            look.features,
            _of_look(how, len(table.looks)),
            orders=_orders_of_look(how, len(table.looks)),
            seed=None if how.seed is None else how.seed + number,
            progress=tell,
            given=constraints,
            at_any_price=table.knowledge.at_any_price,
        )
        found.append(drawn)
    return found


def _sampling_progress(progress: Progress) -> Callable[[int, int], None]:
    return lambda done, total: progress("sampling", done, total)


def _answer(
    given: _Table,
    model: NCP,
    name: str,
    settings: Settings,
    posteriors: Sequence[Partitions],
    heard: Heard | None,
    progress: Progress | None = None,
) -> Clustering:
    """What samples say of a table."""
    started = time.monotonic()
    prepared = given.prepared
    found = _all_rows(given, model, settings, posteriors, progress)
    posterior, constraints = found.posterior, given.constraints[0]
    if constraints is not None and len(found.index) > len(prepared.index):
        constraints = _constraints(given.rows, given.knowledge, given.x, found.index)
    summary = summarise(
        posterior.labels,
        posterior.weights,
        cast(Estimator, settings.estimate),
        max_clusters=settings.max_clusters,
        n_restarts=16 if posterior.n_points <= 300 else 4,
        obeys=None if constraints is None else constraints.allow,
    )
    labels = np.full(len(prepared.table), -1)
    labels[found.index] = summary.estimate.labels
    if prepared.is_partial:
        known = None if constraints is None or given.rows is None else given.rows.labels
        labels = carry_over(found.samples, found.index, summary.estimate.labels, known)
    names = number_by_size(labels)
    labels, estimate = names[labels], names[summary.estimate.labels]
    sure = _sure(prepared, labels, found, summary.confidence)
    if model.mixture is not None:
        sure = model.mixture.calibrated(sure, len(found.index))
    return Clustering(
        table=prepared.table,
        columns=prepared.columns.names,
        levels=prepared.columns.levels,
        labels=labels,
        confidence=sure,
        posterior=posterior,
        summary=replace(summary, estimate=replace(summary.estimate, labels=estimate)),
        index=found.index,
        samples=found.samples,
        notes=(*prepared.notes, *found.notes),
        warnings=(*prepared.warnings, *_doubts(posteriors)),
        model=model,
        model_name=name,
        settings=settings,
        seconds=time.monotonic() - started,
        scorer=Scorer.choose(found.preparation, found.features, posterior, estimate, KEPT_SAMPLES),
        is_conjugate=model.mixture is not None and model.mixture.is_conjugate,
        frame=given.x if hasattr(given.x, "columns") else None,
        heard=heard,
        stability=found.stability,
        shortfall=0.0 if model.mixture is None else model.mixture.shortfall(len(found.index)),
    )


def _sure(
    prepared: Prepared, labels: np.ndarray, found: _AllRows, confident: np.ndarray
) -> Float64[np.ndarray, " N"]:
    """The confidence of all rows."""
    sure = np.full(len(labels), np.nan)
    sure[found.index] = confident
    if prepared.is_partial:
        rows = prepared.usable
        sure[rows] = confidence(labels[rows], found.samples[:, rows])
    return sure


@dataclass(frozen=True, eq=False)
class _AllRows:
    """Samples of all rows, and of those that stand for them."""

    samples: Int[np.ndarray, "S N"]
    index: Int64[np.ndarray, " n"]
    posterior: Partitions
    preparation: Preparation
    features: np.ndarray
    notes: tuple[str, ...] = ()
    stability: float = 1.0


def _all_rows(
    given: _Table,
    model: NCP,
    settings: Settings,
    posteriors: Sequence[Partitions],
    progress: Progress | None,
) -> _AllRows:
    first = given.prepared
    seed = settings.seed
    if not first.is_partial:
        posterior = posteriors[0] if len(posteriors) == 1 else pool(posteriors)
        samples = equal_samples(posterior, posterior.n_samples, seed)
        samples = _everywhere(samples, first.index, len(first.table))
        return _AllRows(samples, first.index, posterior, first.preparation, first.features)
    tell = None if progress is None else lambda i, n: progress("completing", i, n)
    known = None if given.constraints[0] is None or given.rows is None else given.rows.labels
    looks = list(zip(given.looks, posteriors, strict=True))
    whole = complete(model, first.smooth, first.usable, looks, settings, known, tell)
    rng = np.random.default_rng(seed)
    index = first.index  # with all that is known
    if known is None:
        rows = np.flatnonzero(first.usable)
        index = representatives(whole.samples, rows, len(index), rng)
    elif given.knowledge.says_number():
        index = covering(whole.samples, index)
    posterior = Partitions.of(whole.samples[:, index])
    preparation, features = fit_preparation(model, first.smooth, index, settings)
    notes = (stability_sentence(whole.stability),) + (
        (sharpened_sentence(),) if whole.is_sharpened else ()
    )
    return _AllRows(whole.samples, index, posterior, preparation, features, notes, whole.stability)


def _hear(given: _Table, posterior: Partitions) -> Heard | None:
    """What was known, and what its probability was before it was."""
    if given.rows is None:
        return None
    weights = posterior.log_weights
    if weights is None:  # nothing that was said rules anything out
        return Heard(given.knowledge, given.rows, 0.0, float(posterior.n_samples))
    log_probability = float(log_evidence(weights, posterior.counts).value)
    return Heard(given.knowledge, given.rows, log_probability, posterior.ess)


def _everywhere(
    samples: Int[np.ndarray, "S n"], index: np.ndarray, n_rows: int
) -> Int[np.ndarray, "S N"]:
    """Samples of some rows as samples of all, with -1 for the others."""
    if len(index) == n_rows:
        return samples
    everything = np.full((len(samples), n_rows), -1, dtype=np.int16)
    everything[:, index] = samples
    return everything


def make_exact(
    posterior: Partitions,
    model: NCP,
    settings: Settings,
    in_range: bool = True,
    constraints: Constraints | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Partitions:
    """Exact samples where the model has a density: by weights, or where those fail by chains.

    Args:
        posterior: The network's samples.
        model: The network.
        settings: With `reweight` True they are weighted whatever the weights are like, with False
            left as they are. `time_limit` is the chains', `seed` too.
        in_range: Whether the data look like those that the network was trained on; if not, its
            weights may look good and miss everything.
        constraints: What the samples obey, as weighted ones of the network. They are the
            network's, with equal weights, if weights fail and few samples of chains obey.
        progress: Called with (done, total) while chains run.
    """
    mixture = model.mixture
    if not settings.reweight or (settings.reweight == "auto" and not has_exact_finish(model)):
        return posterior if constraints is None else resample(posterior, seed=settings.seed or 0)
    if mixture is None or not has_exact_finish(model):
        raise ValueError("Expected a model with a joint density to reweight for but it has none")
    posterior = replace(posterior, in_range=in_range)
    assert posterior.x is not None, "samples of a network know their data"
    known, points = mixture.unpack(posterior.x)
    if settings.reweight is True:
        return posterior.reweight(known, points)
    return posterior.exact(
        known,
        points,
        goal=Goal.of(settings.n_samples, settings.time_limit),
        seed=settings.seed,
        allow=None if constraints is None else constraints.allow,
        progress=progress,
    )


def has_exact_finish(model: NCP) -> bool:
    """Whether the network's samples can be made exact."""
    mixture = model.mixture
    return mixture is not None and (mixture.is_conjugate or mixture.has_density)


def _doubts(posteriors: Sequence[Partitions]) -> tuple[str, ...]:
    """What the exact finish has to warn of: bad weights, few draws, or chains cut short."""
    reports = [one.report for one in posteriors]
    doubtful = [one for one in reports if not one.trusted or is_worth_little(one)]
    report = next((one for one in doubtful if one.method != "none"), None)
    if report is None:
        return ()
    if report.method == "weights":
        return (weights_sentence(report.verdict, report.ess, report.n_samples, report.k_hat),)
    return (exact_sentence(report.method, report.converged, report.ess, report.r_hat),)
