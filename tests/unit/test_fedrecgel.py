"""FedRecGEL and FedNCF: five steps written independently, degenerate cases, settings."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models import optim
from models.neumf import NeuMF
from models.types import ClientResult, CohortResult, Samples, Tensors, Update
from strategies.fedncf import FedNCF
from strategies.fedrecgel import FedRecGEL, PrivateAdamConfig
from strategies.sam_config import SAMConfig

NUM_ITEMS, FACTORS = 60, 4
RNG = np.random.default_rng(0)


def _samples(rng: np.random.Generator, positives: int) -> Samples:
    items = rng.integers(0, NUM_ITEMS, 5 * positives)
    return Samples(items, np.tile(np.array([1, 0, 0, 0, 0], dtype=np.float32), positives))


def _strategy(**settings: Any) -> FedRecGEL:
    return FedRecGEL(FedRecGEL.Config(**settings), NeuMF(FACTORS))


def _start(strategy: FedRecGEL, seed: int, dtype: torch.dtype) -> tuple[Tensors, Tensors]:
    """Shared parameters and one user's private state, large enough to matter."""
    rng = np.random.default_rng(seed)
    shared = strategy.init_shared(NUM_ITEMS, rng)
    private = strategy.init_private(NUM_ITEMS, rng)
    for name in ("item_gmf", "item_mlp", "user_gmf", "user_mlp"):
        part = shared if name in shared else private
        part[name] = part[name] * 30
    shared, private = ({n: t.to(dtype) for n, t in part.items()} for part in (shared, private))
    return shared, private


# ---- the five steps, written again with modules, autograd and torch's optimisers ----------
class Shared(nn.Module):
    """Item tables and scoring layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gmf, self.mlp = nn.Embedding(NUM_ITEMS, FACTORS), nn.Embedding(NUM_ITEMS, 4 * FACTORS)
        widths = [8 * FACTORS, 4 * FACTORS, 2 * FACTORS, FACTORS]
        self.tower = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))  # noqa: B905, RUF007
        self.head = nn.Linear(2 * FACTORS, 1)

    def forward(self, user: Sequence[nn.Parameter], items: torch.Tensor) -> torch.Tensor:
        gmf, mlp = user
        x = torch.cat([mlp.repeat(len(items), 1), self.mlp(items)], 1)
        for layer in self.tower:
            x = torch.relu(layer(x))
        logits: torch.Tensor = self.head(torch.cat([gmf * self.gmf(items), x], 1))
        return logits.squeeze(1)


NAMES = ["item_gmf", "item_mlp"]
NAMES += [f"mlp_{kind}{k}" for k in range(3) for kind in "wb"] + ["out_w", "out_b"]
"""Our names in the order of ``Shared.parameters()``."""


def _grad(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad.clone()


class Reference:
    """One user and the server, in the words of the specification."""

    def __init__(self, shared: Tensors, private: Tensors, settings: dict[str, float]) -> None:
        self.settings = settings
        self.server = Shared().double()
        for name, parameter in zip(NAMES, self.server.parameters(), strict=True):
            parameter.data.copy_(shared[name])
        self.user = [nn.Parameter(private[n].clone()) for n in ("user_gmf", "user_mlp")]
        self.user_adam = torch.optim.Adam(self.user, lr=settings["private_lr"])
        self.server_adam = torch.optim.Adam(self.server.parameters(), lr=settings["server_lr"])

    def gradient(self, model: Shared, samples: Samples) -> tuple[list[torch.Tensor], ...]:
        model.zero_grad(set_to_none=True)
        self.user_adam.zero_grad(set_to_none=True)
        logits = model(self.user, torch.from_numpy(samples.items_S))
        labels, criterion = torch.from_numpy(samples.labels_S).double(), nn.BCEWithLogitsLoss()
        size = int(self.settings["loss_slice"])
        for start in range(0, len(labels), size):
            loss = criterion(logits[start : start + size], labels[start : start + size])
            loss.backward(retain_graph=True)
        return [_grad(p) for p in model.parameters()], [_grad(p) for p in self.user]

    @staticmethod
    def moved(parameters: list[nn.Parameter], gradient: list[torch.Tensor], rho: float) -> None:
        norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradient])) + 1e-12
        for parameter, part in zip(parameters, gradient, strict=True):
            parameter.data += rho * part / norm

    def epoch(self, model: Shared, samples: Samples) -> list[torch.Tensor]:
        """Steps 1 to 4; returns h_θ."""
        theta, user = (
            [p.data.clone() for p in model.parameters()],
            [p.data.clone() for p in self.user],
        )
        g_shared, g_user = self.gradient(model, samples)
        self.moved(list(model.parameters()), g_shared, self.settings["rho_shared"])
        h_shared, _ = self.gradient(model, samples)
        for parameter, before in zip(model.parameters(), theta, strict=True):
            parameter.data.copy_(before)
        self.moved(self.user, g_user, self.settings["rho_private"])
        self.gradient(model, samples)  # leaves h_u in .grad
        for parameter, before in zip(self.user, user, strict=True):
            parameter.data.copy_(before)
        self.user_adam.step()
        return h_shared

    def round(self, epochs: Sequence[Samples]) -> list[torch.Tensor]:
        """A whole round of this one user; returns the upload and steps the server."""
        local = copy.deepcopy(self.server)
        adam = torch.optim.Adam(local.parameters(), lr=self.settings["local_lr"])
        uploads = []
        for samples in epochs:
            uploads.append(self.epoch(local, samples))
            for parameter, h in zip(local.parameters(), uploads[-1], strict=True):
                parameter.grad = h.clone()
            adam.step()
        mean = [torch.stack(parts).mean(0) for parts in zip(*uploads, strict=True)]
        for parameter, h in zip(self.server.parameters(), mean, strict=True):
            parameter.grad = h
        self.server_adam.step()
        return mean


@pytest.mark.parametrize("local_epochs", [1, 3])
@pytest.mark.parametrize("engine", ["client", "cohort"])
def test_rounds_equal_an_independent_implementation(engine: str, local_epochs: int) -> None:
    settings = {"rho_shared": 0.3, "rho_private": 0.2, "loss_slice": 32, "server_lr": 0.05}
    settings |= {"private_lr": 0.1, "local_lr": 0.02}
    sam = SAMConfig(settings["rho_shared"], settings["rho_private"])
    others = {n: value for n, value in settings.items() if not n.startswith("rho")}
    strategy = _strategy(**others, sam=sam, local_epochs=local_epochs)
    shared, private = _start(strategy, 1, torch.float64)
    reference, state = Reference(shared, private, settings), strategy.init_server_state(shared)
    rng = np.random.default_rng(2)
    for _ in range(3):
        epochs = [_samples(rng, 21) for _ in range(local_epochs)]
        if engine == "client":
            result = strategy.client_update(shared, private, epochs, RNG)
            update, private = result.update, result.private
        else:
            block = {n: t[None] for n, t in private.items()}
            cohort = strategy.cohort_update(shared, block, [epochs], [RNG])
            update, private = cohort.update, {n: t[0] for n, t in cohort.private.items()}
        shared, state = strategy.server_update(shared, update, state)
        upload = dict(zip(NAMES, reference.round(epochs), strict=True))
        # double rounding; Adam divides by √v̂, and amplifies where a gradient is near zero
        for name in NAMES:
            torch.testing.assert_close(update.tensors[name], upload[name], rtol=1e-9, atol=1e-12)
        for name, parameter in zip(NAMES, reference.server.parameters(), strict=True):
            torch.testing.assert_close(shared[name], parameter.data, rtol=1e-9, atol=1e-9)
        for name, parameter in zip(("user_gmf", "user_mlp"), reference.user, strict=True):
            torch.testing.assert_close(private[name], parameter.data, rtol=1e-9, atol=1e-9)


# ---- degenerate cases --------------------------------------------------------------------
def _bytes(tensors: Tensors) -> dict[str, bytes]:
    return {n: t.numpy().tobytes() for n, t in tensors.items()}


@pytest.mark.parametrize("local_epochs", [1, 2])
@pytest.mark.parametrize("engine", ["client", "cohort"])
def test_no_radii_is_fedncf_bit_for_bit(engine: str, local_epochs: int) -> None:
    gel = _strategy(sam=SAMConfig(0.0, 0.0), local_epochs=local_epochs)
    ncf = FedNCF(FedNCF.Config(local_epochs=local_epochs), NeuMF(FACTORS))
    shared, private = _start(gel, 3, torch.float32)
    epochs = [_samples(np.random.default_rng(s), 40) for s in range(local_epochs)]
    block = {n: torch.stack([t, t / 2]) for n, t in private.items()}
    outcomes = []
    for strategy in (gel, ncf):
        if engine == "client":
            result: ClientResult | CohortResult = strategy.client_update(
                shared, private, epochs, RNG
            )
        else:
            result = strategy.cohort_update(shared, block, [epochs, epochs], [RNG, RNG])
        state = strategy.init_server_state(shared)
        after, state = strategy.server_update(shared, result.update, state)
        parts = (result.update.tensors, result.private, after, state)
        outcomes.append(([_bytes(p) for p in parts], result.update.weight, dict(result.metrics)))
    assert outcomes[0] == outcomes[1]
    assert set(outcomes[0][2]) == {"loss", "num_samples"}


def test_each_radius_changes_only_its_block() -> None:
    shared, private = _start(_strategy(), 4, torch.float32)
    epochs = [_samples(np.random.default_rng(5), 30)]
    plain, only_shared, only_private = (
        _strategy(sam=SAMConfig(s, p)).client_update(shared, private, epochs, RNG)
        for s, p in ((0, 0), (0.5, 0), (0, 0.5))
    )
    assert _bytes(only_shared.private) == _bytes(plain.private)
    assert _bytes(only_private.update.tensors) == _bytes(plain.update.tensors)
    assert _bytes(only_shared.update.tensors) != _bytes(plain.update.tensors)
    assert _bytes(only_private.private) != _bytes(plain.private)
    assert set(only_shared.metrics) == {"loss", "loss_shared", "num_samples"}
    assert set(only_private.metrics) == {"loss", "loss_private", "num_samples"}


def test_two_epochs_start_with_the_first() -> None:
    """The mean upload of two epochs is half of the first's plus half of the second's.

    With a vanishing local_lr the second epoch sees the same θ, so the second part is what
    a single epoch from the private state in between gives.
    """
    two, one = _strategy(local_epochs=2, local_lr=1e-30), _strategy()
    shared, private = _start(two, 6, torch.float64)
    epochs = [_samples(np.random.default_rng(s), 20) for s in (7, 8)]
    both = two.client_update(shared, private, epochs, RNG)
    first = one.client_update(shared, private, epochs[:1], RNG)
    second = one.client_update(shared, first.private, epochs[1:], RNG)
    assert _bytes(both.private) == _bytes(second.private)
    for name, tensor in both.update.tensors.items():
        mean = (first.update.tensors[name] + second.update.tensors[name]) / 2
        torch.testing.assert_close(tensor, mean, rtol=1e-12, atol=1e-15)
    assert both.update.weight == 1
    assert both.metrics["num_samples"] == 200
    mean_loss = (first.metrics["loss"] + second.metrics["loss"]) / 2
    assert both.metrics["loss"] == pytest.approx(mean_loss, rel=1e-12)


# ---- the contract ------------------------------------------------------------------------
def test_training_leaves_its_inputs_alone() -> None:
    strategy = _strategy(local_epochs=2)
    shared, private = _start(strategy, 9, torch.float32)
    block = {n: torch.stack([t, t]) for n, t in private.items()}
    epochs = [_samples(np.random.default_rng(s), 10) for s in (1, 2)]
    before = [_bytes(part) for part in (shared, private, block)]
    strategy.client_update(shared, private, epochs, RNG)
    strategy.cohort_update(shared, block, [epochs, epochs], [RNG, RNG])
    _strategy().cohort_update(shared, block, [epochs[:1], epochs[1:]], [RNG, RNG])
    assert [_bytes(part) for part in (shared, private, block)] == before


def test_private_state_carries_moments() -> None:
    strategy = _strategy()
    private = strategy.init_private(NUM_ITEMS, np.random.default_rng(0))
    assert set(private) == {
        *("user_gmf", "user_mlp", "adam_m/user_gmf", "adam_m/user_mlp"),
        *("adam_v/user_gmf", "adam_v/user_mlp", optim.STEP),
    }
    assert set(strategy.private_parameters(private)) == {"user_gmf", "user_mlp"}
    shared, _ = _start(strategy, 0, torch.float32)
    after = strategy.client_update(shared, private, [_samples(RNG, 3)], RNG).private
    assert set(after) == set(private)
    assert after[optim.STEP] == 1


def test_server_divides_by_the_number_of_users() -> None:
    """SGD with rate 1 along the mean of two uploads 1 and 3: every value falls by 2."""
    strategy = _strategy(server_optimiser="sgd", server_lr=1.0)
    shared, _ = _start(strategy, 0, torch.float32)
    summed = Update({n: torch.full_like(t, 1.0 + 3.0) for n, t in shared.items()}, weight=2.0)
    after, _ = strategy.server_update(shared, summed, strategy.init_server_state(shared))
    assert all(torch.equal(after[n], shared[n] - 2) for n in shared)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("private_lr", 0.0),
        ("local_lr", 0.0),
        ("loss_slice", 0),
        ("local_epochs", 0),
        ("server_lr", 0.0),
    ],
)
def test_settings_out_of_range_are_refused(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{setting} must .*, got {value}"):
        FedRecGEL.Config(**{setting: value})


@pytest.mark.parametrize("strategy", [FedRecGEL, FedNCF])
def test_an_unknown_loss_is_refused(strategy: type[FedRecGEL]) -> None:
    with pytest.raises(ValueError, match="loss must be one of bce, bpr, softmax, got 'hinge'"):
        strategy.Config(loss="hinge")  # type: ignore[call-arg]


def test_fedncf_has_no_radii() -> None:
    with pytest.raises(TypeError, match="sam"):
        PrivateAdamConfig(sam=SAMConfig())  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="FedRecGELConfig"):
        FedRecGEL(PrivateAdamConfig(), NeuMF(FACTORS))
