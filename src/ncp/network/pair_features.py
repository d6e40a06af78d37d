r"""What f sees of a point and a cluster that it may join, beside g: means, products, distances.

A sum over points tells a mean only to those who can divide. A cluster therefore keeps, beside the
sum of W_1 h_i, the sums of its codes z_i, of its coordinates x_i and of |x_i|^2, and its size n.
With bars for means over the cluster, tildes for means over the points not yet assigned, and
octaves o_j(r^2) = r^2 4^j / 8, a cluster and a point n give

    zbar,   zbar * z_n,   zbar * ztilde,          (elementwise, C numbers each)
    <zbar, z_n>,  <zbar, zbar>,  <zbar, ztilde>   (times 10 / C, as the pairwise loss has them)
    log(1 + n),
    exp(-o_j), log(1 + o_j)   of the squared distance |xbar - x_n|^2,
    log(1 + o_j)              of the spread  mean |x|^2 - |xbar|^2;

all of it zero for an empty cluster. The point and the unassigned ones give

    ztilde * z_n,   10 <ztilde, z_n> / C,   log(1 + number of unassigned points).

The size of these lists and their values are defined here and nowhere else, once for torch; the
compiled sampler repeats the values, and a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ncp.network.attention import in_octaves, scaled_squares

__all__ = ["PairFeatures"]

COSINE = 10.0  # the pairwise loss takes 10 cos - 5 for the logit of "one cluster"


@dataclass(frozen=True)
class PairFeatures:
    """Sizes and values of the features.

    Args:
        codes: C, the size of a code.
        coordinates: D, how many numbers are a point's position; may be 0.
        octaves: of distances; 0 when there are no coordinates.
    """

    codes: int
    coordinates: int
    octaves: int

    @property
    def n_summands(self) -> int:
        """Numbers that a cluster sums up over its points: z, x, |x|^2, and its size."""
        return self.codes + (self.coordinates + 1 if self.coordinates else 0) + 1

    @property
    def n_pair(self) -> int:
        """Numbers that f sees of a cluster and a point."""
        return 3 * self.codes + 4 + 3 * self.octaves

    @property
    def n_point(self) -> int:
        """Numbers that f sees of a point and the unassigned ones."""
        return self.codes + 2

    def summands(
        self, codes: Float[Tensor, "*rows C"], x: Float[Tensor, "*rows D"]
    ) -> Float[Tensor, "*rows n_summands"]:
        """What a cluster is the sum of."""
        parts = [codes]
        if self.coordinates:
            parts += [x, x.square().sum(-1, keepdim=True)]
        return torch.cat([*parts, torch.ones_like(codes[..., :1])], -1)

    def parts(
        self, w: Float[Tensor, "f n_pair"]
    ) -> tuple[Float[Tensor, "f of_cluster"], Float[Tensor, "f of_pair"]]:
        """f's weights for `of_cluster` and for `of_pair`.

        The cosines with the point and with the rest are sums of products, so they go with these.
        """
        c, o = self.codes, self.octaves
        alone, own, rest, cosines, size, near, far, spread = torch.split(
            w, [c, c, c, 3, 1, o, o, o], 1
        )
        with_point, within, with_rest = torch.split(cosines, 1, 1)
        scale = COSINE / c
        products = [own + scale * with_point, rest + scale * with_rest]
        return torch.cat([alone, within, size, spread], 1), torch.cat([*products, near, far], 1)

    def of_cluster(
        self, sums: Float[Tensor, "rows n_summands"]
    ) -> tuple[Float[Tensor, "rows n_means"], Float[Tensor, "rows of_cluster"]]:
        """Of clusters by their sums: the means that `of_pair` takes, and what f sees of them."""
        c, d = self.codes, self.coordinates
        size = sums[:, -1:].detach()
        exists = size.clamp(max=1)
        mean = sums[:, :-1] * size.clamp(min=1).reciprocal()
        code = mean[:, :c]
        seen = [code, COSINE * code.square().mean(1, keepdim=True), size.log1p()]
        if self.octaves:
            centre = mean[:, c : c + d]
            spread = (mean[:, c + d] - centre.square().sum(1)).clamp(min=0)
            seen += [in_octaves(spread, self.octaves).log1p() * exists]
        return torch.cat([mean[:, : c + d], exists], 1), torch.cat(seen, 1)

    def of_pair(
        self,
        means: Float[Tensor, "rows n_means"],
        point: Float[Tensor, "rows n_summands"],
        unassigned: Float[Tensor, "rows C"],
    ) -> list[Float[Tensor, "rows _"]]:
        """Of clusters by their means, points that may join them, the mean code of the rest: side
        by side, what f sees."""
        c, d = self.codes, self.coordinates
        code, centre, exists = torch.split(means, [c, d, 1], 1)
        other, place, _ = torch.split(point, [c, d, point.shape[1] - c - d], 1)
        seen = [code * other, code * unassigned]
        if self.octaves:
            apart = scaled_squares(centre, place, self.octaves)
            seen += [apart.neg().exp() * exists, apart.log1p() * exists]
        return seen

    def of_point(
        self,
        point: Float[Tensor, "rows n_summands"],
        unassigned: Float[Tensor, "rows C"],
        n_unassigned: Float[Tensor, " rows"],
    ) -> Float[Tensor, "rows n_point"]:
        """Of points, and the mean code and number of the unassigned ones."""
        product = unassigned * point[:, : self.codes]
        cosine = COSINE * product.mean(1, keepdim=True)
        return torch.cat([product, cosine, n_unassigned[:, None].log1p()], 1)
