"""What is watched while a network trains: symmetry, and how near it is to the exact posterior."""

from __future__ import annotations

import numpy as np
import torch

from ncp.inference.importance import effective_sample_size
from ncp.network.network import Network
from ncp.sampling.sample import sample_many
from ncp.training.data import micro_batches, on_device_of, sequences, stream
from ncp.training.loss import objective
from ncp.training.recipe import Recipe
from ncp.training.targets import tail_targets

__all__ = ["held_out", "held_out_nll", "permutation_spread"]

ORDERS = 8  # the paper's number of orders for the symmetry monitor
DATASETS = 4
SIZES = 5  # of held-out data sets


@torch.no_grad()
def permutation_spread(model: Network, recipe: Recipe, *key: int) -> dict[str, float]:
    """The paper's symmetry monitor: log q of the true labels over 8 random orders.

    `permutation_variance` is the variance of the joint log-likelihood, averaged over data sets;
    `permutation_spread` the sd of p(c | x) over its mean.
    """
    generator = stream(recipe.seed, *key)
    batch = recipe.generative.sample(DATASETS, generator=generator)
    data = sequences(batch, ORDERS, recipe.generative, generator=generator)
    log_p = torch.cat(
        [objective(model, on_device_of(part, model)).log_prob for part in micro_batches([data])]
    ).double()
    p = (log_p - log_p.amax(1, keepdim=True)).exp()
    return {
        "permutation_variance": float(log_p.var(1).mean()),
        "permutation_spread": float((p.std(1) / p.mean(1)).mean()),
    }


@torch.no_grad()
def held_out_nll(model: Network, recipe: Recipe, n_points: int = 20_000) -> float:
    """Mean negative log-likelihood per point on data that no step draws.

    As many points of each of a few sizes, the ratio of neighbouring ones the same.
    """
    generator = stream(recipe.seed, 2**40)
    low, high = recipe.generative.sizes
    sizes = np.unique(np.geomspace(low, high, SIZES).round().astype(int)).tolist()
    total = points = 0.0
    for n in sizes:
        batch = recipe.generative.sample(max(1, n_points // SIZES // n), n, generator=generator)
        data = sequences(batch, 1, recipe.generative, generator=generator)
        for part in micro_batches([data]):
            total -= float(objective(model, on_device_of(part, model)).log_prob.sum())
            points += part.labels.numel()
    return total / points


@torch.no_grad()
def held_out(model: Network, recipe: Recipe) -> dict[str, float]:
    """Monitors on data that no step draws.

    `held_out_nll`; and for a conjugate mixture `held_out_tv`, the mean total variation between
    the conditional of the last point and the exact one, and `held_out_ess`, the median effective
    sample size of importance sampling over the number of samples.
    """
    monitors = {"held_out_nll": held_out_nll(model, recipe)}
    if not recipe.generative.is_conjugate:
        return monitors
    generator = stream(recipe.seed, 2**42)
    n = max(2, sum(recipe.generative.sizes) // 2)
    batch = recipe.generative.sample(64, n, generator=generator)
    order = torch.arange(n).expand(64, 1, n)
    exact = tail_targets(batch, order, recipe.generative, 1)[:, 0, 0].to(model.device)
    found = model.conditionals(batch.x, batch.labels)[:, -1].exp()
    monitors["held_out_tv"] = float((found - exact).abs().sum(1).mean() / 2)
    few = [batch.x[i] for i in range(8)]
    fractions = []
    for x, drawn in zip(few, sample_many(model, few, 64, seed=recipe.seed), strict=True):
        log_w = recipe.generative.log_joint(x, drawn.labels) - torch.as_tensor(drawn.log_q)
        fractions.append(effective_sample_size(log_w, drawn.counts) / drawn.counts.sum())
    monitors["held_out_ess"] = float(np.median(fractions))
    return monitors
