"""Claims beside what was found.

A claimed figure, of one run on the same users, is

* *reproduced* where the 95 % t interval of our mean over at least three seeds contains it, and
  reaches no further than 1.96 standard errors over users;
* *within noise* where our next run might have it (95 % interval for one more seed), or it is no
  further from our mean than 1.96 standard errors over users;
* *not reproduced* otherwise.

The standard error is that of a share m over n users, √(m (1 − m) / n): for HR it is exact, and no
mean of values between 0 and 1 has a greater one.

“A is better than B” is judged by the intervals of the difference over users, where ranks were
kept, and over seeds, where at least three are in common. It is *reproduced* where all of them lie
above zero, *not reproduced* where all lie below, and else *within noise*; *not tested* where
there is no interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.arms import Split
from experiments.claim_files import Claims
from experiments.compare import Difference, between
from experiments.contenders import Contender, of_arm
from experiments.significance import Interval, seed_interval
from server_app.report import standard_error

NORMAL = 1.96
REPRODUCED, NOISE, NOT_REPRODUCED, UNTESTED, MISSING = (
    "reproduced",
    "within noise",
    "not reproduced",
    "not tested",
    "not run",
)


@dataclass(frozen=True)
class Verdict:
    """One claim and what became of it."""

    claim: str
    figure: str
    claimed: float | None
    """A share of one; of a comparison, the claimed difference where figures are given."""
    ours: float | None
    intervals: Mapping[str, Interval]
    """Of ours, by what they are over."""
    verdict: str


def judge_figure(claimed: float, values: Sequence[float], num_users: int) -> str:
    """The verdict on a claimed figure; ``values`` by seed, shares of one."""
    mean = sum(values) / len(values)
    reach = NORMAL * standard_error(mean, num_users)
    of_mean, of_next = seed_interval(values), seed_interval(values, one_more=True)
    narrow = of_mean is not None and of_mean[1] - mean <= reach
    if of_mean and narrow and of_mean[0] <= claimed <= of_mean[1]:
        return REPRODUCED
    next_run = of_next is not None and of_next[0] <= claimed <= of_next[1]
    return NOISE if next_run or abs(claimed - mean) <= reach else NOT_REPRODUCED


def judge_order(intervals: Sequence[Interval]) -> str:
    """The verdict on “A is better than B” by intervals of A less B."""
    if not intervals:
        return UNTESTED
    if all(low > 0 for low, _ in intervals):
        return REPRODUCED
    return NOT_REPRODUCED if all(high < 0 for _, high in intervals) else NOISE


def verdicts(claims: Claims, split: Split) -> Iterator[Verdict]:
    """Every claim about the split's data set and protocol."""
    found = {name: _matching(settings, split) for name, settings in claims.arms.items()}
    for name, figures in claims.figures.items():
        for figure, per_cent in figures.items():
            arms = [arm for arm in found[name] if arm.mean(figure) is not None]
            if not arms:
                yield Verdict(name, figure, per_cent / 100, None, {}, MISSING)
            for arm in arms:
                yield _figure(name, figure, per_cent / 100, arm, split.num_users)
    for one, other in claims.better:
        common = [f for f in claims.figures.get(one, {}) if f in claims.figures.get(other, {})]
        for figure in common:
            claimed = (claims.figures[one][figure] - claims.figures[other][figure]) / 100
            yield _order(f"{one} > {other}", figure, claimed, found[one], found[other], split)


def _matching(settings: Mapping[str, Any], split: Split) -> list[Contender]:
    """The split's arms that have all of these settings."""
    wanted = {key: value for key, value in settings.items() if key != "strategy"}
    return [
        of_arm(arm)
        for arm in split.arms
        if arm.strategy == settings.get("strategy", arm.strategy)
        and all(key in arm.settings and arm.settings[key] == v for key, v in wanted.items())
    ]


def _figure(name: str, figure: str, claimed: float, arm: Contender, num_users: int) -> Verdict:
    values = [metrics[figure] for metrics in arm.metrics.values()]
    interval = seed_interval(values)
    return Verdict(
        f"{name} ({arm.label})",
        figure,
        claimed,
        arm.mean(figure),
        {"seeds": interval} if interval else {},
        judge_figure(claimed, values, num_users),
    )


def _order(
    name: str,
    figure: str,
    claimed: float,
    ones: Sequence[Contender],
    others: Sequence[Contender],
    split: Split,
) -> Verdict:
    """The verdict on a pair; where several arms fit the claim there is no saying which."""
    if len(ones) != 1 or len(others) != 1:
        return Verdict(name, figure, claimed, None, {}, UNTESTED if ones and others else MISSING)
    difference = between(ones[0], others[0], figure, "claim", split)
    if difference is None:
        return Verdict(name, figure, claimed, None, {}, UNTESTED)
    intervals = intervals_of(difference)
    return Verdict(
        name, figure, claimed, difference.mean, intervals, judge_order(list(intervals.values()))
    )


def intervals_of(difference: Difference) -> dict[str, Interval]:
    """Those there are, by what they are over."""
    both = {"users": difference.over_users, "seeds": difference.over_seeds}
    return {name: interval for name, interval in both.items() if interval is not None}
