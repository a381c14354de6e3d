"""``fedrecgel sweep``: from overrides with several values to a folder of runs."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from conf.build import ConfigError
from conf.overrides import PATH_KEYS, absolute_overrides
from experiments.sweep.spec import Spec, spec_of
from server_app.cli_common import CONSOLE, runs_root

EXAMPLES = """\
Examples:

  fedrecgel sweep strategy=fedrecgel,fedncf seeds=0,1,2 --name first

  fedrecgel sweep strategy.sam.rho_shared=0,0.02,0.1 seed=range(3) --also strategy=fedncf

  fedrecgel sweep paper_filmtrust dataset.path=filmtrust-ratings.txt

  fedrecgel sweep --resume first
"""


@dataclass(frozen=True)
class Request:
    """A sweep to be made: its folder and jobs, nothing written yet."""

    spec: Spec
    folder: Path
    asked: Sequence[tuple[str, str, Sequence[str]]] | None
    """Labels, arms and overrides of a sweep that is continued as it was asked for."""


def sweep(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SWEEP] [OVERRIDES…]",
            help="A sweep of conf/sweep or a yaml file, and settings as key=v1,v2.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the sweep and of its folder.")] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(help="Another product: 'key=v1,v2 …'; may be given several times."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at once; by default one a core.")
    ] = None,
    references: Annotated[
        str | None,
        typer.Option(help="popularity,item_knn,ease,ials,bpr,neumf, some of them, or none."),
    ] = None,
    runs: Annotated[
        str | None, typer.Option(help="Folder that holds it; default FEDRECGEL_RUNS or ./runs.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="Continue the sweep of this name as it was asked for.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try jobs again that failed in a round.")
    ] = False,
    slim: Annotated[
        bool, typer.Option("--slim", help="Remove users' private state of complete runs.")
    ] = False,
) -> None:
    """Make many runs, several at once, and the references of their splits.

    OVERRIDES are as for `fedrecgel run`, with several values in Hydra's grammar: key=a,b,
    range(1,5), glob(fed*) for groups. Every combination is a run. What is complete is kept: the
    same command again goes on where it was stopped.
    """
    given = list(arguments or [])
    if resume is not None:
        if given or also or name is not None or references is not None:
            raise ConfigError("--resume names one sweep, which is made as it was asked for")
        request = _continued(resume, runs)
    else:
        request = _asked(given, list(also or []), name, references, runs)
    # Torch and Flower are imported once the command line can be read.
    from experiments.sweep.execution import execute
    from experiments.sweep.making import Options

    execute(request, Options(jobs, retry_failed, slim))


def _asked(
    given: list[str], also: list[str], name: str | None, references: str | None, runs: str | None
) -> Request:
    if not given and not also:
        raise ConfigError("say what to sweep over, such as strategy=fedrecgel,fedncf seeds=0,1,2")
    spec, derived = spec_of([_file_quoted(text) for text in given], also)
    if references is not None:
        spec = dataclasses.replace(spec, references=tuple(references.split(",")))
    return Request(spec, runs_root(runs) / _checked(name or derived), None)


def _file_quoted(text: str) -> str:
    """The path of a file that is there is one value, whatever characters it has."""
    key, _, value = text.partition("=")
    there = key.lstrip("+") in PATH_KEYS and bool(value) and Path(value).expanduser().is_file()
    return absolute_overrides([text], Path.cwd())[0] if there else text


def _continued(name: str, runs: str | None) -> Request:
    from conf.build import build
    from experiments.sweep.folder import ASKED, read_asked

    places = (runs_root(runs) / name, Path.cwd() / name)
    folder = next((place for place in places if (place / ASKED).is_file()), places[0])
    found = read_asked(folder)
    jobs = [(job["label"], job["arm"], job["overrides"]) for job in found.pop("jobs")]
    return Request(build(Spec, found, ""), folder, jobs)


def _checked(name: str) -> str:
    from conf.checks import RUN_NAME

    if not RUN_NAME.fullmatch(name):
        raise ConfigError(f"--name must be letters, digits, '.', '_' or '-', got {name!r}")
    return name


def how_to_go_on(folder: Path) -> str:
    """The command that continues a sweep."""
    here = runs_root(None)
    name = folder.name if folder.parent == here else str(folder)
    return "continue with: " + shlex.join(["fedrecgel", "sweep", "--resume", name])


def say(text: str, style: str | None = None) -> None:
    """A line, as it is."""
    CONSOLE.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
