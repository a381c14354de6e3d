"""``fedrecgel runs`` and ``stop``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from server_app.cli_common import CONSOLE, run_folder, runs_root

Output = Annotated[
    str | None, typer.Option(help="Folder that holds the runs; default FEDRECGEL_RUNS or ./runs.")
]

TOTALS = {
    "num_users": ("user updates", ""),
    "users_per_second": ("training speed", "users/s"),
    "bytes_up": ("sent by nodes", "MB"),
    "bytes_down": ("sent to nodes", "MB"),
    "seconds_train": ("time training", "s"),
    "seconds_evaluate": ("time evaluating", "s"),
    "seconds_messages": ("time in messages", "s"),
    "seconds_server": ("time on the server", "s"),
    "seconds_checkpoint": ("time in checkpoints", "s"),
    "seconds_other": ("other time", "s"),
    "failures": ("failed messages", ""),
    "client_errors": ("client errors", ""),
    "dropped_late": ("late replies dropped", ""),
}
"""Label and unit of a run's totals, in the order they are shown."""


def runs(
    name: Annotated[str | None, typer.Argument(help="Show this run instead of the list.")] = None,
    output: Output = None,
) -> None:
    """List the runs here, or show one of them."""
    if name is None:
        _list(runs_root(output))
    else:
        _show(run_folder(name, output))


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
    CONSOLE.print(_listing([(folder.name, *_row(folder)) for folder in folders], CONSOLE))


def _listing(rows: Sequence[Sequence[str]], console: Console) -> Table:
    """The runs as a table; on a narrow terminal without the settings that names usually hold."""
    headings = ["run", "status", "dataset", "protocol", "strategy", "seed", "round", "HR@10"]
    dropped: set[str] = set()
    for heading in (None, "seed", "dataset", "protocol", "strategy"):
        dropped |= {heading} if heading else set()
        kept = [i for i, name in enumerate(headings) if name not in dropped]
        table = Table(*(Column(headings[i], overflow="fold") for i in kept))
        for row in rows:
            # An unreadable run has its reason instead of the cells after its name.
            table.add_row(*(Text(row[i]) for i in kept if i < len(row)))
        unlimited = console.options.update(width=10_000)
        if Measurement.get(console, unlimited, table).maximum <= console.width:
            break
    return table


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
        for line in total_lines(result.totals):
            CONSOLE.print(line, markup=False, highlight=False)
    CONSOLE.print(f"status: {state.status}", markup=False)
    if state.error:
        CONSOLE.print(state.error, markup=False, style="red", soft_wrap=True)
    here = Path(os.path.abspath(folder))  # noqa: PTH100  without .., links kept
    CONSOLE.print(f"folder: {here}", markup=False, highlight=False, soft_wrap=True)
    for file in sorted(f.name for f in here.iterdir()):
        CONSOLE.print(f"  {file}", markup=False, highlight=False, soft_wrap=True)


def total_lines(totals: Mapping[str, float]) -> list[str]:
    """A run's totals with labels and units; unknown ones under their own name."""
    names = [*(name for name in TOTALS if name in totals), *sorted(totals.keys() - TOTALS.keys())]
    return [_total(name, totals[name]) for name in names]


def _total(name: str, value: float) -> str:
    label, unit = TOTALS.get(name, (name, ""))
    if unit == "MB":
        value /= 1e6
    number = f"{value:,.0f}" if value == int(value) and not unit else f"{value:,.1f}"
    return f"{label}: {number} {unit}".rstrip()
