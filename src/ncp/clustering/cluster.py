r"""From a table to an answer: prepare, sample, weight, summarise, and assign what was left out.

Past `max_points` rows, partitions c^s of a random subset are sampled as usual. Every other row is
then scored under some of the samples (`ncp.clustering.result.Scorer`); its label is the most
probable cluster of the point estimate. The samples themselves are completed by drawing from p_s,
so that they keep their uncertainty. Rows are worked through in blocks: memory grows with N, not
with N times S.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, cast

import numpy as np
from jaxtyping import Int, Int64

from ncp.clustering.assign import ASSIGN_ROWS, Scorer
from ncp.clustering.prepare import Prepared, Range, Settings, column_names, prepare
from ncp.clustering.result import Clustering, number_by_size
from ncp.inference.finish import Goal
from ncp.inference.importance import resample_counts
from ncp.model import NCP, load
from ncp.network.pretrained import DEFAULT, short_name
from ncp.output.words import exact_sentence, weights_sentence
from ncp.posterior import Partitions
from ncp.summary.assignment import confidence
from ncp.summary.estimate import Estimator
from ncp.summary.summary import summarise

__all__ = ["cluster", "cluster_many", "make_exact"]

Progress = Callable[[str, int, int], None]

ASSIGN_CANDIDATES = 200_000  # scores spent on the rows of a large table that were left out
KEPT_SAMPLES = 16  # samples that new rows, and those of a large table, are scored under
ENOUGH = 200  # samples of the subset of a large table; more would not be used


def cluster(
    x: Any,
    model: str | os.PathLike[str] | NCP = DEFAULT,
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> Clustering:
    """Cluster a table.

    Args:
        x: Numbers, `(N, P)`, NaN for missing; a pandas `DataFrame` keeps its column names.
        model: The name of a model, the path of a checkpoint, or a model.
        progress: Called with (what is being done, done, total).
        settings: Those of `Settings`: `n_samples`, `orders`, `estimate`, `reweight`, `seed`, ...
    """
    return cluster_many([x], model, progress=progress, **settings)[0]


def cluster_many(
    xs: Sequence[Any],
    model: str | os.PathLike[str] | NCP = DEFAULT,
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> list[Clustering]:
    """Cluster many tables at once; see `cluster`."""
    known = [one.name for one in fields(Settings)]
    if unknown := sorted(settings.keys() - set(known)):
        raise TypeError(f"Expected settings among {', '.join(known)} but got {', '.join(unknown)}")
    asked = Settings(**settings)
    network = model if isinstance(model, NCP) else load(model)
    how = asked.for_model(network)
    assert how.n_samples is not None
    assert how.orders is not None
    name = "a model of your own" if isinstance(model, NCP) else short_name(model)
    started = time.monotonic()
    ranges: dict[int, Range] = {}
    prepared = [prepare(network, x, how, ranges) for x in xs]
    tell = None if progress is None else _sampling_progress(progress)
    posteriors: list[Partitions] = [None] * len(xs)  # type: ignore[list-item]
    for is_large, n_samples in ((False, how.n_samples), (True, min(how.n_samples, ENOUGH))):
        wanted = [i for i, p in enumerate(prepared) if p.is_partial == is_large]
        features = [prepared[i].features for i in wanted]
        # With a seed, a table has the same samples alone, among others and after a resumption.
        streams = None if how.seed is None else [0] * len(wanted)
        drawn = network.sample_many(
            features,
            n_samples,
            orders=how.orders,
            seed=how.seed,
            streams=streams,
            progress=tell,
        )
        for i, posterior in zip(wanted, drawn, strict=True):
            posteriors[i] = posterior
    each = (time.monotonic() - started) / max(1, len(xs))
    return [
        _answer(x, network, name, how, p, posterior, each, progress)
        for x, p, posterior in zip(xs, prepared, posteriors, strict=True)
    ]


def _sampling_progress(progress: Progress) -> Callable[[int, int], None]:
    return lambda done, total: progress("sampling", done, total)


def _answer(
    x: Any,
    model: NCP,
    name: str,
    settings: Settings,
    prepared: Prepared,
    posterior: Partitions,
    seconds: float,
    progress: Progress | None,
) -> Clustering:
    started = time.monotonic()
    table = prepared.table
    posterior = make_exact(posterior, model, settings, in_range=not prepared.warnings)
    n = posterior.n_points
    summary = summarise(
        posterior.labels,
        posterior.weights,
        cast(Estimator, settings.estimate),
        max_clusters=settings.max_clusters,
        n_restarts=16 if n <= 300 else 4,
    )
    labels = np.full(len(table), -1)
    labels[prepared.index] = summary.estimate.labels
    sure = np.full(len(table), np.nan)
    sure[prepared.index] = summary.confidence
    rest = np.setdiff1d(np.flatnonzero(prepared.usable), prepared.index)
    scorer = Scorer.choose(prepared, posterior, summary.estimate.labels, _kept(posterior, rest))
    samples = _everywhere(_equal_samples(posterior, settings.seed), prepared.index, len(table))
    if len(rest):
        samples = _complete(
            model, scorer, table, prepared.index, rest, labels, settings.seed, progress
        )
        sure[prepared.usable] = confidence(labels[prepared.usable], samples[:, prepared.usable])
    names = number_by_size(labels)
    estimate = replace(summary.estimate, labels=names[summary.estimate.labels])
    return Clustering(
        table=table,
        columns=column_names(x, table),
        labels=names[labels],
        confidence=sure,
        posterior=posterior,
        summary=replace(summary, estimate=estimate),
        index=prepared.index,
        samples=samples,
        notes=prepared.notes,
        warnings=(*prepared.warnings, *_doubts(posterior)),
        model=model,
        model_name=name,
        settings=settings,
        seconds=seconds + time.monotonic() - started,
        scorer=replace(scorer, estimate=estimate.labels),
        frame=x if hasattr(x, "columns") else None,
    )


def _kept(posterior: Partitions, rest: np.ndarray) -> int:
    """How many samples further rows are scored under: fewer, if there are many rows."""
    width = int(posterior.labels.max()) + 2
    affordable = ASSIGN_CANDIDATES // max(1, len(rest) * width)
    return int(np.clip(affordable, 4, KEPT_SAMPLES))


def _equal_samples(posterior: Partitions, seed: int | None) -> Int[np.ndarray, "S n"]:
    """As many samples as there are, of equal weight."""
    counts = posterior.counts
    if posterior.log_weights is not None:
        counts = resample_counts(posterior.weights, posterior.n_samples, seed=seed)
    return np.repeat(posterior.labels.astype(np.int16), counts, axis=0)


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
    posterior: Partitions, model: NCP, settings: Settings, in_range: bool = True
) -> Partitions:
    """Exact samples where the model has a density: by weights, or where those fail by chains.

    Args:
        posterior: The network's samples.
        model: The network.
        settings: With `reweight` True they are weighted whatever the weights are like, with False
            left as they are. `time_limit` is the chains', `seed` too.
        in_range: Whether the data look like those that the network was trained on; if not, its
            weights may look good and miss everything.
    """
    mixture = model.mixture
    if not settings.reweight or (settings.reweight == "auto" and not has_exact_finish(model)):
        return posterior
    if mixture is None or not has_exact_finish(model):
        raise ValueError("Expected a model with a joint density to reweight for but it has none")
    posterior = replace(posterior, in_range=in_range)
    if settings.reweight is True:
        return posterior.reweight(mixture.given())
    goal = Goal(time_limit=settings.time_limit)
    return posterior.exact(mixture.given(), goal=goal, seed=settings.seed)


def has_exact_finish(model: NCP) -> bool:
    """Whether the network's samples can be made exact."""
    return model.mixture is not None and model.mixture.is_conjugate


def _doubts(posterior: Partitions) -> tuple[str, ...]:
    """What the exact finish has to warn of: weights that were insisted on, or chains cut short."""
    report = posterior.report
    if report.method == "none" or report.trusted:
        return ()
    if report.method == "weights":
        return (weights_sentence(report.verdict, report.ess, report.n_samples, report.k_hat),)
    return (exact_sentence(report.method, report.converged, report.ess, report.r_hat),)


def _complete(
    model: NCP,
    scorer: Scorer,
    table: np.ndarray,
    index: np.ndarray,
    rest: np.ndarray,
    labels: Int64[np.ndarray, " N"],
    seed: int | None,
    progress: Progress | None,
) -> Int[np.ndarray, "S N"]:
    """Fill in labels of the rest; returns completed samples of all rows."""
    rng = np.random.default_rng(seed)
    row = resample_counts(scorer.weights, KEPT_SAMPLES, seed=0)
    samples = np.full((int(row.sum()), len(table)), -1, dtype=np.int16)
    samples[:, index] = np.repeat(scorer.labels.astype(np.int16), row, axis=0)
    first = np.cumsum(row) - row
    for start in range(0, len(rest), ASSIGN_ROWS):
        here = rest[start : start + ASSIGN_ROWS]
        each = scorer.each(model, table[here])
        for p, s, count in zip(each, first, row, strict=True):
            cumulative = p.cumsum(1)
            for d in range(count):
                u = rng.random((len(here), 1)) * cumulative[:, -1:]
                samples[s + d, here] = (u >= cumulative).sum(1)
        labels[here] = scorer.carry_over(each)[:, :-1].argmax(1)
        if progress is not None:
            progress("assigning", min(start + ASSIGN_ROWS, len(rest)), len(rest))
    return samples
