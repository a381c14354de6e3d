"""``fedrecgel report``."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conf.tree import ConfigError
from server_app.cli_common import CONSOLE, parse_seeds
from server_app.tables import FittedTable, Row

if TYPE_CHECKING:
    from experiments.sweep.spec import Select
    from experiments.tuning import Tuning

NEEDED = ("scipy", "matplotlib", "jinja2")
EXAMPLES = """\
Examples:

  fedrecgel report runs --out report

  fedrecgel report sweeps/rho --tune strategy.server_lr --tune-seeds 0,1,2
"""


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, sweep folders or folders of runs.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
    tune: Annotated[
        str | None,
        typer.Option(
            help="Settings to choose on validation for each arm: KEY[,KEY], or none; "
            "by default as the sweep says."
        ),
    ] = None,
    tune_seeds: Annotated[
        str | None,
        typer.Option(help="Seeds that choose and are not reported, such as 0,1,2."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Compare every arm with that of these settings as well: KEY=VALUE[,KEY=VALUE], or "
            "none; by default as the sweep says."
        ),
    ] = None,
    claims: Annotated[
        list[Path] | None,
        typer.Option(help="Files of claims to check, beside those that come with fedrecgel."),
    ] = None,
    figures: Annotated[bool, typer.Option(help="Draw figures.")] = True,
) -> None:
    """Compare runs: tables with tests over users, figures, one page of HTML."""
    _check_installed()
    from experiments.baseline import Baseline
    from experiments.claim_files import known_claims, load_claims
    from experiments.report.make import make_report
    from experiments.report.section import Asked

    select, compared = _told_by_sweeps(runs, tune, against)
    if against is not None:
        compared = tuple(against.split(",")) if against != "none" else ()
    tuning, baseline = _tuning(select, tune, tune_seeds), Baseline.parsed(compared)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out: {out} is not a folder")
    stated = [*known_claims(), *(load_claims(path) for path in claims or [])]
    asked = Asked(tuning, stated, baseline, figures)
    sections = make_report(runs, out, asked, say=_say)
    for section in sections:
        table = section.tables[0]
        rows = [
            Row([line.label.text], [f"{c.text}{c.mark}{' (best)' * c.bold}" for c in line.cells])
            for line in table.lines
        ]
        headings = table.headings
        notes = [[sentence] for sentence in table.caption]
        CONSOLE.print(FittedTable(table.title, headings[:1], headings[1:], rows, notes))
    CONSOLE.print(f"report: {out / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


def _tuning(told: Select | None, tune: str | None, tune_seeds: str | None) -> Tuning:
    """As the command line says, else as the sweep does."""
    from experiments.tuning import Tuning

    if tune_seeds is not None and tune in (None, "none"):
        raise ConfigError("--tune-seeds needs --tune")
    if tune is None:
        return Tuning() if told is None else Tuning(told.tune, told.seeds, told.by)
    keys = tuple(key.strip() for key in tune.split(",")) if tune != "none" else ()
    if len(set(keys)) < len(keys) or not all(keys):
        raise ConfigError(f"--tune takes distinct keys such as strategy.server_lr, got {tune!r}")
    return Tuning(keys, tuple(parse_seeds(tune_seeds)) if tune_seeds is not None else ())


def _told_by_sweeps(
    folders: Sequence[Path], tune: str | None, against: str | None
) -> tuple[Select | None, tuple[str, ...]]:
    """What the sweeps in these folders say of how they are reported, where they agree."""
    from experiments.sweep.folder import told_to_reports

    told = [told_to_reports(folder) for folder in folders]
    selects, againsts = {select for select, _ in told}, {arm for _, arm in told}
    if tune is None and len(selects) > 1:
        raise ConfigError("these folders choose settings in several ways: say --tune KEY or none")
    if against is None and len(againsts) > 1:
        raise ConfigError("these folders compare with several arms: say --against KEY=VALUE")
    return told[0]


def _say(line: str) -> None:
    CONSOLE.print(line, markup=False, highlight=False, soft_wrap=True)


def _check_installed() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{missing[0]} is missing: pip install 'fedrecgel[report]'")
