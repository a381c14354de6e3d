"""A study's claims beside what was found."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.arms import Split
from experiments.claim_files import Claims
from experiments.report.differences import bracketed, points
from experiments.report.table import Cell, Line, Table, Value
from experiments.verdicts import MISSING, Verdict, verdicts
from server_app.report import SHOWN

CAPTION = (
    "A figure is reproduced where the 95 % t interval of our mean over at least three seeds holds "
    "it and reaches no further than 1.96 standard errors over users; within noise where one more "
    "seed might have it (95 %), or it is no further from our mean than 1.96 standard errors over "
    "users; else not reproduced. An order (>) is reproduced where the intervals of the difference "
    "over users and over seeds, of those there are, all lie above zero, not reproduced where all "
    "lie below, else within noise."
)


def claims_table(claims: Claims, split: Split) -> Table | None:
    """A line a claim; None where no arm of the split is one that the claims are about."""
    found = list(verdicts(claims, split))
    if all(one.verdict == MISSING for one in found):
        return None
    return Table(
        f"{split.slug}-claims",
        f"{split.name}: claims",
        [
            f"Data set {split.dataset}, protocol {split.protocol}.",
            f"Claims of the {claims.source}.",
            *claims.notes,
            CAPTION,
        ],
        ["claim", "figure", "claimed", "ours", "interval", "verdict"],
        [_line(one) for one in found],
        [_numbers(one) for one in found],
    )


def claims_tables(all_claims: Sequence[Claims], split: Split) -> list[Table]:
    """The tables of the claims about the split's data set and protocol."""
    about = [c for c in all_claims if (c.dataset, c.protocol) == (split.dataset, split.protocol)]
    return [table for claims in about if (table := claims_table(claims, split))]


def _line(one: Verdict) -> Line:
    shown = points if " > " in one.claim else lambda share: f"{100 * share:.2f}"
    values = ["–" if share is None else shown(share) for share in (one.claimed, one.ours)]
    if " > " in one.claim:
        intervals = [f"{name} {bracketed(interval)}" for name, interval in one.intervals.items()]
    else:
        intervals = [
            f"{name} [{100 * low:.2f}, {100 * high:.2f}]"
            for name, (low, high) in one.intervals.items()
        ]
    texts = [SHOWN.get(one.figure, one.figure), *values, ", ".join(intervals) or "–", one.verdict]
    return Line(Cell(one.claim), [Cell(text) for text in texts])


def _numbers(one: Verdict) -> dict[str, Value]:
    found: dict[str, Value] = {"claim": one.claim, "figure": one.figure}
    found |= {"claimed": one.claimed, "ours": one.ours}
    for name in ("users", "seeds"):
        low, high = one.intervals.get(name, (None, None))
        found |= {f"over_{name} low": low, f"over_{name} high": high}
    return found | {"verdict": one.verdict}
