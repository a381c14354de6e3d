"""Rules against poisoned updates, on numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from torch import Tensor

from conf.compose import compose
from conf.tree import build_strategy
from models.types import SumOfUpdates, Tensors, Update
from server_app.defences.base import dense_coordinate_wise, gram, norms
from server_app.defences.krum import Krum, krum_scores
from server_app.defences.median import Median, median
from server_app.defences.multikrum import MultiKrum
from server_app.defences.norm_bound import NormBound
from server_app.defences.trimmed_mean import TrimmedMean
from server_app.defences.union import Union, has_two_groups, scaled, smaller_group
from strategies.base import RecStrategy
from strategies.by_user import UserUpdates, joined, of_users
from strategies.by_user_records import decode_user_updates, encode_user_updates
from strategies.codec import WireError
from strategies.defence import Scene

SHARED = {"items": torch.zeros(4, 1), "bias": torch.zeros(2)}


def strategy(*overrides: str) -> RecStrategy:
    made: RecStrategy = build_strategy(compose(["model=mf", *overrides]))
    return made


def scene(shared: Tensors = SHARED) -> Scene:
    return Scene(strategy(), shared, {}, 1)


def update(rows: Mapping[int, float], bias: Sequence[float] = (0, 0), weight: float = 1) -> Update:
    items = torch.zeros(4, 1)
    for row, value in rows.items():
        items[row] = value
    return Update({"items": items, "bias": torch.tensor(bias, dtype=torch.float32)}, weight)


def users(*updates: Update) -> UserUpdates:
    return of_users(np.arange(len(updates)), updates, ["items"])


def column(update: Update) -> list[float]:
    return [round(float(x), 5) for x in update.tensors["items"][:, 0]]


def test_median_of_a_row_is_over_those_who_touched_it() -> None:
    sent = users(update({0: 1, 1: 4}), update({0: 2}), update({0: 30, 3: 1}), update({3: 3}))
    found = Median().combined(sent, scene()).update
    # Row 0: median of 1, 2, 30, three users: 6. Row 1: 4, one. Row 3: (1 + 3) / 2, two: 4.
    assert column(found) == [6, 4, 0, 4]
    assert found.weight == 4
    # Over all four users with zeros: row 0 has (1 + 2) / 2 times four, the others nothing.
    assert column(dense_coordinate_wise(sent, scene(), median)) == [6, 0, 0, 2]


def test_median_counts_weights() -> None:
    sent = users(update({0: 6}, weight=2), update({0: 9}, weight=1), update({0: 8}, weight=2))
    # Means 3, 9, 4: the median 4 times the weights 5.
    assert column(Median().combined(sent, scene()).update) == [20, 0, 0, 0]


def test_rows_with_weights_of_their_own() -> None:
    one, two = update({0: 6}), update({0: 1, 1: 5})
    rows = ({"items": torch.tensor([3.0, 0, 0, 0])}, {"items": torch.tensor([1.0, 1, 0, 0])})
    sent = users(
        Update(one.tensors, 1.0, rows[0]),
        Update(two.tensors, 1.0, rows[1]),
    )
    found = Median().combined(sent, scene()).update
    # Row 0: means 2 and 1 over weights 3 and 1: 1.5 times 4.
    assert column(found) == [6, 5, 0, 0]
    assert found.row_weights is not None
    assert found.row_weights["items"].tolist() == [4, 1, 0, 0]
    assert found.mean()["items"][:2, 0].tolist() == [1.5, 5]


def test_trimmed_mean() -> None:
    sent = users(*(update({0: x}, (x, 0)) for x in (0, 1, 2, 100)), update({2: 7}))
    found = TrimmedMean(malicious=0.2).combined(sent, scene()).update
    # Row 0: four values, one at either end goes: 1.5 times four. Row 2: nothing to trim.
    assert column(found) == [6, 0, 7, 0]
    # The bias: 0, 0, 1, 2, 100 without one at either end: a mean of 1 times five.
    assert found.tensors["bias"].tolist() == [5, 0]


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(malicious=0.2)])
def test_where_all_agree_it_is_the_plain_sum(rule: Median | TrimmedMean) -> None:
    sent = [update({0: 2, 1: 3}, (1, 4), weight=1), update({0: 2}, (1, 4)), update({0: 2}, (1, 4))]
    plain = SumOfUpdates(SHARED)
    for each in sent:
        plain.add(each)
    found = rule.combined(users(*sent), scene()).update
    for name, tensor in plain.result().tensors.items():
        assert torch.equal(found.tensors[name], tensor)


def step(table: Tensor, found: Update) -> Tensor:
    return table + found.mean()["items"]


def test_the_long_tail_keeps_moving_by_rows_and_freezes_by_coordinates() -> None:
    """Row 3 is touched by two of ten users, row 0 by all; every update is 1."""
    sent = users(*(update({0: 1, 3: 1} if user < 2 else {0: 1}) for user in range(10)))
    ours = naive = torch.zeros(4, 1)
    for _ in range(5):
        ours = step(ours, Median().combined(sent, scene()).update)
        naive = step(naive, dense_coordinate_wise(sent, scene(), median))
    # As the plain mean would: 5 · 10/10 and 5 · 2/10.
    assert ours[:, 0].tolist() == pytest.approx([5, 0, 0, 1])
    assert naive[:, 0].tolist() == pytest.approx([5, 0, 0, 0])


def test_a_row_that_only_attackers_touch_is_theirs() -> None:
    """The price: nobody honest is there to outvote them."""
    sent = users(*(update({0: 1, 2: 50} if user < 2 else {0: 1}) for user in range(10)))
    assert column(Median().combined(sent, scene()).update) == [10, 0, 100, 0]


def test_norm_bound_shortens_and_flags() -> None:
    sent = users(update({0: 3}, (4, 0)), update({1: 0.3}, (0, 0.4)), update({0: 1}, weight=2))
    assert norms(sent).tolist() == pytest.approx([5, 0.5, 0.5])
    found = NormBound(norm=1.0).combined(sent, scene())
    assert column(found.update) == [1.6, 0.3, 0, 0]
    assert found.update.tensors["bias"].tolist() == pytest.approx([0.8, 0.4])
    assert found.flagged_U is not None and found.flagged_U.tolist() == [0]
    median_bound = NormBound().combined(sent, scene())
    assert median_bound.figures == {"bound": pytest.approx(0.5)}


def test_gram_is_that_of_the_dense_updates() -> None:
    rng = np.random.default_rng(0)
    parts = [
        update(
            {int(r): float(rng.normal()) for r in rng.choice(4, 2, replace=False)},
            rng.normal(size=2).tolist(),
            weight=w,
        )
        for w in (1, 2, 5)
    ]
    dense = np.array(
        [np.concatenate([(t / p.weight).flatten() for t in p.tensors.values()]) for p in parts]
    )
    assert gram(users(*parts), scene()) == pytest.approx(dense.astype(float) @ dense.T, abs=1e-6)


def test_krum_scores_by_hand() -> None:
    points = np.array([0.0, 1.0, 3.0, 10.0, 11.0])
    # Five points, one malicious: sums of the two least squared distances.
    # 0: 1 + 9; 1: 1 + 4; 3: 4 + 9; 10: 1 + 49; 11: 1 + 64.
    assert krum_scores(np.outer(points, points), 1).tolist() == [10, 5, 13, 50, 65]


def test_krum_keeps_one_and_multikrum_all_but_the_expected() -> None:
    sent = users(*(update({0: x}) for x in (0.5, 1.0, 3.0, 10.0, 11.0)))
    one = Krum(malicious=0.2).combined(sent, scene())
    assert column(one.update) == [1, 0, 0, 0] and one.update.weight == 1
    assert one.flagged_U is not None and one.flagged_U.tolist() == [0, 2, 3, 4]
    most = MultiKrum(malicious=0.2).combined(sent, scene())
    assert most.flagged_U is not None and most.flagged_U.tolist() == [4]
    assert column(most.update) == [14.5, 0, 0, 0]


def test_krum_needs_neighbours() -> None:
    with pytest.raises(ValueError, match=r"needs 4 updates or more a round, got 3"):
        Krum().combined(users(*[update({0: 1})] * 3), scene())


def test_gap_statistic_and_groups() -> None:
    rng = np.random.default_rng(0)
    apart = np.array([0.0, 0.01, 0.02, 0.03, 0.02, 0.01, 0.99, 1.0])
    assert has_two_groups(apart, 50, rng)
    assert smaller_group(apart).tolist() == [False] * 6 + [True] * 2
    assert not has_two_groups(np.linspace(0, 1, 8), 50, rng)
    assert not smaller_group(np.zeros(3)).any()
    assert scaled(np.array([3.0, 5.0, 4.0])).tolist() == [0, 1, 0.5]
    assert scaled(np.ones(2)).tolist() == [0, 0]


def test_union_leaves_out_the_update_that_draws_items_together() -> None:
    made = strategy("strategy.server_optimiser=sgd", "strategy.server_lr=1.0")
    (name,) = made.model.item_tables
    rng = np.random.default_rng(0)
    shared = {name: torch.from_numpy(rng.normal(size=(30, 4)).astype(np.float32))}
    honest = [0.01 * torch.from_numpy(rng.normal(size=(30, 4))).float() for _ in range(9)]
    sent = [Update({name: table}, 1.0) for table in honest]
    sent.append(Update({name: 0.5 * shared[name]}, 1.0))
    updates = of_users(np.arange(10), sent, [name])
    found = Union(malicious=0.1).combined(updates, Scene(made, shared, {}, 1))
    assert found.flagged_U is not None and found.flagged_U.tolist() == [9]
    total = sum(honest[1:], honest[0])
    torch.testing.assert_close(found.update.tensors[name], total)


# ---- updates of single users in messages ----------------------------------------------------
def sent_over(updates: UserUpdates) -> UserUpdates:
    return decode_user_updates(RecordDict(dict(encode_user_updates(updates))), SHARED)


def test_updates_survive_a_message_and_the_order_of_nodes() -> None:
    parts = [update({0: 1, 3: 2}, (1, 2)), update({}), update({1: 5}, (0, 1), weight=3)]
    whole = of_users(np.array([2, 5, 7]), parts, ["items"])
    pieces = [
        of_users(np.array([u]), [p], ["items"]) for u, p in zip((2, 5, 7), parts, strict=True)
    ]
    found = joined([sent_over(pieces[2]), sent_over(pieces[0]), sent_over(pieces[1])])
    assert found.users_U.tolist() == [2, 5, 7]
    for place, part in enumerate(parts):
        for name in SHARED:
            assert torch.equal(found.of(place, SHARED).tensors[name], part.tensors[name])
            assert torch.equal(whole.of(place, SHARED).tensors[name], part.tensors[name])
    assert found.weights_U.tolist() == [1, 1, 3]
    with pytest.raises(ValueError, match="there twice"):
        joined([pieces[0], pieces[0]])


def test_malformed_updates_are_refused() -> None:
    good = encode_user_updates(users(update({0: 1, 3: 2}), update({1: 1})))
    arrays = good["user-updates"]
    for change, message in (
        ({"items#index": np.array([3, 0, 1])}, "must ascend within each user"),
        ({"items#index": np.array([0, 4, 1])}, "must lie within 0..3"),
        ({"items#lengths": np.array([2, 2])}, "do not fit its rows"),
        ({"#weights": np.array([1.0, 0.0])}, "must be positive"),
        ({"items#rows": np.array([[1], [np.nan], [1]], dtype=np.float32)}, "NaN or infinite"),
        ({"bias": np.zeros((2, 3), dtype=np.float32)}, "expected"),
        ({"more": np.zeros(2)}, "unknown tensor"),
    ):
        from flwr.app import Array, ArrayRecord

        changed = ArrayRecord({**arrays, **{n: Array(v) for n, v in change.items()}})  # type: ignore[arg-type]
        with pytest.raises(WireError, match=message):
            decode_user_updates(RecordDict({**good, "user-updates": changed}), SHARED)
