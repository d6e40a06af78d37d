"""The same table at several values of one hyper-parameter, compared by evidence.

    p(x | alpha = 1) / p(x | alpha = 3) = exp(difference of log evidences)

is how much more the table speaks for one value than for the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ncp.clustering.cluster import cluster
from ncp.clustering.gaussian_result import GaussianClustering

__all__ = ["Compared", "compare", "read_comparison"]

COMPARABLE = ("alpha", "ratio", "dof", "noise_sd")


class Compared(NamedTuple):
    """One value and what it gives.

    Attributes:
        value: Of the hyper-parameter.
        log_evidence: log p(x), a lower bound where the error is infinite.
        error: Its standard error.
        probability: Of this value among those compared, with equal prior weights.
        n_clusters: Of the point estimate.
        verdict: Whether to trust it.
        result: The clustering.
    """

    value: float | str
    log_evidence: float
    error: float
    probability: float
    n_clusters: int
    verdict: str
    result: GaussianClustering

    def to_dict(self) -> dict[str, Any]:
        """Plain, for JSON; an error that is not known is None."""
        plain = {name: value for name, value in self._asdict().items() if name != "result"}
        return plain | {"error": self.error if math.isfinite(self.error) else None}


def read_comparison(text: str) -> tuple[str, list[float | str]]:
    """What `--compare` was given.

    Example:
        >>> read_comparison("alpha=0.3,1,3")
        ('alpha', [0.3, 1.0, 3.0])
    """
    name, _, values = text.partition("=")
    parts = [part.strip() for part in values.split(",") if part.strip()]
    try:
        found = [part if part == "known" else float(part) for part in parts]
    except ValueError:
        found = []
    if name not in COMPARABLE or not found:
        raise ValueError(
            f"Expected one of {', '.join(COMPARABLE)} and values, as in alpha=0.3,1,3, "
            f"but got {text!r}"
        )
    return name, found


def compare(
    x: Any, model: Any, name: str, values: Sequence[float | str], **settings: Any
) -> list[Compared]:
    """Cluster a table at each value of a hyper-parameter.

    What else is not given is chosen by its evidence at each value anew.

    Args:
        x: The table.
        model: A network of the Gaussian family, or its name.
        name: `alpha`, `ratio`, `dof` or `noise_sd`.
        values: To compare.
        settings: As for `ncp.cluster`.
    """
    if name not in COMPARABLE:
        raise ValueError(f"Expected name among {COMPARABLE} but got {name!r}")
    found = [cluster(x, model, **settings | {name: value}) for value in values]
    results = [one for one in found if isinstance(one, GaussianClustering)]
    if len(results) < len(found):
        raise ValueError("Expected a model of the Gaussian family, which has hyper-parameters")
    log_evidence = np.array([float(one.evidence.value) for one in results])
    p = np.exp(log_evidence - np.nanmax(log_evidence))
    return [
        Compared(
            value,
            float(one.evidence.value),
            float(one.evidence.standard_error),
            float(share),
            one.n_clusters,
            one.posterior.report.verdict,
            one,
        )
        for value, one, share in zip(values, results, p / np.nansum(p), strict=True)
    ]
