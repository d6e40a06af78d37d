r"""What a Gaussian mixture says beyond a partition: parameters, densities, new data, evidence.

All of it is averaged over the posterior of partitions (and of hyper-parameters, if those are): with
samples c^s of weights w_s,

    p(x_new | x) = sum_s w_s sum_k p(k | c^s) p(x_new | cluster k of c^s),

where a cluster's parameters are integrated out (`ncp.inference.predictive`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from ncp.clustering.assign import Scorer
from ncp.clustering.gaussian import FamilyTable, Setting
from ncp.clustering.prepare import Settings
from ncp.clustering.result import Clustering
from ncp.generative.gaussian_family import GaussianFamily
from ncp.generative.model import model_from_dict
from ncp.generative.priors import prior_from_dict
from ncp.inference.bridge import bridge
from ncp.inference.finish import Goal
from ncp.inference.importance import Estimate, resample_counts
from ncp.inference.predictive import cluster_posteriors, leave_one_out, log_predictive
from ncp.model import NCP
from ncp.output.family_words import (
    alpha_sentence,
    choice_sentence,
    columns_sentence,
    evidence_sentence,
)
from ncp.posterior import Partitions, resample
from ncp.sampling.constraints import Constraints

__all__ = [
    "Cluster",
    "ExactFamily",
    "FamilyScorer",
    "GaussianClustering",
    "family_exact",
    "family_parts",
    "family_result",
    "with_family",
]

AVERAGED = 100  # samples that densities are averaged over
BRIDGE = 300  # draws of each side of a bridge
UNKNOWN = Estimate(np.float64(np.nan), np.float64(np.inf))


class Cluster(NamedTuple):
    """A cluster of the point estimate, in the table's units.

    Attributes:
        size: Its rows.
        mean: The posterior mean of its mean, shape (P,).
        mean_sd: The posterior standard deviation of its mean, shape (P,).
        covariance: The posterior mean of its covariance, shape (P, P).
    """

    size: int
    mean: Float64[np.ndarray, " P"]
    mean_sd: Float64[np.ndarray, " P"]
    covariance: Float64[np.ndarray, "P P"]


@dataclass(frozen=True, eq=False)
class FamilyScorer(Scorer):
    """Scores new rows by the exact predictive rule instead of a network.

    Attributes:
        table: The rows in the family's units.
        which: The setting of each sample, shape (s,).
    """

    table: FamilyTable | None = None
    which: Any = None

    def log_joint(self, rows: np.ndarray) -> list[Float64[np.ndarray, "M k1"]]:
        """log p(k, x_new | c^s, x) under every sample, of rows in the caller's units."""
        assert self.table is not None
        z = self.table.apply(rows)
        return [
            log_predictive(z, self.table.z, labels, self.table.mixture(int(g)))
            for labels, g in zip(self.labels, self.which, strict=True)
        ]

    def each(self, model: NCP | None, rows: np.ndarray) -> list[np.ndarray]:
        found = []
        for joint in self.log_joint(rows):
            p = np.exp(joint - joint.max(axis=1, keepdims=True))
            found.append(p / p.sum(axis=1, keepdims=True))
        return found


@dataclass(frozen=True, eq=False, repr=False)
class GaussianClustering(Clustering):
    """A table clustered by a Bayesian Gaussian mixture.

    Attributes:
        family: The table in the family's units, and its settings.
        evidence: log p(x) of the chosen setting (or averaged over all), with its error.
    """

    family: FamilyTable | None = field(default=None, repr=False)
    evidence: Estimate = field(default_factory=lambda: UNKNOWN)

    @property
    def _scorer(self) -> FamilyScorer:
        assert isinstance(self.scorer, FamilyScorer), "it was made with the result"
        return self.scorer

    @property
    def _family(self) -> FamilyTable:
        assert self.family is not None, "it was made with the result"
        return self.family

    # -- hyper-parameters --------------------------------------------------------------------------

    @property
    def hyperparameters(self) -> dict[str, float]:
        """alpha, ratio, dof and noise_sd of the chosen setting (the most probable one).

        noise_sd is in the table's units, or in standard deviations of the columns if those were
        brought to one scale.
        """
        return dict(self._family.setting._asdict())

    def posterior_of(self, name: str = "alpha") -> dict[float, float]:
        """The posterior of a hyper-parameter over the settings that were tried.

        Args:
            name: alpha, ratio, dof or noise_sd.
        """
        found: dict[float, float] = {}
        family = self._family
        for one, p in zip(family.settings, family.probabilities, strict=True):
            value = float(getattr(one, name))
            found[value] = found.get(value, 0.0) + float(p)
        return dict(sorted(found.items()))

    # -- clusters and densities --------------------------------------------------------------------

    def clusters(self) -> list[Cluster]:
        """Mean and covariance of each cluster of the point estimate, the largest first."""
        family = self._family
        weights = np.asarray(family.probabilities)
        weights = weights if family.average else np.arange(len(weights)) == family.chosen
        used = np.flatnonzero(weights > 1e-3)
        share = weights[used] / weights[used].sum()
        labels = self.summary.estimate.labels
        each = [cluster_posteriors(family.z, labels, family.mixture(int(g)))[:-1] for g in used]
        turn = family.axes * family.scale[:, None]  # (P, d)
        found = []
        for k in range(int(labels.max()) + 1):
            parts = [one[k] for one in each]
            mean = share @ np.stack([one.mean for one in parts])
            covs = np.stack([one.covariance for one in parts])
            cov = np.tensordot(share, covs, 1)
            spread = np.tensordot(share / [one.kappa for one in parts], covs, 1)
            sd = np.sqrt(np.diag(turn @ spread @ turn.T))
            size = int((labels == k).sum())
            centre = family.back(mean[None])[0]
            found.append(Cluster(size, centre, sd, turn @ cov @ turn.T))
        return found

    def _new_rows(self, x: Any) -> np.ndarray:
        rows = self._rows(x)
        rows = rows.reshape(len(rows), -1)
        if rows.shape[1] != len(self._family.scale):
            raise ValueError(f"Expected {len(self._family.scale)} columns but got {rows.shape[1]}")
        if not np.isfinite(rows).all():
            raise ValueError("Expected new rows without missing values but got some")
        return rows

    def predict_proba(self, x: Any) -> Float64[np.ndarray, "M K1"]:
        """Probabilities of new rows joining each cluster; the last column is "a new cluster"."""
        rows = self._new_rows(x)
        scorer = self._scorer
        return scorer.carry_over(scorer.each(self.model, rows))

    def score_samples(self, x: Any) -> Float64[np.ndarray, " M"]:
        """log p(x_new | x), the log density of new rows, averaged over the posterior.

        Args:
            x: Rows as those of the table.
        """
        family, scorer = self._family, self._scorer
        if family.dim < len(family.scale):
            raise ValueError("Expected a table whose columns were all used, to have a density")
        each = [np.logaddexp.reduce(joint, axis=1) for joint in scorer.log_joint(self._new_rows(x))]
        log_weights = np.log(scorer.weights)[:, None]
        return np.asarray(
            np.logaddexp.reduce(np.stack(each) + log_weights, axis=0) + family.log_jacobian
        )

    def sample(
        self, n_rows: int = 1, seed: int | None = None
    ) -> tuple[Float64[np.ndarray, "M P"], Int64[np.ndarray, " M"]]:
        """New rows of the posterior predictive, and the cluster that each would be given.

        Args:
            n_rows: How many; each is the next one after the table.
            seed: Makes them reproducible.

        Returns:
            Rows (M, P) in the table's units and labels (M,), -1 for a new cluster.
        """
        if n_rows < 1:
            raise ValueError(f"Expected n_rows >= 1 but got {n_rows}")
        rng, family, scorer = np.random.default_rng(seed), self._family, self._scorer
        z = np.empty((n_rows, family.dim))
        source = rng.choice(len(scorer.labels), n_rows, p=scorer.weights)
        for s in np.unique(source):
            labels, mixture = scorer.labels[s], family.mixture(int(scorer.which[s]))
            known = cluster_posteriors(family.z, labels, mixture)
            p = np.asarray(mixture.prior.predictive(np.bincount(labels)))
            here = np.flatnonzero(source == s)
            which = rng.choice(len(known), len(here), p=p)
            for k in np.unique(which):
                z[here[which == k]] = known[k].draw(int((which == k).sum()), rng)
        rows = family.back(z)
        return rows, self.predict(rows)

    def outlier_scores(self) -> Float64[np.ndarray, " N"]:
        """-log p(x_i | all other rows): how surprising each row is; NaN for rows left out.

        In nats, averaged over the posterior; the highest are the most unusual.
        """
        family, scorer = self._family, self._scorer
        mixtures = [family.mixture(int(g)) for g in scorer.which]
        found = leave_one_out(family.z, scorer.labels, scorer.weights, mixtures)
        scores = np.full(self.n_points, np.nan)
        scores[self.index] = -(found + family.log_jacobian)
        return scores

    # -- words -------------------------------------------------------------------------------------

    def words(self) -> list[str]:
        family = self._family
        found = super().words()
        p = float(np.asarray(family.probabilities)[family.chosen])
        n = len(family.settings)
        alpha, ratio, dof, noise_sd = family.setting
        setting = (alpha, ratio, dof, noise_sd)
        found.append(choice_sentence(setting, p, n, family.how, family.average))
        alphas = self.posterior_of("alpha")
        if len(alphas) > 1:
            found.append(alpha_sentence([*alphas], [*alphas.values()], self.n_draws))
        found.append(evidence_sentence(float(self.evidence.value), _error(self.evidence)))
        return found

    def to_dict(self) -> dict[str, Any]:
        plain = super().to_dict()
        family = self._family
        error = _error(self.evidence)
        plain["gaussian"] = {
            "hyperparameters": {k: _finite(v) for k, v in self.hyperparameters.items()},
            "by": family.how,
            "averaged": family.average,
            "posterior_of_alpha": {f"{k:g}": p for k, p in self.posterior_of("alpha").items()},
            "log_evidence": _finite(float(self.evidence.value)),
            "log_evidence_se": error if math.isfinite(error) else None,
            "clusters": [
                {"size": c.size, "mean": c.mean.tolist(), "covariance": c.covariance.tolist()}
                for c in self.clusters()
            ],
        }
        return plain


def _error(estimate: Estimate) -> float:
    return float(estimate.standard_error)


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


# -- made of samples -------------------------------------------------------------------------------


class ExactFamily(NamedTuple):
    """Samples of a table of the family.

    Attributes:
        partitions: As exact as they could be made.
        which: The setting of each row, shape (U,).
        evidence: log p(z).
    """

    partitions: Partitions
    which: Int64[np.ndarray, " U"]
    evidence: Estimate


def family_exact(
    drawn: Partitions,
    model: NCP,
    table: FamilyTable,
    settings: Settings,
    constraints: Constraints | None,
) -> ExactFamily:
    """Exact samples of a table of the family, the setting of each, and the log evidence.

    Args:
        drawn: The network's samples at the chosen setting.
        model: The network.
        table: In the family's units.
        settings: How it is clustered.
        constraints: What the samples obey.
    """
    if table.average and table.draws is not None:
        found, which = table.draws
        evidence = UNKNOWN
        if found.log_weights is not None and constraints is None:
            evidence = found.report.log_evidence
        elif found.report.method == "chains" and constraints is None:
            evidence = _averaged_evidence(found, which, model, table, settings)
        if settings.reweight is not False:
            _insist(found, settings)
        return ExactFamily(found, which, evidence)
    drawn = replace(drawn, x=table.z)
    found = _exact(drawn, table, settings, constraints)
    which = np.full(len(found), table.chosen)
    if found.report.method == "none" or constraints is not None:
        return ExactFamily(found, which, UNKNOWN)
    return ExactFamily(found, which, _evidence(found, model, table, settings))


def _exact(
    drawn: Partitions, table: FamilyTable, settings: Settings, constraints: Constraints | None
) -> Partitions:
    """The same at one setting."""
    if settings.reweight is False:
        return drawn if constraints is None else resample(drawn, seed=settings.seed or 0)
    if settings.reweight is True:
        return drawn.reweight(table.mixture())
    goal = Goal.of(settings.n_samples, settings.time_limit)
    allow = None if constraints is None else constraints.allow
    found = drawn.exact(table.mixture(), goal=goal, seed=settings.seed, allow=allow)
    _insist(found, settings)
    return found


def _insist(found: Partitions, settings: Settings) -> None:
    if settings.exact is True and not found.report.trusted:
        raise ValueError(
            f"Expected exact samples but the verdict is {found.report.verdict!r}; give a longer "
            f"time_limit than {settings.time_limit:g} s"
        )


def _evidence(found: Partitions, model: NCP, table: FamilyTable, settings: Settings) -> Estimate:
    """log p(z): of the weights or the enumeration, or by a bridge if chains drew the samples.

    A lower bound, with an infinite error, where the chains did not converge.
    """
    report = found.report
    if report.method != "chains":
        return report.log_evidence
    features, mixture = table.features(), table.mixture()
    q = model.sample(features, BRIDGE, orders=1, seed=settings.seed)
    of_q = np.asarray(mixture.log_joint(table.z, q.labels)) - q.log_q
    chosen = np.repeat(np.arange(len(found)), found.counts)
    if len(chosen) > BRIDGE:
        chosen = np.random.default_rng(settings.seed).choice(chosen, BRIDGE, replace=False)
    rows, back = np.unique(chosen, return_inverse=True)
    log_q = model.log_prob(features, found.labels[rows]).detach().double().cpu().numpy()
    of_p = (np.asarray(mixture.log_joint(table.z, found.labels[rows])) - log_q)[back]
    found_so = bridge(np.repeat(of_q, q.counts), of_p, min(report.ess, float(BRIDGE)))
    # chains that do not agree have missed something, and nobody knows how much
    return found_so if report.converged else Estimate(found_so.value, np.float64(np.inf))


def _averaged_evidence(
    found: Partitions,
    which: Int64[np.ndarray, " U"],
    model: NCP,
    table: FamilyTable,
    settings: Settings,
) -> Estimate:
    """log p(z) over all settings by way of the likeliest: p(z) = p(z | g) p(g) / p(g | z)."""
    p = float(np.asarray(table.probabilities)[table.chosen])
    here = found[which == table.chosen]
    assert here.finish is not None
    if not len(here) or not here.finish.ess > 0:  # chains that were cut short
        return UNKNOWN
    here = replace(here, finish=replace(here.finish, ess=p * here.finish.ess))
    one = _evidence(here, model, table, settings)
    value = one.value - math.log(len(table.settings) * p)
    of_p = math.sqrt((1 - p) / (p * found.report.ess))
    return Estimate(np.float64(value), np.float64(math.hypot(_error(one), of_p)))


def family_result(found: Clustering, table: FamilyTable, exact: ExactFamily) -> GaussianClustering:
    """A clustering with what the family knows of it.

    Args:
        found: The clustering.
        table: In the family's units.
        exact: Its samples.
    """
    counts = resample_counts(found.posterior.weights, AVERAGED, seed=0)
    kept = np.flatnonzero(counts)
    scorer = FamilyScorer(
        table,
        table.z,
        found.posterior.labels[kept],
        counts[kept] / counts.sum(),
        found.summary.estimate.labels,
        table,
        exact.which[kept],
    )
    value = exact.evidence.value + len(table.z) * table.log_jacobian
    evidence = Estimate(value, exact.evidence.standard_error)
    scaled = () if (table.scale == 1).all() else (columns_sentence(),)
    fields = {name: getattr(found, name) for name in Clustering.__dataclass_fields__}
    fields |= {"scorer": scorer, "notes": (*found.notes, *scaled)}
    return GaussianClustering(**fields, family=table, evidence=evidence)


# -- in a file -------------------------------------------------------------------------------------


def family_parts(found: GaussianClustering) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What a file has to hold beyond a clustering: arrays and plain values."""
    family, scorer = found._family, found._scorer
    arrays = {
        "family_location": family.location,
        "family_scale": family.scale,
        "family_axes": family.axes,
        "family_settings": np.array(family.settings),
        "family_probabilities": np.asarray(family.probabilities),
        "family_which": np.asarray(scorer.which),
        "family_evidence": np.array([found.evidence.value, _error(found.evidence)]),
    }
    about = {
        "family": family.family.to_dict(),
        "prior": None if family.prior is None else family.prior.to_dict(),
        "average": family.average,
        "chosen": family.chosen,
        "how": family.how,
    }
    return arrays, about


def with_family(
    found: Clustering, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]
) -> GaussianClustering:
    """A clustering read from a file, with the parts that `family_parts` wrote."""
    family = model_from_dict(about["family"])
    assert isinstance(family, GaussianFamily)
    location, scale, axes = (arrays[f"family_{name}"] for name in ("location", "scale", "axes"))
    rows = found.table.reshape(found.n_points, -1)[found.index]
    table = FamilyTable(
        family,
        np.ascontiguousarray((rows - location) / scale @ axes),
        location,
        scale,
        axes,
        [Setting(*row) for row in arrays["family_settings"].tolist()],
        None if about["prior"] is None else prior_from_dict(about["prior"]),
        bool(about["average"]),
        int(about["chosen"]),
        probabilities=arrays["family_probabilities"],
        how=str(about["how"]),
    )
    scorer = FamilyScorer(
        table,
        table.z,
        arrays["scorer_labels"],
        arrays["scorer_weights"],
        found.summary.estimate.labels,
        table,
        arrays["family_which"],
    )
    fields = {name: getattr(found, name) for name in Clustering.__dataclass_fields__}
    evidence = Estimate(*arrays["family_evidence"])
    return GaussianClustering(**fields | {"scorer": scorer}, family=table, evidence=evidence)
