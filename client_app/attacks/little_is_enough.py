"""A little is enough: as far from the mean of honest updates as hides in their spread.

Source: Baruch, Baruch & Goldberg (NeurIPS 2019, arXiv 1902.06156). Every attacker sends μ − zσ,
coordinate by coordinate over honest updates. Attackers do not see honest users' updates: they
take the mean and the spread from honest trainings on their own users' items, each with a vector
fitted to these (``client_app.attacks.surrogates``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from client_app.attacks.base import Attack, Round
from client_app.attacks.surrogates import trained_surrogate
from models.types import IntArray, Tensors, Update


@dataclass(frozen=True)
class LittleIsEnough(Attack):
    """The same update of all attackers, ``deviations`` from the mean."""

    knows: ClassVar[str] = "the items of all malicious users"
    deviations: float = 1.5
    """z: how many standard deviations from the mean, in each coordinate."""
    colluders: int = 8
    """Malicious users from whose items mean and spread are taken, at most."""
    steps: int = 5
    """Local rounds in which a colluder's vector is fitted to its items."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.deviations <= 0:
            raise ValueError(f"deviations must be positive, got {self.deviations}")
        if self.colluders < 2 or self.steps < 1:
            raise ValueError("colluders must be at least 2 and steps at least 1")

    def poisoned(self, honest: Update, user: int, scene: Round) -> Update:
        """μ − zσ, computed once a node and round."""
        return scene.update_of(scene.once("little", lambda: self._crafted(scene)), honest)

    def _crafted(self, scene: Round) -> Tensors:
        chosen = _chosen(scene, self.colluders)
        gradients = [
            scene.gradient_of(
                trained_surrogate(scene, scene.items_of(u), int(u), self.steps).update
            )
            for u in chosen
        ]
        return hidden_step(gradients, self.deviations)


def hidden_step(gradients: list[Tensors], deviations: float) -> Tensors:
    """Mean less ``deviations`` standard deviations (of the population), entry by entry.

    One update at a time is held as a sum and a sum of squares, in double.
    """
    out = {}
    for name, like in gradients[0].items():
        mean = sum((g[name].double() for g in gradients), torch.zeros_like(like.double()))
        mean = mean / len(gradients)
        spread = sum(((g[name].double() - mean).square() for g in gradients), mean * 0)
        out[name] = (mean - deviations * (spread / len(gradients)).sqrt()).to(like.dtype)
    return out


def _chosen(scene: Round, count: int) -> IntArray:
    """Colluders of a round: some of the malicious users, drawn anew."""
    users_U = scene.malicious_users
    if len(users_U) <= count:
        return users_U
    return scene.rng().choice(users_U, size=count, replace=False)
