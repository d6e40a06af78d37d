"""A recipe: all that makes a model, read from one TOML file.

    name = "mine"
    seed = 1

    [generative]   # what data could look like
    [network]      # the parts of the network

    [[phase]]      # how it is trained; each phase goes on with the weights of the one before
    steps = 9000

    [[phase]]      # what is not given stays as it was in the phase before
    steps = 1000
    pairwise = 0.0

    [[phase]]      # or: from the averaged weights of the phase before, the optimiser anew
    restart = true

Running a recipe from nothing gives the model. Unknown keys and values that make no sense are
refused, so a recipe that can be read can be run.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ncp.generative.model import GenerativeModel, model_from_dict
from ncp.network.attention import Attention
from ncp.network.blocks import Perceptron
from ncp.network.checkpoint import refusing, try_out
from ncp.network.encoder import ConvEncoder, MLPEncoder
from ncp.network.network import NetworkSpec

__all__ = ["Phase", "Recipe"]

LARGEST_ENUMERATED = 9  # points of a data set, all of whose 21,147 partitions are weighed
STARTER_STEPS = 600
SCHEDULES = ("cosine", "paper", "constant")
AT_LEAST_ONE = ("steps", "sizes_per_step", "orders", "log_every", "validate_every")
SHARES = ("exact_sizes", "small_sizes", "hard_examples")


@dataclass(frozen=True)
class Phase:
    """Some steps of a run, all of one kind.

    Args:
        steps: Optimiser steps.
        restart: Begin with the averaged weights and an optimiser that remembers nothing. It is
            said of one phase and does not carry over to the next.
        sizes: The smallest and the largest N; those of the generative model if not given.
        points_per_step: Points of a step, whatever N: the number of data sets follows.
        datasets_per_step: Data sets of a step, instead of `points_per_step` (the paper: 48); with
            both, the most that a step has (small ones are dear to draw and soon learned).
        sizes_per_step: Different N in a step; the points are spread evenly over them.
        orders: Random orders in which each data set is scored.
        share_partition: All data sets of one size in a step have the same partition.
        schedule: `"cosine"` (linear warm-up, then cosine decay), `"constant"` (after the
            warm-up) or `"paper"` (`learning_rate` for 1,000 steps, a tenth of it afterwards).
        learning_rate, final_learning_rate, warmup: Peak, end and number of warm-up steps.
        clip: Largest norm of the gradient; 0 for none.
        ema: Decay of the exponential moving average of the weights; 0 for none. With it, the
            average is what is validated and exported.
        rao_blackwell: Number r of last points with exact soft targets.
        exact_up_to: Data sets of at most this many points have exact soft targets everywhere.
        exact_sizes: Share of the sizes N, of hard examples too, drawn from these smallest ones.
        small_sizes: Share of the other sizes that is drawn log-uniformly; the rest are uniform.
        hard_examples: Share of the sizes, else drawn log-uniformly, for which data sets are made
            that the mixture seldom draws (`ncp.training.data.hard_examples`), scored only where
            the targets are exact. They count in the logged `nll`, not in the held-out one.
        pairwise: Weight of the pairwise term, which teaches the encoder (or the attention)
            directly which points belong together.

    Example:
        >>> phase = Phase(steps=1000, learning_rate=1e-3, warmup=100)
        >>> phase.rate(99), phase.rate(1000)
        (0.001, 1e-06)
    """

    steps: int = 20_000
    restart: bool = False
    sizes: Sequence[int] | None = None
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
    pairwise: float = 0.0

    def __post_init__(self) -> None:
        _check_values("phase", self)
        if self.sizes is not None:
            object.__setattr__(self, "sizes", _check_sizes(self.sizes))
        if not (self.points_per_step or self.datasets_per_step):
            raise ValueError(
                "Expected phase.points_per_step or phase.datasets_per_step but both are 0"
            )
        if self.schedule not in SCHEDULES:
            raise ValueError(f"Expected phase.schedule in {SCHEDULES} but got {self.schedule!r}")
        if self.ema >= 1:
            raise ValueError(f"Expected phase.ema in [0, 1) but got {self.ema}")
        for name in SHARES:
            if getattr(self, name) > 1:
                raise ValueError(f"Expected phase.{name} <= 1 but got {getattr(self, name)}")
        if self.hard_examples and not self.rao_blackwell:
            raise ValueError("Expected phase.rao_blackwell >= 1 for hard_examples but got 0")
        if self.exact_up_to > LARGEST_ENUMERATED:
            raise ValueError(
                f"Expected phase.exact_up_to <= {LARGEST_ENUMERATED} but got {self.exact_up_to}"
            )

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], before: Phase | None = None) -> Phase:
        """From a table of a TOML file; what it does not say is as in the phase `before`."""
        _only(plain, {f.name for f in fields(cls)}, "a phase")
        values = asdict(cls() if before is None else before) | {"restart": False} | dict(plain)
        given = {"points_per_step", "datasets_per_step"} & set(plain)
        if len(given) == 1:  # one takes the place of the other
            values |= {"points_per_step": 0, "datasets_per_step": 0} | dict(plain)
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """A plain dict, as a checkpoint's header carries it."""
        return asdict(self) | {"sizes": None if self.sizes is None else list(self.sizes)}

    def rate(self, step: int) -> float:
        """The learning rate of a step of this phase (counted from 0)."""
        if self.schedule == "paper":
            return self.learning_rate if step < 1000 else self.learning_rate / 10
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        if self.schedule == "constant":
            return self.learning_rate
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        span = self.learning_rate - self.final_learning_rate
        return self.final_learning_rate + span * (1 + math.cos(math.pi * min(1.0, done))) / 2


@dataclass(frozen=True)
class Recipe:
    """All that makes a model: what `experiments/NAME.toml` says.

    Args:
        name: The name of the model, and of its file.
        seed: Of the first weights and of all data.
        generative: Where the data come from.
        network: The network's parts and their sizes.
        phases: How it is trained, one phase after the other.
        log_every, validate_every: Steps between lines of the log and between validations.
        checkpoint_seconds: Time between checkpoints.
        prefetch: Steps whose data a process of its own draws ahead; 0 for none.
    """

    name: str
    generative: GenerativeModel
    network: NetworkSpec
    phases: Sequence[Phase] = field(default_factory=lambda: (Phase(),))
    seed: int = 0
    log_every: int = 10
    validate_every: int = 500
    checkpoint_seconds: float = 120.0
    prefetch: int = 0

    def __post_init__(self) -> None:
        _check_values("recipe", self)
        object.__setattr__(self, "phases", tuple(self.phases))
        if not self.name or self.name.startswith(".") or set(self.name) & set("/\\\0"):
            raise ValueError(f"Expected a name that can be a file's but got {self.name!r}")
        if not self.phases:
            raise ValueError("Expected at least one phase but got none")
        for phase in self.phases:
            self._check_phase(phase)

    def _check_phase(self, phase: Phase) -> None:
        """Whether the generative model has what a phase asks for."""
        generative = self.generative
        exact = generative.is_conjugate or generative.has_density
        if (phase.rao_blackwell or phase.exact_up_to) and not exact:
            raise ValueError(
                "Expected a likelihood that is conjugate or has a density for soft targets "
                f"but got {generative}"
            )
        if phase.hard_examples and not generative.is_conjugate:
            raise ValueError(f"Expected a conjugate model for hard_examples but got {generative}")
        low, high = self.sizes_of(phase)
        if low < generative.sizes[0] or high > generative.sizes[1]:
            raise ValueError(
                f"Expected phase.sizes within {tuple(generative.sizes)}, the generative model's, "
                f"but got {(low, high)}"
            )
        if phase.exact_sizes and low > phase.exact_up_to:
            raise ValueError(
                f"Expected phase.exact_up_to >= {low}, the smallest size, for exact_sizes "
                f"but got {phase.exact_up_to}"
            )

    @property
    def steps(self) -> int:
        """The steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    def at(self, step: int) -> tuple[Phase, int]:
        """The phase of a step of the run (counted from 0), and the step's number within it."""
        for phase in self.phases:
            if step < phase.steps:
                return phase, step
            step -= phase.steps
        return self.phases[-1], step + self.phases[-1].steps

    def sizes_of(self, phase: Phase) -> tuple[int, int]:
        """The smallest and the largest N of a phase."""
        low, high = self.generative.sizes if phase.sizes is None else phase.sizes
        return low, high

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Recipe:
        """From the tables of a TOML file; unknown keys are refused."""
        with refusing("Expected a recipe"):
            return cls._from_dict(plain)

    @classmethod
    def _from_dict(cls, plain: Mapping[str, Any]) -> Recipe:
        simple = {f.name for f in fields(cls)} - {"generative", "network", "phases"}
        _only(plain, simple | {"generative", "network", "phase"}, "a recipe")
        for key in ("name", "generative"):
            if key not in plain:
                raise ValueError(f"Expected the key {key!r} in a recipe but got {sorted(plain)}")
        generative = model_from_dict(plain["generative"])
        _only(plain.get("network", {}), {f.name for f in fields(NetworkSpec)}, "network")
        network = NetworkSpec.from_dict(
            {"event_shape": generative.event_shape, **plain.get("network", {})}
        )
        try_out(generative)
        return cls(
            generative=generative,
            network=network,
            phases=_phases(plain.get("phase", [{}])),
            **{key: value for key, value in plain.items() if key in simple},
        )

    @classmethod
    def starter(
        cls, name: str, generative: GenerativeModel, steps: int = STARTER_STEPS, seed: int = 0
    ) -> Recipe:
        """A recipe that learns most models of one's own in minutes; longer runs learn more.

        Args:
            name: Of the model.
            generative: Where the data come from.
            steps: How many there are.
            seed: Of the first weights and of all data.
        """
        flat = len(generative.event_shape) == 1
        phase = Phase(
            steps=steps,
            points_per_step=800,
            learning_rate=2e-3,
            warmup=min(100, steps // 4),
            ema=min(0.999, 1 - 10 / max(steps, 11)),
            small_sizes=0.5,
            pairwise=1.0,
        )
        network = NetworkSpec(
            event_shape=generative.event_shape,
            encoder=MLPEncoder(width=64, depth=3, out=64) if flat else ConvEncoder(),
            attention=Attention(blocks=2, width=64) if flat else None,
            g=Perceptron(64, 2, 64),
            f=Perceptron(64, 3),
            f_sees=("G", "Q", "point", "candidate", *(("pairs",) if flat else ())),
        )
        return cls(name, generative, network, (phase,), seed=seed)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Recipe:
        """Read `experiments/NAME.toml`."""
        return cls.from_dict(cls.read_toml(path))

    @staticmethod
    def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
        """The tables of a TOML file."""
        try:
            return tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"Expected TOML in {str(path)!r} but got: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """A plain dict, as a checkpoint's header carries it."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "phases"}
        return plain | {
            "generative": self.generative.to_dict(),
            "network": self.network.to_dict(),
            "phase": [phase.to_dict() for phase in self.phases],
        }


def _phases(tables: Any) -> tuple[Phase, ...]:
    if not isinstance(tables, list):
        raise ValueError(f"Expected [[phase]] tables but got {tables!r}")
    phases: list[Phase] = []
    for table in tables:
        phases.append(Phase.from_dict(table, phases[-1] if phases else None))
    return tuple(phases)


def _check_values(where: str, given: Phase | Recipe) -> None:
    """Whether the plain values of a dataclass are of their kinds and not negative."""
    kinds = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
    for one in fields(given):
        value, kind = getattr(given, one.name), str(one.type)
        if kind not in kinds:
            continue
        right = isinstance(value, kinds[kind]) and (kind == "bool" or not isinstance(value, bool))
        if not right or (kind == "float" and not math.isfinite(value)):
            raise ValueError(f"Expected {where}.{one.name} to be a finite {kind} but got {value!r}")
        least = int(one.name in AT_LEAST_ONE)
        if kind != "str" and value < least:
            raise ValueError(f"Expected {where}.{one.name} >= {least} but got {value!r}")


def _check_sizes(sizes: Sequence[int]) -> tuple[int, int]:
    whole = isinstance(sizes, list | tuple) and all(type(n) is int for n in sizes)
    if not whole or len(sizes) != 2 or not 1 <= sizes[0] <= sizes[1]:
        raise ValueError(
            f"Expected phase.sizes to be two integers 1 <= smallest <= largest but got {sizes!r}"
        )
    return sizes[0], sizes[1]


def _only(plain: Mapping[str, Any], known: set[str], what: str) -> None:
    if not isinstance(plain, Mapping) or set(plain) - known:
        unknown = sorted(set(plain) - known) if isinstance(plain, Mapping) else plain
        raise ValueError(f"Expected keys of {what} among {sorted(known)} but got {unknown}")
