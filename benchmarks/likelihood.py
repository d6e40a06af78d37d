"""One training step, forward and backward, on the paper's mini-batch.

    python benchmarks/likelihood.py [--quick] [--threads 1]

48 data sets in 8 orders, N = 50, K = 4, in turns:

* in the manner of the published code: for each n, for each k, g over all clusters, f(G_k, Q), with
  torch's own PReLU, one backward pass an order;
* ours: `ncp.training.loss.accumulate`, of the same network (and loss) and of that of `gaussian-2d`;
* the bare matrix products of the fused form, for the same candidates, by the faster library.

Medians, in brackets the least and the largest. `--quick` times one order and multiplies by 8. With
`--threads 1` times are CPU seconds.
"""

import argparse
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from _timing import Spread, clock_for, lost
from torch import Tensor, nn

from ncp.model import NCP
from ncp.network.blocks import PReLU
from ncp.network.encoder import MLPEncoder
from ncp.network.layout import candidates_per_row
from ncp.network.network import NetworkSpec
from ncp.sampling.threads import fast_products
from ncp.training.data import Sequences
from ncp.training.loss import accumulate
from ncp.training.recipe import Recipe

RECIPE = Path(__file__).resolve().parents[1] / "experiments" / "gaussian-2d.toml"
N_DATASETS, N_ORDERS, N, K = 48, 8, 50, 4
PRODUCTS, ROWS = 9, 4096  # so many rows at a time stay in the cache
PUBLISHED_TURNS = 2  # it is slow
TIMES_FASTER, SLIM_FASTER, TIMES_PRODUCTS = 15, 40, 2.5  # the goals


def mini_batch(generator: torch.Generator) -> Sequences:
    labels = torch.cat([torch.arange(K), torch.randint(K, (N - K,), generator=generator)])
    means = 10 * torch.randn(N_DATASETS, K, 2, generator=generator)
    x = means[:, labels] + torch.randn(N_DATASETS, N, 2, generator=generator)
    keys = torch.rand(N_DATASETS, N_ORDERS, N, generator=generator)
    shuffled = (labels + keys).argsort(2)  # within clusters, cluster after cluster
    place = labels.argsort(stable=True)  # where the points of each cluster stand
    orders = torch.empty_like(shuffled)
    orders[..., place] = shuffled
    return Sequences(x, labels.expand(N_DATASETS, N_ORDERS, N), orders, None)


def authors() -> NCP:
    """The network of the published code: an encoder of its own for Q, no h_n in f."""
    return NCP(NetworkSpec(event_shape=2, unassigned_encoder=MLPEncoder(), f_sees=("G", "Q")))


def published_manner(model: NCP, orders: list[Tensor], labels: Tensor) -> float:
    """The orders in turn, each a batch (48, N, 2) with one row of labels and a backward pass."""
    total = 0.0
    for x in orders:
        loss = published_loss(model, x, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total


def with_torchs_prelu(model: NCP) -> NCP:
    """The same network of torch's own modules."""
    model = deepcopy(model)
    for module in model.modules():
        if isinstance(module, PReLU):
            module.__class__ = nn.PReLU
    return model


def published_loss(model: NCP, x: Tensor, labels: Tensor) -> Tensor:
    """A literal loop over n and k."""
    assert model.q is not None
    n_sequences = len(x)
    h = model.h(x.flatten(0, 1)).view(n_sequences, N, -1)
    q = model.q(x.flatten(0, 1)).view(n_sequences, N, -1)
    loss = torch.zeros(())
    clusters = h[:, :1]
    for n in range(1, N):
        unassigned = q[:, n + 1 :].sum(1)
        n_clusters = clusters.shape[1]
        logits = []
        for k in range(n_clusters + 1):
            if k < n_clusters:
                joined = clusters.clone()
                joined[:, k] += h[:, n]
            else:
                joined = torch.cat([clusters, h[:, n : n + 1]], 1)
            g = model.g(joined.flatten(0, 1)).view(n_sequences, joined.shape[1], -1)
            logits.append(model.f(torch.cat([g.sum(1), unassigned], 1)))
        choice = int(labels[n])
        loss = loss - torch.cat(logits, 1).log_softmax(1)[:, choice].sum()
        if choice < n_clusters:
            clusters = clusters.clone()
            clusters[:, choice] += h[:, n]
        else:
            clusters = torch.cat([clusters, h[:, n : n + 1]], 1)
    return loss


def bare_products(n_candidates: int) -> Callable[[], None]:
    weights = [torch.randn(128, 128) for _ in range(PRODUCTS)]
    gradients = [torch.zeros(128, 128) for _ in range(PRODUCTS)]
    layers = [torch.randn(ROWS, 128) for _ in range(PRODUCTS + 1)]

    @fast_products()
    def run() -> None:
        for start in range(0, n_candidates, ROWS):
            rows = [layer[: min(ROWS, n_candidates - start)] for layer in layers]
            for i, weight in enumerate(weights):
                torch.mm(rows[i], weight, out=rows[i + 1])
            for i in reversed(range(PRODUCTS)):
                torch.mm(rows[i].T, rows[i + 1], out=gradients[i])
                torch.mm(rows[i + 1], weights[i].T, out=rows[i])

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="time the published manner on a part")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model, slim = authors(), NCP(Recipe.from_toml(RECIPE).network)
    data = mini_batch(torch.Generator().manual_seed(0))
    labels = data.labels.flatten(0, 1)
    candidates = int(candidates_per_row(labels, torch.full((len(labels),), N)).sum())
    rows = torch.arange(N_DATASETS)[:, None, None]
    along = data.x[rows, data.orders].flatten(0, 1)  # (384, N, 2)

    part = N_ORDERS if options.quick else 1
    in_orders = [along[i::N_ORDERS] for i in range(N_ORDERS)][::part]
    clock = clock_for(options.threads)

    def seconds(function: Callable[[], object]) -> float:
        begin = clock()
        function()
        return clock() - begin

    plain = with_torchs_prelu(model)
    loss: list[float] = []
    multiply = bare_products(candidates)
    turns: dict[str, list[float]] = {"published": [], "ours": [], "slim": [], "products": []}
    for turn in range(options.repeats):
        if turn < PUBLISHED_TURNS:
            took = seconds(lambda: loss.append(published_manner(plain, in_orders, labels[0])))
            turns["published"].append(part * took)
        turns["ours"].append(seconds(lambda: accumulate(model, [data])))
        turns["slim"].append(seconds(lambda: accumulate(slim, [data])))
        turns["products"].append(seconds(multiply))
    published, ours, small, products = (Spread.of(column) for column in turns.values())
    with torch.no_grad():
        again = -float(model.log_prob(list(along[::part]), list(labels[::part])).double().sum())
    assert abs(loss[0] - again) < 1e-4 * abs(again), (loss, again)

    scaled = " (an eighth, times 8)" if options.quick else ""
    print(
        f"{N_DATASETS} data sets x {N_ORDERS} orders, N = {N}, K = {K}: {candidates:,} candidates; "
        f"{options.threads} threads; {options.repeats} turns, {len(loss)} of the published manner. "
        f"Goals: at least {TIMES_FASTER} times faster than the published manner, at most "
        f"{TIMES_PRODUCTS} times the bare products."
    )
    print()
    print("| one step, forward and backward | seconds | candidates a second | relative to ours |")
    print("|---|---|---|---|")
    for name, spread in (
        (f"in the manner of the published code{scaled}", published),
        ("ours, the same network", ours),
        ("ours, the network of `gaussian-2d`", small),
        ("the bare matrix products", products),
    ):
        relative = "1" if spread is ours else f"{spread / ours:.2f}"
        rate = candidates / spread.middle
        print(f"| {name} | {spread:.2f} | {rate:,.0f} | {relative} |")
    faster, slower = published / ours, ours / products
    print(
        f"\nOurs is {faster:.1f} times faster than the published manner and takes {slower:.2f} "
        f"times the bare products. The bare products alone would be {published / products:.1f} "
        "times faster than the published manner; the network of `gaussian-2d` is "
        f"{published / small:.1f} times faster."
    )
    missed = []
    if (published / small).middle < SLIM_FASTER:
        missed.append(
            f"training step of `gaussian-2d` {published / small} times faster than the published "
            f"manner instead of {SLIM_FASTER}."
        )
    if faster.middle < TIMES_FASTER:
        missed.append(
            f"training step {faster} times faster than the published manner instead of "
            f"{TIMES_FASTER}."
        )
    if slower.middle > TIMES_PRODUCTS:
        missed.append(
            f"training step {slower} times the bare products instead of {TIMES_PRODUCTS}."
        )
    lost(missed)


if __name__ == "__main__":
    main()
