"""The model `tabular` beside scikit-learn, on real tables, on toy shapes and on its own prior.

    python benchmarks/tabular.py                     # the full table: `make bench-tabular`
    python benchmarks/tabular.py --quick             # 40 instead of 200 tables: in `make bench`
    python benchmarks/tabular.py --model run.safetensors --data FOLDER

Every method is run once on every data set with its defaults and a fixed seed, on standardised
columns (ours does its own preprocessing). A method that refuses a data set gets one cluster. The
noise of HDBSCAN counts as one group in ARI and AMI and not at all in the number of clusters.
`--data FOLDER` adds every `.npz` with arrays X and y of a folder; penguins need the package
`palmerpenguins` (or its `penguins.csv`, given by `--penguins`) and are left out with a word
otherwise. The output is Markdown.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _turns import lost
from numpy.typing import NDArray

from ncp.generative.tables import TabularMixture

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Cluster = Callable[[Array], Labels]


class DataSet(NamedTuple):
    group: str
    name: str
    x: Array
    labels: Labels


class Score(NamedTuple):
    ari: float
    ami: float
    k_error: float
    seconds: float
    n_clusters: int


# ---------------------------------------------------------------------------------------
# data
# ---------------------------------------------------------------------------------------


def real_tables(penguins: Path | None) -> Iterator[DataSet]:
    from sklearn import datasets

    for name, load in (
        ("iris", datasets.load_iris),
        ("wine", datasets.load_wine),
        ("breast cancer", datasets.load_breast_cancer),
        ("digits", datasets.load_digits),
    ):
        x, labels = load(return_X_y=True)
        yield DataSet("real", name, x, labels)
    table = penguins or _bundled_penguins()
    if table is None:
        print("(penguins: left out, the package palmerpenguins is not installed)\n")
    else:
        yield DataSet("real", "penguins", *_read_penguins(table))


def _bundled_penguins() -> Path | None:
    found = importlib.util.find_spec("palmerpenguins")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "data" / "penguins.csv"


def _read_penguins(path: Path) -> tuple[Array, Labels]:
    import pandas as pd

    table = pd.read_csv(path)
    measured = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
    table = table.dropna(subset=measured)
    labels = np.unique(table["species"].to_numpy(dtype=str), return_inverse=True)[1]
    return table[measured].to_numpy(dtype=np.float64), labels.astype(np.int64)


def toy_shapes() -> Iterator[DataSet]:
    """scikit-learn's comparison page: the same calls, 500 points."""
    from sklearn import datasets

    yield DataSet("toy", "blobs", *datasets.make_blobs(n_samples=500, random_state=30))
    yield DataSet("toy", "moons", *datasets.make_moons(n_samples=500, noise=0.05, random_state=30))
    x, labels = datasets.make_blobs(n_samples=500, random_state=170)
    yield DataSet("toy", "anisotropic", x @ np.array([[0.6, -0.6], [-0.4, 0.8]]), labels)
    spreads = [1.0, 2.5, 0.5]
    x, labels = datasets.make_blobs(n_samples=500, cluster_std=spreads, random_state=170)
    yield DataSet("toy", "varied", x, labels)


def prior_tables(mixture: TabularMixture, n_tables: int, seed: int) -> Iterator[DataSet]:
    """Raw tables of the prior, of fifty to three hundred rows."""
    rng = np.random.default_rng(seed)
    for i in range(n_tables):
        table, _, labels = mixture.sample_table(int(rng.integers(50, 301)), rng)
        yield DataSet("prior", f"prior {i}", table.x, labels)


def folder(path: Path) -> Iterator[DataSet]:
    for file in sorted(path.glob("*.npz")):
        with np.load(file, allow_pickle=False) as stored:
            yield DataSet("folder", file.stem, stored["X"], stored["y"])


# ---------------------------------------------------------------------------------------
# methods
# ---------------------------------------------------------------------------------------


def standardised(x: Array) -> Array:
    """Columns of mean 0 and deviation 1; constant ones dropped, missing values imputed."""
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    x = SimpleImputer(strategy="median").fit_transform(x)
    return np.asarray(StandardScaler().fit_transform(x[:, x.std(0) > 0]))


def bayesian_mixture(x: Array) -> Labels:
    from sklearn.mixture import BayesianGaussianMixture

    model = BayesianGaussianMixture(
        n_components=min(20, len(x)),
        weight_concentration_prior_type="dirichlet_process",
        max_iter=500,
        random_state=0,
    )
    return np.asarray(model.fit_predict(standardised(x)))


def mixture_by_bic(x: Array) -> Labels:
    from sklearn.mixture import GaussianMixture

    z = standardised(x)
    best, lowest = np.zeros(len(x), dtype=np.int64), np.inf
    for covariance in ("full", "diag", "tied"):
        for k in range(1, min(10, len(x) - 1) + 1):
            try:
                model = GaussianMixture(
                    n_components=k, covariance_type=covariance, random_state=0
                ).fit(z)
            except ValueError:  # ill-conditioned covariance
                continue
            bic = model.bic(z)
            if bic < lowest:
                best, lowest = model.predict(z), bic
    return np.asarray(best)


def hdbscan(x: Array) -> Labels:
    from sklearn.cluster import HDBSCAN

    return np.asarray(HDBSCAN(copy=True).fit_predict(standardised(x)))


def kmeans_by_silhouette(x: Array) -> Labels:
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    z = standardised(x)
    candidates = [
        KMeans(k, n_init=10, random_state=0).fit_predict(z)
        for k in range(2, min(10, len(x) - 1) + 1)
    ]
    usable = [c for c in candidates if 1 < np.unique(c).size < len(x)]
    return np.asarray(max(usable, key=lambda c: silhouette_score(z, c)))


def ours(model: str) -> Cluster:
    """The estimator with its defaults, warmed up so that compilation is not timed."""
    from ncp.clustering.estimator import NCPClusterer

    def cluster(x: Array) -> Labels:
        return np.asarray(NCPClusterer(model=model, random_state=0).fit_predict(x))

    cluster(np.random.default_rng(0).normal(size=(30, 2)))
    return cluster


# ---------------------------------------------------------------------------------------
# scores
# ---------------------------------------------------------------------------------------


def score(cluster: Cluster, data: DataSet) -> Score:
    from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of convergence; the result counts
            found = cluster(data.x)
    except ValueError as error:
        print(f"(refused {data.name}: {error})\n")
        found = np.zeros(len(data.x), dtype=np.int64)
    seconds = time.perf_counter() - start
    k_found = np.unique(found[found >= 0]).size
    return Score(
        adjusted_rand_score(data.labels, found),
        adjusted_mutual_info_score(data.labels, found),
        abs(k_found - np.unique(data.labels).size),
        seconds,
        k_found,
    )


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def summary(title: str, scores: dict[str, list[Score]]) -> str:
    rows = []
    for name, found in scores.items():
        ari, ami, k_error, seconds, _ = np.mean(found, axis=0)
        rows.append([name, f"{ari:.3f}", f"{ami:.3f}", f"{k_error:.2f}", f"{seconds:.2f}"])
    n = len(next(iter(scores.values())))
    header = [f"{title} ({n})", "mean ARI", "mean AMI", "mean error of K", "seconds"]
    return markdown(header, rows)


def lost_to(title: str, scores: dict[str, list[Score]]) -> list[str]:
    """Where another method has a higher mean ARI, a smaller error of K or less time than ours."""
    means = {name: Score(*np.mean(found, axis=0)) for name, found in scores.items()}
    if "ours" not in means:
        return []
    ours = means.pop("ours")
    said = []
    for field, what, digits, sign in (
        ("ari", "a higher mean ARI", ".3f", 1),
        ("k_error", "a smaller mean error of K", ".2f", -1),
        ("seconds", "less time", ".2f s", -1),
    ):
        own = getattr(ours, field)
        better = {
            n: getattr(s, field) for n, s in means.items() if sign * (getattr(s, field) - own) > 0
        }
        if better:
            spec, _, unit = digits.partition(" ")
            shown = ", ".join(f"{n} {v:{spec}}" for n, v in better.items())
            tail = f" {unit}" if unit else ""
            said.append(f"{title}: {what} than ours ({own:{spec}}{tail}): {shown}{tail}.")
    return said


def lost_tables(names: list[str], scores: dict[str, list[Score]]) -> list[str]:
    """One line with the named data sets where another method has a higher ARI than ours."""
    said = []
    for i, name in enumerate(names if "ours" in scores else []):
        best = max(scores, key=lambda method: scores[method][i].ari)
        own, highest = scores["ours"][i].ari, scores[best][i].ari
        if highest - own >= 0.005:
            said.append(f"{name} ({best} {highest:.2f}, ours {own:.2f})")
    return [f"a higher ARI than ours on {', '.join(said)}."] if said else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="40 tables of the prior, not 200")
    parser.add_argument("--model", default="tabular", help="name or file of our model")
    parser.add_argument("--data", type=Path, help="a folder of .npz files with X and y")
    parser.add_argument("--penguins", type=Path, help="penguins.csv")
    parser.add_argument("--only", choices=("real", "toy", "prior", "folder"), nargs="+")
    parser.add_argument("--without", nargs="+", default=[], help="methods to leave out")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    methods: dict[str, Callable[[], Cluster]] = {
        "ours": lambda: ours(options.model),
        "BGM": lambda: bayesian_mixture,
        "GMM by BIC": lambda: mixture_by_bic,
        "HDBSCAN": lambda: hdbscan,
        "K-means by silhouette": lambda: kmeans_by_silhouette,
    }
    chosen = {name: make() for name, make in methods.items() if name not in options.without}
    groups: dict[str, Callable[[], Iterator[DataSet]]] = {
        "real": lambda: real_tables(options.penguins),
        "toy": toy_shapes,
        "prior": lambda: prior_tables(TabularMixture(), 40 if options.quick else 200, options.seed),
        "folder": lambda: folder(options.data) if options.data else iter(()),
    }
    named: dict[str, list[Score]] = {name: [] for name in chosen}
    lines, missed = [], []
    for group in options.only or groups:
        scores: dict[str, list[Score]] = {name: [] for name in chosen}
        names = []
        for data in groups[group]():
            names.append(data.name)
            for name, cluster in chosen.items():
                scores[name].append(score(cluster, data))
            if group != "prior":
                last = [scores[name][-1] for name in chosen]
                cells = [f"{s.ari:.2f} ({s.n_clusters})" for s in last]
                n, p = data.x.shape
                k = np.unique(data.labels).size
                lines.append([f"{data.name}, {n} x {p}, K = {k}", *cells])
        if not next(iter(scores.values()), []):
            continue
        print(summary(group, scores), flush=True)
        missed += lost_to(f"{group} tables", scores)
        if group in ("real", "toy"):
            for name in chosen:
                named[name] += scores[name]
            missed += lost_tables(names, scores)
    if len(set(options.only or groups) & {"real", "toy"}) == 2:
        print(summary("real and toy", named))
    if lines:
        print("ARI, and in brackets the number of clusters found:\n")
        print(markdown(["data set", *chosen], lines))
    lost(missed)


if __name__ == "__main__":
    main()
