"""Amortised Bayesian clustering: independent posterior samples over partitions in milliseconds.

Names are imported when they are first used, so that `import ncp` and `ncp --help` do not wait for
torch, matplotlib, pandas, scikit-learn or compiled code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ncp.clustering import Clustering as Clustering
    from ncp.clustering import cluster as cluster
    from ncp.estimator import NCPClusterer as NCPClusterer
    from ncp.likelihoods import ConjugateLikelihood as ConjugateLikelihood
    from ncp.likelihoods import DensityLikelihood as DensityLikelihood
    from ncp.likelihoods import GaussianKnownVariance as GaussianKnownVariance
    from ncp.likelihoods import LabelledArrays as LabelledArrays
    from ncp.likelihoods import LaplaceNoise as LaplaceNoise
    from ncp.likelihoods import Likelihood as Likelihood
    from ncp.likelihoods import NormalInverseWishart as NormalInverseWishart
    from ncp.likelihoods import Ring as Ring
    from ncp.mixture import Mixture as Mixture
    from ncp.model import NCP as NCP
    from ncp.model import NCPConfig as NCPConfig
    from ncp.networks import register_encoder as register_encoder
    from ncp.partitions import Partitions as Partitions
    from ncp.pretrained import load as load
    from ncp.priors import CRP as CRP
    from ncp.priors import GammaCRP as GammaCRP
    from ncp.priors import MixtureOfFiniteMixtures as MixtureOfFiniteMixtures
    from ncp.priors import PitmanYor as PitmanYor
    from ncp.tabular import TabularMixture as TabularMixture
    from ncp.training import RunConfig as RunConfig
    from ncp.training import TrainingConfig as TrainingConfig
    from ncp.training import train as train

__version__ = "0.1.0"

_HOMES = {
    "clustering": ("Clustering", "cluster"),
    "estimator": ("NCPClusterer",),
    "likelihoods": (
        "ConjugateLikelihood",
        "DensityLikelihood",
        "GaussianKnownVariance",
        "LabelledArrays",
        "LaplaceNoise",
        "Likelihood",
        "NormalInverseWishart",
        "Ring",
    ),
    "mixture": ("Mixture",),
    "model": ("NCP", "NCPConfig"),
    "networks": ("register_encoder",),
    "partitions": ("Partitions",),
    "pretrained": ("load",),
    "priors": ("CRP", "GammaCRP", "MixtureOfFiniteMixtures", "PitmanYor"),
    "tabular": ("TabularMixture",),
    "training": ("RunConfig", "TrainingConfig", "train"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ncp' has no attribute {name!r}")
    value = getattr(import_module(f"ncp.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
