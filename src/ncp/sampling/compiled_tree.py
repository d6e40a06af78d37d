"""The compiled kernels as plain calls on a network: samples along a sequence, and new points."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ncp.network.network import Folded, Network, Points
from ncp.sampling import kernels
from ncp.sampling.constraints import Rules
from ncp.sampling.kernels import BLOCK, Array, Workspace
from ncp.sampling.weights import compiled_weights

__all__ = ["CompiledTree", "Run"]

SLOTS = 32  # clusters of a prefix that there is room for at first
CLUSTERS = 1024  # distinct clusters that there is room for at first


class Run(NamedTuple):
    """Distinct samples of a sequence in the caller's order of points."""

    labels: Int64[np.ndarray, "rows N"]
    counts: Int64[np.ndarray, " rows"]
    log_q: Float64[np.ndarray, " rows"]  # NaN if a score overflows
    log_w: Float64[np.ndarray, " rows"]  # zero without constraints
    log_z: Float64[np.ndarray, " N"]  # log mean weight after each step, -inf: no choice was left


class _Room(NamedTuple):
    """How much a workspace holds."""

    rows: int
    points: int
    slots: int
    clusters: int
    groups: int = 0


class CompiledTree:
    """A network on the CPU, ready to run; each thread has a workspace, which is used again."""

    def __init__(self, network: Network, folded: Folded) -> None:
        kernels.start_compiling()
        self.network, self.folded = network, folded
        self.weights = compiled_weights(network, folded)
        self.kept = threading.local()

    def run(
        self,
        points: Points,
        order: Int64[np.ndarray, " N"],
        count: int,
        key: np.uint64,
        beam: int,
        rules: Rules,
        stop: np.ndarray,
        done: np.ndarray,
    ) -> Run:
        """The samples of a data set's points in an order."""
        sums, base, rest = self._lay_out(points, order)
        n, rows = len(order), max(count, beam)
        slots, clusters = min(n, SLOTS), CLUSTERS
        before = done.copy()
        how = beam or None, rules if rules.active else None
        while True:
            room = _Room(rows, n, slots, clusters, len(rules.apart))
            space = self._workspace(room, sums.dtype)
            state, n_rows, side = kernels.run_sequence(
                self.weights, space, sums, base, rest, count, key, *how, stop, done
            )
            if state == kernels.MORE_SLOTS:
                slots = min(n, 4 * slots)
            elif state == kernels.MORE_CLUSTERS:
                clusters *= 4
            else:
                break
            done[:] = before
        if state != kernels.DONE:
            return self._nothing(state, n, n_rows, space)
        labels = np.empty((n_rows, n), np.int64)
        history = space.parents, space.choices, space.offsets
        kernels.read_labels(*history, order, np.empty(n, np.int64), labels)
        counts, log_q = (of[side, :n_rows].copy() for of in (space.counts, space.log_q))
        log_w = space.log_w[side, :n_rows].copy() if rules.active else np.zeros(n_rows)
        return Run(labels, counts, log_q, log_w, space.log_z[:n].copy())

    def _lay_out(
        self, points: Points, order: Int64[np.ndarray, " N"]
    ) -> tuple[Array, Array, Array]:
        sums, q, static = (_array(table) for table in points)
        w, n = self.weights, len(order)
        width, codes = len(w.k_f), w.codes
        laid, base, rest, seen, of_point = (
            np.empty((n, of), sums.dtype) for of in (sums.shape[1], width, codes, codes + 2, width)
        )
        after = np.zeros(width + codes)
        of_weights = len(w.b_u), w.mean, w.rest_f, w.w_point
        room = laid, base, rest, seen, of_point, after
        kernels.lay_out(*of_weights, order, sums, q, static, *room)
        return laid, base, rest

    def _nothing(self, state: int, n: int, position: int, space: Workspace) -> Run:
        """No rows, and why."""
        labels, none, log_z = np.empty((0, n), np.int64), np.empty(0), np.zeros(n)
        if state == kernels.OVERFLOW:
            none = np.full(1, np.nan)
        elif state == kernels.IMPOSSIBLE:
            log_z[:position], log_z[position:] = space.log_z[:position], -np.inf
        return Run(labels, labels[:, 0], none, none, log_z)

    def score_new(self, points: Points, sums: Float[Tensor, "K n_sums"]) -> Float64[Tensor, "M K1"]:
        """log p of new points joining the clusters of a partition, by their sums; NaN as above."""
        table, static = _array(points.sums), _array(points.static)
        out = np.empty((len(table), len(sums) + 1))
        room = _Room(1, 1, len(sums), len(sums))
        space = self._workspace(room, table.dtype)
        if not kernels.score_new(self.weights, space, table, static, _array(sums)[None], out):
            out[:] = np.nan
        return torch.from_numpy(out)

    def _workspace(self, room: _Room, kind: np.dtype) -> Workspace:
        """One with at least this much room: this thread's last one, or a new one."""
        kept: tuple[_Room, Workspace] | None = getattr(self.kept, "space", None)
        if kept is not None and all(a >= b for a, b in zip(kept[0], room, strict=True)):
            return kept[1]
        if kept is not None:
            room = _Room(*map(max, kept[0], room))
        space = self._new_workspace(room, kind)
        self.kept.space = room, space
        return space

    def _new_workspace(self, room: _Room, kind: np.dtype) -> Workspace:
        # Memory that is never written to is never taken, so room is cheap.
        w, rows, pairs = self.weights, room.rows, max(room.clusters + 1, BLOCK)
        f, g, n_sums = len(w.f_out), len(w.b_u), self.network.n_sums
        n_features = w.codes + 2 + 3 * w.octaves

        def real(*shape: int) -> Array:
            return np.empty(shape, kind)

        def whole(*shape: int) -> Int64[np.ndarray, ...]:
            return np.zeros(shape, np.int64)

        folded = real(n_features, f)
        folded[w.codes : w.codes + len(w.w_cluster)] = w.w_cluster
        return Workspace(
            k=whole(2, rows),
            counts=whole(2, rows),
            log_q=np.empty((2, rows)),
            total=real(2, rows, f),
            refs=whole(2, rows, room.slots),
            log_w=np.empty((2, rows)),
            placed=whole(2, rows, room.groups),
            parent=whole(rows),
            choice=whole(rows),
            sums=real(2, room.clusters, n_sums),
            g_hat=real(2, room.clusters, f),
            ids=whole(2, pairs),
            a=real(pairs, g),
            b=real(pairs, g),
            features=real(pairs, n_features),
            folded=folded,
            squares=np.empty((3, pairs * w.octaves)),
            join=real(pairs, 2 * f),
            pair=real(pairs, f),
            change=real(pairs, f),
            extra=real(pairs, f),
            scores=np.empty(max(rows * (room.slots + 1), 2 * BLOCK, pairs)),
            start=whole(rows + 1),
            seats=np.empty((2, room.slots + 1)),
            y=real(pairs, f),
            y2=real(pairs, f),
            parents=whole(room.points * rows),
            choices=whole(room.points * rows),
            offsets=whole(room.points + 1),
            log_z=np.zeros(room.points),
        )


def _array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.detach().numpy())
