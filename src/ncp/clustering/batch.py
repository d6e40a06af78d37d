"""Many files, one after another: read, cluster in blocks, write a folder for each.

    jobs -> read -> blocks -> engine -> the files of a result -> a folder

Blocks are read when an engine asks for them, and results are written as they come, so memory does
not grow with the number of files. A file that cannot be used is a sentence in its job; the others
go on. A result names all that determines it (`inputs` of its summary), so that a resumed batch
knows what is there and up to date.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ncp import __version__
from ncp.clustering.cluster import cluster_many
from ncp.clustering.knowledge import Knowledge
from ncp.clustering.prepare import Settings
from ncp.clustering.result import Clustering
from ncp.clustering.said import Said
from ncp.clustering.saving import saved
from ncp.engine import map_blocks
from ncp.model import NCP, as_parcel, load
from ncp.network.pretrained import find, short_name
from ncp.output.folder import check_folder, replace_folder, tidy_folder
from ncp.output.readers import MAX_MEMORY, Marks, Table, names, read_bytes, read_table
from ncp.output.results import labels_file, labels_table, samples_file, summary_file

__all__ = ["Batch", "Job", "jobs_of"]

BLOCK_FILES, BLOCK_ROWS = 64, 20_000  # clustered at once

Progress = Callable[[str, int, int], None]


@dataclass
class Job:
    """One file and what became of it.

    Args:
        source: Its path, or `-`.
        name: A short name.
        directory: Where its results go.
        summary: What was found, if the batch remembers it.
        error: Why it could not be used, or nothing.
        skipped: Whether its results were there and up to date.
        note: What else there is to say of it.
    """

    source: str
    name: str
    directory: Path
    summary: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    skipped: bool = False
    note: str = ""
    before: int | None = field(default=None, repr=False)  # when a result was there already

    def written(self) -> int | None:
        """When the result that is in the folder was written."""
        try:
            return (self.directory / "summary.json").stat().st_mtime_ns
        except OSError:
            return None


def jobs_of(sources: Sequence[str], out: Path | None = None) -> list[Job]:
    """A job for each source; results of several, or without `out`, go to folders by their names."""
    base = Path("ncp-output") if out is None else out
    alone = len(sources) == 1 and out is not None
    jobs = [
        Job(source, name, base if alone else base / name)
        for source, name in zip(sources, names(sources), strict=True)
    ]
    for path in (*base.parents, base, *(job.directory for job in jobs)):
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path}: is a file, but a folder to write to was expected")
    return jobs


class Item(NamedTuple):
    """What a file's results are made of."""

    job: int
    source: str
    name: str
    directory: str
    table: Table
    inputs: dict[str, Any]
    knowledge: Knowledge
    command: str


Block = list[Item]
Files = dict[str, bytes]


@dataclass
class Batch:
    """How files are clustered and what is written of each.

    Args:
        model: The name of a model or the path of a checkpoint.
        settings: Of `ncp.clustering.cluster.Settings`.
        columns: To take of each file; all numeric ones by default.
        numeric: Columns that are numbers, whatever they look like.
        categorical: Columns that are categories, whatever they look like.
        format: Of the labels.
        report: Whether to write report.html.
        keep: Summaries to remember, all by default.
        marks: Decimal point and separator of thousands, where they cannot be told.
        append: Whether the labels come with the whole table, or with the names of rows only.
        max_memory: Bytes that a file may become when it is read.
        said: What is known of the rows of each file.
        save: Whether to write result.npz, which `Clustering.load` and `ncp report` read.
        options: Of the command line, for the report, which offers to complete it.
    """

    model: str
    settings: dict[str, Any]
    columns: list[str] | None = None
    numeric: list[str] = field(default_factory=list)
    categorical: list[str] = field(default_factory=list)
    format: str = "csv"
    report: bool = True
    keep: int | None = None
    marks: Marks = field(default_factory=Marks)
    append: bool = False
    max_memory: int = MAX_MEMORY
    said: Said = field(default_factory=Said)
    save: bool = False
    options: Sequence[str] = ()

    def __post_init__(self) -> None:
        Settings(**self.settings)  # refuse early
        self.network = load(self.model)
        self.model_name = short_name(self.model)
        self.weights = hashlib.sha256(find(self.model).read_bytes()).hexdigest()
        self.settled = self.remembered = 0

    def run(
        self,
        jobs: Sequence[Job],
        *,
        resume: bool = False,
        progress: Progress | None = None,
        engine: Any = None,
        address: str | None = None,
    ) -> None:
        """Cluster and write all of them.

        Args:
            jobs: See `jobs_of`; what became of each is written to it.
            resume: Skip those whose results are there and up to date.
            progress: Called with (what is being done, done, total).
            engine: Of `ncp.engine.map_blocks`.
            address: The same.
        """
        tell = progress or (lambda *_: None)
        work = partial(
            make_files,
            settings=self.settings,
            model_name=self.model_name,
            format=self.format,
            report=self.report,
            save=self.save,
            progress=progress if engine is None else None,
        )
        blocks, done = self._blocks(jobs, resume), 0
        parcel = as_parcel(self.network)
        for block, results in map_blocks(work, blocks, parcel, engine=engine, address=address):
            for item, made in zip(block, results, strict=True):
                self._write(jobs[item.job], made)
                done += 1
                if len(jobs) > 1:
                    tell("files", done + self.settled, len(jobs))

    def _write(self, job: Job, made: Files | str) -> None:
        if isinstance(made, str):
            job.error = made
        else:
            if job.written() != job.before:
                job.note = f"{job.directory}: another run wrote here meanwhile; this one is later"
            replace_folder(job.directory, made)
            self._remember(job, json.loads(made["summary.json"]))

    def _remember(self, job: Job, summary: dict[str, Any]) -> None:
        if self.keep is None or self.remembered < self.keep:
            job.summary = summary
            self.remembered += 1

    def _blocks(self, jobs: Sequence[Job], resume: bool) -> Iterator[Block]:
        """What there is to do, read when it is needed; counts what needs nothing."""
        block: Block = []
        for i, job in enumerate(jobs):
            table = self._read(job, resume)
            known = None if table is None else self._known(job, table)
            if table is None or known is None:
                self.settled += 1
                continue
            inputs = self._inputs(table)
            place, command = str(job.directory), self._command(job)
            block.append(Item(i, job.source, job.name, place, table, inputs, known, command))
            rows = sum(len(item.table.values) for item in block)
            if len(block) >= BLOCK_FILES or rows >= BLOCK_ROWS:
                yield block
                block = []
        if block:
            yield block

    def _known(self, job: Job, table: Table) -> Knowledge | None:
        try:
            return self.said.knowledge(table)
        except ValueError as error:
            job.error = f"{job.source}: {error}"
            return None

    def _command(self, job: Job) -> str:
        """The command line that makes this result."""
        default = job.directory == Path("ncp-output") / job.name
        out = [] if default else ["--out", str(job.directory)]
        return shlex.join(["ncp", "cluster", job.source, *self.options, *out])

    def _read(self, job: Job, resume: bool) -> Table | None:
        try:
            job.before = job.written()
            check_folder(job.directory, self._names())
            content = read_bytes(job.source, self.max_memory)
            table = read_table(
                job.source,
                content,
                self.columns,
                numeric=self.numeric,
                categorical=self.categorical,
                marks=self.marks,
                append=self.append,
                known=self.said.known_column,
                max_memory=self.max_memory,
            )
        except ValueError as error:
            job.error = str(error)
            return None
        if resume and (found := self._finished(job, table)) is not None:
            tidy_folder(job.directory)
            self._remember(job, found)
            job.skipped = True
            return None
        return table

    def _inputs(self, table: Table) -> dict[str, Any]:
        """All that determines a result."""
        model = {"model": self.model_name, "weights": self.weights, "version": __version__}
        kinds = {"numeric": self.numeric, "categorical": self.categorical}
        chosen = {"columns": self.columns, **kinds, "format": self.format}
        marks = {"decimal": self.marks.decimal, "thousands": self.marks.thousands}
        read = {**marks, "append": self.append}
        said = {"said": self.said.to_dict()}
        return {"sha256": table.digest, **model, **self.settings, **chosen, **read, **said}

    def _finished(self, job: Job, table: Table) -> dict[str, Any] | None:
        try:
            found = json.loads((job.directory / "summary.json").read_text())
        except (OSError, ValueError):
            return None
        if not isinstance(found, dict) or found.get("inputs") != self._inputs(table):
            return None
        if self.report and not found.get("report"):  # one that is there is of an older result
            return None
        there = all((job.directory / name).is_file() for name in self._names())
        return found if there else None

    def _names(self) -> list[str]:
        """Of the files that are written."""
        report = ["report.html"] if self.report else []
        result = ["result.npz"] if self.save else []
        return [f"labels.{self.format}", "samples.npz", *report, *result, "summary.json"]


# -- a block, here or on a worker --------------------------------------------------------------


def make_files(
    model: NCP,
    items: Block,
    *,
    settings: dict[str, Any],
    model_name: str,
    format: str,
    report: bool,
    save: bool = False,
    progress: Progress | None = None,
) -> list[Files | str]:
    """The files of each item's results, or what is wrong with it."""
    try:
        tables = [item.table.data for item in items]
        known = [item.knowledge for item in items]
        results = cluster_many(tables, model, knowledge=known, progress=progress, **settings)
    except ValueError as error:
        if len(items) == 1:
            return [f"{items[0].source}: {error}"]
        how = {"settings": settings, "model_name": model_name, "format": format}
        alone = [
            make_files(model, [item], **how, report=report, save=save)  # type: ignore[arg-type]
            for item in items
        ]
        return [made for one in alone for made in one]  # each file has its own error, if any
    return [
        _files(item, result, model_name, format, report, save)
        for item, result in zip(items, results, strict=True)
    ]


def _files(
    item: Item, result: Clustering, model_name: str, format: str, report: bool, save: bool
) -> Files:
    names, command = item.table.row_names, item.command
    result = replace(result, model_name=model_name, names=names, command=command)
    named = result.names_of_rows if item.knowledge.known is not None else None
    labels = labels_table(result.labels, result.confidence, item.table.rows, named)
    directory = Path(item.directory)
    summary = {"data": item.source, **result.to_dict(), "inputs": item.inputs}
    summary["labels"] = str(directory / f"labels.{format}")
    summary["report"] = str(directory / "report.html") if report else None
    files = {
        f"labels.{format}": labels_file(labels, format),
        "samples.npz": samples_file(result.posterior.to_numpy(), result.index, result.samples),
    }
    if report:
        files["report.html"] = result.report(item.name).encode()
    if save:
        files["result.npz"] = saved(result)
    summary["files"] = [*files, "summary.json"]
    files["summary.json"] = summary_file(summary)
    return files
