"""A short version of `make fuzz`, the same inputs every time."""

import pytest
from hypothesis.strategies import SearchStrategy

from tests import fuzz

TARGETS = fuzz.targets()


@pytest.mark.parametrize("name", TARGETS)
def test_bad_input_is_refused(name: str, seed: int) -> None:
    target, strategy = TARGETS[name]
    assert isinstance(strategy, SearchStrategy)
    counter = fuzz.Counter(target)
    fuzz.rounds(counter, strategy, 60, seed)
    assert counter.tried >= 20
