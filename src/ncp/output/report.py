"""A clustering as one HTML file to explore: no network, nothing to install, readable on paper.

The picture of the rows is drawn by Bokeh, because its Python package carries its JavaScript and
the part that is needed has 1.4 MB (plotly's has 4.5 MB, which alone would be our limit for a table
of 1,000 rows); controls are plain HTML. The script gets the rows shown, the samples and the
best partitions as numbers (`ncp.output.payload`) and computes the rest in the browser:

    P(i and j share a cluster) = (1 / S) #{s : c^s_i = c^s_j}.

Without JavaScript, and on paper, the page shows still pictures instead (`ncp.output.drawings`).

The page forbids itself to load anything and to run any script but its own two, by a content
security policy with their hashes. Names and cells are escaped where they are HTML, and put into
the page as text where the script does it; so nothing in a table can run.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from html import escape
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ncp.output import drawings, words
from ncp.output.payload import Column, embed_json, page_data

__all__ = ["Card", "ReportData", "Trait", "report", "sentences_html", "summary_html"]

MOST_CARDS = 24  # clusters that are described; more are listed
N_DOUBTFUL = 10
MOST_LISTED = 12  # columns in tables
MIN_TREE, MOST_TREE = 3, 60  # clusters of which a tree is drawn

CITATION = """\
@misc{pakman2018amortized,
  title  = {Amortized Bayesian inference for clustering models},
  author = {Pakman, Ari and Paninski, Liam},
  year   = {2018},
  note   = {arXiv:1811.09747}
}"""


@dataclass(frozen=True)
class Trait:
    """One thing that tells a cluster from the rest.

    Attributes:
        column: The name of the column.
        effect: Effect size: Cohen's d, or h for the share of a level.
        inside: Mean and standard deviation in the cluster; for a level its share, and 0.
        outside: The same of the other rows.
        span: Smallest and largest value of the column.
        level: The level of a category, or None for a number.
    """

    column: str
    effect: float
    inside: tuple[float, float]
    outside: tuple[float, float]
    span: tuple[float, float] = (0.0, 1.0)
    level: str | None = None


@dataclass(frozen=True)
class Card:
    """What is said of one cluster.

    Attributes:
        size: How many rows it has.
        confidence: Their mean confidence.
        traits: What distinguishes it, the largest effect first.
        typical: Its most typical rows, by position.
        doubtful: Its least certain rows, by position.
    """

    size: int
    confidence: float
    traits: tuple[Trait, ...] = ()
    typical: tuple[int, ...] = ()
    doubtful: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class ReportData:
    """What a report is made of: plain values.

    Attributes:
        title: Its heading, usually the name of the data.
        model_name: Of the model that clustered them.
        command: The command line that made it, for people who want to correct it.
        names: What the rows are called, `(N,)`.
        axes: Coordinates that the rows are drawn at, usually two principal axes.
        columns: The columns that are shown, as further axes and in words.
        n_columns: How many columns the table has.
        labels: The best single partition, `(N,)`; -1 for rows that were left out.
        confidence: Of each row in its cluster, `(N,)`; NaN for label -1.
        samples: Posterior samples of equal weight, `(S, N)`; -1 for rows that were left out.
        shown: The rows that are drawn, `(n,)`.
        similarity: Probability that two of the drawn rows share a cluster, `(n, n)`.
        k: Numbers of clusters, ascending, and their probabilities.
        best: The best partition with K clusters, `(N,)`, for each K with enough samples.
        n_draws: How many independent draws the number of clusters is told from; infinite if it
            was said beforehand.
        cards: Each cluster in a few words.
        sentences: What was found.
        trust: How far to trust it.
        notes: What was done to the data.
        warnings: What looks unlike the data that the model was trained on.
        about: How the result was made.
        known: Whether something was known of each row beforehand, `(N,)`; None: of none.
        cluster_names: What the clusters are called, if not by numbers.
        tree: Which clusters are nearest to being one, as SciPy's linkage, `(K - 1, 4)`; the height
            is the probability that a row of one and a row of the other are apart.
    """

    title: str
    model_name: str
    command: str
    names: Sequence[str]
    axes: tuple[Column, ...]
    columns: tuple[Column, ...]
    n_columns: int
    labels: np.ndarray
    confidence: np.ndarray
    samples: np.ndarray
    shown: np.ndarray
    similarity: np.ndarray
    k: tuple[np.ndarray, np.ndarray]
    n_draws: float
    cards: tuple[Card, ...]
    best: Mapping[int, np.ndarray] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()
    trust: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    about: str = ""
    known: np.ndarray | None = None
    cluster_names: tuple[str, ...] = ()
    tree: np.ndarray = field(default_factory=lambda: np.zeros((0, 4)))

    @property
    def n_points(self) -> int:
        """The number of rows N."""
        return len(self.labels)

    @property
    def n_clusters(self) -> int:
        """The number of clusters of the best single partition."""
        return int(self.labels.max()) + 1


def report(data: ReportData) -> str:
    """The report as HTML."""
    sections = (
        _rows_section(data),
        _grid(f"<div>{_k_section(data)}{_trust_section(data)}</div>", _similarity_section(data)),
        _clusters_section(data),
        _tree_section(data),
        _doubtful_section(data),
        _about_section(data),
    )
    scripts = (_bokeh(), _asset("report.js"))
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(data.title)}</title>\n<style>{_asset('report.css')}</style>\n</head>\n"
        f"<body>\n<main>\n{_head(data)}{''.join(sections)}</main>\n{_json(data)}"
        + "".join(f"<script>{script}</script>\n" for script in scripts)
        + "</body>\n</html>\n"
    )


def summary_html(data: ReportData) -> str:
    """What was found in words and one still picture, for a notebook."""
    found = sentences_html((*data.sentences, *data.warnings))
    rows = [
        [
            f"{drawings.mark(k)}{k}",
            f"{card.size:,}",
            words.percent(card.confidence),
            escape(_in_words(data, card)),
        ]
        for k, card in enumerate(data.cards[:MOST_LISTED])
    ]
    return (
        f"<div>{found}{_still(data)}"
        f"{_table(['cluster', 'rows', 'confidence', 'what distinguishes it'], rows)}</div>"
    )


def sentences_html(sentences: Iterable[str]) -> str:
    """Each as a paragraph."""
    return "".join(f"<p>{escape(text)}</p>" for text in sentences)


@lru_cache
def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@lru_cache
def _bokeh() -> str:
    """Bokeh's JavaScript, found without importing Bokeh."""
    found = find_spec("bokeh")
    assert found is not None
    assert found.submodule_search_locations is not None
    folder = Path(found.submodule_search_locations[0], "server", "static", "js")
    parts = [folder / name for name in ("bokeh.min.js", "bokeh-api.min.js")]
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)


@lru_cache
def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json(c: ReportData) -> str:
    data = page_data(
        command=c.command,
        names=[c.names[i] for i in c.shown],
        rows=c.shown + 1,
        axes=[one.take(c.shown) for one in (*c.axes, *c.columns)],
        n_principal=len(c.axes),
        labels=c.labels[c.shown],
        confidence=c.confidence[c.shown],
        known=None if c.known is None else c.known[c.shown],
        cluster_names=c.cluster_names,
        samples=c.samples[:, c.shown],
        sample_clusters=c.samples.max(axis=1, initial=-1) + 1,
        partitions=[(_best_name(c), _best_words(c), c.labels[c.shown])]
        + [(*_k_name(c, k), labels[c.shown]) for k, labels in sorted(c.best.items())],
    )
    return f'<script type="application/json" id="data">{embed_json(data)}</script>\n'


def _best_name(c: ReportData) -> str:
    return f"the best of all: {words.count(c.n_clusters, 'cluster')}"


def _best_words(c: ReportData) -> str:
    return f"The best single partition: {words.count(c.n_clusters, 'cluster')}."


def _k_name(c: ReportData, k: int) -> tuple[str, str]:
    """The name of the best partition with K clusters, and a sentence."""
    values, p = c.k
    likely = words.chance(float(p[values == k].sum()), c.n_draws)
    named = words.count(k, "cluster")
    return f"with {named} ({likely})", f"The best partition with {named} (probability {likely})."


# -- pieces ----------------------------------------------------------------------------------------


def _head(c: ReportData) -> str:
    warning = "".join(f'<p class="warning">{escape(text)}</p>' for text in c.warnings)
    return (
        f"<header><div><h1>{escape(c.title)}</h1>\n"
        f'<p class="soft">{words.count(c.n_points, "row")}, '
        f"{words.count(c.n_columns, 'column')}; clustered with the model "
        f"{escape(c.model_name)}, {words.count(len(c.samples), 'posterior sample')}.</p></div>\n"
        '<button id="scheme" class="live" type="button" aria-label="light or dark" '
        'title="light or dark">&#9680;</button></header>\n'
        f'{warning}<div class="headline">{sentences_html(c.sentences)}</div>\n'
    )


def _section(title: str, *parts: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{''.join(parts)}</section>\n"


def _grid(*sections: str) -> str:
    return f'<div class="grid">\n{"".join(sections)}</div>\n'


CONTROLS = """\
<div class="live">
<div class="controls">
<label>Across <select id="across"></select></label>
<label>Up <select id="up"></select></label>
<label>Partition <select id="partition"></select></label>
<div class="player">
<button id="back" type="button" aria-label="previous sample">&#9664;</button>
<button id="play" type="button" aria-label="play the samples">Play</button>
<button id="forward" type="button" aria-label="next sample">&#9654;</button>
<label>Samples, one by one
<input id="sample" type="range" min="0" max="1" value="0"></label>
</div></div>
<p id="status" role="status" aria-live="polite"></p>
<div id="plot"><div id="canvas"></div><div id="tip" role="tooltip" hidden></div></div>
<div id="scale" class="scale" hidden><span>never together</span><i></i><span>always</span></div>
</div>
"""
CHOOSING = """\
<div class="live">
<div class="controls">
<label>Rows (a number, a range or a name) <input id="rows" type="text" autocomplete="off"></label>
<button id="clear" type="button">Clear</button>
</div>
<p class="hint">Click a point, or type its row, to see who belongs with it. Draw around points to
choose several.</p>
<div id="chosen" hidden>
<p id="names"></p>
<div class="controls">
<label>You know that these rows <select id="how">
<option value="together">belong together</option>
<option value="apart">are all apart</option>
<option value="known">are of a kind that has a name</option>
</select></label>
<label id="kind-label" hidden>Its name <input id="kind" type="text" autocomplete="off"></label>
</div>
<label class="hint" for="command">The command that says so</label>
<textarea id="command" rows="2" readonly></textarea>
<button id="copy" type="button">Copy</button> <span id="copied" role="status"></span>
</div></div>
"""


def _rows_section(c: ReportData) -> str:
    some = ""
    if len(c.shown) < c.n_points:
        some = (
            f" {len(c.shown):,} of the {c.n_points:,} rows are drawn, at random; the numbers "
            "below are of all rows."
        )
    return _section(
        "The rows",
        CONTROLS,
        f'<figure class="still">{_still(c)}</figure>',
        _legend(c),
        '<p class="soft">Each row is a point, with the colour and shape of its cluster in the '
        f"best single partition. The paler a point, the less sure its cluster.{some}</p>",
        CHOOSING,
    )


def _still(c: ReportData) -> str:
    return drawings.scatter_svg(
        np.stack([one.values[c.shown] for one in c.axes], 1),
        c.labels[c.shown],
        c.confidence[c.shown],
        (c.axes[0].name, c.axes[1].name),
        None if c.known is None else c.known[c.shown],
        f"Scatter plot of {words.count(len(c.shown), 'row')}, coloured by cluster",
    )


def _legend(c: ReportData) -> str:
    items = [
        f"<li>{drawings.mark(k)}{_named('cluster', c, k)} ({words.count(card.size, 'row')})</li>"
        for k, card in enumerate(c.cards[:MOST_CARDS])
    ]
    if len(c.cards) > MOST_CARDS:
        items.append(f"<li>and {len(c.cards) - MOST_CARDS} smaller ones</li>")
    if (c.labels < 0).any():
        items.append(f"<li>{drawings.mark(-1)}left out</li>")
    if c.known is not None and c.known.any():
        items.append("<li>outlined: known beforehand</li>")
    return f'<ul class="legend" id="legend">{"".join(items)}</ul>\n'


def _named(noun: str, c: ReportData, k: int) -> str:
    """A cluster by its number and, if it has one, its name."""
    name = f", {escape(_short(c.cluster_names[k], 30))}" if c.cluster_names else ""
    return f"{noun} {k}{name}"


def _k_section(c: ReportData) -> str:
    values, p = c.k
    keep = (p >= 0.005) | (values == c.n_clusters)
    rows = []
    for value, q in zip(values[keep], p[keep], strict=True):
        chosen = " chosen" if value == c.n_clusters else ""
        width = 100 * float(q) / float(p.max())
        rows.append(
            f'<tr><th scope="row">{value:.0f}</th><td><span class="bar{chosen}" '
            f'style="width:{width:.1f}%"></span></td>'
            f"<td>{words.chance(float(q), c.n_draws)}</td></tr>\n"
        )
    return _section(
        "How many clusters?",
        '<table class="bars" aria-label="Probability of each number of clusters">'
        f"{''.join(rows)}</table>",
        f'<p class="soft">The posterior probability of each number of clusters'
        f"{_with_error(c)}; that of the best single partition is darker.</p>",
    )


def _with_error(c: ReportData) -> str:
    if np.isinf(c.n_draws):
        return ", which was said beforehand"
    return f", with its standard error for {c.n_draws:,.0f} draws"


def _similarity_section(c: ReportData) -> str:
    here = c.labels[c.shown] >= 0
    picture = drawings.matrix_png(
        c.similarity[np.ix_(here, here)],
        c.labels[c.shown][here],
        "Matrix of the probabilities that two rows share a cluster, ordered by cluster",
    )
    return _section(
        "Who belongs together?",
        f"<figure>{picture}</figure>",
        '<div class="scale"><span>never together</span><i></i><span>always</span></div>',
        '<p class="soft">Each row and each column of the picture is a row of the table, the '
        "largest cluster first. Clean bright squares are clusters that are not in doubt; grey "
        "areas are rows that could go either way.</p>",
    )


# -- clusters --------------------------------------------------------------------------------------


def _clusters_section(c: ReportData) -> str:
    cards = "".join(_card(c, k, card) for k, card in enumerate(c.cards[:MOST_CARDS]))
    said = "Numbered by size."
    if any(card.traits for card in c.cards):
        said += (
            " A dot is the mean of the cluster and its line the standard deviation; grey is the "
            "mean of all other rows, plus and minus theirs. Of a category the dot is the share of "
            "the cluster's rows that have it, grey that of the others."
        )
    return _section(
        "The clusters",
        f'<p class="soft">{said}</p>',
        f'<div class="cards">{cards}</div>',
        _cluster_table(c),
    )


def _card(c: ReportData, k: int, card: Card) -> str:
    rows = "".join(_trait_row(k, trait) for trait in card.traits)
    table = f'<table class="traits">{rows}</table>' if rows else ""
    typical = _row_list(c, card.typical)
    doubtful = _row_list(c, card.doubtful)
    return (
        f'<article class="card"><h3>{drawings.mark(k)}{_named("Cluster", c, k)}: '
        f"{words.count(card.size, 'row')}</h3>\n"
        f"<p>{escape(_in_words(c, card))}</p>{table}"
        f'<p class="soft">Confidence {words.percent(card.confidence)}. '
        f"{f'Typical: {typical}. ' if typical else ''}"
        f"{f'In doubt: {doubtful}.' if doubtful else ''}</p></article>\n"
    )


def _in_words(c: ReportData, card: Card) -> str:
    traits = [
        words.Difference(t.column, t.effect, t.inside[0], t.outside[0], t.level)
        for t in card.traits
    ]
    return words.cluster_sentence(card.size, int((c.labels >= 0).sum()), traits)


def _trait_row(k: int, t: Trait) -> str:
    if t.level is None:
        strip = drawings.value_strip(k, t.inside, t.outside, t.span)
        name, value = t.column, words.number(t.inside[0])
    else:
        strip = drawings.share_strip(k, t.inside[0], t.outside[0])
        name, value = f"{t.column} = {t.level}", words.percent(t.inside[0])
    return (
        f'<tr><th scope="row">{escape(_short(name))}</th><td>{strip}</td>'
        f"<td>{escape(value)}</td></tr>\n"
    )


def _row_list(c: ReportData, rows: Iterable[int]) -> str:
    return ", ".join(escape(_row_name(c, i)) for i in rows)


def _row_name(c: ReportData, i: int) -> str:
    number, name = str(i + 1), c.names[i]
    return f"row {number}" if name == number else f"row {number} ({_short(name)})"


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _cluster_table(c: ReportData) -> str:
    shown = c.columns[:MOST_LISTED]
    rows = []
    for k, card in enumerate(c.cards):
        here = c.labels == k
        centre = [escape(_short(one.centre(here), 30)) for one in shown]
        name = f"{drawings.mark(k)}{k}"
        rows.append([name, f"{card.size:,}", words.percent(card.confidence), *centre])
    names = [escape(_short(one.name, 30)) for one in shown]
    return '<p class="soft">The mean of each column, or its most frequent value.</p>' + _table(
        ["cluster", "rows", "confidence", *names], rows
    )


def _tree_section(c: ReportData) -> str:
    if not MIN_TREE <= c.n_clusters <= MOST_TREE or len(c.tree) != c.n_clusters - 1:
        return ""
    names = [
        _short(f"{k}, {c.cluster_names[k]}", 20) if c.cluster_names else str(k)
        for k in range(c.n_clusters)
    ]
    picture = drawings.tree_svg(c.tree, names, "Tree of the clusters, joined where they are apart")
    return _section(
        "Which clusters could be one?",
        f"<figure>{picture}</figure>",
        '<p class="soft">Clusters are joined at the probability that a row of one and a row of the '
        "other are apart: the further to the left, the more samples make them one.</p>",
    )


def _doubtful_section(c: ReportData) -> str:
    usable = np.flatnonzero(c.labels >= 0)
    order = usable[np.argsort(c.confidence[usable], kind="stable")][:N_DOUBTFUL]
    shown = c.columns[:MOST_LISTED]
    rows = [
        [
            escape(_row_name(c, i)),
            f"{drawings.mark(int(c.labels[i]))}{c.labels[i]}",
            words.percent(float(c.confidence[i])),
            *(escape(_short(one.text(i), 30)) for one in shown),
        ]
        for i in order.tolist()
    ]
    names = [escape(_short(one.name, 30)) for one in shown]
    return _section(
        "The least certain rows",
        '<p class="soft">Rows are counted from 1. Confidence is the overlap to expect between '
        "the row's cluster here and its true one: what both share, of what either has.</p>",
        _table(["row", "cluster", "confidence", *names], rows),
    )


def _trust_section(c: ReportData) -> str:
    sentences = [*c.trust, *c.notes, *(f"Warning: {text}" for text in c.warnings)]
    return _section("Can this be trusted?", sentences_html(sentences))


def _about_section(c: ReportData) -> str:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return _section(
        "How this was made, and how to cite it",
        f"<p>{escape(c.about)}; {made}.</p>",
        "<p>Partitions were sampled by a neural clustering process, a network trained to invert "
        "a mixture model:</p>",
        f"<pre>{escape(CITATION)}</pre>",
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    """Cells are HTML already."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows)
    return (
        f'<div class="scroll" tabindex="0"><table class="data">\n<tr>{head}</tr>\n{body}'
        "</table></div>\n"
    )
