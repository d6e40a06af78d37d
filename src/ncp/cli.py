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
from functools import partial
from glob import escape as glob_escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from ncp.checks.plan import CheckPlan
    from ncp.clustering.result import Clustering
    from ncp.generative.model import GenerativeModel
    from ncp.model import NCP
    from ncp.output.readers import Table
    from ncp.training.recipe import RunConfig

BAD_INPUT, SOME_FAILED, CHECK_FAILED, BUG, INTERRUPTED = 3, 4, 5, 70, 130
BLOCK_FILES, BLOCK_ROWS = 64, 20_000  # of several files, clustered at once
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
        typer.Option(help="Cluster many files on Dask: workers here, or those of --address."),
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
    import hashlib

    from ncp.clustering.prepare import Settings
    from ncp.model import load
    from ncp.network.pretrained import find, short_name
    from ncp.output import readers

    sources = readers.expand(data)
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
    Settings(**how)  # type: ignore[arg-type]  # refuse early
    if address is not None and engine is None:
        raise ValueError("Expected --engine dask with an --address")
    jobs = _jobs(sources, out)
    network = load(model)
    batch = _Batch(
        network,
        short_name(model),
        hashlib.sha256(find(model).read_bytes()).hexdigest(),
        how,
        _list(columns),
        _list(one_hot) or [],
        format.value,
        report,
    )
    show = not (quiet or as_json)
    started = time.monotonic()
    where = None if engine is None else engine.value, address
    with _progress(show and sys.stderr.isatty()) as progress:
        batch.run(jobs, resume, progress, *where, keep=None if as_json else TABLE_ROWS)
    return _tell(jobs, time.monotonic() - started, show, as_json)


class _Job:
    """One file and what became of it."""

    def __init__(self, source: str, name: str, directory: Path) -> None:
        self.source, self.name, self.directory = source, name, directory
        self.summary: dict[str, Any] = {}
        self.error = ""
        self.skipped = False


def _jobs(sources: list[str], out: Path | None) -> list[_Job]:
    from ncp.output.readers import names

    base = Path("ncp-output") if out is None else out
    short = names(sources)
    alone = len(sources) == 1 and out is not None
    jobs = [
        _Job(source, name, base if alone else base / name)
        for source, name in zip(sources, short, strict=True)
    ]
    for path in (*base.parents, base, *(job.directory for job in jobs)):
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path}: is a file, but a folder to write to was expected")
    return jobs


class _Batch:
    """Clusters files in blocks, so that the memory does not grow with their number."""

    def __init__(
        self,
        model: NCP,
        model_name: str,
        weights: str,
        settings: dict[str, Any],
        columns: list[str] | None,
        one_hot: list[str],
        format: str,
        report: bool,
    ) -> None:
        self.model, self.model_name, self.weights = model, model_name, weights
        self.settings = settings
        self.columns, self.one_hot = columns, one_hot
        self.format, self.report = format, report
        self.settled = 0
        self.remembered = 0
        self.keep: int | None = None

    def run(
        self,
        jobs: list[_Job],
        resume: bool,
        progress: _Tell,
        engine: str | None = None,
        address: str | None = None,
        keep: int | None = None,
    ) -> None:
        """Cluster and write all of them; remember the summaries of `keep`, or of all."""
        from ncp.engines import run

        self.keep = keep
        work = partial(
            make_files,
            settings=self.settings,
            model_name=self.model_name,
            format=self.format,
            report=self.report,
            progress=progress if engine is None else None,
        )
        results = run(work, self.model, self._blocks(jobs, resume), engine, address)
        for done, (number, made) in enumerate(results, 1):
            job = jobs[number]
            if isinstance(made, str):
                job.error = made
            else:
                write_files(job.directory, made)
                self._remember(job, json.loads(made["summary.json"]))
            if len(jobs) > 1:
                progress("files", done + self.settled, len(jobs))

    def _remember(self, job: _Job, summary: dict[str, Any]) -> None:
        if self.keep is None or self.remembered < self.keep:
            job.summary = summary
            self.remembered += 1

    def _blocks(self, jobs: list[_Job], resume: bool) -> Iterator[list[tuple[int, _Item]]]:
        """What there is to do, read when it is needed; counts what needs nothing."""
        block: list[tuple[int, _Item]] = []
        for i, job in enumerate(jobs):
            table = self._read(job, resume)
            if table is not None:
                item = _Item(job.source, job.name, str(job.directory), table, self._inputs(table))
                block.append((i, item))
            else:
                self.settled += 1
            rows = sum(len(item.table.values) for _, item in block)
            if block and (len(block) >= BLOCK_FILES or rows >= BLOCK_ROWS):
                yield block
                block = []
        if block:
            yield block

    def _read(self, job: _Job, resume: bool) -> Table | None:
        from ncp.output.readers import read_bytes, read_table

        try:
            content = read_bytes(job.source)
            table = read_table(job.source, content, self.columns, self.one_hot)
        except ValueError as error:
            job.error = str(error)
            return None
        if resume and (found := self._finished(job, table)) is not None:
            self._remember(job, found)
            job.skipped = True
            return None
        return table

    def _inputs(self, table: Table) -> dict[str, Any]:
        """All that determines a result."""
        from ncp import __version__

        model = {"model": self.model_name, "weights": self.weights, "version": __version__}
        chosen = {"columns": self.columns, "one_hot": self.one_hot, "format": self.format}
        return {"sha256": table.digest, **model, **self.settings, **chosen}

    def _finished(self, job: _Job, table: Table) -> dict[str, Any] | None:
        try:
            found = json.loads((job.directory / "summary.json").read_text())
        except (OSError, ValueError):
            return None
        if not isinstance(found, dict) or found.get("inputs") != self._inputs(table):
            return None
        if self.report and not found.get("report"):  # one that is there is of an older result
            return None
        names = [f"labels.{self.format}", "samples.npz", *(["report.html"] if self.report else [])]
        return found if all((job.directory / name).is_file() for name in names) else None


class _Item(NamedTuple):
    """What a file's results are made of."""

    source: str
    name: str
    directory: str
    table: Table
    inputs: dict[str, Any]


def make_files(
    model: NCP,
    numbers: list[int],
    items: list[_Item],
    *,
    settings: dict[str, Any],
    model_name: str,
    format: str,
    report: bool,
    progress: _Tell | None = None,
) -> list[dict[str, bytes] | str]:
    """The files of each item's results, or what is wrong with it. Runs here or on a worker."""
    from ncp.clustering.cluster import cluster_many

    try:
        tables = [item.table.values for item in items]
        results = cluster_many(tables, model, progress=progress, **settings)
    except ValueError as error:
        if len(items) == 1:
            return [f"{items[0].source}: {error}"]
        return [  # find the file that it is about
            made
            for i, item in zip(numbers, items, strict=True)
            for made in make_files(
                model,
                [i],
                [item],
                settings=settings,
                model_name=model_name,
                format=format,
                report=report,
            )
        ]
    return [
        _files(item, result, model_name, format, report)
        for item, result in zip(items, results, strict=True)
    ]


def _files(
    item: _Item, result: Clustering, model_name: str, format: str, report: bool
) -> dict[str, bytes]:
    from dataclasses import replace

    notes = (*item.table.notes, *result.notes)
    result = replace(result, columns=item.table.columns, notes=notes, model_name=model_name)
    directory = Path(item.directory)
    summary = {"data": item.source, **result.to_dict(), "inputs": item.inputs}
    summary["labels"] = str(directory / f"labels.{format}")
    summary["report"] = str(directory / "report.html") if report else None
    files = {f"labels.{format}": labels_file(result, format), "samples.npz": samples_file(result)}
    if report:
        files["report.html"] = result.report(item.name).encode()
    files["summary.json"] = (json.dumps(summary, indent=2) + "\n").encode()
    return files


def write_files(directory: Path, files: dict[str, bytes]) -> None:
    """Write files to a folder, all of them or none.

    A new folder appears by a rename when it is complete. In one that is there, each file appears by
    a rename, the summary last: where that is, the others are.
    """
    from ncp.files import write_atomically

    if not directory.exists():
        return _write_folder(directory, files)
    (directory / "summary.json").unlink(missing_ok=True)  # of results that are being replaced
    written: list[Path] = []
    try:
        for name, content in files.items():
            for left_over in directory.glob(f".{name}.????????"):  # by a run that was killed
                left_over.unlink()
            write_atomically(directory / name, content)
            written.append(directory / name)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def _write_folder(directory: Path, files: dict[str, bytes]) -> None:
    import secrets
    import shutil

    from ncp.files import write_atomically

    directory.parent.mkdir(parents=True, exist_ok=True)
    for left_over in directory.parent.glob(f".{glob_escape(directory.name)}.????????"):
        shutil.rmtree(left_over, ignore_errors=True)
    hidden = directory.parent / f".{directory.name}.{secrets.token_hex(4)}"
    hidden.mkdir()
    try:
        for name, content in files.items():
            write_atomically(hidden / name, content)
        hidden.rename(directory)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise


def labels_file(result: Clustering, format: str) -> bytes:
    """Row (from 1), cluster and confidence, as CSV, Parquet or JSON."""
    import io

    import numpy as np

    frame = result.to_pandas()
    frame["confidence"] = frame["confidence"].round(6)
    frame.insert(0, "row", np.arange(1, len(frame) + 1))
    if format == "csv":
        return frame.to_csv(index=False).encode()
    if format == "json":
        return (str(frame.to_json(orient="records")) + "\n").encode()
    buffer = io.BytesIO()
    try:
        frame.to_parquet(buffer, index=False)
    except ImportError:
        raise ValueError(
            "--format parquet needs pyarrow: pip install pyarrow, or use --format csv"
        ) from None
    return buffer.getvalue()


def samples_file(result: Clustering) -> bytes:
    """The samples; `ncp.Partitions.load` reads the file, too.

    labels, counts, log_q and log_weights are the distinct samples of the rows `index` (from 0);
    `samples` are complete samples of all rows, one a line.
    """
    import io

    import numpy as np

    arrays = result.posterior.to_numpy()
    arrays["labels"] = arrays["labels"].astype(np.int16)
    arrays |= {"index": result.index, "samples": result.samples}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _tell(jobs: list[_Job], seconds: float, show: bool, as_json: bool) -> int:
    """Print what was found; returns the exit code."""
    failed = [job for job in jobs if job.error]
    good = [job for job in jobs if not job.error]
    for job in failed:
        _say(job.error)
    if as_json:
        errors = [{"data": job.source, "error": job.error} for job in failed]
        print(json.dumps({"results": [job.summary for job in good], "errors": errors}, indent=2))
    elif show and good:
        _print_table(good, seconds)
    if not failed:
        return 0
    return SOME_FAILED if good else BAD_INPUT


def _print_table(jobs: list[_Job], seconds: float) -> None:
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
    from ncp.training.loop import launch

    run, directory = _run_config(config, resume, out)
    attach_arrays(run.mixture)
    launch(
        run,
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
        path = directory / f"{run.name}.safetensors"
        _console().print(f"Weights in {path}; try: ncp check {path}", soft_wrap=True)


def _run_config(
    config: Path | None, resume: Path | None, out: Path | None
) -> tuple[RunConfig, Path]:
    from ncp.network.checkpoint import read
    from ncp.training.recipe import RunConfig
    from ncp.training.state import checkpoints

    if (config is None) == (resume is None):
        raise typer.BadParameter("give either a CONFIG.toml or --resume RUNDIR")
    if config is not None:
        if not config.is_file():
            raise ValueError(f"{config}: there is no such file")
        run = RunConfig.from_toml(config)
        return run, out or Path("runs") / run.name
    assert resume is not None
    for path in reversed(checkpoints(resume)):
        with suppress(ValueError, KeyError):  # a damaged checkpoint: an older one will do
            return RunConfig.from_dict(read(path).info["run"]), resume
    raise ValueError(f"{resume}: holds no checkpoint that can be read")


def attach_arrays(mixture: Any, split: str = "train") -> None:
    """Give a mixture of MNIST images its images; other mixtures need nothing.

    One with fewer labels than ten takes the first digits.
    """
    if getattr(getattr(mixture, "likelihood", None), "source", "") != "mnist-train":
        return
    from ncp.generative.mnist import mnist

    digits = mnist()
    images, labels = digits.train_images, digits.train_labels
    if split != "train":
        images, labels = digits.test_images, digits.test_labels
        mixture.likelihood.distort = 0.0  # only training images are distorted
    first = labels < mixture.likelihood.n_labels
    mixture.likelihood.attach(images[first], labels[first])


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
