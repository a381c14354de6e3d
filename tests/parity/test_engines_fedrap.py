"""FedRAP: rounds of the cohort engine, in blocks of any size, equal the loop's."""

from __future__ import annotations

import pytest
import torch
from engine_rounds import (
    assert_devices_agree,
    assert_engines_agree,
    assert_same_bytes_twice,
    one_update,
)

from models.linear import ITEM, LinearScoring
from strategies.fedrap import FedRAP, FedRAPConfig

MODEL = LinearScoring(factors=4)


def strategy_for(num_items: int, weight_decay: float = 0.02) -> FedRAP:
    """Shared items move at a rate of 2 in any catalogue."""
    config = FedRAPConfig(
        local_epochs=2,
        batch_size=16,
        score_lr=0.4,
        own_lr=1.0,
        item_lr_factor=2 / num_items,
        weight_decay=weight_decay,
        round_decay=0.97,
        batch_decay=0.95,
        difference=0.3,
        sparsity=0.2,
    )
    return FedRAP(config, MODEL)


@pytest.mark.parametrize("weight_decay", [0.0, 0.02])
@pytest.mark.parametrize("num_items", [23, 2500], ids=["dense", "sparse"])
@pytest.mark.parametrize("block", [1, 3, 7])
def test_rounds_of_both_engines_agree(block: int, num_items: int, weight_decay: float) -> None:
    assert_engines_agree(strategy_for(num_items, weight_decay), num_items, block)


def test_updates_of_few_users_in_a_large_catalogue_are_sparse() -> None:
    result = one_update(strategy_for(2500), 2500)
    assert result.update.tensors[ITEM].is_sparse


def test_same_bytes_twice() -> None:
    assert_same_bytes_twice(strategy_for(2500), 2500, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_updates_on_a_gpu_equal_the_cpu_s() -> None:
    assert_devices_agree(strategy_for(23), 23)
