r"""Are numbers uniform? Chi-square on bins, and a band that holds the whole ECDF at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from ncp.checks.simulation import LEVEL

__all__ = ["Band", "RankTest", "ecdf_band", "ecdf_p_value", "rank_test"]


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
def _null_tails(n: int) -> np.ndarray:
    """The smallest tail probability along the ECDF of n uniform numbers, many times over."""
    size = len(_grid(n)) + 1
    rng = np.random.default_rng(n)  # fixed: a p-value should not depend on the day
    below = rng.multinomial(n, np.full(size, 1 / size), 10_000).cumsum(1)[:, :-1]
    return np.asarray(_tails(n)[np.arange(size - 1), below].min(1))
