"""Any numeric table: a fixed preprocessing, a prior over tables, and a warning when a table is odd.

**Preprocessing.** A column x_j is centred and scaled robustly and its tails are bent,

    z_j = s asinh((x_j - m_j) / (s w_j))        (capped at 3 s),

with m_j and w_j the mean and standard deviation after clipping the outer five per cent. The
principal axes v_1, v_2, ... of z with variances l_1 >= l_2 >= ... give the coordinates

    y_j = <z, v_j> l_j^(-1/2) (l_j / l_1)^(p/2),        j = 1, ..., min(D, rank),

so the leading axis has unit variance and the others have (l_j / l_1)^p: p = 1 are plain principal
components, p = 0 would whiten them, and p = 1/2 keeps small axes, where elongated clusters are
told apart, visible to a smooth network. The sign of y_j is such that its third moment is not
negative. Missing axes are zero. Order, unit and sign of the columns do not matter.

Every row carries further numbers: how many axes there are, the share of the variance they hold,
the number of columns and of rows (the same for all rows of a table), and two measures of how
lonely the row is, the logarithm of the distance to a near and to a farther neighbour.

**Prior.** `TabularMixture` draws tables with known clusters (`ncp.generative.table_prior`), passes
them through the *same* preprocessing, and merges clusters that nobody could tell apart: where the
nearest neighbours of a cluster's points belong to another cluster more often than a limit, the
two get one label. The network thus learns to split what can be split, and no more.

**Warning.** `TabularMixture.unusualness` compares a table's summary statistics with their
distribution under the prior, and says in words what is odd.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from ncp.generative.likelihood import Likelihood
from ncp.generative.mixture import Batch, Mixture
from ncp.generative.priors import Prior, numpy_generator
from ncp.generative.table_prior import TablePrior, draw_partition, draw_table
from ncp.partitions import ArrayLike, canonical

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

N_CONTEXT = 4  # numbers said about the whole table
N_DENSITY = 2  # numbers said about the loneliness of a row
CAP = 3.0  # of asinh: ten times the value from which tails are bent


# ---------------------------------------------------------------------------------------
# preprocessing
# ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TabularTransform:
    """The map from a table to the network's input, y = axes of bent, standardised columns.

    Arguments:
        dimension: D, the number of principal axes kept; fewer are padded with zeros.
        clip: share of the rows on either side that does not count for centre and scale.
        bend: s, the standardised value from which tails are bent logarithmically.
        power: p, how far the variances of the axes are kept (1) or equalised (0).
        missing: "impute" the column's median, or "drop" rows with missing values.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(50, 3)) * [1, 10, 100]
        >>> transform = TabularTransform()
        >>> transform(x).shape, transform.n_features
        ((50, 14), 14)
        >>> bool(np.allclose(transform(x), transform(5 - 2 * x[:, ::-1]), atol=1e-5))
        True
    """

    dimension: int = 8
    clip: float = 0.05
    bend: float = 2.0
    power: float = 0.5
    missing: str = "impute"

    def __post_init__(self) -> None:
        if self.dimension < 1:
            raise ValueError(f"Expected dimension >= 1 but got {self.dimension}")
        if not 0.0 <= self.clip < 0.5:
            raise ValueError(f"Expected 0 <= clip < 0.5 but got {self.clip}")
        if self.bend <= 0.0:
            raise ValueError(f"Expected bend > 0 but got {self.bend}")
        if self.missing not in ("impute", "drop"):
            raise ValueError(f"Expected missing 'impute' or 'drop' but got {self.missing!r}")

    @property
    def n_features(self) -> int:
        """F, the number of features of a row."""
        return self.dimension + N_CONTEXT + N_DENSITY

    def __call__(self, x: Any) -> NDArray[np.float32]:
        """Features (N, F) of a table (N, P); rows dropped for missing values are absent."""
        return self.fit(x).features

    def fit(self, x: Any) -> FittedTransform:
        """Learn centre, scale and axes from a table (N, P) and apply them to it."""
        x = _as_table(x)
        n_rows, n_columns = x.shape
        missing = np.isnan(x)
        rows = np.ones(n_rows, dtype=bool)
        fill = np.zeros(n_columns)
        if missing.any():
            if self.missing == "drop":
                rows = ~missing.any(1)
                if not rows.any():
                    raise ValueError(
                        "Expected a row without missing values but every row has one; "
                        "use missing='impute' or leave out columns"
                    )
                x = x[rows]
            fill = _medians(x)
            x = np.where(np.isnan(x), fill, x)
        centre, scale = _centre_and_scale(x, self.clip)
        columns = np.flatnonzero(scale > 0.0)
        centre, scale = centre[columns], scale[columns]
        z = _bend(x[:, columns], centre, scale, self.bend)
        offset = z.mean(0)
        axes, variances, total = _principal_axes(z - offset, self.dimension)
        gains = variances ** (0.5 * self.power - 0.5) / np.max(variances, initial=1e-300) ** (
            0.5 * self.power
        )
        axes = axes * gains
        y = (z - offset) @ axes
        axes = axes * np.where((y**3).sum(0) < 0.0, -1.0, 1.0)
        y = (z - offset) @ axes
        context = np.array(
            [
                axes.shape[1] / self.dimension,
                variances.sum() / total if total > 0.0 else 1.0,
                min(np.log(max(columns.size, 1)) / np.log(64.0), 1.2),
                np.log10(len(y)) / 3.0,
            ]
        )
        return FittedTransform(
            transform=self,
            columns=columns,
            fill=fill,
            centre=centre,
            scale=scale,
            offset=offset,
            axes=axes,
            context=context,
            coordinates=y,
            rows=rows,
            n_columns=n_columns,
            n_missing=int(missing.sum()),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class FittedTransform:
    """A transform fitted to one table: its features, and those of further rows.

    Attributes:
        coordinates: y (N, d) of the fitted rows, without padding.
        rows: which of the caller's rows were kept (N_caller,).
        columns: which of the caller's columns vary.
        n_missing: how many values were missing.
    """

    transform: TabularTransform
    columns: NDArray[np.int64]
    fill: Array
    centre: Array
    scale: Array
    offset: Array
    axes: Array
    context: Array
    coordinates: Array
    rows: NDArray[np.bool_]
    n_columns: int
    n_missing: int
    _found: list[tuple[Labels, Array]] = field(default_factory=list, repr=False, compare=False)

    @property
    def neighbours(self) -> tuple[Labels, Array]:
        """Index (N, k) and distance (N, k) of the nearest other rows, nearest first."""
        if not self._found:
            n = len(self.coordinates)
            self._found.append(_neighbours(self.coordinates, None, _ranks(n)[1]))
        return self._found[0]

    @property
    def features(self) -> NDArray[np.float32]:
        """Features (N, F) of the fitted rows."""
        return self._assemble(self.coordinates, self.neighbours[1])

    def apply(self, x: Any) -> NDArray[np.float32]:
        """Features (M, F) of further rows (M, P), seen from the fitted table."""
        x = np.asarray(x)
        x = _as_table(x.reshape(len(x), -1) if x.ndim > 2 else x)
        if x.shape[1] != self.n_columns:
            raise ValueError(f"Expected {self.n_columns} columns but got {x.shape[1]}")
        x = np.where(np.isnan(x), self.fill, x)[:, self.columns]
        z = _bend(x, self.centre, self.scale, self.transform.bend)
        y = (z - self.offset) @ self.axes
        distance = _neighbours(y, self.coordinates, _ranks(len(self.coordinates))[1])[1]
        return self._assemble(y, distance)

    def _assemble(self, y: Array, distance: Array) -> NDArray[np.float32]:
        """Coordinates, context and loneliness side by side."""
        dimension = self.transform.dimension
        out = np.zeros((len(y), self.transform.n_features), dtype=np.float32)
        out[:, : y.shape[1]] = y
        out[:, dimension : dimension + N_CONTEXT] = self.context
        if distance.shape[1] > 0:
            own = self.neighbours[1]
            for i, rank in enumerate(_ranks(len(self.coordinates))):
                # ties are common in rounded tables, so distances start at a twentieth
                typical = np.sort(own[:, rank - 1])[len(own) // 2] + 0.05
                lonely = np.log((distance[:, rank - 1] + 0.05) / typical)
                out[:, dimension + N_CONTEXT + i] = np.clip(lonely, -3.0, 3.0)
        return out

    @property
    def words(self) -> str:
        """What was done to the table, in a sentence or two."""
        said = []
        n_dropped = int((~self.rows).sum())
        if n_dropped:
            said.append(f"{n_dropped} of {self.rows.size} rows with missing values were left out")
        elif self.n_missing:
            said.append(f"{self.n_missing} missing values were replaced by their column's median")
        constant = self.n_columns - self.columns.size
        if constant:
            said.append(f"{constant} of {self.n_columns} columns do not vary and were left out")
        d = self.axes.shape[1]
        axes = "1 principal axis holds" if d == 1 else f"{d} principal axes hold"
        held = f"{axes} {100 * self.context[1]:.0f}% of the variance"
        said.append(held if d else "no principal axis is left")
        return "; ".join(said) + "."


def _as_table(x: Any) -> Array:
    """A float64 array (N, P) with NaN for missing, or ValueError."""
    try:
        table = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected a table of numbers but got {error}") from None
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(f"Expected a table with rows and columns but got shape {table.shape}")
    if np.isinf(table).any():
        raise ValueError("Expected finite or missing values but got infinity")
    return table


def _medians(x: Array) -> Array:
    """Median of every column, 0 for a column with no value at all."""
    fill = np.zeros(x.shape[1])
    some = ~np.isnan(x).all(0)
    fill[some] = np.nanmedian(x[:, some], axis=0)
    return fill


def _centre_and_scale(x: Array, clip: float) -> tuple[Array, Array]:
    """Winsorised mean (P,) and standard deviation (P,); zero marks a constant column."""
    ordered = np.sort(x, axis=0)
    centre, scale = _winsorised(x, ordered, clip)
    # a column that varies only in its tails still counts, but one gross error does not
    scale = np.maximum(scale, 0.3 * _winsorised(x, ordered, min(0.01, clip))[1])
    scale = np.where(scale > 0.0, scale, x.std(0))
    span = ordered[-1] - ordered[0]
    constant = span <= 1e-12 * np.maximum(np.abs(ordered[-1]), np.abs(ordered[0]))
    return centre, np.where(constant, 0.0, scale)


def _bend(x: Array, centre: Array, scale: Array, bend: float) -> Array:
    """s asinh((x - m) / (s w)), capped so that a gross error cannot claim an axis for itself."""
    z = np.arcsinh((x - centre) / (bend * scale))
    return bend * np.clip(z, -CAP, CAP)


def _winsorised(x: Array, ordered: Array, clip: float) -> tuple[Array, Array]:
    """Mean and deviation after clipping the outer rows; from twenty rows on at least one."""
    cut = max(int(clip * len(x)), int(len(x) >= 20 and clip > 0.0))
    clipped = np.clip(x, ordered[cut], ordered[-1 - cut])
    return clipped.mean(0), clipped.std(0)


def _principal_axes(z: Array, dimension: int) -> tuple[Array, Array, float]:
    """Leading axes (P, d), their variances (d,) and the total variance of centred columns."""
    n, p = z.shape
    total = float((z**2).sum() / n)
    if total == 0.0:
        return np.zeros((p, 0)), np.zeros(0), 0.0
    wide = p > n
    second = (z @ z.T if wide else z.T @ z) / n
    if len(second) > 1500:
        from scipy.sparse.linalg import eigsh

        values, vectors = eigsh(second, k=dimension, v0=np.ones(len(second)))
    else:
        values, vectors = np.linalg.eigh(second)
    keep = np.argsort(values)[::-1][:dimension]
    keep = keep[values[keep] > 1e-6 * values[keep[0]]]
    variances, axes = values[keep], vectors[:, keep]
    if wide:
        axes = z.T @ axes / np.sqrt(n * variances)
    return axes, variances, total


def _ranks(n: int) -> tuple[int, int]:
    """Which neighbours measure loneliness among n rows: a near and a farther one."""
    near = round(np.sqrt(n) / 4) + 1
    return min(near, n - 1), min(3 * near, n - 1)


def _neighbours(y: Array, reference: Array | None, k: int) -> tuple[Labels, Array]:
    """The k nearest reference rows of every row; without reference, other rows of y."""
    among = y if reference is None else reference
    if k == 0:
        return np.zeros((len(y), 0), dtype=np.int64), np.zeros((len(y), 0))
    squares = (among**2).sum(1)
    index = np.empty((len(y), k), dtype=np.int64)
    distance = np.empty((len(y), k))
    block = max(1, 4_000_000 // len(among))
    for start in range(0, len(y), block):
        here = y[start : start + block]
        d2 = (here**2).sum(1)[:, None] + squares - 2.0 * here @ among.T
        if reference is None:
            d2[np.arange(len(here)), start + np.arange(len(here))] = np.inf
        near = np.argpartition(d2.astype(np.float32), k - 1, axis=1)[:, :k]
        value = np.take_along_axis(d2, near, axis=1)
        order = np.argsort(value, axis=1)
        index[start : start + block] = np.take_along_axis(near, order, axis=1)
        value = np.take_along_axis(value, order, axis=1)
        # the expansion of the square leaves rounding errors where rows coincide
        distance[start : start + block] = np.sqrt(np.maximum(value, 0.0))
    return index, distance


# ---------------------------------------------------------------------------------------
# clusters nobody could tell apart
# ---------------------------------------------------------------------------------------


def merge_confused(labels: Labels, neighbours: tuple[Labels, Array], limit: float) -> Labels:
    """Give one label to clusters whose points are each other's neighbours.

    With S_kl the share of neighbours of cluster k's points that lie in cluster l, the pair with
    the largest mean of S_kl / (S_kl + S_kk) and S_lk / (S_lk + S_ll) is merged, again and again,
    while that exceeds `limit`. Two equal Gaussian clusters at a distance of 2, 3, 4 standard
    deviations have about 0.22, 0.10, 0.03. A cluster of one point stays when it lies far off.

    Arguments:
        labels: (N,) integers.
        neighbours: index and distance (N, k) of every point's nearest points.
        limit: between 0 (merge all that touch) and 1 (merge nothing).
    """
    index, distance = neighbours
    c = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    n_clusters = int(c.max()) + 1
    k = index.shape[1]
    if n_clusters == 1 or k == 0:
        return c
    size = np.bincount(c)
    reach = np.clip(size // 2, 1, k)[c]  # a cluster's points cannot all be near
    weight = (np.arange(k) < reach[:, None]) / reach[:, None]
    flat = (c[:, None] * n_clusters + c[index]).ravel()
    shared = np.bincount(flat, weights=weight.ravel(), minlength=n_clusters**2)
    shared = shared.reshape(n_clusters, n_clusters)
    if (size == 1).any():
        far = distance[:, 0] > 3.0 * np.quantile(distance[:, 0], 0.9)
        alone = np.bincount(c, weights=far) * (size == 1) > 0
        shared[alone] = 0.0
        shared[alone, alone] = 1.0
    target = np.arange(n_clusters)
    while True:
        own = np.diag(shared)[:, None]
        ratio = shared / np.maximum(shared + own, 1e-12)
        ratio = (ratio + ratio.T) / 2.0
        np.fill_diagonal(ratio, 0.0)
        worst = int(ratio.argmax())
        k_from, k_to = divmod(worst, n_clusters)
        if ratio[k_from, k_to] <= limit:
            return np.unique(target[c], return_inverse=True)[1].astype(np.int64)
        target[target == k_from] = k_to
        shared[k_to] += shared[k_from]
        shared[:, k_to] += shared[:, k_from]
        shared[k_from] = 0.0
        shared[:, k_from] = 0.0


# ---------------------------------------------------------------------------------------
# how odd is a table
# ---------------------------------------------------------------------------------------

# what it means when a statistic is far below, and far above, those of the prior
_MEANING = {
    "tails": ("hardly any row lies far out", "its tails are heavy"),
    "skewness": ("its axes are unusually symmetric", "its axes are strongly skewed"),
    "outliers": ("its most extreme row is close", "single rows lie extremely far out"),
    "evenness": ("one direction holds almost everything", "its directions are all alike"),
    "held": ("the leading axes hold little of the variance", "the leading axes hold everything"),
    "clumps": ("its rows are spread very evenly", "its density varies very much"),
    "ties": ("no rows coincide", "many rows coincide"),
}


class Unusualness(NamedTuple):
    """How odd a table is under the prior.

    Attributes:
        p_value: share of the prior's tables that are at least as odd.
        deviations: every summary statistic, in standard deviations from the prior's median.
        words: the same for people.
    """

    p_value: float
    deviations: dict[str, float]
    words: str


def summary_statistics(fitted: FittedTransform) -> dict[str, float]:
    """Numbers that describe a preprocessed table without its clusters."""
    y = fitted.coordinates
    if y.shape[1] == 0 or len(y) < 3:
        return dict.fromkeys(_MEANING, float("nan"))
    variance = y.var(0)
    weight = variance / variance.sum()
    z = (y - y.mean(0)) / np.sqrt(variance)
    distance = fitted.neighbours[1]
    return {
        "tails": float(np.log((z**4).mean(0) @ weight)),
        "skewness": float(np.log(0.1 + np.abs((z**3).mean(0)) @ weight)),
        "outliers": float(np.log(np.abs(z).max())),
        "evenness": float(-(weight * np.log(weight)).sum() / np.log(1.0 + y.shape[1])),
        "held": float(fitted.context[1]),
        "clumps": float(np.log(0.01 + np.log(distance[:, -1] + 0.05).std())),
        "ties": float((distance[:, 0] < 1e-6).mean()),
    }


def _describe(drawn: list[dict[str, float]]) -> dict[str, Any]:
    """Median, spread below and above of every statistic, and the ordered extremes."""
    known: dict[str, Any] = {"centre": {}, "below": {}, "above": {}}
    for name in _MEANING:
        low, centre, high = np.nanquantile([d[name] for d in drawn], (0.05, 0.5, 0.95))
        known["centre"][name] = float(centre)
        known["below"][name] = max(float(centre - low) / 1.645, 0.05)
        known["above"][name] = max(float(high - centre) / 1.645, 0.05)
    extremes = [max(abs(z) for z in _deviations(d, known).values()) for d in drawn]
    known["extreme"] = np.quantile(extremes, np.linspace(0.0, 1.0, 201)).round(4).tolist()
    return known


def _deviations(statistics: Mapping[str, float], known: Mapping[str, Any]) -> dict[str, float]:
    out = {}
    for name, value in statistics.items():
        difference = value - known["centre"][name]
        spread = known["below" if difference < 0 else "above"][name]
        out[name] = 0.0 if np.isnan(value) else difference / spread
    return out


def _in_words(p_value: float, deviations: Mapping[str, float]) -> str:
    if p_value > 0.05:
        return "The table looks like those the model was trained on."
    ordered = sorted(deviations, key=lambda name: -abs(deviations[name]))
    odd = [name for name in ordered[:3] if abs(deviations[name]) > 2.5] or ordered[:1]
    said = ", ".join(_MEANING[name][deviations[name] > 0] for name in odd)
    if p_value > 0.005:
        return f"The table is somewhat unusual for the model: {said}."
    return (
        f"The table is unlike those the model was trained on: {said}. "
        "Read the clusters and their probabilities with care."
    )


# ---------------------------------------------------------------------------------------
# the prior
# ---------------------------------------------------------------------------------------

NO_DENSITY = "Expected a model with a density but the prior over tables can only be sampled"


@dataclass(frozen=True)
class TabularPartitions(Prior):
    """The partitions of `TabularMixture` before clusters are merged; it has no closed form."""

    single: float = TablePrior.single
    max_clusters: int = TablePrior.max_clusters

    def log_v(self, n_points: int | Tensor, n_clusters: int | Tensor) -> Float64[Tensor, " ..."]:
        raise ValueError(NO_DENSITY)

    def sample_concentration(
        self, n_datasets: int, generator: torch.Generator | None = None
    ) -> Float64[Tensor, " n_datasets"]:
        raise ValueError(NO_DENSITY)

    def log_prob(self, labels: ArrayLike) -> Float64[Tensor, "*batch"]:
        raise ValueError(NO_DENSITY)

    def predictive(self, counts: ArrayLike) -> Float64[Tensor, "*batch kplus1"]:
        raise ValueError(NO_DENSITY)

    def sample(
        self, n_datasets: int, n_points: int, generator: torch.Generator | None = None
    ) -> Int64[Tensor, "b n"]:
        rng = numpy_generator(generator)
        law = TablePrior(single=self.single, max_clusters=self.max_clusters)
        rows = [draw_partition(law, n_points, rng) for _ in range(n_datasets)]
        return canonical(np.stack(rows))


@dataclass(frozen=True)
class TabularRows(Likelihood):
    """The rows of a preprocessed table: F features of unit scale, of no known density."""

    n_features: int = 14

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (self.n_features,)

    def sample_parameters(
        self, shape: tuple[int, ...], generator: torch.Generator | None = None
    ) -> Float64[Tensor, "*shape p"]:
        raise ValueError(NO_DENSITY)

    def sample_observations(
        self,
        parameters: Float64[Tensor, "b k p"],
        labels: Int64[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b n *event"]:
        raise ValueError(NO_DENSITY)


@dataclass(frozen=True)
class TabularMixture(Mixture):
    """The prior over tables, after preprocessing: what the model `tabular` is trained on.

    A data set is a random table (see `table_prior`), its features y = transform(table), and
    its labels, where clusters that nobody could tell apart in y share one (`merge_confused`,
    with a limit drawn uniformly from `overlap` for every data set).

    Args:
        sizes: the smallest and the largest number of rows.
        tables: the knobs of the simulator.
        transform: the preprocessing, the same for users' tables.
        overlap: range of the limit of confusion beyond which clusters are merged.
        again: probability of drawing a table again when all its clusters had to be merged.
        reference: quantiles of summary statistics, from `with_reference`; may be empty.

    Example:
        >>> mixture = TabularMixture()
        >>> batch = mixture.sample(3, n_points=40, generator=torch.Generator().manual_seed(0))
        >>> batch.x.shape, batch.labels.shape
        (torch.Size([3, 40, 14]), torch.Size([3, 40]))
        >>> Mixture.from_dict(mixture.to_dict()) == mixture
        True
    """

    prior: Prior = field(init=False, repr=False)
    likelihood: Likelihood = field(init=False, repr=False)
    sizes: tuple[int, int] = (10, 500)
    tables: TablePrior = field(default_factory=TablePrior)
    transform: TabularTransform = field(default_factory=TabularTransform)
    overlap: tuple[float, float] = (0.12, 0.35)
    again: float = 0.6
    reference: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        low, high = self.overlap
        if not 0.0 <= low <= high <= 1.0:
            raise ValueError(f"Expected 0 <= low <= high <= 1 for overlap but got {self.overlap}")
        if not 0.0 <= self.again < 1.0:
            raise ValueError(f"Expected 0 <= again < 1 but got {self.again}")
        partitions = TabularPartitions(self.tables.single, self.tables.max_clusters)
        object.__setattr__(self, "overlap", (float(low), float(high)))
        object.__setattr__(self, "prior", partitions)
        object.__setattr__(self, "likelihood", TabularRows(self.transform.n_features))
        super().__post_init__()

    def sample(
        self,
        n_datasets: int,
        n_points: int | None = None,
        share_partition: bool = False,
        extra_parameters: int = 0,
        generator: torch.Generator | None = None,
    ) -> Batch:
        """Draw preprocessed tables of one common size.

        Args:
            n_datasets: the number of data sets B.
            n_points: their size N; by default drawn uniformly from ``sizes``.
            share_partition: must be False: which labels are merged depends on the points.
            extra_parameters: must be 0: there are no parameters.
            generator: the source of randomness.

        Returns:
            A `Batch` with x (B, N, F) in float32 and no parameters.
        """
        if n_datasets < 1 or share_partition or extra_parameters:
            raise ValueError(
                "Expected n_datasets >= 1, share_partition=False and extra_parameters=0 for tables "
                f"but got {n_datasets}, {share_partition} and {extra_parameters}"
            )
        rng = numpy_generator(generator)
        n = int(rng.integers(self.sizes[0], self.sizes[1] + 1)) if n_points is None else n_points
        x = np.empty((n_datasets, n, self.transform.n_features), dtype=np.float32)
        c = np.empty((n_datasets, n), dtype=np.int64)
        for b in range(n_datasets):
            fitted, c[b] = self.sample_table(n, rng)[1:]
            x[b] = fitted.features
        return Batch(torch.from_numpy(x), canonical(c), None)

    def sample_table(
        self, n_points: int, rng: np.random.Generator
    ) -> tuple[Array, FittedTransform, Labels]:
        """One table (N, P) as it was before preprocessing, its fitted transform and labels."""
        while True:
            table, labels = draw_table(self.tables, n_points, rng)
            fitted = self.transform.fit(table)
            merged = merge_confused(labels, fitted.neighbours, rng.uniform(*self.overlap))
            if merged.max() > 0 or labels.max() == 0 or rng.random() >= self.again:
                return table, fitted, merged

    def with_reference(self, n_tables: int = 1000, seed: int = 0) -> TabularMixture:
        """The same mixture, with the distribution of its tables' summary statistics stored.

        Args:
            n_tables: how many tables to draw for each of the three ranges of N.
            seed: of the draws.
        """
        rng = np.random.default_rng(seed)
        stored = []
        for low, high in ((5, 30), (31, 120), (121, max(self.sizes[1], 200))):
            sizes = rng.integers(low, high + 1, size=n_tables)
            drawn = [summary_statistics(self.sample_table(int(n), rng)[1]) for n in sizes]
            stored.append({"rows": [low, high]} | _describe(drawn))
        return replace(self, reference={"ranges": stored})

    def unusualness(self, x: Any) -> Unusualness:
        """How odd a table (N, P), or a fitted one, is among the tables of this prior.

        Every summary statistic is expressed in robust standard deviations from the prior's
        median; the p-value is the share of the prior's tables whose most extreme statistic is
        at least as extreme as this table's. Without a stored reference a small one is drawn.
        """
        ranges = (self.reference or _small_reference(self))["ranges"]
        fitted = x if isinstance(x, FittedTransform) else self.transform.fit(x)
        n = len(fitted.coordinates)
        known = next((r for r in ranges if n <= r["rows"][1]), ranges[-1])
        deviations = _deviations(summary_statistics(fitted), known)
        extreme = max(abs(z) for z in deviations.values())
        p_value = float(np.mean(np.asarray(known["extreme"]) >= extreme))
        return Unusualness(p_value, deviations, _in_words(p_value, deviations))

    def to_dict(self) -> dict[str, Any]:
        """A plain dict from which `Mixture.from_dict` makes an equal mixture."""
        return {
            "kind": type(self).__name__,
            "sizes": list(self.sizes),
            "tables": asdict(self.tables) | {"separation": list(self.tables.separation)},
            "transform": self.transform.to_dict(),
            "overlap": list(self.overlap),
            "again": self.again,
            "reference": dict(self.reference),
        }

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> TabularMixture:
        """The mixture that ``spec``, as of `to_dict`, describes; absent parts are the defaults."""
        try:
            parts = {name: value for name, value in spec.items() if name != "kind"}
            for name in ("sizes", "overlap"):
                if name in parts:
                    parts[name] = tuple(parts[name])
            tables = dict(parts.get("tables", {}))
            if "separation" in tables:
                tables["separation"] = tuple(tables["separation"])
            parts["tables"] = TablePrior(**tables)
            parts["transform"] = TabularTransform(**parts.get("transform", {}))
            return cls(**parts)
        except (AttributeError, TypeError) as error:
            raise ValueError(f"Expected the arguments of TabularMixture: {error}") from error


@lru_cache(maxsize=4)
def _small_reference(mixture: TabularMixture) -> Mapping[str, Any]:
    return mixture.with_reference(200).reference
