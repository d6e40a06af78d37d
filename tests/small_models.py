"""Small networks with random weights: quick, and every interface works on them."""

from __future__ import annotations

from pathlib import Path

import torch

from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.mixture import Mixture
from ncp.generative.model import GenerativeModel
from ncp.generative.priors import CRP
from ncp.generative.tables import TabularMixture
from ncp.model import NCP, NCPConfig
from ncp.network.checkpoint import save_model


def small(mixture: GenerativeModel, seed: int = 0) -> NCP:
    """A narrow network for a mixture; biased towards few clusters by the choice of seed."""
    config = NCPConfig(
        event_shape=mixture.event_shape,
        h_width=16,
        h_depth=2,
        h_dim=16,
        width=16,
        g_depth=2,
        g_dim=16,
        f_depth=2,
        candidate_in_f=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NCP(config, mixture).eval()


def gaussian(dim: int = 2) -> NCP:
    return small(Mixture(CRP(0.7), GaussianKnownVariance(dim=dim), sizes=(5, 60)))


def tabular() -> NCP:
    """With a small reference of summary statistics, so that preparing a table takes no time."""
    return small(TabularMixture(sizes=(10, 100)).with_reference(10))


def install(directory: Path) -> Path:
    """Write both as named models to a folder."""
    directory.mkdir(parents=True, exist_ok=True)
    save_model(directory / "tabular.safetensors", tabular(), name="tabular", step=7, seconds=1.5)
    save_model(
        directory / "gaussian-2d.safetensors", gaussian(), step=3, metrics={"held_out_nll": 0.5}
    )
    return directory
