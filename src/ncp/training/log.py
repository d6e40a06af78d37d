"""What a run says: lines of JSON, TensorBoard where it is installed, a progress bar."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ncp.files import write_atomically
from ncp.training.state import Trainer

__all__ = ["Log", "progress_bar"]


class Log:
    """Averages of each few steps as lines of JSON, and to TensorBoard where it is installed."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.path = trainer.directory / "log.jsonl"
        self.window: list[dict[str, float]] = []
        self.since = time.monotonic()
        self.latest: dict[str, float] = {}
        self.board: Any = None

    def __enter__(self) -> Log:
        if self.trainer.is_first:
            self.trainer.directory.mkdir(parents=True, exist_ok=True)
            self.rewind()
            if self.trainer.step in self.trainer.resumed[-1:]:
                self.write({"step": self.trainer.step, "resumed": True})
            with suppress(ImportError):
                from torch.utils.tensorboard import SummaryWriter

                where = str(self.trainer.directory / "tensorboard")
                purge = self.trainer.step + 1
                self.board = SummaryWriter(where, purge_step=purge)
        return self

    def __exit__(self, *_: object) -> None:
        if self.board is not None:
            self.board.close()

    def rewind(self) -> None:
        """Drop the lines after the trainer's step, which will be written again, and torn ones."""
        self.window = []
        if self.trainer.is_first and self.path.exists():
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
            kept = [line for line in lines if _step_of(line) <= self.trainer.step]
            write_atomically(self.path, "".join(line + "\n" for line in kept).encode())

    def add(self, result: dict[str, float]) -> None:
        if self.trainer.is_first:
            self.window.append(result)

    def flush(self, more: dict[str, float]) -> None:
        now = time.monotonic()
        mean = {k: sum(r[k] for r in self.window) / len(self.window) for k in self.window[0]}
        rate = sum(r["candidates"] for r in self.window) / (now - self.since)
        self.latest = mean | more | {"candidates_per_second": rate}
        self.write({"step": self.trainer.step, "seconds": self.trainer.seconds, **self.latest})
        self.window, self.since = [], now

    def write(self, line: dict[str, Any]) -> None:
        if not self.trainer.is_first:
            return
        finite = {
            k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()
        }
        with self.path.open("a") as file:
            file.write(json.dumps(finite) + "\n")
        if self.board is not None:
            for key, value in line.items():
                if key != "step" and isinstance(value, int | float):
                    self.board.add_scalar(key, value, line["step"])


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return math.inf


@contextmanager
def progress_bar(trainer: Trainer, wanted: bool) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """A bar on the terminal, or nothing; what it gives is called with the latest monitors."""
    if not wanted or not trainer.is_first:
        yield lambda latest: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[monitors]}"),
        refresh_per_second=2,
    ) as bar:
        task = bar.add_task(trainer.recipe.name, total=trainer.recipe.steps, monitors="")

        def show(latest: Mapping[str, float]) -> None:
            monitors = ""
            if latest:
                monitors = (
                    f"nll {latest['nll']:.4f}  acc {latest['accuracy']:.3f}  "
                    f"var {latest['permutation_variance']:.3g}  "
                    f"{latest['candidates_per_second'] / 1000:.0f}k cand/s"
                )
            bar.update(task, completed=trainer.step, monitors=monitors)

        yield show
