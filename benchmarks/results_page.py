"""The page of results: a table for each data set and protocol, written from what was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.results_cells import Cell, RunCell
from server_app.report import SHOWN, mean_sd

ORDER = "test/full/ndcg@10"
HEAD = """\
# Results

Written by the command below, not by hand. Per cent, mean ± standard deviation over the seeds.
Candidates are the held-out item and 99 sampled ones, or the whole catalogue without the user's
training items; the held-out item loses ties. Rows are sorted by NDCG@10 against the whole
catalogue. *References* see all data in one place and are no federated methods: they say what the
split allows. Their settings are chosen for each data set on validation (`strict`, seed 0, the
grids of [references.md](references.md)). Ten per cent of the users take part in a round, 100
rounds, evaluation every tenth. Settings of a strategy are its own defaults (`conf/strategy/`),
which were chosen on MovieLens-100K under `strict`, and those of the paper's experiments;
`paper` takes the best round on the **test** items, which is optimistic.

The paper's own experiments, with its claims beside them and verdicts, are in [paper.md](paper.md).

```
{command}
```
"""


def page(cells: Sequence[Cell], command: str) -> str:
    """The whole page in Markdown."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.source.name, cell.protocol), []).append(cell)
    parts = [HEAD.format(command=command)]
    parts += [_section(dataset, protocol, of) for (dataset, protocol), of in groups.items()]
    return "\n".join(parts)


def _section(dataset: str, protocol: str, cells: Sequence[Cell]) -> str:
    by_method: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    made = [cell for cell in cells if cell.is_made]
    for cell in made:
        if isinstance(cell, RunCell):
            by_method.setdefault((f"`{cell.strategy}`", ""), []).append(cell.metrics())
        else:
            for row in cell.rows():
                key = (row["title"], row["implementation"])
                by_method.setdefault(key, []).append(row["metrics"])
    best_first = sorted(by_method.items(), key=lambda item: -_mean(item[1]))
    lines = [
        f"## {dataset}, protocol {protocol}\n",
        table_line(["method", "seeds", *SHOWN.values()]),
        "|---|---|" + "---|" * len(SHOWN),
    ]
    notes = _notes([cell for cell in cells if not cell.is_made])
    return "\n".join([*lines, *(_line(*item) for item in best_first), *notes, ""])


def _notes(lacking: Sequence[Cell]) -> list[str]:
    """Which cells failed, and which are still to be made."""
    failed = {cell.label: failure_of(cell) for cell in lacking}
    waiting = sorted(label for label, why in failed.items() if why is None)
    notes = [f"\nFailed: {label}, {_said(why)}" for label, why in sorted(failed.items()) if why]
    return notes + ([f"\nNot made yet: {', '.join(waiting)}."] if waiting else [])


def _said(why: str) -> str:
    """An error without the places in the code that it came through."""
    return why.split(" at client_app/", maxsplit=1)[0]


def failure_of(cell: Cell) -> str | None:
    """Why a cell that is not made cannot be made; None if it was not tried."""
    return cell.failure if isinstance(cell, RunCell) else None


def _line(method: tuple[str, str], runs: Sequence[Mapping[str, float]]) -> str:
    title, implementation = method
    label = f"*{title}* (reference, {implementation})" if implementation else title
    figures = [mean_sd([metrics.get(name) for metrics in runs]) for name in SHOWN]
    return table_line([label, str(len(runs)), *figures])


def table_line(cells: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return "| " + " | ".join(cells) + " |"


def _mean(runs: Sequence[Mapping[str, float]]) -> float:
    return sum(metrics[ORDER] for metrics in runs) / len(runs)
