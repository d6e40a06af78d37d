"""Forty random tables from the prior of the model `tabular`, on their first two axes.

    python experiments/tabular_prior.py docs/images/tabular_prior.png

The colours are the true clusters; the title says rows x columns (of categories) and the number of
clusters, and how much is missing.
"""

from __future__ import annotations

import argparse

import numpy as np

from ncp.generative.table_prior import RawTable
from ncp.generative.tables import TabularMixture


def _title(table: RawTable, k: int) -> str:
    n, p = table.x.shape
    codes = f" ({table.categorical.sum()})" if table.categorical.any() else ""
    gone = np.isnan(table.x).mean()
    missing = f", {100 * gone:.0f}% missing" if gone else ""
    return f"{n} x {p}{codes}, K = {k}{missing}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="the picture to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=0, help="rows of every table; 0: 30 to 1,000")
    options = parser.parse_args()

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rng = np.random.default_rng(options.seed)
    mixture = TabularMixture()
    figure, axes = plt.subplots(5, 8, figsize=(16, 10.5))
    for ax in axes.flat:
        n = options.rows or int(np.exp(rng.uniform(np.log(30), np.log(1000))))
        table, fitted, labels = mixture.sample_table(n, rng)
        y = fitted.features[:, :2]
        if fitted.coordinates.shape[1] == 1:
            y = np.column_stack((y[:, 0], rng.uniform(-0.3, 0.3, size=n)))
        k = labels.max() + 1
        shades = plt.get_cmap("gist_rainbow")(rng.permutation(k) / k)
        ax.scatter(*y.T, s=4, color=shades[labels], linewidths=0)
        ax.set_title(_title(table, k), fontsize=8, pad=2)
        ax.set_xticks([])
        ax.set_yticks([])
    figure.tight_layout(pad=0.4)
    figure.savefig(options.file, dpi=90)


if __name__ == "__main__":
    main()
