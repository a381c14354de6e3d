"""The page of docs/beyond.md: federated beside central, with what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.beyond_log import Log
from benchmarks.beyond_trials import SEARCHED
from benchmarks.results_cells import Cell, DataSource, ReferenceCell, RunCell
from benchmarks.results_page import failure_of, table_line
from conf.compose import compose
from server_app.references.rows import SELECTION
from server_app.report import SHOWN, mean_sd, standard_error

CLOSED_FORMS = ("fedease", "fedials", "fedspectral")
"""The first has the settings of its central method, whose weights are the same."""
SLOW = ("bpr", "neumf")
"""References that are fitted where they are asked for, on the grids of ``write_results.py``."""
ORDER, HITS = "test/full/ndcg@10", "test/full/hr@10"
GUIDE = Path(__file__).with_name("beyond_guide.md")
HEAD = """\
# Federated as good as central

Which strategy recommends as well as a system that sees all data in one place, on which data, and
at what cost. The tables are written by the command below, not by hand; the last sections are the
text of `benchmarks/beyond_guide.md`.

```
{command}
```

* Protocol `strict`; per cent, mean ± standard deviation over seeds {seeds}, test items. Candidates
  are the held-out item and 99 sampled ones, or the whole catalogue without the user's training
  items; the held-out item loses ties.
* **Preset**: `fedrecgel run experiment=best_DATASET federation.grid=local dataset.path=…`
  (MovieLens-100K needs no path); **closed form**: the same with another `strategy=`. Everybody is
  in every round, and the last round is reported. **Default**: a tenth of the users a round, 100
  rounds, the best of every tenth by validation.
* *References* see all data. Their settings, and those of the presets and closed forms, are what
  `python benchmarks/search_beyond.py` found best by NDCG@10 of the **validation** items, whole
  catalogue, seed 0; every trial is in `benchmarks/results/beyond_search.json`, without test
  figures; below each table is how many were tried, fewer on the larger data (`--only`). What was
  not searched has the grids of [references.md](references.md). The default is as it comes, not
  tuned on these data; what tuning would give it is not shown here.
* The ratio is the row's mean NDCG@10, whole catalogue, over that of the reference whose **test**
  figure is the best: the harder comparison. The summary has beside it the ratio to the reference
  that validation (seed 0) says is best, and the federated row whose test figure is the best,
  which is no choice that one could have made: presets stay what validation chose.
* The standard deviation over seeds says how much chance in the *method* matters: the split is the
  same for all seeds, and `fedease` draws nothing. How much the users matter is the standard error
  of HR@10 below each table; neighbouring rows are ranked on the same users.
* MB (10⁶ bytes of messages) up and down are those of one node in the whole run, evaluations
  included; seconds are of the whole run in one process without evaluations, on two cores that
  other work was using: read orders of magnitude.
"""


@dataclass
class _Row:
    """One line of a table."""

    label: str
    kind: str
    runs: list[Mapping[str, float]] = field(default_factory=list)
    cost: Sequence[str] = ("–", "–", "–", "–")

    @property
    def mean(self) -> float:
        return sum(metrics[ORDER] for metrics in self.runs) / len(self.runs)


def beyond_page(cells: Sequence[Cell], command: str, log: Log) -> str:
    """The whole page in Markdown."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.source.name, []).append(cell)
    tables = {name: _rows(of) for name, of in groups.items()}
    seeds = ", ".join(str(seed) for seed in sorted({cell.seed for cell in cells}))
    head = HEAD.format(command=command, seeds=seeds)
    parts = [head, _summary(tables, groups)]
    parts += [_section(name, rows, groups[name], log) for name, rows in tables.items()]
    return "\n".join([*parts, GUIDE.read_text("utf-8")])


def _rows(cells: Sequence[Cell]) -> list[_Row]:
    return sorted([*_federated(cells), *_references(cells)], key=lambda row: -row.mean)


def _federated(cells: Sequence[Cell]) -> list[_Row]:
    made: dict[str, list[RunCell]] = {}
    for cell in cells:
        if isinstance(cell, RunCell) and cell.is_made:
            made.setdefault(f"`{cell.strategy}`", []).append(cell)
    return [
        _Row(label, _kind(of[0]), [cell.metrics() for cell in of], _cost(of[-1]))
        for label, of in made.items()
    ]


def _references(cells: Sequence[Cell]) -> list[_Row]:
    fitted = [cell for cell in cells if isinstance(cell, ReferenceCell)]
    searched = {method for cell in fitted for method in cell.given or {}}
    rows: dict[str, _Row] = {}
    for cell in fitted:
        for found in cell.rows() if cell.is_made else ():
            if cell.given is not None or found["method"] not in searched:
                label = f"*{found['title']}*"
                rows.setdefault(label, _Row(label, "reference")).runs.append(found["metrics"])
    return list(rows.values())


def _kind(cell: RunCell) -> str:
    if cell.experiment is None:
        return "default"
    own = compose([f"experiment={cell.experiment}", *cell.source.path_override()]).strategy_name
    return "**preset**" if own == cell.strategy else "closed form"


def _cost(cell: RunCell) -> list[str]:
    """Rounds and share of the users, MB up and down a node, seconds; of this seed's run."""
    cfg, totals = cell.config(), cell.result().totals
    nodes = cfg.federation.num_nodes
    seconds = sum(totals[f"seconds_{part}"] for part in ("train", "messages", "server", "other"))
    volume = [_three(totals[way] / nodes / 1e6) for way in ("bytes_up", "bytes_down")]
    return [f"{cell.result().rounds} × {cfg.federation.fraction:.0%}", *volume, _three(seconds)]


def _three(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{float(f'{value:.3g}'):g}"


def _best(rows: Sequence[_Row], kind: str) -> _Row | None:
    return next((row for row in rows if row.kind == kind), None)


def _summary(tables: Mapping[str, Sequence[_Row]], groups: Mapping[str, Sequence[Cell]]) -> str:
    head = ["data set", "users × items", "preset", "NDCG@10 full", "best reference (test)"]
    head += ["its own", "ratio", "ratio to the reference of validation", "best federated (test)"]
    lines = [table_line(head), "|" + "---|" * len(head)]
    for name, rows in tables.items():
        preset, reference = _best(rows, "**preset**"), _best(rows, "reference")
        if preset is not None and reference is not None:
            run = next(c for c in groups[name] if isinstance(c, RunCell) and c.is_made).result()
            size = f"{run.num_users} × {run.num_items}"
            lines.append(table_line([name, size, *_compared(rows, preset, reference)]))
    return "\n".join([*lines, ""])


def _compared(rows: Sequence[_Row], preset: _Row, reference: _Row) -> list[str]:
    own, other = (mean_sd([m[ORDER] for m in row.runs]) for row in (preset, reference))
    references = [row for row in rows if row.kind == "reference"]
    by_validation = max(references, key=lambda row: row.runs[0].get(SELECTION, 0.0))
    federated = next(row for row in rows if row.kind != "reference")
    chosen = f"{_ratio(preset, by_validation)} ({by_validation.label})"
    best = f"{federated.label} {_ratio(federated, reference)}"
    return [preset.label, own, reference.label, other, _ratio(preset, reference), chosen, best]


def _section(name: str, rows: Sequence[_Row], cells: Sequence[Cell], log: Log) -> str:
    columns = ["method", "kind", "seeds", *SHOWN.values(), "ratio"]
    columns += ["rounds × users", "MB up", "MB down", "seconds"]
    lines = [
        f"## {name}\n",
        table_line(columns),
        "|---|---|" + "---|" * (len(columns) - 2),
    ]
    reference = _best(rows, "reference")
    lines += [_line(row, reference) for row in rows]
    return "\n".join([*lines, "", *_error(cells), *_choices(cells, log), *_lacking(cells), ""])


def _line(row: _Row, reference: _Row | None) -> str:
    figures = [mean_sd([metrics.get(key) for metrics in row.runs]) for key in SHOWN]
    ratio = "–" if reference is None else _ratio(row, reference)
    return table_line([row.label, row.kind, str(len(row.runs)), *figures, ratio, *row.cost])


def _ratio(row: _Row, reference: _Row) -> str:
    return f"{100 * row.mean / reference.mean:.1f} %"


def _error(cells: Sequence[Cell]) -> list[str]:
    made = [cell for cell in cells if isinstance(cell, RunCell) and cell.is_made]
    if not made:
        return []
    result = made[0].result()
    error = 100 * standard_error(result.metrics[HITS], result.counts[HITS])
    return [f"Standard error of HR@10 full of one seed, over users: {error:.2f}."]


def _choices(cells: Sequence[Cell], log: Log) -> list[str]:
    """What the search chose, what validation said of it, of how many, and its memory."""
    source, said = cells[0].source, list[str]()
    for start in (*CLOSED_FORMS[1:], *(f"central {method}" for method in SEARCHED)):
        try:
            key, value, tried = log.best(source, start)
        except ValueError:
            continue
        peak = f", peak memory {log.peak_mb(source, key) / 1000:.1f} GB"
        said.append(f"`{key}`: {100 * value:.2f}, best of {tried}{peak}")
    head = "Chosen, with NDCG@10 of validation items; `fedease` has the `l2` of `central ease`:"
    return ["", head, "", *(f"* {line}" for line in said), *_memory(source, log)]


def _memory(source: DataSource, log: Log) -> list[str]:
    try:
        key, value, _ = log.best(source, "fedease")
    except ValueError:
        return []
    peak = log.peak_mb(source, key) / 1000
    return [f"* `{key}`, as a check: {100 * value:.2f}, peak memory {peak:.1f} GB"]


def _lacking(cells: Sequence[Cell]) -> list[str]:
    """Which cells failed, which are missing, and which references were not asked for."""
    lacking = {cell.label: failure_of(cell) for cell in cells if not cell.is_made}
    lines = [f"\nNot made: {label}, {why or 'not tried'}." for label, why in lacking.items()]
    if not any(isinstance(cell, ReferenceCell) and cell.given is None for cell in cells):
        lines.append(f"\n{' and '.join(SLOW)} were left out here: their grids take too long.")
    return lines
