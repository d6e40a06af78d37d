"""The report: complete, self-contained, escaped; and right in a real browser."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ncp import cli
from ncp.clustering.cluster import cluster
from ncp.network.checkpoint import save_model
from ncp.output.readers import read_table
from ncp.output.report import _match
from tests.small_models import gaussian, tabular

EVIL = "<script>alert('$x$')</script> & \"花\""
# Each would leave its mark on the page if it ran.
MARK = "document.documentElement.dataset.evil=1;document.title='evil'"
PAYLOADS = [f"<script>{MARK}</script>", f"<img src=x onerror={MARK}>", f"'\"><svg onload={MARK}>"]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
BROWSER = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--enable-logging=stderr"),
]
PROBE = """<script>addEventListener("load", () => {
  const root = document.documentElement;
  parent.document.documentElement.dataset.probe = JSON.stringify({
    images: [...document.images].map(image => image.complete && image.naturalWidth > 0),
    overflow: root.scrollWidth - innerWidth,
    width: innerWidth,
  });
});</script>"""


class Tags(HTMLParser):
    """Counts tags, and checks that they close in order."""

    VOID = frozenset({"meta", "img", "br", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}
        self.sources: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 4)), columns=[EVIL, "b", "c" * 200, "d"])
    return cluster(frame, tabular(), n_samples=50, seed=0).report(EVIL)


def test_is_well_formed_and_complete(page: str) -> None:
    tags = Tags(page)
    assert tags.open == []
    assert tags.seen["img"] >= 5
    for heading in (
        "The data",
        "How many clusters?",
        "Who belongs together?",
        "Column by column",
        "The most probable partitions",
        "The least certain rows",
        "Can this be trusted?",
        "how to cite",
    ):
        assert heading in page


def test_needs_nothing_from_elsewhere(page: str) -> None:
    tags = Tags(page)
    assert all(source.startswith("data:image/png;base64,") for source in tags.sources)
    assert "default-src 'none'" in page
    assert "http://" not in page
    assert "https://" not in page


def test_names_are_escaped(page: str) -> None:
    assert "script" not in Tags(page).seen
    assert html.escape(EVIL) in page


@pytest.mark.parametrize("n", [1, 2, 5])
def test_few_points(n: int) -> None:
    assert Tags(cluster(np.eye(5)[:n], tabular(), n_samples=10, seed=0).report()).open == []


def test_one_column_and_missing_rows_and_weights() -> None:
    x = np.random.default_rng(1).normal(size=(30, 1))
    x[3] = np.nan
    page = cluster(x, gaussian(1), n_samples=30, reweight=True, seed=0).report()
    assert "Importance weights are" in page
    assert "1 row with missing values was left out" in page


def test_large_tables() -> None:
    x = np.random.default_rng(1).normal(size=(300, 2))
    page = cluster(x, gaussian(2), n_samples=30, max_points=50, seed=0).report()
    assert "A random 50 of 300 rows were clustered" in page


def test_partitions_keep_the_colours_of_the_estimate() -> None:
    labels = np.array([0, 0, 1, 1, 2])
    reference = np.array([0, 1, 1, 1, 2])
    matched = _match(np.array([0, 1, 1, 1, 2]), np.array([1, 0, 0, 0, 2]))
    assert matched.tolist() == [1, 0, 0, 0, 2]
    assert len(set(_match(labels, reference).tolist())) == 3


def hostile_csv() -> bytes:
    """Payloads as column names, as cells to one-hot, and as a cell of a nearly numeric column."""
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
    how = ["--model", str(model), "--one-hot", "kind", "--samples", "20", "--orders", "2", "-q"]
    assert cli.app(["cluster", str(data), *how, "--out", str(folder / "out")]) == 0
    return (folder / "out" / "report.html").read_text(encoding="utf-8")


def test_cells_of_a_file_are_escaped(hostile: str) -> None:
    table = read_table("file", hostile_csv(), None, ["kind"])
    for payload in PAYLOADS:
        assert f"kind={payload}" in table.columns
        assert any(payload in note or repr(payload) in note for note in table.notes)
        assert payload not in hostile
        assert html.escape(payload) in hostile
    assert not {"script", "svg"} & set(Tags(hostile).seen)
    assert all(source.startswith("data:image/png;base64,") for source in Tags(hostile).sources)


def browse(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None, "CI installs Debian's chromium; see .ci/run"
    profile = page.parent / f"profile-{len(options)}"
    return subprocess.run(
        [CHROMIUM, *BROWSER, f"--user-data-dir={profile}", *options, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="needs chromium")
@pytest.mark.parametrize("width", [1400, 400])
def test_in_a_browser(page: str, width: int, tmp_path: Path) -> None:
    """No message on the console, every picture shows, nothing sticks out to the side."""
    original = tmp_path / "report.html"
    original.write_text(page, encoding="utf-8")
    picture = tmp_path / "picture.png"
    shown = browse(original, f"--window-size={width},3000", f"--screenshot={picture}")
    assert "CONSOLE" not in shown.stderr
    assert picture.stat().st_size > 20_000
    probed = tmp_path / "probed.html"
    inside = re.sub(r"<meta http-equiv[^>]*>", "", page).replace("</body>", f"{PROBE}</body>")
    # in a frame, because a window cannot be narrower than 500 pixels
    style = f"width: {width}px; height: 3000px; border: 0"
    frame = f'<iframe style="{style}" srcdoc="{html.escape(inside)}"></iframe>'
    probed.write_text(f"<!DOCTYPE html><html><body>{frame}</body></html>", encoding="utf-8")
    dumped = browse(probed, "--window-size=1500,3000", "--dump-dom")
    found = re.search(r'data-probe="([^"]*)"', dumped.stdout)
    assert found is not None, dumped.stderr[-500:]
    probe: dict[str, Any] = json.loads(html.unescape(found[1]))
    assert probe["width"] == width
    assert probe["overflow"] <= 0
    assert len(probe["images"]) >= 5
    assert all(probe["images"])


@pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="needs chromium")
@pytest.mark.parametrize("where", ["report", "payloads"])
def test_hostile_cells_do_not_run_in_a_browser(hostile: str, where: str, tmp_path: Path) -> None:
    """Not even without the page's policy; where they are not escaped, they do."""
    page = re.sub(r"<meta http-equiv[^>]*>", "", hostile)
    if where == "payloads":
        page = page.replace("</body>", "".join(PAYLOADS) + "</body>")
    path = tmp_path / "page.html"
    path.write_text(page, encoding="utf-8")
    shown = browse(path, "--dump-dom").stdout
    assert "</html>" in shown
    ran = 'data-evil="1"' in shown
    assert ran == (where == "payloads")
    assert ("<title>evil</title>" in shown) == ran
