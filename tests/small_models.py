"""Small networks with random weights: quick, and every interface works on them. And priors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.mixture import Mixture
from ncp.generative.model import GenerativeModel
from ncp.generative.priors import (
    CRP,
    GammaCRP,
    Geometric,
    MixtureOfFiniteMixtures,
    PitmanYor,
    Poisson,
    Prior,
)
from ncp.generative.tables import TabularMixture
from ncp.model import NCP
from ncp.network.attention import Attention
from ncp.network.blocks import Perceptron
from ncp.network.checkpoint import save_model
from ncp.network.encoder import ConvEncoder, Encoder, MLPEncoder
from ncp.network.network import NetworkSpec

SMALL: dict[str, Any] = {"h": (16, 2, 16), "g": (16, 2, 16), "f": (16, 2), "sees": ("candidate",)}

PRIORS: list[Prior] = [
    CRP(0.7),
    PitmanYor(0.5, 0.3),
    MixtureOfFiniteMixtures(1.5, Poisson(2.0)),
    MixtureOfFiniteMixtures(0.5, Geometric(0.3)),
    GammaCRP(2.0, 1.5),
]


def spec(
    event_shape: Any = 2,
    *,
    h: tuple[int, int, int] = (12, 3, 7),
    g: tuple[int, int, int] = (8, 4, 9),
    f: tuple[int, int] = (8, 4),
    sees: Sequence[str] = (),
    attention: tuple[int, ...] | None = None,
    residual: bool = False,
    fourier: int = 0,
    own_q: bool = False,
    pooling: str = "sum",
    channels: tuple[int, int] | None = None,
) -> NetworkSpec:
    """A small network in few words.

    Args:
        event_shape: of a point.
        h, g, f: (width, depth, out) of each; f has no out.
        sees: what f sees beside G, Q and the point; with `"-point"` not the point.
        attention: (blocks, width, codes, octaves), then coordinates (0 for all) and link octaves.
        residual, fourier, pooling: as in the specs.
        own_q: an encoder of its own for Q, as the authors' public code has it.
        channels: of a convolutional encoder instead of the perceptron.
    """
    encoder: Encoder = MLPEncoder(h[2], h[0], h[1], residual, fourier)
    own: Encoder = MLPEncoder(h[2] + 1, h[0], h[1])
    if channels is not None:
        encoder, own = ConvEncoder(h[2], channels), ConvEncoder(h[2] + 1, channels)
    seen = ["G", "Q", *([] if "-point" in sees else ["point"]), *sees]
    return NetworkSpec(
        event_shape,
        encoder,
        None if attention is None else Attention(*attention),
        Perceptron(*g, residual),
        Perceptron(*f, 1, residual),
        own if own_q else None,
        tuple(name for name in seen if name != "-point"),
        pooling,
    )


def small(mixture: GenerativeModel, seed: int = 0) -> NCP:
    """A narrow network for a mixture; biased towards few clusters by the choice of seed."""
    network = spec(mixture.event_shape, **SMALL)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NCP(network, mixture).eval()


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
