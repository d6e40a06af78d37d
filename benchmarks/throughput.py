"""Candidates per second of the whole training loop, and where its time goes.

    python benchmarks/throughput.py [experiments/gaussian-2d.toml] [--steps 40] [--threads 1]

The parts of the loop take turns, step by step, so that other work on the machine slows all of them
alike: drawing the data (with their exact targets), forward and backward, the rest of the step
(gradient norm, Adam, average), and the monitors. The step alone is forward and backward on data
that are there already, without soft targets, as `benchmarks/likelihood.py` measures it. The issue
asks for at least 60% of its rate. With `--threads 1` times are CPU seconds.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

from ncp.training import RunConfig, Trainer, accumulate, draw, held_out, permutation_spread

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="?", default=ROOT / "experiments" / "gaussian-2d.toml")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    run = RunConfig.from_toml(options.config)
    if run.mixture.likelihood.__class__.__name__ == "LabelledArrays":
        from ncp.datasets import mnist

        digits = mnist()
        run.mixture.likelihood.attach(digits.train_images, digits.train_labels)  # type: ignore[attr-defined]
    clock = time.process_time if options.threads == 1 else time.perf_counter
    spent = dict.fromkeys(("draw", "step", "alone", "monitors", "checkpoint"), 0.0)
    candidates = 0
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(run, directory)
        trainer.advance(draw(run, 0, 0, 10**6))  # warm up
        for step in range(options.steps):
            times = [clock()]
            pieces = draw(run, 0, 0, step)
            times.append(clock())
            trainer.advance(pieces)
            times.append(clock())
            hard = [piece._replace(targets=None) for piece in pieces]
            candidates += accumulate(trainer.model, hard).candidates
            times.append(clock())
            for name, before, after in zip(spent, times, times[1:], strict=False):
                spent[name] += after - before
            if step % run.training.log_every == 0:
                permutation_spread(trainer.model, run, 2**41, 0, step)
                spent["monitors"] += clock() - times[-1]
        start = clock()
        held_out(trainer.best, run)
        spent["monitors"] += (clock() - start) * options.steps / run.training.validate_every
        start = clock()
        trainer.save()
        whole = spent["draw"] + spent["step"] + spent["monitors"]
        spent["checkpoint"] = (clock() - start) * whole / run.training.checkpoint_seconds
    whole += spent["checkpoint"]
    n_parameters = sum(p.numel() for p in trainer.model.parameters())
    print(f"{run.name}: {n_parameters:,} parameters, {options.threads} thread(s)")
    print(
        f"{candidates / options.steps:,.0f} candidates a step, {whole / options.steps:.3f} s a step"
    )
    for name in ("draw", "step", "monitors", "checkpoint"):
        print(f"  {name:<12} {spent[name] / whole:6.1%}")
    print(f"step alone: {candidates / spent['alone']:>10,.0f} candidates/s")
    print(f"whole loop: {candidates / whole:>10,.0f} candidates/s")
    print(f"ratio:      {spent['alone'] / whole:>10.0%}")


if __name__ == "__main__":
    main()
