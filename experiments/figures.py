"""The paper's four figures, from the weights that ship.

Each figure is two functions: one computes a table of numbers, one draws it. `reproduce` runs them,
writes `figN.csv`, `figN.png` and `figN.pdf`, and returns the numbers worth quoting. Data sets are
drawn with fixed seeds or chosen by a rule that is written down here, never by hand.

    python experiments/figures.py           # all four, to figures/
    python experiments/figures.py fig1 fig4
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ncp.files import write_atomically
from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.mixture import Mixture
from ncp.generative.priors import CRP
from ncp.inference.exact import last_conditional
from ncp.inference.importance import effective_sample_size
from ncp.inference.mcmc.gibbs import gibbs
from ncp.inference.mcmc.metropolis import independence_mh
from ncp.model import NCP, load
from ncp.output.plots import PALETTE
from ncp.posterior import Partitions

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = ("fig1", "fig2", "fig3", "fig4")
DPI = 160
Say = Callable[[str], None]


@dataclass(frozen=True)
class Reproduced:
    """What a figure came to: its table, its picture, the numbers to quote."""

    table: pd.DataFrame
    figure: Figure
    numbers: dict[str, float]


def reproduce(
    which: str | Sequence[str] = "all", out: str | Path = "figures", say: Say = print
) -> dict[str, Any]:
    """Make some figures or all; write CSV, PNG and PDF; return the numbers of each.

    They are added to those of other figures in `numbers.json`. A figure whose data cannot be got
    does not keep the others from being made; `OSError` says so at the end.
    """
    names = [which] if isinstance(which, str) else list(which)
    if wrong := set(names) - {*FIGURES, "all"}:
        raise ValueError(f"Expected one of {', '.join(FIGURES)} or all but got {sorted(wrong)}")
    names = [name for name in FIGURES if name in names or "all" in names]
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    numbers: dict[str, Any] = {}
    missing: list[str] = []
    for name in names:
        started = time.perf_counter()
        say(f"{name}: {_TITLES[name]}")
        try:
            made = _MAKERS[name](say)
        except OSError as error:
            missing.append(f"{name} could not be made. {error}")
            say(missing[-1])
            continue
        write_atomically(out / f"{name}.csv", made.table.to_csv(index=False).encode())
        for ending in ("png", "pdf"):
            picture = io.BytesIO()
            made.figure.savefig(picture, format=ending, dpi=DPI, bbox_inches="tight")
            write_atomically(out / f"{name}.{ending}", picture.getvalue())
        numbers[name] = made.numbers | {"seconds": time.perf_counter() - started}
        for key, value in numbers[name].items():
            say(f"  {key}: {value:.4g}")
        _add_numbers(out / "numbers.json", {name: numbers[name]})
    if missing:
        raise OSError("\n".join(missing))
    return numbers


def _add_numbers(path: Path, new: dict[str, Any]) -> None:
    before: Any = {}
    with suppress(OSError, ValueError):  # none yet, or not ours
        before = json.loads(path.read_text())
    merged = (before if isinstance(before, dict) else {}) | new
    write_atomically(path, (json.dumps(dict(sorted(merged.items())), indent=2) + "\n").encode())


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _halves(figure: Figure, upper: float, lower: float) -> tuple[Any, Any]:
    parts: Any = figure.subfigures(2, 1, height_ratios=[upper, lower])
    return parts[0], parts[1]


# -- figure 1: NCP against exact posteriors -------------------------------------------------------


def two_clusters(
    gap: float = 6.0, n_each: int = 50, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Two round clusters of unit noise, `gap` apart on the horizontal axis."""
    rng = np.random.default_rng(seed)
    labels = np.repeat([0, 1], n_each)
    centres = np.array([[-gap / 2, 0.0], [gap / 2, 0.0]])
    return centres[labels] + rng.standard_normal((2 * n_each, 2)), labels


def moving_point(models: dict[str, NCP], gap: float = 6.0, n_positions: int = 241) -> pd.DataFrame:
    """p(c_101 | c_{1:100}, x) as the last point moves along a line, exact and by each model."""
    import pandas as pd

    x, labels = two_clusters(gap)
    place = np.linspace(-12, 12, n_positions)
    moving = np.stack([place, np.zeros_like(place)], 1)
    mixture = next(iter(models.values())).mixture
    assert mixture is not None
    data = np.concatenate([np.broadcast_to(x, (n_positions, *x.shape)), moving[:, None]], 1)
    columns = {"exact": last_conditional(data, labels, mixture.given())}
    columns |= {name: model.assign(moving, x, labels).numpy() for name, model in models.items()}
    return pd.DataFrame(
        {"position": place}
        | {f"{name}:{k}": p[:, k] for name, p in columns.items() for k in range(3)}
    )


def _fig1(say: Say) -> Reproduced:
    models = {"ours": load("gaussian-2d"), "paper": load("gaussian-2d-paper")}
    table = moving_point(models)
    numbers: dict[str, float] = {}
    for name in models:
        gaps = np.abs(np.stack([table[f"{name}:{k}"] - table[f"exact:{k}"] for k in range(3)]))
        numbers |= {
            f"max_abs_difference_{name}": gaps.max(),
            f"mean_abs_difference_{name}": gaps.mean(),
        }
    ours = models["ours"]
    assert ours.mixture is not None
    batch = ours.mixture.sample(1, 100, generator=torch.Generator().manual_seed(_FIG1_SEED))
    x = batch.x[0].numpy()
    samples = ours.sample(x, 5, orders="each", seed=0)
    rows = np.repeat(np.arange(len(samples)), samples.counts)
    samples = samples[rows[np.argsort(-samples.log_q[rows], kind="stable")]]
    for i, (k, log_q) in enumerate(zip(samples.n_clusters, samples.log_q, strict=True), 1):
        numbers |= {f"sample_{i}_k": float(k), f"sample_{i}_nll": float(-log_q)}
    figure = _figure(11.0, 6.5)
    top, bottom = _halves(figure, 1.2, 1.0)
    _draw_moving_point(top, table)
    _draw_samples(bottom, x, samples)
    return Reproduced(table, figure, numbers)


_FIG1_SEED = 7  # fixed before anybody looked


def _draw_moving_point(figure: Any, table: pd.DataFrame) -> None:
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.6])
    x, labels = two_clusters()
    for k in (0, 1):
        left.scatter(*x[labels == k].T, s=12, color=PALETTE[k], label=f"k = {k}")
    left.axhline(0, color="0.6", zorder=0)
    left.set(xlim=(-12, 12), ylim=(-8, 8), title="the 101st point moves along the line")
    left.legend(frameon=False)
    styles = {"exact": ("-", 4, 0.35), "paper": (":", 1.6, 1.0), "ours": ("--", 1.6, 1.0)}
    for name, (line, width, alpha) in styles.items():
        for k in range(3):
            right.plot(
                table["position"], table[f"{name}:{k}"], line, lw=width, alpha=alpha,
                color=PALETTE[k], label=name if k == 0 else None,
            )  # fmt: skip
    right.set(
        xlabel="position of the 101st point", ylabel="probability",
        title="existing clusters (two colours) and a new one (third)",
    )  # fmt: skip
    right.legend(frameon=False, title="line style")


def _draw_samples(figure: Any, x: np.ndarray, samples: Partitions) -> None:
    axes = figure.subplots(1, 6, sharex=True, sharey=True)
    axes[0].scatter(*x.T, s=8, color="0.3")
    axes[0].set_title("observations", fontsize=9)
    for ax, labels, log_q in zip(axes[1:], samples.labels, samples.log_q, strict=True):
        ax.scatter(*x.T, s=8, c=[PALETTE[k % len(PALETTE)] for k in labels])
        ax.set_title(f"K = {labels.max() + 1}, NLL = {-log_q:.1f}", fontsize=9)
    for ax in axes:
        ax.set(aspect="equal", xticks=[], yticks=[])


# -- figure 2: MNIST ------------------------------------------------------------------------------

Case = tuple[np.ndarray, np.ndarray, np.ndarray]  # images, digits, true labels
MOST_ROWS = 6  # partitions that the figure has room for


def digit_cases(n_cases: int, seed: int = 0, n_points: int = 20) -> Iterator[Case]:
    """Data sets of test digits, drawn as in training: (images, digits, true labels)."""
    from ncp.generative.labelled import LabelledArrays
    from ncp.generative.mnist import mnist

    data = mnist()
    likelihood = LabelledArrays(np.arange(len(data.test_labels))[:, None], data.test_labels)
    mixture = Mixture(CRP(0.7), likelihood)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n_cases):
        batch = mixture.sample(1, n_points, generator=generator)
        index = batch.x[0, :, 0].long().numpy()
        images = data.test_images[index].astype(np.float32) / 255
        yield images, data.test_labels[index], batch.labels[0].numpy()


def most_ambiguous(model: NCP, n_cases: int = 100, n_samples: int = 200) -> tuple[Case, Partitions]:
    """The rule for the figure: of the first `n_cases` data sets, among those with at least three
    clusters, the one whose samples have the highest entropy while the most frequent partition
    still has at least half of them."""
    best, chosen = -1.0, None
    cases = list(digit_cases(n_cases))
    posteriors = model.sample_many([images for images, _, _ in cases], n_samples, seed=0)
    for case, posterior in zip(cases, posteriors, strict=True):
        weights = posterior.weights
        entropy = -float((weights * np.log(weights)).sum())
        if case[2].max() >= 2 and weights.max() >= 0.5 and entropy > best:
            best, chosen = entropy, (case, posterior)
    if chosen is None:
        raise ValueError(f"Expected an ambiguous data set among {n_cases} but found none")
    return chosen


def _fig2(say: Say) -> Reproduced:
    import pandas as pd

    model = load("mnist")
    case, posterior = most_ambiguous(model)
    shown = posterior[np.argsort(-posterior.counts, kind="stable")[:MOST_ROWS]]
    figure = _figure(11.0, 12.0)
    first, second = _halves(figure, 1.0, 1.55)
    _draw_digit_rows(first, case[0], shown, len(posterior))
    cases = list(digit_cases(10, seed=1))
    drawn = model.sample_many([images for images, _, _ in cases], 200, seed=1)
    modes = [one[[int(one.counts.argmax())]] for one in drawn]
    shares = [mode.counts[0] / one.n_samples for mode, one in zip(modes, drawn, strict=True)]
    _draw_random_cases(second, cases, modes, shares)
    table = pd.concat(
        [
            _case_table(f"random {i}" if i else "the figure's", *one)
            for i, one in enumerate(zip([case, *cases], [shown, *modes], strict=True))
        ]
    )
    right = [
        np.array_equal(mode.labels[0], truth)
        for mode, (_, _, truth) in zip([shown, *modes], [case, *cases], strict=True)
    ]
    return Reproduced(
        table,
        figure,
        {
            "most_frequent_share": float(posterior.weights.max()),
            "most_frequent_is_truth": float(right[0]),
            "distinct_partitions": float(len(posterior)),
            "random_cases_mode_is_truth": float(np.mean(right[1:])),
        },
    )


def _case_table(name: str, case: Case, partitions: Partitions) -> pd.DataFrame:
    """Digits, true labels, and partitions with how often each was drawn and its NLL."""
    import pandas as pd

    points = np.concatenate([case[1][None], case[2][None], partitions.labels])
    table = pd.DataFrame(points, columns=[f"point {i}" for i in range(len(case[1]))])
    table.insert(0, "nll", [np.nan, np.nan, *-partitions.log_q])
    table.insert(0, "samples", [np.nan, np.nan, *partitions.counts])
    table.insert(0, "row", ["digit", "true label", *["partition"] * len(partitions)])
    table.insert(0, "case", name)
    return table


def _draw_digit_rows(
    figure: Any, images: np.ndarray, posterior: Partitions, n_distinct: int
) -> None:
    n = len(images)
    axes = figure.subplots(len(posterior) + 1, 1)
    strip = np.concatenate(list(images), 1)
    axes[0].imshow(strip, cmap="gray_r")
    axes[0].set_ylabel("data", rotation=0, ha="right", va="center")
    for ax, labels, count, log_q in zip(
        axes[1:], posterior.labels, posterior.counts, posterior.log_q, strict=True
    ):
        _draw_coloured_strip(ax, images, labels)
        ax.set_ylabel(f"{count} samples\nNLL {-log_q:.2f}", rotation=0, ha="right", va="center")
    for ax in axes:
        ax.set(xticks=[], yticks=[], xlim=(0, 28 * n))
    figure.suptitle(
        "Twenty test digits; below, the most frequent partitions among 200 samples "
        f"({len(posterior)} of {n_distinct} distinct ones)"
    )


def _draw_coloured_strip(ax: Axes, images: np.ndarray, labels: np.ndarray) -> None:
    """Each digit on the colour of its cluster, with the cluster's number in the corner."""
    from matplotlib.colors import to_rgb

    colours = np.array([to_rgb(PALETTE[k % len(PALETTE)]) for k in labels])
    ink = np.concatenate(list(images), 1)[..., None]
    paper = np.repeat(0.45 * colours + 0.55, 28, 0)[None]
    ax.imshow(paper * (1 - ink))
    for i, k in enumerate(labels):
        ax.text(28 * i + 2, 7, str(k), fontsize=7, color="black")


def _draw_random_cases(
    figure: Any, cases: list[Case], modes: list[Partitions], shares: list[float]
) -> None:
    axes = figure.subplots(len(cases), 1)
    for ax, (images, _, truth), mode, share in zip(axes, cases, modes, shares, strict=True):
        _draw_coloured_strip(ax, images, mode.labels[0])
        verdict = "= truth" if np.array_equal(mode.labels[0], truth) else "not truth"
        ax.set_ylabel(f"{100 * share:.0f}%\n{verdict}", rotation=0, ha="right", va="center")
        ax.set(xticks=[], yticks=[])
    figure.suptitle("Ten random cases: the most frequent of 200 samples, and its share")


# -- figure 3: training curves --------------------------------------------------------------------


def _fig3(say: Say) -> Reproduced:
    import pandas as pd

    from ncp.output.plots import draw_training

    figure = _figure(11, 6.8)
    tables: list[pd.DataFrame] = []
    numbers: dict[str, float] = {}
    runs = {"paper": "gaussian-2d-paper", "ours": "gaussian-2d"}
    for part, (key, name) in zip(_halves(figure, 1, 1), runs.items(), strict=True):
        path = Path(__file__).parent / "logs" / f"{name}.log.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        draw_training(part, lines, name)
        table = pd.DataFrame([line for line in lines if "nll" in line])
        last = table.tail(max(1, len(table) // 50))
        numbers |= {
            f"accuracy_at_the_end_{key}": float(last["accuracy"].mean()),
            f"nll_at_the_end_{key}": float(last["nll"].mean()),
            f"median_permutation_variance_at_the_end_{key}": float(
                last["permutation_variance"].median()
            ),
        }
        table.insert(0, "model", name)
        tables.append(table)
    return Reproduced(pd.concat(tables), figure, numbers)


# -- figure 4: Gibbs against NCP importance sampling ----------------------------------------------

PAPER_SECONDS = {"Gibbs": 1969.0, "NCP importance": 184.0}  # a run of 20,000 samples, on CPU/GPU
REPETITIONS = 8
N_DRAWS = 20_000
LONG_RUN = 400_000
BURN_IN = {"Gibbs": 1000}
PYTHON_SWEEPS = 20  # of plain Python Gibbs, that are timed


def appendix_b_data(n: int = 50, seed: int = 3) -> tuple[np.ndarray, Mixture]:
    """One data set of 50 numbers from the one-dimensional model."""
    mixture = Mixture(CRP(0.7), GaussianKnownVariance(dim=1, prior_sd=10.0, noise_sd=1.0))
    batch = mixture.sample(1, n, generator=torch.Generator().manual_seed(seed))
    return batch.x[0].numpy(), mixture


def _fig4(say: Say) -> Reproduced:
    import pandas as pd

    model = load("gaussian-1d")
    x, mixture = appendix_b_data()
    at = np.unique(np.round(np.geomspace(20, N_DRAWS, 25)).astype(int))
    curves: dict[str, list[np.ndarray]] = {
        "Gibbs": [],
        "NCP importance": [],
        "NCP-seeded chains": [],
    }
    seconds: dict[str, list[float]] = {name: [] for name in curves}
    gibbs(x, mixture, 10, seed=0)  # compile before the clock starts
    for repetition in range(REPETITIONS):
        say(f"  repetition {repetition + 1} of {REPETITIONS}")
        for name, run in zip(curves, (_gibbs_curve, _importance_curve, _seeded_curve), strict=True):
            started = time.perf_counter()
            curves[name].append(run(model, x, mixture, at, repetition))
            seconds[name].append(time.perf_counter() - started)
    long = gibbs(x, mixture, LONG_RUN, burn_in=LONG_RUN // 80, n_chains=2, seed=99)
    truth = float(long.n_clusters.mean())
    sweep = _python_gibbs_seconds(x, PYTHON_SWEEPS) / PYTHON_SWEEPS
    python_seconds = sweep * (N_DRAWS + BURN_IN["Gibbs"])
    table = pd.DataFrame(
        [
            {"sampler": name, "samples": n, "median": m, "low": lo, "high": hi,
             "error": np.sqrt(((np.stack(runs)[:, i] - truth) ** 2).mean()),
             "seconds": np.mean(seconds[name]), "paper_seconds": PAPER_SECONDS.get(name)}
            for name, runs in curves.items()
            for i, n in enumerate(at)
            for lo, m, hi in [np.quantile(np.stack(runs)[:, i], [0.25, 0.5, 0.75])]
        ]
    )  # fmt: skip
    figure = _draw_fig4(x, table, truth, python_seconds)
    numbers = {"mean_k_of_a_very_long_run": truth, "pure_python_gibbs_seconds": python_seconds}
    for name in curves:
        end = table[(table["sampler"] == name) & (table["samples"] == at[-1])].iloc[0]
        key = name.lower().replace(" ", "_").replace("-", "_")
        numbers |= {f"{key}_seconds": float(end["seconds"]), f"{key}_error": float(end["error"])}
    posterior = model.sample(x, N_DRAWS, seed=0)
    log_w = mixture.log_joint(x, posterior.labels).numpy() - posterior.log_q
    numbers["ncp_importance_ess_share"] = effective_sample_size(log_w, posterior.counts) / N_DRAWS
    return Reproduced(table, figure, numbers)


def _gibbs_curve(model: NCP, x: Any, mixture: Mixture, at: np.ndarray, seed: int) -> np.ndarray:
    chain = gibbs(x, mixture, int(at[-1]), burn_in=BURN_IN["Gibbs"], start="one", seed=seed)
    k = chain.n_clusters[0]
    return np.asarray(np.cumsum(k)[at - 1] / at)


def _importance_curve(
    model: NCP, x: Any, mixture: Mixture, at: np.ndarray, seed: int
) -> np.ndarray:
    posterior = model.sample(x, int(at[-1]), seed=seed)
    log_w = mixture.log_joint(x, posterior.labels).numpy() - posterior.log_q
    # The tree returns distinct rows; a random arrangement gives the samples one by one again.
    row = np.random.default_rng(seed).permutation(
        np.repeat(np.arange(len(posterior)), posterior.counts)
    )
    w = np.exp(log_w - log_w.max())[row]
    k = posterior.n_clusters[row]
    return np.asarray(np.cumsum(w * k)[at - 1] / np.cumsum(w)[at - 1])


def _seeded_curve(model: NCP, x: Any, mixture: Mixture, at: np.ndarray, seed: int) -> np.ndarray:
    def propose(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        drawn = model.sample(x, n, seed=int(rng.integers(2**31)))
        row = rng.permutation(np.repeat(np.arange(len(drawn)), drawn.counts))
        return drawn.labels[row], drawn.log_q[row]

    def log_q(labels: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model.log_prob(x, labels).double().numpy()

    n_chains = 20
    chains = independence_mh(
        x, mixture, propose, int(at[-1]) // n_chains, log_q=log_q, n_chains=n_chains, seed=seed
    )
    k = chains.n_clusters.T.reshape(-1)  # one draw of every chain in turn
    return np.asarray(np.cumsum(k)[at - 1] / at)


def _python_gibbs_seconds(x: np.ndarray, n_sweeps: int) -> float:
    """The paper's naive way, timed on a part: collapsed Gibbs in plain Python."""
    values, labels = x[:, 0].tolist(), [0] * len(x)
    rng = np.random.default_rng(0)
    started = time.perf_counter()
    for _ in range(n_sweeps):
        for i, value in enumerate(values):
            labels[i] = -1
            clusters = sorted(set(labels) - {-1})
            log_weights = []
            for k in [*clusters, None]:
                members = [v for v, c in zip(values, labels, strict=True) if c == k]
                precision = 0.01 + len(members)
                mean, variance = sum(members) / precision, 1 / precision + 1
                prior = np.log(len(members) if members else 0.7)
                log_weights.append(
                    prior - 0.5 * np.log(variance) - 0.5 * (value - mean) ** 2 / variance
                )
            weights = np.exp(np.array(log_weights) - max(log_weights))
            choice = rng.choice(len(weights), p=weights / weights.sum())
            labels[i] = clusters[choice] if choice < len(clusters) else max(clusters) + 1
    return time.perf_counter() - started


def _draw_fig4(x: np.ndarray, table: pd.DataFrame, truth: float, python_seconds: float) -> Figure:
    figure = _figure(11.0, 10.5)
    data, curve, seeded, accuracy = figure.subplots(4, 1, height_ratios=[0.5, 1.4, 1.4, 1.4])
    data.plot(x[:, 0], np.zeros(len(x)), "|", ms=18, color="0.2")
    data.set(yticks=[], title=f"the data: {len(x)} numbers", xlabel="x")
    for i, (name, part) in enumerate(table.groupby("sampler", sort=False)):
        seconds, paper = part["seconds"].iloc[0], PAPER_SECONDS.get(str(name))
        theirs = "the paper has none" if paper is None else f"the paper's: {paper:,.0f} s"
        ax, colour = curve if paper else seeded, PALETTE[i]
        label = f"{name} ({seconds:.2f} s a run; {theirs})"
        ax.plot(part["samples"], part["median"], color=colour, label=label)
        ax.fill_between(part["samples"], part["low"], part["high"], color=colour, alpha=0.2)
        cost = part["samples"] + BURN_IN.get(str(name), 0)
        spent = seconds * cost / cost.max()
        accuracy.loglog(spent, part["error"], color=colour, label=name)
    repeated = f"medians and quartiles of {REPETITIONS} repetitions; dotted: a very long run"
    curve.set_title(f"Gibbs and importance sampling: {repeated}")
    seeded.set_title(f"exact chains seeded by NCP: {repeated}")
    seeded.sharex(curve)
    seeded.sharey(curve)
    for ax in (curve, seeded):
        ax.axhline(truth, color="0.4", lw=0.8, ls=":")
        ax.set(xscale="log", xlabel="samples", ylabel="mean of K")
        ax.legend(frameon=False)
    accuracy.set(
        xlabel="seconds (of a run, in proportion to its samples and burn-in)",
        ylabel="rms error of mean K",
        title="accuracy against time (plain Python Gibbs would need "
        f"{python_seconds:.0f} s a run, by {PYTHON_SWEEPS} sweeps timed)",
    )
    accuracy.legend(frameon=False)
    return figure


_TITLES = {
    "fig1": "NCP against exact posteriors",
    "fig2": "clustering of MNIST digits",
    "fig3": "training curves",
    "fig4": "Gibbs against NCP importance sampling",
}
_MAKERS: dict[str, Callable[[Say], Reproduced]] = {
    "fig1": _fig1, "fig2": _fig2, "fig3": _fig3, "fig4": _fig4,
}  # fmt: skip

if __name__ == "__main__":
    reproduce(sys.argv[1:] or "all")
