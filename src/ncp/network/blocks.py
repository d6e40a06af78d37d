"""The building blocks of h, g and f: perceptrons with PReLU (appendix A of the paper).

A part of the network is described by a *spec*: a small frozen dataclass that checks its values,
goes to a checkpoint's header as a plain dict and builds its module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["PReLU", "Part", "Perceptron", "Residual", "linear_from_zero", "perceptron"]

AnyPart = TypeVar("AnyPart", bound="Part")
LARGEST = 2**14  # width or depth of anything; a header may come from a stranger


@dataclass(frozen=True)
class Part:
    """A spec: its integers are at least 1 (those in `ZERO_ALLOWED` 0), its flags are bools."""

    ZERO_ALLOWED: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "bool" and not isinstance(value, bool):
                raise ValueError(f"Expected {field.name} to be true or false but got {value!r}")
            if field.type == "int":
                least = 0 if field.name in self.ZERO_ALLOWED else 1
                whole = isinstance(value, int) and not isinstance(value, bool)
                if not whole or not least <= value <= LARGEST:
                    raise ValueError(
                        f"Expected an integer {field.name} in {least} .. {LARGEST} of "
                        f"{type(self).__name__} but got {value!r}"
                    )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a checkpoint's header carries them."""
        plain = asdict(self)
        return {key: list(v) if isinstance(v, tuple) else v for key, v in plain.items()}

    @classmethod
    def from_dict(cls: type[AnyPart], plain: Mapping[str, Any]) -> AnyPart:
        """The inverse of `to_dict`; unknown keys are refused."""
        known = {field.name for field in fields(cls)}
        if not isinstance(plain, Mapping) or set(plain) - known:
            got = sorted(set(plain) - known) if isinstance(plain, Mapping) else plain
            raise ValueError(f"Expected keys of {cls.__name__}, {sorted(known)}, but got {got}")
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()})


@dataclass(frozen=True)
class Perceptron(Part):
    """`depth` linear layers, `width` wide, with PReLU between them.

    Args:
        width: neurons of the hidden layers.
        depth: linear layers, at least two.
        out: numbers that come out.
        residual: skip connections around the hidden layers.
    """

    width: int = 128
    depth: int = 6
    out: int = 1
    residual: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth < 2:
            raise ValueError(f"Expected depth >= 2 of {type(self).__name__} but got {self.depth}")


class _Leaky(torch.autograd.Function):
    """PReLU with one slope. On a CPU the backward pass of torch's own takes longer than two
    products of the layer; this one takes a tenth of that."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(z, slope)
        return nn.functional.leaky_relu(z, slope.item())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        z, slope = ctx.saved_tensors
        below = np.dot(gradient.reshape(-1).numpy(), z.clamp(max=0).view(-1).numpy())
        into_z = torch.ops.aten.leaky_relu_backward(gradient, z, slope.item(), False)
        return into_z, slope.new_full(slope.shape, float(below))


class PReLU(nn.PReLU):
    """`torch.nn.PReLU` with one slope, and a fast backward pass on the CPU."""

    def __init__(self) -> None:
        super().__init__()

    def forward(self, z: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        if z.device.type != "cpu" or z.dtype != self.weight.dtype:
            return super().forward(z)
        if not torch.is_grad_enabled():
            return nn.functional.leaky_relu(z, self.weight.item())
        out: Tensor = _Leaky.apply(z.contiguous(), self.weight)  # type: ignore[no-untyped-call]
        return out


class Residual(nn.Module):
    """z -> z + PReLU(W z + b): a hidden layer with a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.activation = PReLU()

    def forward(self, z: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        change: Tensor = self.activation(self.linear(z))
        return change + z if torch.is_grad_enabled() else change.add_(z)


def perceptron(n_in: int, spec: Perceptron, *, bias: bool = True) -> nn.Sequential:
    """Linear, PReLU, Linear, ..., PReLU, Linear; `bias` is that of the last layer.

    With `spec.residual` the hidden (Linear, PReLU) pairs after the first are `Residual` blocks.

    Example:
        >>> perceptron(2, Perceptron(width=128, depth=5, out=256))[0].weight.shape
        torch.Size([128, 2])
    """
    layers: list[nn.Module] = [nn.Linear(n_in, spec.width), PReLU()]
    for _ in range(spec.depth - 2):
        if spec.residual:
            layers.append(Residual(spec.width))
        else:
            layers += [nn.Linear(spec.width, spec.width), PReLU()]
    return nn.Sequential(*layers, nn.Linear(spec.width, spec.out, bias=bias))


def linear_from_zero(n_in: int, n_out: int) -> nn.Linear:
    """A linear map that has no effect before it is trained."""
    layer = nn.Linear(n_in, n_out, bias=False)
    nn.init.zeros_(layer.weight)
    return layer
