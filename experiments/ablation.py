"""What each part of the network is worth: equal budgets, two seeds, the 2-D Gaussian model.

    python experiments/ablation.py [--steps 500] [--seeds 2] [--threads 1]

Every variant is trained for the same number of steps on the same data and measured on the same
fresh data sets: NLL per point at N = 50 (400 data sets; lower is better, the entropy of the exact
posterior is the floor), and the mean total variation of the last conditional to the exact one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

import torch
from rich.progress import track

from ncp.checks.exact import last_point_tv
from ncp.generative.model import GenerativeModel
from ncp.network.network import Network, NetworkSpec
from ncp.training.data import draw, stream
from ncp.training.recipe import Recipe
from ncp.training.state import Trainer

SEES = ["G", "Q", "point"]
PAPER = NetworkSpec().to_dict()
RESIDUAL = {part: PAPER[part] | {"residual": True} for part in ("encoder", "g", "f")}
BOTH = {"f_sees": [*SEES, "candidate"], **RESIDUAL}
VARIANTS: dict[str, dict[str, Any]] = {
    "the paper's: f(G, Q, h_n)": {},
    "own encoder for Q": {"unassigned_encoder": PAPER["encoder"]},
    "f does not see h_n": {"f_sees": ["G", "Q"]},
    "f sees g(H_k + h_n)": {"f_sees": [*SEES, "candidate"]},
    "skip connections": RESIDUAL,
    "both": BOTH,
    "both, means with logarithms of counts": {**BOTH, "pooling": "mean"},
    "both, attention of two blocks": {**BOTH, "attention": {"blocks": 2, "rbf_octaves": 0}},
}


def trained(changes: dict[str, Any], steps: int, seed: int) -> tuple[Network, float]:
    recipe = Recipe.from_dict(
        {
            "name": "ablation",
            "seed": 1000 + seed,
            "generative": {
                "sizes": [5, 100],
                "prior": {"kind": "CRP", "alpha": 0.7},
                "likelihood": {"kind": "GaussianKnownVariance", "dim": 2, "prior_sd": 10.0},
            },
            "network": changes,
            "phase": [
                {
                    "steps": steps,
                    "points_per_step": 1600,
                    "learning_rate": 5e-4,
                    "warmup": 100,
                    "ema": 0.99,
                }
            ],
        }
    )
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(recipe, directory)
        begin = time.process_time()
        for step in range(steps):
            trainer.advance(draw(recipe, 0, 0, step))
    return trainer.best.eval(), time.process_time() - begin


@torch.no_grad()
def measure(model: Network, mixture: GenerativeModel) -> tuple[float, float]:
    batch = mixture.sample(400, 50, generator=stream(31))
    nll = -float(model.log_prob(batch.x, batch.labels).mean()) / 50
    tv = last_point_tv(model.log_prob, mixture, n_points=50, n_datasets=200, seed=32)
    return nll, tv.mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lines = []
    for name, changes in track(list(VARIANTS.items()), "variants"):
        cells, seconds = [], 0.0
        for seed in range(options.seeds):
            model, took = trained(changes, options.steps, seed)
            assert model.mixture is not None
            cells.append(measure(model, model.mixture))
            seconds += took / options.seeds
        nll, tv = (" / ".join(f"{cell[i]:.4f}" for cell in cells) for i in (0, 1))
        lines.append(f"| {name} | {nll} | {tv} | {seconds:.0f} |")
    print(f"{options.steps} steps of 1,600 points, {options.seeds} seeds.\n")
    print("| variant | NLL per point, N = 50 | mean TV, N = 50 | CPU seconds |")
    print("|---|---|---|---|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
