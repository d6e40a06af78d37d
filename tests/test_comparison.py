"""The comparison with a Markov chain: integrals by a grid, and a sampler that is exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ncp.checks import chain
from ncp.checks.chain import ChainComparison, compare_with_chain
from ncp.generative.laplace import LaplaceNoise
from ncp.generative.likelihood import Likelihood
from ncp.generative.mixture import Mixture
from ncp.generative.priors import CRP
from ncp.generative.ring import Ring
from ncp.inference import exact

RING = Ring(prior_sd=1.0, radius=(0.5, 2.0), noise_sd=0.4)


def grid_of(ring: Ring) -> tuple[Tensor, float]:
    """Centres and radii at equal steps, and the log of a cell's volume."""
    side = torch.linspace(-6, 6, 121, dtype=torch.float64)
    low, high = ring.radius
    radius = low + (high - low) * (torch.arange(40, dtype=torch.float64) + 0.5) / 40
    return torch.cartesian_prod(side, side, radius), math.log((12 / 120) ** 2 * (high - low) / 40)


def integrals(ring: Ring, x: np.ndarray, subsets: np.ndarray) -> np.ndarray:
    """log p(x_S) of subsets (M, N) of the points, on the grid."""
    grid, log_cell = grid_of(ring)
    log_density = ring.log_density(torch.as_tensor(x)[None], grid[None])[0]  # (N, G)
    log_prior = ring.log_prior(grid) + log_cell
    rows = [log_density[torch.as_tensor(subset)].sum(0) + log_prior for subset in subsets]
    return np.array([float(row.logsumexp(0)) for row in rows])


class Enumerated:
    """A sampler that knows the posterior of small data sets, and says so with one row for each."""

    def __init__(self, mixture: Mixture, alpha: float | None = None) -> None:
        self.mixture = mixture
        self.believed = mixture if alpha is None else Mixture(CRP(alpha), mixture.likelihood)
        self.tables: dict[bytes, np.ndarray] = {}

    def posterior(self, x: Tensor, mixture: Mixture) -> exact.ExactPosterior:
        points = x.double().numpy()

        def table(subsets: np.ndarray) -> np.ndarray:
            key = points.tobytes()
            if key not in self.tables:
                self.tables[key] = integrals(RING, points, subsets)
            return self.tables[key]

        return exact.posterior(points, mixture, table)

    def sample_many(self, xs: Sequence[Any], /, *, n_samples: int, seed: int) -> list[Any]:
        found = [self.posterior(x, self.believed) for x in xs]
        return [(one.labels, np.exp(one.log_prob), one.log_prob) for one in found]

    def log_prob(self, x: Tensor, labels: Tensor) -> np.ndarray:
        found = self.posterior(x, self.believed)
        number = {row.tobytes(): i for i, row in enumerate(found.labels)}
        return found.log_prob[[number[row.tobytes()] for row in labels.numpy()]]


def compared(alpha: float | None, seed: int) -> tuple[ChainComparison, np.ndarray]:
    """The comparison, and the exact log evidence of the same data sets."""
    mixture = Mixture(CRP(0.7), RING)
    trial = Enumerated(mixture, alpha)
    batch = mixture.sample(2, 4, generator=torch.Generator().manual_seed(seed))
    evidence = [trial.posterior(x, mixture).log_evidence for x in batch.x]
    heard: list[tuple[int, int]] = []
    found = compare_with_chain(
        trial.sample_many,
        trial.log_prob,
        mixture,
        n_datasets=2,
        n_points=4,
        seed=seed,
        progress=lambda what, done, total: heard.append((done, total)),
    )
    assert heard == [(1, 2), (2, 2)]
    return found, np.array(evidence)


def test_an_exact_sampler_has_the_evidence_and_the_similarities(seed: int) -> None:
    found, evidence = compared(None, seed)
    # p(c, x) / q(c | x) is p(x) for every c: no Monte Carlo error, but that of the integrals
    np.testing.assert_allclose(found.log_evidence, evidence, atol=0.1)
    np.testing.assert_allclose(found.chain_log_evidence, evidence, atol=0.1)
    # nothing errs but the long chain, of some hundred draws at least
    assert (found.error < 0.1).all()
    assert (found.weighted_error < 0.1).all()


def test_the_chain_gets_the_time_that_it_was_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def neal8(x: Any, mixture: Any, n_sweeps: int, **_: Any) -> None:
        now[0] += 0.5 + 0.001 * n_sweeps  # whatever a call costs, and its sweeps

    monkeypatch.setattr("ncp.inference.mcmc.gibbs.neal8", neal8)
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    n_sweeps = chain._sweeps_in(60.0, Mixture(CRP(0.7), RING), torch.zeros(4, 2))
    assert 0.5 + 0.001 * n_sweeps == pytest.approx(60.0, rel=0.1)


def test_a_wrong_sampler_is_seen(seed: int) -> None:
    """One that expects a hundred times as many clusters: two similarities that do not agree."""
    found, _ = compared(70.0, seed)
    assert (found.error > 0.1).any()
    assert (found.error > found.chain_error).any()
    assert (found.weighted_error < 0.1).all()  # which weights mend, since it has all partitions


@pytest.mark.parametrize("likelihood", [RING, LaplaceNoise(1, prior_sd=5.0)], ids=["ring", "own"])
def test_evidence_for_any_density(likelihood: Likelihood, seed: int) -> None:
    mixture = Mixture(CRP(0.7), likelihood)

    def prior(xs: Sequence[Any], /, *, n_samples: int, seed: int) -> list[Any]:
        generator = torch.Generator().manual_seed(seed)
        draws = [mixture.prior.sample(n_samples, len(x), generator).numpy() for x in xs]
        return [(rows, np.ones(len(rows))) for rows in draws]

    found = compare_with_chain(
        prior,
        lambda x, labels: mixture.prior.log_prob(labels),
        mixture,
        n_datasets=1,
        n_points=4,
        n_samples=20,
        seed=seed,
    )
    assert np.isfinite(found.log_evidence).all()
    assert np.isfinite(found.chain_log_evidence).all()
    assert np.isfinite(found.error).all()
