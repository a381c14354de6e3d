"""Fixed-point numbers, masks and keys, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from hypothesis import given
from hypothesis import strategies as st

from strategies.codec import WireError
from strategies.secagg.crypto import (
    SecAggError,
    agreed,
    commitment,
    mask,
    new_seed,
    public_key,
    seal,
    unseal,
)
from strategies.secagg.fixed_point import FIGURES, FixedPoint, RangeError
from strategies.secagg.payload import Payload, Vectors, decoded, encoded, layout_of
from strategies.secagg.protocol import (
    PublicKeys,
    Scope,
    check_roster,
    self_mask,
    threshold_of,
    with_pair_masks,
)

QUARTERS = FixedPoint(bits=32, fraction_bits=2, limit=8.0)
"""Steps of 0.25, off by at most 0.125; 2^31 - 1 whole steps."""


# ---- numbers -----------------------------------------------------------------------------
def test_numbers_by_hand() -> None:
    """0.3 is 1.2 steps, hence 1; -0.4 is -1.6, hence -2, which modulo 2^32 is 4,294,967,294."""
    words = QUARTERS.encode([0.3, -0.4, 8.0], 1, "x")
    assert words.tolist() == [1, 4_294_967_294, 32]
    assert QUARTERS.decode(words).tolist() == [0.25, -0.5, 8.0]
    assert QUARTERS.error_bound(3) == 0.375


def test_the_most_users_by_hand() -> None:
    """(2^31 - 1 - 3 nodes) / 32 steps a user is 67,108,863.875."""
    assert QUARTERS.most_users(3) == 67_108_863
    # 65,536 · 2^32 = 2^48 a user, and 2^63 / 2^48 = 32,768 would wrap around.
    assert FIGURES.most_users(3) == 32_767


@given(
    st.integers(3, 6),
    st.integers(8, 20),
    st.floats(0.01, 1000.0),
    st.data(),
)
def test_a_sum_of_the_most_users_does_not_wrap(
    nodes: int, fraction_bits: int, limit: float, data: st.DataObject
) -> None:
    """Every node at the limit, with all the users there may be: the sum is still the true one."""
    number = FixedPoint(32, fraction_bits, limit)
    users = number.most_users(nodes)
    if users < nodes:
        return
    sign = data.draw(st.sampled_from([-1.0, 1.0]))
    shares = [users // nodes + (n < users % nodes) for n in range(nodes)]
    words = [number.encode([sign * limit * share], share, "x") for share in shares]
    total = number.decode(np.sum(words, axis=0, dtype=np.uint32))
    assert abs(total[0] - sign * limit * users) <= number.error_bound(nodes) * (1 + 1e-9)


@given(st.lists(st.lists(st.floats(-8, 8), min_size=3, max_size=3), min_size=1, max_size=9))
def test_a_sum_is_within_half_a_step_a_node(rows: list[list[float]]) -> None:
    words = np.sum([QUARTERS.encode(row, 1, "x") for row in rows], axis=0, dtype=np.uint32)
    exact = np.sum(rows, axis=0)
    assert (np.abs(QUARTERS.decode(words) - exact) <= QUARTERS.error_bound(len(rows)) + 1e-12).all()


@pytest.mark.parametrize("value", [8.01, -8.01, np.nan, np.inf])
def test_what_is_beyond_the_limit_is_refused_without_its_value(value: float) -> None:
    with pytest.raises(
        RangeError, match=r"an entry of 'update/x' is not within ±8 a user"
    ) as error:
        QUARTERS.encode([0.0, value], 1, "update/x")
    assert str(value) not in str(error.value)


def test_a_node_with_more_users_may_send_more() -> None:
    assert QUARTERS.encode([16.0], 2, "x").tolist() == [64]


# ---- layout ------------------------------------------------------------------------------
def payload() -> Payload:
    return Payload(
        {"b": np.array([[1.0, 2.0], [3.0, 4.0]]), "a": np.array([5.0])}, {"n": np.array(7.0)}
    )


def test_a_payload_comes_back() -> None:
    vectors, layout = encoded(payload(), QUARTERS, 1), layout_of(payload())
    assert layout == '[[["a", [1]], ["b", [2, 2]]], [["n", []]]]'
    again = decoded(vectors, layout, QUARTERS)
    assert again.tensors["b"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert again.figures["n"] == 7.0


@pytest.mark.parametrize(
    "layout",
    ["", "[]", "[[], [], []]", '[[["a", [2]]], []]', '[[["a", [-1]]], []]', '[[["a"]], []]'],
)
def test_a_layout_that_does_not_fit_is_refused(layout: str) -> None:
    with pytest.raises(WireError):
        decoded(encoded(payload(), QUARTERS, 1), layout, QUARTERS)


# ---- keys --------------------------------------------------------------------------------
def test_two_nodes_agree_on_a_key_for_each_use() -> None:
    one, two = new_seed(), new_seed()
    shared = agreed(one, public_key(two), "a")
    assert shared == agreed(two, public_key(one), "a")
    assert shared != agreed(one, public_key(two), "b")
    assert len({one, two, shared}) == 3


@pytest.mark.parametrize("point", [bytes(32), (1).to_bytes(32, "little"), b"short"])
def test_a_public_key_of_low_order_is_refused(point: bytes) -> None:
    """Of such a key the agreed secret would be zero, whatever the private one."""
    with pytest.raises(SecAggError, match="a public key cannot be used"):
        agreed(new_seed(), point, "a")


@pytest.mark.parametrize("place", [0, 11, 12, 40, -1])
def test_a_changed_sealed_share_does_not_open(place: int) -> None:
    sealed = bytearray(seal(b"k" * 32, b"a share of a secret, and more", "from 0 to 1"))
    assert unseal(b"k" * 32, bytes(sealed), "from 0 to 1") == b"a share of a secret, and more"
    sealed[place] ^= 1
    with pytest.raises(SecAggError, match="changed on its way"):
        unseal(b"k" * 32, bytes(sealed), "from 0 to 1")


def test_a_sealed_share_is_for_one_use() -> None:
    sealed = seal(b"k" * 32, b"a share", "from 0 to 1")
    for key, use in ((b"k" * 32, "from 0 to 2"), (b"l" * 32, "from 0 to 1")):
        with pytest.raises(SecAggError):
            unseal(key, sealed, use)
    with pytest.raises(SecAggError):
        unseal(b"k" * 32, b"", "from 0 to 1")


def test_uses_do_not_run_into_one_another() -> None:
    assert Scope("r", "a", "b|c").use() != Scope("r", "a|b", "c").use()
    assert Scope("r", "a", "b").use("c", "d") != Scope("r", "a", "b").use("cd")


def test_the_threshold_recovers_a_secret_and_one_share_less_does_not() -> None:
    secret = new_seed()
    shares = create_shares(secret, 3, 5)
    assert combine_shares([shares[4], shares[0], shares[2]]) == secret
    try:
        wrong = bytes(combine_shares(shares[:2]))
    except ValueError:
        return
    assert commitment(wrong) != commitment(secret)


# ---- masks -------------------------------------------------------------------------------
def test_masks_of_pairs_cancel_and_one_mask_has_no_twin() -> None:
    scope, zero = (
        Scope("run", "train/1", "s"),
        Vectors(np.zeros(5, np.uint32), np.zeros(2, np.uint64)),
    )
    private = {name: new_seed() for name in ("a", "b", "c")}
    keys = {name: PublicKeys(b"", public_key(k)) for name, k in private.items()}
    hidden = [
        with_pair_masks(zero, scope, k, n, {m: keys[m] for m in keys if m != n}, QUARTERS)
        for n, k in private.items()
    ]
    assert all(vectors.tensors.any() and vectors.figures.any() for vectors in hidden)
    total = hidden[0].plus(hidden[1]).plus(hidden[2])
    assert not total.tensors.any() and not total.figures.any()


def test_masks_differ_by_seed_owner_sum_and_session() -> None:
    seed, lengths = b"s" * 32, (4, 0)

    def words(scope: Scope, owner: str, key: bytes = seed) -> bytes:
        return self_mask(scope, key, QUARTERS, lengths, owner).to_bytes()

    scopes = [
        Scope("r", "w", "s"),
        Scope("R", "w", "s"),
        Scope("r", "W", "s"),
        Scope("r", "w", "S"),
    ]
    found = {words(scope, owner) for scope in scopes for owner in "ab"}
    assert len(found | {words(scopes[0], "a", b"t" * 32)}) == 9
    assert words(scopes[0], "a") == words(scopes[0], "a")


def test_a_mask_has_the_asked_lengths() -> None:
    vectors = mask(b"s" * 32, 32, (7, 3), "x")
    assert (vectors.tensors.dtype, vectors.tensors.shape) == (np.uint32, (7,))
    assert (vectors.figures.dtype, vectors.figures.shape) == (np.uint64, (3,))


# ---- thresholds --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("share", "nodes", "threshold"),
    [
        (0.67, 3, 3),
        (0.67, 4, 3),
        (0.6, 5, 3),
        (0.67, 20, 14),
        (0.51, 10, 6),
        (1.0, 7, 7),
        (0.7, 10, 7),
    ],
)
def test_thresholds_by_hand(share: float, nodes: int, threshold: int) -> None:
    assert threshold_of(share, nodes) == threshold


@pytest.mark.parametrize(("nodes", "threshold"), [(2, 2), (4, 2), (4, 5), (5, 2)])
def test_a_node_gives_nothing_away_for_a_low_threshold(nodes: int, threshold: int) -> None:
    """With 2 of 4, two pairs of nodes could each be told another story of who is there."""
    with pytest.raises(SecAggError):
        check_roster([str(n) for n in range(nodes)], threshold)


def test_a_roster_of_three_may_be_used() -> None:
    check_roster(["0", "1", "2"], 2)
    with pytest.raises(SecAggError, match="3 nodes are too few for a sum, 4 are needed"):
        check_roster(["0", "1", "2"], 2, least=4)
