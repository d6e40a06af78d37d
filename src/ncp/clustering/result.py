"""What a user holds of a clustered table: labels, confidence, samples, and what they say.

Clusters are numbered by size, the largest is 0. Answers about pairs of rows come from the samples,

    P(i and j share a cluster) = sum_s w_s [c^s_i = c^s_j],

with their importance weights where there are any; for tables too large to be clustered at once,
from the samples that were completed by assignment, which have equal weights.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64, Int, Int64

from ncp.clustering.assign import Scorer
from ncp.clustering.knowledge import Heard, Knowledge, cluster_names, names_to_find, own_index
from ncp.clustering.prepare import (
    Settings,
    as_frame,
    as_rows,
    check_shape,
    preprocessing_of,
)
from ncp.clustering.profile import traits, typical_rows
from ncp.clustering.verdict import Verdict, judge
from ncp.files import write_atomically
from ncp.model import NCP
from ncp.output import words
from ncp.output.columns import Columns, default_names, encode
from ncp.output.payload import Column
from ncp.output.terminal import visible
from ncp.posterior import Partitions
from ncp.summary.assignment import assignment
from ncp.summary.distance import expected_loss
from ncp.summary.questions import Question, best_pairs, best_rows
from ncp.summary.similarity import similarity
from ncp.summary.summary import Summary

if TYPE_CHECKING:
    from arviz import InferenceData
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from ncp.output.report import Card, ReportData

__all__ = ["Clustering"]

LARGEST_SIMILARITY = 20_000  # rows of a matrix of all pairs
MOST_SHOWN = 1000  # rows in the pictures of a report
LEAST_SHOWN = 10  # of every cluster, if it has so many
MOST_COLUMNS = 40  # in a report
MOST_TRAITS = 5  # of a cluster, in a report
ENOUGH_FOR_K = 5  # samples with K clusters that their best partition is chosen from
MOST_COMPARED = 50  # of them, compared with each other
DOUBTFUL = 0.9  # confidence below which a row is called doubtful


@dataclass(frozen=True, eq=False, repr=False)
class Clustering:
    """A clustered table.

    Attributes:
        table: The data as numbers, `(N, P)`; `(N, 0)` if it was saved without.
        columns: Names of its columns.
        levels: Of each column, what its numbers 0, 1, ... mean; empty for numbers.
        labels: The point estimate, `(N,)`, numbered by size; -1 for rows that were left out for
            missing values.
        confidence: How sure that is, `(N,)`: the overlap to expect of a row's cluster with its
            cluster in a sample (`ncp.summary.assignment.confidence`), of tables raised by what that
            was measured to be too low at their size; NaN for label -1.
        posterior: The samples, of the rows `index`.
        summary: What they say.
        index: The rows that were clustered at once, `(n,)`; all usable ones unless N is large.
        samples: Samples of all rows, of equal weight, `(S, N)`; for a large table a few,
            completed by assignment.
        notes: What was done to the data.
        warnings: What looks unlike the data the model was trained on.
        model: The network; None if the result was loaded where the network is not.
        model_name: Its name.
        settings: How it was run.
        seconds: How long it took.
        scorer: What scores further rows; None if the result was loaded without.
        is_conjugate: Whether the network's model has a joint density to weight samples by.
        weights: SHA-256 of the network's weights, if the result was loaded.
        frame: The data frame as it was given, if it was one.
        names: What the rows are called; by default by the frame's index, or numbers from 1.
        heard: What was known beforehand, if anything.
        stability: How far parts of a large table agree with each other, 0 to 1.
        shortfall: How much less the answers on tables of this size agreed with the truth than
            their samples promised, when the model was measured.
        command: The command line that made it, for the report.

    Printed, it says in words what was found; in a notebook it shows it, too.
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
    model: NCP | None
    model_name: str
    settings: Settings
    seconds: float
    scorer: Scorer | None = field(repr=False)
    is_conjugate: bool = False
    weights: str = ""
    frame: Any = field(default=None, repr=False)
    names: tuple[str, ...] | None = field(default=None, repr=False)
    heard: Heard | None = field(default=None, repr=False)
    levels: tuple[tuple[str, ...], ...] = ()
    stability: float = 1.0
    shortfall: float = 0.0
    command: str = "ncp cluster FILE"

    # -- numbers -----------------------------------------------------------------------------------

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
        """The sizes of the clusters of the point estimate, the largest first."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.n_clusters)

    @property
    def is_partial(self) -> bool:
        """Whether only some of the rows were clustered at once."""
        return len(self.index) < int((self.labels >= 0).sum())

    @property
    def has_table(self) -> bool:
        """Whether the data are here; they are not if the result was saved without."""
        return bool(self.table.shape[1])

    @property
    def data(self) -> Columns:
        """The table with what its numbers mean."""
        return Columns(self.table, self.columns, self._levels)

    @property
    def n_draws(self) -> float:
        """How many independent draws the samples are worth."""
        drawn = self.posterior
        ess = drawn.report.ess
        if self.heard is None or drawn.log_weights is not None or drawn.finish is not None:
            return ess
        return min(ess, self.heard.n_draws)  # the network's, which nothing else replaced

    @property
    def _draws_of_k(self) -> float:
        """The same for the number of clusters, which is certain if it was said."""
        said = self.heard is not None and self.heard.rows.says_number
        return float("inf") if said else self.n_draws

    @property
    def cluster_names(self) -> tuple[str, ...]:
        """What the clusters are called: by known labels and "new 1", ..., or else by numbers."""
        if self.heard is None or not self._has_names:
            return tuple(str(k) for k in range(self.n_clusters))
        return cluster_names(self.labels, self.heard.rows.labels, self.heard.rows.names)

    @property
    def _has_names(self) -> bool:
        return self.heard is not None and len(self.heard.rows.names) > 0

    @property
    def names_of_rows(self) -> list[str]:
        """What the cluster of each row is called; "" for rows that were left out."""
        names = (*self.cluster_names, "")
        return [names[k] for k in self.labels]

    @property
    def row_names(self) -> tuple[str, ...]:
        """What the rows are called."""
        if self.names is not None:
            return self.names
        index = own_index(self.frame)
        if index is None:
            return tuple(str(i + 1) for i in range(self.n_points))
        return tuple(str(name) for name in index)

    # -- new rows ----------------------------------------------------------------------------------

    def predict_proba(self, x: Any) -> Float64[np.ndarray, "M K1"]:
        """Probabilities of new rows joining each cluster; the last column is "a new cluster".

        Rows of a table that lie far beyond all others (twice as far from their neighbours as any
        row that was clustered) are a new cluster for certain.

        The columns of a data frame are found by their names, if those of the table have any.
        """
        if self.model is None or self.scorer is None:
            why = f"the model {self.model_name!r}; give it to Clustering.load"
            why = why if self.has_table else "a result that was saved with its table"
            raise ValueError(f"Expected {why}, to score new rows")
        rows = self._rows(x)
        if preprocessing_of(self.model) is None:
            check_shape(self.model, rows)
        return self.scorer.joint(self.model, rows)

    def _rows(self, x: Any) -> np.ndarray:
        """New rows as numbers, in the order of the table's columns."""
        x = as_frame(x)
        named = self.frame is not None or self.columns != default_names(len(self.columns))
        if hasattr(x, "columns") and not isinstance(x, Columns):
            given = tuple(str(name).strip() for name in x.columns)
            named = named or sorted(given) == sorted(self.columns)
            names = self.columns if named else given
            return as_rows(encode(x, names, self._levels, self.frame))
        if any(self._levels):
            raise ValueError(
                "Expected a data frame with the columns of the clustered table, some of which are "
                f"categories, but got {type(x).__name__}"
            )
        return as_rows(x)

    @property
    def _levels(self) -> tuple[tuple[str, ...], ...]:
        return self.levels or ((),) * len(self.columns)

    def predict(self, x: Any) -> Int64[np.ndarray, " M"]:
        """The most probable cluster of new rows; -1 for those that fit none ("a new cluster")."""
        p = self.predict_proba(x)
        best = p.argmax(axis=1)
        return np.where(best == p.shape[1] - 1, -1, best)

    # -- pairs of rows -----------------------------------------------------------------------------

    def probability_together(self, i: Any, j: Any = None) -> Any:
        """Probability that rows share a cluster.

        Args:
            i: A row, by position or by its label in the frame's index, or several.
            j: The same; left out, it is all rows.

        Returns:
            A number for two rows, `(N,)` for one row and all, or a matrix with a line for each
            row of i. NaN where a row was left out.
        """
        first = self._positions(i)
        second = np.arange(self.n_points) if j is None else self._positions(j)
        labels, weights = self._draws()
        same = np.zeros((len(first), len(second)))
        for row, weight in zip(labels, weights, strict=True):
            same += weight * (row[first, None] == row[second])
        same = np.minimum(same, 1.0)
        same[self.labels[first] < 0] = np.nan
        same[:, self.labels[second] < 0] = np.nan
        same = same[:, 0] if _is_one(j) else same
        same = same[0] if _is_one(i) else same
        return float(same) if same.ndim == 0 else same

    def similarity(self, rows: Any = None) -> Float64[np.ndarray, "M M"]:
        """Probability that two rows share a cluster, for all pairs of the given rows.

        Args:
            rows: By position or label; all of them when left out.
        """
        return self._similarity(np.arange(self.n_points) if rows is None else self._positions(rows))

    def _similarity(self, at: Int64[np.ndarray, " M"]) -> Float64[np.ndarray, "M M"]:
        if len(at) > LARGEST_SIMILARITY:
            raise ValueError(
                f"Expected at most {LARGEST_SIMILARITY} rows for a matrix of all pairs but got "
                f"{len(at)}; choose rows"
            )
        labels, weights = self._draws()
        usable = np.flatnonzero(self.labels[at] >= 0)
        matrix = np.full((len(at), len(at)), np.nan)
        matrix[np.ix_(usable, usable)] = similarity(labels[:, at[usable]], weights)
        return matrix

    def _draws(self) -> tuple[np.ndarray, np.ndarray]:
        """Samples of all rows with their weights, as exact as there are."""
        if self.is_partial:
            return self.samples, np.full(len(self.samples), 1 / len(self.samples))
        labels = np.full((len(self.posterior), self.n_points), -1)
        labels[:, self.index] = self.posterior.labels
        return labels, self.posterior.weights

    def _positions(self, rows: Any) -> Int64[np.ndarray, " M"]:
        several = [rows] if _is_one(rows) else list(rows)
        return np.array([self._position(row) for row in several], dtype=np.int64)

    def _position(self, row: Any) -> int:
        index = own_index(self.frame)
        whole = isinstance(row, int | np.integer) and not isinstance(row, bool)
        if whole and (index is None or index.dtype.kind not in "iu"):
            if not -self.n_points <= row < self.n_points:
                raise ValueError(f"Expected a row below {self.n_points} but got {row}")
            return int(row) % self.n_points
        names = self.row_names  # a number may be a label, too
        if names.count(str(row)) != 1:
            raise ValueError(f"Expected a row's position or its unique label but got {row!r}")
        return names.index(str(row))

    # -- a conversation ----------------------------------------------------------------------------

    def ask(self, n_questions: int = 5, about: str = "pairs") -> list[Question]:
        """What to look up next: questions whose answers would leave the least uncertainty.

        Args:
            n_questions: At most so many; fewer if there is nothing left to ask.
            about: `"pairs"` of rows (do they share a cluster?) or `"rows"` (which cluster is it?).

        Returns:
            Questions with their rows, by position or by label if the frame's index has any, the
            best first; see `ncp.summary.questions`. Answers go to `given`.
        """
        if about not in ("pairs", "rows"):
            raise ValueError(f"Expected about 'pairs' or 'rows' but got {about!r}")
        if not isinstance(n_questions, int | np.integer) or n_questions < 1:
            raise ValueError(f"Expected n_questions to be an integer >= 1 but got {n_questions!r}")
        usable = np.flatnonzero(self.labels >= 0)
        labels, weights = self._draws()
        search = best_pairs if about == "pairs" else best_rows
        found = search(labels[:, usable], weights, self.labels[usable], n_questions)
        names = names_to_find(self.frame, self.n_points)
        return [q._replace(points=tuple(names[usable[i]] for i in q.points)) for q in found]

    def given(self, **knowledge: Any) -> Clustering:
        """The answer if this is known, too: from the samples that obey, or drawn anew.

        Args:
            knowledge: As for `ncp.cluster`: `known`, `together`, `apart`, `n_clusters`,
                `at_least`, `at_most`, `at_any_price`; what was known before stays known.
        """
        from ncp.clustering.cluster import cluster_given

        return cluster_given(self, Knowledge(**knowledge))

    # -- partitions --------------------------------------------------------------------------------

    def best(self, n_clusters: int) -> Int64[np.ndarray, " N"]:
        """The best partition with so many clusters: the sample nearest to all others with as many.

        Args:
            n_clusters: A number that enough of the samples have.

        Returns:
            Labels numbered by size, `(N,)`; -1 for rows that were left out.
        """
        usable = self.labels >= 0
        samples = self.samples[:, usable]
        k = samples.max(axis=1) + 1
        chosen = samples[k == n_clusters]
        if len(chosen) < ENOUGH_FOR_K:
            known = [str(value) for value in np.unique(k) if (k == value).sum() >= ENOUGH_FOR_K]
            raise ValueError(
                f"Expected n_clusters among {', '.join(known) or 'none'}, which enough of the "
                f"{len(k)} samples have, but got {n_clusters}; given(n_clusters={n_clusters}) "
                "draws others"
            )
        some = np.random.default_rng(0).permutation(len(chosen))[:MOST_COMPARED]
        compared = chosen[some].astype(np.int64)
        losses = [expected_loss(one, compared) for one in compared]
        labels = np.full(self.n_points, -1)
        labels[usable] = compared[int(np.argmin(losses))]
        return np.asarray(number_by_size(labels)[labels])

    def hierarchy(self) -> Float64[np.ndarray, "merges 4"]:
        """Which clusters are nearest to being one: a linkage matrix of the clusters.

        In SciPy's form (`scipy.cluster.hierarchy.dendrogram(result.hierarchy())` draws it): leaf k
        is cluster k, and the height at which two groups of clusters join is the probability that a
        row of one and a row of the other are apart.
        """
        from scipy.cluster.hierarchy import linkage

        if self.n_clusters < 2:
            return np.zeros((0, 4))
        estimate = self.summary.estimate.labels
        shares = assignment(estimate, self.posterior.labels, self.posterior.weights)
        first = np.unique(estimate, return_index=True)[1]
        shares = shares[:, first.argsort().argsort()]  # from order of appearance to our numbers
        member = np.eye(self.n_clusters)[estimate]
        together = (member.T @ shares) / member.sum(0)[:, None]
        apart = 1.0 - (together + together.T) / 2
        return linkage(apart[np.triu_indices(self.n_clusters, 1)], "average")

    def profile(self) -> DataFrame:
        """What distinguishes the clusters: a line for each cluster and column, by effect size.

        The columns of the frame are `cluster`, `column`, `level` (of a category), `mean` (or the
        share of the level), `others` (the same of all other rows) and `effect` (Cohen's d, or h
        for shares; in standard deviations).
        """
        from pandas import DataFrame

        found = traits(self._columns(), self.labels)
        lines = [
            (k, t.column, t.level, t.inside[0], t.outside[0], t.effect)
            for k, some in enumerate(found)
            for t in some
        ]
        names = ["cluster", "column", "level", "mean", "others", "effect"]
        return DataFrame(lines, columns=names)

    def _columns(self) -> tuple[Column, ...]:
        if not self.has_table:
            raise ValueError("Expected a result with its table but this one was saved without")
        if self.table.ndim > 2:
            return ()
        columns = zip(self.columns, self.table.T, self._levels, strict=False)
        return tuple(Column(name, values, levels) for name, values, levels in columns)

    # -- words -------------------------------------------------------------------------------------

    def words(self) -> list[str]:
        """What was found, sentence by sentence."""
        sure = self.confidence[self.labels >= 0]
        found = words.in_words(self.summary.n_clusters, self.sizes, sure, self._draws_of_k, "row")
        return found if self.heard is None else [*found, self._heard_words(self.heard)]

    def _heard_words(self, heard: Heard) -> str:
        rows = heard.rows
        return words.known_sentence(
            int((rows.labels >= 0).sum()),
            len(rows.together),
            len(rows.apart),
            rows.number,
            heard.log_probability,
        )

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
        return words.NO_WEIGHTS if self.is_conjugate else str(self.verdict)

    @property
    def verdict(self) -> Verdict:
        """How far to trust the answer: "good", "with care" or "do not trust", with reasons."""
        estimate = self.summary.estimate.labels
        return judge(self.posterior, estimate, self.warnings, self.stability, self.shortfall)

    def __repr__(self) -> str:
        partial = f", {len(self.index):,} rows at once" if self.is_partial else ""
        head = (
            f"Clustering of {words.count(self.n_points, 'row')} by {self.model_name}: "
            f"{words.count(self.posterior.n_samples, 'sample')}{partial}, {self.seconds:.1f} s"
        )
        lines = [head, *self.words(), self.trust(), *self.notes]
        lines += [f"Warning: {warning}" for warning in self.warnings]
        return "\n".join(visible(line) for line in lines)

    def _repr_html_(self) -> str:
        from ncp.output.report import sentences_html, summary_html

        if not self.has_table:
            return sentences_html(repr(self).splitlines())
        return summary_html(self._report_data("Clustering", "", most=300))

    # -- other forms -------------------------------------------------------------------------------

    def to_pandas(self) -> DataFrame:
        """The table with the caller's index and columns, and each row's cluster and confidence."""
        from pandas import DataFrame

        found: dict[str, Any] = {"cluster": self.labels, "confidence": self.confidence}
        if self._has_names:
            found["name"] = self.names_of_rows
        if self.frame is not None:
            frame = DataFrame(self.frame)
            taken = {name: f"{name} (input)" for name in found if name in frame.columns}
            return frame.rename(columns=taken).assign(**found)
        flat = self.table.reshape(len(self.table), -1)
        if flat.shape[1] != len(self.columns):
            return DataFrame(found, index=self._index())
        return DataFrame(flat, columns=list(self.columns)).assign(**found)

    def _index(self) -> Any:
        """Of a result without its frame: what the rows are called, unless by their numbers."""
        numbers = tuple(str(i + 1) for i in range(self.n_points))
        return None if self.row_names == numbers else list(self.row_names)

    def to_arviz(self) -> InferenceData:
        """An ArviZ ``InferenceData`` of one chain: labels and n_clusters of every sample."""
        from arviz import from_dict

        usable = self.labels >= 0
        k = self.samples[:, usable].max(axis=1) + 1
        return from_dict(
            posterior={"labels": self.samples[None], "n_clusters": k[None]},
            dims={"labels": ["row"]},
            coords={"row": list(self.row_names)},
        )

    def to_dict(self) -> dict[str, Any]:
        """The summary, plain, for JSON."""
        k = self.summary.n_clusters
        low, high = k.interval(0.95)
        plain: dict[str, Any] = {
            "n_points": self.n_points,
            "n_columns": len(self.columns),
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
            "importance": self._importance_facts(),
            "exact": self._exact_facts(),
            "verdict": asdict(self.verdict),
            "words": [*self.words(), self.trust()],
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "model": self.model_name,
            "settings": asdict(self.settings),
            "seconds": round(self.seconds, 3),
        }
        if self.heard is not None:
            plain["cluster_names"] = list(self.cluster_names)
            plain["known"] = {
                "labels": int((self.heard.rows.labels >= 0).sum()),
                "together": len(self.heard.rows.together),
                "apart": len(self.heard.rows.apart),
                "log_probability": self.heard.log_probability,
                "effective_samples": self.heard.n_draws,
            }
        return plain

    def _importance_facts(self) -> dict[str, Any] | None:
        if self.posterior.log_weights is None:
            return None
        report = self.posterior.report
        return {
            "verdict": report.verdict,
            "ess": report.ess,
            "k_hat": report.k_hat if np.isfinite(report.k_hat) else str(report.k_hat),
            "log_evidence": float(report.log_evidence.value),
            "log_evidence_se": float(report.log_evidence.standard_error),
        }

    def _exact_facts(self) -> dict[str, Any] | None:
        how = self.posterior.finish
        if how is None:
            return None
        return {
            "method": how.method,
            "converged": how.converged,
            "ess": how.ess,
            "r_hat": how.r_hat if np.isfinite(how.r_hat) else str(how.r_hat),
        }

    def save(self, path: str | os.PathLike[str], table: bool = True) -> None:
        """Write the result to one file that `load` reads; see `ncp.clustering.saving`.

        Args:
            path: Where, by habit with the ending `.npz`.
            table: Whether the file holds the data.
        """
        from ncp.clustering.saving import save_clustering

        save_clustering(self, path, table)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], model: str | os.PathLike[str] | NCP | None = None
    ) -> Clustering:
        """Read what `save` wrote, in any process.

        Args:
            path: The file.
            model: The network, its name or its file, if it did not come with the package.
        """
        from ncp.clustering.saving import load_clustering

        return load_clustering(path, model)

    # -- pictures ----------------------------------------------------------------------------------

    def plot(self, ax: Axes | None = None) -> Axes:
        """The data, coloured by cluster, on their leading principal axes."""
        from ncp.output.plots import clusters

        self._columns()  # refuses a result without its table
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.gca()
        return clusters(ax, self.table, self.labels, self.confidence, self.columns)

    def report(self, title: str = "Clusters", command: str | None = None) -> str:
        """The self-contained HTML report.

        Args:
            title: Its heading, usually the name of the data.
            command: The command line that the report offers to complete; the result's own when
                left out.
        """
        from ncp.output.report import report

        return report(self._report_data(title, self.command if command is None else command))

    def write_report(
        self,
        path: str | os.PathLike[str],
        title: str = "Clusters",
        command: str | None = None,
    ) -> None:
        """Write the self-contained HTML report; see `report`."""
        write_atomically(path, self.report(title, command).encode())

    def _report_data(self, title: str, command: str, most: int = MOST_SHOWN) -> ReportData:
        from ncp.output.plots import project_2d
        from ncp.output.report import ReportData

        columns = self._columns()
        found = traits(columns, self.labels)
        place, axis_names = project_2d(self.table, self.columns)
        shown = self._shown(most)
        return ReportData(
            title=title,
            model_name=self.model_name,
            command=command,
            names=self.row_names,
            axes=tuple(Column(name, v) for name, v in zip(axis_names, place.T, strict=True)),
            columns=_telling(columns, found),
            n_columns=len(self.columns),
            labels=self.labels,
            confidence=self.confidence,
            samples=self.samples,
            shown=shown,
            similarity=self._similarity(shown),
            k=self.summary.n_clusters,
            n_draws=self._draws_of_k,
            cards=self._cards(found),
            best=self._best_by_k(),
            sentences=tuple(self.words()),
            trust=(self.trust(), self._ball_words()),
            notes=self.notes,
            warnings=self.warnings,
            about=self._about(),
            known=self._known_rows(),
            cluster_names=self.cluster_names if self._has_names else (),
            tree=self.hierarchy(),
        )

    def _known_rows(self) -> np.ndarray | None:
        if self.heard is None:
            return None
        known = np.zeros(self.n_points, bool)
        known[self.heard.rows.rows] = True
        return known

    def _shown(self, most: int) -> Int64[np.ndarray, " n"]:
        """Rows to draw: all, or a random part with some of every cluster."""
        if self.n_points <= most:
            return np.arange(self.n_points)
        order = np.random.default_rng(0).permutation(self.n_points)
        rank = np.empty(self.n_points, dtype=np.int64)  # of a row among those of its cluster
        for k in range(-1, self.n_clusters):
            here = order[self.labels[order] == k]
            rank[here] = np.arange(len(here))
        first = np.argsort(rank[order] >= LEAST_SHOWN, kind="stable")
        return np.sort(order[first][:most])

    def _cards(self, found: Sequence[Sequence[Any]]) -> tuple[Card, ...]:
        from ncp.output.report import Card

        typical = typical_rows(self.table, self.labels)
        cards = []
        for k, size in enumerate(self.sizes):
            rows = np.flatnonzero(self.labels == k)
            sure = self.confidence[rows]
            doubtful = rows[np.argsort(sure, kind="stable")[:3]]
            doubtful = doubtful[self.confidence[doubtful] < DOUBTFUL]
            cards.append(
                Card(
                    size=int(size),
                    confidence=float(sure.mean()),
                    traits=tuple(found[k][:MOST_TRAITS]) if found else (),
                    typical=typical[k],
                    doubtful=tuple(doubtful.tolist()),
                )
            )
        return tuple(cards)

    def _best_by_k(self) -> dict[int, Int64[np.ndarray, " N"]]:
        k = self.samples[:, self.labels >= 0].max(axis=1) + 1
        values, counts = np.unique(k, return_counts=True)
        return {int(v): self.best(int(v)) for v in values[counts >= ENOUGH_FOR_K]}

    def _ball_words(self) -> str:
        ball = self.summary.ball
        clusters = int(ball.upper[0].max()) + 1, int(ball.lower[0].max()) + 1
        return words.ball_sentence(ball.mass, ball.radius, ball.loss, clusters)

    def _about(self) -> str:
        from ncp import __version__

        s = self.settings
        return (
            f"ncp {__version__}, model {self.model_name}, {s.n_samples} samples in {s.orders} "
            f"orders, estimate {self.summary.estimate.loss}, "
            f"seed {'none' if s.seed is None else s.seed}, {self.seconds:.1f} s"
        )


def number_by_size(labels: Int64[np.ndarray, " N"]) -> Int64[np.ndarray, " K1"]:
    """New names of the labels 0, 1, ..., -1 such that the largest cluster is 0.

    Example:
        >>> labels = np.array([0, 1, 1, 2, 2, -1])
        >>> number_by_size(labels)[labels]
        array([ 2,  0,  0,  1,  1, -1])
    """
    sizes = np.bincount(labels[labels >= 0])
    names = np.full(len(sizes) + 1, -1)
    names[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
    return names


def _is_one(rows: Any) -> bool:
    return rows is not None and (isinstance(rows, str) or not hasattr(rows, "__len__"))


def _telling(columns: Sequence[Column], found: Sequence[Sequence[Any]]) -> tuple[Column, ...]:
    """The columns that tell the clusters apart best, in their order."""
    if len(columns) <= MOST_COLUMNS:
        return tuple(columns)
    largest: dict[str, float] = {}
    for trait in (trait for some in found for trait in some):
        largest[trait.column] = max(largest.get(trait.column, 0.0), abs(trait.effect))
    order = sorted(range(len(columns)), key=lambda i: -largest.get(columns[i].name, 0.0))
    return tuple(columns[i] for i in sorted(order[:MOST_COLUMNS]))
