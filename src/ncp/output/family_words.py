"""Sentences about the Gaussian family: hyper-parameters, evidence, and what the data lack."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ncp.output.words import chance, number, percent

__all__ = [
    "alpha_sentence",
    "axes_sentence",
    "choice_sentence",
    "columns_sentence",
    "evidence_sentence",
    "few_rows_sentence",
    "nearest_sentence",
    "rough_sentence",
    "setting_in_words",
]


def setting_in_words(alpha: float, ratio: float, dof: float, noise_sd: float) -> str:
    """Hyper-parameters for people.

    Example:
        >>> setting_in_words(1.0, 8.0, math.inf, 0.25)
        'alpha 1, sd 0.25 within clusters (known) and 8 times that between them'
        >>> setting_in_words(0.3, 4.0, 5.0, 1200.0)
        'alpha 0.3, sd 1,200 within clusters (5 degrees of freedom) and 4 times that between them'
    """
    known = "known" if math.isinf(dof) else f"{number(dof)} degrees of freedom"
    return (
        f"alpha {number(alpha)}, sd {number(noise_sd)} within clusters ({known}) and "
        f"{number(ratio)} times that between them"
    )


def choice_sentence(
    setting: tuple[float, float, float, float],
    probability: float,
    n_settings: int,
    how: str,
    average: bool,
) -> str:
    """What hyper-parameters were taken, and how sure that is.

    Args:
        setting: alpha, ratio, degrees of freedom and noise.
        probability: of this setting among all that were tried.
        n_settings: how many.
        how: "given", "weights", "rough weights" (not to be trusted), "chains" or "short chains"
            (that did not agree in time).
        average: whether the answer is an average over all of them.

    Example:
        >>> choice_sentence((1.0, 8.0, math.inf, 0.25), 1.0, 1, "given", False)
        'Hyper-parameters: alpha 1, sd 0.25 within clusters (known) and 8 times that between them.'
    """
    words = setting_in_words(*setting)
    if n_settings == 1:
        return f"Hyper-parameters: {words}."
    by = {
        "weights": "their evidence",
        "rough weights": "rough estimates of their evidence",
        "chains": "exact chains over them",
    }.get(how, "exact chains over them that did not agree in time")
    sure = f"{percent(probability)} of the probability of {n_settings} settings, by {by}"
    if average:
        return f"Averaged over {n_settings} settings; the most probable: {words} ({sure})."
    return f"Hyper-parameters chosen: {words} ({sure})."


def alpha_sentence(values: Sequence[float], probabilities: Sequence[float], worth: float) -> str:
    """The posterior of the concentration.

    Example:
        >>> alpha_sentence([0.3, 1.0], [0.25, 0.75], 1e6)
        'Concentration alpha, with its probability: 0.3 (25%), 1 (75%).'
    """
    pairs = zip(values, probabilities, strict=True)
    listed = ", ".join(f"{number(v)} ({chance(float(p), worth)})" for v, p in pairs)
    return f"Concentration alpha, with its probability: {listed}."


def evidence_sentence(value: float, error: float) -> str:
    """The log evidence with its error, or as a lower bound.

    Example:
        >>> evidence_sentence(-702.31, 0.04), evidence_sentence(-702.31, math.inf)
        ('Log evidence: -702.31 ± 0.04.', 'Log evidence: at least about -702.3.')
    """
    if np.isnan(value):
        return "Log evidence: unknown."
    if not np.isfinite(error):
        return f"Log evidence: at least about {value:.1f}."
    return f"Log evidence: {value:.2f} ± {max(error, 0.01):.2f}."


def columns_sentence() -> str:
    """Columns were brought to one scale."""
    return (
        "Columns were divided by their standard deviations, which are the unit of sd within "
        "clusters; give noise_sd to keep the data's units."
    )


def axes_sentence(n_columns: int, n_axes: int, share: float) -> str:
    """Only leading axes of a wide table were used."""
    return (
        f"The model takes {n_axes} dimensions: of {n_columns} columns the {n_axes} leading "
        f"principal axes were used, with {percent(share)} of the variance. What differs only in "
        "the rest is lost, and the evidence is that of the axes."
    )


def few_rows_sentence(n_rows: int, n_columns: int) -> str:
    """Fewer rows than columns."""
    return (
        f"With {n_rows} rows of {n_columns} columns the covariances are mostly the prior's: "
        "use fewer columns."
    )


def nearest_sentence(names: Sequence[str]) -> str:
    """A setting outside of the trained range was reweighted.

    Example:
        >>> nearest_sentence(["alpha"])
        'Outside the trained range: alpha; the network saw the nearest setting, and exact weights \
or chains bring the answer to yours.'
    """
    return (
        f"Outside the trained range: {', '.join(names)}; the network saw the nearest setting, and "
        "exact weights or chains bring the answer to yours."
    )


def rough_sentence() -> str:
    """Hyper-parameters were chosen by weights that are not good, given what is known."""
    return (
        "What is known of the rows makes the evidence of the hyper-parameters rough: the choice "
        "among them may be wrong; give alpha, ratio and dof if you can."
    )
