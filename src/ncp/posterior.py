"""What a user holds of samples: distinct partitions with counts, log q and weights.

`Partitions` is what samplers return. Its answers (similarity, point estimate, evidence, words) are
computed in `ncp.summary`, `ncp.inference.importance` and `ncp.output.words`; here they get a name.
`reweight` and `resample` turn draws of a network into draws of the exact posterior and back.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, overload, runtime_checkable

import numpy as np
import torch

from ncp.files import Archive, write_atomically
from ncp.generative.mixture import Mixture
from ncp.inference.finish import Allow, Finish, Goal, finish, stays
from ncp.inference.importance import (
    Estimate,
    Report,
    average_log_q,
    diagnose,
    effective_sample_size,
    log_evidence,
    pareto_smooth,
    pooled_ess,
    resample_counts,
    some_pairs,
)
from ncp.inference.mcmc.schedule import Progress
from ncp.inference.plausible import within_reach
from ncp.inference.pseudo_marginal import PseudoMarginal
from ncp.output.words import exact_sentence, in_words, tail_in_words
from ncp.partitions import ArrayLike, as_labels, as_tensor, check_labels, shape_of
from ncp.summary.estimate import PointEstimate, point_estimate
from ncp.summary.rows import merge_rows
from ncp.summary.similarity import similarity
from ncp.summary.summary import summarise

if TYPE_CHECKING:
    from arviz import InferenceData
    from pandas import DataFrame

__all__ = ["HasLogJoint", "Partitions", "Reweighted", "pool", "resample", "reweight"]

PAIRS = 500  # of points that runs are compared by
WORTH = 0.8  # share of few samples that weights must be worth to be enough


@runtime_checkable
class HasLogJoint(Protocol):
    """What `reweight` needs of a model: log p(c, x), as a `Mixture` offers it."""

    def log_joint(self, x: Any, labels: Any) -> Any: ...


@dataclass(frozen=True, eq=False, repr=False)
class Partitions:
    """Samples of partitions of one data set, each distinct one once.

    Row u stands for ``counts[u]`` samples of the partition ``labels[u]``; its weight is

        w_u = counts_u exp(log_weights_u) / sum_v counts_v exp(log_weights_v)

    with ``log_weights = 0`` when there are none. The same labels may occur in two rows when they
    were drawn in different orders of the points, with a different ``log_q`` each.

    Args:
        labels: canonical labels in the caller's order of points, of shape (U, N).
        counts: how many samples each row stands for, of shape (U,).
        log_q: the log probability of the row under the sampler, of shape (U,).
        log_weights: unnormalised log importance weights of one sample of the row, of shape (U,).
        x: the data set, of shape (N, ...), so that the samples can be weighted; not saved.
        in_range: whether it looks like what the sampler was trained on, as far as anyone looked;
            not saved.
        finish: how `exact` obtained them, if it did; not saved.
        runs: which of several samplers drew each row, if the draws of one depend on each other, of
            shape (U,).

    Iteration and integer indices give rows of labels; slices, masks and index arrays give
    `Partitions`.

    Example:
        >>> two = Partitions(np.array([[0, 0], [0, 1]]), np.array([3, 1]), np.log([0.75, 0.25]))
        >>> two
        Partitions(4 samples of 2 points, 2 distinct)
        >>> two.weights
        array([0.75, 0.25])
        >>> two.expand()[:, 1]
        array([0, 0, 0, 1])
    """

    labels: np.ndarray
    counts: np.ndarray
    log_q: np.ndarray
    log_weights: np.ndarray | None = None
    x: np.ndarray | None = None
    in_range: bool = True
    finish: Finish | None = None
    runs: np.ndarray | None = None

    def __post_init__(self) -> None:
        labels = as_labels(self.labels)
        if labels.ndim != 2:
            raise ValueError(f"Expected labels of shape (U, N) but got shape {shape_of(labels)}")
        counts = as_tensor(self.counts)
        if counts.is_floating_point() or counts.dtype == torch.bool:
            raise ValueError(f"Expected integer counts but got {counts.dtype}")
        object.__setattr__(self, "labels", check_labels(labels).numpy())
        object.__setattr__(self, "counts", counts.long().numpy())
        for name in ("log_q", "log_weights"):
            column = getattr(self, name)
            if column is not None:
                object.__setattr__(self, name, as_tensor(column).double().numpy())
        self._check_sizes()

    def _check_sizes(self) -> None:
        n_rows, n_points = self.labels.shape
        for name in ("counts", "log_q", "log_weights", "runs"):
            column = getattr(self, name)
            if column is not None and column.shape != (n_rows,):
                raise ValueError(f"Expected {name} of shape ({n_rows},) but got {column.shape}")
        if n_rows and int(self.counts.min()) < 1:
            raise ValueError(f"Expected counts >= 1 but got {int(self.counts.min())}")
        if self.x is not None and len(self.x) != n_points:
            raise ValueError(f"Expected x of {n_points} points but got {len(self.x)}")

    @classmethod
    def of(cls, samples: Any) -> Partitions:
        """From samples of equal weight, (S, N); log q is that of their frequencies.

        Example:
            >>> Partitions.of([[1, 1, 0], [0, 1, 0], [0, 0, 1]]).counts
            array([2, 1])
        """
        rows, weights = merge_rows(samples)
        counts = np.rint(weights / weights.sum() * len(samples)).astype(np.int64)
        return cls(rows, counts, np.log(counts / len(samples)))

    @property
    def n_samples(self) -> int:
        """The number of samples S, the sum of the counts."""
        return int(self.counts.sum())

    @property
    def n_points(self) -> int:
        """The number of points N."""
        return int(self.labels.shape[1])

    @property
    def n_clusters(self) -> np.ndarray:
        """The number of clusters of each row, of shape (U,)."""
        return np.asarray(self.labels.max(axis=1) + 1)

    @property
    def weights(self) -> np.ndarray:
        """Normalised weights of the rows, of shape (U,)."""
        weights = self.counts.astype(np.float64)
        if self.log_weights is not None:
            top = self.log_weights.max(initial=-np.inf)
            if not np.isfinite(top):
                raise ValueError(f"Expected a largest log weight that is finite but got {top}")
            weights = weights * np.exp(self.log_weights - top)
        return np.asarray(weights / weights.sum())

    def expand(self) -> np.ndarray:
        """One row per sample, of shape (S, N), in the order of the distinct rows."""
        return np.repeat(self.labels, self.counts, axis=0)

    def to_numpy(self) -> dict[str, np.ndarray]:
        """The fields as a dict of arrays; ``log_weights`` and ``runs`` when there are any."""
        names = ("labels", "counts", "log_q", "log_weights", "runs")
        fields = {name: getattr(self, name) for name in names}
        return {name: array for name, array in fields.items() if array is not None}

    def save(self, path: str | PathLike[str]) -> None:
        """Write to a compressed ``.npz`` file at exactly this path, whole or not at all."""
        buffer = io.BytesIO()
        # mypy takes the unpacked arrays for the allow_pickle flag
        np.savez_compressed(buffer, **self.to_numpy())  # type: ignore[arg-type]
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Partitions:
        """Read what `save` wrote; anything else is refused with a `ValueError`."""
        file = Archive(Path(path).read_bytes())
        if not {"labels", "counts", "log_q"} <= set(file.names):
            raise ValueError(
                f"Expected a file with labels, counts and log_q but got {sorted(file.names)}"
            )
        given = [name for name in ("log_weights", "runs") if name in file.names]
        more: dict[str, Any] = {name: file[name] for name in given}
        return cls(file["labels"], file["counts"], file["log_q"], **more)

    # -- answers ---------------------------------------------------------------------------------

    def reweight(self, mixture: HasLogJoint, x: ArrayLike | None = None) -> Partitions:
        """The same samples with log w = log p(c, x) - log q(c | x): exact, up to Monte Carlo error.

        Args:
            mixture: the model to be exact for; usually ``model.mixture``. Where its likelihood is
                not conjugate but has a density, p(c, x) is estimated without bias
                (`ncp.inference.pseudo_marginal`), and the weights stay exact.
            x: the data, if these partitions do not know theirs (as after `load`).

        Returns:
            Weighted partitions; `report` says whether to trust the weights.
        """
        return self._weighted(mixture, _with_log_joint(mixture), self._data(x))

    def _weighted(self, mixture: HasLogJoint, joint: HasLogJoint, x: np.ndarray) -> Partitions:
        near = not isinstance(mixture, Mixture) or within_reach(x, mixture)
        known = replace(self, in_range=self.in_range and near)
        return replace(reweight(known, joint, x).partitions, x=x)

    def exact(
        self,
        mixture: Mixture,
        x: ArrayLike | None = None,
        *,
        goal: Goal | None = None,
        seed: int | None = None,
        allow: Allow | None = None,
        progress: Progress | None = None,
    ) -> Partitions:
        """Exact samples: by weights where those are to be trusted and many, else by all means.

        Weights that seem good are put to a test: exact moves must not change what they say.

        For a few points the posterior is enumerated; for more, Gibbs chains with splits and merges
        start at these samples and run until they agree (see `ncp.inference.finish`). `report` says
        which way it was and whether to trust it.

        Args:
            mixture: the model to be exact for, whose likelihood is conjugate or has a density.
            x: the data, if these partitions do not know theirs.
            goal: when chains are long enough, and the time that they have.
            seed: makes the result reproducible, unless the chains run out of time.
            allow: which rows of labels obey what is known, as these samples do; then exact is
                p(c | x) among those.
            progress: called with (sweeps done, sweeps of the round) now and then.

        Returns:
            As many samples as before: these with weights, or others without. These as they are,
            without a verdict, if too few samples of chains obey.
        """
        goal = goal or Goal()
        joint = _with_log_joint(mixture)
        weighted = self._weighted(mixture, joint, self._data(x))
        report = weighted.report
        assert weighted.x is not None
        enough = report.ess >= min(goal.min_ess, WORTH * self.n_samples)
        data, weights = weighted.x, weighted.weights
        enough = enough and report.trusted
        # sweeps know of no constraints, so they cannot test samples that obey some
        if enough and (allow is not None or stays(data, mixture, self.labels, weights, seed)):
            return weighted
        drawn = finish(
            data,
            mixture,
            self.labels,
            weights,
            self.counts,
            n_samples=self.n_samples,
            goal=goal,
            seed=seed,
            allow=allow,
            progress=progress,
        )
        if not len(drawn.labels):
            return weighted if report.trusted else resample(self, seed=seed or 0)
        how, evidence = drawn.finish, float(report.log_evidence.value)
        evidence = evidence if how.log_evidence is None else how.log_evidence
        log_p = np.asarray(joint.log_joint(data, drawn.labels)) - evidence
        how = replace(how, log_evidence=evidence)
        return Partitions(
            drawn.labels, drawn.counts, log_p, x=data, in_range=self.in_range, finish=how
        )

    def _data(self, x: ArrayLike | None) -> np.ndarray:
        data = self.x if x is None else as_tensor(x).numpy()
        if data is None:
            raise ValueError("Expected the data x, which these partitions do not carry")
        return data

    @property
    def report(self) -> Report:
        """What makes the samples exact, if anything, and whether to trust it."""
        if self.log_weights is not None:
            found = diagnose(self.log_weights, self.counts, in_range=self.in_range)
            return replace(found, ess=self.ess)
        s, u = self.n_samples, len(self)
        how = self.finish
        if how is None:
            return Report(s, u, float(s), np.nan, Estimate(np.nan, np.inf), "none")
        # what the weights of chains' seeds say of the evidence has an error that nobody knows
        error = 0.0 if how.method == "enumeration" else np.inf
        value = np.nan if how.log_evidence is None else how.log_evidence
        evidence, ess = Estimate(np.float64(value), np.float64(error)), min(how.ess, float(s))
        return Report(s, u, ess, np.nan, evidence, how.method, how.converged, how.r_hat)

    @property
    def ess(self) -> float:
        """How many independent samples the weighted ones are worth."""
        if self.log_weights is None:
            return float(self.n_samples)
        found = effective_sample_size(self.log_weights, self.counts)
        return found if self.runs is None else max(1.0, min(found, self._ess_of_runs()))

    def _ess_of_runs(self) -> float:
        """By how far runs agree on pairs of points; infinite if there is one."""
        assert self.runs is not None
        i, j = some_pairs(self.n_points, np.random.default_rng(0), PAIRS)
        weights, total, means = self.weights, [], []
        for run in np.unique(self.runs):
            rows = np.flatnonzero(self.runs == run)
            total.append(own := float(weights[rows].sum()))
            together = self.labels[rows][:, i] == self.labels[rows][:, j]
            means.append(weights[rows] @ together / max(own, 1e-300))
        return pooled_ess(np.stack(means), np.array(total))

    def similarity_matrix(self) -> np.ndarray:
        """P(c_i = c_j), of shape (N, N)."""
        return similarity(self.labels, self.weights)

    def point_estimate(
        self, loss: Literal["vi", "binder", "pear", "map"] = "vi", max_clusters: int | None = None
    ) -> PointEstimate:
        """The partition that stands for the samples; see `ncp.summary.estimate.point_estimate`."""
        return point_estimate(self.labels, self.weights, loss, max_clusters=max_clusters)

    def summary(self, loss: Literal["vi", "binder", "pear", "map"] = "vi") -> str:
        """What the samples say, in words: K, cluster sizes, confidence and trust in the weights."""
        found = summarise(self.labels, self.weights, loss)
        sizes, sure = found.estimate.sizes, found.confidence
        sentences = in_words(found.n_clusters, sizes, sure, self.report.ess)
        return "\n".join([repr(self), *sentences, _trust(self)])

    def to_pandas(self) -> DataFrame:
        """One line a row: weight, count, K, log q, and the labels in columns 0, ..., N - 1."""
        from pandas import DataFrame, concat

        about = {
            "weight": self.weights,
            "count": self.counts,
            "n_clusters": self.n_clusters,
            "log_q": self.log_q,
        }
        if self.log_weights is not None:
            about["log_weight"] = self.log_weights
        return concat([DataFrame(about), DataFrame(self.labels)], axis=1)

    def to_arviz(self) -> InferenceData:
        """An ArviZ ``InferenceData`` of one chain: labels, n_clusters and log_q of every sample.

        Weighted samples are resampled to equal weights first.
        """
        from arviz import from_dict

        equal = self if self.log_weights is None else resample(self, seed=0)
        row = np.repeat(np.arange(len(equal)), equal.counts)[None]
        posterior = {"labels": equal.labels[row], "n_clusters": equal.n_clusters[row]}
        return from_dict(
            posterior=posterior,
            sample_stats={"log_q": equal.log_q[row]},
            dims={"labels": ["point"]},
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.labels)

    @overload
    def __getitem__(self, index: int | np.integer) -> np.ndarray: ...

    @overload
    def __getitem__(self, index: slice | np.ndarray | list[int] | list[bool]) -> Partitions: ...

    def __getitem__(self, index: Any) -> np.ndarray | Partitions:
        if isinstance(index, int | np.integer):
            return np.asarray(self.labels[index])
        log_weights = None if self.log_weights is None else self.log_weights[index]
        return replace(
            self,
            labels=self.labels[index],
            counts=self.counts[index],
            log_q=self.log_q[index],
            log_weights=log_weights,
            runs=None if self.runs is None else self.runs[index],
        )

    def __repr__(self) -> str:
        weighted = "" if self.log_weights is None else ", weighted"
        return (
            f"Partitions({self.n_samples} samples of {self.n_points} points, "
            f"{len(self)} distinct{weighted})"
        )


def _with_log_joint(mixture: HasLogJoint) -> HasLogJoint:
    """The model itself, or unbiased estimates of its density if that has no closed form."""
    if isinstance(mixture, Mixture) and mixture.has_density and not mixture.is_conjugate:
        return PseudoMarginal(mixture)
    return mixture


def _trust(partitions: Partitions) -> str:
    """One line on how good the samples are."""
    report = partitions.report
    if report.method == "none":
        return (
            "Weights: none; these are the network's own samples. "
            "exact(mixture) makes them exact for a mixture with a density."
        )
    if report.method != "weights":
        return f"{exact_sentence(report.method, report.converged, report.ess, report.r_hat)}"
    return (
        f"Weights: {report.verdict}. They are worth {report.ess:.0f} of {report.n_samples} samples "
        f"(ESS {report.ess_fraction:.0%}); {tail_in_words(report.k_hat)}; "
        f"log evidence {report.evidence_in_words}."
    )


def resample(
    partitions: Partitions, n_samples: int | None = None, seed: int | None = None
) -> Partitions:
    """Draws with equal weights from weighted ones; rows that are not drawn are left out.

    The result is a sample of (approximately) the posterior, and its ``log_q`` says so: it is
    ``log p(c, x) - log p(x)``, with the evidence estimated by the weights. Weighting the result
    again therefore changes nothing.

    Args:
        partitions: with ``log_weights``, as `reweight` returns them.
        n_samples: number of draws; as many as before when left out.
        seed: None for a fresh one.
    """
    lw = partitions.log_weights
    if lw is None:
        raise ValueError("Expected partitions with log_weights but got none: call reweight first")
    n = resample_counts(partitions.weights, n_samples or partitions.n_samples, seed)
    evidence = float(log_evidence(lw, partitions.counts).value)
    keep = n > 0
    return Partitions(partitions.labels[keep], n[keep], (partitions.log_q + lw - evidence)[keep])


def pool(several: Sequence[Partitions]) -> Partitions:
    """Samples of one data set from several samplers, each of which counts by its samples.

    Args:
        several: of the same points; weighted all of them, or none.

    Example:
        >>> one = Partitions(np.array([[0, 0]]), np.array([1]), np.zeros(1))
        >>> pool([one, one])
        Partitions(2 samples of 2 points, 2 distinct)
    """
    weighted = [one.log_weights for one in several if one.log_weights is not None]
    if len(weighted) not in (0, len(several)):
        raise ValueError("Expected samples with weights, or none with weights, but got both")
    return Partitions(
        np.concatenate([one.labels for one in several]),
        np.concatenate([one.counts for one in several]),
        np.concatenate([one.log_q for one in several]),
        np.concatenate(weighted) if weighted else None,
        several[0].x,
        all(one.in_range for one in several),
        runs=_all_runs([one.runs for one in several]),
    )


def _all_runs(several: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Runs of several samplers, none of which two share; None if one has none."""
    found: list[np.ndarray] = []
    for runs in several:
        if runs is None:
            return None
        first = 0 if not found else int(found[-1].max(initial=-1)) + 1
        found.append(first + np.unique(runs, return_inverse=True)[1])
    return np.concatenate(found)


class Reweighted(NamedTuple):
    """Weighted partitions and the report on their weights."""

    partitions: Partitions
    report: Report


def reweight(
    partitions: Partitions,
    mixture: HasLogJoint,
    x: Any,
    log_q: ArrayLike | None = None,
    smooth: bool = False,
) -> Reweighted:
    """log w = log p(c, x) - log q(c | x) for every row, and whether to trust it.

    Args:
        partitions: independent draws of a sampler with their log q; not the rows of a beam
            search, which are no random draws.
        mixture: the model, with ``log_joint(x, labels)``.
        x: the data, of shape (N, ...).
        log_q: to use instead of ``partitions.log_q``: of shape (U,), or of shape (orders, U) to
            average over the orders that the draws were made in (see `average_log_q`).
        smooth: return the Pareto-smoothed weights: less variance, a little bias. The report is on
            the raw ones.
    """
    joint = np.asarray(mixture.log_joint(x, partitions.labels), dtype=np.float64)
    if joint.shape != partitions.log_q.shape:
        raise ValueError(f"Expected log_joint of {len(partitions)} rows but got {joint.shape}")
    q = partitions.log_q if log_q is None else np.asarray(log_q, dtype=np.float64)
    averaged = q.ndim == 2
    q = average_log_q(q) if averaged else q
    if q.shape != joint.shape:
        raise ValueError(f"Expected log_q of {len(partitions)} rows but got {q.shape}")
    log_weights = joint - q
    own = joint - partitions.log_q if averaged else None
    report = diagnose(log_weights, partitions.counts, own, partitions.in_range)
    if smooth:
        log_weights = pareto_smooth(log_weights, partitions.counts).log_weights
    return Reweighted(replace(partitions, log_q=q, log_weights=log_weights), report)
