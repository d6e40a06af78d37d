"""Run the stages that made the weights NAME, or go on with them. Same as `make retrain MODEL=NAME`.

    python experiments/retrain.py gaussian-2d

The configs are `experiments/NAME.toml`, `NAME-stage2.toml` and so on; the runs go to `runs/`. A
stage that is finished is left alone; one that was stopped goes on, and no other starts before it
is done.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ncp.generative.mnist import attach_arrays
from ncp.network.checkpoint import Checkpoint, read
from ncp.training.loop import train
from ncp.training.recipe import RunConfig
from ncp.training.state import checkpoints

HERE = Path(__file__).parent


def stages(name: str) -> list[Path]:
    """The configs of the stages, in order."""
    number = {
        path: int(found[1] or 1)
        for path in HERE.glob(f"{name}*.toml")
        if (found := re.fullmatch(rf"{re.escape(name)}(?:-stage(\d+))?", path.stem))
    }
    if not number:
        known = sorted({path.stem.partition("-stage")[0] for path in HERE.glob("*.toml")})
        raise SystemExit(f"Expected MODEL to be one of {', '.join(known)} but got {name!r}")
    return sorted(number, key=lambda path: number[path])


def is_finished(weights: Checkpoint) -> bool:
    """Whether a run came to its end, by what its weights carry."""
    return bool(weights.info["step"] >= weights.info["run"]["training"]["steps"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    for config in stages(parser.parse_args().name):
        run = RunConfig.from_toml(config)
        directory = Path("runs") / run.name
        weights = directory / f"{run.name}.safetensors"
        if weights.exists() and is_finished(read(weights)):
            print(f"{directory} is finished")
            continue
        attach_arrays(run.mixture)
        train(run, directory, resume=bool(checkpoints(directory)))
        if not is_finished(read(weights)):
            raise SystemExit(f"{directory} was stopped; the same command goes on with it")


if __name__ == "__main__":
    main()
