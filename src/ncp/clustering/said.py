"""What a command line says of the rows of a file, and a file of links, as knowledge of its table.

    --known 3-9,12=setosa   --together 1,5   --together links.txt   --apart 4,70

Rows are numbers from 1, as in the column `row` of the labels, ranges of them, or what a column of
the file calls them (`@12` is the row that is called 12, whatever its number). A file of links has
one on every line, its rows with commas, semicolons or tabs between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ncp.clustering.knowledge import Knowledge, Labels, is_unknown, set_label
from ncp.output.readers import Table

__all__ = ["Said", "rows_of"]

Links = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Said:
    """What is said of every file of a batch.

    Args:
        known_column: A column of the file with labels; rows with an empty cell have none.
        known: Rows and a label each, as in `3-9,12=setosa`.
        together: Rows that share a cluster, as they were written.
        apart: Rows of which no two do, the same.
        n_clusters: How many clusters there are.
        at_least: The fewest that there are.
        at_most: The most that there are.
        at_any_price: Whether to obey what the model finds impossible.
    """

    known_column: str | None = None
    known: tuple[str, ...] = ()
    together: Links = ()
    apart: Links = ()
    n_clusters: int | None = None
    at_least: int | None = None
    at_most: int | None = None
    at_any_price: bool = False

    @classmethod
    def read(
        cls, *, together: Sequence[str] = (), apart: Sequence[str] = (), **others: Any
    ) -> Said:
        """From options; `together` and `apart` are rows, or files of them."""
        return cls(together=_links(together), apart=_links(apart), **others)

    def to_dict(self) -> dict[str, Any]:
        """Plain, equal to what comes back from JSON."""
        plain = asdict(self)
        plain["known"] = list(self.known)
        for name in ("together", "apart"):
            plain[name] = [list(link) for link in plain[name]]
        return plain

    def knowledge(self, table: Table) -> Knowledge:
        """Of one table."""
        n_rows = len(table.values)
        find = partial(rows_of, n_rows=n_rows, names=table.row_names)
        return Knowledge(
            self._labels(table, find),
            tuple(find(link) for link in self.together),
            tuple(find(link) for link in self.apart),
            self.n_clusters,
            self.at_least,
            self.at_most,
            self.at_any_price,
            called=tuple(str(i + 1) for i in range(n_rows)),
        )

    def _labels(self, table: Table, find: Any) -> Labels | None:
        if table.known is None and not self.known:
            return None
        column = table.known or [None] * len(table.values)
        labels = [None if is_unknown(label) else label for label in column]
        for text in self.known:
            rows, equals, label = text.partition("=")
            if not equals or not label.strip():
                raise ValueError(f"Expected --known ROWS=NAME but got {text!r}")
            for row in find(_parts(rows)):
                set_label(labels, row, label.strip(), str(row + 1))
        return Labels(labels)


def rows_of(parts: Sequence[str], n_rows: int, names: Sequence[str] | None = None) -> list[int]:
    """Positions of rows that are said by number from 1, range or name.

    Args:
        parts: As they were written.
        n_rows: How many rows there are.
        names: What they are called, if anything.

    Example:
        >>> rows_of(["2-4", "b", "@7"], 5, ["a", "b", "c", "d", "7"])
        [1, 2, 3, 1, 4]
    """
    found: list[int] = []
    for part in parts:
        if numbers := re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part):
            low, high = int(numbers[1]), int(numbers[2] or numbers[1])
            if not 1 <= low <= high <= n_rows:
                raise ValueError(f"Expected rows from 1 to {n_rows} but got {part!r}")
            found += range(low - 1, high)
        else:
            found.append(_called(part, names))
    return found


def _called(part: str, names: Sequence[str] | None) -> int:
    if names is None:
        raise ValueError(
            f"Expected rows by number, since no column of the file names them, but got {part!r}"
        )
    at = [i for i, name in enumerate(names) if name.strip() in (part, part.removeprefix("@"))]
    if len(at) != 1:
        raise ValueError(f"Expected one row called {part!r} but {len(at) or 'none'} is")
    return at[0]


def _links(given: Sequence[str]) -> Links:
    found: list[tuple[str, ...]] = []
    for text in given:
        lines = _lines(Path(text)) if _is_file(text) else [text]
        found += [_parts(line) for line in lines]
    return tuple(found)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a zero byte
        return False


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is not text; expected rows with commas between them") from None
    return [line for line in lines if line.strip() and not line.startswith("#")]


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in re.split(r"[,;\t]", text) if part.strip())
