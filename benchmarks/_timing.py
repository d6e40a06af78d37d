"""What the scripts share: the spread of repeated turns, and the lines that say what is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

LOST = "**Lost:** "  # `__main__` collects the lines that begin so


@dataclass(frozen=True)
class Spread:
    """Median, least and largest of several turns, or of a ratio of two such."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, turns: Sequence[float]) -> Spread:
        return cls(median(turns), min(turns), max(turns))

    def __mul__(self, factor: float) -> Spread:
        return Spread(self.middle * factor, self.low * factor, self.high * factor)

    def __truediv__(self, other: Spread) -> Spread:
        """The ratio of the medians, and the widest range: least by largest, largest by least."""
        return Spread(self.middle / other.middle, self.low / other.high, self.high / other.low)

    def __format__(self, spec: str) -> str:
        three = (self.middle, self.low, self.high)
        middle, low, high = (format(x, spec) if spec else short(x) for x in three)
        return middle if low == middle == high else f"{middle} ({low} to {high})"


def clock_for(threads: int) -> Callable[[], float]:
    """CPU seconds of a single thread, which mean something on a busy machine too; else seconds."""
    return time.process_time if threads == 1 else time.perf_counter


def short(x: float) -> str:
    """Two digits, or all before the point."""
    return f"{x:,.0f}" if 10 <= x < 1e5 else f"{x:.2g}"


def lost(lines: Iterable[str]) -> None:
    """Print what was not reached, at the end of a script."""
    for line in lines:
        print(f"\n{LOST}{line}")
