"""``fedrecgel audit``: what a curious server can infer from the uploads of a run's users."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from conf.build import ConfigError
from server_app.cli_common import CONSOLE, ERRORS, quiet_flower, run_folder
from server_app.cli_node import node_errors
from server_app.cli_runs import Output

if TYPE_CHECKING:
    from experiments.audit.attributes import AttributeScore
    from experiments.audit.measure import Measured
    from server_app.cli_finished import FinishedRun

FILE = "audit.json"
SIZES = (1, 2, 5, 10, 50)


def audit(
    run: Annotated[str, typer.Option("--run", help="A completed run: its name, or its folder.")],
    users_per_sum: Annotated[
        str | None,
        typer.Option(
            help="Users whose updates are summed in an upload; 1,2,5,10,50 of which there are "
            "as many."
        ),
    ] = None,
    attacks: Annotated[str, typer.Option(help="Which attacks, by comma; all of them.")] = "all",
    uploads: Annotated[int, typer.Option(min=1, help="Uploads of each size, at most.")] = 20,
    attributes: Annotated[
        Path | None, typer.Option(help="A RecBole .user file: infer sex, age, occupation too.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of groups of users and folds.")] = 0,
    output: Output = None,
) -> None:
    """Attack the uploads of a finished run's users, as a curious server would.

    Uploads that the run recorded (evaluation.record_uplinks=[1,10]) come first; then local
    training of groups of users is made again from the selected round. Each attack is judged by the
    users' items in the data set, beside chance. Writes audit.json, audit.png and .svg in the
    run's folder.
    """
    quiet_flower()
    from experiments.audit.sources import opened

    names = _names(attacks)
    asked = None if users_per_sum is None else _sizes(users_per_sum)
    with node_errors():
        finished = opened(run_folder(run, output))
        most = finished.dataset.num_users
        sizes = [size for size in SIZES if size <= most] if asked is None else asked
        found = _measured(finished, sizes, names, uploads, seed)
        inferred = [] if attributes is None else _attributes(finished, attributes, seed)
    _save(finished, found, inferred, seed)
    _print(finished, found, inferred)
    _draw(finished, found)


def _sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--users-per-sum must be numbers such as 1,2,5, got {text!r}")
    return sorted({int(part) for part in parts})


def _names(text: str) -> list[str]:
    from experiments.audit.measure import NAMES

    chosen = list(NAMES) if text == "all" else [part.strip() for part in text.split(",")]
    for name in chosen:
        if name not in NAMES:
            raise ConfigError(f"--attacks: {name!r} is not one of {', '.join(NAMES)}")
    return chosen


def _measured(
    run: FinishedRun, sizes: list[int], names: list[str], uploads: int, seed: int
) -> Measured:
    import torch
    from rich.progress import Progress

    from experiments.audit.measure import attacks_of, measure, sources

    torch.set_num_threads(run.config.engine.threads)
    count, found = sources(run, sizes, uploads, seed)
    with Progress(console=ERRORS, transient=True) as progress:
        task = progress.add_task("audit", total=count)
        return measure(run, found, attacks_of(run, names, seed), lambda: progress.advance(task))


def _attributes(run: FinishedRun, path: Path, seed: int) -> list[AttributeScore]:
    from rich.progress import track

    from experiments.audit.attributes import cross_validated, read_attributes
    from experiments.audit.measure import features
    from experiments.audit.sources import available_users, facts_of, hindrance, replayed

    table, ids = read_attributes(path), run.dataset.user_ids
    if (why := hindrance(run)) is not None:
        raise ConfigError(f"--attributes needs each user's upload made again, but {why}")
    known = [u for u in available_users(run) if all(str(ids[u]) in v for v in table.values())]
    users = np.array(known, dtype=np.int64)
    if not len(users):
        raise ConfigError(f"--attributes {path}: has no user of the run")
    facts, told = facts_of(run), track(users, "attributes", console=ERRORS, transient=True)
    features_UX = np.stack([features(replayed(run, np.array([user])), facts) for user in told])
    return [
        cross_validated(name, features_UX, [values[str(ids[u])] for u in users], seed)
        for name, values in table.items()
    ]


def _save(run: FinishedRun, found: Measured, inferred: list[AttributeScore], seed: int) -> None:
    from server_app.files import replace_json

    content: dict[str, object] = {
        "run": run.folder.name,
        "strategy": run.config.strategy_name,
        "selected_round": run.round,
        "seed": seed,
        "findings": [one.as_json() for one in found.findings],
        "not_applicable": found.not_applicable,
        "not_replayed": found.not_replayed,
        "attributes": [one.as_json() for one in inferred],
    }
    replace_json(run.folder / FILE, content)


def _print(run: FinishedRun, found: Measured, inferred: list[AttributeScore]) -> None:
    from experiments.audit.tables import tables

    notes = []
    if run.strategy.needs_individual_updates:
        notes.append("the server sees each user's upload: none is a sum over more")
    if run.strategy.personal_template(run.checkpoint.best):
        notes.append("after round 1 uploads are compared with the shared tables, not the users'")
    for table in tables(run.folder.name, found, inferred, notes):
        CONSOLE.print(table)


def _draw(run: FinishedRun, found: Measured) -> None:
    from experiments.audit.measure import UNION

    try:
        from experiments.figures import style
        from experiments.figures.leak import Leak, leak_by_users
    except ModuleNotFoundError as error:
        CONSOLE.print(f"No figure: it needs {error.name}, pip install 'fedrecgel[report]'")
        return
    replays = [one for one in found.findings if one.replayed and one.target == UNION]
    lines = []
    for name in dict.fromkeys(one.attack for one in replays):
        own = sorted((one for one in replays if one.attack == name), key=lambda one: one.users)
        users, f1 = [one.users for one in own], [one.f1 for one in own]
        lines.append(Leak(name, users, f1, [one.chance for one in own]))
    title = f"{run.config.strategy_name}, {run.config.dataset.name}"
    png, _ = style.save(leak_by_users(lines, title), run.folder / "audit")
    CONSOLE.print(f"Figure: {png}", markup=False, highlight=False, soft_wrap=True)
