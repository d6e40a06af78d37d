"""How far to trust a clustered table, in a word and with its reasons.

Where the model has a joint density, weights or chains tell (`ncp.inference.importance.Report`).
For tables there is none. What tells then, all of it known within a second:

- the expected agreement of the answer with the truth: the mean adjusted Rand index of the estimate
  and the samples, or P(K = 1) if it is one cluster. Were samples draws of the truth, it would be
  what a truth has; by how much tables of this size fell short of it was measured;
- whether the table is like those;
- whether parts of a large table agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ncp.inference.importance import Report
from ncp.posterior import Partitions
from ncp.summary.rand_index import expected_agreement

__all__ = ["LEVELS", "Verdict", "is_worth_little", "judge"]

LEVELS = ("good", "with care", "do not trust")
AGREEMENT = (0.8, 0.5)  # expected, for "good" and for "with care"
STABILITY = (0.8, 0.5)
FEW_ROWS = 20
FEW_DRAWS = 100.0  # exact ones, below which probabilities may be off by a tenth


@dataclass(frozen=True)
class Verdict:
    """What to think of an answer.

    Attributes:
        level: `"good"`, `"with care"` or `"do not trust"`.
        reasons: Why it is not good, or in short why it is.
        agreement: The agreement to expect with the truth, 0 to 1; None where weights tell.

    Example:
        >>> print(Verdict("with care", ("there are few rows",), 0.9))
        Verdict: with care, because there are few rows.
    """

    level: str
    reasons: tuple[str, ...]
    agreement: float | None = None

    def __str__(self) -> str:
        because = " because " if self.level == "good" else ", because "
        return f"Verdict: {self.level}{because}{'; '.join(self.reasons)}."


def judge(
    posterior: Partitions,
    estimate: np.ndarray,
    warnings: Sequence[str] = (),
    stability: float = 1.0,
    shortfall: float = 0.0,
) -> Verdict:
    """The verdict on samples and their point estimate.

    Args:
        posterior: The samples.
        estimate: Labels of their points.
        warnings: What looks unlike the training data.
        stability: How far parts of a large table agree, 0 to 1.
        shortfall: How much less agreement tables of this size had than their samples promised.
    """
    if posterior.report.method != "none":
        return _of_report(posterior.report, warnings)
    promised = expected_agreement(estimate, posterior.labels, posterior.weights)
    agreement = float(np.clip(promised - shortfall, 0.0, 1.0))
    found = [
        (_level(agreement, AGREEMENT), f"the expected agreement with the truth is {agreement:.2f}")
    ]
    found.append((_level(stability, STABILITY), f"its parts have a stability of {stability:.2f}"))
    if len(estimate) < FEW_ROWS:
        found.append((1, f"{len(estimate)} rows say little"))
    if warnings:
        found.append((1, "the table is unusual for the model"))
    worst = max(level for level, _ in found)
    reasons = tuple(reason for level, reason in found if level == worst and level > 0)
    return Verdict(LEVELS[worst], reasons or (found[0][1],), agreement)


def _of_report(report: Report, warnings: Sequence[str]) -> Verdict:
    how = {"weights": "importance weights are", "chains": "exact chains have"}.get(
        report.method, "it is"
    )
    reason = f"{how} {report.verdict}"
    if not report.trusted:
        return Verdict("do not trust", (reason,))
    if is_worth_little(report):
        return Verdict("with care", (f"{reason}, but worth only {report.ess:.0f} draws",))
    if warnings:
        return Verdict("with care", ("the data are unusual for the model",))
    return Verdict("good", (reason,))


def is_worth_little(report: Report) -> bool:
    """Whether exact samples are worth few draws, and far fewer than were asked for."""
    return report.ess < min(FEW_DRAWS, report.n_samples / 2)


def _level(value: float, bounds: tuple[float, float]) -> int:
    return int(value < bounds[0]) + int(value < bounds[1])
