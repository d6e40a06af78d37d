"""Families of mixtures: what rides with the points comes back; each data set has its own law."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from ncp.generative.conditioned import ConditionedModel, Range
from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.labelled import LabelledArrays
from ncp.generative.mixture import Mixture
from ncp.generative.model import Batch, model_from_dict
from ncp.generative.priors import CRP, PitmanYor, Prior
from ncp.generative.ring import Ring
from ncp.inference.exact import exact_similarity
from ncp.partitions import enumerate_partitions, is_canonical
from ncp.training.targets import tail_targets


@dataclass(frozen=True)
class RingsOfSomeNoise(ConditionedModel):
    """Rings with a noise that the caller chooses."""

    sizes: tuple[int, int] = (5, 30)

    @property
    def hyperparameters(self) -> Mapping[str, Range]:
        return {"noise_sd": Range(0.1, 1.0)}

    def condition(self, noise_sd: float) -> Mixture:
        return Mixture(CRP(0.7), Ring(noise_sd=noise_sd), self.sizes)


@dataclass(frozen=True)
class Discounted(ConditionedModel):
    """Conjugate, with two hyper-parameters on different scales."""

    sizes: tuple[int, int] = (3, 12)

    @property
    def hyperparameters(self) -> Mapping[str, Range]:
        return {"discount": Range(0.0, 0.6, log=False), "prior_sd": Range(2.0, 20.0)}

    def condition(self, discount: float, prior_sd: float) -> Mixture:
        prior: Prior = PitmanYor(1.0, discount)
        return Mixture(prior, GaussianKnownVariance(2, prior_sd), self.sizes)


@dataclass(frozen=True)
class Pictures(ConditionedModel):
    """Neither conjugate nor with a density."""

    sizes: tuple[int, int] = (3, 12)

    @property
    def hyperparameters(self) -> Mapping[str, Range]:
        return {"alpha": Range(0.5, 2.0)}

    def condition(self, alpha: float) -> Mixture:
        return Mixture(CRP(alpha), LabelledArrays(torch.eye(4), [0, 1, 2, 3], distinct=False))


FAMILIES: list[ConditionedModel] = [RingsOfSomeNoise(), Discounted(), Pictures()]
each_family = pytest.mark.parametrize("family", FAMILIES, ids=str)


def one_by_one(family: ConditionedModel, batch: Batch) -> list[Mixture]:
    assert batch.hyperparameters is not None
    names = [*family.hyperparameters]
    rows = batch.hyperparameters.tolist()
    return [family.condition(**dict(zip(names, row, strict=True))) for row in rows]


@each_family
def test_what_rides_with_the_points_comes_back(
    family: ConditionedModel, generator: torch.Generator
) -> None:
    batch = family.sample(5, 9, generator=generator)
    assert batch.hyperparameters is not None
    assert batch.hyperparameters.shape == (5, len(family.hyperparameters))
    assert batch.x.shape == (5, 9, *family.event_shape)
    assert bool(is_canonical(batch.labels).all())
    of = family.hyperparameters_of(batch.x)
    torch.testing.assert_close(of, batch.hyperparameters, rtol=1e-5, atol=1e-6)
    codes = family.encode(batch.hyperparameters)
    assert float(codes.abs().max()) <= 1
    torch.testing.assert_close(family.decode(codes), batch.hyperparameters)
    again = family.events(family.points(batch.x), batch.hyperparameters)
    assert torch.equal(again, batch.x)
    for row, drawn in zip(batch.hyperparameters.T, family.hyperparameters.values(), strict=True):
        assert all(value in drawn for value in row.tolist())


def test_what_a_network_subtracts_and_divides_by() -> None:
    rings = RingsOfSomeNoise()
    expected = Ring(noise_sd=0.1).scale
    assert torch.as_tensor(rings.scale).tolist() == pytest.approx([expected, expected, 1.0])
    assert torch.as_tensor(rings.location).tolist() == [0.0, 0.0, 0.0]


def test_abilities_are_those_of_the_mixtures() -> None:
    abilities = [(family.is_conjugate, family.has_density) for family in FAMILIES]
    assert abilities == [(False, True), (True, True), (False, False)]


def test_the_noise_is_each_data_sets_own(generator: torch.Generator) -> None:
    rings = RingsOfSomeNoise()
    eta = torch.tensor([[0.1], [1.0]], dtype=torch.float64).repeat(20, 1)
    batch = rings.given(eta).sample(40, 30, generator=generator)
    assert batch.parameters is not None
    ring = batch.parameters.gather(1, batch.labels[..., None].expand(-1, -1, 3))
    off = (batch.x - ring[..., :2]).norm(dim=-1) - ring[..., 2]
    assert 0.08 < float(off[::2].std()) < 0.12
    assert 0.8 < float(off[1::2].std()) < 1.2


def test_log_joint_and_similarity_are_each_data_sets_own(generator: torch.Generator) -> None:
    family = Discounted()
    batch = family.sample(6, 5, generator=generator)
    rows = enumerate_partitions(5)
    known = family.given(batch.hyperparameters)
    same = exact_similarity(family.points(batch.x), known)
    for i, mixture in enumerate(one_by_one(family, batch)):
        x = family.points(batch.x[i])
        expected = mixture.log_joint(x, rows)
        torch.testing.assert_close(family.log_joint(batch.x[i], rows), expected)
        torch.testing.assert_close(same[i], exact_similarity(x[None], mixture)[0])
        torch.testing.assert_close(
            known.rows(torch.tensor([i])).prior.log_prob(rows[None])[0],
            mixture.prior.log_prob(rows),
        )


@pytest.mark.parametrize("family", FAMILIES[:2], ids=str)
def test_soft_targets_are_each_data_sets_own(
    family: ConditionedModel, generator: torch.Generator
) -> None:
    batch = family.sample(5, 8, extra_parameters=2, generator=generator)
    assert batch.parameters is not None
    orders = torch.rand(5, 3, 8, generator=generator).argsort(2)
    found = tail_targets(batch, orders, family, 2)
    for i, mixture in enumerate(one_by_one(family, batch)):
        one = slice(i, i + 1)
        points: Tensor = family.points(batch.x[one])
        alone = Batch(points, batch.labels[one], batch.parameters[one])
        expected = tail_targets(alone, orders[one], mixture, 2)[0]
        torch.testing.assert_close(found[i, :, :, : expected.shape[-1]], expected)


def test_stacked_priors_give_each_data_set_its_own_weights() -> None:
    family = Discounted()
    eta = torch.tensor([[0.0, 3.0], [0.5, 3.0]], dtype=torch.float64)
    prior = family.given(eta).prior
    parts = [PitmanYor(1.0, 0.0), PitmanYor(1.0, 0.5)]
    counts = torch.tensor([[3, 1], [2, 2]])
    for row, part in enumerate(parts):
        torch.testing.assert_close(prior.predictive(counts)[row], part.predictive(counts[row]))
        torch.testing.assert_close(
            prior.log_v(4, torch.tensor([[2], [3]]))[row], part.log_v(4, torch.tensor([2 + row]))
        )
    assert prior.sample_concentration(2).tolist() == [1.0, 1.0]


@each_family
def test_spec_round_trip(family: ConditionedModel) -> None:
    assert model_from_dict(json.loads(json.dumps(family.to_dict()))).sizes is not None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"noise_sd": 2.0}, "Expected noise_sd between 0.1 and 1.0 but got 2.0"),
        ({"noise_sd": "loud"}, "Expected noise_sd between"),
        ({}, "Expected the hyper-parameters"),
        ({"noise_sd": 0.5, "colour": 1.0}, "Expected the hyper-parameters"),
    ],
)
def test_settings_that_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RingsOfSomeNoise().setting(**values)


def test_what_is_refused(generator: torch.Generator) -> None:
    rings = RingsOfSomeNoise()
    assert rings.setting(noise_sd=0.5).tolist() == [0.5]
    with pytest.raises(ValueError, match="share_partition=False"):
        rings.sample(2, share_partition=True, generator=generator)
    with pytest.raises(ValueError, match="Expected the hyper-parameters"):
        rings.given()
    with pytest.raises(ValueError, match=r"of data sets but got shape \(2, 3\)"):
        rings.given(torch.zeros(2, 3, dtype=torch.float64))
