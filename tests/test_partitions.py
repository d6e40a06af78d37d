"""Partitions: canonical form, counts, orders, enumeration, and the container of samples."""

import os
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ncp.partitions import (
    as_tensor,
    bell_number,
    canonical,
    check_labels,
    counts,
    enumerate_partitions,
    is_canonical,
    n_clusters,
    random_orders,
)
from ncp.posterior import Partitions
from ncp.summary.estimate import Estimator

rows = st.lists(st.integers(-5, 5), min_size=1, max_size=12)


def relabel_one_by_one(row: list[int]) -> list[int]:
    names: dict[int, int] = {}
    return [names.setdefault(label, len(names)) for label in row]


@settings(deadline=None)
@given(rows)
def test_canonical_is_order_of_appearance(row: list[int]) -> None:
    assert canonical(row).tolist() == relabel_one_by_one(row)


@settings(deadline=None)
@given(rows)
def test_canonical_is_idempotent_and_recognised(row: list[int]) -> None:
    once = canonical(row)
    assert torch.equal(canonical(once), once)
    assert bool(is_canonical(once))
    assert bool(is_canonical(row)) == (once.tolist() == row)


@settings(deadline=None)
@given(rows, st.permutations(range(-5, 6)))
def test_canonical_forgets_the_names_of_clusters(row: list[int], names: list[int]) -> None:
    renamed = [names[label + 5] for label in row]
    assert torch.equal(canonical(row), canonical(renamed))


def test_canonical_is_batched(generator: torch.Generator) -> None:
    labels = torch.randint(0, 4, (2, 3, 9), generator=generator)
    batched = canonical(labels)
    for i in range(2):
        for j in range(3):
            assert batched[i, j].tolist() == relabel_one_by_one(labels[i, j].tolist())


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.int64])
def test_any_integer_array_will_do(dtype: type[np.generic]) -> None:
    labels = np.array([2, 2, 1], dtype=dtype)
    assert canonical(labels).tolist() == [0, 0, 1]
    assert canonical(labels[::-1]).tolist() == [0, 1, 1]
    labels.flags.writeable = False
    assert canonical(labels).dtype == torch.int64


def test_lists_keep_their_digits() -> None:
    assert as_tensor([0.1]).dtype == torch.float64
    assert as_tensor([1, 2]).dtype == torch.int64
    assert as_tensor([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]
    with pytest.raises(ValueError, match="inhomogeneous"):
        as_tensor([[1], [1, 2]])


@settings(deadline=None)
@given(rows)
def test_counts_add_up(row: list[int]) -> None:
    labels = canonical(row)
    sizes = counts(labels)
    assert int(sizes.sum()) == len(row)
    assert sizes.shape[-1] == int(n_clusters(labels)) == len(set(row))
    assert counts(labels, n_clusters=15).tolist() == sizes.tolist() + [0] * (15 - len(set(row)))


def test_counts_refuses_labels_outside() -> None:
    with pytest.raises(ValueError, match="between 0 and 1 but got 0 to 2"):
        counts([0, 1, 2], n_clusters=2)
    with pytest.raises(ValueError, match="but got -1 to 0"):
        counts([-1, 0])


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(0, 2**32))
def test_orders_are_permutations(n: int, seed: int) -> None:
    orders = random_orders(4, n, torch.Generator().manual_seed(seed))
    assert torch.equal(orders.sort(dim=1).values, torch.arange(n).expand(4, n))


@settings(deadline=None)
@given(rows, st.integers(0, 2**32))
def test_a_partition_survives_reordering(row: list[int], seed: int) -> None:
    labels = canonical(row)
    order = random_orders(1, len(row), torch.Generator().manual_seed(seed))[0]
    shuffled = canonical(labels[order])
    assert torch.equal(canonical(shuffled[order.argsort()]), labels)


def test_random_orders_are_uniform(generator: torch.Generator) -> None:
    from scipy.stats import chisquare

    orders = random_orders(60_000, 4, generator)
    code = (orders * torch.tensor([64, 16, 4, 1])).sum(dim=1)
    _, observed = torch.unique(code, return_counts=True)
    assert len(observed) == 24
    assert chisquare(observed.numpy()).pvalue > 1e-4


def test_random_orders_are_reproducible() -> None:
    first, second = (random_orders(3, 7, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("n", range(1, 10))
def test_enumeration_has_every_partition_once(n: int) -> None:
    labels = enumerate_partitions(n)
    assert labels.shape == (bell_number(n), n)
    assert bool(is_canonical(labels).all())
    assert len(torch.unique(labels, dim=0)) == len(labels)
    assert labels.tolist() == sorted(labels.tolist())


@pytest.mark.parametrize("n", [0, -1, 13, 100])
def test_enumeration_refuses_what_is_too_large_or_empty(n: int) -> None:
    with pytest.raises(ValueError, match=f"between 1 and 12 points to enumerate but got n = {n}"):
        enumerate_partitions(n)


def test_bell_numbers() -> None:
    assert bell_number(12) == 4_213_597
    assert bell_number(13) == 27_644_437
    with pytest.raises(ValueError, match="n >= 0"):
        bell_number(-1)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 0], r"order of appearance .* but got \[1, 0\]"),
        ([0, 2], "order of appearance"),
        ([0, -1], "order of appearance"),
        ([[0, 0, 1], [0, 2, 1]], r"but got \[0, 2, 1\]"),
        ([0.0, 1.0], "integer labels but got torch.float64"),
        ([True, False], "integer labels"),
        ([], "at least one point"),
        (np.zeros((3, 0), dtype=np.int64), "at least one point"),
        (np.array(["a", "b"]), "array of numbers"),
        ([0] * 15 + [9], r"0\.\.\.|, 0\]\.\.\."),
    ],
)
def test_check_labels_says_what_is_wrong(labels: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_labels(labels)


def test_check_labels_insists_on_the_length() -> None:
    assert check_labels([0, 0, 1], n_points=3).dtype == torch.int64
    with pytest.raises(ValueError, match="labels of 4 points but got shape"):
        check_labels([0, 0, 1], n_points=4)


def some_partitions(weighted: bool = False) -> Partitions:
    return Partitions(
        labels=np.array([[0, 0, 0], [0, 1, 0], [0, 1, 2]]),
        counts=np.array([5, 3, 2]),
        log_q=np.log([0.5, 0.25, 0.25]),
        log_weights=np.array([0.0, np.log(2.0), -np.inf]) if weighted else None,
    )


def test_partitions_expand_and_weigh() -> None:
    partitions = some_partitions()
    assert (len(partitions), partitions.n_samples, partitions.n_points) == (3, 10, 3)
    assert partitions.n_clusters.tolist() == [1, 2, 3]
    assert partitions.expand().shape == (10, 3)
    assert partitions.expand()[5].tolist() == [0, 1, 0]
    np.testing.assert_allclose(partitions.weights, [0.5, 0.3, 0.2])
    np.testing.assert_allclose(some_partitions(weighted=True).weights, [5 / 11, 6 / 11, 0.0])
    assert repr(partitions) == "Partitions(10 samples of 3 points, 3 distinct)"
    assert repr(some_partitions(weighted=True)).endswith("3 distinct, weighted)")


def test_partitions_index_and_iterate() -> None:
    partitions = some_partitions(weighted=True)
    assert partitions[-1].tolist() == [0, 1, 2]
    assert [row.tolist() for row in partitions] == partitions.labels.tolist()
    for part in (partitions[1:], partitions[[1, 2]], partitions[partitions.n_clusters > 1]):
        assert isinstance(part, Partitions)
        assert part.counts.tolist() == [3, 2]
        assert part.log_weights is not None
        assert part.log_weights.shape == (2,)
    assert len(partitions[:0]) == 0


@pytest.mark.parametrize("weighted", [False, True])
def test_partitions_survive_a_file(tmp_path: Path, weighted: bool) -> None:
    partitions = some_partitions(weighted)
    path = tmp_path / "no suffix added"
    partitions.save(path)
    loaded = Partitions.load(path)
    assert set(loaded.to_numpy()) == set(partitions.to_numpy())
    for name, array in partitions.to_numpy().items():
        np.testing.assert_array_equal(loaded.to_numpy()[name], array)


def test_a_full_disk_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "samples.npz"
    some_partitions().save(path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        some_partitions(weighted=True).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["samples.npz"]


def test_every_point_estimate_has_a_name() -> None:
    for loss in get_args(Estimator):
        assert some_partitions().point_estimate(loss).loss == loss
        assert "3 points" in some_partitions().summary(loss)


def test_partitions_refuse_a_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, labels=np.zeros((1, 2)))
    with pytest.raises(ValueError, match="labels, counts and log_q"):
        Partitions.load(path)
    np.savez(path, labels=np.array([{}], dtype=object), counts=np.ones(1), log_q=np.ones(1))
    with pytest.raises(ValueError, match="Python objects"):
        Partitions.load(path)


def test_partitions_refuse_bad_columns() -> None:
    labels, ones = np.array([[0, 1], [0, 0]]), np.ones(2, dtype=np.int64)
    with pytest.raises(ValueError, match=r"shape \(U, N\)"):
        Partitions(labels[0], ones, np.zeros(2))
    with pytest.raises(ValueError, match="order of appearance"):
        Partitions(labels + 1, ones, np.zeros(2))
    with pytest.raises(ValueError, match=r"counts of shape \(2,\)"):
        Partitions(labels, ones[:1], np.zeros(2))
    with pytest.raises(ValueError, match=r"log_weights of shape \(2,\)"):
        Partitions(labels, ones, np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match="counts >= 1"):
        Partitions(labels, ones - 1, np.zeros(2))
    with pytest.raises(ValueError, match="integer counts"):
        Partitions(labels, ones / 2, np.zeros(2))
    with pytest.raises(ValueError, match="finite"):
        _ = Partitions(labels, ones, np.zeros(2), np.full(2, -np.inf)).weights
