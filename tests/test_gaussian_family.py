"""The Gaussian family: exact for every setting, in any units, alone and in a batch."""

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from ncp.checks.exact import ExactComparison, exact_comparison, last_point_tv
from ncp.checks.family import in_dimension, made_exact
from ncp.checks.geweke import geweke
from ncp.checks.simulation import simulate
from ncp.generative.gaussian_family import GaussianFamily, SphericalWisharts, standardise
from ncp.generative.mixture import Mixture
from ncp.generative.model import Batch, model_from_dict
from ncp.generative.priors import CRP
from ncp.inference.exact import exact_similarity, last_conditional, posterior
from ncp.inference.finish import Goal
from ncp.model import load
from ncp.partitions import enumerate_partitions, is_canonical
from ncp.training.data import hard_examples
from ncp.training.loop import train
from ncp.training.recipe import Recipe
from ncp.training.targets import tail_targets
from tests.small_models import small

FAMILY = GaussianFamily(sizes=(5, 40))
KNOWN = math.inf
SETTINGS: list[dict[str, float]] = [
    {"alpha": 1.0, "dim": 1, "ratio": 10.0, "dof": KNOWN},
    {"alpha": 0.3, "dim": 1, "ratio": 2.0, "dof": 3.0},
    {"alpha": 0.7, "dim": 2, "ratio": 10.0, "dof": KNOWN},
    {"alpha": 3.0, "dim": 2, "ratio": 3.0, "dof": 6.0},
    {"alpha": 8.0, "dim": 5, "ratio": 1.5, "dof": 60.0},
    {"alpha": 0.1, "dim": 8, "ratio": 50.0, "dof": 10.0},
    {"alpha": 1.0, "dim": 8, "ratio": 4.0, "dof": KNOWN},
]
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=str)


def draw(setting: dict[str, float], n: int, generator: torch.Generator) -> Tensor:
    """One data set (n, d) in units of the noise."""
    return FAMILY.condition(**setting).sample(1, n, generator=generator).x[0]


def rotation(d: int, rng: np.random.Generator) -> np.ndarray:
    return np.asarray(stats.special_ortho_group.rvs(d, random_state=rng)) if d > 1 else np.eye(1)


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def all_settings(n: int, generator: torch.Generator) -> Batch:
    """A data set of each setting, as a batch of mixed dimensions."""
    eta = torch.stack([FAMILY.setting(**setting) for setting in SETTINGS])
    batch = FAMILY.given(eta).sample(len(eta), n, generator=generator)
    return batch._replace(x=FAMILY.events(batch.x, eta), hyperparameters=eta)


# --- exactness -----------------------------------------------------------------------------------


def chain_rule(x: np.ndarray, setting: dict[str, float], labels: np.ndarray, s: float) -> float:
    """log p(c, x) as a product of Student predictives, with scipy: an independent way."""
    d, r, alpha, dof = (setting[name] for name in ("dim", "ratio", "alpha", "dof"))
    d = int(d)
    total = 0.0
    for i, c in enumerate(labels):
        mine = x[:i][labels[:i] == c]
        n = len(mine)
        total += math.log((n or alpha) / (alpha + i))
        kappa = r**-2 + n
        mean = mine.sum(0) / kappa
        if dof == KNOWN:
            variance = s**2 * (1 + 1 / kappa)
            total += float(stats.norm.logpdf(x[i], mean, math.sqrt(variance)).sum())
            continue
        psi = s**2 * (dof - d - 1) * np.eye(d) + mine.T @ mine - kappa * np.outer(mean, mean)
        free = dof + n - d + 1
        shape = psi * (kappa + 1) / (kappa * free)
        total += float(stats.multivariate_t.logpdf(x[i], mean, shape, df=free))  # type: ignore[arg-type]
    return total


@each_setting
def test_against_the_chain_rule(
    setting: dict[str, float], generator: torch.Generator, rng: np.random.Generator
) -> None:
    y = draw(setting, 6, generator)
    rows = enumerate_partitions(6)[rng.choice(203, 12, replace=False)]
    for s in (1.0, 0.02, 37.0):
        mixture = FAMILY.condition(**setting, noise_sd=s)
        found = mixture.log_joint(s * y, rows)
        expected = [chain_rule(s * y.numpy(), setting, row.numpy(), s) for row in rows]
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@each_setting
def test_what_a_network_sees_has_the_same_posterior_and_evidence(
    setting: dict[str, float], generator: torch.Generator, rng: np.random.Generator
) -> None:
    """N = 6, all partitions: data in kilometres, turned and moved, and what a network sees."""
    d, s = int(setting["dim"]), 250.0
    location = 1e3 * rng.normal(size=d)
    x = location + s * draw(setting, 6, generator).numpy() @ rotation(d, rng)
    mixture = FAMILY.condition(**setting, noise_sd=s)
    exact = posterior(x - location, mixture)

    units = standardise(x, noise_sd=s, location=location)
    seen = FAMILY.events(units.y, FAMILY.setting(**setting))
    log_joint = FAMILY.log_joint(seen, exact.labels) + units.log_jacobian
    log_evidence = float(log_joint.logsumexp(0))
    assert log_evidence == pytest.approx(exact.log_evidence, rel=1e-10)
    np.testing.assert_allclose(log_joint - log_evidence, exact.log_prob, atol=1e-7)


@each_setting
def test_rotation_and_scale(
    setting: dict[str, float], generator: torch.Generator, rng: np.random.Generator
) -> None:
    d, n, s = int(setting["dim"]), 20, 12.5
    x = draw(setting, n, generator)
    labels = torch.stack([CRP(2.0).sample(1, n, generator)[0] for _ in range(5)])
    plain = FAMILY.condition(**setting).log_joint(x, labels)
    turned = FAMILY.condition(**setting).log_joint(x @ torch.from_numpy(rotation(d, rng)), labels)
    torch.testing.assert_close(turned, plain, rtol=1e-9, atol=1e-9)
    scaled = FAMILY.condition(**setting, noise_sd=s).log_joint(s * x, labels)
    torch.testing.assert_close(scaled, plain - n * d * math.log(s), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dim", [1, 3, 8])
def test_known_noise_is_the_limit_of_many_degrees_of_freedom(
    dim: int, generator: torch.Generator
) -> None:
    setting = {"alpha": 1.0, "dim": dim, "ratio": 5.0}
    x = draw(setting, 6, generator)
    rows = enumerate_partitions(6)
    limit = FAMILY.condition(**setting).log_joint(x, rows)
    errors = []
    for dof in (1e3, 1e5):
        eta = torch.tensor([[1.0, dim, 5.0, dof]], dtype=torch.float64)
        many = FAMILY.given(eta).log_joint(torch.nn.functional.pad(x, (0, 8 - dim)), rows)
        errors.append(float((many - limit).abs().max()))
    assert errors[1] < 0.02 * errors[0]  # it falls as 1 / dof
    assert errors[1] < 2e-3 * float(limit.abs().max())


def test_axes_depend_on_nothing_but_the_data(
    generator: torch.Generator, rng: np.random.Generator
) -> None:
    x = draw(SETTINGS[3], 30, generator).numpy()
    first = standardise(x, noise_sd=2.0)
    second = standardise(7.0 * x @ rotation(2, rng) + 5.0, noise_sd=14.0, location=5.0)
    torch.testing.assert_close(first.y, second.y, rtol=1e-9, atol=1e-9)
    moments = first.y.square().mean(0)
    assert moments[0] > moments[1]
    assert bool((first.y.pow(3).sum(0) >= 0).all())
    torch.testing.assert_close(first.apply(x[:4]), first.y[:4])
    assert first.log_jacobian == pytest.approx(-60 * math.log(2))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_fewer_points_than_dimensions(n: int, generator: torch.Generator) -> None:
    x = draw(SETTINGS[5], n, generator)
    units = standardise(x)
    torch.testing.assert_close(units.y[:, n:], torch.zeros(n, 8 - n).double(), atol=1e-8, rtol=0)
    seen = FAMILY.events(x, FAMILY.setting(**SETTINGS[5]))
    labels = enumerate_partitions(n)
    expected = FAMILY.condition(**SETTINGS[5]).log_joint(x, labels)
    torch.testing.assert_close(FAMILY.log_joint(seen, labels), expected)


# --- batches -------------------------------------------------------------------------------------


def one_by_one(batch: Batch) -> list[tuple[Mixture, Tensor]]:
    """Each data set in its own dimension with its own mixture."""
    assert batch.hyperparameters is not None
    names = [*FAMILY.hyperparameters]
    rows = [dict(zip(names, row, strict=True)) for row in batch.hyperparameters.tolist()]
    points = FAMILY.points(batch.x)
    return [
        (FAMILY.condition(**row), x[:, : int(row["dim"])])
        for row, x in zip(rows, points, strict=True)
    ]


def test_log_joint_of_a_batch_of_all_settings(generator: torch.Generator) -> None:
    batch = all_settings(12, generator)
    together = FAMILY.given(batch.hyperparameters)
    rows = torch.cat([batch.labels, torch.zeros(1, 12, dtype=torch.long)])
    for i, (mixture, x) in enumerate(one_by_one(batch)):
        expected = mixture.log_joint(x, rows)
        alone = together.rows(torch.tensor([i])).log_joint(FAMILY.points(batch.x[i]), rows)
        torch.testing.assert_close(alone, expected, rtol=1e-9, atol=1e-9)
        one = FAMILY.log_joint(batch.x[i], rows[0])
        torch.testing.assert_close(one, expected[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            FAMILY.log_joint(batch.x[i].float(), rows), expected, rtol=1e-4, atol=1e-4
        )


def test_similarity_of_a_batch_of_all_settings(generator: torch.Generator) -> None:
    batch = all_settings(6, generator)
    found = exact_similarity(FAMILY.points(batch.x), FAMILY.given(batch.hyperparameters))
    for same, (mixture, x) in zip(found, one_by_one(batch), strict=True):
        torch.testing.assert_close(same, exact_similarity(x[None], mixture)[0])


def test_last_conditional_of_a_batch_of_all_settings(generator: torch.Generator) -> None:
    batch = all_settings(15, generator)
    known = FAMILY.given(batch.hyperparameters)
    found = last_conditional(FAMILY.points(batch.x), batch.labels, known)
    for p, labels, (mixture, x) in zip(found, batch.labels, one_by_one(batch), strict=True):
        expected = last_conditional(x, labels, mixture)
        np.testing.assert_allclose(p[: len(expected)], expected, atol=1e-9)


@pytest.mark.parametrize("r", [1, 3])
def test_soft_targets_of_a_batch_of_all_settings(r: int, generator: torch.Generator) -> None:
    batch = all_settings(10, generator)
    orders = torch.rand(len(batch.x), 2, 10, generator=generator).argsort(2)
    found = tail_targets(batch, orders, FAMILY, r)
    for i, (mixture, x) in enumerate(one_by_one(batch)):
        alone = Batch(x[None], batch.labels[i : i + 1])
        expected = tail_targets(alone, orders[i : i + 1], mixture, r)[0]
        torch.testing.assert_close(found[i, :, :, : expected.shape[-1]], expected)
        assert float(found[i].sum(-1).min()) == pytest.approx(1)


def test_hard_examples_are_data_sets_of_the_family(generator: torch.Generator) -> None:
    batch = FAMILY.sample(4, 12, generator=generator)
    hard = hard_examples(batch, FAMILY, 3, generator)
    torch.testing.assert_close(FAMILY.hyperparameters_of(hard.x), batch.hyperparameters)
    again = FAMILY.events(FAMILY.points(hard.x), batch.hyperparameters)
    torch.testing.assert_close(hard.x, again, rtol=1e-6, atol=1e-6)  # in principal axes already
    assert hard.targets is not None
    assert not torch.allclose(hard.x, batch.x)


# --- samples -------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s["dim"] in (1, 2, 8)], ids=str)
def test_points_are_as_the_model_says(
    setting: dict[str, float], generator: torch.Generator
) -> None:
    """A point is Student distributed, and so is the difference of two points of a cluster."""
    d, r, dof = int(setting["dim"]), setting["ratio"], setting["dof"]
    others = {"alpha": 1.0, "dim": 8 if d < 8 else 3, "ratio": 2.0, "dof": 12.0}
    eta = torch.stack([FAMILY.setting(**setting), FAMILY.setting(**others)]).repeat(400, 1)
    likelihood = FAMILY.given(eta).likelihood
    labels = torch.tensor([0, 0, 1]).expand(len(eta), 3)
    theta = likelihood.sample_parameters((len(eta), 2), generator)
    x = likelihood.sample_observations(theta, labels, generator)[::2]
    assert float(x[..., d:].abs().max() if d < 8 else 0.0) == 0.0
    free = dof - d + 1
    law: Any = stats.norm() if dof == KNOWN else stats.t(free)
    width = 1.0 if dof == KNOWN else math.sqrt((dof - d - 1) / free)
    for axis in {0, d - 1}:
        point = x[:, 0, axis].numpy() / (width * math.sqrt(1 + r**2))
        within = (x[:, 0, axis] - x[:, 1, axis]).numpy() / (width * math.sqrt(2))
        between = (x[:, 0, axis] - x[:, 2, axis]).numpy()
        assert stats.kstest(point, law.cdf).pvalue > 1e-4
        assert stats.kstest(within, law.cdf).pvalue > 1e-4
        assert stats.kstest(between / (width * math.sqrt(2)), law.cdf).pvalue < 1e-4


def test_covariances_of_axes_are_those_of_the_inverse_wishart(generator: torch.Generator) -> None:
    """In a batch of mixed dimensions, against the sampler of one dimension."""
    setting = {"alpha": 1.0, "dim": 3, "ratio": 2.0, "dof": 9.0}
    eta = torch.stack([FAMILY.setting(**setting), FAMILY.setting(**SETTINGS[5])]).repeat(1500, 1)
    together = FAMILY.given(eta).likelihood.sample_parameters((len(eta), 1), generator)[::2, 0]
    alone = FAMILY.condition(**setting).likelihood.sample_parameters((1500, 1), generator)[:, 0]
    rows, columns = torch.tril_indices(8, 8)
    inside = (rows < 3) & (columns < 3)
    outside = together[:, 8:][:, ~inside]
    assert float(outside.abs().max()) == 0.0
    ours, theirs = together[:, 8:][:, inside], alone[:, 3:]
    for entry in range(6):
        assert stats.ks_2samp(ours[:, entry], theirs[:, entry]).pvalue > 1e-4


def test_the_hyper_prior(generator: torch.Generator) -> None:
    family = GaussianFamily(max_dim=4, alpha=(0.2, 5.0), ratio=(2.0, 20.0), max_dof=50, known=0.25)
    eta = torch.cat([family.sample_hyperparameters(50, generator) for _ in range(60)])
    alpha, dim, ratio, dof = eta.unbind(1)
    assert set(dim.tolist()) == {1.0, 2.0, 3.0, 4.0}
    assert bool((dim.view(60, 50) == dim.view(60, 50)[:, :1]).all())
    for value, low, high in ((alpha, 0.2, 5.0), (ratio, 2.0, 20.0)):
        share = (value / low).log() / math.log(high / low)
        assert stats.kstest(share.numpy(), stats.uniform.cdf).pvalue > 1e-4
    known = dof.isinf()
    assert 0.2 < float(known.double().mean()) < 0.3
    assert bool(((dof >= dim + 2) & (dof <= 50))[~known].all())
    for row in eta[:20].tolist():
        names = zip(family.hyperparameters, row, strict=True)
        torch.testing.assert_close(family.setting(**dict(names)).tolist(), row)


def test_batches(generator: torch.Generator) -> None:
    batch = FAMILY.sample(6, 9, generator=generator)
    assert batch.hyperparameters is not None
    assert batch.x.shape == (6, 9, *FAMILY.event_shape) == (6, 9, 20)
    assert bool(is_canonical(batch.labels).all())
    d = int(batch.hyperparameters[0, 1])
    torch.testing.assert_close(batch.x[..., d:8], torch.zeros(6, 9, 8 - d).double())
    ratio = batch.hyperparameters[:, 2, None, None]
    bent = (batch.x[..., :8] / (1 + ratio.square()).sqrt()).asinh()
    torch.testing.assert_close(batch.x[..., 8:16], bent)
    codes = FAMILY.encode(batch.hyperparameters)
    assert float(codes.abs().max()) <= 1
    torch.testing.assert_close(batch.x[:, :, 16:], codes[:, None].expand(6, 9, 4))
    torch.testing.assert_close(FAMILY.hyperparameters_of(batch.x), batch.hyperparameters)
    assert torch.as_tensor(FAMILY.scale).tolist() == [16.0] * 8 + [1.0] * 12
    again = FAMILY.sample(6, 9, generator=torch.Generator().manual_seed(generator.initial_seed()))
    assert torch.equal(batch.x, again.x)


def test_a_batch_and_its_marginals_take_little_time(generator: torch.Generator) -> None:
    eta = torch.stack([FAMILY.setting(**SETTINGS[i]) for i in (5, 6)]).repeat(16, 1)
    known = FAMILY.given(eta)
    assert isinstance(known.likelihood, SphericalWisharts)
    spent, rows = [], torch.arange(32).repeat(1000)
    for _ in range(5):
        start = time.process_time()
        batch = known.sample(32, 50, generator=generator)
        FAMILY.events(batch.x, eta)
        middle = time.process_time()
        statistics = known.likelihood.statistics(batch.x).sum(1)[rows]
        known.likelihood.rows(rows).log_marginal_statistics(statistics)
        spent.append((middle - start, time.process_time() - middle))
    assert min(a for a, _ in spent) < 0.06  # about 9 ms
    assert min(b for _, b in spent) < 0.08  # about 12 ms for 32,000 clusters


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alpha": 11.0}, "Expected alpha between 0.1 and 10.0 but got 11.0"),
        ({"ratio": 1.0}, "Expected ratio between 1.5 and 50.0"),
        ({"dim": 9}, "Expected dim between 1 and 8"),
        ({"dim": 1.5}, "Expected dim to be a whole number"),
        ({"dof": 4.5}, r"Expected dof between dim \+ 2 = 5 and 100, or infinity, but got 4.5"),
        ({"dof": 101.0}, r"Expected dof between dim \+ 2 = 5 and 100"),
        ({"alpha": math.nan}, "Expected alpha between"),
        ({"colour": 1.0}, "Expected the hyper-parameters"),
    ],
)
def test_settings_that_no_network_has_seen(change: dict[str, float], words: str) -> None:
    good = {"alpha": 1.0, "dim": 3, "ratio": 5.0, "dof": 8.0}
    assert FAMILY.setting(**good).tolist() == [1.0, 3.0, 5.0, 8.0]
    with pytest.raises(ValueError, match=words):
        FAMILY.setting(**good | change)


def test_mixtures_that_there_are_not() -> None:
    with pytest.raises(ValueError, match=r"Expected dof > dim \+ 1 = 4 but got 4.0"):
        FAMILY.condition(alpha=1.0, dim=3, ratio=5.0, dof=4.0)
    with pytest.raises(ValueError, match="noise_sd"):
        FAMILY.condition(alpha=1.0, dim=3, ratio=5.0, noise_sd=0.0)
    with pytest.raises(ValueError, match="Expected the hyper-parameters"):
        FAMILY.given()
    with pytest.raises(ValueError, match="Expected the hyper-parameters"):
        FAMILY.events(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="share_partition=False"):
        FAMILY.sample(2, share_partition=True)
    for bad in (np.zeros((0, 2)), np.full((3, 2), np.nan), np.zeros(3)):
        with pytest.raises(ValueError, match="Expected finite points"):
            standardise(bad)


@pytest.mark.parametrize(
    "bad",
    [{"max_dim": 0}, {"alpha": (1.0, 0.5)}, {"max_dof": 9}, {"known": 1.5}, {"sizes": (9, 5)}],
)
def test_families_that_there_are_not(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        GaussianFamily(**bad)


def test_spec_round_trip() -> None:
    family = GaussianFamily(max_dim=3, alpha=(0.5, 2.0), sizes=(5, 60))
    spec = json.loads(json.dumps(family.to_dict()))
    assert spec == family.to_dict()
    assert model_from_dict(spec) == family
    assert family.event_shape == (10,)
    assert (family.is_conjugate, family.has_density) == (True, False)


# --- the rest of the house -----------------------------------------------------------------------


def exact_log_prob(x: Tensor, labels: Tensor) -> Tensor:
    """log p(c | x) for what a network sees: one data set, or one for each row of labels."""
    if x.ndim == 3:
        return torch.stack([exact_log_prob(a, b) for a, b in zip(x, labels, strict=True)])
    joint = FAMILY.log_joint(x, enumerate_partitions(len(x)))
    return FAMILY.log_joint(x, labels) - joint.logsumexp(0)


NEAR = GaussianFamily(max_dim=2, ratio=(1.5, 2.5))  # clusters overlap: there is something to err in


def exact_sampler(shift: float = 0.0) -> Any:
    """Draws from p(c | x), or from p(c | x) exp(shift K): too many clusters."""

    def sample_many(datasets: Any, n_samples: int, seed: int) -> list[tuple[Any, Any]]:
        rows = enumerate_partitions(len(datasets[0]))
        k = rows.amax(1) + 1.0
        p = [(NEAR.log_joint(x, rows) + shift * k).softmax(0).numpy() for x in datasets]
        return [(rows.numpy(), weights) for weights in p]

    return sample_many


def test_checks_know_the_family() -> None:
    for check, n in ((exact_comparison, 5), (last_point_tv, 5)):
        found = check(exact_log_prob, FAMILY, n_datasets=12, n_points=n)
        values = found.tv.values if isinstance(found, ExactComparison) else found.values
        assert float(values.max()) < 1e-6
        flat = check(lambda x, c: 0.3 * exact_log_prob(x, c), FAMILY, n_datasets=12, n_points=n)
        values = flat.tv.values if isinstance(flat, ExactComparison) else flat.values
        assert float(values.mean()) > 0.01


@pytest.mark.parametrize(("shift", "passes"), [(0.0, True), (1.0, False)])
def test_geweke_knows_the_family(shift: float, passes: bool) -> None:
    found = geweke(exact_sampler(shift), NEAR, n_chains=300, n_rounds=3, n_points=4)
    assert found.passed is passes


def test_a_network_is_trained_on_the_family(tmp_path: Path) -> None:
    network = {
        "encoder": {"kind": "MLPEncoder", "width": 16, "depth": 2, "out": 16},
        "attention": {"blocks": 1, "width": 8, "codes": 4, "rbf_octaves": 3, "coordinates": 3},
        "g": {"width": 16, "depth": 2, "out": 16},
        "f": {"width": 16, "depth": 2},
    }
    phase: dict[str, float] = {
        "steps": 6,
        "points_per_step": 120,
        "rao_blackwell": 2,
        "exact_up_to": 6,
    }
    phase |= {"hard_examples": 0.5, "exact_sizes": 0.5, "pairwise": 1.0, "warmup": 1}
    family = GaussianFamily(max_dim=3, sizes=(4, 12))
    recipe = Recipe.from_dict(
        {
            "name": "family",
            "generative": family.to_dict(),
            "network": network,
            "phase": [phase],
            "validate_every": 6,
        }
    )
    train(recipe, tmp_path, progress=False)
    model = load(tmp_path / "family.safetensors")
    assert model.mixture == family
    x = family.sample(1, 12).x[0]
    drawn = model.sample(x, 50, seed=0)
    weighted = drawn.reweight(family)
    known, points = family.unpack(x)
    again = drawn.reweight(known, points)
    assert weighted.log_weights is not None
    assert again.log_weights is not None
    np.testing.assert_allclose(weighted.log_weights, again.log_weights, rtol=1e-5, atol=1e-4)


# -- checks of what users get ----------------------------------------------------------------------


@pytest.mark.parametrize("n_points", [6, 9])
def test_draws_are_made_exact(n_points: int, seed: int) -> None:
    """Of a network that knows nothing: an enumeration of six points, chains of nine."""
    family = in_dimension(FAMILY, 2)
    model = small(family)
    drawn = simulate(
        model.sample_many, family, n_datasets=4, n_points=n_points, n_samples=400, seed=seed
    )
    exact, share = made_exact(drawn, family, goal=Goal(min_ess=300.0, time_limit=60.0), seed=seed)
    assert share == 1.0
    for x, found in zip(exact.x, exact.draws, strict=True):
        mixture, points = family.unpack(x)
        truth = posterior(points.numpy(), mixture)
        mean_k = float(np.exp(truth.log_prob) @ (truth.labels.max(axis=1) + 1))
        spread = float(np.exp(truth.log_prob) @ (truth.labels.max(axis=1) + 1) ** 2) - mean_k**2
        error = 5 * math.sqrt(spread / 300 + 1e-6)
        assert float(found.weights @ (found.labels.max(axis=1) + 1)) == pytest.approx(
            mean_k, abs=error
        )
