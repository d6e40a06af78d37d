"""Models by name: found, refused with what there is, and described by their own files."""

from pathlib import Path

import pytest
import torch

import ncp
from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.tables import TabularMixture
from ncp.network import pretrained
from ncp.network.checkpoint import save_model
from tests.small_models import gaussian, install


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = install(tmp_path / "weights")
    monkeypatch.setattr(pretrained, "DIRECTORY", directory)
    return directory


def test_names_start_with_the_default(weights: Path) -> None:
    assert pretrained.names() == ["tabular", "gaussian-2d"]


def test_load_by_name_and_by_path(weights: Path) -> None:
    named = ncp.load("gaussian-2d")
    by_path = ncp.load(weights / "gaussian-2d.safetensors")
    x = torch.zeros(3, 2)
    assert torch.equal(named.log_prob(x, [0, 0, 1]), by_path.log_prob(x, [0, 0, 1]))
    assert isinstance(named.mixture, ncp.Mixture)
    assert isinstance(named.mixture.likelihood, GaussianKnownVariance)
    assert not named.training


def test_tabular_brings_its_mixture(weights: Path) -> None:
    assert isinstance(ncp.load("tabular").mixture, TabularMixture)


def test_unknown_names_are_refused_with_the_known_ones(weights: Path) -> None:
    with pytest.raises(ValueError, match=r"tabular, gaussian-2d.*did you mean 'gaussian-2d'"):
        ncp.load("gausian-2d")


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not weights")
    with pytest.raises(ValueError, match="Expected a complete safetensors file"):
        ncp.load(path)


def test_card(weights: Path) -> None:
    card = pretrained.card("gaussian-2d")
    assert card.sizes == (5, 60)
    assert card.steps == 3
    assert "GaussianKnownVariance(dim=2" in card.trained_on
    assert card.quality == "held-out loss 0.5 a point"
    assert card.to_dict()["event_shape"] == [2]
    assert pretrained.card("tabular").trained_on == "random tables, 10 to 100 points"
    assert pretrained.card("tabular").quality == "not measured"


def test_card_counts_what_was_trained_before(weights: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    save_model(first, gaussian(), step=5, seconds=2.5)
    save_model(second, gaussian(), step=3, seconds=1.0, total_steps=8, total_seconds=3.5)
    assert (pretrained.card(first).steps, pretrained.card(first).seconds) == (5, 2.5)
    assert (pretrained.card(second).steps, pretrained.card(second).seconds) == (8, 3.5)


@pytest.mark.parametrize("name", pretrained.names())
def test_shipped_models_load_and_sample(name: str) -> None:
    model = ncp.load(name)
    x = torch.zeros(4, *model.spec.event_shape)
    assert model.sample(x, 5, seed=0).n_samples == 5
    assert pretrained.card(name).purpose != "a model of your own"
