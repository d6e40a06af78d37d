"""Summaries against enumeration, direct formulas and scikit-learn."""

import importlib
from typing import Any, Literal

import numpy as np
import pytest
from scipy.cluster.hierarchy import cut_tree, linkage

from ncp.partitions import enumerate_partitions
from ncp.summary.assignment import assignment, confidence
from ncp.summary.ball import credible_ball
from ncp.summary.distance import agreement, distance, expected_loss
from ncp.summary.estimate import PointEstimate, point_estimate
from ncp.summary.rand_index import NEGLIGIBLE
from ncp.summary.rows import merge_rows
from ncp.summary.similarity import similarity
from ncp.summary.statistics import posterior_of, posterior_of_k
from ncp.summary.summary import summarise

Loss = Literal["vi", "binder"]
LOSSES: list[Loss] = ["vi", "binder"]
ALL = enumerate_partitions(8).numpy()


def entropy(labels: np.ndarray) -> float:
    p = np.unique(labels, return_counts=True, axis=0)[1] / len(labels)
    return float(-(p * np.log2(p)).sum())


def direct_distance(a: np.ndarray, c: np.ndarray, loss: Loss) -> float:
    """The distances from their definitions: entropies, and pairs that disagree."""
    if loss == "vi":
        return 2 * entropy(np.stack([a, c], axis=1)) - entropy(a) - entropy(c)
    return float(((a[:, None] == a) != (c[:, None] == c)).mean())


def random_table(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A posterior over partitions of 8 points: a few draws, many, or all, with random weights."""
    n_rows = int(rng.choice([3, 5, 10, 30, 100]))
    rows = ALL[rng.choice(len(ALL), n_rows, replace=False)]
    return rows, rng.dirichlet(np.full(n_rows, rng.choice([0.3, 1.0, 10.0])))


def chain_draws(
    rng: np.random.Generator, n_points: int, n_rows: int, k: int = 8, noise: float = 0.15
) -> tuple[np.ndarray, np.ndarray]:
    """Draws that scatter around one partition, with points moved and clusters merged."""
    truth = rng.integers(k, size=n_points)
    moved = rng.random((n_rows, n_points)) < noise
    rows = np.where(moved, rng.integers(k + 3, size=(n_rows, n_points)), truth)
    rows[(rows == 1) & (rng.random((n_rows, 1)) < 0.5)] = 0
    rows[(rows == 2) & (rng.random((n_rows, 1)) < 0.3)] = 3
    return rows, rng.dirichlet(np.ones(n_rows))


def expected_losses(
    candidates: np.ndarray, rows: np.ndarray, w: np.ndarray, loss: Loss
) -> np.ndarray:
    """Expected losses of many candidates; the distance is tested against its definition below."""
    kernels = importlib.import_module("ncp.summary.kernels")
    n = np.arange(rows.shape[1] + 1.0)
    phi = n**2 / n[-1] ** 2 if loss == "binder" else n * np.log2(np.maximum(n, 1)) / n[-1]
    result: np.ndarray = kernels.expected_distances(candidates, rows, w, np.diff(phi))
    return result


# Tables ----------------------------------------------------------------------------------------


def test_posterior_of_statistics(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, w = random_table(rng)
    k = posterior_of_k(rows, w)
    assert k.probabilities.sum() == pytest.approx(1.0)
    assert k.mean == pytest.approx(w @ (rows.max(axis=1) + 1))
    for value, p in zip(k.values, k.probabilities, strict=True):
        assert p == pytest.approx(w[rows.max(axis=1) + 1 == value].sum())
    largest = posterior_of(lambda c: np.bincount(c).max(), rows, w)
    sizes = np.array([np.bincount(row).max() for row in rows])
    for value, p in zip(largest.values, largest.probabilities, strict=True):
        assert p == pytest.approx(w[sizes == value].sum())


def test_interval_and_moments() -> None:
    k = posterior_of_k([[0, 0, 0], [0, 0, 1], [0, 1, 2]], [1, 8, 1])
    assert k.interval(0.8) == (2.0, 2.0)
    assert k.interval(0.95) == (1.0, 3.0)
    assert k.mode == 2.0
    assert k.sd == pytest.approx(np.sqrt(0.2))


def test_merge_rows_joins_equal_partitions() -> None:
    rows, w = merge_rows([[3, 3, 9], [0, 1, 1], [1, 1, 0], [0, 1, 0]], [1, 2, 3, 0])
    assert rows.tolist() == [[0, 0, 1], [0, 1, 1]]
    np.testing.assert_allclose(w, [2 / 3, 1 / 3])


def test_labels_need_not_be_canonical(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, w = random_table(rng)
    strange = np.array([-5, 10**12, 3, 77, 0, 2, -1, 1])[rows]
    np.testing.assert_array_equal(similarity(strange, w), similarity(rows, w))
    assert point_estimate(strange, w).expected_loss == point_estimate(rows, w).expected_loss


def test_similarity(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, w = chain_draws(rng, 70, 40)
    direct = np.einsum("u,uij->ij", w, rows[:, :, None] == rows[:, None, :])
    matrix = similarity(rows, w)
    np.testing.assert_allclose(matrix, direct, atol=1e-12)
    assert np.all(matrix.diagonal() == 1.0)
    assert matrix.max() <= 1.0
    np.testing.assert_array_equal(matrix, matrix.T)


# Distances -------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_distances_match_their_definitions(seed: int, loss: Loss) -> None:
    rng = np.random.default_rng(seed)
    rows, w = chain_draws(rng, 40, 20)
    other = rng.integers(6, size=40)
    direct = [direct_distance(row, other, loss) for row in rows]
    np.testing.assert_allclose(distance(rows, other, loss), direct, atol=1e-12)
    assert expected_loss(other, rows, w, loss) == pytest.approx(w @ direct)
    assert distance(rows[0], rows[0][::1], loss) == 0.0
    assert np.all(distance(rows, rows[3], loss)[3] == 0.0)


@pytest.mark.parametrize("loss", LOSSES)
def test_distances_are_metrics(seed: int, loss: Loss) -> None:
    rng = np.random.default_rng(seed)
    rows = ALL[rng.choice(len(ALL), 60, replace=False)]
    d = np.stack([distance(rows, row, loss) for row in rows])
    np.testing.assert_allclose(d, d.T, atol=1e-12)
    assert np.all(d[~np.eye(60, dtype=bool)] > 1e-9)
    assert np.all(d[:, None, :] <= d[:, :, None] + d[None, :, :] + 1e-12)


def test_agreement_with_a_reference(seed: int) -> None:
    from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

    rng = np.random.default_rng(seed)
    rows, _ = chain_draws(rng, 40, 5)
    reference = rng.integers(4, size=40)
    scores = agreement(rows, reference)
    assert scores.ari[2] == pytest.approx(adjusted_rand_score(reference, rows[2]))
    assert scores.ami[2] == pytest.approx(adjusted_mutual_info_score(reference, rows[2]))
    assert scores.vi[2] == pytest.approx(direct_distance(rows[2], reference, "vi"))
    assert scores.binder[2] == pytest.approx(direct_distance(rows[2], reference, "binder"))
    assert agreement(rows[2], reference).ari.shape == ()
    # Rand index is one minus the fraction of unordered pairs that disagree
    one = agreement(rows[2], rows[2])
    assert (float(one.ari), float(one.ami), float(one.vi)) == (1.0, 1.0, 0.0)


# Point estimates -------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_exact_optimum_at_eight_points(seed: int, loss: Loss) -> None:
    rng = np.random.default_rng(seed)
    found = 0
    for _ in range(100):
        rows, w = random_table(rng)
        losses = expected_losses(ALL, rows, w, loss)
        estimate = point_estimate(rows, w, loss)
        assert estimate.expected_loss == pytest.approx(
            expected_loss(estimate.labels, rows, w, loss), abs=1e-12
        )
        found += estimate.expected_loss <= losses.min() + 1e-9
    assert found >= 99


@pytest.mark.parametrize("noise", [0.05, 0.3, 0.6])
@pytest.mark.parametrize("loss", LOSSES)
def test_never_worse_than_draws_or_average_linkage(seed: int, loss: Loss, noise: float) -> None:
    rng = np.random.default_rng(seed)
    rows, w = chain_draws(rng, 200, 150, noise=noise)
    ours = point_estimate(rows, w, loss).expected_loss
    draws = expected_losses(rows, rows, w, loss)
    matrix = similarity(rows, w)
    tree = linkage(1 - matrix[np.triu_indices(200, 1)], "average")
    cuts = expected_losses(np.ascontiguousarray(cut_tree(tree).T), rows, w, loss)
    assert ours <= draws.min() + 1e-12
    assert ours <= cuts.min() + 1e-12


@pytest.mark.parametrize("loss", LOSSES)
def test_more_clusters_than_any_draw(loss: Loss) -> None:
    # No pair is together in more than one of seven draws: all points alone is Binder's optimum.
    rounds = [
        [(0 if i in (0, r) else min(i, (2 * r - i - 1) % 7 + 1)) for i in range(8)]
        for r in range(1, 8)
    ]
    rows = np.array(rounds)
    estimate = point_estimate(rows, loss=loss)
    losses = np.mean([distance(ALL, row, loss) for row in rows], axis=0)
    assert estimate.expected_loss == pytest.approx(losses.min())
    if loss == "binder":
        assert estimate.n_clusters == 8 > rows.max(axis=1).max() / 2


def test_room_for_clusters_grows() -> None:
    # 40 points alone, although every draw has three clusters: pairs are together a third of the
    # time, which is less than half
    rng = np.random.default_rng(0)
    rows = rng.integers(3, size=(400, 40))
    far = point_estimate(rows, loss="binder", n_restarts=4)
    assert far.expected_loss <= expected_loss(np.arange(40), rows, loss="binder") + 1e-12
    assert far.n_clusters == 40


@pytest.mark.parametrize("loss", LOSSES)
def test_max_clusters(seed: int, loss: Loss) -> None:
    rows, w = chain_draws(np.random.default_rng(seed), 60, 50)
    bound = [point_estimate(rows, w, loss, max_clusters=k) for k in (1, 2, 4, 60)]
    assert [e.n_clusters <= k for e, k in zip(bound, (1, 2, 4, 60), strict=True)] == [True] * 4
    assert bound[0].n_clusters == 1
    values = [e.expected_loss for e in bound]
    assert values == sorted(values, reverse=True)


def test_map_is_the_heaviest_partition() -> None:
    rows = [[0, 0, 1], [0, 1, 2], [1, 1, 0], [0, 0, 0]]
    estimate = point_estimate(rows, [0.3, 0.35, 0.2, 0.15], "map")
    assert estimate.labels.tolist() == [0, 0, 1]
    assert estimate.expected_loss == pytest.approx(0.5)
    assert point_estimate(rows, loss="map", max_clusters=1).n_clusters == 1


def test_pear_maximises_the_expected_rand_index(seed: int) -> None:
    """The mean of scikit-learn's index over the draws; the best of the candidates wins."""
    rng = np.random.default_rng(seed)
    rows, w = chain_draws(rng, 12, 30, noise=0.6)
    estimate = point_estimate(rows, w, "pear")

    def pear(row: np.ndarray) -> float:
        return float(agreement(rows, row).ari @ w / w.sum())

    assert 1 - estimate.expected_loss == pytest.approx(pear(estimate.labels))
    assert all(pear(row) <= 1 - estimate.expected_loss + NEGLIGIBLE for row in rows)
    assert point_estimate(rows, w, "pear", max_clusters=2).n_clusters <= 2


def test_pear_says_one_cluster_if_that_is_more_probable_than_not() -> None:
    halves, quarters, one = np.arange(20) // 10, np.arange(20) // 5, np.zeros(20, int)
    for share, n_clusters in ((0.55, 1), (0.45, 2)):  # at 0.45 one cluster has the highest index
        w = [share, 0.6 * (1 - share), 0.4 * (1 - share)]
        estimate = point_estimate([one, halves, quarters], w, "pear")
        assert estimate.n_clusters == n_clusters
        index = agreement([one, halves, quarters], estimate.labels).ari @ w
        assert estimate.expected_loss == pytest.approx(1 - index)
    assert point_estimate([halves, quarters], loss="pear", max_clusters=1).n_clusters == 1


def test_pear_gives_up_fragments_it_is_unsure_of() -> None:
    """One point of 200, alone in some draws: what it adds to the index decides nothing."""
    halves = np.arange(200) // 100
    apart = np.append(halves[:-1], 2)
    for alone, n_clusters in ((0.6, 2), (0.9, 3)):
        estimate = point_estimate([halves, apart], [1 - alone, alone], "pear")
        assert estimate.n_clusters == n_clusters
    third = np.append(halves[:-40], np.full(40, 2))  # not a fragment, and the draws are for it
    assert point_estimate([halves, third], [0.4, 0.6], "pear").n_clusters == 3


def test_search_is_reproducible(seed: int) -> None:
    rows, w = chain_draws(np.random.default_rng(seed), 60, 50, noise=0.5)
    first, second = (point_estimate(rows, w, seed=seed) for _ in range(2))
    np.testing.assert_array_equal(first.labels, second.labels)
    assert first.hits == second.hits


def random_state() -> Any:
    state: Any = np.random.get_state()  # noqa: NPY002
    return state[1].copy()


def test_search_leaves_the_global_random_state_alone() -> None:
    rows, w = chain_draws(np.random.default_rng(0), 20, 10)
    before = random_state()
    point_estimate(rows, w)
    np.testing.assert_array_equal(before, random_state())


@pytest.mark.parametrize("loss", [*LOSSES, "pear", "map"])
def test_degenerate_posteriors(loss: Any) -> None:
    one = point_estimate([[0]], loss=loss)
    assert one.labels.tolist() == [0]
    sure = point_estimate([[0, 1, 0, 2]], [3.0], loss)
    assert sure.labels.tolist() == [0, 1, 0, 2]
    assert sure.expected_loss == pytest.approx(0.0, abs=1e-12)
    summary = summarise([[0, 1, 0, 2]], loss=loss)
    assert summary.ball.radius == 0.0
    assert np.all(summary.confidence == 1.0)


# Credible ball ---------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 1.0])
def test_ball_is_the_smallest_with_the_nominal_mass(seed: int, loss: Loss, level: float) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(10):
        w = rng.dirichlet(np.full(len(ALL), 0.01))
        rows, w = ALL[w > 1e-12], w[w > 1e-12]
        centre = point_estimate(rows, w, loss, n_restarts=2).labels
        ball = credible_ball(centre, rows, w, loss, level)
        d = distance(rows, centre, loss)
        p = w / w.sum()
        assert ball.mass >= level - 1e-12
        assert ball.mass == pytest.approx(p[d <= ball.radius + 1e-10].sum())
        assert p[d < ball.radius - 1e-10].sum() < level  # any smaller ball holds less
        np.testing.assert_array_equal(ball.contains(rows), d <= ball.radius + 1e-10)
        check_bounds(ball, rows[d <= ball.radius + 1e-10], d[d <= ball.radius + 1e-10])


def check_bounds(ball: Any, rows: np.ndarray, d: np.ndarray) -> None:
    """The bounds by their definition, over the members of the ball."""
    k = rows.max(axis=1)
    for bound, among in (
        (ball.upper, k == k.min()),
        (ball.lower, k == k.max()),
        (ball.horizontal, k >= 0),
    ):
        chosen = among & (d >= d[among].max() - 1e-10)
        assert {tuple(row) for row in bound} == {tuple(row) for row in rows[chosen]}


def test_ball_of_a_posterior_by_hand() -> None:
    rows = [[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 1, 2], [0, 1, 2, 3]]
    ball = credible_ball(rows[0], rows, [0.5, 0.2, 0.2, 0.1], "binder", 0.9)
    assert ball.mass == pytest.approx(1.0)
    assert ball.radius == pytest.approx(0.5)  # 8 of 16 ordered pairs: one cluster
    assert ball.upper.tolist() == [rows[1]]
    small = credible_ball(rows[0], rows, [0.5, 0.2, 0.2, 0.1], "binder", 0.75)
    assert small.mass == pytest.approx(0.8)
    assert small.radius == pytest.approx(0.25)  # 4 of 16 ordered pairs: all points alone
    assert small.upper.tolist() == [rows[0]]
    assert small.lower.tolist() == small.horizontal.tolist() == [rows[3]]
    wide = credible_ball(rows[0], rows, [0.5, 0.25, 0.15, 0.1], "binder", 1.0)
    assert wide.lower.tolist() == [rows[3]]
    assert wide.horizontal.tolist() == [rows[1]]


# Confidence, summary, mistakes -----------------------------------------------------------------


def test_assignment_and_confidence(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, w = chain_draws(rng, 30, 25)
    estimate = point_estimate(rows, w).labels
    estimate[0] = estimate.max() + 1  # a point on its own
    table = assignment(estimate, rows, w)
    matrix = similarity(rows, w)
    labels = np.unique(estimate, return_inverse=True)[1]
    canonical = merge_rows(labels[None])[0][0]
    for i in range(30):
        for k in range(canonical.max() + 1):
            others = (canonical == k) & (np.arange(30) != i)
            if others.any():
                assert table[i, k] == pytest.approx(matrix[i, others].mean())
    alone = [w[u] for u in range(25) if (rows[u] == rows[u, 0]).sum() == 1]
    assert table[0, 0] == pytest.approx(sum(alone))


def test_confidence_is_the_overlap_to_expect(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, w = chain_draws(rng, 30, 25)
    estimate = rng.integers(0, 4, 30)
    expected = np.zeros(30)
    for row, weight in zip(rows, w, strict=True):
        for i in range(30):
            own, other = estimate == estimate[i], row == row[i]
            expected[i] += weight * (own & other).sum() / (own | other).sum()
    np.testing.assert_allclose(confidence(estimate, rows, w), expected)


def test_confidence_falls_for_merges_and_for_splits() -> None:
    estimate = [0, 0, 0, 1, 1, 1]
    assert confidence(estimate, [estimate]).tolist() == [1.0] * 6
    merged = confidence(estimate, [estimate, [0] * 6], [0.74, 0.26])
    np.testing.assert_allclose(merged, 0.74 + 0.26 / 2)
    split = confidence(estimate, [estimate, [0, 1, 2, 3, 3, 3]], [0.74, 0.26])
    np.testing.assert_allclose(split, [0.74 + 0.26 / 3] * 3 + [1.0] * 3)


def test_summary_tells_the_story(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, w = chain_draws(rng, 50, 30, k=3, noise=0.05)
    summary = summarise(rows, w, reference=np.zeros(50, dtype=int))
    text = repr(summary)
    for word in ("50 points", "clusters:", "PointEstimate", "CredibleBall", "ARI", "least"):
        assert word in text
    assert isinstance(summary.estimate, PointEstimate)
    assert summary.ball.mass >= 0.95
    assert summary.n_clusters.mean == pytest.approx(posterior_of_k(rows, w).mean)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: point_estimate([0, 1]), "rows, points"),
        (lambda: point_estimate([[0.5, 1.0]]), "integer labels"),
        (lambda: point_estimate([[0, 1]], [1.0, 2.0]), "one for each row"),
        (lambda: point_estimate([[0, 1]], [-1.0]), "not negative"),
        (lambda: point_estimate([[0, 1]], max_clusters=0), "max_clusters >= 1"),
        (lambda: point_estimate([[0, 1]], n_restarts=-1), "n_restarts >= 0"),
        (lambda: point_estimate([[0, 1]], loss="map", max_clusters=1), "at most 1 clusters"),
        (lambda: credible_ball([0, 1], [[0, 1]], level=0.0), "level"),
        (lambda: credible_ball([0, 1, 1], [[0, 1]]), "2 labels"),
        (lambda: posterior_of([1.0, 2.0], [[0, 1]]), "one value"),
    ],
)
def test_mistakes_are_explained(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
