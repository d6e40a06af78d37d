"""Time to an error of 0.05 of E[K]: NumPyro's truncated mixture against the Gaussian family.

    pip install numpyro
    python experiments/truncated_mixture.py [--sets 3] [--minutes 2]

NumPyro is not among what the project installs, so this is no part of `make bench` or CI. The data
sets are the first of `benchmarks/gaussian.py` in the plane (100 points, unknown covariances) whose
E[K] is below 6. The same Dirichlet process is truncated to 12 sticks; labels are summed out, and
NUTS draws sticks, means and covariances. K is counted from labels drawn afterwards given the
parameters. Seconds to the error are those until the variance is small enough; compiling, adaptation
and whatever bias is left are not held against it. The truth and NCP's seconds need `ncp` as well;
where it cannot be imported, they are read from the file that `--write` made where it can.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

STICKS = 12
CHAIN = 500  # draws after as many to adapt


def written(path: Path, n_sets: int) -> None:
    """Data sets, hyper-parameters, E[K] by long chains, and NCP's seconds to the error."""
    import sys

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
    import torch
    from comparison import repeat  # type: ignore[import-not-found]
    from gaussian import by_chain, by_ncp, draw  # type: ignore[import-not-found]

    from ncp.model import load

    torch.set_num_threads(1)
    model = load("gaussian")
    family: Any = model.mixture
    every = draw(family, 2, 10, 100, seed=22)
    means = [by_chain(one, 10_000, n_chains=2, n_jumps=1)(99) for one in every]
    fit = [i for i, mean in enumerate(means) if mean < STICKS / 2][:n_sets]
    found, truth = [every[i] for i in fit], [means[i] for i in fit]
    settings = [family.hyperparameters_of(one.features).numpy() for one in found]
    runs = [repeat(by_ncp(model, one), 6) for one in found]
    np.savez(
        path,
        x=np.stack([one.x for one in found]),
        settings=np.stack(settings),
        truth=np.array(truth),
        seconds=np.array([r.seconds_to(k) for r, k in zip(runs, truth, strict=True)]),
    )


def model(x: Any, alpha: float, ratio: float, dof: float) -> None:
    """Stick breaking and Normal-inverse-Wishart clusters; labels are summed out."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    d = x.shape[1]
    sticks = numpyro.sample("sticks", dist.Beta(1.0, alpha).expand([STICKS - 1]).to_event(1))
    left = jnp.concatenate([jnp.ones(1), jnp.cumprod(1 - sticks)])
    weights = left * jnp.concatenate([sticks, jnp.ones(1)])
    # Sigma ~ InverseWishart(dof, nu 1) is Sigma^-1 ~ Wishart(dof, 1 / nu)
    root = jnp.eye(d) / jnp.sqrt(dof - d - 1)
    law = dist.WishartCholesky(dof, scale_tril=root)
    with numpyro.plate("clusters", STICKS):
        precision = numpyro.sample("precision", law)  # its Cholesky factor
        means = numpyro.sample(
            "means",
            dist.MultivariateNormal(
                jnp.zeros(d), precision_matrix=precision @ precision.mT / ratio**2
            ),
        )
    each = dist.MultivariateNormal(means, precision_matrix=precision @ precision.mT)
    log_p = each.log_prob(x[:, None]) + jnp.log(weights)
    numpyro.deterministic("log_p", log_p)
    numpyro.factor("likelihood", jnp.logaddexp.reduce(log_p, axis=1).sum())


def effective(k: np.ndarray) -> float:
    """Effective number of draws of chains (chains, draws), by NumPyro."""
    from numpyro.diagnostics import effective_sample_size

    return float(effective_sample_size(k.astype(float)))


def draws_of_k(run: Any, seed: int) -> np.ndarray:
    """The number of clusters of labels given parameters, (chains, draws)."""
    log_p = np.asarray(run.get_samples(group_by_chain=True)["log_p"])
    noise = np.random.default_rng(seed).gumbel(size=log_p.shape)
    labels = (log_p + noise).argmax(axis=-1)
    used = (labels[..., None] == np.arange(STICKS)).any(axis=-2)
    return np.asarray(used.sum(axis=-1))


def measure(x: np.ndarray, setting: np.ndarray, truth: float, minutes: float) -> tuple[float, str]:
    """Seconds to the error by variance alone, and a row of the table without NCP's part."""
    import jax
    from numpyro.infer import MCMC, NUTS

    alpha, _, ratio, dof = (float(value) for value in setting)
    run = MCMC(
        NUTS(model, max_tree_depth=8),
        num_warmup=CHAIN,
        num_samples=CHAIN,
        num_chains=1,
        progress_bar=False,
    )
    run.run(jax.random.PRNGKey(0), x, alpha, ratio, dof)  # adapts and compiles
    began, found = time.process_time(), []
    while not found or time.process_time() - began < 60 * minutes:
        run.post_warmup_state = run.last_state
        run.run(jax.random.PRNGKey(1 + len(found)), x, alpha, ratio, dof)
        found.append(draws_of_k(run, len(found))[0])
    spent = time.process_time() - began
    k = np.concatenate(found)[None]
    worth = effective(k)
    needed = float(k.var()) / 0.05**2
    seconds = spent * needed / worth
    shown = (
        f"{truth:.2f} | {k.mean():.2f} ± {k.std() / np.sqrt(worth):.2f} | {worth:.0f} | "
        f"{spent:.0f} | {seconds:.0f}"
    )
    return seconds, shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=2.0, help="for each data set")
    parser.add_argument("--data", type=Path, default=Path("truncated_mixture.npz"))
    parser.add_argument("--write", action="store_true", help="only write the file of data sets")
    options = parser.parse_args()
    if options.write or not options.data.exists():
        written(options.data, options.sets)
    if options.write:
        return
    data = np.load(options.data)
    print("| E[K] | NumPyro | effective draws | seconds | seconds to 0.05 | NCP's | ratio |")
    print("|---|---|---|---|---|---|---|")
    for x, setting, truth, ours in zip(*(data[name] for name in data), strict=True):
        seconds, shown = measure(x, setting, float(truth), options.minutes)
        print(f"| {shown} | {ours:.2g} | {seconds / ours:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
