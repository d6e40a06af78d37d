"""Tables whose rows were copied, as by drawing with replacement: each different row counts once.

A copy says nothing new, but many of them in one place are a cluster to any density. Rows of rounded
numbers may also be equal without being copies; then columns have far fewer different numbers than
there are different rows. So rows count as copied if half of them or more repeat others and two
columns or more have a number for every other different row at least.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int64

from ncp.clustering.result import Clustering
from ncp.output.columns import Columns
from ncp.output.words import copies_sentence

__all__ = ["Copies"]

LEAST_COLUMNS = 2  # a single column of few numbers is a rounded one


@dataclass(frozen=True, eq=False)
class Copies:
    """Which rows of a table are copies of which.

    Attributes:
        columns: The table.
        first: The rows that are the first of their kind, `(n,)`.
        of: Which of these each row equals, `(N,)`.
    """

    columns: Columns
    first: Int64[np.ndarray, " n"]
    of: Int64[np.ndarray, " N"]

    @classmethod
    def among(cls, columns: Columns) -> Copies | None:
        """Those of a table, if its rows were copied.

        Example:
            >>> rows = np.repeat(np.random.default_rng(0).normal(size=(5, 2)), 3, axis=0)
            >>> found = Copies.among(Columns(rows, ("a", "b"), ((), ())))
            >>> found.first, found.of[:4]
            (array([ 0,  3,  6,  9, 12]), array([0, 0, 0, 1]))
        """
        rows = columns.values.reshape(len(columns), -1)
        numbers = rows[:, ~columns.categorical]
        n_different = [len(np.unique(column)) for column in numbers.T]
        if len(n_different) < LEAST_COLUMNS or max(n_different) > len(rows) / 2:
            return None
        _, first, of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        enough = np.sort(n_different)[-LEAST_COLUMNS] >= len(first) / 2
        if len(first) > len(rows) / 2 or len(first) == 1 or not enough:
            return None
        order = np.argsort(first)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return cls(columns, first[order], place[of.reshape(-1)])

    @property
    def different(self) -> Columns:
        """The table with each different row once."""
        return replace(self.columns, values=self.columns.values[self.first])

    def all_rows(self, found: Clustering) -> Clustering:
        """The clustering of all rows from that of the different ones."""
        return replace(
            found,
            table=self.columns.values,
            labels=found.labels[self.of],
            confidence=found.confidence[self.of],
            index=self.first[found.index],
            samples=found.samples[:, self.of],
            notes=(copies_sentence(len(self.of) - len(self.first)), *found.notes),
        )
