"""``fedrecgel reference``: recommenders that see all data in one place, on a run's own split."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conf.build import ConfigError
from conf.compose import compose
from conf.overrides import absolute_overrides
from server_app.cli_common import CONSOLE, ERRORS, quiet_flower
from server_app.cli_folder import told
from server_app.errors import StorageError
from server_app.files import replace_json

if TYPE_CHECKING:  # these import torch
    from server_app.references.base import UnavailableError
    from server_app.references.rows import ReferenceRow

ALL = "all"

EXAMPLES = """\
Examples:

  fedrecgel reference popularity ease

  fedrecgel reference all --tune

  fedrecgel reference ease ease.l2=200 --dataset filmtrust dataset.path=filmtrust-ratings.txt

  fedrecgel reference ials ials.implementation=own --protocol paper --out ials.json
"""


def reference(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[METHOD…|all] [OVERRIDES…]",
            help="Methods, by default all; settings as key=value, those of a method as "
            "METHOD.key=value.",
        ),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="As dataset=NAME.")] = None,
    protocol: Annotated[str | None, typer.Option(help="As protocol=NAME.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="As seed=NUMBER.")] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="Choose settings from each method's grid by NDCG@10 on validation."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the result to this JSON file.")] = None,
) -> None:
    """Fit reference recommenders to all data in one place, and rank as a federated run does.

    Same split, candidates, ranking code and, for popularity, the same figures as a run with this
    dataset, protocol and seed. METHOD is one of popularity, item_knn, ease, ials, bpr, neumf.
    """
    _check_target(out)
    from server_app.cli_reference_rows import reference_rows
    from server_app.references import METHODS
    from server_app.references.rows import reference_table

    quiet_flower()
    named, overrides, settings = sorted_arguments(list(arguments or []), tuple(METHODS))
    for key, value in (("dataset", dataset), ("protocol", protocol), ("seed", seed)):
        overrides += [] if value is None else [_once(key, value, overrides)]
    config = compose(absolute_overrides(overrides, Path.cwd()))
    everything = not named or named == [ALL]
    rows = reference_rows(
        config,
        tuple(METHODS) if everything else named,
        settings=settings,
        tune=tune,
        on_unavailable=_say if everything else None,
    )
    if out is not None:
        _write(out, rows)
    if as_json:
        typer.echo(json.dumps([row.as_json() for row in rows]))
    elif rows:
        CONSOLE.print(reference_table(rows))


def sorted_arguments(
    arguments: Sequence[str], methods: Sequence[str]
) -> tuple[list[str], list[str], dict[str, dict[str, Any]]]:
    """Names of methods, overrides of the configuration, and settings by method and key.

    Raises:
        ConfigError: for ``all`` beside other names, or a name given twice.

    """
    named = [text for text in arguments if "=" not in text]
    overrides, settings = list[str](), dict[str, dict[str, Any]]()
    for text in (text for text in arguments if "=" in text):
        method, dot, key = text.partition("=")[0].partition(".")
        if dot and method in methods:
            settings.setdefault(method, {})[key] = _value(text.partition("=")[2])
        else:
            overrides.append(text)
    if len(set(named)) < len(named) or (ALL in named and named != [ALL]):
        raise ConfigError(f"name each method once, or {ALL} alone, got {' '.join(named)}")
    if unknown := [name for name in named if name not in (*methods, ALL)]:
        raise ConfigError(
            f"there is no reference {unknown[0]!r}; choose {ALL} or some of {', '.join(methods)}"
        )
    return named, overrides, settings


def _value(text: str) -> Any:
    """A number, true, false or null; any other text is itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _once(key: str, value: object, overrides: Sequence[str]) -> str:
    """The override of an option, refused where it is given as key=value as well."""
    if any(text.lstrip("+").startswith(f"{key}=") for text in overrides):
        raise ConfigError(f"{key} is given twice: use --{key} or {key}=")
    return f"{key}={value}"


def _say(name: str, error: UnavailableError) -> None:
    ERRORS.print(f"{name}: {error}", markup=False, highlight=False, soft_wrap=True)


def _check_target(out: Path | None) -> None:
    if out is not None and not out.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {out.absolute().parent}")


def _write(out: Path, rows: Sequence[ReferenceRow]) -> None:
    try:
        replace_json(out.absolute(), {"references": [row.as_json() for row in rows]})
    except OSError as error:
        raise StorageError(told(error)) from None
