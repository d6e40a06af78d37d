"""Ship a trained model: measure it on fresh data and put it, with its log, into the package.

    python experiments/ship.py gaussian-2d

Reads the weights of the last stage, `runs/NAME-stageN`, or of the only one, `runs/NAME` (`make
retrain` wrote them), runs `ncp check` on them, and writes
`src/ncp/weights/NAME.safetensors` with the measured numbers, and the steps and seconds of all
stages, in its header and
`src/ncp/weights/NAME.log.jsonl`, the training log thinned to about a thousand lines. The log of a
run that started from another's weights goes on where the other's ended.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from retrain import is_finished, stages

import ncp.generative.tables
from ncp.checks.runner import run_checks
from ncp.cli import check_plan
from ncp.files import write_atomically
from ncp.generative.mnist import attach_arrays
from ncp.network.checkpoint import Checkpoint, read, write
from ncp.network.pretrained import DIRECTORY


def whole_log(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's log, after those of the run that it started from."""
    initial = read(run / f"{run.name}.safetensors").info["run"].get("initial", "")
    before = whole_log(Path(initial).parent) if initial else []
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    offset = before[-1]["step"] if before else 0
    return before + [line | {"step": line["step"] + offset} for line in lines]


def totals(info: dict[str, Any]) -> dict[str, float]:
    """Steps and seconds of a run, by the header of its weights, and of those it started from."""
    initial = info["run"].get("initial", "")
    before = totals(read(initial).info) if initial else {"total_steps": 0, "total_seconds": 0.0}
    return {
        "total_steps": before["total_steps"] + info["step"],
        "total_seconds": before["total_seconds"] + info["seconds"],
    }


def thinned(lines: list[dict[str, Any]], most: int = 1000) -> str:
    """Validation lines, and every so many of the others."""
    steps = [line for line in lines if "nll" in line]
    others = [line for line in lines if "nll" not in line]
    kept = steps[:: max(1, len(steps) // most)] + others
    kept.sort(key=lambda line: line["step"])
    return "".join(json.dumps(line) + "\n" for line in kept)


def measured(name: str, checkpoint: Checkpoint) -> dict[str, float]:
    """The numbers of `ncp check`."""
    model = checkpoint.build()
    mixture = model.mixture
    assert mixture is not None
    attach_arrays(mixture, "test")
    plan = check_plan(name, mixture, quick=False)
    report = run_checks(model.log_prob, model.sample_many, mixture, plan=plan)
    print(report)
    return {row.name: row.value for row in report.rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    name = parser.parse_args().name
    run = Path("runs") / stages(name)[-1].stem
    checkpoint = read(run / f"{run.name}.safetensors")
    if not is_finished(checkpoint):
        raise SystemExit(f"{run} is not finished: make retrain MODEL={name} goes on with it")
    log, sums = thinned(whole_log(run)), totals(checkpoint.info)
    if isinstance(mixture := checkpoint.build().mixture, ncp.generative.tables.TabularMixture):
        checkpoint = replace(checkpoint, mixture=mixture.with_reference().to_dict())
    quality = measured(name, checkpoint)
    info = checkpoint.info | sums | {"name": name, "quality": quality}
    DIRECTORY.mkdir(exist_ok=True)
    write(DIRECTORY / f"{name}.safetensors", replace(checkpoint, state={}, info=info))
    write_atomically(DIRECTORY / f"{name}.log.jsonl", log.encode())


if __name__ == "__main__":
    main()
