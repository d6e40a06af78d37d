"""Every package that an installation for development brings along has its version in a file."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = re.compile(r"nvidia|cuda|triton")  # chosen by the torch of a platform


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {normal(name): version for name, version in pairs}


def reached(extra: str) -> set[str]:
    """All installed packages that ours needs, directly or not."""
    todo, seen = [Requirement(f"neural-clustering-process[{extra}]")], set()
    while todo:
        one = todo.pop()
        key = (normal(one.name), frozenset(one.extras))
        if key in seen:
            continue
        try:
            needed = importlib.metadata.requires(one.name) or []
        except importlib.metadata.PackageNotFoundError:  # of another system
            continue
        seen.add(key)
        for requirement in map(Requirement, needed):
            where = [{"extra": extra} for extra in (*one.extras, "")]
            if requirement.marker is None or any(map(requirement.marker.evaluate, where)):
                todo.append(requirement)
    return {name for name, _ in seen} - {"neural-clustering-process"}


def test_every_package_is_pinned() -> None:
    found = reached("dev")
    assert {"numpy", "llvmlite", "tornado"} <= found  # the last two by others
    assert {name for name in found - set(pinned()) if not ELSEWHERE.search(name)} == set()


def test_pins_are_whole_versions() -> None:
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pinned().values())
    assert pinned()["torch"] == "2.13.0"


@pytest.mark.parametrize("file", ["Makefile", ".ci/run"])
def test_whatever_is_installed_is_installed_by_the_pins(file: str) -> None:
    lines = [line for line in (ROOT / file).read_text().splitlines() if "pip install" in line]
    assert all("--constraint constraints.txt" in line for line in lines)
