"""What a user holds of a network: log q, samples, the most probable partitions, new points.

`NCP` is a `Network` with the answers of `ncp.sampling` as methods; `load` finds one by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ncp.engine import Parcel
from ncp.network.checkpoint import read
from ncp.network.network import Network
from ncp.network.pretrained import find, short_name
from ncp.posterior import Partitions
from ncp.sampling.assign import assign, assign_each
from ncp.sampling.constraints import Constraints
from ncp.sampling.sample import Drawn, beam_search, sample_many
from ncp.sampling.stream import from_bytes, sample_stream, to_bytes

__all__ = ["NCP", "as_parcel", "load", "load_model"]

Progress = Callable[[int, int], None]


class NCP(Network):
    """The neural clustering process, p(c_n = k | c_{1:n-1}, x) = softmax_k f(G_k, Q, h_n).

    Args:
        spec: what it is composed of.
        mixture: the generative model it is trained for.

    Example:
        >>> from ncp.network.network import NetworkSpec
        >>> model = NCP(NetworkSpec(event_shape=2))
        >>> x = torch.tensor([[0.0, 0.0], [0.1, 0.0], [9.0, 9.0]])
        >>> model.conditionals(x, [0, 0, 1]).shape  # three points, two clusters or a new one
        torch.Size([3, 3])
        >>> model.sample(x, n_samples=20, seed=0).n_samples
        20
    """

    name: str = ""  # that it was loaded by

    def sample(
        self,
        x: Any,
        n_samples: int = 1000,
        orders: int | str = 1,
        seed: int | None = None,
        progress: Progress | None = None,
        given: Constraints | None = None,
        at_any_price: bool = False,
    ) -> Partitions:
        """Exact iid samples of q(c | x).

        Args:
            x: one data set, `(N, *event_shape)`.
            n_samples: S.
            orders: the number of random orders that the samples are spread over; 1 is the given
                order, `"each"` gives every sample an order of its own.
            seed: makes the call reproducible.
            progress: called with (points assigned, points in all).
            given: what is known of the partition (`ncp.sampling.constraints.constrain`).
            at_any_price: obey constraints that the network finds impossible as well.

        Returns:
            Distinct rows in the caller's order of points, with `log_q` in the order of the draw;
            with constraints also weights, whose mean is the probability of the constraints.
        """
        how: dict[str, Any] = {"orders": orders, "seed": seed, "progress": progress}
        known = None if given is None else [given]
        return self.sample_many([x], n_samples, given=known, at_any_price=at_any_price, **how)[0]

    def sample_many(
        self,
        xs: Sequence[Any],
        n_samples: int = 1000,
        orders: int | str = 1,
        seed: int | None = None,
        progress: Progress | None = None,
        streams: Sequence[int] | None = None,
        engine: Any = None,
        address: str | None = None,
        given: Sequence[Constraints | None] | None = None,
        at_any_price: bool = False,
    ) -> list[Partitions]:
        """Samples for many data sets of any sizes at once; arguments as for `sample`.

        The samples of a data set depend on the seed and its entry of `streams` (0, 1, ... by
        default), not on the other data sets. With `engine="processes"` they are drawn on all
        cores, with `engine="dask"` on the workers of a scheduler at `address`.

        Example:
            >>> from ncp.network.network import NetworkSpec
            >>> model = NCP(NetworkSpec(event_shape=1))
            >>> many = model.sample_many([[[0.0], [1.0]], [[3.0]]], n_samples=10, seed=0)
            >>> [one.n_points for one in many]
            [2, 1]
        """
        xs = list(xs)
        if engine is not None or address is not None:
            if streams is not None or given is not None:
                raise ValueError("Expected streams or constraints, or an engine, but got both")
            how: dict[str, Any] = {"orders": orders, "seed": seed, "progress": progress}
            found = dict(self.sample_stream(xs, n_samples, engine=engine, address=address, **how))
            return [found[i] for i in range(len(xs))]
        drawn = sample_many(
            self,
            xs,
            n_samples,
            orders=orders,
            seed=seed,
            streams=streams,
            given=given,
            at_any_price=at_any_price,
            progress=progress,
        )
        return [_partitions(one, x) for one, x in zip(drawn, xs, strict=True)]

    def sample_stream(
        self, xs: Iterable[Any], n_samples: int = 1000, **how: Any
    ) -> Generator[tuple[int, Partitions], None, None]:
        """Numbers and samples of data sets as they come.

        Args:
            xs: data sets, taken up as they are needed.
            n_samples: of each.
            **how: `orders`, `seed`, `engine`, `address` and `progress`, see
                `ncp.sampling.stream.sample_stream`.
        """
        for number, x, drawn in sample_stream(self, xs, n_samples, **how):
            yield number, _partitions(drawn, x)

    def map(self, x: Any, beam: int = 32, given: Constraints | None = None) -> Partitions:
        """The most probable partitions found by beam search, best first.

        Args:
            x: one data set, `(N, *event_shape)`.
            beam: prefixes kept at each step, and partitions returned (fewer if there are fewer).
            given: what is known of the partition; constrained points then come first.

        Example:
            >>> from ncp.network.network import NetworkSpec
            >>> len(NCP(NetworkSpec(event_shape=1)).map([[0.0], [1.0], [5.0]], beam=100))
            5
        """
        found = _partitions(beam_search(self, x, beam, given), x)
        return found[np.argsort(-found.log_q, kind="stable")]

    def assign(self, x_new: Any, x: Any, labels: Any, *, mutual: bool = True) -> Tensor:
        """Probabilities `(M, K + 1)` of new points joining each cluster or a new one.

        See `ncp.sampling.assign.assign`.
        """
        return assign(self, x_new, x, labels, mutual=mutual)

    def assign_each(self, x_new: Any, x: Any, labels: Any, *, mutual: bool = True) -> list[Tensor]:
        """`assign` for several partitions `(R, N)`; points are encoded once."""
        return assign_each(self, x_new, x, labels, mutual=mutual)


def _partitions(drawn: Drawn, x: Any) -> Partitions:
    data = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
    return Partitions(*drawn[:4], x=data, runs=drawn.runs)


def as_parcel(model: NCP) -> Parcel[NCP]:
    """A model that an engine can send to its workers, with its mixture."""
    return Parcel(model, to_bytes, partial(from_bytes, kind=NCP))


def load_model(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> NCP:
    """Read a model that `save_model` or the trainer wrote, in evaluation mode."""
    return read(path).build(NCP).to(device)


def load(name_or_path: str | os.PathLike[str], device: str | torch.device = "cpu") -> NCP:
    """A trained model, in evaluation mode.

    Args:
        name_or_path: one of `ncp models`, or the path of a checkpoint.
        device: where to put it.
    """
    model = load_model(find(name_or_path), device)
    model.name = short_name(name_or_path)
    return model
