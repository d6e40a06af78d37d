"""One self-describing safetensors file.

Tensors by name, and one JSON document in the file's header under the key ``ncp``: format version,
package version, `NetworkSpec`, mixture spec, training config, step, metrics, commit. Weights that
ship hold the model's tensors only; a training checkpoint also holds the optimiser's moments and the
averaged weights under prefixes of their own. Nothing in the file is ever executed.

Files are written whole or not at all: to a temporary file beside the target, flushed to disk,
then renamed over it.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ncp.files import write_atomically
from ncp.generative.mixture import Mixture
from ncp.generative.model import GenerativeModel, model_from_dict
from ncp.network.network import Network, NetworkSpec

__all__ = ["FAULTS", "FORMAT", "Checkpoint", "read", "refusing", "save_model", "try_out", "write"]

N = TypeVar("N", bound=Network)
FORMAT = 2
TRANSFORM = ("location", "scale")  # the input transform: any shape that fits one observation
WEIGHT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FAULTS = (
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    RuntimeWarning,
)
LARGEST_COUNT = 2**53  # steps or seconds
LARGEST_SIZE = 100_000  # points of a data set; a header may come from a stranger


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds.

    Arguments:
        config: The architecture.
        mixture: The mixture's spec, a plain dict, or None.
        weights: The model's own tensors.
        state: Further tensors of a training checkpoint, by prefixed name.
        info: Everything else of the header: training config, step, metrics, commit, name.
    """

    config: NetworkSpec
    mixture: dict[str, Any] | None
    weights: dict[str, Tensor]
    state: dict[str, Tensor] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)

    def build(self, kind: type[N]) -> N:
        """The model, of a class that is a `Network`, in evaluation mode.

        The file may come from a stranger: the model takes up memory only once the tensors that
        are there are known to be those of its config.
        """
        attention = self.config.attention
        blocks = 0 if attention is None else attention.blocks
        depth = max(self.config.g.depth, self.config.f.depth, blocks)
        depth = max(depth, getattr(self.config.encoder, "depth", 0))
        if depth > len(self.weights):
            raise ValueError(f"Expected {depth} layers but got {len(self.weights)} tensors")
        with refusing("Expected a model that can be built from the header"):
            mixture = None if self.mixture is None else model_from_dict(self.mixture)
            with torch.device("meta"):
                model = kind(self.config, mixture)
            expected = model.state_dict()
            self._check_weights({name: tensor.shape for name, tensor in expected.items()})
            if mixture is not None:
                try_out(mixture)
        weights = {n: t.to(expected[n].dtype, copy=True) for n, t in self.weights.items()}
        for name in TRANSFORM:
            setattr(model, name, weights[name])
        model.load_state_dict(weights, assign=True)
        return model.eval()

    def _check_weights(self, expected: Mapping[str, torch.Size]) -> None:
        if set(expected) != set(self.weights):
            missing = sorted(set(expected) - set(self.weights))
            extra = sorted(set(self.weights) - set(expected))
            raise ValueError(
                f"Expected the tensors of its NetworkSpec but {missing[:3]} are missing "
                f"and {extra[:3]} are unknown"
            )
        event = self.config.event_shape
        for name, tensor in self.weights.items():
            wanted = event if name in TRANSFORM else tuple(expected[name])
            if tuple(tensor.shape) != wanted and not (
                name in TRANSFORM and _broadcasts(tuple(tensor.shape), event)
            ):
                raise ValueError(f"Expected {name} of shape {wanted} but got {tuple(tensor.shape)}")
            if tensor.dtype not in WEIGHT_DTYPES or not bool(tensor.isfinite().all()):
                raise ValueError(f"Expected finite floating-point weights but {name} is not")
        if not bool((self.weights["scale"] > 0).all()):
            raise ValueError("Expected a positive scale but got one that is not")


def try_out(mixture: GenerativeModel) -> None:
    """Refuse a generative model that can be read but not used: what is odd shows when it loads.

    A few points are drawn and have a density, or a small table is prepared and compared with the
    stored reference. What takes a file or a long simulation is left alone.
    """
    if mixture.sizes[1] > LARGEST_SIZE:
        raise ValueError(f"Expected sizes up to {LARGEST_SIZE} but got {mixture.sizes}")
    preprocessing = mixture.preprocessing
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # overflow and the like
        if preprocessing is not None:
            fitted = preprocessing.fit(np.random.default_rng(0).normal(size=(12, 2)))
            finite = bool(np.isfinite(fitted.features).all())
            if getattr(mixture, "reference", None):
                odd = mixture.unusualness(fitted)
                finite = finite and odd is not None and 0.0 <= odd.p_value <= 1.0
                finite = finite and mixture.shortfall(len(fitted.features)) <= 1.0
        elif isinstance(mixture, Mixture) and (mixture.is_conjugate or mixture.has_density):
            generator = torch.Generator().manual_seed(0)
            drawn = mixture.sample(1, min(mixture.sizes[0], 3), generator=generator)
            finite = bool(drawn.x.isfinite().all())
            if mixture.is_conjugate:
                joint = mixture.log_joint(drawn.x[0], drawn.labels[0])
                finite = finite and bool(joint.isfinite().all())
        else:
            finite = True
    if not finite:
        raise ValueError(f"Expected a generative model of finite numbers but got {mixture}")


def _broadcasts(shape: tuple[int, ...], event: tuple[int, ...]) -> bool:
    sides = zip(reversed(shape), reversed(event), strict=False)
    return len(shape) <= len(event) and all(a in (1, b) for a, b in sides)


@contextlib.contextmanager
def refusing(expected: str) -> Iterator[None]:
    """Whatever goes wrong with what a file says is the file's fault: a `ValueError`."""
    try:
        yield
    except ValueError:
        raise
    except FAULTS as error:
        raise ValueError(f"{expected} but got {type(error).__name__}: {error}") from error


def write(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically."""
    from ncp import __version__

    header = {
        **checkpoint.info,
        "format": FORMAT,
        "version": __version__,
        "model": checkpoint.config.to_dict(),
        "mixture": checkpoint.mixture,
    }
    tensors = {f"model.{name}": t for name, t in checkpoint.weights.items()} | checkpoint.state
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    write_atomically(path, save(tensors, {"ncp": json.dumps(header)}))


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint; anything that is not one is refused with a `ValueError`."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"Expected a checkpoint file but {str(path)!r} does not exist")
    try:
        with safe_open(path, framework="pt") as file:
            header = _check_header(file.metadata() or {}, path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, LookupError, AttributeError, MemoryError) as error:
        raise ValueError(
            f"Expected a complete safetensors file but {str(path)!r} cannot be read: {error}"
        ) from error
    weights = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
    state = {n: t for n, t in tensors.items() if not n.startswith("model.")}
    info = {k: v for k, v in header.items() if k not in ("format", "version", "model", "mixture")}
    with refusing(f"Expected an NetworkSpec in the header of {str(path)!r}"):
        config = NetworkSpec.from_dict(header["model"])
    return Checkpoint(config, header["mixture"], weights, state, info)


def _check_header(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    if "ncp" not in metadata:
        raise ValueError(f"Expected an ncp checkpoint but {str(path)!r} has no ncp header")
    try:
        header = json.loads(metadata["ncp"])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Expected JSON in the header of {str(path)!r}: {error}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else header
        raise ValueError(f"Expected checkpoint format {FORMAT} but {str(path)!r} has {found!r}")
    _check_values(header, path)
    return header


def _check_values(header: Mapping[str, Any], path: Path) -> None:
    for key in ("step", "total_steps", "seconds", "total_seconds"):
        value = header.get(key, 0)
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if not plain or not 0 <= value < LARGEST_COUNT:
            raise ValueError(f"Expected a number {key} >= 0 in {str(path)!r} but got {value!r}")
    for key in ("metrics", "quality"):
        if not isinstance(header.get(key, {}), dict | None):
            raise ValueError(f"Expected {key} by name in {str(path)!r} but got {header[key]!r}")
    mixture = header.get("mixture", "absent")
    if not isinstance(header.get("model"), dict) or not isinstance(mixture, dict | None):
        raise ValueError(f"Expected a model and a mixture in the header of {str(path)!r}")


def save_model(path: str | os.PathLike[str], model: Network, **info: Any) -> None:
    """Write a model's weights with its config, its mixture's spec and any JSON-able `info`."""
    mixture = None if model.mixture is None else model.mixture.to_dict()
    write(path, Checkpoint(model.spec, mixture, dict(model.state_dict()), info=info))
