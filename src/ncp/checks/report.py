"""The lines of a check as a table, and the results behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["CheckReport", "CheckRow"]


class CheckRow(NamedTuple):
    """One line of a report."""

    name: str
    value: float
    target: str  # "<= 0.005", or "" when there is none
    passed: bool | None  # None: reported, not judged
    words: str

    @property
    def verdict(self) -> str:
        return {True: "pass", False: "FAIL", None: ""}[self.passed]


@dataclass(frozen=True, eq=False)
class CheckReport:
    """The lines of a check, and the results behind them for figures.

    Example:
        >>> row = CheckRow("KL", 0.004, "<= 0.01", True, "distance to the exact posterior")
        >>> print(CheckReport((row,)))
        check  value   target   verdict  meaning
        -----  ------  -------  -------  -------------------------------
        KL     0.0040  <= 0.01  pass     distance to the exact posterior
    """

    rows: tuple[CheckRow, ...]
    results: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """No line that is judged failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the lines that failed."""
        return tuple(row.name for row in self.rows if row.passed is False)

    def table(self) -> str:
        """The lines as text in columns."""
        header = ("check", "value", "target", "verdict", "meaning")
        # rounding before formatting, so that -1e-17 is not printed as -0.0000
        cells = [header] + [
            (row.name, f"{round(row.value, 4) + 0.0:.4f}", row.target, row.verdict, row.words)
            for row in self.rows
        ]
        widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
        cells.insert(1, tuple("-" * width for width in widths))  # type: ignore[arg-type]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in cells
        )

    def to_dicts(self) -> list[dict[str, Any]]:
        """One plain dict a line, for JSON and CSV."""
        return [row._asdict() for row in self.rows]

    def __str__(self) -> str:
        return self.table()
