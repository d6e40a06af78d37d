"""The blocks of h, g and f: layout, shapes, names."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from ncp.model import NCP
from ncp.network.blocks import Perceptron, PReLU, Residual, perceptron
from ncp.network.encoder import (
    ConvEncoder,
    Convolutions,
    Encoder,
    FourierLinear,
    MLPEncoder,
    encoder_from_dict,
)
from ncp.network.network import NetworkSpec


def test_a_perceptron_has_the_papers_layers() -> None:
    layers = list(perceptron(2, Perceptron(128, 5, 256)))
    assert [type(layer) for layer in layers[::2]] == [nn.Linear] * 5
    assert [type(layer) for layer in layers[1::2]] == [PReLU] * 4
    shapes = [layer.weight.shape for layer in layers[::2] if isinstance(layer, nn.Linear)]
    assert shapes == [(128, 2), (128, 128), (128, 128), (128, 128), (256, 128)]


@pytest.mark.parametrize("slope", [0.25, -0.5, 0.0])
def test_prelu_and_its_gradient_are_torchs(slope: float, generator: torch.Generator) -> None:
    z = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    z[0, 0] = 0.0
    above = torch.randn(5, 7, generator=generator, dtype=torch.float64).T  # not contiguous
    results = []
    for module in (PReLU().double(), nn.PReLU().double()):
        nn.init.constant_(module.weight, slope)
        leaf = z.clone().requires_grad_()
        out = module(leaf)
        results.append((out.detach(), *torch.autograd.grad(out, (leaf, module.weight), above)))
        with torch.no_grad():
            assert torch.equal(module(z), out)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_the_last_bias_is_optional() -> None:
    layers = perceptron(3, Perceptron(4, 2, 1), bias=False)
    assert len(layers) == 3
    assert isinstance(layers[0], nn.Linear)
    assert layers[0].bias is not None
    assert isinstance(layers[-1], nn.Linear)
    assert layers[-1].bias is None


def test_a_residual_perceptron_is_the_sum_it_says(generator: torch.Generator) -> None:
    network = perceptron(3, Perceptron(8, 4, 2, residual=True)).double()
    z = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    first, activation, *blocks, last = network
    hidden = activation(first(z))
    for block in blocks:
        assert isinstance(block, Residual)
        a = hidden @ block.linear.weight.T + block.linear.bias
        hidden = hidden + torch.where(a > 0, a, block.activation.weight * a)
    torch.testing.assert_close(network(z), last(hidden), rtol=0, atol=1e-12)


@pytest.mark.parametrize("event_shape", [(28, 28), (1, 28, 28), (3, 20, 24)])
def test_conv_encoder_maps_images_to_vectors(event_shape: tuple[int, ...]) -> None:
    encoder = ConvEncoder().build(event_shape)
    assert encoder(torch.rand(4, *event_shape)).shape == (4, 256)


def test_conv_encoder_is_the_papers(generator: torch.Generator) -> None:
    """[conv + max-pool + ReLU] twice, fully connected to 256, ReLU, fully connected."""
    encoder = Convolutions((28, 28), 32, (10, 20)).double()
    x = torch.rand(3, 28, 28, generator=generator, dtype=torch.float64)
    z = x[:, None]
    for conv in (encoder.conv1, encoder.conv2):
        patches = z.unfold(2, 5, 1).unfold(3, 5, 1)  # (points, channels, rows, columns, 5, 5)
        assert conv.bias is not None
        z = torch.einsum("pcijab,ocab->poij", patches, conv.weight) + conv.bias[:, None, None]
        z = z.unfold(2, 2, 2).unfold(3, 2, 2).amax((-2, -1)).clamp_min(0)
    z = (z.reshape(3, -1) @ encoder.fc1.weight.T + encoder.fc1.bias).clamp_min(0)
    expected = z @ encoder.fc2.weight.T + encoder.fc2.bias
    assert z.shape == (3, 256)
    torch.testing.assert_close(encoder(x), expected, rtol=0, atol=1e-12)


def test_too_small_images_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 16 pixels"):
        ConvEncoder(8, (2, 2)).build((15, 28))
    ConvEncoder(8, (2, 2)).build((16, 16))


def test_waves_are_octaves_beside_the_coordinates(generator: torch.Generator) -> None:
    encoder = MLPEncoder(fourier_octaves=3).build((2,)).double()
    assert isinstance(encoder, nn.Sequential)
    first = encoder[0]
    assert isinstance(first, FourierLinear)
    x = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    features = [x]
    for wave in (torch.sin, torch.cos):
        for d in range(2):
            features += [wave(torch.pi * 2**j / 2 * x[:, d : d + 1]) for j in range(3)]
    expected = torch.cat(features, 1) @ first.weight.T + first.bias
    torch.testing.assert_close(first(x), expected)


@pytest.mark.parametrize("octaves", [-1, 17])
def test_waves_are_a_few_octaves_of_vectors(octaves: int) -> None:
    with pytest.raises(ValueError, match="fourier_octaves"):
        MLPEncoder(fourier_octaves=octaves)
    with pytest.raises(ValueError, match="fourier_octaves"):
        encoder_from_dict({"kind": "ConvEncoder", "fourier_octaves": 1})


def test_encoders_check_the_event_shape() -> None:
    with pytest.raises(ValueError, match="one-dimensional event_shape"):
        MLPEncoder().build((28, 28))
    with pytest.raises(ValueError, match="height, width"):
        ConvEncoder().build((2,))
    with pytest.raises(ValueError, match=r"kind .*ConvEncoder.* but got 'Transformer'"):
        encoder_from_dict({"kind": "Transformer"})


@dataclass(frozen=True)
class FlatLinear(Encoder):
    """An encoder of a user's own."""

    bias: bool = True

    def build(self, event_shape: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(6, self.out, bias=self.bias))


def test_a_users_encoder_is_known_by_name(generator: torch.Generator) -> None:
    assert Encoder.registry["FlatLinear"] is FlatLinear
    own = FlatLinear(9, bias=False)
    assert encoder_from_dict(own.to_dict()) == own
    model = NCP(NetworkSpec((2, 3), own, unassigned_encoder=FlatLinear(8)))
    x = torch.rand(4, 2, 3, generator=generator)
    assert model.conditionals(x, [0, 1, 0, 2]).shape == (4, 4)
    assert {"h.1.weight", "q.1.weight", "q.1.bias"} <= set(model.state_dict())
    assert "h.1.bias" not in model.state_dict()
