"""The sampler: the prefix tree beside S separate states, and its cost against N, K and S.

    python benchmarks/sampling.py [--quick] [--model gaussian-1d] [--threads 2]

First S = 20,000 samples of N = 50 points, each sampler in a process of its own (for its peak
memory): time, candidate evaluations of g and f. The sampler with separate states is Algorithm 1 for
all samples at once, with the stored g(H_k) that make it O(NK), in batches of 2,000. `--quick` runs
it for 500 samples and multiplies. Then cost tables with the exponents fitted by least squares of
log time on log size: over the whole range, and between the last two sizes, where fixed costs do
not count. N and K are varied with the model `gaussian-2d` on separated clusters, so that nothing
else changes with them (the network was trained on up to 100 points; where it finds more clusters in
more points, mean K shows it). With
`--threads 1` times are CPU seconds. Goals: at least 20 times faster, under 1 GiB; linear in N and
K, far below linear in S.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ncp.model import NCP
from ncp.partitions import Partitions
from ncp.pretrained import load
from ncp.sampling import TreeSampler, sample_many

S, N, BATCH = 20_000, 50, 2_000


@torch.no_grad()
def separate_states(model: NCP, x: Tensor, n_samples: int, seed: int) -> tuple[np.ndarray, int]:
    """Labels (S, N) from S copies of the state, and the number of evaluations of g and of f."""
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    x = (model.check_points(x) - model.location) / model.scale
    h = model.h(x)
    h = h if model.context is None else model.context(h[None])[0]
    q = h if model.q is None else model.q(x)
    first = partial(torch.nn.functional.linear, weight=next(model.g[0].parameters()))
    labels = torch.zeros(n_samples, len(x), dtype=torch.long)
    evaluations = 0
    rows = torch.arange(n_samples)
    H = torch.zeros(n_samples, 1, config.h_dim)
    H[:, 0] = h[0]
    g = torch.zeros(n_samples, 1, config.g_dim)
    g[:, 0] = model.g(h[:1])
    k = torch.ones(n_samples, dtype=torch.long)
    for n in range(1, len(x)):
        n_slots = int(k.max()) + 1
        H = torch.nn.functional.pad(H, (0, 0, 0, n_slots - H.shape[1]))
        g = torch.nn.functional.pad(g, (0, 0, 0, n_slots - g.shape[1]))
        row, slot = (torch.arange(n_slots) <= k[:, None]).nonzero(as_tuple=True)
        joined = model.g(H[row, slot] + h[n])
        seen = [g.sum(1)[row] + joined - g[row, slot], q[n + 1 :].sum(0).expand(len(row), -1)]
        seen += [h[n].expand(len(row), -1)] if config.point_in_f else []
        seen += [joined] if config.candidate_in_f else []
        seen += [first(H[row, slot]) * first(h[n])] if config.product_in_f else []
        logits = torch.full((n_samples, n_slots), -torch.inf)
        logits[row, slot] = model.f(torch.cat(seen, 1))[:, 0]
        evaluations += len(row)
        choice = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        of = torch.zeros(n_samples, n_slots, dtype=torch.long)
        of[row, slot] = torch.arange(len(row))
        H[rows, choice] += h[n]
        g[rows, choice] = joined[of[rows, choice]]
        k += choice == k
        labels[:, n] = choice
    return labels.numpy(), evaluations


def timer() -> Callable[[], float]:
    """CPU seconds of a single thread, which mean something on a busy machine too."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


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
            clock = timer()
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
        clock = timer()
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


def exponent(sizes: list[float], costs: list[float]) -> str:
    slope = np.polyfit(np.log(sizes), np.log(costs), 1)[0]
    last = math.log(costs[-1] / costs[-2]) / math.log(sizes[-1] / sizes[-2])
    return f"{slope:.2f} (last two: {last:.2f})"


def table(
    name: str, sizes: Iterable[int], measure: Callable[[int], Measured], by_k: bool = False
) -> None:
    print(f"\n| {name} | seconds | evaluations of g | of f | distinct rows | mean K |")
    print("|---|---|---|---|---|---|")
    xs: list[float] = []
    costs: list[list[float]] = []
    measure(next(iter(sizes)))  # warm up
    for size in sizes:
        run = measure(size)
        xs.append(run.mean_k if by_k else size)
        costs.append([run.seconds, run.n_embed, run.n_logit])
        distinct = sum(len(result) for result in run.results)
        print(
            f"| {size:,} | {run.seconds:.3f} | {run.n_embed:,} | {run.n_logit:,} "
            f"| {distinct:,} | {run.mean_k:.1f} |"
        )
    fits = [exponent(xs, list(column)) for column in zip(*costs, strict=True)]
    print(f"| exponent{' in K' if by_k else ''} | {' | '.join(fits)} | | |")


def comparison(options: argparse.Namespace) -> None:
    n_separate = 500 if options.quick else S
    reports = {}
    for sampler, n_samples in (("tree", S), ("separate", n_separate)):
        command = [sys.executable, __file__, "--model", options.model]
        command += ["--threads", str(options.threads), "--one", sampler, str(n_samples)]
        reports[sampler] = json.loads(subprocess.check_output(command))
    tree, naive = reports["tree"], reports["separate"]
    scale = S / n_separate
    print("| sampler | seconds | evaluations of g | of f | mean K | peak memory, MiB |")
    print("|---|---|---|---|---|---|")
    note = f" ({n_separate} samples, times {scale:.0f})" if scale != 1 else ""
    for name, report, factor in (
        ("prefix tree", tree, 1.0),
        (f"{S:,} separate states{note}", naive, scale),
    ):
        print(
            f"| {name} | {report['seconds'] * factor:.2f} | {report['g'] * factor:,.0f} "
            f"| {report['f'] * factor:,.0f} | {report['k']:.2f} | {report['peak'] / 2**20:.0f} |"
        )
    print(f"\nThe tree is {naive['seconds'] * scale / tree['seconds']:.0f} times faster.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller tables")
    parser.add_argument("--model", default="gaussian-1d", help="name or file of the weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", nargs=2, metavar=("SAMPLER", "S"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = load(options.model)
    if options.one:
        print(json.dumps(one(model, options.one[0], int(options.one[1]))))
        return
    print(f"S = {S:,} samples, N = {N}, model {options.model}, {options.threads} threads.\n")
    comparison(options)
    quick, plane = options.quick, load("gaussian-2d")
    table(
        "N (four separated clusters, S = 100)",
        [10, 30, 100, 300] if quick else [10, 30, 100, 300, 1000, 3000],
        lambda n: Measured(plane, [separated(n, 4)], 100),
    )
    table(
        "clusters (N = 256, S = 100)",
        [2, 4, 8] if quick else [1, 2, 4, 8, 16, 32],
        lambda k: Measured(plane, [separated(256, k)], 100),
        by_k=True,
    )
    table(
        "S (N = 50)",
        [100, 1000, 10_000] if quick else [100, 1000, 10_000, 100_000],
        lambda s: Measured(model, [draw(model, N)], s),
    )
    table(
        "data sets (N = 50, S = 100)",
        [1, 10, 100] if quick else [1, 10, 100, 1000],
        lambda d: Measured(model, [draw(model, N, seed) for seed in range(d)], 100),
    )


if __name__ == "__main__":
    main()
