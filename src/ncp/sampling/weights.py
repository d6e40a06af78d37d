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
from jaxtyping import Float
from torch import Tensor, nn

from ncp.network.blocks import PReLU, Residual
from ncp.network.network import Folded, Network
from ncp.sampling.kernels import Array, Weights

__all__ = ["compiled_weights", "fold_once", "pair_weights"]


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
    none = folded.b_f.new_zeros(spec.f.width, 0)
    w_point = none if folded.w_point is None else folded.w_point
    codes = pairs.codes if pairs else 0
    of_cluster, of_pair = (none if v is None else v for v in (folded.w_cluster, folded.w_pair))
    w_code, w_cluster = pair_weights(of_cluster, of_pair, codes)
    w_c = torch.zeros_like(folded.w_g) if folded.w_c is None else folded.w_c
    log_size = folded.b_u.new_zeros(spec.g.width)
    log_k = log_rest = torch.zeros_like(folded.b_f)
    if network.log_size is not None and network.log_numbers is not None:
        log_size = network.log_size.weight[:, 0]
        log_k, log_rest = network.log_numbers.weight.unbind(1)
    return Weights(
        b_u=_array(folded.b_u),
        size_u=_array(log_size),
        g_w=g_w,
        g_b=g_b,
        g_slopes=g_slopes,
        w_gc=_array(torch.cat([folded.w_g, w_c]).T),
        b_g=_array(folded.b_g),
        w_code=w_code,
        w_cluster=w_cluster,
        w_point=_array(w_point.T),
        k_f=_array(log_k),
        rest_f=_array(log_rest),
        f_w=f_w,
        f_b=f_b,
        f_slopes=f_slopes,
        f_out=_array(cast(nn.Linear, network.f[-1]).weight[0]),
        codes=codes,
        coordinates=pairs.coordinates if pairs else 0,
        octaves=pairs.octaves if pairs else 0,
        mean=spec.pooling == "mean",
        g_residual=spec.g.residual,
        f_residual=spec.f.residual,
    )


def pair_weights(
    of_cluster: Float[Tensor, "f n_cluster"], of_pair: Float[Tensor, "f n_pair"], codes: int
) -> tuple[Float[np.ndarray, "3 codes f"], Float[np.ndarray, "n f"]]:
    """V_A in two parts: what meets a cluster's mean code, and what meets its other features.

    The second is in the order cosine, size, distances, spread.
    """
    alone, own, rest = of_cluster[:, :codes], of_pair[:, :codes], of_pair[:, codes : 2 * codes]
    end = 2 * (codes > 0)  # cosine and size
    others = of_cluster[:, codes:]
    w_cluster = torch.cat([others[:, :end], of_pair[:, 2 * codes :], others[:, end:]], 1)
    return _array(torch.stack([alone, own, rest]).mT), _array(w_cluster.T)


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
