"""Rings: NCP beside Neal's algorithm 8, started cold and given ten times the time.

    python experiments/rings.py [--datasets 12] [--points 60] [--samples 1000]

For data sets from the prior of the model `rings-2d`, one line each and the means, of which
`ncp check rings-2d` says some for fewer and smaller ones (`ncp.checks.chain`); on one thread.
"""

from __future__ import annotations

import argparse

import pandas as pd
import torch
from rich.progress import Progress

from ncp import load
from ncp.checks.chain import compare_with_chain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=12)
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--samples", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load("rings-2d")
    assert model.mixture is not None
    with Progress() as bar:
        task = bar.add_task("data sets", total=options.datasets)
        found = compare_with_chain(
            model.sample_many,
            model.log_prob,
            model.mixture,
            n_datasets=options.datasets,
            n_points=options.points,
            n_samples=options.samples,
            seed=2026,
            progress=lambda what, done, total: bar.update(task, completed=done),
        )
    table = pd.DataFrame(vars(found), index=range(1, options.datasets + 1))
    table.loc["mean"] = table.mean()
    print(table.round(4).to_string())


if __name__ == "__main__":
    main()
