r"""Which points a walk over the data set visits alike: spectral clustering's view of two points.

Gaps (`ncp.network.links`) do not tell apart clusters that overlap: there are points all the way. A
walk from neighbour to neighbour still stays in its cluster for long. With c_i the distance from
point i to its k-th neighbour, k about sqrt(N) / 2,

    W_ij = exp(-|x_i - x_j|^2 / (c_i c_j)),        A = D^(-1/2) W D^(-1/2),   D the row sums of W,

the rows of A^(t/2) are places (diffusion maps) and their cosines say how alike they are:

    C_ij = (A^t)_ij / sqrt((A^t)_ii (A^t)_jj),     t = 4 and 32,

from 0 to 1. A^t takes log2 t products of matrices. A new point a, which others do not see, is where
its neighbours are: W_a takes the place of a row of A^(t/2).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["TIMES", "Walks"]

TIMES = (4, 32)  # powers of two
LEAST = 1e-4  # c^2, in units of the prior's scale: points may coincide


class Walks(NamedTuple):
    """Walks within data sets."""

    powers: Float[Tensor, "B t N N"]  # A^t
    reach: Float[Tensor, "B N"]  # c^2

    @classmethod
    def among(cls, squares: Float[Tensor, "B N N"], lengths: Tensor | None) -> Walks:
        """Of data sets by their squared distances; points after the first `lengths` are none."""
        n_datasets, n = squares.shape[:2]
        sizes = [n] * n_datasets if lengths is None else lengths.tolist()
        real = torch.arange(n, device=squares.device) < squares.new_tensor(sizes)[:, None]
        nth = torch.tensor([min(_neighbours(size), size - 1) for size in sizes])
        hidden = squares.masked_fill(~real[:, None], torch.inf)
        nearest = hidden.topk(int(nth.max()) + 1, largest=False).values  # first the point itself
        where = nth.to(squares.device)[:, None, None].expand(-1, n, 1)
        reach = nearest.gather(2, where)[..., 0].clamp(min=LEAST)
        kernel = (-hidden / (reach[:, :, None] * reach[:, None]).sqrt()).exp_()
        kernel = kernel * real[:, :, None]
        degree = kernel.sum(2).clamp(min=torch.finfo(kernel.dtype).tiny).rsqrt()
        walk = kernel * degree[:, :, None] * degree[:, None]
        powers = []
        for step in range(1, max(TIMES).bit_length()):
            walk = torch.bmm(walk, walk)
            if 2**step in TIMES:
                powers.append(walk)
        return cls(torch.stack(powers, 1), reach)

    def cosines(self) -> Float[Tensor, "B t N N"]:
        """C of all pairs; zero for points that are none."""
        own = _root(self.powers.diagonal(dim1=2, dim2=3))
        return self.powers * own[..., :, None] * own[..., None, :]

    def cosines_of_new(
        self, squares: Float[Tensor, "M N"]
    ) -> Float[Tensor, "M t one N_and_itself"]:
        """C of new points and those of the first data set, and, last, of each and itself."""
        k = min(_neighbours(squares.shape[1]), squares.shape[1])
        own = squares.topk(k, largest=False).values[:, -1:].clamp(min=LEAST)
        weight = (-squares / (own * self.reach[0]).sqrt()).exp()
        found = []
        for power in self.powers[0]:
            seen = weight @ power
            norm = _root((seen * weight).sum(1, keepdim=True)) * _root(power.diagonal())
            found.append(torch.cat([seen * norm, torch.ones_like(own)], 1))
        return torch.stack(found, 1)[:, :, None]


def _neighbours(n: int) -> int:
    return max(4, round(math.sqrt(n) / 2))


def _root(squares: Tensor) -> Tensor:
    return squares.clamp(min=torch.finfo(squares.dtype).tiny).rsqrt()
