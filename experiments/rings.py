"""Rings: NCP beside Neal's algorithm 8, started cold and given ten times the time.

    python experiments/rings.py [--datasets 12] [--points 60] [--samples 1000]

For data sets from the prior of the model `rings-2d`, one line each and the means:

* ARI of the point estimate (variation of information) to the truth;
* the mean absolute error of the similarity matrix, against a chain of algorithm 8 that starts at
  the truth and takes a hundred times as long as NCP;
* the log evidence: from NCP's samples as weights p(c, x) / q(c), and from the chain's as the
  reciprocal of the mean of q(c) / p(c, x). Both need p(x | c), a three-dimensional integral for
  each distinct cluster, which is done by importance sampling (`log_marginal`);
* seconds, on one thread.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
import torch
from rich.progress import track
from scipy.optimize import minimize
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from ncp import gibbs, load
from ncp.importance import log_evidence
from ncp.likelihoods import Ring
from ncp.mixture import Mixture
from ncp.summary import point_estimate, similarity

DRAWS = 4096
WEIGHED = 200  # samples of each that the evidence is computed from
SHARES, SCALES = (0.7, 0.3), (1.2, 3.0)  # the proposal around the best fit: two normals


def log_marginal(ring: Ring, x: np.ndarray, seed: int = 0) -> float:
    """log p(x_A): draws of (centre, radius) around the best fit, or around one point if few."""
    points = torch.as_tensor(x)
    low, high = ring.radius
    uniform = torch.quasirandom.SobolEngine(4, scramble=True, seed=seed).draw(
        DRAWS, dtype=torch.float64
    )
    normal = math.sqrt(2) * torch.erfinv((2 * uniform - 1).clamp(-1 + 1e-12, 1 - 1e-12))

    def log_joint(parameters: Tensor) -> Tensor:
        fits = ring.log_density(points[None], parameters[None])[0].sum(0)
        return fits + ring.log_prior(parameters)

    if len(x) < 4:  # where the first point lies on its ring, at which radius, and the noise
        radius = low + (high - low) * uniform[:, 0]
        turn = 2 * math.pi * uniform[:, 1]
        spoke = radius[:, None] * torch.stack([turn.cos(), turn.sin()], 1)
        centre = points[0] - spoke - ring.noise_sd * normal[:, 2:]
        draws = torch.cat([centre, radius[:, None]], 1)
        log_q = ring.log_density(points[None, :1], draws[None])[0, 0] - math.log(high - low)
    else:
        best = min(
            (
                minimize(
                    lambda p: -float(log_joint(torch.as_tensor(p)[None])),
                    [*(x.mean(0) + shift), radius],
                    method="Nelder-Mead",
                    options={"maxiter": 400, "xatol": 1e-4, "fatol": 1e-4},
                )
                for radius in np.linspace(low + 0.3, high - 0.3, 3)
                for shift in (np.zeros(2), 0.3 * radius * np.ones(2))
            ),
            key=lambda fit: fit.fun,
        ).x
        at = torch.as_tensor(best).requires_grad_()
        hessian = torch.autograd.functional.hessian(lambda p: -log_joint(p[None])[0], at)
        values, vectors = torch.linalg.eigh(hessian.detach())
        values = values.clamp_min(0.5)
        wide = uniform[:, 3] < SHARES[1]
        step = normal[:, :3] * torch.where(wide, SCALES[1], SCALES[0])[:, None]
        draws = at.detach() + step @ (vectors * values.rsqrt()).T
        square = step.square().sum(1)
        each = [
            math.log(share) - 0.5 * square / scale**2 - 3 * math.log(scale)
            for share, scale in zip(SHARES, SCALES, strict=True)
        ]
        log_q = torch.logaddexp(*each) - 1.5 * math.log(2 * math.pi) + 0.5 * values.log().sum()
    log_w = (log_joint(draws) - log_q).nan_to_num(nan=-math.inf)
    return float(log_w.logsumexp(0)) - math.log(DRAWS)


class Joint:
    """log p(c, x) with every distinct cluster integrated once."""

    def __init__(self, mixture: Mixture, x: np.ndarray) -> None:
        self.mixture, self.x = mixture, x
        self.known: dict[bytes, float] = {}

    def __call__(self, labels: np.ndarray) -> np.ndarray:
        assert isinstance(self.mixture.likelihood, Ring)
        totals = np.asarray(self.mixture.prior.log_prob(labels), dtype=float)
        for i, row in enumerate(labels):
            for k in range(int(row.max()) + 1):
                mask = row == k
                key = mask.tobytes()
                if key not in self.known:
                    self.known[key] = log_marginal(self.mixture.likelihood, self.x[mask])
                totals[i] += self.known[key]
        return totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=12)
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--samples", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load("rings-2d")
    mixture = model.mixture
    assert mixture is not None
    batch = mixture.sample(
        options.datasets, options.points, generator=torch.Generator().manual_seed(2026)
    )
    warm = batch.x[0].numpy()
    model.sample(warm, 10, seed=0)
    gibbs.neal8(warm, mixture, 10, seed=0)
    begin = time.perf_counter()
    gibbs.neal8(warm, mixture, 200, seed=0)
    sweep = (time.perf_counter() - begin) / 200
    lines = []
    for i in track(range(options.datasets), "data sets"):
        x, truth = batch.x[i].numpy(), batch.labels[i].numpy()
        begin = time.perf_counter()
        ours = model.sample(x, options.samples, orders=8, seed=i)
        ncp_seconds = time.perf_counter() - begin
        n_sweeps = max(20, int(10 * ncp_seconds / sweep))
        begin = time.perf_counter()
        chain = gibbs.neal8(x, mixture, n_sweeps, burn_in=n_sweeps // 5, seed=i)
        chain_seconds = time.perf_counter() - begin
        long = gibbs.neal8(
            x, mixture, 10 * n_sweeps, burn_in=n_sweeps, start=truth, thin=5, seed=i + 1
        )
        reference = similarity(*long.unique())
        theirs = chain.unique()
        joint = Joint(mixture, x)
        rng = np.random.default_rng(0)
        few = rng.choice(len(ours.labels), WEIGHED, p=ours.counts / ours.counts.sum())
        log_w = joint(ours.labels[few]) - ours.log_q[few]
        evidence = float(log_evidence(log_w).value)
        drawn = long.labels.reshape(-1, len(x))
        rows = drawn[rng.integers(len(drawn), size=WEIGHED)]
        with torch.no_grad():
            log_q = model.log_prob(x, rows).double().numpy()
        ratio = log_q - joint(rows)
        reciprocal = -float(log_evidence(ratio).value)
        lines.append(
            (
                adjusted_rand_score(truth, point_estimate(ours.labels, ours.weights, "vi").labels),
                adjusted_rand_score(truth, point_estimate(*theirs, "vi").labels),
                np.abs(similarity(ours.labels, ours.weights) - reference).mean(),
                np.abs(similarity(*theirs) - reference).mean(),
                evidence,
                reciprocal,
                ncp_seconds,
                chain_seconds,
            )
        )
    print("| data set | ARI, NCP | ARI, alg. 8 | similarity error, NCP | the same, alg. 8 |")
    print("|---|---|---|---|---|")
    table = np.array(lines)
    named = [(str(i + 1), line) for i, line in enumerate(table)]
    for name, line in [*named, ("mean", table.mean(0))]:
        print(f"| {name} | {line[0]:.3f} | {line[1]:.3f} | {line[2]:.4f} | {line[3]:.4f} |")
    print()
    print("| data set | log evidence, NCP | log evidence, chain | seconds, NCP | seconds, alg. 8 |")
    print("|---|---|---|---|---|")
    for i, line in enumerate(table):
        print(f"| {i + 1} | {line[4]:.2f} | {line[5]:.2f} | {line[6]:.2f} | {line[7]:.2f} |")


if __name__ == "__main__":
    main()
