"""A network as the compiled kernels want it: arrays of one type, products as (in, out)."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from ncp.network.blocks import PReLU, Residual
from ncp.network.network import Folded, Network
from ncp.sampling.kernels import Array, Weights

__all__ = ["compiled_weights"]


def compiled_weights(network: Network, folded: Folded) -> Weights:
    """The `Weights` of a network on the CPU."""
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
