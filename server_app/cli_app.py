"""The commands of ``fedrecgel``, and what their errors look like."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import click
import typer

from conf.build import ConfigError
from experiments import cli_audit, cli_landscape, cli_report
from server_app import (
    cli_certificates,
    cli_deploy,
    cli_export,
    cli_keys,
    cli_node,
    cli_prepare,
    cli_recommend,
    cli_reference,
    cli_run,
    cli_runs,
    cli_strategies,
    cli_supernode,
)
from server_app.cli import INTERRUPTED
from server_app.cli_common import ERRORS
from server_app.cli_folder import told
from server_app.cli_help import unescape_help
from server_app.errors import ServerError

app = typer.Typer(
    name="fedrecgel",
    help="Federated recommendation on Flower: train, compare and use recommenders.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command(epilog=cli_run.EXAMPLES)(cli_run.run)
app.command()(cli_runs.runs)
app.command()(cli_recommend.recommend)
app.command(epilog=cli_reference.EXAMPLES)(cli_reference.reference)
app.command()(cli_landscape.landscape)
app.command()(cli_audit.audit)
app.command(epilog=cli_report.EXAMPLES)(cli_report.report)
app.command("export-items")(cli_export.export_items)
app.command()(cli_node.forget)
app.command()(cli_node.export)
app.command("import")(cli_node.import_store)
app.command()(cli_node.doctor)
app.command()(cli_strategies.strategies)
app.command()(cli_runs.stop)
app.command()(cli_prepare.prepare)
app.command()(cli_certificates.certificates)
app.command()(cli_keys.keys)
app.command(context_settings=cli_supernode.PASS_ON)(cli_supernode.superlink)
app.command(context_settings=cli_supernode.PASS_ON)(cli_supernode.supernode)
app.command()(cli_supernode.register)
app.add_typer(cli_deploy.app)


def _add_experiments() -> None:
    """Commands of the package above this one, which knows the server and is not known to it."""
    from experiments.sweep import command

    app.command(epilog=command.EXAMPLES)(command.sweep)


_add_experiments()
unescape_help(app)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedrecgel {version('fedrecgel')}, flwr {version('flwr')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print versions.")
    ] = False,
) -> None: ...


def run_app(arguments: list[str]) -> int:
    """Run one command line; errors become one line on standard error and an exit status."""
    try:
        return int(app(arguments, prog_name="fedrecgel", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _fail("stopped", INTERRUPTED)
    except InterruptedError as error:
        return _fail(str(error), INTERRUPTED)
    except ConfigError as error:
        return _fail(str(error), 2)
    except (ServerError, OSError) as error:
        return _fail(told(error) if isinstance(error, OSError) else str(error), 1)


def _fail(message: str, status: int) -> int:
    ERRORS.print(
        f"fedrecgel: {message}", style="red", markup=False, highlight=False, soft_wrap=True
    )
    return status
