"""The command line.

Nothing heavy is imported before a command needs it, so that `ncp --help` and shell completion are
quick. Errors are one line on standard error; exit codes mean something:

    0  done                          5  `ncp check` found a failed check
    2  wrong usage                   70 a bug in ncp
    3  the data or model cannot      130 interrupted
       be used
    4  some of several files could
       not be used, the others were
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from ncp.checks.plan import CheckPlan
    from ncp.clustering.batch import Job
    from ncp.generative.model import GenerativeModel
    from ncp.training.recipe import Recipe

BAD_INPUT, SOME_FAILED, CHECK_FAILED, BUG, INTERRUPTED = 3, 4, 5, 70, 130
TABLE_ROWS = 20  # printed
MODEL_HELP = "Name of a model (see [bold]ncp models[/bold]) or a checkpoint file."

commands = typer.Typer(
    name="ncp",
    help="Bayesian clustering in milliseconds: posterior samples over partitions from a trained "
    "network.\n\n"
    "  [bold]ncp cluster data.csv[/bold]       cluster a table and write a report\n\n"
    "  [bold]ncp cluster 'days/*.csv'[/bold]   the same for many files at once\n\n"
    "  [bold]ncp models[/bold]                 what models there are, and how good\n\n"
    "  [bold]ncp check gaussian-2d[/bold]      measure a model against the truth\n\n"
    "  [bold]ncp train my.toml[/bold]          train a model of your own",
    epilog="Exit codes: 0 done, 2 wrong usage, 3 the data cannot be used, 4 some files could not "
    "be used, 5 a check failed, 70 a bug, 130 interrupted. [bold]ncp --install-completion[/bold] "
    "teaches your shell to complete commands.",
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_commands = typer.Typer(help="Fetch data sets.", no_args_is_help=True)
commands.add_typer(data_commands, name="data")


class Format(str, Enum):
    """Of the labels."""

    csv = "csv"
    parquet = "parquet"
    json = "json"


class Engine(str, Enum):
    """That many files are clustered on."""

    processes = "processes"
    dask = "dask"


class Loss(str, Enum):
    """Of the point estimate."""

    auto = "auto"
    vi = "vi"
    binder = "binder"
    pear = "pear"
    map = "map"


def app(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. Errors are one line, never a traceback."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments or os.environ.get("NCP_DEBUG") == "1"
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        result = commands(args=arguments, prog_name="ncp", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _explain(error, debug)


def _explain(error: Exception, debug: bool) -> int:
    if hasattr(error, "format_message"):  # wrong usage, of whichever click typer uses
        return _explain_usage(error)
    if debug:
        raise error
    if isinstance(error, ValueError | FileNotFoundError | PermissionError | IsADirectoryError):
        _say(str(error))
        return BAD_INPUT
    if isinstance(error, MemoryError):
        _say("out of memory; use fewer --samples or a smaller --max-points")
        return BAD_INPUT
    if isinstance(error, OSError):
        _say(f"{error.strerror or error}: {error.filename or ''}")
        return BAD_INPUT
    _say(
        f"unexpected {type(error).__name__}: {error} (this is a bug; please report it with the "
        "output of the same command and --debug)"
    )
    return BUG


def _explain_usage(error: Any) -> int:
    context = getattr(error, "ctx", None)
    message = error.format_message()
    if not message or type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return 2
    where = context.command_path if context is not None else "ncp"
    _say(f"{message} (see {where} --help)")
    return 2


def _say(message: str) -> None:
    print(f"ncp: {' '.join(message.split())}", file=sys.stderr)


def _version(wanted: bool) -> bool:
    if wanted:
        from ncp import __version__

        print(f"ncp {__version__}")
        raise typer.Exit
    return wanted


@commands.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Options of all commands."""


# -- cluster ---------------------------------------------------------------------------------------


@commands.command()
def cluster(
    data: Annotated[
        list[str],
        typer.Argument(
            help="CSV, TSV, Parquet, NPY or NPZ files, patterns, or - for standard input.",
            show_default=False,
        ),
    ],
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)] = "tabular",
    columns: Annotated[
        str, typer.Option(help="Columns to use, by name or number from 1, as in a,b or 1,3.")
    ] = "",
    one_hot: Annotated[
        str, typer.Option("--one-hot", help="Text columns to turn into 0/1 columns.")
    ] = "",
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", "-n", min=1, help="Posterior samples; 50 for tabular, else 1,000."
        ),
    ] = None,
    orders: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Random orders of the rows the samples are spread over; 10 for tabular, else 8.",
        ),
    ] = None,
    estimate: Annotated[Loss, typer.Option(help="Loss of the single best partition.")] = Loss.auto,
    reweight: Annotated[
        bool | None,
        typer.Option(
            "--reweight/--no-reweight",
            help="Importance weights; by default where they exist and can be trusted.",
            show_default=False,
        ),
    ] = None,
    max_clusters: Annotated[
        int | None, typer.Option(min=1, help="Most clusters of the best partition.")
    ] = None,
    max_points: Annotated[
        int | None,
        typer.Option(min=2, help="Rows sampled at once; the others of a large file are assigned."),
    ] = None,
    noise_sd: Annotated[
        float | None,
        typer.Option(help="Spread of one cluster in your units; brings data to the model's."),
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help="Multiply the centred data by this number instead.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Makes the result reproducible.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder to write to.", show_default="ncp-output/NAME"),
    ] = None,
    format: Annotated[Format, typer.Option(help="Of the labels.")] = Format.csv,
    report: Annotated[bool, typer.Option(help="Write report.html.")] = True,
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip files whose results are there and up to date.")
    ] = False,
    engine: Annotated[
        Engine | None,
        typer.Option(help="Cluster many files on all cores, or on the Dask workers of --address."),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a Dask scheduler, as in tcp://scheduler:8786.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> int:
    """Cluster tables: labels with confidence, samples, a summary and a report.

    For every file the folder gets labels.csv (cluster and confidence of each row), samples.npz
    (posterior samples), summary.json and report.html. Files appear complete or not at all.

      [bold]ncp cluster iris.csv[/bold]

      [bold]cat iris.csv | ncp cluster - --columns 1,2 --out iris[/bold]

      [bold]ncp cluster spikes.npy --model gaussian-2d --noise-sd 0.02[/bold]
    """
    from ncp.clustering.batch import Batch, jobs_of
    from ncp.output.readers import expand

    how = {
        "n_samples": samples,
        "orders": orders,
        "estimate": estimate.value,
        "reweight": "auto" if reweight is None else reweight,
        "max_clusters": max_clusters,
        "max_points": max_points,
        "noise_sd": noise_sd,
        "scale": scale,
        "seed": seed,
    }
    if address is not None and engine is None:
        raise ValueError("Expected --engine dask with an --address")
    jobs = jobs_of(expand(data), out)
    keep = None if as_json else TABLE_ROWS
    batch = Batch(model, how, _list(columns), _list(one_hot) or [], format.value, report, keep)
    show = not (quiet or as_json)
    started = time.monotonic()
    where = None if engine is None else engine.value
    with _progress(show and sys.stderr.isatty()) as progress:
        batch.run(jobs, resume=resume, progress=progress, engine=where, address=address)
    return _tell(jobs, time.monotonic() - started, show, as_json)


def _tell(jobs: list[Job], seconds: float, show: bool, as_json: bool) -> int:
    """Print what was found; returns the exit code."""
    failed = [job for job in jobs if job.error]
    good = [job for job in jobs if not job.error]
    for job in jobs:
        if job.error or job.note:
            _say(job.error or job.note)
    if as_json:
        errors = [{"data": job.source, "error": job.error} for job in failed]
        print(json.dumps({"results": [job.summary for job in good], "errors": errors}, indent=2))
    elif show and good:
        _print_table(good, seconds)
    if not failed:
        return 0
    return SOME_FAILED if good else BAD_INPUT


def _print_table(jobs: list[Job], seconds: float) -> None:
    from rich.markup import escape
    from rich.table import Table

    console = _console()
    if len(jobs) == 1:
        summary = jobs[0].summary
        for line in [*summary["words"], *summary["notes"]]:
            console.print(escape(line), soft_wrap=True)
        for line in summary["warnings"]:
            console.print(f"[bold]Warning:[/bold] {escape(line)}", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("data", "rows", "clusters", "probability", "sizes", "confidence"):
        table.add_column(name, justify="left" if name in ("data", "sizes") else "right")
    rows = [job for job in jobs if job.summary][:TABLE_ROWS]
    for job in rows:
        s = job.summary
        sizes = sorted(s["sizes"], reverse=True)
        shown = " ".join(str(n) for n in sizes[:8]) + (" ..." if len(sizes) > 8 else "")
        table.add_row(
            escape(job.name) + (" (kept)" if job.skipped else ""),
            f"{s['n_points']:,}",
            str(s["n_clusters"]),
            f"{s['posterior_of_k'].get(str(s['n_clusters']), 0.0):.0%}",
            shown,
            f"{s['mean_confidence']:.0%}",
        )
    console.print(table)
    if len(jobs) > len(rows):
        console.print(f"... and {len(jobs) - len(rows)} more")
    where = jobs[0].directory if len(jobs) == 1 else jobs[0].directory.parent
    what = where / "report.html" if len(jobs) == 1 and jobs[0].summary.get("report") else where
    console.print(f"Written to {escape(str(what))} in {seconds:.1f} s", soft_wrap=True)


# -- models ----------------------------------------------------------------------------------------


@commands.command()
def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """What models there are: what for, what they were trained on, how good they are."""
    from ncp.network.pretrained import card, names

    cards = [card(name) for name in names()]
    if as_json:
        print(json.dumps([one.to_dict() for one in cards], indent=2))
        return
    from rich.markup import escape

    console = _console()
    if not cards:
        console.print("No model is installed; train one with ncp train.")
    for one in cards:
        console.print(f"[bold]{escape(one.name)}[/bold]  {escape(one.purpose)}")
        console.print(f"    trained on  {escape(one.trained_on)}")
        console.print(f"    training    {one.steps:,} steps, {one.seconds / 60:.0f} minutes")
        console.print(f"    measured    {escape(one.quality)}\n")


# -- train -----------------------------------------------------------------------------------------


@commands.command()
def train(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file, as in experiments/.", show_default=False)
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the run in this folder.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the run.", show_default="runs/NAME"),
    ] = None,
    devices: Annotated[int, typer.Option(min=1, help="Processes (or GPUs) to train on.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 1,
    accelerator: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "cpu",
    precision: Annotated[str, typer.Option(help="32-true or bf16-mixed.")] = "32-true",
    seconds: Annotated[float | None, typer.Option(help="Stop (resumably) after so long.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Train a model; interrupted runs go on with --resume.

    [bold]ncp train experiments/gaussian-2d.toml[/bold]

    [bold]ncp train --resume runs/gaussian-2d[/bold]
    """
    from ncp.generative.mnist import attach_arrays
    from ncp.training.loop import launch

    recipe, directory = _recipe(config, resume, out)
    attach_arrays(recipe.generative)
    launch(
        recipe,
        directory,
        devices=devices,
        nodes=nodes,
        accelerator=accelerator,
        precision=precision,
        resume=resume is not None,
        progress=not quiet,
        seconds=seconds,
    )
    if not quiet and os.environ.get("RANK", "0") == "0":
        path = directory / f"{recipe.name}.safetensors"
        _console().print(f"Weights in {path}; try: ncp check {path}", soft_wrap=True)


def _recipe(config: Path | None, resume: Path | None, out: Path | None) -> tuple[Recipe, Path]:
    from ncp.network.checkpoint import read
    from ncp.training.recipe import Recipe
    from ncp.training.state import checkpoints

    if (config is None) == (resume is None):
        raise typer.BadParameter("give either a CONFIG.toml or --resume RUNDIR")
    if config is not None:
        if not config.is_file():
            raise ValueError(f"{config}: there is no such file")
        recipe = Recipe.from_toml(config)
        return recipe, out or Path("runs") / recipe.name
    assert resume is not None
    for path in reversed(checkpoints(resume)):
        with suppress(ValueError, KeyError):  # a damaged checkpoint: an older one will do
            return Recipe.from_dict(read(path).info["recipe"]), resume
    raise ValueError(f"{resume}: holds no checkpoint that can be read")


@commands.command("plot-training")
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
    _save_figure(training_figure(lines, run.name), path)
    _console().print(f"Written to {path}", soft_wrap=True)


def _save_figure(figure: Any, path: Path) -> None:
    import io

    from ncp.files import write_atomically

    kind = path.suffix.lstrip(".") or "png"
    if kind not in ("png", "svg", "pdf"):
        raise ValueError(f"{path}: expected a name that ends in .png, .svg or .pdf")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=144)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())


# -- check, data ----------------------------------------------------------------------------------


@commands.command()
def check(
    model: Annotated[str, typer.Argument(help=MODEL_HELP, show_default=False)],
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the work.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the results.", show_default="check-NAME"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the data drawn.")] = 71_993,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> int:
    """Measure a model against the truth: exact posteriors, calibration, accuracy.

    Exit code 5 when a check fails.
    """
    from ncp.checks.runner import run_checks
    from ncp.files import write_atomically
    from ncp.generative.mnist import attach_arrays
    from ncp.model import load
    from ncp.network.pretrained import short_name
    from ncp.output.plots import check_figure

    network = load(model)
    name = short_name(model)
    if network.mixture is None:
        raise ValueError(f"{model}: carries no mixture to draw data from")
    attach_arrays(network.mixture, "test")
    directory = Path(f"check-{name}") if out is None else out
    directory.mkdir(parents=True, exist_ok=True)
    show = not (quiet or as_json)
    with _progress(show and sys.stderr.isatty()) as progress:
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
        _console().print(found.table(), soft_wrap=True, highlight=False, markup=False)
    write_atomically(directory / "check.json", (table + "\n").encode())
    _save_figure(check_figure(found), directory / "check.png")
    if show:
        _console().print(f"\nWritten to {directory}", soft_wrap=True)
    if not found.passed:
        _say(f"{name}: failed {', '.join(found.failed)}")
        return CHECK_FAILED
    return 0


def check_plan(name: str, mixture: GenerativeModel, quick: bool) -> CheckPlan:
    """How a model is checked. The paper's own architectures are measured, not judged."""
    from ncp.checks.plan import CheckPlan, Targets

    targets = Targets.none() if name.endswith("-paper") else None
    return CheckPlan.of(mixture, quick=quick, targets=targets)


@data_commands.command("mnist")
def mnist_command(
    directory: Annotated[
        Path | None, typer.Argument(help="Where the files are or go.", show_default="the cache")
    ] = None,
) -> None:
    """Find MNIST on disk, or fetch it once and verify it."""
    from ncp.generative.mnist import mnist, where

    digits = mnist(directory)
    n_train, n_test = len(digits.train_images), len(digits.test_images)
    found = f"MNIST: {n_train:,} + {n_test:,} images in {where(directory)}"
    _console().print(found, soft_wrap=True)


# -- the terminal ----------------------------------------------------------------------------------

_Tell = Callable[[str, int, int], None]


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def _list(text: str) -> list[str] | None:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return parts or None


@contextmanager
def _progress(wanted: bool) -> Iterator[_Tell]:
    """Bars on standard error, one for each thing that is being done."""
    if not wanted:
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield tell
