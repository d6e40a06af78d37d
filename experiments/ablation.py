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

import torch
from rich.progress import track
from torch import Tensor

from ncp.checks.exact import last_point_tv
from ncp.generative.mixture import Mixture
from ncp.model import NCP, Folded, Points
from ncp.training.data import draw, stream
from ncp.training.recipe import RunConfig
from ncp.training.state import Trainer

VARIANTS: dict[str, dict[str, object]] = {
    "the paper's: f(G, Q, h_n)": {},
    "own encoder for Q": {"separate_q": True},
    "f does not see h_n": {"point_in_f": False},
    "f sees g(H_k + h_n)": {"candidate_in_f": True},
    "skip connections": {"residual": True},
    "both": {"candidate_in_f": True, "residual": True},
    "both, H_k a mean with log-count": {"candidate_in_f": True, "residual": True, "mean": True},
    "both, context of two blocks": {"candidate_in_f": True, "residual": True, "context": 2},
}


class MeanNCP(NCP):
    """g sees the mean of h over a cluster, and the logarithm of its size in the last coordinate.

    The last coordinate of u counts: it is 1 for each point, so that sums of u carry the size.
    """

    def fold(self) -> Folded:
        folded = super().fold()
        keep = torch.ones_like(folded.b_u)
        keep[-1] = 0.0
        return folded._replace(b_u=folded.b_u * keep)

    def project(self, h: Tensor, q: Tensor | None, folded: Folded) -> Points:
        points = super().project(h, q, folded)
        u = torch.cat([points.u[:, :-1], torch.ones_like(points.u[:, -1:])], 1)
        return points._replace(u=u)

    def embed(self, v: Tensor) -> Tensor:
        size = v[:, -1:].clamp_min(1.0)
        return super().embed(torch.cat([v[:, :-1] / size, size.log()], 1))


def trained(changes: dict[str, object], steps: int, seed: int) -> tuple[NCP, float]:
    changes = dict(changes)
    mean = changes.pop("mean", False)
    run = RunConfig.from_dict(
        {
            "name": "ablation",
            "seed": 1000 + seed,
            "mixture": {
                "sizes": [5, 100],
                "prior": {"kind": "CRP", "alpha": 0.7},
                "likelihood": {"kind": "GaussianKnownVariance", "dim": 2, "prior_sd": 10.0},
            },
            "model": changes,
            "training": {
                "steps": steps,
                "points_per_step": 1600,
                "learning_rate": 5e-4,
                "warmup": 100,
                "ema": 0.99,
            },
        }
    )
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(run, directory)
        if mean:
            for model in (trainer.model, trainer.best):
                model.__class__ = MeanNCP
        begin = time.process_time()
        for step in range(steps):
            trainer.advance(draw(run, 0, 0, step))
    return trainer.best.eval(), time.process_time() - begin


@torch.no_grad()
def measure(model: NCP, mixture: Mixture) -> tuple[float, float]:
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
