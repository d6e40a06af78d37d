"""`ncp check`: measure a model; and `ncp data`, which it may need."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncp.cli.common import (
    CHECK_FAILED,
    JSON,
    MODEL_HELP,
    Plugins,
    Quiet,
    add_plugins,
    save_figure,
    sign_of_life,
)
from ncp.output.terminal import bars, console, print_line, say

if TYPE_CHECKING:
    from ncp.checks.plan import CheckPlan
    from ncp.generative.model import GenerativeModel

__all__ = ["check", "check_plan", "mnist"]


def check(
    model: Annotated[str, typer.Argument(help=MODEL_HELP, show_default=False)],
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the work.")] = False,
    plugin: Plugins = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the results.", show_default="check-NAME"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the data drawn.")] = 71_993,
    quiet: Quiet = False,
    as_json: JSON = False,
) -> int:
    """Measure a model against the truth: exact posteriors, calibration, accuracy.

    Exit code 5 when a check fails.
    """
    show = not (quiet or as_json)
    with sign_of_life(f"{model}: loading the model", show):
        from ncp.checks.runner import run_checks
        from ncp.files import write_atomically
        from ncp.generative.mnist import attach_arrays
        from ncp.model import load
        from ncp.network.pretrained import short_name
        from ncp.output.plots import check_figure

        add_plugins(plugin)
        network = load(model)
        name = short_name(model)
        if network.mixture is None:
            raise ValueError(f"{model}: carries no mixture to draw data from")
        attach_arrays(network.mixture, "test")
    directory = Path(f"check-{name}") if out is None else out
    directory.mkdir(parents=True, exist_ok=True)
    with bars(show and sys.stderr.isatty()) as progress:
        found = run_checks(
            network.log_prob,
            network.sample_many,
            network.mixture,
            plan=check_plan(name, network.mixture, quick),
            seed=seed,
            progress=progress,
        )
    table = json.dumps({"model": name, "passed": found.passed, "rows": found.to_dicts()}, indent=2)
    if as_json:
        print(table)
    elif show:
        console().print(found.table(), soft_wrap=True, highlight=False, markup=False)
    write_atomically(directory / "check.json", (table + "\n").encode())
    save_figure(check_figure(found), directory / "check.png")
    if show:
        print_line(f"Written to {directory}")
    if found.passed:
        return 0
    say(f"{name}: failed {', '.join(found.failed)}")
    return CHECK_FAILED


def check_plan(name: str, mixture: GenerativeModel, quick: bool) -> CheckPlan:
    """How a model is checked. The paper's own architectures are measured, not judged."""
    from ncp.checks.plan import CheckPlan, Targets

    targets = Targets.none() if name.endswith("-paper") else None
    return CheckPlan.of(mixture, quick=quick, targets=targets)


def mnist(
    directory: Annotated[
        Path | None, typer.Argument(help="Where the files are or go.", show_default="the cache")
    ] = None,
) -> None:
    """Find MNIST on disk, or fetch it once and verify it."""
    from ncp.generative.mnist import mnist, where

    with sign_of_life("looking for MNIST"):
        digits = mnist(directory)
    n_train, n_test = len(digits.train_images), len(digits.test_images)
    print_line(f"MNIST: {n_train:,} + {n_test:,} images in {where(directory)}")
