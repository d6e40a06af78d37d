r"""Importance sampling: exact answers from an approximate sampler.

Draws ``c_s ~ q(c | x)`` with weights ``w_s = p(c_s, x) / q(c_s | x)`` give, for any function r,

    E[r(c) | x] ~= sum_s w_s r(c_s) / sum_s w_s,        p(x) ~= (1 / S) sum_s w_s,

because ``E_q[w r] = p(x) E[r | x]`` and ``E_q[w] = p(x)`` wherever q > 0 if p > 0. The same
partition is drawn many times, so draws come as U distinct rows with counts n_u; every sum over s
is a sum over rows with n_u in front.

*Standard errors.* The ratio is linear in small changes of the weights (delta method): draw s
pulls the estimate by ``W_s (r_s - mean)`` with ``W_s = w_s / sum w``. We take the jackknife form
of its variance, which divides the pull by ``1 - W_s``, what is left when the draw is left out: it
equals the textbook ``sd / sqrt(S)`` for equal weights, agrees with the delta method for many
draws, and does not shrink to zero when one draw carries all the weight.

*Diagnostics.* ``ESS = (sum w)^2 / sum w^2`` says how many equal draws the weights are worth, if
the weights seen are typical. Whether they are, is what k-hat says: the shape of a generalised
Pareto tail fitted to the largest weights (Vehtari et al. 2024); weights have a finite variance
for k < 1/2, and estimates are unreliable for k > 0.7. No diagnostic can see a partition that q
never proposes: weights that look perfect are perfect on the support of q.

*Several orders of the points.* The network's q depends on the order in which it visits the
points. If S / M draws are made in each of M orders, two weights are valid for a draw from order
m: ``p / q_m`` with its own order, and ``p / qbar`` with the average ``qbar = (1/M) sum_m q_m`` over
those M orders, which is the density of the pooled draws (deterministic mixture weights, Owen and
Zhou 2000). The second has the smaller variance. The average over orders that were *not* used for
drawing is not the density of the draws, and weights made from it are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import ArrayLike

__all__ = [
    "Estimate",
    "Report",
    "Smoothed",
    "average_log_q",
    "diagnose",
    "effective_sample_size",
    "ess_of_means",
    "expectation",
    "influence",
    "log_evidence",
    "pareto_smooth",
    "pooled_ess",
    "resample_counts",
    "some_pairs",
    "unseen",
]

Rows: TypeAlias = Float64[np.ndarray, " rows"]
Counts: TypeAlias = Int64[np.ndarray, " rows"]

# Log weights of the tail that agree to this are equal: what is left is rounding in log p - log q.
EQUAL = 1e-8
PAIRS = 2000  # pairs of points that are judged


class Estimate(NamedTuple):
    """A Monte Carlo estimate and its standard error: two float64 numbers or arrays of one shape.

    Example:
        >>> Estimate(np.float64(2.0), np.float64(0.125))
        2 ± 0.12
    """

    value: Any
    standard_error: Any

    def __repr__(self) -> str:
        if np.ndim(self.value) == 0:
            return f"{self.value:.6g} ± {self.standard_error:.2g}"
        return f"Estimate(value={self.value!r}, standard_error={self.standard_error!r})"


# Weights ---------------------------------------------------------------------------------------


def _as_log_weights(log_weights: ArrayLike) -> Rows:
    array = np.asarray(log_weights, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"Expected log weights of shape (rows,) but got {array.shape}")
    if np.isnan(array).any() or not np.isfinite(array.max()):
        raise ValueError("Expected log weights below infinity, not all of them -infinity or nan")
    return array


def _as_counts(counts: ArrayLike | None, n_rows: int) -> Counts:
    if counts is None:
        return np.ones(n_rows, dtype=np.int64)
    array = np.asarray(counts)
    if array.shape != (n_rows,):
        raise ValueError(f"Expected {n_rows} counts, one for each row, but got {array.shape}")
    if array.dtype.kind not in "iu" or array.min() < 1:
        raise ValueError("Expected counts that are integers >= 1")
    return array.astype(np.int64)


def _relative(log_weights: ArrayLike, counts: ArrayLike | None) -> tuple[Rows, Counts, float]:
    """Weights relative to the largest, counts, and the logarithm of the largest."""
    lw = _as_log_weights(log_weights)
    top = float(lw.max())
    return np.exp(lw - top), _as_counts(counts, len(lw)), top


def average_log_q(log_q: ArrayLike) -> Rows:
    """log qbar(c) = log (1/M) sum_m q_m(c), the density of draws pooled over M orders.

    Valid in place of each draw's own log q exactly when the draws were made from the same M
    orders, equally many from each, or each in an order chosen uniformly among them. If every
    draw has M orders of its own, it must have been made in a uniformly chosen one of them.

    Args:
        log_q: log q of each row in each order, of shape (M, U).

    Example:
        >>> np.exp(average_log_q(np.log([[0.2, 0.5], [0.4, 0.1]])))
        array([0.3, 0.3])
    """
    array = np.asarray(log_q, dtype=np.float64)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"Expected log_q of shape (orders, rows) but got {array.shape}")
    return np.asarray(np.logaddexp.reduce(array, axis=0) - np.log(len(array)))


def effective_sample_size(log_weights: ArrayLike, counts: ArrayLike | None = None) -> float:
    """ESS = (sum_u n_u w_u)^2 / sum_u n_u w_u^2, between 1 and S.

    Args:
        log_weights: log w of one draw of each row, in any scale, of shape (U,).
        counts: how many draws each row stands for, of shape (U,); one when left out.

    Example:
        >>> effective_sample_size(np.log([1.0, 3.0]), [3, 1])
        3.0
    """
    w, n, _ = _relative(log_weights, counts)
    return float((n @ w) ** 2 / (n @ w**2))


def ess_of_means(means: Float64[np.ndarray, "runs events"]) -> float:
    """The smallest p (1 - p) / se^2 of events, with se from how far independent runs agree.

    Args:
        means: the frequency of each event in each run.

    Example:
        >>> round(ess_of_means(np.array([[0.4], [0.6]])))  # se 0.1, as of 25 draws
        25
        >>> ess_of_means(np.array([[0.4]]))
        inf
    """
    if len(means) < 2:
        return np.inf
    p, variance = _agreement(means, np.ones(len(means)))
    doubtful = (p > 0.02) & (p < 0.98)  # of rarer events there are too few to judge
    worth = (p * (1.0 - p))[doubtful] / np.maximum(variance[doubtful], 1e-12)
    return float(worth.min(initial=np.inf))


def pooled_ess(
    means: Float64[np.ndarray, "runs events"], weights: Float64[np.ndarray, " runs"]
) -> float:
    """sum p (1 - p) / sum se^2 over events, or less if the weights of runs differ.

    What draws of one run owe to each other, their weights do not tell; so runs are compared. With
    few runs the se of one event is far too small or too large by chance: the worst of many events
    would say little of good draws, their sum does.

    Args:
        means: the frequency of each event in each run.
        weights: of the runs, in any scale.

    Example:
        >>> round(pooled_ess(np.array([[0.4, 0.0], [0.6, 0.0]]), np.ones(2)))
        25
        >>> pooled_ess(np.array([[0.4]]), np.ones(1))
        inf
    """
    if len(means) < 2:
        return np.inf
    p, variance = _agreement(means, weights)
    # runs whose weights differ by much have not found the same partitions, whatever pairs say
    share = weights / weights.sum()
    spread = float((share**2).sum()) - 1.0 / len(share)
    error, worth = float(variance.sum()), float((p * (1.0 - p)).sum())
    of_pairs = worth / error if error > 0 else np.inf
    return min(of_pairs, (1.0 - 1.0 / len(share)) / spread if spread > 1e-12 else np.inf)


def _agreement(
    means: Float64[np.ndarray, "runs events"], weights: Float64[np.ndarray, " runs"]
) -> tuple[Float64[np.ndarray, " events"], Float64[np.ndarray, " events"]]:
    """Frequencies of all runs, and their variances by the jackknife, which leaves out one run."""
    share = weights / weights.sum()
    p = share @ means
    pull = share / np.maximum(1.0 - share, 1e-12)
    return p, (pull**2) @ (means - p) ** 2 * (len(share) - 1) / len(share)


def some_pairs(
    n_points: int, rng: np.random.Generator, most: int = PAIRS
) -> tuple[Int64[np.ndarray, " pairs"], Int64[np.ndarray, " pairs"]]:
    """All pairs of points, or so many at random."""
    if n_points * (n_points - 1) // 2 <= most:
        return np.triu_indices(n_points, 1)
    # one by one, for a list of all would not fit for many points; a pair may come twice
    i, j = rng.integers(n_points, size=most), rng.integers(n_points - 1, size=most)
    return i, j + (j >= i)


def expectation(
    values: ArrayLike,
    log_weights: ArrayLike,
    counts: ArrayLike | None = None,
    bounds: tuple[float, float] | None = None,
) -> Estimate:
    """E[r(c) | x] ~= sum_u n_u w_u r_u / sum_u n_u w_u, with its standard error.

    The standard error is that of independent draws; for draws stratified over orders of the
    points it is on the safe side. It is infinite when a single draw carries all the weight. It is
    zero when r is equal in all draws, as the indicator of a rare event is until the first one:
    where the range of r is known, `bounds` makes the error allow for two unseen draws at each end.

    Args:
        values: r of each row, of shape (U, ...).
        log_weights: log w of one draw of each row, in any scale, of shape (U,).
        counts: how many draws each row stands for, of shape (U,); one when left out.
        bounds: the smallest and largest possible value of r, such as (0, 1) for an indicator.

    Example:
        >>> expectation([2.0, 3.0, 3.0], np.log([1.0, 2.0, 2.0]), [50, 20, 5])
        2.5 ± 0.062
        >>> expectation([0.0, 0.0], np.log([1.0, 1.0]), [60, 40], bounds=(0.0, 1.0))
        0 ± 0.02
    """
    share, pull = influence(log_weights, counts)
    r = np.asarray(values, dtype=np.float64)
    if r.shape[:1] != share.shape:
        raise ValueError(f"Expected values of {len(share)} rows but got shape {r.shape}")
    mean = np.asarray(np.tensordot(share, r, axes=1))
    if np.isinf(pull).any():
        variance = np.where((r == r[0]).all(axis=0), 0.0, np.inf)
    else:
        variance = np.asarray(np.tensordot(pull, (r - mean) ** 2, axes=1))
    if bounds is not None:
        variance = variance + unseen(mean, effective_sample_size(log_weights, counts), bounds)
    # Indexing with () turns arrays without axes into numbers and leaves others alone.
    return Estimate(mean[()], np.sqrt(variance)[()])


def influence(log_weights: ArrayLike, counts: ArrayLike | None = None) -> tuple[Rows, Rows]:
    """What an expectation and its variance are made of.

    With ``W_u = w_u / sum_v n_v w_v`` the share of one draw of row u, the estimate is
    ``m = sum_u (n_u W_u) r_u`` and its variance ``sum_u b_u (r_u - m)^2``, where
    ``b_u = n_u (W_u / (1 - W_u))^2 (S - 1) / S``.

    Returns:
        n_u W_u and b_u, both of shape (U,); b_u is infinite for a draw that carries all weight.

    Example:
        >>> influence(np.zeros(2), [3, 1])[0]
        array([0.75, 0.25])
    """
    w, n, _ = _relative(log_weights, counts)
    n_draws = int(n.sum())
    share = w / (n @ w)
    rest = 1.0 - share
    alone = (n_draws == 1) | (rest < 1e-12)
    pull = n * (share / np.where(alone, 1.0, rest)) ** 2 * (n_draws - 1) / n_draws
    return n * share, np.where(alone, np.inf, pull)


def unseen(
    mean: Float64[np.ndarray, "*shape"], ess: float, bounds: tuple[float, float]
) -> Float64[np.ndarray, "*shape"]:
    """The squared pull of two more effective draws at either end of the range of r.

    Two, as in the interval of Agresti and Coull (1998) for a proportion.
    """
    low, high = bounds
    return np.asarray(((mean - low) ** 2 + (high - mean) ** 2) * (2.0 / ess) ** 2)


def log_evidence(log_weights: ArrayLike, counts: ArrayLike | None = None) -> Estimate:
    """log p(x) ~= log (1/S) sum_u n_u w_u, with its standard error.

    The delta method knows only the weights that were seen: with all of them equal it would promise
    an error of zero, while partitions that q draws less than once in S may carry a mass of 1/S or
    more. So the pull of one more draw as heavy as the heaviest, max w / (S mean w), is added (in
    squares). Weights with a heavy tail hide more than that: the estimate is then too low, since q
    misses what would raise it, and `Report` calls it a lower bound.

    Args:
        log_weights: log p(c, x) - log q(c | x) of each row, unscaled, of shape (U,).
        counts: how many draws each row stands for, of shape (U,); one when left out.

    Example:
        >>> log_evidence(np.log([2.0, 4.0]), [50, 50])
        1.09861 ± 0.036
    """
    w, n, top = _relative(log_weights, counts)
    n_draws = int(n.sum())
    mean = float(n @ w) / n_draws
    if n_draws == 1:
        return Estimate(np.float64(np.log(mean) + top), np.float64(np.inf))
    variance = n @ (w / mean - 1.0) ** 2 / (n_draws - 1) / n_draws
    unseen_pull = 1.0 / (mean * n_draws)  # the largest weight is 1 here
    return Estimate(np.float64(np.log(mean) + top), np.hypot(np.sqrt(variance), unseen_pull))


# Pareto smoothing ------------------------------------------------------------------------------


class Smoothed(NamedTuple):
    """Log weights with a smoothed tail, and the shape of the tail.

    Attributes:
        log_weights: in the scale of the raw ones, of shape (U,).
        k_hat: shape of the Pareto tail; -inf when no weight exceeds the cutoff (equal weights),
            +inf when too few do (1 to 4) for a fit.
    """

    log_weights: Rows
    k_hat: float


def pareto_smooth(log_weights: ArrayLike, counts: ArrayLike | None = None) -> Smoothed:
    """Replace the largest weights by quantiles of the generalised Pareto fitted to them.

    The tail is the ``min(S / 5, 3 sqrt(S))`` largest of the S draws. The values agree with
    ArviZ's ``psislw`` on the expanded draws, with two differences: the draws of one row share
    the mean of their smoothed weights, and weights without a tail have ``k_hat = -inf``
    (perfect) instead of +inf (failed).

    Args:
        log_weights: log w of one draw of each row, of shape (U,).
        counts: how many draws each row stands for, of shape (U,); one when left out.

    Example:
        >>> pareto_smooth(np.zeros(100)).k_hat
        -inf
    """
    lw = _as_log_weights(log_weights)
    n = _as_counts(counts, len(lw))
    top = lw.max()
    row = np.repeat(np.arange(len(lw)), n)
    draws = (lw - top)[row]
    n_draws = len(draws)
    n_tail = int(np.ceil(min(n_draws / 5.0, 3.0 * n_draws**0.5)))
    position = max(n_draws - 1 - n_tail, 0)
    cutoff = max(np.partition(draws, position)[position], np.log(np.finfo(float).tiny))
    tail = np.flatnonzero(draws > cutoff)
    if len(tail) == 0 or -cutoff <= EQUAL:
        return Smoothed(lw.copy(), -np.inf)
    if len(tail) <= 4:
        return Smoothed(lw.copy(), np.inf)
    tail = tail[np.argsort(draws[tail])]
    shape, scale = _fit_pareto(np.exp(draws[tail]) - np.exp(cutoff))
    if not np.isfinite(shape):
        return Smoothed(lw.copy(), np.inf)
    smooth = np.exp(cutoff) + _pareto_quantiles(len(tail), shape, scale)
    weights = np.exp(draws)
    weights[tail] = np.minimum(smooth, 1.0)
    means = np.bincount(row[tail], weights=weights[tail], minlength=len(lw)) / n
    in_tail = lw - top > cutoff  # whole rows, because the draws of a row have one weight
    return Smoothed(np.where(in_tail, np.log(np.where(in_tail, means, 1.0)) + top, lw), shape)


def _fit_pareto(excess: Float64[np.ndarray, " tail"]) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto distribution (Zhang and Stephens 2009).

    In terms of theta = -k / sigma the likelihood is maximal over k at
    ``k(theta) = mean log(1 - theta x)``, which leaves a profile likelihood in one dimension. The
    estimate is its posterior mean over a fixed grid of theta; the shape is then drawn towards
    1/2 as if by ten more observations (Vehtari et al. 2024).

    Args:
        excess: excesses over the cutoff, ascending.
    """
    n = len(excess)
    n_grid = 30 + int(n**0.5)
    grid = np.arange(1, n_grid + 1) - 0.5
    quartile = excess[int(n / 4 + 0.5) - 1]
    with np.errstate(all="ignore"):  # a degenerate tail ends in a nan, which means no fit
        theta = 1.0 / excess[-1] + (1.0 - np.sqrt(n_grid / grid)) / (3.0 * quartile)
        k = np.log1p(-theta[:, None] * excess).mean(axis=1)
        profile = n * (np.log(-theta / k) - k - 1.0)
        posterior = np.exp(profile - np.logaddexp.reduce(profile))
        posterior[posterior < 10 * np.finfo(float).eps] = 0.0
        best = float(theta @ posterior / posterior.sum())
        shape = float(np.log1p(-best * excess).mean())
        scale = -shape / best
    return (n * shape + 5.0) / (n + 10.0), scale


def _pareto_quantiles(n: int, shape: float, scale: float) -> Float64[np.ndarray, " tail"]:
    """The quantiles at (i + 1/2) / n of the generalised Pareto distribution."""
    log_survival = np.log1p(-(np.arange(n) + 0.5) / n)
    if abs(shape) < np.finfo(float).eps:
        return np.asarray(-scale * log_survival)
    with np.errstate(over="ignore"):  # the largest of a hopeless tail are infinite
        return np.asarray(scale * np.expm1(-shape * log_survival) / shape)


# Equal weights ---------------------------------------------------------------------------------


def resample_counts(weights: ArrayLike, n_samples: int, seed: int | None = None) -> Counts:
    """Counts with mean ``n_samples * weights``, each less than one away from it (systematic).

    Args:
        weights: of the rows, in any scale, of shape (U,).
        n_samples: the sum of the counts.
        seed: None for a fresh one.

    Example:
        >>> resample_counts([0.5, 0.25, 0.25], 8, seed=0)
        array([4, 2, 2])
    """
    w = np.asarray(weights, dtype=np.float64)
    if w.ndim != 1 or not np.all(np.isfinite(w)) or np.any(w < 0) or not w.sum() > 0:
        raise ValueError("Expected weights (rows,), finite, not negative and not all zero")
    if n_samples < 1:
        raise ValueError(f"Expected n_samples >= 1 but got {n_samples}")
    edges = np.cumsum(w) / w.sum() * n_samples
    edges[-1] = n_samples
    offset = np.random.default_rng(seed).random()
    below = np.minimum(np.ceil(edges - offset), n_samples)  # points offset + i below each edge
    return np.asarray(np.diff(np.maximum(below, 0.0), prepend=0.0), dtype=np.int64)


# Verdict ---------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Report:
    """Whether samples can be trusted, by what made them exact, and what they say of the evidence.

    Attributes:
        n_samples: number of draws S.
        n_unique: number of rows U.
        ess: effective sample size, counted in draws.
        k_hat: shape of the Pareto tail of the weights; NaN where there are none.
        log_evidence: log p(x) and its standard error; NaN where nothing is known.
        method: "weights", "chains" or "enumeration" (see `ncp.inference.finish`), or "none".
        converged: whether the chains, if there were any, agreed in time.
        r_hat: their split R-hat.
        ess_own_order: the ESS when each draw is weighted by its own order's q; given when the
            weights used q averaged over orders.
        in_range: whether the data look like those that q was trained on, as far as anyone looked.
            Far from them q may miss the posterior altogether, and no weight tells.
    """

    n_samples: int
    n_unique: int
    ess: float
    k_hat: float
    log_evidence: Estimate
    method: str = "weights"
    converged: bool = True
    r_hat: float = 1.0
    ess_own_order: float | None = None
    in_range: bool = True

    @property
    def ess_fraction(self) -> float:
        return self.ess / self.n_samples

    @property
    def order_gain(self) -> float | None:
        """How many times more ESS the average over orders bought."""
        return None if self.ess_own_order is None else self.ess / self.ess_own_order

    @property
    def k_limit(self) -> float:
        """The largest k at which S draws still give a reliable estimate: 0.7, less for small S."""
        return float(min(1.0 - 1.0 / np.log10(max(self.n_samples, 11)), 0.7))

    @property
    def trusted(self) -> bool:
        """Whether the samples are exact up to a Monte Carlo error that is known."""
        return self.verdict in ("good", "usable", "exact", "converged")

    @property
    def verdict(self) -> str:
        """In a word or two.

        Of weights "good", "usable", "do not trust: run MCMC" or "do not trust: outside the trained
        range"; of chains "converged" or "not converged"; "exact" after an enumeration; "no
        weights" where nothing says how good the samples are.
        """
        if self.method == "none":
            return "no weights"
        if self.method == "enumeration":
            return "exact"
        if self.method == "chains":
            return "converged" if self.converged else "not converged"
        if not self.in_range:
            return "do not trust: outside the trained range"
        # With one to four weights above the bulk no tail can be fitted: the ESS alone decides.
        fitted = self.k_hat < np.inf
        k = self.k_hat if fitted else -np.inf
        share, s = self.ess_fraction, self.n_samples
        enough = self.ess >= min(100.0, 0.9 * s) and share >= (0.1 if fitted else 0.9)
        if k < min(0.5, self.k_limit) and enough:
            return "good"
        if k < self.k_limit and self.ess >= min(25.0, 0.5 * s) and (fitted or share >= 0.5):
            return "usable"
        return "do not trust: run MCMC"

    def __repr__(self) -> str:
        if self.method != "weights":
            return self._without_weights()
        gain = ""
        if self.order_gain is not None:
            gain = f" ({self.order_gain:.2f} times that of single orders)"
        return (
            f"Report({self.verdict}; ESS {self.ess:.0f} of {self.n_samples} draws "
            f"({self.ess_fraction:.1%}){gain}, k-hat {self.k_hat:.2f}, "
            f"log evidence {self.evidence_in_words})"
        )

    def _without_weights(self) -> str:
        draws = f"{self.n_samples} draws, {self.n_unique} distinct"
        if self.method == "none":
            return f"Report(no weights; {draws})"
        worth = f"worth at least {self.ess:.0f}, R-hat {self.r_hat:.3f}"
        worth = worth if self.method == "chains" else "of an enumeration"
        return f"Report({self.verdict}; {draws}, {worth}, log evidence {self.evidence_in_words})"

    @property
    def evidence_in_words(self) -> str:
        """The log evidence with its error, or as the lower bound that it is."""
        if np.isnan(self.log_evidence.value):
            return "unknown"
        if self.trusted and np.isfinite(self.log_evidence.standard_error):
            return repr(self.log_evidence)
        return f"at least about {self.log_evidence.value:.6g}"


def diagnose(
    log_weights: ArrayLike,
    counts: ArrayLike | None = None,
    own_order: ArrayLike | None = None,
    in_range: bool = True,
) -> Report:
    """ESS, k-hat, evidence and a verdict in plain words.

    Args:
        log_weights: log p(c, x) - log q(c | x) of each row, of shape (U,).
        counts: how many draws each row stands for, of shape (U,); one when left out.
        own_order: the log weights by each draw's own order, where `log_weights` use the average
            over orders, of shape (U,).
        in_range: whether the data look like those that q was trained on.

    Example:
        >>> diagnose(np.full(3, -7.0), [500, 300, 200])
        Report(good; ESS 1000 of 1000 draws (100.0%), k-hat -inf, log evidence -7 ± 0.001)
    """
    lw = _as_log_weights(log_weights)
    n = _as_counts(counts, len(lw))
    return Report(
        int(n.sum()),
        len(lw),
        effective_sample_size(lw, n),
        pareto_smooth(lw, n).k_hat,
        log_evidence(lw, n),
        ess_own_order=None if own_order is None else effective_sample_size(own_order, n),
        in_range=in_range,
    )
