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

import inspect
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncp.output.terminal import bars, console, print_line, say, sign_of_life, visible

if TYPE_CHECKING:
    from ncp.checks.plan import CheckPlan
    from ncp.clustering.batch import Job
    from ncp.generative.model import GenerativeModel
    from ncp.network.pretrained import Card
    from ncp.training.recipe import Recipe

__all__ = ["app"]

BAD_INPUT, SOME_FAILED, CHECK_FAILED, BUG, INTERRUPTED = 3, 4, 5, 70, 130
TABLE_ROWS = 20  # printed
MODEL_HELP = "Name of a model (see [bold]ncp models[/bold]) or a checkpoint file."
Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", help="Python file with classes of your own that a model names."),
]
NOT_REPEATED = ("data", "out", "resume", "engine", "address", "quiet", "as_json")

commands = typer.Typer(
    name="ncp",
    help="Bayesian clustering: posterior samples over partitions from a trained network.\n\n"
    "  [bold]ncp cluster data.csv[/bold]       cluster a table and write a report\n\n"
    "  [bold]ncp cluster 'days/*.csv'[/bold]   the same for many files at once\n\n"
    "  [bold]ncp report result.npz[/bold]      the report of a saved result\n\n"
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


class Format(StrEnum):
    """Of the labels."""

    csv = "csv"
    parquet = "parquet"
    json = "json"
    jsonl = "jsonl"
    feather = "feather"
    xlsx = "xlsx"


class Engine(StrEnum):
    """That many files are clustered on."""

    processes = "processes"
    dask = "dask"


class Loss(StrEnum):
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
        say("interrupted")
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
        say(str(error))
        return BAD_INPUT
    if isinstance(error, MemoryError):
        say("out of memory; use fewer --samples or a smaller --max-points")
        return BAD_INPUT
    if isinstance(error, OSError):
        say(f"{error.strerror or error}: {error.filename or ''}")
        return BAD_INPUT
    say(
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
    say(f"{message} (see {where} --help)")
    return 2


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
            help="CSV, TSV, Excel, Parquet, Feather, JSON, NPY or NPZ files, patterns, or - for "
            "standard input.",
            show_default=False,
        ),
    ],
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)] = "tabular",
    columns: Annotated[
        str, typer.Option(help="Columns to use, by name or number from 1, as in a,b or 1,3.")
    ] = "",
    numeric: Annotated[
        str, typer.Option("--numeric", help="Columns that are numbers, whatever they look like.")
    ] = "",
    categorical: Annotated[
        str, typer.Option("--categorical", help="Columns that are categories, e.g. codes.")
    ] = "",
    decimal: Annotated[
        str | None, typer.Option(help="Decimal point of a text file, if it cannot be told: . or ,")
    ] = None,
    thousands: Annotated[
        str | None, typer.Option(help="Separator of thousands, if it cannot be told: , or . or '")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", "-n", min=1, help="Posterior samples; 400 for tabular, else 1,000."
        ),
    ] = None,
    orders: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Random orders of the rows the samples are spread over; 16 for tabular, else 8.",
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
    known_column: Annotated[
        str | None,
        typer.Option(help="Column of labels that are known; rows with an empty cell have none."),
    ] = None,
    known: Annotated[
        list[str] | None,
        typer.Option(help="Rows whose label is known, as in 3-9,12=setosa; may be repeated."),
    ] = None,
    together: Annotated[
        list[str] | None,
        typer.Option(
            help="Rows of one cluster, as in 3-9,12, or a file with such a line for each link."
        ),
    ] = None,
    apart: Annotated[
        list[str] | None,
        typer.Option(help="Rows of which no two share a cluster; the same."),
    ] = None,
    clusters: Annotated[
        int | None, typer.Option("--clusters", "-k", min=1, help="How many clusters there are.")
    ] = None,
    at_least: Annotated[int | None, typer.Option(min=1, help="The fewest that there are.")] = None,
    at_most: Annotated[int | None, typer.Option(min=1, help="The most that there are.")] = None,
    at_any_price: Annotated[
        bool,
        typer.Option("--at-any-price", help="Obey what is known even if the model denies it."),
    ] = False,
    plugin: Plugins = None,
    noise_sd: Annotated[
        float | None,
        typer.Option(help="Spread of one cluster in your units; brings data to the model's."),
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help="Multiply the centred data by this number instead.")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Concentration, for gaussian; else by its evidence.")
    ] = None,
    ratio: Annotated[
        float | None, typer.Option(help="Spread between clusters in those within, for gaussian.")
    ] = None,
    dof: Annotated[
        str | None, typer.Option(help="Degrees of freedom of covariances, or known, for gaussian.")
    ] = None,
    average: Annotated[
        bool, typer.Option("--average", help="Average over hyper-parameters, for gaussian.")
    ] = False,
    compare: Annotated[
        str, typer.Option(help="Compare evidences, for gaussian, as in alpha=0.3,1,3.")
    ] = "",
    exact: Annotated[
        bool | None,
        typer.Option("--exact/--no-exact", help="Insist on exact samples.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Makes the result reproducible.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder to write to.", show_default="ncp-output/NAME"),
    ] = None,
    format: Annotated[Format, typer.Option(help="Of the labels.")] = Format.csv,
    append: Annotated[
        bool, typer.Option("--append", help="Write the labels beside the whole table.")
    ] = False,
    report: Annotated[bool, typer.Option(help="Write report.html.")] = True,
    save: Annotated[
        bool, typer.Option("--save", help="Write result.npz, for ncp report and Clustering.load.")
    ] = False,
    max_memory: Annotated[
        float, typer.Option(min=0.001, help="GiB that a file may take up when it is read.")
    ] = 4.0,
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

      [bold]ncp cluster iris.csv --known-column species --together 3,17 --at-most 4[/bold]

    Rows are counted from 1, or called what a column of the file calls them.
    """
    given = dict(locals())
    show = not (quiet or as_json)
    live = show and sys.stderr.isatty()
    started = time.monotonic()
    with _sign_of_life(f"{', '.join(data[:3])}: loading the model", show):
        from ncp.clustering.batch import Batch, jobs_of
        from ncp.clustering.said import Said
        from ncp.output.readers import Marks, expand

        _add_plugins(plugin)
    said = Said.read(
        known_column=known_column,
        known=tuple(known or ()),
        together=together or (),
        apart=apart or (),
        n_clusters=clusters,
        at_least=at_least,
        at_most=at_most,
        at_any_price=at_any_price,
    )
    how = _settings(given)
    if compare:
        return _compare(compare, data, model, how, _list(columns), as_json)
    if address is not None and engine is None:
        raise ValueError("Expected --engine dask with an --address")
    jobs = jobs_of(expand(data), out)
    batch = Batch(
        model,
        how,
        columns=_list(columns),
        numeric=_list(numeric) or [],
        categorical=_list(categorical) or [],
        format=format.value,
        report=report,
        keep=None if as_json else TABLE_ROWS,
        marks=Marks(decimal, thousands),
        append=append,
        max_memory=int(max_memory * 2**30),
        said=said,
        save=save,
        options=_options(given),
    )
    with bars(live) as progress:
        where = engine and engine.value
        batch.run(jobs, resume=resume, progress=progress, engine=where, address=address)
    return _tell(jobs, time.monotonic() - started, show, as_json)


def _sign_of_life(what: str, wanted: bool = True) -> AbstractContextManager[None]:
    """On a terminal, before anything heavy is imported."""
    return sign_of_life(wanted and sys.stderr.isatty(), f"{what} ...")


def _add_plugins(files: Sequence[Path] | None) -> None:
    from ncp.generative.plugins import add_plugin

    for file in files or ():
        add_plugin(file)


def _options(given: Mapping[str, Any]) -> list[str]:
    """The options that were given, for another command line like this one."""
    found: list[str] = []
    for name, parameter in inspect.signature(cluster, eval_str=True).parameters.items():
        value = given[name]
        if name in NOT_REPEATED or value == parameter.default or value is None:
            continue
        said = next(one for one in parameter.annotation.__metadata__ if hasattr(one, "param_decls"))
        written = [str(one) for one in (said.default, *(said.param_decls or ()))]
        long = [one for one in written if one.startswith("--")] or [f"--{name.replace('_', '-')}"]
        option, _, opposite = long[0].partition("/")
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, bool):
                found.append(option if one else opposite or option.replace("--", "--no-"))
            else:
                found += [option, str(one.value if isinstance(one, Enum) else one)]
    return found


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"Expected a number or known for {name} but got {text!r}") from None


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of `ncp.cluster` by the options of `ncp cluster`."""
    same = "orders", "max_clusters", "max_points", "noise_sd", "scale", "seed", "alpha", "ratio"
    dof, reweight = given["dof"], given["reweight"]
    return {name: given[name] for name in same} | {
        "n_samples": given["samples"],
        "estimate": given["estimate"].value,
        "reweight": "auto" if reweight is None else reweight,
        "dof": dof if dof in (None, "known") else _number("--dof", dof),
        "hyperparameters": "average" if given["average"] else "best",
        "exact": given["exact"],
    }


def _compare(
    asked: str,
    data: list[str],
    model: str,
    how: dict[str, Any],
    columns: list[str] | None,
    as_json: bool,
) -> int:
    """Print the evidence of each value of a hyper-parameter, for every file."""
    from rich.table import Table

    from ncp.clustering.compare import compare, read_comparison
    from ncp.output.readers import expand, read_bytes, read_table

    name, values = read_comparison(asked)
    found = {}
    for source in expand(data):
        with _sign_of_life(f"{source}: comparing values of {name}", not as_json):
            table = read_table(source, read_bytes(source), columns)
            found[source] = compare(table.data, model, name, values, **how)
    if as_json:
        plain = {source: [one.to_dict() for one in rows] for source, rows in found.items()}
        print(json.dumps(plain, indent=2))
        return 0
    for source, rows in found.items():
        shown = Table(title=visible(source), box=None, pad_edge=False, header_style="bold")
        for column in (name, "log evidence", "error", "probability", "clusters", "verdict"):
            shown.add_column(column, justify="right")
        for one in rows:
            error = f"{one.error:.2f}" if math.isfinite(one.error) else "at least"
            numbers = f"{one.log_evidence:.2f}", error, f"{one.probability:.0%}"
            shown.add_row(str(one.value), *numbers, str(one.n_clusters), one.verdict)
        console().print(shown)
    return 0


def _tell(jobs: list[Job], seconds: float, show: bool, as_json: bool) -> int:
    """Print what was found; returns the exit code."""
    failed = [job for job in jobs if job.error]
    good = [job for job in jobs if not job.error]
    for job in jobs:
        if job.error or job.note:
            say(job.error or job.note)
    if as_json:
        errors = [{"data": job.source, "error": job.error} for job in failed]
        print(json.dumps({"results": [job.summary for job in good], "errors": errors}, indent=2))
    elif show and good:
        _print_table(good, seconds)
    if not failed:
        return 0
    return SOME_FAILED if good else BAD_INPUT


def _print_table(jobs: list[Job], seconds: float) -> None:
    from rich.table import Table
    from rich.text import Text

    if len(jobs) == 1:
        summary = jobs[0].summary
        for line in [*summary["words"], *summary["notes"]]:
            print_line(line)
        for line in summary["warnings"]:
            print_line(line, "Warning:")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("data", "rows", "clusters", "probability", "sizes", "confidence"):
        table.add_column(name, justify="left" if name in ("data", "sizes") else "right")
    rows = [job for job in jobs if job.summary][:TABLE_ROWS]
    for job in rows:
        s = job.summary
        sizes = sorted(s["sizes"], reverse=True)
        shown = " ".join(str(n) for n in sizes[:8]) + (" ..." if len(sizes) > 8 else "")
        table.add_row(
            Text(visible(job.name) + (" (kept)" if job.skipped else "")),
            f"{s['n_points']:,}",
            str(s["n_clusters"]),
            f"{s['posterior_of_k'].get(str(s['n_clusters']), 0.0):.0%}",
            shown,
            f"{s['mean_confidence']:.0%}",
        )
    console().print(table)
    if len(jobs) > len(rows):
        print_line(f"... and {len(jobs) - len(rows)} more")
    where = jobs[0].directory if len(jobs) == 1 else jobs[0].directory.parent
    what = where / "report.html" if len(jobs) == 1 and jobs[0].summary.get("report") else where
    print_line(f"Written to {what} in {seconds:.1f} s")


@commands.command("explain", hidden=True)  # of the labels, as people say it
@commands.command("report")
def report_command(
    saved: Annotated[
        Path,
        typer.Argument(
            help="A saved result: result.npz, its folder, or the labels beside it.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Page to write.", show_default="beside the result"),
    ] = None,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "",
    model: Annotated[str | None, typer.Option("--model", "-m", help=MODEL_HELP)] = None,
    plugin: Plugins = None,
) -> None:
    """Make the report of a saved result again, without clustering anything.

    [bold]ncp cluster iris.csv --save[/bold]

    [bold]ncp report ncp-output/iris/result.npz --out iris.html[/bold]
    """
    path = saved / "result.npz" if saved.is_dir() else saved
    if path.stem == "labels" and path.suffix != ".npz":  # a result may be called so, too
        path = path.with_name("result.npz")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; ncp cluster --save writes one")
    with _sign_of_life(f"{path}: making the report"):
        from ncp.clustering.result import Clustering

        _add_plugins(plugin)
        try:
            found = Clustering.load(path, model)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        heading = title or (path.parent.resolve().name if path.name == "result.npz" else path.stem)
        page = path.with_name("report.html") if out is None else out
        found.write_report(page, heading)
    print_line(f"Written to {page}")


# -- models ----------------------------------------------------------------------------------------


@commands.command()
def models(
    name: Annotated[
        str | None,
        typer.Argument(help="A model or a checkpoint file, to read its card.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """What models there are, what for and how good they are; of one of them, all numbers."""
    with _sign_of_life("reading the models"):
        from ncp.network.pretrained import card, names

        cards = [card(one) for one in (names() if name is None else [name])]
    if as_json:
        plain = [one.to_dict() for one in cards]
        print(json.dumps(plain if name is None else plain[0], indent=2))
    elif name is not None:
        _print_card(cards[0])
    elif cards:
        _print_models(cards)
    else:
        print_line("No model is installed; train one with ncp train.")


def _print_models(cards: Sequence[Card]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for heading in ("name", "for", "rows", "trained in", "how good"):
        width = 24 if heading == "for" else None  # most take two lines of a terminal
        table.add_column(heading, no_wrap=heading not in ("for", "how good"), width=width)
    for one in cards:
        quality = one.quality.partition(";")[0]
        cells = (one.name, one.purpose, _rows(one), _trained_in(one), quality)
        table.add_row(*(Text(visible(cell)) for cell in cells))
    console().print(table)
    print_line("ncp models NAME prints all that was measured of one; ncp check NAME measures it.")


def _rows(card: Card) -> str:
    return "any" if card.sizes is None else f"{card.sizes[0]} to {card.sizes[1]}"


def _trained_in(card: Card) -> str:
    return f"{card.seconds / 60:.0f} min" if card.seconds >= 60 else f"{card.seconds:.0f} s"


def _print_card(card: Card) -> None:
    print_line(card.purpose, card.name)
    shape = " x ".join(str(side) for side in card.event_shape)
    for heading, text in (
        ("trained on", card.trained_on),
        ("rows", f"{_rows(card)} in training"),
        ("one row", f"{shape} number{'' if shape == '1' else 's'}, as the network sees it"),
        ("training", f"{card.steps:,} steps, {_trained_in(card)} of one core"),
        ("file", f"{card.megabytes:.1f} MB"),
        ("how good", card.quality),
    ):
        print_line(f"  {heading:<12}{text}")
    if card.metrics:
        print_line("measured (ncp check says what each number means):")
    width = max((len(name) for name in card.metrics), default=0)
    for name, value in card.metrics.items():
        print_line(f"  {name.replace('_', ' '):<{width}}  {value:.3g}")


# -- train -----------------------------------------------------------------------------------------


@commands.command()
def train(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file, as in experiments/.", show_default=False)
    ] = None,
    generative: Annotated[
        str | None,
        typer.Option(
            "--generative",
            help="A generative model or a likelihood of your own, as in my_model.py:Sticks.",
        ),
    ] = None,
    plugin: Plugins = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Of --generative without a TOML file.", show_default="600"),
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

    [bold]ncp train --generative my_model.py:Sticks[/bold]
    """
    with _sign_of_life("preparing the training", not quiet):
        from ncp.generative.mnist import attach_arrays
        from ncp.training.loop import launch

        _add_plugins(plugin)
        recipe, directory = _recipe(config, resume, out, generative, steps)
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
        needed = [str(file) for file in plugin or ()]
        needed += [generative.rpartition(":")[0]] if generative else []
        more = "".join(f" --plugin {shlex.quote(file)}" for file in needed)
        print_line(f"Weights in {path}; try: ncp check {shlex.quote(str(path))}{more}")


def _recipe(
    config: Path | None,
    resume: Path | None,
    out: Path | None,
    generative: str | None = None,
    steps: int | None = None,
) -> tuple[Recipe, Path]:
    from ncp.network.checkpoint import read
    from ncp.training.recipe import Recipe
    from ncp.training.state import checkpoints

    if (config is None and generative is None) == (resume is None):
        raise typer.BadParameter(
            "give either a CONFIG.toml or --resume RUNDIR, or --generative FILE.py:NAME"
        )
    if steps is not None and (config is not None or generative is None):
        raise typer.BadParameter("--steps goes with --generative; a TOML file says its own")
    if config is not None and not config.is_file():
        raise ValueError(f"{config}: there is no such file")
    if generative is not None:
        recipe = _own_recipe(generative, config, steps)
        return recipe, out or Path("runs") / recipe.name
    if config is not None:
        recipe = Recipe.from_toml(config)
        return recipe, out or Path("runs") / recipe.name
    assert resume is not None
    for path in reversed(checkpoints(resume)):
        with suppress(ValueError, KeyError):  # a damaged checkpoint: an older one will do
            return Recipe.from_dict(read(path).info["recipe"]), resume
    raise ValueError(f"{resume}: holds no checkpoint that can be read")


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
    print_line(f"Written to {path}")


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
    plugin: Plugins = None,
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
    show = not (quiet or as_json)
    with _sign_of_life(f"{model}: loading the model", show):
        from ncp.checks.runner import run_checks
        from ncp.files import write_atomically
        from ncp.generative.mnist import attach_arrays
        from ncp.model import load
        from ncp.network.pretrained import short_name
        from ncp.output.plots import check_figure

        _add_plugins(plugin)
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
    _save_figure(check_figure(found), directory / "check.png")
    if show:
        print_line(f"Written to {directory}")
    if not found.passed:
        say(f"{name}: failed {', '.join(found.failed)}")
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

    with _sign_of_life("looking for MNIST"):
        digits = mnist(directory)
    n_train, n_test = len(digits.train_images), len(digits.test_images)
    print_line(f"MNIST: {n_train:,} + {n_test:,} images in {where(directory)}")


def _list(text: str) -> list[str] | None:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return parts or None


if __name__ == "__main__":
    sys.exit(app())
