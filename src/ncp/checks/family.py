"""Parts of the Gaussian family, each checked alone: a dimension, covariances known or not.

A number over the whole family hides what is hard in it. `parts_of` gives the family restricted to
one dimension and one kind of covariance, with the other hyper-parameters drawn as in training, and
the paper's own setting, with the goals of each. `made_exact` does with the draws of a simulation
what `ncp.cluster` does: weights where they are good, else chains until they agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ncp.checks.simulation import Draws, Progress, Simulation, as_numpy, seeds_of, tell
from ncp.generative.gaussian_family import GaussianFamily
from ncp.inference.finish import Goal, finish, stays
from ncp.inference.importance import diagnose

__all__ = ["Part", "in_dimension", "made_exact", "parts_of"]

PAPER = (0.7, 2.0, 10.0, math.inf)  # alpha, dimension, ratio, degrees of freedom


class Part(NamedTuple):
    """A part of the family and the median ESS that it is to reach."""

    name: str
    family: GaussianFamily
    ess_median: float


@dataclass(frozen=True)
class _PartOfFamily(GaussianFamily):
    """The family in one dimension; `setting` fixes everything."""

    dim: int = 2
    setting_row: tuple[float, ...] | None = None

    def sample_hyperparameters(
        self, n_datasets: int, generator: torch.Generator | None = None
    ) -> Float64[Tensor, "b h"]:
        if self.setting_row is not None:
            row = torch.tensor(self.setting_row, dtype=torch.float64)
            return row.expand(n_datasets, -1).clone()
        found = [super().sample_hyperparameters(n_datasets, generator)]
        while int(found[-1][0, 1]) != self.dim:  # a batch has one dimension
            found.append(super().sample_hyperparameters(n_datasets, generator))
        return found[-1]


def in_dimension(family: GaussianFamily, dim: int, **changes: Any) -> GaussianFamily:
    """The family in one dimension, its other hyper-parameters drawn as before."""
    plain = {f.name: getattr(family, f.name) for f in fields(GaussianFamily)}
    return _PartOfFamily(**plain | changes, dim=dim)


def parts_of(family: GaussianFamily) -> list[Part]:
    """The paper's setting, known and unknown covariances in the plane, unknown ones in 8-D."""
    wide = family.max_dim
    return [
        Part("paper", in_dimension(family, 2, setting_row=PAPER), 0.8),
        Part("known, d = 2", in_dimension(family, 2, known=1.0), 0.6),
        Part("unknown, d = 2", in_dimension(family, 2, known=0.0), 0.35),
        Part(f"unknown, d = {wide}", in_dimension(family, wide, known=0.0), 0.15),
    ]


def made_exact(
    simulation: Simulation,
    family: GaussianFamily,
    *,
    goal: Goal,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Simulation, float]:
    """Exact draws in place of those of the network, and the share of data sets that got them.

    Args:
        simulation: posterior draws with log q.
        family: the model.
        goal: of the chains that take over where weights are not enough.
        seed: of the chains.
        progress: called as `progress(what, done, total)`.
    """
    found, done = [], 0
    seeds = seeds_of(seed, len(simulation))
    for x, drawn, own in zip(simulation.x, simulation.draws, seeds, strict=True):
        exact, reached = _exact(x, drawn, simulation.n_samples, family, goal, own)
        found.append(exact)
        done += reached
        tell(progress, "exact draws", len(found), len(simulation))
    return replace(simulation, draws=tuple(found)), done / len(simulation)


def _exact(
    x: Tensor, drawn: Draws, n_samples: int, family: GaussianFamily, goal: Goal, seed: int
) -> tuple[Draws, bool]:
    assert drawn.log_q is not None
    mixture, points = family.unpack(x)
    log_w = as_numpy(mixture.log_joint(points, drawn.labels)) - drawn.log_q
    counts = np.rint(drawn.weights * n_samples).astype(np.int64)
    weights = drawn.weights * np.exp(log_w - log_w.max())
    report = diagnose(log_w, counts)
    enough = report.trusted and report.ess >= min(goal.min_ess, n_samples / 2)
    if enough and stays(points, mixture, drawn.labels, weights, seed):
        return Draws(drawn.labels, weights / weights.sum()), True
    made = finish(
        points, mixture, drawn.labels, weights, counts, n_samples=n_samples, goal=goal, seed=seed
    )
    return Draws(made.labels, made.counts / made.counts.sum()), made.finish.converged
