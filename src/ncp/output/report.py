"""A clustering as one HTML file: no network, no scripts, nothing but text and pictures.

The page forbids itself to load anything (a content security policy), names of files and columns
are escaped, and pictures are PNG images inside the file. It is made to be read by someone who
does not know the method: every picture has a sentence that says how to read it.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from ncp.output import plots
from ncp.output.words import chance, count, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ReportData", "report"]

N_PARTITIONS = 5
N_DOUBTFUL = 10
MOST_LISTED = 12  # clusters and columns listed in tables

CITATION = """\
@misc{pakman2018amortized,
  title  = {Amortized Bayesian inference for clustering models},
  author = {Pakman, Ari and Paninski, Liam},
  year   = {2018},
  note   = {arXiv:1811.09747}
}"""

STYLE = """
:root { --ink: #1d2126; --soft: #5b6570; --line: #dfe3e8; --accent: #0072B2; --warn: #D55E00; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff;
       font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0 0 .4rem; }
p { margin: .4rem 0; }
.soft, figcaption { color: var(--soft); font-size: .92rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: .75rem;
         margin: 1.25rem 0; }
.fact { border: 1px solid var(--line); border-radius: 8px; padding: .6rem .8rem; }
.fact b { display: block; font-size: 1.45rem; line-height: 1.2; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr));
        gap: 1.25rem; }
section { border: 1px solid var(--line); border-radius: 8px; padding: 1rem; margin: 0 0 1.25rem;
          min-width: 0; }
.grid section { margin: 0; }
.grid { margin-bottom: 1.25rem; }
figure { margin: .5rem 0 0; }
img { display: block; width: 100%; height: auto; }
.few { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: .75rem; }
.few figcaption { text-align: center; }
.scroll { overflow-x: auto; }
.wide img { min-width: 640px; }
table { border-collapse: collapse; font-size: .92rem; min-width: 100%; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line);
         white-space: nowrap; max-width: 14rem; overflow: hidden; text-overflow: ellipsis; }
th { color: var(--soft); font-weight: 600; }
.dot { display: inline-block; width: .8em; height: .8em; border-radius: 50%; margin-right: .35em;
       border: 1px solid #0006; vertical-align: baseline; }
.warning { border-left: 4px solid var(--warn); padding-left: .75rem; }
pre { overflow-x: auto; background: #f5f7f9; padding: .75rem; border-radius: 6px;
      font-size: .85rem; }
@media print { section { break-inside: avoid; } }
"""


@dataclass(frozen=True, eq=False)
class ReportData:
    """What a report is made of: plain values.

    Attributes:
        title: Its heading, usually the name of the data.
        model_name: Of the model that clustered them.
        table: The data, `(N, P)` (or images, `(N, H, W)`).
        columns: Names of the columns, `(P,)`.
        labels: The best single partition, `(N,)`; -1 for rows that were left out.
        confidence: Of each row in its cluster, `(N,)`; NaN for label -1.
        samples: Posterior samples of equal weight, `(S, N)`; -1 for rows that were left out.
        shown: The rows that the similarity matrix is of, `(n,)`.
        similarity: Probability that two of them share a cluster, `(n, n)`.
        k: Numbers of clusters, ascending, and their probabilities.
        n_draws: How many independent draws the samples are worth.
        sentences: What was found.
        trust: How far to trust it.
        notes: What was done to the data.
        warnings: What looks unlike the data that the model was trained on.
        about: How the result was made.
    """

    title: str
    model_name: str
    table: np.ndarray
    columns: tuple[str, ...]
    labels: np.ndarray
    confidence: np.ndarray
    samples: np.ndarray
    shown: np.ndarray
    similarity: np.ndarray
    k: tuple[np.ndarray, np.ndarray]
    n_draws: float
    sentences: tuple[str, ...]
    trust: tuple[str, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    about: str

    @property
    def n_points(self) -> int:
        """The number of rows N."""
        return len(self.labels)

    @property
    def n_clusters(self) -> int:
        """The number of clusters of the best single partition."""
        return int(self.labels.max()) + 1

    @property
    def sizes(self) -> np.ndarray:
        """Of its clusters."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.n_clusters)


def report(data: ReportData) -> str:
    """The report as HTML."""
    sections = [
        _grid(_data_section(data), _k_section(data)),
        _grid(_similarity_section(data), _trust_section(data)),
        _clusters_section(data),
        _pairs_section(data),
        _partitions_section(data),
        _doubtful_section(data),
        _about_section(data),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(data.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"{_head(data)}\n{''.join(sections)}</main>\n</body>\n</html>\n"
    )


# -- pieces ----------------------------------------------------------------------------------------


def _head(c: ReportData) -> str:
    values, p = c.k
    low, high = values[np.searchsorted(p.cumsum(), [0.025, 0.975]).clip(max=len(p) - 1)]
    between = f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
    likely = chance(float(p[values == c.n_clusters].sum()), c.n_draws)
    facts = [
        (str(c.n_clusters), f"in the best partition ({likely} for this number)"),
        (between, "clusters with 95% probability"),
        (percent(float(np.nanmean(c.confidence))), "mean confidence of a row in its cluster"),
        (f"{c.n_points:,}", f"rows, {count(int(np.prod(c.table.shape[1:])), 'column')}"),
    ]
    boxes = "".join(f'<div class="fact"><b>{escape(b)}</b>{escape(t)}</div>' for b, t in facts)
    warning = "".join(f'<p class="warning">{escape(text)}</p>' for text in c.warnings)
    return (
        f"<h1>{escape(c.title)}</h1>\n"
        f'<p class="soft">Bayesian clustering with the model {escape(c.model_name)}, '
        f"{len(c.samples):,} posterior samples.</p>\n"
        f'{warning}<div class="facts">{boxes}</div>\n'
    )


def _section(title: str, *parts: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{''.join(parts)}</section>\n"


def _grid(*sections: str) -> str:
    return f'<div class="grid">\n{"".join(sections)}</div>\n'


def _picture(figure: Figure, description: str, caption: str = "") -> str:
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # a name may have characters that no installed font has; a box is then the right picture
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(buffer, format="png", dpi=144)
    content = base64.b64encode(buffer.getvalue()).decode()
    note = f"<figcaption>{caption}</figcaption>" if caption else ""
    return (
        f'<figure><img alt="{escape(description)}" src="data:image/png;base64,{content}">'
        f"{note}</figure>\n"
    )


def _drawn(draw: Callable[[Axes], object], width: float = 5.2, height: float = 4.0) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    draw(figure.subplots())
    return figure


def _data_section(c: ReportData) -> str:
    figure = _drawn(lambda ax: plots.clusters(ax, c.table, c.labels, c.confidence, c.columns))
    shown = min(c.n_points, plots.MOST_POINTS)
    some = f" A random {shown:,} rows are drawn." if shown < c.n_points else ""
    return _section(
        "The data",
        _picture(
            figure,
            f"Scatter plot of {shown} rows coloured by cluster",
            "Each row is a point, coloured by its cluster in the best single partition. "
            f"The paler a point, the less sure its cluster.{some}",
        ),
    )


def _k_section(c: ReportData) -> str:
    figure = _drawn(lambda ax: plots.posterior_of_k(ax, *c.k, c.n_clusters))
    words = "".join(f"<p>{escape(text)}</p>" for text in c.sentences)
    return _section(
        "How many clusters?",
        _picture(figure, "Bar chart of the posterior probability of each number of clusters"),
        words,
    )


def _pairs_section(c: ReportData) -> str:
    width = int(np.prod(c.table.shape[1:]))
    if width < 3 or c.table.ndim > 2:
        return ""
    figure = plots.pair_plot(c.table, c.labels, c.confidence, c.columns)
    some = " The four columns that tell the clusters apart best are shown." if width > 4 else ""
    return _section(
        "Column by column",
        '<div class="scroll wide">',
        _picture(figure, "Pair plot of the columns, coloured by cluster"),
        "</div>",
        f'<p class="soft">Every pair of columns; histograms on the diagonal.{some}</p>',
    )


def _similarity_section(c: ReportData) -> str:
    shown, matrix = c.shown, c.similarity
    labels = c.labels[shown]
    figure = _drawn(lambda ax: plots.similarity_matrix(ax, matrix, labels), height=4.4)
    some = f" A random {len(shown):,} of {c.n_points:,} rows." if len(shown) < c.n_points else ""
    return _section(
        "Who belongs together?",
        _picture(
            figure,
            "Matrix of co-clustering probabilities, ordered by cluster",
            "How probable it is that two rows share a cluster. Clean bright squares are clusters "
            f"that are not in doubt; grey areas are rows that could go either way.{some}",
        ),
    )


def _clusters_section(c: ReportData) -> str:
    order = np.argsort(-c.sizes, kind="stable")[:MOST_LISTED]
    rows = []
    for k in order:
        here = c.labels == k
        colour = plots.cluster_style(int(k))[0]
        centre = [_number(np.nanmean(column)) if not np.isnan(column).all() else ""
                  for column in _columns(c, here)]  # fmt: skip
        dot = f'<span class="dot" style="background:{colour}"></span>{k}'
        sure = percent(float(c.confidence[here].mean()))
        rows.append([dot, f"{int(here.sum()):,}", sure, *centre])
    more = c.n_clusters - len(order)
    note = f'<p class="soft">And {more} smaller clusters.</p>' if more > 0 else ""
    names = [escape(name) for name in c.columns[:MOST_LISTED]] if c.table.ndim == 2 else []
    how = '<p class="soft">Clusters by size, with the mean of each column.</p>'
    return _section(
        "The clusters", how, _table(["cluster", "rows", "confidence", *names], rows), note
    )


def _columns(c: ReportData, here: np.ndarray) -> list[np.ndarray]:
    return list(c.table[here].T[:MOST_LISTED]) if c.table.ndim == 2 else []


def _partitions_section(c: ReportData) -> str:
    usable = np.flatnonzero(c.labels >= 0)
    rows, counts = np.unique(c.samples[:, usable], axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    rows, weights = rows[order], counts[order] / len(c.samples)
    pictures = []
    for labels, weight in zip(rows[:N_PARTITIONS], weights, strict=False):
        matched = _match(labels, c.labels[usable])
        figure = _drawn(partial(_thumbnail, table=c.table[usable], labels=matched), 2.6, 2.2)
        caption = f"{percent(float(weight))}, {count(len(np.unique(labels)), 'cluster')}"
        pictures.append(_picture(figure, f"A partition with probability {caption}", caption))
    total = percent(float(weights[:N_PARTITIONS].sum()))
    how = (
        f"The samples hold {count(len(rows), 'different partition')}; the most "
        f"probable {len(pictures)} have {total} of the probability. When each is improbable, they "
        "differ in a few doubtful rows: the numbers above say more than any single one."
    )
    return _section(
        "The most probable partitions",
        f'<p class="soft">{how}</p><div class="few">{"".join(pictures)}</div>',
    )


def _thumbnail(ax: Axes, table: np.ndarray, labels: np.ndarray) -> None:
    plots.clusters(ax, table, labels, size=8.0)
    ax.set(xlabel="", ylabel="", xticks=[], yticks=[])


def _match(labels: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Labels renamed so that clusters have the colours of those of the reference they overlap."""
    from scipy.optimize import linear_sum_assignment

    shared = np.zeros((int(labels.max()) + 1, int(reference.max()) + 1))
    np.add.at(shared, (labels, reference), 1)
    rows, columns = linear_sum_assignment(-shared)
    new = dict(zip(rows.tolist(), columns.tolist(), strict=True))
    free = iter(sorted(set(range(sum(shared.shape))) - set(new.values())))
    names = np.array([new[k] if k in new else next(free) for k in range(len(shared))])
    return np.asarray(names[labels])


def _doubtful_section(c: ReportData) -> str:
    usable = np.flatnonzero(c.labels >= 0)
    order = usable[np.argsort(c.confidence[usable], kind="stable")][:N_DOUBTFUL]
    rows = []
    for i in order:
        values = [_number(v) for v in np.atleast_1d(c.table[i])[:MOST_LISTED]]
        values = values if c.table.ndim == 2 else []
        rows.append([str(i + 1), str(c.labels[i]), f"{c.confidence[i]:.0%}", *values])
    names = [escape(name) for name in c.columns[:MOST_LISTED]] if c.table.ndim == 2 else []
    return _section(
        "The least certain rows",
        '<p class="soft">Rows are counted from 1. Confidence is the probability of sharing a '
        "cluster with a typical member of one's own.</p>",
        _table(["row", "cluster", "confidence", *names], rows),
    )


def _trust_section(c: ReportData) -> str:
    sentences = [*c.trust, *c.notes, *(f"Warning: {text}" for text in c.warnings)]
    return _section("Can this be trusted?", *(f"<p>{escape(text)}</p>" for text in sentences))


def _about_section(c: ReportData) -> str:
    made = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return _section(
        "How this was made, and how to cite it",
        f"<p>{escape(c.about)}; {made}.</p>",
        "<p>Partitions were sampled by a neural clustering process, a network trained to invert "
        "a mixture model:</p>",
        f"<pre>{escape(CITATION)}</pre>",
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    """Cells are HTML already."""
    head = "".join(f"<th>{cell}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="scroll"><table>\n<tr>{head}</tr>\n{body}</table></div>\n'


def _number(value: float) -> str:
    return "missing" if np.isnan(value) else f"{value:.4g}"
