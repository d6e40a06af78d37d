"""Amortised Bayesian clustering: independent posterior samples over partitions.

Names are imported when they are first used, so that `import ncp` and `ncp --help` do not wait for
torch, matplotlib, pandas, scikit-learn or compiled code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ncp.clustering.cluster import cluster as cluster
    from ncp.clustering.estimator import NCPClusterer as NCPClusterer
    from ncp.clustering.result import Clustering as Clustering
    from ncp.generative.conditioned import ConditionedModel as ConditionedModel
    from ncp.generative.conditioned import Range as Range
    from ncp.generative.gaussian import GaussianKnownVariance as GaussianKnownVariance
    from ncp.generative.gaussian_family import GaussianFamily as GaussianFamily
    from ncp.generative.labelled import LabelledArrays as LabelledArrays
    from ncp.generative.laplace import LaplaceNoise as LaplaceNoise
    from ncp.generative.likelihood import ConjugateLikelihood as ConjugateLikelihood
    from ncp.generative.likelihood import DensityLikelihood as DensityLikelihood
    from ncp.generative.likelihood import IntegrableLikelihood as IntegrableLikelihood
    from ncp.generative.likelihood import Likelihood as Likelihood
    from ncp.generative.mixture import Mixture as Mixture
    from ncp.generative.model import GenerativeModel as GenerativeModel
    from ncp.generative.priors import CRP as CRP
    from ncp.generative.priors import GammaCRP as GammaCRP
    from ncp.generative.priors import MixtureOfFiniteMixtures as MixtureOfFiniteMixtures
    from ncp.generative.priors import PitmanYor as PitmanYor
    from ncp.generative.ring import Ring as Ring
    from ncp.generative.tables import TabularMixture as TabularMixture
    from ncp.generative.wishart import NormalInverseWishart as NormalInverseWishart
    from ncp.model import NCP as NCP
    from ncp.model import load as load
    from ncp.network.attention import Attention as Attention
    from ncp.network.blocks import Perceptron as Perceptron
    from ncp.network.encoder import ConvEncoder as ConvEncoder
    from ncp.network.encoder import Encoder as Encoder
    from ncp.network.encoder import MLPEncoder as MLPEncoder
    from ncp.network.network import NetworkSpec as NetworkSpec
    from ncp.posterior import Partitions as Partitions
    from ncp.training.loop import train as train
    from ncp.training.recipe import Phase as Phase
    from ncp.training.recipe import Recipe as Recipe

__version__ = "0.2.0"

_HOMES = {
    "clustering.cluster": ("cluster",),
    "clustering.estimator": ("NCPClusterer",),
    "clustering.result": ("Clustering",),
    "generative.conditioned": ("ConditionedModel", "Range"),
    "generative.gaussian": ("GaussianKnownVariance",),
    "generative.gaussian_family": ("GaussianFamily",),
    "generative.labelled": ("LabelledArrays",),
    "generative.laplace": ("LaplaceNoise",),
    "generative.likelihood": (
        "ConjugateLikelihood",
        "DensityLikelihood",
        "IntegrableLikelihood",
        "Likelihood",
    ),
    "generative.mixture": ("Mixture",),
    "generative.model": ("GenerativeModel",),
    "model": ("NCP", "load"),
    "network.attention": ("Attention",),
    "network.blocks": ("Perceptron",),
    "network.encoder": ("ConvEncoder", "Encoder", "MLPEncoder"),
    "network.network": ("NetworkSpec",),
    "posterior": ("Partitions",),
    "generative.priors": ("CRP", "GammaCRP", "MixtureOfFiniteMixtures", "PitmanYor"),
    "generative.ring": ("Ring",),
    "generative.tables": ("TabularMixture",),
    "generative.wishart": ("NormalInverseWishart",),
    "training.loop": ("train",),
    "training.recipe": ("Phase", "Recipe"),
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
