"""The other methods of `tabular.py`, each with its defaults, on standardised columns.

Where a method needs the number of clusters, it is chosen as people do: by BIC or by silhouette, for
K = 1, 2, ..., 10, 12, 15, ..., 60, until three numbers in a row were no better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from _tables import DataSet
from numpy.typing import NDArray

__all__ = ["FOR_MIXED", "RIVALS", "Cluster", "told_k"]

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Cluster = Callable[[DataSet], Labels]

NUMBERS = (*range(1, 11), 12, 15, 18, 21, 25, 30, 35, 40, 50, 60)
PATIENCE = 3
MOST_COMPARED = 2000  # rows for the silhouette


def standardised(data: DataSet) -> Array:
    """Columns of mean 0 and deviation 1, categories as 0/1, missing values as the median."""
    import pandas as pd
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    x, codes = data.x[:, ~data.categorical], data.x[:, data.categorical]
    if x.shape[1]:
        x = SimpleImputer(strategy="median").fit_transform(x)
        x = StandardScaler().fit_transform(x[:, x.std(0) > 0])
    if codes.shape[1]:
        levels = pd.get_dummies(pd.DataFrame(codes).astype("category"))
        x = np.column_stack((x, levels.to_numpy(dtype=np.float64)))
    return np.asarray(x)


def _search(n: int, least: int, attempt: Callable[[int], tuple[float, Labels] | None]) -> Labels:
    """The labels with the highest score over K, which is given up when it no longer grows."""
    best, highest, idle = np.zeros(n, dtype=np.int64), -np.inf, 0
    for k in (k for k in NUMBERS if least <= k < n):
        found = attempt(k)
        idle += 1
        if found is not None and found[0] > highest:
            (highest, best), idle = found, 0
        if idle == PATIENCE:
            break
    return best


def mixture_by_bic(data: DataSet) -> Labels:
    from sklearn.mixture import GaussianMixture

    z = standardised(data)

    def attempt(covariance: str) -> Callable[[int], tuple[float, Labels] | None]:
        def fit(k: int) -> tuple[float, Labels] | None:
            model = GaussianMixture(k, covariance_type=covariance, random_state=0)
            try:
                labels = model.fit_predict(z)
            except ValueError:  # ill-conditioned covariance
                return None
            scores[covariance] = max(scores.get(covariance, -np.inf), -model.bic(z))
            return -model.bic(z), np.asarray(labels)

        return fit

    scores: dict[str, float] = {}
    found = {kind: _search(len(z), 1, attempt(kind)) for kind in ("full", "diag", "tied")}
    return found[max(scores, key=lambda kind: scores[kind])] if scores else found["full"]


def told_k(data: DataSet) -> Labels:
    from sklearn.mixture import GaussianMixture

    k = np.unique(data.labels).size
    return np.asarray(GaussianMixture(k, n_init=3, random_state=0).fit_predict(standardised(data)))


def bayesian_mixture(data: DataSet) -> Labels:
    from sklearn.mixture import BayesianGaussianMixture

    model = BayesianGaussianMixture(
        n_components=min(max(20, len(data.x) // 100), 60, len(data.x)),
        weight_concentration_prior_type="dirichlet_process",
        max_iter=500,
        random_state=0,
    )
    return np.asarray(model.fit_predict(standardised(data)))


def hdbscan(data: DataSet) -> Labels:
    from sklearn.cluster import HDBSCAN

    return np.asarray(HDBSCAN(copy=True).fit_predict(standardised(data)))


def kmeans_by_silhouette(data: DataSet) -> Labels:
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    z = standardised(data)

    def attempt(k: int) -> tuple[float, Labels] | None:
        labels = KMeans(k, n_init=10, random_state=0).fit_predict(z)
        if not 1 < np.unique(labels).size < len(z):
            return None
        some = min(MOST_COMPARED, len(z))
        return silhouette_score(z, labels, sample_size=some, random_state=0), labels

    return _search(len(z), 2, attempt)


def gower(data: DataSet) -> Array:
    """Gower's distances (N, N): mean of range-scaled differences, and 1 for a different level."""
    x, total = data.x, np.zeros((len(data.x), len(data.x)))
    for j in range(x.shape[1]):
        column = np.nan_to_num(x[:, j], nan=np.nanmedian(x[:, j]))
        difference = np.abs(column[:, None] - column)
        total += difference > 0 if data.categorical[j] else difference / max(np.ptp(column), 1e-12)
    return np.asarray(total / x.shape[1])


def hdbscan_on_gower(data: DataSet) -> Labels:
    from sklearn.cluster import HDBSCAN

    return np.asarray(HDBSCAN(metric="precomputed", copy=True).fit_predict(gower(data)))


def prototypes(data: DataSet) -> Labels:
    """k-prototypes (Huang, 1998), ten starts, K by the silhouette of Gower's distance."""
    from sklearn.metrics import silhouette_score

    distance = gower(data)

    def attempt(k: int) -> tuple[float, Labels] | None:
        labels = min(_prototype_runs(data, k), key=lambda run: run[0])[1]
        if not 1 < np.unique(labels).size < len(labels):
            return None
        return silhouette_score(distance, labels, metric="precomputed"), labels

    return _search(len(data.x), 2, attempt)


def _prototype_runs(data: DataSet, k: int, starts: int = 10) -> Iterator[tuple[float, Labels]]:
    z = standardised(data._replace(categorical=data.categorical & False))
    numbers, codes = z[:, ~data.categorical], data.x[:, data.categorical]
    gamma = 0.5 * numbers.std() if numbers.size else 1.0  # Huang's rule
    for seed in range(starts):
        rng = np.random.default_rng(seed)
        start = rng.choice(len(z), size=k, replace=False)
        centre, mode = numbers[start], codes[start]
        labels = np.full(len(z), -1)
        for _ in range(100):
            cost = ((numbers[:, None] - centre) ** 2).sum(-1)
            cost = cost + gamma * (codes[:, None] != mode).sum(-1)
            before, labels = labels, cost.argmin(1)
            if (before == labels).all():
                break
            for j in np.unique(labels):
                centre[j] = numbers[labels == j].mean(0)
                mode[j] = [_most_common(column) for column in codes[labels == j].T]
        yield float(cost.min(1).sum()), labels


def _most_common(column: Array) -> float:
    values, counts = np.unique(column, return_counts=True)
    return float(values[counts.argmax()])


RIVALS: dict[str, Cluster] = {
    "BGM": bayesian_mixture,
    "GMM by BIC": mixture_by_bic,
    "HDBSCAN": hdbscan,
    "K-means by silhouette": kmeans_by_silhouette,
}
FOR_MIXED: dict[str, Cluster] = {
    "k-prototypes": prototypes,
    "one-hot + BIC": mixture_by_bic,
    "HDBSCAN on Gower": hdbscan_on_gower,
}
