"""What a user says of a table, in the user's words, as constraints of a sampler; and names back.

Rows are said by position, or by their label in a data frame's index. Known labels are a column with
gaps (None, NaN, an empty text or -1, or NaN and -1 as text: not known), or a dict from rows to
labels, where only None, NaN and an empty text say nothing; equal ones are together, different ones
apart, and their names are those of the clusters in the answer. What has no known row in it is
called "new 1", "new 2", ... by size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import count
from typing import Any

import numpy as np
from jaxtyping import Int64

from ncp.output.columns import is_gap
from ncp.sampling.constraints import Constraints, constrain

__all__ = [
    "Heard",
    "Knowledge",
    "Labels",
    "Translated",
    "cluster_names",
    "is_unknown",
    "names_to_find",
    "own_index",
    "row_finder",
    "row_names",
    "set_label",
]

Finder = Callable[[Any], int]
UNKNOWN = ("nan", "<na>", "-1", "-1.0")  # as arrays of text have what is not known


class Labels(tuple[Any, ...]):
    """A label for each row, None where nothing was said: whatever else there is was said."""


@dataclass(frozen=True)
class Knowledge:
    """What is known of a table beforehand.

    Args:
        known: A label for each row, None, NaN, "" or -1 where it is not known; or a dict from
            rows to labels, which may be -1.
        together: Rows that share a cluster, in pairs or longer lists.
        apart: Rows of which no two share a cluster, the same.
        n_clusters: How many clusters there are.
        at_least: The fewest that there are.
        at_most: The most that there are.
        at_any_price: Whether to obey what the model finds impossible.
        called: What the rows are called when something is wrong with what is said of them; by
            default by the frame's index, or numbers from 0.
    """

    known: Any = None
    together: Any = ()  # what they are is checked in `translate`
    apart: Any = ()
    n_clusters: Any = None
    at_least: Any = None
    at_most: Any = None
    at_any_price: bool = False
    called: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("together", "apart"):
            links = getattr(self, name)
            links = () if links is None else links
            if not isinstance(links, Iterable) or isinstance(links, str | Mapping):
                raise ValueError(f"Expected pairs of rows that are {name} but got {links!r}")
            object.__setattr__(self, name, tuple(links))
        if self.known is not None and (
            not isinstance(self.known, Iterable) or isinstance(self.known, str)
        ):
            raise ValueError(f"Expected known labels, one for each row, but got {self.known!r}")
        if len(shape := getattr(self.known, "shape", (0,))) != 1:
            raise ValueError(f"Expected known labels, one for each row, but got shape {shape}")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """What can be said."""
        return tuple(one.name for one in fields(cls))

    def said(self) -> bool:
        """Whether anything was."""
        links = len(self.together) + len(self.apart)
        return self.known is not None or links > 0 or self.says_number()

    def says_number(self) -> bool:
        """Whether anything was said of the number of clusters."""
        return any(n is not None for n in (self.n_clusters, self.at_least, self.at_most))

    def added_to(self, before: Knowledge, x: Any) -> Knowledge:
        """This and what was known before; of the same thing, the new one holds."""
        known = self.known
        if before.known is not None:
            find = row_finder(x, len(x))
            labels = _by_row(before.known, find, x)
            new = _by_row(self.known, find, x)
            known = Labels(a if b is None else b for a, b in zip(labels, new, strict=True))
        return Knowledge(
            known,
            (*before.together, *self.together),
            (*before.apart, *self.apart),
            *self._number(before),
            self.at_any_price or before.at_any_price,
            before.called,
        )

    def _number(self, before: Knowledge) -> tuple[int | None, int | None, int | None]:
        """Of clusters, its least and its most."""
        if self.n_clusters is not None:
            return self.n_clusters, self.at_least, self.at_most
        if self.at_least is None and self.at_most is None:
            return before.n_clusters, before.at_least, before.at_most
        least = before.at_least if self.at_least is None else self.at_least
        most = before.at_most if self.at_most is None else self.at_most
        return None, least, most  # one limit does not lift the other

    def translate(self, x: Any) -> Translated:
        """In positions of the rows of a table, with all names looked up."""
        n_rows = len(x)
        find = row_finder(x, n_rows)
        labels, names = _labels(_by_row(self.known, find, x))
        return Translated(
            labels,
            names,
            _links(self.together, find, "together"),
            _links(self.apart, find, "apart"),
            (self.n_clusters, self.at_least, self.at_most),
        )


@dataclass(frozen=True, eq=False)
class Translated:
    """What is known of N rows, by position.

    Attributes:
        labels: Numbers of known labels, -1 where they are not known, `(N,)`.
        names: Their names.
        together: Links of rows that share a cluster.
        apart: Links of rows of which no two do.
        number: n_clusters, at_least and at_most.
    """

    labels: Int64[np.ndarray, " N"]
    names: tuple[str, ...]
    together: tuple[tuple[int, ...], ...]
    apart: tuple[tuple[int, ...], ...]
    number: tuple[Any, Any, Any]

    @property
    def linked(self) -> Int64[np.ndarray, " n"]:
        """All rows that a link names."""
        links = (*self.together, *self.apart)
        return np.unique(np.array([row for link in links for row in link], np.int64))

    @property
    def says_number(self) -> bool:
        """Whether nothing is left open about the number of clusters."""
        exactly, least, most = self.number
        between = least is not None and least == most
        return exactly is not None or between or bool((self.labels >= 0).all())

    @property
    def rows(self) -> Int64[np.ndarray, " n"]:
        """All rows of which something is known."""
        return np.union1d(np.flatnonzero(self.labels >= 0), self.linked)

    def some_rows(self, most: int, rng: np.random.Generator) -> Int64[np.ndarray, " n"]:
        """All linked rows, and about `most` of those with known labels, some of each."""
        order = rng.permutation(np.flatnonzero(self.labels >= 0))
        rank = np.empty(len(order), np.int64)  # among those of its label
        for label in range(len(self.names)):
            here = self.labels[order] == label
            rank[here] = np.arange(here.sum())
        return np.union1d(order[np.argsort(rank, kind="stable")][:most], self.linked)

    def constraints(self, index: Int64[np.ndarray, " n"], row_names: Sequence[str]) -> Constraints:
        """For the rows `index` of the table, which contain all that are linked."""
        place = np.full(len(self.labels), -1)
        place[index] = np.arange(len(index))
        if (lost := self.linked[place[self.linked] < 0]).size:
            raise ValueError(
                f"Expected links of rows that can be clustered but row {row_names[lost[0]]} has "
                "missing values, which the model cannot take"
            )
        exactly, at_least, at_most = self.number
        for name, number in (("n_clusters", exactly), ("at_least", at_least)):
            if isinstance(number, int) and len(index) < number <= len(self.labels):
                raise ValueError(
                    f"Expected {name} <= {len(index)}, the rows that are clustered at once, but "
                    f"got {number}; see max_points"
                )
        return constrain(
            len(index),
            self.labels[index],
            [[int(place[row]) for row in link] for link in self.together],
            [[int(place[row]) for row in link] for link in self.apart],
            n_clusters=exactly,
            at_least=at_least,
            at_most=at_most,
            name=lambda i: row_names[index[i]],
        )


@dataclass(frozen=True, eq=False)
class Heard:
    """What was known of a clustered table.

    Attributes:
        knowledge: In the user's words.
        rows: In positions of its rows.
        log_probability: Of all that under the model, before it was told.
        n_draws: How many independent samples the weighted ones were worth.
    """

    knowledge: Knowledge
    rows: Translated
    log_probability: float
    n_draws: float


def row_names(x: Any, n_rows: int) -> tuple[str, ...]:
    """What the rows of a table are called: by a frame's index, or numbers from 0.

    Example:
        >>> row_names([[0.5], [1.0]], 2)
        ('0', '1')
    """
    index = own_index(x)
    return tuple(str(name) for name in (range(n_rows) if index is None else index))


def own_index(x: Any) -> Any:
    """The index of a data frame, or None if there is none or it only counts the rows from 0."""
    index: Any = getattr(x, "index", None) if hasattr(x, "columns") else None
    if index is None or index.dtype.kind not in "iu":
        return index
    return None if np.array_equal(index, np.arange(len(index))) else index


def row_finder(x: Any, n_rows: int) -> Finder:
    """From a row's position, or its label in the index of a data frame, to its position.

    In a frame whose index is 5, 6, 7, row 6 is the second one: where labels are whole numbers, a
    number is a label.

    Example:
        >>> row_finder(None, 10)(-1)
        9
    """
    index = own_index(x)
    labels = () if index is None else index
    numbers_are_labels = index is not None and index.dtype.kind in "iu"
    at: dict[Any, int] = {}
    twice: set[Any] = set()
    for position, label in enumerate(labels):
        for form in {label, str(label)}:
            if form in at:
                twice.add(form)
            at[form] = position

    def find(row: Any) -> int:
        row = row.item() if isinstance(row, np.generic) else row
        if type(row).__hash__ is None:
            raise ValueError(f"Expected the name or the number of a row but got {row!r}")
        if row in twice:
            raise ValueError(
                f"Expected a row's unique label but several rows are called {row!r}; try "
                "reset_index()"
            )
        if row in at:
            return at[row]
        whole = isinstance(row, int) and not isinstance(row, bool)
        if whole and not numbers_are_labels and -n_rows <= row < n_rows:
            return int(row) % n_rows
        kinds = [] if numbers_are_labels else [f"positions below {n_rows}"]
        kinds += [] if index is None else ["labels of the index"]
        kind = " or ".join(kinds)
        raise ValueError(f"Expected rows by {kind} but got {row!r}")

    return find


def _links(links: Any, find: Finder, what: str) -> tuple[tuple[int, ...], ...]:
    found = []
    for link in links:
        several = isinstance(link, Iterable) and not isinstance(link, str)
        rows = tuple(find(row) for row in link) if several else ()
        if len(rows) < 2:
            raise ValueError(f"Expected pairs of rows that are {what} but got {link!r}")
        found.append(rows)
    return tuple(found)


def names_to_find(x: Any, n_rows: int) -> Sequence[Any]:
    """What each row is called so that `row_finder` finds it: by its label, or its position."""
    index = own_index(x)
    if index is None or not (index.is_unique or index.dtype.kind in "iu"):
        return range(n_rows)
    if not index.is_unique:
        raise ValueError("Expected unique labels of rows but some are repeated; try reset_index()")
    return list(index.tolist())


def _labels(values: Sequence[Any]) -> tuple[Int64[np.ndarray, " N"], tuple[str, ...]]:
    """Numbers of the labels in order of their names, and the names."""
    names = [None if value is None else _name(value) for value in values]
    distinct = sorted({name for name in names if name is not None}, key=_natural)
    number = {name: i for i, name in enumerate(distinct)}
    return np.array([-1 if name is None else number[name] for name in names]), tuple(distinct)


def _by_row(known: Any, find: Finder, x: Any) -> list[Any]:
    """A label for each row, None for those of which nothing is known."""
    n_rows = len(x)
    values: list[Any] = [None] * n_rows
    by_name = hasattr(known, "iloc") and not _is_aligned(known, x)
    unknown = says_nothing if isinstance(known, Mapping | Labels) else is_unknown
    if by_name or isinstance(known, Mapping):
        for row, label in known.items():
            set_label(values, find(row), None if unknown(label) else label, repr(row))
    elif known is not None:
        values = [None if unknown(label) else label for label in known]
        if len(values) != n_rows:
            raise ValueError(f"Expected known labels of {n_rows} rows but got {len(values)}")
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def set_label(values: list[Any], at: int, label: Any, row: str) -> None:
    """Say a row's label (None for nothing), unless another one was said of it."""
    before = values[at]
    if not (before is None or label is None) and _name(before) != _name(label):
        raise ValueError(
            f"Expected one known label for each row but row {row} is said to be "
            f"{_name(before)!r} and {_name(label)!r}"
        )
    values[at] = before if label is None else label


def _is_aligned(known: Any, x: Any) -> bool:
    """Whether a series has a value for each row, in their order."""
    index = getattr(x, "index", None) if hasattr(x, "columns") else None
    return len(known) == len(x) if index is None else bool(known.index.equals(index))


def says_nothing(value: Any) -> bool:
    """Whether a label is none: None, NaN (or pandas' NA), or an empty text.

    Example:
        >>> [says_nothing(value) for value in (None, float("nan"), " ", -1, "nan")]
        [True, True, True, False, False]
    """
    return not value.strip() if isinstance(value, str) else is_gap(value)


def is_unknown(value: Any) -> bool:
    """Whether a cell of a column of labels says nothing, or is -1, or NaN or -1 as text.

    Arrays of text have them so: taken for a label, it would put all such rows together.

    Example:
        >>> [is_unknown(value) for value in (None, float("nan"), " ", -1, -1.0, "nan", "-1")]
        [True, True, True, True, True, True, True]
        >>> [is_unknown(value) for value in (0, "a", "0", "-", "none")]
        [False, False, False, False, False]
    """
    if isinstance(value, str) and value.strip().lower() in UNKNOWN:
        return True
    return says_nothing(value) or bool(value == -1)


def _name(value: Any) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole else str(value).strip()


def _natural(name: str) -> tuple[int, float, str]:
    """Numbers by their value, before texts ("nan" is one: it has no place among numbers)."""
    try:
        number = float(name)
    except ValueError:
        number = math.nan
    return (1, 0.0, name) if math.isnan(number) else (0, number, name)


def cluster_names(
    labels: Int64[np.ndarray, " N"], known: Int64[np.ndarray, " N"], names: Sequence[str]
) -> tuple[str, ...]:
    """What the clusters of a partition are called: by the known labels of their rows, or "new 1".

    Args:
        labels: The partition, -1 for rows that were left out.
        known: Numbers of known labels, -1 for unknown.
        names: The names of those.

    Example:
        >>> cluster_names(np.array([0, 0, 1, 2]), np.array([-1, 1, 0, -1]), ("a", "b"))
        ('b', 'a', 'new 1')
    """
    found: list[str] = []
    fresh = (name for i in count(1) if (name := f"new {i}") not in names)
    for k in range(labels.max(initial=-1) + 1):
        own = np.unique(known[(labels == k) & (known >= 0)])
        found.append(" + ".join(names[i] for i in own) or next(fresh))
    return tuple(found)
