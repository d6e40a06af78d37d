"""`ncp cluster` and `ncp report`: from files to results."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncp.cli.cluster_options import ClusterOptions
from ncp.cli.common import (
    BAD_INPUT,
    MODEL_HELP,
    SOME_FAILED,
    Plugins,
    add_plugins,
    sign_of_life,
    takes,
)
from ncp.output.terminal import bars, console, print_line, say, visible

if TYPE_CHECKING:
    from ncp.clustering.batch import Job

__all__ = ["cluster", "report"]

TABLE_ROWS = 20  # printed


@takes(ClusterOptions)
def cluster(asked: ClusterOptions) -> int:
    """Cluster tables: labels with confidence, samples, a summary and a report.

    For every file the folder gets labels.csv (cluster and confidence of each row), samples.npz
    (posterior samples), summary.json and report.html. Files appear complete or not at all.

      [bold]ncp cluster iris.csv[/bold]

      [bold]cat iris.csv | ncp cluster - --columns 1,2 --out iris[/bold]

      [bold]ncp cluster spikes.npy --model gaussian-2d --noise-sd 0.02[/bold]

      [bold]ncp cluster iris.csv --known-column species --together 3,17 --at-most 4[/bold]

    Rows are counted from 1, or called what a column of the file calls them.
    """
    show = not (asked.quiet or asked.as_json)
    started = time.monotonic()
    with sign_of_life(f"{', '.join(asked.data[:3])}: loading the model", show):
        from ncp.sampling.kernels import start_compiling

        start_compiling()  # before torch is imported, which takes a second
        from ncp.clustering.batch import Batch, jobs_of
        from ncp.output.readers import Marks, expand

        add_plugins(asked.plugin)
    said = asked.said()
    if asked.compare:
        return _compare(asked)
    if asked.address is not None and asked.engine is None:
        raise ValueError("Expected --engine dask with an --address")
    jobs = jobs_of(expand(asked.data), asked.out)
    batch = Batch(
        asked.model,
        asked.settings(),
        columns=_list(asked.columns),
        numeric=_list(asked.numeric) or [],
        categorical=_list(asked.categorical) or [],
        format=asked.format.value,
        report=asked.report,
        keep=None if asked.as_json else TABLE_ROWS,
        marks=Marks(asked.decimal, asked.thousands),
        append=asked.append,
        max_memory=int(asked.max_memory * 2**30),
        said=said,
        save=asked.save,
        options=asked.repeated(),
    )
    with bars(show and sys.stderr.isatty()) as progress:
        engine = asked.engine and asked.engine.value
        batch.run(
            jobs, resume=asked.resume, progress=progress, engine=engine, address=asked.address
        )
    return _tell(jobs, time.monotonic() - started, show, asked.as_json)


def _list(text: str) -> list[str] | None:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return parts or None


def _compare(asked: ClusterOptions) -> int:
    """Print the evidence of each value of a hyper-parameter, for every file."""
    from rich.table import Table

    from ncp.clustering.compare import compare, read_comparison
    from ncp.output.readers import expand, read_bytes, read_table

    name, values = read_comparison(asked.compare)
    found = {}
    for source in expand(asked.data):
        with sign_of_life(f"{source}: comparing values of {name}", not asked.as_json):
            table = read_table(source, read_bytes(source), _list(asked.columns))
            found[source] = compare(table.data, asked.model, name, values, **asked.settings())
    if asked.as_json:
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


def report(
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
    with sign_of_life(f"{path}: making the report"):
        from ncp.clustering.result import Clustering

        add_plugins(plugin)
        try:
            found = Clustering.load(path, model)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        heading = title or (path.parent.resolve().name if path.name == "result.npz" else path.stem)
        page = path.with_name("report.html") if out is None else out
        found.write_report(page, heading)
    print_line(f"Written to {page}")
