"""What a run is: the network, the generative model, how it is trained; read from a TOML file.

Unknown keys and values that make no sense are refused, so a recipe that can be read can be run.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ncp.generative.model import GenerativeModel, model_from_dict
from ncp.network.checkpoint import refusing
from ncp.network.network import NetworkSpec

__all__ = ["RunConfig", "TrainingConfig"]

LARGEST_ENUMERATED = 9  # points of a data set, all of whose 21,147 partitions are weighed


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
        exact_sizes: Share of the sizes N, of hard examples too, drawn from these smallest ones.
        small_sizes: Share of the other sizes that is drawn log-uniformly; the rest are uniform.
        hard_examples: Share of the sizes, else drawn log-uniformly, for which data sets are made
            that the mixture seldom draws (`ncp.training.data.hard_examples`), scored only where
            the targets are exact. They count in the logged `nll`, not in the held-out one.
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
    hard_examples: float = 0.0
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
        for name in ("exact_sizes", "small_sizes", "hard_examples"):
            if getattr(self, name) > 1:
                raise ValueError(f"Expected training.{name} <= 1 but got {getattr(self, name)}")
        if self.hard_examples and not self.rao_blackwell:
            raise ValueError("Expected training.rao_blackwell >= 1 for hard_examples but got 0")
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
    model: NetworkSpec
    mixture: GenerativeModel
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
                f"but got {self.mixture}"
            )
        if self.training.exact_sizes and self.mixture.sizes[0] > self.training.exact_up_to:
            raise ValueError(
                f"Expected training.exact_up_to >= {self.mixture.sizes[0]}, the smallest size, "
                f"for exact_sizes but got {self.training.exact_up_to}"
            )
        if self.training.hard_examples and not self.mixture.is_conjugate:
            raise ValueError(
                f"Expected a conjugate likelihood for hard_examples but got {self.mixture}"
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
        mixture = model_from_dict(plain["mixture"])
        _only(plain.get("training", {}), {f.name for f in fields(TrainingConfig)}, "training")
        _only(plain.get("model", {}), {f.name for f in fields(NetworkSpec)}, "model")
        training = dict(plain.get("training", {}))
        if "datasets_per_step" in training and "points_per_step" not in training:
            training["points_per_step"] = 0
        model = {"event_shape": mixture.event_shape, **plain.get("model", {})}
        return cls(
            name=plain["name"],
            seed=plain.get("seed", 0),
            model=NetworkSpec.from_dict(model),
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
