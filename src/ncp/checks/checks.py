r"""Is the posterior right? Tests that need only samples, and exact ones where they exist.

A sampler q(c | x) is judged on data sets whose true partition is known because we drew it:

    c* ~ p(c),   x ~ p(x | c*),   c_1, ..., c_L ~ q(c | x).

If q is the posterior, then c* is one more draw from it: (c*, c_1, ..., c_L) are exchangeable
given x. Three tests follow.

*Simulation-based calibration.* For any statistic T(c, x) the rank of T(c*) among the T(c_l) is
uniform. T takes few values here (K, a cluster size), so ties are split at random,

    u = (#{T_l < T*} + V (#{T_l = T*} + 1)) / (L + 1),   V ~ U(0, 1),

which is exactly uniform on (0, 1) for every L. Uniformity is tested by chi-square on bins and by
the empirical distribution function, which must stay inside a band that holds it *everywhere at
once* with a given probability.

*Reliability.* Among pairs of points said to share a cluster with probability s, a fraction s does.
The null distribution of the calibration error comes from putting one of the c_l in the place of c*.

*Geweke's joint test.* Alternating x ~ p(x | c) and c ~ q(c | x) keeps p(c), so the number of
clusters after several rounds must still have its prior distribution.

Where p(c | x) is known, q is compared with it directly: Kullback-Leibler divergence and total
variation over all partitions at small N, total variation of the last conditional at any N, and
the effective sample size of importance weights p(c, x) / q(c | x). A q that is a posterior cannot
depend on the order of the points either; `permutation_spread` measures how much it does.

Everything takes callables and arrays. `sample_many(data_sets, n_samples=..., seed=...)` returns,
for each data set, rows of labels with weights (a `Partitions`, or a tuple of labels (U, N),
weights (U,) and, for importance weights, log q (U,)). `log_prob(x, labels)` takes x (N, *event)
with labels (R, N), or x (B, N, *event) with labels (B, N).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ncp.generative.mixture import Mixture
from ncp.inference.exact import last_conditional, posterior
from ncp.inference.importance import effective_sample_size
from ncp.partitions import canonical, counts, random_orders
from ncp.posterior import Partitions
from ncp.summary.summary import point_estimate

Progress = Callable[[str, int, int], None]
LogProb = Callable[[Tensor, Tensor], Any]
Statistic = Callable[[Tensor, np.ndarray], np.ndarray]

LEVEL = 0.01  # a right posterior fails a test this often


@runtime_checkable
class SampleMany(Protocol):
    """Draws from q(c | x) for many data sets at once; `NCP.sample_many` is one."""

    def __call__(self, xs: Sequence[Any], /, *, n_samples: int, seed: int) -> Sequence[Any]: ...


class Draws(NamedTuple):
    """Posterior draws of one data set: distinct rows, normalised weights, log q if known."""

    labels: Int64[np.ndarray, "rows points"]
    weights: Float64[np.ndarray, " rows"]
    log_q: Float64[np.ndarray, " rows"] | None = None


def as_draws(result: Any) -> Draws:
    """What a sampler returned for one data set, as `Draws`.

    Example:
        >>> as_draws((np.array([[0, 0], [0, 1]]), np.array([3, 1]))).weights
        array([0.75, 0.25])
    """
    if isinstance(result, Partitions):
        return Draws(result.labels, result.weights, result.log_q)
    labels, weights, *rest = result
    labels, weights = np.asarray(labels, dtype=np.int64), np.asarray(weights, dtype=np.float64)
    if labels.ndim != 2 or weights.shape != labels.shape[:1] or not len(labels):
        raise ValueError(
            "Expected labels of shape (U, N) and weights of shape (U,) "
            f"but got {labels.shape} and {weights.shape}"
        )
    log_q = np.asarray(rest[0], dtype=np.float64) if rest and rest[0] is not None else None
    return Draws(labels, weights / weights.sum(), log_q)


@dataclass(frozen=True, eq=False)
class Simulation:
    """Data sets from the prior, their true partitions, and what the sampler says about them."""

    x: tuple[Tensor, ...]
    labels: tuple[np.ndarray, ...]
    draws: tuple[Draws, ...]
    n_samples: int

    def __len__(self) -> int:
        return len(self.x)


def simulate(
    sample_many: SampleMany,
    mixture: Mixture,
    *,
    n_datasets: int = 1000,
    n_points: int | None = None,
    n_samples: int = 200,
    seed: int = 0,
    batch_size: int = 50,
    progress: Progress | None = None,
) -> Simulation:
    """Draw c* ~ p(c), x ~ p(x | c*) and L samples of q(c | x), for many data sets.

    Args:
        sample_many: the sampler on trial.
        mixture: the model that it claims to invert.
        n_datasets: the number of data sets D.
        n_points: N; by default uniform in `mixture.sizes`, anew for every batch.
        n_samples: L.
        seed: fixes the data and is passed on, changed for every batch, to the sampler.
        batch_size: data sets per call of the sampler.
        progress: called as `progress(what, done, total)`.
    """
    seeds = _seeds(seed, 1 + -(-n_datasets // batch_size))
    generator = torch.Generator().manual_seed(seeds[0])
    x: list[Tensor] = []
    labels: list[np.ndarray] = []
    draws: list[Draws] = []
    for start, batch_seed in zip(range(0, n_datasets, batch_size), seeds[1:], strict=True):
        size = min(batch_size, n_datasets - start)
        batch = mixture.sample(size, n_points, generator=generator)
        result = sample_many(list(batch.x), n_samples=n_samples, seed=batch_seed)
        if len(result) != size:
            raise ValueError(f"Expected samples for {size} data sets but got {len(result)}")
        x.extend(batch.x)
        labels.extend(batch.labels.numpy())
        draws.extend(as_draws(one) for one in result)
        _tell(progress, f"{n_samples} samples a data set", start + size, n_datasets)
    return Simulation(tuple(x), tuple(labels), tuple(draws), n_samples)


# -- simulation-based calibration ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RankTest:
    """Randomised ranks u of one statistic, uniform on (0, 1) if the posterior is right."""

    name: str
    u: Float64[np.ndarray, " datasets"]
    chi_square_p: float
    ecdf_p: float
    level: float = LEVEL

    @property
    def p_value(self) -> float:
        """The smaller of the two p-values, corrected for having looked at two."""
        return min(1.0, 2.0 * min(self.chi_square_p, self.ecdf_p))

    @property
    def passed(self) -> bool:
        return self.p_value >= self.level

    def band(self, coverage: float = 0.95) -> Band:
        """Where the ECDF of u stays, all of it, with this probability if u is uniform."""
        return ecdf_band(len(self.u), coverage)


@dataclass(frozen=True, eq=False)
class CalibrationResult:
    """Simulation-based calibration: one rank test for each statistic."""

    tests: tuple[RankTest, ...]

    @property
    def passed(self) -> bool:
        """All statistics pass; their levels add up to the level of the whole."""
        return all(test.passed for test in self.tests)

    def __getitem__(self, name: str) -> RankTest:
        return next(test for test in self.tests if test.name == name)


def sbc(
    simulation: Simulation,
    mixture: Mixture | None = None,
    *,
    statistics: Mapping[str, Statistic] | None = None,
    level: float = LEVEL,
    n_bins: int = 20,
    seed: int = 0,
) -> CalibrationResult:
    """Simulation-based calibration of K, the largest cluster, a random pair, and log p(c, x).

    Args:
        simulation: data sets, truths and posterior draws.
        mixture: if given and conjugate, log p(c, x) is one of the statistics. It is the one that
            sees a posterior that has forgotten the data.
        statistics: more of them by name: T(x (N, *event), labels (R, N)) -> (R,).
        level: how often a right posterior may fail the whole.
        n_bins: bins of the chi-square test.
        seed: of tie-breaking and of the choice of pairs.
    """
    rng = np.random.default_rng(_seeds(seed, 1)[0])
    use_joint = mixture is not None and mixture.is_conjugate
    ranks: dict[str, list[float]] = {}
    for x, truth, draws in zip(simulation.x, simulation.labels, simulation.draws, strict=True):
        rows = np.concatenate([truth[None], draws.labels])
        values = _standard_statistics(rows, rng)
        if use_joint:
            assert mixture is not None
            values["log joint"] = _numpy(mixture.log_joint(x, rows))
        for name, statistic in (statistics or {}).items():
            values[name] = np.asarray(statistic(x, rows))
        for name, value in values.items():
            u = _rank(value, draws.weights, simulation.n_samples, rng.random())
            ranks.setdefault(name, []).append(u)
    share = level / len(ranks)
    return CalibrationResult(
        tuple(rank_test(name, np.array(u), n_bins, share) for name, u in ranks.items())
    )


def _standard_statistics(rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    values = {"K": rows.max(1) + 1, "largest cluster": _numpy(counts(rows).amax(-1))}
    if rows.shape[1] > 1:
        i, j = rng.choice(rows.shape[1], 2, replace=False)
        values["random pair"] = (rows[:, i] == rows[:, j]).astype(np.int64)
    return values


def _rank(values: np.ndarray, weights: np.ndarray, n_samples: int, v: float) -> float:
    """The randomised rank of values[0], the truth, among the others."""
    truth, drawn = values[0], values[1:]
    # log joints of equal partitions may differ in the last bits
    same = np.abs(drawn - truth) <= 1e-9 * max(1.0, abs(truth))
    less = n_samples * weights[(drawn < truth) & ~same].sum()
    equal = n_samples * weights[same].sum()
    return float((less + v * (equal + 1)) / (n_samples + 1))


def rank_test(
    name: str, u: Float64[np.ndarray, " datasets"], n_bins: int = 20, level: float = LEVEL
) -> RankTest:
    """Test that u (D,) is uniform, by chi-square and by the ECDF band.

    Example:
        >>> rank_test("even", (np.arange(100) + 0.5) / 100, n_bins=10).chi_square_p
        1.0
    """
    from scipy.stats import chisquare

    n_bins = max(2, min(n_bins, len(u) // 5))
    frequencies = np.histogram(u, n_bins, (0.0, 1.0))[0]
    return RankTest(name, u, float(chisquare(frequencies).pvalue), ecdf_p_value(u), level)


class Band(NamedTuple):
    """Where the ECDF of uniform numbers stays, at all grid points at once."""

    grid: Float64[np.ndarray, " grid"]
    lower: Float64[np.ndarray, " grid"]
    upper: Float64[np.ndarray, " grid"]


def ecdf_band(n: int, coverage: float = 0.95) -> Band:
    """A simultaneous band for the ECDF of n uniform numbers.

    At grid point z the count below z is Binomial(n, z). The band is made of central binomial
    intervals that all leave out the same tail probability gamma, with gamma such that the whole
    ECDF is inside with probability `coverage`.

    Example:
        >>> band = ecdf_band(100)
        >>> bool((band.lower <= band.grid).all() and (band.grid <= band.upper).all())
        True
    """
    from scipy.stats import binom

    grid = _grid(n)
    gamma = float(np.quantile(_null_tails(n), 1 - coverage))
    lower, upper = binom.ppf(gamma / 2, n, grid), binom.ppf(1 - gamma / 2, n, grid)
    return Band(grid, np.asarray(lower) / n, np.asarray(upper) / n)


def ecdf_p_value(u: Float64[np.ndarray, " datasets"]) -> float:
    """How probable it is that the ECDF of uniform numbers leaves a band as wide as u needs."""
    n = len(u)
    below = np.searchsorted(np.sort(u), _grid(n), side="right")
    observed = _tails(n)[np.arange(len(below)), below].min()
    null = _null_tails(n)
    return float((1 + (null <= observed * (1 + 1e-12)).sum()) / (1 + len(null)))


def _grid(n: int) -> np.ndarray:
    size = min(100, max(n, 2))
    return np.arange(1, size) / size


@lru_cache(maxsize=16)
def _tails(n: int) -> np.ndarray:
    """Two-sided tail probability of each count r = 0..n at each grid point, (Z, n + 1)."""
    from scipy.stats import binom

    r, z = np.arange(n + 1), _grid(n)[:, None]
    return np.asarray(2 * np.minimum(binom.cdf(r, n, z), binom.sf(r - 1, n, z)))


@lru_cache(maxsize=16)
def _null_tails(n: int, n_simulations: int = 10_000) -> np.ndarray:
    """The smallest tail probability along the ECDF of n uniform numbers, many times over."""
    size = len(_grid(n)) + 1
    rng = np.random.default_rng(n)  # fixed: a p-value should not depend on the day
    below = rng.multinomial(n, np.full(size, 1 / size), n_simulations).cumsum(1)[:, :-1]
    return np.asarray(_tails(n)[np.arange(size - 1), below].min(1))


# -- reliability of co-clustering probabilities ----------------------------------------------------


@dataclass(frozen=True, eq=False)
class Reliability:
    """Said and seen frequencies of sharing a cluster, by bins of the said probability."""

    predicted: Float64[np.ndarray, " bins"]  # NaN where a bin is empty
    observed: Float64[np.ndarray, " bins"]
    counts: Int64[np.ndarray, " bins"]
    lower: Float64[np.ndarray, " bins"]  # a right posterior's `observed` is between these two
    upper: Float64[np.ndarray, " bins"]  # 95 times in 100
    error: float  # expected calibration error
    noise: float  # the error that a right posterior exceeds once in a hundred
    p_value: float
    max_error: float = 0.02

    @property
    def passed(self) -> bool:
        """The error is small, or no larger than chance makes that of a right posterior."""
        return self.error <= max(self.max_error, self.noise)


def reliability(
    simulation: Simulation,
    *,
    n_bins: int = 10,
    max_pairs: int = 500,
    n_resamples: int = 400,
    max_error: float = 0.02,
    seed: int = 0,
) -> Reliability:
    r"""Calibration curve of the co-clustering probabilities s_ij, and the calibration error

        ECE = \sum_b (n_b / n) |mean of 1[c*_i = c*_j] - mean of s_ij|,   over the bins b.

    Pairs of one data set depend on each other, so the p-value does not count them as independent:
    its null distribution puts a posterior draw in the place of the truth, data set by data set.

    Args:
        simulation: data sets, truths and posterior draws.
        n_bins: equal bins of [0, 1].
        max_pairs: pairs used of one data set, chosen at random.
        n_resamples: draws from the null distribution.
        max_error: the ECE that still passes.
        seed: of the choice of pairs and of the null distribution.
    """
    rng = np.random.default_rng(_seeds(seed, 1)[0])
    n, said, seen = np.zeros(n_bins), np.zeros(n_bins), np.zeros(n_bins)
    null = np.zeros((n_resamples, n_bins))
    for truth, draws in zip(simulation.labels, simulation.draws, strict=True):
        i, j = np.triu_indices(len(truth), 1)
        if len(i) > max_pairs:
            chosen = rng.choice(len(i), max_pairs, replace=False)
            i, j = i[chosen], j[chosen]
        together = (draws.labels[:, i] == draws.labels[:, j]).astype(np.float64)  # (U, pairs)
        similarity = draws.weights @ together
        bins = np.eye(n_bins)[np.minimum((similarity * n_bins).astype(int), n_bins - 1)]
        n += bins.sum(0)
        said += similarity @ bins
        seen += (truth[i] == truth[j]) @ bins
        null += (together @ bins)[rng.choice(len(together), n_resamples, p=draws.weights)]
    error, null_error = (np.abs(s - said).sum(-1) / n.sum() for s in (seen, null))
    with np.errstate(invalid="ignore"):
        lower, upper = np.quantile(null / n, [0.025, 0.975], axis=0)
        return Reliability(
            said / n,
            seen / n,
            n.astype(np.int64),
            lower,
            upper,
            float(error),
            float(np.quantile(null_error, 0.99)),
            float((1 + (null_error >= error).sum()) / (1 + n_resamples)),
            max_error,
        )


# -- Geweke's joint test ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GewekeResult:
    """The number of clusters under the prior and after rounds of x | c and c | x."""

    prior: Float64[np.ndarray, " k"]  # frequencies of K = 1, 2, ...
    after: Float64[np.ndarray, " k"]
    chi_square_p: float
    mean_p: float
    level: float = LEVEL

    @property
    def p_value(self) -> float:
        """The smaller of the two p-values, corrected for having looked at two."""
        return min(1.0, 2.0 * min(self.chi_square_p, self.mean_p))

    @property
    def passed(self) -> bool:
        return self.p_value >= self.level


def geweke(
    sample_many: SampleMany,
    mixture: Mixture,
    *,
    n_chains: int = 1000,
    n_rounds: int = 5,
    n_points: int = 20,
    level: float = LEVEL,
    seed: int = 0,
    progress: Progress | None = None,
) -> GewekeResult:
    """Geweke's joint test: K ~ p(K) must survive `n_rounds` of x ~ p(x | c), c ~ q(c | x).

    The chains are independent, so no autocorrelation enters; errors of q add up over the rounds.

    Args:
        sample_many: the sampler on trial.
        mixture: the model; its likelihood supplies x | c.
        n_chains: independent chains.
        n_rounds: rounds of each.
        n_points: N.
        level: how often a right posterior may fail.
        seed: of everything.
        progress: called as `progress(what, done, total)`.
    """
    seeds = _seeds(seed, n_rounds + 3)
    generator = torch.Generator().manual_seed(seeds[0])
    rng = np.random.default_rng(seeds[1])
    labels = mixture.sample(n_chains, n_points, generator=generator).labels
    for n, round_seed in enumerate(seeds[3:], 1):
        x = _observations(mixture, labels, generator)
        results = [as_draws(one) for one in sample_many(list(x), n_samples=1, seed=round_seed)]
        rows = [draws.labels[rng.choice(len(draws.labels), p=draws.weights)] for draws in results]
        labels = torch.as_tensor(np.stack(rows))
        _tell(progress, "Geweke's joint test", n, n_rounds)
    reference = _prior_k(mixture, 50 * n_chains, n_points, seeds[2])
    return _compare_k(reference, _numpy(labels.amax(1)) + 1, level)


def _prior_k(mixture: Mixture, n_draws: int, n_points: int, seed: int) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    k = _numpy(mixture.prior.sample(n_draws, n_points, generator=generator).amax(1)) + 1
    limit = mixture.likelihood.max_clusters
    return k if limit is None else k[k <= limit]


def _observations(mixture: Mixture, labels: Tensor, generator: torch.Generator) -> Tensor:
    shape = (len(labels), int(labels.max()) + 1)
    parameters = mixture.likelihood.sample_parameters(shape, generator)
    return mixture.likelihood.sample_observations(parameters, labels, generator)


def _compare_k(prior: np.ndarray, after: np.ndarray, level: float) -> GewekeResult:
    from scipy.stats import chi2_contingency, norm

    width = max(prior.max(), after.max()) + 1
    table = np.stack([np.bincount(k, minlength=width)[1:] for k in (prior, after)])
    pooled = _pool(table, smallest=5.0)
    chi_square_p = float(chi2_contingency(pooled).pvalue) if pooled.shape[1] > 1 else 1.0
    variance = prior.var() * (1 / len(after) + 1 / len(prior))
    z = (after.mean() - prior.mean()) / np.sqrt(variance) if variance > 0 else 0.0
    frequencies = table / table.sum(1, keepdims=True)
    return GewekeResult(
        frequencies[0], frequencies[1], chi_square_p, float(2 * norm.sf(abs(z))), level
    )


def _pool(table: np.ndarray, smallest: float) -> np.ndarray:
    """Merge neighbouring columns until each expects at least `smallest` in every row."""
    share = table.sum(1).min() / table.sum()
    columns: list[np.ndarray] = []
    waiting = np.zeros(len(table), dtype=np.int64)
    for column in table.T:
        waiting = waiting + column
        if waiting.sum() * share >= smallest:
            columns.append(waiting)
            waiting = np.zeros_like(waiting)
    if waiting.any() and columns:
        columns[-1] = columns[-1] + waiting
    return np.stack(columns, 1) if columns else table.sum(1, keepdims=True)


# -- against the exact posterior -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Discrepancies:
    """Distances between q and the truth over many data sets, and the mean that still passes."""

    values: Float64[np.ndarray, " datasets"]
    max_mean: float
    max_p95: float = np.inf

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def standard_error(self) -> float:
        """Of the mean, over data sets."""
        return float(self.values.std(ddof=1) / np.sqrt(len(self.values)))

    @property
    def p95(self) -> float:
        """The 95th percentile."""
        return float(np.quantile(self.values, 0.95))

    @property
    def passed(self) -> bool:
        return self.mean <= self.max_mean and self.p95 <= self.max_p95


@dataclass(frozen=True, eq=False)
class ExactComparison:
    """q against the posterior by enumeration."""

    kl: Discrepancies  # KL(p || q), nats
    tv: Discrepancies  # total variation
    normalisation_error: float  # largest |sum over partitions of q - 1|

    @property
    def passed(self) -> bool:
        return self.kl.passed and self.tv.passed


def exact_comparison(
    log_prob: LogProb,
    mixture: Mixture,
    *,
    n_datasets: int = 100,
    n_points: int = 8,
    max_kl: float = 0.01,
    max_tv: float = 0.05,
    seed: int = 0,
    progress: Progress | None = None,
) -> ExactComparison:
    r"""Over all partitions of N points,

        KL(p || q) = \sum_c p(c | x) (log p(c | x) - log q(c | x)),
        TV(p, q) = 1/2 \sum_c |p(c | x) - q(c | x)|.

    Args:
        log_prob: log q(c | x).
        mixture: a conjugate model.
        n_datasets: data sets drawn from it.
        n_points: N, at most 12; the cost is Bell(N) rows a data set (4,140 at N = 8).
        max_kl: mean KL that still passes.
        max_tv: mean TV that still passes.
        seed: of the data.
        progress: called as `progress(what, done, total)`.
    """
    generator = torch.Generator().manual_seed(_seeds(seed, 1)[0])
    batch = mixture.sample(n_datasets, n_points, generator=generator)
    kl, tv, errors = [], [], []
    for n, x in enumerate(batch.x, 1):
        exact = posterior(x, mixture)
        log_q = _evaluate(log_prob, x, torch.as_tensor(exact.labels))
        p, q = np.exp(exact.log_prob), np.exp(log_q)
        kl.append(float(p @ (exact.log_prob - log_q)))
        tv.append(0.5 * float(np.abs(p - q).sum()))
        errors.append(abs(float(q.sum()) - 1))
        _tell(progress, f"all partitions of {n_points} points", n, n_datasets)
    return ExactComparison(
        Discrepancies(np.array(kl), max_kl), Discrepancies(np.array(tv), max_tv), max(errors)
    )


def last_point_tv(
    log_prob: LogProb,
    mixture: Mixture,
    *,
    n_points: int = 50,
    n_datasets: int = 1000,
    max_mean: float = 0.005,
    max_p95: float = 0.02,
    seed: int = 0,
    progress: Progress | None = None,
) -> Discrepancies:
    r"""Total variation between q(c_N | c_{1:N-1}, x) and the exact conditional.

    The first N - 1 labels are the true ones. By the chain rule the conditional of the last point
    is q(c_{1:N-1}, k | x) normalised over k, so `log_prob` is all that is needed.

    Args:
        log_prob: log q(c | x).
        mixture: a conjugate model.
        n_points: N.
        n_datasets: data sets drawn from it.
        max_mean: the mean that still passes.
        max_p95: the 95th percentile that still passes.
        seed: of the data.
        progress: called as `progress(what, done, total)`.
    """
    generator = torch.Generator().manual_seed(_seeds(seed, 1)[0])
    batch = mixture.sample(n_datasets, n_points, generator=generator)
    exact = last_conditional(batch.x, batch.labels, mixture)  # (D, K + 1)
    n_candidates = batch.labels[:, :-1].amax(1) + 2
    row = torch.repeat_interleave(n_candidates)
    k = torch.arange(len(row)) - (n_candidates.cumsum(0) - n_candidates)[row]
    labels = torch.cat([batch.labels[row, :-1], k[:, None]], 1)
    log_q = _evaluate_rows(log_prob, batch.x, row, labels, f"last point of {n_points}", progress)
    table = np.full(exact.shape, -np.inf)
    table[row.numpy(), k.numpy()] = log_q
    q = np.exp(table - table.max(1, keepdims=True))
    q /= q.sum(1, keepdims=True)
    return Discrepancies(0.5 * np.abs(exact - q).sum(1), max_mean, max_p95)


# -- symmetry, efficiency, accuracy ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PermutationSpread:
    """How much q(c | x) changes with the order of the points; a posterior does not."""

    variance: Float64[np.ndarray, " datasets"]  # of log q over orders
    relative: Float64[np.ndarray, " datasets"]  # sd of q over orders, divided by its mean
    max_median: float

    @property
    def median_relative(self) -> float:
        return float(np.median(self.relative))

    @property
    def median_variance(self) -> float:
        return float(np.median(self.variance))

    @property
    def passed(self) -> bool:
        return self.median_relative <= self.max_median


def permutation_spread(
    log_prob: LogProb,
    mixture: Mixture,
    *,
    n_datasets: int = 100,
    n_points: int = 50,
    n_orders: int = 16,
    max_median: float = 0.02,
    seed: int = 0,
    progress: Progress | None = None,
) -> PermutationSpread:
    r"""Var_\pi[log q(c_\pi | x_\pi)] and sd_\pi[q] / mean_\pi[q] over random orders \pi.

    Args:
        log_prob: log q(c | x).
        mixture: where data sets and their true partitions c come from.
        n_datasets: their number D.
        n_points: N.
        n_orders: random orders of each.
        max_median: the median relative spread that still passes.
        seed: of data and orders.
        progress: called as `progress(what, done, total)`.
    """
    generator = torch.Generator().manual_seed(_seeds(seed, 1)[0])
    batch = mixture.sample(n_datasets, n_points, generator=generator)
    orders = random_orders(n_datasets * n_orders, n_points, generator)
    row = torch.arange(n_datasets).repeat_interleave(n_orders)
    labels = canonical(batch.labels[row].gather(1, orders))
    log_q = _evaluate_rows(
        log_prob, batch.x, row, labels, "random orders of the points", progress, orders
    ).reshape(n_datasets, n_orders)
    q = np.exp(log_q - log_q.max(1, keepdims=True))
    relative = q.std(1, ddof=1) / q.mean(1)
    return PermutationSpread(log_q.var(1, ddof=1), relative, max_median)


@dataclass(frozen=True, eq=False)
class Efficiency:
    """Effective sample sizes of importance weights, as fractions of the number of samples."""

    fractions: Float64[np.ndarray, " datasets"]
    n_samples: int
    min_median: float

    @property
    def median(self) -> float:
        return float(np.median(self.fractions))

    @property
    def lowest_decile(self) -> float:
        return float(np.quantile(self.fractions, 0.1))

    @property
    def passed(self) -> bool:
        return self.median >= self.min_median


def efficiency(simulation: Simulation, mixture: Mixture, *, min_median: float = 0.7) -> Efficiency:
    r"""ESS / L of the weights w = p(c, x) / q(c | x) for every data set,

        ESS = (\sum_u n_u w_u)^2 / \sum_u n_u w_u^2,   n_u how often row u was drawn.

    Args:
        simulation: posterior draws with log q.
        mixture: a conjugate model.
        min_median: the median fraction that still passes.
    """
    fractions = []
    for x, draws in zip(simulation.x, simulation.draws, strict=True):
        log_w = _log_weights(x, draws, mixture)
        drawn = np.rint(draws.weights * simulation.n_samples).astype(np.int64)
        fractions.append(effective_sample_size(log_w, drawn) / simulation.n_samples)
    return Efficiency(np.array(fractions), simulation.n_samples, min_median)


def reweighted(simulation: Simulation, mixture: Mixture) -> Simulation:
    """The same draws with importance weights, as `ncp.cluster` uses them.

    Args:
        simulation: posterior draws with log q.
        mixture: a conjugate model.
    """
    draws = []
    for x, drawn in zip(simulation.x, simulation.draws, strict=True):
        log_w = _log_weights(x, drawn, mixture)
        weights = drawn.weights * np.exp(log_w - log_w.max())
        draws.append(drawn._replace(weights=weights / weights.sum()))
    return replace(simulation, draws=tuple(draws))


def _log_weights(x: Tensor, draws: Draws, mixture: Mixture) -> Float64[np.ndarray, " rows"]:
    if draws.log_q is None:
        raise ValueError("Expected draws with log q but the sampler gave none")
    return np.asarray(_numpy(mixture.log_joint(x, draws.labels)) - draws.log_q)


def k_mode_accuracy(simulation: Simulation) -> float:
    """How often the posterior mode of K is the true K."""
    hits = [
        np.bincount(draws.labels.max(1), draws.weights).argmax() == truth.max()
        for truth, draws in zip(simulation.labels, simulation.draws, strict=True)
    ]
    return float(np.mean(hits))


def point_estimate_ari(
    simulation: Simulation,
    estimate: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
    progress: Progress | None = None,
) -> Float64[np.ndarray, " datasets"]:
    """Adjusted Rand index of a point estimate against the truth, for every data set, (D,).

    Args:
        simulation: data sets, truths and posterior draws.
        estimate: labels (U, N), weights (U,) -> labels (N,); by default the one that minimises
            the expected variation of information.
        progress: called as `progress(what, done, total)`.
    """
    from sklearn.metrics import adjusted_rand_score

    estimate = estimate or (lambda labels, weights: point_estimate(labels, weights).labels)
    scores = []
    for truth, draws in zip(simulation.labels, simulation.draws, strict=True):
        scores.append(adjusted_rand_score(truth, estimate(draws.labels, draws.weights)))
        _tell(progress, "point estimates", len(scores), len(simulation))
    return np.array(scores)


def nll_per_point(
    log_prob: LogProb,
    mixture: Mixture,
    *,
    n_datasets: int = 200,
    n_points: int = 50,
    seed: int = 0,
    progress: Progress | None = None,
) -> Float64[np.ndarray, " datasets"]:
    """-log q(c* | x) / N of the true partition, for every data set, (D,)."""
    generator = torch.Generator().manual_seed(_seeds(seed, 1)[0])
    batch = mixture.sample(n_datasets, n_points, generator=generator)
    every = torch.arange(n_datasets)
    what = f"likelihood of {n_points} points"
    return -_evaluate_rows(log_prob, batch.x, every, batch.labels, what, progress) / n_points


# -- the whole check -------------------------------------------------------------------------------


class CheckRow(NamedTuple):
    """One line of a report."""

    name: str
    value: float
    target: str  # "<= 0.005", or "" when there is none
    passed: bool | None  # None: reported, not judged
    words: str

    @property
    def verdict(self) -> str:
        return {True: "pass", False: "FAIL", None: ""}[self.passed]


@dataclass(frozen=True, eq=False)
class CheckReport:
    """The lines of a check, and the results behind them for figures.

    Example:
        >>> row = CheckRow("KL", 0.004, "<= 0.01", True, "distance to the exact posterior")
        >>> print(CheckReport((row,)))
        check  value   target   verdict  meaning
        -----  ------  -------  -------  -------------------------------
        KL     0.0040  <= 0.01  pass     distance to the exact posterior
    """

    rows: tuple[CheckRow, ...]
    results: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """No line that is judged failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the lines that failed."""
        return tuple(row.name for row in self.rows if row.passed is False)

    def table(self) -> str:
        """The lines as text in columns."""
        header = ("check", "value", "target", "verdict", "meaning")
        # rounding before formatting, so that -1e-17 is not printed as -0.0000
        cells = [header] + [
            (row.name, f"{round(row.value, 4) + 0.0:.4f}", row.target, row.verdict, row.words)
            for row in self.rows
        ]
        widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
        cells.insert(1, tuple("-" * width for width in widths))  # type: ignore[arg-type]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in cells
        )

    def to_dicts(self) -> list[dict[str, Any]]:
        """One plain dict a line, for JSON and CSV."""
        return [row._asdict() for row in self.rows]

    def __str__(self) -> str:
        return self.table()


@dataclass(frozen=True)
class Targets:
    """What a line must reach to pass; `None` reports it without a verdict."""

    tv_mean: float | None = 0.005
    tv_p95: float | None = 0.02
    kl: float | None = 0.01
    ess_median: float | None = 0.85
    ari: float | None = 0.945
    calibration_error: float | None = 0.02
    level: float | None = LEVEL

    @classmethod
    def none(cls) -> Targets:
        """Report everything, judge nothing."""
        return cls(None, None, None, None, None, None, None)


@dataclass(frozen=True)
class CheckPlan:
    """How much of each check is done. `CheckPlan.of` chooses for a mixture."""

    tv_sizes: tuple[int, ...] = (10, 50, 100)
    tv_datasets: int = 1000
    kl_points: int = 8
    kl_datasets: int = 400
    ess_points: int = 50
    ess_datasets: int = 200
    ess_samples: int = 2000
    permutation_points: int = 50
    permutation_datasets: int = 100
    permutation_orders: int = 16
    sbc_datasets: int = 1000
    sbc_samples: int = 200
    geweke_chains: int = 1000
    geweke_rounds: int = 5
    geweke_points: int = 20
    ari_sizes: tuple[int, ...] = (300,)
    ari_datasets: int = 200
    ari_samples: int = 200
    nll_sizes: tuple[int, ...] = (50, 100)
    nll_datasets: int = 200
    chain_datasets: int = 6
    chain_points: int = 50
    chain_samples: int = 200
    targets: Targets = Targets()

    @classmethod
    def of(
        cls, mixture: Mixture, *, quick: bool = False, targets: Targets | None = None
    ) -> CheckPlan:
        """The plan for a mixture: sizes and targets by what kind of model it is.

        Example:
            >>> from ncp.generative.gaussian import GaussianKnownVariance
            >>> from ncp.generative.priors import CRP
            >>> plan = CheckPlan.of(Mixture(CRP(0.7), GaussianKnownVariance(dim=1)), quick=True)
            >>> plan.sbc_datasets, plan.targets.ess_median
            (100, 0.7)
        """
        plan = cls()
        if not mixture.is_conjugate and mixture.has_density:
            plan = replace(plan, ari_sizes=(50, 100), targets=replace(plan.targets, ari=None))
        elif not mixture.is_conjugate:
            plan = replace(
                plan,
                ari_sizes=(20, 100),
                nll_sizes=(20, 100),
                permutation_points=20,
                # images of distinct digits can be told apart; tables need not be
                targets=replace(plan.targets, ari=0.99 if len(mixture.event_shape) > 1 else None),
            )
        elif mixture.event_shape == (1,):
            # clusters of one dimension overlap more: fewer are found, and with more doubt
            plan = replace(plan, targets=replace(plan.targets, ess_median=0.7, ari=None))
        if targets is not None:
            plan = replace(plan, targets=targets)
        return plan.tenth() if quick else plan

    def tenth(self) -> CheckPlan:
        """A tenth of the data sets."""
        names = [name for name in vars(self) if name.endswith(("_datasets", "_chains"))]
        return replace(self, **{name: max(2, getattr(self, name) // 10) for name in names})


def run_checks(
    log_prob: LogProb,
    sample_many: SampleMany,
    mixture: Mixture,
    *,
    plan: CheckPlan | None = None,
    quick: bool = False,
    seed: int = 71_993,
    progress: Progress | None = None,
) -> CheckReport:
    """Every check that applies to a model, as one table.

    A conjugate mixture has exact answers to compare with; a likelihood with a density still has
    Geweke's test and a Markov chain with ten times the time; one that can only be sampled from
    (images) has calibration and accuracy.

    Args:
        log_prob: log q(c | x); `NCP.log_prob` is one.
        sample_many: the sampler; `NCP.sample_many` is one.
        mixture: the model that q claims to invert. Data sets are drawn from it.
        plan: sizes and targets; by default `CheckPlan.of(mixture, quick=quick)`.
        quick: a tenth of the work (when no plan is given).
        seed: of everything; must not be one that was trained on.
        progress: called as `progress(what, done, total)`.
    """
    plan = plan or CheckPlan.of(mixture, quick=quick)
    on = _Trial(log_prob, sample_many, mixture, plan, progress)
    parts = [_calibration_rows, _symmetry_rows, _accuracy_rows]
    if mixture.has_density or mixture.is_conjugate:
        parts.insert(1, _geweke_rows)
    if mixture.is_conjugate:
        parts.insert(0, _exact_rows)
    elif mixture.has_density:
        parts.append(_chain_rows)
    rows: list[CheckRow] = []
    results: dict[str, Any] = {}
    for part, part_seed in zip(parts, _seeds(seed, len(parts)), strict=True):
        for row, key, result in part(on, part_seed):
            rows.append(row)
            results[key] = result
    return CheckReport(tuple(rows), results)


Lines = Iterator[tuple[CheckRow, str, Any]]  # a row, and the result it was read from


class _Trial(NamedTuple):
    """What is on trial, and how."""

    log_prob: LogProb
    sample_many: SampleMany
    mixture: Mixture
    plan: CheckPlan
    progress: Progress | None


def _exact_rows(on: _Trial, seed: int) -> Lines:
    goal = on.plan.targets
    seeds = _seeds(seed, len(on.plan.tv_sizes) + 2)
    for n, tv_seed in zip(on.plan.tv_sizes, seeds[2:], strict=True):
        tv = last_point_tv(
            on.log_prob,
            on.mixture,
            n_points=n,
            n_datasets=on.plan.tv_datasets,
            seed=tv_seed,
            progress=on.progress,
        )
        name = f"last-point TV, N = {n}"
        words = "distance of the last conditional from the exact one"
        yield _row(f"{name}, mean", tv.mean, words, at_most=goal.tv_mean), name, tv
        yield _row(f"{name}, 95%", tv.p95, "its 95th percentile", at_most=goal.tv_p95), name, tv
    n = on.plan.kl_points
    exact = exact_comparison(
        on.log_prob,
        on.mixture,
        n_points=n,
        n_datasets=on.plan.kl_datasets,
        seed=seeds[0],
        progress=on.progress,
    )
    error = exact.kl.standard_error
    words = f"nats per data set, over all partitions of {n} points; standard error {error:.2g}"
    yield _row(f"KL(p || q), N = {n}", exact.kl.mean, words, at_most=goal.kl), "exact", exact
    words = "total variation over the same partitions"
    yield _row(f"TV(p, q), N = {n}", exact.tv.mean, words), "exact", exact
    simulation = simulate(
        on.sample_many,
        on.mixture,
        n_datasets=on.plan.ess_datasets,
        n_points=on.plan.ess_points,
        n_samples=on.plan.ess_samples,
        seed=seeds[1],
        progress=on.progress,
    )
    ess = efficiency(simulation, on.mixture)
    name = f"importance-sampling ESS, N = {on.plan.ess_points}"
    words = f"median over {on.plan.ess_datasets} data sets of {on.plan.ess_samples} samples"
    yield _row(f"{name}, median", ess.median, words, at_least=goal.ess_median), "ess", ess
    yield _row(f"{name}, 10%", ess.lowest_decile, "lowest decile"), "ess", ess


def _calibration_rows(on: _Trial, seed: int) -> Lines:
    goal = on.plan.targets
    seeds = _seeds(seed, 3)
    simulation = simulate(
        on.sample_many,
        on.mixture,
        n_datasets=on.plan.sbc_datasets,
        n_samples=on.plan.sbc_samples,
        seed=seeds[0],
        progress=on.progress,
    )
    calibration = sbc(simulation, on.mixture, level=goal.level or LEVEL, seed=seeds[1])
    for test in calibration.tests:
        least = test.level if goal.level is not None else None
        words = "p-value: is the truth one more posterior draw?"
        yield _row(f"SBC, {test.name}", test.p_value, words, at_least=least), "sbc", calibration
    curve = reliability(simulation, seed=seeds[2])
    words = "gap between said and seen co-clustering frequencies"
    most = goal.calibration_error
    most = most if most is None else max(most, curve.noise)  # few data sets make any curve rough
    yield _row("calibration error", curve.error, words, at_most=most), "reliability", curve
    words = "p-value of that gap under a right posterior"
    yield _row("calibration p-value", curve.p_value, words), "reliability", curve
    accuracy = k_mode_accuracy(simulation)
    words = "how often the posterior mode of K is the true K"
    yield _row("K mode accuracy", accuracy, words), "k mode", accuracy


def _geweke_rows(on: _Trial, seed: int) -> Lines:
    result = geweke(
        on.sample_many,
        on.mixture,
        n_chains=on.plan.geweke_chains,
        n_rounds=on.plan.geweke_rounds,
        n_points=on.plan.geweke_points,
        seed=seed,
        progress=on.progress,
    )
    words = "p-value: does K keep its prior under x | c, c | x?"
    yield _row("Geweke, K", result.p_value, words, at_least=on.plan.targets.level), "geweke", result


def _symmetry_rows(on: _Trial, seed: int) -> Lines:
    spread = permutation_spread(
        on.log_prob,
        on.mixture,
        n_datasets=on.plan.permutation_datasets,
        n_points=on.plan.permutation_points,
        n_orders=on.plan.permutation_orders,
        seed=seed,
        progress=on.progress,
    )
    words = f"median sd/mean of q(c | x) over {on.plan.permutation_orders} orders of the points"
    name = f"order dependence, N = {on.plan.permutation_points}"
    yield _row(f"{name}, relative", spread.median_relative, words), "permutation", spread
    words = "median variance of log q(c | x) over orders"
    yield _row(f"{name}, variance", spread.median_variance, words), "permutation", spread


def _accuracy_rows(on: _Trial, seed: int) -> Lines:
    first, *seeds = _seeds(seed, 1 + len(on.plan.ari_sizes))
    for n, nll_seed in zip(on.plan.nll_sizes, _seeds(first, len(on.plan.nll_sizes)), strict=True):
        nll = nll_per_point(
            on.log_prob,
            on.mixture,
            n_datasets=on.plan.nll_datasets,
            n_points=n,
            seed=nll_seed,
            progress=on.progress,
        )
        words = "nats per point of the true partition"
        yield _row(f"NLL per point, N = {n}", float(nll.mean()), words), f"nll, N = {n}", nll
    for n, ari_seed in zip(on.plan.ari_sizes, seeds, strict=True):
        simulation = simulate(
            on.sample_many,
            on.mixture,
            n_datasets=on.plan.ari_datasets,
            n_points=n,
            n_samples=on.plan.ari_samples,
            seed=ari_seed,
            progress=on.progress,
        )
        kinds = {"": simulation}
        if on.mixture.is_conjugate:
            kinds[", weighted"] = reweighted(simulation, on.mixture)
        for kind, drawn in kinds.items():
            ari = point_estimate_ari(drawn, progress=on.progress)
            words = f"adjusted Rand index of the point estimate{kind}, mean"
            name = f"ARI, N = {n}{kind}"
            yield _row(name, float(ari.mean()), words, at_least=on.plan.targets.ari), name, ari


def _chain_rows(on: _Trial, seed: int) -> Lines:
    from ncp.checks.comparison import beside_chain  # which knows this module

    found = beside_chain(
        on.sample_many,
        on.log_prob,
        on.mixture,
        n_datasets=on.plan.chain_datasets,
        n_points=on.plan.chain_points,
        n_samples=on.plan.chain_samples,
        seed=seed,
        progress=on.progress,
    )
    words = {
        "ari": ("ARI", "the chain starts cold and has ten times the time; mean"),
        "error": ("similarity error", "against a chain that had a hundred times the time; mean"),
        "log_evidence": ("log evidence", "nats; the chain's from that long one; mean"),
        "seconds": ("seconds", f"N = {on.plan.chain_points}, {on.plan.chain_samples} samples"),
    }
    for field_name, (what, meaning) in words.items():
        for prefix, whose in (("", ""), ("chain_", " of the chain")):
            value = float(getattr(found, prefix + field_name).mean())
            if np.isfinite(value):
                yield _row(f"beside algorithm 8, {what}{whose}", value, meaning), "chain", found


def _row(
    name: str,
    value: float,
    words: str,
    at_most: float | None = None,
    at_least: float | None = None,
) -> CheckRow:
    if at_most is not None:
        return CheckRow(name, value, f"<= {at_most:.3g}", value <= at_most, words)
    if at_least is not None:
        return CheckRow(name, value, f">= {at_least:.3g}", value >= at_least, words)
    return CheckRow(name, value, "", None, words)


# -- calling the callables -------------------------------------------------------------------------


def _evaluate(log_prob: LogProb, x: Tensor, labels: Tensor) -> np.ndarray:
    with torch.no_grad():
        return _numpy(log_prob(x, labels)).astype(np.float64)


def _evaluate_rows(
    log_prob: LogProb,
    x: Tensor,
    row: Tensor,
    labels: Tensor,
    what: str,
    progress: Progress | None,
    orders: Tensor | None = None,
    points_at_once: int = 50_000,
) -> np.ndarray:
    """log q of labels (R, N) for data sets x[row], the points of each in its own order."""
    step = max(1, points_at_once // labels.shape[1])
    parts = []
    for i in range(0, len(row), step):
        points = x[row[i : i + step]]
        if orders is not None:
            points = points[torch.arange(len(points))[:, None], orders[i : i + step]]
        parts.append(_evaluate(log_prob, points, labels[i : i + step]))
        _tell(progress, what, min(i + step, len(row)), len(row))
    return np.concatenate(parts)


def _numpy(array: Any) -> np.ndarray:
    return array.detach().cpu().numpy() if isinstance(array, Tensor) else np.asarray(array)


def _tell(progress: Progress | None, what: str, done: int, total: int) -> None:
    if progress is not None:
        progress(what, done, total)


def _seeds(seed: int, n: int) -> list[int]:
    """Unrelated seeds: data and sampler seeded alike would share their random numbers."""
    return [int(s) for s in np.random.SeedSequence(seed).generate_state(n)]
