"""Digits that were never seen in training: is it a classifier in disguise?

    ncp train experiments/mnist-0-6.toml
    python experiments/unseen_digits.py [--datasets 200]

The network is trained on images of the digits 0 to 6. It is tested on test images of these digits,
and of 7, 8 and 9, with at most three clusters in a data set for both: mean ARI of the estimate
to the digits, with its standard error, and how often the posterior mode of K is right. For
comparison, the model `mnist`, which saw all digits.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch
from rich.progress import track
from sklearn.metrics import adjusted_rand_score

from ncp.generative.labelled import LabelledArrays
from ncp.generative.mixture import Mixture
from ncp.generative.mnist import mnist
from ncp.generative.priors import CRP
from ncp.model import NCP, load, load_model
from ncp.summary.estimate import point_estimate


def data_sets(digits: list[int], n_datasets: int, n_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Test images of three of the digits, partitions from the Chinese restaurant process."""
    test = mnist()
    xs, labels = [], []
    generator = torch.Generator().manual_seed(7)
    rng = np.random.default_rng(7)
    for _ in range(n_datasets):
        chosen = np.isin(test.test_labels, rng.choice(digits, 3, replace=False))
        likelihood = LabelledArrays(test.test_images[chosen], test.test_labels[chosen])
        batch = Mixture(CRP(0.7), likelihood).sample(1, n_points, generator=generator)
        xs.append(batch.x[0].numpy())
        labels.append(batch.labels[0].numpy())
    return np.stack(xs), np.stack(labels)


def score(model: NCP, digits: list[int], n_datasets: int, n_points: int) -> str:
    found, right = [], []
    xs, labels = data_sets(digits, n_datasets, n_points)
    for x, truth in track(list(zip(xs, labels, strict=True)), f"N = {n_points}"):
        samples = model.sample(x, 100, orders=4, seed=0)
        estimate = point_estimate(samples.labels, samples.weights, "vi")
        found.append(adjusted_rand_score(truth, estimate.labels))
        n_clusters = np.bincount(samples.labels.max(1) + 1, samples.counts)
        right.append(n_clusters.argmax() == truth.max() + 1)
    error = np.std(found) / np.sqrt(len(found))
    return f"{np.mean(found):.3f} ± {error:.3f} | {np.mean(right):.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=200)
    n_datasets = parser.parse_args().datasets
    models = {
        "0 to 6": load_model("runs/mnist-0-6/mnist-0-6.safetensors"),
        "0 to 9": load("mnist"),
    }
    lines = ["| trained on | tested on | N | ARI | mode of K right |", "|---|---|---|---|---|"]
    for trained, model in models.items():
        for tested, digits in (("0 to 6", [*range(7)]), ("7 to 9", [7, 8, 9])):
            for n in (20, 100):
                found = score(model, digits, n_datasets, n)
                lines.append(f"| {trained} | {tested} | {n} | {found} |")
    print("\n".join(lines), file=sys.stdout)


if __name__ == "__main__":
    main()
