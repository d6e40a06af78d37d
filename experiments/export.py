"""Export a trained model: measure it on fresh data and put it into the package.

    python experiments/export.py runs/gaussian-2d

Reads the weights of a finished run, runs `ncp check` on them and writes the package's
`weights/NAME.safetensors`, whose header has the recipe, the commit, the steps and seconds of
training and the measured numbers, and `experiments/logs/NAME.log.jsonl`, the training log thinned
to about a thousand lines.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncp.checks.runner import run_checks
from ncp.cli.check import check_plan
from ncp.files import write_atomically
from ncp.generative.mnist import attach_arrays
from ncp.generative.tables import TabularMixture
from ncp.model import NCP
from ncp.network.checkpoint import Checkpoint, read, write
from ncp.network.pretrained import DIRECTORY
from ncp.training.recipe import Recipe

LOGS = Path(__file__).parent / "logs"


def is_finished(weights: Checkpoint) -> bool:
    """Whether a run came to its end, by what its weights carry."""
    return bool(weights.info["step"] >= Recipe.from_dict(weights.info["recipe"]).steps)


def thinned(lines: list[dict[str, Any]], most: int = 1000) -> str:
    """Validation lines, and every so many of the others."""
    steps = [line for line in lines if "nll" in line]
    others = [line for line in lines if "nll" not in line]
    kept = steps[:: max(1, len(steps) // most)] + others
    kept.sort(key=lambda line: line["step"])
    return "".join(json.dumps(_rounded(line)) + "\n" for line in kept)


def _rounded(line: dict[str, Any]) -> dict[str, Any]:
    return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in line.items()}


def measured(name: str, checkpoint: Checkpoint) -> dict[str, float]:
    """The numbers of `ncp check`."""
    model = checkpoint.build(NCP)
    mixture = model.mixture
    assert mixture is not None
    attach_arrays(mixture, "test")
    plan = check_plan(name, mixture, quick=False)
    report = run_checks(model.log_prob, model.sample_many, mixture, plan=plan)
    print(report)
    return {row.name: row.value for row in report.rows}


def with_reference(mixture: TabularMixture, quality: dict[str, float]) -> TabularMixture:
    """What the verdict on a table is based on: usual tables, and how promises were kept by size."""
    rows = {name: value for name, value in quality.items() if name.startswith("agreement, N = ")}
    sizes = sorted({int(name.split(",")[1].removeprefix(" N = ")) for name in rows})
    kept = [
        [n, *(rows[f"agreement, N = {n}, {k}"] for k in ("promised", "measured"))] for n in sizes
    ]
    found = mixture.with_reference()
    return replace(found, reference={**found.reference, "agreement": kept})


def export(run: Path) -> Path:
    """Measure the model of a finished run and write it to the package."""
    name = run.name
    checkpoint = read(run / f"{name}.safetensors")
    if not is_finished(checkpoint):
        raise SystemExit(f"{run} is not finished: make retrain MODEL={name} goes on with it")
    quality = measured(name, checkpoint)
    if isinstance(mixture := checkpoint.build(NCP).mixture, TabularMixture):
        checkpoint = replace(checkpoint, mixture=with_reference(mixture, quality).to_dict())
    info = checkpoint.info | {"quality": quality}
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    LOGS.mkdir(exist_ok=True)
    write_atomically(LOGS / f"{name}.log.jsonl", thinned(lines).encode())
    path = DIRECTORY / f"{name}.safetensors"
    write(path, replace(checkpoint, info=info))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    print(f"Written to {export(parser.parse_args().run)}")


if __name__ == "__main__":
    main()
