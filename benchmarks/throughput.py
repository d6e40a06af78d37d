"""Candidates per second of the whole training loop, and where its time goes.

    python benchmarks/throughput.py [RECIPE.toml] [--steps 40] [--threads 1]

Without a recipe: the first steps of `experiments/gaussian-2d.toml`. The parts of the loop take
turns; validation and checkpoints are timed once and spread over the steps between them. The step
alone is forward and backward on data that are there already, without soft targets. Medians over
groups of ten steps, in brackets the least and the largest. Goal: at least 60% of the rate of the
step alone. With `--threads 1` times are CPU seconds.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from _timing import Spread, clock_for, lost

from ncp.generative.mnist import attach_arrays
from ncp.training.data import draw
from ncp.training.loss import accumulate
from ncp.training.monitors import held_out, permutation_spread
from ncp.training.recipe import Recipe
from ncp.training.state import Trainer

RECIPE = Path(__file__).resolve().parents[1] / "experiments" / "gaussian-2d.toml"
GROUP = 10  # steps
GOAL = 0.6


class Group(NamedTuple):
    """CPU or wall-clock seconds of the parts of a few steps, and their candidates."""

    draw: float
    step: float
    monitors: float
    checkpoint: float
    alone: float
    candidates: int

    @property
    def whole(self) -> float:
        return self.draw + self.step + self.monitors + self.checkpoint


def measure(trainer: Trainer, n_steps: int, clock: Callable[[], float]) -> list[Group]:
    recipe = trainer.recipe
    trainer.advance(draw(recipe, 0, 0, 10**6))  # warm up
    groups = []
    for first in range(0, n_steps, GROUP):
        spent, candidates = [0.0, 0.0, 0.0], 0
        for step in range(first, first + GROUP):
            times = [clock()]
            pieces = draw(recipe, 0, 0, step)
            times.append(clock())
            trainer.advance(pieces)
            times.append(clock())
            hard = [p._replace(targets=None, same=None, tail_only=False) for p in pieces]
            candidates += accumulate(trainer.model, hard).candidates
            times.append(clock())
            spent = [s + b - a for s, a, b in zip(spent, times, times[1:], strict=False)]
        begin = clock()
        permutation_spread(trainer.model, recipe, 2**41, 0, first)
        monitors = (clock() - begin) * GROUP / recipe.log_every
        groups.append(Group(spent[0], spent[1], monitors, 0.0, spent[2], candidates))
    begin = clock()
    held_out(trainer.best, recipe)
    validation = (clock() - begin) * GROUP / recipe.validate_every
    begin = clock()
    trainer.save()
    share = (clock() - begin) / recipe.checkpoint_seconds  # of the time of the rest
    groups = [group._replace(monitors=group.monitors + validation) for group in groups]
    return [group._replace(checkpoint=group.whole * share) for group in groups]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", default=RECIPE, help="another TOML file")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    recipe = Recipe.from_toml(options.recipe)
    attach_arrays(recipe.generative)
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(recipe, directory)
        clock = clock_for(options.threads)
        groups = measure(trainer, options.steps, clock)
    n_steps = GROUP * len(groups)
    n_candidates = sum(group.candidates for group in groups) / n_steps
    n_parameters = sum(p.numel() for p in trainer.model.parameters())
    print(
        f"{recipe.name}: {n_parameters:,} parameters, {options.threads} thread(s), "
        f"{n_steps} steps of {n_candidates:,.0f} candidates on average.\n"
    )
    print("| training loop | |\n|---|---|")
    print(f"| seconds a step | {Spread.of([g.whole / GROUP for g in groups]):.3f} |")
    for name in ("draw", "step", "monitors", "checkpoint"):
        share = Spread.of([getattr(g, name) / g.whole for g in groups])
        print(f"| of these, {name} | {share:.1%} |")
    alone = Spread.of([g.candidates / g.alone for g in groups])
    whole = Spread.of([g.candidates / g.whole for g in groups])
    ratio = Spread.of([g.alone / g.whole for g in groups])
    print(f"| candidates a second, step alone | {alone:,.0f} |")
    print(f"| candidates a second, whole loop | {whole:,.0f} |")
    print(f"| whole loop relative to the step alone | {ratio:.0%} |")
    if ratio.middle < GOAL:
        lost([f"the training loop has {ratio:.0%} of the rate of its step instead of {GOAL:.0%}."])


if __name__ == "__main__":
    main()
