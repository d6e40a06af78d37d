"""`ncp train` and `ncp plot-training`: from a TOML file to weights."""

from __future__ import annotations

import json
import os
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncp.cli.common import Plugins, add_plugins, save_figure, sign_of_life, takes
from ncp.output.terminal import print_line

if TYPE_CHECKING:
    from ncp.training.recipe import Recipe

__all__ = ["plot_training", "train"]


@dataclass(frozen=True)
class TrainOptions:
    """What was typed."""

    config: Annotated[
        Path | None, typer.Argument(help="A TOML file, as in experiments/.", show_default=False)
    ] = None
    generative: Annotated[
        str | None,
        typer.Option(
            "--generative",
            help="A generative model or a likelihood of your own, as in my_model.py:Sticks.",
        ),
    ] = None
    plugin: Plugins = None
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Of --generative without a TOML file.", show_default="600"),
    ] = None
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the run in this folder.")
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the run.", show_default="runs/NAME"),
    ] = None
    devices: Annotated[int, typer.Option(min=1, help="Processes (or GPUs) to train on.")] = 1
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 1
    accelerator: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "cpu"
    precision: Annotated[str, typer.Option(help="32-true or bf16-mixed.")] = "32-true"
    seconds: Annotated[float | None, typer.Option(help="Stop (resumably) after so long.")] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False


@takes(TrainOptions)
def train(asked: TrainOptions) -> None:
    """Train a model; interrupted runs go on with --resume.

    [bold]ncp train experiments/gaussian-2d.toml[/bold]

    [bold]ncp train --resume runs/gaussian-2d[/bold]

    [bold]ncp train --generative my_model.py:Sticks[/bold]
    """
    with sign_of_life("preparing the training", not asked.quiet):
        from ncp.generative.mnist import attach_arrays
        from ncp.training.loop import launch

        add_plugins(asked.plugin)
        recipe, directory = _recipe(asked)
        attach_arrays(recipe.generative)
    launch(
        recipe,
        directory,
        devices=asked.devices,
        nodes=asked.nodes,
        accelerator=asked.accelerator,
        precision=asked.precision,
        resume=asked.resume is not None,
        progress=not asked.quiet,
        seconds=asked.seconds,
    )
    if not asked.quiet and os.environ.get("RANK", "0") == "0":
        path = directory / f"{recipe.name}.safetensors"
        needed = [str(file) for file in asked.plugin or ()]
        needed += [asked.generative.rpartition(":")[0]] if asked.generative else []
        more = "".join(f" --plugin {shlex.quote(file)}" for file in needed)
        print_line(f"Weights in {path}; try: ncp check {shlex.quote(str(path))}{more}")


def _recipe(asked: TrainOptions) -> tuple[Recipe, Path]:
    """What to train, and in which folder."""
    from ncp.training.recipe import Recipe

    config, generative, resume = asked.config, asked.generative, asked.resume
    if (config is None and generative is None) == (resume is None):
        raise typer.BadParameter(
            "give either a CONFIG.toml or --resume RUNDIR, or --generative FILE.py:NAME"
        )
    if asked.steps is not None and (config is not None or generative is None):
        raise typer.BadParameter("--steps goes with --generative; a TOML file says its own")
    if config is not None and not config.is_file():
        raise ValueError(f"{config}: there is no such file")
    if resume is not None:
        return _resumed(resume), resume
    if generative is not None:
        recipe = _own_recipe(generative, config, asked.steps)
    else:
        assert config is not None
        recipe = Recipe.from_toml(config)
    return recipe, asked.out or Path("runs") / recipe.name


def _resumed(directory: Path) -> Recipe:
    """The recipe of a run that was begun."""
    from ncp.network.checkpoint import read
    from ncp.training.recipe import Recipe
    from ncp.training.state import checkpoints

    for path in reversed(checkpoints(directory)):
        with suppress(ValueError, KeyError):  # a damaged checkpoint: an older one will do
            return Recipe.from_dict(read(path).info["recipe"])
    raise ValueError(f"{directory}: holds no checkpoint that can be read")


def _own_recipe(text: str, config: Path | None, steps: int | None) -> Recipe:
    """The recipe of a generative model of one's own, with a TOML file for all else or without."""
    from ncp.generative.mixture import as_model
    from ncp.generative.plugins import named_thing
    from ncp.training.recipe import STARTER_STEPS, Recipe

    generative = as_model(named_thing(text))
    if config is not None:
        return Recipe.from_dict(Recipe.read_toml(config) | {"generative": generative.to_dict()})
    name = text.rpartition(":")[2].lower()
    return Recipe.starter(name, generative, steps or STARTER_STEPS)


def plot_training(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Picture to write.", show_default="RUN/training.png"),
    ] = None,
) -> None:
    """Draw accuracy, loss and permutation variance of a run (the paper's figure 3)."""
    log = run / "log.jsonl"
    if not log.is_file():
        raise ValueError(f"{run}: holds no log.jsonl; name the folder of a run")
    from ncp.output.plots import training_figure

    lines = []
    for line in log.read_text().splitlines():
        with suppress(ValueError):  # the line that is being written
            lines.append(json.loads(line))
    path = run / "training.png" if out is None else out
    save_figure(training_figure(lines, run.name), path)
    print_line(f"Written to {path}")
