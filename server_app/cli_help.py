"""Help texts without markup."""

from __future__ import annotations

import click
import typer
from typer.core import TyperCommand


class PlainCommand(TyperCommand):
    """Typer escapes brackets for Rich, also where it does not print by Rich (0.20)."""

    def get_help(self, ctx: click.Context) -> str:
        """The help text without the escapes."""
        return super().get_help(ctx).replace("\\[", "[")


def unescape_help(app: typer.Typer) -> None:
    """Have all commands of the app, and of those added to it, print their help plainly."""
    for command in app.registered_commands:
        command.cls = PlainCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            unescape_help(group.typer_instance)
