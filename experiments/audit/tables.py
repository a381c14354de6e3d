"""What the audit found, as tables of the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from experiments.audit.attributes import AttributeScore
from experiments.audit.measure import Finding, Measured
from server_app.tables import FittedTable, Row

ABOUT = (
    "per cent, mean over uploads ± standard error",
    "(chance): expected F1 of naming as many items as are true, at random among the candidates",
    "candidates: items with a row that is not zero; the catalogue for presence and popularity",
    "popularity: the most popular items, as many as such users have, without any upload",
    "items of one: of a single one of the users behind a sum",
    "replayed: local training made again after the selected round",
)

_Column = tuple[str, Sequence[Finding]]
"""Its heading, and one finding for each attack and target."""


def tables(
    name: str, found: Measured, inferred: Sequence[AttributeScore], notes: Sequence[str] = ()
) -> Iterator[FittedTable]:
    """F1 beside chance, AUC, and attributes where there are some."""
    keys, columns = ["attack", "target"], list(_columns(found.findings))
    heads = [head for head, _ in columns]
    f1 = _rows(found.findings, columns, _f1)
    below = [*ABOUT, *notes, *(f"{n}: not made, as {w}" for n, w in found.not_applicable.items())]
    if found.not_replayed is not None:
        below.append(f"nothing replayed: {found.not_replayed}")
    yield FittedTable(f"{name}: F1 of items named (chance)", keys, heads, f1, [below])
    curves = _rows(found.findings, columns, lambda one: _per_cent(one.auc))
    yield FittedTable(f"{name}: area under the ROC curve (chance: 50)", keys, heads, curves)
    if inferred:
        yield _attributes(name, inferred)


def _columns(findings: Sequence[Finding]) -> Iterator[_Column]:
    """One for each recorded round, then one for each number of users replayed."""
    for number in sorted({one.round for one in findings if not one.replayed}):
        part = [one for one in findings if not one.replayed and one.round == number]
        yield f"recorded in round {number}\n{_uploads(part)}", part
    for count in sorted({one.users for one in findings if one.replayed}):
        part = [one for one in findings if one.replayed and one.users == count]
        yield f"replayed\n{_uploads(part)}", part


def _uploads(part: Sequence[Finding]) -> str:
    least, most = min(one.users_least for one in part), max(one.users for one in part)
    users = f"{least}" if least == most else f"{least}–{most}"
    return f"{part[0].uploads} of {users} user{'' if most == 1 else 's'}"


def _rows(
    findings: Sequence[Finding], columns: Sequence[_Column], cell: Callable[[Finding], str]
) -> list[Row]:
    rows = []
    for key in dict.fromkeys((one.attack, one.target) for one in findings):
        found = [[one for one in part if (one.attack, one.target) == key] for _, part in columns]
        rows.append(Row(key, [cell(own[0]) if own else "–" for own in found]))
    return sorted(rows, key=lambda row: row.keys[1])


def _f1(one: Finding) -> str:
    return f"{_per_cent(one.f1)} ± {_per_cent(one.f1_error)} ({_per_cent(one.chance)})"


def _attributes(name: str, inferred: Sequence[AttributeScore]) -> FittedTable:
    rows = [
        Row(
            [one.attribute],
            [
                f"{_per_cent(one.accuracy)} ± {_per_cent(one.error)}",
                _per_cent(one.majority),
                str(one.classes),
                str(one.users),
            ],
        )
        for one in inferred
    ]
    heads = ["accuracy", "most frequent value", "values", "users"]
    return FittedTable(f"{name}: attributes from single users' uploads", ["attribute"], heads, rows)


def _per_cent(share: float) -> str:
    return f"{100 * share:.1f}"
