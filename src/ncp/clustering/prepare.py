"""From a table to what a network sees: settings, a model's units, and what looks odd.

A model sees numbers in its own units. The tabular model brings any table there by its stored
transform; the others take x' = location + factor (x - centre) with a factor that the caller
chooses, or x as it is. Of a table with more than `max_points` rows a random subset is prepared.
What was done, and what looks unlike the training data, is said in words.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int64

from ncp.clustering.knowledge import Translated
from ncp.generative.model import Preprocessing
from ncp.generative.priors import Prior, prior_from_dict
from ncp.generative.specs import check_positive
from ncp.generative.table_rounding import unrounded
from ncp.model import NCP
from ncp.network.pretrained import DEFAULT
from ncp.output.columns import Columns, check_whole, columns_of, default_names
from ncp.output.words import (
    NOTHING_VARIES,
    PIXELS_DIVIDED,
    count,
    labels_sentence,
    left_out_sentence,
    parts_sentence,
    pixel_sentence,
    range_sentence,
    size_sentence,
    spread_sentence,
    stand_in_sentence,
    units_sentence,
)

__all__ = [
    "Bounded",
    "Preparation",
    "Prepared",
    "Range",
    "Settings",
    "Units",
    "as_columns",
    "as_frame",
    "as_rows",
    "check_shape",
    "fit_preparation",
    "look_again",
    "prepare",
    "preprocessing_of",
    "smoothed",
    "unmasked",
]

Range = tuple[float, float]

LARGEST_VALUE = 1e50  # powers and sums of which do not overflow
MOST_LOOKS = 4  # at parts of a large table, or with missing values filled in anew
SMALLEST_LIMIT = 1000  # rows that are always clustered at once
ESTIMATES = ("auto", "vi", "binder", "pear", "map")


@dataclass(frozen=True)
class Settings:
    """How a table is clustered. What is left out is chosen for the model (`for_model`).

    Args:
        n_samples: Posterior samples; by default 1,000, for `tabular` 400.
        orders: Random orders of the points that they are spread over, or `"each"`; by default 8,
            for `tabular` 16.
        estimate: The point estimate: `"vi"`, `"binder"`, `"pear"` or `"map"` (see
            `ncp.summary.estimate.point_estimate`), or `"auto"`: `"pear"` for tables, else `"vi"`.
        reweight: Importance weights: `True`, `False`, or `"auto"`: where the model has a joint
            density; if the weights are not to be trusted, exact chains take over.
        time_limit: Seconds of computing that the chains have.
        max_clusters: The most clusters that the point estimate may have.
        max_points: Rows clustered at once; of larger tables a random subset of so many. By
            default twice what the model was trained on, at least 1,000; for `tabular` what it was
            trained on.
        numeric: Columns of a data frame that are numbers, whatever they look like.
        categorical: Columns of a data frame that are categories, whatever they look like.
        scale: Multiply the (centred) data by this number.
        noise_sd: Spread of one cluster in the data's units; the data are multiplied by the number
            that makes it the model's.
        seed: Makes the result reproducible.
        exact: Whether the samples must be exact (an error if they are not in time) or need not
            be (`reweight=False`); None leaves it to `reweight`.
        alpha, ratio, dof, location: For `gaussian`: the concentration, the ratio of standard
            deviations between clusters to within, the degrees of freedom ("known" for known
            covariances) and the prior mean; what is not given is chosen by its evidence (the
            prior mean is the data's).
        hyperparameters: "best" for the most probable setting, "average" over all.
        prior: For `gaussian`: of partitions, if not a CRP: `PitmanYor`,
            `MixtureOfFiniteMixtures`, or a dict that describes one.
        nearest: For `gaussian`: settings outside the trained range are weighted from the nearest.
    """

    n_samples: int | None = None
    orders: int | str | None = None
    estimate: str = "auto"
    reweight: bool | str = "auto"
    time_limit: float = 5.0
    max_clusters: int | None = None
    max_points: int | None = None
    numeric: Sequence[str] = ()
    categorical: Sequence[str] = ()
    scale: float | None = None
    noise_sd: float | None = None
    seed: int | None = None
    exact: bool | None = None
    alpha: float | None = None
    ratio: float | None = None
    dof: float | str | None = None
    location: Any = None
    hyperparameters: str = "best"
    prior: Any = None
    nearest: bool = False

    def __post_init__(self) -> None:
        self._check_family()
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
        for name in ("scale", "noise_sd", "time_limit"):
            value = getattr(self, name)
            if value is None and name != "time_limit":
                continue
            if not isinstance(value, Real) or not 0 < float(value) < np.inf:
                raise ValueError(f"Expected a number {name} > 0 but got {value!r}")
            object.__setattr__(self, name, float(value))
        if self.scale is not None and self.noise_sd is not None:
            raise ValueError("Expected scale or noise_sd but got both")
        for name in ("numeric", "categorical"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise ValueError(f"Expected {name} as a list of columns but got {value!r}")
            object.__setattr__(self, name, tuple(str(column) for column in value))

    def _check_family(self) -> None:
        """Hyper-parameters as plain values, which can be saved."""
        if self.exact is False:
            object.__setattr__(self, "reweight", False)
        if self.hyperparameters not in ("best", "average"):
            raise ValueError(
                f"Expected hyperparameters 'best' or 'average' but got {self.hyperparameters!r}"
            )
        if self.dof == np.inf:
            object.__setattr__(self, "dof", "known")
        for name in ("alpha", "ratio", "dof"):
            value = getattr(self, name)
            if value is None or (name, value) == ("dof", "known"):
                continue
            object.__setattr__(self, name, check_positive(name, value))
        if self.location is not None:
            where = np.asarray(self.location, dtype=np.float64)
            if where.ndim > 1 or not np.isfinite(where).all():
                raise ValueError(f"Expected location to be numbers but got {self.location!r}")
            object.__setattr__(self, "location", where.tolist())
        if isinstance(self.prior, Prior):
            object.__setattr__(self, "prior", self.prior.to_dict())
        if self.prior is not None:
            prior_from_dict(self.prior)
            if self.alpha is not None:
                raise ValueError("Expected alpha or prior but got both")

    def for_model(self, model: NCP) -> Settings:
        """With nothing left open. Tables are unsure in many ways: many orders, few samples each."""
        is_table = preprocessing_of(model) is not None
        largest = 0 if model.mixture is None else model.mixture.sizes[1]
        chosen: dict[str, Any] = {
            "n_samples": 400 if is_table else 1000,
            "orders": 16 if is_table else 8,
            "estimate": "pear" if is_table else "vi",
            "max_points": largest if is_table else max(SMALLEST_LIMIT, 2 * largest),
        }
        left_open = {k: v for k, v in chosen.items() if getattr(self, k) in (None, "auto")}
        return replace(self, **left_open)


def preprocessing_of(model: NCP) -> Preprocessing | None:
    """What turns any table into the model's points; None if it takes points as they are."""
    return None if model.mixture is None else model.mixture.preprocessing


@runtime_checkable
class Preparation(Protocol):
    """Brings further rows to where the fitted rows are."""

    def apply(self, x: Any, /) -> np.ndarray: ...


@runtime_checkable
class Bounded(Protocol):
    """Tells rows that lie far beyond all fitted ones."""

    def beyond(self, x: Any, /) -> np.ndarray: ...


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
        columns: The table, as numbers, with what they mean.
        smooth: The same with rounded numbers spread over what they stand for, as it is clustered.
        features: What the network sees, `(n, *event_shape)`.
        index: Which rows of the table they are, `(n,)`.
        usable: Which rows of the table have all the values they need, `(N,)`.
        preparation: For further rows.
        notes: What was done.
        warnings: What looks unlike the data the model was trained on, and what to do about it.
        n_looks: How many looks at the table an answer takes: parts of a large one, or fillings-in
            of missing values.
    """

    columns: Columns
    smooth: Columns
    features: np.ndarray
    index: Int64[np.ndarray, " n"]
    usable: np.ndarray
    preparation: Preparation
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    n_looks: int = 1

    @property
    def table(self) -> np.ndarray:
        """The table as floats, `(N, P)` or `(N, *event_shape)`."""
        return self.columns.values

    @property
    def is_partial(self) -> bool:
        """Whether usable rows were left out because there are so many."""
        return len(self.index) < int(self.usable.sum())


def as_frame(x: Any) -> Any:
    """A frame of another library (pyarrow, Polars) as one of pandas; other tables as they are."""
    if hasattr(x, "toarray") and hasattr(x, "nnz"):
        raise ValueError("Expected a dense table but got a sparse one; x.toarray() is dense")
    return x.to_pandas() if hasattr(x, "to_pandas") else x


def as_rows(x: Any) -> np.ndarray:
    """A table of floats, rows first, with NaN for missing; a vector is one column."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(x, pandas.Series):
        x = x.to_numpy(dtype=np.float64, na_value=np.nan) if x.dtype.kind in "biuf" else x
    elif hasattr(x, "detach"):  # a tensor
        x = x.detach().cpu()
    x = unmasked(x)
    try:
        cells = _without_na(np.asarray(x))
        if cells.dtype.kind in "cmM":
            raise ValueError(f"dtype {cells.dtype}")
        rows = np.asarray(cells, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"Expected a table of numbers but got {error}") from None
    check_whole(cells)
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim < 2 or 0 in rows.shape:
        raise ValueError(f"Expected a table with rows and columns but got shape {rows.shape}")
    largest = np.fmax.reduce(np.abs(rows), axis=None)
    if largest > LARGEST_VALUE:
        shown = "infinity" if np.isinf(largest) else f"{largest:.3g}; use a larger unit"
        raise ValueError(f"Expected finite or missing values below {LARGEST_VALUE} but got {shown}")
    return rows


def _without_na(cells: np.ndarray) -> np.ndarray:
    """With NaN for pandas' NA, which arrays of frames with gaps in whole numbers have."""
    pandas = sys.modules.get("pandas")
    if pandas is None or cells.dtype.kind != "O":
        return cells
    return np.asarray(np.where(pandas.isna(cells), np.nan, cells))


def unmasked(x: Any) -> Any:
    """Masked cells of NumPy's arrays as NaN; anything else as it is.

    Example:
        >>> unmasked(np.ma.masked_equal([[1, -999]], -999))
        array([[ 1., nan]])
    """
    if isinstance(x, list | tuple) and any(isinstance(row, np.ma.MaskedArray) for row in x):
        x = np.ma.array(x)
    if not np.ma.is_masked(x):
        return x
    return x.astype(object if x.dtype.kind == "O" else np.float64).filled(np.nan)


def as_columns(x: Any, settings: Settings) -> Columns:
    """What the columns of a table hold: of a data frame anything, else numbers.

    Args:
        x: `Columns`, a data frame, or an array.
        settings: `numeric` and `categorical` matter here.
    """
    if isinstance(x, Columns):
        return x
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(x, pandas.DataFrame):
        if settings.numeric or settings.categorical:
            raise ValueError("Expected a data frame for numeric or categorical columns by name")
        rows = as_rows(x)
        width = int(np.prod(rows.shape[1:]))
        return Columns(rows, default_names(width), ((),) * width)
    if 0 in x.shape:
        raise ValueError(f"Expected a table with rows and columns but got shape {x.shape}")
    try:
        found = columns_of(x, numeric=settings.numeric, categorical=settings.categorical)
    except ValueError as error:
        raise ValueError(f"Expected a table that can be clustered but it {error}") from None
    return replace(found, values=as_rows(found.values))


def prepare(
    model: NCP,
    x: Any,
    settings: Settings | None = None,
    ranges: dict[int, Range] | None = None,
    knowledge: Translated | None = None,
) -> Prepared:
    """Bring a table to the model's units, or a random subset of it if it is large.

    Args:
        model: A trained network.
        x: The table: `Columns`, a data frame, or an array `(N, P)` (or `(N, *event_shape)`), NaN
            for missing.
        settings: `max_points`, `scale`, `noise_sd` and `seed` matter here.
        ranges: Remembers, from table to table, what the model's training data look like.
        knowledge: What is known of the rows; those are in every subset.
    """
    settings = settings or Settings()
    tabular = preprocessing_of(model) is not None
    columns = as_columns(x, settings)
    columns = columns if tabular else columns.as_numbers()
    rows = columns.values
    notes = list(columns.notes)
    missing = np.isnan(rows).reshape(len(rows), -1)
    if not tabular:
        check_shape(model, rows)
    elif missing.all():
        raise ValueError("Expected a table with values but every cell is missing")
    usable = ~(missing.all(1) if tabular else missing.any(1))
    if not usable.any():
        raise ValueError("Expected a row without missing values but every row has one")
    if not usable.all():
        notes.append(left_out_sentence(int((~usable).sum()), every=tabular))
    index = np.flatnonzero(usable)
    limit = settings.for_model(model).max_points
    assert limit is not None
    n_looks = int(np.clip(-(-len(index) // limit), 1, MOST_LOOKS))
    if n_looks > 1:
        notes.append(parts_sentence(n_looks, limit, len(index)))
        index = _subset(index, limit, np.random.default_rng(settings.seed), knowledge)
    if tabular and missing[usable].any():
        n_looks = MOST_LOOKS
    n_labels = 0 if knowledge is None or n_looks == 1 else len(knowledge.names)
    crowded = [labels_sentence(n_labels, limit // 2)] if n_labels > limit // 2 else []
    if tabular:
        found = _prepare_table(model, columns, index, usable, notes, settings)
        return replace(found, n_looks=n_looks, warnings=(*found.warnings, *crowded))
    units, sentences = _units(model, rows[index], settings)
    features = units.apply(rows[index])
    warnings = (*_warnings(model, features, {} if ranges is None else ranges), *crowded)
    notes = [*notes, *sentences]
    parts = (columns, columns, features, index, usable, units)
    return Prepared(*parts, tuple(notes), warnings, n_looks)


def look_again(
    model: NCP, first: Prepared, number: int, settings: Settings, knowledge: Translated | None
) -> Prepared:
    """Another look at a table: another part of a large one, missing values filled in anew.

    Args:
        model: The network.
        first: The first look.
        number: Of this look, from 1.
        settings: As of the first.
        knowledge: The same.
    """
    index = first.index
    if first.is_partial:
        seed = None if settings.seed is None else [settings.seed, number]
        rng = np.random.default_rng(seed)
        index = _subset(np.flatnonzero(first.usable), len(index), rng, knowledge)
    preparation, features = fit_preparation(model, first.smooth, index, settings, number)
    return replace(first, features=features, index=index, preparation=preparation)


def _subset(
    index: Int64[np.ndarray, " N"],
    limit: int,
    rng: np.random.Generator,
    knowledge: Translated | None,
) -> Int64[np.ndarray, " n"]:
    """So many of the rows at random, with those that something is known of."""
    if knowledge is None:
        return np.sort(rng.choice(index, limit, replace=False))
    always = np.intersect1d(knowledge.some_rows(limit // 2, rng), index)
    if len(always) > limit:
        raise ValueError(f"Expected links between at most {limit} rows but got {len(always)}")
    others = rng.choice(np.setdiff1d(index, always), limit - len(always), replace=False)
    return np.sort(np.concatenate([always, others]))


def _prepare_table(
    model: NCP,
    columns: Columns,
    index: np.ndarray,
    usable: np.ndarray,
    notes: list[str],
    settings: Settings,
) -> Prepared:
    preprocessing = preprocessing_of(model)
    assert model.mixture is not None
    assert preprocessing is not None
    if settings.scale is not None or settings.noise_sd is not None:
        raise ValueError(
            "Expected no scale or noise_sd, since the tabular model standardises columns itself"
        )
    smooth = smoothed(model, columns)
    rows = smooth.values
    fitted = preprocessing.fit(rows[index], columns.categorical)
    if not fitted.rows.all():
        usable = usable & ~np.isnan(rows).any(1)
    index = index[fitted.rows]
    warnings = [stand_in_sentence(*one) for one in columns.stand_ins()]
    if fitted.axes.shape[1] == 0:
        warnings.append(NOTHING_VARIES)
    elif len(index) >= 3 and (odd := model.mixture.unusualness(fitted)) is not None:
        notes.append(odd.words) if odd.p_value > 0.05 else warnings.append(odd.words)
    words = fitted.words[:1].upper() + fitted.words[1:]
    warnings += _size_warning(model, len(index))
    notes = [*notes, words]
    features = fitted.features
    parts = (columns, smooth, features, index, usable, fitted)
    return Prepared(*parts, tuple(notes), tuple(warnings))


def smoothed(model: NCP, columns: Columns) -> Columns:
    """With rounded numbers spread over what they stand for, for a model of tables."""
    if preprocessing_of(model) is None:
        return columns
    rows = columns.values.reshape(len(columns), -1)
    return replace(columns, values=unrounded(rows, columns.categorical))


def fit_preparation(
    model: NCP,
    columns: Columns,
    index: Int64[np.ndarray, " n"],
    settings: Settings,
    seed: int = 0,
) -> tuple[Preparation, np.ndarray]:
    """The preparation of the rows `index` alone, and what the network sees of them.

    Args:
        model: The network.
        columns: All rows, `smoothed`.
        index: Those that count.
        settings: `scale` and `noise_sd` matter here.
        seed: Of what fills in missing values.
    """
    preprocessing = preprocessing_of(model)
    if preprocessing is None:
        units, _ = _units(model, columns.values[index], settings)
        return units, units.apply(columns.values[index])
    rows = columns.values.reshape(len(columns), -1)
    fitted = preprocessing.fit(rows[index], columns.categorical, seed)
    return fitted, fitted.features


def check_shape(model: NCP, rows: np.ndarray) -> None:
    event = model.spec.event_shape
    width = int(np.prod(event))
    if int(np.prod(rows.shape[1:])) != width or (rows.ndim > 2 and rows.shape[1:] != event):
        wanted = count(width, "column")
        wanted = wanted if len(event) == 1 else f"{' x '.join(map(str, event))} values a row"
        got = " x ".join(str(size) for size in rows.shape[1:])
        raise ValueError(
            f"Expected {wanted} for this model but got {got}; choose columns, or take the model "
            f"{DEFAULT!r}, which takes any number of columns"
        )


def _units(model: NCP, rows: np.ndarray, settings: Settings) -> tuple[Units, list[str]]:
    event = model.spec.event_shape
    factor = settings.scale
    if settings.noise_sd is not None:
        factor = _noise_sd(model) / settings.noise_sd
    if factor is None:
        if len(event) > 1 and rows.min() >= 0 and 1.5 < rows.max() <= 255:
            return Units(event, factor=1 / 255), [PIXELS_DIVIDED]
        return Units(event), []
    points = rows.reshape(len(rows), *event)
    location = np.broadcast_to(model.location.double().cpu().numpy(), event)
    centre = points.mean(0)
    return Units(event, centre, location, factor), [units_sentence(factor)]


def _noise_sd(model: NCP) -> float:
    likelihood = getattr(model.mixture, "likelihood", None)
    for name in ("noise_sd", "noise_scale"):
        if hasattr(likelihood, name):
            return float(getattr(likelihood, name))
    raise ValueError("Expected a model with a known noise_sd but this one has none; use scale")


def _size_warning(model: NCP, n: int) -> list[str]:
    if model.mixture is None or model.mixture.sizes[0] <= n <= model.mixture.sizes[1]:
        return []
    return [size_sentence(n, *model.mixture.sizes)]


def _warnings(model: NCP, features: np.ndarray, ranges: dict[int, Range]) -> tuple[str, ...]:
    """How the data compare with data sets drawn from the mixture the model was trained on."""
    sentences = _size_warning(model, len(features))
    if model.mixture is None:
        return tuple(sentences)
    if len(model.spec.event_shape) > 1:
        least, most = float(features.min()), float(features.max())
        odd = least < 0.0 or most > 1.0
        return (*sentences, *([pixel_sentence(least, most)] if odd else []))
    low, high = model.mixture.sizes
    size = min(max(len(features), low), high)
    try:
        if size not in ranges:
            ranges[size] = _training_range(model, size)
    except ValueError:  # a mixture that cannot be sampled here
        return tuple(sentences)
    reach, spread = ranges[size]
    location = model.location.double().cpu().numpy()
    far = float(np.abs(features - location).max())
    sd = float(features.std(0).max())
    if far > 1.1 * reach:
        sentences.append(range_sentence(far, reach))
    elif len(features) > 4 and sd < spread:
        sentences.append(spread_sentence(sd, spread))
    return tuple(sentences)


def _training_range(model: NCP, size: int) -> Range:
    """Reach that 99.9% of training data sets stay in, and spread that 99.9% of them exceed."""
    import torch

    mixture = model.mixture
    assert mixture is not None
    x = mixture.sample(1000, size, generator=torch.Generator().manual_seed(0)).x.double()
    reach = (x - model.location.double().cpu()).abs().flatten(1).amax(1)
    spread = x.std(1, correction=0).flatten(1).amax(1)
    return float(reach.quantile(0.999)), float(spread.quantile(0.001))
