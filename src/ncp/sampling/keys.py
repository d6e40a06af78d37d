"""Random numbers that depend on names, not on turns.

A key is 64 bits; whoever knows one can draw its random numbers. Keys form a tree (seed, data set,
sequence, point, sample), and each is a hash of its parent and its own number, so nobody's draws
depend on how many others drew before: the samples of a data set are the same in any company.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int, UInt64

__all__ = ["child_keys", "data_set_keys", "numbered_orders", "piece_keys"]

Keys = UInt64[np.ndarray, "..."]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def child_keys(key: Keys, number: Keys) -> Keys:
    """Independent-looking keys below a key: SplitMix64 started there, at its number-th output.

    The 64-bit finaliser of Steele, Lea and Flood (2014), in wrapping integers.

    Example:
        >>> child_keys(np.array([0], np.uint64), np.array([0, 1], np.uint64)).tolist()
        [16294208416658607535, 7960286522194355700]
    """
    with np.errstate(over="ignore"):
        z = key + (number + np.uint64(1)) * GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)))


def data_set_keys(seed: int | None, streams: Sequence[int]) -> Keys:
    """One key for each data set."""
    if seed is None:
        seed = torch.Generator().seed()
    root = np.array([int(seed) % 2**64], np.uint64)
    return child_keys(child_keys(root, np.zeros(1, np.uint64)), np.asarray(streams, np.uint64))


def piece_keys(key: Keys, kind: int, numbers: Int[np.ndarray, " n"]) -> Keys:
    """Keys for the pieces (kind 0) or the orders (kind 1) of a data set."""
    below = child_keys(key, np.array([kind], np.uint64))
    return child_keys(below, np.asarray(numbers, np.uint64))


def numbered_orders(
    key: Keys, which: Int[np.ndarray, " n"], n_points: int
) -> Int[np.ndarray, "n N"]:
    """Random orders, by their numbers: those that sort random numbers."""
    keys = piece_keys(key, 1, which)[:, None]
    return np.argsort(child_keys(keys, np.arange(n_points, dtype=np.uint64)), axis=1, kind="stable")
