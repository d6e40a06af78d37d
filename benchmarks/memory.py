"""Peak memory and seconds of whole jobs, each in a process of its own.

    python benchmarks/memory.py [--quick] [--threads 2]

The peak is that of the process (`ru_maxrss`); the first line only loads Python, PyTorch and the
weights. Medians of several processes, in brackets the least and the largest. The paper's mini-batch
is that of `benchmarks/likelihood.py`; the last lines are `ncp.cluster` with its defaults. Goals:
each but the published manner under 1 GiB, and tables in the seconds named, on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from _timing import Spread, lost

# Nothing else is imported here: a process inherits the peak of the one that starts it.

MODELS = ("gaussian-2d", "gaussian-1d", "tabular")
TURNS = 3
PEAK = 2**30  # the goal
PUBLISHED = "training step, paper's mini-batch, published manner"
Job = Callable[[], object]


def load_only(_: int) -> tuple[Job, Job]:
    from ncp.model import load

    return lambda: None, lambda: load("gaussian-2d")


def paper_step(n_orders: int, published: bool = False) -> tuple[Job, Job]:
    import torch
    from likelihood import N_DATASETS, authors, mini_batch, published_manner, with_torchs_prelu

    from ncp.training.loss import accumulate

    torch.manual_seed(0)
    model = authors()
    data = mini_batch(torch.Generator().manual_seed(0))
    data = data._replace(labels=data.labels[:, :n_orders], orders=data.orders[:, :n_orders])
    if not published:
        small = data.rows(slice(0, 1))
        return lambda: accumulate(model, [small]), lambda: accumulate(model, [data])
    plain = with_torchs_prelu(model)
    along = data.x[torch.arange(N_DATASETS)[:, None, None], data.orders]
    orders, labels = list(along.unbind(1)), data.labels[0, 0]
    few = [orders[0][:1]]
    return (
        lambda: published_manner(plain, few, labels),
        lambda: published_manner(plain, orders, labels),
    )


def shipped_step(n_points: int) -> tuple[Job, Job]:
    import tempfile
    from dataclasses import replace

    from throughput import RECIPE

    from ncp.training.data import draw
    from ncp.training.recipe import Recipe
    from ncp.training.state import Trainer

    recipe = Recipe.from_toml(RECIPE)
    large, small = (
        replace(recipe, phases=(replace(recipe.phases[0], points_per_step=n),))
        for n in (n_points, 100)
    )
    trainer = Trainer(large, tempfile.gettempdir())  # nothing is written
    return (
        lambda: trainer.advance(draw(small, 0, 0, 1)),
        lambda: trainer.advance(draw(large, 0, 0, 0)),
    )


def samples(n_samples: int) -> tuple[Job, Job]:
    import torch

    from ncp.model import load

    model = load("gaussian-1d")
    assert model.mixture is not None
    x = model.mixture.sample(1, 50, generator=torch.Generator().manual_seed(3)).x[0]
    return lambda: model.sample(x[:5], 10, seed=0), lambda: model.sample(x, n_samples, seed=0)


def data_sets(n: int) -> tuple[Job, Job]:
    import torch

    from ncp.model import load

    model = load("gaussian-2d")
    assert model.mixture is not None
    xs = list(model.mixture.sample(n, 50, generator=torch.Generator().manual_seed(0)).x)
    return (
        lambda: model.sample_many(xs[:2], 10, seed=0),
        lambda: model.sample_many(xs, 100, seed=0),
    )


def table(n_rows: int, n_columns: int) -> tuple[Job, Job]:
    import numpy as np

    import ncp

    rng = np.random.default_rng(0)
    centres = rng.normal(0.0, 4.0, size=(6, n_columns))
    x = centres[rng.integers(6, size=n_rows)] + rng.normal(size=(n_rows, n_columns))
    return lambda: ncp.cluster(x[:300], seed=0), lambda: ncp.cluster(x, seed=0)


# What to print, how to make it, its size, its size with --quick, the most seconds.
JOBS: list[tuple[str, Callable[[int], tuple[Job, Job]], int, int, float]] = [
    ("weights loaded, nothing done", load_only, 0, 0, math.inf),
    (PUBLISHED, lambda n: paper_step(n, published=True), 8, 1, math.inf),
    ("training step, paper's mini-batch, ours", paper_step, 8, 1, math.inf),
    ("training step, shipped network, {:,} points", shipped_step, 1_600, 200, math.inf),
    ("training step, shipped network, {:,} points", shipped_step, 12_800, 400, math.inf),
    ("sampler, S = {:,}, N = 50", samples, 20_000, 100, math.inf),
    ("sampler, S = {:,}, N = 50", samples, 100_000, 1_000, math.inf),
    ("{:,} data sets, N = 50, S = 100", data_sets, 100, 4, math.inf),
] + [
    (f"`ncp.cluster`, {{:,}} rows x {p} columns", partial(table, n_columns=p), n, small, most)
    for n, p, small, most in (
        (150, 4, 100, 0.15),
        (1_000, 8, 400, 1.5),
        (10_000, 8, 1_500, 4.0),
        (100_000, 8, 2_000, math.inf),
        (200_000, 6, 2_500, 15.0),
    )
]


def one(number: int, quick: bool, threads: int) -> dict[str, float]:
    """What a process of its own reports about one job."""
    import torch

    torch.set_num_threads(threads)
    _, make, size, small, _ = JOBS[number]
    warm_up, job = make(small if quick else size)
    warm_up()
    begin = time.perf_counter()
    job()
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "peak": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(one(options.one, options.quick, options.threads)))
        return
    print(f"{options.threads} threads, {options.turns} processes for each line.\n")
    print("| job | seconds | goal | peak memory, MiB |\n|---|---|---|---|")
    missed = []
    for number, (title, _, size, small, most) in enumerate(JOBS):
        command = [sys.executable, __file__, "--one", str(number)]
        command += ["--threads", str(options.threads)] + ["--quick"] * options.quick
        runs = [json.loads(subprocess.check_output(command)) for _ in range(options.turns)]
        seconds = Spread.of([run["seconds"] for run in runs])
        peak = Spread.of([run["peak"] for run in runs])
        name = title.format(small if options.quick else size)
        goal = most if most < math.inf else ""
        print(f"| {name} | {seconds:.2f} | {goal} | {peak * 2**-20:.0f} |", flush=True)
        if seconds.middle > most:
            missed.append(f"{name}: {seconds:.2f} s instead of {most}.")
        if title != PUBLISHED and peak.high >= PEAK:
            missed.append(f"{name}: peak memory {peak * 2**-30:.2f} GiB instead of under 1.")
    lost(missed)


if __name__ == "__main__":
    main()
