"""Bad input by the hundred thousand: files, configs, checkpoints, arrays, labels.

    python -m tests.fuzz [seconds]          (make fuzz; FUZZ_SECONDS=60 make fuzz)

Each target gets an input that hypothesis makes up and may do one of two things: succeed, or raise
the `ValueError` that the caller of a library expects. Anything else (another exception, a warning,
more than `BYTES` of memory, whoever allocates it) is a failure, which hypothesis shrinks and
prints. An input that takes more than `SECONDS` ends the run with a traceback of where it hangs.
Targets take turns until the time is over and every target has had its share of `CASES`.
"""

from __future__ import annotations

import faulthandler
import gzip
import io
import json
import multiprocessing
import os
import resource
import struct
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from hypothesis.strategies import SearchStrategy
from jaxtyping import TypeCheckError
from sklearn.utils.validation import check_array

from ncp.clustering.cluster import cluster
from ncp.clustering.estimator import NCPClusterer
from ncp.clustering.result import Clustering
from ncp.model import NCP, load_model
from ncp.network.checkpoint import save_model
from ncp.network.pretrained import card
from ncp.output import readers
from ncp.partitions import canonical, check_labels, counts, is_canonical
from ncp.posterior import Partitions
from ncp.training.recipe import Recipe
from tests.small_models import gaussian, tabular

CASES = 200_000
SECONDS = 20.0  # for one input, on a busy machine
BYTES = 512 * 2**20
ROUND = 250  # inputs of a target before the next has its turn
MINIMUM = 20

Target = Callable[[Any], object]


# -- files of data ---------------------------------------------------------------------------------

CELL = st.one_of(
    st.floats().map(str),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(["", "NA", "nan", "inf", "-Infinity", "1e999", "0x10", "1_0", "1,5", '"', "'"]),
    st.text(max_size=6),
)
NUMBER_TEXT = st.sampled_from(
    ['"1,234"', "0.500", "1.234.567", "1'000", "2,5", "1 000,5", "-3", "+4e3", "5%", "\n", "$7"]
)
LINE = st.lists(CELL | NUMBER_TEXT, max_size=5).flatmap(
    lambda cells: st.sampled_from(",;\t| ").map(lambda d: d.join(cells))
)
TEXT = st.lists(LINE, max_size=8).flatmap(
    lambda lines: st.sampled_from(["\n", "\r\n", "\r"]).map(lambda end: end.join(lines))
)
ENCODING = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"])
CSV = st.builds(lambda text, encoding: text.encode(encoding, "replace"), TEXT, ENCODING)


def spoilt(content: bytes) -> SearchStrategy[bytes]:
    """A file with some bytes changed, cut off, doubled or put in."""
    where = st.integers(0, max(0, len(content) - 1))
    changes = st.lists(st.tuples(where, st.integers(0, 255)), min_size=1, max_size=4)

    def change(pairs: list[tuple[int, int]]) -> bytes:
        new = bytearray(content)
        for at, byte in pairs:
            if at < len(new):
                new[at] = byte
        return bytes(new)

    return st.one_of(
        changes.map(change),
        where.map(lambda at: content[:at]),
        st.tuples(where, where).map(lambda p: content[: p[0]] + content[p[1] :]),
        st.tuples(where, st.binary(max_size=20)).map(
            lambda p: content[: p[0]] + p[1] + content[p[0] :]
        ),
    )


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def parquet() -> bytes:
    import pandas

    buffer = io.BytesIO()
    frame = pandas.DataFrame({"a": [1.0, 2.0, None], "b": [1, 2, 3], "c": ["x", "y", None]})
    frame.to_parquet(buffer)
    return buffer.getvalue()


def feather() -> bytes:
    import pandas

    buffer = io.BytesIO()
    pandas.DataFrame({"a": [1.0, None, 3.0], "b": ["x", "y", "x"]}).to_feather(buffer)
    return buffer.getvalue()


def excel() -> bytes:
    import openpyxl

    buffer, book = io.BytesIO(), openpyxl.Workbook()
    for row in (["a", "b"], [1, 2.5], [3, None], [7, "x"]):
        book.worksheets[0].append(row)
    book.save(buffer)
    return buffer.getvalue()


def lying_npy(shape: tuple[int, ...], descr: str) -> bytes:
    """An array file whose header promises any shape, over no data."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n"


def zipped(members: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(name, content)
    return buffer.getvalue()


ARRAY = npst.arrays(
    st.one_of(npst.floating_dtypes(), npst.integer_dtypes(), npst.boolean_dtypes())
    | st.sampled_from([np.dtype("U3"), np.dtype("S2"), np.dtype("M8[s]"), np.dtype("c16")]),
    npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
SHAPE = st.lists(st.integers(-(2**40), 2**63 - 1), max_size=3).map(tuple)
DESCR = st.sampled_from(["<f8", "|O", "<U9", "|V7", "f8", "", "<c16", "[('a', '<f8')]"])
LYING = st.builds(lying_npy, SHAPE, DESCR)
NAME = st.sampled_from(["x.npy", "y.npy", "data.npy", "../../x.npy", "xl/a", "a.txt", "a"])
ZIP = st.lists(st.tuples(NAME, st.one_of(st.binary(max_size=30), LYING)), max_size=3).map(
    lambda members: zipped(list(dict(members).items()))
)
FILES = st.one_of(
    CSV,
    ARRAY.map(npy),
    ARRAY.map(lambda array: npz(x=array)),
    LYING,
    ZIP,
    spoilt(npy(np.ones((3, 2)))),
    spoilt(npz(x=np.ones((3, 2)))),
    spoilt(parquet()),
    st.builds(gzip.compress, CSV),
    spoilt(gzip.compress(b"a,b\n1,2\n3,4\n")),
    st.binary(max_size=60),
    spoilt(feather()),
    spoilt(excel()),
    st.lists(st.dictionaries(st.text(max_size=3), CELL | st.floats() | st.none(), max_size=3)).map(
        lambda rows: json.dumps(rows).encode()
    ),
    spoilt(b'{"a": 1, "b": "x"}\n{"a": 2.5, "c": [1]}\n'),
    st.lists(NUMBER_TEXT, min_size=2, max_size=6).map(lambda n: ";".join(n).encode() * 2),
)
MARK = st.sampled_from([None, ".", ",", " ", "'"])
MARKS = st.tuples(MARK, MARK)
CHOICE = st.none() | st.lists(st.sampled_from(["1", "2", "a", "", "b", "99"]), max_size=3)


FileCase = tuple[bytes, list[str] | None, list[str] | None, tuple[str | None, str | None]]


def read_file(case: FileCase) -> None:
    content, columns, categorical, (decimal, thousands) = case
    marks = readers.Marks(decimal, thousands)
    how: dict[str, Any] = {"marks": marks, "categorical": categorical or []}
    table = readers.read_table("file", content, columns or None, **how)
    assert table.values.ndim >= 2
    assert table.values.dtype == np.float64
    assert not np.isinf(table.values).any()


# -- configs and checkpoints -----------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = [path.read_bytes() for path in sorted((ROOT / "experiments").glob("*.toml"))]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def _lines(content: bytes) -> SearchStrategy[bytes]:
    lines = content.splitlines()
    value = st.sampled_from(
        [
            b"-1",
            b"0",
            b"1e400",
            b"nan",
            b"[]",
            b"{}",
            b'""',
            b"true",
            b"99999999999999999999",
            b"[[",
        ]
    )
    at = st.integers(0, len(lines) - 1)

    def change(i: int, new: bytes) -> bytes:
        key = lines[i].partition(b"=")[0]
        return b"\n".join([*lines[:i], key + b"= " + new, *lines[i + 1 :]])

    return st.builds(change, at, value)


CONFIG = st.one_of(
    *(spoilt(content) for content in CONFIGS), *(_lines(content) for content in CONFIGS)
)


def read_config(content: bytes) -> None:
    path = Path(_scratch(), "run.toml")
    path.write_bytes(content)
    recipe = Recipe.from_toml(path)
    Recipe.from_dict(recipe.to_dict())


def checkpoint_bytes() -> bytes:
    path = Path(_scratch(), "model.safetensors")
    save_model(path, gaussian(), step=1)
    return path.read_bytes()


def _scratch(made: list[str] = []) -> str:  # noqa: B006  one folder for the whole run
    if not made:
        folder = tempfile.TemporaryDirectory(prefix="ncp-fuzz-")
        _KEEP.append(folder)
        made.append(folder.name)
    return made[0]


_KEEP: list[Any] = []


def _header(content: bytes) -> SearchStrategy[bytes]:
    """A checkpoint whose header says something else."""
    (length,) = struct.unpack("<Q", content[:8])
    head, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    names = sorted(set(head) - {"__metadata__"})
    ours = json.loads(head["__metadata__"]["ncp"])
    numbers = st.one_of(st.integers(-5, 2**63), st.floats(), st.text(max_size=3))
    tensor = st.fixed_dictionaries(
        {},
        optional={
            "dtype": st.sampled_from(["F32", "F64", "I8", "BOOL", "BF16", "F8_E4M3", "X"]),
            "shape": st.lists(numbers, max_size=3),
            "data_offsets": st.lists(numbers, max_size=3),
        },
    )

    def pack(new: dict[str, Any], claimed: int | None) -> bytes:
        text = json.dumps(new).encode()
        return struct.pack("<Q", len(text) if claimed is None else claimed) + text + body

    def about_tensor(name: str, change: dict[str, Any], claimed: int | None) -> bytes:
        return pack(head | {name: head[name] | change}, claimed)

    def about_us(key: str, sub: str, value: Any) -> bytes:
        changed = ours | {key: value}
        if isinstance(ours.get(key), dict) and sub in ours[key]:
            changed = ours | {key: ours[key] | {sub: value}}
        return pack(head | {"__metadata__": {"ncp": json.dumps(changed)}}, None)

    def about_a_part(part: str, key: str, value: Any) -> bytes:
        model = ours["model"]
        changed = ours | {"model": model | {part: (model[part] or {}) | {key: value}}}
        return pack(head | {"__metadata__": {"ncp": json.dumps(changed)}}, None)

    parts = st.sampled_from(["encoder", "g", "f", "attention", "unassigned_encoder"])
    within = st.sampled_from(
        ["kind", "width", "depth", "out", "residual", "blocks", "codes", "rbf_octaves"]
    )
    keys = st.sampled_from(sorted(ours))
    inner = st.sampled_from(sorted({*ours["model"], *ours["mixture"], "none"}))
    claimed = st.none() | st.integers(0, 2**64 - 1)
    return st.one_of(
        st.builds(about_tensor, st.sampled_from(names), tensor, claimed),
        st.builds(about_us, keys, inner, PLAIN),
        st.builds(about_a_part, parts, within, PLAIN),
    )


def read_checkpoint(content: bytes) -> None:
    path = Path(_scratch(), "some.safetensors")
    path.write_bytes(content)
    model = load_model(path)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def use_checkpoint(content: bytes) -> None:
    """What loads must work: a mistake that shows later is a failure, whatever it is called."""
    path = Path(_scratch(), "used.safetensors")
    path.write_bytes(content)
    model = load_model(path)
    if model.mixture is None or model.spec.event_shape != (2,):
        return
    try:
        card(path).to_dict()
        x = np.array([[0.0, 0.1], [0.2, 0.0], [5.0, 5.0], [5.1, 4.0], [0.3, 0.2]])
        repr(cluster(x, model, n_samples=4, orders=1, seed=0, time_limit=0.05))
    except ValueError as error:
        raise RuntimeError(f"loaded, but of no use: {error}") from error


# -- arrays ----------------------------------------------------------------------------------------

NUMBERS = st.floats(width=64) | st.sampled_from([0.0, 1e-12, 1e12, 1e39, 1e300, np.nan, np.inf])
TABLE = st.one_of(
    npst.arrays(
        np.float64,
        npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6),
        elements=NUMBERS,
    ),
    npst.arrays(
        npst.integer_dtypes() | npst.floating_dtypes(),
        st.tuples(st.integers(1, 8), st.integers(1, 3)),
    ),
    ARRAY,
    PLAIN,
)


def models(made: dict[str, NCP] = {}) -> dict[str, NCP]:  # noqa: B006  built once
    if not made:
        made |= {"gaussian": gaussian(), "tabular": tabular()}
    return made


def fit(x: Any) -> None:
    for model in models().values():
        found = cluster(x, model, n_samples=4, orders=1, seed=0, reweight=False)
        assert np.isfinite(found.confidence[found.labels >= 0]).all()
        assert found.labels.shape == (found.n_points,)


def estimate(case: tuple[Any, Any]) -> None:
    x, new = case
    try:
        for table in case:
            check_array(table, dtype=np.float64, ensure_all_finite=False)
    except TypeError as error:  # scikit-learn's way to refuse what is not an array
        raise ValueError(str(error)) from None
    for model in models().values():
        found = NCPClusterer(model, n_samples=4, orders=1, reweight=False, random_state=0).fit(x)
        assert len(found.labels_) == len(found.confidence_)
        chances = found.predict_proba(new)
        np.testing.assert_allclose(chances.sum(1), 1.0, atol=1e-5)
        assert found.predict(new).max() <= found.n_clusters_


def sample(x: Any) -> None:
    model = models()["gaussian"]
    samples = model.sample(x, 4, seed=0)
    assert np.isfinite(samples.log_q).all()


LABELS = st.one_of(
    npst.arrays(
        npst.integer_dtypes() | npst.floating_dtypes() | st.just(np.dtype("O")),
        npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
        elements=st.integers(-3, 100),
        fill=st.nothing(),
    ),
    st.lists(st.integers(-3, 5) | st.floats() | st.text(max_size=2), max_size=6),
    PLAIN,
)


def use_labels(labels: Any) -> None:
    assert bool(is_canonical(canonical(labels)).all())
    good = check_labels(labels)
    assert int(counts(good).sum()) == good.numel()
    model = models()["gaussian"]
    if good.ndim == 1:
        x = np.zeros((len(good), 2))
        assert bool(model.log_prob(x, good).isfinite())
        model.assign(x, x, good)


SAVED = npz(
    labels=np.zeros((2, 3), np.int64), counts=np.ones(2, np.int64), log_q=np.zeros(2), x=np.ones(3)
)


def read_samples(content: bytes) -> None:
    path = Path(_scratch(), "samples.npz")
    path.write_bytes(content)
    Partitions.load(path)


SAMPLES = st.one_of(
    spoilt(SAVED),
    st.builds(lambda a, b, c: npz(labels=a, counts=b, log_q=c), ARRAY, ARRAY, ARRAY),
    ZIP,
)


def result_bytes() -> bytes:
    path = Path(_scratch(), "result.npz")
    x = np.random.default_rng(0).normal(size=(6, 2))
    cluster(x, models()["gaussian"], n_samples=4, orders=1, seed=0).save(path)
    return path.read_bytes()


def read_result(content: bytes) -> None:
    path = Path(_scratch(), "some.npz")
    path.write_bytes(content)
    repr(Clustering.load(path, models()["gaussian"]))


LABEL = st.sampled_from([-1, 0, 1, "a", None, np.nan, 2.5])
ROW = st.integers(-2, 9) | st.sampled_from(["1", None, 2.0, True, "x"])
LINKS = st.lists(st.lists(ROW, max_size=3) | ROW, max_size=3) | PLAIN
COUNT = st.none() | st.integers(-1, 9) | PLAIN
KNOWLEDGE = st.fixed_dictionaries(
    {},
    optional={
        "known": st.lists(LABEL, min_size=6, max_size=6)
        | st.dictionaries(ROW, st.integers(-1, 2))
        | PLAIN,
        "together": LINKS,
        "apart": LINKS,
        "n_clusters": COUNT,
        "at_least": COUNT,
        "at_most": COUNT,
        "at_any_price": st.booleans(),
    },
)


def use_knowledge(said: dict[str, Any]) -> None:
    x = np.array([[0.0, 0.1], [0.2, 0.0], [5.0, 5.0], [5.1, 4.0], [0.3, 0.2], [9.0, 9.0]])
    how: dict[str, Any] = {"n_samples": 8, "orders": 1, "seed": 0, "reweight": False}
    found = cluster(x, models()["gaussian"], **how, **said)
    for rows in said.get("together") or ():
        assert len(set(found.labels[[int(row) for row in rows]])) == 1


COLUMN = st.one_of(
    st.lists(st.floats(-1e9, 1e9) | st.just(np.nan), min_size=5, max_size=5),
    st.lists(st.sampled_from(["a", "b", "", None]), min_size=5, max_size=5),
    st.lists(st.booleans() | st.none(), min_size=5, max_size=5),
    st.lists(st.integers(-(2**62), 2**62), min_size=5, max_size=5),
    st.lists(st.datetimes() | st.text(max_size=3), min_size=5, max_size=5),
)
NAMES = st.text(max_size=4) | st.integers(0, 3)
FRAME = st.tuples(st.dictionaries(NAMES, COLUMN, min_size=1, max_size=4), st.booleans())


def use_frame(case: tuple[dict[Any, Any], bool]) -> None:
    import pandas

    frame = pandas.DataFrame(case[0])
    if case[1]:
        frame = frame.astype(dict.fromkeys(list(frame)[:1], "category"))
    found = cluster(frame, models()["tabular"], n_samples=4, orders=1, seed=0)
    assert len(found.labels) == len(frame)


def targets() -> dict[str, tuple[Target, SearchStrategy[Any]]]:
    good = checkpoint_bytes()
    return {
        "data files": (read_file, st.tuples(FILES, CHOICE, CHOICE, MARKS)),
        "run configs": (read_config, CONFIG),
        "checkpoints": (read_checkpoint, spoilt(good) | _header(good)),
        "models in use": (use_checkpoint, _header(good)),
        "saved samples": (read_samples, SAMPLES),
        "saved results": (read_result, spoilt(result_bytes())),
        "knowledge": (use_knowledge, KNOWLEDGE),
        "categories": (use_frame, FRAME),
        "labels": (use_labels, LABELS),
        "points": (sample, TABLE),
        "tables": (fit, TABLE),
        "estimator": (estimate, st.tuples(TABLE, TABLE) | TABLE.map(lambda x: (x, x))),
    }


# -- the run ---------------------------------------------------------------------------------------


class Counter:
    """Runs a target, and counts what came of it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.tried = self.taken = 0
        self.slowest = 0.0

    def __call__(self, case: Any) -> None:
        self.tried += 1
        started = time.perf_counter()
        if not UNDER_PYTEST:  # which has the timer for itself
            faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.target(case)
            self.taken += 1
        except ValueError as error:
            assert str(error), "an error without a word"  # noqa: PT017
        except TypeCheckError:
            assert UNDER_PYTEST, "annotations are checked in tests only"
        finally:
            if not UNDER_PYTEST:
                faulthandler.cancel_dump_traceback_later()
        seconds = time.perf_counter() - started
        self.slowest = max(self.slowest, seconds)
        assert seconds < SECONDS, f"took {seconds:.1f} s"


UNDER_PYTEST = "pytest" in sys.modules


def rounds(counter: Counter, strategy: SearchStrategy[Any], n: int, number: int) -> None:
    """Try `n` inputs, others for every number."""

    @seed(number)
    @settings(
        max_examples=n,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=False,
    )
    @given(strategy)
    def attempt(case: Any) -> None:
        counter(case)

    attempt()


def fuzz(seconds: float, cases: int = CASES, first_seed: int = 0) -> dict[str, Counter]:
    """Give every target its turn until the time is over and there were enough cases."""
    torch.set_num_threads(1)
    warm_up()
    todo = targets()
    counters = {name: Counter(target) for name, (target, _) in todo.items()}
    share = -(-cases // len(todo))
    started = time.perf_counter()
    number = first_seed
    while True:
        late = time.perf_counter() - started > seconds
        turns = [n for n, c in counters.items() if not late or c.tried < share]
        if not turns:
            return counters
        for name in turns:
            limit_memory()
            rounds(counters[name], todo[name][1], ROUND if cases else MINIMUM, number)
            number += 1


def warm_up() -> None:
    """Have every target load and compile what it needs once, before the memory is limited."""
    x = np.random.default_rng(0).normal(size=(8, 2))
    fit(x)
    estimate((x, x))
    sample(x)
    use_labels([0, 1])
    for content in (parquet(), npz(x=x), b"a,b\n1,2\n"):
        read_file((content, None, None, (None, None)))
    for content in (feather(), excel()):
        read_file((content, None, None, (None, None)))
    use_knowledge({"together": [(0, 1)], "n_clusters": 2})
    use_frame(({"a": [1.0, 2.0, 3.0, 4.0, 9.0]}, False))
    use_frame(({"a": [1.0, np.nan, 3.0, 4.0, 9.0], "b": list("xyxyx")}, False))


def limit_memory() -> None:
    """From here on the process gets `BYTES` more; who asks for yet more gets an error."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def worker(seconds: float, cases: int, first_seed: int) -> dict[str, tuple[int, int, float]]:
    """One process of the run."""
    counters = fuzz(seconds, cases, first_seed)
    return {name: (c.tried, c.taken, c.slowest) for name, c in counters.items()}


def main() -> None:
    """Print a line for each target."""
    seconds = float(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("FUZZ_SECONDS", "600"))
    jobs = os.cpu_count() or 1
    cases = -(-CASES // jobs) if seconds >= 600 else 0
    first = int.from_bytes(os.urandom(4), "big")
    print(f"seed {first}, {seconds:.0f} s, {jobs} processes", flush=True)
    started = time.perf_counter()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        runs = [pool.submit(worker, seconds, cases, first + i * 10**10) for i in range(jobs)]
        found = [run.result() for run in runs]
    print(f"{'target':15} {'inputs':>9} {'taken':>9} {'refused':>9} {'slowest':>9}")
    total = 0
    for name in found[0]:
        tried = sum(one[name][0] for one in found)
        taken = sum(one[name][1] for one in found)
        slowest = max(one[name][2] for one in found)
        print(f"{name:15} {tried:9,} {taken:9,} {tried - taken:9,} {slowest:8.2f}s")
        total += tried
    print(f"{total:,} inputs in {time.perf_counter() - started:.0f} s: no failure")


if __name__ == "__main__":
    main()
