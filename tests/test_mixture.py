"""Mixtures: batches, joint probabilities, and the spec that a checkpoint carries."""

import json
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.labelled import LabelledArrays
from ncp.generative.laplace import LaplaceNoise
from ncp.generative.mixture import Mixture
from ncp.generative.model import Batch, GenerativeModel, draw_size, model_from_dict
from ncp.generative.priors import (
    CRP,
    GammaCRP,
    Geometric,
    MixtureOfFiniteMixtures,
    PitmanYor,
    Poisson,
)
from ncp.generative.ring import Ring
from ncp.generative.wishart import NormalInverseWishart
from ncp.partitions import canonical, enumerate_partitions, is_canonical, n_clusters, random_orders

ARRAYS = LabelledArrays(np.eye(4, dtype=np.uint8)[:, None] * 255, [0, 1, 2, 2], source="corners")
MIXTURES = [
    Mixture(CRP(0.7), GaussianKnownVariance()),
    Mixture(PitmanYor(0.5, 0.2), NormalInverseWishart(dim=3), sizes=(2, 9)),
    Mixture(MixtureOfFiniteMixtures(1.0, Poisson(2.0)), LaplaceNoise(dim=1)),
    Mixture(GammaCRP(1.0, 1.0), Ring(), sizes=[7, 7]),
    Mixture(MixtureOfFiniteMixtures(0.5, Geometric(0.3)), GaussianKnownVariance(dim=1)),
    Mixture(CRP(2.0), ARRAYS),
]
each_mixture = pytest.mark.parametrize("mixture", MIXTURES, ids=str)


@each_mixture
def test_sample(mixture: Mixture, generator: torch.Generator) -> None:
    batch = mixture.sample(6, n_points=9, generator=generator)
    assert batch.x.shape == (6, 9, *mixture.event_shape)
    assert batch.labels.shape == (6, 9)
    assert bool(is_canonical(batch.labels).all())
    assert batch.parameters is not None
    assert batch.parameters.shape[:2] == (6, int(n_clusters(batch.labels).max()))
    assert bool(torch.isfinite(batch.x).all())


@pytest.mark.parametrize("sizes", [(2, 5), (7, 7)])
def test_all_sizes_come(sizes: tuple[int, int], generator: torch.Generator) -> None:
    mixture = Mixture(CRP(0.7), GaussianKnownVariance(), sizes=sizes)
    seen = {mixture.sample(1, generator=generator).x.shape[1] for _ in range(60)}
    assert seen == set(range(sizes[0], sizes[1] + 1))


@each_mixture
def test_shared_partition(mixture: Mixture, generator: torch.Generator) -> None:
    batch = mixture.sample(5, n_points=20, share_partition=True, generator=generator)
    assert bool((batch.labels == batch.labels[0]).all())
    assert not torch.equal(batch.x[0], batch.x[1])


@each_mixture
def test_reproducible_and_leaves_global_state_alone(mixture: Mixture, seed: int) -> None:
    before = torch.random.get_rng_state()
    first, second = (
        mixture.sample(4, generator=torch.Generator().manual_seed(seed)) for _ in range(2)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.labels, second.labels)


def test_extra_parameters(generator: torch.Generator) -> None:
    batch = MIXTURES[2].sample(4, n_points=6, extra_parameters=3, generator=generator)
    assert batch.parameters is not None
    assert batch.parameters.shape[1] == int(n_clusters(batch.labels).max()) + 3


def test_points_belong_to_their_clusters(generator: torch.Generator) -> None:
    mixture = Mixture(CRP(1.0), GaussianKnownVariance(dim=2, prior_sd=100.0, noise_sd=0.1))
    batch = mixture.sample(50, n_points=30, generator=generator)
    assert batch.parameters is not None
    own = batch.parameters.gather(1, batch.labels[..., None].expand(-1, -1, 2))
    z = ((batch.x - own) / 0.1).flatten().numpy()
    assert stats.kstest(z, stats.norm.cdf).pvalue > 1e-4


def test_no_more_clusters_than_labels(generator: torch.Generator) -> None:
    """The prior given K <= 3, not the prior cut off."""
    mixture = Mixture(CRP(2.0), ARRAYS)
    labels = mixture.sample(20_000, n_points=5, generator=generator).labels
    partitions, powers = enumerate_partitions(5), 5 ** torch.arange(5)
    allowed = n_clusters(partitions) <= 3
    observed = (labels @ powers).bincount(minlength=5**5)[partitions @ powers]
    assert int(observed[~allowed].sum()) == 0
    probability = mixture.prior.log_prob(partitions[allowed]).exp()
    expected = (20_000 * probability / probability.sum()).numpy()
    assert stats.chisquare(observed[allowed].numpy(), expected).pvalue > 1e-4


def test_a_prior_that_never_fits(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ncp.generative.mixture.REDRAWS", 20)
    mixture = Mixture(CRP(1e6), ARRAYS)
    with pytest.raises(ValueError, match="at most 3 clusters"):
        mixture.sample(2, n_points=30, generator=generator)


def test_log_joint_by_integration() -> None:
    alpha = 0.7
    mixture = Mixture(CRP(alpha), GaussianKnownVariance(dim=1, prior_sd=10.0, noise_sd=1.0))
    x, labels = np.array([0.3, -1.0, 4.0]), [0, 0, 1]

    def cluster(points: np.ndarray) -> float:
        def joint(mu: float) -> float:
            return float(stats.norm.pdf(mu, 0, 10) * np.prod(stats.norm.pdf(points, mu, 1)))

        return float(integrate.quad(joint, -12, 12, epsabs=0, epsrel=1e-11, points=[0, 4])[0])

    prior = alpha**2 / (alpha * (alpha + 1) * (alpha + 2))
    expected = math.log(prior * cluster(x[:2]) * cluster(x[2:]))
    assert float(mixture.log_joint(x[:, None], labels)) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("mixture", [m for m in MIXTURES if m.is_conjugate], ids=str)
def test_log_joint_is_exchangeable(mixture: Mixture, generator: torch.Generator) -> None:
    batch = mixture.sample(1, n_points=12, generator=generator)
    x, labels = batch.x[0], mixture.prior.sample(30, 12, generator)
    order = random_orders(1, 12, generator)[0]
    torch.testing.assert_close(
        mixture.log_joint(x[order], canonical(labels[:, order])),
        mixture.log_joint(x, labels),
        rtol=1e-11,
        atol=1e-11,
    )


@pytest.mark.parametrize("mixture", [m for m in MIXTURES if m.is_conjugate], ids=str)
def test_log_joint_shapes(mixture: Mixture, generator: torch.Generator) -> None:
    x = mixture.sample(1, n_points=5, generator=generator).x[0]
    labels = enumerate_partitions(5)
    log_joint = mixture.log_joint(x.numpy(), labels.numpy())
    assert log_joint.dtype == torch.float64
    assert log_joint.shape == (52,)
    assert torch.equal(mixture.log_joint(x, labels.reshape(4, 13, 5)).flatten(), log_joint)
    assert float(mixture.log_joint(x.tolist(), labels[7].tolist())) == pytest.approx(
        float(log_joint[7]), rel=1e-14
    )


def test_log_joint_of_many_rows_is_fast(generator: torch.Generator) -> None:
    mixture = MIXTURES[0]
    x = mixture.sample(1, n_points=50, generator=generator).x[0]
    labels = mixture.prior.sample(100_000, 50, generator)
    start = time.process_time()
    assert mixture.log_joint(x, labels).shape == (100_000,)
    assert time.process_time() - start < 5  # about 0.6 s on one idle core


@pytest.mark.parametrize("mixture", [m for m in MIXTURES if not m.is_conjugate], ids=str)
def test_log_joint_needs_a_conjugate_likelihood(mixture: Mixture) -> None:
    with pytest.raises(ValueError, match=r"conjugate likelihood.* but got"):
        mixture.log_joint(np.zeros((2, *mixture.event_shape)), [0, 0])


def test_abilities() -> None:
    abilities = [(m.is_conjugate, m.has_density) for m in MIXTURES]
    assert abilities == [
        (True, True), (True, True), (False, True), (False, True), (True, True), (False, False),
    ]  # fmt: skip


@each_mixture
def test_spec_round_trip(mixture: Mixture) -> None:
    spec = json.loads(json.dumps(mixture.to_dict()))
    assert spec == mixture.to_dict()
    restored = Mixture.from_dict(spec)
    assert restored == mixture
    assert restored.sizes == mixture.sizes


@each_mixture
def test_bad_specs(mixture: Mixture) -> None:
    spec = mixture.to_dict()
    for bad in ({**spec, "surprise": 1}, {"prior": spec["prior"]}, {}):
        with pytest.raises(ValueError, match="prior, likelihood and sizes"):
            Mixture.from_dict(bad)
    with pytest.raises(ValueError, match="kind to be one of"):
        Mixture.from_dict(spec | {"prior": {"kind": "Unknown"}})


@pytest.mark.parametrize("sizes", [(0, 5), (9, 5), (5,), (1, 2, 3)])
def test_bad_sizes(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="sizes to be two integers"):
        Mixture(CRP(1.0), GaussianKnownVariance(), sizes=sizes)


def test_bad_sample_arguments() -> None:
    with pytest.raises(ValueError, match="n_datasets >= 1"):
        MIXTURES[0].sample(0)
    with pytest.raises(ValueError, match="n_points >= 1"):
        MIXTURES[0].sample(1, n_points=0)
    with pytest.raises(ValueError, match="extra_parameters >= 0"):
        MIXTURES[0].sample(1, extra_parameters=-1)


# --- models of one's own -------------------------------------------------------------------------


@dataclass(frozen=True)
class Halves(GenerativeModel):
    """Points left and right of zero: what a user has to write for a model that can be sampled."""

    gap: float = 1.0
    sizes: tuple[int, int] = (4, 8)

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (1,)

    def sample(
        self,
        n_datasets: int,
        n_points: int | None = None,
        share_partition: bool = False,
        extra_parameters: int = 0,
        generator: torch.Generator | None = None,
    ) -> Batch:
        n = n_points or draw_size(self.sizes, generator)
        labels = canonical(torch.randint(0, 2, (n_datasets, n), generator=generator))
        noise = torch.rand((n_datasets, n, 1), generator=generator, dtype=torch.float64)
        return Batch(self.gap * labels[..., None] + noise, labels)


def test_a_model_of_ones_own_needs_a_spec_and_a_sampler_only(generator: torch.Generator) -> None:
    model = model_from_dict({"kind": "Halves", "gap": 2.0, "sizes": (4, 8)})
    assert model == Halves(2.0)
    assert model.to_dict() == {"kind": "Halves", "gap": 2.0, "sizes": [4, 8]}
    assert model.sample(3, generator=generator).x.shape[::2] == (3, 1)
    assert (model.location, model.scale, model.preprocessing) == (0.0, 1.0, None)
    assert (model.is_conjugate, model.has_density) == (False, False)
    with pytest.raises(ValueError, match="Halves can only be sampled"):
        model.given()
    with pytest.raises(ValueError, match=r"conjugate model.*Halves can only be sampled"):
        model.log_joint(torch.zeros(2, 1), [0, 0])
    with pytest.raises(ValueError, match="Expected the arguments of Halves"):
        model_from_dict({"kind": "Halves", "colour": "blue"})


@pytest.mark.parametrize("spec", [{"kind": "Unknown"}, {"kind": []}])
def test_kinds_that_are_not_known_are_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Expected a generative model of kind"):
        model_from_dict(spec)


def test_a_mixture_is_given() -> None:
    mixture = MIXTURES[0]
    assert mixture.given() is mixture
    with pytest.raises(ValueError, match="Expected no hyper-parameters"):
        mixture.given(torch.zeros(1, 1, dtype=torch.float64))


@each_mixture
def test_what_a_network_asks_is_the_likelihoods(mixture: Mixture) -> None:
    assert mixture.max_clusters == mixture.likelihood.max_clusters
    for name in ("location", "scale"):
        of, expected = getattr(mixture, name), getattr(mixture.likelihood, name)
        assert torch.equal(torch.as_tensor(of), torch.as_tensor(expected))
