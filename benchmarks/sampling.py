"""The sampler: the prefix tree beside S separate states, and its cost against N, K and S.

    python benchmarks/sampling.py [--quick] [--model gaussian-1d] [--threads 2]

First S = 20,000 samples of N = 50 points, each sampler in a process of its own (for its peak
memory): time, candidate evaluations of g and f. The sampler with separate states is Algorithm 1 for
all samples at once, with the stored g(H_k) that make it O(NK), in batches of 2,000. The tree has 3
turns, separate states 2 turns of half of the samples, times 2 (`--quick`: of 500 samples, times
40). Then cost tables with the exponents fitted by least squares of log time on log size: over the
whole range, and between the last two sizes, where fixed costs do not count. A size has 3 turns, or
as many as begin within 5 seconds. N and K are varied with the model `gaussian-2d` on separated
clusters, so that nothing else changes with them (the network was trained on up to 100 points; where
it finds more clusters in more points, mean K shows it). Seconds are medians, in brackets the least
and the largest; the range of a ratio is that of least by largest to largest by least. With
`--threads 1` times are CPU seconds. Goals: at least 20 times faster, under 1 GiB; linear in N and K
(an exponent of at most 1.1), far below linear in S (at most 0.8).
"""

import argparse
import json
import math
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch
from _turns import Spread, clock_for, lost
from torch import Tensor

from ncp.model import NCP
from ncp.network.pretrained import load
from ncp.posterior import Partitions
from ncp.sampling.tree import TreeSampler, sample_many

S, N, BATCH = 20_000, 50, 2_000
TURNS, SEPARATE_TURNS, ENOUGH_SECONDS = 3, 2, 5.0
TIMES_FASTER, PEAK = 20, 2**30  # the goals
LINEAR, FAR_BELOW_LINEAR = 1.1, 0.8


@torch.no_grad()
def separate_states(model: NCP, x: Tensor, n_samples: int, seed: int) -> tuple[np.ndarray, int]:
    """Labels (S, N) from S copies of the state, and the number of evaluations of g and of f."""
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    x = model.check_points(x)
    h, q = model.features(x)
    h = h if model.context is None else model.context(h[None])[0]
    u = model.summands(h, model.fold())
    h = h[:, : config.h_dim]
    q = h if q is None else q
    labels = torch.zeros(n_samples, len(x), dtype=torch.long)
    evaluations = 0
    rows = torch.arange(n_samples)
    H = torch.zeros(n_samples, 1, config.h_dim)
    H[:, 0] = h[0]
    U = torch.zeros(n_samples, 1, u.shape[1])
    U[:, 0] = u[0]
    g = torch.zeros(n_samples, 1, config.g_dim)
    g[:, 0] = model.g(h[:1])
    k = torch.ones(n_samples, dtype=torch.long)
    for n in range(1, len(x)):
        n_slots = int(k.max()) + 1
        H = torch.nn.functional.pad(H, (0, 0, 0, n_slots - H.shape[1]))
        U = torch.nn.functional.pad(U, (0, 0, 0, n_slots - U.shape[1]))
        g = torch.nn.functional.pad(g, (0, 0, 0, n_slots - g.shape[1]))
        row, slot = (torch.arange(n_slots) <= k[:, None]).nonzero(as_tuple=True)
        joined = model.g(H[row, slot] + h[n])
        seen = [g.sum(1)[row] + joined - g[row, slot], q[n + 1 :].sum(0).expand(len(row), -1)]
        seen += [h[n].expand(len(row), -1)] if config.point_in_f else []
        seen += [joined] if config.candidate_in_f else []
        if config.n_alike:
            seen.append(model.alike(U[row, slot], u[n].expand(len(row), -1)))
        logits = torch.full((n_samples, n_slots), -torch.inf)
        logits[row, slot] = model.f(torch.cat(seen, 1))[:, 0]
        evaluations += len(row)
        choice = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        of = torch.zeros(n_samples, n_slots, dtype=torch.long)
        of[row, slot] = torch.arange(len(row))
        H[rows, choice] += h[n]
        U[rows, choice] += u[n]
        g[rows, choice] = joined[of[rows, choice]]
        k += choice == k
        labels[:, n] = choice
    return labels.numpy(), evaluations


class Measured:
    """Samples with the time and the evaluations that they took."""

    def __init__(self, model: NCP, xs: list[Tensor], n_samples: int) -> None:
        counters: list[TreeSampler] = []
        original = TreeSampler.__init__

        def remember(self: TreeSampler, model: NCP) -> None:
            original(self, model)
            counters.append(self)

        TreeSampler.__init__ = remember  # type: ignore[method-assign]
        try:
            clock = clock_for(torch.get_num_threads())
            begin = clock()
            self.results: list[Partitions] = sample_many(model, xs, n_samples, seed=0)
            self.seconds = clock() - begin
        finally:
            TreeSampler.__init__ = original  # type: ignore[method-assign]
        self.n_embed, self.n_logit = counters[0].n_embed, counters[0].n_logit
        rows = self.results[0]
        self.mean_k = float((rows.weights * rows.n_clusters).sum())


def one(model: NCP, sampler: str, n_samples: int) -> dict[str, float]:
    """What a process of its own reports about one sampler."""
    x = draw(model, N)
    if sampler == "tree":
        run = Measured(model, [x], n_samples)
        seconds, n_embed, n_logit, k = run.seconds, run.n_embed, run.n_logit, run.mean_k
    else:
        clock = clock_for(torch.get_num_threads())
        begin = clock()
        parts = [
            separate_states(model, x, min(BATCH, n_samples - start), start)
            for start in range(0, n_samples, BATCH)
        ]
        seconds = clock() - begin
        n_embed = n_logit = sum(evaluations for _, evaluations in parts)
        k = float(np.mean(np.concatenate([labels.max(1) + 1 for labels, _ in parts])))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "g": n_embed, "f": n_logit, "k": k, "peak": peak}


def draw(model: NCP, n: int, seed: int = 3) -> Tensor:
    assert model.mixture is not None
    return model.mixture.sample(1, n, generator=torch.Generator().manual_seed(seed)).x[0]


def separated(n: int, k: int) -> Tensor:
    """n points of the plane in k clusters on a grid, eight noise widths apart, in turn."""
    side = math.ceil(math.sqrt(k))
    cell = torch.arange(n) % k
    centre = 8.0 * (torch.stack([cell // side, cell % side], 1) - (side - 1) / 2)
    return centre + torch.randn(n, 2, generator=torch.Generator().manual_seed(k))


def exponents(sizes: list[float], costs: list[float]) -> tuple[float, float]:
    """Over the whole range, and between the last two sizes."""
    slope = np.polyfit(np.log(sizes), np.log(costs), 1)[0]
    last = math.log(costs[-1] / costs[-2]) / math.log(sizes[-1] / sizes[-2])
    return float(slope), last


def turns_of(measure: Callable[[], Measured]) -> tuple[Measured, Spread]:
    runs = [measure()]
    while len(runs) < TURNS and sum(run.seconds for run in runs) < ENOUGH_SECONDS:
        runs.append(measure())
    return runs[-1], Spread.of([run.seconds for run in runs])


def table(
    name: str,
    sizes: Iterable[int],
    measure: Callable[[int], Measured],
    at_most: float = LINEAR,
    by_k: bool = False,
) -> list[str]:
    """Print the costs; what is lost if the exponent of time is more than it should be."""
    print(f"\n| {name} | seconds | evaluations of g | of f | distinct rows | mean K |")
    print("|---|---|---|---|---|---|")
    xs: list[float] = []
    costs: list[list[float]] = []
    measure(next(iter(sizes)))  # warm up
    for size in sizes:
        run, seconds = turns_of(partial(measure, size))
        xs.append(run.mean_k if by_k else size)
        costs.append([seconds.middle, run.n_embed, run.n_logit])
        distinct = sum(len(result) for result in run.results)
        print(
            f"| {size:,} | {seconds:.3f} | {run.n_embed:,} | {run.n_logit:,} "
            f"| {distinct:,} | {run.mean_k:.1f} |",
            flush=True,
        )
    fits = [exponents(xs, list(column)) for column in zip(*costs, strict=True)]
    shown = [f"{whole:.2f} (last two: {last:.2f})" for whole, last in fits]
    print(f"| exponent{' in K' if by_k else ''} | {' | '.join(shown)} | | |")
    whole, last = fits[0]
    if max(whole, last) <= at_most:
        return []
    return [
        f"the sampler's time grows with {name.partition(' (')[0]} to the power {whole:.2f} "
        f"(last two sizes: {last:.2f}) instead of at most {at_most}."
    ]


def comparison(options: argparse.Namespace) -> list[str]:
    """Print the two samplers; what is lost."""
    n_separate = 500 if options.quick else S // 2
    reports: dict[str, list[dict[str, float]]] = {}
    for sampler, n_samples, turns in (
        ("tree", S, TURNS),
        ("separate", n_separate, SEPARATE_TURNS),
    ):
        command = [sys.executable, __file__, "--model", options.model]
        command += ["--threads", str(options.threads), "--one", sampler, str(n_samples)]
        reports[sampler] = [json.loads(subprocess.check_output(command)) for _ in range(turns)]
    scale = S / n_separate
    print("| sampler | seconds | evaluations of g | of f | mean K | peak memory, MiB |")
    print("|---|---|---|---|---|---|")
    times = {}
    for name, sampler, factor in (
        (f"prefix tree, {TURNS} turns", "tree", 1.0),
        (
            f"{S:,} separate states, {SEPARATE_TURNS} turns of {n_separate:,}, times {scale:.0f}",
            "separate",
            scale,
        ),
    ):
        runs = reports[sampler]
        times[sampler] = Spread.of([run["seconds"] for run in runs]) * factor
        last, peak = runs[-1], max(run["peak"] for run in runs)
        print(
            f"| {name} | {times[sampler]:.2f} | {last['g'] * factor:,.0f} "
            f"| {last['f'] * factor:,.0f} | {last['k']:.2f} | {peak / 2**20:.0f} |"
        )
    faster = times["separate"] / times["tree"]
    print(f"\nThe tree is {faster:.1f} times faster.", flush=True)
    missed = []
    if faster.middle < TIMES_FASTER:
        missed.append(
            f"prefix tree {faster} times faster than separate states instead of {TIMES_FASTER}."
        )
    peak = max(run["peak"] for run in reports["tree"])
    if peak >= PEAK:
        missed.append(f"the sampler's peak memory is {peak / 2**30:.2f} GiB instead of under 1.")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller tables")
    parser.add_argument("--model", default="gaussian-1d", help="name or file of the weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", nargs=2, metavar=("SAMPLER", "S"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        print(json.dumps(one(load(options.model), options.one[0], int(options.one[1]))))
        return
    print(f"S = {S:,} samples, N = {N}, model {options.model}, {options.threads} threads.\n")
    # Before anything is loaded: a process inherits the peak of the one that starts it.
    missed = comparison(options)
    quick, model, plane = options.quick, load(options.model), load("gaussian-2d")
    missed += table(
        "N (four separated clusters, S = 100)",
        [10, 30, 100, 300] if quick else [10, 30, 100, 300, 1000, 3000],
        lambda n: Measured(plane, [separated(n, 4)], 100),
    )
    missed += table(
        "clusters (N = 256, S = 100)",
        [2, 4, 8] if quick else [1, 2, 4, 8, 16, 32],
        lambda k: Measured(plane, [separated(256, k)], 100),
        by_k=True,
    )
    missed += table(
        "S (N = 50)",
        [100, 1000, 10_000] if quick else [100, 1000, 10_000, 100_000],
        lambda s: Measured(model, [draw(model, N)], s),
        at_most=FAR_BELOW_LINEAR,
    )
    missed += table(
        "data sets (N = 50, S = 100)",
        [1, 10, 100] if quick else [1, 10, 100, 1000],
        lambda d: Measured(model, [draw(model, N, seed) for seed in range(d)], 100),
    )
    lost(missed)


if __name__ == "__main__":
    main()
