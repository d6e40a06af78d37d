"""Answers that were wrong without a word: each of these was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from ncp.clustering.cluster import cluster
from ncp.clustering.estimator import NCPClusterer
from ncp.clustering.result import Clustering
from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.mixture import Mixture
from ncp.generative.priors import CRP
from ncp.inference.plausible import within_reach
from ncp.model import load
from tests.small_models import gaussian, tabular

HOW: dict[str, Any] = {"n_samples": 20, "orders": 1, "seed": 0}
X = np.random.default_rng(0).normal(size=(12, 2))


# -- masks -----------------------------------------------------------------------------------------


def masked() -> np.ma.MaskedArray:
    x = np.ma.masked_array(X.copy(), mask=np.zeros(X.shape, dtype=bool))
    x.data[3, 0] = -9999.0
    x[3, 0] = np.ma.masked
    return x


@pytest.mark.parametrize("kind", ["floats", "objects", "list of rows"])
def test_masked_cells_are_missing(kind: str) -> None:
    x = masked()
    given = {"floats": x, "objects": x.astype(object), "list of rows": list(x)}[kind]
    found = cluster(given, gaussian(), **HOW)
    assert found.labels[3] == -1
    assert (found.labels[np.arange(12) != 3] >= 0).all()


def test_masked_cells_are_missing_to_the_estimator() -> None:
    found = NCPClusterer(gaussian(), n_samples=20, orders=1, random_state=0).fit(masked())
    assert found.labels_[3] == -1


def test_masked_numbers_are_refused_by_a_network() -> None:
    for given in (masked(), list(masked())):
        with pytest.raises(ValueError, match="some are masked"):
            gaussian().sample(given, 5)


# -- names that look like numbers ------------------------------------------------------------------


def test_whole_numbers_that_floats_would_round_are_refused() -> None:
    ids = np.arange(12) + 2**60
    array = np.stack([ids, ids], axis=1)
    with pytest.raises(ValueError, match=r"whole numbers up to 2\^53"):
        cluster(array, tabular(), **HOW)
    with pytest.raises(ValueError, match=r"whole numbers up to 2\^53"):
        NCPClusterer(tabular(), n_samples=5).fit(array)


@pytest.mark.parametrize("kind", ["int64", "Int64"])
def test_columns_of_such_numbers_are_left_out_of_a_frame(kind: Any) -> None:
    ids = pandas.Series(np.arange(12) + 2**60).astype(kind)
    frame = pandas.DataFrame({"number": ids, "a": X[:, 0]})
    found = cluster(frame, tabular(), **HOW)
    assert found.columns == ("a",)
    assert any("'number' has whole numbers beyond 2^53" in note for note in found.notes)


def test_whole_numbers_that_floats_hold_are_numbers() -> None:
    assert cluster(np.array([[2**53, 0], [1, 5], [7, 2]]), tabular(), **HOW).n_points == 3


# -- columns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["frame", "array", "loaded"])
def test_columns_named_like_our_defaults_are_found_by_name(kind: str, tmp_path: Path) -> None:
    frame = pandas.DataFrame(X * [1, 9], columns=["column 1", "column 2"])
    found = cluster(frame.to_numpy() if kind == "array" else frame, gaussian(), **HOW)
    if kind == "loaded":
        found.save(tmp_path / "found.npz")
        found = Clustering.load(tmp_path / "found.npz", gaussian())
    swapped = found.predict_proba(frame[["column 2", "column 1"]])
    np.testing.assert_array_equal(swapped, found.predict_proba(frame))


# -- the verdict -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_weights_of_data_from_elsewhere_are_not_trusted(shift: float) -> None:
    model = load("gaussian-2d")
    assert isinstance(model.mixture, Mixture)
    x = model.mixture.sample(1, 20, generator=torch.Generator().manual_seed(0)).x[0].double()
    report = model.sample(x + shift, 200, seed=0).reweight(model.mixture).report
    assert report.verdict == ("do not trust: outside the trained range" if shift else "good")


def test_draws_of_a_mixture_are_within_its_reach() -> None:
    mixture = Mixture(CRP(0.7), GaussianKnownVariance(dim=2))
    drawn = mixture.sample(100, 30, generator=torch.Generator().manual_seed(1)).x.numpy()
    assert sum(not within_reach(x, mixture) for x in drawn) <= 3


def test_samples_that_are_left_alone_have_a_verdict() -> None:
    """With reweight=False the samples are the network's own, but what they are worth is said."""
    bad = cluster(X * 5, gaussian(), reweight=False, **HOW)
    assert any("weights were not used; they are not to be trusted" in one for one in bad.warnings)
    x = [[0.0, 0.0], [0.2, 0.1], [20.0, 20.0], [20.1, 20.3], [-0.2, 0.1]]
    good = cluster(x, "gaussian-2d", reweight=False, seed=0)
    assert good.posterior.log_weights is None
    assert good.warnings == ()
    assert any("Importance weights were not used; they are" in one for one in good.notes)


# -- stand-ins for missing values ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([-999.0, -999.0, 1.5, 2.0, 2.5, 3.0], ["In x 2 cells are -999, far from all others"]),
        ([99.0, 99.0, 20.0, 30.0, 40.0, 50.0], ["In x 2 cells are 99, far from all others"]),
        ([-999.0, 1.0, 1.5, 2.0, 2.5, 3.0], []),  # once: an outlier
        ([99.0, 99.0, 20.0, 40.0, 60.0, 80.0], []),  # not far
        ([-998.0, -998.0, 1.5, 2.0, 2.5, 3.0], []),
        ([-999.0, -999.0, 1.5, 1.5, 1.5, 1.5], []),  # two values: nothing to compare with
        ([-999.0] * 6, []),
        ([np.nan] * 6, []),
    ],
)
def test_a_mark_for_missing_values_is_said(cells: list[float], said: list[str]) -> None:
    frame = pandas.DataFrame({"x": cells, "y": [0.1, 0.3, 0.2, 5.1, 5.2, 5.3]})
    found = cluster(frame, seed=0, n_samples=20)
    warned = [one for one in found.warnings if "far from all others" in one]
    assert len(warned) == len(said)
    assert all(one.startswith(words) for one, words in zip(warned, said, strict=True))


# -- forks -----------------------------------------------------------------------------------------

FORK = """
import multiprocessing, signal
import numpy as np, torch
torch.set_num_threads(2)
from tests.small_models import gaussian
model, x = gaussian(), np.ones((20, 2))
torch.randn(2000, 2000).exp()  # starts torch's threads
before = model.sample(x, 20, seed=0)

def work(_):
    torch.randn(2000, 2000).exp()  # waited for ever for threads that a fork does not have
    return model.sample(x, 20, seed=0).labels.tolist() == before.labels.tolist()

signal.alarm(100)
with multiprocessing.get_context("fork").Pool(1) as pool:
    assert pool.map(work, range(2)) == [True, True]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_process_does_not_wait_for_threads_that_it_has_not() -> None:
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    environment |= {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore", "NCP_NUM_THREADS": "2"}
    run = subprocess.run([sys.executable, "-c", FORK], env=environment, capture_output=True)
    assert run.returncode == 0, run.stderr.decode()[-2000:]


# -- knowledge that is none ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [{"together": 3}, {"apart": "0,1"}, {"known": False}, {"together": [[[0], 1]]}],
    ids=repr,
)
def test_knowledge_that_is_no_list_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        cluster(X, gaussian(), **HOW, **said)


# -- cells of arrays -------------------------------------------------------------------------------


def test_integers_without_end_are_not_rounded() -> None:
    with pytest.raises(ValueError, match="2\\^53"):
        cluster([[2**70 + i, i % 3] for i in range(10)], gaussian(), **HOW)


def test_gaps_of_pandas_in_an_array_are_gaps() -> None:
    x = X.astype(object)
    x[3, 0] = pandas.NA
    found = cluster(x, tabular(), **HOW)
    assert np.isnan(found.data.values[3, 0])


# -- new rows --------------------------------------------------------------------------------------


def test_new_rows_far_from_all_others_fit_no_cluster() -> None:
    x = np.concatenate([X, X + 8.0])
    found = cluster(x, tabular(), **HOW)
    far = np.array([[30.0, -30.0], [1e9, 0.0], [-1e4, 1e4]])
    assert found.predict(far).tolist() == [-1, -1, -1]
    assert (found.predict_proba(far)[:, -1] == 1.0).all()
    assert (found.predict_proba(x)[:, -1] < 1.0).all()
    alike = cluster(np.ones((12, 2)), tabular(), **HOW)
    assert (alike.predict_proba(np.ones((2, 2)))[:, -1] < 1.0).all()
