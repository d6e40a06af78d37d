"""Shared fixtures. Seeds are fixed by default; `--seed-offset` sweeps them."""

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed-offset", type=int, default=0, help="added to every test's seed")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of a test: fixed by default, swept with `--seed-offset`."""
    return 20260 + int(request.config.getoption("--seed-offset"))


@pytest.fixture
def generator(seed: int) -> torch.Generator:
    """A seeded source of randomness, so that no test touches global state."""
    return torch.Generator().manual_seed(seed)
