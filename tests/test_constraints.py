"""Constraints: closed and contradicted, and sampled exactly, against all partitions that obey."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.mixture import Mixture
from ncp.generative.priors import CRP
from ncp.inference.importance import Estimate, effective_sample_size, log_evidence
from ncp.model import NCP, load
from ncp.partitions import enumerate_partitions
from ncp.posterior import Partitions, pool
from ncp.sampling.compiled_tree import CompiledTree
from ncp.sampling.constraints import Constraints, constrain
from ncp.sampling.keys import data_set_keys, numbered_orders
from ncp.sampling.sample import Impossible
from ncp.sampling.torch_tree import TorchTree
from tests.small_models import gaussian, spec

N = 7
REPEATS, SAMPLES = 50, 400
SURPRISE = 4.5  # standard errors

CASES: dict[str, dict[str, Any]] = {
    "known": {"known": [-1, 4, -1, 2, 4, -1, 2]},
    "one known label": {"known": [-1, 0, 0, -1, -1, 0, -1]},
    "together": {"together": [(0, 5), (5, 3), (1, 6)]},
    "apart": {"apart": [(0, 5), (5, 3), (1, 6)]},
    "both": {"together": [(0, 5), (2, 6)], "apart": [(5, 6), (1, 3), (3, 4)]},
    "three clusters": {"n_clusters": 3},
    "one cluster": {"n_clusters": 1},
    "six clusters": {"n_clusters": 6},
    "at most two": {"at_most": 2},
    "at least four": {"at_least": 4},
    "two to three": {"at_least": 2, "at_most": 3},
    "everything": {
        "known": [-1, 4, -1, 2, 4, -1, -1],
        "together": [(3, 6)],
        "apart": [(0, 1), (0, 2)],
        "n_clusters": 3,
    },
    "dead ends": {"apart": [(0, 1), (1, 2), (3, 4), (4, 5), (2, 6)], "n_clusters": 2},
}
each_case = pytest.mark.parametrize("case", CASES)


def random_model(seed: int = 0) -> NCP:
    """Random weights, scaled so that log q of all partitions has a spread of 3."""
    x, partitions = data(), enumerate_partitions(N)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        parts = {"attention": (1, 8, 5, 3), "sees": ("candidate", "pairs"), "pooling": "mean"}
        model = NCP(spec(2, **parts), Mixture(CRP(1.0), GaussianKnownVariance())).eval()  # type: ignore[arg-type]
        for parameter in model.parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 10
            parameter.normal_(std=fan_in**-0.5)
        last = next(p for p in model.f.parameters() if p.shape[0] == 1 and p.dim() == 2)
        last.mul_(3 / model.log_prob(x, partitions).std())
    return model


def data() -> Tensor:
    return 2 * torch.linspace(-2, 2, 2 * N).sin().view(N, 2)[torch.tensor([3, 1, 6, 0, 5, 2, 4])]


class Truth(NamedTuple):
    """All partitions that obey, and their q in the order that a constrained sampler takes."""

    labels: np.ndarray
    q: np.ndarray  # not normalised: the sum is P(constraints)


@torch.no_grad()
def truth(model: NCP, x: Tensor, given: Constraints, order: np.ndarray | None = None) -> Truth:
    labels = enumerate_partitions(len(x)).numpy()
    labels = labels[given.allow(labels)]
    order = given.first(np.arange(len(x)) if order is None else order)
    return Truth(labels, model.log_prob(x, labels, order=order).double().exp().numpy())


def measure(drawn: Any, labels: np.ndarray) -> np.ndarray:
    """The weight that samples give to each partition, unbiased for q: mean of w 1[c]."""
    where = {tuple(row): i for i, row in enumerate(labels.tolist())}
    total = np.zeros(len(labels))
    weights = drawn.counts * np.exp(drawn.log_weights) / drawn.n_samples
    for row, weight in zip(drawn.labels.tolist(), weights, strict=True):
        total[where[tuple(row)]] += weight  # a row that does not obey is a KeyError
    return total


# -- exact --------------------------------------------------------------------------------------


@each_case
@pytest.mark.parametrize("weights", ["sure", "unsure", "trained"])
def test_samples_are_those_of_q_given_the_constraints(case: str, weights: str) -> None:
    """Total variation within Monte Carlo error, and the mean weight is P(constraints)."""
    is_random = weights != "trained"
    model = random_model(int(weights == "unsure")) if is_random else load("gaussian-2d")
    x, given = data(), constrain(N, **CASES[case])
    exact = truth(model, x, given)
    many = [
        model.sample(x, SAMPLES, seed=seed, given=given, at_any_price=True)
        for seed in range(REPEATS)
    ]
    found = np.array([measure(one, exact.labels) for one in many])
    error = found.std(0, ddof=1) / REPEATS**0.5
    seen = exact.q * REPEATS * SAMPLES > 20  # of the others the errors are not known
    assert (np.abs(found.mean(0) - exact.q)[seen] <= SURPRISE * error[seen] + 1e-6).all()
    total = found.sum(1)
    rounding = 1e-4 * exact.q.sum()
    spread = SURPRISE * total.std(ddof=1) / REPEATS**0.5
    assert abs(total.mean() - exact.q.sum()) <= spread + rounding

    p, estimate = exact.q / exact.q.sum(), found.mean(0) / found.mean()
    estimate /= estimate.sum()
    se = np.sqrt(error**2 + (exact.q / (REPEATS * SAMPLES))) / exact.q.sum()
    distance = 0.5 * np.abs(p - estimate).sum()
    assert distance <= 0.5 * (0.8 * se.sum() + SURPRISE * np.sqrt((se**2).sum())) + 1e-4


@pytest.mark.parametrize("case", ["together", "three clusters", "at most two", "at least four"])
def test_the_distance_would_be_seen(case: str) -> None:
    """Without their weights the same samples are not those of q given the constraints."""
    model, x, given = random_model(1), data(), constrain(N, **CASES[case])
    exact = truth(model, x, given)
    drawn = model.sample(x, 20_000, seed=0, given=given)
    p = exact.q / exact.q.sum()
    plain = replace(drawn, log_weights=np.zeros(len(drawn)))
    measured = [measure(one, exact.labels) for one in (drawn, plain)]
    weighted, unweighted = (0.5 * np.abs(p - m / m.sum()).sum() for m in measured)
    assert weighted < 0.09 < 0.13 < unweighted


@each_case
def test_q_is_the_weight_times_what_drew(case: str) -> None:
    """log q = log_q + log_weights, however often samples were drawn anew on the way."""
    model, x, given = random_model(1), data(), constrain(N, **CASES[case])
    drawn = model.sample(x, 200, seed=3, given=given)
    log_q = model.log_prob(x, drawn.labels, order=given.first(np.arange(N)))
    np.testing.assert_allclose(drawn.log_q + drawn.log_weights, log_q.detach().numpy(), atol=2e-4)


def test_known_labels_alone_leave_equal_weights() -> None:
    given = constrain(N, **CASES["known"])
    drawn = random_model(1).sample(data(), 500, seed=0, given=given)
    assert drawn.log_weights is not None
    assert np.ptp(drawn.log_weights) < 1e-9


def test_orders_count_equally() -> None:
    """Over several orders the samples are those of the mean of q_m given the constraints."""
    model, x = random_model(0), data()
    given = constrain(N, apart=[(0, 5), (1, 2)], at_most=6)
    rows = enumerate_partitions(N).numpy()
    labels = rows[given.allow(rows)]
    drawn = model.sample(x, 40_000, orders=4, seed=1, given=given)
    key = data_set_keys(1, [0])
    orders = [given.first(order) for order in numbered_orders(key, np.arange(4), N)]
    each = [truth(model, x, given, order).q for order in orders]
    expected = np.mean([q / q.sum() for q in each], axis=0)
    found = measure(drawn, labels)
    se = np.sqrt(expected / 10_000)  # an effective quarter is more than the weights cost
    assert 0.5 * np.abs(found / found.sum() - expected).sum() < 0.5 * se.sum()
    assert found.sum() == pytest.approx(np.mean([q.sum() for q in each]), rel=0.05)
    differ = 0.5 * np.abs(each[0] / each[0].sum() - expected).sum()
    assert differ > 1.0 * se.sum()  # one order would not do


def evidence(drawn: Partitions) -> Estimate:
    assert drawn.log_weights is not None
    return log_evidence(drawn.log_weights, drawn.counts)


def test_few_samples_of_an_order_are_weighted_against_all_others() -> None:
    """With an order for each sample the weights decide alone, and stay unbiased."""
    model, x, given = random_model(1), data(), constrain(N, apart=[(1, 2)], at_most=2)
    drawn = model.sample(x, 4000, orders="each", seed=1, given=given)
    value, error = evidence(drawn)
    single = model.sample(x, 4000, orders=200, seed=2, given=given)
    assert abs(value - evidence(single).value) < 8 * error


@each_case
def test_reweighting_stays_exact(case: str) -> None:
    """The mean of p(c, x) / r(c) is p(C, x), as if r were any other sampler that obeys."""
    model, x, given = random_model(1), data().double(), constrain(N, **CASES[case])
    labels = enumerate_partitions(N).numpy()
    labels = labels[given.allow(labels)]
    assert model.mixture is not None
    exact = float(torch.as_tensor(model.mixture.log_joint(x, labels)).logsumexp(0))
    many = [
        model.sample(x, SAMPLES, seed=seed, given=given).reweight(model.mixture)
        for seed in range(REPEATS)
    ]
    found = [float(evidence(one).value) for one in many]
    ratio = np.exp(np.array(found) - exact)
    assert abs(ratio.mean() - 1) < SURPRISE * ratio.std(ddof=1) / REPEATS**0.5 + 1e-3


@each_case
def test_compiled_and_torch_draw_the_same(case: str) -> None:
    model, x, given = random_model(1), data(), constrain(N, **CASES[case])
    order = given.first(np.arange(N))
    folded = model.fold()
    points = model.encode_many([x], folded)
    for beam in (0, 5):
        how = (points, order, 200, np.uint64(17), beam, given.rules(order))
        flags = np.zeros(1, np.uint8), np.zeros(1, np.int64)
        with torch.no_grad():
            a, b = (kind(model, folded).run(*how, *flags) for kind in (CompiledTree, TorchTree))
        assert (a.labels == b.labels).all()
        assert (a.counts == b.counts).all()
        np.testing.assert_allclose(a.log_q, b.log_q, atol=2e-4)
        np.testing.assert_allclose(a.log_w, b.log_w, atol=2e-4)
        if beam == 0:
            np.testing.assert_allclose(a.log_z, b.log_z, atol=2e-4)


@each_case
def test_a_wide_beam_finds_the_best_that_obey(case: str) -> None:
    model, x, given = random_model(1), data(), constrain(N, **CASES[case])
    exact = truth(model, x, given)
    found = model.map(x, beam=1000, given=given)
    assert len(found) == len(exact.labels)
    best = exact.labels[np.argsort(-exact.q)]
    assert (found.labels[0] == best[0]).all()
    np.testing.assert_allclose(np.exp(found.log_q), np.sort(exact.q)[::-1], rtol=1e-3)
    assert given.allow(model.map(x, beam=2, given=given).labels).all()


def test_nothing_known_changes_nothing() -> None:
    model, x = random_model(1), data()
    plain = model.sample(x, 300, orders=3, seed=5)
    given = model.sample(x, 300, orders=3, seed=5, given=constrain(N, at_most=99))
    assert given.log_weights is None
    assert (plain.labels == given.labels).all()
    assert (plain.counts == given.counts).all()


def test_company_and_pieces_change_nothing_but_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, given = random_model(1), data(), constrain(N, **CASES["both"])
    alone = model.sample(x, 3000, orders=2, seed=5, given=given)
    among = model.sample_many([x, x[:4], x], 3000, orders=2, seed=5, given=[given, None, given])
    assert (alone.labels == among[0].labels).all()
    assert alone.log_weights is not None
    assert (alone.log_weights == among[0].log_weights).all()
    assert among[1].log_weights is None
    monkeypatch.setattr("ncp.sampling.sample.PIECE_SAMPLES", 500)
    pieces = model.sample(x, 3000, orders=2, seed=5, given=given)
    assert pieces.n_samples == 3000
    labels = enumerate_partitions(N).numpy()
    labels = labels[given.allow(labels)]
    whole, cut = (measure(one, labels) for one in (alone, pieces))
    assert 0.5 * np.abs(whole - cut).sum() / whole.sum() < 0.08
    assert cut.sum() == pytest.approx(whole.sum(), rel=0.05)


# -- closing, contradictions, refusals ----------------------------------------------------------


def test_links_are_closed() -> None:
    given = constrain(8, known=[5, -1, 9, -1, -1, 5, -1, -1], together=[(1, 0), (3, 4, 6)])
    assert given.groups.tolist() == [0, 0, 1, 2, 2, 0, 2, -1]
    assert given.apart.tolist() == [[False, True, False], [True, False, False], [False] * 3]
    assert given.n_units == 4
    assert constrain(3).active is False


def test_constrained_points_come_first() -> None:
    given = constrain(6, together=[(4, 5)], apart=[(0, 2), (0, 3)])
    order = given.first(np.array([1, 5, 3, 4, 2, 0])).tolist()
    assert order == [0, 3, 2, 5, 4, 1]  # most conflicts first, else as they were
    assert given.rules(np.array(order)).left.tolist() == [5, 4, 3, 2, 1, 1]


@pytest.mark.parametrize("orders", [1, 8])
def test_a_chain_of_links_apart_has_no_dead_end(orders: int) -> None:
    """Two clusters in turns: rows that are not next to each other must not choose first."""
    n = 40
    rows = np.random.default_rng(0).permutation(n).tolist()
    given = constrain(n, apart=list(pairwise(rows)), n_clusters=2)
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(0))
    drawn = random_model(1).sample(x, 64, orders=orders, given=given, at_any_price=True)
    assert drawn.n_samples == 64
    assert given.allow(drawn.labels).all()


def test_obeying_is_seen() -> None:
    rows = enumerate_partitions(4).numpy()
    given = constrain(4, known=[3, -1, 3, -1], apart=[(0, 3)], at_least=3)
    assert rows[given.allow(rows)].tolist() == [[0, 1, 0, 2]]


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"together": [(3, 5), (5, 7)], "apart": [(7, 3)]}, "rows 7 and 3 must be together and"),
        ({"known": [1, -1, 2, -1, -1, -1, -1, -1], "together": [(0, 4), (4, 2)]}, "rows 0 and 2 m"),
        ({"known": [1, -1, 1, -1, -1, -1, -1, -1], "apart": [(0, 2)]}, "rows 0 and 2 must be"),
        ({"apart": [(1, 1)]}, "rows 1 and 1 must be together and apart"),
        ({"n_clusters": 9}, "n_clusters <= 8, the number of rows, but got 9"),
        ({"at_least": 9}, "at_least <= 8"),
        ({"at_least": 3, "at_most": 2}, "at_least <= at_most but got 3 and 2"),
        ({"n_clusters": 0}, "n_clusters to be an integer >= 1 but got 0"),
        ({"at_most": True}, "at_most to be an integer >= 1 but got True"),
        ({"at_most": 2.0}, "at_most to be an integer >= 1 but got 2.0"),
        ({"known": [0, 1, 2, -1, -1, -1, -1, -1], "at_most": 2}, "known labels, 3, but got 2"),
        ({"together": [(0, 1, 2)], "at_least": 7}, "at most 6 clusters, as rows that are tog"),
        ({"known": [0, 1]}, "known integer labels of 8 rows"),
        ({"known": [0.5] * 8}, "known integer labels of 8 rows"),
        ({"known": [-2] * 8}, "known labels >= -1 but got -2"),
        ({"together": [(0,)]}, "links of two or more rows but got"),
        ({"together": [(0, "a")]}, "links of two or more rows but got"),
        ({"apart": [(0, 8)]}, "rows 0 to 7 but got 8"),
        ({"apart": [(-1, 3)]}, "rows 0 to 7 but got -1"),
    ],
)
def test_what_cannot_be_is_named(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        constrain(8, **said)


def test_names_of_rows_are_used() -> None:
    with pytest.raises(ValueError, match="rows ann and bob must be together and apart"):
        constrain(2, together=[(0, 1)], apart=[(0, 1)], name=["ann", "bob"].__getitem__)


def test_links_that_no_few_clusters_obey() -> None:
    given = constrain(N, apart=[(0, 1, 2)], n_clusters=2)
    for call in (random_model(1).sample, random_model(1).map):
        with pytest.raises(ValueError, match="some partition obeys but at row"):
            call(data(), given=given)


def test_the_improbable_is_refused_unless_asked_for_at_any_price() -> None:
    model = random_model(0)
    x = torch.cat([data(), data()]) * torch.linspace(1, 3, 14)[:, None]
    given = constrain(14, n_clusters=1)
    with pytest.raises(Impossible, match="about the number of clusters has a probability of 1e-"):
        model.sample(x, 100, given=given)
    drawn = model.sample(x, 100, given=given, at_any_price=True)
    assert (drawn.labels == 0).all()
    assert drawn.log_weights is not None
    assert drawn.log_weights.max() < np.log(1e-12)


def test_one_improbable_link_is_named() -> None:
    model = random_model(1)
    with torch.no_grad():
        next(p for p in model.f.parameters() if p.shape[0] == 1 and p.dim() == 2).mul_(200)
    least = min(range(1, N), key=lambda i: together(model, i))
    with pytest.raises(Impossible, match="what was said about row") as caught:
        model.sample(data(), 10, given=constrain(N, together=[(0, least)]))
    assert caught.value.point in (0, least)
    assert caught.value.log_probability < np.log(1e-12)
    given = constrain(N, together=[(0, least)], name=lambda _: "x")
    with pytest.raises(Impossible, match="what was said about row x"):
        model.sample(data(), 64, orders=8, given=given)  # whichever of the two comes first


def together(model: NCP, i: int) -> float:
    """log P(points 0 and i share a cluster)."""
    return float(np.log(truth(model, data(), constrain(N, together=[(0, i)])).q.sum()))


def test_constraints_must_fit_the_data() -> None:
    model = random_model()
    with pytest.raises(ValueError, match="constraints of 7 points but got 6"):
        model.sample(data(), 10, given=constrain(6, at_most=2))
    with pytest.raises(ValueError, match="constraints for 2 data sets but got 1"):
        model.sample_many([data(), data()], 10, given=[constrain(N)])
    with pytest.raises(ValueError, match="or an engine, but got both"):
        model.sample_many([data()], 10, given=[constrain(N)], engine="processes")


def test_runs_that_disagree_are_worth_little() -> None:
    """Prefixes are exchanged on the way, so that draws of one order depend on each other."""
    model, x = gaussian(), np.random.default_rng(0).normal(size=(9, 2))
    given = constrain(9, n_clusters=8)
    drawn = model.sample(x, 800, orders=8, seed=0, given=given, at_any_price=True)
    assert drawn.runs is not None
    assert set(drawn.runs.tolist()) == set(range(8))
    assert drawn.log_weights is not None
    assert drawn.ess < 0.5 * effective_sample_size(drawn.log_weights, drawn.counts)
    free = model.sample(x, 800, orders=8, seed=0, given=constrain(9, together=[(0, 1)]))
    assert free.ess > 100
    assert free.runs is not None
    assert replace(free, counts=free.counts).runs is free.runs


def test_runs_outlast_a_file_and_a_pool(tmp_path: Path) -> None:
    """Without them runs that disagree were "do not trust" before they were saved, "good" after."""
    labels = np.repeat([[0, 0, 0], [0, 1, 1]], 100, axis=0)
    none, runs = np.zeros(200), np.repeat(np.arange(2), 100)
    drawn = Partitions(labels, np.ones(200, int), none, none, runs=runs)
    assert drawn.ess == 1.0
    drawn.save(tmp_path / "drawn.npz")
    again = Partitions.load(tmp_path / "drawn.npz")
    assert again.report == drawn.report
    both = pool([drawn, drawn])
    assert both.runs is not None
    assert set(both.runs.tolist()) == {0, 1, 2, 3}
    assert pool([drawn, replace(drawn, runs=None)]).runs is None
