"""Whether a data set looks like draws of a mixture, as far as the reach of its points tells.

Far from what a network was trained on its samples may miss the posterior altogether while their
weights look perfect, since no weight tells of a partition that q never proposes. So weights are
only believed where

    max_n |x_n - E x|  <=  1.1 max over 200 draws of the same,

which a data set of the mixture itself fails once in several hundred times.
"""

from __future__ import annotations

import numpy as np
import torch

from ncp.generative.mixture import Mixture

__all__ = ["within_reach"]

DRAWS = 200
MARGIN = 1.1
MOST_POINTS = 500  # of a draw; the reach grows slowly with more


def within_reach(x: np.ndarray, mixture: Mixture) -> bool:
    """Whether no point lies farther out than those of draws; True where nothing can be drawn.

    Args:
        x: one data set of shape (N, *event).
        mixture: what it may come from.

    Example:
        >>> from ncp.generative.gaussian import GaussianKnownVariance
        >>> from ncp.generative.priors import CRP
        >>> mixture = Mixture(CRP(0.7), GaussianKnownVariance(dim=1))
        >>> within_reach(np.zeros((5, 1)), mixture), within_reach(np.full((5, 1), 99.0), mixture)
        (True, False)
    """
    generator = torch.Generator().manual_seed(0)
    try:
        drawn = mixture.sample(DRAWS, min(len(x), MOST_POINTS), generator=generator).x
    except (ValueError, NotImplementedError):
        return True
    points = drawn.double().flatten(2).numpy()
    centre = points.mean(axis=(0, 1))
    far = np.abs(np.asarray(x, dtype=np.float64).reshape(len(x), -1) - centre).max()
    return bool(far <= MARGIN * np.abs(points - centre).max())
