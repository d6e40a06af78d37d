r"""The evidence where weights fail: a bridge between draws of q and draws of the posterior.

Importance weights estimate p(x) from draws of q alone, and miss what q misses. Where exact chains
have drawn from p(c | x) as well, both sets can be used: with l(c) = p(c, x) / q(c | x),

    p(x) = E_q[ l h ] / E_p[ h ],        h = 1 / (s_p l + s_q p(x)),

for any h; this one, with s the shares of draws from each, has the smallest error (Meng and Wong
1996). The right-hand side holds p(x) itself, so it is iterated to its fixed point. Draws of a chain
count by their effective number.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from ncp.inference.importance import Estimate

__all__ = ["bridge"]

ROUNDS = 200
CLOSE = 1e-10


def bridge(
    of_q: Float64[np.ndarray, " n"], of_p: Float64[np.ndarray, " m"], p_ess: float
) -> Estimate:
    """log p(x) with its standard error.

    Args:
        of_q: log p(c, x) - log q(c | x) of independent draws of q, of shape (n,).
        of_p: the same of draws of p(c | x), of shape (m,).
        p_ess: how many independent draws the latter are worth.

    Example:
        >>> bridge(np.full(50, -7.0), np.full(50, -7.0), 50.0).value
        np.float64(-7.0)
    """
    top = float(np.median(of_p))
    a, b = of_q - top, of_p - top
    worth = max(1.0, min(p_ess, float(len(b))))
    share_p = worth / (worth + len(a))
    log_p, log_q = np.log(share_p), np.log1p(-share_p)
    r = float(np.median(b))
    for _ in range(ROUNDS):
        before = r
        up = a - np.logaddexp(log_p + a, log_q + before)
        down = -np.logaddexp(log_p + b, log_q + before)
        r = _log_mean(up) - _log_mean(down)
        if abs(r - before) < CLOSE:
            break
    error = np.sqrt(_relative_variance(up) / len(a) + _relative_variance(down) / worth)
    return Estimate(np.float64(r + top), np.float64(error))


def _log_mean(values: np.ndarray) -> float:
    return float(np.logaddexp.reduce(values) - np.log(len(values)))


def _relative_variance(log_values: np.ndarray) -> float:
    """Variance over squared mean."""
    return float(np.exp(log_values - _log_mean(log_values)).var())
