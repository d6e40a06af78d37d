"""The verdict against the truth: how often a shipped model is wrong without a word.

    python -m tests.test_verdict 300      prints what a run over 2 x 5 x 300 data sets finds

Data sets are drawn from the models' own priors. Truth is an enumeration for few points, and for
more points long chains that start in one cluster and in as many as there are points.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from ncp.clustering.cluster import cluster, cluster_many
from ncp.clustering.knowledge import Knowledge
from ncp.clustering.result import Clustering
from ncp.generative.mixture import Mixture
from ncp.inference import exact
from ncp.inference.finish import Goal, finish
from ncp.model import load
from ncp.summary.similarity import similarity

MODELS = ("gaussian-2d", "gaussian-1d")
FEW = (5, 6, 7, 8, 9)
MANY = (30, 100)
OFF = 0.1


class Tried(NamedTuple):
    """Data sets, those that are off, and those of them that say nothing of it."""

    n: int = 0
    off: int = 0
    silent: int = 0

    def __add__(self, other: Tried) -> Tried:  # type: ignore[override]
        return Tried(*(a + b for a, b in zip(self, other, strict=True)))


def by_enumeration(x: np.ndarray, mixture: Mixture) -> np.ndarray:
    found = exact.posterior(x, mixture)
    return similarity(found.labels, np.exp(found.log_prob))


def by_long_chains(x: np.ndarray, mixture: Mixture) -> np.ndarray:
    n = len(x)
    seeds = np.stack([np.zeros(n, np.int64), np.arange(n)])
    goal = Goal(min_ess=2000.0, max_r_hat=1.01, time_limit=60.0)
    draws = finish(x, mixture, seeds, np.ones(2), n_samples=4000, goal=goal, seed=1)
    return similarity(draws.labels, draws.counts)


def data_sets(mixture: Mixture, n_points: int, n: int, seed: int) -> list[np.ndarray]:
    generator = torch.Generator().manual_seed(1000 * seed + n_points)
    return list(mixture.sample(n, n_points, generator=generator).x.double().numpy())


def answers(
    name: str, n_points: int, n_datasets: int, seed: int
) -> Iterator[tuple[np.ndarray, Clustering]]:
    model = load(name)
    assert isinstance(model.mixture, Mixture)
    xs = data_sets(model.mixture, n_points, n_datasets, seed)
    yield from zip(xs, cluster_many(xs, model, estimate="map", seed=seed), strict=True)


def tried(name: str, n_points: int, n_datasets: int, seed: int) -> Tried:
    mixture = load(name).mixture
    assert isinstance(mixture, Mixture)
    truth = by_enumeration if n_points in FEW else by_long_chains
    total = Tried()
    for x, found in answers(name, n_points, n_datasets, seed):
        gap = np.abs(found.posterior.similarity_matrix() - truth(x, mixture)).max()
        off = gap > OFF
        total += Tried(1, int(off), int(off and not found.warnings))
    return total


def tried_given(name: str, n_points: int, n_datasets: int, seed: int) -> Tried:
    """The same with something known of each data set, often what the model finds improbable."""
    model = load(name)
    mixture = model.mixture
    assert isinstance(mixture, Mixture)
    rng = np.random.default_rng(1000 * seed + n_points)
    total = Tried()
    for x in data_sets(mixture, n_points, n_datasets, seed):
        i, j = (int(row) for row in rng.permutation(n_points)[:2])
        k = int(rng.integers(1, n_points))
        every: list[dict[str, Any]] = [
            {"together": [(i, j)]},
            {"apart": [(i, j)]},
            {"known": {i: "a", j: "b"}, "at_most": max(2, k)},
            {"n_clusters": k},
        ]
        said = every[rng.integers(len(every))]
        found = cluster(x, model, estimate="map", seed=seed, at_any_price=True, **said)
        exactly = exact.posterior(x, mixture)
        log_p = np.where(
            Knowledge(**said).translate(x).constraints(np.arange(n_points), [""] * n_points)
            .allow(exactly.labels),
            exactly.log_prob,
            -np.inf,
        )  # fmt: skip
        truth = similarity(exactly.labels, np.exp(log_p - log_p.max()))
        off = np.abs(found.posterior.similarity_matrix() - truth).max() > OFF
        total += Tried(1, int(off), int(off and not found.warnings))
    return total


@pytest.mark.parametrize("name", MODELS)
def test_what_is_known_is_not_off_without_a_word(name: str, seed: int) -> None:
    assert tried_given(name, 6, 5, seed).off == 0  # all partitions are listed
    assert tried_given(name, 9, 10, seed).silent == 0


@pytest.mark.parametrize("name", MODELS)
def test_a_shipped_model_is_not_off_without_a_word(name: str, seed: int) -> None:
    assert tried(name, 6, 20, seed).silent == 0


@pytest.mark.slow
def test_three_thousand_data_sets_against_enumeration(seed: int) -> None:
    total = sum((tried(name, n, 300, seed) for name in MODELS for n in FEW), Tried())
    assert total.n == 3000
    assert total.silent <= 3


@pytest.mark.slow
@pytest.mark.parametrize("n_points", MANY)
def test_larger_data_sets_against_long_chains(n_points: int, seed: int) -> None:
    assert sum((tried(name, n_points, 15, seed) for name in MODELS), Tried()).silent == 0


@pytest.mark.slow
def test_a_thousand_data_sets_with_something_known(seed: int) -> None:
    total = sum((tried_given(name, n, 100, seed) for name in MODELS for n in FEW), Tried())
    assert total.silent <= 1


def main(n_datasets: int) -> None:
    total = Tried()
    for name in MODELS:
        for n in FEW:
            here = tried(name, n, n_datasets, seed=0)
            total += here
            print(name, n, *here, flush=True)
            print(name, n, "given", *tried_given(name, n, n_datasets // 3, seed=0), flush=True)
        for n in MANY:
            print(name, n, *tried(name, n, -(-n_datasets // 20), seed=0), flush=True)
    print(f"enumerated: {total.n} data sets, {total.off} off by {OFF}, {total.silent} silently")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
