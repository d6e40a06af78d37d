"""How points hang together: against all ways tried, and what it is for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ncp.network.attention import Kernels
from ncp.network.links import NEIGHBOURS, Links
from tests.literal import linked


def points(n: int, dim: int, seed: int) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(n, dim)))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 30])
@pytest.mark.parametrize("dim", [1, 3])
def test_against_all_ways(n: int, dim: int, seed: int) -> None:
    x = points(n, dim, seed)
    ratios = Links.among(x[None]).ratios()[0]
    expected = linked(x, 1)  # exp(-r / 2) for each m
    torch.testing.assert_close((-ratios / 2).exp().permute(1, 2, 0), expected, rtol=0, atol=1e-12)
    assert float(ratios.min()) > 1 - 1e-12


def test_a_data_set_knows_nothing_of_its_company(seed: int) -> None:
    x = torch.stack([points(20, 2, seed), points(20, 2, seed + 1)])
    together, alone = Links.among(x), Links.among(x[1:])
    assert torch.equal(together.gaps[1], alone.gaps[0])
    assert torch.equal(together.core[1], alone.core[0])


def test_order_and_unit_do_not_matter(seed: int) -> None:
    x = points(25, 2, seed)
    order = torch.as_tensor(np.random.default_rng(seed).permutation(25))
    plain = Links.among(x[None]).ratios()[0]
    other = Links.among(7 * x[order][None]).ratios()[0]
    torch.testing.assert_close(other, plain[:, order][:, :, order], rtol=1e-12, atol=0)


def test_coinciding_points_are_finite() -> None:
    ratios = Links.among(torch.zeros(1, 12, 2)).ratios()
    assert torch.equal(ratios, torch.ones_like(ratios))


def test_rings_hang_together_and_apart(seed: int) -> None:
    """Inside a ring the gap is small however far around; to the other ring it is not."""
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * np.arange(400) / 200 + rng.uniform(-0.003, 0.003, size=400)
    ring = np.repeat([0, 1], 200)
    x = (1.0 + ring)[:, None] * np.stack((np.cos(angle), np.sin(angle)), axis=1)
    ratios = Links.among(torch.as_tensor(x)[None]).ratios()[0].numpy()
    same = ring[:, None] == ring
    for k in range(len(NEIGHBOURS)):
        assert ratios[k][same].max() < 2 < ratios[k][~same].min()


def test_a_new_point_is_linked_as_a_member_would_be(seed: int) -> None:
    """One that bridges nothing: a far one of a cluster. It changes no other's neighbours."""
    x = points(40, 2, seed)
    new = torch.tensor([[4.0, 4.0]], dtype=torch.float64)
    links = Links.among(x[None])
    got = links.ratios_of_new(x, new)[0, :, 0]
    expected = Links.among(torch.cat([x, new])[None]).ratios()[0, :, -1]
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("n", [1, 3, 60, 2100])
@pytest.mark.parametrize("link_octaves", [0, 3])
def test_compiled_kernels_are_those_of_torch(n: int, link_octaves: int, seed: int) -> None:
    x = 3 * torch.stack([points(n, 2, seed), points(n, 2, seed + 1)])
    some, weight = x[:, : min(n, 7)], torch.randn(4, 5 + 2 * link_octaves).double()
    ratios = Links.among(x).ratios()[:, :, : some.shape[1]] if link_octaves else None

    def kernels(of: torch.Tensor) -> Kernels:
        return Kernels(of, x, 5, ratios, link_octaves)

    kept, in_torch = kernels(some), kernels(some.clone().requires_grad_())
    with torch.no_grad():
        compiled = kernels(some)
    assert compiled.is_compiled
    assert in_torch.density().requires_grad
    for ours in (compiled, kept):
        for rows in (slice(None), slice(1, 5)):
            found, expected = (one.bias(rows, weight) for one in (ours, in_torch))
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(ours.density(), in_torch.density(), rtol=1e-12, atol=1e-12)
    if link_octaves == 0:  # and what they are said to be
        squares = (some[:, :, None] - x[:, None]).square().sum(-1)
        near = torch.stack([(-squares * 4.0**j / 8).exp() for j in range(5)], 1)
        bias = 10 * torch.einsum("hc,bcmn->bhmn", weight, near)
        torch.testing.assert_close(compiled.bias(slice(None), weight), bias, rtol=0, atol=1e-11)
