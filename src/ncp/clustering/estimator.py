"""A scikit-learn clusterer.

`NCPClusterer` is `ncp.clustering.cluster.cluster` in scikit-learn's manners: parameters in the
constructor, work in `fit`, results in attributes that end in an underscore.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ncp.clustering.cluster import cluster
from ncp.clustering.prepare import as_rows, preprocessing_of
from ncp.clustering.result import Clustering
from ncp.network.pretrained import DEFAULT
from ncp.posterior import Partitions

__all__ = ["NCPClusterer"]

LARGEST_SIMILARITY = 20_000


class NCPClusterer(ClusterMixin, BaseEstimator):
    """Bayesian clustering by a neural clustering process.

    Parameters
    ----------
    model : str, path or NCP, default="tabular"
        The name of a model (see `ncp models`), a checkpoint, or a model. The tabular model
        takes any number of columns in any units; the others take data in their own units.
    n_samples : int, default=None
        Posterior samples; by default 50 for the tabular model and 1,000 for others.
    orders : int or "each", default=None
        Random orders of the points that the samples are spread over; by default 10 or 8.
    estimate : {"auto", "vi", "binder", "pear", "map"}, default="auto"
        The point estimate in `labels_`; see `ncp.clustering.prepare.Settings`.
    reweight : bool or "auto", default="auto"
        Importance weights that make the samples exact, where the model has a joint density.
        "auto" leaves them out when they are not to be trusted.
    max_clusters : int, default=None
        The most clusters of the point estimate.
    max_points : int, default=None
        Rows clustered at once; of larger data a random subset, and the rest is assigned.
    scale : float, default=None
        Multiply the centred data by this, to bring them to the model's units.
    noise_sd : float, default=None
        Spread of one cluster in the data's units; sets the scale.
    random_state : int, RandomState instance or None, default=None
        Pass an int for reproducible results.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        The cluster of each row in the point estimate; -1 for rows left out for missing values.
    n_clusters_ : int
        How many clusters that has.
    confidence_ : ndarray of shape (n_samples,)
        Probability that each row belongs to its cluster.
    similarity_matrix_ : ndarray of shape (n_samples, n_samples)
        Probability that two rows share a cluster; computed when asked for.
    posterior_ : Partitions
        The posterior samples.
    clustering_ : Clustering
        Everything else: summary, notes, warnings, `plot()`, `write_report(path)`.
    n_features_in_ : int
        Number of columns seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, when all are strings.
    """

    # set by scikit-learn's ClusterMixin, BaseEstimator and validate_data
    n_features_in_: int

    def __init__(
        self,
        model: Any = DEFAULT,
        *,
        n_samples: int | None = None,
        orders: int | str | None = None,
        estimate: str = "auto",
        reweight: bool | str = "auto",
        max_clusters: int | None = None,
        max_points: int | None = None,
        scale: float | None = None,
        noise_sd: float | None = None,
        random_state: Any = None,
    ) -> None:
        self.model = model
        self.n_samples = n_samples
        self.orders = orders
        self.estimate = estimate
        self.reweight = reweight
        self.max_clusters = max_clusters
        self.max_points = max_points
        self.scale = scale
        self.noise_sd = noise_sd
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> NCPClusterer:
        """Sample partitions of the rows of X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The data. NaN for missing values: the tabular model fills them in, the others leave
            such rows out.
        y : ignored
        """
        data = self._validate(X, "allow-nan")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        found = cluster(
            data,
            self.model,
            n_samples=self.n_samples,
            orders=self.orders,
            estimate=self.estimate,
            reweight=self.reweight,
            max_clusters=self.max_clusters,
            max_points=self.max_points,
            scale=self.scale,
            noise_sd=self.noise_sd,
            seed=seed,
        )
        names = getattr(self, "feature_names_in_", found.columns)
        self.clustering_: Clustering = replace(found, columns=tuple(str(name) for name in names))
        self.labels_ = self.clustering_.labels
        self.n_clusters_ = self.clustering_.n_clusters
        self.confidence_ = self.clustering_.confidence
        self.posterior_: Partitions = self.clustering_.posterior
        return self

    @property
    def similarity_matrix_(self) -> np.ndarray:
        """P(c_i = c_j) of all pairs of rows."""
        check_is_fitted(self)
        n = len(self.labels_)
        if n > LARGEST_SIMILARITY:
            raise ValueError(
                f"Expected at most {LARGEST_SIMILARITY} rows for a matrix of all pairs but got "
                f"{n}; ncp.summary.similarity.similarity_blocks gives it in blocks"
            )
        if self.posterior_.n_points == n:
            return self.posterior_.similarity_matrix()
        from ncp.summary.similarity import similarity

        usable = self.labels_ >= 0
        matrix = np.full((n, n), np.nan)
        samples = self.clustering_.samples[:, usable]
        matrix[np.ix_(usable, usable)] = similarity(samples)
        return matrix

    def predict(self, X: Any) -> np.ndarray:
        """The most probable cluster of new rows; `n_clusters_` stands for a new cluster."""
        return np.asarray(self.predict_proba(X).argmax(axis=1))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of new rows joining each cluster of `labels_`.

        Each row is scored on its own, as the next one after the fitted data.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters_ + 1); the last column is "a new cluster".
        """
        check_is_fitted(self)
        fills_in = preprocessing_of(self.clustering_.model) is not None
        data = self._validate(X, "allow-nan" if fills_in else True, reset=False)
        return self.clustering_.predict_proba(data)

    def _validate(self, X: Any, finite: bool | str, reset: bool = True) -> np.ndarray:
        if hasattr(X, "dtypes"):
            as_rows(X)  # refuses dates and categories, which scikit-learn takes for numbers
        with np.errstate(invalid="ignore"):  # of infinite values, which are refused
            data = validate_data(self, X, dtype=np.float64, ensure_all_finite=finite, reset=reset)
        return np.asarray(data)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
