"""The state of a run: weights, their average, the optimiser, and its checkpoints."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Mapping
from contextlib import nullcontext
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ncp.files import is_temporary
from ncp.network.checkpoint import FAULTS, Checkpoint, read, save_model, write
from ncp.network.network import Network
from ncp.training.data import Sequences
from ncp.training.distributed import sum_gradients
from ncp.training.loss import accumulate
from ncp.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Trainer", "checkpoints"]

CHECKPOINTS_KEPT = 3
MOMENTS = ("exp_avg", "exp_avg_sq", "step")  # what Adam remembers of each parameter
ROLLBACKS = 8


class Trainer:
    """The state of a run: weights, their average, the optimiser, how far it is.

    Args:
        recipe: What to train, and how.
        directory: Where checkpoints and the log go.
        fabric: Device, precision and processes (`lightning_fabric.Fabric`, launched); None is one
            process on the CPU.
    """

    def __init__(
        self, recipe: Recipe, directory: str | os.PathLike[str], fabric: Fabric | None = None
    ) -> None:
        self.recipe = recipe
        self.directory = Path(directory)
        self.fabric = fabric
        self.is_first = fabric is None or fabric.is_global_zero
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.model = Network(recipe.network, recipe.generative)
        if fabric is not None:
            self.model.to(fabric.device)
        averaged = any(phase.ema for phase in recipe.phases)
        self.average = deepcopy(self.model) if averaged else None
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.step = 0
        self.rate_factor = 1.0
        self.rollbacks = 0
        self.bad_steps = 0  # in a row
        self.seconds = 0.0
        self.metrics: dict[str, float] = {}
        self.resumed: list[int] = []  # the steps at which the run was interrupted and went on

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
        info = self._info() | {"rate_factor": self.rate_factor, "rollbacks": self.rollbacks}
        weights = dict(self.model.state_dict())
        mixture = self.recipe.generative.to_dict()
        return Checkpoint(self.recipe.network, mixture, weights, state, info)

    def _info(self) -> dict[str, Any]:
        """What made the weights and what it cost."""
        return {
            "name": self.recipe.name,
            "recipe": self.recipe.to_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "resumed": self.resumed,
            "metrics": self.metrics,
            "commit": commit(),
        }

    def restore(self, found: Checkpoint) -> None:
        """Go back to a training checkpoint of the same architecture."""
        progress = {"step", "rate_factor", "rollbacks", "seconds", "metrics"}
        if found.config != self.recipe.network or not progress <= set(found.info):
            raise ValueError(f"Expected a training checkpoint of recipe {self.recipe.name!r}")
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
        self.resumed = list(found.info.get("resumed", []))
        self.metrics = dict(found.info["metrics"])

    def resume(self) -> bool:
        """Restore the newest checkpoint that can be read. False if there is none.

        The first process reads it and sends it to the others, so no other needs to see the disk.
        """
        ready = self.is_first and self._read_newest()
        if self.fabric is not None and self.fabric.world_size > 1:
            sent = self.fabric.broadcast(self._checkpoint() if ready else None)
            ready = sent is not None
            if ready and not self.is_first:
                self.restore(sent)
        return ready

    def _read_newest(self) -> bool:
        refused: list[Path] = []
        for path in reversed(checkpoints(self.directory)):
            reason = self._cannot_read(path)
            if not reason:
                # Out of the way, lest they count as the newest ones when old files are dropped.
                for bad in refused:
                    bad.rename(bad.with_suffix(".unreadable"))
                for torn in filter(_is_torn, self.directory.iterdir()):
                    torn.unlink(missing_ok=True)
                return True
            print(f"Skipping {path.name}: {reason}")
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
        path = self.directory / f"{self.recipe.name}.safetensors" if path is None else Path(path)
        if not self.is_finite:
            raise RuntimeError(
                f"The weights are not finite after step {self.step}; resume from the last "
                "checkpoint with a lower learning rate"
            )
        if self.is_first:
            save_model(path, self.best, **self._info())
        return path

    # -- steps

    def advance(self, pieces: list[Sequences]) -> dict[str, float] | None:
        """One optimiser step; None if its loss or gradient was not finite (nothing moves then)."""
        phase, step_of_phase = self.recipe.at(self.step)
        if phase.restart and step_of_phase == 0:
            self._restart()
        self.optimizer.zero_grad(set_to_none=True)
        autocast = nullcontext if self.fabric is None else self.fabric.autocast
        tally = accumulate(self.model, pieces, phase.pairwise, autocast)
        tally = sum_gradients(self.model, tally, self.fabric)
        parameters = list(self.model.parameters())
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, phase.clip or math.inf))
        rate = phase.rate(step_of_phase) * self.rate_factor
        self.step += 1
        if not math.isfinite(norm) or not math.isfinite(tally.loss):
            self.bad_steps += 1
            return None
        self.bad_steps = 0
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self._follow(phase.ema)
        return {
            "nll": tally.loss / tally.points,
            "accuracy": tally.right / max(1, tally.scored),
            "gradient_norm": norm,
            "learning_rate": rate,
            "candidates": tally.candidates,
        }

    def _restart(self) -> None:
        """Go on with the averaged weights; the optimiser forgets."""
        self.model.load_state_dict(self.best.state_dict())
        self.optimizer.state.clear()

    def _follow(self, ema: float) -> None:
        """Move the average towards the weights: quickly at first, to forget the start."""
        if self.average is not None:
            decay = min(ema, (1 + self.step) / (10 + self.step))
            average, weights = self.average.parameters(), self.model.parameters()
            with torch.no_grad():
                torch._foreach_lerp_(list(average), list(weights), 1 - decay)

    def roll_back(self) -> None:
        """After several bad steps: the last good checkpoint, at half the learning rate."""
        factor, rollbacks = self.rate_factor / 2, self.rollbacks + 1
        if rollbacks > ROLLBACKS:
            raise RuntimeError(f"The loss was not finite after {ROLLBACKS} rollbacks; giving up")
        if not self.resume():
            fresh = Trainer(self.recipe, self.directory, self.fabric)
            self.__dict__.update(fresh.__dict__)
        self.rate_factor, self.rollbacks, self.bad_steps = factor, rollbacks, 0


def _is_torn(path: Path) -> bool:
    """Whether a file is one of ours that was being written when its process was killed."""
    return is_temporary(path.name, path.name[1:].partition(".ncp-")[0])


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def checkpoints(directory: Path) -> list[Path]:
    """The training checkpoints of a run, oldest first."""
    return sorted(directory.glob("checkpoint-*.safetensors"))


@cache
def commit() -> str | None:
    """The commit of the source tree, when there is one; with a mark if files were changed."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(describe, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
