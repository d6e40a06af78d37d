"""Specs: a part of a generative model as a plain dict, and its arguments checked.

    spec = {"kind": class name, argument: value, ...}

is what a checkpoint's header and a recipe carry. A class is remembered by its name as it is
defined, so whatever has been imported can be named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeAlias, TypeVar

from ncp.generative.plugins import HOW_TO_IMPORT, import_plugins

__all__ = [
    "Real",
    "check_finite",
    "check_positive",
    "from_spec",
    "is_known",
    "register",
    "to_spec",
]

T = TypeVar("T")
Real: TypeAlias = float | int  # a run-time type checker does not take an int for a float


def register(registry: dict[str, type[T]], cls: type[T]) -> None:
    """Remember a class by name, so that a spec can name it; two classes cannot share a name.

    Those that begin with an underscore are nobody's to name.
    """
    if cls.__name__.startswith("_"):
        return
    known = registry.get(cls.__name__)
    if known is not None and known.__qualname__ + known.__module__ != (
        cls.__qualname__ + cls.__module__
    ):
        raise ValueError(
            f"Expected a new class name but {cls.__name__} is already {known.__module__}."
            f"{known.__qualname__}"
        )
    registry[cls.__name__] = cls


def to_spec(thing: Any) -> dict[str, Any]:
    """A dataclass as a plain dict: its class name under ``kind`` and its arguments."""
    return {"kind": type(thing).__name__} | {
        f.name: _plain(getattr(thing, f.name)) for f in fields(thing) if f.init
    }


def _plain(value: Any) -> Any:
    """Tuples as lists, so that a spec is equal to what comes back from JSON."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def is_known(kind: Any, registry: Mapping[str, Any]) -> bool:
    """Whether a class is called so, after the user's own have been imported if need be."""
    if not isinstance(kind, str):
        return False
    if kind not in registry:
        import_plugins()
    return kind in registry


def from_spec(spec: Mapping[str, Any], registry: Mapping[str, type[T]]) -> T:
    """The thing that `to_spec` described; unknown kinds and arguments are refused."""
    kind = spec.get("kind") if isinstance(spec, Mapping) else spec
    if not is_known(kind, registry):
        raise ValueError(
            f"Expected kind to be one of {sorted(registry)} but got {kind!r}; if it is a class of "
            f"your own, {HOW_TO_IMPORT}"
        )
    arguments = {name: value for name, value in spec.items() if name != "kind"}
    try:
        return registry[spec["kind"]](**arguments)
    except TypeError as error:
        raise ValueError(f"Expected the arguments of {spec['kind']}: {error}") from error


def check_positive(name: str, value: Any) -> float:
    """The value as a float, or a ``ValueError`` unless it is a positive finite number."""
    number = check_finite(name, value)
    if number <= 0:
        raise ValueError(f"Expected {name} > 0 but got {value!r}")
    return number


def check_finite(name: str, value: Any) -> float:
    """The value as a float, or a ``ValueError`` unless it is a finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(f"Expected {name} to be a finite number but got {value!r}")
    return number
