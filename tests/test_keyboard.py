"""At the keyboard: what is known of rows, models of one's own, cards, saved results, terminals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ncp
from ncp import cli
from ncp.cli.common import BAD_INPUT
from ncp.cli.models import _print_card
from ncp.clustering.batch import Batch
from ncp.clustering.said import Said, rows_of
from ncp.generative.plugins import VARIABLE
from ncp.network import pretrained
from ncp.output.readers import read_table
from ncp.output.terminal import visible

QUICK = ("--samples", 20, "--orders", 2)
STICKS = """
from dataclasses import dataclass
import torch
import ncp

@dataclass(frozen=True)
class Straws(ncp.Likelihood):
    length: float = 4.0
    event_shape = (2,)
    scale = 10.0

    def sample_parameters(self, shape, generator=None):
        return 10 * torch.randn(*shape, 2, generator=generator).double()

    def sample_observations(self, parameters, labels, generator=None):
        centre = parameters.gather(1, labels[..., None].expand(-1, -1, 2))
        along = torch.rand(*labels.shape, 1, generator=generator).double()
        return centre + self.length * along

number = 3
"""


pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(20, 2)), columns=["a", "b"])
    frame.insert(0, "who", [f"w{i}" for i in range(20)])
    frame["kind"] = ["x", None, "y", "x"] + [None] * 16
    frame.to_csv(tmp_path / "data.csv", index=False)
    return tmp_path / "data.csv"


def run(*arguments: object) -> int:
    return cli.app([str(argument) for argument in arguments])


def labels(folder: str = "ncp-output/data") -> pd.DataFrame:
    return pd.read_csv(Path(folder, "labels.csv"))


# -- what is known ---------------------------------------------------------------------------------


def test_known_column(data: Path) -> None:
    assert run("cluster", data, "--known-column", "kind", *QUICK) == 0
    found = labels()
    assert list(found.columns) == ["row", "who", "cluster", "confidence", "name"]
    assert list(found["name"][[0, 2, 3]]) == ["x", "y", "x"]
    assert found["cluster"][0] == found["cluster"][3] != found["cluster"][2]
    summary = json.loads(Path("ncp-output/data/summary.json").read_text())
    assert summary["known"]["labels"] == 3
    assert summary["columns"] == ["a", "b"]
    assert not any("kind" in note for note in summary["notes"])  # it was used, not left out


def test_a_known_column_of_numbers_is_not_clustered_by(data: Path) -> None:
    table = read_table("data.csv", known="b")
    assert table.columns == ("a",)
    assert table.known is not None
    assert len(table.known) == 20


def test_links_from_options_and_files(data: Path) -> None:
    Path("links.txt").write_text("# rows\n1,w5\n\n3;4\n")
    said = ("--together", "links.txt", "--apart", "w0,3,w9", "--known", "7-8=seven")
    assert run("cluster", data, *said, *QUICK) == 0
    c = labels()["cluster"]
    assert c[0] == c[5]
    assert c[2] == c[3]
    assert len({c[0], c[2], c[9]}) == 3
    assert list(labels()["name"][[6, 7]]) == ["seven", "seven"]


@pytest.mark.parametrize(
    ("options", "ks"),
    [(("--clusters", 3), {3}), (("--at-least", 4, "--at-most", 5), {4, 5}), (("-k", 1), {1})],
)
def test_the_number_of_clusters(data: Path, options: tuple[object, ...], ks: set[int]) -> None:
    assert run("cluster", data, *options, *QUICK) == 0
    samples = np.load("ncp-output/data/samples.npz")["samples"]
    assert set(samples.max(1) + 1) <= ks
    assert labels()["cluster"].nunique() in ks


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--together", "1,21"), "rows from 1 to 20 but got '21'"),
        (("--together", "1,2", "--apart", "1,2"), "rows 1 and 2"),
        (("--together", "nobody,2"), "one row called 'nobody' but none is"),
        (("--known", "3"), "--known ROWS=NAME but got '3'"),
        (("--known-column", "sort"), "has no column 'sort'"),
        (("--together", "5"), "pairs of rows"),
        (("--clusters", 21), "21"),
    ],
)
def test_what_cannot_be_is_one_line(
    data: Path, options: tuple[object, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("cluster", data, *options, *QUICK) == 3
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not Path("ncp-output/data").exists()


def test_rows_by_number_range_and_name() -> None:
    assert rows_of(["2-4", "b", "@7"], 5, ["a", "b", "c", "d", "7"]) == [1, 2, 3, 1, 4]
    with pytest.raises(ValueError, match="no column of the file names them"):
        rows_of(["b"], 5)
    with pytest.raises(ValueError, match="but 2 is"):
        rows_of(["b"], 2, ["b", "b"])


def test_what_is_said_decides_whether_a_result_is_up_to_date(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, kept in ((("-k", 2), False), (("-k", 2), True), (("-k", 3), False)):
        assert run("cluster", data, *options, "--resume", *QUICK) == 0
        assert ("(kept)" in capsys.readouterr().out) == kept


def test_the_report_knows_its_command(data: Path) -> None:
    assert run("cluster", data, "-k", 2, "--no-report", "--out", "some where", *QUICK) == 0
    options = ("--no-reweight", "--known-column", "kind", "--format", "json", *QUICK)
    assert run("cluster", "data.csv", *options, "--out", "some where") == 0
    page = Path("some where/report.html").read_text()
    data_line = page.split('id="data">')[1].split("</script>")[0]
    told = json.loads(data_line)
    assert told["command"] == (
        "ncp cluster data.csv --samples 20 --orders 2 --no-reweight --known-column kind "
        "--format json --out 'some where'"
    )
    assert told["known"] == [0, 2, 3]
    assert set(told["cluster_names"]) >= {"x", "y"}
    assert page.count('class="known"') == 3


# -- results that stay -----------------------------------------------------------------------------


def test_a_report_from_a_saved_result(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cluster", data, "--save", "--no-report", "--known-column", "kind", *QUICK) == 0
    assert not Path("ncp-output/data/report.html").exists()
    assert run("report", "ncp-output/data") == 0
    page = Path("ncp-output/data/report.html").read_text()
    assert "<h1>data</h1>" in page
    assert page.count('class="known"') == 3  # what was known is saved, too
    told = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert told["command"] == (
        f"ncp cluster {data} --samples 20 --orders 2 --known-column kind --no-report --save"
    )
    assert run("report", "ncp-output/data/result.npz", "--out", "a.html", "--title", "A & B") == 0
    assert "<h1>A &amp; B</h1>" in Path("a.html").read_text()
    assert run("report", "ncp-output/data/labels.csv", "--out", "b.html") == 0
    assert "<h1>data</h1>" in Path("b.html").read_text()
    capsys.readouterr()
    assert run("report", "data.csv") == 3
    assert "data.csv: is not a" in capsys.readouterr().err
    assert run("report", "nowhere.npz") == 3
    assert "--save" in capsys.readouterr().err
    Path("labels.npz").write_bytes(b"rubbish")  # not the labels beside a result
    assert run("report", "labels.npz") == 3
    assert "labels.npz: " in capsys.readouterr().err


def test_what_was_known_is_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(12, 2)), index=[f"r{i}" for i in range(12)])
    frame.columns = ["a", "b"]
    said: dict[str, Any] = {
        "known": {"r0": "x", "r1": "y"},
        "together": [("r2", "r3")],
        "at_most": 4,
    }
    found = ncp.cluster(frame, **said, n_samples=20, seed=0)
    found.save(tmp_path / "a.npz")
    again = ncp.Clustering.load(tmp_path / "a.npz")
    assert again.cluster_names == found.cluster_names
    assert again.words() == found.words()
    assert "name" in again.to_pandas()
    more = again.given(apart=[("r2", "r4")])
    assert more.heard is not None
    assert more.heard.rows.together == ((2, 3),)
    assert more.labels[0] != more.labels[1]
    assert more.labels[2] == more.labels[3] != more.labels[4]


# -- models ----------------------------------------------------------------------------------------


def test_models_are_a_table_and_a_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("models") == 0
    table = capsys.readouterr().out
    assert table.splitlines()[0].split() == ["name", "for", "rows", "trained", "in", "how", "good"]
    assert max(map(len, table.splitlines())) <= 80
    assert len(table.splitlines()) <= 3 * len(pretrained.names()) + 2
    assert run("models", "gaussian-2d") == 0
    card = capsys.readouterr().out
    assert "CRP(alpha=0.7)" in card
    assert run("models", "gaussian-2d", "--json") == 0
    assert json.loads(capsys.readouterr().out)["name"] == "gaussian-2d"
    assert run("models", "gausian-2d") == 3
    assert "did you mean 'gaussian-2d'" in capsys.readouterr().err


def test_a_model_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(STICKS)
    rng = np.random.default_rng(0)
    np.save("x.npy", 5 * rng.normal(size=(12, 2)))
    assert run("train", "--generative", "mine.py:Straws", "--steps", 3) == 0
    printed = capsys.readouterr().out
    assert "ncp check runs/straws/straws.safetensors --plugin mine.py" in " ".join(printed.split())
    weights = "runs/straws/straws.safetensors"
    # In a process that has not imported the class:
    command = [sys.executable, "-c", "import sys; from ncp.cli import app; sys.exit(app())"]
    command += ["cluster", "x.npy", "--model", weights, "--samples", "20"]
    environment = {**os.environ, VARIABLE: ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 3
    assert "'Straws'" in done.stderr
    assert "--plugin FILE.py" in done.stderr
    done = subprocess.run(
        [*command, "--plugin", "mine.py"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert len(labels("ncp-output/x")) == 12
    toml = Path("mine.toml")
    toml.write_text('name = "own"\n[[phase]]\nsteps = 2\npoints_per_step = 60\n')
    assert run("train", toml, "--generative", "mine.py:Straws", "--quiet") == 0
    assert Path("runs/own/own.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (("--generative", "mine.py"), 3, "Expected FILE.py:NAME"),
        (("--generative", "mine.py:Stones"), 3, "defines no Stones"),
        (("--generative", "mine.py:number"), 3, "a generative model or a likelihood but got 3"),
        (("--generative", "none.py:Straws"), 3, "no such Python file"),
        (("--generative", "broken.py:Straws"), 3, "ZeroDivisionError"),
        (("--steps", "3"), 2, "give either"),
    ],
)
def test_what_is_no_model(
    options: tuple[str, ...], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text(STICKS)
    Path("broken.py").write_text("1 / 0\n")
    assert run("train", *options) == code
    assert sentence in capsys.readouterr().err


# -- the terminal ----------------------------------------------------------------------------------


def test_nothing_in_a_table_commands_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=15), "b\x1b[2J": "text", "c\u202e": "d"})
    frame["almost"] = ["1"] * 13 + ["\x1b]0;2", "2"]
    frame.to_csv("da\x1b[31mta.csv", index=False)
    assert run("cluster", "da\x1b[31mta.csv", *QUICK) == 0
    assert run("cluster", "da\x1b[31mta.csv", "--columns", "b\x1b[2J") == 3
    assert run("cluster", "no\x1b[31mne.csv") == 3
    found = capsys.readouterr()
    for text in (found.out, found.err):
        assert text
        assert not set(text) & set("\x1b\u202e")
    assert r"b\x1b[2J" in found.out
    result = ncp.cluster(pd.DataFrame({"a\x1b[2J": rng.normal(size=9)}), n_samples=9, seed=0)
    assert "\x1b" not in repr(result)


def test_visible_leaves_what_is_harmless() -> None:
    assert visible("Größe (m²) 重さ 👩‍🔬") == "Größe (m²) 重さ 👩‍🔬"
    assert visible("a\nb\udc80") == r"a\nb\udc80"


@pytest.mark.parametrize(
    ("command", "sign"),
    [
        (["cluster", "data.csv"], "data.csv: loading the model ..."),
        (["report", "labels.csv"], "result.npz: making the report ..."),
        (["models"], "reading the models ..."),
        (["check", "tabular"], "tabular: loading the model ..."),
        (["train", "my.toml"], "preparing the training ..."),
    ],
)
def test_a_sign_of_life_comes_first(command: list[str], sign: str) -> None:
    """On a terminal, before anything heavy is imported."""
    Path("result.npz").touch()
    look = (
        "import sys; from ncp.output import terminal\n"
        "from ncp import cli\n"
        "def seen(wanted, what):\n"
        "    print(wanted, what, [m for m in ('torch', 'pandas') if m in sys.modules])\n"
        "    raise KeyboardInterrupt\n"
        "terminal.sign_of_life = seen\n"
        "sys.stderr.isatty = lambda: True\n"
        f"cli.app({command!r})"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert done.stdout.strip() == f"True {sign} []", done.stderr


def test_help_promises_nothing_that_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ((), ("cluster",), ("train",), ("models",), ("report",)):
        assert run(*command, "--help") == 0
        assert "millisecond" not in capsys.readouterr().out


def test_batches_take_what_is_said() -> None:
    assert Batch("tabular", {}, said=Said(n_clusters=2)).said.n_clusters == 2


def test_the_command_line_as_a_module() -> None:
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    command = [sys.executable, "-m", "ncp"]
    run = subprocess.run(
        [*command, "--version"], env={**os.environ, "PYTHONPATH": path}, capture_output=True
    )
    assert run.stdout.decode().strip() == f"ncp {ncp.__version__}"
    run = subprocess.run(
        [*command, "nonsense"], env={**os.environ, "PYTHONPATH": path}, capture_output=True
    )
    assert run.returncode == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is full")
def test_what_could_not_be_written_is_not_success() -> None:
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "ncp", "--version"],
            env={**environment, "PYTHONPATH": path},
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert run.returncode == BAD_INPUT
    assert b"No space left" in run.stderr


def test_explain_is_another_word_for_report() -> None:
    assert cli.app(["explain", "nowhere/labels.csv"]) == BAD_INPUT


def test_one_number_is_said_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    one = pretrained.card(pretrained.names()[0])
    _print_card(replace(one, event_shape=(1,)))
    assert "1 number, as the network" in capsys.readouterr().out
