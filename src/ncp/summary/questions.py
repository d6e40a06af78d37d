r"""What to ask next: questions whose answers leave the least uncertainty, computed on draws.

How uncertain draws c_u with weights w_u are is their quadratic entropy (Rao 1982), the distance to
expect between two of them,

    Q = sum_uv w_u w_v d(c_u, c_v),

here with the variation of information for d. (Shannon's entropy would not do: all draws of many
points are different, and every even question would seem equally good.) The answer to a question is
a function of the partition, so it sorts the draws into cells with W_a = sum of w in cell a, and

    Q given the answer = sum_a W_a sum_uv in a (w_u / W_a) (w_v / W_a) d(c_u, c_v)

is what is left of it. Questions are chosen greedily: each is the best together with those before
it, as if all were asked at once, so the second does not ask what the first one tells. Cells halve
with every question and end at single draws, which have nothing left to ask of: a few questions at
a time, with new draws given their answers, are better than many. (Binder's distance and one minus
the adjusted Rand index for d asked no better: ten answers gave an ARI of 0.73 and 0.70, the
variation of information 0.74, in the mean of eighteen tables, one seed: they hardly differ.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import ArrayLike

from ncp.summary.assignment import confidence
from ncp.summary.distance import distance
from ncp.summary.rows import Labels, merge_rows

__all__ = ["Question", "best_pairs", "best_rows"]

MOST_DRAWS = 256  # that questions are judged by; five answers leave eight of them in a cell
MOST_POINTS = 100  # points that pairs are made of
NOTHING = 1e-9  # a gain that is rounding


class Question(NamedTuple):
    """Something to ask.

    Attributes:
        points: Two points (do they share a cluster?) or one (which cluster is it in?), by position,
            or by what their rows are called.
        probability: That the two share a cluster; of the most probable cluster, for one.
        gain: What share of the uncertainty its answer is expected to remove, given the answers to
            the questions before it.
    """

    points: tuple[Any, ...]
    probability: float
    gain: float


def best_pairs(
    labels: ArrayLike, weights: ArrayLike | None, estimate: ArrayLike, n_questions: int
) -> list[Question]:
    """Pairs of points to ask "do these share a cluster?" of, the best first.

    Args:
        labels: rows of labels, of shape (U, N).
        weights: of shape (U,), in any scale; equal when left out.
        estimate: the point estimate, of shape (N,).
        n_questions: at most so many; fewer if nothing is left to ask.

    Example:
        >>> draws = [[0, 0, 1, 1], [0, 0, 1, 2], [0, 0, 0, 0]]
        >>> best_pairs(draws, [2, 1, 1], [0, 0, 1, 1], 1)[0].points
        (0, 2)
    """
    every, p = merge_rows(labels, weights)
    rows, w = _some_draws(every, p)
    points = _uncertain_points(rows, w, np.asarray(estimate))
    i, j = (points[side] for side in np.triu_indices(len(points), 1))
    answers = (rows[:, i] != rows[:, j]).astype(np.int64)
    chosen = _greedy(rows, w, answers, n_questions)
    together = [float(p @ (every[:, i[q]] == every[:, j[q]])) for q, _ in chosen]
    return [
        Question((int(i[q]), int(j[q])), probability, gain)
        for (q, gain), probability in zip(chosen, together, strict=True)
    ]


def best_rows(
    labels: ArrayLike, weights: ArrayLike | None, estimate: ArrayLike, n_questions: int
) -> list[Question]:
    """Points to ask "which cluster is this in?" of, the best first; see `best_pairs`.

    The answers are the clusters of the estimate, each known by its surest point, or none of them.

    Example:
        >>> draws = [[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]]
        >>> best_rows(draws, None, [0, 0, 1, 1], 1)[0].points
        (2,)
    """
    rows, w = _some_draws(*merge_rows(labels, weights))
    a = np.asarray(estimate)
    sure = confidence(a, rows, w)
    examples = [int(np.flatnonzero(a == k)[sure[a == k].argmax()]) for k in range(a.max() + 1)]
    answers = np.full(rows.shape, len(examples))
    for k, example in reversed(list(enumerate(examples))):
        answers[rows == rows[:, example, None]] = k
    chosen = _greedy(rows, w, answers, n_questions)
    p = np.array([w @ (answers == k) for k in range(len(examples) + 1)])
    return [Question((q,), float(p[:, q].max()), gain) for q, gain in chosen]


def _some_draws(
    rows: Labels, w: Float64[np.ndarray, " draws"]
) -> tuple[Int64[np.ndarray, "some points"], Float64[np.ndarray, " some"]]:
    """All draws, or of many a systematic sample by their weights."""
    if len(rows) <= MOST_DRAWS:
        return rows, w
    order = np.random.default_rng(0).permutation(len(rows))
    ticks = (np.arange(MOST_DRAWS) + 0.5) / MOST_DRAWS
    chosen = order[np.searchsorted(np.cumsum(w[order]), ticks).clip(max=len(rows) - 1)]
    places, counts = np.unique(chosen, return_counts=True)
    return rows[places], counts / MOST_DRAWS


def _uncertain_points(
    rows: Labels, w: Float64[np.ndarray, " draws"], estimate: Int64[np.ndarray, " points"]
) -> Int64[np.ndarray, " some"]:
    """All points, or of many the least sure ones and, as many, others."""
    n_points = rows.shape[1]
    if n_points <= MOST_POINTS:
        return np.arange(n_points)
    order = np.argsort(confidence(estimate, rows, w), kind="stable")
    unsure, others = np.split(order, [MOST_POINTS // 2])
    chosen = np.random.default_rng(0).choice(others, MOST_POINTS - len(unsure), replace=False)
    return np.sort(np.concatenate([unsure, chosen]))


def _greedy(
    rows: Labels,
    w: Float64[np.ndarray, " draws"],
    answers: Int64[np.ndarray, "draws questions"],
    n_questions: int,
) -> list[tuple[int, float]]:
    """Questions with what each removes of the uncertainty, relative to all there was."""
    far = np.stack([distance(rows, row) for row in rows])
    total = left = float(w @ far @ w)
    # Questions that all draws answer alike are one question.
    distinct = np.unique(np.ascontiguousarray(answers.T), axis=0, return_index=True)[1]
    cells = np.zeros(len(rows), np.int64)
    chosen: list[tuple[int, float]] = []
    while len(chosen) < n_questions and left > NOTHING * max(total, NOTHING):
        after = _remaining(far, w, answers[:, distinct], cells)
        best = int(after.argmin())
        if left - after[best] <= NOTHING * total:
            break
        question = int(distinct[best])
        chosen.append((question, (left - float(after[best])) / total))
        left = float(after[best])
        pattern = np.stack([cells, answers[:, question]])
        cells = np.unique(pattern, axis=1, return_inverse=True)[1].reshape(-1)
    return chosen


def _remaining(
    far: Float64[np.ndarray, "draws draws"],
    w: Float64[np.ndarray, " draws"],
    answers: Int64[np.ndarray, "draws questions"],
    cells: Int64[np.ndarray, " draws"],
) -> Float64[np.ndarray, " questions"]:
    """Q given the answers so far (the cells) and the answer to each question."""
    within = far * (cells[:, None] == cells)
    member = (cells == np.arange(cells.max() + 1)[:, None]).astype(np.float64)
    left = np.zeros(answers.shape[1])
    for value in range(answers.max() + 1):
        x = w[:, None] * (answers == value)
        mass, spread = member @ x, member @ (x * (within @ x))
        left += np.where(mass > 0, spread / np.maximum(mass, 1e-300), 0.0).sum(0)
    return left
