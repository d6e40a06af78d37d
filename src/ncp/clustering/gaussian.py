r"""Tables for a network of the Gaussian family: hyper-parameters that the user chooses, or data do.

A table becomes z = (x - m) / scale in principal axes: m the column means (or the caller's), the
scale one number for each column if nobody gives the noise in the table's units, else 1. All
settings of the hyper-parameters are models of z,

    CRP(alpha),  clusters of sd s within and r s between,  dof degrees of freedom,

so that their densities compare; log p(x) = log p(z) - N sum log scale. The noise s that is not
given follows from the ratio r and the spread V of the table, s^2 (1 + r^2) = V.

What is not given runs over a small grid with equal prior weights. One batched call of the network
draws partitions for every setting, and their weights are the evidences (of the table and of what
is known of its partition, if anything is). Where these are not to be trusted, exact chains over
partitions and settings take over (`ncp.inference.grid`); they would not obey what is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from ncp.clustering.prepare import Prepared, Settings, as_columns
from ncp.generative.gaussian_family import CRPs, GaussianFamily, SphericalWisharts, standardise
from ncp.generative.likelihood import sum_by_cluster
from ncp.generative.mixture import Mixture
from ncp.generative.priors import CRP, Prior, prior_from_dict
from ncp.inference.finish import Goal
from ncp.inference.grid import GridDraws, SettingGrid, grid_chains
from ncp.inference.importance import Estimate, Report
from ncp.model import NCP
from ncp.output.family_words import (
    axes_sentence,
    few_rows_sentence,
    nearest_sentence,
    rough_sentence,
)
from ncp.output.words import left_out_sentence, size_sentence
from ncp.posterior import Partitions, pool
from ncp.sampling.constraints import Constraints

__all__ = [
    "FAMILY_OPTIONS",
    "FamilyTable",
    "Setting",
    "check_family_options",
    "choose_setting",
    "expected_clusters",
    "family_of",
    "prepare_family",
]

FAMILY_OPTIONS = ("alpha", "ratio", "dof", "location", "prior", "nearest")
ALPHAS = (0.3, 1.0, 3.0)
RATIOS = (2.0, 4.0, 8.0, 16.0, 32.0)
EXCESS_DOF = (3.0, 12.0, math.inf)  # beyond the dimension
DRAWS = 200  # of the network for each setting
ORDERS = 4
CLOSE = 5.0  # nats below the best setting's evidence: settings that matter
SAME = 1e-8  # correlation of columns that say the same, less than one


def family_of(model: NCP) -> GaussianFamily | None:
    """The family that a network was trained for, if it is the Gaussian one."""
    return model.mixture if isinstance(model.mixture, GaussianFamily) else None


def check_family_options(model: NCP, settings: Settings) -> None:
    """Hyper-parameters are for networks that take them."""
    if family_of(model) is not None:
        return
    given = [name for name in FAMILY_OPTIONS if getattr(settings, name) not in (None, False)]
    if settings.hyperparameters != "best":
        given.append("hyperparameters")
    if given:
        raise ValueError(f"Expected no {', '.join(given)} for this model, which does not take any")


# -- settings --------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """Hyper-parameters of the family.

    Attributes:
        alpha: the concentration.
        ratio: standard deviation between clusters in those within.
        dof: degrees of freedom; infinity for known covariances.
        noise_sd: standard deviation within clusters, in units of z.
    """

    alpha: float
    ratio: float
    dof: float
    noise_sd: float

    def row(self, dim: int) -> list[float]:
        """Hyper-parameters in the order of the family's."""
        return [self.alpha, float(dim), self.ratio, self.dof]


def nearest(setting: Setting, dim: int, family: GaussianFamily) -> Setting:
    """The setting in the trained range that is nearest."""
    alpha = float(min(max(setting.alpha, family.alpha[0]), family.alpha[1]))
    ratio = float(min(max(setting.ratio, family.ratio[0]), family.ratio[1]))
    dof = setting.dof
    if dof < math.inf:
        most = float(family.max_dof)
        dof = math.inf if dof > most**2 / (dim + 2) else float(np.clip(dof, dim + 2, most))
    return Setting(alpha, ratio, dof, setting.noise_sd)


def _grid(settings: Settings, spread: float, dim: int, alpha: float | None) -> list[Setting]:
    """All settings of what is not given; a spread within clusters follows from the ratio."""
    alphas = ALPHAS if alpha is None else (alpha,)
    ratios = RATIOS if settings.ratio is None else (settings.ratio,)
    dofs = [dim + more for more in EXCESS_DOF]
    if settings.dof is not None:
        dofs = [math.inf if settings.dof == "known" else float(settings.dof)]
    found = []
    for a, r, dof in product(alphas, ratios, dofs):
        noise = settings.noise_sd or spread / math.sqrt(1 + r**2)
        found.append(Setting(float(a), float(r), float(dof), float(noise)))
    return found


def expected_clusters(prior: Prior, n_points: int) -> float:
    """E[K] of N points, by the predictive rule of a few draws of the prior."""
    labels = prior.sample(400, n_points, torch.Generator().manual_seed(0))
    return float((labels.amax(dim=1) + 1).double().mean())


def nearest_alpha(prior: Prior, n_points: int, family: GaussianFamily) -> float:
    """The concentration of the CRP with as many clusters of N points, within the range."""
    wanted = expected_clusters(prior, n_points)
    grid = np.geomspace(family.alpha[0], family.alpha[1], 41)
    i = np.arange(n_points)
    k = (grid[:, None] / (grid[:, None] + i)).sum(axis=1)
    return float(grid[np.abs(k - wanted).argmin()])


# -- a table of the family -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FamilyTable:
    """A table in the units of the family, and the settings that explain it.

    Attributes:
        family: What the network was trained for.
        z: The rows, of shape (n, d), in principal axes.
        location: m, in the table's units, of shape (P,).
        scale: What columns are divided by, of shape (P,).
        axes: The rotation, of shape (P, d); d < P if only leading axes are used.
        settings: The grid, of length G.
        chosen: Which of them the network sees.
        log_evidence: log p(z) at each setting with its error, shape (G,); lower bounds where the
            weights are not to be trusted.
        trusted: Whether they are, of shape (G,).
        probabilities: Of the settings, given the table, of shape (G,).
        how: Where the probabilities come from: "weights", "rough weights" (not to be trusted, where
            something is known), "chains" or "short chains" (that did not agree in time); "given" if
            there is one setting.
        prior: Of partitions, if it is not a CRP.
        average: Whether to average over the settings.
        draws: Partitions for all settings, with the setting of each.
    """

    family: GaussianFamily
    z: Float64[np.ndarray, "n d"]
    location: Float64[np.ndarray, " P"]
    scale: Float64[np.ndarray, " P"]
    axes: Float64[np.ndarray, "P d"]
    settings: Sequence[Setting]
    prior: Prior | None = None
    average: bool = False
    chosen: int = 0
    log_evidence: Estimate | None = None
    trusted: Any = None
    probabilities: Any = None
    how: str = "given"
    draws: FamilyDraws | None = None

    def apply(self, x: Any, /) -> Float64[np.ndarray, "m d"]:
        """Further rows of the same table, as z."""
        rows = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
        return np.asarray(((rows - self.location) / self.scale) @ self.axes)

    def back(self, z: Float64[np.ndarray, "m d"]) -> Float64[np.ndarray, "m P"]:
        """From z to the table's units."""
        return np.asarray(self.location + (z @ self.axes.T) * self.scale)

    @property
    def dim(self) -> int:
        return int(self.z.shape[1])

    @property
    def log_jacobian(self) -> float:
        """log p(x) - log p(z) of one row."""
        return -float(np.log(self.scale).sum())

    @property
    def setting(self) -> Setting:
        """The one chosen."""
        return self.settings[self.chosen]

    def mixture(self, which: int | None = None) -> Mixture:
        """The model of z at a setting, by default the chosen one."""
        one = self.settings[self.chosen if which is None else which]
        values = {"alpha": one.alpha, "ratio": one.ratio, "dof": one.dof}
        found = self.family.condition(dim=self.dim, noise_sd=one.noise_sd, **values)
        return found if self.prior is None else replace(found, prior=self.prior)

    def features(self, which: int | None = None) -> Float64[np.ndarray, "n e"]:
        """What the network sees at a setting (the nearest in its range)."""
        one = self.settings[self.chosen if which is None else which]
        row = torch.tensor(nearest(one, self.dim, self.family).row(self.dim), dtype=torch.float64)
        return self.family.events(torch.from_numpy(self.z) / one.noise_sd, row).numpy()

    def log_joints(self, labels: Int64[np.ndarray, "r n"]) -> Float64[np.ndarray, "g r"]:
        """log p(c, z | setting) of rows of labels at all settings, in one call."""
        return _log_joints(self, torch.as_tensor(labels))

    def grid(self) -> SettingGrid:
        """For chains over the settings."""
        codes = [(math.log(s.alpha), math.log(s.ratio), 1 / s.dof) for s in self.settings]
        mixtures = [self.mixture(g) for g in range(len(self.settings))]
        return SettingGrid(self.z, mixtures, self.log_joints, np.array(codes))


class FamilyDraws(NamedTuple):
    """Partitions of z with the setting of each.

    Attributes:
        partitions: Weighted, or draws of chains.
        which: Of each row, shape (U,).
    """

    partitions: Partitions
    which: Int64[np.ndarray, " U"]


def _log_joints(table: FamilyTable, labels: torch.Tensor) -> Float64[np.ndarray, "g r"]:
    n, d = table.z.shape
    rows = torch.tensor([s.row(d) for s in table.settings], dtype=torch.float64)
    alpha, dim, ratio, dof = rows.unbind(1)
    noise = torch.tensor([s.noise_sd for s in table.settings], dtype=torch.float64)
    likelihood = SphericalWisharts(d, dim.long(), ratio, dof)
    sums = sum_by_cluster(likelihood.statistics(torch.from_numpy(table.z)).T, labels)
    sums = sums.movedim(0, -1)[None]  # (1, R, K, T)
    power = torch.tensor([0] + [1] * d + [2] * (d * (d + 1) // 2))
    units = noise[:, None, None, None] ** -power
    marginal = likelihood.log_marginal_statistics(sums * units).sum(dim=-1)
    each = labels.expand(len(rows), *labels.shape)
    prior = CRPs(alpha) if table.prior is None else table.prior
    return np.asarray(marginal + prior.log_prob(each) - n * d * noise.log()[:, None])


# -- from a table ----------------------------------------------------------------------------------


def prepare_family(
    model: NCP,
    x: Any,
    settings: Settings,
    constraints: Callable[[Int64[np.ndarray, " n"]], Constraints | None] | None = None,
) -> Prepared:
    """Bring a table to the family, and choose the hyper-parameters that nobody gave.

    Args:
        model: A network of the family.
        x: The table, `(N, P)`.
        settings: How to cluster it.
        constraints: From the rows that are clustered to what is known of them.
    """
    family = family_of(model)
    assert family is not None
    columns = as_columns(x, settings).as_numbers()
    columns = replace(columns, values=columns.values.reshape(len(columns), -1))
    rows = columns.values
    usable, notes = _usable(model, rows, settings)
    notes = [*columns.notes, *notes]
    index = np.flatnonzero(usable)
    warnings = _check_columns(rows[index], columns.names, family, settings)
    n = len(index)
    if not family.sizes[0] <= n <= family.sizes[1]:
        warnings.append(size_sentence(n, *family.sizes))
    table = _units(rows[index], family, settings)
    if table.dim < rows.shape[1]:
        warnings.append(_axes_warning(rows[index], table))
    clipped = _check_ranges(table, settings)
    notes += [nearest_sentence(clipped)] if clipped else []
    given = None if constraints is None else constraints(index)
    table = choose_setting(model, table, settings, given)
    warnings += [rough_sentence()] if table.how == "rough weights" else []
    parts = (columns, columns, table.features(), index, usable, table)
    return Prepared(*parts, tuple(notes), tuple(warnings))


def _usable(
    model: NCP, rows: np.ndarray, settings: Settings
) -> tuple[Bool[np.ndarray, " N"], list[str]]:
    """Rows without missing values; refused if there are too many for chains and weights."""
    usable = ~np.isnan(rows).any(axis=1)
    if not usable.any():
        raise ValueError("Expected a row without missing values but every row has one")
    notes = [] if usable.all() else [left_out_sentence(int((~usable).sum()))]
    limit = settings.for_model(model).max_points
    assert limit is not None
    if int(usable.sum()) > limit:
        raise ValueError(
            f"Expected at most {limit:,} rows at once for this model but got "
            f"{int(usable.sum()):,}; cluster some and predict the others, or raise max_points"
        )
    return usable, notes


def _check_columns(
    rows: np.ndarray, names: Sequence[str], family: GaussianFamily, settings: Settings
) -> list[str]:
    """Refuse what has no density; warn of few rows."""
    if len(rows) < 2:
        raise ValueError("Expected at least 2 rows, to know their spread, but got 1")
    if rows.shape[1] > family.max_dim and settings.exact is True:
        raise ValueError(
            f"Expected at most {family.max_dim} columns for an exact answer but got "
            f"{rows.shape[1]}; choose columns, or exact=None for their leading axes"
        )
    spread = rows.std(axis=0)
    still = [name for name, sd in zip(names, spread, strict=True) if not sd > 0]
    if still:
        raise ValueError(f"Expected columns that vary but these are constant: {', '.join(still)}")
    n, p = rows.shape
    if n <= p:
        return [few_rows_sentence(n, p)]
    z = (rows - rows.mean(axis=0)) / spread
    same = np.abs(np.triu(z.T @ z / n, 1)) > 1 - SAME
    if same.any():
        i, j = np.argwhere(same)[0]
        raise ValueError(
            f"Expected columns that differ but {names[j]!r} says the same as {names[i]!r}; drop one"
        )
    rank = int(np.linalg.matrix_rank(z, tol=1e-7 * math.sqrt(n)))
    if rank < p:
        raise ValueError(
            f"Expected columns that do not follow from each other but the {p} columns have rank "
            f"{rank}; drop {p - rank}"
        )
    return []


def _units(rows: np.ndarray, family: GaussianFamily, settings: Settings) -> FamilyTable:
    p = rows.shape[1]
    location = rows.mean(axis=0)
    if settings.location is not None:
        given = np.asarray(settings.location, dtype=np.float64)
        if given.shape not in ((), (1,), (p,)):
            raise ValueError(f"Expected location to be one number or {p} but got {given.size}")
        location = np.broadcast_to(given, (p,)).copy()
    scale = np.ones(p)
    if settings.noise_sd is None and p > 1:
        scale = rows.std(axis=0)
    centred = (rows - location) / scale
    axes = standardise(centred).axes.numpy()[:, : family.max_dim]
    z = np.ascontiguousarray(centred @ axes)
    spread = math.sqrt(float(np.square(z).mean()))
    prior = None if settings.prior is None else prior_from_dict(settings.prior)
    alpha = settings.alpha
    if prior is not None:
        alpha = nearest_alpha(prior, len(rows), family)
        if isinstance(prior, CRP):
            alpha, prior = float(prior.alpha), None
    grid = _grid(settings, spread, z.shape[1], alpha)
    average = settings.hyperparameters == "average"
    return FamilyTable(family, z, location, scale, axes, grid, prior, average)


def _axes_warning(rows: np.ndarray, table: FamilyTable) -> str:
    total = float(np.square((rows - table.location) / table.scale).sum())
    return axes_sentence(rows.shape[1], table.dim, float(np.square(table.z).sum()) / total)


def _check_ranges(table: FamilyTable, settings: Settings) -> list[str]:
    """Settings outside the trained range: refused, or named if the nearest will do."""
    found = []
    for one in table.settings:
        near = nearest(one, table.dim, table.family)
        found += [name for name in one._fields if getattr(one, name) != getattr(near, name)]
    outside = sorted(set(found))
    if outside and not settings.nearest:
        for one in table.settings:
            row = zip(table.family.hyperparameters, one.row(table.dim), strict=True)
            try:
                table.family.setting(**dict(row))
            except ValueError as error:
                raise ValueError(f"{error}; nearest=True weights the nearest setting") from None
    return outside


# -- the choice ------------------------------------------------------------------------------------


def choose_setting(
    model: NCP, table: FamilyTable, settings: Settings, given: Constraints | None = None
) -> FamilyTable:
    """The setting with the highest posterior probability, and what is known of the others.

    Args:
        model: A network of the family.
        table: In the family's units.
        settings: `seed`, `exact` and `time_limit` matter here.
        given: What is known of the partition C: the evidence is then p(z, C). Chains would not
            obey, so the weights decide.
    """
    n_settings = len(table.settings)
    if n_settings == 1 and not table.average:
        return replace(table, probabilities=np.ones(1), trusted=np.ones(1, dtype=bool))
    draws, reports = _draw_all(model, table, settings, given)
    value = np.array([report.log_evidence.value for report in reports])
    error = np.array([report.log_evidence.standard_error for report in reports])
    trusted = np.array([report.trusted for report in reports])
    p = np.exp(value - value.max())
    table = replace(
        table,
        log_evidence=Estimate(value, error),
        trusted=trusted,
        probabilities=p / p.sum(),
        how="weights",
        draws=draws,
    )
    pooled = draws.partitions.report
    enough = pooled.trusted and pooled.ess >= Goal().min_ess
    good = bool(trusted[value > value.max() - CLOSE].all()) and (enough or not table.average)
    if given is not None and not good:
        table = replace(table, how="rough weights")
    elif settings.reweight is not False and not good:
        goal = Goal(time_limit=settings.time_limit)
        table = _by_chains(table, _chain(table, draws, goal, settings))
    return replace(table, chosen=int(np.argmax(table.probabilities)))


def _draw_all(
    model: NCP, table: FamilyTable, settings: Settings, given: Constraints | None
) -> tuple[FamilyDraws, list[Report]]:
    """Weighted partitions at every setting, all in one call."""
    n_settings = len(table.settings)
    wanted = 0 if given is None else settings.n_samples or 0  # no chains will add to them
    each = max(DRAWS, wanted // n_settings)
    features = [table.features(g) for g in range(n_settings)]
    drawn = model.sample_many(
        features,
        each,
        orders=ORDERS,
        seed=settings.seed,
        given=[given] * n_settings,
        at_any_price=True,  # what cannot be is said of the chosen one
    )
    weighted = []
    for g, one in enumerate(drawn):
        joint = np.asarray(table.mixture(g).log_joint(table.z, one.labels))
        alive = one.n_samples / each  # those that ran into a dead end weigh nothing
        log_weights = joint - one.log_q + math.log(alive)
        weighted.append(replace(one, log_weights=log_weights, x=table.z))
    which = np.repeat(np.arange(n_settings), [len(one) for one in drawn])
    # a run of all settings is one of each: those of different settings are not to agree
    runs = [one.runs for one in weighted if one.runs is not None]
    partitions = pool(weighted)
    if partitions.runs is not None:
        partitions = replace(partitions, runs=np.concatenate(runs))
    return FamilyDraws(partitions, which), [one.report for one in weighted]


def _chain(table: FamilyTable, draws: FamilyDraws, goal: Goal, settings: Settings) -> GridDraws:
    """From draws chosen by their weights, and from plain ones."""
    rng = np.random.default_rng(settings.seed)
    partitions = draws.partitions
    n = goal.n_chains
    plain = partitions.counts / partitions.n_samples
    rows = [rng.choice(len(partitions), n, p=p) for p in (partitions.weights, plain)]
    start = np.concatenate(rows)
    return grid_chains(
        table.grid(),
        partitions.labels[start],
        draws.which[start],
        goal=goal,
        seed=settings.seed,
    )


def _by_chains(table: FamilyTable, found: GridDraws) -> FamilyTable:
    """What chains say of the settings, with draws of both."""
    both = np.column_stack([found.which, found.labels])
    distinct, counts = np.unique(both, axis=0, return_counts=True)
    labels, which = np.ascontiguousarray(distinct[:, 1:]), distinct[:, 0]
    log_p = np.log(counts / counts.sum())  # as often as they were visited
    partitions = Partitions(labels, counts, log_p, x=table.z, finish=found.finish)
    return replace(
        table,
        probabilities=found.probabilities,
        how="chains" if found.finish.converged else "short chains",
        draws=FamilyDraws(partitions, which),
    )
