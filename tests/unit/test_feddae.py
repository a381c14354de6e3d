"""FedDAE against hand-derived numbers and a dense network trained by torch's own Adam."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from models.mf import MatrixFactorisation
from models.rng import Role, derive_rng
from models.types import History, IntArray, Samples, Tensors
from models.vae import HISTORY, GatedVAE
from strategies.feddae import FedDAE, FedDAEConfig

NUM_ITEMS = 11
MODEL = GatedVAE(latent=3, hidden=(5, 4), gate=2)
SMALL = GatedVAE(latent=1, hidden=(), gate=1)
# float64 rounding of some hundred terms over a few steps is below 1e-12.
EXACT = 1e-10
ROUND_ITEMS = np.array([0, 3, 4, 8])


def epoch(*positives: int) -> Samples:
    """Each positive with a negative, which the method does not use."""
    items_S = np.array([item for p in positives for item in (p, (p + 1) % NUM_ITEMS)])
    labels_S = np.tile(np.array([1, 0], dtype=np.float32), len(positives))
    return Samples(items_S, labels_S)


def double(tensors: Tensors) -> Tensors:
    return {n: t.double() for n, t in tensors.items()}


def drawn(feddae: FedDAE) -> tuple[Tensors, Tensors]:
    """Shared and private parameters, biases moved from 0."""
    rng = np.random.default_rng(5)
    shared, private = feddae.init_shared(NUM_ITEMS, rng), feddae.init_private(NUM_ITEMS, rng)
    noise = torch.Generator().manual_seed(0)
    moved = [
        {n: t + 0.1 * torch.randn(t.shape, generator=noise) for n, t in tensors.items()}
        for tensors in (shared, private)
    ]
    return double(moved[0]), double(moved[1])


def zeros(model: GatedVAE, num_items: int) -> tuple[Tensors, Tensors]:
    rng = np.random.default_rng(0)
    drawn = model.init_shared(num_items, rng), model.init_private(num_items, rng)
    shared, private = ({n: torch.zeros_like(t).double() for n, t in part.items()} for part in drawn)
    return shared, private


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=EXACT, atol=EXACT)


# ---- scores --------------------------------------------------------------------------------
def test_scores_by_hand() -> None:
    """Two of three items in the history, so the input is (1, 1, 0)/√2.

    Shared mean (1 + 3)/√2, own mean (2 + 2)/√2 + 1; the gate's hidden unit is ReLU(-√2) = 0, so
    its weights are softmax(ln 3, 0) = (3/4, 1/4). The code c = 3/4·own + 1/4·shared = 2√2 + 3/4,
    and item i scores dᵢ·c + bᵢ.
    """
    shared = {
        "encoder_item": torch.tensor([[1.0, 9.0], [3.0, 9.0], [50.0, 9.0]]).double(),
        "encoder_bias": torch.zeros(2).double(),
        "decoder_item": torch.tensor([[1.0], [-1.0], [2.0]]).double(),
        "decoder_item_bias": torch.tensor([0.0, 0.5, 1.0]).double(),
    }
    private = {
        "own_encoder_item": torch.tensor([[[2.0, 7.0], [2.0, 7.0], [60.0, 7.0]]]).double(),
        "own_encoder_bias": torch.tensor([[1.0, 0.0]]).double(),
        "gate_item": torch.tensor([[[-1.0], [-1.0], [70.0]]]).double(),
        "gate_bias": torch.zeros(1, 1).double(),
        "gate_weight_1": torch.tensor([[[5.0], [-5.0]]]).double(),
        "gate_bias_1": torch.tensor([[math.log(3.0), 0.0]]).double(),
    }
    feddae = FedDAE(FedDAEConfig(), SMALL)
    history = History(np.array([0, 1]), np.array([2]))
    code = 2 * math.sqrt(2) + 0.75
    scores_UI = feddae.scores_all(shared, private, history)
    assert scores_UI[0].tolist() == pytest.approx([code, 0.5 - code, 1 + 2 * code])
    scores_UC = feddae.score_candidates(shared, private, np.array([[2, 0]]), history)
    assert scores_UC[0].tolist() == pytest.approx([1 + 2 * code, code])


def test_scores_of_a_block_and_of_single_users_agree() -> None:
    feddae = FedDAE(FedDAEConfig(), MODEL)
    shared, first = drawn(feddae)
    second = {n: t + 0.3 for n, t in first.items()}
    block = {n: torch.stack([first[n], second[n]]) for n in first}
    history = History(np.array([1, 4, 0, 2, 9]), np.array([2, 3]))
    scores_UI = feddae.scores_all(shared, block, history)
    rows = {**first, HISTORY: history.one_hot(NUM_ITEMS)[0].double()}
    close(scores_UI[0], MODEL.logits(shared, rows, torch.arange(NUM_ITEMS)))
    alone = {n: t[1:] for n, t in block.items()}
    own_history = History(history.items_S[2:], history.lengths_U[1:])
    close(scores_UI[1:], feddae.scores_all(shared, alone, own_history))
    picked = MODEL.scores(shared, {**block, HISTORY: history.one_hot(NUM_ITEMS)}, np.array([3, 0]))
    close(picked, scores_UI[:, [3, 0]])


def test_without_histories_there_is_no_score() -> None:
    shared, private = drawn(FedDAE(FedDAEConfig(), MODEL))
    with pytest.raises(ValueError, match="the autoencoder scores from histories"):
        MODEL.logits(shared, private, torch.arange(2))


def test_a_user_without_items_is_scored() -> None:
    feddae = FedDAE(FedDAEConfig(), MODEL)
    shared, private = drawn(feddae)
    block = {n: t[None] for n, t in private.items()}
    nobody = History(np.array([], dtype=np.int64), np.array([0]))
    assert feddae.scores_all(shared, block, nobody).isfinite().all()


# ---- training ------------------------------------------------------------------------------
def test_loss_and_gradient_of_a_network_of_zeros() -> None:
    """Both gate weights are 1/2, all scores 0, codes N(0, 1): mixed they are N(0, 1/2).

    Three items of four: the likelihood term is 3·ln 4 and the divergence ½(½ - ln ½ - 1) each
    of 2 code entries. The gradient of item i's bias is 3·¼ - xᵢ.
    """
    feddae = FedDAE(FedDAEConfig(local_epochs=1, beta=0.7), GatedVAE(latent=2, gate=1))
    shared, private = zeros(feddae.model, 4)
    samples = Samples(np.array([3, 0, 1, 2]), np.array([1, 1, 1, 0], dtype=np.float32))
    result = feddae.client_update(shared, private, [samples], np.random.default_rng(0))
    divergence = 2 * (0.5 - math.log(0.5) - 1) / 2
    assert result.metrics["loss"] == pytest.approx(3 * math.log(4) + 0.7 * divergence)
    assert result.metrics["num_samples"] == 4
    bias = result.update.tensors["decoder_item_bias"]
    assert bias.tolist() == pytest.approx([-0.25, -0.25, 0.75, -0.25])
    assert result.update.weight == 1


def test_gradients_are_added_over_steps_each_from_zero() -> None:
    """At a vanishing rate three steps have the same gradient: 3 g, not 1 + 2 + 3 = 6 g."""
    feddae = FedDAE(FedDAEConfig(private_lr=1e-12), SMALL)
    shared, private = zeros(SMALL, 4)
    samples = Samples(np.array([2]), np.ones(1, dtype=np.float32))
    update = feddae.client_update(shared, private, [samples] * 3, np.random.default_rng(0)).update
    got = update.tensors["decoder_item_bias"].tolist()
    assert got == pytest.approx([0.75, 0.75, -2.25, 0.75], abs=1e-10)


def dense_loss(
    p: Tensors, items: IntArray, config: FedDAEConfig, rng: np.random.Generator
) -> Tensor:
    """The loss from whole tables, in the words of the paper.

    A user's stream has numbers for all items of the round, in or out of the step.
    """
    layers, x = len(MODEL.hidden), torch.zeros(NUM_ITEMS).double()
    x[items] = 1
    unit = functional.normalize(x, dim=0)
    kept = torch.zeros(NUM_ITEMS).double()
    kept[ROUND_ITEMS] = torch.from_numpy(rng.random(len(ROUND_ITEMS)) >= config.dropout).double()
    gate_kept = torch.from_numpy(rng.random(MODEL.gate) >= config.dropout).double()
    noise = torch.from_numpy(rng.standard_normal((2, MODEL.latent), dtype=np.float32)).double()
    left = 1 - config.dropout

    def encode(name: str) -> tuple[Tensor, Tensor]:
        h = (unit * kept / left) @ p[f"{name}_item"] + p[f"{name}_bias"]
        for k in range(1, layers + 1):
            h = p[f"{name}_weight_{k}"] @ torch.tanh(h) + p[f"{name}_bias_{k}"]
        return h[: MODEL.latent], h[MODEL.latent :]

    (mu_l, log_l), (mu_g, log_g) = encode("own_encoder"), encode("encoder")
    h = torch.relu(unit @ p["gate_item"] + p["gate_bias"]) * gate_kept / left
    w1, w2 = torch.softmax(p["gate_weight_1"] @ h + p["gate_bias_1"], 0)
    z = w1 * (mu_l + torch.exp(log_l / 2) * noise[0]) + w2 * (
        mu_g + torch.exp(log_g / 2) * noise[1]
    )
    mean, variance = w1 * mu_l + w2 * mu_g, w1**2 * log_l.exp() + w2**2 * log_g.exp()
    prior = torch.distributions.Normal(torch.zeros(()).double(), torch.ones(()).double())
    mixed = torch.distributions.Normal(mean, variance.sqrt())
    for k in range(1, layers + 1):
        z = torch.tanh(p[f"decoder_weight_{k}"] @ z + p[f"decoder_bias_{k}"])
    scores = p["decoder_item"] @ z + p["decoder_item_bias"]
    divergence = torch.distributions.kl_divergence(mixed, prior).sum()
    return config.beta * divergence - (x * scores.log_softmax(0)).sum()


@pytest.mark.parametrize("steps", [1, 3])
def test_steps_equal_torch_adam_on_whole_tables(steps: int) -> None:
    config = FedDAEConfig(local_epochs=steps, private_lr=0.03, beta=0.4, dropout=0.3)
    feddae = FedDAE(config, MODEL)
    shared, private = drawn(feddae)
    items = [ROUND_ITEMS, np.array([3, 4]), np.array([0, 3, 8])][:steps]
    result = feddae.client_update(
        shared, private, [epoch(*own) for own in items], derive_rng(0, Role.STRATEGY, 1, 1)
    )
    p = {n: torch.nn.Parameter(t.clone()) for n, t in {**shared, **private}.items()}
    adam, rng = torch.optim.Adam(p.values(), lr=0.03), derive_rng(0, Role.STRATEGY, 1, 1)
    total = {n: torch.zeros_like(t) for n, t in shared.items()}
    for own in items:
        adam.zero_grad()
        loss = dense_loss(dict(p), own, config, rng)
        loss.backward()  # type: ignore[no-untyped-call]
        for name in total:
            gradient = p[name].grad
            assert gradient is not None
            total[name] += gradient
        adam.step()
    for name in shared:
        close(result.update.tensors[name], total[name])
    for name in private:
        close(result.private[name], p[name].detach())


def test_rows_of_other_items_stay() -> None:
    feddae = FedDAE(FedDAEConfig(), GatedVAE(latent=3, gate=16))
    shared, private = drawn(feddae)
    result = feddae.client_update(shared, private, [epoch(2, 7)] * 5, np.random.default_rng(0))
    others = np.setdiff1d(np.arange(NUM_ITEMS), [2, 7])
    for name in ("own_encoder_item", "gate_item"):
        assert torch.equal(result.private[name][others], private[name][others])
        assert not torch.equal(result.private[name][[2, 7]], private[name][[2, 7]])
    assert not result.update.tensors["encoder_item"][others].any()
    assert result.update.tensors["decoder_item"][others].all()


def test_adapting_moves_private_parameters_as_if_the_shared_ones_stayed() -> None:
    """One step is that of a round; a second one starts from other shared parameters there."""
    feddae = FedDAE(FedDAEConfig(), MODEL)
    shared, private = drawn(feddae)
    for steps, same in ((1, True), (2, False)):
        epochs = [epoch(1, 5, 6)] * steps
        adapted = feddae.adapt(shared, private, epochs, np.random.default_rng(3))
        trained = feddae.client_update(shared, private, epochs, np.random.default_rng(3)).private
        assert adapted.keys() == private.keys()
        assert all(torch.equal(adapted[n], trained[n]) for n in private) == same


@pytest.mark.parametrize(
    "changes", [{"beta": 0.9}, {"dropout": 0.1}, {"private_lr": 0.2}], ids=lambda c: next(iter(c))
)
def test_every_setting_of_the_local_steps_matters(changes: dict[str, float]) -> None:
    shared, private = drawn(FedDAE(FedDAEConfig(), MODEL))
    configs = FedDAEConfig(), dataclasses.replace(FedDAEConfig(), **changes)  # type: ignore[arg-type]
    plain, other = (
        FedDAE(c, MODEL).client_update(
            shared, private, [epoch(0, 1, 2, 3)] * 2, np.random.default_rng(0)
        )
        for c in configs
    )
    assert not torch.equal(plain.private["own_encoder_bias"], other.private["own_encoder_bias"])


# ---- settings ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"private_lr": 0.0}, r"private_lr must be positive, got 0\.0"),
        ({"beta": -0.1}, r"beta must not be negative, got -0\.1"),
        ({"dropout": 1.0}, r"dropout must be at least 0 and below 1, got 1\.0"),
        ({"server_lr": 0.0}, r"server_lr must be positive, got 0\.0"),
    ],
)
def test_bad_settings(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedDAEConfig(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latent": 0}, "latent must be at least 1, got 0"),
        ({"gate": 0}, "gate must be at least 1, got 0"),
        ({"hidden": (4, 0)}, r"hidden\[1\] must be at least 1, got 0"),
    ],
)
def test_bad_widths(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GatedVAE(**changes)  # type: ignore[arg-type]


def test_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="feddae needs model=vae"):
        FedDAE(FedDAEConfig(), MatrixFactorisation())
