"""PFedRec: rounds of the cohort engine, in blocks of any size, equal the loop's."""

from __future__ import annotations

import pytest
import torch
from engine_rounds import (
    assert_devices_agree,
    assert_engines_agree,
    assert_same_bytes_twice,
    one_update,
)

from models.linear import LinearScoring
from strategies.pfedrec import PFedRec, PFedRecConfig

MODEL = LinearScoring(factors=4)


def strategy_for(num_items: int, score_with: str) -> PFedRec:
    """Items move at a rate of 2 in any catalogue."""
    factor = 2 / (0.4 * num_items)
    config = PFedRecConfig(
        local_epochs=2,
        batch_size=16,
        private_lr=0.4,
        item_lr_factor=factor,
        score_with=score_with,  # type: ignore[arg-type]
    )
    return PFedRec(config, MODEL)


@pytest.mark.parametrize("score_with", ["own", "shared"])
@pytest.mark.parametrize("num_items", [23, 2500], ids=["dense", "sparse"])
@pytest.mark.parametrize("block", [1, 3, 7])
def test_rounds_of_both_engines_agree(block: int, num_items: int, score_with: str) -> None:
    assert_engines_agree(strategy_for(num_items, score_with), num_items, block)


def test_updates_of_few_users_in_a_large_catalogue_are_sparse() -> None:
    result = one_update(strategy_for(2500, "own"), 2500)
    assert all(tensor.is_sparse for tensor in result.update.tensors.values())


def test_same_bytes_twice() -> None:
    assert_same_bytes_twice(strategy_for(2500, "own"), 2500, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_updates_on_a_gpu_equal_the_cpu_s() -> None:
    assert_devices_agree(strategy_for(23, "own"), 23)
