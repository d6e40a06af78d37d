"""Forty random tables from the prior of the model `tabular`, on their first two axes.

    python experiments/tabular_prior.py docs/images/tabular_prior.png

The colours are the true clusters; the title says rows x columns and the number of clusters.
"""

from __future__ import annotations

import argparse

import numpy as np

from ncp.generative.tables import TabularMixture
from ncp.network.pretrained import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="the picture to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=0, help="rows of every table; 0: 30 to 250")
    options = parser.parse_args()

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rng = np.random.default_rng(options.seed)
    mixture = load("tabular").mixture
    assert isinstance(mixture, TabularMixture)
    colours = np.array([*plt.get_cmap("tab10").colors, *plt.get_cmap("Dark2").colors])
    figure, axes = plt.subplots(5, 8, figsize=(16, 10.5))
    for ax in axes.flat:
        n = options.rows or int(np.exp(rng.uniform(np.log(30), np.log(250))))
        table, fitted, labels = mixture.sample_table(n, rng)
        y = fitted.features[:, :2]
        if fitted.coordinates.shape[1] == 1:
            y = np.column_stack((y[:, 0], rng.uniform(-0.3, 0.3, size=n)))
        ax.scatter(*y.T, s=5, color=colours[labels % len(colours)], linewidths=0)
        ax.set_title(f"{n} x {table.x.shape[1]}, K = {labels.max() + 1}", fontsize=8, pad=2)
        ax.set_xticks([])
        ax.set_yticks([])
    figure.tight_layout(pad=0.4)
    figure.savefig(options.file, dpi=90)


if __name__ == "__main__":
    main()
