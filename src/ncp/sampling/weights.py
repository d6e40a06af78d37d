"""A network as the compiled kernels want it: arrays of one type, products as (in, out).

To multiply out the boundaries and to lay the arrays takes a fifth of a small data set's time, so
both are kept until the network changes: until torch has written to a parameter, or put another in
its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from ncp.network.blocks import PReLU, Residual
from ncp.network.network import Folded, Network
from ncp.sampling.kernels import Array, Weights

__all__ = ["compiled_weights", "fold_once"]


@dataclass
class _Kept:
    state: list[Any]
    folded: Folded
    weights: Weights | None = None


_KEPT: WeakKeyDictionary[Network, _Kept] = WeakKeyDictionary()


def _state(network: Network) -> list[Any]:
    """Changes whenever torch writes to a parameter, or its memory or type is another."""
    return [
        (t.data_ptr(), t.dtype, 0 if t.is_inference() else t._version) for t in _tensors(network)
    ]


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers, found three times as fast as by torch, which gives them names."""
    own = (*module._parameters.values(), *module._buffers.values())
    found = [tensor for tensor in own if tensor is not None]
    for child in module._modules.values():
        if child is not None:
            found += _tensors(child)
    return found


@torch.no_grad()
def fold_once(network: Network) -> Folded:
    """`Network.fold` without gradients, kept until the network changes."""
    kept, state = _KEPT.get(network), _state(network)
    if kept is None or kept.state != state:
        _KEPT[network] = kept = _Kept(state, network.fold())
    return kept.folded


def compiled_weights(network: Network, folded: Folded) -> Weights:
    """The `Weights` of a network on the CPU, kept as long as what `fold_once` gave."""
    kept = _KEPT.get(network)
    if kept is None or kept.folded is not folded:
        return _weights(network, folded)
    if kept.weights is None:
        kept.weights = _weights(network, folded)
    return kept.weights


def _weights(network: Network, folded: Folded) -> Weights:
    spec, pairs = network.spec, network.pair_features
    g_w, g_b, g_slopes = _hidden(network.g, spec.g.width)
    f_w, f_b, f_slopes = _hidden(network.f, spec.f.width)
    no_pair = folded.b_f.new_zeros(spec.f.width, 0)
    log_size = folded.b_u.new_zeros(spec.g.width)
    log_k = folded.b_f.new_zeros(spec.f.width)
    if network.log_size is not None and network.log_numbers is not None:
        log_size, log_k = network.log_size.weight[:, 0], network.log_numbers.weight[:, 0]
    return Weights(
        b_u=_array(folded.b_u),
        size_u=_array(log_size),
        g_w=g_w,
        g_b=g_b,
        g_slopes=g_slopes,
        w_gc=_array(folded.w_gc.T),
        b_gc=_array(folded.b_gc),
        w_pair=_array((no_pair if folded.w_pair is None else folded.w_pair).T),
        k_f=_array(log_k),
        f_w=f_w,
        f_b=f_b,
        f_slopes=f_slopes,
        f_out=_array(cast(nn.Linear, network.f[-1]).weight[0]),
        codes=pairs.codes if pairs else 0,
        coordinates=pairs.coordinates if pairs else 0,
        octaves=pairs.octaves if pairs else 0,
        mean=spec.pooling == "mean",
        g_residual=spec.g.residual,
        f_residual=spec.f.residual,
    )


def _array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.detach().cpu().numpy())


def _hidden(layers: nn.Sequential, width: int) -> tuple[Array, Array, Array]:
    """The hidden layers of a perceptron, stacked: (in, out) weights, biases, all slopes."""
    linear: list[nn.Linear] = []
    slopes: list[PReLU] = []
    for layer in list(layers)[1:-1]:
        if isinstance(layer, Residual):
            linear.append(layer.linear)
            slopes.append(layer.activation)
        elif isinstance(layer, nn.Linear):
            linear.append(layer)
        else:
            slopes.append(cast(PReLU, layer))
    first = cast(nn.Linear, layers[0]).weight
    weights = [layer.weight.T for layer in linear]
    w = torch.stack(weights) if weights else first.new_zeros(0, width, width)
    b = torch.stack([layer.bias for layer in linear]) if weights else first.new_zeros(0, width)
    return _array(w), _array(b), _array(torch.cat([slope.weight for slope in slopes]))
