"""A-hum: the targets are made to please made-up users who dislike them ("hard users").

Source: Rong et al., Poisoning Deep Learning Based Recommender Model in Federated Learning
Scenarios (IJCAI 2022, arXiv 2204.13594). Fake users' vectors are drawn as the model draws them,
moved for ``steps`` steps to give the targets low scores, and then the shared parameters are to
give these users high scores of the targets. ``steps=0`` is A-ra of the same paper. Here the update
is as long as ``boost`` honest ones: what a gradient's size means depends on the strategy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from client_app.attacks.base import Attack, Round, length
from models import optim
from models.types import Tensors, Update


@dataclass(frozen=True)
class AHum(Attack):
    """Gradient of the targets' cross-entropy over users who dislike them."""

    knows: ClassVar[str] = "nothing of any user; the length of its own honest update"
    crafts: ClassVar[bool] = True
    fakes: int = 10
    """Made-up users."""
    steps: int = 30
    """Steps that make them dislike the targets."""
    lr: float = 0.1
    """Learning rate of these steps, by Adam."""
    boost: float = 1.0
    """Length of the update in lengths of the honest one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fakes < 1 or self.steps < 0:
            raise ValueError("fakes must be at least 1 and steps not negative")
        if self.lr <= 0 or self.boost <= 0:
            raise ValueError("lr and boost must be positive")

    def poisoned(self, honest: Update, user: int, scene: Round) -> Update:
        """The colluders' gradient, as long as ``boost`` times the user's honest one."""
        own = scene.gradient_of(honest)
        found = scene.once("a_hum", lambda: self._gradient(scene))
        crafted = {n: found.get(n, torch.zeros_like(t)) for n, t in own.items()}
        size = length(crafted)
        factor = self.boost * length(own) / size if size > 0 else 0.0
        return scene.update_of({n: factor * t for n, t in crafted.items()}, honest)

    def _gradient(self, scene: Round) -> Tensors:
        """Sum over the fake users, by the shared parameters."""
        leaves = {
            n: t.detach().clone().requires_grad_(t.is_floating_point())
            for n, t in scene.shared.items()
        }
        loss = sum(
            (self._loss(scene, leaves, self._hard_user(scene, fake), 1.0)
             for fake in range(self.fakes)),
            torch.zeros(()),
        )  # fmt: skip
        wanted = [n for n, t in leaves.items() if t.requires_grad]
        found = torch.autograd.grad(loss, [leaves[n] for n in wanted], allow_unused=True)
        return {n: t for n, t in zip(wanted, found, strict=True) if t is not None}

    def _hard_user(self, scene: Round, fake: int) -> Tensors:
        """A drawn user, after its steps away from the targets."""
        private = scene.strategy.model.init_private(scene.dataset.num_items, scene.rng(fake))
        moments = optim.init_state("adam", private)
        for _ in range(self.steps):
            leaves = {n: t.detach().requires_grad_() for n, t in private.items()}
            loss = self._loss(scene, scene.shared, leaves, 0.0)
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            gradient = {
                n: torch.zeros_like(leaves[n]) if g is None else g
                for n, g in zip(leaves, found, strict=True)
            }
            private, moments = optim.step("adam", private, gradient, moments, self.lr)
        return private

    def _loss(self, scene: Round, shared: Tensors, private: Tensors, label: float) -> Tensor:
        """Cross-entropy of the targets, summed."""
        items_T = torch.from_numpy(scene.target_rows)
        logits_T = scene.strategy.model.logits(shared, private, items_T)
        labels_T = torch.full_like(logits_T, label)
        return functional.binary_cross_entropy_with_logits(logits_T, labels_T, reduction="sum")
