"""``fedrecgel strategies``: what ``strategy=`` accepts, and what each exchanges and keeps."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from server_app.cost import Description

ML_100K_ITEMS = 1682
WIDTH, INDENT = 96, 15


def strategies(
    names: Annotated[bool, typer.Option("--names", help="Names alone, one a line.")] = False,
    items: Annotated[
        int, typer.Option(min=1, help="Items of the catalogue that sizes are given for.")
    ] = ML_100K_ITEMS,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, sizes in bytes.")] = False,
) -> None:
    """List the strategies that ``strategy=`` accepts: paper, parameters, flags, cost a round."""
    from conf.compose import compose, options

    if names:
        for name in options("strategy"):
            typer.echo(name)
        return
    from server_app.cost import describe

    found = [describe(compose([f"strategy={name}"]), items) for name in options("strategy")]
    if as_json:
        typer.echo(json.dumps([one.as_dict() for one in found], indent=2))
        return
    typer.echo(
        f"Sizes are for {items} items, before compression; at most where an upload is\n"
        "sparse. The private state of a user stays on its node."
    )
    for one in found:
        typer.echo("\n" + "\n".join(wrapped(line) for line in lines_of(one)))


def lines_of(one: Description) -> list[str]:
    """A strategy on a few lines."""
    lines = [
        f"{one.name}: {one.title}, model={one.model}",
        f"  {one.about}",
        f"  shared       {_tensors(one.shared)}",
        f"  private      {_tensors(one.private)}: {size(one.state_user)} a user",
        f"  server sees  {one.server_sees}",
        f"  a round      {_round(one)}",
    ]
    return lines + [f"  note         {flag}" for flag in one.flags]


def wrapped(line: str) -> str:
    """A line within the usual width; what goes on stands under where it began."""
    return textwrap.fill(line, WIDTH, subsequent_indent=" " * INDENT, break_on_hyphens=False)


def _round(one: Description) -> str:
    down = f"down {size(one.down_node)} a node"
    down += f" and {size(one.down_user)} a user" if one.down_user else ""
    ups = [f"{size(one.up_node)} a node"] if one.up_node else []
    ups += [f"{size(one.up_user)} a user"] if one.up_user else []
    return f"{down}, up {' and '.join(ups)}"


def _tensors(shapes: Mapping[str, tuple[int, ...]]) -> str:
    parts = [f"{name} {'×'.join(map(str, shape)) or '1'}" for name, shape in shapes.items()]
    return ", ".join(parts)


def size(number: int) -> str:
    """Bytes in a unit that keeps the number short."""
    for limit, unit in ((1e6, "MB"), (1e3, "kB")):
        if number >= limit:
            return f"{number / limit:.3g} {unit}"
    return f"{number} B"
