"""Text to columns of cells: the delimiter, the header, and what commas and points in numbers mean.

The delimiter is the one that cuts the first lines alike, into the most numbers; a first line with
words of its own is a header. A comma in a number is a decimal point in half the world and separates
thousands in the other. One cell can say which:

    1,5   0,125   1.234,5     decimals: nobody writes thousands like that
    1,234,567   1,234.5       thousands
    0.5   12.25   1e5         the point is the decimal point, so commas are thousands
    1,234                     could be either

    1.234.567                 points are thousands, if the whole column is written like that

and so can whole numbers below a thousand in one column with the last kind, which are thousands
then. Cells of the last kind without any witness in the file are refused, not guessed. Numbers of a
column with a unit (`1,5 kg`, `$1,200`) are numbers like others. If nothing but money (`$1,200`) is
unclear, its commas are thousands, as hardly anyone writes a thousandth of a dollar; its points
(`1.200 €`) may be either, as computers write decimals so, and are refused.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ncp.files import Refused

if TYPE_CHECKING:
    from pandas import DataFrame, Series

__all__ = [
    "MISSING",
    "PLAIN",
    "Marks",
    "Unit",
    "bare",
    "common_unit",
    "counts_columns",
    "has_header",
    "load_text",
    "meaning_of_commas",
    "with_plain_numbers",
]

MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "-", ".", "#n/a", "<na>", "missing")
DELIMITERS = ",;\t|"
FIRST_LINES = 50  # that the delimiter and the header are told from

SIGN, EXPONENT = r"[+-]?", r"([eE][+-]?\d+)?"
WHOLE = re.compile(rf"{SIGN}\d+")
COMMA_GROUPS = rf"{SIGN}[1-9]\d{{0,2}}(,\d{{3}})+(\.\d*)?"
POINT_GROUPS = rf"{SIGN}[1-9]\d{{0,2}}(\.\d{{3}})+(,\d*)?"
COMMA_DECIMAL = rf"{SIGN}(\d+,\d*|,\d+){EXPONENT}"
POINT_DECIMAL = rf"{SIGN}(\d+\.\d*|\.\d+){EXPONENT}"
SURE_COMMA_GROUPS = rf"{SIGN}[1-9]\d{{0,2}}((,\d{{3}}){{2,}}(\.\d*)?|,\d{{3}}\.\d*)"
SURE_POINT_GROUPS = rf"{SIGN}[1-9]\d{{0,2}}(\.\d{{3}})+,\d*"
MANY_POINTS = rf"{SIGN}[1-9]\d{{0,2}}(\.\d{{3}}){{2,}}"
EITHER = rf"{SIGN}[1-9]\d{{0,2}},\d{{3}}"
EITHER_POINT = rf"{SIGN}[1-9]\d{{0,2}}\.\d{{3}}"
MONEY = "$€£¥"
BETWEEN_THOUSANDS = re.compile(r"(?<=\d)([\u00a0\u202f](?=\d)|['\u2019](?=\d{3}(?!\d)))")
MINUS = re.compile(r"(?<!\w)\u2212(?=[.,]?\d)")
UNIT = re.compile(rf"([{MONEY}]?)\s*({SIGN}[\d.,]*\d[\d.,]*)\s*([%°A-Za-zµ²³/{MONEY}]{{0,8}})")


@dataclass(frozen=True)
class Marks:
    """What stands between the digits of a number.

    Args:
        decimal: The decimal point, `"."` or `","`; None to tell it from the file.
        thousands: Between groups of three digits: `","`, `"."`, `"'"` or `" "`; None for none, or
            to tell it from the file.
    """

    decimal: str | None = None
    thousands: str | None = None

    def __post_init__(self) -> None:
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"Expected decimal '.' or ',' but got {self.decimal!r}")
        if self.thousands not in (None, ",", ".", "'", " "):
            raise ValueError(
                f"Expected thousands ',', '.', an apostrophe or a space but got {self.thousands!r}"
            )
        if self.decimal is not None and self.decimal == self.thousands:
            raise ValueError(
                f"Expected decimal and thousands to differ but both are {self.decimal!r}"
            )

    @property
    def said(self) -> bool:
        """Whether the caller has said anything."""
        return self.decimal is not None or self.thousands is not None

    def completed(self) -> Marks:
        """With the other one, as people use them together."""
        other = {",": ".", ".": ","}
        if self.decimal is None:
            return Marks(other.get(self.thousands or "", "."), self.thousands)
        return Marks(self.decimal, self.thousands or other[self.decimal])

    def rewrite(self, cells: Series[str]) -> Series[str]:
        """Numbers as computers write them; other cells stay as they are."""
        marks = self.completed()
        assert marks.decimal is not None
        group = re.escape(marks.thousands or ",")
        point = re.escape(marks.decimal)
        grouped = rf"{SIGN}[1-9]\d{{0,2}}({group}\d{{3}})+({point}\d*)?"
        plain = rf"{SIGN}(\d+{point}\d*|{point}\d+){EXPONENT}"
        is_grouped, is_plain = cells.str.fullmatch(grouped), cells.str.fullmatch(plain)
        cells = cells.mask(is_grouped, cells.str.replace(marks.thousands or ",", "", regex=False))
        return cells.mask(is_grouped | is_plain, cells.str.replace(marks.decimal, ".", regex=False))


THOUSANDS, DECIMAL = Marks(".", ","), Marks(",", ".")
PLAIN = Marks(".")  # of what `load_text` returns


def load_text(content: bytes, marks: Marks) -> tuple[DataFrame, bool, list[str]]:
    """A frame of strings; whether its columns have names of their own; what was done.

    Args:
        content: The file.
        marks: Of its numbers, if the caller has said them.
    """
    lines = _lines(_decode(content))
    delimiter = _delimiter(lines[:FIRST_LINES])
    cut = [_cut(line, delimiter) for line in lines[:FIRST_LINES] if line.strip()]
    if max(map(len, cut)) == 1:  # a blank line is a missing value
        full = sum(1 for line in lines if line.strip())
        lines = [line or '""' for line in lines] if full > 0.5 * len(lines) else lines
    header = has_header(cut)
    text = "\n".join(line for line in lines if line.strip())
    told = [] if header else ["The first line has no names, so it was taken as a row."]
    frame = _frame(text, delimiter, header)
    if len(frame) == 0:
        raise Refused("has a header but no rows")
    commas = ('"' if delimiter == "," else ",") in text
    if not marks.said and not commas and not re.search(rf"\d\.\d{{3}}\.\d{{3}}|[{MONEY}]", text):
        return frame, header, told  # no cell has a comma, or two points, or is money
    frame, notes = with_plain_numbers(frame, marks)
    return frame, header, [*notes, *told]


def _lines(text: str) -> list[str]:
    """Without remarks at the top and blank lines at both ends."""
    every = text.replace("\r\n", "\n").replace("\r", "\n").strip("\n").split("\n")
    start = 0
    while start < len(every) and (
        every[start].startswith("#") or re.fullmatch(r"sep=.", every[start].strip())
    ):
        start += 1  # remarks, and what a spreadsheet says to itself
    lines = [line if line.strip() else "" for line in every[start:]]
    if not any(lines):
        raise Refused("is empty; a table needs at least one row of numbers")
    first = next(i for i, line in enumerate(lines) if line)
    return lines[first:]


def _frame(text: str, delimiter: str, header: bool) -> DataFrame:
    import pandas

    try:
        with warnings.catch_warnings():
            # pandas only warns when it drops cells of lines that are too long
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            frame = pandas.read_csv(
                io.StringIO(text),
                sep=r"\s+" if delimiter == " " else delimiter,
                header=0 if header else None,
                dtype=str,
                keep_default_na=False,
                index_col=False,
                skipinitialspace=True,
            )
    except (pandas.errors.ParserError, pandas.errors.ParserWarning, ValueError) as error:
        _check_width(text, delimiter, header)
        raise Refused(f"is not a regular table: {one_line(error)}") from None
    if (frame.iloc[:, -1] == "").any():  # empty, or not there at all
        _check_width(text, delimiter, header)
    return frame


def _check_width(text: str, delimiter: str, header: bool) -> None:
    """Refuse rows that are longer or shorter than the first, which pandas cuts or fills up."""
    try:
        rows = _rows(io.StringIO(text), delimiter)
        width = len(next(rows, []))
        for number, row in enumerate(rows, 1 if header else 2):
            if len(row) > width:
                first = "the header" if header else "the first"
                raise Refused(
                    f"is not a regular table: row {number} has {len(row)} cells where {first} has "
                    f"{width}; check the delimiter, commas in numbers, and lines above the names"
                )
            if 0 < len(row) < width:
                raise Refused(
                    f"is not a regular table: row {number} has {len(row)} cells where others have "
                    f"{width}; is the file complete? If the last ones are empty, write NA in them"
                )
    except csv.Error as error:
        raise Refused(f"is not a regular table: {error}") from None


def _rows(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    """The cells of every row, which may be several lines."""
    if delimiter == " ":
        return map(str.split, lines)
    return csv.reader(lines, delimiter=delimiter, skipinitialspace=True)


def one_line(error: Exception) -> str:
    """What an error of a parser says, short."""
    said = " ".join(str(error).split())
    return said.removeprefix("Error tokenizing data. C error: ")[:200]


# -- characters ------------------------------------------------------------------------------------


def _decode(content: bytes) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
    else:
        encoding = "utf-8-sig"
        if b"\x00" in content[:65536]:
            raise Refused("is a binary file of no known kind")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = content.decode("cp1252", errors="replace")
    start = text[:65536]
    if sum(_is_odd(character) for character in start) > 0.02 * len(start):
        raise Refused("is a binary file of no known kind")
    return MINUS.sub("-", BETWEEN_THOUSANDS.sub("", text))


def _is_odd(character: str) -> bool:
    """Whether a character does not belong in a text."""
    control = unicodedata.category(character) in ("Cc", "Cn", "Co", "Cs")
    return character == "\ufffd" or (control and character not in "\r\n\t")


# -- lines -----------------------------------------------------------------------------------------


def _cut(line: str, delimiter: str) -> list[str]:
    if delimiter not in line and '"' not in line:
        return [line.strip(" ")]  # of ten thousand columns it would be too long for one cell
    try:
        return next(_rows([line], delimiter), [""])
    except csv.Error as error:
        raise Refused(f"is not a regular table: {error}") from None


def _delimiter(lines: Sequence[str]) -> str:
    """The delimiter that cuts the first lines alike, into the largest share of numbers.

    Example:
        >>> _delimiter(["0,13;2", "1,5;0,25"])
        ';'
    """
    best, highest = ",", (-1.0, 0)
    lines = [line for line in lines if line.strip()]
    for delimiter in (*DELIMITERS, " "):
        rows = [_cut(line, delimiter) for line in lines]
        width = len(rows[0])
        if width == 1 or any(len(row) != width for row in rows):
            continue
        numbers = [_is_number(cell) for row in rows for cell in row]
        score = sum(numbers) / len(numbers), width
        if score > highest:
            best, highest = delimiter, score
    if highest[1] == 0:  # ragged lines: the most frequent, so that the error is about them
        counts = {d: sum(line.count(d) for line in lines) for d in DELIMITERS}
        best = max(counts, key=lambda d: counts[d]) if max(counts.values()) else ","
    return best


def has_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns.

    It does without a number in it, unless all of its words are there again below; with a word above
    numbers; and with a new word where its numbers are whole and those below are not, if there are
    two, or the words below are of few kinds. Columns may be numbered, too (`counts_columns`).

    Example:
        >>> has_header([["5.1", "setosa"], ["4.9", "setosa"]])
        False
        >>> has_header([["size", "2"], ["4.9", "3.0"]])
        True
        >>> has_header([["country", "2019", "2020"], ["fr", "0.5", "1.5"], ["de", "0.7", "1.2"]])
        True
    """
    first = [cell.strip() for cell in rows[0]]
    below = [[row[i].strip() for row in rows[1:] if i < len(row)] for i in range(len(first))]
    is_number = [cell != "" and _is_number(cell) for cell in first]
    words = [i for i, cell in enumerate(first) if cell and not is_number[i]]
    if not any(is_number):
        return not words or not all(first[i] in below[i] for i in words)
    if counts_columns(rows):
        return True
    if any(below[i] and sum(map(_is_number, below[i])) > 0.5 * len(below[i]) for i in words):
        return True
    new = [i for i in words if below[i] and first[i] not in below[i]]
    numbers = [i for i, found in enumerate(is_number) if found]
    enough = new if len(numbers) > 1 else [i for i in new if _repeats(below[i])]
    return bool(enough) and all(_is_above_decimals(first[i], below[i]) for i in numbers)


def _repeats(cells: Sequence[str]) -> bool:
    """Whether cells are of few kinds."""
    return 3 * len(set(cells)) <= len(cells)


def _is_above_decimals(cell: str, below: Sequence[str]) -> bool:
    """Whether a whole number stands above others that are not whole."""
    decimals = sum(not WHOLE.fullmatch(other) for other in below)
    return WHOLE.fullmatch(cell) is not None and decimals > 0.95 * len(below)


def counts_columns(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row numbers the columns: 0, 1, 2 or 2019, 2020 above decimals.

    Frames without names are written so, often with an empty cell above the numbers of the rows.

    Example:
        >>> counts_columns([["", "0", "1"], ["0", "7", "5"], ["1", "8", "3"]])
        True
        >>> counts_columns([["2019", "2020"], ["0.5", "1.25"]]), counts_columns([["1"], ["0.5"]])
        (True, False)
        >>> counts_columns([["1", "2"], ["3", "4"]])
        False
    """
    first, others = [cell.strip() for cell in rows[0]], rows[1:]
    if not others or any(len(row) != len(first) for row in rows):
        return False
    if not any(first):
        return True
    numbered = first[0] == "" and all(
        row[0].strip() in (str(i), str(i + 1)) for i, row in enumerate(others)
    )
    names = first[1:] if first[0] == "" else first
    if not all(re.fullmatch(r"\d{1,9}", name) for name in names):
        return False
    steps = {int(b) - int(a) for a, b in pairwise(names)}
    if numbered:
        return steps <= {1}
    cells = [cell for row in others for cell in row[len(first) - len(names) :]]
    decimals = sum(not WHOLE.fullmatch(cell.strip()) for cell in cells)
    return steps == {1} and first[0] != "" and decimals > 0.95 * len(cells)


def _is_number(cell: str) -> bool:
    """Whether a cell is a number or missing, by any marks."""
    cell = cell.strip()
    if cell.lower() in MISSING:
        return True
    if re.fullmatch(f"{COMMA_GROUPS}|{POINT_GROUPS}|{COMMA_DECIMAL}", cell):
        return True
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


# -- commas and points -----------------------------------------------------------------------------


def with_plain_numbers(frame: DataFrame, marks: Marks) -> tuple[DataFrame, list[str]]:
    """Cells of text with numbers as computers write them, and what was taken for what."""
    frame = frame.apply(lambda column: column.str.strip())
    names, frame = frame.columns, frame.set_axis(range(frame.shape[1]), axis=1)
    every = range(frame.shape[1])
    units = {i: unit for i in every if (unit := common_unit(set(frame[i])))}
    original = frame.copy()
    for i in units:
        frame[i] = frame[i].map(bare)
    money = [i for i, unit in units.items() if unit.is_money]
    found = marks if marks.said else meaning_of_commas(frame, money)
    notes: list[str] = []
    if found is not None:
        frame = frame.apply(found.rewrite)
        notes += [] if marks.said else [_meaning(found)]
    for i in units:
        frame[i] = [_with_number(*cells) for cells in zip(original[i], frame[i], strict=True)]
    return frame.set_axis(names, axis=1), notes


def _meaning(marks: Marks) -> str:
    if marks == THOUSANDS:
        return "Commas in numbers were read as separators of thousands."
    return "Commas in numbers were read as decimal points, points as separators of thousands."


@dataclass(frozen=True)
class Unit:
    """What stands before and after all numbers of a column."""

    before: str
    after: str

    @property
    def is_money(self) -> bool:
        """Whether it is nothing but a currency."""
        return (self.before + self.after).strip(MONEY) == ""


def bare(cell: str) -> str:
    """The number of a cell without its unit; other cells as they are.

    Example:
        >>> bare("1,5 kg"), bare("NA")
        ('1,5', 'NA')
    """
    match = UNIT.fullmatch(cell)
    return cell if match is None else match[2]


def _with_number(cell: str, number: str) -> str:
    """A cell with another number, and otherwise to the letter as it was: it may be a name."""
    match = UNIT.fullmatch(cell)
    return cell if match is None else cell[: match.start(2)] + number + cell[match.end(2) :]


def common_unit(texts: Iterable[str]) -> Unit | None:
    """The unit that all cells have which are not missing, if they are numbers but for that.

    Example:
        >>> common_unit(["$1,200", "$7", ""])
        Unit(before='$', after='')
        >>> common_unit(["1 kg", "2 m"])
    """
    found = {UNIT.fullmatch(text.strip()) for text in texts if text.strip().lower() not in MISSING}
    units = {None if match is None else (match[1], match[3]) for match in found}
    unit = units.pop() if len(units) == 1 else None
    return None if unit is None or unit == ("", "") else Unit(*unit)


def meaning_of_commas(frame: DataFrame, money: Sequence[int] = ()) -> Marks | None:
    """The marks of a file's numbers, by all of its cells; None if no number needs any.

    Args:
        frame: The cells, without units.
        money: Positions of the columns whose unit is a currency.

    Example:
        >>> from pandas import DataFrame
        >>> meaning_of_commas(DataFrame({"a": ["1,5", "0,25", "3"]})).decimal
        ','
        >>> meaning_of_commas(DataFrame({"a": ["1,234", "2,500"], "b": ["0.5", "1.125"]})).decimal
        '.'
        >>> meaning_of_commas(DataFrame({"a": ["1,234", "2,500"]}))
        Traceback (most recent call last):
        ...
        ncp.files.Refused: has numbers such as '1,234', whose comma may stand for decimals ...
    """
    columns = [frame.iloc[:, i] for i in range(frame.shape[1])]
    with_comma = [c for c in columns if c.str.contains(r"\d,|,\d", regex=True).any()]
    with_comma += [c for c in columns if _has_many_points(c)]
    thousands = any(_is_grouped(c) for c in with_comma)
    decimal = any(_is_decimal(c) for c in with_comma)
    points = any(_has_points(c) for c in columns)
    either = {i: found for i, c in enumerate(columns) if (found := _first(c, EITHER))}
    either_point = {i: found for i, c in enumerate(columns) if (found := _first(c, EITHER_POINT))}
    coins = [] if points else [either_point[i] for i in money if i in either_point]
    if not (thousands or decimal or either or coins):
        return None  # commas in text, or none
    if (decimal and thousands) or (decimal and points and (either or either_point)):
        raise Refused(
            "has both decimal commas and decimal points or separators of thousands; say which "
            "with --decimal and --thousands"
        )
    if decimal:
        return DECIMAL
    only_money = not coins and either.keys() <= set(money)
    if thousands or points or only_money:
        return THOUSANDS
    raise _unclear(next(iter([*either.values(), *coins])))


def _first(column: Series[str], pattern: str) -> str:
    """The first cell that is written so; empty if none is."""
    return str(next(iter(column[column.str.fullmatch(pattern)]), ""))


def _unclear(example: str) -> Refused:
    name, mark = ("comma", ",") if "," in example else ("point", ".")
    return Refused(
        f"has numbers such as {example!r}, whose {name} may stand for decimals or thousands; say "
        f"which with --decimal {mark} or --thousands {mark}"
    )


def _is_grouped(column: Series[str]) -> bool:
    """Whether commas of a column must separate thousands."""
    if column.str.fullmatch(SURE_COMMA_GROUPS).any():
        return True
    whole = column.str.fullmatch(rf"{SIGN}\d+")
    small = column.str.fullmatch(rf"{SIGN}\d{{1,3}}")
    beside = bool(whole.any()) and bool((small | ~whole).all())
    return beside and bool(column.str.fullmatch(EITHER).any())


def _is_decimal(column: Series[str]) -> bool:
    """Whether a comma of a column must be a decimal point."""
    grouped = column.str.fullmatch(COMMA_GROUPS)
    decimal = column.str.fullmatch(COMMA_DECIMAL) & ~grouped
    sure = decimal | column.str.fullmatch(SURE_POINT_GROUPS)
    return bool(sure.any()) or _has_many_points(column)


def _has_many_points(column: Series[str]) -> bool:
    """Whether points of a column must separate thousands, as it has nothing but such numbers."""
    number = column.str.fullmatch(rf"{POINT_GROUPS}|{SIGN}\d{{1,3}}")
    every = number | column.str.lower().isin(MISSING)
    return bool(column.str.fullmatch(MANY_POINTS).any()) and bool(every.all())


def _has_points(column: Series[str]) -> bool:
    """Whether a point of a column must be a decimal point."""
    point = column.str.fullmatch(POINT_DECIMAL) & ~column.str.fullmatch(EITHER_POINT)
    return bool(point.any())
