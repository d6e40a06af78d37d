"""The Gaussian family on real tables, and in time against Gibbs and scikit-learn's mixtures.

    python benchmarks/gaussian.py [--quick] [--only tables time mixtures]

**Real tables.** `ncp.cluster` at fixed hyper-parameters (alpha 1, ratio 2, dof d + 12; galaxies as
on the page of Gaussian mixtures) with 6,000 samples and at most 20 s of chains, against four long
cold chains of the same model with splits and merges. TV is the total variation between the two
posteriors of K; "by chance" is what the Monte Carlo error of both alone would give on average. The
evidence of the chains is a bridge from their draws to 400 fresh ones of the network.

**Time.** Ten data sets of the family each, 100 points, unknown covariances, hyper-parameters drawn
and then known. Both estimate E[K]: NCP by 1,000 samples and the exact step, Gibbs by one chain from
a sequential start with a burn-in of a tenth. The error is the root mean square over repetitions
against long chains; seconds to an error of 0.05 are time x (error / 0.05)². CPU seconds of one
thread; the ratio is Gibbs's by NCP's for each data set, median and range: above 1 NCP is faster.
NumPyro's truncated mixture is compared in `experiments/truncated_mixture.py`.

**scikit-learn.** Data sets of 50 points of the family in 1, 2, 4 and 8 dimensions. NCP and
`BayesianGaussianMixture` (10 components) have the family's prior, `GaussianMixture` the K from 1 to
10 with the best BIC. NCP draws 100 samples for all data sets at once, weighs them for the evidence,
and its partition has the least expected variation of information. Scaled to 500 data sets.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _timing import Spread, lost, short
from comparison import ACCURACY, Runs, repeat

import ncp
from ncp.checks.family import in_dimension
from ncp.clustering.gaussian import FamilyTable
from ncp.clustering.gaussian_result import GaussianClustering
from ncp.generative.gaussian_family import GaussianFamily
from ncp.generative.mixture import Mixture
from ncp.inference.bridge import bridge
from ncp.inference.importance import Estimate
from ncp.inference.mcmc.chains import Chains, ess_of_chains
from ncp.inference.mcmc.gibbs import gibbs
from ncp.model import NCP, load
from ncp.summary.distance import agreement
from ncp.summary.estimate import point_estimate

MODELS = ("gaussian",)
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
CLOSE = 0.02  # goal for the total variation of the posterior of K
SLOWER = 1.5  # times that NCP may take as long as a variational mixture
BRIDGE = 400  # draws of each side


# -- real tables -----------------------------------------------------------------------------------


class Table(NamedTuple):
    """A real table and the hyper-parameters that it is clustered with."""

    name: str
    x: np.ndarray
    setting: dict[str, float]
    n_sweeps: int  # of each long chain


def tables() -> Iterator[Table]:
    import pandas as pd

    galaxies = pd.read_csv(EXAMPLES / "galaxies.csv").to_numpy(float)
    yield Table("galaxies", galaxies, {"alpha": 1.0, "ratio": 8.0, "dof": 6.0}, 20_000)
    yield common("Old Faithful", pd.read_csv(EXAMPLES / "faithful.csv").to_numpy(float), 8_000)
    yield common("iris", pd.read_csv(EXAMPLES / "iris.csv").iloc[:, :4].to_numpy(float), 12_000)
    package = importlib.util.find_spec("palmerpenguins")
    if package is None or package.origin is None:
        print("(penguins are left out, the package palmerpenguins is not installed)\n")
        return
    frame = pd.read_csv(Path(package.origin).parent / "data" / "penguins.csv")
    measured = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
    yield common("penguins", frame[measured].dropna().to_numpy(float), 15_000)


def common(name: str, x: np.ndarray, n_sweeps: int) -> Table:
    return Table(name, x, {"alpha": 1.0, "ratio": 2.0, "dof": x.shape[1] + 12.0}, n_sweeps)


class OfK(NamedTuple):
    """A posterior of K with the standard error of each probability."""

    p: np.ndarray
    error: np.ndarray

    @classmethod
    def of_chains(cls, chains: Chains) -> OfK:
        k = chains.n_clusters
        each = [(k == one).astype(float) for one in range(int(k.max()) + 1)]
        p = np.array([one.mean() for one in each])
        worth = np.array([ess_of_chains(one) if 0 < one.mean() < 1 else 1.0 for one in each])
        return cls(p, np.sqrt(p * (1 - p) / worth))

    @classmethod
    def of_result(cls, found: GaussianClustering) -> OfK:
        posterior = found.posterior
        p = np.bincount(posterior.n_clusters, weights=posterior.weights)
        return cls(p, np.sqrt(p * (1 - p) / posterior.report.ess))

    def padded(self, length: int) -> OfK:
        more = (0, length - len(self.p))
        return OfK(np.pad(self.p, more), np.pad(self.error, more))

    @property
    def mean(self) -> float:
        return float(self.p @ np.arange(len(self.p)))

    def likely(self) -> str:
        best = np.argsort(-self.p)[:3]
        return ", ".join(f"{k} ({self.p[k]:.0%})" for k in best if self.p[k] >= 0.005)


def total_variation(one: OfK, other: OfK) -> tuple[float, float]:
    """Between two estimates, and what their errors alone would give on average."""
    length = max(len(one.p), len(other.p))
    a, b = one.padded(length), other.padded(length)
    by_chance = math.sqrt(2 / math.pi) * np.hypot(a.error, b.error).sum() / 2
    return float(np.abs(a.p - b.p).sum() / 2), float(by_chance)


def evidence_of(chains: Chains, table: FamilyTable, model: NCP) -> Estimate:
    """log p(x) by a bridge from draws of long chains to fresh ones of the network."""
    features, mixture = table.features(), table.mixture()
    q = model.sample(features, BRIDGE, seed=77)
    of_q = np.asarray(mixture.log_joint(table.z, q.labels)) - q.log_q
    rows = chains.labels.reshape(-1, chains.labels.shape[-1])
    rows = rows[np.linspace(0, len(rows) - 1, BRIDGE).astype(int)]
    log_q = model.log_prob(features, rows).detach().double().numpy()
    of_p = np.asarray(mixture.log_joint(table.z, rows)) - log_q
    found = bridge(np.repeat(of_q, q.counts), of_p, min(chains.diagnostics().ess_k, BRIDGE))
    return Estimate(found.value + len(table.z) * table.log_jacobian, found.standard_error)


def real_tables(model: NCP, quick: bool) -> list[str]:
    n_samples, share, limit = (200, 0.01, 0.5) if quick else (6000, 1.0, 20.0)
    print(
        "| table | N, d | by | seconds | effective draws | most probable K | E[K], of chains "
        "| TV (by chance) | log evidence, of chains |\n|---|---|---|---|---|---|---|---|---|"
    )
    missed = []
    for name, x, setting, n_sweeps in tables():
        began = time.process_time()
        found = ncp.cluster(x, model, n_samples=n_samples, time_limit=limit, seed=1, **setting)
        seconds = time.process_time() - began
        assert isinstance(found, GaussianClustering)
        table = found.family
        assert table is not None
        n = int(share * n_sweeps)
        how: dict[str, Any] = {"burn_in": n // 20, "thin": 2, "n_chains": 4, "n_jumps": 1}
        chains = gibbs(table.z, table.mixture(), n, seed=2, **how)
        ours, theirs = OfK.of_result(found), OfK.of_chains(chains)
        apart, by_chance = total_variation(ours, theirs)
        report, long = found.posterior.report, evidence_of(chains, table, model)
        print(
            f"| {name} | {len(x)}, {x.shape[1]} | {report.method} | {seconds:.1f} | "
            f"{report.ess:,.0f}, {chains.diagnostics().ess_k:,.0f} | {ours.likely()} | "
            f"{ours.mean:.2f}, {theirs.mean:.2f} | {apart:.3f} ({by_chance:.3f}) | "
            f"{shown(found.evidence)}, {shown(long)} |",
            flush=True,
        )
        if apart > CLOSE and not quick:
            missed.append(
                f"{name}: posterior of K {apart:.3f} from that of long chains instead of {CLOSE} "
                f"(by chance {by_chance:.3f})."
            )
    return missed


def shown(estimate: Estimate) -> str:
    return f"{float(estimate.value):.1f} ± {float(estimate.standard_error):.2g}"


# -- time to an error ------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """A data set of the family, with its law and its truth."""

    features: torch.Tensor
    x: np.ndarray
    mixture: Mixture
    labels: np.ndarray


def draw(family: GaussianFamily, dim: int, n_sets: int, n_points: int, seed: int) -> list[Drawn]:
    """Data sets of one dimension with unknown covariances."""
    generator = torch.Generator().manual_seed(seed)
    batch = in_dimension(family, dim, known=0.0).sample(n_sets, n_points, generator=generator)
    found = []
    for features, labels in zip(batch.x, batch.labels, strict=True):
        mixture, points = family.unpack(features)
        found.append(Drawn(features, points.numpy(), mixture, labels.numpy()))
    return found


def by_chain(one: Drawn, n_sweeps: int, n_chains: int = 1, n_jumps: int = 0) -> Any:
    def estimate(seed: int) -> float:
        how: dict[str, Any] = {"n_chains": n_chains, "n_jumps": n_jumps, "seed": seed}
        chains = gibbs(one.x, one.mixture, n_sweeps, burn_in=n_sweeps // 10, **how)
        return float(chains.n_clusters.mean())

    return estimate


def by_ncp(model: NCP, one: Drawn) -> Any:
    def estimate(seed: int) -> float:
        drawn = model.sample(one.features, 1000, seed=seed)
        exact = drawn.exact(one.mixture, one.x, seed=seed)
        return float(exact.weights @ exact.n_clusters)

    return estimate


def time_to_error(model: NCP, family: GaussianFamily, quick: bool) -> list[str]:
    n_sets, repeats, n_sweeps, long = (2, 2, 200, 500) if quick else (10, 3, 2000, 10_000)
    print(
        f"\n{n_sets} data sets in each dimension, {repeats} repetitions, chains of {n_sweeps:,} "
        f"sweeps, truth by 2 chains of {long:,} with splits and merges:\n"
    )
    print("| d | seconds to 0.05, NCP | Gibbs | error of NCP's runs | Gibbs's | ratio |")
    print("|---|---|---|---|---|---|")
    missed = []
    for dim in (2, 4):
        ours: list[tuple[float, float]] = []
        theirs: list[tuple[float, float]] = []
        for one in draw(family, dim, n_sets, 100, seed=20 + dim):
            truth = by_chain(one, long, n_chains=2, n_jumps=1)(99)
            ours.append(reach(repeat(by_ncp(model, one), repeats), truth))
            theirs.append(reach(repeat(by_chain(one, n_sweeps), repeats), truth))
        ratio = Spread.of([c[0] / n[0] for c, n in zip(theirs, ours, strict=True)])
        print(
            f"| {dim} | {Spread.of([s for s, _ in ours])} | {Spread.of([s for s, _ in theirs])} "
            f"| {Spread.of([e for _, e in ours])} | {Spread.of([e for _, e in theirs])} "
            f"| {ratio} |",
            flush=True,
        )
        if ratio.middle < 1:
            missed.append(
                f"Gibbs from a cold start wins in {dim}-D with unknown covariances: in the median "
                f"{short(1 / ratio.middle)} times faster to an error of {ACCURACY} of E[K]."
            )
    return missed


def reach(runs: Runs, truth: float) -> tuple[float, float]:
    """Seconds to the accuracy, and the error of one run."""
    return max(runs.seconds_to(truth), 1e-9), runs.error(truth)


# -- scikit-learn ----------------------------------------------------------------------------------


def by_network(model: NCP, sets: list[Drawn]) -> list[np.ndarray]:
    many = model.sample_many([one.features for one in sets], 100, seed=0)
    found = []
    for one, drawn in zip(sets, many, strict=True):
        weighted = drawn.reweight(one.mixture, one.x)
        assert np.isfinite(weighted.report.log_evidence.value)
        found.append(point_estimate(weighted.labels, weighted.weights).labels)
    return found


def by_variation(one: Drawn, setting: torch.Tensor) -> np.ndarray:
    """With the family's prior, whose scale is 1: E[Sigma] = 1 and mean precision 1 / ratio^2."""
    from sklearn.mixture import BayesianGaussianMixture

    alpha, dim, ratio, dof = setting.tolist()
    mixture = BayesianGaussianMixture(
        n_components=10,
        weight_concentration_prior=alpha,
        mean_prior=np.zeros(int(dim)),
        mean_precision_prior=ratio**-2,
        degrees_of_freedom_prior=dof,
        covariance_prior=np.eye(int(dim)) * (dof - dim - 1),  # the scale of the Wishart law
        max_iter=300,
        random_state=0,
    )
    return np.asarray(mixture.fit_predict(one.x))


def by_bic(one: Drawn) -> np.ndarray:
    from sklearn.mixture import GaussianMixture

    every = [GaussianMixture(k, random_state=0).fit(one.x) for k in range(1, 11)]
    best = min(every, key=lambda mixture: float(mixture.bic(one.x)))
    return np.asarray(best.predict(one.x))


def mixtures(model: NCP, family: GaussianFamily, quick: bool) -> list[str]:
    each, turns = (2, 1) if quick else (10, 3)
    sets = [one for dim in (1, 2, 4, 8) for one in draw(family, dim, each, 50, seed=40 + dim)]
    settings = [family.hyperparameters_of(one.features) for one in sets]
    jobs = {
        "NCP": lambda: by_network(model, sets),
        "BayesianGaussianMixture": lambda: [
            by_variation(one, setting) for one, setting in zip(sets, settings, strict=True)
        ],
        "GaussianMixture by BIC": lambda: [by_bic(one) for one in sets],
    }
    spent: dict[str, list[float]] = {name: [] for name in jobs}
    scores = {}
    for turn in range(turns + 1):
        for name, job in jobs.items():
            if name.endswith("BIC") and turn > 1:
                continue
            begin = time.process_time()
            labels = job()
            if turn:
                spent[name].append((time.process_time() - begin) * 500 / len(sets))
            scores[name] = [
                float(agreement(row, one.labels).ari) for row, one in zip(labels, sets, strict=True)
            ]
    times = {name: Spread.of(turns) for name, turns in spent.items()}
    return report_mixtures(times, scores, len(sets))


def report_mixtures(
    times: dict[str, Spread], scores: dict[str, list[float]], n_sets: int
) -> list[str]:
    print(f"\n| on {n_sets} data sets | seconds for 500 | mean ARI to the truth |\n|---|---|---|")
    for name, spread in times.items():
        error = np.std(scores[name]) / math.sqrt(n_sets)
        print(f"| {name} | {spread} | {np.mean(scores[name]):.3f} ± {error:.3f} |")
    rival = "BayesianGaussianMixture"
    ratio = times["NCP"] / times[rival]
    print(f"\nNCP takes {ratio} times as long as `{rival}` (goal at most {SLOWER}).")
    missed = []
    if ratio.middle > SLOWER:
        missed.append(f"500 data sets take {ratio} times as long as `{rival}`, not {SLOWER}.")
    mean = {name: float(np.mean(found)) for name, found in scores.items()}
    missed += [
        f"`{name}` has a mean ARI of {ari:.3f} on the family's own data, NCP {mean['NCP']:.3f}."
        for name, ari in mean.items()
        if ari > mean["NCP"]
    ]
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--only", nargs="+", default=["tables", "time", "mixtures"])
    options = parser.parse_args()
    quick = options.quick
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*did not converge")
    model = load("gaussian")
    family = model.mixture
    assert isinstance(family, GaussianFamily)
    parts = {
        "tables": lambda: real_tables(model, quick),
        "time": lambda: time_to_error(model, family, quick),
        "mixtures": lambda: mixtures(model, family, quick),
    }
    lost([line for name, part in parts.items() if name in options.only for line in part()])


if __name__ == "__main__":
    main()
