"""The scikit-learn estimator: its conventions, and that it says what the samples say."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ncp import NCP, NCPClusterer
from ncp.network.checkpoint import save_model
from tests.small_models import gaussian, tabular

CHECKS = """
import warnings
import torch
from sklearn.utils.estimator_checks import check_estimator
import ncp
torch.set_num_threads(1)
estimator = ncp.NCPClusterer(n_samples=40, orders=2)
warnings.simplefilter("ignore")
results = check_estimator(estimator, on_fail=None)
for result in results:
    if result["status"] != "passed":
        print(result["check_name"], result["status"], repr(result["exception"])[:300])
print(len(results), "checks")
"""


@pytest.fixture(scope="module")
def model() -> NCP:
    return tabular()


@pytest.fixture
def x(seed: int) -> np.ndarray:
    return np.asarray(make_blobs(40, 3, centers=3, random_state=seed)[0])


def test_scikit_learns_checks() -> None:
    """All of them, in a process of its own, because the array API is switched on at import."""
    done = subprocess.run(
        [sys.executable, "-c", CHECKS],
        env={**os.environ, "SCIPY_ARRAY_API": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *failed, count = done.stdout.splitlines()
    assert failed == []
    assert int(count.split()[0]) > 40


def test_attributes(model: NCP, x: np.ndarray) -> None:
    fitted = NCPClusterer(model, n_samples=60, random_state=0).fit(x)
    assert fitted.labels_.shape == (40,)
    assert fitted.n_clusters_ == len(np.unique(fitted.labels_))
    assert fitted.confidence_.shape == (40,)
    assert np.all((fitted.confidence_ >= 0) & (fitted.confidence_ <= 1))
    assert fitted.posterior_.n_samples == 60
    similarity = fitted.similarity_matrix_
    np.testing.assert_allclose(similarity, fitted.posterior_.similarity_matrix())
    np.testing.assert_array_equal(fitted.fit_predict(x), fitted.labels_)


def test_probabilities_of_new_points(model: NCP, x: np.ndarray) -> None:
    fitted = NCPClusterer(model, n_samples=60, random_state=0).fit(x)
    p = fitted.predict_proba(x[:7] + 0.1)
    assert p.shape == (7, fitted.n_clusters_ + 1)
    np.testing.assert_allclose(p.sum(1), 1)
    expected = np.where(p.argmax(1) == fitted.n_clusters_, -1, p.argmax(1))
    np.testing.assert_array_equal(fitted.predict(x[:7] + 0.1), expected)
    np.testing.assert_allclose(fitted.predict_proba(x[3:4] + 0.1)[0], p[3], atol=1e-5)


def test_rows_that_fit_no_cluster_are_minus_one(
    model: NCP, x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = NCPClusterer(model, n_samples=20, random_state=0).fit(x)
    chances = np.zeros((2, fitted.n_clusters_ + 1))
    chances[0, 0] = chances[1, -1] = 1.0
    monkeypatch.setattr(NCPClusterer, "predict_proba", lambda *_: chances)
    assert fitted.predict(x[:2]).tolist() == [0, -1]


def test_seeds_reproduce(model: NCP, x: np.ndarray) -> None:
    first, second = (
        NCPClusterer(model, n_samples=30, random_state=4).fit(x).posterior_ for _ in range(2)
    )
    np.testing.assert_array_equal(first.labels, second.labels)
    np.testing.assert_array_equal(first.counts, second.counts)


def test_clone_keeps_parameters_and_pickle_keeps_the_fit(model: NCP, x: np.ndarray) -> None:
    estimator = NCPClusterer(model, n_samples=30, estimate="binder", random_state=1)
    copy = clone(estimator)
    assert copy.get_params()["estimate"] == "binder"
    with pytest.raises(NotFittedError):
        copy.predict(x)
    fitted = estimator.fit(x)
    again = pickle.loads(pickle.dumps(fitted))  # noqa: S301
    np.testing.assert_array_equal(again.predict(x), fitted.predict(x))


def test_pandas_and_pipelines(model: NCP, x: np.ndarray) -> None:
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    pipeline = make_pipeline(
        StandardScaler().set_output(transform="pandas"),
        NCPClusterer(model, n_samples=30, random_state=0),
    )
    labels = pipeline.fit_predict(frame)
    clusterer = pipeline[-1]
    assert labels.shape == (40,)
    assert list(clusterer.feature_names_in_) == ["a", "b", "c"]
    assert clusterer.clustering_.columns == ("a", "b", "c")
    assert pipeline.predict_proba(frame).shape == (40, clusterer.n_clusters_ + 1)


def test_missing_values_are_filled_in_or_left_out(
    model: NCP, x: np.ndarray, tmp_path: Path
) -> None:
    x[3, 1] = np.nan
    save_model(tmp_path / "mine.safetensors", model)
    for tables in (model, tmp_path / "mine.safetensors"):
        fitted = NCPClusterer(tables, n_samples=20, random_state=0).fit(x)
        assert fitted.labels_.min() >= 0
        assert fitted.predict(x).shape == (40,)
    fitted = NCPClusterer(gaussian(3), n_samples=20, random_state=0).fit(x)
    assert np.flatnonzero(fitted.labels_ == -1).tolist() == [3]
    with pytest.raises(ValueError, match="NaN"):
        fitted.predict(x)


def test_dates_are_days(model: NCP) -> None:
    days = pd.date_range("2020-01-01", periods=20)
    frame = pd.DataFrame({"when": days, "size": np.arange(20) % 7 * 0.5})
    fitted = NCPClusterer(model, n_samples=20, random_state=0).fit(frame)
    np.testing.assert_array_equal(np.diff(fitted.clustering_.table[:, 0]), 1.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"estimate": "mean"}, "Expected estimate"),
        ({"reweight": "always"}, "Expected reweight"),
        ({"n_samples": 0}, "n_samples"),
        ({"scale": 2.0, "noise_sd": 1.0}, "scale or noise_sd"),
        ({"model": "nonesuch"}, "Expected the name of a model"),
    ],
)
def test_wrong_parameters(
    model: NCP, x: np.ndarray, wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        NCPClusterer(**{"model": model, "n_samples": 20, **wrong}).fit(x)  # type: ignore[arg-type]


def test_a_model_of_fixed_dimension_says_what_to_do(x: np.ndarray) -> None:
    with pytest.raises(ValueError, match="Expected 2 columns for this model but got 3"):
        NCPClusterer(gaussian(2)).fit(x)


def test_large_tables_are_assigned(model: NCP, seed: int) -> None:
    x = np.asarray(make_blobs(300, 3, centers=3, random_state=seed)[0])
    fitted = NCPClusterer(model, n_samples=40, max_points=60, random_state=0).fit(x)
    assert fitted.posterior_.n_points == 60
    assert fitted.labels_.shape == (300,)
    assert np.isfinite(fitted.confidence_).all()
    assert fitted.clustering_.samples.shape[1] == 300
    assert fitted.similarity_matrix_.shape == (300, 300)


@pytest.mark.filterwarnings("error")
def test_infinite_values_are_refused_without_a_warning() -> None:
    x = np.full((4, 6), -1.5e307)
    x[0, 0] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        NCPClusterer().fit(x)
