"""The state of a run: weights, their average, the optimiser, and its checkpoints."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ncp.network.checkpoint import FAULTS, Checkpoint, read, save_model, write
from ncp.network.network import Network
from ncp.training.data import Sequences
from ncp.training.distributed import sum_gradients
from ncp.training.loss import accumulate
from ncp.training.recipe import RunConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Trainer", "checkpoints"]

CHECKPOINTS_KEPT = 3
MOMENTS = ("exp_avg", "exp_avg_sq", "step")  # what Adam remembers of each parameter
ROLLBACKS = 8
# What a run's model may have more than its initial weights, without effect at the start.
ADDED = ("context", "waves", "product_in_f", "means_in_f", "distances")


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
            self.model = Network(run.model, run.mixture)
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
    def best(self) -> Network:
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

    def export(self, path: str | os.PathLike[str] | None = None) -> Path:
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
        tally = sum_gradients(self.model, tally, self.fabric)
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
