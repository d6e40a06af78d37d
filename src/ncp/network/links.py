r"""How two points hang together: the widest gap on the best way from one to the other.

A distance does not tell a ring from the disc inside it, nor one arm of a spiral from the next; a
way along the points does. With c_i the distance from point i to its m-th neighbour, a step from i
to j takes s_ij = max(|x_i - x_j|, c_i, c_j), and the gap between two points is the widest step of
the way whose widest step is least,

    u_ij = min over ways  max over steps  s,        r_ij = u_ij^2 / (c_i c_j) >= 1:

about one inside a cluster, however it is bent, and large across a void, in units of how densely
points lie there. The ways are those of a minimum spanning tree (Prim's, N^2 steps); two values of m
make it robust against bridges of stray points, or sensitive to thin voids.

A new point a, which others do not see, takes the best step to a point i first: u_aj is the larger
of s_ai and u_ij.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["NEIGHBOURS", "Links"]

NEIGHBOURS = (3, 10)  # m
LEAST = 1e-4  # c^2, in units of the prior's scale: points may coincide


class Links(NamedTuple):
    """The ways within data sets; nothing of it has a gradient."""

    gaps: Float[Tensor, "B m N N"]  # u^2
    core: Float[Tensor, "B m N"]  # c^2

    @classmethod
    def among(cls, x: Float[Tensor, "B N D"]) -> Links:
        """Of data sets."""
        from ncp.network.link_kernels import ways

        points = np.ascontiguousarray(x.detach().cpu().double().numpy())
        gaps, core = ways(points, np.array(NEIGHBOURS), LEAST)
        return cls(torch.from_numpy(gaps).to(x), torch.from_numpy(core).to(x))

    def ratios(self) -> Float[Tensor, "B m N N"]:
        """r of all pairs."""
        return self.gaps / (self.core[..., :, None] * self.core[..., None, :]).sqrt()

    def ratios_of_new(
        self, x: Float[Tensor, "N D"], new: Float[Tensor, "M D"]
    ) -> Float[Tensor, "M m one N_and_itself"]:
        """r of new points and those of the first data set, and, last, of each and itself."""
        from ncp.network.link_kernels import steps_from

        found, data = new.detach().cpu().double().numpy(), x.detach().cpu().double().numpy()
        known = self.core[0].cpu().double().numpy()
        first, far, own = steps_from(found, data, known, np.array(NEIGHBOURS), LEAST)
        by = torch.arange(len(NEIGHBOURS), device=x.device)
        via = self.gaps[0][by, torch.from_numpy(first).to(x.device)]  # (M, m, N)
        step, core = (torch.from_numpy(part).to(x)[..., None] for part in (far, own))
        ratios = torch.maximum(via, step) / (core * self.core[0]).sqrt()
        return torch.cat([ratios, torch.ones_like(core)], -1)[:, :, None]
