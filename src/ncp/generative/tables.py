"""Random tables with known clusters, as a model that a network can be trained on.

`TabularMixture` draws tables (`ncp.generative.table_prior`), passes them through the *same*
preprocessing as a user's table (`ncp.generative.table_transform`), and merges clusters that nobody
could tell apart (`ncp.generative.table_merge`). The network thus learns to split what can be split,
and no more. `TabularMixture.unusualness` says in words how odd a table is under the prior.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ncp.generative.model import Batch, GenerativeModel, check_sizes
from ncp.generative.priors import numpy_generator
from ncp.generative.table_merge import merge_confused
from ncp.generative.table_prior import RawTable, TablePrior, draw_table
from ncp.generative.table_rounding import unrounded
from ncp.generative.table_transform import FittedTransform, TabularTransform
from ncp.generative.unusual import Unusualness, compare, describe, summary_statistics
from ncp.partitions import canonical

__all__ = ["TabularMixture"]

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class TabularMixture(GenerativeModel):
    """The prior over tables, after preprocessing: what the model `tabular` is trained on.

    A data set is a random table (see `table_prior`), its features y = transform(table), and
    its labels, where clusters that nobody could tell apart in y share one (`merge_confused`,
    with a limit drawn uniformly from `overlap` for every data set).

    Args:
        sizes: the smallest and the largest number of rows.
        tables: the knobs of the simulator.
        transform: the preprocessing, the same for users' tables.
        overlap: range of the limit of confusion beyond which clusters are merged.
        again: probability of drawing a table again when all, or more than half, of its clusters
            were merged.
        reference: quantiles of summary statistics, from `with_reference`, and, once a network was
            measured, its `agreement`: of sizes, (rows, promised, measured), and its `confidence`:
            of sizes, (rows, log odds to add); may be empty.

    Example:
        >>> mixture = TabularMixture()
        >>> batch = mixture.sample(3, n_points=40, generator=torch.Generator().manual_seed(0))
        >>> batch.x.shape, batch.labels.shape
        (torch.Size([3, 40, 16]), torch.Size([3, 40]))
        >>> TabularMixture.from_dict(mixture.to_dict()) == mixture
        True
    """

    sizes: tuple[int, int] = (5, 1000)
    tables: TablePrior = field(default_factory=TablePrior)
    transform: TabularTransform = field(default_factory=TabularTransform)
    overlap: tuple[float, float] = (0.24, 0.3)
    again: float = 0.8
    reference: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        low, high = self.overlap
        if not 0.0 <= low <= high <= 1.0:
            raise ValueError(f"Expected 0 <= low <= high <= 1 for overlap but got {self.overlap}")
        if not 0.0 <= self.again < 1.0:
            raise ValueError(f"Expected 0 <= again < 1 but got {self.again}")
        for _, *shares in self.reference.get("agreement", ()):
            if not all(0.0 <= float(share) <= 1.0 for share in shares):
                raise ValueError(f"Expected agreement from 0 to 1 in reference but got {shares}")
        known = np.array(self.reference.get("confidence", ()), dtype=np.float64).reshape(-1, 2)
        if (np.diff(known[:, 0], prepend=0.0) <= 0).any() or not (np.abs(known[:, 1]) < 10).all():
            raise ValueError(
                "Expected confidence in reference to be pairs of rows, more from pair to pair, and "
                f"log odds from -10 to 10 but got {known.tolist()}"
            )
        object.__setattr__(self, "overlap", (float(low), float(high)))
        object.__setattr__(self, "sizes", check_sizes(self.sizes))

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (self.transform.n_features,)

    @property
    def preprocessing(self) -> TabularTransform:
        return self.transform

    def sample(
        self,
        n_datasets: int,
        n_points: int | None = None,
        share_partition: bool = False,
        extra_parameters: int = 0,
        generator: torch.Generator | None = None,
    ) -> Batch:
        """Draw preprocessed tables of one common size, (B, N, F) in float32.

        Partitions cannot be shared, since which labels are merged depends on the points, and there
        are no parameters.
        """
        if n_datasets < 1 or share_partition or extra_parameters:
            raise ValueError(
                "Expected n_datasets >= 1, share_partition=False and extra_parameters=0 for tables "
                f"but got {n_datasets}, {share_partition} and {extra_parameters}"
            )
        rng = numpy_generator(generator)
        n = int(rng.integers(self.sizes[0], self.sizes[1] + 1)) if n_points is None else n_points
        x = np.empty((n_datasets, n, self.transform.n_features), dtype=np.float32)
        c = np.empty((n_datasets, n), dtype=np.int64)
        for b in range(n_datasets):
            fitted, c[b] = self.sample_table(n, rng)[1:]
            x[b] = fitted.features
        return Batch(torch.from_numpy(x), canonical(c), None)

    def sample_table(
        self, n_points: int, rng: np.random.Generator
    ) -> tuple[RawTable, FittedTransform, Labels]:
        """One table as it was before preprocessing, its fitted transform and labels (N,)."""
        while True:
            table = draw_table(self.tables, n_points, rng)
            x, seed = unrounded(table.x, table.categorical), int(rng.integers(2**31))
            fitted = self.transform.fit(x, table.categorical, seed)
            merged = merge_confused(table.labels, fitted.closest, rng.uniform(*self.overlap))
            most_lost = 2 * (merged.max() + 1) < table.labels.max() + 1
            if table.labels.max() == 0 or not (merged.max() == 0 or most_lost):
                return table, fitted, merged
            if rng.random() >= self.again:
                return table, fitted, merged

    def with_reference(self, n_tables: int = 1000, seed: int = 0) -> TabularMixture:
        """The same mixture, with the distribution of its tables' summary statistics stored.

        Args:
            n_tables: how many tables to draw for each of the three ranges of N.
            seed: of the draws.
        """
        rng = np.random.default_rng(seed)
        stored = []
        for low, high in ((5, 30), (31, 120), (121, max(self.sizes[1], 200))):
            sizes = rng.integers(low, high + 1, size=n_tables)
            drawn = [summary_statistics(self.sample_table(int(n), rng)[1]) for n in sizes]
            stored.append({"rows": [low, high]} | describe(drawn))
        return replace(self, reference={"ranges": stored})

    def unusualness(self, x: Any) -> Unusualness:
        """How odd a table (N, P), or a fitted one, is among the tables of this prior.

        Every summary statistic is expressed in robust standard deviations from the prior's
        median; the p-value is the share of the prior's tables whose most extreme statistic is
        at least as extreme as this table's. Without a stored reference a small one is drawn.
        """
        ranges = (self.reference or _small_reference(self))["ranges"]
        fitted = x if isinstance(x, FittedTransform) else self.transform.fit(x)
        n = len(fitted.coordinates)
        known = next((r for r in ranges if n <= r["rows"][1]), ranges[-1])
        return compare(fitted, known)

    def shortfall(self, n_points: int) -> float:
        """Promised less measured agreement of tables of the nearest size, if that is positive."""
        known = self.reference.get("agreement", ())
        if not known:
            return 0.0
        _, promised, measured = min(known, key=lambda one: abs(np.log(one[0] / n_points)))
        return max(0.0, float(promised - measured))

    def calibrated(self, confidence: NDArray[np.float64], n_points: int) -> NDArray[np.float64]:
        """The overlap that clusters have with the truth where samples promise this one.

        Errors along a sample add to its spread, so samples promise too little. By how much, as log
        odds, was measured on random tables of some sizes; between these it goes with log N.

        Example:
            >>> mixture = TabularMixture(reference={"confidence": [[10, 0.0], [1000, 0.4]]})
            >>> mixture.calibrated(np.array([0.0, 0.5, 1.0]), 100).round(2)
            array([0.  , 0.55, 1.  ])
        """
        known = self.reference.get("confidence", ())
        if not known:
            return confidence
        rows, offsets = np.array(known, dtype=np.float64).T
        odds = np.exp(np.interp(np.log(n_points), np.log(rows), offsets))
        return np.asarray(odds * confidence / (1 + (odds - 1) * confidence))

    def to_dict(self) -> dict[str, Any]:
        """A plain dict from which `model_from_dict` makes an equal model."""
        return {
            "kind": type(self).__name__,
            "sizes": list(self.sizes),
            "tables": asdict(self.tables) | {"separation": list(self.tables.separation)},
            "transform": self.transform.to_dict(),
            "overlap": list(self.overlap),
            "again": self.again,
            "reference": dict(self.reference),
        }

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> TabularMixture:
        """The mixture that ``spec``, as of `to_dict`, describes; absent parts are the defaults."""
        try:
            parts = {name: value for name, value in spec.items() if name != "kind"}
            for name in ("sizes", "overlap"):
                if name in parts:
                    parts[name] = tuple(parts[name])
            tables = dict(parts.get("tables", {}))
            if "separation" in tables:
                tables["separation"] = tuple(tables["separation"])
            parts["tables"] = TablePrior(**tables)
            parts["transform"] = TabularTransform(**parts.get("transform", {}))
            return cls(**parts)
        except (AttributeError, TypeError) as error:
            raise ValueError(f"Expected the arguments of TabularMixture: {error}") from error


@lru_cache(maxsize=4)
def _small_reference(mixture: TabularMixture) -> Mapping[str, Any]:
    return mixture.with_reference(200).reference
