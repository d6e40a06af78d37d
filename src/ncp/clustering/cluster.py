r"""From a table to an answer: prepare, sample, weight, summarise, and assign what was left out.

**Prepare.** A model sees numbers in its own units. The tabular model brings any table there by its
stored transform; the others take x' = location + factor (x - centre) with a factor that the caller
chooses, or x as it is. What was done, and what looks unlike the training data, is said in words.

**Large tables.** Past `max_points` rows, partitions c^s of a random subset are sampled as usual.
Every other row i is then scored as if it came next, p_s(j) = p(c_i = j | c^s, x), for a limited
number of the samples, and carried over to the clusters of the point estimate a,

    P(i joins k) = sum_s w_s sum_j p_s(j) n^s_jk / n^s_j,     n^s_jk = #{m: c^s_m = j, a_m = k},

with one more column for "a new cluster". These rows sum to one; they are also what `predict_proba`
gives for new points. The samples themselves are completed by drawing from p_s, so that they keep
their uncertainty. Rows are worked through in blocks: memory grows with N, not with N times S.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int, Int64

from ncp.generative.tables import FittedTransform, TabularMixture
from ncp.inference.importance import resample_counts
from ncp.model import NCP
from ncp.network.pretrained import DEFAULT, load, short_name
from ncp.output.words import in_words, percent, tail_in_words
from ncp.posterior import Partitions
from ncp.sampling.tree import assign_each, sample_many
from ncp.summary.summary import Estimator, Summary, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

Progress = Callable[[str, int, int], None]
Range = tuple[float, float]

LARGEST_VALUE = 1e50  # powers and sums of which do not overflow
SMALLEST_LIMIT = 1000  # rows that are always clustered at once
ASSIGN_CANDIDATES = 200_000  # scores spent on the rows of a large table that were left out
ASSIGN_ROWS = 20_000  # of them, prepared at once
KEPT_SAMPLES = 16  # samples that new rows, and those of a large table, are scored under
ENOUGH = 200  # samples of the subset of a large table; more would not be used


ESTIMATES = ("auto", "vi", "binder", "pear", "map")


@dataclass(frozen=True)
class Settings:
    """How a table is clustered. What is left out is chosen for the model (`for_model`).

    Arguments:
        n_samples: Posterior samples; by default 1,000, for `tabular` 50.
        orders: Random orders of the points that they are spread over, or `"each"`; by default 8,
            for `tabular` 10.
        estimate: The point estimate: `"vi"`, `"binder"`, `"pear"` or `"map"` (see
            `ncp.summary.summary.point_estimate`), or `"auto"`: `"pear"` for tables, else `"vi"`.
        reweight: Importance weights: `True`, `False`, or `"auto"`: where the model has a joint
            density, unless the weights are not to be trusted.
        max_clusters: The most clusters that the point estimate may have.
        max_points: Rows clustered at once; of larger tables a random subset of so many. By
            default twice what the model was trained on, at least 1,000; for `tabular` what it was
            trained on.
        scale: Multiply the (centred) data by this number.
        noise_sd: Spread of one cluster in the data's units; the data are multiplied by the number
            that makes it the model's.
        seed: Makes the result reproducible.
    """

    n_samples: int | None = None
    orders: int | str | None = None
    estimate: str = "auto"
    reweight: bool | str = "auto"
    max_clusters: int | None = None
    max_points: int | None = None
    scale: float | None = None
    noise_sd: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.estimate not in ESTIMATES:
            raise ValueError(f"Expected estimate among {ESTIMATES} but got {self.estimate!r}")
        if self.reweight not in (True, False, "auto"):
            raise ValueError(f"Expected reweight True, False or 'auto' but got {self.reweight!r}")
        if not isinstance(self.reweight, str):
            object.__setattr__(self, "reweight", bool(self.reweight))
        for name, least in (("n_samples", 1), ("max_clusters", 1), ("max_points", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise ValueError(f"Expected an integer {name} >= {least} but got {value!r}")
            object.__setattr__(self, name, int(value))
        for name in ("scale", "noise_sd"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, Real) or not 0 < float(value) < np.inf:
                raise ValueError(f"Expected a number {name} > 0 but got {value!r}")
            object.__setattr__(self, name, float(value))
        if self.scale is not None and self.noise_sd is not None:
            raise ValueError("Expected scale or noise_sd but got both")

    def for_model(self, model: NCP) -> Settings:
        """With nothing left open. Tables are unsure in many ways: many orders, few samples each."""
        is_table = isinstance(model.mixture, TabularMixture)
        largest = 0 if model.mixture is None else model.mixture.sizes[1]
        chosen: dict[str, Any] = {
            "n_samples": 50 if is_table else 1000,
            "orders": 10 if is_table else 8,
            "estimate": "pear" if is_table else "vi",
            "max_points": largest if is_table else max(SMALLEST_LIMIT, 2 * largest),
        }
        unsaid = {k: v for k, v in chosen.items() if getattr(self, k) in (None, "auto")}
        return replace(self, **unsaid)


# -- a model's units -------------------------------------------------------------------------------


@runtime_checkable
class Preparation(Protocol):
    """Brings further rows to where the fitted rows are."""

    def apply(self, x: Any, /) -> np.ndarray: ...


@dataclass(frozen=True)
class Units:
    """x' = location + factor (x - centre), in the shape the model takes."""

    event_shape: tuple[int, ...]
    centre: Float64[np.ndarray, "*event"] | float = 0.0
    location: Float64[np.ndarray, "*event"] | float = 0.0
    factor: float = 1.0

    def apply(self, x: Any, /) -> np.ndarray:
        rows: np.ndarray = np.asarray(x, dtype=np.float64).reshape(len(x), *self.event_shape)
        if self.factor == 1.0 and np.all(np.asarray(self.centre) == self.location):
            return rows
        return np.asarray(self.location + self.factor * (rows - self.centre))


@dataclass(frozen=True)
class Prepared:
    """Rows in a model's units.

    Attributes:
        table: The table as floats, `(N, P)` or `(N, *event_shape)`.
        features: What the network sees, `(n, *event_shape)`.
        index: Which rows of the table they are, `(n,)`.
        usable: Which rows of the table have all the values they need, `(N,)`.
        preparation: For further rows.
        notes: What was done.
        warnings: What looks unlike the data the model was trained on, and what to do about it.
    """

    table: np.ndarray
    features: np.ndarray
    index: Int64[np.ndarray, " n"]
    usable: np.ndarray
    preparation: Preparation
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def is_partial(self) -> bool:
        """Whether usable rows were left out because there are so many."""
        return len(self.index) < int(self.usable.sum())


def as_rows(x: Any) -> np.ndarray:
    """A table of floats, rows first, with NaN for missing; a vector is one column."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(x, pandas.DataFrame | pandas.Series):
        x = _frame_rows(x if isinstance(x, pandas.DataFrame) else x.to_frame())
    elif hasattr(x, "detach"):  # a tensor
        x = x.detach().cpu()
    try:
        if np.asarray(x).dtype.kind in "cmM":
            raise ValueError(f"dtype {np.asarray(x).dtype}")
        rows = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"Expected a table of numbers but got {error}") from None
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim < 2 or 0 in rows.shape:
        raise ValueError(f"Expected a table with rows and columns but got shape {rows.shape}")
    largest = np.fmax.reduce(np.abs(rows), axis=None)
    if largest > LARGEST_VALUE:
        shown = "infinity" if np.isinf(largest) else f"{largest:.3g}; use a larger unit"
        raise ValueError(f"Expected finite or missing values below {LARGEST_VALUE} but got {shown}")
    return rows


def _frame_rows(frame: DataFrame) -> Float64[np.ndarray, "N P"]:
    """The columns of a data frame, each in its own way, as some have a type of their own."""
    rows = np.empty(frame.shape)
    for i, name in enumerate(frame.columns):
        column = frame.iloc[:, i]
        try:
            if column.dtype.kind in "cmM" or str(column.dtype) == "category":
                raise TypeError
            rows[:, i] = column.to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(
                f"Expected a table of numbers but column {name!r} is of type {column.dtype}; "
                "drop or encode it"
            ) from None
    return rows


def prepare(
    model: NCP, x: Any, settings: Settings | None = None, ranges: dict[int, Range] | None = None
) -> Prepared:
    """Bring a table to the model's units, or a random subset of it if it is large.

    Arguments:
        model: A trained network.
        x: The table, `(N, P)` (or `(N, *event_shape)`), NaN for missing.
        settings: `max_points`, `scale`, `noise_sd` and `seed` matter here.
        ranges: Remembers, from table to table, what the model's training data look like.
    """
    settings = settings or Settings()
    rows = as_rows(x)
    tabular = isinstance(model.mixture, TabularMixture)
    usable = np.ones(len(rows), dtype=bool)
    notes: list[str] = []
    if not tabular:
        _check_shape(model, rows)
        usable = ~np.isnan(rows).reshape(len(rows), -1).any(1)
        if not usable.any():
            raise ValueError("Expected a row without missing values but every row has one")
        if not usable.all():
            notes.append(f"{int((~usable).sum())} rows with missing values were left out.")
    index = np.flatnonzero(usable)
    limit = settings.for_model(model).max_points
    assert limit is not None
    if len(index) > limit:
        rng = np.random.default_rng(settings.seed)
        index = np.sort(rng.choice(index, limit, replace=False))
        notes.append(
            f"A random {limit} of {int(usable.sum())} rows were clustered; the others were "
            "assigned to their clusters."
        )
    if tabular:
        return _prepare_table(model, rows, index, usable, notes, settings)
    units, said = _units(model, rows[index], settings)
    features = units.apply(rows[index])
    warnings = _warnings(model, features, {} if ranges is None else ranges)
    return Prepared(rows, features, index, usable, units, (*notes, *said), warnings)


def _prepare_table(
    model: NCP,
    table: np.ndarray,
    index: np.ndarray,
    usable: np.ndarray,
    notes: list[str],
    settings: Settings,
) -> Prepared:
    assert isinstance(model.mixture, TabularMixture)
    if settings.scale is not None or settings.noise_sd is not None:
        raise ValueError(
            "Expected no scale or noise_sd, since the tabular model standardises columns itself"
        )
    rows = table.reshape(len(table), -1)
    if np.isnan(rows).all():
        raise ValueError("Expected a table with values but every cell is missing")
    fitted: FittedTransform = model.mixture.transform.fit(rows[index])
    if not fitted.rows.all():
        usable = usable & ~np.isnan(rows).any(1)
    index = index[fitted.rows]
    warnings = []
    if fitted.axes.shape[1] == 0:
        warnings.append("No column varies, so there is nothing to tell rows apart by.")
    elif len(index) >= 3:
        odd = model.mixture.unusualness(fitted)
        notes.append(odd.words) if odd.p_value > 0.05 else warnings.append(odd.words)
    words = fitted.words[:1].upper() + fitted.words[1:]
    warnings += _size_warning(model, len(index))
    notes = [*notes, words]
    features = fitted.features
    return Prepared(table, features, index, usable, fitted, tuple(notes), tuple(warnings))


def _check_shape(model: NCP, rows: np.ndarray) -> None:
    event = model.config.event_shape
    width = int(np.prod(event))
    if int(np.prod(rows.shape[1:])) != width or (rows.ndim > 2 and rows.shape[1:] != event):
        wanted = f"{width} column{'s' if width > 1 else ''}"
        wanted = wanted if len(event) == 1 else f"{' x '.join(map(str, event))} values a row"
        got = " x ".join(str(size) for size in rows.shape[1:])
        raise ValueError(
            f"Expected {wanted} for this model but got {got}; choose columns, or take the model "
            f"{DEFAULT!r}, which takes any number of columns"
        )


def _units(model: NCP, rows: np.ndarray, settings: Settings) -> tuple[Units, list[str]]:
    event = model.config.event_shape
    factor = settings.scale
    if settings.noise_sd is not None:
        factor = _noise_sd(model) / settings.noise_sd
    if factor is None:
        if len(event) > 1 and rows.min() >= 0 and 1.5 < rows.max() <= 255:
            return Units(event, factor=1 / 255), ["Pixels were divided by 255."]
        return Units(event), []
    points = rows.reshape(len(rows), *event)
    location = np.broadcast_to(model.location.double().cpu().numpy(), event)
    centre = points.mean(0)
    return Units(event, centre, location, factor), [
        f"The data were centred and multiplied by {factor:.4g} to bring them to the model's units."
    ]


def _noise_sd(model: NCP) -> float:
    likelihood = None if model.mixture is None else model.mixture.likelihood
    for name in ("noise_sd", "noise_scale"):
        if hasattr(likelihood, name):
            return float(getattr(likelihood, name))
    raise ValueError("Expected a model with a known noise_sd but this one has none; use scale")


def _size_warning(model: NCP, n: int) -> list[str]:
    if model.mixture is None or model.mixture.sizes[0] <= n <= model.mixture.sizes[1]:
        return []
    low, high = model.mixture.sizes
    if n < low:
        return [f"The model was trained on {low} or more points; with {n} it mostly guesses."]
    return [
        f"The model was trained on {low} to {high} points and sees {n} at once: its probabilities "
        f"may be off. With max_points {high} it clusters a random {high} and assigns the others."
    ]


def _warnings(model: NCP, features: np.ndarray, ranges: dict[int, Range]) -> tuple[str, ...]:
    """How the data compare with data sets drawn from the mixture the model was trained on."""
    said = _size_warning(model, len(features))
    if model.mixture is None:
        return tuple(said)
    if len(model.config.event_shape) > 1:
        least, most = float(features.min()), float(features.max())
        if least < 0.0 or most > 1.0:
            said.append(f"Pixels range from {least:.3g} to {most:.3g}; the model expects 0 to 1.")
        return tuple(said)
    low, high = model.mixture.sizes
    size = min(max(len(features), low), high)
    try:
        if size not in ranges:
            ranges[size] = _training_range(model, size)
    except ValueError:  # a mixture that cannot be sampled here
        return tuple(said)
    reach, spread = ranges[size]
    location = model.location.double().cpu().numpy()
    far = float(np.abs(features - location).max())
    sd = float(features.std(0).max())
    how = "set noise_sd to the spread of one cluster in your units"
    if far > 1.1 * reach:
        said.append(
            f"Points lie as far as {far:.3g} from the centre of the prior; in training 99.9% of "
            f"the data sets stayed within {reach:.3g}: {how}."
        )
    elif len(features) > 4 and sd < spread:
        said.append(
            f"The data spread over only {sd:.3g}, in training rarely less than {spread:.3g}, so "
            f"all points will look like one cluster: {how}."
        )
    return tuple(said)


def _training_range(model: NCP, size: int) -> Range:
    """Reach that 99.9% of training data sets stay in, and spread that 99.9% of them exceed."""
    import torch

    mixture = model.mixture
    assert mixture is not None
    x = mixture.sample(1000, size, generator=torch.Generator().manual_seed(0)).x.double()
    reach = (x - model.location.double().cpu()).abs().flatten(1).amax(1)
    spread = x.std(1, correction=0).flatten(1).amax(1)
    return float(reach.quantile(0.999)), float(spread.quantile(0.001))


# -- the answer ------------------------------------------------------------------------------------


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
        if hasattr(x, "columns") and self.columns != _column_names(None, self.table):
            rows = rows[:, _order(_column_names(x, rows), self.columns)]
        if not isinstance(self.model.mixture, TabularMixture):
            _check_shape(self.model, rows)
        parts = [
            self.scorer.joint(self.model, rows[i : i + ASSIGN_ROWS])
            for i in range(0, len(rows), ASSIGN_ROWS)
        ]
        return np.concatenate(parts)

    def words(self) -> list[str]:
        """What was found, sentence by sentence."""
        said = in_words(self.summary)
        sure = self.confidence[self.labels >= 0]
        said[2] = (
            f"Confidence: {percent(float(sure.mean()))} on average; {int((sure < 0.9).sum())} "
            f"of {len(sure)} rows are less than 90% sure of their cluster."
        )
        if self.is_partial:
            sizes = ", ".join(str(n) for n in np.sort(self.sizes)[::-1][:12])
            said[1] = f"Best single partition of all rows: {self.n_clusters} clusters of {sizes}."
        return said

    def trust(self) -> str:
        """How far the samples can be trusted, in words."""
        if self.posterior.log_weights is not None:
            report = self.posterior.report
            return (
                f"Importance weights are {report.verdict}: the samples are worth {report.ess:.0f} "
                f"of {report.n_samples} (ESS {report.ess_fraction:.0%}), and "
                f"{tail_in_words(report.k_hat)}."
            )
        mixture = self.model.mixture
        if mixture is not None and mixture.is_conjugate:
            return "The samples are the network's own: importance weights were not used."
        return (
            "The samples are the network's own: its training prior has no density to check them "
            "against. `ncp check` measures how well they are calibrated on such data."
        )

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
        return plain

    def plot(self, ax: Axes | None = None) -> Axes:
        """The data, coloured by cluster, on their leading principal axes."""
        from ncp.output.plots import clusters

        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.gca()
        return clusters(ax, self.table, self.labels, self.confidence, self.columns)

    def write_report(self, path: str | os.PathLike[str], title: str = "Clusters") -> None:
        """Write the self-contained HTML report."""
        from ncp.files import write_atomically
        from ncp.output.report import report

        write_atomically(path, report(self, title).encode())


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
        found = assign_each(model, features, self.features, self.labels, mutual=False)
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


# -- the whole way ---------------------------------------------------------------------------------


def cluster(
    x: Any,
    model: str | os.PathLike[str] | NCP = DEFAULT,
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> Clustering:
    """Cluster a table.

    Arguments:
        x: Numbers, `(N, P)`, NaN for missing; a pandas `DataFrame` keeps its column names.
        model: The name of a model, the path of a checkpoint, or a model.
        progress: Called with (what is being done, done, total).
        settings: Those of `Settings`: `n_samples`, `orders`, `estimate`, `reweight`, `seed`, ...
    """
    return cluster_many([x], model, progress=progress, **settings)[0]


def cluster_many(
    xs: Sequence[Any],
    model: str | os.PathLike[str] | NCP = DEFAULT,
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> list[Clustering]:
    """Cluster many tables at once; see `cluster`."""
    known = [one.name for one in fields(Settings)]
    if unknown := sorted(settings.keys() - set(known)):
        raise TypeError(f"Expected settings among {', '.join(known)} but got {', '.join(unknown)}")
    asked = Settings(**settings)
    network = model if isinstance(model, NCP) else load(model)
    how = asked.for_model(network)
    assert how.n_samples is not None
    assert how.orders is not None
    name = "a model of your own" if isinstance(model, NCP) else short_name(model)
    started = time.monotonic()
    ranges: dict[int, Range] = {}
    prepared = [prepare(network, x, how, ranges) for x in xs]
    tell = None if progress is None else _sampling_progress(progress)
    posteriors: list[Partitions] = [None] * len(xs)  # type: ignore[list-item]
    for is_large, n_samples in ((False, how.n_samples), (True, min(how.n_samples, ENOUGH))):
        wanted = [i for i, p in enumerate(prepared) if p.is_partial == is_large]
        features = [prepared[i].features for i in wanted]
        # With a seed, a table has the same samples alone, among others and after a resumption.
        streams = None if how.seed is None else [0] * len(wanted)
        drawn = sample_many(
            network,
            features,
            n_samples,
            orders=how.orders,
            seed=how.seed,
            streams=streams,
            progress=tell,
        )
        for i, posterior in zip(wanted, drawn, strict=True):
            posteriors[i] = posterior
    each = (time.monotonic() - started) / max(1, len(xs))
    return [
        _answer(_column_names(x, p.table), network, name, how, p, posterior, each, progress)
        for x, p, posterior in zip(xs, prepared, posteriors, strict=True)
    ]


def _sampling_progress(progress: Progress) -> Callable[[int, int], None]:
    return lambda done, total: progress("sampling", done, total)


def _answer(
    columns: tuple[str, ...],
    model: NCP,
    name: str,
    settings: Settings,
    prepared: Prepared,
    posterior: Partitions,
    seconds: float,
    progress: Progress | None,
) -> Clustering:
    started = time.monotonic()
    table = prepared.table
    posterior = weigh(posterior, model, settings.reweight)
    n = posterior.n_points
    summary = summarise(
        posterior.labels,
        posterior.weights,
        cast(Estimator, settings.estimate),
        max_clusters=settings.max_clusters,
        n_restarts=16 if n <= 300 else 4,
    )
    labels = np.full(len(table), -1)
    confidence = np.full(len(table), np.nan)
    labels[prepared.index] = summary.estimate.labels
    confidence[prepared.index] = summary.confidence
    rest = np.setdiff1d(np.flatnonzero(prepared.usable), prepared.index)
    most = KEPT_SAMPLES
    if len(rest):
        width = int(posterior.labels.max()) + 2
        most = int(np.clip(ASSIGN_CANDIDATES // (len(rest) * width), 4, KEPT_SAMPLES))
    scorer = Scorer.choose(prepared, posterior, summary.estimate.labels, most)
    samples = posterior.expand().astype(np.int16)
    if posterior.log_weights is not None:
        counts = resample_counts(posterior.weights, posterior.n_samples, seed=settings.seed)
        samples = np.repeat(posterior.labels.astype(np.int16), counts, axis=0)
    if len(rest):
        samples = _complete(
            model, scorer, table, prepared.index, rest, labels, confidence, settings.seed, progress
        )
    elif len(prepared.index) < len(table):
        everything = np.full((len(samples), len(table)), -1, dtype=np.int16)
        everything[:, prepared.index] = samples
        samples = everything
    return Clustering(
        table=table,
        columns=columns,
        labels=labels,
        confidence=confidence,
        posterior=posterior,
        summary=summary,
        index=prepared.index,
        samples=samples,
        notes=prepared.notes,
        warnings=prepared.warnings,
        model=model,
        model_name=name,
        settings=settings,
        seconds=seconds + time.monotonic() - started,
        scorer=scorer,
    )


def weigh(posterior: Partitions, model: NCP, reweight: bool | str) -> Partitions:
    """Importance weights where they are wanted, exist and (for "auto") are to be trusted."""
    possible = model.mixture is not None and model.mixture.is_conjugate
    if not reweight or (reweight == "auto" and not possible):
        return posterior
    if not possible or model.mixture is None:
        raise ValueError("Expected a model with a joint density to reweight for but it has none")
    weighted = posterior.reweight(model.mixture)
    if reweight == "auto" and weighted.report.verdict not in ("good", "usable"):
        return posterior
    return weighted


def _complete(
    model: NCP,
    scorer: Scorer,
    table: np.ndarray,
    index: np.ndarray,
    rest: np.ndarray,
    labels: Int64[np.ndarray, " N"],
    confidence: Float64[np.ndarray, " N"],
    seed: int | None,
    progress: Progress | None,
) -> Int[np.ndarray, "S N"]:
    """Fill in labels and confidence of the rest; returns completed samples of all rows."""
    rng = np.random.default_rng(seed)
    row = resample_counts(scorer.weights, KEPT_SAMPLES, seed=0)
    samples = np.full((int(row.sum()), len(table)), -1, dtype=np.int16)
    samples[:, index] = np.repeat(scorer.labels.astype(np.int16), row, axis=0)
    first = np.cumsum(row) - row
    for start in range(0, len(rest), ASSIGN_ROWS):
        here = rest[start : start + ASSIGN_ROWS]
        each = scorer.each(model, table[here])
        for p, s, count in zip(each, first, row, strict=True):
            cumulative = p.cumsum(1)
            for d in range(count):
                u = rng.random((len(here), 1)) * cumulative[:, -1:]
                samples[s + d, here] = (u >= cumulative).sum(1)
        joint = scorer.carry_over(each)[:, :-1]
        labels[here] = joint.argmax(1)
        confidence[here] = joint.max(1)
        if progress is not None:
            progress("assigning", min(start + ASSIGN_ROWS, len(rest)), len(rest))
    return samples


def _column_names(x: Any, table: np.ndarray) -> tuple[str, ...]:
    names = getattr(x, "columns", None)
    if names is not None:
        return tuple(str(name) for name in names)
    width = int(np.prod(table.shape[1:]))
    return tuple(f"column {i + 1}" for i in range(width))


def _order(names: tuple[str, ...], wanted: tuple[str, ...]) -> list[int]:
    """Where the wanted columns are among the names."""
    if names == wanted:
        return list(range(len(names)))
    if sorted(names) != sorted(wanted) or len(set(names)) < len(names):
        differ = [name for name in names if name not in wanted]
        missing = [name for name in wanted if name not in names]
        raise ValueError(
            f"Expected the columns of the clustered table, each once, but {missing[:5]} are "
            f"missing and {differ[:5]} are unknown"
        )
    return [names.index(name) for name in wanted]
