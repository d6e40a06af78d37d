"""The credible ball around an estimate: the smallest one with a given mass.

The ball and its bounds are those of Wade and Ghahramani (2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import ArrayLike

from ncp.summary.distance import Loss, distance
from ncp.summary.rows import Labels, as_row, merge_rows

__all__ = ["CredibleBall", "credible_ball"]


@dataclass(frozen=True, repr=False)
class CredibleBall:
    """The smallest ball around an estimate that holds at least `level` of the mass.

    Attributes:
        centre: the estimate, of shape (N,).
        loss: the distance, "vi" or "binder".
        level: the mass asked for.
        radius: the largest distance in the ball.
        mass: the mass that it holds, at least `level`.
        upper: rows of the ball with the fewest clusters; of those, the most distant.
        lower: rows of the ball with the most clusters; of those, the most distant.
        horizontal: rows of the ball that are the most distant.
    """

    centre: Int64[np.ndarray, " points"]
    loss: str
    level: float
    radius: float
    mass: float
    upper: Int64[np.ndarray, "upper points"]
    lower: Int64[np.ndarray, "lower points"]
    horizontal: Int64[np.ndarray, "horizontal points"]

    def contains(self, labels: ArrayLike) -> Bool[np.ndarray, "*rows"]:
        """Whether each partition, (N,) or (U, N), lies in the ball."""
        return np.asarray(
            _within(distance(labels, self.centre, cast(Loss, self.loss)), self.radius)
        )

    def __repr__(self) -> str:
        k = [int(rows[0].max()) + 1 for rows in (self.upper, self.lower, self.horizontal)]
        return (
            f"CredibleBall({self.loss} radius {self.radius:.4g} holds {self.mass:.1%} "
            f"(asked {self.level:.1%}); clusters: {self.centre.max() + 1} at the centre, "
            f"{k[0]} upper, {k[1]} lower, {k[2]} horizontal)"
        )


def _within(distances: Float64[np.ndarray, "*rows"], radius: float) -> Bool[np.ndarray, "*rows"]:
    # Equal distances may differ by rounding when their sums run in different orders.
    return np.asarray(distances <= radius + 1e-10)


def credible_ball(
    estimate: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    loss: Loss = "vi",
    level: float = 0.95,
) -> CredibleBall:
    """B = {c : d(c, a) <= e}, with the smallest e such that P(B) >= level.

    The bounds describe the ball by its extreme members: the upper vertical bound has the fewest
    clusters, the lower one the most, the horizontal bound is the most distant. Each is a set of
    rows, because several may be tied.

    Args:
        estimate: the centre, of shape (N,), usually a point estimate under the same loss.
        labels: rows of labels, of shape (U, N).
        weights: of shape (U,), in any scale; equal when left out.
        loss: the distance, "vi" or "binder".
        level: the mass to hold.

    Example:
        >>> credible_ball([0, 0, 1], [[0, 0, 1], [0, 0, 0], [0, 1, 2]], [8, 1, 1], level=0.85)
        CredibleBall(vi radius 0.6667 holds 90.0% (asked 85.0%); clusters: 2 at the centre, \
2 upper, 3 lower, 3 horizontal)
    """
    if not 0 < level <= 1:
        raise ValueError(f"Expected a level in (0, 1] but got {level}")
    rows, w = merge_rows(labels, weights)
    centre = as_row(estimate, rows.shape[1])
    far = distance(rows, centre, loss)
    order = np.argsort(far, kind="stable")
    # The last sum may fall short of one by rounding, and level = 1 must still be reached.
    reached = int(np.searchsorted(np.cumsum(w[order]), level))
    radius = float(far[order[min(reached, len(order) - 1)]])
    inside = _within(far, radius)
    rows, far, mass = rows[inside], far[inside], min(float(w[inside].sum()), 1.0)
    k = rows.max(axis=1)
    return CredibleBall(
        centre,
        loss,
        level,
        radius,
        mass,
        upper=_most_distant(rows, far, k == k.min()),
        lower=_most_distant(rows, far, k == k.max()),
        horizontal=_most_distant(rows, far, np.ones(len(rows), dtype=bool)),
    )


def _most_distant(
    rows: Labels, far: Float64[np.ndarray, " rows"], among: Bool[np.ndarray, " rows"]
) -> Int64[np.ndarray, "chosen points"]:
    return np.asarray(rows[among & (far >= far[among].max() - 1e-10)])
