"""One user's rounds against the numbers of the paper's public code, in both engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from models import optim
from models.neumf import NeuMF
from models.types import Samples, Tensors, Update
from strategies.fedrecgel import FedRecGEL, FedRecGELConfig
from strategies.sam_config import SAMConfig

Arrays = dict[str, npt.NDArray[Any]]
Result = tuple[Update, Tensors, dict[str, float]]
Train = Callable[[FedRecGEL, Tensors, Tensors, Samples], Result]

GOLDEN = Path(__file__).parent / "golden"
CASES = {"small": 3, "several_slices": 2, "shared_only": 2, "private_only": 2, "no_sam": 2}
"""Number of rounds of each case."""
RTOL, ATOL = 1e-4, 1e-6
"""Stated by the makers of the numbers: float32, other order of summation."""
RNG = np.random.default_rng(0)


def _part(case: Arrays, prefix: str) -> Tensors:
    found = {n: a for n, a in case.items() if n.startswith(prefix)}
    return {n.removeprefix(prefix): torch.from_numpy(a) for n, a in found.items()}


def _user(case: Arrays, prefix: str) -> Tensors:
    """A user's embeddings, stored with a leading dimension of one."""
    return {n: t[0] for n, t in _part(case, prefix).items()}


def _client(strategy: FedRecGEL, shared: Tensors, private: Tensors, samples: Samples) -> Result:
    result = strategy.client_update(shared, private, [samples], RNG)
    return result.update, result.private, dict(result.metrics)


def _cohort(strategy: FedRecGEL, shared: Tensors, private: Tensors, samples: Samples) -> Result:
    block = {n: t[None] for n, t in private.items()}
    result = strategy.cohort_update(shared, block, [[samples]], [RNG])
    return result.update, {n: t[0] for n, t in result.private.items()}, dict(result.metrics)


def _strategy(case: Arrays) -> FedRecGEL:
    rho, on = case["rho"], case["sam_on"]
    radii = [float(radius) if switched else 0.0 for radius, switched in zip(rho, on, strict=True)]
    config = FedRecGELConfig(sam=SAMConfig(radii[0], radii[1]))
    return FedRecGEL(config, NeuMF(case["r0_shared_before/item_gmf"].shape[1]))


def _same(actual: Tensors, expected: Tensors) -> None:
    assert set(actual) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=RTOL, atol=ATOL)


def _check_losses(metrics: dict[str, float], losses: npt.NDArray[Any]) -> None:
    for name, value in zip(("loss", "loss_shared", "loss_private"), losses, strict=True):
        assert (name in metrics) == bool(np.isfinite(value))
        if name in metrics:
            assert metrics[name] == pytest.approx(float(value), rel=RTOL, abs=ATOL)


@pytest.mark.parametrize("train", [_client, _cohort])
@pytest.mark.parametrize("name", CASES)
def test_rounds_of_the_public_code(name: str, train: Train) -> None:
    """Our own state goes from round to round, so errors would add up, not cancel."""
    case: Arrays = dict(np.load(GOLDEN / f"{name}.npz"))
    assert sum(key.endswith("_losses") for key in case) == CASES[name]
    strategy = _strategy(case)
    shared, user = _part(case, "r0_shared_before/"), _user(case, "r0_user_before/")
    private = {**user, **optim.init_state("adam", user)}
    state = strategy.init_server_state(shared)
    for r in range(CASES[name]):
        _same(shared, _part(case, f"r{r}_shared_before/"))
        _same(strategy.private_parameters(private), _user(case, f"r{r}_user_before/"))
        samples = Samples(case[f"r{r}_items"], case[f"r{r}_labels"])
        update, private, metrics = train(strategy, shared, private, samples)
        _check_losses(metrics, case[f"r{r}_losses"])
        assert metrics["num_samples"] == len(samples)
        _same(update.tensors, _part(case, f"r{r}_upload/"))
        _same(strategy.private_parameters(private), _user(case, f"r{r}_user_after/"))
        shared, state = strategy.server_update(shared, update, state)
        _same(shared, _part(case, f"r{r}_shared_after/"))


def test_several_slices_has_several() -> None:
    case = np.load(GOLDEN / "several_slices.npz")
    assert len(case["r0_items"]) > FedRecGELConfig().loss_slice
