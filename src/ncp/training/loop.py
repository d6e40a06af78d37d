r"""Training: one visible loop.

A step draws data sets from the mixture, each in one or more random orders, sums the negative
log-likelihood of all sequences, divides by the number of points, clips the gradient and lets Adam
move the weights. Data sets are worked through in pieces that fit the cache, with gradients
accumulated, so a step's memory does not grow with its size.

Nothing of the random stream is state: the data of step t of rank r come from a generator seeded
with (seed, rollbacks, r, t). So a run that is killed and resumed repeats exactly the steps that
the last checkpoint had not seen, and the next batch can be drawn in the background.

With several processes each draws data of its own; gradients and point counts are summed over all,
so two ranks are one rank with twice the batch. What travels in a step is one vector of the
parameters' length.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import deepcopy
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ncp.files import write_atomically
from ncp.generative.mixture import Mixture
from ncp.inference.exact import similarity
from ncp.inference.importance import effective_sample_size
from ncp.model import CHUNK, NCP, NCPConfig, candidates_per_row, groups_of
from ncp.network.checkpoint import (
    FAULTS,
    Checkpoint,
    read,
    refusing,
    save_model,
    write,
)
from ncp.sampling.tree import sample_many
from ncp.training.targets import Sequences, likelihoods, probes, sequences, tail_targets

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Validate = Callable[[NCP], Mapping[str, float]]

CHECKPOINTS_KEPT = 3
MOMENTS = ("exp_avg", "exp_avg_sq", "step")  # what Adam remembers of each parameter
BAD_STEPS_IN_A_ROW = 5
LARGEST_ENUMERATED = 9  # points of a data set, all of whose 21,147 partitions are weighed
ROLLBACKS = 8
# What a run's model may have more than its initial weights, without effect at the start.
ADDED = ("context", "waves", "product_in_f", "means_in_f", "distances")
MONITOR_ORDERS = 8  # the paper's number of orders for the symmetry monitor
MONITOR_DATASETS = 4
ACCELERATOR_CHUNK = 64 * CHUNK  # candidates of a piece where there is no cache to fit


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained. The defaults are the fast recipe.

    Arguments:
        steps: Optimiser steps.
        points_per_step: Points of a step, whatever N: the number of data sets follows.
        datasets_per_step: Data sets of a step, instead of `points_per_step` (the paper: 48).
        sizes_per_step: Different N in a step; the points are spread evenly over them.
        orders: Random orders in which each data set is scored.
        share_partition: All data sets of one size in a step have the same partition.
        schedule: `"cosine"` (linear warm-up, then cosine decay), `"paper"` (`learning_rate` for
            1,000 steps, a tenth of it afterwards) or `"constant"`.
        learning_rate, final_learning_rate, warmup: Peak, end and number of warm-up steps.
        clip: Largest norm of the gradient; 0 for none.
        ema: Decay of the exponential moving average of the weights; 0 for none. With it, the
            average is what is validated and shipped.
        rao_blackwell: Number r of last points with exact soft targets.
        exact_up_to: Data sets of at most this many points have exact soft targets everywhere.
        exact_sizes: Share of the sizes N, of probes too, that is drawn from these smallest ones.
        small_sizes: Share of the other sizes that is drawn log-uniformly; the rest are uniform.
        probes: Share of the sizes, else drawn log-uniformly, for which data sets are made that the
            mixture seldom draws (`losses.probes`), scored only where the targets are exact. They
            count in the logged `nll`, not in the held-out one.
        pairwise_steps: Steps with the pairwise term, which teaches the encoder (or the context)
            directly which points belong together.
        prefetch: Draw the next step's data in a background thread.
        log_every, validate_every: Steps between lines of the log and between validations.
        checkpoint_seconds: Time between checkpoints.
    """

    steps: int = 20_000
    points_per_step: int = 3200
    datasets_per_step: int = 0
    sizes_per_step: int = 4
    orders: int = 1
    share_partition: bool = False
    schedule: str = "cosine"
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-6
    warmup: int = 200
    clip: float = 1.0
    ema: float = 0.999
    rao_blackwell: int = 0
    exact_up_to: int = 0
    exact_sizes: float = 0.0
    small_sizes: float = 0.0
    probes: float = 0.0
    pairwise_steps: int = 0
    prefetch: bool = False
    log_every: int = 10
    validate_every: int = 500
    checkpoint_seconds: float = 120.0

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_kind(f"training.{field.name}", getattr(self, field.name), str(field.type))
        at_least_one = ("steps", "sizes_per_step", "orders", "log_every", "validate_every")
        for field in fields(self):
            value, least = getattr(self, field.name), int(field.name in at_least_one)
            if not isinstance(value, str) and value < least:
                raise ValueError(f"Expected training.{field.name} >= {least} but got {value!r}")
        if (self.points_per_step > 0) == (self.datasets_per_step > 0):
            raise ValueError(
                "Expected either training.points_per_step or training.datasets_per_step "
                f"but got {self.points_per_step} and {self.datasets_per_step}"
            )
        if self.schedule not in ("cosine", "paper", "constant"):
            raise ValueError(
                f"Expected training.schedule cosine, paper or constant but got {self.schedule!r}"
            )
        if not 0 <= self.ema < 1:
            raise ValueError(f"Expected training.ema in [0, 1) but got {self.ema}")
        for name in ("exact_sizes", "small_sizes", "probes"):
            if getattr(self, name) > 1:
                raise ValueError(f"Expected training.{name} <= 1 but got {getattr(self, name)}")
        if self.probes and not self.rao_blackwell:
            raise ValueError("Expected training.rao_blackwell >= 1 for probes but got 0")
        if self.exact_up_to > LARGEST_ENUMERATED:
            raise ValueError(
                f"Expected training.exact_up_to <= {LARGEST_ENUMERATED} but got {self.exact_up_to}"
            )

    def rate(self, step: int) -> float:
        """The learning rate of a step (counted from 0)."""
        if self.schedule == "constant":
            return self.learning_rate
        if self.schedule == "paper":
            return self.learning_rate if step < 1000 else self.learning_rate / 10
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        span = self.learning_rate - self.final_learning_rate
        return self.final_learning_rate + span * (1 + math.cos(math.pi * min(1.0, done))) / 2


@dataclass(frozen=True)
class RunConfig:
    """A whole run: what `experiments/NAME.toml` says.

    With `initial`, the path of a checkpoint, training starts from its weights. They must be those
    of the same model, but for what is `ADDED`, which may be new, and the `context`, which may be
    new or deeper.
    """

    name: str
    seed: int
    model: NCPConfig
    mixture: Mixture
    training: TrainingConfig
    initial: str = ""

    def __post_init__(self) -> None:
        _check_kind("name", self.name, "str")
        _check_kind("seed", self.seed, "int")
        _check_kind("initial", self.initial, "str")
        if not self.name or self.name.startswith(".") or set(self.name) & set("/\\\0"):
            raise ValueError(f"Expected a name that can be a file's but got {self.name!r}")
        if self.seed < 0:
            raise ValueError(f"Expected seed >= 0 but got {self.seed}")
        exact = self.mixture.is_conjugate or self.mixture.has_density
        if (self.training.rao_blackwell or self.training.exact_up_to) and not exact:
            raise ValueError(
                "Expected a likelihood that is conjugate or has a density for soft targets "
                f"but got {type(self.mixture.likelihood).__name__}"
            )
        if self.training.exact_sizes and self.mixture.sizes[0] > self.training.exact_up_to:
            raise ValueError(
                f"Expected training.exact_up_to >= {self.mixture.sizes[0]}, the smallest size, "
                f"for exact_sizes but got {self.training.exact_up_to}"
            )
        if self.training.probes and not self.mixture.is_conjugate:
            raise ValueError(
                "Expected a conjugate likelihood for probes "
                f"but got {type(self.mixture.likelihood).__name__}"
            )

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> RunConfig:
        """From the tables of a TOML file; unknown keys are refused."""
        with refusing("Expected the config of a run"):
            return cls._from_dict(plain)

    @classmethod
    def _from_dict(cls, plain: Mapping[str, Any]) -> RunConfig:
        _only(plain, {f.name for f in fields(cls)}, "a run")
        for key in ("name", "mixture"):
            if key not in plain:
                raise ValueError(f"Expected the key {key!r} in a run but got {sorted(plain)}")
        mixture = Mixture.from_dict(plain["mixture"])
        _only(plain.get("training", {}), {f.name for f in fields(TrainingConfig)}, "training")
        _only(plain.get("model", {}), {f.name for f in fields(NCPConfig)}, "model")
        training = dict(plain.get("training", {}))
        if "datasets_per_step" in training and "points_per_step" not in training:
            training["points_per_step"] = 0
        model = {"event_shape": mixture.event_shape, **plain.get("model", {})}
        return cls(
            name=plain["name"],
            seed=plain.get("seed", 0),
            model=NCPConfig.from_dict(model),
            mixture=mixture,
            training=TrainingConfig(**training),
            initial=plain.get("initial", ""),
        )

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> RunConfig:
        """Read `experiments/NAME.toml`."""
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        try:
            plain = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"Expected TOML in {str(path)!r} but got: {error}") from error
        return cls.from_dict(plain)

    def to_dict(self) -> dict[str, Any]:
        """A plain dict, as a checkpoint's header carries it."""
        return {
            "name": self.name,
            "seed": self.seed,
            "model": self.model.to_dict(),
            "mixture": self.mixture.to_dict(),
            "training": asdict(self.training),
            "initial": self.initial,
        }


def _check_kind(name: str, value: Any, kind: str) -> None:
    numbers = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
    right = isinstance(value, numbers[kind]) and (kind == "bool" or not isinstance(value, bool))
    if not right or (kind == "float" and not math.isfinite(value)):
        raise ValueError(f"Expected {name} to be a finite {kind} but got {value!r}")


def _only(plain: Mapping[str, Any], known: set[str], what: str) -> None:
    if not isinstance(plain, Mapping) or set(plain) - known:
        unknown = sorted(set(plain) - known) if isinstance(plain, Mapping) else plain
        raise ValueError(f"Expected keys of {what} among {sorted(known)} but got {unknown}")


# -- data ----------------------------------------------------------------------------------------


def stream(*key: int) -> torch.Generator:
    """A generator that depends on nothing but the key."""
    state = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) % 2**63)


def draw(run: RunConfig, *key: int) -> list[Sequences]:
    """The data of one step: a few sizes N, for each some data sets in random orders.

    The last number of the key is the step.
    """
    config, generator = run.training, stream(run.seed, *key)
    pieces = []
    low, high = run.mixture.sizes
    for _ in range(config.sizes_per_step):
        n = int(torch.randint(low, high + 1, (), generator=generator))
        probe = config.probes > 0 and float(torch.rand((), generator=generator)) < config.probes
        if config.small_sizes or probe:
            small, u = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
            if small < config.small_sizes or probe:
                n = int(low * ((high + 1) / low) ** u)
        if config.exact_sizes:
            exact, u = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
            if exact < config.exact_sizes:
                n = low + int(u * (min(config.exact_up_to, high) + 1 - low))
        r = n - 1 if n <= config.exact_up_to else config.rao_blackwell
        if config.points_per_step:
            share = config.points_per_step / config.sizes_per_step / config.orders
            n_datasets = max(1, round(share / n))
        else:
            n_datasets = max(1, config.datasets_per_step // config.sizes_per_step)
        batch = run.mixture.sample(
            n_datasets,
            n,
            share_partition=config.share_partition,
            extra_parameters=r,
            generator=generator,
        )
        if probe and n > 1:
            piece = probes(batch, run.mixture, min(r, n - 1), generator)
        else:
            piece = sequences(batch, config.orders, run.mixture, r, generator)
        if key[-1] < config.pairwise_steps and n <= config.exact_up_to and run.mixture.is_conjugate:
            piece = piece._replace(same=similarity(piece.x, run.mixture))
        pieces.append(piece)
    return pieces


def micro_batches(pieces: list[Sequences], limit: int = CHUNK) -> Iterator[Sequences]:
    """Groups of whole data sets whose candidates fit the cache."""
    for piece in pieces:
        n_orders, n = piece.labels.shape[1:]
        lengths = torch.full((len(piece.labels),), n)
        costs = candidates_per_row(piece.labels[:, 0], lengths) * n_orders
        for rows in groups_of(costs, limit):
            yield piece.rows(rows)


def _to(data: Sequences, model: NCP) -> Sequences:
    dtype = model.dtype
    return data.map(lambda t: t.to(model.device, dtype if t.is_floating_point() else t.dtype))


# -- one step ------------------------------------------------------------------------------------


@dataclass
class Tally:
    """Sums over the sequences of a step."""

    loss: float = 0.0
    points: int = 0
    right: int = 0
    scored: int = 0
    candidates: int = 0


def accumulate(
    model: NCP,
    pieces: list[Sequences],
    pairwise: bool = False,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Tally:
    """Add the gradient of the summed negative log-likelihood of `pieces` to the parameters."""
    tally = Tally()
    limit = CHUNK if model.device.type == "cpu" else ACCELERATOR_CHUNK
    for data in micro_batches(pieces, limit):
        data = _to(data, model)
        with autocast():
            result = likelihoods(model, data, pairwise)
        result.loss.backward()  # type: ignore[no-untyped-call]
        n_datasets, n_orders, n = data.labels.shape
        tally.loss -= float(result.log_prob.sum())
        tally.points += n_datasets * n_orders * n
        tally.scored += n_datasets * n_orders * (n - 1)
        tally.right += int(result.n_right)
        flat = data.labels.flatten(0, 1)
        lengths = torch.full((len(flat),), n, device=flat.device)
        tally.candidates += int(candidates_per_row(flat, lengths).sum())
    return tally


def reduce_gradients(model: NCP, tally: Tally, fabric: Fabric | None) -> Tally:
    """Sum gradients and tallies over all processes, then divide the gradients by the points."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.view(-1) for g in gradients])
    if fabric is not None and fabric.world_size > 1:
        numbers = astuple(tally)
        together = torch.cat([flat, flat.new_tensor(numbers)])
        together = fabric.all_reduce(together, reduce_op="sum")
        flat = together[: -len(numbers)]
        loss, *counts = together[-len(numbers) :].tolist()
        tally = Tally(loss, *(round(count) for count in counts))
    flat = flat / tally.points
    values = torch.split(flat, [g.numel() for g in gradients])
    for gradient, value in zip(gradients, values, strict=True):
        gradient.copy_(value.view_as(gradient))
    return tally


def agreed(flag: bool, fabric: Fabric | None) -> bool:
    """Whether any process says so."""
    if fabric is None or fabric.world_size == 1:
        return flag
    votes = torch.tensor(float(flag), device=fabric.device)
    return bool(fabric.all_reduce(votes, reduce_op="sum") > 0)


@torch.no_grad()
def permutation_spread(model: NCP, run: RunConfig, *key: int) -> dict[str, float]:
    """The paper's symmetry monitor: log q of the true labels over 8 random orders.

    `permutation_variance` is the variance of the joint log-likelihood, averaged over data sets;
    `permutation_spread` the sd of p(c | x) over its mean.
    """
    generator = stream(run.seed, *key)
    batch = run.mixture.sample(MONITOR_DATASETS, generator=generator)
    data = sequences(batch, MONITOR_ORDERS, run.mixture, generator=generator)
    log_p = torch.cat(
        [likelihoods(model, _to(part, model)).log_prob for part in micro_batches([data])]
    ).double()
    p = (log_p - log_p.amax(1, keepdim=True)).exp()
    return {
        "permutation_variance": float(log_p.var(1).mean()),
        "permutation_spread": float((p.std(1) / p.mean(1)).mean()),
    }


@torch.no_grad()
def held_out_nll(model: NCP, run: RunConfig, n_points: int = 6400) -> float:
    """Mean negative log-likelihood per point on data that no step draws."""
    generator = stream(run.seed, 2**40)
    low, high = run.mixture.sizes
    total = points = 0.0
    for n in sorted({low, (low + high) // 2, high}):
        batch = run.mixture.sample(max(1, n_points // 3 // n), n, generator=generator)
        data = sequences(batch, 1, run.mixture, generator=generator)
        for part in micro_batches([data]):
            total -= float(likelihoods(model, _to(part, model)).log_prob.sum())
            points += part.labels.numel()
    return total / points


@torch.no_grad()
def held_out(model: NCP, run: RunConfig) -> dict[str, float]:
    """Monitors on data that no step draws.

    `held_out_nll`; and for a conjugate mixture `held_out_tv`, the mean total variation between
    the conditional of the last point and the exact one, and `held_out_ess`, the median effective
    sample size of importance sampling over the number of samples.
    """
    monitors = {"held_out_nll": held_out_nll(model, run)}
    if not run.mixture.is_conjugate:
        return monitors
    generator = stream(run.seed, 2**42)
    n = max(2, sum(run.mixture.sizes) // 2)
    batch = run.mixture.sample(64, n, generator=generator)
    order = torch.arange(n).expand(64, 1, n)
    exact = tail_targets(batch, order, run.mixture, 1)[:, 0, 0].to(model.device)
    found = model.conditionals(batch.x, batch.labels)[:, -1].exp()
    monitors["held_out_tv"] = float((found - exact).abs().sum(1).mean() / 2)
    few = [batch.x[i] for i in range(8)]
    fractions = []
    for x, drawn in zip(few, sample_many(model, few, 64, seed=run.seed), strict=True):
        log_w = run.mixture.log_joint(x, drawn.labels) - torch.as_tensor(drawn.log_q)
        fractions.append(effective_sample_size(log_w, drawn.counts) / drawn.n_samples)
    monitors["held_out_ess"] = float(np.median(fractions))
    return monitors


# -- the state of a run and its checkpoints ------------------------------------------------------


class Trainer:
    """The state of a run: weights, their average, the optimiser, how far it is.

    Arguments:
        run: The config.
        directory: Where checkpoints and the log go.
        fabric: Device, precision and processes (`lightning_fabric.Fabric`, launched); None is one
            process on the CPU.
    """

    def __init__(
        self, run: RunConfig, directory: str | os.PathLike[str], fabric: Fabric | None = None
    ) -> None:
        self.run = run
        self.directory = Path(directory)
        self.fabric = fabric
        self.is_first = fabric is None or fabric.is_global_zero
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.seed)
            self.model = NCP(run.model, run.mixture)
        if run.initial:
            _start_from(self.model, read(run.initial))
        if fabric is not None:
            self.model.to(fabric.device)
        self.average = deepcopy(self.model) if run.training.ema else None
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=run.training.learning_rate)
        self.step = 0
        self.rate_factor = 1.0
        self.rollbacks = 0
        self.seconds = 0.0
        self.metrics: dict[str, float] = {}

    @property
    def best(self) -> NCP:
        """The weights that are validated and shipped."""
        return self.model if self.average is None else self.average

    # -- checkpoints

    @property
    def is_finite(self) -> bool:
        """Whether all weights are numbers."""
        return all(bool(p.isfinite().all()) for p in self.model.parameters())

    def save(self) -> Path | None:
        """Write a training checkpoint and drop the oldest ones; none of weights that are lost."""
        if not self.is_first or not self.is_finite:
            return None
        path = self.directory / f"checkpoint-{self.step:08d}.safetensors"
        self.directory.mkdir(parents=True, exist_ok=True)
        write(path, self._checkpoint())
        older = [old for old in checkpoints(self.directory) if old.name < path.name]
        for old in older[: 1 - CHECKPOINTS_KEPT]:
            old.unlink(missing_ok=True)
        return path

    def _checkpoint(self) -> Checkpoint:
        state: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            moments = self.optimizer.state.get(parameter, {})
            for key in MOMENTS:
                if key in moments:
                    state[f"optimizer.{key}.{name}"] = torch.as_tensor(moments[key])
        if self.average is not None:
            state |= {f"average.{n}": p for n, p in self.average.state_dict().items()}
        info = {
            "name": self.run.name,
            "run": self.run.to_dict(),
            "step": self.step,
            "rate_factor": self.rate_factor,
            "rollbacks": self.rollbacks,
            "seconds": self.seconds,
            "metrics": self.metrics,
            "commit": commit(),
        }
        weights = dict(self.model.state_dict())
        return Checkpoint(self.run.model, self.run.mixture.to_dict(), weights, state, info)

    def restore(self, found: Checkpoint) -> None:
        """Go back to a training checkpoint of the same architecture."""
        progress = {"step", "rate_factor", "rollbacks", "seconds", "metrics"}
        if found.config != self.run.model or not progress <= set(found.info):
            raise ValueError(f"Expected a training checkpoint of run {self.run.name!r}'s model")
        self.model.load_state_dict(found.weights)
        if not self.is_finite:
            raise ValueError("Expected finite weights but some are not")
        if self.average is not None:
            self.average.load_state_dict(_under("average.", found.state))
        self.optimizer.state.clear()
        parameters = dict(self.model.named_parameters())
        for key in MOMENTS:
            moments = _under(f"optimizer.{key}.", found.state)
            if set(moments) - set(parameters) or 0 < len(moments) < len(parameters):
                raise ValueError(f"Expected {key} of all parameters but got {len(moments)}")
            for name, value in moments.items():
                where = parameters[name]
                value = (
                    value.clone() if key == "step" else value.to(where, copy=True).view_as(where)
                )
                self.optimizer.state[where][key] = value
        self.step = int(found.info["step"])
        self.rate_factor = float(found.info["rate_factor"])
        self.rollbacks = int(found.info["rollbacks"])
        self.seconds = float(found.info["seconds"])
        self.metrics = dict(found.info["metrics"])

    def resume(self, warn: Callable[[str], None] = print) -> bool:
        """Restore the newest checkpoint that can be read. False if there is none.

        The first process reads it and sends it to the others, so no other needs to see the disk.
        """
        ready = self.is_first and self._read_newest(warn)
        if self.fabric is not None and self.fabric.world_size > 1:
            sent = self.fabric.broadcast(self._checkpoint() if ready else None)
            ready = sent is not None
            if ready and not self.is_first:
                self.restore(sent)
        return ready

    def _read_newest(self, warn: Callable[[str], None]) -> bool:
        refused: list[Path] = []
        for path in reversed(checkpoints(self.directory)):
            reason = self._cannot_read(path)
            if not reason:
                # Out of the way, lest they count as the newest ones when old files are dropped.
                for bad in refused:
                    bad.rename(bad.with_suffix(".unreadable"))
                for torn in self.directory.glob(".*.safetensors.*"):
                    torn.unlink(missing_ok=True)
                return True
            warn(f"Skipping {path.name}: {reason}")
            refused.append(path)
        return False

    def _cannot_read(self, path: Path) -> str:
        """Restore a file; the reason why not, or nothing."""
        try:
            self.restore(read(path))
        except (ValueError, *FAULTS) as error:
            return str(error)
        return ""

    def ship(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the weights alone (the average, if there is one) with all that made them."""
        path = self.directory / f"{self.run.name}.safetensors" if path is None else Path(path)
        if not self.is_finite:
            raise RuntimeError(
                f"The weights are not finite after step {self.step}; resume from the last "
                "checkpoint with a lower learning rate"
            )
        if self.is_first:
            save_model(
                path,
                self.best,
                name=self.run.name,
                run=self.run.to_dict(),
                step=self.step,
                seconds=self.seconds,
                metrics=self.metrics,
                commit=commit(),
            )
        return path

    # -- steps

    def advance(self, pieces: list[Sequences]) -> dict[str, float] | None:
        """One optimiser step; None if its loss or gradient was not finite (nothing moves then)."""
        config = self.run.training
        self.optimizer.zero_grad(set_to_none=True)
        pairwise = self.step < config.pairwise_steps
        autocast = nullcontext if self.fabric is None else self.fabric.autocast
        tally = accumulate(self.model, pieces, pairwise, autocast)
        tally = reduce_gradients(self.model, tally, self.fabric)
        parameters = list(self.model.parameters())
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, config.clip or math.inf))
        rate = config.rate(self.step) * self.rate_factor
        self.step += 1
        if not math.isfinite(norm) or not math.isfinite(tally.loss):
            return None
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        if self.average is not None:
            # Early on the average follows quickly, so that it does not remember the start.
            decay = min(config.ema, (1 + self.step) / (10 + self.step))
            with torch.no_grad():
                torch._foreach_lerp_(
                    list(self.average.parameters()), list(self.model.parameters()), 1 - decay
                )
        return {
            "nll": tally.loss / tally.points,
            "accuracy": tally.right / max(1, tally.scored),
            "gradient_norm": norm,
            "learning_rate": rate,
            "candidates": tally.candidates,
        }

    def roll_back(self) -> None:
        """After several bad steps: the last good checkpoint, at half the learning rate."""
        factor, rollbacks = self.rate_factor / 2, self.rollbacks + 1
        if rollbacks > ROLLBACKS:
            raise RuntimeError(f"The loss was not finite after {ROLLBACKS} rollbacks; giving up")
        if not self.resume():
            fresh = Trainer(self.run, self.directory, self.fabric)
            self.__dict__.update(fresh.__dict__)
        self.rate_factor, self.rollbacks = factor, rollbacks


def _start_from(model: NCP, found: Checkpoint) -> None:
    """Take over the weights of a checkpoint; the model may have something more."""
    had, wanted = found.config, model.config
    without = {name: getattr(had, name) for name in ADDED if not getattr(had, name)}
    deeper = 0 < had.context < wanted.context
    without |= {"context": had.context} if deeper else {}
    if had != replace(wanted, **without):
        raise ValueError(
            f"Expected the run's model in the initial checkpoint ({', '.join(ADDED)} apart) "
            f"but got {found.config}"
        )
    weights = found.build().state_dict()
    weights["f.0.weight"] = _columns(weights["f.0.weight"], had.f_inputs(), wanted.f_inputs())
    for name, fresh in model.state_dict().items():
        if name not in weights:
            last = deeper and (".project." in name or ".narrow." in name)
            weights[name] = torch.zeros_like(fresh) if last else fresh
        elif name.endswith("0.weight") and weights[name].shape != fresh.shape:
            columns = fresh.shape[1] - weights[name].shape[1]
            weights[name] = torch.nn.functional.pad(weights[name], (0, columns))  # no effect yet
    model.load_state_dict(weights)


def _columns(
    weight: Tensor, had: Mapping[str, int], wanted: Mapping[str, int]
) -> Float[Tensor, "width n_in"]:
    """The weights of f's first layer for more inputs, with zeros for those that are new."""
    known = dict(zip(had, torch.split(weight, list(had.values()), 1), strict=True))
    parts = [
        known[name] if had[name] else weight.new_zeros(len(weight), size)
        for name, size in wanted.items()
    ]
    return torch.cat(parts, 1)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def checkpoints(directory: Path) -> list[Path]:
    """The training checkpoints of a run, oldest first."""
    return sorted(directory.glob("checkpoint-*.safetensors"))


def commit() -> str | None:
    """The commit of the source tree, when there is one."""
    head = Path(__file__).resolve().parents[3] / ".git"
    try:
        reference = (head / "HEAD").read_text().strip()
        if reference.startswith("ref: "):
            reference = (head / reference[5:]).read_text().strip()
    except OSError:
        return None
    return reference


# -- the loop ------------------------------------------------------------------------------------


def train(
    run: RunConfig,
    directory: str | os.PathLike[str],
    *,
    resume: bool = False,
    validate: Validate | None = None,
    fabric: Fabric | None = None,
    progress: bool = True,
    seconds: float | None = None,
) -> NCP:
    """Train, or go on training, and ship the weights to `directory/NAME.safetensors`.

    Arguments:
        run: The config.
        directory: Where checkpoints, `log.jsonl` and the final weights go.
        resume: Go on from the newest checkpoint that can be read.
        validate: Called with the model every `validate_every` steps, in the first process only;
            what it returns is logged.
        fabric: See `Trainer`; `launch` makes one.
        progress: Show a progress bar.
        seconds: Stop (with a checkpoint) after this long.

    Returns:
        The trained model (the averaged weights, if averaging is on).
    """
    trainer = Trainer(run, directory, fabric)
    if resume and not trainer.resume():
        raise ValueError(f"Expected a readable checkpoint in {str(directory)!r} but found none")
    occupied = trainer.is_first and not resume and bool(checkpoints(trainer.directory))
    if agreed(occupied, fabric):
        raise ValueError(
            f"Expected an empty run directory but {str(directory)!r} has checkpoints; "
            "resume it, or choose another"
        )
    try:
        if not resume:
            trainer.save()  # from here on, a run that is killed can be resumed
        _loop(trainer, validate, progress, seconds)
        trainer.save()
        trainer.ship()
    except OSError as error:
        kept = [path.name for path in checkpoints(trainer.directory)]
        last = f" and can be resumed from {kept[-1]}" if kept else ""
        message = f"{error.strerror or error}; the run stops{last}"
        raise OSError(error.errno, message, str(directory)) from error
    return trainer.best.eval()


def _loop(
    trainer: Trainer, validate: Validate | None, progress: bool, seconds: float | None
) -> None:
    run, config, fabric = trainer.run, trainer.run.training, trainer.fabric
    rank = 0 if fabric is None else fabric.global_rank
    started = last_saved = time.monotonic()  # the wall clock may jump
    before = trainer.seconds
    bad = 0
    with (
        _Log(trainer) as log,
        _bar(run, trainer, progress) as show,
        _interrupt() as stopped,
        _Drawer(run, rank) as next_,
    ):
        while trainer.step < config.steps:
            result = trainer.advance(next_(trainer.rollbacks, trainer.step))
            trainer.seconds = before + time.monotonic() - started
            if result is None:
                bad += 1
                log.write({"step": trainer.step, "event": "non-finite step skipped"})
                if bad >= BAD_STEPS_IN_A_ROW:
                    at, bad = trainer.step, 0
                    trainer.roll_back()
                    log.rewind()
                    event = f"rolled back from step {at}, half the learning rate"
                    log.write({"step": trainer.step, "event": event})
                continue
            bad = 0
            log.add(result)
            if trainer.is_first and trainer.step % config.log_every == 0:
                log.flush(permutation_spread(trainer.model, run, 2**41, rank, trainer.step))
            last = trainer.step == config.steps
            if trainer.is_first and (last or trainer.step % config.validate_every == 0):
                trainer.metrics = held_out(trainer.best, run)
                trainer.metrics |= dict(validate(trainer.best)) if validate is not None else {}
                log.write({"step": trainer.step, **trainer.metrics})
            show(log.latest)
            if time.monotonic() - last_saved > config.checkpoint_seconds:
                trainer.save()
                last_saved = time.monotonic()
            out_of_time = seconds is not None and time.monotonic() - started > seconds
            if agreed(stopped.is_set() or out_of_time, fabric):
                break


def launch(
    run: RunConfig,
    directory: str | os.PathLike[str],
    *,
    devices: int = 1,
    nodes: int = 1,
    accelerator: str = "auto",
    precision: str = "32-true",
    **options: Any,
) -> NCP:
    """`train` on any number of devices and machines.

    With one process on the CPU this is `train`. Otherwise Lightning Fabric starts the processes of
    this machine by running the same command again, or finds itself started by `torchrun`,
    `fabric run` or SLURM, whose numbers then count.

    Arguments:
        devices: Processes on each machine: one for each GPU, or CPU processes.
        nodes: Machines.
        accelerator: `"cpu"`, `"cuda"`, or `"auto"`: CUDA where there is some.
        precision: `"32-true"`, or `"bf16-mixed"` for matrix products in bfloat16.
        options: `resume`, `validate`, `progress`, `seconds` as for `train`.
    """
    if precision not in ("32-true", "bf16-mixed"):
        raise ValueError(f"Expected precision 32-true or bf16-mixed but got {precision!r}")
    if devices < 1 or nodes < 1:
        raise ValueError(f"Expected devices >= 1 and nodes >= 1 but got {devices} and {nodes}")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    if (devices, nodes, accelerator, precision) == (1, 1, "cpu", "32-true"):
        return train(run, directory, **options)
    from lightning_fabric import Fabric

    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        precision=precision,
        strategy="ddp" if devices * nodes > 1 else "auto",
    )
    fabric.launch()
    try:
        return train(run, directory, fabric=fabric, **options)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


class _Log:
    """Averages of each few steps as lines of JSON, and to TensorBoard where it is installed."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.path = trainer.directory / "log.jsonl"
        self.window: list[dict[str, float]] = []
        self.since = time.monotonic()
        self.latest: dict[str, float] = {}
        self.board: Any = None

    def __enter__(self) -> _Log:
        if self.trainer.is_first:
            self.trainer.directory.mkdir(parents=True, exist_ok=True)
            self.rewind()
            with suppress(ImportError):
                from torch.utils.tensorboard import SummaryWriter

                where = str(self.trainer.directory / "tensorboard")
                purge = self.trainer.step + 1
                self.board = SummaryWriter(where, purge_step=purge)
        return self

    def __exit__(self, *_: object) -> None:
        if self.board is not None:
            self.board.close()

    def rewind(self) -> None:
        """Drop the lines after the trainer's step, which will be written again, and torn ones."""
        self.window = []
        if self.trainer.is_first and self.path.exists():
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
            kept = [line for line in lines if _step_of(line) <= self.trainer.step]
            write_atomically(self.path, "".join(line + "\n" for line in kept).encode())

    def add(self, result: dict[str, float]) -> None:
        if self.trainer.is_first:
            self.window.append(result)

    def flush(self, more: dict[str, float]) -> None:
        now = time.monotonic()
        mean = {k: sum(r[k] for r in self.window) / len(self.window) for k in self.window[0]}
        rate = sum(r["candidates"] for r in self.window) / (now - self.since)
        self.latest = mean | more | {"candidates_per_second": rate}
        self.write({"step": self.trainer.step, "seconds": self.trainer.seconds, **self.latest})
        self.window, self.since = [], now

    def write(self, line: dict[str, Any]) -> None:
        if not self.trainer.is_first:
            return
        finite = {
            k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()
        }
        with self.path.open("a") as file:
            file.write(json.dumps(finite) + "\n")
        if self.board is not None:
            for key, value in line.items():
                if key != "step" and isinstance(value, int | float):
                    self.board.add_scalar(key, value, line["step"])


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return math.inf


class _Drawer:
    """Draws a step's data, the next step's in the background where that is asked for."""

    def __init__(self, run: RunConfig, rank: int) -> None:
        self.run, self.rank = run, rank
        self.pool = ThreadPoolExecutor(1) if run.training.prefetch else None
        self.pending: tuple[tuple[int, ...], Any] | None = None

    def __enter__(self) -> Callable[[int, int], list[Sequences]]:
        return self._next

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def _next(self, rollbacks: int, step: int) -> list[Sequences]:
        key = (rollbacks, self.rank, step)
        if self.pool is None:
            return draw(self.run, *key)
        ready = self.pending[1] if self.pending and self.pending[0] == key else None
        following = (rollbacks, self.rank, step + 1)
        pieces = draw(self.run, *key) if ready is None else ready.result()
        self.pending = following, self.pool.submit(draw, self.run, *following)
        return pieces


@contextmanager
def _interrupt() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM end the run after the current step; a second Ctrl-C ends it at once."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def handle(number: int, _: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    previous = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _bar(
    run: RunConfig, trainer: Trainer, wanted: bool
) -> Iterator[Callable[[Mapping[str, float]], None]]:
    if not wanted or not trainer.is_first:
        yield lambda latest: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[monitors]}"),
        refresh_per_second=2,
    ) as bar:
        task = bar.add_task(run.name, total=run.training.steps, monitors="")

        def show(latest: Mapping[str, float]) -> None:
            monitors = ""
            if latest:
                monitors = (
                    f"nll {latest['nll']:.4f}  acc {latest['accuracy']:.3f}  "
                    f"var {latest['permutation_variance']:.3g}  "
                    f"{latest['candidates_per_second'] / 1000:.0f}k cand/s"
                )
            bar.update(task, completed=trainer.step, monitors=monitors)

        yield show
