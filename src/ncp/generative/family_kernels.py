"""The compiled loop behind `ncp.generative.gaussian_family`: marginal likelihoods of clusters.

The module is imported inside the function that needs it, because numba is slow to import.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncp.compiled import njit

__all__ = ["log_marginals"]

FloatArray = NDArray[Any]
IntArray = NDArray[Any]

LARGE = 1e150  # a product of pivots is taken the logarithm of before it grows beyond this


@njit
def log_marginals(
    statistics: FloatArray,
    data_set: IntArray,
    dim: IntArray,
    ratio: FloatArray,
    dof: FloatArray,
    constants: FloatArray,
) -> FloatArray:
    """log m of clusters from their counts, sums and lower triangles of products, (M, T).

    The others are numbers of each data set, but for `data_set` (M,), which says whose a cluster is.
    Psi_n / nu = 1 + A is eliminated symmetrically; its pivots are at least one, and we insist,
    since rounding does not.
    """
    out = np.zeros(len(statistics))
    width = dim.max()
    a = np.empty((width, width))
    for m in range(len(statistics)):
        n = statistics[m, 0]
        if n == 0:
            continue
        b = data_set[m]
        d, nu = dim[b], dof[b] - dim[b] - 1
        sums, products = statistics[m, 1 : 1 + width], statistics[m, 1 + width :]
        shrunk = 1 / (ratio[b] ** -2 + n)
        known = np.isinf(nu)
        position = 0
        for i in range(d):
            for j in range(i + 1):
                a[i, j] = products[position] - shrunk * sums[i] * sums[j]
                position += 1
        spread = 0.0
        if known:
            for i in range(d):
                spread += a[i, i]
        else:
            product = 1.0
            for k in range(d):
                pivot = max(1 + a[k, k] / nu, 1.0)
                for i in range(k + 1, d):
                    share = a[i, k] / (pivot * nu)
                    for j in range(k + 1, i + 1):
                        a[i, j] -= share * a[j, k]
                product *= pivot
                if product > LARGE:
                    spread += np.log(product)
                    product = 1.0
            spread = (dof[b] + n) * (spread + np.log(product))
        out[m] = constants[b, int(n)] - 0.5 * spread
    return out
