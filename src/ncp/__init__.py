"""Amortised Bayesian clustering: independent posterior samples over partitions in milliseconds."""

from ncp.mixture import Mixture
from ncp.model import NCP, NCPConfig

__version__ = "0.1.0"
