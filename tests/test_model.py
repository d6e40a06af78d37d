"""The network's likelihood against a literal transcription of Algorithm 1."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ncp.network.layout
import ncp.network.network
from ncp.generative.gaussian import GaussianKnownVariance
from ncp.generative.mixture import Mixture
from ncp.generative.priors import CRP
from ncp.model import NCP
from ncp.network.attention import Attention
from ncp.network.blocks import Perceptron
from ncp.network.encoder import ConvEncoder, MLPEncoder
from ncp.network.layout import candidates_per_row, groups_of, layout, prefix_sum
from ncp.network.network import NetworkSpec
from ncp.partitions import canonical, enumerate_partitions
from tests.literal import COMPOSITIONS, algorithm_1, as_published, random_model
from tests.small_models import spec


def random_labels(n: int, alpha: float, generator: torch.Generator) -> Tensor:
    return CRP(alpha).sample(1, n, generator=generator)[0]


def largest_difference(fused: Tensor, literal: list[Tensor]) -> float:
    assert len(fused) == len(literal)
    worst = 0.0
    for row, expected in zip(fused, literal, strict=True):
        k = len(expected)
        assert bool((row[k:] == -torch.inf).all())
        worst = max(worst, float((row[:k] - expected).detach().abs().max()))
    return worst


def ragged_problem(generator: torch.Generator) -> tuple[list[Tensor], list[Tensor]]:
    labels = [random_labels(7, 2.0, generator), torch.tensor([0, 0, 1, 0, 0, 1, 0, 0])]
    labels += [torch.tensor([0]), torch.tensor([0, 1]), torch.tensor([0, 0]), torch.arange(5)]
    xs = [3 * torch.randn(len(c), 2, generator=generator, dtype=torch.float64) for c in labels]
    return xs, labels


# -- Algorithm 1 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_conditionals_are_algorithm_1(name: str, generator: torch.Generator) -> None:
    model = random_model(generator, **COMPOSITIONS[name])
    xs, labels = ragged_problem(generator)
    together = model.conditionals(xs, labels)
    totals = model.log_prob(xs, labels)
    spread = 0.0
    for x, c, fused, total in zip(xs, labels, together, totals, strict=True):
        literal = algorithm_1(model, x, c)
        assert fused.shape == (len(c), int(c.max()) + 2)
        assert largest_difference(fused, literal) < 1e-9
        assert largest_difference(model.conditionals(x, c), literal) < 1e-9
        realised = sum(row[k] for row, k in zip(literal, c.tolist(), strict=True))
        assert float((total - realised).detach().abs()) < 1e-9
        spread = max(spread, float(torch.cat(literal).detach().abs().max()))
    assert spread > 1  # the weights are large enough for a mistake to show


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_gradients_are_those_of_algorithm_1(name: str, generator: torch.Generator) -> None:
    model = random_model(generator, **COMPOSITIONS[name])
    xs, labels = ragged_problem(generator)
    for x in xs:
        x.requires_grad_()
    wanted = [*model.parameters(), *xs]
    literal = torch.zeros(()).double()
    for x, c in zip(xs, labels, strict=True):
        rows = algorithm_1(model, x, c)
        literal = literal + sum(row[k] for row, k in zip(rows, c.tolist(), strict=True))
    expected = torch.autograd.grad(literal, wanted, allow_unused=True)
    fused = torch.autograd.grad(model.log_prob(xs, labels).sum(), wanted, allow_unused=True)
    assert any(e is not None and float(e.abs().max()) > 1 for e in expected)
    for a, e in zip(fused, expected, strict=True):
        e = torch.zeros(()) if e is None else e
        a = torch.zeros(()) if a is None else a
        assert float((a - e).abs().max()) < 1e-9 * max(1.0, float(e.abs().max()))


@pytest.mark.parametrize("n", [30, 31, 60])
def test_long_sequences_take_the_other_prefix_sum(
    n: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ncp.network.layout, "LONG", 30)
    model = random_model(generator, sees=("candidate",))
    x = 3 * torch.randn(n, 2, generator=generator, dtype=torch.float64)
    labels = random_labels(n, 1.0, generator)
    with torch.no_grad():
        assert (
            largest_difference(model.conditionals(x, labels), algorithm_1(model, x, labels)) < 1e-9
        )


def test_both_prefix_sums_agree_with_gradients(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(generator, sees=("candidate",))
    xs, labels = ragged_problem(generator)
    parameters = list(model.parameters())

    def evaluate() -> tuple[Tensor, tuple[Tensor, ...]]:
        total = model.log_prob(xs, labels)
        return total.detach(), torch.autograd.grad(total.sum(), parameters)

    by_product = evaluate()
    monkeypatch.setattr(ncp.network.layout, "LONG", 0)
    by_sum = evaluate()
    torch.testing.assert_close(by_sum, by_product, rtol=1e-9, atol=1e-9)


def test_chunks_and_groups_change_nothing(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(generator)
    xs, labels = ragged_problem(generator)
    whole = model.conditionals(xs, labels)
    monkeypatch.setattr(ncp.network.network, "CHUNK", 7)
    parts = model.conditionals(xs, labels)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [5, 300])
def test_prefix_sum_is_a_loop(n: int, generator: torch.Generator) -> None:
    values = torch.randn(3, n, 2, generator=generator, dtype=torch.float64)
    groups = torch.stack([random_labels(n, 1.0, generator) for _ in range(3)])
    expected, grouped = torch.zeros_like(values), torch.zeros_like(values)
    for s in range(3):
        sums: dict[int, Tensor] = {}
        running = torch.zeros(2).double()
        for i in range(n):
            k = int(groups[s, i])
            sums[k] = sums.get(k, torch.zeros(2).double()) + values[s, i]
            running = running + values[s, i]
            expected[s, i], grouped[s, i] = running, sums[k]
    torch.testing.assert_close(prefix_sum(values), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(prefix_sum(values, groups), grouped, rtol=0, atol=1e-12)


def test_layout_lists_candidates_without_padding() -> None:
    labels = torch.tensor([[0, 1, 0], [0, 0, 9]])
    plan = layout(labels, torch.tensor([3, 2]))
    assert plan.here.tolist() == [0, 1, 1, 2, 2, 2, 3, 4, 4]
    assert plan.last.tolist() == [6, 0, 6, 0, 1, 6, 6, 3, 6]
    assert plan.chosen.tolist() == [0, 2, 3, 6, 7]
    assert candidates_per_row(labels, torch.tensor([3, 2])).tolist() == [6, 3]


def test_groups_of_keep_rows_whole() -> None:
    costs = torch.tensor([3, 3, 10, 1, 1])
    assert groups_of(costs, 6) == [slice(0, 2), slice(2, 3), slice(3, 5)]


# -- the authors' code ---------------------------------------------------------------------------


def test_agrees_with_the_published_code(generator: torch.Generator) -> None:
    model = random_model(generator, own_q=True, sees=("-point",))
    x = 3 * torch.randn(11, 2, generator=generator, dtype=torch.float64)
    labels = random_labels(11, 2.0, generator)
    assert (
        largest_difference(model.conditionals(x, labels)[1:], as_published(model, x, labels)) < 1e-9
    )
    single = model.float()
    published = as_published(single, x.float(), labels)
    assert largest_difference(single.conditionals(x, labels)[1:], published) < 1e-4


def test_published_weights_load_by_name() -> None:
    """h, q, g and f are Linear and PReLU in turn, so their names are the position."""
    model = NCP(NetworkSpec(unassigned_encoder=MLPEncoder(), f_sees=("G", "Q")))
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    depths = {"h": (2, 5, 256), "q": (2, 5, 256), "g": (256, 6, 512), "f": (768, 6, 1)}
    expected: dict[str, tuple[int, ...]] = {}
    for name, (n_in, depth, n_out) in depths.items():
        for i in range(depth):
            rows = n_out if i == depth - 1 else 128
            expected[f"{name}.{2 * i}.weight"] = (rows, n_in if i == 0 else 128)
            if not (name == "f" and i == depth - 1):
                expected[f"{name}.{2 * i}.bias"] = (rows,)
            if i < depth - 1:
                expected[f"{name}.{2 * i + 1}.weight"] = (1,)
    assert shapes == expected


@pytest.mark.parametrize(
    "parts",
    [{"sees": ("candidate",)}, {"sees": ("pairs",), "attention": (1, 8, 5, 0)}],
    ids=["plain", "pairs"],
)
def test_image_model_is_algorithm_1(parts: dict[str, Any], generator: torch.Generator) -> None:
    model = random_model(generator, (16, 16), channels=(2, 3), own_q=True, **parts)
    x = torch.rand(6, 16, 16, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 0, 2, 1])
    assert largest_difference(model.conditionals(x, labels), algorithm_1(model, x, labels)) < 1e-9
    batch = model.conditionals(torch.stack([x, x.flip(0)]), torch.stack([labels, labels]))
    assert largest_difference(batch[1], algorithm_1(model, x.flip(0), labels)) < 1e-9


# -- what must hold for any weights --------------------------------------------------------------


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_all_partitions_of_seven_points_sum_to_one(name: str, generator: torch.Generator) -> None:
    model = random_model(generator, **COMPOSITIONS[name])
    x = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        log_q = model.log_prob(x, enumerate_partitions(7))
    assert log_q.shape == (877,)
    assert abs(float(log_q.exp().sum()) - 1) < 1e-9
    assert float(log_q.max() - log_q.min()) > 1


def test_conditionals_are_normalised(generator: torch.Generator) -> None:
    model = random_model(generator)
    xs, labels = ragged_problem(generator)
    for row in model.conditionals(xs, labels):
        torch.testing.assert_close(row.exp().sum(1), torch.ones(len(row)).double())


def last_conditionals(model: NCP, x: Tensor, labels: Tensor, n: int) -> dict[frozenset[int], float]:
    """p(c_n | ...) keyed by the set of earlier points that x_n would join."""
    row = model.conditionals(x, labels)[n].exp()
    K = int(labels[:n].max()) + 1
    members = [frozenset((labels[:n] == k).nonzero()[:, 0].tolist()) for k in range(K)]
    return dict(zip([*members, frozenset()], row[: K + 1].tolist(), strict=True))


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_symmetries_of_section_2(name: str, generator: torch.Generator) -> None:
    """p(c_n | c_{1:n-1}, x) is invariant within clusters, between them and among the unassigned."""
    model = random_model(generator, **COMPOSITIONS[name])
    n, N = 7, 11
    x = 2 * torch.randn(N, 2, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1, 2, 0, 1, 0, 1, 0, 2])
    with torch.no_grad():
        before = last_conditionals(model, x, labels, n)

        def after(order: list[int]) -> dict[frozenset[int], float]:
            moved = last_conditionals(model, x[order], canonical(labels[order]), n)
            return {frozenset(order[i] for i in key): p for key, p in moved.items()}

        within = [2, 3, 5, 1, 4, 0, 6]  # clusters {0, 2, 5}, {1, 3, 6}, {4}: members change places
        between = [4, 1, 3, 0, 2, 6, 5]  # the clusters appear in another order
        cases = {
            "within": [*within, 7, 8, 9, 10],
            "between": [*between, 7, 8, 9, 10],
            "unassigned": [*range(8), 10, 8, 9],
        }
        for name, order in cases.items():
            got = after(order)
            assert got.keys() == before.keys(), name
            for key, p in before.items():
                assert abs(got[key] - p) < 1e-9, name
        swapped = after([*range(7), 8, 7, 9, 10])  # not a symmetry: another point is assigned
    assert max(abs(math.log(swapped[key] / p)) for key, p in before.items()) > 1e-6


def test_joint_of_a_prefix_is_invariant(generator: torch.Generator) -> None:
    """The last point's conditional given a partition ignores the order of all earlier points."""
    model = random_model(generator)
    x = torch.randn(9, 2, generator=generator, dtype=torch.float64)
    labels = random_labels(9, 1.0, generator)
    with torch.no_grad():
        before = last_conditionals(model, x, labels, 8)
        for _ in range(5):
            order = [*torch.randperm(8, generator=generator).tolist(), 8]
            moved = last_conditionals(model, x[order], canonical(labels[order]), 8)
            got = {frozenset(order[i] for i in key): p for key, p in moved.items()}
            assert all(abs(got[key] - p) < 1e-9 for key, p in before.items())


# -- calls ---------------------------------------------------------------------------------------


def test_shapes_of_every_kind_of_call(generator: torch.Generator) -> None:
    model = random_model(generator)
    x = torch.randn(3, 4, 2, generator=generator, dtype=torch.float64)
    labels = torch.tensor([[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]])
    one = model.conditionals(x[0], labels[1])
    rows = model.conditionals(x[0], labels)
    batch = model.conditionals(x, labels)
    listed = model.conditionals(list(x), list(labels))
    assert one.shape == (4, 3)
    assert rows.shape == batch.shape == (3, 4, 5)
    assert [tuple(row.shape) for row in listed] == [(4, 2), (4, 3), (4, 5)]
    torch.testing.assert_close(rows[1, :, :3], one)
    assert model.log_prob(x[0], labels[1]).shape == ()
    assert model.log_prob(x[0], labels).shape == model.log_prob(x, labels).shape == (3,)
    torch.testing.assert_close(model.log_prob(list(x), list(labels)), model.log_prob(x, labels))
    nested = [x[0].tolist(), x[1, :2].tolist()]
    torch.testing.assert_close(
        model.log_prob(nested, [[0, 1, 0, 1], [0, 0]])[1], model.log_prob(x[1, :2], [0, 0])
    )
    points = list(x[0])  # a list of points is one data set
    torch.testing.assert_close(model.log_prob(points, labels), model.log_prob(x[0], labels))


def test_order_scores_a_permutation(generator: torch.Generator) -> None:
    model = random_model(generator)
    x = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    order = [3, 1, 4, 0, 2]
    labels = torch.tensor([[0, 1, 0, 2, 1], [0, 0, 0, 0, 1]])
    direct = model.log_prob(x[order], canonical(labels[:, order]))
    torch.testing.assert_close(model.log_prob(x, labels, order=order), direct)
    for bad in ([0, 1, 2, 3], [0, 0, 1, 2, 3], [1, 2, 3, 4, 5]):
        with pytest.raises(ValueError, match="permutation"):
            model.log_prob(x, labels, order=bad)


def test_identical_points_and_single_points(generator: torch.Generator) -> None:
    model = random_model(generator)
    x = torch.ones(6, 2, dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 2, 1, 0])
    assert largest_difference(model.conditionals(x, labels), algorithm_1(model, x, labels)) < 1e-9
    assert model.conditionals(x[:1], [0]).tolist() == [[0.0, -torch.inf]]
    assert float(model.log_prob(x[:1], [0]).detach()) == 0.0


ARRAYS: dict[str, Callable[[np.ndarray], object]] = {
    "float32": lambda a: a.astype(np.float32),
    "float64": lambda a: a.astype(np.float64),
    "integer": lambda a: a.astype(np.int32),
    "fortran": np.asfortranarray,
    "strided": lambda a: np.repeat(a, 2, axis=0)[::2],
    "reversed": lambda a: a[::-1].copy()[::-1],
    "list": lambda a: a.tolist(),
    "torch": torch.tensor,
    "tuple of rows": lambda a: tuple(a),
}


@pytest.mark.parametrize("kind", [*ARRAYS, "read-only"])
def test_any_array_is_taken_and_none_is_changed(kind: str, generator: torch.Generator) -> None:
    model = random_model(generator)
    values = np.array([[0.0, 1.0], [5.0, -3.0], [2.0, 2.0]])
    expected = model.log_prob(torch.tensor(values), [0, 1, 0])
    array = values.copy()
    if kind == "read-only":
        array.setflags(write=False)
    x = ARRAYS[kind](array) if kind in ARRAYS else array
    torch.testing.assert_close(model.log_prob(x, [0, 1, 0]), expected)
    assert (array == values).all()


def test_raw_data_goes_through_the_mixtures_scale(generator: torch.Generator) -> None:
    mixture = Mixture(CRP(0.7), GaussianKnownVariance(2, prior_sd=4.0, noise_sd=1.0))
    model = NCP(spec(), mixture).double()
    assert float(model.scale.max()) > 1
    bare = NCP(model.spec).double()
    bare.load_state_dict({**model.state_dict(), "location": bare.location, "scale": bare.scale})
    x = 5 * torch.randn(6, 2, generator=generator, dtype=torch.float64)
    labels = [0, 1, 0, 1, 2, 0]
    scaled = (x - model.location) / model.scale
    torch.testing.assert_close(model.log_prob(x, labels), bare.log_prob(scaled, labels))
    with pytest.raises(ValueError, match="event_shape"):
        NCP(NetworkSpec(event_shape=3), mixture)


BAD_DATA = {
    "wrong last dimension": (torch.zeros(4, 3), "shape"),
    "no dimension": (torch.zeros(4), "shape"),
    "a number": (1.0, "shape"),
    "no points": (torch.zeros(0, 2), "at least one point"),
    "NaN": (torch.tensor([[0.0, float("nan")]]), "finite"),
    "infinity": (torch.tensor([[0.0, float("inf")]]), "finite"),
    "booleans": (torch.zeros(4, 2, dtype=torch.bool), "real"),
    "complex": (torch.zeros(4, 2, dtype=torch.complex64), "real"),
    "words": (np.array([["a", "b"]]), "numbers"),
}


@pytest.mark.parametrize("kind", BAD_DATA)
def test_bad_data_is_refused(kind: str, generator: torch.Generator) -> None:
    model = random_model(generator)
    x, message = BAD_DATA[kind]
    n = len(x) if hasattr(x, "__len__") else 1
    for call in (model.conditionals, model.log_prob):
        with pytest.raises(ValueError, match=message):
            call(x, [0] * max(n, 1))
    for sampler in (model.sample, model.map):
        with pytest.raises(ValueError, match=message):
            sampler(x)
    with pytest.raises(ValueError, match=message):
        model.sample_many([torch.zeros(3, 2), x])
    with pytest.raises(ValueError, match=message):
        model.assign(x, torch.zeros(3, 2), [0, 0, 1])


BAD_LABELS = {
    "too short": ([0, 0], "3 points"),
    "too long": ([0, 0, 0, 0], "3 points"),
    "not canonical": ([0, 2, 1], "order of appearance"),
    "not from zero": ([1, 1, 2], "order of appearance"),
    "negative": ([0, -1, 0], "order of appearance"),
    "not integers": ([0.0, 1.0, 0.0], "integer"),
    "no rows": (torch.zeros(0, 3, dtype=torch.long), "labels"),
    "three dimensions": (torch.zeros(2, 2, 3, dtype=torch.long), "labels"),
}


@pytest.mark.parametrize("kind", BAD_LABELS)
def test_bad_labels_are_refused(kind: str, generator: torch.Generator) -> None:
    model = random_model(generator)
    labels, message = BAD_LABELS[kind]
    for call in (model.conditionals, model.log_prob):
        with pytest.raises(ValueError, match=message):
            call(torch.zeros(3, 2), labels)
    with pytest.raises(ValueError, match="labels"):
        model.assign(torch.zeros(1, 2), torch.zeros(3, 2), labels)


def test_bad_lists_are_refused(generator: torch.Generator) -> None:
    model = random_model(generator)
    xs = [torch.zeros(3, 2), torch.zeros(2, 2)]
    with pytest.raises(ValueError, match="at least one data set"):
        model.log_prob([], [])
    with pytest.raises(ValueError, match="2 rows of labels"):
        model.log_prob(xs, [[0, 0, 0]])
    with pytest.raises(ValueError, match="one row of labels"):
        model.log_prob(xs, [[[0, 0, 0]], [0, 0]])
    with pytest.raises(ValueError, match="rows of labels"):
        model.log_prob(torch.zeros(3, 4, 2), [[0, 0, 0, 0]])


SPECS = {
    "the paper's": NetworkSpec(),
    "images": NetworkSpec([28, 28], ConvEncoder(64, (4, 8)), g=Perceptron(residual=True)),
    "the authors'": NetworkSpec(unassigned_encoder=MLPEncoder(), f_sees=("G", "Q")),
    "all of it": NetworkSpec(
        7,
        MLPEncoder(64, 32, 3, residual=True, fourier_octaves=5),
        Attention(4, 32, 16, 7, 3),
        Perceptron(64, 2, 48, residual=True),
        Perceptron(32, 3),
        ConvEncoder(),
        ("G", "Q", "point", "candidate", "pairs"),
        "mean",
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_goes_through_json(name: str) -> None:
    given = SPECS[name]
    back = NetworkSpec.from_dict(json.loads(json.dumps(given.to_dict())))
    assert back == given
    assert isinstance(back.event_shape, tuple)
    with pytest.raises(ValueError, match="'depth'"):
        NetworkSpec.from_dict({"depth": 3})


PLAIN = NetworkSpec().to_dict()
BAD_SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "no shape": ({"event_shape": ()}, "event_shape"),
    "a side of nothing": ({"event_shape": 0}, "event_shape"),
    "three channels": ({"encoder": {"kind": "ConvEncoder", "channels": [1, 2, 3]}}, "channels"),
    "an unknown encoder": ({"encoder": {"kind": "Transformer"}}, "Transformer"),
    "no width": ({"g": {"width": 0}}, "width"),
    "one layer of g": ({"g": {"depth": 1}}, "depth"),
    "one layer of f": ({"f": {"depth": 1}}, "depth"),
    "one layer of h": ({"encoder": {"kind": "MLPEncoder", "depth": 1}}, "depth"),
    "a negative size": ({"encoder": {"kind": "MLPEncoder", "out": -1}}, "out"),
    "two outputs of f": ({"f": {"out": 2}}, "one output of f"),
    "a true number": ({"attention": {"blocks": True}}, "blocks"),
    "a number for a flag": ({"g": {"residual": 1}}, "residual"),
    "an odd width": ({"attention": {"width": 6}}, "multiple of 4"),
    "pairs without attention": ({"f_sees": ["G", "Q", "pairs"]}, "attention"),
    "no G": ({"f_sees": ["Q", "point"]}, "f_sees"),
    "no Q": ({"f_sees": ["G", "point"]}, "f_sees"),
    "G twice": ({"f_sees": ["G", "Q", "G"]}, "f_sees"),
    "what nobody has": ({"f_sees": ["G", "Q", "future"]}, "f_sees"),
    "many octaves": ({"attention": {"rbf_octaves": 17}}, "rbf_octaves"),
    "distances of images": (
        {"attention": {}, "event_shape": [28, 28], "encoder": {"kind": "ConvEncoder"}},
        "distances",
    ),
    "more coordinates than numbers": ({"attention": {"coordinates": 3}}, "distances"),
    "another pooling": ({"pooling": "max"}, "pooling"),
    "an unknown key of a part": ({"g": {"breadth": 3}}, "breadth"),
}


@pytest.mark.parametrize("name", BAD_SPECS)
def test_bad_specs_are_refused(name: str) -> None:
    changes, said = BAD_SPECS[name]
    with pytest.raises((ValueError, TypeError), match=said):  # TypeError: types are checked here
        NetworkSpec.from_dict(PLAIN | changes)
