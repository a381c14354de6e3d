"""Implicit alternating least squares (Hu, Koren & Volinsky, ICDM 2008), federated.

A user solves its own vector p, and uploads ppᵀ, and p and ppᵀ in the rows of its items; from their
sums the server solves the items. With everybody in every round that is the central method; with
a part of the users ``statistics`` says what stands for the others. ``docs/fedials.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from models.als import ImplicitCost, solve_users
from models.als_items import Coordinates, Totals, solve_items, sum_by_item
from models.mf import ITEM, USER, MatrixFactorisation
from models.types import (
    CohortResult,
    History,
    Samples,
    Tensors,
    Update,
    positive_history,
)
from strategies.base import block_metrics
from strategies.fcf import FCF, FCFConfig
from strategies.from_history import Remembering

ROUND = "round"
"""Shared beside the items: rounds so far (), which say whose turn of the blocks it is."""
ITEM_SUMS, GRAM, USERS = "item_sums", "user_gram", "users"
"""Summed over users, and by block the server's totals: ``models.als_items.Totals``."""
UPLOADED, COUNTED = "uploaded", "counted"
"""Private: the vector of each block's last upload (K, D), and whether there was one (K,)."""


@dataclass(frozen=True)
class FedIALSConfig(FCFConfig):
    """Settings of fedials; those of the server's optimiser are not used."""

    server_lr: float = 0.001
    alpha: float = 0.0
    """How much more an item of the user counts than another; at 0 the users' ppᵀ in the rows of
    their items drop out, and are not sent."""
    item_reg: float = 0.1
    """Weight of an item's squared norm, in units of one user's cost: λ over the number of users."""
    statistics: Literal["latest", "decaying"] = "latest"
    """Sums of the latest upload of every user so far, or of all uploads, weighed down by age."""
    decay: float = 0.9
    """Weight of what was there before at each new sum, where ``decaying``; 0 is the round alone."""
    block_size: int | None = None
    """Coordinates that are solved for in a round, in turn; None is all of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Users fewer than factors leave the items without a unique vector.
        self._positive("item_reg")
        self._one_of("statistics", ("latest", "decaying"))
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be in [0, 1), got {self.decay}")
        if self.block_size is not None:
            self._at_least_one("block_size")


class FedIALS(Remembering, FCF):
    """Users in closed form on the node, items in closed form on the server."""

    Config: ClassVar[type[FedIALSConfig]] = FedIALSConfig
    title: ClassVar[str] = "iALS (Hu, Koren & Volinsky, ICDM 2008), federated sums"
    about: ClassVar[str] = "Implicit least squares: users and items in closed form, from sums"
    dense_updates: ClassVar[bool] = False
    config: FedIALSConfig

    def check(self) -> None:
        """The closed forms are those of dot products, and blocks are of one size."""
        if not isinstance(self.model, MatrixFactorisation):
            raise ValueError("fedials needs model=mf, whose users have a closed form")
        if self.model.factors % self._size:
            raise ValueError(
                f"block_size must divide model.factors, got {self._size} and {self.model.factors}"
            )

    @property
    def row_tables(self) -> frozenset[str]:
        """Sums by item have rows for the users' items alone."""
        return frozenset({ITEM_SUMS})

    @property
    def _size(self) -> int:
        size = self.config.block_size
        return self.model.factors if size is None else size

    @property
    def _num_blocks(self) -> int:
        return self.model.factors // self._size

    @property
    def _remembers(self) -> bool:
        return self.config.statistics == "latest"

    def _turn(self, shared: Tensors) -> int:
        """The block of the round that has begun."""
        return int(shared[ROUND]) % self._num_blocks

    @cached_property
    def _blocks(self) -> list[Coordinates]:
        """Kept, as each knows where its products are."""
        factors, size = self.model.factors, self._size
        return [Coordinates(factors, size, turn * size) for turn in range(self._num_blocks)]

    # ---- initial state -------------------------------------------------------------------
    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Items as the model draws them, and round 0."""
        return super().init_shared(num_items, rng) | {ROUND: torch.zeros(())}

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """The model's; nothing uploaded yet."""
        private = super().init_private(num_items, rng)
        if self._remembers:
            private[UPLOADED] = torch.zeros(self._num_blocks, self.model.factors)
            private[COUNTED] = torch.zeros(self._num_blocks)
        return private

    # ---- client half ---------------------------------------------------------------------
    def cohort_update(
        self,
        shared: Tensors,
        private_block: Tensors,
        epochs_U: Sequence[Sequence[Samples]],
        rngs: Sequence[np.random.Generator],
    ) -> CohortResult:
        """Vectors of a block of users, and what they add to the sums."""
        history = positive_history(epochs_U)
        users_UD = solve_users(shared[ITEM], history, self.cost)
        metrics = block_metrics(self._loss(shared[ITEM], users_UD, history), epochs_U)
        # As stored, so that what is subtracted next time is what was added now.
        own = {USER: users_UD.to(private_block[USER])}
        values_UX, new_U = self._values(shared, own[USER]), torch.ones_like(users_UD[:, 0])
        if self._remembers:
            turn, own = self._turn(shared), own | _copies(private_block)
            values_UX = values_UX - self._values(shared, own[UPLOADED][:, turn])
            new_U = 1 - own[COUNTED][:, turn]
            own[UPLOADED][:, turn], own[COUNTED][:, turn] = own[USER], 1
        sums = self._sums(values_UX, new_U, history, shared)
        return CohortResult(Update(sums, float(len(epochs_U))), own, metrics)

    def _loss(self, items_ID: Tensor, users_UD: Tensor, history: History) -> float:
        """Cost of users at its minimum: Σ c r² less right side times p, (1 + α)(n - Σ p·q)."""
        at_S = [torch.from_numpy(i).to(items_ID.device) for i in (history.items_S, history.users)]
        scores_S = (items_ID[at_S[0]].double() * users_UD[at_S[1]]).sum(1)
        return (1 + self.config.alpha) * float((1 - scores_S).sum())

    def _values(self, shared: Tensors, users_UD: Tensor) -> Tensor:
        """The block's coordinates of p and rows of ppᵀ (U, B + P), in float64."""
        block, users_UD = self._blocks[self._turn(shared)], users_UD.double()
        return torch.cat((users_UD[:, block.inside], block.packed(users_UD)), 1)

    def _sums(self, values_UX: Tensor, new_U: Tensor, history: History, shared: Tensors) -> Tensors:
        like, num_items = shared[ITEM], len(shared[ITEM])
        by_item = sum_by_item(values_UX[:, : self._item_width], history, num_items)
        sums = {ITEM_SUMS: by_item, GRAM: values_UX[:, self._size :].sum(0), USERS: new_U.sum()}
        return {n: t.to(like) for n, t in sums.items()}

    @property
    def _item_width(self) -> int:
        """Numbers that are summed for an item: without α its users' ppᵀ have no part in it."""
        return self._size + (self._blocks[0].num_products if self.config.alpha else 0)

    # ---- server half ---------------------------------------------------------------------
    def summed_template(self, shared: Tensors) -> Tensors:
        """Sums for one block of coordinates; zeros."""
        like = shared[ITEM]
        return {
            ITEM_SUMS: like.new_zeros(len(like), self._item_width),
            GRAM: like.new_zeros(self._blocks[0].num_products),
            USERS: like.new_zeros(()),
        }

    def init_server_state(self, shared: Tensors) -> Tensors:
        """Totals of each block (K, …) over no users."""
        template = self.summed_template(shared)
        return {n: t.new_zeros((self._num_blocks, *t.shape)) for n, t in template.items()}

    def server_update(
        self, shared: Tensors, summed: Update, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Totals with the round's sums, and the items that solve them in the block's coordinates.

        Raises:
            ValueError: when a system has no unique solution.

        """
        cfg, turn = self.config, self._turn(shared)
        state = {n: t.clone() for n, t in server_state.items()}
        for name, tensor in summed.tensors.items():
            kept = state[name][turn] * (1.0 if self._remembers else cfg.decay)
            state[name][turn] = kept + tensor
        sums = Totals(state[GRAM][turn], state[ITEM_SUMS][turn], state[USERS][turn])
        cost = ImplicitCost(cfg.alpha, cfg.item_reg)
        items_ID = solve_items(shared[ITEM], sums, self._blocks[turn], cost)
        return {ITEM: items_ID.to(shared[ITEM]), ROUND: shared[ROUND] + 1}, state


def _copies(private_block: Tensors) -> Tensors:
    return {n: private_block[n].clone() for n in (UPLOADED, COUNTED)}
