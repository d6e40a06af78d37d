"""Tables with more rows than a network looks at at once."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

from ncp.clustering import large
from ncp.clustering.cluster import cluster
from ncp.clustering.large import (
    Whole,
    carry_over,
    complete,
    islands,
    representatives,
    shifted,
)
from ncp.clustering.prepare import Prepared, Settings, as_columns, look_again, prepare
from ncp.model import NCP, load
from ncp.posterior import Partitions, pool


@pytest.fixture(scope="module")
def model() -> NCP:
    return load("tabular")


def blobs(sizes: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(sizes)), sizes)
    centres = 30.0 * np.array([[-1, 0], [1, 0], [0, 1.7], [0, -1.7]])[: len(sizes)]
    order = rng.permutation(len(y))
    return (centres[y] + rng.normal(size=(len(y), 2)))[order], y[order]


def looks_at(model: NCP, x: np.ndarray, how: Settings) -> list[Prepared]:
    first = prepare(model, x, how)
    return [first, *(look_again(model, first, i, how, None) for i in range(1, first.n_looks))]


def completed(model: NCP, x: np.ndarray, partitions: list[np.ndarray], known: bool = True) -> Whole:
    """Parts whose samples are these partitions of all rows, equally often."""
    how = Settings(n_samples=40, max_points=60, seed=3).for_model(model)
    looks = [
        (look, Partitions.of(np.repeat([p[look.index] for p in partitions], 10, axis=0)))
        for look in looks_at(model, x, how)
    ]
    nothing = np.full(len(x), -1) if known else None  # known: nothing is looked at again
    return complete(model, as_columns(x, how), np.ones(len(x), dtype=bool), looks, how, nothing)


def same(labels: np.ndarray) -> np.ndarray:
    return np.asarray(labels[..., :, None] == labels[..., None, :])


def test_rows_that_were_left_out_follow_the_samples(model: NCP) -> None:
    """Their uncertainty is that of the rows they are like."""
    x, y = blobs([150, 100])
    whole = completed(model, x, [y, y, y, np.zeros_like(y)])
    assert whole.samples.shape == (40, 250)
    together = same(whole.samples).mean(0)
    error = np.abs(together - np.where(same(y), 1.0, 0.25))
    # but for a few rows that the network is unsure of: each is in 0.8% of the pairs
    assert np.mean(error < 0.051) > 0.96
    assert whole.stability > 0.9


def test_parts_that_disagree_are_unstable(model: NCP) -> None:
    x, y = blobs([150, 100])
    how = Settings(n_samples=40, max_points=60, seed=3).for_model(model)
    guesses = [y, 1 - y, np.zeros_like(y), (x[:, 1] > 0).astype(np.int64)]
    looks = [
        (look, Partitions.of(np.repeat(guess[look.index][None], 10, axis=0)))
        for look, guess in zip(looks_at(model, x, how), guesses, strict=True)
    ]
    whole = complete(
        model, as_columns(x, how), np.ones(250, dtype=bool), looks, how, np.full(250, -1)
    )
    assert whole.stability < 0.5


@pytest.mark.parametrize("n_samples", [1, 2, 5])
def test_few_samples_are_enough(model: NCP, n_samples: int) -> None:
    x, y = blobs([300, 200])
    found = cluster(x, model, max_points=150, n_samples=n_samples, seed=0)
    assert adjusted_rand_score(y, found.labels) > 0.9


def test_every_row_is_in_some_part_or_follows_one(model: NCP) -> None:
    x, _ = blobs([200, 100])
    how = Settings(max_points=60, seed=3).for_model(model)
    looks = looks_at(model, x, how)
    assert [len(look.index) for look in looks] == [60] * 4
    assert len({tuple(look.index) for look in looks}) == 4
    again = looks_at(model, x, how)
    for one, two in zip(looks, again, strict=True):
        np.testing.assert_array_equal(one.index, two.index)


def test_missing_values_are_filled_in_anew(model: NCP) -> None:
    x, _ = blobs([20, 20])
    x[::3, 1] = np.nan
    looks = looks_at(model, x, Settings(seed=0).for_model(model))
    assert len(looks) == 4
    assert len({look.features.tobytes() for look in looks}) == 4
    found = cluster(x, model, n_samples=40, orders=4, seed=0)
    assert found.samples.shape == (40, 40)
    assert found.posterior.n_samples == 40


# -- sharper parts


def test_shifted_points_are_means_of_their_nearest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dense, points = rng.normal(size=(500, 3)), rng.normal(size=(4, 3))
    for point, found in zip(points, shifted(points, dense, 20), strict=True):
        for _ in range(2):
            near = np.argsort(((dense - point) ** 2).sum(1))[:20]
            point = dense[near].mean(0)
        np.testing.assert_allclose(found, point)


def overlapping(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Eight round clusters in a square of ten standard deviations."""
    rng = np.random.default_rng(3)
    centres = rng.uniform(0, 10, (8, 2))
    y = rng.integers(8, size=n_rows)
    return centres[y] + rng.normal(size=(n_rows, 2)), y


def test_overlapping_clusters_are_told_apart_by_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = overlapping(2000)
    how: dict[str, Any] = {"max_points": 300, "n_samples": 100, "orders": 8, "seed": 0}
    sharp = cluster(x, **how)
    assert any("where rows are dense" in note for note in sharp.notes)
    monkeypatch.setattr(large, "CLEAR", 0.0)
    plain = cluster(x, **how)
    assert not any("where rows are dense" in note for note in plain.notes)
    assert adjusted_rand_score(y, sharp.labels) > adjusted_rand_score(y, plain.labels)
    assert sharp.confidence.mean() < 0.9  # rows between clusters stay in doubt


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # clusters found, and how many of 20 samples are alike: nearest rows, and what is kept
        ([(5, 20)], ([100], 0)),  # half of a cluster's 400 rows would be 200, which is too many
        ([(40, 16), (80, 20), (80, 20)], ([100, 25, 12], 2)),  # 25 of the 50 rows of a cluster
        ([(40, 16), (40, 4)], ([100, 25], 0)),  # the second are no better
        ([(40, 2), (40, 2)], ([100, 25], None)),
    ],
)
def test_rows_move_among_as_many_as_a_cluster_has(
    model: NCP,
    monkeypatch: pytest.MonkeyPatch,
    found: list[tuple[int, int]],
    expected: tuple[list[int], int | None],
) -> None:
    x, _ = blobs([2000, 2000])
    rng = np.random.default_rng(0)
    how = Settings(n_samples=20, max_points=200, seed=0).for_model(model)
    work = large._Completion(model, as_columns(x, how), np.arange(4000), how, rng)
    looks = looks_at(model, x, how)

    def parts(k: int, n_alike: int) -> list[large.Part]:
        made = []
        for look in looks:
            samples = np.stack([rng.permutation(len(look.index)) % k for _ in range(20)])
            samples[:n_alike] = samples[0]
            made.append(large.Part(look.index, look.preparation, look.features, samples))
        return made

    drawn = [parts(*one) for one in found]
    asked: list[int] = []

    def draw(parts: Any, halves: Any, nearest: int) -> list[large.Part]:
        asked.append(nearest)
        return drawn[len(asked) - 1]

    monkeypatch.setattr(work.__class__, "_drawn_again", lambda _, *given: draw(*given))
    kept = work.sharpened(parts(2, 2))
    assert asked == expected[0]
    assert kept is (None if expected[1] is None else drawn[expected[1]])


def test_one_even_cloud_is_not_made_clusters_of(seed: int) -> None:
    x = np.random.default_rng(seed).random((1500, 2))
    found = cluster(x, max_points=300, n_samples=100, orders=8, seed=0)
    assert not any("where rows are dense" in note for note in found.notes)


def test_what_has_a_density_or_categories_is_not_sharpened(
    model: NCP, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("was sharpened")

    monkeypatch.setattr(large, "shifted", refuse)
    x, _ = overlapping(700)
    how: dict[str, Any] = {"max_points": 100, "n_samples": 40, "seed": 0}
    cluster(x, "gaussian-2d", **how)
    frame = pd.DataFrame(x, columns=["a", "b"]).assign(kind=np.where(x[:, 0] > 3, "u", "v"))
    cluster(frame, model, **how)
    with pytest.raises(AssertionError, match="sharpened"):
        cluster(x, model, **how)


def test_a_small_group_is_found(model: NCP) -> None:
    """One in a hundred rows, of which a part has ten."""
    x, y = blobs([1500, 1470, 30])
    found = cluster(x, model, n_samples=100, orders=4, seed=0)
    assert found.sizes.tolist() == [1500, 1470, 30]
    assert len(set(found.labels[y == 2].tolist())) == 1
    assert found.stability > 0.9
    assert found.samples.shape == (102, 3000)  # as many of each part


def test_strays_become_clusters_of_their_own(model: NCP) -> None:
    x, y = blobs([300, 300, 200])
    how = Settings(n_samples=20, max_points=100, seed=0).for_model(model)
    work = large._Completion(
        model, as_columns(x, how), np.arange(800), how, np.random.default_rng(0)
    )
    samples = np.tile(np.minimum(y, 1).astype(np.int16), (20, 1))
    work.regroup(samples, np.flatnonzero(y == 2))
    for sample in samples:
        assert not np.isin(sample[y == 2], sample[y != 2]).any()
        np.testing.assert_array_equal(sample[y < 2], y[y < 2])


def test_a_second_look_divides_what_is_two(model: NCP) -> None:
    x, y = blobs([300, 300])
    how = Settings(n_samples=20, max_points=100, seed=0).for_model(model)
    work = large._Completion(
        model, as_columns(x, how), np.arange(600), how, np.random.default_rng(0)
    )
    samples = np.zeros((20, 600), np.int16)
    assert work.look_again(samples, [np.arange(20)]) >= 1
    assert np.mean([(same(sample) == same(y)).mean() > 0.95 for sample in samples]) > 0.5


@pytest.mark.parametrize(
    ("n_rows", "n_seen", "worth"), [(300, 150, True), (300, 151, False), (2000, 251, False)]
)
def test_a_look_that_sees_hardly_more_is_not_taken(n_rows: int, n_seen: int, worth: bool) -> None:
    """A look without the rest of the table knows less, unless it has far more rows."""
    seen_before = [np.arange(10), np.arange(n_seen)]
    assert large._worth_a_look(np.arange(n_rows), seen_before) is worth
    assert not large._worth_a_look(np.arange(large.LEAST_ROWS - 1), [np.arange(1)])


def test_divided_clusters_keep_their_largest_piece() -> None:
    samples = np.array([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]], np.int16)
    rows = np.array([0, 1, 2])
    large._divide(samples, rows, np.array([[1, 1, 0], [0, 1, 2]], np.int16))
    assert samples[0].tolist()[:2] == [0, 0]
    assert samples[0, 2] not in (0, 1)
    assert samples[1, 0] == samples[1, 3] == samples[1, 4] == 0
    assert len(set(samples[1].tolist())) == 3


def test_representatives_have_small_clusters() -> None:
    sample = np.zeros((3, 5000), np.int16)
    sample[:, 4980:] = 1
    rows = np.arange(100, 5000)
    index = representatives(sample, rows, 300, np.random.default_rng(0))
    assert len(index) == len(set(index.tolist())) == 300
    assert index.min() >= 100
    assert (index >= 4980).sum() >= large.TOPPED_UP
    assert (index >= 4980).sum() < 15


def test_carry_over_is_its_formula() -> None:
    rng = np.random.default_rng(0)
    samples = rng.integers(0, 3, size=(6, 30)).astype(np.int16)
    index = np.arange(0, 30, 2)
    estimate = rng.integers(0, 2, size=15)
    found = carry_over(samples, index, estimate)
    for i in range(30):
        votes = np.zeros(2)
        for c in samples:
            with_i = c[index] == c[i]
            for k in range(2):
                votes[k] += (with_i & (estimate == k)).sum() / max(1, with_i.sum())
        assert i in index or found[i] == votes.argmax()
    np.testing.assert_array_equal(found[index], estimate)


def test_pooled_samples() -> None:
    one = Partitions(np.array([[0, 0], [0, 1]]), np.array([1, 2]), np.log([0.5, 0.5]))
    both = pool([one, one])
    assert both.n_samples == 6
    assert both.log_weights is None
    weighted = Partitions(one.labels, one.counts, one.log_q, np.zeros(2))
    with pytest.raises(ValueError, match="or none with weights"):
        pool([one, weighted])


def test_known_rows_that_no_part_has_go_with_their_label() -> None:
    """Row 4 is known to be as row 0, but mostly together with rows 1 and 2."""
    samples = np.array([[0, 0, 0, 1, 0]], np.int16)
    index, estimate = np.arange(4), np.array([0, 1, 1, 2])
    assert carry_over(samples, index, estimate).tolist() == [0, 1, 1, 2, 1]
    known = np.array([7, -1, -1, 3, 7])
    assert carry_over(samples, index, estimate, known).tolist() == [0, 1, 1, 2, 0]


@pytest.mark.parametrize("n_columns", [2, 6])
@pytest.mark.parametrize("far", [30.0, 1000.0])
def test_a_far_group_is_a_cluster_of_its_own(far: float, n_columns: int) -> None:
    """Of 1,000 rows that a part has, it has eight."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5000, n_columns))
    x[:40] = far + 0.5 * x[:40]
    found = cluster(x, seed=0)
    assert len(set(found.labels[:40])) == 1
    assert not (found.labels[40:] == found.labels[0]).any()
    assert not (found.samples[:, 40:] == found.samples[:, :1]).any()


CLOUDS = {
    "normal": lambda rng, n: rng.normal(size=(n, 3)),
    "heavy": lambda rng, n: rng.standard_t(2, size=(n, 2)),
    "log-normal": lambda rng, n: np.exp(rng.normal(size=(n, 1))),
    "rounded": lambda rng, n: rng.poisson(3.0, size=(n, 2)).astype(float),
    "square": lambda rng, n: rng.random(size=(n, 2)),
    "capped": lambda rng, n: rng.standard_cauchy(size=(n, 1)),
}


def test_two_far_groups_are_two_clusters() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5000, 2)) + 12 * rng.integers(0, 2, size=(5000, 2))
    x[:80] = np.repeat([[200, 0], [0, 200]], 40, axis=0) + rng.normal(size=(80, 2))
    found = cluster(x, seed=0)
    assert found.n_clusters == 6
    assert [np.unique(found.labels[rows]).size for rows in (slice(40), slice(40, 80))] == [1, 1]
    values, probabilities = found.summary.n_clusters
    assert values[probabilities.argmax()] == 6


@pytest.mark.parametrize("kind", CLOUDS)
@pytest.mark.parametrize("n", [1500, 20_000])
def test_one_cloud_has_no_islands(model: NCP, kind: str, n: int, seed: int) -> None:
    x = CLOUDS[kind](np.random.default_rng(seed), n)
    look = prepare(model, x, Settings(seed=0).for_model(model))
    some = x[: large.MAPPED]
    reach = large.reach_of(large.positions(model, look.features))
    mapped = large.positions(model, look.preparation.apply(some))
    assert (islands(mapped, large._standardised(some), reach) < 0).all()


def test_islands_are_small_and_farther_than_wide() -> None:
    rng = np.random.default_rng(0)
    body, island = rng.random((1000, 2)), rng.random((10, 2))

    def found(far: np.ndarray) -> np.ndarray:
        points = np.concatenate([body, far])
        return islands(points, points, 0.5)[len(body) :]

    assert (found(island + 6) == 0).all()
    assert (found(island[:6] + 6) < 0).all()  # too few
    assert (found(rng.random((100, 2)) + 6) < 0).all()  # too many
    assert (found(island + 2) < 0).all()  # too near
    points = np.concatenate([body, island + 6])
    spread = np.concatenate([body, 6 + 10.0 ** np.arange(10)[:, None] * [1, 1]])
    assert (islands(points, spread, 0.5) < 0).all()  # tails that were capped


def test_said_numbers_of_clusters_hold_in_all_that_is_told() -> None:
    x, _ = blobs([700, 700, 700])
    found = cluster(x, seed=0, n_clusters=5)
    assert found.n_clusters == 5
    assert found.summary.n_clusters.values.tolist() == [5]
    assert (found.posterior.n_clusters == 5).all()


def test_more_labels_than_a_part_has_room_for() -> None:
    """Each stays together, and a warning says what is not sure."""
    x, _ = blobs([100, 100, 100])
    known = np.full(300, -1)
    known[:120] = np.repeat(np.arange(60), 2)
    found = cluster(x, seed=0, known=known, max_points=100, at_any_price=True)
    assert (found.samples[:, 0:120:2] == found.samples[:, 1:120:2]).all()
    assert any("60 known labels" in warning for warning in found.warnings)
    with pytest.raises(ValueError, match="max_points"):
        cluster(x, seed=0, at_least=150, max_points=100)
