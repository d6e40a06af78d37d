"""Every check that applies to a model, as one table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ncp.checks.accuracy import (
    agreement,
    efficiency,
    k_mode_accuracy,
    nll_per_point,
    point_estimate_ari,
    reweighted,
)
from ncp.checks.calibration import sbc
from ncp.checks.chain import compare_with_chain
from ncp.checks.exact import exact_comparison, last_point_tv
from ncp.checks.family import in_dimension, made_exact, parts_of
from ncp.checks.geweke import geweke
from ncp.checks.orders import order_dependence
from ncp.checks.plan import CheckPlan
from ncp.checks.reliability import reliability
from ncp.checks.report import CheckReport, CheckRow
from ncp.checks.simulation import (
    LEVEL,
    LogProb,
    Progress,
    SampleMany,
    Simulation,
    seeds_of,
    simulate,
)
from ncp.generative.gaussian_family import GaussianFamily
from ncp.generative.model import GenerativeModel
from ncp.inference.finish import Goal

__all__ = ["run_checks"]

EXACT_ESS = 100.0  # draws that an exact result is worth at least


def run_checks(
    log_prob: LogProb,
    sample_many: SampleMany,
    mixture: GenerativeModel,
    *,
    plan: CheckPlan | None = None,
    seed: int = 71_993,
    progress: Progress | None = None,
) -> CheckReport:
    """Every check that applies to a model, as one table.

    A conjugate mixture has exact answers to compare with; a likelihood with a density still has
    Geweke's test and a Markov chain with ten times the time; one that can only be sampled from
    (images) has calibration and accuracy.

    Args:
        log_prob: log q(c | x); `NCP.log_prob` is one.
        sample_many: the sampler; `NCP.sample_many` is one.
        mixture: the model that q claims to invert. Data sets are drawn from it.
        plan: sizes and targets; by default `CheckPlan.of(mixture)`.
        seed: of everything; must not be one that was trained ctx.
        progress: called as `progress(what, done, total)`.
    """
    plan = plan or CheckPlan.of(mixture)
    ctx = _CheckContext(log_prob, sample_many, mixture, plan, progress)
    parts = [_calibration_rows, _order_rows, _likelihood_rows, _accuracy_rows, _agreement_rows]
    if mixture.has_density or mixture.is_conjugate:
        parts.insert(1, _geweke_rows)
    if mixture.is_conjugate:
        parts = [_last_point_rows, _enumeration_rows, _efficiency_rows, *parts]
    elif mixture.has_density:
        parts.append(_chain_rows)
    if isinstance(mixture, GaussianFamily):
        parts += [_family_rows, _exact_rows]
    rows: list[CheckRow] = []
    results: dict[str, Any] = {}
    for part, part_seed in zip(parts, seeds_of(seed, len(parts)), strict=True):
        for row, key, result in part(ctx, part_seed):
            rows.append(row)
            results[key] = result
    return CheckReport(tuple(rows), results)


Lines = Iterator[tuple[CheckRow, str, Any]]  # a row, and the result it was read from


class _CheckContext(NamedTuple):
    """What is on trial, and how."""

    log_prob: LogProb
    sample_many: SampleMany
    mixture: GenerativeModel
    plan: CheckPlan
    progress: Progress | None

    def simulate(
        self, n_datasets: int, n_samples: int, seed: int, n_points: int | None = None
    ) -> Simulation:
        return simulate(
            self.sample_many,
            self.mixture,
            n_datasets=n_datasets,
            n_points=n_points,
            n_samples=n_samples,
            seed=seed,
            progress=self.progress,
        )


def _last_point_rows(ctx: _CheckContext, seed: int) -> Lines:
    plan = ctx.plan
    for n, tv_seed in zip(plan.tv_sizes, seeds_of(seed, len(plan.tv_sizes)), strict=True):
        tv = last_point_tv(
            ctx.log_prob,
            ctx.mixture,
            n_points=n,
            n_datasets=plan.tv_datasets,
            seed=tv_seed,
            progress=ctx.progress,
        )
        name = f"last-point TV, N = {n}"
        words = "distance of the last conditional from the exact one"
        yield _row(f"{name}, mean", tv.mean, words, at_most=plan.targets.tv_mean), name, tv
        words = "its 95th percentile"
        yield _row(f"{name}, 95%", tv.p95, words, at_most=plan.targets.tv_p95), name, tv


def _enumeration_rows(ctx: _CheckContext, seed: int) -> Lines:
    n = ctx.plan.kl_points
    exact = exact_comparison(
        ctx.log_prob,
        ctx.mixture,
        n_points=n,
        n_datasets=ctx.plan.kl_datasets,
        seed=seed,
        progress=ctx.progress,
    )
    error, most = exact.kl.standard_error, ctx.plan.targets.kl
    words = f"nats per data set, over all partitions of {n} points; standard error {error:.2g}"
    yield _row(f"KL(p || q), N = {n}", exact.kl.mean, words, at_most=most), "exact", exact
    words = "total variation over the same partitions"
    yield _row(f"TV(p, q), N = {n}", exact.tv.mean, words), "exact", exact


def _efficiency_rows(ctx: _CheckContext, seed: int) -> Lines:
    plan = ctx.plan
    simulation = ctx.simulate(plan.ess_datasets, plan.ess_samples, seed, plan.ess_points)
    ess = efficiency(simulation, ctx.mixture)
    name = f"importance-sampling ESS, N = {plan.ess_points}"
    words = f"median over {plan.ess_datasets} data sets of {plan.ess_samples} samples"
    least = plan.targets.ess_median
    yield _row(f"{name}, median", ess.median, words, at_least=least), "ess", ess
    yield _row(f"{name}, 10%", ess.lowest_decile, "lowest decile"), "ess", ess


def _calibration_rows(ctx: _CheckContext, seed: int) -> Lines:
    goal = ctx.plan.targets
    seeds = seeds_of(seed, 3)
    simulation = ctx.simulate(ctx.plan.sbc_datasets, ctx.plan.sbc_samples, seeds[0])
    calibration = sbc(simulation, ctx.mixture, level=goal.level or LEVEL, seed=seeds[1])
    for test in calibration.tests:
        least = test.level if goal.level is not None else None
        words = "p-value: is the truth one more posterior draw?"
        yield _row(f"SBC, {test.name}", test.p_value, words, at_least=least), "sbc", calibration
    curve = reliability(simulation, seed=seeds[2])
    words = "gap between said and seen co-clustering frequencies"
    most = goal.calibration_error
    most = most if most is None else max(most, curve.noise)  # few data sets make any curve rough
    yield _row("calibration error", curve.error, words, at_most=most), "reliability", curve
    words = "p-value of that gap under a right posterior"
    yield _row("calibration p-value", curve.p_value, words), "reliability", curve
    accuracy = k_mode_accuracy(simulation)
    words = "how often the posterior mode of K is the true K"
    yield _row("K mode accuracy", accuracy, words), "k mode", accuracy


def _geweke_rows(ctx: _CheckContext, seed: int) -> Lines:
    result = geweke(
        ctx.sample_many,
        ctx.mixture,
        n_chains=ctx.plan.geweke_chains,
        n_rounds=ctx.plan.geweke_rounds,
        n_points=ctx.plan.geweke_points,
        seed=seed,
        progress=ctx.progress,
    )
    words, least = "p-value: does K keep its prior under x | c, c | x?", ctx.plan.targets.level
    yield _row("Geweke, K", result.p_value, words, at_least=least), "geweke", result


def _order_rows(ctx: _CheckContext, seed: int) -> Lines:
    spread = order_dependence(
        ctx.log_prob,
        ctx.mixture,
        n_datasets=ctx.plan.permutation_datasets,
        n_points=ctx.plan.permutation_points,
        n_orders=ctx.plan.permutation_orders,
        seed=seed,
        progress=ctx.progress,
    )
    words = f"median sd/mean of q(c | x) over {ctx.plan.permutation_orders} orders of the points"
    name = f"order dependence, N = {ctx.plan.permutation_points}"
    yield _row(f"{name}, relative", spread.median_relative, words), "permutation", spread
    words = "median variance of log q(c | x) over orders"
    yield _row(f"{name}, variance", spread.median_variance, words), "permutation", spread


def _likelihood_rows(ctx: _CheckContext, seed: int) -> Lines:
    sizes = ctx.plan.nll_sizes
    for n, nll_seed in zip(sizes, seeds_of(seed, len(sizes)), strict=True):
        nll = nll_per_point(
            ctx.log_prob,
            ctx.mixture,
            n_datasets=ctx.plan.nll_datasets,
            n_points=n,
            seed=nll_seed,
            progress=ctx.progress,
        )
        words = "nats per point of the true partition"
        yield _row(f"NLL per point, N = {n}", float(nll.mean()), words), f"nll, N = {n}", nll


def _accuracy_rows(ctx: _CheckContext, seed: int) -> Lines:
    plan = ctx.plan
    for n, ari_seed in zip(plan.ari_sizes, seeds_of(seed, len(plan.ari_sizes)), strict=True):
        simulation = ctx.simulate(plan.ari_datasets, plan.ari_samples, ari_seed, n)
        kinds = {"": simulation}
        if ctx.mixture.is_conjugate:
            kinds[", weighted"] = reweighted(simulation, ctx.mixture)
        for kind, drawn in kinds.items():
            ari = point_estimate_ari(drawn, progress=ctx.progress)
            words = f"adjusted Rand index of the point estimate{kind}, mean"
            name = f"ARI, N = {n}{kind}"
            yield _row(name, float(ari.mean()), words, at_least=plan.targets.ari), name, ari


def _agreement_rows(ctx: _CheckContext, seed: int) -> Lines:
    plan = ctx.plan
    sizes = plan.agreement_sizes
    for n, size_seed in zip(sizes, seeds_of(seed, len(sizes)), strict=True):
        drawn = ctx.simulate(plan.agreement_datasets, plan.ari_samples, size_seed, n)
        found = agreement(drawn, ctx.progress)
        kinds = {"promised": "by the samples", "measured": "with the truth"}
        for (kind, words), value in zip(kinds.items(), found.mean(0), strict=True):
            name = f"agreement, N = {n}, {kind}"
            yield _row(name, float(value), f"{words}, of the best partition; mean"), name, found


def _family_rows(ctx: _CheckContext, seed: int) -> Lines:
    assert isinstance(ctx.mixture, GaussianFamily)
    parts, plan = parts_of(ctx.mixture), ctx.plan
    for part, part_seed in zip(parts, seeds_of(seed, len(parts)), strict=True):
        one = ctx._replace(mixture=part.family)
        drawn = one.simulate(plan.ess_datasets, plan.ess_samples, part_seed, plan.ess_points)
        ess = efficiency(drawn, part.family)
        name = f"ESS, {part.name}, N = {plan.ess_points}"
        words = f"median over {plan.ess_datasets} data sets of this part of the family"
        least = None if plan.targets.ess_median is None else part.ess_median
        yield _row(name, ess.median, words, at_least=least), name, ess
    paper = ctx._replace(mixture=parts[0].family, plan=replace(plan, tv_sizes=(plan.ess_points,)))
    for row, key, result in _last_point_rows(paper, seed):
        yield row._replace(name=f"paper, {row.name}"), f"paper, {key}", result


def _exact_rows(ctx: _CheckContext, seed: int) -> Lines:
    """Calibration of what a user of the family gets, by weights or chains, in some dimensions."""
    family, plan = ctx.mixture, ctx.plan
    assert isinstance(family, GaussianFamily)
    dims = sorted({1, min(2, family.max_dim), min(4, family.max_dim), family.max_dim})
    goal, level = Goal(min_ess=EXACT_ESS, time_limit=30.0), plan.targets.level
    for dim, dim_seed in zip(dims, seeds_of(seed, len(dims)), strict=True):
        seeds = seeds_of(dim_seed, 3)
        part = in_dimension(family, dim)
        one = ctx._replace(mixture=part)
        drawn = one.simulate(plan.exact_datasets, plan.sbc_samples, seeds[0], plan.ess_points)
        exact, share = made_exact(drawn, part, goal=goal, seed=seeds[1], progress=ctx.progress)
        tested = sbc(exact, part, level=level or LEVEL, seed=seeds[2])
        for test in tested.tests:
            words = "p-value of exact results: is the truth one more posterior draw?"
            least = None if level is None else test.level
            name = f"exact, d = {dim}, SBC, {test.name}"
            yield _row(name, test.p_value, words, at_least=least), f"exact, d = {dim}", tested
        words = f"share of data sets with weights or chains worth {EXACT_ESS:.0f} draws"
        name = f"exact, d = {dim}, reached"
        yield _row(name, share, words, at_least=None if level is None else 1.0), name, share


def _chain_rows(ctx: _CheckContext, seed: int) -> Lines:
    found = compare_with_chain(
        ctx.sample_many,
        ctx.log_prob,
        ctx.mixture.given(),
        n_datasets=ctx.plan.chain_datasets,
        n_points=ctx.plan.chain_points,
        n_samples=ctx.plan.chain_samples,
        seed=seed,
        progress=ctx.progress,
    )
    words = {
        "ari": ("ARI", "the chain starts cold and has ten times the time; mean"),
        "error": ("similarity error", "against a chain that had a hundred times the time; mean"),
        "weighted_error": ("similarity error, weighted", "by estimated importance weights; mean"),
        "log_evidence": ("log evidence", "nats; the chain's from that long one; mean"),
        "seconds": (
            "seconds",
            f"N = {ctx.plan.chain_points}, {ctx.plan.chain_samples} samples; mean",
        ),
    }
    for field_name, (what, meaning) in words.items():
        for prefix, whose in (("", ""), ("chain_", " of the chain")):
            values = np.asarray(getattr(found, prefix + field_name, np.nan))
            if np.isfinite(value := float(values.mean())):
                sd = f"{meaning}, standard error {values.std() / np.sqrt(values.size):.2g}"
                yield _row(f"beside algorithm 8, {what}{whose}", value, sd), "chain", found


def _row(
    name: str,
    value: float,
    words: str,
    at_most: float | None = None,
    at_least: float | None = None,
) -> CheckRow:
    if at_most is not None:
        return CheckRow(name, value, f"<= {at_most:.3g}", value <= at_most, words)
    if at_least is not None:
        return CheckRow(name, value, f">= {at_least:.3g}", value >= at_least, words)
    return CheckRow(name, value, "", None, words)
