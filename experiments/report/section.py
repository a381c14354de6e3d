"""What a report says of one split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from experiments.arms import Split
from experiments.baseline import Baseline
from experiments.claim_files import Claims
from experiments.compare import compare
from experiments.report.claims import claims_tables
from experiments.report.differences import differences_table
from experiments.report.drawn import Drawn, draw
from experiments.report.results import results_table
from experiments.report.table import Table
from experiments.tuning import Tuning


@dataclass(frozen=True)
class Section:
    """Tables and figures of a split."""

    id: str
    title: str
    choices: Sequence[str]
    """How settings and the baseline were chosen, a line each."""
    tables: Sequence[Table]
    figures: Sequence[Drawn]
    missing: Sequence[str]
    """Why a figure is not there, a line each."""


@dataclass(frozen=True)
class Asked:
    """What a report is asked for beyond the runs."""

    tuning: Tuning = field(default_factory=Tuning)
    claims: Sequence[Claims] = ()
    baseline: Baseline | None = None
    with_figures: bool = True


def section_of(split: Split, asked: Asked) -> Section:
    """Everything about a split."""
    baseline, lines = (asked.baseline or Baseline(())).found_in(split)
    comparison = compare(split, baseline)
    differences = differences_table(split, comparison)
    tables = [results_table(split, comparison), *([differences] if differences else [])]
    figures, missing = draw(split, comparison) if asked.with_figures else ([], [])
    return Section(
        f"split-{split.slug}",
        split.name,
        [*choices(split, asked.tuning), *lines],
        [*tables, *claims_tables(asked.claims, split)],
        figures,
        missing,
    )


def choices(split: Split, tuning: Tuning) -> list[str]:
    """How the settings of arms were chosen, and by which seeds."""
    if not tuning.keys:
        return []
    seeds = ", ".join(map(str, tuning.seeds))
    by = (
        f"tuning seeds {seeds}; the other seeds are reported"
        if seeds
        else "all seeds, which are reported as well: the choice has seen them"
    )
    lines = [f"{' and '.join(tuning.keys)} chosen for each arm on validation by {by}."]
    budgets = set[int]()
    for arm in split.arms:
        if arm.choice and arm.choice.tried:
            budgets.add(len(arm.choice.tried))
            tried = ", ".join(f"{n} {100 * v:.2f}" for n, v in arm.choice.tried)
            lines.append(f"{arm.label}: {arm.choice.setting} by {arm.choice.measure} ({tried}).")
    if len(budgets) > 1:
        lines.append("Arms differ in the number of settings tried: the budgets are not equal.")
    return lines


def as_json(section: Section) -> Mapping[str, object]:
    """The numbers of a section."""
    tables = {table.slug: list(table.numbers) for table in section.tables}
    return {"title": section.title, "choices": list(section.choices), "tables": tables}
