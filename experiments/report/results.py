"""The table of a split: figures, costs, who is best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev

from experiments.arms import Arm, Split
from experiments.compare import Comparison
from experiments.contenders import Contender
from experiments.costs import COSTS, OF_DEVICES, costs_of, mean_and_sd
from experiments.report.table import Cell, Line, Table, Value
from experiments.significance import ZERO_METHOD
from server_app.report import SHOWN, mean_sd

NONE = Cell("–")
LEVEL, BEST_REFERENCE = "†", "‡"
THOUSANDS = {"bytes_up": 1e-3, "bytes_down": 1e-3, "device_bytes": 1e-3}
DEVICE_NOTE = (
    "Device kB: what simulated devices received and sent, in vain too, over the updates that were "
    "used. Simulated h: hours on the devices' clock, for all rounds."
)
SELECTED_ON_TEST = "The round is the best on the test items, which is optimistic."
RANKING_NOTE = (
    "HR and NDCG in per cent, mean ± standard deviation over seeds, against candidates that were "
    "sampled (sampled) or the whole catalogue without the user's training items (full); the "
    "held-out item loses ties."
)
BOLD_NOTE = (
    "Bold: the best federated method, where it is better than every other federated one at 5 % by "
    "Wilcoxon's signed-rank test, paired over users (values averaged over common seeds, "
    f"zero_method={ZERO_METHOD}), after Holm's correction over the comparisons of this table and "
    f"figure. {LEVEL}: otherwise, those that cannot be told from the best, and it."
)
COST_NOTE = (
    "kB up and down: bytes that nodes sent and received in all rounds, evaluation among them, over "
    "the number of users trained, each counted in every round it took part in. Seconds: wall time "
    "of all rounds, or of a reference's fit. Rounds to 95 %: the first evaluated round with 95 % "
    "of the HR@10 of the last, sampled candidates, on validation where there is one, else on test."
)


def results_table(split: Split, comparison: Comparison) -> Table:
    """Federated arms by the last figure, the best first; then popularity and references."""
    lines, numbers = list[Line](), list[Mapping[str, Value]]()
    arms, shown = {arm.label: arm for arm in split.arms}, costs_of(split.arms)
    order = comparison.figures[-1] if comparison.figures else ""
    for one in sorted(comparison.arms, key=lambda one: (-(one.mean(order) or 0.0), one.label)):
        lines.append(_line(one, comparison, shown, arms[one.label]))
        numbers.append(_numbers(one, comparison, "federated", arms[one.label]))
    for one in _others(comparison):
        lines.append(_line(one, comparison, shown, None, split))
        kind = "popularity" if one is comparison.popularity else "reference"
        numbers.append(_numbers(one, comparison, kind, None, split))
    costs = [COSTS[cost][0] for cost in shown]
    return Table(
        split.slug,
        split.name,
        _caption(split, comparison),
        ["method", "seeds", *(SHOWN[name] for name in comparison.figures), *costs],
        lines,
        numbers,
    )


def _others(comparison: Comparison) -> Iterator[Contender]:
    if comparison.popularity:
        yield comparison.popularity
    yield from comparison.references


def _line(
    one: Contender,
    comparison: Comparison,
    shown: Sequence[str],
    arm: Arm | None,
    split: Split | None = None,
) -> Line:
    figures = [_figure(one, name, comparison, arm is not None) for name in comparison.figures]
    costs = [_cost(arm, cost) if arm else NONE for cost in shown]
    if split is not None and (fit := _fit_seconds(one, split)) is not None:
        costs[list(shown).index("seconds")] = Cell(f"{fit:.1f}")
    label = one.label if arm or one is comparison.popularity else f"{one.label} (reference)"
    return Line(Cell(label), [Cell(str(len(one.metrics))), *figures, *costs], arm is not None)


def _figure(one: Contender, name: str, comparison: Comparison, federated: bool) -> Cell:
    text = mean_sd([metrics.get(name) for metrics in one.metrics.values()])
    if not federated:
        return Cell(text, mark=BEST_REFERENCE if _is_best_reference(one, name, comparison) else "")
    standing = comparison.standings[name]
    mark = LEVEL if one.label in standing.level else ""
    return Cell(text, bold=standing.is_ahead and one.label == standing.best, mark=mark)


def _is_best_reference(one: Contender, name: str, comparison: Comparison) -> bool:
    return one is not comparison.popularity and one.label == comparison.best_reference(name)


def _cost(arm: Arm, cost: str) -> Cell:
    mean, sd = mean_and_sd(arm, cost)
    if mean is None:
        return NONE
    factor = THOUSANDS.get(cost, 1.0)
    spread = f" ± {factor * sd:,.1f}" if sd is not None and round(factor * sd, 1) else ""
    return Cell(f"{factor * mean:,.1f}{spread}")


def _fit_seconds(one: Contender, split: Split) -> float | None:
    of = split.references.get(one.label, ())
    return fmean(reference.row.seconds_fit for reference in of) if of else None


def _numbers(
    one: Contender,
    comparison: Comparison,
    kind: str,
    arm: Arm | None,
    split: Split | None = None,
) -> dict[str, Value]:
    found: dict[str, Value] = {"method": one.label, "kind": kind, "seeds": len(one.metrics)}
    for name in comparison.figures:
        values = [m[name] for m in one.metrics.values() if name in m]
        whole = len(values) == len(one.metrics)
        found[f"{name} mean"] = fmean(values) if values and whole else None
        found[f"{name} sd"] = stdev(values) if len(values) > 1 and whole else None
    for cost in COSTS:
        found[f"{cost} mean"], found[f"{cost} sd"] = mean_and_sd(arm, cost) if arm else (None, None)
    if split is not None:
        found["seconds mean"] = _fit_seconds(one, split)
    return found


def _caption(split: Split, comparison: Comparison) -> list[str]:
    candidates = split.settings.get("protocol.num_candidates")
    told = [
        (
            f"Data set {split.dataset}, protocol {split.protocol}: {split.num_users} users, "
            f"{split.num_items} items, {candidates} candidates beside the held-out item."
        ),
        RANKING_NOTE,
    ]
    told += [SELECTED_ON_TEST] if split.settings["selected_on_test"] else []
    told += _about_best(comparison)
    if comparison.references:
        told.append(f"{BEST_REFERENCE} best reference; references see all data in one place.")
    else:
        told.append("No references but popularity: none were fitted with these runs.")
    devices = OF_DEVICES[0] in costs_of(split.arms)
    return [*told, COST_NOTE, *([DEVICE_NOTE] if devices else [])]


def _about_best(comparison: Comparison) -> list[str]:
    """What bold and daggers mean, or why there are none."""
    if len(comparison.arms) < 2:
        return ["One federated method: nothing to test it against."]
    untested = [SHOWN[name] for name, of in comparison.standings.items() if not of.is_tested]
    if len(untested) == len(comparison.standings):
        return ["No test and nothing in bold: ranks of users, or seeds in common, are missing."]
    return [
        BOLD_NOTE,
        *([f"Not tested for want of ranks: {', '.join(untested)}."] if untested else []),
    ]
