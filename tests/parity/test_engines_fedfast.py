"""FedFast: rounds of the cohort engine, in blocks of any size, equal the loop's."""

from __future__ import annotations

import pytest
import torch
from engine_rounds import assert_devices_agree, assert_engines_agree

from models.mf import MatrixFactorisation
from models.neumf import NeuMF
from strategies.fedfast import FedFast, FedFastConfig

MODELS = {"mf": MatrixFactorisation(factors=4, init_std=0.5), "neumf": NeuMF(factors=4)}
CONFIG = FedFastConfig(local_epochs=2, batch_size=16, shared_lr=0.5, private_lr=0.4)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("num_items", [23, 2500], ids=["dense", "sparse"])
@pytest.mark.parametrize("block", [1, 3, 7])
def test_rounds_of_both_engines_agree(block: int, num_items: int, model: str) -> None:
    assert_engines_agree(FedFast(CONFIG, MODELS[model]), num_items, block)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_updates_on_a_gpu_equal_the_cpu_s() -> None:
    assert_devices_agree(FedFast(CONFIG, MODELS["mf"]), 23)
