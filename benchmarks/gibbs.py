"""Time of collapsed Gibbs sampling: the compiled sampler beside a plain Python one.

    python benchmarks/gibbs.py

The setting of the paper's comparison: one-dimensional Gaussians, alpha = 0.7, prior sd 10, noise sd
1, 21,000 sweeps of N = 50 points. The plain sampler has incremental statistics in Python lists.
Medians of several turns, in brackets the least and the largest. Goal: at most 0.8 s.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _timing import Spread, lost

from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.mixture import Mixture
from ncp.generative.priors import CRP
from ncp.inference.mcmc.chains import Chains
from ncp.inference.mcmc.gibbs import gibbs, neal8

N_SWEEPS, BURN_IN, N_POINTS = 20_000, 1_000, 50
ALPHA, PRIOR_SD, NOISE_SD = 0.7, 10.0, 1.0
PYTHON_SWEEPS = 300
TURNS = 7
GOAL = 0.8  # seconds


def plain_gibbs(x: list[float], n_sweeps: int, seed: int) -> list[list[int]]:
    """Algorithm 3 as one would write it in a hurry: lists, dicts and `math`."""
    rng = random.Random(seed)
    labels = [0] * len(x)
    sizes, sums = {0: len(x)}, {0: sum(x)}
    draws = []
    for _ in range(n_sweeps):
        for i, value in enumerate(x):
            old = labels[i]
            sizes[old] -= 1
            sums[old] -= value
            if sizes[old] == 0:
                del sizes[old], sums[old]
            names = list(sizes)
            weights = [sizes[k] * predictive_density(value, sizes[k], sums[k]) for k in names] + [
                ALPHA * predictive_density(value, 0, 0.0)
            ]
            names.append(max(names, default=-1) + 1)
            new = rng.choices(names, weights)[0]
            labels[i] = new
            sizes[new] = sizes.get(new, 0) + 1
            sums[new] = sums.get(new, 0.0) + value
        draws.append(list(labels))
    return draws


def predictive_density(value: float, n: int, total: float) -> float:
    precision = 1.0 / PRIOR_SD**2 + n / NOISE_SD**2
    variance = 1.0 / precision + NOISE_SD**2
    mean = total / NOISE_SD**2 / precision
    return math.exp(-0.5 * (value - mean) ** 2 / variance) / math.sqrt(2 * math.pi * variance)


def seconds(function: Callable[[], Any], repeats: int) -> tuple[Spread, Any]:
    """Wall-clock seconds of a few calls, and the last result."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - begin)
    return Spread.of(times), result


def main() -> None:
    mixture = Mixture(CRP(ALPHA), GaussianKnownVariance(1, PRIOR_SD, NOISE_SD))
    batch = mixture.sample(1, N_POINTS, generator=torch.Generator().manual_seed(3))
    x = batch.x[0].numpy()
    total = N_SWEEPS + BURN_IN

    def compiled() -> Chains:
        return gibbs(x, mixture, N_SWEEPS, burn_in=BURN_IN, seed=0)

    def algorithm_8() -> Chains:
        return neal8(x, mixture, N_SWEEPS, burn_in=BURN_IN, seed=0)

    first, _ = seconds(lambda: gibbs(x, mixture, 1, seed=0), 1)
    first_8, _ = seconds(lambda: neal8(x, mixture, 1, seed=0), 1)
    fast, chains = seconds(compiled, TURNS)
    fast_8, chains_8 = seconds(algorithm_8, TURNS)
    part, draws = seconds(lambda: plain_gibbs(x[:, 0].tolist(), PYTHON_SWEEPS, 0), TURNS)
    plain = part * (total / PYTHON_SWEEPS)
    plain_k = float(np.mean([len(set(row)) for row in draws]))

    print(
        f"{total:,} sweeps, N = {N_POINTS}, one dimension, true K = {int(batch.labels.max()) + 1}; "
        f"{TURNS} turns"
    )
    print()
    print("| sampler | seconds | sweeps a second | mean K | ESS of K | first call, s |")
    print("|---|---|---|---|---|---|")
    for name, time_, result, compile_ in (
        ("collapsed Gibbs, compiled", fast, chains, first),
        ("algorithm 8, compiled", fast_8, chains_8, first_8),
    ):
        ess, k = result.diagnostics().ess_k, result.n_clusters.mean()
        speed = total / time_.middle
        print(f"| {name} | {time_:.3f} | {speed:,.0f} | {k:.2f} | {ess:,.0f} | {compile_:.1f} |")
    print(
        f"| collapsed Gibbs, plain Python ({PYTHON_SWEEPS} sweeps, scaled) | {plain:.1f} "
        f"| {total / plain.middle:,.0f} | {plain_k:.2f} | | |"
    )
    print()
    print(f"Compiled is {plain / fast:.0f} times faster than plain Python.")
    if fast.middle > GOAL:
        lost([f"{total:,} sweeps of compiled Gibbs take {fast:.2f} s instead of {GOAL}."])


if __name__ == "__main__":
    main()
