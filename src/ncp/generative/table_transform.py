"""From any table to the network's input.

**Numbers.** A column x_j is centred and scaled robustly and its tails are bent,

    z_j = s asinh((x_j - m_j) / (s w_j))        (capped at 3 s),

with m_j and w_j the mean and standard deviation after clipping the outer five per cent. Rounded
numbers have been spread over what they stand for before (`table_rounding`).

**Categories.** A column with levels l of frequencies f_l becomes its centred indicators

    z_jl = a_j (1[x_j = l] - f_l) / (1 - sum_l f_l^2)^(1/2),

whose variances sum to a_j^2: with a_j = 1 it weighs as much as a column of numbers. But a column
of levels has gaps of its own, which are no clusters: a_j^2 is how much better than by chance the
rows next to each other *in all other columns* agree on it (kappa, less what chance may feign).
So an irrelevant yes or no has no weight, and one that goes with the rest has its full weight.

**Missing values** are taken from similar rows: one of the few rows nearest in what both have is
drawn and lends its value. The draw is part of the transform (`seed`), so that several draws
show what the missing values leave open; a median would make a cluster of its own.

The principal axes v_1, v_2, ... of z with variances l_1 >= l_2 >= ... give the coordinates

    y_j = <z, v_j> l_j^(-1/2) (l_j / l_1)^(p/2),        j = 1, ..., min(D, rank),

so the leading axis has unit variance and the others have (l_j / l_1)^p: p = 1 are plain principal
components, p = 0 would whiten them, and p = 1/2 keeps small axes, where elongated clusters are
told apart, visible to a smooth network. The sign of y_j is such that its third moment is not
negative. Missing axes are zero. Order, unit and sign of the columns do not matter.

Every row carries further numbers: how many axes there are, the share of the variance they hold,
the number of columns and of rows (the same for all rows of a table), two measures of how lonely
the row is, the logarithm of the distance to a near and to a farther neighbour, the share of the
columns that are categories and the share of the row's values that are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ncp.generative.table_rounding import oriented_key

__all__ = ["FittedTransform", "TabularTransform"]

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Mask = NDArray[np.bool_]

N_CONTEXT = 4  # numbers said about the whole table
N_DENSITY = 2  # numbers said about the loneliness of a row
N_INDICATORS = 2  # share of categories, share of missing values
BEYOND = 2.0  # times the loneliest row's distance to its neighbours: a row that fits no cluster
MOST_WIDENED = 3.0  # scale of a column for what is in its tails
CAP = 3.0  # of asinh: ten times the value from which tails are bent
MOST_LEVELS = 40  # of a category that have an axis of their own
MOST_COMPARED = 1000  # rows that are compared with each other for the weight of a category
MOST_DONORS = 2000  # rows that may lend a missing value
CHANCE = 3.0  # standard errors of kappa that chance may feign


@dataclass(frozen=True)
class TabularTransform:
    """The map from a table to the network's input, y = axes of bent, standardised columns.

    Args:
        dimension: D, the number of principal axes kept; fewer are padded with zeros.
        clip: share of the rows on either side that does not count for centre and scale.
        bend: s, the standardised value from which tails are bent logarithmically.
        power: p, how far the variances of the axes are kept (1) or equalised (0).
        missing: "impute" values of similar rows, or "drop" rows with missing values.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(50, 3)) * [1, 10, 100]
        >>> transform = TabularTransform()
        >>> transform(x).shape, transform.n_features
        ((50, 16), 16)
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
        return self.dimension + N_CONTEXT + N_DENSITY + N_INDICATORS

    def __call__(
        self, x: Any, categorical: Sequence[bool] | Mask | None = None, seed: int = 0
    ) -> NDArray[np.float32]:
        """Features (N, F) of a table (N, P); rows dropped for missing values are absent."""
        return self.fit(x, categorical, seed).features

    def fit(
        self, x: Any, categorical: Sequence[bool] | Mask | None = None, seed: int = 0
    ) -> FittedTransform:
        """Learn centre, scale, levels and axes from a table and apply them to it.

        Args:
            x: the table (N, P), with NaN for missing.
            categorical: which columns (P,) hold codes of categories; by default none.
            seed: of the values drawn for missing ones.
        """
        x = _as_table(x)
        is_category = _kinds(categorical, x.shape[1])
        missing = np.isnan(x)
        rows = np.ones(len(x), dtype=bool)
        if missing.any():
            if self.missing == "drop":
                rows = ~missing.any(1)
                if not rows.any():
                    raise ValueError(
                        "Expected a row without missing values but every row has one; "
                        "use missing='impute' or leave out columns"
                    )
            x = x[rows]
            x = _Donors(x, is_category).lend(x, seed)
        encoding = _encode(x, is_category, self)
        z = encoding(x)
        offset = z.mean(0)
        axes, variances, total = _principal_axes(z - offset, self.dimension)
        gains = variances ** (0.5 * self.power - 0.5) / np.max(variances, initial=1e-300) ** (
            0.5 * self.power
        )
        axes = axes * gains
        y = (z - offset) @ axes
        sign = np.where((y**3).sum(0) < 0.0, -1.0, 1.0)
        n_used = encoding.n_used
        context = np.array(
            [
                axes.shape[1] / self.dimension,
                variances.sum() / total if total > 0.0 else 1.0,
                min(np.log(max(n_used, 1)) / np.log(64.0), 1.2),
                np.log10(len(y)) / 3.0,
                len(encoding.categories) / max(n_used, 1),
            ]
        )
        return FittedTransform(
            transform=self,
            table=x,
            is_category=is_category,
            encoding=encoding,
            offset=offset,
            axes=axes * sign,
            context=context,
            coordinates=y * sign,
            rows=rows,
            missing=missing,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class FittedTransform:
    """A transform fitted to one table: its features, and those of further rows.

    Attributes:
        table: the fitted rows (N, P), without missing values.
        is_category: which columns hold categories (P,).
        encoding: columns to numbers z.
        coordinates: y (N, d) of the fitted rows, without padding.
        rows: which of the caller's rows were kept (N_caller,).
        missing: which of the caller's values were missing (N_caller, P).
    """

    transform: TabularTransform
    table: Array
    is_category: Mask
    encoding: Encoding
    offset: Array
    axes: Array
    context: Array
    coordinates: Array
    rows: Mask
    missing: Mask
    _found: list[tuple[Labels, Array]] = field(default_factory=list, repr=False, compare=False)

    @property
    def n_missing(self) -> int:
        """How many values were missing."""
        return int(self.missing.sum())

    @property
    def neighbours(self) -> tuple[Labels, Array]:
        """Index (N, k) and distance (N, k) of the nearest other rows, nearest first."""
        if not self._found:
            n = len(self.coordinates)
            self._found.append(_neighbours(self.coordinates, None, _ranks(n)[1]))
        return self._found[0]

    @property
    def closest(self) -> tuple[Labels, Array]:
        """The nearer of the neighbours, by which clusters are told apart."""
        index, distance = self.neighbours
        k = max(_ranks(len(index))[0], min(4, index.shape[1]))
        return index[:, :k], distance[:, :k]

    @property
    def features(self) -> NDArray[np.float32]:
        """Features (N, F) of the fitted rows."""
        missing = self.missing[self.rows]
        return self._assemble(self.coordinates, self.neighbours[1], self._share(missing))

    def apply(self, x: Any) -> NDArray[np.float32]:
        """Features (M, F) of further rows (M, P), seen from the fitted table.

        A missing value is that of the fitted row which is nearest in the others; a level that
        was not fitted is the average of all levels.
        """
        return self._assemble(*self._place(x))

    def beyond(self, x: Any) -> Mask:
        """Which further rows (M, P) lie far from all fitted ones: `BEYOND` times any of these.

        Tails are bent and capped, so that the network cannot tell how far such rows are.
        """
        _, distance, _ = self._place(x)
        if distance.shape[1] == 0:
            return np.zeros(len(distance), dtype=bool)
        near = _ranks(len(self.coordinates))[0] - 1
        widest = self.neighbours[1][:, near].max() + 0.05
        return np.asarray(distance[:, near] > BEYOND * widest)

    def _place(self, x: Any) -> tuple[Array, Array, Array]:
        """Coordinates of further rows, distances to fitted ones, and shares of missing values."""
        x = np.asarray(x)
        x = _as_table(x.reshape(len(x), -1) if x.ndim > 2 else x)
        if x.shape[1] != self.table.shape[1]:
            raise ValueError(f"Expected {self.table.shape[1]} columns but got {x.shape[1]}")
        missing = np.isnan(x)
        if missing.any():
            x = _Donors(self.table, self.is_category).lend(x)
        y = (self.encoding(x) - self.offset) @ self.axes
        distance = _neighbours(y, self.coordinates, _ranks(len(self.coordinates))[1])[1]
        return y, distance, self._share(missing)

    def _share(self, missing: Mask) -> Array:
        """Of the values of rows that are missing, columns that do not vary left out."""
        some = _varies(self.table)
        return np.asarray(missing[:, some].sum(1) / max(int(some.sum()), 1))

    def _assemble(self, y: Array, distance: Array, missing: Array) -> NDArray[np.float32]:
        """Coordinates, context, loneliness and indicators side by side."""
        dimension = self.transform.dimension
        out = np.zeros((len(y), self.transform.n_features), dtype=np.float32)
        out[:, : y.shape[1]] = y
        out[:, dimension : dimension + N_CONTEXT] = self.context[:N_CONTEXT]
        if distance.shape[1] > 0:
            own = self.neighbours[1]
            for i, rank in enumerate(_ranks(len(self.coordinates))):
                # ties are common in rounded tables, so distances start at a twentieth
                typical = np.sort(own[:, rank - 1])[len(own) // 2] + 0.05
                lonely = np.log((distance[:, rank - 1] + 0.05) / typical)
                out[:, dimension + N_CONTEXT + i] = np.clip(lonely, -3.0, 3.0)
        out[:, -2] = self.context[N_CONTEXT]
        out[:, -1] = missing
        return out

    @property
    def words(self) -> str:
        """What was done to the table, in a sentence or two."""
        said = self._words_of_missing()
        n_columns = self.table.shape[1]
        constant = n_columns - self.encoding.n_used - len(self.encoding.alone)
        if constant:
            do = "does not vary and was" if constant == 1 else "do not vary and were"
            said.append(f"{constant} of {n_columns} columns {do} left out")
        if self.encoding.alone:
            columns = "category goes" if len(self.encoding.alone) == 1 else "categories go"
            said.append(f"{len(self.encoding.alone)} {columns} with no other column: no weight")
        d = self.axes.shape[1]
        axes = "1 principal axis holds" if d == 1 else f"{d} principal axes hold"
        held = f"{axes} {100 * self.context[1]:.0f}% of the variance"
        said.append(held if d else "no principal axis is left")
        return "; ".join(said) + "."

    def _words_of_missing(self) -> list[str]:
        n_dropped = int((~self.rows).sum())
        if n_dropped:
            were = "was" if n_dropped == 1 else "were"
            return [f"{n_dropped} of {self.rows.size} rows {were} left out for missing values"]
        if self.n_missing:
            values = "value was" if self.n_missing == 1 else "values were"
            return [f"{self.n_missing} missing {values} taken from similar rows"]
        return []


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


def _kinds(categorical: Sequence[bool] | Mask | None, n_columns: int) -> Mask:
    if categorical is None:
        return np.zeros(n_columns, dtype=bool)
    kinds = np.asarray(categorical)
    if kinds.shape != (n_columns,) or kinds.dtype != np.bool_:
        raise ValueError(
            f"Expected categorical as {n_columns} booleans but got {kinds.dtype} {kinds.shape}"
        )
    return kinds


# ---------------------------------------------------------------------------------------
# columns to numbers
# ---------------------------------------------------------------------------------------


class Category(NamedTuple):
    """A column of levels: the values and frequencies (L,) of those with an axis, and its weight.

    Rarer levels have the last axis in common.
    """

    column: int
    levels: Array
    frequencies: Array
    weight: float


@dataclass(frozen=True)
class Encoding:
    """Columns to numbers z (N, Q): those of numbers bent, those of categories as indicators.

    Attributes:
        numbers: which columns vary and are numbers, with their `centre` and `scale`.
        categories: the columns of levels that have a weight.
        alone: columns of levels that go with no other column, and have none.
    """

    numbers: Labels
    centre: Array
    scale: Array
    bend: float
    categories: tuple[Category, ...]
    alone: tuple[int, ...]

    @property
    def n_used(self) -> int:
        return self.numbers.size + len(self.categories)

    def __call__(self, x: Array) -> Array:
        z = _bend(x[:, self.numbers], self.centre, self.scale, self.bend)
        if not self.categories:
            return z
        return np.concatenate((z, *(_indicators(x, c) for c in self.categories)), axis=1)


def _encode(x: Array, is_category: Mask, transform: TabularTransform) -> Encoding:
    centre, scale = _centre_and_scale(x, transform.clip)
    numbers = np.flatnonzero((scale > 0.0) & ~is_category)
    levels = [_levels(x, int(j)) for j in np.flatnonzero((scale > 0.0) & is_category)]
    encoding = Encoding(numbers, centre[numbers], scale[numbers], transform.bend, (), ())
    if not levels:
        return encoding
    weights = _weights(encoding(x), x, levels)
    return Encoding(
        encoding.numbers,
        encoding.centre,
        encoding.scale,
        encoding.bend,
        tuple(c._replace(weight=w) for c, w in zip(levels, weights, strict=True) if w > 0.0),
        tuple(c.column for c, w in zip(levels, weights, strict=True) if w == 0.0),
    )


def _varies(x: Array) -> Mask:
    """Which columns (P,) have different values."""
    least, most = np.fmin.reduce(x, axis=0), np.fmax.reduce(x, axis=0)
    return np.asarray(most > least)


def _centre_and_scale(x: Array, clip: float) -> tuple[Array, Array]:
    """Winsorised mean (P,) and standard deviation (P,) of columns; zero marks a constant one."""
    ordered = np.sort(x, axis=0)
    largest = np.maximum(np.abs(ordered[0]), np.abs(ordered[-1]))
    unit = np.where((largest > 0.0) & (largest < 1e-100), largest, 1.0)  # their squares would be 0
    ordered = ordered / unit
    first, last = ordered[0], ordered[-1]
    centre, scale = _winsorised(ordered, clip)
    # a column that varies only in its tails still counts, but a few gross errors do not
    tails = 0.3 * _winsorised(ordered, min(0.01, clip))[1]
    scale = np.where(scale > 0.0, np.clip(tails, scale, MOST_WIDENED * scale), tails)
    scale = np.where(scale == 0.0, ordered.std(0), scale)
    constant = last - first <= 1e-12 * np.maximum(np.abs(first), np.abs(last))
    return centre * unit, np.where(constant, 0.0, scale * unit)


def _winsorised(ordered: Array, clip: float) -> tuple[Array, Array]:
    """Mean and deviation after clipping the outer rows; from twenty rows on at least one."""
    n = len(ordered)
    cut = int(clip * n)
    if n >= 20 and clip > 0.0:
        cut = max(cut, 1)
    clipped = np.clip(ordered, ordered[cut], ordered[n - 1 - cut])
    return clipped.mean(0), clipped.std(0)


def _levels(x: Array, column: int) -> Category:
    """The most frequent levels of a column, all others together as one more."""
    levels, counts = np.unique(x[:, column], return_counts=True)
    if levels.size > MOST_LEVELS:
        common = np.sort(np.argsort(-counts, kind="stable")[: MOST_LEVELS - 1])
        rest = counts.sum() - counts[common].sum()
        levels, counts = levels[common], np.append(counts[common], rest)
    return Category(column, levels, counts / len(x), 1.0)


def _indicators(x: Array, category: Category) -> Array:
    """z (N, L) of a category; a level that was never seen has the average of all."""
    column, levels, frequencies, weight = category
    hot = (x[:, column, None] == levels).astype(np.float64)
    unknown = 1.0 - hot.sum(1)
    if frequencies.size > levels.size:
        hot = np.column_stack((hot, unknown))
    else:
        hot += unknown[:, None] * frequencies
    return np.asarray(hot * (weight / np.sqrt(1.0 - (frequencies**2).sum())))


def _weights(z: Array, x: Array, categories: list[Category]) -> list[float]:
    """Weights a_j of categories: how far neighbours in the other columns agree on each.

    With A the mean share of a row's k nearest rows that have its level, and E what chance gives,
    kappa = (A - E) / (1 - E) is 0 for an irrelevant column and 1 for one that the others
    determine. Its standard error for an irrelevant column is about (N k (L - 1) / 2)^(-1/2).
    A table of nothing but such columns is taken as it is.
    """
    step = -(-len(z) // MOST_COMPARED)
    z, x = z[::step], x[::step]
    n = len(z)
    if z.shape[1] + len(categories) == 1 or n < 4:
        return [1.0] * len(categories)
    from ncp.generative.table_kernels import agreement

    codes = np.stack([_codes(x, c) for c in categories], axis=1)
    n_levels = np.array([c.frequencies.size for c in categories])
    chance = np.array([(c.frequencies * (n * c.frequencies - 1.0)).sum() for c in categories])
    chance /= n - 1  # no row is its own neighbour
    k = int(np.clip(np.sqrt(n) / 2, 2, 12))
    apart = np.array([2.0 / (1.0 - (c.frequencies**2).sum()) for c in categories])
    kappa = (agreement(z, codes, apart, k) - chance) / (1.0 - chance)
    feigned = CHANCE * np.sqrt(2.0 / (n * k * (n_levels - 1)))
    shares = np.clip((kappa - feigned) / np.maximum(1.0 - feigned, 0.1), 0.0, 1.0)
    if z.shape[1] == 0 and not shares.any():
        shares[:] = 1.0
    return list(np.sqrt(shares).tolist())


def _codes(x: Array, category: Category) -> Labels:
    """The index of every row's level; all rarer ones share the last."""
    place = np.searchsorted(category.levels, x[:, category.column])
    place = np.minimum(place, category.levels.size - 1)
    known = category.levels[place] == x[:, category.column]
    return np.where(known, place, category.levels.size)


def _bend(x: Array, centre: Array, scale: Array, bend: float) -> Array:
    """s asinh((x - m) / (s w)), capped so that a gross error cannot claim an axis for itself."""
    z = np.arcsinh((x - centre) / (bend * scale))
    return bend * np.clip(z, -CAP, CAP)


# ---------------------------------------------------------------------------------------
# missing values
# ---------------------------------------------------------------------------------------


class _Donors:
    """Rows that lend values: one of the k nearest, by what both rows have, is drawn.

    Nearness is the mean squared difference of standardised numbers, and 1 for a different level.
    """

    def __init__(self, x: Array, is_category: Mask) -> None:
        x = x[:: -(-len(x) // MOST_DONORS)]
        self.x, self.is_category = x, is_category
        known = ~np.isnan(x)
        count = np.maximum(known.sum(0), 1)
        self.centre = np.where(known, x, 0.0).sum(0) / count
        spread = np.sqrt(np.where(known, (x - self.centre) ** 2, 0.0).sum(0) / count)
        self.spread = np.where(spread > 0.0, spread, 1.0)
        self.known, self.varies = known, _varies(x)
        self.k = int(np.clip(np.sqrt(len(x)) / 2, 2, 8))

    def lend(self, x: Array, seed: int | None = None) -> Array:
        """A copy of x (M, P) without missing values; without a seed the nearest row lends.

        Each column has draws of its own, so nothing depends on their order.
        """
        out, jitter = x.copy(), np.random.default_rng(seed)
        rngs: dict[int, Generator] = {}
        lacking = np.isnan(x)
        for j in map(int, np.flatnonzero(lacking.any(0) & ~self.varies)):
            out[lacking[:, j], j] = self.x[self.known[:, j], j][:1].sum()  # its one value, or 0
        lacking &= self.varies
        for start in range(0, len(x), 1000):
            rows = start + np.flatnonzero(lacking[start : start + 1000].any(1))
            distance = self._distances(x[rows])
            if seed is not None:  # ties are broken at random
                distance = distance + 1e-6 * jitter.random(distance.shape)
            for j in map(int, np.flatnonzero(lacking[rows].any(0))):
                donors = np.flatnonzero(self.known[:, j])
                takers = np.flatnonzero(lacking[rows, j])
                near = distance[np.ix_(takers, donors)]
                k = 1 if seed is None else min(self.k, donors.size)
                chosen = np.argpartition(near, k - 1, axis=1)[:, :k]
                drawn = np.zeros(takers.size, np.int64)
                if seed is not None:
                    if j not in rngs:
                        rngs[j] = np.random.default_rng([seed, self._key(j)])
                    drawn = rngs[j].integers(k, size=takers.size)
                out[rows[takers], j] = self.x[donors[chosen[np.arange(takers.size), drawn]], j]
        return out

    def _key(self, j: int) -> int:
        """Of a column, by what is known of it."""
        known = self.x[self.known[:, j], j]
        return oriented_key(np.unique(known, return_inverse=True)[1])[1]

    def _distances(self, x: Array) -> Array:
        """Mean squared difference (M, N) over what a row and a donor both have."""
        numbers = ~self.is_category
        theirs, ours = ~np.isnan(x) & self.varies, self.known & self.varies
        a = np.where(theirs, (x - self.centre) / self.spread, 0.0)
        b = np.where(ours, (self.x - self.centre) / self.spread, 0.0)
        u, v = theirs[:, numbers] * 1.0, ours[:, numbers] * 1.0
        a, b = a[:, numbers], b[:, numbers]
        total = a**2 @ v.T + u @ (b**2).T - 2.0 * a @ b.T
        for j in np.flatnonzero(self.is_category):
            both = np.outer(theirs[:, j], ours[:, j])
            total += both & (x[:, j, None] != self.x[None, :, j])
        common = (theirs * 1.0) @ (ours * 1.0).T
        # rows that have nothing in common come last; more in common is better than less
        return np.asarray((total + 0.5) / np.maximum(common, 0.01))


# ---------------------------------------------------------------------------------------
# axes and neighbours
# ---------------------------------------------------------------------------------------


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
    if k == 0:
        return np.zeros((len(y), 0), dtype=np.int64), np.zeros((len(y), 0))
    from ncp.generative.table_kernels import nearest

    y = np.ascontiguousarray(y)
    among = y if reference is None else np.ascontiguousarray(reference)
    return nearest(y, among, k, reference is None)
