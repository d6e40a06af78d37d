"""Candidates per second of the whole training loop, and where its time goes.

    python benchmarks/throughput.py [CONFIG.toml] [--steps 40] [--threads 1]

Without a config: the last stage of the shipped `gaussian-2d`, its first steps, as the file's header
has it, from the shipped weights. The parts of the loop take turns, step by step, so that other work
on the machine slows all of them alike: drawing the data (with their exact targets), forward and
backward, the rest of the step (gradient norm, Adam, average), and the monitors; validation and
checkpoints are timed once and spread over the steps between them. The step alone is forward and
backward on data that are there already, without soft targets, as `benchmarks/likelihood.py`
measures it. Medians over groups of ten steps, in brackets the least and the largest. Goal: at least
60% of the rate of the step alone. With `--threads 1` times are CPU seconds.
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from _turns import Spread, clock_for, lost

from ncp.network.checkpoint import read
from ncp.network.pretrained import find
from ncp.training.data import draw
from ncp.training.loss import accumulate
from ncp.training.monitors import held_out, permutation_spread
from ncp.training.recipe import RunConfig
from ncp.training.state import Trainer

SHIPPED = "gaussian-2d"
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


def shipped_run() -> RunConfig:
    """The run that made the shipped weights; it starts from them, not from the stage before."""
    path = find(SHIPPED)
    return replace(RunConfig.from_dict(read(path).info["run"]), initial=str(path))


def attach_images(run: RunConfig) -> None:
    if run.mixture.likelihood.__class__.__name__ == "LabelledArrays":
        from ncp.generative.mnist import mnist

        digits = mnist()
        run.mixture.likelihood.attach(digits.train_images, digits.train_labels)  # type: ignore[attr-defined]


def measure(trainer: Trainer, n_steps: int, clock: Callable[[], float]) -> list[Group]:
    run = trainer.run
    trainer.advance(draw(run, 0, 0, 10**6))  # warm up
    groups = []
    for first in range(0, n_steps, GROUP):
        spent, candidates = [0.0, 0.0, 0.0], 0
        for step in range(first, first + GROUP):
            times = [clock()]
            pieces = draw(run, 0, 0, step)
            times.append(clock())
            trainer.advance(pieces)
            times.append(clock())
            hard = [p._replace(targets=None, same=None, tail_only=False) for p in pieces]
            candidates += accumulate(trainer.model, hard).candidates
            times.append(clock())
            spent = [s + b - a for s, a, b in zip(spent, times, times[1:], strict=False)]
        begin = clock()
        permutation_spread(trainer.model, run, 2**41, 0, first)
        monitors = (clock() - begin) * GROUP / run.training.log_every
        groups.append(Group(spent[0], spent[1], monitors, 0.0, spent[2], candidates))
    begin = clock()
    held_out(trainer.best, run)
    validation = (clock() - begin) * GROUP / run.training.validate_every
    begin = clock()
    trainer.save()
    share = (clock() - begin) / run.training.checkpoint_seconds  # of the time of the rest
    groups = [group._replace(monitors=group.monitors + validation) for group in groups]
    return [group._replace(checkpoint=group.whole * share) for group in groups]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="?", help="a TOML file instead of the shipped run")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    run = RunConfig.from_toml(options.config) if options.config else shipped_run()
    attach_images(run)
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(run, directory)
        clock = clock_for(options.threads)
        groups = measure(trainer, options.steps, clock)
    n_steps = GROUP * len(groups)
    n_candidates = sum(group.candidates for group in groups) / n_steps
    n_parameters = sum(p.numel() for p in trainer.model.parameters())
    print(
        f"{run.name}: {n_parameters:,} parameters, {options.threads} thread(s), {n_steps} steps of "
        f"{n_candidates:,.0f} candidates on average.\n"
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
