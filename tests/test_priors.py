"""Priors: they sum to one, predict what they say, and are sampled as they say."""

import json
import math

import mpmath as mp  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from ncp.generative.priors import (
    CRP,
    GammaCRP,
    Geometric,
    MixtureOfFiniteMixtures,
    PitmanYor,
    Poisson,
    Prior,
    prior_from_dict,
)
from ncp.partitions import canonical, counts, enumerate_partitions, is_canonical, random_orders

PRIORS = [
    CRP(0.7),
    CRP(1e-3),
    CRP(1e6),
    PitmanYor(0.7, 0.3),
    PitmanYor(2, 0),
    PitmanYor(1.0, 0.95),
    MixtureOfFiniteMixtures(1.0, Poisson(1.0)),
    MixtureOfFiniteMixtures(0.3, Poisson(20.0)),
    MixtureOfFiniteMixtures(),
    MixtureOfFiniteMixtures(5.0, Geometric(0.9)),
    MixtureOfFiniteMixtures(2.0, Geometric(0.01)),
    GammaCRP(1.0, 1.0),
    GammaCRP(2.0, 0.5),
    GammaCRP(0.01, 3.0),
    GammaCRP(50.0, 100.0),
]
each_prior = pytest.mark.parametrize("prior", PRIORS, ids=str)


@each_prior
@pytest.mark.parametrize("n", [1, 2, 8])
def test_probabilities_sum_to_one(prior: Prior, n: int) -> None:
    total = prior.log_prob(enumerate_partitions(n)).exp().sum()
    assert abs(float(total) - 1) < 1e-10


@each_prior
def test_predictive_equals_ratios_of_log_prob(prior: Prior) -> None:
    labels = enumerate_partitions(6)
    sizes = counts(labels)
    predictive = prior.predictive(sizes)
    k = (sizes > 0).sum(dim=1)
    for cluster in range(7):
        rows = k >= cluster
        longer = torch.cat([labels, torch.full((len(labels), 1), cluster)], dim=1)[rows]
        ratio = (prior.log_prob(longer) - prior.log_prob(labels[rows])).exp()
        column = torch.where(k == cluster, 6, cluster)[rows]  # the last column means new
        chosen = predictive[rows].gather(1, column[:, None])[:, 0]
        torch.testing.assert_close(chosen, ratio, rtol=1e-10, atol=0)


@each_prior
def test_predictive_is_a_distribution(prior: Prior) -> None:
    probabilities = prior.predictive([[3, 0, 2], [0, 0, 0], [1, 0, 0]])
    torch.testing.assert_close(
        probabilities.sum(dim=1), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-12
    )
    assert probabilities[0, 1] == 0
    assert probabilities[1].tolist() == [0, 0, 0, 1]
    assert prior.predictive([]).tolist() == [1]
    moved = prior.predictive([0, 2, 3])
    torch.testing.assert_close(moved[[2, 0, 1, 3]], probabilities[0], rtol=1e-14, atol=0)


@each_prior
def test_exchangeable(prior: Prior, generator: torch.Generator) -> None:
    labels = CRP(2.0).sample(20, 30, generator)
    orders = random_orders(20, 30, generator)
    torch.testing.assert_close(
        prior.log_prob(canonical(labels.gather(1, orders))),
        prior.log_prob(labels),
        rtol=1e-13,
        atol=0,
    )


@each_prior
def test_samples_match_log_prob(prior: Prior, generator: torch.Generator) -> None:
    n_samples = 200_000
    partitions = enumerate_partitions(6)
    samples = prior.sample(n_samples, 6, generator)
    assert bool(is_canonical(samples).all())
    powers = 6 ** torch.arange(6)
    observed = (samples @ powers).bincount(minlength=6**6)[partitions @ powers].numpy()
    expected = n_samples * prior.log_prob(partitions).exp().numpy()
    assert observed.sum() == n_samples
    assert chi_square(observed, expected) > 1e-4


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    """The p-value, with the cells that expect fewer than five samples taken together."""
    small = expected < 5
    if small.any():
        observed = np.append(observed[~small], observed[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
        if expected[-1] < 5:
            assert observed[-1] <= expected[-1] + 6 * math.sqrt(expected[-1]) + 6
            observed, expected = observed[:-1], expected[:-1]
    if len(observed) < 2:
        return 1.0
    expected = expected * (observed.sum() / expected.sum())
    return float(chisquare(observed, expected).pvalue)


def test_chi_square_sees_a_wrong_prior(generator: torch.Generator) -> None:
    partitions = enumerate_partitions(6)
    powers = 6 ** torch.arange(6)
    samples = CRP(0.72).sample(200_000, 6, generator)
    observed = (samples @ powers).bincount(minlength=6**6)[partitions @ powers].numpy()
    expected = 200_000 * CRP(0.7).log_prob(partitions).exp().numpy()
    assert chi_square(observed, expected) < 1e-4


@each_prior
def test_samples_are_canonical_and_reproducible(prior: Prior, seed: int) -> None:
    first, second = (
        prior.sample(50, 40, torch.Generator().manual_seed(seed + shift)) for shift in (0, 0)
    )
    assert torch.equal(first, second)
    assert bool(is_canonical(first).all())
    other = prior.sample(50, 40, torch.Generator().manual_seed(seed + 1))
    if len(torch.unique(first, dim=0)) > 1:  # some of these priors hardly ever vary
        assert not torch.equal(first, other)
    assert prior.sample(0, 5).shape == (0, 5)
    assert prior.sample(3, 1).tolist() == [[0], [0], [0]]


@each_prior
def test_number_of_clusters_of_long_samples(prior: Prior, generator: torch.Generator) -> None:
    # E[K_n] = 1 + sum_m p(new | m): follow the prior's own chain of K by V_n(t).
    n, n_samples = 40, 4000
    k = (prior.sample(n_samples, n, generator).amax(dim=1) + 1).double()
    sizes, clusters = torch.tril_indices(n, n) + 1
    log_v = torch.full((n + 2, n + 2), -torch.inf, dtype=torch.float64)
    log_v[sizes, clusters] = prior.log_v(sizes, clusters)
    distribution = torch.ones(1, dtype=torch.float64)  # of K after m points, K = 1, ..., m
    for m in range(1, n):
        new = (log_v[m + 1, 2 : m + 2] - log_v[m, 1 : m + 1]).exp()
        step = torch.zeros(m + 1, dtype=torch.float64)
        step[:-1] += distribution * (1 - new)
        step[1:] += distribution * new
        distribution = step
    t = torch.arange(1, n + 1).double()
    mean = float((distribution * t).sum())
    variance = float((distribution * (t - mean) ** 2).sum())
    assert abs(float(k.mean()) - mean) < 4.5 * math.sqrt(variance / n_samples) + 1e-6


@each_prior
@pytest.mark.parametrize(
    ("n", "t"), [(1, 1), (7, 3), (100, 100), (1000, 30), (10_000, 1), (10_000, 50), (9_999, 9_999)]
)
def test_v_obeys_its_recursion(prior: Prior, n: int, t: int) -> None:
    """V_n(t) = (n - t d) V_{n+1}(t) + V_{n+1}(t + 1), to the rounding of log V itself."""
    join = prior.log_v(n + 1, t) + math.log(n - t * prior.discount)
    both = torch.logaddexp(join, prior.log_v(n + 1, t + 1))
    torch.testing.assert_close(both, prior.log_v(n, t), rtol=1e-14, atol=1e-11)


@pytest.mark.parametrize("p_k", [Poisson(4.0), Geometric(0.1)], ids=str)
@pytest.mark.parametrize(("n", "t"), [(3, 2), (60, 5), (10_000, 3), (10_000, 400)])
def test_v_against_many_digits(p_k: Poisson | Geometric, n: int, t: int) -> None:
    gamma = 1.5
    with mp.workdps(60):

        def term(k: int) -> mp.mpf:
            if isinstance(p_k, Poisson):
                mass = mp.mpf(p_k.rate) ** (k - 1) * mp.exp(-mp.mpf(p_k.rate)) / mp.factorial(k - 1)
            else:
                mass = mp.mpf(p_k.p) * (1 - mp.mpf(p_k.p)) ** (k - 1)
            return mp.ff(k, t) / mp.rf(gamma * k, n) * mass

        exact = float(mp.log(sum(term(k) for k in range(t, t + 600))) + t * mp.log(gamma))
    log_v = float(MixtureOfFiniteMixtures(gamma, p_k).log_v(n, t))
    assert log_v == pytest.approx(exact, rel=1e-13, abs=1e-13)


@pytest.mark.parametrize(("n", "t"), [(1, 1), (4, 2), (50, 5), (2000, 12)])
@pytest.mark.parametrize(("shape", "rate"), [(1.0, 1.0), (0.5, 2.0), (30.0, 4.0)])
def test_quadrature_against_many_digits(n: int, t: int, shape: float, rate: float) -> None:
    with mp.workdps(40):

        def integrand(u: mp.mpf) -> mp.mpf:  # in u = log alpha
            a = mp.exp(u)
            gamma = mp.mpf(rate) ** shape / mp.gamma(shape) * a**shape * mp.exp(-rate * a)
            return gamma * a**t * mp.gamma(a) / mp.gamma(a + n)

        step = mp.mpf(1) / 20  # the trapezoidal rule, from one end of the integrand to the other
        first = int(-90 / (t - 1 + shape) / step)
        exact = float(mp.log(step * mp.fsum(integrand(step * i) for i in range(first, 140))))
    assert float(GammaCRP(shape, rate).log_v(n, t)) == pytest.approx(exact, rel=1e-12, abs=1e-12)


def test_special_cases_agree() -> None:
    labels = enumerate_partitions(7)
    crp = CRP(1.3).log_prob(labels)
    torch.testing.assert_close(PitmanYor(1.3, 0.0).log_prob(labels), crp, rtol=1e-14, atol=1e-14)
    narrow = GammaCRP(shape=1.3e9, rate=1e9).log_prob(labels)
    torch.testing.assert_close(narrow, crp, rtol=1e-5, atol=1e-5)


def test_crp_is_the_formula_of_the_paper() -> None:
    labels = [0, 0, 1, 0, 2, 2]  # sizes 3, 1, 2
    alpha = 0.7
    ascending = math.prod(i + alpha for i in range(6))
    expected = alpha**3 * math.factorial(2) * math.factorial(0) * math.factorial(1) / ascending
    assert float(CRP(alpha).log_prob(labels)) == pytest.approx(math.log(expected), rel=1e-14)


def test_mixture_of_finite_mixtures_follows_its_definition(generator: torch.Generator) -> None:
    """Against K ~ p_K, Dirichlet weights, labels: the definition, not the urn."""
    rng = np.random.default_rng(7)
    gamma, rate, n_samples = 0.8, 2.0, 10_000
    rows = [
        rng.choice(k, size=4, p=rng.dirichlet(np.full(k, gamma)))
        for k in 1 + rng.poisson(rate, size=n_samples)
    ]
    partitions, powers = enumerate_partitions(4), 4 ** torch.arange(4)
    codes = canonical(np.array(rows)) @ powers
    observed = codes.bincount(minlength=4**4)[partitions @ powers].numpy()
    prior = MixtureOfFiniteMixtures(gamma, Poisson(rate))
    assert chi_square(observed, n_samples * prior.log_prob(partitions).exp().numpy()) > 1e-4


@given(st.lists(st.integers(0, 4), min_size=2, max_size=10))
@settings(max_examples=10, deadline=None)
def test_log_prob_is_the_product_of_predictives(row: list[int]) -> None:
    labels = canonical(row)
    prefixes = torch.stack([counts(labels[:n], n_clusters=10) for n in range(1, len(row))])
    k = (prefixes > 0).sum(dim=1)
    choice = torch.where(labels[1:] == k, 10, labels[1:])
    for prior in (CRP(0.7), PitmanYor(0.7, 0.3), MixtureOfFiniteMixtures(), GammaCRP(1.0, 1.0)):
        chosen = prior.predictive(prefixes).gather(1, choice[:, None])
        torch.testing.assert_close(
            chosen.log().sum(), prior.log_prob(labels), rtol=1e-11, atol=1e-11
        )


@each_prior
def test_log_prob_shapes_and_blocks(prior: Prior, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = enumerate_partitions(5)[:48].reshape(2, 3, 8, 5)
    log_prob = prior.log_prob(labels)
    assert log_prob.shape == (2, 3, 8)
    assert log_prob.dtype == torch.float64
    assert prior.log_prob(labels[0, 0, 0]).shape == ()
    assert prior.log_prob(labels[:0]).shape == (0, 3, 8)
    monkeypatch.setattr("ncp.generative.priors.BLOCK", 17)
    torch.testing.assert_close(prior.log_prob(labels), log_prob, rtol=1e-13, atol=1e-13)


@each_prior
def test_spec_round_trip(prior: Prior) -> None:
    spec = json.loads(json.dumps(prior.to_dict()))
    assert spec == prior.to_dict()
    assert prior_from_dict(spec) == prior
    with pytest.raises(ValueError, match="arguments of"):
        prior_from_dict(spec | {"surprise": 1})


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"kind to be one of .*CRP.* but got 'Dirichlet'"):
        prior_from_dict({"kind": "Dirichlet"})
    with pytest.raises(ValueError, match="kind to be one of"):
        prior_from_dict({"alpha": 1.0})
    with pytest.raises(ValueError, match="arguments of CRP"):
        prior_from_dict({"kind": "CRP"})
    with pytest.raises(ValueError, match=r"kind to be one of .*Geometric"):
        prior_from_dict({"kind": "MixtureOfFiniteMixtures", "p_k": {"kind": "Zipf"}})


def test_two_classes_cannot_share_a_name() -> None:
    with pytest.raises(ValueError, match=r"CRP is already ncp\.generative\.priors\.CRP"):
        type("CRP", (Prior,), {})
    assert Prior.registry["CRP"] is CRP


@pytest.mark.parametrize("value", [0.0, 0, -1, -1.0, math.nan, math.inf, True])
def test_bad_parameters(value: float) -> None:
    for make in (
        lambda v: CRP(v),
        lambda v: PitmanYor(v, 0.1),
        lambda v: MixtureOfFiniteMixtures(gamma=v),
        lambda v: GammaCRP(v, 1.0),
        lambda v: GammaCRP(1.0, v),
        lambda v: Poisson(v),
    ):
        with pytest.raises(ValueError, match="Expected"):
            make(value)


@pytest.mark.parametrize("discount", [-0.1, 1.0, 1.5, math.nan])
def test_bad_discount(discount: float) -> None:
    with pytest.raises(ValueError, match="discount"):
        PitmanYor(1.0, discount)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.5, 2.0, math.nan])
def test_bad_geometric(p: float) -> None:
    with pytest.raises(ValueError, match="Expected p"):
        Geometric(p)


@each_prior
def test_bad_input(prior: Prior) -> None:
    with pytest.raises(ValueError, match="order of appearance"):
        prior.log_prob([0, 2])
    with pytest.raises(ValueError, match="at least one point"):
        prior.log_prob([])
    with pytest.raises(ValueError, match="integer counts >= 0"):
        prior.predictive([1, -1])
    with pytest.raises(ValueError, match="integer counts >= 0"):
        prior.predictive([1.5, 2.0])
    with pytest.raises(ValueError, match="n_points >= 1"):
        prior.sample(3, 0)
    with pytest.raises(ValueError, match="n_datasets >= 0"):
        prior.sample(-1, 3)
    with pytest.raises(ValueError, match="n_clusters <= n_points"):
        prior.log_v(3, 4)


def test_sampling_leaves_the_global_state_alone(generator: torch.Generator) -> None:
    before = torch.random.get_rng_state()
    for prior in PRIORS:
        prior.sample(3, 5, generator)
    assert torch.equal(torch.random.get_rng_state(), before)
