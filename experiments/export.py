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

import numpy as np
from scipy.optimize import minimize
from scipy.special import logit

from ncp.checks.runner import run_checks
from ncp.cli.check import check_plan
from ncp.clustering.cluster import cluster_many
from ncp.files import write_atomically
from ncp.generative.mnist import attach_arrays
from ncp.generative.tables import TabularMixture
from ncp.model import NCP
from ncp.network.checkpoint import Checkpoint, read, write
from ncp.network.pretrained import DIRECTORY
from ncp.summary.assignment import confidence
from ncp.training.recipe import Recipe

LOGS = Path(__file__).parent / "logs"
CONFIDENCE_TABLES = ((10, 500), (25, 500), (60, 500), (150, 500), (400, 250), (1000, 130))


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


def confidence_by_size(model: NCP, mixture: TabularMixture) -> list[list[float]]:
    """Log odds that turn the overlap that samples promise into that with the truth, by size.

    A line in log N, by maximum likelihood on random tables, each of which counts the same.
    """
    promised, found, rows, weights = [], [], [], []
    rng = np.random.default_rng(0)
    for n, n_tables in CONFIDENCE_TABLES:
        drawn = [mixture.sample_table(n, rng) for _ in range(n_tables)]
        drawn = [one for one in drawn if not one[0].categorical.any()]
        answers = cluster_many([table.x for table, _, _ in drawn], model, seed=0)
        for answer, (_, _, truth) in zip(answers, drawn, strict=True):
            clusters = answer.labels[answer.labels >= 0]
            truth = truth[answer.labels >= 0]
            promised.append(answer.confidence[answer.labels >= 0])
            found.append(confidence(clusters, truth[None]))
            rows.append(np.full(len(truth), np.log(n)))
            weights.append(np.full(len(truth), 1 / len(truth)))
    p, q, log_n, w = (np.concatenate(part) for part in (promised, found, rows, weights))
    log_odds = logit(np.clip(p, 1e-6, 1 - 1e-6))

    def loss(line: np.ndarray) -> float:
        z = log_odds + line[0] + line[1] * log_n
        return float(w @ (np.logaddexp(0.0, z) - q * z))

    at, slope = minimize(loss, np.zeros(2)).x
    ends = CONFIDENCE_TABLES[0][0], CONFIDENCE_TABLES[-1][0]
    return [[n, round(float(at + slope * np.log(n)), 3)] for n in ends]


def with_reference(
    model: NCP, mixture: TabularMixture, quality: dict[str, float]
) -> TabularMixture:
    """What the verdict on a table is based on: usual tables, and how promises were kept by size."""
    rows = {name: value for name, value in quality.items() if name.startswith("agreement, N = ")}
    sizes = sorted({int(name.split(",")[1].removeprefix(" N = ")) for name in rows})
    kept = [
        [n, *(rows[f"agreement, N = {n}, {k}"] for k in ("promised", "measured"))] for n in sizes
    ]
    found = mixture.with_reference()
    sure = confidence_by_size(model, mixture)
    return replace(found, reference={**found.reference, "agreement": kept, "confidence": sure})


def export(run: Path) -> Path:
    """Measure the model of a finished run and write it to the package."""
    name = run.name
    checkpoint = read(run / f"{name}.safetensors")
    if not is_finished(checkpoint):
        raise SystemExit(f"{run} is not finished: make retrain MODEL={name} goes on with it")
    quality = measured(name, checkpoint)
    model = checkpoint.build(NCP)
    if isinstance(mixture := model.mixture, TabularMixture):
        found = with_reference(model, mixture, quality)
        checkpoint = replace(checkpoint, mixture=found.to_dict())
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
