"""How odd is a table: its summary statistics beside those of the prior's tables, and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ncp.generative.table_transform import FittedTransform

__all__ = ["Unusualness", "compare", "describe", "summary_statistics"]

# what it means when a statistic is far below, and far above, those of the prior
_MEANING = {
    "tails": ("hardly any row lies far out", "its tails are heavy"),
    "skewness": ("its axes are unusually symmetric", "its axes are strongly skewed"),
    "outliers": ("its most extreme row is close", "single rows lie extremely far out"),
    "evenness": ("one direction holds almost everything", "its directions are all alike"),
    "held": ("the leading axes hold little of the variance", "the leading axes hold everything"),
    "clumps": ("its rows are spread very evenly", "its density varies very much"),
    "ties": ("no rows coincide", "many rows coincide"),
}


class Unusualness(NamedTuple):
    """How odd a table is under the prior.

    Attributes:
        p_value: share of the prior's tables that are at least as odd.
        deviations: every summary statistic, in standard deviations from the prior's median.
        words: the same for people.
    """

    p_value: float
    deviations: dict[str, float]
    words: str


def summary_statistics(fitted: FittedTransform) -> dict[str, float]:
    """Numbers that describe a preprocessed table without its clusters."""
    y = fitted.coordinates
    if y.shape[1] == 0 or len(y) < 3:
        return dict.fromkeys(_MEANING, float("nan"))
    variance = y.var(0)
    weight = variance / variance.sum()
    z = (y - y.mean(0)) / np.sqrt(variance)
    distance = fitted.neighbours[1]
    return {
        "tails": float(np.log((z**4).mean(0) @ weight)),
        "skewness": float(np.log(0.1 + np.abs((z**3).mean(0)) @ weight)),
        "outliers": float(np.log(np.abs(z).max())),
        "evenness": float(-(weight * np.log(weight)).sum() / np.log(1.0 + y.shape[1])),
        "held": float(fitted.context[1]),
        "clumps": float(np.log(0.01 + np.log(distance[:, -1] + 0.05).std())),
        "ties": float((distance[:, 0] < 1e-6).mean()),
    }


def describe(drawn: list[dict[str, float]]) -> dict[str, Any]:
    """Median, spread below and above of every statistic, and the ordered extremes."""
    known: dict[str, Any] = {"centre": {}, "below": {}, "above": {}}
    for name in _MEANING:
        # far out: what is usual for most tables and heavy-tailed (ties) would rule the extremes
        low, centre, high = np.nanquantile([d[name] for d in drawn], (0.01, 0.5, 0.99))
        known["centre"][name] = float(centre)
        known["below"][name] = max(float(centre - low) / 2.326, 0.05)
        known["above"][name] = max(float(high - centre) / 2.326, 0.05)
    extremes = [max(abs(z) for z in _deviations(d, known).values()) for d in drawn]
    known["extreme"] = np.quantile(extremes, np.linspace(0.0, 1.0, 201)).round(4).tolist()
    return known


def compare(fitted: FittedTransform, known: Mapping[str, Any]) -> Unusualness:
    """A fitted table beside what `describe` knows of the prior's tables."""
    deviations = _deviations(summary_statistics(fitted), known)
    extreme = max(abs(z) for z in deviations.values())
    p_value = float(np.mean(np.asarray(known["extreme"]) >= extreme))
    return Unusualness(p_value, deviations, _in_words(p_value, deviations))


def _deviations(statistics: Mapping[str, float], known: Mapping[str, Any]) -> dict[str, float]:
    out = {}
    for name, value in statistics.items():
        difference = value - known["centre"][name]
        spread = known["below" if difference < 0 else "above"][name]
        out[name] = 0.0 if np.isnan(value) else difference / spread
    return out


def _in_words(p_value: float, deviations: Mapping[str, float]) -> str:
    if p_value > 0.05:
        return "The table looks like those the model was trained on."
    ordered = sorted(deviations, key=lambda name: -abs(deviations[name]))
    odd = [name for name in ordered[:4] if abs(deviations[name]) > 2.3] or ordered[:1]
    said = ", ".join(_MEANING[name][deviations[name] > 0] for name in odd)
    if p_value > 0.005:
        return f"The table is somewhat unusual for the model: {said}."
    return (
        f"The table is unlike those the model was trained on: {said}. "
        "Read the clusters and their probabilities with care."
    )
