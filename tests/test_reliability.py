"""Extremes of numbers, sizes, memory and threads: a right answer, a warning, or a clear error."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from ncp.clustering.cluster import cluster
from ncp.inference.importance import effective_sample_size, log_evidence
from ncp.model import NCP, load
from ncp.network.attention import TILE, Attention
from ncp.network.blocks import Perceptron
from ncp.network.encoder import MLPEncoder
from ncp.network.network import NetworkSpec
from ncp.network.pretrained import names
from ncp.posterior import Partitions
from ncp.sampling.keys import child_keys
from ncp.sampling.sample import Drawn, sample_many
from ncp.summary.summary import summarise
from tests.small_models import gaussian, tabular


@pytest.fixture(scope="module")
def model() -> NCP:
    return gaussian()


@pytest.fixture(scope="module")
def full() -> NCP:
    """With the sizes of the networks that ship, where rounding is what it is in use."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        composed = NetworkSpec(
            encoder=MLPEncoder(residual=True, fourier_octaves=5),
            attention=Attention(2, 128, 32, 7),
            g=Perceptron(128, 6, 512, residual=True),
            f=Perceptron(128, 6, residual=True),
            f_sees=("G", "Q", "point", "candidate", "pairs"),
        )
        network = NCP(composed, gaussian().mixture).eval()
        assert network.attention is not None
        torch.nn.init.normal_(network.attention.out.weight, std=0.1)
        return network


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def points(n: int, seed: int = 0, scale: float = 4.0) -> np.ndarray:
    return scale * np.random.default_rng(seed).normal(size=(n, 2))


# -- determinism -----------------------------------------------------------------------------------


def same(a: Partitions | Drawn, b: Partitions | Drawn) -> bool:
    names = ("labels", "counts", "log_q")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("orders", [1, 3])
def test_threads_and_company_do_not_matter(full: NCP, orders: int | str) -> None:
    xs = [points(n, n) for n in (1, 2, 5, 19)]
    torch.set_num_threads(1)
    whole = full.sample_many(xs, 16, orders=orders, seed=9)
    torch.set_num_threads(2)
    again = full.sample_many(xs, 16, orders=orders, seed=9)
    assert all(same(a, b) for a, b in zip(whole, again, strict=True))
    for i, x in enumerate(xs):
        (alone,) = sample_many(full, [x], 16, orders=orders, seed=9, streams=[i])
        assert same(alone, whole[i])
    assert same(full.sample(xs[0], 16, orders=orders, seed=9), whole[0])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", names())
def test_threads_and_company_do_not_matter_to_the_models_that_ship(name: str) -> None:
    network = load(name)
    generator = torch.Generator().manual_seed(1)
    sizes = (1, 3, 18)
    xs = [torch.rand(n, *network.spec.event_shape, generator=generator) for n in sizes]
    torch.set_num_threads(1)
    whole = network.sample_many(xs, 16, orders=2, seed=9)
    torch.set_num_threads(2)
    for i, x in enumerate(xs):
        (alone,) = sample_many(network, [x], 16, orders=2, seed=9, streams=[i])
        assert same(alone, whole[i])


@pytest.mark.slow  # two threads wait for each other where others use the cores
@pytest.mark.usefixtures("threads")
def test_threads_do_not_matter_to_a_large_table() -> None:
    network = load("tabular")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(250, *network.spec.event_shape, generator=generator)
    torch.set_num_threads(1)
    one = network.sample(x, 4, seed=0)
    torch.set_num_threads(2)
    assert same(network.sample(x, 4, seed=0), one)


@pytest.mark.usefixtures("threads")
def test_threads_do_not_matter_to_map_and_assign(full: NCP) -> None:
    x, new = points(15), points(19, 1)
    torch.set_num_threads(1)
    best = full.map(x, beam=4)
    chances = full.assign(new, x, best.labels[0])
    torch.set_num_threads(2)
    assert same(full.map(x, beam=4), best)
    assert torch.equal(full.assign(new, x, best.labels[0]), chances)
    assert torch.equal(full.assign(new[:5], x, best.labels[0]), chances[:5])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shape", [(128, 128), (2, 128), (256, 128), (128, TILE), (16, 16)])
def test_rows_of_a_product_do_not_know_each_other(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(512, shape[0], generator=generator)
    weight = torch.randn(shape[1], shape[0], generator=generator)

    def product(part: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(part, weight)

    torch.set_num_threads(1)
    whole = product(rows)
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        for tiles in (1, 2, 3, 5, 11, 17, 30):  # data sets are made up to whole tiles
            part = rows[7 : 7 + tiles * TILE]
            assert torch.equal(product(part), whole[7 : 7 + tiles * TILE])


def test_random_numbers_are_uniform_and_uncorrelated() -> None:
    from scipy import stats

    numbers = np.arange(300, dtype=np.uint64)
    roots = child_keys(np.array([5], np.uint64), numbers)
    u = (child_keys(roots[:, None], numbers) >> np.uint64(11)) * 2.0**-53
    assert stats.kstest(u.ravel(), "uniform").pvalue > 1e-4
    for a, b in ((u[:, :-1], u[:, 1:]), (u[:-1], u[1:]), (u[:-1, :-1], u[1:, 1:])):
        r = np.corrcoef(a.ravel(), b.ravel())[0, 1]
        assert abs(r) < 4.5 / np.sqrt(a.size)
    assert len(np.unique(u)) == u.size
    assert u.max() < 1


def test_streams_differ(model: NCP) -> None:
    x = points(30)
    a, b = model.sample_many([x, x], 50, seed=0)
    assert not np.array_equal(a.expand(), b.expand())
    with pytest.raises(ValueError, match="Expected 1 streams"):
        sample_many(model, [x], 5, streams=[1, 2])


# -- numbers ---------------------------------------------------------------------------------------


def is_sound(samples: Partitions, n: int) -> bool:
    return (
        samples.labels.shape[1] == n
        and bool(np.isfinite(samples.log_q).all())
        and bool((samples.log_q <= 1e-9).all())
        and samples.n_samples == 20
    )


EXTREMES: dict[str, np.ndarray] = {
    "tiny": points(12) * 1e-12,
    "huge": points(12) * 1e12,
    "tiny and huge": np.array([[1e-12, 1e12], [1e12, 1e-12], [0.0, 0.0], [-1e12, 1e12]]),
    "all equal": np.full((12, 2), 3.0),
    "all zero": np.zeros((12, 2)),
    "one far outlier": np.vstack([points(12), [[1e9, -1e9]]]),
    "subnormal": np.full((5, 2), 5e-324),
    "one point": points(1),
    "two points": points(2),
    "two equal points": np.ones((2, 2)),
    "float16": points(12).astype(np.float16),
    "float32": points(12).astype(np.float32),
    "longdouble": points(12).astype(np.longdouble),
    "int64": points(12).astype(np.int64),
    "int8": points(12).astype(np.int8),
    "uint64": np.arange(24, dtype=np.uint64).reshape(12, 2),
    "unsigned long long": np.arange(24).astype(np.ulonglong).reshape(12, 2),
    "big-endian": points(12).astype(">f8"),
    "Fortran order": np.asfortranarray(points(12)),
    "every other row": points(24)[::2],
    "reversed": points(12)[::-1],
    "transposed": points(12).T.copy().T,
    "broadcast": np.broadcast_to(points(1), (12, 2)),
}


def read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("name", EXTREMES)
def test_numbers_of_all_kinds(model: NCP, full: NCP, name: str) -> None:
    """Probabilities are finite for every network, however far out the data."""
    for network, x in ((full, EXTREMES[name]), (model, read_only(EXTREMES[name]))):
        assert is_sound(network.sample(x, 20, seed=0), len(x))
        assert is_sound(network.sample(x, 20, orders="each", seed=0), len(x))
        best = network.map(x, beam=3)
        assert np.isfinite(best.log_q).all()
        chances = network.assign(x[:3], x, best.labels[0])
        assert bool(chances.isfinite().all())
        np.testing.assert_allclose(chances.sum(1), 1.0)
        assert np.isfinite(network.log_prob(x, best.labels).detach().numpy()).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39, -1e300])
def test_what_single_precision_cannot_hold_is_refused(model: NCP, bad: float) -> None:
    x = points(5)
    x[2, 1] = bad
    for call in (
        lambda: model.sample(x, 5),
        lambda: model.map(x),
        lambda: model.assign(x, points(3), [0, 0, 1]),
        lambda: model.log_prob(x, [0, 0, 0, 0, 0]),
    ):
        with pytest.raises(ValueError, match="Expected finite data"):
            call()


@pytest.mark.parametrize("size", [1e15, 1e25, 1e37])
def test_a_network_that_overflows_says_so(full: NCP, size: float) -> None:
    """Nothing that is not a number comes out as a probability."""
    x = points(6) * size
    try:
        samples = full.sample(x, 20, seed=0)
    except ValueError as error:
        assert "Expected" in str(error)  # noqa: PT017
    else:
        assert is_sound(samples, 6)


@pytest.mark.parametrize("name", EXTREMES)
def test_weights_and_summaries_of_extremes(model: NCP, name: str) -> None:
    """Importance weights and summaries are finite, or the caller is told."""
    x = EXTREMES[name].astype(np.float64)
    samples = model.sample(x, 20, seed=0)
    assert model.mixture is not None
    try:
        weighted = samples.reweight(model.mixture)
    except ValueError as error:
        assert "xpected" in str(error)  # noqa: PT017
    else:
        assert np.isfinite(weighted.weights).all()
        np.testing.assert_allclose(weighted.weights.sum(), 1.0)
        assert weighted.report.verdict
    said = summarise(samples.labels, samples.weights, n_restarts=1)
    assert np.isfinite(said.confidence).all()


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("kind", ["gaussian", "tabular"])
def test_tables_of_all_kinds(name: str, kind: str) -> None:
    network = gaussian() if kind == "gaussian" else tabular()
    x = EXTREMES[name].astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            found = cluster(x, network, n_samples=20, seed=0)
        except ValueError as error:
            assert "xpected" in str(error)  # noqa: PT017
            return
    assert found.labels.shape == (len(x),)
    assert np.isfinite(found.confidence[found.labels >= 0]).all()
    far = np.abs(x).max() > 1e6 or np.ptp(x) < 1e-6
    if kind == "gaussian" and far and len(x) > 4:
        assert found.warnings


def test_weights_that_are_not_numbers_are_refused() -> None:
    for bad in (np.nan, np.inf):
        for function in (effective_sample_size, log_evidence):
            with pytest.raises(ValueError, match="xpected"):
                function(np.array([0.0, bad]))


# -- memory ----------------------------------------------------------------------------------------

LIMITED = """
import resource, sys
import torch
from ncp.model import load
from ncp.network.pretrained import names
from tests.small_models import gaussian
torch.set_num_threads(1)
model = load("gaussian-2d") if "gaussian-2d" in names() else gaussian()
limit = int(float(sys.argv[3]) * 2**30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
x = torch.randn(int(sys.argv[2]), 2, generator=torch.Generator().manual_seed(0)) * 10
try:
    samples = model.sample(x, int(sys.argv[1]), seed=0)
except ValueError as error:
    sys.exit(str(error))
print(samples.n_samples, samples.n_points, len(samples))
"""


def limited(n_samples: int, n_points: int, gibibytes: float) -> list[str]:
    """What a sampler prints that may not take up more than so much address space."""
    arguments = [str(n_samples), str(n_points), str(gibibytes)]
    command = [sys.executable, "-c", LIMITED, *arguments]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode in (0, 1), run.stderr
    return (run.stdout or run.stderr).split()


def test_many_samples_in_little_memory() -> None:
    assert limited(10_000, 30, 1.5)[:2] == ["10000", "30"]


def test_many_points_in_little_memory() -> None:
    assert limited(3, 500, 1.5)[:2] == ["3", "500"]


@pytest.mark.slow
@pytest.mark.parametrize(("n_samples", "n_points"), [(100_000, 100), (10, 20_000)])
def test_the_largest_requests_in_three_gibibytes(n_samples: int, n_points: int) -> None:
    assert limited(n_samples, n_points, 3.0)[:2] == [str(n_samples), str(n_points)]


def test_what_will_not_fit_is_refused_beforehand() -> None:
    said = " ".join(limited(10_000_000, 1000, 3.0))
    assert "GiB of memory" in said
    assert "fewer samples" in said


WATCHED = """
import sys, time
import torch
from tests import fuzz
fuzz.SECONDS = 0.5
if sys.argv[1] == "memory":
    fuzz.limit_memory()
    target = lambda case: torch.ones(2**29)  # 2 GiB
else:
    target = lambda case: time.sleep(30)
fuzz.Counter(target)(None)
"""


@pytest.mark.parametrize(("fault", "said"), [("memory", "alloc"), ("hang", "Timeout (0:00:00")])
def test_the_fuzzer_sees_what_it_watches_for(fault: str, said: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", WATCHED, fault], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 1
    assert said in run.stderr
