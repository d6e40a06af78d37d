"""Shared fixtures. Seeds are fixed by default; `--seed-offset` sweeps them."""

from pathlib import Path

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


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small models under the names of two that ship."""
    from tests.small_models import install

    return install(tmp_path_factory.mktemp("weights"))


@pytest.fixture
def elsewhere(tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, with the small models in place of those that ship."""
    from ncp.network import pretrained

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pretrained, "DIRECTORY", weights)
