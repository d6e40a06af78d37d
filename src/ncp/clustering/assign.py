r"""New rows, one by one, as if each came next after the clustered ones.

With p_s(j) = p(c_i = j | c^s, x) for a limited number of samples c^s, row i is carried over to the
clusters of the point estimate a,

    P(i joins k) = sum_s w_s sum_j p_s(j) n^s_jk / n^s_j,     n^s_jk = #{m: c^s_m = j, a_m = k},

with one more column for "a new cluster". These rows sum to one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from ncp.clustering.prepare import Bounded, Preparation
from ncp.inference.importance import resample_counts
from ncp.model import NCP
from ncp.posterior import Partitions

__all__ = ["ASSIGN_ROWS", "Scorer"]

ASSIGN_ROWS = 20_000  # new rows prepared at once


@dataclass(frozen=True, eq=False)
class Scorer:
    """What scores further rows: some of the samples, and the estimate they are carried over to.

    Attributes:
        preparation: Brings further rows to the model's units.
        features: Of the n rows that were clustered, `(n, *event)`.
        labels: Some samples of their partitions, `(s, n)`.
        weights: Of the samples, summing to one, `(s,)`.
        estimate: The point estimate's labels, `(n,)`.
    """

    preparation: Preparation
    features: np.ndarray
    labels: Int64[np.ndarray, "s n"]
    weights: Float64[np.ndarray, " s"]
    estimate: Int64[np.ndarray, " n"]

    @classmethod
    def choose(
        cls,
        preparation: Preparation,
        features: np.ndarray,
        posterior: Partitions,
        estimate: np.ndarray,
        most: int,
    ) -> Scorer:
        """With at most `most` of the samples, drawn by their weights."""
        counts = resample_counts(posterior.weights, most, seed=0)
        chosen = np.flatnonzero(counts)
        labels, weights = posterior.labels[chosen], counts[chosen] / counts.sum()
        return cls(preparation, features, labels, weights, estimate)

    def each(self, model: NCP, rows: np.ndarray) -> list[np.ndarray]:
        """p_s(j), for every sample s, of rows `(M, P)` in the caller's units."""
        features = self.preparation.apply(rows)
        found = model.assign_each(features, self.features, self.labels, mutual=False)
        return [chances.cpu().numpy() for chances in found]

    def carry_over(self, each: list[np.ndarray]) -> Float64[np.ndarray, "M K1"]:
        """The mean over samples of p_s, carried over to the estimate's clusters."""
        n_clusters = int(self.estimate.max()) + 1
        total = np.zeros((len(each[0]), n_clusters + 1))
        for p, labels, weight in zip(each, self.labels, self.weights, strict=True):
            shared = np.zeros((int(labels.max()) + 1, n_clusters))
            np.add.at(shared, (labels, self.estimate), 1.0)
            total[:, :-1] += weight * p[:, :-1] @ (shared / shared.sum(1, keepdims=True))
            total[:, -1] += weight * p[:, -1]
        return total

    def joint(self, model: NCP, rows: np.ndarray) -> Float64[np.ndarray, "M K1"]:
        """P(i joins k), in blocks of rows `(M, P)`."""
        blocks = [rows[i : i + ASSIGN_ROWS] for i in range(0, len(rows), ASSIGN_ROWS)]
        return np.concatenate([self._joint(model, block) for block in blocks])

    def _joint(self, model: NCP, rows: np.ndarray) -> Float64[np.ndarray, "M K1"]:
        found = self.carry_over(self.each(model, rows))
        if isinstance(self.preparation, Bounded):  # a network was hardly ever shown such rows
            found[self.preparation.beyond(rows)] = np.eye(found.shape[1])[-1]
        return found
