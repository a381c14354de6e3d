"""Runs in, a report out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from conf.tree import ConfigError
from experiments.arms import splits_of
from experiments.collect import collect
from experiments.report.section import Asked, Section, section_of
from experiments.report.write import write_report
from server_app.errors import ServerError

Say = Callable[[str], None]


def make_report(
    folders: Iterable[Path],
    out: Path,
    asked: Asked,
    *,
    say: Say = lambda line: None,
) -> list[Section]:
    """Write the report of the runs in ``folders`` into ``out``; says what it chose and left out.

    Raises:
        ConfigError: for folders without runs, and settings to be tuned that no run has.
        ServerError: where no run has finished.

    """
    collection = collect(folders)
    left_out = dict(collection.left_out)
    for key in asked.tuning.keys:
        if not any(key in run.settings for run in collection.runs):
            raise ConfigError(f"--tune: no run has a setting {key}")
    splits = splits_of(collection, asked.tuning, left_out)
    if not splits:
        why = "; ".join(f"{name}: {reason}" for name, reason in sorted(left_out.items()))
        raise ServerError(f"there is no finished run to report ({why})")
    sections = [section_of(split, asked) for split in splits]
    notes = [f"Left out: {name}, {why}" for name, why in sorted(left_out.items())]
    notes += collection.remarks
    for line in [line for section in sections for line in (*section.choices, *section.missing)]:
        say(line)
    for note in notes:
        say(note)
    number = sum(len(arm.runs) for split in splits for arm in split.arms)
    about = f"{number} runs on {len(splits)} splits; {len(left_out)} left out."
    write_report(out, sections, notes, about)
    return sections
