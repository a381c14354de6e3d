"""NeuMF: initialisation, the score by hand, and efficient scoring equal to plain logits."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch

from models import neumf
from models.neumf import NeuMF
from models.neumf_layers import Layers
from models.types import Tensors


def _parameters(model: NeuMF, num_items: int, num_users: int) -> tuple[Tensors, Tensors]:
    """Random parameters of size one in double, biases included: every term matters."""
    rng = np.random.default_rng(0)
    shared = model.init_shared(num_items, rng)
    shared = {n: torch.from_numpy(rng.normal(0, 0.5, t.shape)) for n, t in shared.items()}
    private = {
        n: torch.from_numpy(rng.normal(0, 1, (num_users, *t.shape)))
        for n, t in model.init_private(7, rng).items()
    }
    return shared, private


def _plain(model: NeuMF, shared: Tensors, private: Tensors) -> torch.Tensor:
    """Scores (U, I) user by user with the differentiable logits."""
    items = torch.arange(len(shared["item_gmf"]))
    users = range(len(private["user_gmf"]))
    rows = [model.logits(shared, {n: t[u] for n, t in private.items()}, items) for u in users]
    return torch.stack(rows)


def _equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    # double rounding over sums of at most a hundred terms of size one
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_shapes_and_names() -> None:
    model, rng = NeuMF(), np.random.default_rng(0)
    shapes = {n: tuple(t.shape) for n, t in model.init_shared(7, rng).items()}
    assert shapes == {
        "item_gmf": (7, 32),
        "item_mlp": (7, 128),
        "mlp_w0": (128, 256),
        "mlp_b0": (128,),
        "mlp_w1": (64, 128),
        "mlp_b1": (64,),
        "mlp_w2": (32, 64),
        "mlp_b2": (32,),
        "out_w": (1, 64),
        "out_b": (1,),
    }
    private = {n: tuple(t.shape) for n, t in model.init_private(7, rng).items()}
    assert private == {"user_gmf": (32,), "user_mlp": (128,)}
    assert model.item_tables == {"item_gmf", "item_mlp"}


def test_initial_distributions() -> None:
    shared = NeuMF().init_shared(2000, np.random.default_rng(1))
    assert all(t.dtype == torch.float32 for t in shared.values())
    for name in ("item_gmf", "item_mlp"):
        count = shared[name].numel()
        # four standard errors: of a mean, σ/√n; of a standard deviation, σ/√(2n)
        assert abs(shared[name].mean().item()) < 4 * 0.01 / sqrt(count)
        assert abs(shared[name].std().item() - 0.01) < 4 * 0.01 / sqrt(2 * count)
    bounds = {f"mlp_w{k}": sqrt(6 / (384 >> k)) for k in range(3)} | {"out_w": sqrt(3 / 64)}
    for name, bound in bounds.items():
        values = shared[name].double()
        # float32 rounding may carry a draw just over the bound
        assert values.abs().max() <= bound * (1 + 1e-7)
        # a uniform on ±bound: P(all of n draws < 0.9 · bound) = 0.9ⁿ ≤ 0.002 for n = 64
        assert values.abs().max() > 0.9 * bound
        assert abs(values.mean().item()) < 4 * bound / sqrt(3 * values.numel())
    assert all(not shared[n].any() for n in shared if n.endswith(("b0", "b1", "b2", "_b")))


def test_initialisation_follows_the_stream() -> None:
    model = NeuMF(4)
    first, again, other = (model.init_shared(5, np.random.default_rng(s)) for s in (3, 3, 4))
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["item_gmf"], other["item_gmf"])


def test_score_by_hand() -> None:
    """F = 1, one hidden layer: s = w_g · (u_g · i_g) + w_m · relu(w_u · u_m + w_i · i_m + b) + c.

    Item 0: 2 · (3 · 0.5) + 4 · relu(1 · 2 + (−1) · 5 + 0.5) + 0.25 = 3.25 (the unit is off).
    Item 1: 2 · (3 · −1) + 4 · relu(2 + 1 + 0.5) + 0.25 = 8.25.
    """
    shared = {
        "item_gmf": torch.tensor([[0.5], [-1.0]]),
        "item_mlp": torch.tensor([[5.0], [-1.0]]),
        "mlp_w0": torch.tensor([[1.0, -1.0]]),
        "mlp_b0": torch.tensor([0.5]),
        "out_w": torch.tensor([[2.0, 4.0]]),
        "out_b": torch.tensor([0.25]),
    }
    private = {"user_gmf": torch.tensor([3.0]), "user_mlp": torch.tensor([2.0])}
    model, expected = NeuMF(factors=1, mlp_layers=1), [3.25, 8.25]
    assert model.logits(shared, private, torch.tensor([0, 1])).tolist() == expected
    block = {n: t[None] for n, t in private.items()}
    assert model.scores(shared, block, None).tolist() == [expected]
    assert model.score_candidates(shared, block, np.array([[1, 0]])).tolist() == [expected[::-1]]


@pytest.mark.parametrize("pairs", [1, 7, 512])
@pytest.mark.parametrize("mlp_layers", [1, 3])
def test_scores_are_the_logits(
    monkeypatch: pytest.MonkeyPatch, pairs: int, mlp_layers: int
) -> None:
    monkeypatch.setattr(neumf, "SCORE_PAIRS", pairs)
    model = NeuMF(4, mlp_layers)
    shared, private = _parameters(model, num_items=23, num_users=5)
    expected = _plain(model, shared, private)
    _equal(model.scores(shared, private, None), expected)
    subset = np.array([22, 0, 7, 7, 3])
    _equal(model.scores(shared, private, subset), expected[:, subset])


@pytest.mark.parametrize(("pairs", "shared_pairs"), [(1, 1), (7, 9), (512, 1 << 16)])
def test_candidates_are_the_logits(
    monkeypatch: pytest.MonkeyPatch, pairs: int, shared_pairs: int
) -> None:
    monkeypatch.setattr(neumf, "SCORE_PAIRS", pairs)
    monkeypatch.setattr(neumf, "CANDIDATE_PAIRS", shared_pairs)
    model = NeuMF(4)
    shared, private = _parameters(model, num_items=23, num_users=5)
    items_UC = np.random.default_rng(2).integers(0, 23, (5, 6))
    expected = _plain(model, shared, private).gather(1, torch.from_numpy(items_UC))
    _equal(model.score_candidates(shared, private, items_UC), expected)


def test_empty_blocks() -> None:
    model = NeuMF(4)
    shared, private = _parameters(model, num_items=3, num_users=2)
    nobody = {n: t[:0] for n, t in private.items()}
    assert model.scores(shared, nobody, None).shape == (0, 3)
    assert model.scores(shared, private, np.zeros(0, dtype=np.int64)).shape == (2, 0)
    assert model.score_candidates(shared, private, np.zeros((2, 0), dtype=np.int64)).shape == (2, 0)


def test_layers_round_trip() -> None:
    model = NeuMF(4)
    shared, _ = _parameters(model, num_items=3, num_users=1)
    layers = Layers.pack(shared, model.widths)
    assert layers.widths == model.widths == (32, 16, 8, 4)
    back = layers.unpack()
    assert set(back) == set(shared) - model.item_tables
    assert all(torch.equal(back[n], shared[n]) for n in back)


@pytest.mark.parametrize("field", ["factors", "mlp_layers"])
def test_impossible_widths_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be at least 1, got 0"):
        NeuMF(**{field: 0})
