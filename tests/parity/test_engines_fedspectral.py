"""fedspectral: rounds in blocks of any size equal the loop's."""

from __future__ import annotations

import pytest
import torch
from engine_rounds import assert_devices_agree, assert_engines_agree, assert_same_bytes_twice

from models.mf import MatrixFactorisation
from strategies.fedspectral import FedSpectral, FedSpectralConfig


def strategy_for(exponent: float = 0.25) -> FedSpectral:
    config = FedSpectralConfig(item_exponent=exponent)
    return FedSpectral(config, MatrixFactorisation(factors=4))


# 23 items: blocks send whole tables; 600: rows.
@pytest.mark.parametrize("num_items", [23, 600])
@pytest.mark.parametrize("block", [1, 3, 7])
@pytest.mark.parametrize("exponent", [0.0, 0.5])
def test_rounds_of_both_engines_agree(exponent: float, block: int, num_items: int) -> None:
    assert_engines_agree(strategy_for(exponent), num_items, block)


@pytest.mark.parametrize("num_items", [23, 600])
def test_same_bytes_twice(num_items: int) -> None:
    assert_same_bytes_twice(strategy_for(), num_items, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("num_items", [23, 600])
def test_the_gpu_agrees(num_items: int) -> None:
    assert_devices_agree(strategy_for(), num_items)
