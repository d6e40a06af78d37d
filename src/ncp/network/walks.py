r"""Which points a walk over the data set visits alike: spectral clustering's view of the points.

Gaps (`ncp.network.links`) do not tell apart clusters that overlap: there are points all the way. A
walk from neighbour to neighbour still stays in its cluster for long. With c_i the distance from
point i to its k-th neighbour, k about sqrt(N) / 2,

    W_ij = exp(-|x_i - x_j|^2 / (c_i c_j)),        A = D^(-1/2) W D^(-1/2),   D the row sums of W,

the rows of A^(t/2) say where walks lead (diffusion maps), and their cosines how alike that is:

    C_ij = (A^t)_ij / sqrt((A^t)_ii (A^t)_jj),     t = 4 and 32,

from 0 to 1. A^t takes log2 t products of matrices.

The *places* p_i of the points are few numbers with <p_i, p_j> = C_ij, nearly: the Cholesky factor
of C, each column of which belongs to the point that the columns before it say least of (the first
to the one that is most like all). A column is thus about a cluster that had none. The columns of
both times belong to the same points, those of the shorter time.

A new point, which others do not see, is where its neighbours are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ncp.network.links import LEAST

__all__ = ["TIMES", "Walks"]

TIMES = (4, 32)  # powers of two
SAID = 1e-3  # of a squared length: what is less than this is rounding


class Walks(NamedTuple):
    """Walks within data sets; nothing of it has a gradient."""

    cosines: Float[Tensor, "B t N N"]  # zero for points that are none
    places: Float[Tensor, "B t N r"]
    lengths: Float[Tensor, "B t N"]  # of the rows of A^(t/2)
    reach: Float[Tensor, "B N"]  # c^2

    @classmethod
    def among(cls, squares: Float[Tensor, "B N N"], sizes: Tensor | None, rank: int) -> Walks:
        """Of data sets by their squared distances; points after the first `sizes` are none."""
        real, hidden, reach = _reach(squares, sizes)
        kernel = (-hidden / (reach[:, :, None] * reach[:, None]).sqrt()).exp_()
        kernel = kernel * real[:, :, None]
        degree = _inverse(kernel.sum(2).sqrt())
        walk = kernel * degree[:, :, None] * degree[:, None]
        cosines, lengths = [], []
        for step in range(1, max(TIMES).bit_length()):
            walk = torch.bmm(walk, walk)
            if 2**step in TIMES:
                lengths.append(walk.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt())
                scale = _inverse(lengths[-1])
                cosines.append(walk * scale[:, :, None] * scale[:, None])
        both = torch.stack(cosines, 1)
        return cls(both, _places(both, rank), torch.stack(lengths, 1), reach)

    def of_new(self, squares: Float[Tensor, "M N"]) -> tuple[Tensor, Tensor]:
        """Cosines `(M, t, 1, N + 1)` and places `(M, t, r)` of new points.

        Args:
            squares: Distances from the points of the first data set. The last cosine is that of
                a point and itself.
        """
        k = min(_neighbours(squares.shape[1]), squares.shape[1])
        own = squares.topk(k, largest=False).values[:, -1:].clamp(min=LEAST)
        weight = (-squares / (own * self.reach[0]).sqrt()).exp()
        known = self.places[0]
        found = torch.einsum("mn,tn,tnr->mtr", weight, self.lengths[0], known)
        places = torch.nn.functional.normalize(found, dim=2)
        cosines = torch.einsum("mtr,tnr->mtn", places, known).clamp(min=0)
        itself = torch.ones_like(cosines[..., :1])
        return torch.cat([cosines, itself], 2)[:, :, None], places


def _reach(
    squares: Float[Tensor, "B N N"], sizes: Tensor | None
) -> tuple[Tensor, Tensor, Float[Tensor, "B N"]]:
    """Which points there are, squared distances to these only, and c^2."""
    n_datasets, n = squares.shape[:2]
    known = [n] * n_datasets if sizes is None else sizes.tolist()
    real = torch.arange(n, device=squares.device) < squares.new_tensor(known)[:, None]
    hidden = squares.masked_fill(~real[:, None], torch.inf)
    nth = torch.tensor([min(_neighbours(size), size - 1) for size in known])
    nearest = hidden.topk(int(nth.max()) + 1, largest=False).values  # first the point itself
    where = nth.to(squares.device)[:, None, None].expand(-1, n, 1)
    return real, hidden, nearest.gather(2, where)[..., 0].clamp(min=LEAST)


def _places(cosines: Float[Tensor, "B t N N"], rank: int) -> Float[Tensor, "B t N r"]:
    n_datasets, n_times, n, _ = cosines.shape
    each = torch.arange(n_datasets, device=cosines.device)
    left = cosines.diagonal(dim1=2, dim2=3).clone()
    places = cosines.new_zeros(n_datasets, n_times, n, rank)
    chosen: Int[Tensor, " B"] = cosines[:, 0].sum(2).argmax(1)
    for j in range(min(rank, n)):
        said = torch.einsum("btnr,btr->btn", places[..., :j], places[each, :, chosen, :j])
        unsaid = left[each, :, chosen]
        scale = torch.where(unsaid > SAID, _inverse(unsaid.sqrt()), 0.0)
        column = (cosines[each, :, chosen] - said) * scale[..., None]
        places[..., j] = column
        left = (left - column.square()).clamp(min=0)
        chosen = left[:, 0].argmax(1)
    return places


def _neighbours(n: int) -> int:
    return max(4, round(math.sqrt(n) / 2))


def _inverse(values: Tensor) -> Tensor:
    return 1 / values.clamp(min=torch.finfo(values.dtype).tiny)
