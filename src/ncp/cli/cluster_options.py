"""The options of `ncp cluster`, and what each of them means to the library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from enum import Enum, StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ncp.cli.common import JSON, MODEL_HELP, Plugins, Quiet

if TYPE_CHECKING:
    from ncp.clustering.said import Said

__all__ = ["ClusterOptions"]

NOT_REPEATED = ("data", "out", "resume", "engine", "address", "quiet", "as_json")
reading = partial(typer.Option, rich_help_panel="Reading the file")
posterior = partial(typer.Option, rich_help_panel="The posterior")
knowing = partial(typer.Option, rich_help_panel="What is known")
mixture = partial(typer.Option, rich_help_panel="Models with a scale, and gaussian")
writing = partial(typer.Option, rich_help_panel="Results")


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


@dataclass(frozen=True)
class ClusterOptions:
    """What was typed."""

    data: Annotated[
        list[str],
        typer.Argument(
            help="CSV, TSV, Excel, Parquet, Feather, JSON, NPY or NPZ files, patterns, or - for "
            "standard input.",
            show_default=False,
        ),
    ]
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)] = "tabular"
    seed: Annotated[int, typer.Option(help="Makes the result reproducible.")] = 0
    quiet: Quiet = False
    as_json: JSON = False
    plugin: Plugins = None
    engine: Annotated[
        Engine | None,
        typer.Option(help="Cluster many files on all cores, or on the Dask workers of --address."),
    ] = None
    address: Annotated[
        str | None, typer.Option(help="Of a Dask scheduler, as in tcp://scheduler:8786.")
    ] = None

    columns: Annotated[
        str, reading(help="Columns to use, by name or number from 1, as in a,b or 1,3.")
    ] = ""
    numeric: Annotated[str, reading(help="Columns that are numbers, whatever they look like.")] = ""
    categorical: Annotated[str, reading(help="Columns that are categories, e.g. codes.")] = ""
    decimal: Annotated[
        str | None, reading(help="Decimal point of a text file, if it cannot be told: . or ,")
    ] = None
    thousands: Annotated[
        str | None, reading(help="Separator of thousands, if it cannot be told: , or . or '")
    ] = None
    max_memory: Annotated[
        float, reading(min=0.001, help="GiB that a file may take up when it is read.")
    ] = 4.0

    samples: Annotated[
        int | None,
        posterior("--samples", "-n", min=1, help="How many; 400 for tabular, else 1,000."),
    ] = None
    orders: Annotated[
        int | None,
        posterior(
            min=1,
            help="Random orders of the rows the samples are spread over; 16 for tabular, else 8.",
        ),
    ] = None
    estimate: Annotated[Loss, posterior(help="Loss of the single best partition.")] = Loss.auto
    max_clusters: Annotated[
        int | None, posterior(min=1, help="Most clusters of the best partition.")
    ] = None
    max_points: Annotated[
        int | None,
        posterior(min=2, help="Rows sampled at once; the others of a large file are assigned."),
    ] = None
    reweight: Annotated[
        bool | None,
        posterior(
            "--reweight/--no-reweight",
            help="Importance weights; by default where they exist and can be trusted.",
            show_default=False,
        ),
    ] = None
    exact: Annotated[
        bool | None,
        posterior("--exact/--no-exact", help="Insist on exact samples.", show_default=False),
    ] = None

    known_column: Annotated[
        str | None,
        knowing(help="Column of labels that are known; rows with an empty cell have none."),
    ] = None
    known: Annotated[
        list[str] | None,
        knowing(help="Rows whose label is known, as in 3-9,12=setosa; may be repeated."),
    ] = None
    together: Annotated[
        list[str] | None,
        knowing(help="Rows of one cluster, as in 3-9,12, or a file with such a line each."),
    ] = None
    apart: Annotated[
        list[str] | None,
        knowing(help="Rows of which no two share a cluster; the same."),
    ] = None
    clusters: Annotated[
        int | None, knowing("--clusters", "-k", min=1, help="How many clusters there are.")
    ] = None
    at_least: Annotated[int | None, knowing(min=1, help="The fewest that there are.")] = None
    at_most: Annotated[int | None, knowing(min=1, help="The most that there are.")] = None
    at_any_price: Annotated[
        bool,
        knowing("--at-any-price", help="Obey what is known even if the model denies it."),
    ] = False

    noise_sd: Annotated[
        float | None,
        mixture(help="Spread of one cluster in your units; brings data to the model's."),
    ] = None
    scale: Annotated[
        float | None, mixture(help="Multiply the centred data by this number instead.")
    ] = None
    alpha: Annotated[
        float | None, mixture(help="Concentration, for gaussian; else by its evidence.")
    ] = None
    ratio: Annotated[
        float | None, mixture(help="Spread between clusters in those within, for gaussian.")
    ] = None
    dof: Annotated[
        str | None, mixture(help="Degrees of freedom of covariances, or known, for gaussian.")
    ] = None
    average: Annotated[
        bool, mixture("--average", help="Average over hyper-parameters, for gaussian.")
    ] = False
    compare: Annotated[
        str, mixture(help="Compare evidences, for gaussian, as in alpha=0.3,1,3.")
    ] = ""

    out: Annotated[
        Path | None,
        writing("--out", "-o", help="Folder to write to.", show_default="ncp-output/NAME"),
    ] = None
    format: Annotated[Format, writing(help="Of the labels.")] = Format.csv
    append: Annotated[
        bool, writing("--append", help="Write the labels beside the whole table.")
    ] = False
    report: Annotated[bool, writing(help="Write report.html.")] = True
    save: Annotated[
        bool, writing("--save", help="Write result.npz, for ncp report and Clustering.load.")
    ] = False
    resume: Annotated[
        bool, writing("--resume", help="Skip files whose results are there and up to date.")
    ] = False

    def settings(self) -> dict[str, Any]:
        """Of `ncp.cluster`."""
        same = "orders", "max_clusters", "max_points", "noise_sd", "scale", "seed", "alpha", "ratio"
        return {name: getattr(self, name) for name in same} | {
            "n_samples": self.samples,
            "estimate": self.estimate.value,
            "reweight": "auto" if self.reweight is None else self.reweight,
            "dof": self.dof if self.dof in (None, "known") else _number("--dof", self.dof),
            "hyperparameters": "average" if self.average else "best",
            "exact": self.exact,
        }

    def said(self) -> Said:
        """What is known of the rows of every file."""
        from ncp.clustering.said import Said

        return Said.read(
            known_column=self.known_column,
            known=tuple(self.known or ()),
            together=self.together or (),
            apart=self.apart or (),
            n_clusters=self.clusters,
            at_least=self.at_least,
            at_most=self.at_most,
            at_any_price=self.at_any_price,
        )

    def repeated(self) -> list[str]:
        """The options that were given, for another command line like this one."""
        hints = get_type_hints(ClusterOptions, include_extras=True)
        found: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in NOT_REPEATED and value != field.default and value is not None:
                option, opposite = _written(field, hints[field.name])
                for one in value if isinstance(value, list) else [value]:
                    found += _repeated(option, opposite, one)
        return found


def _written(field: Field[Any], hint: Any) -> tuple[str, str]:
    """The long name of an option, and of its opposite."""
    said = next(one for one in hint.__metadata__ if hasattr(one, "param_decls"))
    written = [str(one) for one in (said.default, *(said.param_decls or ()))]
    long = [one for one in written if one.startswith("--")]
    option, _, opposite = (long or [f"--{field.name.replace('_', '-')}"])[0].partition("/")
    return option, opposite or option.replace("--", "--no-")


def _repeated(option: str, opposite: str, value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        yield option if value else opposite
    else:
        yield from (option, str(value.value if isinstance(value, Enum) else value))


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"Expected a number or known for {name} but got {text!r}") from None
