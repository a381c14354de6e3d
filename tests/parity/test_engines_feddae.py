"""FedDAE: rounds of the cohort engine, in blocks of any size, equal the loop's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.rng import Role, derive_rng
from models.types import Samples, SumOfUpdates, Tensors
from models.vae import GatedVAE
from strategies.base import RecStrategy
from strategies.feddae import FedDAE, FedDAEConfig

POSITIVES = (1, 7, 40, 3, 12, 1, 25)
MODELS = {
    "linear": GatedVAE(latent=3, gate=2),
    "deep": GatedVAE(latent=3, hidden=(5, 4), gate=2),
}
CONFIG = FedDAEConfig(local_epochs=3, private_lr=0.02, dropout=0.4)
ROUNDS = 3
# A round rounds at 1e-15 (sums of some hundred float64 terms). Adam divides a gradient by its own
# size, which makes that 1e-13 where one is a thousandth of its terms; rounds grow it by a small
# factor: below 1e-10 after three.
EXACT = 1e-10


def epochs_of(user: int, round_: int, positives: int, num_items: int) -> list[Samples]:
    """The same distinct positives every epoch, in another order."""
    items = derive_rng(0, Role.TRAIN, user).permutation(num_items)[:positives]
    rng = derive_rng(0, Role.TRAIN, user, round_)
    labels_S = np.ones(len(items), dtype=np.float32)
    return [Samples(rng.permutation(items), labels_S) for _ in range(CONFIG.local_epochs)]


def start(feddae: FedDAE, num_items: int) -> tuple[Tensors, Tensors]:
    shared = feddae.init_shared(num_items, derive_rng(0, Role.INIT_SHARED))
    rows = [
        feddae.init_private(num_items, derive_rng(0, Role.INIT_PRIVATE, user))
        for user in range(len(POSITIVES))
    ]
    private = {n: torch.stack([row[n] for row in rows]).double() for n in rows[0]}
    return {n: t.double() for n, t in shared.items()}, private


def rounds(feddae: FedDAE, num_items: int, block: int, loop: bool) -> tuple[Tensors, Tensors]:
    """Shared parameters and private rows after some rounds of all users."""
    update = RecStrategy.cohort_update if loop else FedDAE.cohort_update
    shared, private = start(feddae, num_items)
    state = feddae.init_server_state(shared)
    for round_ in range(ROUNDS):
        rngs = [derive_rng(0, Role.STRATEGY, user, round_) for user in range(len(POSITIVES))]
        epochs_U = [epochs_of(u, round_, n, num_items) for u, n in enumerate(POSITIVES)]
        total, parts = SumOfUpdates(shared), list[Tensors]()
        for first in range(0, len(rngs), block):
            part = slice(first, first + block)
            rows = {n: t[part] for n, t in private.items()}
            result = update(feddae, shared, rows, epochs_U[part], rngs[part])
            total.add(result.update)
            parts.append(result.private)
        private = {n: torch.cat([rows[n] for rows in parts]) for n in private}
        shared, state = feddae.server_update(shared, total.result(), state)
    return shared, private


@pytest.mark.parametrize("num_items", [53, 600], ids=["dense", "sparse"])
@pytest.mark.parametrize("block", [3, 7])
@pytest.mark.parametrize("name", MODELS)
def test_rounds_of_both_engines_agree(name: str, block: int, num_items: int) -> None:
    feddae = FedDAE(CONFIG, MODELS[name])
    loop = rounds(feddae, num_items, len(POSITIVES), loop=True)
    cohort = rounds(feddae, num_items, block, loop=False)
    for got, expected in zip(cohort, loop, strict=True):
        for tensor in expected:
            torch.testing.assert_close(got[tensor], expected[tensor], rtol=EXACT, atol=EXACT)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(0, 3))
@settings(deadline=None, max_examples=20)
def test_a_user_trains_alike_in_any_company(positives: list[int], place: int) -> None:
    feddae = FedDAE(CONFIG, MODELS["linear"])
    shared, private = start(feddae, 40)
    place %= len(positives)
    rngs = [derive_rng(0, Role.STRATEGY, user, 1) for user in range(len(positives))]
    epochs_U = [epochs_of(user, 1, n, 40) for user, n in enumerate(positives)]
    rows = {n: t[: len(positives)] for n, t in private.items()}
    together = feddae.cohort_update(shared, rows, epochs_U, rngs).private
    own = {n: t[place] for n, t in private.items()}
    stream = derive_rng(0, Role.STRATEGY, place, 1)
    alone = feddae.client_update(shared, own, epochs_U[place], stream).private
    for name in own:
        torch.testing.assert_close(together[name][place], alone[name], rtol=EXACT, atol=EXACT)


def test_same_bytes_twice() -> None:
    first, second = (rounds(FedDAE(CONFIG, MODELS["linear"]), 600, 3, loop=False) for _ in "12")
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(one[n], other[n]) for n in one)
