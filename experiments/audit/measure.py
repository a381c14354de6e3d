"""Every attack on every size of sums, and the means that are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain

import numpy as np

from conf.build import ConfigError
from experiments.audit.attacks import ATTACKS, Attack, top
from experiments.audit.imia import Imia
from experiments.audit.scores import Score, score
from experiments.audit.sources import (
    Source,
    draw_groups,
    facts_of,
    hindrance,
    recorded,
    replayed,
    true_items,
)
from experiments.audit.upload import Facts, Floats, Guess, NotApplicableError, Upload
from server_app.cli_finished import FinishedRun

NAMES = (*ATTACKS, "imia", "popularity")
_Key = tuple[bool, int, int, str, str]
"""Replayed or seen, users a replayed sum, round, attack, target."""
UNION, ONE = "items of any", "items of one"
"""Targets: what any user of the sum interacted with, and what its first user did."""


@dataclass(frozen=True)
class Finding:
    """Means over uploads of one attack on sums of one size."""

    attack: str
    users: int
    """In a sum; of recorded ones the most."""
    users_least: int
    target: str
    uploads: int
    replayed: bool
    round: int
    f1: float
    f1_error: float
    """Standard error over uploads; 0 of one."""
    precision: float
    recall: float
    auc: float
    chance: float
    """Expected F1 of naming as many items as are true at random among the attack's candidates."""
    chance_named: float
    """The same of as many of the catalogue as the attack names."""
    all_items: float
    """F1 of naming all items."""

    def as_json(self) -> dict[str, object]:
        """For audit.json."""
        return asdict(self)


@dataclass(frozen=True)
class Measured:
    """What was found, and by attack why it could not be made."""

    findings: list[Finding]
    not_applicable: dict[str, str]
    not_replayed: str | None = None
    """Why training could not be made again."""


def attacks_of(run: FinishedRun, names: Sequence[str], seed: int) -> dict[str, Attack]:
    """The named attacks; ``popularity`` looks at no upload, and is what everybody knows."""
    everybody = np.arange(run.dataset.num_users)
    counts_I = run.dataset.item_counts(everybody).astype(np.float64)

    def popularity(upload: Upload, facts: Facts) -> Guess:
        return Guess(counts_I, top(counts_I, facts.items_per_user * upload.num_users))

    imia = Imia(run.strategy.model, run.strategy.training_loss, seed)
    every: Mapping[str, Attack] = {**ATTACKS, "imia": imia, "popularity": popularity}
    return {name: every[name] for name in names}


def sources(
    run: FinishedRun, sizes: Sequence[int], uploads: int, seed: int
) -> tuple[int, Iterator[Source]]:
    """How many uploads are judged, and these: recorded ones, then replayed groups of each size.

    Where the server sees each user's upload, sizes beyond 1 mean nothing and are left out.

    Raises:
        ConfigError: when there are neither recorded uploads nor what replays need.

    """
    single, why = run.strategy.needs_individual_updates, hindrance(run)
    seen = list(recorded(run, uploads))
    if why is not None and not seen:
        raise ConfigError(
            f"{run.folder.name}: there is nothing to audit: it recorded no uploads "
            f"(evaluation.record_uplinks=[1]), and training cannot be made again: {why}"
        )
    groups = [
        group
        for size in sizes
        if why is None and (size == 1 or not single)
        for group in draw_groups(run, size, uploads, seed)
    ]
    return len(seen) + len(groups), chain(seen, (replayed(run, group) for group in groups))


def measure(
    run: FinishedRun,
    found: Iterable[Source],
    attacks: Mapping[str, Attack],
    done: Callable[[], None] = lambda: None,
) -> Measured:
    """Judge the attacks on all uploads; sums of no users, or of users without items, are none."""
    facts, reasons = facts_of(run), dict[str, str]()
    scores: dict[_Key, list[tuple[int, Score]]] = {}
    for source in found:
        targets = {UNION: true_items(run, source.users_U).numpy()}
        if len(source.users_U) > 1:
            targets[ONE] = true_items(run, source.users_U[:1]).numpy()
        for name, attack in attacks.items():
            if name in reasons:
                continue
            try:
                guess = attack(source.upload, facts)
            except NotApplicableError as error:
                reasons[name] = str(error)
                continue
            for target, true_I in targets.items():
                users, number = len(source.users_U), source.upload.round
                # Nodes' sums of a recorded round are of about as many users each.
                key = (source.replayed, users if source.replayed else 0, number, name, target)
                scores.setdefault(key, []).append((users, score(guess, true_I)))
        done()
    return Measured([_mean(key, part) for key, part in scores.items()], reasons, hindrance(run))


def features(source: Source, facts: Facts) -> Floats:
    """What attributes are inferred from: scores of all attacks without training (I,) each."""
    parts = []
    for attack in (ATTACKS["magnitude"], ATTACKS["direction"]):
        try:
            parts.append(attack(source.upload, facts).scores_I)
        except NotApplicableError:
            continue
    if not parts:
        return np.zeros(0)
    return np.concatenate([p / max(float(np.abs(p).max()), 1e-300) for p in parts])


def _mean(key: _Key, judged: Sequence[tuple[int, Score]]) -> Finding:
    again, _, number, attack, target = key
    sizes, scores = [size for size, _ in judged], [one for _, one in judged]
    means = {
        name: float(np.mean([getattr(one, name) for one in scores])) for name in asdict(scores[0])
    }
    f1s = [one.f1 for one in scores]
    error = float(np.std(f1s, ddof=1) / np.sqrt(len(f1s))) if len(f1s) > 1 else 0.0
    return Finding(
        attack=attack,
        users=max(sizes),
        users_least=min(sizes),
        target=target,
        uploads=len(scores),
        replayed=again,
        round=number,
        f1_error=error,
        **means,
    )
