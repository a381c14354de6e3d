"""The small table beside a split's: differences with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from experiments.arms import Split
from experiments.compare import Comparison, Difference
from experiments.report.table import Cell, Line, Table, Value
from experiments.significance import LEAST_SEEDS, RESAMPLES, ZERO_METHOD, Interval
from server_app.report import SHOWN

CAPTION = (
    "Difference in points (per cent of users for HR), over the seeds that both have. In brackets "
    f"a 95 % interval over users (paired bootstrap of {RESAMPLES} resamples, percentiles) where "
    "ranks of users were kept; *: p < 0.05 by Wilcoxon's signed-rank test over users "
    f"(zero_method={ZERO_METHOD}) after Holm's correction over the differences of the same figure "
    "and kind in this table. After “seeds”, a 95 % t interval over seeds, where there are at least "
    f"{LEAST_SEEDS} in common. The best federated method was found on these same figures."
)
KINDS = {
    "baseline": "less the arm that was asked for",
    "best": "best federated method less another",
    "popularity": "less popularity",
    "reference": "less the best reference",
}


def differences_table(split: Split, comparison: Comparison) -> Table | None:
    """A line for each pair of contenders; None without any."""
    pairs = dict[tuple[str, str, str], dict[str, Difference]]()
    for kind in KINDS:
        for one in (d for d in comparison.differences if d.kind == kind):
            pairs.setdefault((kind, one.arm, one.against), {})[one.figure] = one
    if not pairs:
        return None
    lines = [
        Line(Cell(f"{arm} − {against}"), [_cell(of.get(name)) for name in comparison.figures])
        for (_, arm, against), of in pairs.items()
    ]
    return Table(
        f"{split.slug}-differences",
        f"{split.name}: differences",
        [f"Data set {split.dataset}, protocol {split.protocol}.", CAPTION],
        ["difference", *(SHOWN[name] for name in comparison.figures)],
        lines,
        [_numbers(d) for of in pairs.values() for d in of.values()],
    )


def _cell(one: Difference | None) -> Cell:
    if one is None:
        return Cell("–")
    text = points(one.mean)
    text += f" {bracketed(one.over_users)}" if one.over_users else ""
    text += f" seeds {bracketed(one.over_seeds)}" if one.over_seeds else ""
    return Cell(text, mark="*" if one.is_significant else "")


def points(share: float) -> str:
    """A difference of shares in points, with its sign."""
    return f"{100 * share:+.2f}".replace("-", "−")


def bracketed(interval: Interval) -> str:
    """An interval of shares in points."""
    return f"[{points(interval[0])}, {points(interval[1])}]"


def _numbers(one: Difference) -> dict[str, Value]:
    plain = asdict(one)
    found: dict[str, Value] = {key: plain[key] for key in ("figure", "kind", "arm", "against")}
    found["seeds"] = _listed(one.seeds)
    found["difference"] = one.mean
    for name in ("over_users", "over_seeds"):
        low, high = plain[name] or (None, None)
        found |= {f"{name} low": low, f"{name} high": high}
    return found | {"users": one.num_users, "p": one.p, "p_holm": one.p_holm}


def _listed(seeds: Sequence[int]) -> str:
    return " ".join(str(seed) for seed in seeds)
