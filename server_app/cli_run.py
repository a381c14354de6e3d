"""``fedrecgel run``: from overrides to a table of results."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_app.files import file_on_disk
from conf.compose import compose
from conf.overrides import absolute_overrides, as_overrides, assignment, default_runs
from conf.tree import Config, ConfigError, from_mapping, remarks, to_json, to_mapping
from server_app.cli_common import CONSOLE, parse_seeds, run_folder
from server_app.errors import RunFolderError, RunStoppedError, ServerError

if TYPE_CHECKING:
    from server_app.results import RunResult

EXAMPLES = """\
Examples:

  fedrecgel run

  fedrecgel run strategy=fedncf federation.rounds=20 seeds=0,1,2

  fedrecgel run dataset=file dataset.path=ratings.csv 'dataset.columns=[user,item,rating,timestamp]'

  fedrecgel run experiment=paper_filmtrust dataset.path=filmtrust-ratings.txt
"""


@dataclass(frozen=True)
class Plan:
    """One run to start: the overrides and what they compose to."""

    overrides: list[str]
    config: Config


def run(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings as key=value, for example strategy=fedncf")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run and of its folder.")] = None,
    resume: Annotated[
        str | None, typer.Option(help="Continue this run from its last checkpoint.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds in turn: 0,1,2")] = None,
) -> None:
    """Train a strategy, rank the held-out items and print the result.

    OVERRIDES are settings as key=value: groups (dataset, protocol, model, strategy, engine,
    federation, evaluation, experiment) and keys (federation.rounds=20). Without any, FedRecGEL
    trains on MovieLens-100K.
    """
    plans = plan(list(overrides or []), name, resume, seeds)
    # Torch, Flower and their kin are imported once the command line is known to be right.
    from server_app.cli_launch import launch
    from server_app.report import result_table, runs_table

    for remark in remarks(plans[0].config):
        CONSOLE.print(f"Note: {remark}", style="yellow", markup=False)
    results = []
    for each in plans:
        try:
            results.append(launch(each.overrides, each.config, CONSOLE))
        except KeyboardInterrupt:
            raise InterruptedError(f"stopped; {how_to_go_on(each.config)}") from None
        except RunStoppedError as error:
            said = f"the run was stopped ({error}); {how_to_go_on(each.config)}"
            raise InterruptedError(said) from None
        except ServerError:
            _show_result(each.config)
            raise
        CONSOLE.print(result_table(results[-1]))
    if len(results) > 1:
        CONSOLE.print(runs_table(results))
    _example(results[-1], several=len(results) > 1)
    for result in results:
        CONSOLE.print(f"Results: {result.folder}", markup=False, soft_wrap=True)


def how_to_go_on(config: Config) -> str:
    """What to do about a stopped run: only one with a checkpoint can continue."""
    folder = Path(config.output) / str(config.name)
    if any((folder / "checkpoint").glob("round-*")):
        return f"continue with: fedrecgel run --resume {shlex.quote(str(folder))}"
    return "it has no checkpoint yet to continue from"


def plan(
    given: list[str], name: str | None = None, resume: str | None = None, seeds: str | None = None
) -> list[Plan]:
    """The runs that a command line asks for, checked before anything starts.

    Raises:
        ConfigError: one line naming the key and what is allowed.

    """
    overrides = [text for text in given if not text.startswith("seeds=")]
    seeds = next((text[6:] for text in given if text.startswith("seeds=")), seeds)
    overrides = absolute_overrides(overrides, Path.cwd())
    if resume is not None:
        if name is not None or seeds is not None:
            raise ConfigError("--resume names one run: it goes without --name and seeds")
        return [_planned(_resumed(resume) + overrides, None, None)]
    if seeds is None:
        return [_planned(overrides, name, None)]
    return [
        _planned(overrides, None if name is None else f"{name}-s{seed}", seed)
        for seed in parse_seeds(seeds)
    ]


def _planned(overrides: list[str], name: str | None, seed: int | None) -> Plan:
    extra = [] if seed is None else [f"seed={seed}"]
    extra += [] if name is None else [assignment("name", name)]
    config = compose([*overrides, *extra])
    _check_files(config)
    config = _placed(config)
    extra += [assignment("output", config.output), assignment("name", str(config.name))]
    return Plan([*overrides, *extra], config)


def _placed(config: Config) -> Config:
    """The configuration with output folder and name; the name's folder is reserved."""
    from server_app.run_folder import with_defaults

    root = config.output or default_runs(Path.cwd() / "runs")
    placed = with_defaults(from_mapping({**to_mapping(config), "output": root}))
    check_folder(placed)
    return placed


def check_folder(config: Config) -> None:
    """Refuse a name that is taken, or a resume that cannot continue, before anything starts."""
    from server_app.lock import is_locked, lock_holder
    from server_app.run_folder import check_resumable, read_config

    folder = Path(config.output) / str(config.name)
    if folder.is_dir() and is_locked(folder):
        raise ConfigError(f"{folder} is in use by another process (pid {lock_holder(folder)})")
    if not config.resume:
        return _check_free(folder)
    try:
        check_resumable(read_config(folder), json.loads(to_json(config)))
    except RunFolderError as error:
        raise ConfigError(str(error)) from None


def _check_free(folder: Path) -> None:
    """Refuse the name of a folder that holds anything."""
    from server_app.lock import LOCK
    from server_app.run_folder import CONFIG

    if folder.is_dir() and any(entry.name != LOCK for entry in folder.iterdir()):
        kind = "a run already" if (folder / CONFIG).exists() else "other files"
        raise ConfigError(
            f"name={folder.name}: {folder} holds {kind}; choose another name"
            + (f", or continue it with --resume {folder.name}" if kind == "a run already" else "")
        )


def _resumed(run: str) -> list[str]:
    """Overrides of an earlier run, so that a resume need not repeat them."""
    from server_app.run_folder import read_config

    folder = run_folder(run, None)
    config = from_mapping(read_config(folder))
    where = [assignment("name", folder.name), assignment("output", str(folder.parent))]
    return [*as_overrides(to_mapping(config)), *where, "resume=true"]


def _check_files(config: Config) -> None:
    """Refuse a file that is not there before anything starts."""
    for key, path in (("path", config.dataset.path), ("titles", config.dataset.titles)):
        if path is not None and not file_on_disk(path).is_file():
            raise ConfigError(f"dataset.{key}: there is no file {file_on_disk(path)}")


def _show_result(config: Config) -> None:
    """The table of a failed run that trained all its rounds; the error follows it."""
    from server_app.report import result_table
    from server_app.results import load_result
    from server_app.run_folder import STATE, read_state

    folder = Path(config.output) / str(config.name)
    if (folder / STATE).exists() and read_state(folder).has_result:
        CONSOLE.print(result_table(load_result(folder)))


def _example(result: RunResult, *, several: bool) -> None:
    """One user's list, and the command for anyone else's."""
    from server_app.cli_recommend import print_recommendations

    if several:
        CONSOLE.print(f"From run {result.name}:", markup=False, highlight=False, soft_wrap=True)
    print_recommendations(result.folder, None, 10)
    command = shlex.join(["fedrecgel", "recommend", "--run", str(result.folder), "--user", "ID"])
    CONSOLE.print(f"For another user: {command}", markup=False, soft_wrap=True)
