"""``fedrecgel runs``, ``strategies`` and ``stop``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from server_app.cli_common import CONSOLE, run_folder, runs_root

Output = Annotated[
    str | None, typer.Option(help="Folder that holds the runs; default FEDRECGEL_RUNS or ./runs.")
]


def runs(
    name: Annotated[str | None, typer.Argument(help="Show this run instead of the list.")] = None,
    output: Output = None,
) -> None:
    """List the runs here, or show one of them."""
    if name is None:
        _list(runs_root(output))
    else:
        _show(run_folder(name, output))


def strategies(
    names: Annotated[bool, typer.Option("--names", help="Names alone, one a line.")] = False,
) -> None:
    """List the strategies that ``strategy=`` accepts."""
    from conf.compose import compose, options

    if names:
        for name in options("strategy"):
            typer.echo(name)
        return
    table = Table("strategy", "title", "model")
    for name in options("strategy"):
        config = compose([f"strategy={name}"])
        table.add_row(name, config.strategy_class.title, config.model_name)
    CONSOLE.print(table)


def stop() -> None:
    """End the local SuperLink that runs in the background, and its runs."""
    from server_app import superlink

    stopped = superlink.stop()
    typer.echo("no SuperLink was running" if stopped is None else f"stopped pid {stopped.pid}")


def _list(root: Path) -> None:
    from server_app.run_folder import CONFIG

    folders = [f for f in sorted(root.glob("*")) if (f / CONFIG).is_file()]
    if not folders:
        typer.echo(f"no runs in {root}")
        return
    table = Table("run", "status", "dataset", "protocol", "strategy", "seed", "round", "HR@10")
    for folder in folders:
        table.add_row(folder.name, *_row(folder))
    CONSOLE.print(table)


def _row(folder: Path) -> list[str]:
    """Status, dataset, protocol, strategy, seed, last round and HR@10 of a run."""
    from conf.tree import from_mapping
    from server_app.callbacks import read_metrics
    from server_app.errors import ServerError
    from server_app.results import load_result
    from server_app.run_folder import read_config, read_state

    try:
        config, status = from_mapping(read_config(folder)), read_state(folder).status
    except (ServerError, ValueError) as error:
        return [f"unreadable: {error}"]
    lines = read_metrics(folder)
    hit_rate = "–"
    if status == "completed":
        value = load_result(folder).metrics.get("test/sampled/hr@10")
        hit_rate = "–" if value is None else f"{100 * value:.2f}"
    rounds = f"{lines[-1]['round'] if lines else 0}/{config.federation.rounds}"
    what = [config.dataset.name, config.protocol.name, config.strategy_name, str(config.seed)]
    return [status, *what, rounds, hit_rate]


def _show(folder: Path) -> None:
    from server_app.report import result_table
    from server_app.results import load_result
    from server_app.run_folder import read_state

    state = read_state(folder)
    if state.has_result:
        result = load_result(folder)
        CONSOLE.print(result_table(result))
        for key, value in sorted(result.totals.items()):
            CONSOLE.print(f"{key}: {value:,.6g}", markup=False)
    CONSOLE.print(f"status: {state.status}", markup=False)
    if state.error:
        CONSOLE.print(state.error, markup=False, style="red")
    for file in sorted(f.name for f in folder.iterdir()):
        CONSOLE.print(f"{folder / file}", markup=False, soft_wrap=True)
