"""Trained weights by name.

Every `weights/NAME.safetensors` in the package is a model that `load` finds by its name; any other
checkpoint is loaded by its path. A `Card` says what a model is for, what it was trained on and how
good it was measured to be; all but the purpose is read from the file's own header.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ncp.network.checkpoint import Checkpoint, read, refusing

__all__ = ["DEFAULT", "DIRECTORY", "PURPOSE", "Card", "card", "find", "names", "short_name"]

DEFAULT = "tabular"
DIRECTORY = Path(__file__).parent / "weights"
SUFFIX = ".safetensors"

PURPOSE = {
    "tabular": "any table: numbers, categories, gaps",
    "gaussian": "1 to 8 columns: Gaussian clusters of any form",
    "gaussian-2d": "the plane: round clusters of known noise",
    "gaussian-2d-paper": "the same, by the paper's architecture",
    "gaussian-1d": "the line: clusters of known noise",
    "rings-2d": "the plane: noisy rings of unknown radius",
    "mnist": "images of handwritten digits, by digit",
}


# What is said of a model in one line: the first of these numbers that it has, in words.
TELLING = (
    (("ARI, N = 100", "ARI, N = 300"), "ARI {:.2f} on data of its own kind"),
    (("importance-sampling ESS, N = 50, median",), "exact weights keep {:.0%} of its samples"),
    (("ESS, paper, N = 50",), "exact weights keep {:.0%} at the paper's setting"),
    (("calibration error",), "probabilities off by {:.1%}"),
    (("held_out_nll",), "held-out loss {:.2g} a point"),
)


def names() -> list[str]:
    """The models that come with the package, the default first.

    >>> names() == sorted(names(), key=lambda name: (name != DEFAULT, name))
    True
    """
    found = [short_name(path) for path in DIRECTORY.glob(f"*{SUFFIX}")]
    return sorted(found, key=lambda name: (name != DEFAULT, name))


def short_name(name_or_path: str | os.PathLike[str]) -> str:
    """A model's name, or the stem of its file.

    >>> short_name("runs/mine/mine.safetensors")
    'mine'
    """
    return Path(name_or_path).name.removesuffix(SUFFIX)


def find(name_or_path: str | os.PathLike[str]) -> Path:
    """The file of a named model, or of a path; `ValueError` with the names if there is none.

    >>> find("gausian-2d")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: Expected the name of a model (...) or a checkpoint file but got 'gausian-2d'...
    """
    name = os.fspath(name_or_path)
    known = names()
    if name in known:
        return DIRECTORY / f"{name}{SUFFIX}"
    path = Path(name).expanduser()
    if path.is_file():
        return path
    close = get_close_matches(name, known, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    listed = ", ".join(known) or "none is installed"
    raise ValueError(
        f"Expected the name of a model ({listed}) or a checkpoint file but got {name!r}{hint}"
    )


@dataclass(frozen=True)
class Card:
    """What a model is for and what is known about it.

    Attributes:
        name: Its name, or the stem of its file.
        purpose: What data it is for.
        trained_on: The generative model of its training data, in words.
        sizes: The smallest and largest number of points it was trained on.
        event_shape: The shape of one point.
        steps, seconds: How long it was trained, with the stages before its last if known.
        metrics: What was measured on held-out data.
        megabytes: The size of its file.
        info: The rest of the file's header.
    """

    name: str
    purpose: str
    trained_on: str
    sizes: tuple[int, int] | None
    event_shape: tuple[int, ...]
    steps: int
    seconds: float
    metrics: Mapping[str, float]
    megabytes: float = 0.0
    info: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def quality(self) -> str:
        """The most telling of what was measured, in words."""
        said = [
            words.format(self.metrics[name])
            for names, words in TELLING
            for name in names
            if name in self.metrics and name == next(n for n in names if n in self.metrics)
        ]
        return "; ".join(said) or "not measured"

    def to_dict(self) -> dict[str, Any]:
        """Plain, for JSON."""
        return {
            "name": self.name,
            "purpose": self.purpose,
            "trained_on": self.trained_on,
            "sizes": None if self.sizes is None else list(self.sizes),
            "event_shape": list(self.event_shape),
            "steps": self.steps,
            "seconds": self.seconds,
            "metrics": dict(self.metrics),
            "megabytes": round(self.megabytes, 2),
        }


def card(name_or_path: str | os.PathLike[str]) -> Card:
    """The card of a named model or of a checkpoint."""
    path = find(name_or_path)
    found = read(path)
    with refusing(f"Expected a model's card in the header of {str(path)!r}"):
        return _card(path, found)


def _card(path: Path, found: Checkpoint) -> Card:
    info = found.info
    name = short_name(path)
    spec = found.mixture or {}
    sizes = spec.get("sizes")
    quality = info.get("quality") or info.get("metrics") or {}
    return Card(
        name=name,
        purpose=str(info.get("purpose") or PURPOSE.get(name, "a model of your own")),
        trained_on=trained_on(found.mixture),
        sizes=None if sizes is None else (int(sizes[0]), int(sizes[1])),
        event_shape=found.config.event_shape,
        steps=int(info.get("total_steps", info.get("step", 0))),
        seconds=float(info.get("total_seconds", info.get("seconds", 0.0))),
        metrics={k: float(v) for k, v in quality.items() if isinstance(v, int | float)},
        megabytes=path.stat().st_size / 1e6,
        info=info,
    )


def trained_on(spec: Mapping[str, Any] | None) -> str:
    """A mixture's spec in words.

    >>> trained_on({"prior": {"kind": "CRP", "alpha": 0.7},
    ...             "likelihood": {"kind": "Ring", "noise_sd": 0.5}, "sizes": [5, 100]})
    'CRP(alpha=0.7), Ring(noise_sd=0.5), 5 to 100 points'
    """
    if not spec:
        return "unknown"
    size = " to ".join(str(n) for n in spec["sizes"]) + " points" if "sizes" in spec else ""
    if "prior" in spec:
        parts = [_call(spec["prior"]), _call(spec["likelihood"]), size]
    else:
        parts = ["random tables" if spec.get("kind") == "TabularMixture" else _call(spec), size]
    return ", ".join(part for part in parts if part)


def _call(spec: Mapping[str, Any]) -> str:
    arguments = ", ".join(
        f"{k}={v}" for k, v in spec.items() if k != "kind" and not isinstance(v, Mapping)
    )
    return f"{spec.get('kind', '?')}({arguments})"
