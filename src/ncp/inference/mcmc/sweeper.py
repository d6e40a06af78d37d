"""What advances the states of several chains, sweep by sweep.

The sweepers of the package's own likelihoods hand each chain to a compiled kernel. Those for a
user's own likelihood run through its methods: slower, but with nothing to write beyond it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import numpy as np

__all__ = ["Apply", "ChainSweeper", "Rngs", "Sweeper", "Sweeps"]

Rngs = list[np.random.Generator]
Apply = Callable[[Callable[[int], None], Iterable[int]], Iterable[None]]


class Sweeps(NamedTuple):
    """How many sweeps to run and where to write them.

    Attributes:
        burn_in: sweeps not kept.
        thin: sweeps a draw after them.
        labels: of shape (chains, draws, N), or (draws, N) for one chain.
        log_joint: of shape (chains, draws), or (draws,).
    """

    burn_in: int
    thin: int
    labels: np.ndarray
    log_joint: np.ndarray

    @property
    def total(self) -> int:
        return self.burn_in + self.thin * int(self.log_joint.shape[-1])

    def row(self, sweep: int) -> int | None:
        """Where the state after this sweep is written, if at all."""
        row, rest = divmod(sweep + 1 - self.burn_in, self.thin)
        return row - 1 if row > 0 and rest == 0 else None

    def chain(self, chain: int) -> Sweeps:
        return self._replace(labels=self.labels[chain], log_joint=self.log_joint[chain])


class Sweeper(ABC):
    """What a run needs: the state of some chains, made from labels, and sweeps of it.

    Attributes:
        point_rate: how many points it assigns in a second, roughly: how often to look at the clock.
    """

    point_rate: ClassVar[float] = 1e4

    @abstractmethod
    def start(self, labels: np.ndarray, rngs: Rngs) -> Any:
        """A state at labels of shape (chains, N); -1 means not assigned yet."""

    @abstractmethod
    def run(self, state: Any, sweeps: Sweeps, rngs: Rngs, apply: Apply = map) -> None:
        """Advance the state. `apply` may run several chains at the same time."""

    def move(self, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Each row of canonical labels (R, N) after one sweep of its own."""
        rngs = [rng] * len(labels)  # one row after the other: a generator will do for all
        after, log_joint = np.empty_like(labels)[:, None], np.empty((len(labels), 1))
        self.run(self.start(labels, rngs), Sweeps(0, 1, after, log_joint), rngs)
        return after[:, 0]

    def acceptance(self, state: Any) -> np.ndarray | None:
        """The share of accepted moves of each chain, (chains,), if any can be rejected."""
        return None


class ChainSweeper(Sweeper):
    """A sweeper that knows one chain at a time, compiled."""

    point_rate: ClassVar[float] = 1e6

    def start_chain(self, labels: np.ndarray, rng: np.random.Generator) -> Any:
        return labels.copy()

    @abstractmethod
    def run_chain(self, state: Any, sweeps: Sweeps, rng: np.random.Generator) -> None: ...

    def start(self, labels: np.ndarray, rngs: Rngs) -> list[Any]:
        return [self.start_chain(row, rng) for row, rng in zip(labels, rngs, strict=True)]

    def run(self, state: list[Any], sweeps: Sweeps, rngs: Rngs, apply: Apply = map) -> None:
        def run_chain(chain: int) -> None:
            self.run_chain(state[chain], sweeps.chain(chain), rngs[chain])

        for _ in apply(run_chain, range(len(state))):
            pass
