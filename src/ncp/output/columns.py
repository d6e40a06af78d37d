"""The columns of a table: numbers, categories, names of rows, and what is left out, in words.

Unless columns are named, all that hold numbers or categories are taken. Categories are text with
few different values, yes and no, and whole numbers that are codes: up to four different ones, up
to twelve with gaps (33, 44, 49), or up to forty strewn over a range of which they leave most out
(36, 40, 56, 76, 100, ...), in a table that has other columns. Dates are numbers of days.
Numbers with a unit (`12 kg`, `45%`, `$1,200`) are numbers if the whole column has it. Columns that
name the rows are left out: an index, numbers of rows, columns called an id with distinct whole
numbers, distinct whole numbers of many digits, and whole numbers beyond 2^53, which floating-point
numbers cannot tell apart. They go along with the results instead, as text does whose cells are all
distinct.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ncp.files import Refused
from ncp.output.text import MISSING, Marks, bare, common_unit, meaning_of_commas, with_plain_numbers

if TYPE_CHECKING:
    from pandas import DataFrame, Series

__all__ = [
    "Columns",
    "check_whole",
    "columns_of",
    "default_names",
    "encode",
    "find_column",
    "is_gap",
]

NINES = re.compile("99+")  # as in -999, for a missing value
LARGEST_WHOLE = 2**53  # the last whole number that has no other beside it as a float
LONGEST_NAME = 200  # of a row
MOST_LEVELS = 50  # of a text column
MOST_CODES = 12  # different whole numbers that may be codes
MOST_STREWN = 40  # if they are strewn over their range
FEWEST_CODED = 20  # rows of a column of codes, or of long numbers that name rows
LONG_NUMBER = 7  # digits
FEW = 5  # rows that are too few to call a column an identifier
USABLE = ("number", "date", "unit", "category")
TAKEN = "Taken as "
ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?$")
OTHER_DATE = re.compile(
    r"(\d{4}/\d{1,2}/\d{1,2}|\d{1,2}([./-])\d{1,2}\2\d{4})( \d{1,2}:\d{2}(:\d{2})?)?$"
)
DATE_ORDERS = ("%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")


@dataclass(frozen=True, eq=False)
class Columns:
    """What the columns of a table hold.

    Attributes:
        values: Numbers, and of categories the numbers of their levels, `(N, P)`; NaN for missing.
        names: Of the columns.
        levels: Of each column, what its numbers 0, 1, ... mean; empty if it holds numbers.
        identifiers: Positions, in the frame, of the columns that name the rows.
        notes: What was left out, and what was taken as what.
    """

    values: np.ndarray
    names: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    identifiers: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def categorical(self) -> np.ndarray:
        """Which columns are categories, `(P,)`."""
        return np.array([len(levels) > 0 for levels in self.levels], dtype=bool)

    def stand_ins(self) -> Iterator[tuple[str, float, int]]:
        """Columns with cells that probably mean "missing": name, number, and how many.

        Such a number has nines only (-999, 99), is there twice or more, and lies farther from all
        others than these from each other.
        """
        if self.values.ndim > 2:  # images, whose columns have no names
            return
        for name, column, levels in zip(self.names, self.values.T, self.levels, strict=True):
            cells = column[np.isfinite(column)]
            if levels or cells.size == 0:
                continue
            for value in {float(cells.min()), float(cells.max())}:
                others = cells[cells != value]
                is_mark = NINES.fullmatch(f"{abs(value):.15g}") and len(cells) - len(others) >= 2
                if is_mark and len(others) and np.abs(others - value).min() > np.ptp(others) > 0:
                    yield name, value, len(cells) - len(others)

    def as_numbers(self) -> Columns:
        """For a model that takes numbers only: codes as they are, without text."""
        if not self.categorical.any():
            return self
        kept, left_out = [], []
        for i, levels in enumerate(self.levels):
            codes = _floats(levels)
            if codes is None:
                left_out.append(self.names[i])
            else:
                kept.append((i, _decoded(self.values[:, i], codes)))
        if not kept:
            raise Refused(f"has no numeric column (found {', '.join(self.names[:6])})")
        told = [note for note in self.notes if not note.startswith(TAKEN)]
        told += [f"Columns that are not numeric were left out: {', '.join(left_out)}."]
        return Columns(
            np.stack([values for _, values in kept], axis=1),
            tuple(self.names[i] for i, _ in kept),
            ((),) * len(kept),
            self.identifiers,
            tuple(told if left_out else told[:-1]),
        )


def _floats(levels: tuple[str, ...]) -> np.ndarray | None:
    """What levels that are numbers are worth; None if they are not."""
    worth = {"False": 0.0, "True": 1.0}
    try:
        return np.array([worth[level] if level in worth else float(level) for level in levels])
    except ValueError:
        return None


def _decoded(values: np.ndarray, codes: np.ndarray) -> np.ndarray:
    if not len(codes):
        return values
    known = ~np.isnan(values)
    found = np.full(len(values), np.nan)
    found[known] = codes[values[known].astype(np.int64)]
    return found


@dataclass(frozen=True, eq=False)
class _Column:
    position: int
    name: str
    kind: str  # number, date, unit, category, empty, key, large, almost, text
    numbers: np.ndarray
    bad: list[str]
    levels: tuple[str, ...] = ()
    unit: str = ""


def default_names(width: int) -> tuple[str, ...]:
    """What columns without names are called."""
    return tuple(f"column {i + 1}" for i in range(width))


def find_column(column: str, names: Sequence[str]) -> int:
    """Where a column is, by its name or, if no column is called so, its number from 1."""
    if column in names:
        return list(names).index(column)
    if column.isdigit() and 1 <= int(column) <= len(names):
        return int(column) - 1
    listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    raise Refused(f"has no column {column!r}; its columns are {listed}")


def is_gap(value: Any) -> bool:
    """Whether a cell holds nothing: None, NaN, or what pandas has for it (not imported for that).

    Example:
        >>> [is_gap(value) for value in (None, float("nan"), "", 0)]
        [True, True, False, False]
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, Decimal, np.generic)) and bool(value != value)


def check_whole(values: np.ndarray, where: str = "one") -> None:
    """Refuse whole numbers that floats would round: they are names, not measurements."""
    if values.dtype.kind == "O":  # Python's integers have no end
        whole = [v for v in values.flat if isinstance(v, int)]
        largest = max((abs(v) for v in whole), default=0)
    elif values.dtype.kind in "iu" and values.size:
        largest = max(abs(int(values.min())), abs(int(values.max())))
    else:
        return
    if largest > LARGEST_WHOLE:
        raise ValueError(
            f"Expected whole numbers up to 2^53, beyond which they are rounded, but {where} is "
            f"{largest}; leave out what names the rows, or give measurements as floats"
        )


def columns_of(
    frame: DataFrame,
    header: bool = True,
    columns: Sequence[str] | None = None,
    *,
    numeric: Sequence[str] = (),
    categorical: Sequence[str] = (),
    index: Collection[str] = (),
    known: str | None = None,
    marks: Marks | None = None,
) -> Columns:
    """The columns of a table that can be clustered by.

    Args:
        frame: Any columns.
        header: Whether they have names of their own.
        columns: Names (or numbers, from 1) of those to take; all that can be by default.
        numeric: Those that are numbers whatever they look like.
        categorical: Those that are categories whatever they look like.
        index: Names of columns that were the table's index.
        known: The column with known labels, which is not clustered by.
        marks: Of numbers with a unit; None to tell them, and commas, from the cells.
    """
    frame, names = _with_plain_cells(frame), _names(frame, header)
    frame, told = (frame, []) if marks else _without_commas(frame)
    said = {find_column(name, names): "number" for name in numeric}
    said |= {find_column(name, names): "category" for name in categorical}
    chosen = None if columns is None else [find_column(column, names) for column in columns]
    every = [
        _judge(i, name, frame.iloc[:, i], header, name in index, said.get(i, ""), marks)
        for i, name in enumerate(names)
    ]
    if known is not None:
        at = find_column(known, names)
        every[at] = replace(every[at], kind="known")
    usable = [c for c in every if c.kind in USABLE]
    if chosen is None:
        taken, counter = _without_counter(usable, header)
    else:
        taken, counter = [_usable(every[i]) for i in dict.fromkeys(chosen)], None
    if not taken:
        raise Refused(_nothing([c for c in every if chosen is None or c.position in chosen], names))
    taken = _with_codes(taken, said)
    _check_values(taken)
    left = [c for c in every if chosen is None]
    used = {c.position for c in taken}
    identifiers = [c.position for c in every if c.position not in used and _names_rows(c, frame)]
    if counter is not None:
        identifiers = sorted({counter.position, *identifiers})
    return Columns(
        np.stack([c.numbers for c in taken], axis=1),
        tuple(c.name for c in taken),
        tuple(c.levels for c in taken),
        tuple(identifiers),
        (*told, *_notes(left, counter), *_kinds(taken)),
    )


def encode(
    frame: DataFrame,
    names: Sequence[str],
    levels: Sequence[tuple[str, ...]],
    clustered: DataFrame | None = None,
) -> np.ndarray:
    """Further rows of a table whose columns have these names and levels, `(M, P)`.

    A level that was not there before is -1. If the table that was clustered is given, numbers must
    have the units that they have there.
    """
    frame, found = _without_commas(_with_plain_cells(frame))[0], _names(frame, True)
    if missing := [name for name in names if found.count(name) != 1]:
        differ = [name for name in found if name not in names]
        raise ValueError(
            f"Expected the columns of the clustered table, each once, but {missing[:5]} are "
            f"missing and {differ[:5]} are unknown"
        )
    values = np.empty((len(frame), len(names)))
    for j, (name, known) in enumerate(zip(names, levels, strict=True)):
        series = frame.iloc[:, found.index(name)]
        if clustered is not None and not known:
            _check_unit(name, series, clustered)
        if known:
            cells = _Cells.of(series)
            values[:, j] = cells.values(_places(cells.texts, known))
        else:
            values[:, j] = _usable(_judge(j, name, series, False, False, "number")).numbers
    return values


def _check_unit(name: str, series: Series[Any], clustered: DataFrame) -> None:
    """Refuse numbers of another unit than those that were clustered; without any they may be."""
    got, known = _unit_of(series), _names(clustered, True)
    if got is None or name not in known:
        return
    wanted = _unit_of(clustered.iloc[:, known.index(name)])
    if got != wanted:
        there = "without a unit" if wanted is None else f"in {wanted!r}"
        raise ValueError(f"Expected column {name!r} {there}, as it was clustered, but got {got!r}")


def _unit_of(series: Series[Any]) -> str | None:
    unit = common_unit(_Cells.of(series).texts) if _is_text(series.dtype) else None
    return None if unit is None else (unit.before + unit.after).strip()


def _places(texts: Sequence[str], levels: tuple[str, ...]) -> list[int]:
    """Which levels cells mean, as text or else as a number; -1 for none.

    Example:
        >>> _places(["A", "B", "01", "True"], ("1", "2", "A"))
        [2, -1, 0, 0]
    """
    place = {level: i for i, level in enumerate(levels)}
    worth = {_worth(level): i for i, level in enumerate(levels)}
    return [place.get(text, worth.get(_worth(text), -1)) for text in texts]


def _worth(text: str) -> float | str:
    number = _floats((text,))
    return text if number is None else float(number[0])


def _with_plain_cells(frame: DataFrame) -> DataFrame:
    """With text for cells that cannot be compared: lists, sets, objects of other libraries."""
    odd = {
        i: [_plain(cell) for cell in frame.iloc[:, i].array]
        for i in range(frame.shape[1])
        if frame.dtypes.iloc[i] == np.dtype(object)
        and any(_plain(cell) is not cell for cell in frame.iloc[:, i].array)
    }
    if not odd:
        return frame
    from pandas import Series

    plain = {i: Series(cells, index=frame.index, dtype=object) for i, cells in odd.items()}
    return _with_columns(frame, plain)


def _with_columns(frame: DataFrame, new: Mapping[int, Series[Any]]) -> DataFrame:
    """With other columns at some positions, whatever these are called."""
    from pandas import DataFrame

    columns = {i: new[i] if i in new else frame.iloc[:, i] for i in range(frame.shape[1])}
    return DataFrame(columns).set_axis(frame.columns, axis=1)


def _without_commas(frame: DataFrame) -> tuple[DataFrame, list[str]]:
    """Numbers with commas as in files, by what all cells say; as they are if that is unclear."""
    with_comma = [
        i
        for i in range(frame.shape[1])
        if _is_text(frame.dtypes.iloc[i]) and _has_comma(frame.iloc[:, i])
    ]
    if not with_comma:
        return frame, []
    beside = [i for i in range(frame.shape[1]) if frame.dtypes.iloc[i].kind == "f"]
    some = frame.iloc[:, with_comma + beside]
    try:
        cells, told = with_plain_numbers(some.astype(str).mask(some.isna(), ""), Marks())
    except Refused:
        return frame, []
    rewritten = {}
    for at, i in enumerate(with_comma):
        column = frame.iloc[:, i]
        is_text = column.map(lambda cell: isinstance(cell, str)).astype(bool)
        rewritten[i] = column.mask(is_text, cells.iloc[:, at])
    return _with_columns(frame, rewritten), told


def _is_text(dtype: Any) -> bool:
    return dtype.kind == "O" and str(dtype) != "category"  # whose cells are there once


def _has_comma(column: Series[Any]) -> bool:
    return any(isinstance(cell, str) and re.search(r"\d,\d", cell) for cell in column.array)


def _plain(cell: Any) -> Any:
    if isinstance(cell, Decimal):  # one that signals cannot even be asked whether it is missing
        return math.nan if cell.is_nan() else cell
    try:
        hash(cell)
    except TypeError:
        return str(cell)
    return cell


def _names(frame: DataFrame, header: bool) -> list[str]:
    if header:
        return [str(name).strip() for name in frame.columns]
    return list(default_names(frame.shape[1]))


def _usable(column: _Column) -> _Column:
    if column.kind in USABLE:
        return column
    if column.kind in ("key", "large", "empty") and not column.bad:
        return replace(column, kind="number")
    if column.kind == "text":
        raise Refused(
            f"column {column.name!r} is not numeric, e.g. {column.bad[0]!r}, and its "
            f"{len(set(column.bad)):,} different values are no categories; leave it out, or see "
            "--categorical"
        )
    raise Refused(f"column {column.name!r} is not numeric, e.g. {column.bad[0]!r}; leave it out")


def _check_values(columns: Sequence[_Column]) -> None:
    for column in columns:
        if np.isinf(column.numbers).any():
            row = int(np.flatnonzero(np.isinf(column.numbers))[0])
            raise Refused(
                f"has an infinite value in row {row + 1}, column {column.name!r}; "
                "replace or remove it"
            )
    if all(np.isnan(column.numbers).all() for column in columns):
        raise Refused("has no values; every cell is missing")


def _nothing(columns: list[_Column], names: Sequence[str]) -> str:
    kinds = {c.kind for c in columns}
    if kinds == {"empty"}:
        return "has no values; every cell is missing"
    if not kinds & {"text", "almost"}:
        listed = ", ".join(c.name for c in columns if c.kind != "empty")
        return f"has no column but those that name the rows ({listed}); name the columns to take"
    example = next(c.bad[0] for c in columns if c.bad)
    return (
        f"has no numeric column and no categories (found {', '.join(names[:6])}; not a number is, "
        f"e.g., {example[:40]!r}); check the delimiter and the lines above the numbers"
    )


# -- one column ------------------------------------------------------------------------------------


def _judge(
    position: int,
    name: str,
    series: Series[Any],
    header: bool,
    is_index: bool,
    said: str,
    marks: Marks | None = None,
) -> _Column:
    """What a column holds; `said` is "number" or "category" if the caller knows."""
    column = _Column(position, name, "number", *_parse(series))
    if series.dtype.kind == "c":  # whose i would pass for a unit
        return replace(column, kind="text")
    if said == "category":
        return _category(column, series, None)
    if said == "number":
        column = _with_unit(column, series, marks)
        column = _with_dates(column, series) if column.bad else column
        return replace(column, kind="almost" if column.bad else "number")
    kind = _kind(column, series, header, is_index)
    if kind == "words":
        return _words(column, series, marks)
    return replace(column, kind=kind)


def _kind(column: _Column, series: Series[Any], header: bool, is_index: bool) -> str:
    numbers = column.numbers
    if column.bad:
        return "words" if not is_index else "key"
    if np.isnan(numbers).all():
        return "empty"
    if is_index or (header and _is_key(numbers, column.name)) or _is_number_of_rows(numbers):
        return "key"
    if _is_beyond_floats(series, numbers):
        return "large"
    if series.dtype.kind == "M":
        return "date"
    is_given = str(series.dtype) in ("bool", "boolean", "category")
    return "words" if is_given else "number"


def _words(column: _Column, series: Series[Any], marks: Marks | None) -> _Column:
    """Cells that are not all numbers: with a unit, dates, categories, or text."""
    if str(series.dtype) not in ("bool", "boolean", "category"):
        for found in (_with_unit(column, series, marks), _with_dates(column, series)):
            if not found.bad:
                return found
        if len(column.bad) < 0.2 * len(series):
            return replace(column, kind="almost")
    return _category(column, series, most=min(MOST_LEVELS, max(2, len(series) // 2)))


class _Cells(NamedTuple):
    """The different cells of a column as text, and which of them every row has, -1 for none."""

    texts: list[str]
    codes: np.ndarray

    @classmethod
    def of(cls, series: Series[Any]) -> _Cells:
        import pandas

        codes, different = pandas.factorize(series, use_na_sentinel=True)
        texts = [_text(value) for value in different.tolist()]
        levels = sorted({text for text in texts if text is not None}, key=_by_value)
        place = {level: i for i, level in enumerate(levels)}
        at = np.array([-1 if text is None else place[text] for text in texts] + [-1])
        return cls(levels, at[codes])

    def values(self, worth: Any) -> np.ndarray:
        """A number for every row, by its text; NaN for none."""
        return np.asarray(np.append(np.asarray(worth, dtype=np.float64), np.nan)[self.codes])


def _text(value: Any) -> str | None:
    """A cell as text, the same for a number whether it is written 3 or 3.0; None if missing."""
    if value is None or value != value or str(value).strip().lower() in MISSING:
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _category(column: _Column, series: Series[Any], most: int | None) -> _Column:
    """Levels, unless there are more than `most` (if that is given), or one, or all different."""
    cells = _Cells.of(series)
    n_levels, n = len(cells.texts), len(series)
    if not n_levels:
        return replace(column, kind="empty")
    if most is not None and (n_levels > most or n_levels in (1, n)):
        return replace(column, kind="text", bad=column.bad or cells.texts)
    codes = cells.values(range(n_levels))
    return replace(column, kind="category", numbers=codes, levels=tuple(cells.texts), bad=[])


def _by_value(level: str) -> tuple[int, float, str]:
    try:
        return 0, float(level), level
    except ValueError:
        return 1, 0.0, level


def _with_codes(columns: list[_Column], said: Mapping[int, str]) -> list[_Column]:
    """Whole numbers that are codes become categories, if other columns are left."""
    codes = [c.kind == "number" and c.position not in said and _is_code(c.numbers) for c in columns]
    if all(is_code or not _varies(c) for c, is_code in zip(columns, codes, strict=True)):
        return columns
    return [
        _category(c, _series(c.numbers), MOST_STREWN) if is_code else c
        for c, is_code in zip(columns, codes, strict=True)
    ]


def _varies(column: _Column) -> bool:
    known = column.numbers[~np.isnan(column.numbers)]
    return bool((known != known[:1]).any())


def _series(numbers: np.ndarray) -> Series[Any]:
    from pandas import Series

    return Series(numbers)


def _is_code(numbers: np.ndarray) -> bool:
    """Few whole numbers, each of them often: up to four, or more with gaps between them.

    Counts leave few places out, and the gaps of many amounts grow (100, 200, 500, 1,000, ...).
    """
    known = numbers[~np.isnan(numbers)]
    if len(known) < FEWEST_CODED or np.any(known != np.round(known)):
        return False
    levels = np.unique(known)
    if len(levels) < 2 or len(levels) > MOST_STREWN or len(known) < FEW * len(levels):
        return False
    if len(levels) <= 4:
        return True
    gaps = np.diff(levels)
    places = 1 + gaps.sum() / np.gcd.reduce(gaps.astype(np.int64))
    if len(levels) <= MOST_CODES:
        return bool(len(levels) < 0.75 * places)
    return bool(len(levels) < 0.3 * places and np.mean(gaps[1:] >= gaps[:-1]) < 0.8)


def _with_unit(column: _Column, series: Series[Any], marks: Marks | None) -> _Column:
    """Numbers that all have the same unit, unless their commas may mean this or that."""
    import pandas

    cells = _Cells.of(series)
    unit = common_unit(cells.texts)
    if unit is None:
        return column
    numbers = pandas.Series(cells.texts, dtype=str).map(bare)
    try:
        marks = marks or meaning_of_commas(numbers.to_frame(), [0] if unit.is_money else [])
        worth = (numbers if marks is None else marks.rewrite(numbers)).astype(float)
    except ValueError:
        return column
    values = cells.values(worth)
    return replace(column, kind="unit", numbers=values, bad=[], unit=unit.before + unit.after)


def _with_dates(column: _Column, series: Series[Any]) -> _Column:
    """Dates as days, unless their days and months may be either."""
    import pandas

    cells = _Cells.of(series)
    if not cells.texts:
        return column
    texts = pandas.Series(cells.texts)
    found = [
        dates
        for form in _date_forms(cells.texts)
        if not (dates := pandas.to_datetime(texts, errors="coerce", utc=True, format=form)).hasnans
    ]
    if len(found) != 1:
        return column
    return replace(column, kind="date", numbers=cells.values(_days(found[0])), bad=[])


def _date_forms(texts: list[str]) -> list[str]:
    """In which dates may be written that look like these."""
    if all(ISO_DATE.match(text) for text in texts):
        return ["ISO8601"]
    if not all(OTHER_DATE.match(text) for text in texts):
        return []
    time = ("", " %H:%M", " %H:%M:%S")[texts[0].count(":")]
    return [order + time for order in DATE_ORDERS]


def _days(dates: Series[Any]) -> np.ndarray:
    """Days since 1970."""
    moments = dates.to_numpy(dtype="datetime64[us]")
    return np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / 86400e6)


def _is_number_of_rows(numbers: np.ndarray) -> bool:
    """Distinct whole numbers that all have the same many digits."""
    if len(numbers) < FEWEST_CODED or not np.isfinite(numbers).all():
        return False
    if np.any(numbers != np.round(numbers)) or numbers.min() < 10 ** (LONG_NUMBER - 1):
        return False
    same_length = np.floor(np.log10(numbers.max())) == np.floor(np.log10(numbers.min()))
    return bool(same_length) and len(np.unique(numbers)) == len(numbers)


def _parse(series: Series[Any]) -> tuple[np.ndarray, list[str]]:
    """Numbers with NaN for missing, and the cells that are neither."""
    import pandas

    if isinstance(series.dtype, pandas.CategoricalDtype):  # each of its values once
        each, codes = series.cat.categories, series.cat.codes.to_numpy()
        numbers, bad = _parse(each.to_series())
        is_bad = np.isnan(numbers) & np.array([_text(value) is not None for value in each], bool)
        at = np.where(codes < 0, len(each), codes)  # a gap is none of them
        n_bad = int(np.append(is_bad, False)[at].sum())
        return np.append(numbers, np.nan)[at], bad[:1] * n_bad
    if series.dtype.kind in "biuf":
        return series.to_numpy(dtype=np.float64, na_value=np.nan), []
    if series.dtype.kind == "M":
        return _days(series), []
    if series.dtype.kind == "m":
        return series.dt.total_seconds().to_numpy(dtype=np.float64) / 86400.0, []
    cells = series.astype(str).str.strip().str.replace("\u2212", "-")
    missing = cells.str.lower().isin(MISSING).to_numpy() | series.isna().to_numpy()
    numbers = pandas.to_numeric(cells.mask(missing), errors="coerce").to_numpy(dtype=np.float64)
    is_bad = np.isnan(numbers) & ~missing
    return numbers, cells.to_numpy()[is_bad].tolist()


def _is_beyond_floats(series: Series[Any], numbers: np.ndarray) -> bool:
    """Whole numbers, written as such, some of which floats cannot tell from their neighbours."""
    if not (np.abs(numbers) > LARGEST_WHOLE).any():
        return False
    if series.dtype.kind in "iu":
        return True
    if series.dtype.kind == "f":
        return False
    cells = series.astype(str).str.strip()
    return bool((cells.str.fullmatch(r"[+-]?\d+") | np.isnan(numbers)).all())


def _is_key(values: np.ndarray, name: str) -> bool:
    """Distinct whole numbers in a column that is called an id."""
    called = re.search(r"(^|[_ .-])id$", name.lower()) or re.search(r"[a-z](Id|ID)$", name)
    if not called or len(values) < FEW or not np.isfinite(values).all():
        return False
    return bool((values == np.round(values)).all()) and len(np.unique(values)) == len(values)


def _without_counter(columns: list[_Column], header: bool) -> tuple[list[_Column], _Column | None]:
    """Without a first column that only numbers the rows."""
    first = columns[0] if len(columns) > 1 else None
    if first is None or not _counts_rows(first.numbers, first.name, header):
        return columns, None
    return columns[1:], first


def _counts_rows(values: np.ndarray, name: str, header: bool) -> bool:
    """Consecutive integers from 0 or 1, in a column whose name (if any) says nothing else."""
    if len(values) < FEW or values[0] not in (0.0, 1.0) or np.any(np.diff(values) != 1.0):
        return False
    plain = name.lower().strip("# ._")
    return not header or plain.startswith("unnamed") or plain in (
        "", "id", "index", "row", "rowid", "row_id", "no", "nr", "number", "obs", "rownames",
    )  # fmt: skip


def _names_rows(column: _Column, frame: DataFrame) -> bool:
    """Whether a column that is not clustered by goes along with the results."""
    if column.kind in ("key", "large"):
        return True
    series = frame.iloc[:, column.position]
    if column.kind != "text" or len(column.bad) < len(series) or not series.is_unique:
        return False
    return max(map(len, column.bad)) <= LONGEST_NAME


# -- words -----------------------------------------------------------------------------------------


def _notes(columns: list[_Column], counter: _Column | None) -> Iterator[str]:
    for c in columns:
        if c.kind == "key":
            yield (
                f"Column {c.name!r} only names the rows and was left out; name the columns to take "
                "if it is a measurement."
            )
        elif c.kind == "large":
            yield (
                f"Column {c.name!r} has whole numbers beyond 2^53, which name rows rather than "
                "measure them, and was left out; name the columns to take if it is a measurement."
            )
        elif c.kind == "almost":
            yield (
                f"Column {c.name!r} was left out: {len(c.bad)} of {len(c.numbers)} values are not "
                f"numbers, e.g. {c.bad[0]!r}."
            )
    for what, kind in (("that are not numeric", "text"), ("without values", "empty")):
        left_out = [c.name for c in columns if c.kind == kind]
        if left_out:
            listed = ", ".join(left_out[:6]) + (", ..." if len(left_out) > 6 else "")
            yield f"Columns {what} were left out: {listed}."
    if counter is not None and columns:
        yield f"Column {counter.name!r} only numbers the rows and was left out."


def _kinds(columns: Sequence[_Column]) -> Iterator[str]:
    """What columns were taken as, where that is not plain."""
    for kind, what in (("category", "categories"), ("date", "dates, in days")):
        named = [c.name for c in columns if c.kind == kind]
        if named:
            listed = ", ".join(named[:6]) + (", ..." if len(named) > 6 else "")
            yield f"{TAKEN}{what}: {listed}."
    for c in columns:
        if c.kind == "unit":
            yield f"Column {c.name!r} was read as numbers of {c.unit!r}."
