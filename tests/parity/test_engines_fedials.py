"""fedials: rounds in blocks of any size equal the loop's."""

from __future__ import annotations

import pytest
import torch
from engine_rounds import assert_devices_agree, assert_engines_agree, assert_same_bytes_twice

from models.mf import MatrixFactorisation
from strategies.fedials import FedIALS, FedIALSConfig

KINDS = [
    FedIALSConfig(),
    FedIALSConfig(alpha=2.0),
    FedIALSConfig(alpha=2.0, statistics="decaying", decay=0.5),
    FedIALSConfig(alpha=2.0, block_size=2),
    FedIALSConfig(statistics="decaying", block_size=1),
]
NAMES = ["default", "alpha", "decaying", "blocks", "decaying-blocks"]


def strategy_for(config: FedIALSConfig) -> FedIALS:
    return FedIALS(config, MatrixFactorisation(factors=4, init_std=0.5))


# 23 items: blocks send whole tables; 600: rows.
@pytest.mark.parametrize("num_items", [23, 600])
@pytest.mark.parametrize("block", [1, 3, 7])
@pytest.mark.parametrize("config", KINDS, ids=NAMES)
def test_rounds_of_both_engines_agree(config: FedIALSConfig, block: int, num_items: int) -> None:
    assert_engines_agree(strategy_for(config), num_items, block)


@pytest.mark.parametrize("num_items", [23, 600])
def test_same_bytes_twice(num_items: int) -> None:
    assert_same_bytes_twice(strategy_for(KINDS[3]), num_items, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("num_items", [23, 600])
def test_the_gpu_agrees(num_items: int) -> None:
    assert_devices_agree(strategy_for(KINDS[1]), num_items)
