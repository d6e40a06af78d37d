"""Ship a trained model: measure it on fresh data and put it, with its log, into the package.

    python experiments/ship.py gaussian-2d [--run runs/gaussian-2d] [--quick]

Reads the run's weights (`ncp train` wrote them), runs `ncp check` on them, and writes
`src/ncp/weights/NAME.safetensors` with the measured numbers in its header and
`src/ncp/weights/NAME.log.jsonl`, the training log thinned to about a thousand lines.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import ncp.tabular
from ncp.checkpoint import Checkpoint, read, write, write_atomically
from ncp.cli import attach_arrays
from ncp.diagnostics import CheckPlan, Targets, run_checks
from ncp.pretrained import DIRECTORY


def thinned(path: Path, most: int = 1000) -> str:
    """Validation lines, and every so many of the others."""
    lines = path.read_text().splitlines()
    steps = [line for line in lines if '"nll"' in line]
    others = [line for line in lines if '"nll"' not in line]
    kept = steps[:: max(1, len(steps) // most)] + others
    kept.sort(key=lambda line: json.loads(line)["step"])
    return "".join(line + "\n" for line in kept)


def measured(checkpoint: Checkpoint, quick: bool) -> dict[str, float]:
    """The numbers of `ncp check`."""
    model = checkpoint.build()
    mixture = model.mixture
    assert mixture is not None
    attach_arrays(mixture, "test")
    targets = Targets.none() if checkpoint.info["name"].endswith("-paper") else None
    plan = CheckPlan.of(mixture, quick=quick, targets=targets)
    report = run_checks(model.log_prob, model.sample_many, mixture, plan=plan)
    print(report)
    return {row.name: row.value for row in report.rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    name, run = arguments.name, arguments.run or Path("runs") / arguments.name
    checkpoint = read(run / f"{name}.safetensors")
    if isinstance(mixture := checkpoint.build().mixture, ncp.tabular.TabularMixture):
        checkpoint = replace(checkpoint, mixture=mixture.with_reference().to_dict())
    quality = measured(checkpoint, arguments.quick)
    DIRECTORY.mkdir(exist_ok=True)
    write(
        DIRECTORY / f"{name}.safetensors",
        replace(checkpoint, state={}, info=checkpoint.info | {"quality": quality}),
    )
    write_atomically(DIRECTORY / f"{name}.log.jsonl", thinned(run / "log.jsonl").encode())


if __name__ == "__main__":
    main()
