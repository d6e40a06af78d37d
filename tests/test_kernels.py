"""The compiled sampler against the torch tree, the likelihood and the literal Algorithm 1; its
threads, its workspace, and what it refuses."""

import copy
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from torch import Tensor

import ncp.sampling.compiled_tree
import ncp.sampling.kernels
import ncp.sampling.sample
from ncp.compiled import njit
from ncp.model import NCP
from ncp.network.network import Folded
from ncp.partitions import enumerate_partitions
from ncp.sampling.compiled_tree import CompiledTree, Run
from ncp.sampling.constraints import free
from ncp.sampling.kernels import (
    _child_key,
    _log_softmax,
    join_point,
    run_sequence,
    sequence_types,
)
from ncp.sampling.keys import child_keys, data_set_keys, numbered_orders, piece_keys
from ncp.sampling.sample import Drawn, beam_search, sample_many
from ncp.sampling.threads import n_threads, single_threads
from ncp.sampling.torch_tree import TorchTree, split_counts
from ncp.sampling.weights import pair_weights
from tests.literal import COMPOSITIONS, SHAPES, algorithm_1, pair_features, random_model

ALL = COMPOSITIONS | SHAPES
SOME = ["plain, paper", "plain, authors", "pairs, mean, candidate", "depths 3 and 6"]
KEY = np.uint64(77)


def data(n: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, 2, generator=generator, dtype=torch.float64)


@torch.no_grad()
def run(
    tree: CompiledTree | TorchTree, x: Tensor, count: int = 50, beam: int = 0, key: Any = KEY
) -> Run:
    """The samples of x in the order in which it is given."""
    points = tree.network.encode_many([tree.network.check_points(x)], tree.folded)
    stop, done = np.zeros(1, np.uint8), np.zeros(1, np.int64)
    order = np.arange(len(x))
    rules = free(len(x)).rules(order)
    found = tree.run(points, order, count, key, beam, rules, stop, done)
    assert done[0] == len(x)
    return found


def both_trees(model: NCP) -> tuple[CompiledTree, TorchTree]:
    with torch.no_grad():
        folded = model.fold()
    return CompiledTree(model, folded), TorchTree(model, folded)


def same(a: Drawn | Run, b: Drawn | Run) -> bool:
    """Bit by bit."""
    return all(np.array_equal(np.asarray(p), np.asarray(q)) for p, q in zip(a, b, strict=True))


# -- one answer, four ways -----------------------------------------------------------------------


@pytest.mark.parametrize("beam", [0, 7])
@pytest.mark.parametrize("name", ALL)
def test_compiled_torch_likelihood_and_literal_agree(
    name: str, beam: int, generator: torch.Generator
) -> None:
    model = random_model(generator, **ALL[name])
    x = data(14, generator)
    ours, oracle = (run(tree, x, 1 if beam else 50, beam) for tree in both_trees(model))
    np.testing.assert_allclose(ours.log_q, oracle.log_q, rtol=0, atol=1e-9)
    if not beam:  # of partitions that g cannot tell apart a beam may keep either
        assert (ours.labels == oracle.labels).all()
        assert (ours.counts == oracle.counts).all()
    with torch.no_grad():
        forced = model.log_prob(x, ours.labels).numpy()
        literal = algorithm_1(model, x, torch.as_tensor(ours.labels[0]))
    np.testing.assert_allclose(ours.log_q, forced, rtol=0, atol=1e-9)
    chain = sum(float(row[k]) for row, k in zip(literal, ours.labels[0].tolist(), strict=True))
    assert abs(ours.log_q[0] - chain) < 1e-9
    assert len(ours.log_q) == 7 if beam else ours.counts.sum() == 50


@pytest.mark.parametrize("name", ["plain, paper", "pairs, mean, candidate"])
def test_single_precision_is_close_to_all_of_them(name: str, generator: torch.Generator) -> None:
    exact = random_model(generator, **ALL[name])
    model, x = copy.deepcopy(exact).float(), data(20, generator)
    ours, oracle = (run(tree, x.float()) for tree in both_trees(model))
    with torch.no_grad():
        single = model.log_prob(x.float(), ours.labels).double().numpy()
        double = exact.log_prob(x, ours.labels).numpy()
        literal = algorithm_1(exact, x, torch.as_tensor(ours.labels[0]))
    np.testing.assert_allclose(ours.log_q, single, rtol=0, atol=1e-4)
    np.testing.assert_allclose(ours.log_q, double, rtol=0, atol=1e-4)
    chain = sum(float(row[k]) for row, k in zip(literal, ours.labels[0].tolist(), strict=True))
    assert abs(ours.log_q[0] - chain) < 1e-4
    assert (ours.labels == oracle.labels).all()
    np.testing.assert_allclose(ours.log_q, oracle.log_q, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_a_beam_that_holds_everything_is_exhaustive_search(
    name: str, generator: torch.Generator
) -> None:
    model = random_model(generator, **ALL[name])
    x = data(6, generator)
    with torch.no_grad():
        log_q = model.log_prob(x, enumerate_partitions(6)).numpy()
    everything = model.map(x, beam=203)
    np.testing.assert_allclose(everything.log_q, np.sort(log_q)[::-1], rtol=0, atol=1e-9)
    assert len(np.unique(everything.labels, axis=0)) == 203
    some = model.map(x, beam=52)  # all prefixes of five points: nothing is lost before the last
    np.testing.assert_allclose(some.log_q, everything.log_q[:52], rtol=0, atol=1e-9)
    with torch.no_grad():
        np.testing.assert_allclose(some.log_q, model.log_prob(x, some.labels), rtol=0, atol=1e-9)


def test_a_beam_wider_than_there_are_partitions(generator: torch.Generator) -> None:
    assert len(beam_search(random_model(generator), data(3, generator), 10**15).counts) == 5


@pytest.mark.parametrize("orders", [1, 3, "each"])
def test_the_torch_tree_gives_the_same_samples(
    orders: int | str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whole: keys, orders, pieces and threads are those of the compiled one."""
    model = random_model(generator, **ALL["pairs, mean, candidate"])
    xs = [data(n, generator) for n in (1, 9, 12)]
    compiled = sample_many(model, xs, 40, orders=orders, seed=3)
    monkeypatch.setattr(ncp.sampling.sample, "CompiledTree", TorchTree)
    for small in (ncp.sampling.sample.SMALL, -1):  # in this thread, and on others
        monkeypatch.setattr(ncp.sampling.sample, "SMALL", small)
        for ours, theirs in zip(
            compiled, sample_many(model, xs, 40, orders=orders, seed=3), strict=True
        ):
            assert (ours.labels == theirs.labels).all()
            assert (ours.counts == theirs.counts).all()
            np.testing.assert_allclose(ours.log_q, theirs.log_q, rtol=0, atol=1e-9)


# -- parts of the kernels ------------------------------------------------------------------------


def one_pair(
    model: NCP, sums: Tensor, point: Tensor, rest: Tensor, v: tuple[Tensor, Tensor]
) -> np.ndarray:
    """V times the pair features, by the kernels, of one cluster and one point."""
    tree = both_trees(model)[0]
    space = tree._workspace(ncp.sampling.compiled_tree._Room(1, 1, 1, 1), np.dtype(np.float64))
    arena = np.zeros((2, 1, model.n_sums))
    arena[1, 0] = sums
    base = np.zeros(model.spec.f.width)
    w_code, w_cluster = pair_weights(*v, tree.weights.codes)
    w = tree.weights._replace(w_code=w_code)
    space.folded[w.codes :] = w_cluster
    _join(w, arena, 1, space.g_hat, point.numpy(), base, rest.numpy(), 1, space)
    return np.asarray(space.pair[0].copy())


@njit  # what is compiled to be called by kernels only is called by one
def _join(w, sums, side, g_hat, point, base, rest, n, s) -> None:  # type: ignore[no-untyped-def]
    join_point(w, sums, side, g_hat, point, base, rest, n, s)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("name", [name for name in ALL if "pairs" in name])
def test_pair_features_are_those_of_torch_and_of_the_definition(
    name: str, size: int, generator: torch.Generator
) -> None:
    model = random_model(generator, **ALL[name])
    features, width = model.pair_features, model.spec.g.width
    assert features is not None
    n = size + 4
    x, z = data(n, generator), torch.randn(n, features.codes, generator=generator).double()
    own = features.summands(z, x[:, : features.coordinates])
    table = torch.cat([torch.randn(n, width, generator=generator).double(), own], 1)
    sums, rest = table[:size].sum(0), z[size + 1 :].mean(0)
    v = torch.randn(model.spec.f.width, features.n_pair, generator=generator).double()
    parts = features.parts(v)
    means, alone = features.of_cluster(sums[None, width:])
    pair = torch.cat(features.of_pair(means, own[size : size + 1], rest[None]), 1)
    in_torch = parts[0] @ alone[0] + parts[1] @ pair[0]
    compiled = one_pair(model, sums, table[size], rest, parts)
    np.testing.assert_allclose(compiled, in_torch, rtol=1e-11, atol=1e-11)
    literal = pair_features(model, x, list(z), list(range(size)), size)
    np.testing.assert_allclose(compiled, v @ literal, rtol=1e-9, atol=1e-9)
    means, alone = features.of_cluster(torch.zeros_like(sums)[None, width:])
    assert not alone.any()
    assert not torch.cat(features.of_pair(means, own[:1], rest[None]), 1).any()


@njit
def _normalised(scores) -> None:  # type: ignore[no-untyped-def]
    _log_softmax(scores, 0, len(scores))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("size", [1.0, 1e12])
def test_probabilities_add_up_to_one_whatever_the_size_of_scores(size: float) -> None:
    scores = size + np.array([0.0, 1.0, -2.0])
    expected = scores - scores.max()
    expected -= np.log(np.exp(expected).sum())
    _normalised(scores)
    np.testing.assert_allclose(scores, expected, rtol=1e-14)


@njit
def _keys(key, numbers, out) -> None:  # type: ignore[no-untyped-def]
    for i in range(len(numbers)):
        out[i] = _child_key(key, numbers[i])  # type: ignore[no-untyped-call]


def test_keys_are_those_of_numpy() -> None:
    numbers = np.array([0, 1, 2, 10**9, 2**64 - 1], np.uint64)
    out = np.empty_like(numbers)
    for key in (np.uint64(0), np.uint64(2**64 - 1), KEY):
        _keys(key, numbers, out)
        assert (out == child_keys(np.asarray(key), numbers)).all()


def test_keys_form_a_tree() -> None:
    sets = data_set_keys(5, range(100))
    below = np.concatenate(
        [piece_keys(sets[i : i + 1], k, np.arange(50)) for i in range(100) for k in (0, 1)]
    )
    assert len(np.unique(below)) == below.size
    assert (data_set_keys(5, [7, 3]) == sets[[7, 3]]).all()
    assert (data_set_keys(5 + 2**64, [7]) == sets[7]).all()
    assert (data_set_keys(-1, [0]) == data_set_keys(2**64 - 1, [0])).all()
    assert data_set_keys(None, [0]) != data_set_keys(None, [0])
    orders = numbered_orders(sets[:1], np.arange(2000), 3)
    names, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(names) == 6
    assert abs(counts - 2000 / 6).max() < 4.5 * math.sqrt(2000 / 6)


def test_the_last_choice_is_the_last_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random number that is rounded up to 1 chooses no cluster that is not there."""
    most = np.full(4, 2**64 - 1, np.uint64)
    monkeypatch.setattr("ncp.sampling.torch_tree.child_keys", lambda *_: most)
    scores = torch.tensor([[0.3, 0.7, 0.0], [0.2, 0.3, 0.5]]).log()
    parent, choice, counts, _ = split_counts(
        scores, torch.tensor([1, 3]), torch.zeros(2), np.asarray(KEY)
    )
    assert parent.tolist() == [0, 1]
    assert choice.tolist() == [1, 2]
    assert counts.tolist() == [1, 3]


def test_weights_are_made_again_when_the_network_changes(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = random_model(generator), data(6, generator)
    folds: list[int] = []
    fold = type(model).fold

    def counted(self: NCP) -> Folded:
        folds.append(1)
        return fold(self)

    monkeypatch.setattr(type(model), "fold", counted)

    def log_q() -> float:
        drawn = sample_many(model, [x], 50, seed=0)[0]
        with torch.no_grad():
            again = model.log_prob(x, drawn.labels).double().numpy()
        folds.pop()  # the likelihood's own
        np.testing.assert_allclose(drawn.log_q, again, atol=1e-4)
        return float(drawn.log_q[0])

    first = log_q()
    assert (log_q(), len(folds)) == (first, 1)
    with torch.no_grad():
        next(model.f.parameters()).mul_(2)
    assert (log_q() != first, len(folds)) == (True, 2)
    model.load_state_dict({name: 0.5 * value for name, value in model.state_dict().items()})
    log_q()
    x, model = x.float(), model.float()
    log_q()
    assert len(folds) == 4


# -- nothing but its own numbers -----------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SOME)
def test_threads_and_company_do_not_matter_to_a_bit(
    name: str, kind: torch.dtype, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(generator, **ALL[name]).to(kind)
    xs = [3 * data(n, generator) for n in (40, 1, 17, 16, 33, 2, 16, 50)]
    monkeypatch.setattr(ncp.sampling.sample, "SMALL", -1)
    found = []
    for wanted in ("1", "2"):
        monkeypatch.setenv("NCP_NUM_THREADS", wanted)
        found.append(sample_many(model, xs, 60, orders=2, seed=4))
    assert all(same(a, b) for a, b in zip(*found, strict=True))
    monkeypatch.undo()  # in this thread
    for i in (0, 1, 3, 7):
        (alone,) = sample_many(model, [xs[i]], 60, orders=2, seed=4, streams=[i])
        assert same(alone, found[0][i])
    backwards = sample_many(model, xs[::-1], 60, orders=2, seed=4, streams=range(7, -1, -1))
    assert all(same(a, b) for a, b in zip(backwards[::-1], found[0], strict=True))
    monkeypatch.setattr(ncp.sampling.sample, "BATCH_POINTS", 60)
    apart = sample_many(model, xs, 60, orders=2, seed=4)
    assert all(same(a, b) for a, b in zip(apart, found[0], strict=True))


def test_the_number_of_threads_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv("NCP_NUM_THREADS", wrong)
        with pytest.raises(ValueError, match="NCP_NUM_THREADS"):
            n_threads()
    monkeypatch.setenv("NCP_NUM_THREADS", "3")
    assert n_threads() == 3
    monkeypatch.delenv("NCP_NUM_THREADS")
    assert n_threads() >= 1


@pytest.mark.parametrize("name", ["plain, paper", "pairs, mean, candidate"])
def test_what_is_compiled_beforehand_is_what_is_called(
    name: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, called = both_trees(random_model(generator, **ALL[name]).float())[0], []

    def spy(*arguments: Any) -> Any:
        called.append(tuple(map(numba.typeof, arguments)))
        return run_sequence(*arguments)

    monkeypatch.setattr(ncp.sampling.kernels, "run_sequence", spy)
    run(tree, data(5, generator).float())
    assert called == [sequence_types()]


def test_a_workspace_forgets(generator: torch.Generator) -> None:
    """Used again after more, fewer and longer samples, it gives the same."""
    model = random_model(generator, **ALL["pairs, mean, candidate"])
    tree, x = both_trees(model)[0], data(20, generator)
    first = run(tree, x)
    run(tree, data(60, generator), 500)
    run(tree, data(3, generator), 1)
    run(tree, data(12, generator), 1, beam=40)
    assert same(run(tree, x), first)


@pytest.mark.parametrize("beam", [0, 20])
@pytest.mark.parametrize("name", SOME)
def test_a_workspace_grows_when_it_must(
    name: str, beam: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(generator, **ALL[name])
    x, count = data(25, generator), 1 if beam else 200
    roomy = run(both_trees(model)[0], x, count, beam)
    monkeypatch.setattr(ncp.sampling.compiled_tree, "SLOTS", 1)
    monkeypatch.setattr(ncp.sampling.compiled_tree, "CLUSTERS", 1)
    tree = both_trees(model)[0]
    assert same(run(tree, x, count, beam), roomy)
    assert roomy.labels.max() > 0
    assert tree.kept.space[0].clusters > 1


@pytest.mark.parametrize("limit", [1, 7, 64])
def test_pieces_are_merged(
    limit: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(generator)
    x = data(4, generator)
    monkeypatch.setattr(ncp.sampling.sample, "PIECE_SAMPLES", limit)
    (found,) = sample_many(model, [x], 200, seed=1)
    assert found.counts.sum() == 200
    assert len(np.unique(found.labels, axis=0)) == len(found.labels) <= 15
    with torch.no_grad():
        np.testing.assert_allclose(found.log_q, model.log_prob(x, found.labels), atol=1e-9)
    (again,) = sample_many(model, [x], 200, seed=1)
    assert same(found, again)
    # each piece has random numbers of its own
    (whole,) = sample_many(model, [x], limit, seed=1)
    assert limit == 1 or len(found.counts) >= len(whole.counts)
    several = model.sample(x, 200, orders=2, seed=1)
    keys = np.column_stack([several.labels, np.round(several.log_q, 8)])
    assert several.n_samples == 200
    assert len(np.unique(keys, axis=0)) == len(several)


def test_streams_and_seeds(generator: torch.Generator) -> None:
    model = random_model(generator)
    x = data(30, generator)

    def drawn(seed: int, stream: int) -> Drawn:
        return sample_many(model, [x], 40, seed=seed, streams=[stream])[0]

    assert same(drawn(1, 0), drawn(1, 0))
    assert same(sample_many(model, [x, x], 40, seed=1)[1], drawn(1, 1))
    different = [drawn(1, 0), drawn(1, 1), drawn(2, 0), drawn(1, 10**12)]
    assert len({found.labels.tobytes() for found in different}) == 4
    with pytest.raises(ValueError, match="Expected 1 streams"):
        sample_many(model, [x], 5, streams=[1, 2])


# -- overflow ------------------------------------------------------------------------------------


def overflowing(generator: torch.Generator) -> NCP:
    """A network whose values leave float32 for points far out."""
    model = random_model(generator, sees=("candidate",)).float()
    with torch.no_grad():
        for parameter in model.h.parameters():
            parameter.mul_(100)
    return model


@pytest.mark.parametrize("in_torch", [False, True])
def test_overflow_is_an_error_and_not_a_label(
    in_torch: bool, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = overflowing(generator)
    x = data(8, generator)
    x[5] *= 1e37
    if in_torch:
        monkeypatch.setattr(ncp.sampling.sample, "CompiledTree", TorchTree)
        monkeypatch.setattr(ncp.sampling.assign, "CompiledTree", lambda *_: None)
    monkeypatch.setenv("NCP_NUM_THREADS", "2")
    before = threading.active_count()
    for small in (10**9, -1):  # in this thread, and on others
        monkeypatch.setattr(ncp.sampling.sample, "SMALL", small)
        for call in (
            lambda: model.sample(x, 20, seed=0),
            lambda: model.sample_many([x[:4], x, x[:4]], 20, orders=3, seed=0),
            lambda: model.map(x, beam=3),
            lambda: model.assign(x[5:6], x[:4], [0, 1, 0, 1]),
            lambda: model.assign(x[:2], x, [0, 1, 0, 1, 0, 1, 0, 1]),
        ):
            with pytest.raises(ValueError, match="Expected data within reach of the network"):
                call()
    assert threading.active_count() <= before


# -- long jobs -----------------------------------------------------------------------------------


def test_ctrl_c_stops_within_a_second(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(generator, g=(64, 3, 8), f=(64, 3)).float()
    xs = [data(400, generator).float()] * 40
    monkeypatch.setenv("NCP_NUM_THREADS", "2")
    model.sample(xs[0][:5], 5)  # compiled
    main = threading.main_thread().ident
    before = threading.active_count()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever ran here before
    pressed: list[float] = []
    assert main is not None

    def press(done: int, total: int) -> None:
        if done > 10 and not pressed:
            pressed.append(time.monotonic())
            signal.pthread_kill(main, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        model.sample_many(xs, 500, seed=0, progress=press)
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    assert time.monotonic() - pressed[0] < max(1.0, busy)
    assert threading.active_count() <= before  # the threads have ended
    assert torch.get_num_threads() == THREADS


THREADS = torch.get_num_threads()


def test_an_error_of_one_job_ends_the_others(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = overflowing(generator)
    xs = [data(200, generator).float() for _ in range(20)]
    xs[0][1] *= 1e37
    monkeypatch.setenv("NCP_NUM_THREADS", "2")
    monkeypatch.setattr(ncp.sampling.sample, "SMALL", -1)
    before = threading.active_count()
    with pytest.raises(ValueError, match="within reach"):
        model.sample_many(xs, 100, seed=0)
    assert threading.active_count() <= before


@pytest.mark.parametrize("small", [10**9, -1])
@pytest.mark.parametrize("batch", [65_536, 1])
def test_progress_counts_to_the_end(
    small: int, batch: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(generator)
    monkeypatch.setattr(ncp.sampling.sample, "SMALL", small)
    monkeypatch.setattr(ncp.sampling.sample, "BATCH_POINTS", batch)
    seen: list[tuple[int, int]] = []
    model.sample_many(
        [data(6, generator), data(3, generator)],
        10,
        orders=2,
        seed=0,
        progress=lambda done, total: seen.append((done, total)),
    )
    done = [d for d, _ in seen]
    assert done == sorted(done)
    assert seen[-1] == (18, 18)
    assert small < 0 or done == [18]


def test_progress_of_a_long_job_is_told_on_the_way(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(generator, g=(64, 3, 8), f=(64, 3)).float()
    monkeypatch.setattr("ncp.sampling.threads.TICK", 0.005)
    seen: list[int] = []
    monkeypatch.setattr(ncp.sampling.sample, "SMALL", -1)
    x = data(150, generator).float()
    model.sample_many([x] * 6, 100, seed=0, progress=lambda done, _: seen.append(done))
    assert len(set(seen)) > 5
    assert seen == sorted(seen)
    assert seen[-1] == 900


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Of torch, whatever the environment says."""
    own = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(own)


@pytest.mark.usefixtures("two_threads")
def test_others_find_their_threads_as_they_left_them(generator: torch.Generator) -> None:
    """However calls of several threads overlap; torch counts its threads for each of them."""
    from threadpoolctl import threadpool_info

    model, x = random_model(generator), data(20, generator)
    expected = model.sample(x, 50, seed=0)

    def state() -> list[int]:
        blas = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
        return [torch.get_num_threads(), *blas]

    before = state()
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with single_threads():
            inside.set()
            leave.wait(60)

    other = threading.Thread(target=first)
    other.start()
    inside.wait(60)
    with single_threads():
        leave.set()
        other.join()
        assert set(state()) == {1}  # the first to leave takes nothing from the last
    assert state() == before
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(model.sample(x, 50, seed=0))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((one.labels == expected.labels).all() for one in found)
    assert len(found) == 8
    assert state() == before


# -- processes -----------------------------------------------------------------------------------


def _in_child(model: NCP, x: Tensor, queue: Any) -> None:
    queue.put(model.sample(x, 30, seed=0).labels)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_sampler_works_after_a_fork(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = random_model(generator, **ALL["pairs, mean, candidate"]), data(30, generator)
    monkeypatch.setattr(ncp.sampling.sample, "SMALL", -1)
    expected = model.sample(x, 30, seed=0).labels
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(model, x, queue))
    child.start()
    assert (queue.get(timeout=300) == expected).all()
    child.join(60)
    assert child.exitcode == 0


CHECKED = """
import numpy as np, torch
from tests.literal import COMPOSITIONS, SHAPES, random_model
from ncp.sampling import compiled_tree, kernels
import numba
assert numba.config.BOUNDSCHECK == 1
compiled_tree.SLOTS, compiled_tree.CLUSTERS = 2, 3  # so that the arrays have to grow

@kernels.njit
def beyond(a):
    return a[len(a)]

try:
    beyond(np.zeros(3))
except IndexError:
    pass
else:
    raise SystemExit("bounds are not checked")
generator = torch.Generator().manual_seed(0)
for name in ("plain, authors", "pairs, mean, candidate", "depths 5 and 5, pairs"):
    model = random_model(generator, **(COMPOSITIONS | SHAPES)[name])
    x = torch.randn(12, 2, generator=generator).double()
    samples = model.sample(x, 300, orders=2, seed=0)
    assert samples.n_samples == 300
    for beam in (1, 5, 300):
        best = model.map(x, beam=beam)
        assert len(best) == beam
    chances = model.assign(x[:5], x, best.labels[0])
    assert bool((chances.sum(1) - 1).abs().max() < 1e-9)
    model.assign(x[:5], x, list(range(12)))
print("within bounds")
"""


def test_kernels_stay_within_their_arrays(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", CHECKED], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "within bounds"
