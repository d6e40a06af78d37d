"""What it is worth to tell the model what one knows: labels, and links that are random or asked.

    python benchmarks/knowledge.py                                    # several times --quick
    python benchmarks/knowledge.py --quick                            # in `make bench`
    python benchmarks/knowledge.py --figure docs/images/knowledge.png

Iris, wine, penguins and twenty tables of the prior (`--quick`: six) with two to eight clusters.
*Labels* of so many random rows of each true cluster; the ARI of all other rows. The rivals are told
the true K: `LabelSpreading` (seven neighbours), and k-means from the means of the known rows.
*Links*: true answers for random pairs of rows, or those that `Clustering.ask` asks for, five at a
time; the ARI of all rows. Three seeds of labels, links and samples (`--quick`: two): on one table
ten random links gave anything from 0.16 to 0.94.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
from _rivals import standardised
from _tables import DataSet, prior_tables, public
from _timing import lost
from numpy.typing import NDArray

from ncp.clustering.cluster import cluster
from ncp.clustering.result import Clustering
from ncp.model import NCP, load

Labels = NDArray[np.int64]
PER_CLUSTER = (0, 1, 2, 5)
LINKS = (0, 10, 20, 30)
AT_ONCE = 5  # questions
NAMED = ("iris", "wine", "penguins")
Scores = dict[str, dict[int, list[float]]]  # ARI by method and by how much was told


def tables(n_prior: int, seed: int) -> Iterator[DataSet]:
    """The tables that are used."""
    yield from (data for data in public() if data.name in NAMED)
    yield from islice(
        (
            data
            for data in prior_tables(100 * n_prior, seed)
            if 2 <= len(np.unique(data.labels)) <= 8
            and not data.categorical.any()
            and len(data.x) <= 400
            and np.bincount(data.labels).min() >= 8
        ),
        n_prior,
    )


def ari(truth: Labels, found: Labels, rows: NDArray[np.bool_]) -> float:
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(truth[rows], found[rows]))


# -- labels ----------------------------------------------------------------------------------------


def some_of_each(labels: Labels, n: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    known = np.zeros(len(labels), bool)
    for k in np.unique(labels):
        known[rng.permutation(np.flatnonzero(labels == k))[:n]] = True
    return known


def ours(start: Clustering, data: DataSet, known: NDArray[np.bool_]) -> Labels:
    if not known.any():
        return start.labels
    told = np.where(known, data.labels, -1)
    seed = start.settings.seed
    return cluster(data.x, _model(start), known=told, at_any_price=True, seed=seed).labels


def _model(found: Clustering) -> NCP:
    assert found.model is not None
    return found.model


def spreading(data: DataSet, known: NDArray[np.bool_]) -> Labels:
    from sklearn.semi_supervised import LabelSpreading

    told = np.where(known, data.labels, -1)
    rival = LabelSpreading(kernel="knn", n_neighbors=7)
    return np.asarray(rival.fit(standardised(data), told).transduction_)


def seeded_k_means(data: DataSet, known: NDArray[np.bool_]) -> Labels:
    from sklearn.cluster import KMeans

    x, classes = standardised(data), np.unique(data.labels)
    if not known.any():
        return np.asarray(KMeans(len(classes), n_init=10, random_state=0).fit_predict(x))
    means = np.stack([x[known & (data.labels == k)].mean(0) for k in classes])
    return np.asarray(KMeans(len(classes), init=means, n_init=1).fit_predict(x))


def with_labels(start: Clustering, data: DataSet, rng: np.random.Generator, scores: Scores) -> None:
    for n in PER_CLUSTER:
        known = some_of_each(data.labels, n, rng)
        found = {"ours": ours(start, data, known), "seeded k-means": seeded_k_means(data, known)}
        if n:
            found["LabelSpreading"] = spreading(data, known)
        for name, labels in found.items():
            scores[name][n].append(ari(data.labels, labels, ~known))


# -- links -----------------------------------------------------------------------------------------


def answers(data: DataSet, pairs: list[tuple[int, int]]) -> dict[str, list[tuple[int, int]]]:
    same = [data.labels[i] == data.labels[j] for i, j in pairs]
    return {
        "together": [pair for pair, yes in zip(pairs, same, strict=True) if yes],
        "apart": [pair for pair, yes in zip(pairs, same, strict=True) if not yes],
    }


def with_links(
    start: Clustering, data: DataSet, rng: np.random.Generator, most: int, scores: Scores
) -> None:
    everything, model = np.ones(len(data.x), bool), _model(start)
    seed = start.settings.seed
    pairs = [tuple(rng.choice(len(data.x), 2, replace=False).tolist()) for _ in range(most)]
    for n in (n for n in LINKS if n <= most):
        told = answers(data, pairs[:n])
        found = cluster(data.x, model, **told, at_any_price=True, seed=seed) if n else start
        scores["random links"][n].append(ari(data.labels, found.labels, everything))
    found, asked = start, 0
    scores["asked links"][0].append(ari(data.labels, start.labels, everything))
    while asked < most:
        found = _ask(found, data)
        asked += AT_ONCE
        if asked in LINKS:
            scores["asked links"][asked].append(ari(data.labels, found.labels, everything))


def _ask(found: Clustering, data: DataSet) -> Clustering:
    questions = [q.points for q in found.ask(AT_ONCE)]
    if not questions:  # nothing is in doubt
        return found
    pairs = [(int(q[0]), int(q[1])) for q in questions]
    return found.given(**answers(data, pairs), at_any_price=True)


# -- what was found --------------------------------------------------------------------------------


def markdown(title: str, scores: Scores, columns: tuple[int, ...]) -> str:
    head = [title, *(str(n) for n in columns)]
    lines = [head, ["---"] + ["---:"] * len(columns)]
    for name, by_n in scores.items():
        cells = [f"{np.mean(by_n[n]):.3f}" if by_n.get(n) else "" for n in columns]
        lines.append([name, *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def draw(labels: Scores, links: Scores, path: Path) -> None:
    """Both tables as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for ax, scores, what in ((left, labels, "labels a cluster"), (right, links, "links")):
        for (name, by_n), style in zip(scores.items(), ("o-", "s--", "^:"), strict=False):
            at = [n for n in by_n if by_n[n]]
            ax.plot(at, [np.mean(by_n[n]) for n in at], style, label=name)
        ax.set_xlabel(f"known {what}")
        ax.legend(frameon=False)
    left.set_ylabel("ARI of what is not known")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=144)


def missed(labels: Scores, links: Scores) -> Iterator[str]:
    """Goals that were not reached."""
    for n in (1, 2):
        for rival in ("LabelSpreading", "seeded k-means"):
            own, other = np.mean(labels["ours"][n]), np.mean(labels[rival][n])
            if other > own:
                yield f"{n} labels a cluster: {rival} has an ARI of {other:.3f}, ours {own:.3f}."
    asked, chance = (links[f"{how} links"] for how in ("asked", "random"))
    if asked.get(10) and chance.get(20) and np.mean(asked[10]) < np.mean(chance[20]):
        yield (
            f"ten asked links have an ARI of {np.mean(asked[10]):.3f}, twenty random ones "
            f"{np.mean(chance[20]):.3f}."
        )


def empty(names: tuple[str, ...], columns: tuple[int, ...]) -> Scores:
    return {name: {n: [] for n in columns} for name in names}


def latest(scores: Scores, n: int) -> dict[str, list[float]]:
    """Means of the last runs, of one table."""
    return {
        name: [round(float(np.mean(found[-n:])), 2) for found in by_n.values() if found]
        for name, by_n in scores.items()
    }


def told(scores: Mapping[str, Mapping[int, list[float]]]) -> int:
    """How many runs there were."""
    return max(len(found) for by_n in scores.values() for found in by_n.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="six prior tables, two seeds")
    parser.add_argument("--model", default="tabular", help="name or file of our model")
    parser.add_argument("--figure", type=Path, help="a picture to write")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of convergence; the result counts
    model = load(options.model)
    n_tables, n_turns, most = (6, 2, 20) if options.quick else (20, 3, 30)
    labels = empty(("ours", "LabelSpreading", "seeded k-means"), PER_CLUSTER)
    links = empty(("asked links", "random links"), LINKS)
    for data in tables(n_tables, options.seed):
        for turn in range(n_turns):
            rng = np.random.default_rng(options.seed + turn)
            start = cluster(data.x, model, seed=turn)
            with_labels(start, data, rng, labels)
            with_links(start, data, rng, most, links)
        print(data.name, latest(labels, n_turns), latest(links, n_turns), file=sys.stderr)
    print(f"Mean ARI of {told(labels)} runs, by known labels a cluster:\n")
    print(markdown("method", labels, PER_CLUSTER))
    print("By links:\n")
    print(markdown("", links, tuple(n for n in LINKS if n <= most)))
    lost(missed(labels, links))
    if options.figure is not None:
        draw(labels, links, options.figure)


if __name__ == "__main__":
    main()
