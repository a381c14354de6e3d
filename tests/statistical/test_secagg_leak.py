"""The leak meter on what the server sees of a node: chance behind masks, far above it without.

MovieLens-100K, twenty nodes with some ten users of each in the round; sought are items that any of
them has. What the server has of a masked upload is uniform, so an attack that names n of I items
where T are true hits a hypergeometric number of them, and F1 = 2 hits / (n + T) has a standard
deviation of 2 √(n T (I - T) (I - n) / (I² (I - 1))) / (n + T): below 0.03 here, and below 0.007 for
the mean of twenty. The band of 0.05 is seven of these. The area under the ROC curve of one upload
has √((I + 1) / (12 T (I - T))), below 0.02.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch

from conf.compose import compose
from experiments.audit.attacks import consensus, direction, magnitude, presence
from experiments.audit.scores import Score, score
from experiments.audit.sources import Source, facts_of, opened, recorded, true_items
from experiments.audit.upload import Upload
from server_app.grid import LocalGrid
from server_app.run import run_server
from server_app.secagg_journal import seen_by_server
from strategies.secagg.fixed_point import FixedPoint

NODES, BAND = 20, 0.05
ATTACKS = {
    "presence": presence, "magnitude": magnitude, "direction": direction, "consensus": consensus,
}  # fmt: skip


def words(folder: Path, name: str, *more: str) -> list[str]:
    return [
        "strategy=fedrecgel", "model=mf", "model.factors=8", f"output={folder}", f"name={name}",
        "federation.grid=local", f"federation.num_nodes={NODES}", "federation.rounds=1",
        "federation.fraction=0.25", "protocol.select=last", "evaluation.full=never",
        "evaluation.users=20", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Score]]:
    """By what is looked at and attack: a score a node."""
    folder = tmp_path_factory.mktemp("leak")
    plain = compose(words(folder, "plain", "evaluation.record_uplinks=[1]"))
    run = opened(run_server(LocalGrid(NODES), plain).folder)
    clear = list(recorded(run, NODES))
    masked = compose(words(folder, "masked", "privacy=secagg", "privacy.secagg.keep_uploads=true"))
    run_server(LocalGrid(NODES), masked)
    settings = masked.privacy.secagg
    assert settings is not None
    number = FixedPoint(settings.modulus_bits, settings.fraction_bits, settings.limit)
    seen = seen_by_server(folder / "masked", "train/1", number)
    assert len(seen) == len(clear) == NODES
    hidden = [
        behind_masks(source, payload.tensors)
        for source, (_, payload) in zip(clear, sorted(seen.items()), strict=True)
    ]
    facts = facts_of(run)
    return {
        (kind, name): [
            score(attack(source.upload, facts), true_items(run, source.users_U).numpy())
            for source in sources
        ]
        for kind, sources in (("clear", clear), ("masked", hidden))
        for name, attack in ATTACKS.items()
    }


def behind_masks(clear: Source, seen: dict[str, np.ndarray]) -> Source:  # type: ignore[type-arg]
    """The same node's upload as its server saw it."""
    tensors = {
        name.removeprefix("update/"): torch.from_numpy(values)
        for name, values in seen.items()
        if name.startswith("update/")
    }
    before, number = clear.upload.shared_before, clear.upload.num_users
    assert number >= 5
    assert tensors.keys() == clear.upload.tensors.keys()
    return Source(Upload(tensors, number, 1, before), clear.users_U, replayed=False)


@pytest.mark.parametrize("attack", ATTACKS)
def test_behind_masks_attacks_are_at_chance(
    scores: dict[tuple[str, str], list[Score]], attack: str
) -> None:
    found = scores["masked", attack]
    assert abs(fmean(s.f1 - s.chance_named for s in found)) <= BAND
    assert abs(fmean(s.auc for s in found) - 0.5) <= BAND


def test_in_the_clear_they_are_not(scores: dict[tuple[str, str], list[Score]]) -> None:
    """So that being at chance says something."""
    found = scores["clear", "direction"]
    assert fmean(s.f1 - s.chance for s in found) > 3 * BAND
    assert fmean(s.auc for s in found) - 0.5 > 3 * BAND
