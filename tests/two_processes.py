"""What two processes do together; started by test_training.py, writes what it found."""

import json
import sys
from pathlib import Path

import torch
from lightning_fabric import Fabric

from ncp.network.checkpoint import read
from ncp.training import data
from ncp.training.data import Sequences, draw
from ncp.training.distributed import sum_gradients
from ncp.training.loop import train
from ncp.training.loss import accumulate
from ncp.training.monitors import held_out_nll
from ncp.training.recipe import Recipe
from ncp.training.state import Trainer, checkpoints
from tests.test_training import flat_gradient, tiny


def gradients_on_a_fixed_batch(fabric: Fabric) -> dict[str, float]:
    """Each takes every second piece; together they have the gradient of all."""
    pieces = draw(tiny(sizes_per_step=6, points_per_step=600), 0, 0, 0)
    trainer = Trainer(tiny(), "unused", fabric)
    mine = accumulate(trainer.model, pieces[fabric.global_rank :: 2])
    tally = sum_gradients(trainer.model, mine, fabric)
    alone = Trainer(tiny(), "unused")
    whole = sum_gradients(alone.model, accumulate(alone.model, pieces), None)
    return {
        "gradient_difference": float(
            (flat_gradient(trainer.model) - flat_gradient(alone.model)).abs().max()
        ),
        "points": tally.points,
        "points_alone": whole.points,
    }


def two(points: int, steps: int = 60) -> Recipe:
    more = {"learning_rate": 1e-2, "ema": 0.0, "validate_every": 1000}
    return tiny(steps=steps, points_per_step=points, **more)


def main(directory: Path) -> None:
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    found: dict[str, float] = {"world_size": fabric.world_size}
    found |= gradients_on_a_fixed_batch(fabric)

    honest = data.draw

    def sometimes_bad(recipe: Recipe, *key: int) -> list[Sequences]:
        pieces = honest(recipe, *key)
        # One process only: a single step, or all of a short run until it is rolled back.
        if key[1] == 1 and (key[2] == 4 or (recipe.steps == 9 and key[0] == 0)):
            pieces[0] = pieces[0]._replace(x=pieces[0].x * torch.nan)
        return pieces

    data.draw = sometimes_bad
    run, there = two(200), directory / "run"
    train(two(200, steps=3), there, fabric=fabric, progress=False)
    # Only the second process is out of time: both stop after one step.
    seconds = 0.0 if fabric.global_rank == 1 else None
    train(run, there, fabric=fabric, progress=False, resume=True, seconds=seconds)
    found["stopped_at"] = read(checkpoints(there)[-1]).info["step"]
    fabric.barrier()
    model = train(run, there, fabric=fabric, progress=False, resume=True)
    train(two(200, steps=9), directory / "bad", fabric=fabric, progress=False)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    everyone = fabric.all_gather(weights)
    found["weights_differ"] = float((everyone[0] - everyone[1]).abs().max())
    data.draw = honest
    if fabric.is_global_zero:
        found["nll_two"] = held_out_nll(model, run)
        found["nll_start"] = held_out_nll(Trainer(run, "unused").model, run)
        found["nll_one"] = held_out_nll(train(two(400), directory / "one", progress=False), run)
        (directory / "found.json").write_text(json.dumps(found))
    fabric.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
