"""Training: one visible loop.

A step draws data sets from the mixture, each in one or more random orders, sums the negative
log-likelihood of all sequences, divides by the number of points, clips the gradient and lets Adam
move the weights.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ncp.files import locked
from ncp.network.network import Network
from ncp.training.distributed import any_rank, start_fabric
from ncp.training.log import Log, progress_bar
from ncp.training.monitors import held_out, permutation_spread
from ncp.training.prefetch import Prefetcher
from ncp.training.recipe import Recipe
from ncp.training.state import Trainer, checkpoints

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["launch", "train"]

Validate = Callable[[Network], Mapping[str, float]]

BAD_STEPS_IN_A_ROW = 5


def train(
    recipe: Recipe,
    directory: str | os.PathLike[str],
    *,
    resume: bool = False,
    validate: Validate | None = None,
    fabric: Fabric | None = None,
    progress: bool = True,
    seconds: float | None = None,
) -> Network:
    """Train, or go on training, and export the weights to `directory/NAME.safetensors`.

    Args:
        recipe: What to train, and how.
        directory: Where checkpoints, `log.jsonl` and the final weights go. No other process may
            train there at the same time.
        resume: Go on from the newest checkpoint that can be read.
        validate: Called with the model every `validate_every` steps, in the first process only;
            what it returns is logged.
        fabric: See `Trainer`; `launch` makes one.
        progress: Show a progress bar.
        seconds: Stop (with a checkpoint) after this long.

    Returns:
        The trained model (the averaged weights, if averaging is on).
    """
    trainer = Trainer(recipe, directory, fabric)
    try:
        with _alone(trainer, resume):
            _begin(trainer, resume, progress)
            _loop(trainer, validate, progress, seconds)
            trainer.save()
            trainer.export()
    except OSError as error:
        kept = [path.name for path in checkpoints(trainer.directory)]
        last = f" and can be resumed from {kept[-1]}" if kept else ""
        message = f"{error.strerror or error}; the run stops{last}"
        raise OSError(error.errno, message, str(directory)) from error
    return trainer.best.eval()


@contextmanager
def _alone(trainer: Trainer, resume: bool) -> Iterator[None]:
    """The run's directory for these processes alone."""
    directory, taken = trainer.directory, False
    with ExitStack() as stack:
        if trainer.is_first and (directory.is_dir() or not resume):
            directory.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(locked(directory / "lock", wait=False))
            except BlockingIOError:
                taken = True
        if any_rank(taken, trainer.fabric):
            raise ValueError(
                f"Expected a run that no other process trains but {str(directory)!r} is in use"
            )
        yield


def _begin(trainer: Trainer, resume: bool, progress: bool) -> None:
    """The last checkpoint of a run, or the first one."""
    where = str(trainer.directory)
    if resume:
        if not trainer.resume():
            raise ValueError(f"Expected a readable checkpoint in {where!r} but found none")
        trainer.resumed.append(trainer.step)
        if progress and trainer.is_first:
            print(f"Resuming {where} after step {trainer.step:,} of {trainer.recipe.steps:,}")
        return
    occupied = trainer.is_first and bool(checkpoints(trainer.directory))
    if any_rank(occupied, trainer.fabric):
        raise ValueError(
            f"Expected an empty run directory but {where!r} has checkpoints; "
            "resume it, or choose another"
        )
    trainer.save()  # from here on, a run that is killed can be resumed


def _loop(
    trainer: Trainer, validate: Validate | None, progress: bool, seconds: float | None
) -> None:
    recipe, fabric = trainer.recipe, trainer.fabric
    rank = 0 if fabric is None else fabric.global_rank
    started = last_saved = time.monotonic()  # the wall clock may jump
    before = trainer.seconds
    with (
        Log(trainer) as log,
        progress_bar(trainer, progress) as show,
        _interrupt() as stopped,
        Prefetcher(recipe, rank) as data,
    ):
        while trainer.step < recipe.steps:
            result = trainer.advance(data.next(trainer.rollbacks, trainer.step))
            trainer.seconds = before + time.monotonic() - started
            if result is None:
                _skip(trainer, log)
                continue
            log.add(result)
            if trainer.is_first and trainer.step % recipe.log_every == 0:
                log.flush(permutation_spread(trainer.model, recipe, 2**41, rank, trainer.step))
            last = trainer.step == recipe.steps
            if trainer.is_first and (last or trainer.step % recipe.validate_every == 0):
                trainer.metrics = held_out(trainer.best, recipe)
                trainer.metrics |= dict(validate(trainer.best)) if validate is not None else {}
                log.write({"step": trainer.step, **trainer.metrics})
            show(log.latest)
            if time.monotonic() - last_saved > recipe.checkpoint_seconds:
                trainer.save()
                last_saved = time.monotonic()
            out_of_time = seconds is not None and time.monotonic() - started > seconds
            if any_rank(stopped.is_set() or out_of_time, fabric):
                break


def _skip(trainer: Trainer, log: Log) -> None:
    """After a step that was not finite: nothing moved; back to a checkpoint if there are many."""
    log.write({"step": trainer.step, "event": "non-finite step skipped"})
    if trainer.bad_steps >= BAD_STEPS_IN_A_ROW:
        at = trainer.step
        trainer.roll_back()
        log.rewind()
        event = f"rolled back from step {at}, half the learning rate"
        log.write({"step": trainer.step, "event": event})


def launch(
    recipe: Recipe,
    directory: str | os.PathLike[str],
    *,
    devices: int = 1,
    nodes: int = 1,
    accelerator: str = "auto",
    precision: str = "32-true",
    **options: Any,
) -> Network:
    """`train` on any number of devices and machines.

    With one process on the CPU this is `train`. Otherwise Lightning Fabric (the extra
    `train-distributed`) starts the processes of this machine by running the same command again, or
    finds itself started by `torchrun`, `fabric run` or SLURM, whose numbers then count.

    Args:
        recipe: What to train, and how.
        directory: Where checkpoints, `log.jsonl` and the final weights go.
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
        return train(recipe, directory, **options)
    fabric = start_fabric(accelerator, devices, nodes, precision)
    try:
        return train(recipe, directory, fabric=fabric, **options)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


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
