"""Sentences for people: the one place where numbers become words.

A probability estimated by the share of n draws has a Monte Carlo error of sqrt(p (1 - p) / n).
`chance` says it, or, where all draws agree, the bound 3 / n that holds with 95% confidence; so no
digit is printed that the draws do not support.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = [
    "NOTHING_VARIES",
    "NO_WEIGHTS",
    "PIXELS_DIVIDED",
    "Difference",
    "ball_sentence",
    "best_partition",
    "chance",
    "cluster_sentence",
    "copies_sentence",
    "count",
    "exact_sentence",
    "how_sure",
    "in_words",
    "known_sentence",
    "labels_sentence",
    "left_out_sentence",
    "number",
    "number_of_clusters",
    "parts_sentence",
    "percent",
    "pixel_sentence",
    "range_sentence",
    "sharpened_sentence",
    "size_sentence",
    "spread_sentence",
    "stability_sentence",
    "stand_in_sentence",
    "tail_in_words",
    "units_sentence",
    "unused_sentence",
    "weights_sentence",
]

MOST_SIZES = 12  # clusters whose sizes are listed


def count(n: int, noun: str) -> str:
    """So many of something, in the singular or plural.

    Example:
        >>> count(1, "row"), count(2000, "row")
        ('1 row', '2,000 rows')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def percent(probability: float) -> str:
    """A probability for people: never 0% or 100% unless it is.

    Example:
        >>> percent(0.314), percent(0.9996), percent(1.0)
        ('31%', 'over 99%', '100%')
    """
    if 0.0 < probability < 0.01:
        return "under 1%"
    if 0.99 < probability < 1.0 - 1e-9:  # sums of weights are not exact
        return "over 99%"
    return f"{probability:.0%}"


def chance(probability: float, n_draws: float) -> str:
    """The share of draws for which something holds, with its standard error in points.

    Example:
        >>> chance(0.42, 50.0), chance(0.42, 1e6), chance(1.0, 50.0), chance(0.0, 400.0)
        ('42 ± 7%', '42%', 'over 94%', 'under 1%')
    """
    n = max(n_draws, 1.0)
    error = float(np.sqrt(max(probability * (1.0 - probability), 0.0) / n))
    bound = min(3.0 / n, 0.5)
    if min(probability, 1.0 - probability) < 0.5 / n:
        points = max(1, round(100 * bound))
        return f"over {100 - points}%" if probability > 0.5 else f"under {points}%"
    if error < 0.005:
        return percent(probability)
    return f"{100 * probability:.0f} ± {100 * error:.0f}%"


def in_words(
    k: tuple[np.ndarray, np.ndarray],
    sizes: np.ndarray,
    confidence: np.ndarray,
    n_draws: float,
    noun: str = "point",
) -> list[str]:
    """What samples of a partition say: the best partition, K, and how sure the points are.

    Args:
        k: values of the number of clusters and their probabilities.
        sizes: of the clusters of the point estimate.
        confidence: of each point in its cluster.
        n_draws: how many independent draws the samples are worth.
        noun: what a point is.
    """
    return [
        best_partition(sizes, noun),
        number_of_clusters(*k, len(sizes), n_draws),
        how_sure(confidence, noun),
    ]


def known_sentence(
    n_labels: int,
    n_together: int,
    n_apart: int,
    number: tuple[int | None, int | None, int | None],
    log_probability: float,
) -> str:
    """What was known beforehand, and what the model thought of it.

    Args:
        n_labels: Rows of known labels.
        n_together: Links of rows that are together.
        n_apart: Links of rows that are apart.
        number: How many clusters there are: exactly, at least, at most.
        log_probability: Of all that under the model.

    Example:
        >>> known_sentence(5, 0, 1, (3, None, None), np.log(0.2))
        'Known: 5 labels, 1 link apart, 3 clusters. The model gave that a probability of 20%.'
    """
    exactly, least, most = number
    parts = [
        count(n_labels, "label") if n_labels else "",
        f"{count(n_together, 'link')} together" if n_together else "",
        f"{count(n_apart, 'link')} apart" if n_apart else "",
        count(exactly, "cluster") if exactly else "",
        f"at least {count(least, 'cluster')}" if least else "",
        f"at most {count(most, 'cluster')}" if most else "",
    ]
    shown = percent(float(np.exp(log_probability)))
    if log_probability < np.log(0.01):
        shown = f"about 1e{log_probability / np.log(10):.0f}"
    said = ", ".join(part for part in parts if part) or "nothing"
    return f"Known: {said}. The model gave that a probability of {shown}."


def best_partition(sizes: np.ndarray, noun: str = "point") -> str:
    """The number of clusters of the estimate and their sizes.

    Example:
        >>> best_partition(np.array([3, 50]), "row")
        'Best single partition: 2 clusters of 50, 3 rows.'
        >>> best_partition(np.array([1]))
        'Best single partition: 1 cluster of 1 point.'
    """
    ordered = np.sort(sizes)[::-1]
    listed = ", ".join(f"{n:,}" for n in ordered[:MOST_SIZES])
    listed += ", ..." if len(ordered) > MOST_SIZES else ""
    things = noun if len(ordered) == 1 and ordered[0] == 1 else f"{noun}s"
    return f"Best single partition: {count(len(ordered), 'cluster')} of {listed} {things}."


def number_of_clusters(
    values: np.ndarray, probabilities: np.ndarray, chosen: int, n_draws: float
) -> str:
    """The posterior of K, and why the best partition may have another number than its mode."""
    likely = np.argsort(-probabilities, kind="stable")[:4]
    shown = [i for i in likely if probabilities[i] >= 0.005]
    listed = ", ".join(f"{values[i]:.0f} ({chance(probabilities[i], n_draws)})" for i in shown)
    sentence = f"Number of clusters, with its probability: {listed}."
    if int(values[likely[0]]) == chosen:
        return sentence
    return (
        f"{sentence} The best partition has {chosen}, because it is the nearest to all samples: "
        "they differ in small or doubtful clusters."
    )


def how_sure(confidence: np.ndarray, noun: str = "point") -> str:
    """Mean confidence, and how many are in doubt."""
    doubtful = int((confidence < 0.9).sum())
    return (
        f"Confidence: {percent(float(confidence.mean()))} on average; less than 90% sure of their "
        f"cluster: {doubtful:,} of {count(len(confidence), noun)}."
    )


def ball_sentence(mass: float, radius: float, loss: str, fewest_and_most: tuple[int, int]) -> str:
    """What the credible ball around the best partition says."""
    if loss != "vi":
        return (
            f"Of the probability, {percent(mass)} lies within a distance of {radius:.3f} ({loss}) "
            "of the best partition."
        )
    low, high = fewest_and_most
    clusters = count(low, "cluster") if low == high else f"{low} to {high} clusters"
    return (
        f"Of the probability, {percent(mass)} lies within a variation of information of "
        f"{radius:.2f} bits of the best partition; those partitions have {clusters}."
    )


def weights_sentence(verdict: str, ess: float, n_samples: int, k_hat: float) -> str:
    """How far importance weights can be trusted."""
    return (
        f"Importance weights are {_judged(verdict)}: the samples are worth {ess:.0f} of "
        f"{n_samples} (ESS {ess / n_samples:.0%}), and {tail_in_words(k_hat)}."
    )


def unused_sentence(verdict: str, ess: float, n_samples: int) -> str:
    """What the weights would say of samples that were left as they are.

    Example:
        >>> unused_sentence("good", 900.0, 1000)
        'Importance weights were not used; they are good (ESS 90%).'
        >>> unused_sentence("do not trust: run MCMC", 2.0, 1000)
        'Importance weights were not used; they are not to be trusted (run MCMC; ESS 0%).'
    """
    judged, _, advice = _judged(verdict).partition(" (")
    more = f"{advice.rstrip(')')}; " if advice else ""
    share = f"{more}ESS {ess / n_samples:.0%}"
    return f"Importance weights were not used; they are {judged} ({share})."


def _judged(verdict: str) -> str:
    """A verdict as what something is.

    Example:
        >>> _judged("usable"), _judged("do not trust: run MCMC")
        ('usable', 'not to be trusted (run MCMC)')
    """
    warning, found, advice = verdict.partition("do not trust: ")
    return f"not to be trusted ({advice})" if found else warning


def exact_sentence(method: str, converged: bool, ess: float, r_hat: float) -> str:
    """How samples were obtained that are exact without weights.

    Example:
        >>> exact_sentence("enumeration", True, 1000.0, 1.0)
        'The samples are exact: all partitions of these few points were listed.'
    """
    if method == "enumeration":
        return "The samples are exact: all partitions of these few points were listed."
    if converged:
        return (
            "The samples are of exact chains that started at the network's and agree: they are "
            f"worth at least {ess:.0f} independent ones (R-hat {r_hat:.3f})."
        )
    return (
        "The samples are of exact chains that started at the network's and did not agree in time "
        f"(R-hat {r_hat:.2f}): give them more, or do not trust probabilities."
    )


NO_WEIGHTS = "The samples are the network's own: importance weights were not used."


def tail_in_words(k_hat: float) -> str:
    """What k-hat, the shape of the weights' Pareto tail, means."""
    if k_hat == -np.inf:
        return "no weight stands out (k-hat -inf)"
    if k_hat == np.inf:
        return "too few large weights to judge their tail (k-hat inf)"
    kind = "light" if k_hat < 0.5 else "heavy, yet usable" if k_hat < 0.7 else "too heavy"
    return f"their tail is {kind} (k-hat {k_hat:.2f})"


# -- clusters --------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """How a cluster differs from the rest in a column, or in the share of a level."""

    column: str
    effect: float
    inside: float
    outside: float
    level: str | None = None


SMALL_EFFECT = 0.5  # standard deviations; less is not worth a word
MOST_DIFFERENCES = 4


def cluster_sentence(size: int, total: int, differences: Sequence[Difference]) -> str:
    """What distinguishes a cluster, in words.

    Example:
        >>> cluster_sentence(5, 20, [Difference("width", 2.1, 3.0, 1.25)])
        'Higher: width (3; others 1.25).'
        >>> cluster_sentence(5, 20, [Difference("kind", 1.0, 0.9, 0.2, "red")])
        'More often: kind = red (90%; others 20%).'
    """
    if size == total:
        return "All rows are in this cluster."
    clear = [d for d in differences if abs(d.effect) >= SMALL_EFFECT][:MOST_DIFFERENCES]
    if not clear:
        return "No single column tells it from the rest."
    parts = [_compared(clear, *how) for how in _COMPARISONS]
    return " ".join(part for part in parts if part)


_COMPARISONS = (
    ("Higher", False, True),
    ("Lower", False, False),
    ("More often", True, True),
    ("Less often", True, False),
)


def _compared(clear: Sequence[Difference], word: str, of_level: bool, up: bool) -> str:
    some = [d for d in clear if (d.level is not None) == of_level and (d.effect > 0) == up]
    shown = percent if of_level else number
    listed = [
        f"{d.column if d.level is None else f'{d.column} = {d.level}'} "
        f"({shown(d.inside)}; others {shown(d.outside)})"
        for d in some
    ]
    return f"{word}: {', '.join(listed)}." if listed else ""


def number(value: float) -> str:
    """A number for people: four digits that count.

    Example:
        >>> number(1234567.0), number(3.14159), number(0.00001234), number(-0.0), number(12345.6)
        ('1,235,000', '3.142', '1.234e-05', '0', '12,350')
    """
    if np.isnan(value):
        return "missing"
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.4g}"
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if rounded == int(rounded) else f"{rounded:,.10g}"


# -- data unlike those a model was trained on ------------------------------------------------------


def size_sentence(n: int, low: int, high: int) -> str:
    """What it means that a model sees fewer or more points than it was trained on."""
    if n < low:
        return f"The model was trained on {low} or more points; with {n} it mostly guesses."
    return (
        f"The model was trained on {low} to {high} points and sees {n} at once: its probabilities "
        f"may be off. With max_points {high} it clusters a random {high} and assigns the others."
    )


NOTHING_VARIES = "No column varies, so there is nothing to tell rows apart by."
PIXELS_DIVIDED = "Pixels were divided by 255."
UNITS = "set noise_sd to the spread of one cluster in your units"


def stand_in_sentence(name: str, value: float, n: int) -> str:
    """That cells of a column look like a mark for missing values.

    Example:
        >>> stand_in_sentence("age", -999.0, 12)
        'In age 12 cells are -999, far from all others; if that means missing, leave them empty.'
    """
    return (
        f"In {name} {count(n, 'cell')} are {value:.15g}, far from all others; if that means "
        "missing, leave them empty."
    )


def range_sentence(far: float, reach: float) -> str:
    """Points lie farther out than in training."""
    return (
        f"Points lie as far as {far:.3g} from the centre of the prior; in training 99.9% of "
        f"the data sets stayed within {reach:.3g}: {UNITS}."
    )


def spread_sentence(sd: float, least: float) -> str:
    """All points lie closer together than in training."""
    return (
        f"The data spread over only {sd:.3g}, in training rarely less than {least:.3g}, so "
        f"all points will look like one cluster: {UNITS}."
    )


def pixel_sentence(least: float, most: float) -> str:
    """Pixels outside of their range."""
    return f"Pixels range from {least:.3g} to {most:.3g}; the model expects 0 to 1."


# -- what was done ---------------------------------------------------------------------------------


def left_out_sentence(n: int, every: bool = False) -> str:
    """Rows with missing values, or with `every` value missing.

    Example:
        >>> left_out_sentence(1), left_out_sentence(2, every=True)
        ('1 row with missing values was left out.', '2 rows without any value were left out.')
    """
    what = "without any value" if every else "with missing values"
    return f"{count(n, 'row')} {what} {'was' if n == 1 else 'were'} left out."


def copies_sentence(n: int) -> str:
    """Rows that repeat others.

    Example:
        >>> copies_sentence(900)
        '900 rows are copies of others, share their clusters and count no further.'
    """
    return f"{count(n, 'row')} are copies of others, share their clusters and count no further."


def labels_sentence(n: int, most: int) -> str:
    """More known labels than a part of a table can have rows of."""
    return (
        f"Of {n:,} known labels only {most:,} have a row in each part of the table, so others may "
        "share a cluster; a larger max_points shows more of them at once."
    )


def parts_sentence(n_parts: int, n: int, total: int) -> str:
    """A large table, parts of which were clustered."""
    return (
        f"{n_parts} random parts of {n:,} of the {total:,} rows were clustered; rows of which a "
        "part has no sample follow similar rows there."
    )


def stability_sentence(stability: float) -> str:
    """How far parts of a large table agree."""
    how = "agree" if stability > 0.9 else "agree in part" if stability > 0.6 else "disagree"
    return f"The parts {how} with each other: stability {stability:.2f} (1 is best)."


def sharpened_sentence() -> str:
    """Clusters were told apart by where rows are dense."""
    return (
        "Clusters overlap: rows were moved towards where rows are dense before they were clustered."
    )


def units_sentence(factor: float) -> str:
    """The data were scaled."""
    return (
        f"The data were centred and multiplied by {factor:.4g} to bring them to the model's units."
    )
