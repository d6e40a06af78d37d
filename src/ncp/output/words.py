"""Sentences for people: the one place where numbers become words."""

from __future__ import annotations

import numpy as np

from ncp.summary.summary import Summary

__all__ = ["in_words", "percent", "tail_in_words"]


def in_words(summary: Summary) -> list[str]:
    """Sentences about K, the sizes of the estimate's clusters and how sure the points are."""
    k = summary.n_clusters
    likely = np.argsort(-k.probabilities, kind="stable")[:4]
    shown = [i for i in likely if k.probabilities[i] >= 0.005]
    chances = ", ".join(f"{k.values[i]:.0f} ({percent(k.probabilities[i])})" for i in shown)
    sizes = np.sort(summary.estimate.sizes)[::-1]
    listed = ", ".join(str(n) for n in sizes[:12]) + (", ..." if len(sizes) > 12 else "")
    sure = summary.confidence
    doubtful = int((sure < 0.9).sum())
    n = len(sizes)
    return [
        f"Number of clusters, with its probability: {chances}.",
        f"Best single partition: {n} cluster{'s' if n > 1 else ''} of {listed} points.",
        f"Confidence: {percent(sure.mean())} on average; {doubtful} of {len(sure)} points are "
        f"less than 90% sure of their cluster, the least sure is point {sure.argmin()} "
        f"({percent(sure.min())}).",
    ]


def percent(probability: float) -> str:
    """A probability for people: never 0% or 100% unless it is.

    Example:
        >>> percent(0.314), percent(0.9996), percent(1.0)
        ('31%', 'over 99%', '100%')
    """
    if 0.0 < probability < 0.01:
        return "under 1%"
    if 0.99 < probability < 1.0 - 1e-12:
        return "over 99%"
    return f"{probability:.0%}"


def tail_in_words(k_hat: float) -> str:
    """What k-hat, the shape of the weights' Pareto tail, means."""
    if k_hat == -np.inf:
        return "no weight stands out (k-hat -inf)"
    if k_hat == np.inf:
        return "too few large weights to judge their tail (k-hat inf)"
    kind = "light" if k_hat < 0.5 else "heavy, yet usable" if k_hat < 0.7 else "too heavy"
    return f"their tail is {kind} (k-hat {k_hat:.2f})"
