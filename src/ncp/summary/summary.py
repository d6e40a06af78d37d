"""Everything at once: the posterior of K, a point estimate, its credible ball and confidence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike

from ncp.summary.assignment import confidence
from ncp.summary.ball import CredibleBall, credible_ball
from ncp.summary.distance import Agreement, agreement
from ncp.summary.estimate import Estimator, PointEstimate, point_estimate
from ncp.summary.rows import Obeys, merge_rows
from ncp.summary.statistics import Discrete, posterior_of_k

__all__ = ["Summary", "summarise"]


@dataclass(frozen=True, repr=False)
class Summary:
    """What `summarise` found, in one place.

    Attributes:
        n_clusters: the posterior of the number of clusters.
        estimate: the point estimate.
        ball: the credible ball around it.
        confidence: of each point, of shape (N,).
        agreement: of the estimate with the reference, if one was given.
    """

    n_clusters: Discrete
    estimate: PointEstimate
    ball: CredibleBall
    confidence: Float64[np.ndarray, " points"]
    agreement: Agreement | None = None

    def __repr__(self) -> str:
        low, high = self.n_clusters.interval(self.ball.level)
        weakest = int(self.confidence.argmin())
        lines = [
            f"Summary of a posterior over partitions of {len(self.confidence)} points",
            f"  clusters:   mean {self.n_clusters.mean:.2f}, {self.ball.level:.0%} in "
            f"[{low:.0f}, {high:.0f}], {self.n_clusters}",
            f"  estimate:   {self.estimate}",
            f"  ball:       {self.ball}",
            f"  confidence: mean {self.confidence.mean():.3f}, "
            f"least {self.confidence[weakest]:.3f} at point {weakest}",
        ]
        if self.agreement is not None:
            a = self.agreement
            lines.append(f"  reference:  ARI {a.ari:.3f}, AMI {a.ami:.3f}, VI {a.vi:.3f} bits")
        return "\n".join(lines)


def summarise(
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    loss: Estimator = "vi",
    *,
    reference: ArrayLike | None = None,
    max_clusters: int | None = None,
    n_restarts: int = 16,
    obeys: Obeys | None = None,
) -> Summary:
    """Posterior of K, point estimate, credible ball and confidence of each point.

    Args:
        labels: rows of labels, of shape (U, N).
        weights: of shape (U,), in any scale; equal when left out.
        loss: of the estimate; the ball is in the same distance (in VI for "pear" and "map").
        reference: labels to compare the estimate with, of shape (N,).
        max_clusters: the largest number of clusters of the estimate.
        n_restarts: number of runs of the search from random starts.
        obeys: which partitions the estimate may be, see `point_estimate`.

    Example:
        >>> summary = summarise([[0, 0, 1, 1], [0, 0, 1, 2], [0, 0, 1, 1]])
        >>> summary.estimate.labels, summary.n_clusters
        (array([0, 0, 1, 1]), Discrete({2: 0.667, 3: 0.333}))
    """
    rows, w = merge_rows(labels, weights)
    estimate = point_estimate(
        rows, w, loss, max_clusters=max_clusters, n_restarts=n_restarts, obeys=obeys
    )
    return Summary(
        posterior_of_k(rows, w),
        estimate,
        credible_ball(estimate.labels, rows, w, "binder" if loss == "binder" else "vi"),
        confidence(estimate.labels, rows, w),
        None if reference is None else agreement(estimate.labels, reference),
    )
