"""``fedrecgel run``: from overrides to a table of results."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_app.files import file_on_disk
from conf.compose import compose
from conf.overrides import absolute_overrides, assignment
from conf.tree import Config, ConfigError, remarks
from server_app.cli_common import CONSOLE, parse_seeds
from server_app.cli_folder import how_to_go_on, placed, resumed, told
from server_app.connection import Connection
from server_app.errors import RunStoppedError, ServerError, StorageError

if TYPE_CHECKING:
    from server_app.results import RunResult

DEFAULT_SUPERLINK = "127.0.0.1:8000"
"""Where `flower-superlink` listens unless told otherwise."""

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
    superlink: Annotated[
        str | None, typer.Option(help="HOST:PORT of a deployment's SuperLink.")
    ] = None,
    root_certificates: Annotated[
        str | None, typer.Option(help="Certificate that signed the SuperLink's, for TLS.")
    ] = None,
) -> None:
    """Train a strategy, rank the held-out items and print the result.

    OVERRIDES are settings as key=value: groups (dataset, protocol, model, strategy, engine,
    federation, evaluation, experiment) and keys (federation.rounds=20). Without any, FedRecGEL
    trains on MovieLens-100K. With federation=deployment the nodes are SuperNodes that connect to
    the SuperLink named by --superlink.
    """
    plans = plan(list(overrides or []), name, resume, seeds)
    run_plans(plans, connection_of(plans[0].config, superlink, root_certificates))


def run_plans(plans: Sequence[Plan], connection: Connection | None) -> None:
    """Run one plan after the other and print what came out.

    ``connection``: the SuperLink of a deployment; None: nodes are simulated.
    """
    check_device(plans[0].config)
    # Torch, Flower and their kin are imported once the command line is known to be right.
    from server_app.cli_launch import launch
    from server_app.report import result_table, runs_table

    for remark in remarks(plans[0].config):
        CONSOLE.print(f"Note: {remark}", style="yellow", markup=False)
    results: list[RunResult] = []
    where = [] if connection is None else connection.options
    for each in plans:
        try:
            found = launch(each.overrides, each.config, CONSOLE, connection)
        except KeyboardInterrupt:
            raise InterruptedError(f"stopped; {how_to_go_on(each.config, where)}") from None
        except RunStoppedError as error:
            said = f"the run was stopped ({error}); {how_to_go_on(each.config, where)}"
            raise InterruptedError(said) from None
        except ServerError as error:
            _show_result(each.config)
            if not _was_interrupted(each.config):
                raise
            raise ServerError(f"{error}; {how_to_go_on(each.config, where)}") from error
        except OSError as error:
            raise StorageError(told(error, each.config)) from error
        if found is None:
            CONSOLE.print(_elsewhere(each.config), markup=False, highlight=False, soft_wrap=True)
            continue
        results.append(found)
        CONSOLE.print(result_table(found))
    if len(results) > 1:
        CONSOLE.print(runs_table(results))
    if connection is None and results:
        _example(results[-1], several=len(results) > 1)
    for result in results:
        CONSOLE.print(f"Results: {result.folder}", markup=False, soft_wrap=True)


def connection_of(
    config: Config, superlink: str | None, root_certificates: str | None
) -> Connection | None:
    """The SuperLink of a deployment; None where nodes are simulated.

    Raises:
        ConfigError: when one is named for a simulation, or is no address.

    """
    if config.federation.grid == "deployment":
        return Connection.checked(superlink or DEFAULT_SUPERLINK, root_certificates)
    if superlink is not None or root_certificates is not None:
        raise ConfigError("--superlink and --root-certificates go with federation=deployment")
    return None


def plan(
    given: list[str], name: str | None = None, resume: str | None = None, seeds: str | None = None
) -> list[Plan]:
    """The runs that a command line asks for, checked before anything starts.

    Raises:
        ConfigError: one line naming the key and what is allowed.

    """
    overrides = [text for text in given if not text.startswith("seeds=")]
    seeds = _one_source_of_seeds(given, seeds)
    overrides = absolute_overrides(overrides, Path.cwd())
    if resume is not None:
        if name is not None or seeds is not None:
            raise ConfigError("--resume names one run: it goes without --name and seeds")
        return [_planned(resumed(resume, overrides), None, None)]
    if seeds is None:
        return [_planned(overrides, name, None)]
    return [
        _planned(overrides, None if name is None else f"{name}-s{seed}", seed)
        for seed in parse_seeds(seeds)
    ]


def _one_source_of_seeds(given: list[str], option: str | None) -> str | None:
    """The seeds as given once, by ``--seeds``, ``seeds=`` or, for one seed, ``seed=``."""
    lists = [text.removeprefix("seeds=") for text in given if text.startswith("seeds=")]
    lists += [] if option is None else [option]
    single = [text for text in given if text.lstrip("+").startswith("seed=")]
    if len(lists) > 1 or (lists and single):
        raise ConfigError("seeds are given more than once: use one of --seeds, seeds= and seed=")
    return lists[0] if lists else None


def _planned(overrides: list[str], name: str | None, seed: int | None) -> Plan:
    extra = [] if seed is None else [f"seed={seed}"]
    extra += [] if name is None else [assignment("name", name)]
    config = compose([*overrides, *extra])
    check_files(config)
    _check_trackers(config)
    config = placed(config)
    extra += [assignment("output", config.output), assignment("name", str(config.name))]
    return Plan([*overrides, *extra], config)


def check_files(config: Config) -> None:
    """Refuse a file that is not there before anything starts."""
    if config.federation.grid == "deployment":
        return  # the nodes have data of their own
    for key, path in (("path", config.dataset.path), ("titles", config.dataset.titles)):
        if path is not None and not file_on_disk(path).is_file():
            raise ConfigError(f"dataset.{key}: there is no file {file_on_disk(path)}")


def check_device(config: Config) -> None:
    """Refuse a GPU that is not there where this process would do the work."""
    if config.federation.grid != "local" or config.engine.device != "cuda":
        return
    from client_app.device import DeviceError, device_of

    try:
        device_of(config.engine.device)
    except DeviceError as error:
        raise ConfigError(str(error)) from None


def _check_trackers(config: Config) -> None:
    """Refuse a tracker that is not installed, where the server runs on this machine."""
    if config.tracking.tensorboard or config.tracking.mlflow:
        from server_app.tracking import check_installed

        if config.federation.grid != "deployment":
            check_installed(config)


def _was_interrupted(config: Config) -> bool:
    """Whether the run's process ended without a word: killed, or with its machine."""
    from server_app.run_folder import STATE, read_state

    folder = Path(config.output) / str(config.name)
    return (folder / STATE).exists() and read_state(folder).status == "interrupted"


def _show_result(config: Config) -> None:
    """The table of a failed run that trained all its rounds; the error follows it."""
    from server_app.report import result_table
    from server_app.results import load_result
    from server_app.run_folder import STATE, read_state

    folder = Path(config.output) / str(config.name)
    if (folder / STATE).exists() and read_state(folder).has_result:
        CONSOLE.print(result_table(load_result(folder)))


def _elsewhere(config: Config) -> str:
    """What to say of a run whose SuperLink is on another machine."""
    folder = Path(config.output) / str(config.name)
    return f"The run is complete; its results are on the SuperLink's machine, in {folder}"


def _example(result: RunResult, *, several: bool) -> None:
    """One user's list, and the command for anyone else's."""
    from server_app.cli_recommend import print_recommendations

    if several:
        CONSOLE.print(f"From run {result.name}:", markup=False, highlight=False, soft_wrap=True)
    print_recommendations(result.folder, None, 10)
    command = shlex.join(["fedrecgel", "recommend", "--run", str(result.folder), "--user", "ID"])
    CONSOLE.print(f"For another user: {command}", markup=False, soft_wrap=True)
