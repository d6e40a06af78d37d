"""Targets against brute force, gradients with the same mean and a smaller variance."""

import math

import pytest
import torch
from torch import Tensor

from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.labelled import LabelledArrays
from ncp.generative.laplace import LaplaceNoise
from ncp.generative.likelihood import DensityLikelihood, Likelihood
from ncp.generative.mixture import Mixture
from ncp.generative.model import Batch
from ncp.generative.priors import CRP, MixtureOfFiniteMixtures, PitmanYor, Poisson, Prior
from ncp.generative.ring import Ring
from ncp.generative.wishart import NormalInverseWishart
from ncp.network.network import Network
from ncp.partitions import canonical, enumerate_partitions, is_canonical
from ncp.training import targets as tail
from ncp.training.data import Sequences, hard_examples, sequences
from ncp.training.loss import objective, pairwise_loss
from ncp.training.targets import tail_targets
from tests.small_models import spec
from tests.test_comparison import RING, integrals

PRIORS: list[Prior] = [
    CRP(0.7),
    PitmanYor(0.5, 0.3),
    MixtureOfFiniteMixtures(1.5, Poisson(2.0)),
]
CONJUGATE: list[Likelihood] = [
    GaussianKnownVariance(dim=1, prior_sd=2.0),
    GaussianKnownVariance(dim=2, prior_sd=3.0),
    NormalInverseWishart(dim=2, kappa=0.1),
]


def small() -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Network(spec(2, h=(8, 2, 8), g=(8, 2, 8), f=(8, 2)))


def drawn(
    mixture: Mixture, n: int, n_orders: int, generator: torch.Generator, n_datasets: int = 3
) -> tuple[Batch, Tensor]:
    batch = mixture.sample(n_datasets, n, extra_parameters=5, generator=generator)
    orders = torch.rand(n_datasets, n_orders, n, generator=generator).argsort(2)
    return batch, orders


def by_enumeration(log_w: Tensor, rows: Tensor, labels: Tensor, n: int, n_slots: int) -> Tensor:
    """p(c_n = k | c_{1:n-1}) by brute force from the weights of label rows (M, N)."""
    here = (rows[:, :n] == labels[:n]).all(1)
    mass = [log_w[here & (rows[:, n] == k)] for k in range(n_slots)]
    return torch.stack([one.logsumexp(0) for one in mass]).softmax(0)


# -- targets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("r", [1, 3, 6])
@pytest.mark.parametrize("likelihood", CONJUGATE, ids=repr)
@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_conjugate_targets_are_the_conditionals_of_all_partitions(
    prior: Prior, likelihood: Likelihood, r: int, generator: torch.Generator
) -> None:
    mixture = Mixture(prior, likelihood)
    batch, orders = drawn(mixture, 7, 2, generator)
    targets = tail_targets(batch, orders, mixture, r)
    rows = enumerate_partitions(7)
    for b in range(3):
        for i in range(2):
            order = orders[b, i]
            labels = canonical(batch.labels[b][order])
            log_joint = mixture.log_joint(batch.x[b][order], rows)
            for j in range(r):
                exact = by_enumeration(log_joint, rows, labels, 7 - r + j, targets.shape[3])
                torch.testing.assert_close(targets[b, i, j].double(), exact, atol=1e-6, rtol=0)


def ring_integrals(ring: Ring, x: Tensor) -> Tensor:
    """log m of all sets of points, by the number whose bits they are."""
    bits = torch.arange(1, 2 ** len(x))[:, None] >> torch.arange(len(x)) & 1
    found = integrals(ring, x.double().numpy(), bits.bool().numpy())
    return torch.cat((torch.zeros(1), torch.as_tensor(found)))


@pytest.mark.parametrize("r", [1, 3])
@pytest.mark.parametrize(
    ("likelihood", "integrated"), [(LaplaceNoise(2, 2.0, 1.0), 0), (RING, 0), (RING, 4), (RING, 6)]
)
@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_targets_of_densities_are_the_conditionals_of_all_completions(
    prior: Prior,
    likelihood: DensityLikelihood,
    integrated: int,
    r: int,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ring, "few", integrated)
    n = 6
    mixture = Mixture(prior, likelihood)
    batch, orders = drawn(mixture, n, 2, generator)
    assert batch.parameters is not None
    targets = tail_targets(batch, orders, mixture, r)
    seen = set()
    for b in range(3):
        is_integrable = likelihood is RING and r <= integrated
        log_m = ring_integrals(RING, batch.x[b]) if is_integrable else torch.zeros(2**n)
        for i in range(2):
            order = orders[b, i]
            along = batch.labels[b][order].tolist()
            labels = canonical(batch.labels[b][order])
            # mu of the k-th cluster to appear in this order, then the spare ones
            appeared = list(dict.fromkeys(along))
            spare = range(len(appeared), batch.parameters.shape[1])
            mu = batch.parameters[b, [*appeared, *spare]]
            small: set[int] = set()
            if is_integrable:
                sizes = labels[:-r].bincount()
                small = set(range(len(sizes), n))  # the new ones
                room = integrated - r
                for k in sizes.argsort(stable=True).tolist():
                    room -= int(sizes[k])
                    if room >= 0:
                        small.add(k)
                seen.add(len(small) == n)
            rows = enumerate_partitions(n)
            rows = rows[(rows[:, : n - r] == labels[: n - r]).all(1)]
            density = likelihood.log_density(batch.x[b][order][None].double(), mu[None])[0]
            log_w = mixture.prior.log_prob(rows)
            for k in range(int(rows.max()) + 1):
                member = rows == k
                given = torch.where(member, density[:, k], 0.0).sum(1)
                log_w = log_w + (log_m[(member * 2**order).sum(1)] if k in small else given)
            for j in range(r):
                exact = by_enumeration(log_w, rows, labels, n - r + j, targets.shape[3])
                near = 0.02 if small else 1e-6  # quadrature
                torch.testing.assert_close(targets[b, i, j].double(), exact, atol=near, rtol=0)
    if integrated:
        assert (integrated == 6) in seen


def test_blocks_do_not_change_targets_and_large_trees_get_a_shorter_tail(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixture = Mixture(CRP(2.0), GaussianKnownVariance(2, prior_sd=3.0))
    batch, orders = drawn(mixture, 20, 3, generator, n_datasets=5)
    whole = tail_targets(batch, orders, mixture, 4)
    monkeypatch.setattr(tail, "BLOCK", 1)
    torch.testing.assert_close(tail_targets(batch, orders, mixture, 4), whole)
    monkeypatch.setattr(tail, "LEAVES", 600)
    shorter = tail_targets(batch, orders, mixture, 4).flatten(0, 1)
    labels = canonical(batch.labels[:, None].expand(-1, 3, -1).gather(2, orders)).flatten(0, 1)
    seen = set()
    for s, row in enumerate(labels):
        k = [int(row[: 20 - j].max()) + 1 for j in range(5)]
        leaves = [math.prod(range(k[j] + 1, k[j] + j + 1)) for j in range(5)]
        length = max(j for j in range(5) if leaves[j] <= 600)
        seen.add(length)
        plain = torch.nn.functional.one_hot(row[-4:], whole.shape[3]).float()
        expected = torch.cat([plain[: 4 - length], whole.flatten(0, 1)[s, 4 - length :]])
        torch.testing.assert_close(shorter[s], expected)
    assert len(seen) > 1


def test_bad_requests_are_refused(generator: torch.Generator) -> None:
    mixture = Mixture(CRP(0.7), GaussianKnownVariance())
    batch, orders = drawn(mixture, 5, 1, generator)
    for r in (0, 5, -1):
        with pytest.raises(ValueError, match="Expected 1 <= r < 5"):
            tail_targets(batch, orders, mixture, r)
    density = Mixture(CRP(0.7), LaplaceNoise(2))
    few = density.sample(3, 5, generator=generator)
    with pytest.raises(ValueError, match="Expected parameters of"):
        tail_targets(few, orders, density, 3)
    arrays = Mixture(CRP(0.7), LabelledArrays(torch.rand(9, 2), torch.arange(9)))
    with pytest.raises(ValueError, match="conjugate or has a density"):
        tail_targets(arrays.sample(3, 5, generator=generator), orders, arrays, 1)


# -- gradients -----------------------------------------------------------------------------------


def gradients(model: Network, data: Sequences, group: int = 10) -> Tensor:
    """One row for each group of data sets: the gradient of its loss."""
    rows = []
    for b in range(0, len(data.x), group):
        loss = objective(model, data.rows(slice(b, b + group))).loss
        parts = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows).double()


@pytest.mark.parametrize(
    "likelihood", [GaussianKnownVariance(2, prior_sd=2.0), LaplaceNoise(2, 2.0)], ids=repr
)
def test_rao_blackwellised_gradients_have_the_same_mean_and_a_smaller_variance(
    likelihood: Likelihood, generator: torch.Generator
) -> None:
    mixture, model = Mixture(CRP(1.0), likelihood), small()
    batch = mixture.sample(1200, 6, extra_parameters=4, generator=generator)
    data = sequences(batch, 1, mixture, rao_blackwell=4, generator=generator)
    data = data._replace(x=data.x.float())
    plain, exact = gradients(model, data._replace(targets=None)), gradients(model, data)
    directions = torch.randn(plain.shape[1], 20, generator=generator, dtype=torch.float64)

    def z(difference: Tensor) -> float:
        projected = difference @ directions
        return float((projected.mean(0) / projected.std(0) * len(projected) ** 0.5).abs().max())

    assert z(exact - plain) < 4.5
    assert exact.var(0).sum() < 0.92 * plain.var(0).sum()
    # The test has the power to see wrong targets.
    assert data.targets is not None
    wrong = (data.targets > 0).float()
    biased = gradients(model, data._replace(targets=wrong / wrong.sum(3, keepdim=True)))
    assert z(biased - plain) > 9


# -- the loss ------------------------------------------------------------------------------------


def test_the_loss_is_the_negative_log_likelihood_in_each_order(generator: torch.Generator) -> None:
    mixture, model = Mixture(CRP(0.7), GaussianKnownVariance(2)), small().double()
    batch = mixture.sample(3, 9, generator=generator)
    data = sequences(batch, 4, mixture, generator=generator)
    assert bool(is_canonical(data.labels).all())
    assert torch.equal(data.orders.sort(2).values, torch.arange(9).expand(3, 4, 9))
    result = objective(model, data)
    right = 0
    for b in range(3):
        for i in range(4):
            order = data.orders[b, i]
            log_prob = model.log_prob(batch.x[b], batch.labels[b], order=order)
            torch.testing.assert_close(result.log_prob[b, i], log_prob.detach())
            table = model.conditionals(batch.x[b][order], data.labels[b, i])
            right += int((table[1:].argmax(1) == data.labels[b, i, 1:]).sum())
    torch.testing.assert_close(result.loss, -result.log_prob.sum(), check_dtype=False)
    assert int(result.n_right) == right


def test_sampled_labels_as_targets_give_the_plain_loss(generator: torch.Generator) -> None:
    mixture, model = Mixture(CRP(0.7), GaussianKnownVariance(2)), small()
    batch = mixture.sample(3, 9, generator=generator)
    data = sequences(batch, 2, mixture, generator=generator)
    data = data._replace(x=data.x.float())
    hard = torch.nn.functional.one_hot(data.labels[..., -4:], 12).float()
    plain, soft = objective(model, data), objective(model, data._replace(targets=hard))
    torch.testing.assert_close(plain.loss, soft.loss)
    assert torch.equal(plain.log_prob, soft.log_prob)


def test_a_tail_is_at_most_all_but_the_first_point(generator: torch.Generator) -> None:
    mixture = Mixture(CRP(0.7), GaussianKnownVariance(2))
    assert sequences(mixture.sample(2, 1), 1, mixture, 5, generator).targets is None
    targets = sequences(mixture.sample(2, 3), 1, mixture, 5, generator).targets
    assert targets is not None
    assert targets.shape[2] == 2


def test_hard_examples_have_exact_targets_of_the_changed_points(generator: torch.Generator) -> None:
    mixture = Mixture(CRP(0.7), GaussianKnownVariance(2))
    batch = mixture.sample(20, 5, generator=generator)
    data = hard_examples(batch, mixture, 4, generator)
    assert data.tail_only
    assert data.targets is not None
    moved = (data.x - batch.x).norm(dim=2)
    assert bool((moved.sum(1) > 0).any())
    rows = enumerate_partitions(5)
    for b in range(20):
        log_w = mixture.log_joint(data.x[b, data.orders[b, 0]], rows)
        for j in range(4):
            expected = by_enumeration(log_w, rows, data.labels[b, 0], j + 1, 5)
            found = data.targets[b, 0, j, :5].double()
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_hard_examples_are_near_clusters_and_points_between(generator: torch.Generator) -> None:
    mixture = Mixture(CRP(3.0), GaussianKnownVariance(2))
    batch = mixture.sample(400, 30, generator=generator)
    data = hard_examples(batch, mixture, 1, generator)
    # Points of one cluster keep their distances, those of two come nearer; the last point apart.
    kept = torch.ones(400, 30, dtype=torch.bool).scatter_(1, data.orders[:, 0, -1:], False)
    before, after = torch.cdist(batch.x, batch.x), torch.cdist(data.x, data.x)
    same = batch.labels[:, :, None] == batch.labels[:, None, :]
    pairs = kept[:, :, None] & kept[:, None, :]
    torch.testing.assert_close(before[pairs & same], after[pairs & same], atol=1e-5, rtol=1e-5)
    ratio = after[pairs & ~same].mean() / before[pairs & ~same].mean()
    assert 0.2 < float(ratio) < 0.6  # the factor's mean is 0.9 / log 10 = 0.39
    first, second, last = (data.x[torch.arange(400), data.orders[:, 0, i]] for i in (0, 1, -1))
    line, aside = second - first, last - first
    on_line = (line[:, 0] * aside[:, 1] - line[:, 1] * aside[:, 0]).abs() < 1e-6
    assert abs(float(on_line.double().mean()) - 0.5) < 4 * (0.25 / 400) ** 0.5
    u = ((aside * line).sum(1) / line.square().sum(1))[on_line]
    assert -2 <= float(u.min()) < -1.8
    assert 2.8 < float(u.max()) <= 3


def test_hard_examples_are_scored_at_their_exact_positions_only(generator: torch.Generator) -> None:
    mixture, model = Mixture(CRP(0.7), GaussianKnownVariance(2)), small().double()
    data = hard_examples(mixture.sample(3, 9, generator=generator), mixture, 2, generator)
    assert data.targets is not None
    targets = data.targets.double()
    data = data._replace(targets=targets)
    expected = torch.zeros((), dtype=torch.float64)
    for b in range(3):
        table = model.conditionals(data.x[b, data.orders[b, 0]], data.labels[b, 0])
        soft = targets[b, 0, :, : table.shape[1]]
        expected -= (soft * table[-2:].masked_fill(soft == 0, 0.0)).sum()
    torch.testing.assert_close(objective(model, data, pairwise=1.0).loss, expected)
    assert objective(model, data.rows(slice(0, 1))).loss < objective(model, data).loss


def test_a_hard_example_with_too_large_a_tree_is_not_scored(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "LEAVES", 10)
    mixture = Mixture(CRP(5.0), GaussianKnownVariance(2))
    data = hard_examples(mixture.sample(4, 12, generator=generator), mixture, 3, generator)
    assert data.targets is not None
    total = data.targets.sum(3)
    assert bool((total == 0).any())
    assert bool(((total == 0) | ((total - 1).abs() < 1e-5)).all())


def test_pairwise_loss_is_the_cross_entropy_of_same_cluster(generator: torch.Generator) -> None:
    mixture, model = Mixture(CRP(0.7), GaussianKnownVariance(2)), small().double()
    batch = mixture.sample(2, 5, generator=generator)
    data = sequences(batch, 3, mixture, generator=generator)
    h = model.h(batch.x)
    terms = []
    for b in range(2):
        for i in range(5):
            for j in range(i):
                logit = 10 * torch.cosine_similarity(h[b, i], h[b, j], dim=0) - 5
                sign = 1 if batch.labels[b, i] == batch.labels[b, j] else -1
                terms.append(-torch.nn.functional.logsigmoid(sign * logit))
    expected = torch.stack(terms).mean() * 2 * 5
    torch.testing.assert_close(pairwise_loss(h, data), expected)
    of_ours, of_definition = (
        torch.autograd.grad(loss, h, retain_graph=True)[0]
        for loss in (pairwise_loss(h, data), expected)
    )
    torch.testing.assert_close(of_ours, of_definition)
    more = objective(model, data, pairwise=1.0).loss - objective(model, data).loss
    torch.testing.assert_close(more, expected)
    # Probabilities of pairs take the place of the sampled labels.
    sampled = batch.labels[:, :, None] == batch.labels[:, None, :]
    same = data._replace(same=sampled.double())
    torch.testing.assert_close(pairwise_loss(h, same), expected)
    half = pairwise_loss(h, data._replace(same=torch.full((2, 5, 5), 0.5).double()))
    other = pairwise_loss(h, data._replace(same=1 - sampled.double()))
    torch.testing.assert_close(half, (expected + other) / 2)
