"""What several processes do together.

Each draws data of its own; gradients and point counts are summed over all, so two ranks are one
rank with twice the batch. What travels in a step is one vector of the parameters' length.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING

import torch

from ncp.network.network import Network
from ncp.training.loss import Tally

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["any_rank", "start_fabric", "sum_gradients"]


def start_fabric(accelerator: str, devices: int, nodes: int, precision: str) -> Fabric:
    """Lightning Fabric, launched: the other processes of this machine run from here on."""
    try:
        from lightning_fabric import Fabric
    except ImportError as error:
        raise ImportError(
            "Several devices, CUDA or bf16-mixed take lightning-fabric: "
            "pip install 'neural-clustering-process[train-distributed]'"
        ) from error
    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        precision=precision,
        strategy="ddp" if devices * nodes > 1 else "auto",
    )
    fabric.launch()
    return fabric


def sum_gradients(model: Network, tally: Tally, fabric: Fabric | None) -> Tally:
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


def any_rank(flag: bool, fabric: Fabric | None) -> bool:
    """Whether any process says so."""
    if fabric is None or fabric.world_size == 1:
        return flag
    votes = torch.tensor(float(flag), device=fabric.device)
    return bool(fabric.all_reduce(votes, reduce_op="sum") > 0)
