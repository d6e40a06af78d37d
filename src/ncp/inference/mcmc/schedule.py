"""What is run and what is kept of a chain, and the random numbers of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil

import numpy as np

__all__ = ["Progress", "Schedule", "check_at_least", "spawn_generators"]

Progress = Callable[[int, int], object]


class Schedule:
    """What is run and what is kept."""

    def __init__(self, n_sweeps: int, burn_in: int, thin: int):
        check_at_least("thin", thin, 1)
        check_at_least("the number of sweeps or steps", n_sweeps, thin)
        check_at_least("burn_in", burn_in, 0)
        self.n_draws, self.burn_in, self.thin = n_sweeps // thin, burn_in, thin
        self.total = burn_in + self.n_draws * thin

    def blocks(self) -> Iterator[tuple[int, slice]]:
        """Burn-in sweeps and rows of the result, about fifty blocks: the pace of progress.

        They depend on nothing else, so that a run is the same with and without progress.
        """
        length = max(100, ceil(self.total / 50))
        for done in range(0, self.burn_in, length):
            yield min(length, self.burn_in - done), slice(0, 0)
        rows = max(1, length // self.thin)
        for first in range(0, self.n_draws, rows):
            yield 0, slice(first, min(first + rows, self.n_draws))


def check_at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or int(value) != value or value < least:
        raise ValueError(f"Expected {name} to be an integer >= {least} but got {value}")


def spawn_generators(seed: int | None, n: int) -> list[np.random.Generator]:
    check_at_least("n_chains", n, 1)
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(n)]
