"""The numbers that a report's script works with, compact and safe inside of HTML.

Arrays are base64 of little-endian bytes: float32 for coordinates, one byte a label (two, if there
are more than 250 clusters). JSON inside of a page must not end its element, so every character
that means something to HTML is written as its escape.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ncp.output.drawings import MARKERS
from ncp.output.plots import PALETTE
from ncp.output.words import number

__all__ = ["Column", "embed_json", "match_labels", "page_data"]

MOST_SAMPLES = 400  # carried by a page
ONE_BYTE, TWO_BYTES = 255, 65_535  # stand for "left out"


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table, or an axis: numbers, or codes of levels.

    Attributes:
        name: Of the column.
        values: `(N,)`, NaN for missing.
        levels: What the codes 0, 1, ... mean; empty for numbers.
    """

    name: str
    values: np.ndarray
    levels: tuple[str, ...] = ()

    def take(self, rows: np.ndarray) -> Column:
        """Some of the rows."""
        return replace(self, values=self.values[rows])

    def text(self, row: int) -> str:
        """A cell, for people."""
        return self._words(float(self.values[row]))

    def centre(self, rows: np.ndarray) -> str:
        """The mean of some rows, or their most frequent level."""
        values = self.values[rows]
        values = values[~np.isnan(values)]
        if not len(values):
            return ""
        if not self.levels:
            return number(float(values.mean()))
        return self._words(float(np.bincount(values.astype(np.int64)).argmax()))

    def _words(self, value: float) -> str:
        if np.isnan(value):
            return "missing"
        return self.levels[int(value)] if self.levels else number(value)


def embed_json(data: Mapping[str, Any]) -> str:
    """JSON that can stand between script tags.

    Example:
        >>> embed_json({"name": "</script>"})
        '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page_data(
    *,
    command: str,
    names: Sequence[str],
    rows: np.ndarray,
    axes: Sequence[Column],
    n_principal: int,
    labels: np.ndarray,
    confidence: np.ndarray,
    known: np.ndarray | None,
    cluster_names: Sequence[str],
    samples: np.ndarray,
    sample_clusters: np.ndarray,
    partitions: Sequence[tuple[str, str, np.ndarray]],
) -> dict[str, Any]:
    """What `report.js` reads.

    Args:
        command: The command line that further options are put behind.
        names: Of the n rows that are drawn.
        rows: Their numbers, from 1, `(n,)`.
        axes: What they can be drawn along, `(n,)` each.
        n_principal: How many of the axes are no columns.
        labels: The best partition, `(n,)`; its colours are kept by all others.
        confidence: `(n,)`.
        known: Which rows are outlined, `(n,)`; None for none.
        cluster_names: What the clusters of `labels` are called, if not by numbers.
        samples: `(S, n)`; at most `MOST_SAMPLES` are kept, at random.
        sample_clusters: How many clusters each sample has, `(S,)`.
        partitions: Names, sentences and labels of what can be chosen.
    """
    kept = np.random.default_rng(0).permutation(len(samples))[:MOST_SAMPLES]
    drawn = [match_labels(sample, labels) for sample in samples[kept]]
    chosen = [match_labels(one, labels) for _, _, one in partitions]
    most = max((int(one.max(initial=0)) for one in (*drawn, *chosen)), default=0)
    kind = np.dtype("<u2" if most >= ONE_BYTE else "u1")
    return {
        "command": command,
        "names": list(names),
        "rows": rows.tolist(),
        "axes": [{"name": a.name, **({"levels": a.levels} if a.levels else {})} for a in axes],
        "axis_values": _base64(np.stack([a.values for a in axes]), np.dtype("<f4")),
        "principal": n_principal,
        "confidence": _base64(np.nan_to_num(confidence), np.dtype("<f4")),
        "known": [] if known is None else np.flatnonzero(known).tolist(),
        "cluster_names": list(cluster_names),
        "wide": kind.itemsize > 1,
        "samples": _labels_base64(np.array(drawn).reshape(len(kept), len(labels)), kind),
        "sample_clusters": sample_clusters[kept].tolist(),
        "partitions": [
            {"name": name, "words": sentence, "labels": _labels_base64(one, kind)}
            for (name, sentence, _), one in zip(partitions, chosen, strict=True)
        ],
        "palette": list(PALETTE),
        "markers": list(MARKERS),
    }


def _labels_base64(labels: np.ndarray, kind: np.dtype) -> str:
    none = ONE_BYTE if kind.itemsize == 1 else TWO_BYTES
    return _base64(np.where(labels < 0, none, labels), kind)


def _base64(values: np.ndarray, kind: np.dtype) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()


def match_labels(labels: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Labels renamed so that clusters have the names of those of the reference they overlap.

    Example:
        >>> match_labels(np.array([0, 0, 1, -1]), np.array([1, 1, 0, 0]))
        array([ 1,  1,  0, -1])
    """
    from scipy.optimize import linear_sum_assignment

    both = (labels >= 0) & (reference >= 0)
    n_own, n_other = (int(one.max(initial=-1)) + 1 for one in (labels, reference))
    pairs = labels[both].astype(np.int64) * n_other + reference[both]
    shared = np.bincount(pairs, minlength=n_own * n_other).reshape(n_own, n_other)
    own, other = linear_sum_assignment(-shared)
    new = dict(zip(own.tolist(), other.tolist(), strict=True))
    free = iter(sorted(set(range(n_own + n_other)) - set(new.values())))
    names = np.array([new[k] if k in new else next(free) for k in range(n_own)] + [-1])
    return np.asarray(names[labels])
