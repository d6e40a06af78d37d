"""Where walks over the data set lead: against eigenvalues, and what it is for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ncp.network.walks import TIMES, Walks
from tests.literal import placed, walked


def points(n: int, dim: int, seed: int) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(n, dim)))


def squares(x: Tensor, y: Tensor) -> Tensor:
    return (x[..., :, None, :] - y[..., None, :, :]).square().sum(-1)


def walks(x: Tensor, lengths: Tensor | None = None, rank: int = 32) -> Walks:
    return Walks.among(squares(x, x), lengths, rank)


@pytest.mark.parametrize("n", [1, 2, 3, 9, 60, 300])
@pytest.mark.parametrize("dim", [1, 3])
def test_against_eigenvalues(n: int, dim: int, seed: int) -> None:
    x = points(n, dim, seed)
    cosines = walks(x[None]).cosines[0]
    torch.testing.assert_close(cosines.permute(1, 2, 0), walked(x), rtol=0, atol=1e-9)
    assert float(cosines.min()) >= 0
    assert float(cosines.max()) < 1 + 1e-12


@pytest.mark.parametrize(("n", "rank"), [(1, 4), (2, 4), (12, 5), (12, 20), (40, 8)])
def test_places_one_entry_at_a_time(n: int, rank: int, seed: int) -> None:
    x = points(n, 2, seed)
    got = walks(x[None], rank=rank).places[0].transpose(0, 1)
    torch.testing.assert_close(got, placed(walked(x), rank), rtol=0, atol=1e-6)


def test_products_of_places_are_the_cosines(seed: int) -> None:
    """Of the longer time nearly all, with 32 numbers for 300 points in a dozen clusters."""
    rng = np.random.default_rng(seed)
    centres = 4 * rng.normal(size=(12, 2))
    x = torch.as_tensor(centres[np.arange(300) % 12] + rng.normal(size=(300, 2)))
    found = walks(x[None])
    products = found.places[0] @ found.places[0].mT
    assert float((products - found.cosines[0])[1].abs().max()) < 0.05
    assert float((products - found.cosines[0])[0].abs().mean()) < 0.02


def test_a_data_set_knows_nothing_of_its_padding_and_company(seed: int) -> None:
    x = torch.stack([points(120, 2, seed), points(120, 2, seed + 1)])
    together = walks(x, torch.tensor([120, 13]))
    alone = walks(x[1:, :13])
    torch.testing.assert_close(
        together.cosines[1, :, :13, :13], alone.cosines[0], rtol=0, atol=1e-12
    )
    torch.testing.assert_close(together.places[1, :, :13], alone.places[0], rtol=0, atol=1e-9)
    assert float(together.cosines[1, :, 13:].abs().max()) == 0
    assert float(together.places[1, :, 13:].abs().max()) == 0


def test_order_and_unit_do_not_matter(seed: int) -> None:
    x = points(25, 2, seed)
    order = torch.as_tensor(np.random.default_rng(seed).permutation(25))
    plain, other = walks(x[None]), walks(7 * x[order][None])
    cosines = plain.cosines[0][:, order][:, :, order]
    torch.testing.assert_close(other.cosines[0], cosines, rtol=0, atol=1e-12)
    torch.testing.assert_close(other.places[0], plain.places[0][:, order], rtol=0, atol=1e-7)


def test_coinciding_and_lonely_points_are_finite() -> None:
    alike = walks(torch.zeros(1, 12, 2))
    torch.testing.assert_close(alike.cosines, torch.ones_like(alike.cosines))
    assert bool(alike.places.isfinite().all())
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1e4, 0.0]])
    lonely = walks(x[None])
    assert bool(lonely.cosines.isfinite().all())
    assert bool(lonely.places.isfinite().all())


def test_overlapping_clusters_stay_apart_for_long(seed: int) -> None:
    """Centres three standard deviations apart: points all the way, and yet two clusters."""
    rng = np.random.default_rng(seed)
    label = np.repeat([0, 1], 150)
    x = rng.normal(size=(300, 2)) + 3.0 * label[:, None] * np.array([1.0, 0.0])
    cosines = walks(torch.as_tensor(x)[None]).cosines[0].numpy()
    same = label[:, None] == label
    for k in range(len(TIMES)):
        assert cosines[k][same].mean() > 2 * cosines[k][~same].mean()


def test_a_new_point_is_where_a_member_would_be(seed: int) -> None:
    """Told apart by the cluster of its neighbours, nearly as if it were a point of the data."""
    rng = np.random.default_rng(seed)
    label = np.repeat([0, 1], 60)
    x = torch.as_tensor(rng.normal(size=(120, 2)) + 6.0 * label[:, None])
    new = torch.as_tensor(rng.normal(size=(20, 2)))
    cosines, places = walks(x[None]).of_new(squares(new, x))
    assert cosines.shape == (20, len(TIMES), 1, 121)
    assert places.shape == (20, len(TIMES), 32)
    assert bool((cosines[..., -1] == 1).all())
    assert float(cosines[..., 60:120].max()) < 0.1
    for i in range(20):
        member = walks(torch.cat([x, new[i : i + 1]])[None]).cosines[0, :, -1]
        assert float((cosines[i, :, 0] - member).abs().mean()) < 0.1
