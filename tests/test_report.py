"""The report: complete, self-contained, escaped, readable without scripts; alive in a browser."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from ncp import cli
from ncp.clustering.cluster import cluster
from ncp.clustering.result import Clustering
from ncp.network.checkpoint import save_model
from ncp.output.drawings import TREE_WIDTH, matrix_png, tree_svg
from ncp.output.payload import embed_json, match_labels
from ncp.output.readers import read_table
from tests.browser import PATIENCE, Page, needs_browser
from tests.small_models import gaussian, tabular

EVIL = "<script>alert('$x$')</script> & \"花\""
# Each would leave its mark on the page if it ran.
MARK = "document.documentElement.dataset.evil=1;document.title='evil'"
PAYLOADS = [f"<script>{MARK}</script>", f"<img src=x onerror={MARK}>", f"'\"><svg onload={MARK}>"]


class Tags(HTMLParser):
    """Counts tags, and checks that they close in order."""

    VOID = frozenset({"meta", "img", "br", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}
        self.sources: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def embedded(page: str) -> dict[str, Any]:
    """The numbers that the page's script works with."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def still(page: str) -> str:
    """What there is without the scripts, style and numbers."""
    return re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S)


@pytest.fixture(scope="module")
def found() -> Clustering:
    """Two clear groups and a third that may belong to the second."""
    rng = np.random.default_rng(0)
    middle = np.repeat([[0.0, 0.0], [9.0, 9.0], [10.5, 9.0]], [18, 12, 10], axis=0)
    x = np.concatenate([middle + 0.5 * rng.normal(size=(40, 2)), rng.normal(size=(40, 2))], 1)
    names = [f"item {i}" for i in range(40)]
    frame = pd.DataFrame(x, columns=[EVIL, "b", "c" * 200, "$$d$$"], index=names)
    return cluster(frame, tabular(), n_samples=60, orders=10, seed=0)


@pytest.fixture(scope="module")
def page(found: Clustering) -> str:
    return found.report(EVIL, "ncp cluster 'my file.csv'")


# -- the file --------------------------------------------------------------------------------------


def test_is_well_formed_and_complete(page: str) -> None:
    assert Tags(page).open == []
    for heading in (
        "The rows",
        "How many clusters?",
        "Who belongs together?",
        "The clusters",
        "The least certain rows",
        "Can this be trusted?",
        "how to cite",
    ):
        assert heading in still(page)


def test_needs_nothing_from_elsewhere(page: str) -> None:
    assert all(source.startswith("data:image/png;base64,") for source in Tags(page).sources)
    assert "default-src 'none'" in page
    assert "http" not in re.sub(r"http-equiv", "", still(page))


def test_only_its_own_scripts_may_run(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "unsafe-eval" not in policy[1]
    assert "unsafe-inline" not in policy[1].split("script-src")[1]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]


def test_names_are_escaped(page: str) -> None:
    assert Tags(page).seen["script"] == 3  # its numbers, Bokeh and its own
    assert Tags(page).handlers == []
    assert html.escape(EVIL) in still(page)
    assert EVIL in [axis["name"] for axis in embedded(page)["axes"]]


@pytest.mark.parametrize("text", ["</script>", "<!--<script>", "&amp;", "\u2028", "]]>"])
def test_json_cannot_leave_its_element(text: str) -> None:
    written = embed_json({"name": text})
    assert not set("<>&\u2028") & set(written)
    assert json.loads(written) == {"name": text}


def test_numbers_are_those_of_the_result(page: str, found: Clustering) -> None:
    data = embedded(page)
    n = found.n_points
    assert data["names"] == list(found.row_names)
    assert data["rows"] == list(range(1, n + 1))
    values = np.frombuffer(base64.b64decode(data["axis_values"]), "<f4").reshape(-1, n)
    np.testing.assert_allclose(values[2:], found.table.T, rtol=1e-6)
    sure = np.frombuffer(base64.b64decode(data["confidence"]), "<f4")
    np.testing.assert_allclose(sure, found.confidence, rtol=1e-6)
    labels = np.frombuffer(base64.b64decode(data["partitions"][0]["labels"]), "u1")
    np.testing.assert_array_equal(labels, found.labels)
    samples = np.frombuffer(base64.b64decode(data["samples"]), "u1").reshape(-1, n)
    together = (samples[:, :1] == samples).mean(0)
    np.testing.assert_allclose(together, found.probability_together(0), atol=1e-12)


def test_is_readable_without_scripts(page: str, found: Clustering) -> None:
    text = still(page)
    rows, _, tree = text.partition("Which clusters could be one?")
    assert rows.count("<path transform") == found.n_points
    assert tree.count("<path transform") == found.n_clusters
    assert "Best single partition" in text
    assert 'class="bar chosen"' in text
    for k in range(found.n_clusters):
        assert f"Cluster {k}: " in text


def test_is_small() -> None:
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(0, 9, (5, 8)), 200, axis=0) + rng.normal(size=(1000, 8))
    result = cluster(x, tabular(), n_samples=200, seed=0)
    assert len(result.report().encode()) < 3_000_000


def test_nothing_heavy_is_imported(found: Clustering, tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np\n"
        "from ncp.output.payload import Column\n"
        "from ncp.output.report import Card, ReportData, report\n"
        "x, c = np.arange(4.0), np.array([0, 0, 1, 1])\n"
        "k = np.array([2]), np.array([1.0])\n"
        "axes = Column('a', x), Column('b', x)\n"
        "cards = Card(2, 1.0), Card(2, 1.0)\n"
        "report(ReportData('t', 'm', 'c', list('abcd'), axes, axes, 2, c, x / 4, c[None],\n"
        "    np.arange(4), np.eye(4), k, 1.0, cards))\n"
        "sys.exit(bool({'bokeh', 'matplotlib', 'pandas', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("n", [1, 2, 5])
def test_few_points(n: int) -> None:
    assert Tags(cluster(np.eye(5)[:n], tabular(), n_samples=10, seed=0).report()).open == []


def test_one_column_and_missing_rows_and_weights() -> None:
    x = np.random.default_rng(1).normal(size=(30, 1))
    x[3] = np.nan
    written = cluster(x, gaussian(1), n_samples=30, reweight=True, seed=0).report()
    assert "Importance weights are" in written
    assert "1 row with missing values was left out" in written
    labels = np.frombuffer(base64.b64decode(embedded(written)["partitions"][0]["labels"]), "u1")
    assert np.flatnonzero(labels == 255).tolist() == [3]


def test_large_tables_are_drawn_in_part_and_counted_whole() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(size=(2990, 2)), 30 + rng.normal(size=(10, 2))])
    result = cluster(x, gaussian(2), n_samples=30, max_points=50, seed=0)
    written = result.report()
    assert "4 random parts of 50 of the 3,000 rows were clustered" in written
    assert "1,000 of the 3,000 rows are drawn" in written
    data = embedded(written)
    assert len(data["rows"]) == len(set(data["rows"])) == 1000
    drawn = result.labels[np.array(data["rows"]) - 1]
    for k, size in enumerate(result.sizes):
        assert (drawn == k).sum() >= min(size, 10)
        assert k >= 24 or f"cluster {k} ({size:,} row" in still(written)


def test_many_columns_are_those_that_tell_clusters_apart() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 300))
    x[:15, 250] += 20
    result = cluster(x, tabular(), n_samples=20, seed=0)
    fixed = np.repeat([0, 1], 15)
    estimate = replace(result.summary.estimate, labels=fixed)
    summary = replace(result.summary, estimate=estimate)
    written = replace(result, labels=fixed, summary=summary).report()
    names = [axis["name"] for axis in embedded(written)["axes"]]
    assert len(names) == 42
    assert "column 251" in names


def test_a_tree_of_the_clusters(found: Clustering) -> None:
    def page_of(labels: np.ndarray) -> str:
        estimate = replace(found.summary.estimate, labels=labels)
        summary = replace(found.summary, estimate=estimate)
        return replace(found, labels=labels, summary=summary).report()

    assert "Which clusters could be one?" not in page_of(np.repeat([0, 1], [18, 22]))
    page = page_of(np.repeat([0, 1, 2], [18, 12, 10]))
    tree = re.search(r'<svg[^>]*aria-label="Tree of.*?</svg>', page)
    assert tree is not None
    assert tree[0].count("<g ") == 3
    assert max(float(x) for x in re.findall(r"H([\d.]+)", tree[0])) <= TREE_WIDTH


def test_a_tree_joins_neighbours_at_their_heights() -> None:
    drawn = tree_svg(np.array([[0, 2, 0.5, 2], [1, 3, 1.0, 3]]), ["0", "<b>", "2"], "a tree")
    middle = 0.5 * (51 + TREE_WIDTH - 20)
    # cluster 1 is drawn first, 0 and 2 below it, side by side
    assert f"M51.0 30.0H{middle:.1f}V50.0H51.0" in drawn
    assert f"M51.0 10.0H{TREE_WIDTH - 20:.1f}V40.0H{middle:.1f}" in drawn
    assert "&lt;b&gt;" in drawn
    assert Tags(drawn).open == []


def test_what_is_not_there_is_not_explained() -> None:
    rng = np.random.default_rng(0)
    one = cluster(rng.normal(size=(30, 1)), tabular(), n_samples=20, at_most=1, seed=0).report()
    assert "All rows are in this cluster" in one
    assert "A dot is the mean" not in one
    assert all(axis["name"] for axis in embedded(one)["axes"])


def test_images_have_no_columns() -> None:
    x = np.random.default_rng(0).random((20, 2, 2))
    data = embedded(cluster(x, tabular(), n_samples=20, seed=0).report())
    assert len(data["axes"]) == 2


def test_partitions_keep_the_colours_of_the_estimate() -> None:
    matched = match_labels(np.array([0, 1, 1, 1, 2]), np.array([1, 0, 0, 0, 2]))
    assert matched.tolist() == [1, 0, 0, 0, 2]
    assert len(set(match_labels(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 2])))) == 3
    assert match_labels(np.array([0, -1, 1]), np.array([-1, 0, 1])).tolist()[1] == -1


def test_the_matrix_is_ordered_by_cluster() -> None:
    labels = np.array([0, 1, 0, 1, 0])
    picture = matrix_png((labels[:, None] == labels).astype(float), labels, "a <matrix>")
    content = re.search(r"base64,([^\"]*)", picture)
    assert content is not None
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(content[1]))))
    assert (shown[:3, :3] == 255).all()
    assert (shown[3:, 3:] == 255).all()
    assert (shown[:3, 3:] == 0).all()
    assert 'alt="a &lt;matrix&gt;"' in picture


def test_the_headline_agrees_with_itself() -> None:
    """The best partition has two clusters, most samples three; both are said, and why."""
    from ncp.output.words import in_words

    k = np.array([2, 3]), np.array([0.42, 0.58])
    best, number, _ = in_words(k, np.array([30, 20]), np.ones(50), 50.0, "row")
    assert best == "Best single partition: 2 clusters of 30, 20 rows."
    assert "3 (58 ± 7%), 2 (42 ± 7%)" in number
    assert "The best partition has 2, because" in number
    agreeing = in_words((k[0], k[1][::-1]), np.array([30, 20]), np.ones(50), 50.0, "row")
    assert "because" not in agreeing[1]


# -- hostile tables --------------------------------------------------------------------------------


def hostile_csv() -> bytes:
    """Payloads as column names, as levels, and as a cell of a nearly numeric column."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(30, 2)), columns=["a", PAYLOADS[0]])
    frame["kind"] = [PAYLOADS[i % 3] for i in range(30)]
    for i, payload in enumerate(PAYLOADS):
        frame[f"nearly {i}"] = [payload, *map(str, rng.normal(size=29))]
    return frame.to_csv(index=False).encode()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report that the command line makes of it."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "<svg onload=1>.csv").write_bytes(hostile_csv())
    save_model(folder / "small.safetensors", tabular())
    data, model = folder / "<svg onload=1>.csv", folder / "small.safetensors"
    how = ["--model", str(model), "--categorical", "kind", "--samples", "20", "--orders", "2", "-q"]
    assert cli.app(["cluster", str(data), *how, "--out", str(folder / "out")]) == 0
    return (folder / "out" / "report.html").read_text(encoding="utf-8")


def test_cells_of_a_file_are_escaped(hostile: str) -> None:
    table = read_table("file", hostile_csv())
    for payload in PAYLOADS:
        assert payload in table.levels[2]
        assert any(payload in note or repr(payload) in note for note in table.notes)
        assert payload not in hostile
        assert any(html.escape(form) in hostile for form in (payload, repr(payload)))
    assert Tags(hostile).seen["script"] == 3
    assert Tags(hostile).handlers == []


# -- in a browser ----------------------------------------------------------------------------------

POINT = """(i => {
  const {view, source} = report, box = view.canvas_view.el.getBoundingClientRect();
  return [box.left + view.frame.x_scale.compute(source.data.x[i]),
          box.top + view.frame.y_scale.compute(source.data.y[i])];
})(%d)"""

LOOKS = "report.source.data.colour.map((c, i) => c + report.source.data.marker[i])"


def show(text: str, folder: Path, **how: Any) -> Page:
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    shown = Page(path, folder / "profile", **how)
    if how.get("scripts", True):
        shown.wait_for("document.documentElement.dataset.ready === 'yes'")
    return shown


def point(shown: Page, i: int) -> tuple[float, float]:
    """Where row i is drawn, scrolled into view, once it stays there."""
    before = None
    while True:
        shown.run("document.getElementById('plot').scrollIntoView({block: 'center'})")
        x, y = shown.run(POINT % i)
        if (x, y) == before:
            return x, y
        before = x, y
        shown.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def hover(shown: Page, i: int) -> None:
    """Point at row i until the page says what it is; while it is drawn anew, it does not."""
    end = time.monotonic() + PATIENCE
    shown.move(1.0, 1.0)
    shown.wait_for("document.getElementById('tip').hidden")
    while shown.run("document.getElementById('tip').hidden"):
        assert time.monotonic() < end, f"row {i} is not explained; {shown.messages}"
        shown.move(1.0, 1.0)
        shown.move(*point(shown, i))
        time.sleep(0.1)


@pytest.fixture(scope="module")
def tab(page: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with show(page, tmp_path_factory.mktemp("browser")) as shown:
        yield shown


@pytest.fixture
def fresh(tab: Page) -> Page:
    """The page as it is when it is opened."""
    tab.messages.clear()
    tab.run("document.getElementById('clear').click()")
    for element, value in (("across", "0"), ("up", "1"), ("partition", "0")):
        tab.choose(element, value)
    return tab


@needs_browser
def test_hovering_shows_a_row(fresh: Page, found: Clustering) -> None:
    hover(fresh, 7)
    text = fresh.text("tip")
    assert "row 8 (item 7)" in text
    assert f"cluster {found.labels[7]}, confidence" in text
    assert EVIL in text
    assert f"b: {found.table[7, 1]:.4g}" in text
    assert fresh.messages == []


@needs_browser
def test_clicking_a_row_colours_the_others_by_sharing(fresh: Page, found: Clustering) -> None:
    before = fresh.run("report.source.data.colour.join()")
    fresh.click(*point(fresh, 0))
    fresh.wait_for("report.state.chosen.length === 1")
    assert fresh.run("report.state.chosen[0]") == 0
    assert "sharing a cluster with row 1 (item 0)" in fresh.text("status")
    assert fresh.run("!document.getElementById('scale').hidden")
    shown = fresh.run("Array.from(report.together(0))")
    np.testing.assert_allclose(shown, found.probability_together(0), atol=1e-12)
    assert fresh.run("report.source.data.colour.join()") != before
    fresh.run("document.getElementById('clear').click()")
    assert fresh.run("report.source.data.colour.join()") == before


@needs_browser
def test_a_row_can_be_typed_instead(fresh: Page) -> None:
    fresh.choose("rows", "item 3")
    assert fresh.run("report.state.chosen") == [3]
    fresh.choose("rows", "2-4, 9")
    assert fresh.run("report.state.chosen") == [1, 2, 3, 8]
    fresh.choose("rows", "nobody")
    assert "no row nobody" in fresh.text("status")


@needs_browser
def test_samples_are_stepped_through_and_played(fresh: Page, found: Clustering) -> None:
    n = len(found.samples)
    fresh.run("document.getElementById('forward').click()")
    assert fresh.text("status").startswith(f"Sample 1 of {n}: ")
    fresh.choose("sample", "5")
    assert fresh.text("status").startswith(f"Sample 5 of {n}: ")
    k = fresh.run("report.data.sample_clusters[4]")
    assert fresh.run(f"new Set({LOOKS}).size") == k
    fresh.run("document.getElementById('back').click()")
    assert fresh.text("status").startswith(f"Sample 4 of {n}: ")
    fresh.run("document.getElementById('play').click()")
    fresh.wait_for("document.getElementById('status').textContent.startsWith('Sample 6')")
    fresh.run("document.getElementById('play').click()")
    assert fresh.text("play") == "Play"
    assert fresh.messages == []


@needs_browser
def test_a_number_of_clusters_can_be_chosen(fresh: Page, found: Clustering) -> None:
    options = fresh.run("[...document.getElementById('partition').options].map(o => o.text)")
    assert options[0] == f"the best of all: {found.n_clusters} clusters"
    assert len(options) > 2
    for value, text in enumerate(options[1:], 1):
        match = re.match(r"with (\d+) cluster", text)
        assert match is not None
        fresh.choose("partition", str(value))
        k = int(match[1])
        assert fresh.run(f"new Set({LOOKS}).size") == k
        assert f"with {k} cluster" in fresh.text("status")


@needs_browser
def test_axes_can_be_chosen(fresh: Page, found: Clustering) -> None:
    fresh.choose("across", "3")
    np.testing.assert_allclose(
        fresh.run("Array.from(report.source.data.x)"), found.table[:, 1], rtol=1e-6
    )
    assert fresh.run("report.figure.below[0].axis_label") == "b"
    fresh.choose("up", "5")  # a name that Bokeh would take for mathematics
    assert "$$d$$" not in fresh.run("report.figure.left[0].axis_label")
    assert fresh.messages == []


@needs_browser
def test_a_lasso_lists_rows_and_copies_a_command(fresh: Page, found: Clustering) -> None:
    group = np.flatnonzero(found.table[:, 0] < 4)
    fresh.choose("across", "2")
    fresh.choose("up", "3")
    places = np.array([point(fresh, int(i)) for i in range(found.n_points)])
    low, high = places[group].min(0) - 12, places[group].max(0) + 12
    corners = [(low[0], low[1]), (high[0], low[1]), (high[0], high[1]), (low[0], high[1])]
    path = [
        (float(a[0] + t * (b[0] - a[0])), float(a[1] + t * (b[1] - a[1])))
        for a, b in zip(corners, [*corners[1:], corners[0]], strict=True)
        for t in np.linspace(0, 1, 8, endpoint=False)
    ]
    fresh.drag(path)
    chosen = json.dumps(group.tolist(), separators=(",", ":"))
    fresh.wait_for(f"JSON.stringify(report.state.chosen) === '{chosen}'")
    assert fresh.text("names").startswith(f"{len(group)} rows chosen: item 0, item 1,")
    command = "ncp cluster 'my file.csv' --together 1-18"
    assert fresh.run("document.getElementById('command').value") == command
    fresh.call("Browser.grantPermissions", permissions=["clipboardReadWrite"])
    fresh.run("document.getElementById('copy').click()")
    fresh.wait_for("document.getElementById('copied').textContent === 'Copied.'")
    fresh.call("Page.bringToFront")
    assert fresh.run("navigator.clipboard.readText()") == command
    fresh.choose("how", "known")
    fresh.choose("kind", "it's small")
    written = fresh.run("document.getElementById('command').value")
    assert written == "ncp cluster 'my file.csv' --known '1-18=it'\\''s small'"
    assert fresh.messages == []


@needs_browser
@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_and_schemes_differ(
    page: str, tmp_path: Path, width: int, scheme: str
) -> None:
    with show(page, tmp_path, width=width, features={"prefers-color-scheme": scheme}) as shown:
        assert shown.run("document.documentElement.scrollWidth - innerWidth") <= 0
        widest = "Math.max(...[...document.querySelectorAll('section, canvas, img, select')]"
        assert shown.run(f"{widest}.map(e => e.getBoundingClientRect().right))") <= width
        paper = "getComputedStyle(document.body).backgroundColor"
        assert (shown.run(paper) == "rgb(255, 255, 255)") == (scheme == "light")
        shown.run("document.getElementById('scheme').click()")
        assert (shown.run(paper) == "rgb(255, 255, 255)") == (scheme == "dark")
        label = shown.run("report.figure.below[0].axis_label_text_color")
        assert label == ("#e8eaed" if scheme == "light" else "#1d2126")
        picture = shown.screenshot(tmp_path / "picture.png")
        assert len(np.unique(np.asarray(Image.open(picture).convert("L")))) > 50
        assert shown.messages == []


@needs_browser
def test_without_scripts_there_are_still_pictures(page: str, tmp_path: Path) -> None:
    with show(page, tmp_path, width=400, scripts=False) as shown:
        seen = "e => e.getBoundingClientRect().height > 0"
        assert shown.run(f"[...document.querySelectorAll('.still svg')].every({seen})")
        assert shown.run("document.querySelectorAll('.still svg').length") == 1
        assert not shown.run(f"[...document.querySelectorAll('.live')].some({seen})")
        assert shown.run("document.documentElement.scrollWidth - innerWidth") <= 0
        assert shown.run("[...document.images].every(i => i.complete && i.naturalWidth > 0)")


@needs_browser
def test_prints_the_still_picture(fresh: Page) -> None:
    fresh.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert fresh.run("getComputedStyle(document.querySelector('.still')).display") == "block"
        assert fresh.run("getComputedStyle(document.querySelector('.live')).display") == "none"
        assert fresh.print().startswith(b"%PDF")
    finally:
        fresh.call("Emulation.setEmulatedMedia", media="")


@needs_browser
def test_keyboard_and_screen_readers(fresh: Page) -> None:
    named = """[...document.querySelectorAll('button, select, input, textarea')].filter(e =>
        !(e.labels && e.labels.length) && !e.textContent.trim() && !e.ariaLabel).length"""
    assert fresh.run(named) == 0
    assert fresh.run("document.getElementById('status').getAttribute('aria-live')") == "polite"
    assert fresh.run("[...document.images].every(i => i.alt)")
    fresh.run("document.getElementById('forward').focus()")
    fresh.press("Enter")
    fresh.wait_for("document.getElementById('status').textContent.startsWith('Sample 1 ')")
    fresh.run("document.getElementById('sample').focus()")
    fresh.press("ArrowRight")
    fresh.wait_for("document.getElementById('status').textContent.startsWith('Sample 2 ')")


@needs_browser
@pytest.mark.parametrize("where", ["report", "payloads"])
def test_hostile_cells_do_not_run_in_a_browser(hostile: str, where: str, tmp_path: Path) -> None:
    """Not even without the page's policy; where they are not escaped, they do."""
    text = re.sub(r"<meta http-equiv[^>]*>", "", hostile)
    if where == "payloads":
        text = text.replace("</body>", "".join(PAYLOADS) + "</body>")
    with show(text, tmp_path) as shown:
        n = shown.run("report.data.axes.length")
        for axis in range(n):  # every name and level gets its turn
            shown.choose("across", str(axis))
        shown.choose("rows", "1-30")
        hover(shown, 3)
        ran = shown.run("document.documentElement.dataset.evil === '1'")
        assert ran == (where == "payloads")
        assert (shown.run("document.title") == "evil") == ran


@needs_browser
def test_the_policy_stops_what_is_not_escaped(hostile: str, tmp_path: Path) -> None:
    text = hostile.replace("</body>", "".join(PAYLOADS) + "</body>")
    with show(text, tmp_path) as shown:
        assert shown.run("document.documentElement.dataset.evil") is None
        assert any("Content Security Policy" in message for message in shown.messages)


# -- what was known --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(found: Clustering) -> Clustering:
    """The same table, with two kinds known by name."""
    return found.given(known={"item 2": EVIL, "item 20": "b"}, at_any_price=True)


def test_known_rows_and_names_are_in_the_page(told: Clustering) -> None:
    page = told.report("told")
    assert embedded(page)["known"] == [2, 20]
    assert set(embedded(page)["cluster_names"]) >= {EVIL, "b"}
    assert still(page).count('class="known"') == 2
    assert "outlined: known beforehand" in page
    assert Tags(page).handlers == []
    assert EVIL not in still(page)


@needs_browser
def test_known_rows_are_outlined(told: Clustering, tmp_path: Path) -> None:
    with show(told.report("told"), tmp_path) as shown:
        width = shown.run("Array.from(report.source.data.width)")
        assert [i for i, w in enumerate(width) if w > 1] == [2, 20]
        edge = shown.run("Array.from(report.source.data.edge_alpha)")
        assert edge[2] == edge[20] == 1
        hover(shown, 20)
        assert "(b), confidence" in shown.text("tip")
        assert "known beforehand" in shown.text("tip")
        assert shown.messages == []
        if folder := os.environ.get("NCP_SCREENSHOTS"):
            shown.screenshot(Path(folder, "told.png"))


@needs_browser
def test_the_copied_command_is_understood(fresh: Page) -> None:
    """What the page offers is parsed by the command line, and means the rows that were chosen."""
    from ncp.clustering.said import Said, rows_of
    from ncp.output.readers import Table

    fresh.choose("rows", "2-4, 9")
    table = Table("x", np.zeros((40, 1)), ("a",), (), "")
    for how, options in (("together", "--together"), ("apart", "--apart"), ("known", "--known")):
        fresh.choose("how", how)
        fresh.choose("kind", "of=one kind")
        words = shlex.split(fresh.run("document.getElementById('command').value"))
        assert words[:3] == ["ncp", "cluster", "my file.csv"]
        assert words[3] == options
        if how == "known":
            known = Said(known=(words[4],)).knowledge(table).known
            assert [i for i, name in enumerate(known) if name] == [1, 2, 3, 8]
            assert known[1] == "of=one kind"
        else:
            assert rows_of(Said.read(together=[words[4]]).together[0], 40) == [1, 2, 3, 8]
