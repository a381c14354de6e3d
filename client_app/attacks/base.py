"""What all attacks share: who is malicious, which items they care for, what they know.

Malicious users are a seeded subset of the real ones. Their devices keep training as honest ones
do; only the update that they send is another. Attackers who collude share the seed, so that each
computes the same by itself, on whatever node it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from threading import RLock
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from client_app.data import Dataset
from client_app.node_config import NodeError
from client_app.ragged import Ragged
from conf.tree import AttackConfig, Config
from models.rng import Role, derive_rng
from models.types import IntArray, Samples, Tensors, Update
from strategies.base import RecStrategy

Change = Callable[[Samples], Samples]
"""From the samples of a local epoch to those that are trained on instead."""
Again = Callable[[int, Change], Update]
"""The update of a user whose local training begins as it did, on changed samples."""
Found = TypeVar("Found")

UNPOPULAR = 0.1
"""Targets are drawn among this share of the catalogue, the items with fewest interactions."""
WHO, WHAT, PUBLIC = 0, 1, 2
"""Streams of a run: malicious users, targets, the public sample. Those of a round follow."""
OF_A_ROUND = 3


@dataclass(frozen=True)
class Attack(AttackConfig):
    """Settings of all attacks; a subclass adds its own and says what is sent."""

    watches: ClassVar[bool] = True
    knows: ClassVar[str] = "nothing"
    """What the attackers know beside the shared parameters, their seed and the targets."""
    crafts: ClassVar[bool] = False
    """The update is made from a model with a vector a user, not by local training."""

    fraction: float = 0.05
    """Share of the users that are malicious: its floor, at least one user."""
    targets: tuple[str, ...] = ()
    """Raw ids of the target items; none: ``num_targets`` of them are drawn among the tenth of the
    catalogue with the fewest interactions."""
    num_targets: int = 5
    start_round: int = 1
    """Malicious users are honest in the rounds before."""
    clean: str | None = None
    """A completed run without an attack, by its name under ``output`` or its absolute folder, that
    figures are compared with; ``attack=benign`` makes one that ranks the same users."""

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise ValueError(f"fraction must be above 0 and below 1, got {self.fraction}")
        for name in ("num_targets", "start_round"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if len(set(self.targets)) < len(self.targets):
            raise ValueError("targets names an item twice")

    def poisoned(self, honest: Update, user: int, scene: Round) -> Update:
        """What a malicious user sends instead of its honest update."""
        raise NotImplementedError

    def malicious(self, seed: int, num_users: int) -> IntArray:
        """Global indices of the malicious users, ascending; one user at least stays honest."""
        wanted = max(1, math.floor(Fraction(repr(self.fraction)) * num_users))
        count = min(wanted, num_users - 1)
        drawn = derive_rng(seed, Role.ATTACK, WHO).choice(num_users, size=count, replace=False)
        return np.sort(drawn).astype(np.int64)

    def sends(self, server_round: int) -> bool:
        """From ``start_round`` on."""
        return server_round >= self.start_round

    def problem(self, strategy: Any) -> str | None:
        """Crafted updates need a model whose score has a vector of the user."""
        if self.crafts and strategy.model.scores_from_history:
            return "the attack makes users' vectors up, and the model has none"
        return None

    def target_items(self, seed: int, dataset: Dataset) -> IntArray:
        """Item indices of the targets, ascending.

        Raises:
            NodeError: naming a target that is not in the catalogue.

        """
        if self.targets:
            return np.sort([_index(dataset, raw) for raw in self.targets]).astype(np.int64)
        counts_I = dataset.item_counts(np.arange(dataset.num_users))
        pool = max(self.num_targets, int(UNPOPULAR * len(counts_I)))
        rare = np.argsort(counts_I, kind="stable")[:pool]
        count = min(self.num_targets, len(rare))
        drawn = derive_rng(seed, Role.ATTACK, WHAT).choice(rare, size=count, replace=False)
        return np.sort(drawn).astype(np.int64)


def _index(dataset: Dataset, raw: str) -> int:
    (places,) = np.nonzero(dataset.item_ids == raw)
    if not len(places):
        raise NodeError(f"attack.targets: there is no item {raw!r} in the catalogue")
    return int(places[0])


@dataclass(frozen=True)
class Round:
    """What the malicious users of a node see in a round, as far as an attack may know it."""

    cfg: Config
    strategy: RecStrategy
    dataset: Dataset
    round: int
    shared: Tensors
    """The round's shared parameters, on the CPU: everybody gets them."""
    again: Again
    _kept: dict[str, Any] = field(default_factory=dict)
    _lock: Any = field(default_factory=RLock)

    def rng(self, *indices: int) -> np.random.Generator:
        """A stream of the colluding attackers in this round."""
        return derive_rng(self.cfg.seed, Role.ATTACK, OF_A_ROUND, self.round, *indices)

    def once(self, name: str, make: Callable[[], Found]) -> Found:
        """What all attackers compute alike, computed once a node and round."""
        with self._lock:
            if name not in self._kept:
                self._kept[name] = make()
            found: Found = self._kept[name]
            return found

    @property
    def malicious_users(self) -> IntArray:
        """Global indices of all malicious users."""
        seed, num_users = self.cfg.seed, self.dataset.num_users
        return self.once("malicious", lambda: self.cfg.attack.malicious(seed, num_users))

    @property
    def target_rows(self) -> IntArray:
        """Item indices of the targets."""
        attack = self.cfg.attack
        assert isinstance(attack, Attack)
        return self.once("targets", lambda: attack.target_items(self.cfg.seed, self.dataset))

    def items_of(self, user: int) -> IntArray:
        """Distinct training items of a malicious user: colluding attackers know these."""
        if user not in self.malicious_users:
            raise ValueError(f"user {user} is honest: attackers do not know its items")
        return np.unique(self.dataset.train_of(user))

    def public(self, share: float) -> Ragged:
        """A sample of all users' training interactions, each in it with probability ``share``.

        The same in all rounds of a run.
        """
        rows = self.dataset.train_rows(np.arange(self.dataset.num_users))
        drawn = derive_rng(self.cfg.seed, Role.ATTACK, PUBLIC).random(len(rows.values)) < share
        lengths_U = np.bincount(rows.users[drawn], minlength=self.dataset.num_users)
        return Ragged(rows.values[drawn], lengths_U)

    # ---- between updates and gradients -------------------------------------------------------
    def gradient_of(self, update: Update) -> Tensors:
        """What an update of one user says as a gradient: the server is to go against it."""
        dense = {n: t.to_dense() for n, t in update.tensors.items()}
        mean = replace(update, tensors=dense).mean()
        return {n: self._sign * t.cpu() for n, t in mean.items()}

    def update_of(self, gradient: Tensors, honest: Update) -> Update:
        """An update that says this gradient, with the weight of the honest one.

        Where rows are weighted, a row that the honest update has not touched gets the mean of
        the weights of those it has.
        """
        weighted = honest.row_weights or {}
        rows = {n: _weights(t, gradient[n]) for n, t in weighted.items()}
        tensors = dict(honest.tensors)
        for name, tensor in gradient.items():
            like = honest.tensors[name]
            factor = _wide(rows[name], tensor).to(like) if name in rows else honest.weight
            tensors[name] = (self._sign * tensor.to(like) * factor).to(like.dtype)
        return Update(tensors, honest.weight, rows or None)

    @property
    def _sign(self) -> float:
        return -1.0 if self.strategy.update_kind == "delta" else 1.0


def _weights(weights_I: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Row weights of a table of which other rows are touched."""
    known = weights_I[weights_I > 0]
    usual = known.mean() if len(known) else weights_I.new_ones(())
    touched_I = table.reshape(len(table), -1).any(1).to(weights_I.device)
    own_I = torch.where(weights_I > 0, weights_I, usual)
    return torch.where(touched_I, own_I, torch.zeros_like(weights_I))


def _wide(weights_I: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return weights_I.reshape(-1, *[1] * (table.dim() - 1))


def length(tensors: Tensors) -> float:
    """Euclidean norm of all tensors together."""
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors.values()))


@dataclass(frozen=True)
class AttackStep:
    """The step on a user's update: of malicious users another one is sent."""

    attack: Attack
    scene: Round

    def __call__(self, update: Update, user: int, round_: int) -> Update:
        """The honest update, or what the attack makes of it."""
        if not self.attack.sends(round_) or user not in self.scene.malicious_users:
            return update
        return self.attack.poisoned(update, user, self.scene)
