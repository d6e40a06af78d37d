"""What a user waits for: samples of one data set and of many, exact chains, and growth.

    python benchmarks/speed.py [--quick]

CPU seconds of one thread, of jobs that take turns; compiled code and weights are there already. A
busy machine lengthens them too (`BayesianGaussianMixture` took 6.7 s on a quiet one), so look at
ratios. Medians, in brackets the least and the largest. Many data sets beside scikit-learn's mixture
(spherical, 10 components, one solution), on a tenth of the data sets. Chains are exact Gibbs chains
that start at the network's samples. Growth is the exponent of time between the first and the last
size: N on four separated clusters, K on 256 points, S on one data set of 50.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Sequence

import torch
from _timing import Spread, lost
from torch import Tensor

from ncp.inference.mcmc.gibbs import gibbs
from ncp.model import NCP, load

MODELS = ("gaussian-2d", "gaussian-1d")
Job = Callable[[], object]


def draw(model: NCP, n: int, seed: int = 3) -> Tensor:
    assert model.mixture is not None
    return model.mixture.sample(1, n, generator=torch.Generator().manual_seed(seed)).x[0]


def separated(n: int, k: int) -> Tensor:
    """n points of the plane in k clusters on a grid, tighter than the noise of the model."""
    side = math.ceil(math.sqrt(k))
    cell = torch.arange(n) % k
    centre = 8.0 * (torch.stack([cell // side, cell % side], 1) - (side - 1) / 2)
    return centre + 0.7 * torch.randn(n, 2, generator=torch.Generator().manual_seed(k))


def in_turn(jobs: dict[str, Job], turns: int) -> dict[str, Spread]:
    """CPU seconds of each job, after one turn to warm up."""
    spent: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(turns + 1):
        for name, job in jobs.items():
            begin = time.process_time()
            job()
            if turn:
                spent[name].append(time.process_time() - begin)
    return {name: Spread.of(times) for name, times in spent.items()}


def mixtures(xs: Sequence[Tensor]) -> None:
    from sklearn.mixture import BayesianGaussianMixture

    how = {"covariance_type": "spherical", "random_state": 0, "max_iter": 300}
    for x in xs:
        BayesianGaussianMixture(n_components=10, weight_concentration_prior=0.7, **how).fit(x)


def chains(model: NCP, x: Tensor, n_chains: int = 20, n_draws: int = 1000) -> object:
    start = model.sample(x, n_chains, seed=0).expand()
    return gibbs(x, model.mixture, n_draws, start=start, n_chains=n_chains, seed=0)


def waits(plane: NCP, line: NCP, quick: bool) -> list[str]:
    """The table of goals; what is lost."""
    few = [draw(plane, 50, seed) for seed in range(10 if quick else 100)]
    x, large, flat = draw(plane, 50), draw(plane, 300), draw(line, 50)
    jobs: dict[str, tuple[Job, float, float]] = {  # and how often it counts, and the goal
        "one data set, N = 50, S = 100, 2-D": (lambda: plane.sample(x, 100, seed=0), 1, 0.006),
        "S = 1,000": (lambda: plane.sample(x, 1000, seed=0), 1, 0.012),
        "N = 300, S = 100": (lambda: plane.sample(large, 100, seed=0), 1, 0.035),
        "1,000 data sets, N = 50, S = 100": (
            lambda: plane.sample_many(few, 100, seed=0),
            1000 / len(few),
            1.5,
        ),
        "20,000 samples, N = 50, 1-D": (lambda: line.sample(flat, 20_000, seed=0), 1, 1.0),
        "20 exact chains of 1,000 draws, N = 50": (lambda: chains(plane, x), 1, 2.0),
    }
    rival = "1,000 data sets, BayesianGaussianMixture"
    each = len(few) // 10 or 1
    timed: dict[str, Job] = {name: job for name, (job, _, _) in jobs.items()}
    timed[rival] = lambda: mixtures(few[:each])
    found = in_turn(timed, 2 if quick else 5)
    found = {n: s * (jobs[n][1] if n in jobs else 1000 / each) for n, s in found.items()}
    print("| work, one thread | CPU seconds | goal |\n|---|---|---|")
    for name, spread in found.items():
        goal = f"{jobs[name][2]:.3g}" if name in jobs else ""
        print(f"| {name} | {spread:.2g} | {goal} |")
    ratio = found[rival] / found["1,000 data sets, N = 50, S = 100"]
    print(f"\nOn 1,000 data sets `BayesianGaussianMixture` takes {ratio} times as long (goal 4).")
    missed = [
        f"{name} takes {found[name]:.2g} s instead of {goal:.3g}."
        for name, (_, _, goal) in jobs.items()
        if found[name].middle > goal
    ]
    if ratio.middle < 4:
        missed.append(f"1,000 data sets {ratio} times faster than a mixture instead of 4.")
    return missed


def growth(plane: NCP, quick: bool) -> list[str]:
    """The exponents; what is lost."""
    x = draw(plane, 50)
    grown: dict[str, tuple[list[int], Callable[[int], Job], float]] = {
        "N": (
            [100, 300] if quick else [100, 1000, 10_000],
            lambda n: lambda: plane.sample(separated(n, 4), 100, seed=0),
            1.1,
        ),
        "K": (
            [2, 8] if quick else [2, 8, 32],
            lambda k: lambda: plane.sample(separated(256, k), 100, seed=0),
            1.1,
        ),
        "S": (
            [100, 1000] if quick else [100, 1000, 10_000, 100_000],
            lambda s: lambda: plane.sample(x, s, seed=0),
            0.8,
        ),
    }
    print("\n| growth with | sizes: CPU seconds | exponent | goal |\n|---|---|---|---|")
    missed = []
    for name, (sizes, job, goal) in grown.items():
        found = in_turn({str(size): job(size) for size in sizes}, 1 if quick else 3)
        middles = [spread.middle for spread in found.values()]
        power = math.log(middles[-1] / middles[0]) / math.log(sizes[-1] / sizes[0])
        shown = ", ".join(f"{n:,}: {t:.2g}" for n, t in zip(sizes, middles, strict=True))
        print(f"| {name} | {shown} | {power:.2f} | {goal} |", flush=True)
        if power > goal:
            missed.append(f"time grows with {name} to the power {power:.2f} instead of {goal}.")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Best performing initialization did not converge")
    plane, line = load("gaussian-2d"), load("gaussian-1d")
    missed = waits(plane, line, quick)
    missed += growth(plane, quick)
    lost(missed)


if __name__ == "__main__":
    main()
