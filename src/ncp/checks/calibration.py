r"""Simulation-based calibration: the truth is one more posterior draw.

For any statistic T(c, x) the rank of T(c*) among the T(c_l) is uniform. T takes few values here (K,
a cluster size), so ties are split at random,

    u = (#{T_l < T*} + V (#{T_l = T*} + 1)) / (L + 1),   V ~ U(0, 1),

which is exactly uniform on (0, 1) for every L. Uniformity is tested by chi-square on bins and by
the empirical distribution function, which must stay inside a band that holds it *everywhere at
once* with a given probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ncp.checks.ranks import RankTest, rank_test
from ncp.checks.simulation import LEVEL, Simulation, as_numpy, seeds_of
from ncp.generative.model import GenerativeModel
from ncp.partitions import counts

__all__ = ["CalibrationResult", "sbc"]


@dataclass(frozen=True, eq=False)
class CalibrationResult:
    """Simulation-based calibration: one rank test for each statistic."""

    tests: tuple[RankTest, ...]

    @property
    def passed(self) -> bool:
        """All statistics pass; their levels add up to the level of the whole."""
        return all(test.passed for test in self.tests)

    def __getitem__(self, name: str) -> RankTest:
        return next(test for test in self.tests if test.name == name)


def sbc(
    simulation: Simulation,
    mixture: GenerativeModel | None = None,
    *,
    level: float = LEVEL,
    seed: int = 0,
) -> CalibrationResult:
    """Simulation-based calibration of K, the largest cluster, a random pair, and log p(c, x).

    Args:
        simulation: data sets, truths and posterior draws.
        mixture: if given and conjugate, log p(c, x) is one of the statistics. It is the one that
            sees a posterior that has forgotten the data.
        level: how often a right posterior may fail the whole.
        seed: of tie-breaking and of the choice of pairs.
    """
    rng = np.random.default_rng(seeds_of(seed, 1)[0])
    use_joint = mixture is not None and mixture.is_conjugate
    ranks: dict[str, list[float]] = {}
    for x, truth, draws in zip(simulation.x, simulation.labels, simulation.draws, strict=True):
        rows = np.concatenate([truth[None], draws.labels])
        values = _standard_statistics(rows, rng)
        if use_joint:
            assert mixture is not None
            values["log joint"] = as_numpy(mixture.log_joint(x, rows))
        for name, value in values.items():
            u = _rank(value, draws.weights, simulation.n_samples, rng.random())
            ranks.setdefault(name, []).append(u)
    share = level / len(ranks)
    return CalibrationResult(
        tuple(rank_test(name, np.array(u), level=share) for name, u in ranks.items())
    )


def _standard_statistics(rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    values = {"K": rows.max(1) + 1, "largest cluster": as_numpy(counts(rows).amax(-1))}
    if rows.shape[1] > 1:
        i, j = rng.choice(rows.shape[1], 2, replace=False)
        values["random pair"] = (rows[:, i] == rows[:, j]).astype(np.int64)
    return values


def _rank(values: np.ndarray, weights: np.ndarray, n_samples: int, v: float) -> float:
    """The randomised rank of values[0], the truth, among the others."""
    truth, drawn = values[0], values[1:]
    # log joints of equal partitions may differ in the last bits
    same = np.abs(drawn - truth) <= 1e-9 * max(1.0, abs(truth))
    less = n_samples * weights[(drawn < truth) & ~same].sum()
    equal = n_samples * weights[same].sum()
    return float((less + v * (equal + 1)) / (n_samples + 1))
