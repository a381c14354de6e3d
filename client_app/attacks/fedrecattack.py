"""FedRecAttack: a public sample of interactions stands in for the users that are not seen.

Source: Rong et al. (ICDE 2022, arXiv 2204.01499). Vectors are fitted to the public items of some
users. Where s is a score and the top ten leave out the user's public items and the targets, the
loss of a target t is f(s of the tenth − s_t), f(x) = x from 0 on and eˣ − 1 below: it falls
until the target is well inside the list. Attackers send its gradient by item rows, of few rows
and with their lengths clipped, and nothing of other parameters.

Where this differs from the public code: vectors are fitted as the strategy fits those of new
users, not by BPR; lengths are clipped in units of the longest row of the honest update, since
what a length of one means depends on the strategy; and attackers draw their rows independently,
each from the whole gradient, where the code hands on what an attacker left over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from client_app.attacks.base import Attack, Round
from client_app.attacks.surrogates import surrogate
from models.types import IntArray, Tensors, Update

TOP = 10


@dataclass(frozen=True)
class FedRecAttack(Attack):
    """Item rows that bring the targets into the top ten of surrogate users."""

    knows: ClassVar[str] = "a public sample of all users' interactions"
    crafts: ClassVar[bool] = True
    public: float = 0.01
    """Part of all training interactions that is public."""
    surrogates: int = 24
    """Users with public items whose vectors are fitted, drawn anew each round."""
    steps: int = 5
    """Local rounds of a fit."""
    rows: int = 60
    """Item rows of an update at most, the targets among them."""
    clip: float = 1.0
    """Greatest length of a row, in lengths of the longest row of the honest update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.public <= 1:
            raise ValueError(f"public must be above 0 and at most 1, got {self.public}")
        if min(self.surrogates, self.steps, self.rows) < 1:
            raise ValueError("surrogates, steps and rows must be at least 1")
        if self.clip <= 0:
            raise ValueError(f"clip must be positive, got {self.clip}")

    def problem(self, strategy: Any) -> str | None:
        """There must be item embeddings."""
        if not strategy.model.item_tables:
            return "the model has no item embeddings to change"
        return super().problem(strategy)

    def poisoned(self, honest: Update, user: int, scene: Round) -> Update:
        """Some rows of the colluders' gradient."""
        own = scene.gradient_of(honest)
        found = scene.once("fedrecattack", lambda: self._gradient(scene))
        tables = {n: found[n] for n in sorted(found) if n in own}
        kept_I = self._kept(tables, scene, user)
        crafted = {n: torch.zeros_like(t) for n, t in own.items()}
        for name, table in tables.items():
            limit = self.clip * float(_lengths(own[name]).max())
            crafted[name] = clipped(table * _wide(kept_I, table), limit)
        return scene.update_of(crafted, honest)

    def _kept(self, tables: Tensors, scene: Round, user: int) -> Tensor:
        """One for the rows that are sent: the targets, and others drawn in proportion to length."""
        lengths_I = torch.stack([_lengths(t).square() for t in tables.values()]).sum(0).sqrt()
        chances = lengths_I.double().numpy().copy()
        chances[scene.target_rows] = 0
        room = min(max(0, self.rows - len(scene.target_rows)), int((chances > 0).sum()))
        kept_I = torch.zeros(len(chances))
        kept_I[torch.from_numpy(scene.target_rows[: self.rows])] = 1
        if room:
            shares = chances / chances.sum()
            drawn = scene.rng(user).choice(len(chances), size=room, replace=False, p=shares)
            kept_I[torch.from_numpy(drawn)] = 1
        return kept_I

    def _gradient(self, scene: Round) -> Tensors:
        """By the item tables, summed over surrogate users and targets."""
        model = scene.strategy.model
        leaves = {
            n: t.detach().clone().requires_grad_(n in model.item_tables)
            for n, t in scene.shared.items()
        }
        loss = torch.zeros(())
        for place, items in enumerate(_profiles(scene, self.public, self.surrogates)):
            # Below the places of users' surrogates lie as many as there are malicious ones.
            at = scene.dataset.num_users + place
            private = surrogate(scene, items, at, self.steps)
            loss = loss + wanted_in_list(
                scene, leaves, scene.strategy.private_parameters(private), items
            )
        names = sorted(model.item_tables)
        if not loss.requires_grad:
            return {n: torch.zeros_like(scene.shared[n]) for n in names}
        return dict(zip(names, torch.autograd.grad(loss, [leaves[n] for n in names]), strict=True))


def wanted_in_list(scene: Round, leaves: Tensors, private: Tensors, items: IntArray) -> Tensor:
    """The loss of a user with these public items, summed over the targets."""
    model, targets_T = scene.strategy.model, torch.from_numpy(scene.target_rows)
    block = {n: t[None] for n, t in private.items()}
    scores_I = model.scores(scene.shared, block, None)[0].clone()
    scores_I[torch.from_numpy(items)] = -torch.inf
    scores_I[targets_T] = -torch.inf
    count = min(TOP, int(scores_I.isfinite().sum()))
    if not count:
        return torch.zeros(())
    tenth = scores_I.topk(count).indices[-1:]
    logits = model.logits(leaves, private, torch.cat([tenth, targets_T]))
    behind_T = logits[0] - logits[1:]
    losses_T = torch.where(behind_T >= 0, behind_T, behind_T.clamp(max=0).expm1())
    total: Tensor = losses_T.sum()
    return total


def _profiles(scene: Round, public: float, count: int) -> list[IntArray]:
    """Public items of users who have some, drawn for the round."""
    sample = scene.once("public", lambda: scene.public(public))
    (known,) = np.nonzero(sample.lengths_U)
    chosen = scene.rng().choice(known, size=min(count, len(known)), replace=False)
    stops = np.cumsum(sample.lengths_U)
    return [np.unique(sample.values[stops[u] - sample.lengths_U[u] : stops[u]]) for u in chosen]


def _lengths(table: Tensor) -> Tensor:
    lengths_I: Tensor = table.reshape(len(table), -1).norm(dim=1)
    return lengths_I


def _wide(factors_I: Tensor, table: Tensor) -> Tensor:
    return factors_I.to(table).reshape(-1, *[1] * (table.dim() - 1))


def clipped(table: Tensor, limit: float) -> Tensor:
    """The table with each row shortened to ``limit`` where it is longer."""
    lengths_I = _lengths(table)
    return table * _wide((limit / lengths_I.clamp(min=1e-30)).clamp(max=1), table)
