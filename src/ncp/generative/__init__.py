"""What data could look like: priors of partitions, likelihoods, mixtures, tables.

The families are imported with the package, so that a spec in a file can name any of them.
"""

from ncp.generative import (
    gaussian,
    gaussian_family,
    labelled,
    laplace,
    mixture,
    ring,
    tables,
    wishart,
)

__all__ = [
    "gaussian",
    "gaussian_family",
    "labelled",
    "laplace",
    "mixture",
    "ring",
    "tables",
    "wishart",
]
