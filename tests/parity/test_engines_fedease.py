"""FedEASE: blocks of any size upload the sum of the loop's, to the bit, and score alike."""

from __future__ import annotations

import engine_rounds
import pytest
import torch

from models.ease import ItemWeights
from strategies.base import RecStrategy
from strategies.fedease import FedEASE, FedEASEConfig

NUM_ITEMS = 53


def strategies() -> list[FedEASE]:
    configs = (FedEASEConfig(l2=200.0), FedEASEConfig(l2=200.0, sketch_width=100))
    return [FedEASE(config, ItemWeights()) for config in configs]


@pytest.mark.parametrize("strategy", strategies(), ids=["pairs", "sketch"])
@pytest.mark.parametrize("block", [1, 3, 7])
def test_rounds_in_blocks_equal_the_loop(strategy: FedEASE, block: int) -> None:
    engine_rounds.assert_engines_agree(strategy, NUM_ITEMS, block)


@pytest.mark.parametrize("strategy", strategies(), ids=["pairs", "sketch"])
def test_sums_of_whole_numbers_are_the_same_to_the_bit(strategy: FedEASE) -> None:
    engine_rounds.assert_same_bytes_twice(strategy, NUM_ITEMS, 3)
    loop = engine_rounds.rounds(strategy, NUM_ITEMS, 7, RecStrategy.cohort_update)
    for block in (1, 3, 7):
        cohort = engine_rounds.rounds(strategy, NUM_ITEMS, block, FedEASE.cohort_update)
        for got, expected in zip(cohort[:2], loop[:2], strict=True):
            assert all(torch.equal(got[n], expected[n]) for n in expected)
