"""What Rao-Blackwellising the last r points is worth, and what it costs.

    python benchmarks/rao_blackwell.py [--steps 150] [--datasets 300]

The gradient of a small network, trained for a moment, with sampled labels and with the exact
conditionals of the last r points, on the same data: the sum of the variances of all coordinates
relative to the plain gradient (± bootstrap), how far the means are apart in standard errors, and
the extra CPU time. Worth it where variance x time is below 1.
"""

import argparse
import tempfile
import time

import torch
from _timing import lost
from torch import Tensor

from ncp.network.network import Network
from ncp.training.data import Sequences, sequences
from ncp.training.loop import train
from ncp.training.loss import objective
from ncp.training.recipe import Recipe
from ncp.training.targets import tail_targets

N = 20
GROUP = 4  # data sets of one gradient
LIKELIHOODS = {
    "conjugate (Gaussian)": {"kind": "GaussianKnownVariance", "dim": 2, "prior_sd": 3.0},
    "given the parameters (Laplace)": {"kind": "LaplaceNoise", "dim": 2, "prior_sd": 3.0},
}


def recipe_of(likelihood: dict[str, object], steps: int) -> Recipe:
    narrow = {"width": 64, "depth": 3}
    network = {
        "encoder": {"kind": "MLPEncoder", "out": 64, **narrow},
        "g": {"out": 64, **narrow},
        "f": narrow,
        "f_sees": ["G", "Q", "point", "candidate"],
    }
    return Recipe.from_dict(
        {
            "name": "rao-blackwell",
            "generative": {
                "sizes": [N, N],
                "prior": {"kind": "CRP", "alpha": 1.0},
                "likelihood": likelihood,
            },
            "network": network,
            "phase": [{"steps": steps, "points_per_step": 800, "warmup": 20}],
        }
    )


def gradients(model: Network, data: Sequences) -> tuple[Tensor, float]:
    """A row for each group of data sets, and the CPU seconds it took."""
    rows = []
    start = time.process_time()
    for first in range(0, len(data.x), GROUP):
        loss = objective(model, data.rows(slice(first, first + GROUP))).loss
        parts = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows), time.process_time() - start


def variance_ratio(exact: Tensor, plain: Tensor, draws: int = 200) -> tuple[float, float]:
    """Ratio of the summed variances, and its standard error by bootstrap over groups."""
    square = [(g - g.mean(0)).square().sum(1) for g in (exact, plain)]
    index = torch.randint(len(exact), (draws, len(exact)), generator=torch.Generator())
    ratios = square[0][index].sum(1) / square[1][index].sum(1)
    return float(square[0].sum() / square[1].sum()), float(ratios.std())


def distance(exact: Tensor, plain: Tensor) -> float:
    """Root mean square over 50 random directions of the difference of means over its error."""
    shape = (plain.shape[1], 50)
    along = (exact - plain) @ torch.randn(shape, generator=torch.Generator().manual_seed(0))
    z = along.mean(0) / along.std(0) * len(along) ** 0.5
    return float(z.square().mean().sqrt())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--datasets", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    missed = []
    for name, likelihood in LIKELIHOODS.items():
        recipe = recipe_of(likelihood, options.steps)
        with tempfile.TemporaryDirectory() as directory:
            model = train(recipe, directory, progress=False)
        generator = torch.Generator().manual_seed(1)
        batch = recipe.generative.sample(
            options.datasets, N, extra_parameters=5, generator=generator
        )
        data = sequences(batch, 1, recipe.generative, generator=generator)
        data = data._replace(x=data.x.float())
        gradients(model, data.rows(slice(0, 2 * GROUP)))  # warm up
        plain, step_seconds = gradients(model, data)
        print(f"\n{name}, N = {N}, after {recipe.steps} steps:\n")
        dear = []
        print("| r | variance ratio | means apart | extra time | variance x time |")
        print("|---|---|---|---|---|")
        for r in range(1, 6):
            start = time.process_time()
            targets = tail_targets(batch, data.orders, recipe.generative, r)
            extra = (time.process_time() - start) / step_seconds
            exact, _ = gradients(model, data._replace(targets=targets))
            ratio, error = variance_ratio(exact, plain)
            apart = distance(exact, plain)
            worth = ratio * (1 + extra)
            print(
                f"| {r} | {ratio:.3f} ± {error:.3f} | {apart:.2f} se | {extra:.0%} | {worth:.2f} |"
            )
            if worth > 1:
                dear.append(f"{r} ({worth:.2f})")
        if dear:
            missed.append(
                f"{name}: exact targets of the last r points cost more time than the variance they "
                f"save for r = {', '.join(dear)} (variance x time)."
            )
    lost(missed)


if __name__ == "__main__":
    main()
