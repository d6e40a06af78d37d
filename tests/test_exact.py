"""Enumeration against direct sums, and the last point's conditional against enumeration."""

import time

import numpy as np
import pytest
import torch

from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.likelihood import Likelihood
from ncp.generative.mixture import Mixture
from ncp.generative.priors import CRP, Prior
from ncp.inference import exact
from ncp.partitions import bell_number, enumerate_partitions
from tests.small_models import PRIORS


def world(prior: Prior | None = None, dim: int = 2) -> Mixture:
    return Mixture(prior or CRP(0.7), GaussianKnownVariance(dim, prior_sd=3.0))


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_posterior_is_the_normalised_joint(prior: Prior, generator: torch.Generator) -> None:
    mixture = world(prior)
    x = mixture.sample(1, 7, generator=generator).x[0]
    found = exact.posterior(x, mixture)
    log_joint = mixture.log_joint(x, enumerate_partitions(7))
    assert found.labels.shape == (bell_number(7), 7)
    assert np.exp(found.log_prob).sum() == pytest.approx(1.0, abs=1e-12)
    assert found.log_evidence == pytest.approx(float(log_joint.logsumexp(0)), abs=1e-10)
    np.testing.assert_allclose(found.log_prob, log_joint.log_softmax(0), atol=1e-10)


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_similarity_is_the_posterior_mean_of_sharing(
    prior: Prior, generator: torch.Generator
) -> None:
    mixture = world(prior)
    x = mixture.sample(3, 6, generator=generator).x
    found = exact.exact_similarity(x, mixture)
    for b in range(3):
        every = exact.posterior(x[b], mixture)
        shared = every.labels[:, :, None] == every.labels[:, None, :]
        expected = np.tensordot(np.exp(every.log_prob), shared, 1)
        np.testing.assert_allclose(found[b], expected, atol=1e-12)


def test_posterior_takes_marginals_from_the_caller(generator: torch.Generator) -> None:
    mixture = world(dim=1)
    x = mixture.sample(1, 5, generator=generator).x[0]
    grid = np.linspace(-40.0, 40.0, 8001)
    prior = np.exp(-0.5 * (grid / 3.0) ** 2) / np.sqrt(2 * np.pi) / 3.0
    density = np.exp(-0.5 * (x.numpy() - grid) ** 2) / np.sqrt(2 * np.pi)  # (N, grid)

    def log_marginal(subsets: np.ndarray) -> np.ndarray:
        values = [np.trapezoid(prior * density[subset].prod(0), grid) for subset in subsets]
        return np.log(values)

    found = exact.posterior(x, mixture, log_marginal)
    np.testing.assert_allclose(found.log_prob, exact.posterior(x, mixture).log_prob, atol=1e-8)


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_last_conditional_is_a_ratio_of_enumerated_joints(
    prior: Prior, generator: torch.Generator
) -> None:
    mixture = world(prior)
    x = mixture.sample(1, 6, generator=generator).x[0]
    everything = exact.posterior(x, mixture)
    prefixes = enumerate_partitions(5)
    found = exact.last_conditional(x, prefixes, mixture)
    assert found.shape == (len(prefixes), 6)
    for row, prefix in zip(found, prefixes.numpy(), strict=True):
        same = (everything.labels[:, :5] == prefix).all(1)
        expected = np.zeros(6)
        expected[everything.labels[same, 5]] = np.exp(everything.log_prob[same])
        np.testing.assert_allclose(row, expected / expected.sum(), atol=1e-12)


def test_last_conditional_of_many_data_sets(generator: torch.Generator) -> None:
    mixture = world()
    batch = mixture.sample(1000, 100, generator=generator)
    begin = time.perf_counter()
    found = exact.last_conditional(batch.x, batch.labels, mixture)
    assert time.perf_counter() - begin < 3.0
    n_clusters = batch.labels[:, :-1].amax(1).numpy() + 1
    assert found.shape == (1000, n_clusters.max() + 1)
    np.testing.assert_allclose(found.sum(1), 1.0, atol=1e-12)
    assert all((row[k + 1 :] == 0).all() for row, k in zip(found, n_clusters, strict=True))
    for b in (0, 7, 999):
        alone = exact.last_conditional(batch.x[b], batch.labels[b, :-1], mixture)
        np.testing.assert_allclose(alone, found[b, : len(alone)], atol=1e-12)


def test_last_conditional_of_a_single_point() -> None:
    assert exact.last_conditional([[0.3, 0.1]], [0], world()).tolist() == [1.0]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((13, 2)), "12 points"),
        (np.zeros((4, 3)), "but got an array of shape"),
        (np.zeros((0, 2)), "at least one point"),
        (np.full((3, 2), np.nan), "NaN"),
        (np.zeros((2, 3, 2)), "one data set"),
    ],
)
def test_bad_data_is_refused(x: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        exact.posterior(x, world())


def test_bad_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="order of appearance"):
        exact.last_conditional(np.zeros((3, 2)), [0, 2, 0], world())
    with pytest.raises(ValueError, match="Expected labels of 3 or 2 points"):
        exact.last_conditional(np.zeros((3, 2)), [0, 0, 0, 0], world())


class Coin(Likelihood):
    """A likelihood that can only be sampled."""

    event_shape = (1,)

    def sample_parameters(
        self, shape: tuple[int, ...], generator: torch.Generator | None = None
    ) -> torch.Tensor:
        return torch.rand((*shape, 1), dtype=torch.float64, generator=generator)

    def sample_observations(
        self,
        parameters: torch.Tensor,
        labels: torch.Tensor,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        heads = parameters.gather(1, labels[..., None])
        return torch.bernoulli(heads, generator=generator)


def test_closed_forms_are_asked_of_conjugate_likelihoods_only() -> None:
    mixture = Mixture(CRP(1.0), Coin())
    with pytest.raises(ValueError, match="conjugate likelihood but got Coin"):
        exact.posterior([[0.0], [1.0]], mixture)
    with pytest.raises(ValueError, match="conjugate likelihood but got Coin"):
        exact.last_conditional([[0.0], [1.0]], [0, 0], mixture)
