"""The prefix-tree sampler against exp(log q) of all partitions, and against a naive one."""

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import ncp.network.layout
import ncp.network.network
import ncp.sampling.assign
import ncp.sampling.sample
import ncp.sampling.torch_tree
from ncp.model import NCP
from ncp.network.attention import AttentionBlock, Kernels
from ncp.network.network import NetworkSpec
from ncp.partitions import canonical, enumerate_partitions
from ncp.posterior import Partitions
from ncp.sampling.keys import numbered_orders
from ncp.sampling.sample import beam_search, sample_many
from ncp.sampling.torch_tree import TorchTree
from tests.literal import COMPOSITIONS, SHAPES, algorithm_1, random_model

N_SAMPLES = 20_000
SURPRISE = 1e-4  # a right sampler fails one test in ten thousand seeds


def data(n: int, generator: torch.Generator, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(n, 2, generator=generator, dtype=torch.float64)


@torch.no_grad()
def exact(model: NCP, x: Tensor, order: list[int] | None = None) -> np.ndarray:
    """q of all partitions of x, in the order of `enumerate_partitions`."""
    log_q = model.log_prob(x, enumerate_partitions(len(x)), order=order)
    return np.asarray(log_q.exp().numpy())


def exact_over_orders(model: NCP, x: Tensor) -> np.ndarray:
    """The mean of q over all orders of the points."""
    orders = itertools.permutations(range(len(x)))
    return np.asarray(np.mean([exact(model, x, list(order)) for order in orders], axis=0))


def tally(labels: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """How often each partition of `enumerate_partitions` occurs."""
    names = {tuple(row): i for i, row in enumerate(enumerate_partitions(labels.shape[1]).tolist())}
    found = np.zeros(len(names))
    for row, count in zip(labels.tolist(), counts, strict=True):
        found[names[tuple(row)]] += count
    return found


def chi_square(found: np.ndarray, probability: np.ndarray) -> float:
    """The p-value of counts against probabilities; cells expecting less than five are joined."""
    expected = found.sum() * probability
    rare = expected < 5
    f, e = found[~rare], expected[~rare]
    if rare.any():
        f, e = np.append(f, found[rare].sum()), np.append(e, expected[rare].sum())
    f, e = f[e > 0], e[e > 0]
    if len(f) < 2:
        return 1.0
    return float(stats.chisquare(f, e * f.sum() / e.sum()).pvalue)


def agrees(samples: Partitions, probability: np.ndarray) -> bool:
    return chi_square(tally(samples.labels, samples.counts), probability) > SURPRISE


@torch.no_grad()
def naive_samples(model: NCP, x: Tensor, n_samples: int, seed: int) -> np.ndarray:
    """Every sample its own walk through Algorithm 1, point by point."""
    rng = np.random.default_rng(seed)
    rows = []
    cache: dict[tuple[int, ...], np.ndarray] = {}
    for _ in range(n_samples):
        labels = [0]
        while len(labels) < len(x):
            key = tuple(labels)
            if key not in cache:
                padded = torch.tensor(labels + [0] * (len(x) - len(labels)))
                cache[key] = algorithm_1(model, x, padded)[len(labels)].exp().numpy()
            p = cache[key]
            labels.append(int(rng.choice(len(p), p=p / p.sum())))
        rows.append(labels)
    return np.array(rows)


# -- the distribution ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*COMPOSITIONS, *SHAPES])
def test_one_order_has_the_models_frequencies(
    name: str, generator: torch.Generator, seed: int
) -> None:
    model = random_model(generator, **(COMPOSITIONS | SHAPES)[name])
    x = data(5, generator)
    samples = model.sample(x, N_SAMPLES, seed=seed)
    assert samples.n_samples == N_SAMPLES
    assert agrees(samples, exact(model, x))
    assert len(np.unique(samples.labels, axis=0)) == len(samples)  # one order: distinct rows


def test_the_test_notices_a_wrong_distribution(generator: torch.Generator, seed: int) -> None:
    model = random_model(generator)
    x = data(5, generator)
    samples = model.sample(x, N_SAMPLES, seed=seed)
    assert not agrees(samples, exact(model, x, [4, 3, 2, 1, 0]))


def test_each_sample_in_its_own_order(generator: torch.Generator, seed: int) -> None:
    model = random_model(generator)
    x = data(5, generator)
    samples = model.sample(x, 2000, orders="each", seed=seed)
    assert samples.n_samples == 2000
    assert len(samples) == 2000
    assert agrees(samples, exact_over_orders(model, x))


def test_several_orders_share_the_samples(
    generator: torch.Generator, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = [[2, 0, 4, 1, 3], [4, 3, 2, 1, 0], [1, 2, 0, 3, 4]]
    monkeypatch.setattr(
        ncp.sampling.sample, "numbered_orders", lambda key, which, n: np.array(orders)[which]
    )
    model = random_model(generator)
    x = data(5, generator)
    samples = model.sample(x, N_SAMPLES, orders=3, seed=seed)
    assert samples.n_samples == N_SAMPLES
    assert agrees(samples, np.mean([exact(model, x, order) for order in orders], axis=0))
    rows = {
        (tuple(row), round(float(log_q), 9))
        for order in orders
        for row, log_q in zip(
            samples.labels.tolist(),
            model.log_prob(x, samples.labels, order=order).tolist(),
            strict=True,
        )
    }
    for row, log_q in zip(samples.labels.tolist(), samples.log_q, strict=True):
        assert any(
            (tuple(row), round(float(log_q) + shift, 9)) in rows for shift in (0, 1e-9, -1e-9)
        )


def test_random_orders_are_random(generator: torch.Generator, seed: int) -> None:
    """Nearly as many orders as samples: over calls, the mean over all orders."""
    model = random_model(generator)
    x = data(3, generator)
    found = np.zeros(5)
    for i in range(30):
        many = model.sample(x, 60, orders=59, seed=77 * seed + i)
        found += tally(many.labels, many.counts)
    assert chi_square(found, exact_over_orders(model, x)) > SURPRISE


def test_sample_many_mixed_sizes(generator: torch.Generator, seed: int) -> None:
    model = random_model(generator)
    sizes = [5, 1, 4, 2, 5, 3, 2, 1]
    xs = [data(n, generator) for n in sizes]
    many = model.sample_many(xs, 5000, seed=seed)
    assert [one.labels.shape[1] for one in many] == sizes
    for x, samples in zip(xs, many, strict=True):
        assert samples.n_samples == 5000
        assert agrees(samples, exact(model, x))
        with torch.no_grad():
            again = model.log_prob(x, samples.labels)
        np.testing.assert_allclose(samples.log_q, again.numpy(), atol=1e-9)
    each = model.sample_many(xs, 500, orders="each", seed=seed)
    for x, samples in zip(xs[:4], each[:4], strict=True):
        assert agrees(samples, exact_over_orders(model, x))
    assert model.sample_many([], 10) == []


def test_batch_composition_does_not_change_the_distribution(
    generator: torch.Generator, seed: int
) -> None:
    model = random_model(generator)
    x, others = data(5, generator), [data(n, generator) for n in (7, 2, 5, 9)]
    alone = model.sample(x, N_SAMPLES, seed=seed)
    for place in (0, 2, 4):
        xs = [*others[:place], x, *others[place:]]
        among = model.sample_many(xs, N_SAMPLES // 4, seed=seed + place)[place]
        assert agrees(among, exact(model, x))
        table = np.stack([tally(s.labels, s.counts) for s in (alone, among)])
        table = table[:, table.sum(0) >= 20]
        assert stats.chi2_contingency(table).pvalue > SURPRISE


def test_the_naive_sampler_agrees(generator: torch.Generator, seed: int) -> None:
    model = random_model(generator, sees=("candidate",))
    x = data(6, generator)
    naive = naive_samples(model, x, 8000, seed)
    assert chi_square(tally(naive, np.ones(len(naive))), exact(model, x)) > SURPRISE
    tree = model.sample(x, 8000, seed=seed)
    table = np.stack([tally(naive, np.ones(len(naive))), tally(tree.labels, tree.counts)])
    table = table[:, table.sum(0) >= 20]
    assert stats.chi2_contingency(table).pvalue > SURPRISE


def test_image_model_samples(generator: torch.Generator, seed: int) -> None:
    model = random_model(generator, (16, 16), channels=(2, 3))
    x = torch.rand(4, 16, 16, generator=generator, dtype=torch.float64)
    assert agrees(model.sample(x, 5000, seed=seed), exact(model, x))


# -- log q ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*COMPOSITIONS, *SHAPES])
@pytest.mark.parametrize("n", [1, 2, 30])
def test_log_q_is_the_likelihoods(n: int, name: str, generator: torch.Generator, seed: int) -> None:
    check_log_q(random_model(generator, **(COMPOSITIONS | SHAPES)[name]), n, generator, seed)


@pytest.mark.parametrize("name", ["plain, candidate", "pairs, mean, candidate"])
def test_log_q_of_long_sequences(name: str, generator: torch.Generator, seed: int) -> None:
    check_log_q(random_model(generator, **COMPOSITIONS[name]), 300, generator, seed)


def check_log_q(model: NCP, n: int, generator: torch.Generator, seed: int) -> None:
    x = data(n, generator)
    samples = model.sample(x, 20, seed=seed)
    with torch.no_grad():
        again = model.log_prob(x, samples.labels)
    np.testing.assert_allclose(samples.log_q, again.numpy(), rtol=1e-9, atol=1e-9)


def test_log_q_in_the_order_of_the_draw(
    generator: torch.Generator, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[np.ndarray] = []
    original = numbered_orders

    def remember(*arguments: Any) -> np.ndarray:
        found = original(*arguments)
        orders.extend(found)
        return found

    monkeypatch.setattr(ncp.sampling.sample, "numbered_orders", remember)
    model = random_model(generator)
    x = data(12, generator)
    samples = model.sample(x, 25, orders="each", seed=seed)
    assert len(orders) == 25
    with torch.no_grad():
        for order, row, log_q in zip(orders, samples.labels, samples.log_q, strict=True):
            assert abs(float(model.log_prob(x, row, order=order)) - log_q) < 1e-9


def test_single_precision_is_close(generator: torch.Generator, seed: int) -> None:
    model = random_model(generator).float()
    x = data(100, generator).float()
    samples = model.sample(x, 50, seed=seed)
    with torch.no_grad():
        again = model.log_prob(x, samples.labels)
    np.testing.assert_allclose(samples.log_q, again.numpy(), rtol=1e-5, atol=1e-4)


# -- the calls -----------------------------------------------------------------------------------


@pytest.mark.parametrize("orders", [1, 3, "each"])
def test_seeds_reproduce(orders: int | str, generator: torch.Generator) -> None:
    model = random_model(generator)
    x = data(12, generator)
    first, second = (model.sample(x, 200, orders=orders, seed=5) for _ in range(2))
    other = model.sample(x, 200, orders=orders, seed=6)
    assert (first.labels == second.labels).all()
    assert (first.log_q == second.log_q).all()
    assert first.labels.shape != other.labels.shape or (first.labels != other.labels).any()
    state = torch.get_rng_state()
    unseeded = [model.sample(x, 200, orders=orders) for _ in range(2)]
    assert not np.array_equal(unseeded[0].expand(), unseeded[1].expand())
    assert bool((torch.get_rng_state() == state).all())  # the global state is left alone


def test_rows_are_canonical_in_the_callers_order(generator: torch.Generator, seed: int) -> None:
    model = random_model(generator)
    x = data(15, generator)
    for orders in (1, 4, "each"):
        samples = model.sample(x, 100, orders=orders, seed=seed)
        assert samples.n_samples == 100
        assert (canonical(samples.labels).numpy() == samples.labels).all()


def test_identical_points(generator: torch.Generator, seed: int) -> None:
    model = random_model(generator)
    x = torch.ones(5, 2, dtype=torch.float64)
    assert agrees(model.sample(x, 5000, seed=seed), exact(model, x))
    single = model.sample(x[:1], 7, seed=seed)
    assert single.labels.tolist() == [[0]]
    assert single.counts.tolist() == [7]
    assert single.log_q.tolist() == [0.0]


def test_arrays_of_any_kind(generator: torch.Generator) -> None:
    model = random_model(generator)
    values = np.round(data(6, generator, 3.0).numpy())
    frozen = values.copy()
    frozen.setflags(write=False)
    kinds = [values.astype(np.float32), values.astype(np.int64), frozen, np.asfortranarray(values)]
    kinds += [np.repeat(values, 2, axis=0)[::2], values[::-1].copy()[::-1]]
    expected = model.sample(values, 50, seed=0).labels
    for x in [*kinds, values.tolist()]:
        assert (model.sample(x, 50, seed=0).labels == expected).all()


@pytest.mark.parametrize("limits", [(64, 10**9), (10**9, 64 * 5), (1, 1)])
@pytest.mark.parametrize("orders", [1, 2, "each"])
def test_pieces_change_nothing_but_memory(
    limits: tuple[int, int],
    orders: int | str,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_samples = 40 if limits == (1, 1) else 1000
    monkeypatch.setattr(ncp.sampling.sample, "PIECE_SAMPLES", limits[0])
    monkeypatch.setattr(ncp.sampling.sample, "PIECE_POSITIONS", limits[1])
    fixed = np.array([[0, 1, 2, 3], [3, 2, 1, 0]])
    if orders == 2:
        monkeypatch.setattr(
            ncp.sampling.sample, "numbered_orders", lambda key, which, n: fixed[which]
        )
    model = random_model(generator)
    xs = [data(4, generator) for _ in range(2)]
    for x, samples in zip(xs, model.sample_many(xs, n_samples, orders=orders, seed=1), strict=True):
        assert samples.n_samples == n_samples
        if orders == "each":
            expected = exact_over_orders(model, x)
        else:
            expected = np.mean([exact(model, x, o) for o in fixed[:orders].tolist()], axis=0)
            keys = np.column_stack([samples.labels, np.round(samples.log_q, 8)])
            assert len(np.unique(keys, axis=0)) == len(samples)  # equal rows are merged
        assert agrees(samples, expected)


@pytest.mark.parametrize("wrong", [0, -1, True])
def test_bad_numbers_are_refused(wrong: int, generator: torch.Generator) -> None:
    model = random_model(generator)
    x = data(3, generator)
    with pytest.raises(ValueError, match="n_samples"):
        sample_many(model, [x], wrong)
    with pytest.raises(ValueError, match="orders"):
        sample_many(model, [x], 10, orders=wrong)
    with pytest.raises(ValueError, match="orders"):
        sample_many(model, [x], 10, orders="all")
    with pytest.raises(ValueError, match="beam"):
        beam_search(model, x, wrong)


def test_absurd_requests_are_refused_before_work_starts(generator: torch.Generator) -> None:
    model = random_model(generator)

    def never(*_: object) -> None:
        raise AssertionError("work has started")

    for call in (
        lambda: model.sample(data(50, generator), 10**12, progress=never),
        lambda: model.sample_many([data(50, generator)] * 2, 10**12, orders="each", progress=never),
        lambda: model.map(data(50, generator), beam=10**12),
    ):
        with pytest.raises(ValueError, match="GiB of memory"):
            call()


def test_a_beam_is_counted_with_its_state(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its labels alone would fit."""
    model = random_model(generator)
    monkeypatch.setattr(ncp.network.network, "_memory", lambda: 2 * 16 * 10 * 50)
    with pytest.raises(ValueError, match=r"GiB of memory .* prefixes in the beam would fit"):
        model.map(data(10, generator), beam=50)
    assert len(model.map(data(10, generator), beam=5)) == 5


@pytest.mark.parametrize("call", ["log_prob", "conditionals"])
def test_likelihoods_that_will_not_fit_are_refused(
    call: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(generator)
    score = getattr(model, call)
    x = data(40, generator)
    monkeypatch.setattr(ncp.network.network, "_memory", lambda: 400_000)
    few = torch.arange(40) % 3
    with torch.no_grad():
        score(x, few)
        with pytest.raises(ValueError, match="about 1 clusters would fit"):
            score(x.repeat(25, 1), torch.arange(1000))
    with pytest.raises(ValueError, match="rows of labels with gradients would fit"):
        score(x, few.repeat(50, 1))


def test_one_cluster_each_of_twenty_thousand_points_is_refused(generator: torch.Generator) -> None:
    model = NCP(NetworkSpec())
    with pytest.raises(ValueError, match="clusters would fit"):
        model.log_prob(data(20_000, generator), torch.arange(20_000))


# -- beam search and assignment ------------------------------------------------------------------


def test_a_wide_beam_finds_the_top_partitions(generator: torch.Generator) -> None:
    model = random_model(generator)
    x = data(6, generator)
    probability = exact(model, x)
    best = np.argsort(-probability, kind="stable")
    everything = model.map(x, beam=203)
    assert len(everything) == 203
    np.testing.assert_allclose(np.exp(everything.log_q), probability[best], atol=1e-12)
    top = model.map(x, beam=120)
    assert (top.labels[:5] == enumerate_partitions(6).numpy()[best[:5]]).all()
    assert (np.diff(top.log_q) <= 0).all()
    greedy = model.map(x, beam=1)
    assert len(greedy) == 1
    with torch.no_grad():
        conditionals = model.conditionals(x, greedy.labels[0])
        assert (conditionals.argmax(1).numpy() == greedy.labels[0]).all()
        np.testing.assert_allclose(top.log_q, model.log_prob(x, top.labels).numpy(), atol=1e-9)
    assert model.map(x[:1]).labels.tolist() == [[0]]


@pytest.mark.parametrize("name", [*COMPOSITIONS, *SHAPES])
def test_assign_is_the_last_conditional(name: str, generator: torch.Generator) -> None:
    model = random_model(generator, **(COMPOSITIONS | SHAPES)[name])
    x, new = data(9, generator), data(7, generator)
    labels = torch.tensor([0, 1, 0, 2, 1, 0, 3, 2, 2])
    probabilities = model.assign(new, x, labels)
    assert probabilities.shape == (7, 5)
    for i in range(7):
        with torch.no_grad():
            row = model.conditionals(torch.cat([x, new[i : i + 1]]), [*labels.tolist(), 0])[-1]
        np.testing.assert_allclose(probabilities[i].numpy(), row.exp().numpy(), atol=1e-9)


def test_assign_to_more_clusters_than_a_block(generator: torch.Generator) -> None:
    model = random_model(generator, sees=("candidate",), pooling="mean")
    x, new = data(300, generator), data(3, generator)
    probabilities = model.assign(new, x, torch.arange(300))
    assert probabilities.shape == (3, 301)
    with torch.no_grad():
        for i in range(3):
            both = torch.cat([x, new[i : i + 1]])
            row = model.conditionals(both, [*range(300), 0])[-1]
            np.testing.assert_allclose(probabilities[i].numpy(), row.exp().numpy(), atol=1e-9)


@pytest.mark.parametrize("name", ["plain, paper", "pairs, mean, candidate"])
@pytest.mark.parametrize("mutual", [False, True])
def test_assign_in_parts(
    name: str, mutual: bool, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(generator, **COMPOSITIONS[name])
    x, new = data(5, generator), data(100, generator)
    labels = [0, 1, 0, 1, 2]
    whole = model.assign(new, x, labels, mutual=mutual)
    monkeypatch.setattr(ncp.sampling.assign, "AT_ONCE", 10)
    in_parts = model.assign(new, x, labels, mutual=mutual)
    torch.testing.assert_close(in_parts, whole, rtol=0, atol=1e-12)
    for i in (0, 63, 64, 99):  # 64 points with four candidates each are a block of the kernels
        alone = model.assign(new[i : i + 1], x, labels, mutual=mutual)[0]
        torch.testing.assert_close(alone, whole[i], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_assign_in_torch_is_the_compiled_one(name: str, generator: torch.Generator) -> None:
    model = random_model(generator, **COMPOSITIONS[name])
    x, new = data(9, generator), data(4, generator)
    labels = torch.tensor([[0, 1, 0, 2, 1, 0, 3, 2, 2], [0] * 9])
    compiled = model.assign_each(new, x, labels, mutual=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ncp.sampling.assign, "CompiledTree", lambda *_: None)
        in_torch = model.assign_each(new, x, labels, mutual=False)
    torch.testing.assert_close(in_torch, compiled, rtol=0, atol=1e-9)


def check_new_points_are_members(model: NCP, generator: torch.Generator) -> None:
    assert model.attention is not None
    x, new = data(9, generator), data(3, generator)
    position = (x, new) if model.n_coordinates else (x[:, :0], new[:, :0])
    with torch.no_grad():
        h, h_new = model.h(x), model.h(new)
        cache = model.attention(h[None], position[0][None])[1]
        got = model.attention.encode_new(cache, h_new, position[1])
        for i in range(3):
            members = torch.cat([h, h_new[i : i + 1]])[None]
            places = torch.cat([position[0], position[1][i : i + 1]])[None]
            expected = model.attention(members, places)[0]
            for ours, theirs in zip(got, expected, strict=True):
                torch.testing.assert_close(ours[i], theirs[0, -1], rtol=0, atol=1e-12)


def test_a_new_point_counts_who_is_around(generator: torch.Generator) -> None:
    model = random_model(generator, attention=(1, 8, 5, 3), sees=("pairs",))
    assert model.attention is not None
    block = model.attention.blocks[0]
    assert isinstance(block, AttentionBlock)
    torch.nn.init.zeros_(block.project.weight)  # so that it sees nothing else
    check_new_points_are_members(model, generator)


@pytest.mark.parametrize("entries", [2**22, 20])
@pytest.mark.parametrize("octaves", [0, 3])
def test_a_new_point_sees_what_it_would_see_as_a_member(
    octaves: int,
    entries: int,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One block of attention: the encoding of a point does not depend on what the others see."""
    monkeypatch.setattr(Kernels, "ENTRIES", entries)
    monkeypatch.setattr(Kernels, "PART", entries)
    model = random_model(generator, attention=(1, 8, 5, octaves), sees=("pairs",))
    assert model.attention is not None
    if model.attention.density is not None:  # it does, then, on how many are around the others
        torch.nn.init.zeros_(model.attention.density.weight)
    check_new_points_are_members(model, generator)


# -- more points than are seen -------------------------------------------------------------------


def encoded(model: NCP, x: Tensor) -> tuple[Tensor, ...]:
    assert model.attention is not None
    with torch.no_grad():
        return tuple(model.attention(model.h(x)[None], model.coordinates(x[None]))[0])


def test_points_that_are_seen_stand_for_their_copies(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(generator, attention=(2, 8, 5, 3), sees=("pairs",))
    assert model.attention is not None
    assert model.attention.density is not None
    torch.nn.init.zeros_(model.attention.density.weight)
    x = data(16, generator).repeat_interleave(3, 0)
    everything = encoded(model, x)
    monkeypatch.setattr(ncp.network.attention, "MOST_SEEN", 16)
    for ours, theirs in zip(encoded(model, x), everything, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_which_points_are_seen_does_not_depend_on_their_order(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ncp.network.attention, "MOST_SEEN", 16)
    model = random_model(generator, attention=(2, 8, 5, 3), sees=("pairs",))
    x, order = data(45, generator), torch.randperm(45, generator=generator)
    for before, after in zip(encoded(model, x), encoded(model, x[order]), strict=True):
        torch.testing.assert_close(after, before[:, order], rtol=0, atol=1e-10)


def test_numbers_of_points_around_are_of_all_points(generator: torch.Generator) -> None:
    x = data(45, generator)
    own = torch.arange(45) < 16
    near = Kernels(x[None], x[None, :16], 2, own=own, stand_for=45).density()[0]
    for i in range(45):
        others = [j for j in range(16) if j != i]
        squares = (x[i] - x[others]).square().sum(1)
        expected = 1 + 44 * torch.stack([(-squares / 8).exp(), (-squares / 2).exp()]).mean(1)
        torch.testing.assert_close(near[i], expected.log1p(), rtol=1e-6, atol=0)


def test_new_points_meet_those_that_are_seen(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(generator, attention=(1, 8, 5, 3), sees=("pairs",))
    assert model.attention is not None
    x, new = data(16, generator), data(4, generator)
    h, new_h = model.h(x), model.h(new)
    few = model.attention(h[None], x[None])[1]
    monkeypatch.setattr(ncp.network.attention, "MOST_SEEN", 16)
    many = model.attention(*(part.repeat_interleave(3, 0)[None] for part in (h, x)))[1]
    assert (many.n, len(many.x), len(many.blocks[0][0])) == (48, 16, 16)
    torch.testing.assert_close(many.x.sort(0).values, x.sort(0).values)
    codes = [model.attention.encode_new(c, new_h, new).codes for c in (few, many)]
    assert (codes[0] - codes[1]).abs().max() > 1e-6  # thrice as many are around
    torch.nn.init.zeros_(model.attention.density.weight)  # type: ignore[union-attr]
    few = model.attention(h[None], x[None])[1]
    many = model.attention(*(part.repeat_interleave(3, 0)[None] for part in (h, x)))[1]
    codes = [model.attention.encode_new(c, new_h, new).codes for c in (few, many)]
    torch.testing.assert_close(codes[0], codes[1], rtol=0, atol=1e-10)


# -- cost ----------------------------------------------------------------------------------------


def test_shared_clusters_are_embedded_once(generator: torch.Generator, seed: int) -> None:
    """g runs once per distinct cluster and point: never more than subsets of the first n points."""
    model = random_model(generator)
    x = data(6, generator)
    counted = {"embed": 0, "logit": 0}

    def counting(name: str) -> Any:
        original = getattr(model, name)

        def count(rows: Tensor, *others: Any) -> Tensor:
            counted[name] += len(rows)
            return torch.as_tensor(original(rows, *others))

        return count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ncp.sampling.sample, "CompiledTree", TorchTree)
        for name in counted:
            patch.setattr(model, name, counting(name))
        model.sample(x, 12_000, seed=seed)  # one piece
    assert counted["embed"] <= 1 + sum(2**n - 1 + 1 for n in range(1, 6))
    partitions_with_slots = [(1, 2), (2, 5), (5, 15), (15, 52), (52, 203)]
    assert 100 < counted["logit"] <= sum(children for _, children in partitions_with_slots)


class No64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses every new float64 tensor, as a device without them does."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for one in result if isinstance(result, list | tuple) else [result]:
            if isinstance(one, Tensor) and one.dtype == torch.float64 and one.numel() > 1:
                raise TypeError(f"{function} made a float64 tensor")
        return result


def test_nothing_needs_float64(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(generator).float()
    x = data(300, generator).float()
    for module in (ncp.network.layout, ncp.sampling.assign, ncp.sampling.torch_tree):
        monkeypatch.setattr(module, "widest", lambda _: torch.float32)
    monkeypatch.setattr(ncp.sampling.sample, "CompiledTree", TorchTree)
    monkeypatch.setattr(ncp.sampling.assign, "CompiledTree", lambda *_: None)
    with No64(), torch.no_grad():  # type: ignore[no-untyped-call]
        labels = ncp.sampling.sample.sample_many(model, [x], 5, seed=0)[0].labels
        ncp.sampling.sample.beam_search(model, x[:20], 3)
        model.log_prob(x, labels)
        model.assign(x[:3], x, labels[0])


PEAK = """
import sys, torch
from ncp.model import NCP
from tests.small_models import spec
torch.set_num_threads(1)
width = int(sys.argv[2])
model = NCP(spec(1, h=(8, 2, 8), g=(width, 2, 8), f=(width, 2)))
x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0))
samples = model.sample(x, int(sys.argv[1]), seed=0)
status = open("/proc/self/status").read()  # ru_maxrss would count the parent as well
print(len(samples), int(status.split("VmHWM:")[1].split()[0]) * 1024)
"""


def peak_memory(n_samples: int, width: int) -> tuple[int, int]:
    """Distinct rows and peak bytes of a run in a process of its own."""
    command = [sys.executable, "-c", PEAK, str(n_samples), str(width)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(output[0]), int(output[1])


def test_memory_grows_within_bounds() -> None:
    """Untrained weights are the worst case: every sample is a row of its own."""
    rows, peak = peak_memory(1500, 16)
    assert rows > 1400
    assert peak < 0.6 * 2**30


@pytest.mark.slow
def test_a_hundred_thousand_samples_stay_under_two_gibibytes() -> None:
    rows, peak = peak_memory(100_000, 128)
    assert rows > 90_000
    assert peak < 2 * 2**30
