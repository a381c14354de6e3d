"""Paillier encryption of FedMF: packing, sums and multiples by hand, and the plain run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("phe")

from conf.compose import compose
from conf.tree import ConfigError
from models.mf import ITEM, MatrixFactorisation
from models.types import Samples, Tensors, Update
from strategies.fedmf import FedMF, FedMFConfig
from strategies.paillier import HEADROOM_BITS, MULTIPLIER, VALUE_BITS, Packing, Paillier
from strategies.paillier_keys import PRIVATE_FILE, PUBLIC_FILE, new_key_pair

BITS, FRACTION = 512, 24
NUM_ITEMS, FACTORS = 11, 3
MODEL = MatrixFactorisation(factors=FACTORS, init_std=0.5)
PLAIN = FedMFConfig(server_optimiser="sgd", server_lr=0.8)


def make_keys(folder: Path) -> Path:
    public, private = new_key_pair(BITS)
    (folder / PUBLIC_FILE).write_text(public)
    (folder / PRIVATE_FILE).write_text(private)
    return folder


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def paillier(keys: Path) -> Paillier:
    return Paillier(keys, FRACTION, allow_weak_key=True)


def encrypted(keys: Path, **changes: Any) -> FedMF:
    config = dataclasses.replace(
        PLAIN, encryption="paillier", key_folder=str(keys), allow_weak_key=True, **changes
    )
    return FedMF(config, MODEL)


# ---- packing -------------------------------------------------------------------------------
def test_slots_by_hand() -> None:
    """24 + 8 + 24 + 2 = 58 bits a slot: 2047 // 58 = 35 in 2048 bits, 511 // 58 = 8 in 512."""
    assert Packing(2048, 24).slot_bits == 58
    assert (Packing(2048, 24).slots, Packing(512, 24).slots) == (35, 8)
    assert Packing(512, 24).plaintexts([3, -1]) == [3 - (1 << 58)]
    assert Packing(512, 24).numbers([3 - (1 << 58)], 2) == [3, -1]
    with pytest.raises(ValueError, match="no room for a slot"):
        Packing(58, 24)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 40), st.sampled_from([256, 512, 2048]))
def test_sums_of_packed_numbers_are_sums_by_slot(data: Any, fraction: int, bits: int) -> None:
    """Any numbers whose sums fit a slot, at its ends above all."""
    packing = Packing(bits, fraction)
    limit = (1 << (packing.slot_bits - 2)) - 1
    number = st.one_of(st.sampled_from([-limit, limit]), st.integers(-limit, limit))
    left = data.draw(st.lists(number, min_size=1, max_size=30))
    right = data.draw(st.lists(number, min_size=len(left), max_size=len(left)))
    pairs = zip(packing.plaintexts(left), packing.plaintexts(right), strict=True)
    sums = [a + b for a, b in pairs]
    assert packing.numbers(sums, len(left)) == [a + b for a, b in zip(left, right, strict=True)]
    # less than half the smallest modulus of so many bits, so the sign can be told
    assert all(abs(total) < 1 << (bits - 2) for total in sums)


# ---- ciphertexts ---------------------------------------------------------------------------
def update_of(paillier: Paillier, values: list[float], weight: float) -> Update:
    return Update({"x": paillier.encrypt(torch.tensor(values), 1e3, "x")}, weight)


def test_steps_by_hand(paillier: Paillier) -> None:
    """θ = (1, -2). Nodes of 1 and 2 users send (3, 0) and (0, -6): W = 3, θ - (1, -2) = (0, 0).

    The next round has W = 2 and the sum (1, 1): θ = (-1/2, -1/2), with multiplier lcm(3, 2) = 6.
    All numbers are multiples of 2^-24, so nothing is rounded.
    """
    shared = paillier.seal({"x": torch.tensor([1.0, -2.0])})
    summed = paillier.add(
        [update_of(paillier, [3.0, 0.0], 1.0), update_of(paillier, [0.0, -6.0], 2.0)]
    )
    assert summed.weight == 3
    shared = paillier.step(shared, summed)
    assert int(shared[MULTIPLIER]) == 3
    assert paillier.open(shared)["x"].tolist() == [0.0, 0.0]
    shared = paillier.step(shared, update_of(paillier, [1.0, 1.0], 2.0))
    assert int(shared[MULTIPLIER]) == 6
    assert paillier.open(shared)["x"].tolist() == [-0.5, -0.5]
    again = paillier.step(shared, update_of(paillier, [0.0, 0.0], 3.0))
    assert int(again[MULTIPLIER]) == 6


def test_equal_numbers_have_other_ciphertexts(paillier: Paillier) -> None:
    one, other = (paillier.encrypt(torch.zeros(3), 1.0, "x") for _ in range(2))
    assert one.dtype == torch.uint8
    assert not torch.equal(one, other)


def test_full_range_at_full_head_room(paillier: Paillier) -> None:
    """All slots at the ends, and the largest multiplier: what the bit budget was derived for."""
    ends, weight = [2.0**VALUE_BITS, -(2.0**VALUE_BITS)] * 8, (1 << HEADROOM_BITS) - 1
    shared = paillier.seal({"x": torch.tensor(ends)})
    sums = torch.tensor(ends).double() * -weight
    step = Update({"x": paillier.encrypt(sums, 2.0**VALUE_BITS * weight, "x")}, float(weight))
    moved = paillier.step(shared, step)
    with pytest.raises(ValueError, match="x leaves ±256"):
        paillier.open(moved)  # θ is ±512: told, not wrapped around
    back = Update({"x": paillier.encrypt(-sums, 2.0**VALUE_BITS * weight, "x")}, float(weight))
    assert paillier.open(paillier.step(moved, back))["x"].tolist() == ends


def test_overflow_is_refused(paillier: Paillier) -> None:
    with pytest.raises(ValueError, match="x leaves ±256, the range"):
        paillier.seal({"x": torch.tensor([0.0, 256.5])})
    with pytest.raises(ValueError, match="leaves ±1"):
        paillier.encrypt(torch.tensor([float("nan")]), 1.0, "x")
    shared = paillier.seal({"x": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"whole weight, got 1\.5"):
        paillier.step(shared, update_of(paillier, [0.0], 1.5))
    # Cohorts of 8191 and of 8209 users, both primes: a multiplier of 67239919, 2^24 is 16777216.
    shared = paillier.step(shared, update_of(paillier, [0.0], 8191.0))
    with pytest.raises(ValueError, match=r"8209 users .* become 67239919, beyond 2\^24"):
        paillier.step(shared, update_of(paillier, [0.0], 8209.0))


def test_sizes_without_a_common_multiple_by_hand(paillier: Paillier) -> None:
    """4099 · 4093 = 16777207 < 2^24, and with 7 users it would be 117440449.

    So m stays and ⌊16777207 / 7⌋ = 2396743 is 6/7 below the quotient: a sum of -7 · 128 moves θ by
    2396743 · 7 · 128 / 16777207 = 128 · (1 - 6/16777207), which is 4.6e-5 short of 128.
    """
    shared = paillier.seal({"x": torch.zeros(1)})
    for weight in (4099.0, 4093.0):
        shared = paillier.step(shared, update_of(paillier, [0.0], weight))
    moved = paillier.step(shared, update_of(paillier, [-7 * 128.0], 7.0))
    assert int(moved[MULTIPLIER]) == 16777207
    assert paillier.open(moved)["x"].item() == np.float32(128 * (1 - 6 / 16777207)) < 128


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=10, max_size=25))
def test_cohorts_of_any_sizes_never_end_it(paillier: Paillier, sizes: list[int]) -> None:
    """Every step's mean is -1: θ = number of steps, short by W/2^23 of a step at most."""
    shared = paillier.seal({"x": torch.zeros(1)})
    for size in sizes:
        shared = paillier.step(shared, update_of(paillier, [-float(size)], float(size)))
        assert int(shared[MULTIPLIER]) < 1 << HEADROOM_BITS
    short = len(sizes) - paillier.open(shared)["x"].item()
    assert -1e-6 <= short <= sum(sizes) / 2**23 + 1e-6  # and float32's half unit at 25


def test_another_pair_s_key_is_refused(keys: Path, tmp_path: Path) -> None:
    mixed = make_keys(tmp_path)
    (mixed / PRIVATE_FILE).write_text((keys / PRIVATE_FILE).read_text())
    own = Paillier(mixed, FRACTION, allow_weak_key=True)
    sealed = own.seal({"x": torch.zeros(2)})  # needs no private key
    with pytest.raises(ValueError, match=r"does not belong to public\.json"):
        own.open(sealed)


# ---- the strategy --------------------------------------------------------------------------
def users() -> list[Samples]:
    rng = np.random.default_rng(5)
    labels = np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), 3)
    return [Samples(rng.integers(0, NUM_ITEMS, 15), labels) for _ in range(5)]


def one_round(
    strategy: FedMF, shared: Tensors, private: Tensors, nodes: list[list[int]]
) -> tuple[Tensors, Tensors]:
    """Both halves, as nodes and server divide them; nodes get consecutive users."""
    sent, rows, samples = list[Update](), list[Tensors](), users()
    for own in nodes:
        block = {n: t[own] for n, t in private.items()}
        rngs = [np.random.default_rng(0)] * len(own)
        epochs = [[samples[u]] for u in own]
        result = strategy.cohort_update(strategy.opened(shared), block, epochs, rngs)
        sent.append(strategy.sealed(result.update))
        rows.append(dict(result.private))
    summed = strategy.combined(sent, shared)
    assert set(summed.tensors) == set(strategy.summed_template(shared))
    moved, state = strategy.server_update(shared, summed, strategy.init_server_state(shared))
    assert state == {}
    return moved, {n: torch.cat([row[n] for row in rows]) for n in private}


def test_a_round_is_the_plain_one_up_to_the_resolution(keys: Path) -> None:
    """Rounded: θ once, and each of two nodes' sums of 5 users; 2^-25 each, the sums over W = 5.

    Off by at most (1 + 2/5) · 2^-25, and float32's rounding of θ (below 4, so units of 2^-22 at
    most, half of one) on the plain side and on opening.
    """
    secret, plain = encrypted(keys), FedMF(PLAIN, MODEL)
    rng = np.random.default_rng(1)
    start = MODEL.init_shared(NUM_ITEMS, rng)
    rows = [plain.init_private(NUM_ITEMS, rng) for _ in range(5)]
    private = {n: torch.stack([row[n] for row in rows]) for n in rows[0]}
    # the plain one starts where the encrypted one does: multiples of 2^-24
    assert secret.paillier is not None
    shared = secret.paillier.seal(start)
    start = secret.opened(shared)
    nodes = [[0, 1], [2, 3, 4]]
    (moved, own), (expected, theirs) = (
        one_round(s, t, private, nodes) for s, t in ((secret, shared), (plain, start))
    )
    assert all(torch.equal(own[n], theirs[n]) for n in own)
    got = secret.opened(moved)[ITEM]
    assert float(expected[ITEM].abs().max()) < 4
    off = float((got.double() - expected[ITEM].double()).abs().max())
    assert off <= 1.4 * 2.0**-25 + 3 * 2.0**-23
    assert float((expected[ITEM] - start[ITEM]).abs().max()) > 1e-2


def test_the_server_needs_no_private_key(keys: Path, tmp_path: Path) -> None:
    """All that it does, in a folder with the public key alone."""
    (tmp_path / PUBLIC_FILE).write_text((keys / PUBLIC_FILE).read_text())
    server, node = encrypted(tmp_path), encrypted(keys)
    shared = server.init_shared(NUM_ITEMS, np.random.default_rng(0))
    assert shared[ITEM].dtype == torch.uint8
    update = Update({ITEM: torch.full((NUM_ITEMS, FACTORS), 2.0)}, 4.0)
    moved, _ = server.server_update(shared, server.combined([node.sealed(update)], shared), {})
    # 0.8 · 2 / 4; θ and the step are rounded to 2^-25, then θ to float32 (units of 2^-23 below 2)
    change = node.opened(moved)[ITEM] - node.opened(shared)[ITEM]
    torch.testing.assert_close(change, torch.full_like(change, -0.4), rtol=0, atol=2.0**-22)
    with pytest.raises(ValueError, match=r"private\.json is missing; fedrecgel keys"):
        server.opened(moved)


def test_without_encryption_nothing_changes() -> None:
    plain, update = FedMF(PLAIN, MODEL), Update({ITEM: torch.ones(2, 3)}, 2.0)
    assert plain.sealed(update) is update
    shared = {ITEM: torch.zeros(2, 3)}
    assert plain.opened(shared) is shared
    assert plain.summed_template(shared) is shared


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([], r"strategy\.server_optimiser must be sgd with encryption=paillier"),
        (["strategy.server_optimiser=sgd"], r"strategy\.key_folder is needed"),
        (["strategy.fraction_bits=0"], r"strategy\.fraction_bits must be in 1\.\.40, got 0"),
    ],
)
def test_settings_are_one_line(changes: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        compose(["strategy=fedmf", "strategy.encryption=paillier", *changes])


def test_weak_keys_are_refused(keys: Path) -> None:
    overrides = ["strategy=fedmf", "strategy.encryption=paillier", "strategy.server_optimiser=sgd"]
    with pytest.raises(ConfigError, match="a Paillier key of 512 bits is weak: use 2048, or"):
        compose([*overrides, f"strategy.key_folder={keys}"])
    with pytest.raises(ConfigError, match=r"public\.json is missing; fedrecgel keys .*none makes"):
        compose([*overrides, f"strategy.key_folder={keys / 'none'}"])
