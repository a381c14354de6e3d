"""The device switch: what it chooses, and that nothing is made elsewhere than the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up import NUM_USERS, small_config
from torch import Tensor

from client_app.device import DeviceError, device_of, moved, on_cpu
from client_app.engine import draw_epochs
from conf.compose import compose, options
from conf.tree import ConfigError
from models.losses import Loss
from models.mf import MatrixFactorisation
from models.neumf import NeuMF
from models.rng import Role, derive_rng
from models.sam import Radii, loop_gradients
from models.types import SumOfUpdates, Tensors, Update
from server_app.errors import ServerError
from server_app.flower_run import federation_config
from server_app.grid import LocalGrid
from server_app.run import run_server
from strategies.base import RecStrategy

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MODELS = [NeuMF(4), MatrixFactorisation(4)]


def gpu(monkeypatch: pytest.MonkeyPatch, *, there: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)


@pytest.mark.parametrize(
    ("setting", "there", "device"),
    [("cpu", True, "cpu"), ("auto", True, "cuda"), ("auto", False, "cpu"), ("cuda", True, "cuda")],
)
def test_choice(monkeypatch: pytest.MonkeyPatch, setting: str, there: bool, device: str) -> None:
    gpu(monkeypatch, there=there)
    assert device_of(setting) == torch.device(device)


def test_a_missing_gpu_ends_the_run_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu(monkeypatch, there=False)
    with pytest.raises(DeviceError, match="no GPU"):
        device_of("cuda")
    cfg = small_config(tmp_path, "name=run", "engine.device=cuda", "federation.num_nodes=2")
    with pytest.raises(ServerError, match=r"engine\.device=cuda, but torch finds no GPU") as caught:
        run_server(LocalGrid(2), cfg)
    assert "\n" not in str(caught.value)


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="cpu, cuda, auto"):
        compose(["engine.device=gpu"])


def test_ray_workers_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server_app.concurrency.cores", lambda: 4)
    chosen = ["federation.num_nodes=8", "engine.device=auto"]
    gpu(monkeypatch, there=True)
    assert federation_config(compose(chosen)).endswith("client-resources-num-gpus=0.25")
    assert "gpus" not in federation_config(compose([chosen[0]]))
    gpu(monkeypatch, there=False)
    assert "gpus" not in federation_config(compose(chosen))


def test_updates_return_to_the_cpu() -> None:
    update = Update({"a": torch.ones(2)}, 3.0, {"a": torch.ones(2)})
    back = on_cpu(update)
    assert back.tensors["a"] is update.tensors["a"]
    assert back.weight == 3.0 and back.row_weights is not None
    assert moved(update.tensors, torch.device("cpu"))["a"] is update.tensors["a"]


# ---- nothing is made elsewhere -------------------------------------------------------------
class OfNumpy:
    """A tensor out of numpy that can do nothing but be moved to a device."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def to(self, where: torch.device | Tensor) -> Tensor:
        assert isinstance(where, torch.device | Tensor), f"no device is named: {where}"
        return self._tensor.to(where)


@contextmanager
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors are of another device unless one is named; what is out of numpy must be moved."""
    real: Callable[[Any], Tensor] = torch.from_numpy
    with monkeypatch.context() as patch, torch.device("meta"):
        patch.setattr(torch, "from_numpy", lambda array: OfNumpy(real(array)))
        yield


def parameters(model: Any, num_users: int) -> tuple[Tensors, Tensors]:
    rng = np.random.default_rng(0)
    private = [model.init_private(40, rng) for _ in range(num_users)]
    return model.init_shared(40, rng), {n: torch.stack([p[n] for p in private]) for n in private[0]}


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_scores_are_made_where_the_parameters_are(
    monkeypatch: pytest.MonkeyPatch, model: Any
) -> None:
    shared, private = parameters(model, 3)
    items = np.arange(12).reshape(3, 4)
    with elsewhere(monkeypatch):
        found = [
            model.scores_all(shared, private),
            model.scores(shared, private, items[0]),
            model.score_candidates(shared, private, items),
        ]
    assert [tensor.device.type for tensor in found] == ["cpu"] * 3


@pytest.mark.parametrize("local_epochs", [1, 2])
@pytest.mark.parametrize("update", ["cohort", "client"])
@pytest.mark.parametrize("strategy", options("strategy"))
def test_training_stays_where_the_parameters_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, update: str, local_epochs: int
) -> None:
    from client_app.data import load_dataset

    chosen = (f"strategy={strategy}", f"strategy.local_epochs={local_epochs}")
    cfg = small_config(tmp_path, *chosen)
    made: RecStrategy = cfg.strategy_class(cfg.strategy, cfg.model)
    dataset, users = load_dataset(cfg), np.arange(5)
    shared = made.init_shared(dataset.num_items, derive_rng(0, Role.INIT_SHARED))
    private = [made.start_private(dataset.num_items, 0, user) for user in range(5)]
    block = {n: torch.stack([p[n] for p in private]) for n in private[0]}
    epochs = draw_epochs(made, dataset, cfg, users, 1)
    rngs = [np.random.default_rng(0)] * 5
    with elsewhere(monkeypatch):
        if update == "cohort":
            result: Any = made.cohort_update(shared, block, epochs, rngs)
        else:
            result = made.client_update(shared, private[0], epochs[0], rngs[0])
        total = SumOfUpdates(made.summed_template(shared))
        total.add(result.update)
    tensors = [*total.result().tensors.values(), *result.private.values()]
    tensors += list((result.individual or {}).values())
    tensors += list((result.update.row_weights or {}).values())
    assert {tensor.device.type for tensor in tensors} == {"cpu"}


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_the_readable_loop_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Any
) -> None:
    from client_app.data import load_dataset

    cfg = small_config(tmp_path)
    dataset = load_dataset(cfg)
    made: RecStrategy = cfg.strategy_class(cfg.strategy, cfg.model)
    samples = [e[0] for e in draw_epochs(made, dataset, cfg, np.arange(3), 1)]
    shared, private = parameters(model, 3)
    with elsewhere(monkeypatch):
        found = loop_gradients(model, shared, private, samples, Loss(8), Radii(0.1, 0.1))
    assert found.losses.device.type == "cpu"


# ---- with a GPU ----------------------------------------------------------------------------
@needs_gpu
@pytest.mark.parametrize("strategy", options("strategy"))
def test_a_run_on_the_gpu_is_the_run_on_the_cpu(tmp_path: Path, strategy: str) -> None:
    """Three rounds: figures over 24 users may differ by one user that rounding moves."""
    found = {}
    for device in ("cpu", "cuda"):
        chosen = (f"strategy={strategy}", f"engine.device={device}", f"name={device}")
        cfg = small_config(tmp_path, *chosen, "federation.rounds=3", "federation.num_nodes=2")
        found[device] = run_server(LocalGrid(2), cfg).metrics
    for name, value in found["cpu"].items():
        assert found["cuda"][name] == pytest.approx(value, abs=1.01 / NUM_USERS)
