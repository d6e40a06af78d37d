"""Make the model NAME that ships, from nothing. Same as `make retrain MODEL=NAME`.

    python experiments/retrain.py gaussian-2d

Runs `experiments/NAME.toml` in `runs/NAME`, or goes on with it where it was stopped, and then puts
the measured model into the package (`experiments/export.py`).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from export import export, is_finished

from ncp.generative.mnist import attach_arrays
from ncp.network.checkpoint import read
from ncp.training.loop import train
from ncp.training.recipe import Recipe
from ncp.training.state import checkpoints

HERE = Path(__file__).parent


def recipe_of(name: str) -> Recipe:
    """The recipe of a model."""
    known = sorted(path.stem for path in HERE.glob("*.toml"))
    if name not in known:
        raise SystemExit(f"Expected MODEL to be one of {', '.join(known)} but got {name!r}")
    return Recipe.from_toml(HERE / f"{name}.toml")


def make(recipe: Recipe, directory: Path) -> None:
    """Train a recipe to its end, or go on with it; a finished run is left alone."""
    weights = directory / f"{recipe.name}.safetensors"
    if weights.exists() and is_finished(read(weights)):
        print(f"{directory} is finished")
        return
    attach_arrays(recipe.generative)
    train(recipe, directory, resume=bool(checkpoints(directory)))
    if not is_finished(read(weights)):
        raise SystemExit(f"{directory} was stopped; the same command goes on with it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    recipe = recipe_of(parser.parse_args().name)
    directory = Path("runs") / recipe.name
    make(recipe, directory)
    print(f"Written to {export(directory)}")


if __name__ == "__main__":
    main()
