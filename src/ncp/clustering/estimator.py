"""A scikit-learn clusterer.

`NCPClusterer` is `ncp.clustering.cluster.cluster` in scikit-learn's manners: parameters in the
constructor, work in `fit`, results in attributes that end in an underscore.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from ncp.clustering.cluster import cluster
from ncp.clustering.gaussian_result import GaussianClustering
from ncp.clustering.prepare import preprocessing_of, unmasked
from ncp.clustering.result import Clustering
from ncp.network.pretrained import DEFAULT
from ncp.output.columns import check_whole
from ncp.posterior import Partitions

__all__ = ["NCPClusterer"]

OURS = "model", "random_state"  # all other parameters are those of `cluster`


def _is_gaussian(estimator: Any) -> bool:
    return isinstance(getattr(estimator, "clustering_", None), GaussianClustering)


class NCPClusterer(ClusterMixin, BaseEstimator):
    """Bayesian clustering by a neural clustering process.

    Parameters
    ----------
    model : str, path or NCP, default="tabular"
        The name of a model (see `ncp models`), a checkpoint, or a model. The tabular model
        takes any number of columns in any units; the others take data in their own units.
    at_least, at_most : int, default=None
        How many clusters there are, if that is known; both alike for a given number.
    at_any_price : bool, default=False
        Whether to obey labels and numbers that the model gives a probability below 1e-12.
    n_samples, orders, estimate, reweight, max_clusters, max_points, scale, noise_sd, exact
        As in `ncp.clustering.prepare.Settings`.
    time_limit : float, default=5.0
        Seconds of computing that exact chains have.
    alpha, ratio, dof, hyperparameters
        As in `Settings`, for the model "gaussian".
    random_state : int, RandomState instance or None, default=None
        Pass an int for reproducible results.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        The cluster of each row in the point estimate, numbered by size, the largest is 0; -1 for
        rows left out for missing values.
    n_clusters_ : int
        How many clusters that has.
    confidence_ : ndarray of shape (n_samples,)
        How sure each row's cluster is: the overlap to expect of it with the row's cluster in a
        posterior sample, what both share of what either has.
    similarity_matrix_ : ndarray of shape (n_samples, n_samples)
        Probability that two rows share a cluster; computed when asked for.
    posterior_ : Partitions
        The posterior samples.
    clustering_ : Clustering
        Everything else: summary, notes, warnings, `profile()`, `plot()`, `write_report(path)`.
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
        at_least: int | None = None,
        at_most: int | None = None,
        at_any_price: bool = False,
        max_points: int | None = None,
        scale: float | None = None,
        noise_sd: float | None = None,
        alpha: float | None = None,
        ratio: float | None = None,
        dof: float | str | None = None,
        hyperparameters: str = "best",
        exact: bool | None = None,
        time_limit: float = 5.0,
        random_state: Any = None,
    ) -> None:
        self.model = model
        self.n_samples = n_samples
        self.orders = orders
        self.estimate = estimate
        self.reweight = reweight
        self.max_clusters = max_clusters
        self.at_least = at_least
        self.at_most = at_most
        self.at_any_price = at_any_price
        self.max_points = max_points
        self.scale = scale
        self.noise_sd = noise_sd
        self.alpha = alpha
        self.ratio = ratio
        self.dof = dof
        self.hyperparameters = hyperparameters
        self.exact = exact
        self.time_limit = time_limit
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> NCPClusterer:
        """Sample partitions of the rows of X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The data. NaN for missing values: the tabular model fills them in, the others leave
            such rows out.
        y : array-like of shape (n_samples,), default=None
            What is known of the clusters: equal labels are together, different ones apart, and
            -1 is not known, as in scikit-learn's semi-supervised estimators.
        """
        data = self._validate(X, "allow-nan")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        given = self.get_params(deep=False)
        found = cluster(
            data,
            self.model,
            known=None if y is None else column_or_1d(y),
            seed=seed,
            **{name: value for name, value in given.items() if name not in OURS},
        )
        self.clustering_: Clustering = found
        self.labels_ = self.clustering_.labels
        self.n_clusters_ = self.clustering_.n_clusters
        self.confidence_ = self.clustering_.confidence
        self.posterior_: Partitions = self.clustering_.posterior
        return self

    @property
    def similarity_matrix_(self) -> np.ndarray:
        """P(c_i = c_j) of all pairs of rows."""
        check_is_fitted(self)
        return self.clustering_.similarity()

    def predict(self, X: Any) -> np.ndarray:
        """The most probable cluster of new rows; -1 for rows that fit none of them.

        A row fits none if "a new cluster" is more probable than each cluster of `labels_`.
        """
        chances = self.predict_proba(X)
        best = chances.argmax(axis=1)
        return np.where(best == chances.shape[1] - 1, -1, best)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of new rows joining each cluster of `labels_`.

        Each row is scored on its own, as the next one after the fitted data.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters_ + 1); the last column is "a new cluster".
        """
        check_is_fitted(self)
        model = self.clustering_.model
        fills_in = model is not None and preprocessing_of(model) is not None
        data = self._validate(X, "allow-nan" if fills_in else True, reset=False)
        return self.clustering_.predict_proba(data)

    @available_if(_is_gaussian)
    def score_samples(self, X: Any) -> np.ndarray:
        """Log density of new rows, averaged over the posterior (model "gaussian")."""
        return self._gaussian().score_samples(self._validate(X, True, reset=False))

    @available_if(_is_gaussian)
    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """New rows of the posterior predictive and their clusters (model "gaussian")."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return self._gaussian().sample(n_samples, seed)

    def _gaussian(self) -> GaussianClustering:
        assert isinstance(self.clustering_, GaussianClustering)
        return self.clustering_

    def _validate(self, X: Any, finite: bool | str, reset: bool = True) -> Any:
        X = unmasked(X)
        if hasattr(X, "dtypes") and hasattr(X, "columns"):  # categories and dates are welcome
            validate_data(self, X, skip_check_array=True, reset=reset)
            return X
        if isinstance(X, np.ndarray):
            check_whole(X)
        with np.errstate(invalid="ignore"):  # of infinite values, which are refused
            data = validate_data(self, X, dtype=np.float64, ensure_all_finite=finite, reset=reset)
        return np.asarray(data)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
