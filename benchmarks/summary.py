"""Time of the partition summaries against N and the number of rows.

    python benchmarks/summary.py [--quick]

Draws scatter around one partition of eight clusters. CPU seconds on one thread of the similarity
matrix, the estimates under variation of information (VI; hits: how many of its restarts end at the
best) and Binder's loss, and the credible ball. Nothing is compared.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from ncp.summary.ball import credible_ball
from ncp.summary.estimate import point_estimate
from ncp.summary.similarity import similarity

SIZES = [(50, 1_000), (200, 1_000), (1_000, 200), (1_000, 1_000), (5_000, 200)]


def draws(rng: np.random.Generator, n_points: int, n_rows: int) -> np.ndarray:
    truth = rng.integers(8, size=n_points)
    moved = rng.random((n_rows, n_points)) < 0.15
    rows = np.where(moved, rng.integers(11, size=(n_rows, n_points)), truth)
    rows[(rows == 1) & (rng.random((n_rows, 1)) < 0.5)] = 0
    rows[(rows == 2) & (rng.random((n_rows, 1)) < 0.3)] = 3
    return rows


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only N <= 200")
    quick = parser.parse_args().quick
    rng = np.random.default_rng(0)
    warm = draws(rng, 20, 10)
    compile_time = seconds(lambda: (similarity(warm), point_estimate(warm)))
    print(f"To compile or load from the cache: {compile_time:.1f} s.\n")
    print("| N | rows | similarity | VI | hits | Binder | ball |\n|---|---|---|---|---|---|---|")
    for n_points, n_rows in SIZES:
        if quick and n_points > 200:
            continue
        rows = draws(rng, n_points, n_rows)
        estimate = point_estimate(rows)
        times = [
            seconds(lambda rows=rows: similarity(rows)),
            seconds(lambda rows=rows: point_estimate(rows)),
            seconds(lambda rows=rows: point_estimate(rows, loss="binder")),
            seconds(lambda rows=rows, e=estimate: credible_ball(e.labels, rows)),
        ]
        hits = f"{estimate.hits}/{estimate.runs}"
        print(
            f"| {n_points:,} | {n_rows:,} | {times[0]:.3f} | {times[1]:.3f} | {hits} "
            f"| {times[2]:.3f} | {times[3]:.3f} |"
        )


if __name__ == "__main__":
    main()
