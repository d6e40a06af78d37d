r"""What a user holds of a clustered table: labels, confidence, samples, and what they say.

New rows are scored by `Scorer` as if each came next after the clustered ones,

    p_s(j) = p(c_i = j | c^s, x),

under a limited number of samples c^s, and carried over to the clusters of the point estimate a,

    P(i joins k) = sum_s w_s sum_j p_s(j) n^s_jk / n^s_j,     n^s_jk = #{m: c^s_m = j, a_m = k},

with one more column for "a new cluster". These rows sum to one.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64, Int, Int64

from ncp.clustering.prepare import (
    Preparation,
    Prepared,
    Settings,
    as_rows,
    check_shape,
    column_names,
    find_columns,
    preprocessing_of,
)
from ncp.files import write_atomically
from ncp.inference.importance import resample_counts
from ncp.model import NCP
from ncp.output import words
from ncp.posterior import Partitions
from ncp.summary.similarity import similarity
from ncp.summary.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from ncp.output.report import ReportData

__all__ = ["ASSIGN_ROWS", "Clustering", "Scorer"]

ASSIGN_ROWS = 20_000  # new rows prepared at once
LARGEST_MATRIX = 1000  # points of the similarity matrix that is drawn


@dataclass(frozen=True, eq=False, repr=False)
class Clustering:
    """A clustered table.

    Attributes:
        table: The data as given, `(N, P)`.
        columns: Names of its columns.
        labels: The point estimate, `(N,)`; -1 for rows that were left out for missing values.
        confidence: Probability that a row belongs to its cluster, `(N,)`; NaN for label -1.
        posterior: The samples, of the rows `index`.
        summary: What they say.
        index: The rows that were clustered at once, `(n,)`; all usable ones unless N is large.
        samples: Samples of all rows, `(S, N)`; for a large table a few, completed by assignment.
        notes: What was done to the data.
        warnings: What looks unlike the data the model was trained on.
        model: The network.
        model_name: Its name.
        settings: How it was run.
        seconds: How long it took.

    Printed, it says in words what was found.
    """

    table: np.ndarray
    columns: tuple[str, ...]
    labels: Int64[np.ndarray, " N"]
    confidence: Float64[np.ndarray, " N"]
    posterior: Partitions
    summary: Summary
    index: Int64[np.ndarray, " n"]
    samples: Int[np.ndarray, "S N"]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    model: NCP
    model_name: str
    settings: Settings
    seconds: float
    scorer: Scorer = field(repr=False)

    @property
    def n_points(self) -> int:
        """The number of rows N."""
        return len(self.labels)

    @property
    def n_clusters(self) -> int:
        """The number of clusters of the point estimate."""
        return self.summary.estimate.n_clusters

    @property
    def sizes(self) -> Int64[np.ndarray, " clusters"]:
        """The sizes of the clusters of the point estimate."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.n_clusters)

    @property
    def is_partial(self) -> bool:
        """Whether only some of the rows were clustered at once."""
        return len(self.index) < int((self.labels >= 0).sum())

    def predict_proba(self, x: Any) -> Float64[np.ndarray, "M K1"]:
        """Probabilities of new rows joining each cluster; the last column is "a new cluster".

        The columns of a data frame are found by their names, if those of the table have any.
        """
        rows = as_rows(x)
        if hasattr(x, "columns") and self.columns != column_names(None, self.table):
            rows = rows[:, find_columns(column_names(x, rows), self.columns)]
        if preprocessing_of(self.model) is None:
            check_shape(self.model, rows)
        parts = [
            self.scorer.joint(self.model, rows[i : i + ASSIGN_ROWS])
            for i in range(0, len(rows), ASSIGN_ROWS)
        ]
        return np.concatenate(parts)

    @property
    def n_draws(self) -> float:
        """How many independent draws the samples are worth."""
        return self.posterior.report.ess

    def words(self) -> list[str]:
        """What was found, sentence by sentence."""
        sure = self.confidence[self.labels >= 0]
        return words.in_words(self.summary.n_clusters, self.sizes, sure, self.n_draws, "row")

    def trust(self) -> str:
        """How far the samples can be trusted, in words."""
        if self.posterior.log_weights is not None:
            report = self.posterior.report
            return words.weights_sentence(
                report.verdict, report.ess, report.n_samples, report.k_hat
            )
        if self.posterior.finish is not None:
            how = self.posterior.report
            return words.exact_sentence(how.method, how.converged, how.ess, how.r_hat)
        mixture = self.model.mixture
        conjugate = mixture is not None and mixture.is_conjugate
        return words.NO_WEIGHTS if conjugate else words.NO_DENSITY

    def __repr__(self) -> str:
        partial = f", {len(self.index)} of them at once" if self.is_partial else ""
        head = (
            f"Clustering of {self.n_points} rows by {self.model_name}: "
            f"{self.posterior.n_samples} samples{partial}, {self.seconds:.1f} s"
        )
        return "\n".join(
            [head, *self.words(), self.trust(), *self.notes]
            + [f"Warning: {warning}" for warning in self.warnings]
        )

    def to_pandas(self) -> DataFrame:
        """One line a row: its cluster and how sure that is."""
        from pandas import DataFrame

        return DataFrame({"cluster": self.labels, "confidence": self.confidence})

    def to_dict(self) -> dict[str, Any]:
        """The summary, plain, for JSON."""
        k = self.summary.n_clusters
        low, high = k.interval(0.95)
        plain: dict[str, Any] = {
            "n_points": self.n_points,
            "n_columns": int(np.prod(self.table.shape[1:])),
            "columns": list(self.columns),
            "n_clusters": self.n_clusters,
            "sizes": self.sizes.tolist(),
            "posterior_of_k": {
                str(int(v)): float(p) for v, p in zip(k.values, k.probabilities, strict=True)
            },
            "k_interval_95": [int(low), int(high)],
            "mean_confidence": float(np.nanmean(self.confidence)),
            "n_clustered_at_once": len(self.index),
            "n_samples": self.posterior.n_samples,
            "n_distinct_samples": len(self.posterior),
            "estimate": self.summary.estimate.loss,
            "expected_loss": self.summary.estimate.expected_loss,
            "importance": None,
            "exact": None,
            "words": [*self.words(), self.trust()],
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "model": self.model_name,
            "settings": asdict(self.settings),
            "seconds": round(self.seconds, 3),
        }
        if self.posterior.log_weights is not None:
            report = self.posterior.report
            plain["importance"] = {
                "verdict": report.verdict,
                "ess": report.ess,
                "k_hat": report.k_hat if np.isfinite(report.k_hat) else str(report.k_hat),
                "log_evidence": float(report.log_evidence.value),
                "log_evidence_se": float(report.log_evidence.standard_error),
            }
        if (how := self.posterior.finish) is not None:
            plain["exact"] = {
                "method": how.method,
                "converged": how.converged,
                "ess": how.ess,
                "r_hat": how.r_hat if np.isfinite(how.r_hat) else str(how.r_hat),
            }
        return plain

    def plot(self, ax: Axes | None = None) -> Axes:
        """The data, coloured by cluster, on their leading principal axes."""
        from ncp.output.plots import clusters

        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.gca()
        return clusters(ax, self.table, self.labels, self.confidence, self.columns)

    def report(self, title: str = "Clusters") -> str:
        """The self-contained HTML report."""
        from ncp.output.report import report

        return report(self._report_data(title))

    def write_report(self, path: str | os.PathLike[str], title: str = "Clusters") -> None:
        """Write the self-contained HTML report."""
        write_atomically(path, self.report(title).encode())

    def _report_data(self, title: str) -> ReportData:
        from ncp.output.report import ReportData

        ball = self.summary.ball
        clusters = int(ball.upper[0].max()) + 1, int(ball.lower[0].max()) + 1
        ball_words = words.ball_sentence(ball.mass, ball.radius, ball.loss, clusters)
        rows = np.arange(self.posterior.n_points)
        if len(rows) > LARGEST_MATRIX:
            rows = np.sort(np.random.default_rng(0).choice(rows, LARGEST_MATRIX, replace=False))
        return ReportData(
            title=title,
            model_name=self.model_name,
            table=self.table,
            columns=self.columns,
            labels=self.labels,
            confidence=self.confidence,
            samples=self.samples,
            shown=self.index[rows],
            similarity=similarity(self.posterior.labels[:, rows], self.posterior.weights),
            k=self.summary.n_clusters,
            n_draws=self.n_draws,
            sentences=tuple(self.words()),
            trust=(self.trust(), ball_words),
            notes=self.notes,
            warnings=self.warnings,
            about=self._about(),
        )

    def _about(self) -> str:
        from ncp import __version__

        s = self.settings
        return (
            f"ncp {__version__}, model {self.model_name}, {s.n_samples} samples in {s.orders} "
            f"orders, estimate {self.summary.estimate.loss}, "
            f"seed {'none' if s.seed is None else s.seed}, {self.seconds:.1f} s"
        )


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
        cls, prepared: Prepared, posterior: Partitions, estimate: np.ndarray, most: int
    ) -> Scorer:
        """With at most `most` of the samples, drawn by their weights."""
        counts = resample_counts(posterior.weights, most, seed=0)
        chosen = np.flatnonzero(counts)
        labels, weights = posterior.labels[chosen], counts[chosen] / counts.sum()
        return cls(prepared.preparation, prepared.features, labels, weights, estimate)

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
        """P(i joins k) of the module's docstring."""
        return self.carry_over(self.each(model, rows))
