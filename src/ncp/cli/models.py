"""`ncp models`: what models there are, and how good."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ncp.cli.common import JSON, sign_of_life
from ncp.output.terminal import console, print_line, visible

if TYPE_CHECKING:
    from ncp.network.pretrained import Card

__all__ = ["models"]


def models(
    name: Annotated[
        str | None,
        typer.Argument(help="A model or a checkpoint file, to read its card.", show_default=False),
    ] = None,
    as_json: JSON = False,
) -> None:
    """What models there are, what for and how good they are; of one of them, all numbers."""
    with sign_of_life("reading the models"):
        from ncp.network.pretrained import card, names

        cards = [card(one) for one in (names() if name is None else [name])]
    if as_json:
        plain = [one.to_dict() for one in cards]
        print(json.dumps(plain if name is None else plain[0], indent=2))
    elif name is not None:
        _print_card(cards[0])
    elif cards:
        _print_models(cards)
    else:
        print_line("No model is installed; train one with ncp train.")


def _print_models(cards: Sequence[Card]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for heading in ("name", "for", "rows", "trained in", "how good"):
        width = 24 if heading == "for" else None  # most take two lines of a terminal
        table.add_column(heading, no_wrap=heading not in ("for", "how good"), width=width)
    for one in cards:
        quality = one.quality.partition(";")[0]
        cells = (one.name, one.purpose, _rows(one), _trained_in(one), quality)
        table.add_row(*(Text(visible(cell)) for cell in cells))
    console().print(table)
    print_line("ncp models NAME prints all that was measured of one; ncp check NAME measures it.")


def _rows(card: Card) -> str:
    return "any" if card.sizes is None else f"{card.sizes[0]} to {card.sizes[1]}"


def _trained_in(card: Card) -> str:
    return f"{card.seconds / 60:.0f} min" if card.seconds >= 60 else f"{card.seconds:.0f} s"


def _print_card(card: Card) -> None:
    print_line(card.purpose, card.name)
    shape = " x ".join(str(side) for side in card.event_shape)
    for heading, text in (
        ("trained on", card.trained_on),
        ("rows", f"{_rows(card)} in training"),
        ("one row", f"{shape} number{'' if shape == '1' else 's'}, as the network sees it"),
        ("training", f"{card.steps:,} steps, {_trained_in(card)} of one core"),
        ("file", f"{card.megabytes:.1f} MB"),
        ("how good", card.quality),
    ):
        print_line(f"  {heading:<12}{text}")
    if card.metrics:
        print_line("measured (ncp check says what each number means):")
    width = max((len(name) for name in card.metrics), default=0)
    for name, value in card.metrics.items():
        print_line(f"  {name.replace('_', ' '):<{width}}  {value:.3g}")
