"""A checkpoint is read whole or refused with a ValueError, whatever the file says."""

import contextlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

import ncp.files
from ncp.files import write_atomically
from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.mixture import Mixture
from ncp.generative.priors import CRP
from ncp.generative.wishart import NormalInverseWishart
from ncp.model import NCP, load_model
from ncp.network.attention import Attention
from ncp.network.checkpoint import FORMAT, Checkpoint, read, save_model, write
from tests.small_models import spec, tabular

CONFIG = spec(h=(4, 2, 4), g=(4, 2, 4), f=(4, 2))
MIXTURE = Mixture(CRP(0.7), GaussianKnownVariance(2))


def header(**changes: Any) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": "0",
        "model": CONFIG.to_dict(),
        "mixture": MIXTURE.to_dict(),
    } | changes


def tensors() -> dict[str, Tensor]:
    return {f"model.{name}": t.clone() for name, t in NCP(CONFIG, MIXTURE).state_dict().items()}


def put(path: Path, named: dict[str, Tensor], head: Any) -> Path:
    path.write_bytes(save(named, {"ncp": head if isinstance(head, str) else json.dumps(head)}))
    return path


def raw(path: Path, head: bytes, body: bytes = b"", length: int | None = None) -> Path:
    """A safetensors file by hand: the header's length, the header, the bytes."""
    path.write_bytes(struct.pack("<Q", len(head) if length is None else length) + head + body)
    return path


# -- what is written is what is read -------------------------------------------------------------


@pytest.mark.parametrize("mixture", [None, MIXTURE, Mixture(CRP(1.0), NormalInverseWishart(2))])
def test_a_model_comes_back_as_it_was(tmp_path: Path, mixture: Mixture | None) -> None:
    model = NCP(CONFIG, mixture)
    save_model(tmp_path / "m.safetensors", model, step=3, metrics={"nll": 0.1})
    back = load_model(tmp_path / "m.safetensors")
    assert back.spec == CONFIG
    assert back.mixture == mixture
    assert not back.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor)
    assert read(tmp_path / "m.safetensors").info == {"step": 3, "metrics": {"nll": 0.1}}
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_state_is_kept_apart_from_weights(tmp_path: Path) -> None:
    model = NCP(CONFIG)
    state = {"optimizer.step.g.0.weight": torch.tensor(3.0), "average.x": torch.ones(2)}
    write(tmp_path / "c", Checkpoint(CONFIG, None, dict(model.state_dict()), state))
    back = read(tmp_path / "c")
    assert set(back.state) == set(state)
    assert set(back.weights) == set(model.state_dict())
    assert back.mixture is None


@pytest.mark.parametrize("when", ["write", "fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if when == "write":
        monkeypatch.setattr(ncp.files, "create_file", fail)
    else:
        monkeypatch.setattr(os, when, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


# -- what is refused -----------------------------------------------------------------------------


def lies() -> dict[str, tuple[dict[str, Tensor], Any]]:
    """Files that are safetensors but not ours, or not true."""
    good = tensors()
    first = "model.g.0.weight"
    model = CONFIG.to_dict()
    return {
        "another shape": (good | {first: torch.zeros(4, 5)}, header()),
        "a scalar": (good | {first: torch.tensor(1.0)}, header()),
        "integers": (good | {first: torch.zeros(4, 4, dtype=torch.int32)}, header()),
        "float8": (good | {first: torch.zeros(4, 4, dtype=torch.float8_e4m3fn)}, header()),
        "complex": (good | {first: torch.zeros(4, 4, dtype=torch.complex64)}, header()),
        "NaN": (good | {first: torch.full((4, 4), torch.nan)}, header()),
        "infinity": (good | {first: torch.full((4, 4), torch.inf)}, header()),
        "a missing tensor": ({n: t for n, t in good.items() if n != first}, header()),
        "a tensor too many": (good | {"model.extra": torch.zeros(1)}, header()),
        "no tensors": ({}, header()),
        "a location of seven": (good | {"model.location": torch.zeros(7)}, header()),
        "a scale of zero": (good | {"model.scale": torch.tensor(0.0)}, header()),
        "another format": (good, header(format=FORMAT + 1)),
        "a format in words": (good, header(format=str(FORMAT))),
        "no format": (good, {}),
        "a list": (good, [1, 2]),
        "not JSON": (good, "{"),
        "deep JSON": (good, "[" * 100_000),
        "no model": (good, header(model=None)),
        "no mixture": (good, {k: v for k, v in header().items() if k != "mixture"}),
        "an unknown mixture": (good, header(mixture={"prior": {}, "likelihood": {}, "sizes": []})),
        "a mixture of words": (good, header(mixture={"prior": "a", "likelihood": 1, "sizes": 2})),
        "an unknown prior": (good, header(mixture=MIXTURE.to_dict() | {"prior": {"kind": "os"}})),
        "an unknown option": (good, header(model=model | {"dropout": 0.1})),
        "a huge layer": (good, header(model=model | {"g": {"width": 10**12}})),
        "a large layer": (good, header(model=model | {"g": model["g"] | {"width": 2**14}})),
        "a huge observation": (good, header(model=model | {"event_shape": [10**12]})),
        "a huge depth": (good, header(model=model | {"g": model["g"] | {"depth": 10**12}})),
        "a large depth": (good, header(model=model | {"g": model["g"] | {"depth": 2**14}})),
        "a huge attention": (good, header(model=model | {"attention": {"blocks": 10**12}})),
        "a large attention": (good, header(model=model | {"attention": {"blocks": 2**14}})),
        "half a layer": (good, header(model=model | {"g": {"width": 4.5}})),
        "a layer in words": (good, header(model=model | {"g": {"width": "wide"}})),
        "a list of layers": (good, header(model=model | {"g": {"width": [4]}})),
        "a part in words": (good, header(model=model | {"g": "deep"})),
        "a part too few": (good, header(model=model | {"g": None})),
        "no encoder": (good, header(model=model | {"encoder": "os.system"})),
        "an unknown encoder": (good, header(model=model | {"encoder": {"kind": "os.system"}})),
        "a million points": (good, header(mixture=MIXTURE.to_dict() | {"sizes": [10**6, 10**6]})),
        "points without end": (
            good,
            header(mixture=Mixture(CRP(0.7), GaussianKnownVariance(2, prior_sd=1e200)).to_dict()),
        ),
        "a step in words": (good, header(step="many")),
        "no step": (good, header(step=None)),
        "seconds without end": (good, header(seconds=float("inf"))),
        "metrics that are none": (good, header(metrics=[1.0])),
        "no shape": (good, header(model=model | {"event_shape": None})),
        "a mixture in 3-D": (
            good,
            header(mixture=Mixture(CRP(1.0), GaussianKnownVariance(3)).to_dict()),
        ),
    }


@pytest.mark.parametrize("lie", list(lies()))
def test_lies_are_refused(tmp_path: Path, lie: str) -> None:
    named, head = lies()[lie]
    with pytest.raises(ValueError, match="Expected"):
        load_model(put(tmp_path / "lie", named, head))


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    good = put(tmp_path / "good", tensors(), header()).read_bytes()
    load_model(tmp_path / "good")
    (tmp_path / "bare").write_bytes(save({"a": torch.zeros(1)}))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_bytes(b"not a checkpoint at all")
    (tmp_path / "pickle").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    (tmp_path / "longer").write_bytes(good + b"more")
    raw(tmp_path / "huge header", b"{}", length=2**62)
    raw(tmp_path / "long header", b" " * 1000, length=10**9)
    twice = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    raw(tmp_path / "twice", twice + b"," + twice[1:] + b"}", b"\0" * 8)
    lying = b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}'
    raw(tmp_path / "lying", lying, b"\0" * 4)
    for path in tmp_path.iterdir():
        if path.name != "good":
            with pytest.raises(ValueError, match="Expected"):
                load_model(path)
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(ValueError, match="does not exist"):
            load_model(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    good = put(tmp_path / "c", tensors(), header()).read_bytes()
    for length in range(0, len(good), 37):
        (tmp_path / "c").write_bytes(good[:length])
        with pytest.raises(ValueError, match="Expected"):
            read(tmp_path / "c")


@pytest.mark.parametrize(
    "change",
    [
        {"reference": {"ranges": 3}},
        {"reference": {"ranges": [{"rows": [1, 9]}]}},
        {"reference": {"some": "thing"}},
        {"transform": {"power": 1e308}},
        {"transform": {"max_components": 10**12}},
        {"sizes": [10**6, 10**6]},
    ],
    ids=repr,
)
def test_a_table_model_that_would_fail_in_use_does_not_load(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    model = tabular()
    assert model.mixture is not None
    named = {f"model.{name}": t.clone() for name, t in model.state_dict().items()}
    told = {"format": FORMAT, "version": "0", "model": model.spec.to_dict()}
    plain = model.mixture.to_dict()
    load_model(put(tmp_path / "good", named, told | {"mixture": plain}))
    with pytest.raises(ValueError, match="Expected"):
        load_model(put(tmp_path / "bad", named, told | {"mixture": plain | change}))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
CHANGES: list[tuple[str, ...]] = [(key,) for key in CONFIG.to_dict()]
CHANGES += [(part, key) for part in ("encoder", "g", "f") for key in CONFIG.to_dict()[part]]
CHANGES += [("attention", key) for key in Attention().to_dict()]


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from(CHANGES), value=PLAIN)
def test_any_value_in_the_spec_is_taken_or_refused(
    tmp_path: Path, path: tuple[str, ...], value: Any
) -> None:
    model = CONFIG.to_dict()
    if len(path) == 2:
        model[path[0]] = (model[path[0]] or {}) | {path[1]: value}
    else:
        model[path[0]] = value
    head = header(model=model)
    try:
        load_model(put(tmp_path / "c", tensors(), head))
    except ValueError as error:
        assert "xpected" in str(error) or "invalid literal" in str(error)  # noqa: PT017


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(where=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_any_changed_byte_is_taken_or_refused(tmp_path: Path, where: int, byte: int) -> None:
    content = bytearray(put(tmp_path / "c", tensors(), header()).read_bytes())
    content[where % len(content)] = byte
    (tmp_path / "c").write_bytes(content)
    with contextlib.suppress(ValueError):
        load_model(tmp_path / "c")


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(spec=PLAIN, part=st.sampled_from(["prior", "likelihood", "sizes", "all"]))
def test_any_mixture_is_taken_or_refused(tmp_path: Path, spec: Any, part: str) -> None:
    mixture = spec if part == "all" else MIXTURE.to_dict() | {part: spec}
    with contextlib.suppress(ValueError):
        load_model(put(tmp_path / "c", tensors(), header(mixture=mixture)))
