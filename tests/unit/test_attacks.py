"""What malicious users send, on numbers worked out by hand, and what a run says of it."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_run
import torch

from client_app.attacks.base import Attack, Round
from client_app.attacks.cluster import camouflaged, centres
from client_app.attacks.fedrecattack import clipped
from client_app.attacks.gaussian import Gaussian
from client_app.attacks.label_flip import flipped
from client_app.attacks.little_is_enough import hidden_step
from client_app.attacks.promotion import profile
from client_app.exposure import exposure_ratios
from client_app.runtime import Node
from conf.compose import compose
from conf.tree import Config, ConfigError, build_strategy
from models.types import Samples, Update
from server_app.poisoning import in_total


def samples(items: list[int], labels: list[int]) -> Samples:
    return Samples(np.array(items), np.array(labels, dtype=np.float32))


def scene(cfg: Config, node: Node) -> Round:
    def again(user: int, change: object) -> Update:
        raise AssertionError("not asked for")

    return Round(cfg, build_strategy(cfg), node.dataset, 1, tiny_run.shared(cfg), again)


def test_flipped_labels() -> None:
    found = flipped(samples([3, 5, 7], [1, 0, 0]))
    assert found.labels_S.tolist() == [0, 1, 1] and found.items_S.tolist() == [3, 5, 7]


def test_a_profile_has_targets_for_positives_and_never_as_negatives() -> None:
    honest = samples([1, 8, 9, 2, 30, 9, 3, 8, 7], [1, 0, 0] * 3)
    found = profile(honest, np.array([30, 31]), 0.5)
    # Two of three positives become 30 and 31; the negative 30 becomes the first of those replaced.
    assert found.items_S.tolist() == [30, 8, 9, 31, 1, 9, 3, 8, 7]
    assert found.labels_S.tolist() == honest.labels_S.tolist()
    assert honest.items_S[0] == 1


def test_a_little_is_the_mean_less_deviations() -> None:
    gradients = [{"a": torch.tensor([x, 2.0])} for x in (1.0, 3.0)]
    # Mean 2, standard deviation 1 in the first entry; 2 and 0 in the second.
    assert hidden_step(gradients, 1.5)["a"].tolist() == [0.5, 2.0]


def test_cluster_rows_point_away_from_their_centre_with_honest_lengths() -> None:
    rows_ID = torch.tensor([[0.0, 0], [2, 0], [7, 7]])
    labels_I = torch.tensor([0, 0, 1])
    assert centres(rows_ID, labels_I).tolist() == [[1, 0], [7, 7]]
    away = rows_ID - centres(rows_ID, labels_I)[labels_I]
    honest = torch.tensor([[0.0, 3], [0, 0], [5, 0]])
    found = camouflaged(away, honest, np.random.default_rng(0))
    # Honest lengths 3 and 5: mean 4, deviation 1, so lengths within 4 and 7; a centre stays.
    lengths_I = found.norm(dim=1)
    assert ((lengths_I[:2] >= 4) & (lengths_I[:2] <= 7)).all() and lengths_I[2] == 0
    assert found[0, 0] < 0 < found[1, 0]


def test_rows_are_clipped() -> None:
    found = clipped(torch.tensor([[3.0, 4], [0.3, 0.4], [0, 0]]), 1.0)
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0, 0]]))


@pytest.mark.parametrize("weighting", ["samples", "rows"])
def test_a_movement_and_its_gradient_are_inverse(tmp_path: Path, weighting: str) -> None:
    cfg = tiny_run.config(tmp_path, "strategy=fedavg", f"strategy.weighting={weighting}")
    here = scene(cfg, tiny_run.node(cfg))
    (name,) = here.strategy.model.item_tables
    table = torch.zeros_like(here.shared[name])
    table[3] = 6.0
    rows = {name: (table.any(1) * 2.0)} if weighting == "rows" else None
    sent = Update({name: table}, 3.0, rows)
    gradient = here.gradient_of(sent)
    # A movement: the gradient is its negative, over the user's weight or the row's.
    assert gradient[name][3, 0] == (-3 if weighting == "rows" else -2)
    back = here.update_of(gradient, sent)
    torch.testing.assert_close(back.tensors[name], table)
    if weighting == "rows":
        gradient[name][5] = 1.0  # not touched before: the usual weight, 2
        other = here.update_of(gradient, sent)
        assert other.row_weights is not None and other.row_weights[name][5] == 2
        assert other.tensors[name][5, 0] == -2


def test_noise_is_on_the_rows_of_the_honest_update_and_as_large_as_asked(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path, "model=mf", "model.factors=64", "attack=gaussian")
    here = scene(cfg, tiny_run.node(cfg))
    (name,) = here.strategy.model.item_tables
    table = torch.zeros_like(here.shared[name])
    table[:20] = 0.5
    found = Gaussian(scale=4.0).poisoned(Update({name: table}, 1.0), 3, here).tensors[name]
    assert found[:20].any(1).all() and not found[20:].any()
    # 1280 numbers: the standard deviation is known to 2 % (1 / sqrt(2 n)); five of these.
    assert float(found[:20].std()) == pytest.approx(2.0, rel=0.1)
    again = Gaussian(scale=4.0).poisoned(Update({name: table}, 1.0), 3, here).tensors[name]
    other = Gaussian(scale=4.0).poisoned(Update({name: table}, 1.0), 4, here).tensors[name]
    assert torch.equal(found, again) and not torch.equal(found, other)


def test_malicious_users_and_targets_are_seeded(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path, "attack=promotion", "attack.fraction=0.29")
    attack = cfg.attack
    assert isinstance(attack, Attack)
    chosen = attack.malicious(0, 100)
    assert len(chosen) == 29 and (np.diff(chosen) > 0).all()
    assert np.array_equal(chosen, attack.malicious(0, 100))
    assert not np.array_equal(chosen, attack.malicious(1, 100))
    assert len(attack.malicious(0, 2)) == 1
    dataset = tiny_run.node(cfg).dataset
    targets = replace(attack, num_targets=4).target_items(0, dataset)
    counts_I = dataset.item_counts(np.arange(dataset.num_users))
    assert counts_I[targets].max() <= np.sort(counts_I)[3]
    named = replace(attack, targets=(str(dataset.item_ids[7]), str(dataset.item_ids[2])))
    assert named.target_items(0, dataset).tolist() == [2, 7]


def test_attackers_know_no_honest_users_items(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path, "attack=promotion")
    here = scene(cfg, tiny_run.node(cfg))
    (bad,) = here.malicious_users
    assert len(here.items_of(int(bad)))
    honest = (int(bad) + 1) % tiny_run.NUM_USERS
    with pytest.raises(ValueError, match="attackers do not know its items"):
        here.items_of(honest)


def test_exposure_ratio_by_hand(tmp_path: Path) -> None:
    dataset = tiny_run.node(tiny_run.config(tmp_path)).dataset
    user = np.array([0])
    known = set(dataset.train_of(0)) | set(dataset.heldout_of(0))
    one, two, *rest = [i for i in range(dataset.num_items) if i not in known]
    scores = torch.zeros(1, dataset.num_items)
    scores[0, list(known)] = 9.0  # only the test item of these is a rival
    scores[0, rest[0]] = 3.0
    scores[0, one] = 2.0  # third place: behind the test item and a rival
    target = np.array([one, two, next(iter(known))])
    found = exposure_ratios(dataset, user, scores, target, (2, 3, 40))
    # Of the two that the user does not know; the other one is last, as it loses ties.
    assert found["attack/er@2"] == (0.0, 1)
    assert found["attack/er@3"] == (0.5, 1)
    assert found["attack/er@40"] == (1.0, 1)


def test_precision_and_recall() -> None:
    rounds = [
        {"poisoning": {"malicious": 3.0, "flagged": 4.0, "flagged_malicious": 2.0}},
        {"poisoning": {"malicious": 1.0, "flagged": 0.0, "flagged_malicious": 0.0}},
        {"seconds": {}},
    ]
    found = in_total(rounds)
    assert found["precision"] == 0.5 and found["recall"] == 0.5
    assert in_total([{"poisoning": {"malicious": 2.0}}]) == {"malicious": 2.0}
    assert in_total([{"poisoning": None}]) == {}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["attack=promotion", "strategy=gpfedrec"], "attacks change such: attack=none"),
        (["attack=gaussian", "strategy=fedease"], "attacks change such: attack=none"),
        (["attack=label_flip", "strategy.loss=bpr"], "flipped labels need strategy.loss=bce"),
        (["attack=promotion", "federation=deployment"], "an attack is for simulations"),
        (["attack=promotion", "evaluation.full=never"], "evaluation.full=each or selected"),
        (["attack=promotion", "attack.fraction=1.0"], "fraction must be above 0 and below 1"),
        (["attack.fraction=0.1"], "unknown key attack.fraction"),
        (["defence=median", "strategy=cofedrec"], "defence=none"),
        (["defence=krum", "defence.malicious=0.5"], "malicious must be above 0 and below 0.5"),
    ],
)
def test_refusals(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_defence_is_refused_where_the_server_sees_sums_only() -> None:
    @dataclasses.dataclass(frozen=True)
    class Block:
        sums_only: bool = True

    @dataclasses.dataclass(frozen=True)
    class Sums(type(compose().privacy)):  # type: ignore[misc]
        block: Block = dataclasses.field(default_factory=Block)

    from conf.checks import check

    config = replace(compose(["defence=median"]), privacy=Sums())
    with pytest.raises(ConfigError, match="the server sees sums only"):
        check(config)
