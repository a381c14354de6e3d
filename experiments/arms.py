"""Runs as arms, which differ in the seed alone, and arms as splits, which can be compared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.collect import Collection, Reference, Run, split_part
from experiments.options import with_options
from experiments.tuning import Choice, Tuning, chosen
from server_app.run_folder import FREE

MEANINGLESS = frozenset(FREE) - {"federation.rounds"} | {
    "seed",
    "name",
    "strategy_name",
    "model_name",
    "evaluation.cutoffs",
    "evaluation.full",
    "evaluation.item_statistics",
    "evaluation.user_ranks",
    "evaluation.item_drift",
}
"""Settings that two runs of an arm may differ in: they decide nothing that is compared."""
THERE = ["there"]
"""No setting has this value."""
DIGITS = 12
"""Of a digest that is part of a split's name."""
MEANINGLESS_SECTIONS = ("engine.", "tracking.")


@dataclass(frozen=True)
class Arm:
    """Runs of the same settings, one a seed, in the order of their seeds."""

    label: str
    runs: tuple[Run, ...]
    choice: Choice | None = None
    """How the settings were chosen, where several were tried."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """By dotted key."""
        return self.runs[0].settings

    @property
    def strategy(self) -> str:
        """Its name in ``conf/strategy``."""
        return self.runs[0].result.strategy


@dataclass(frozen=True)
class Split:
    """Arms on the same held-out items, ranked in the same way."""

    name: str
    """Data set, protocol, and how it differs from splits of the same data set and protocol."""
    dataset: str
    protocol: str
    num_users: int
    num_items: int
    settings: Mapping[str, Any]
    """Of data and protocol."""
    arms: tuple[Arm, ...]
    references: Mapping[str, tuple[Reference, ...]]
    """By method, in the order of seeds."""

    @property
    def slug(self) -> str:
        """The name as part of a file's name."""
        return re.sub(r"[^A-Za-z0-9_.=]+", "-", self.name.replace(", protocol ", "-")).strip("-")


def splits_of(collection: Collection, tuning: Tuning, left_out: dict[str, str]) -> list[Split]:
    """The collection's splits by name; notes in ``left_out`` which runs are in none of them.

    Raises:
        ConfigError: when a choice is to be made on validation and there is none.

    """
    by_size = dict[str, list[Run]]()
    for run in collection.runs:
        by_size.setdefault(_text(_split_settings(run)), []).append(run)
    groups = [runs for same in by_size.values() for runs in _by_data(same)]
    keys = [_split_settings(runs[0]) | _data(runs) for runs in groups]
    names = _split_names(keys)
    splits = [
        _split(name, key, runs, collection.references, tuning, left_out)
        for name, key, runs in zip(names, keys, groups, strict=True)
    ]
    return sorted((split for split in splits if split.arms), key=lambda split: split.name)


def labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """What sets each apart: ``key=value`` of settings with several values, keys cut short.

    A key is cut to its last part where no other differing key ends in the same. A section that is
    none for some stands there by its name for the others.
    """
    settings = _marked(settings)
    keys = sorted({key for each in settings for key in each if not key.endswith("_target_")})
    differing = [key for key in keys if _differs(key, settings)]
    ends = [key.rpartition(".")[2] for key in differing]
    short = {
        key: end if ends.count(end) == 1 else key for key, end in zip(differing, ends, strict=True)
    }
    return [
        " ".join(_word(short[key], each[key]) for key in differing if key in each)
        for each in settings
    ]


def _marked(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """With a mark at each section that others have set to none."""
    inner = {key for each in settings for key in each if "." in key}
    sections = {
        key
        for each in settings
        for key, value in each.items()
        if value is None and any(other.startswith(f"{key}.") for other in inner)
    }
    return [
        {key: value for key, value in each.items() if key not in sections}
        | {s: THERE for s in sections if any(key.startswith(f"{s}.") for key in each)}
        for each in settings
    ]


def _differs(key: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    values = {_text(each[key]) for each in settings if key in each}
    return len(values) > 1 or (values == {_text(THERE)} and any(key not in s for s in settings))


def _word(key: str, value: object) -> str:
    return key if value == THERE else f"{key}={told(value)}"


def told(value: object) -> str:
    """A setting's value as it is written on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def _split_settings(run: Run) -> dict[str, Any]:
    return split_part(run.settings) | {
        "evaluation.users": run.settings.get("evaluation.users"),
        "users": run.result.num_users,
        "items": run.result.num_items,
        "selected_on_test": run.result.select == "best_test",
    }


def _by_data(runs: Sequence[Run]) -> list[list[Run]]:
    """Apart where several data files are known to be behind them, those of unknown data too."""
    groups = dict[str | None, list[Run]]()
    for run in runs:
        groups.setdefault(run.data, []).append(run)
    return list(groups.values()) if len(groups.keys() - {None}) > 1 else [list(runs)]


def _data(runs: Iterable[Run]) -> dict[str, Any]:
    """The start of the data file's digest: enough to tell files apart."""
    return {"data": next((run.data[:DIGITS] for run in runs if run.data), None)}


def _split_names(keys: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [f"{key['dataset.name']}, protocol {key['protocol.name']}" for key in keys]
    told_apart = list(names)
    for name in set(names):
        places = [place for place, other in enumerate(names) if other == name]
        for place, label in zip(places, labels([keys[p] for p in places]), strict=True):
            told_apart[place] = f"{name} {label}".strip()
    return told_apart


def _arm_settings(run: Run, tuned: Iterable[str]) -> dict[str, Any]:
    return {
        key: value
        for key, value in run.settings.items()
        if key not in MEANINGLESS | set(tuned)
        and (key == "protocol.select" or not key.startswith(("dataset.", "protocol.")))
        and not key.startswith(MEANINGLESS_SECTIONS)
    } | {"strategy": run.result.strategy, "model": run.result.model}


def _split(
    name: str,
    key: Mapping[str, Any],
    runs: Sequence[Run],
    references: Iterable[Reference],
    tuning: Tuning,
    left_out: dict[str, str],
) -> Split:
    arms = list[Arm]()
    for of_arm in _grouped(runs, tuning.keys).values():
        tried = [_one_a_seed(of, left_out) for of in _grouped(of_arm, ()).values()]
        choice = chosen(tried, tuning, name, left_out)
        if choice.runs:
            arms.append(Arm("", choice.runs, choice if tuning.keys else None))
    size = (key["users"], key["items"])
    by_method = dict[str, tuple[Reference, ...]]()
    for reference in sorted(references, key=lambda r: (r.row.method, r.row.seed)):
        row = reference.row
        there = (row.dataset, row.protocol) == (key["dataset.name"], key["protocol.name"])
        if there and (row.num_users, row.num_items) == size and _fits(reference, key):
            by_method[row.method] = (*by_method.get(row.method, ()), reference)
    return Split(
        name, key["dataset.name"], key["protocol.name"], *size, key,
        tuple(sorted(_labelled(arms, tuning.keys), key=lambda arm: arm.label)), by_method,
    )  # fmt: skip


def _fits(reference: Reference, key: Mapping[str, Any]) -> bool:
    """Whether the reference has nothing that says it is of another split."""
    of = split_part(reference.made_of)
    data = (of.pop("data", None) or "")[:DIGITS]
    same_data = not data or key["data"] in {None, data}
    return same_data and all(key.get(name, value) == value for name, value in of.items())


def _grouped(runs: Iterable[Run], tuned: Iterable[str]) -> dict[str, list[Run]]:
    groups = dict[str, list[Run]]()
    for run in runs:
        groups.setdefault(_text(_arm_settings(run, tuned)), []).append(run)
    return groups


def _one_a_seed(runs: Iterable[Run], left_out: dict[str, str]) -> tuple[Run, ...]:
    """The runs in the order of seeds, of a seed that occurs twice the first alone."""
    kept = dict[int, Run]()
    for run in sorted(runs, key=lambda run: (run.seed, run.result.name)):
        first = kept.setdefault(run.seed, run)
        if first is not run:
            one, other = (each.result.name for each in (run, first))
            if one == other:
                one, other = (_in_its_sweep(each) for each in (run, first))
            left_out[one] = f"same settings and seed as {other}"
    return tuple(kept.values())


def _in_its_sweep(run: Run) -> str:
    return f"{run.result.folder.parent.name}/{run.result.name}"


def _labelled(arms: Sequence[Arm], tuned: Iterable[str]) -> list[Arm]:
    """Strategy, model where the strategy has several here, and what sets the arm apart."""
    models = dict[str, set[str]]()
    for arm in arms:
        models.setdefault(arm.strategy, set()).add(arm.runs[0].result.model)
    groups = dict[tuple[str, str], list[Arm]]()
    for arm in arms:
        groups.setdefault((arm.strategy, arm.runs[0].result.model), []).append(arm)
    named = list[Arm]()
    for (strategy, model), of in groups.items():
        base = f"{strategy} model={model}" if len(models[strategy]) > 1 else strategy
        apart = labels([with_options(_arm_settings(arm.runs[0], tuned)) for arm in of])
        named += [
            replace(arm, label=f"{base} {text}".strip())
            for arm, text in zip(of, apart, strict=True)
        ]
    return named


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
