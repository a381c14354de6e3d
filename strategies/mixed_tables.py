"""What FedCA and FedEM share: own item tables, and a weighted sum of them for each user.

A user keeps an item table and uploads it. The server finds for each user i of the round weights
on the simplex nearest to a vector of affinities, w_i = argmin ‖w - v_i‖², and makes for it the
table Σ_j w_ij Q_j. It waits on the server until the user is trained or ranked next, and enters its
own table then. The shared table is the mean of the round's by samples: whoever has no table yet
starts from it and ranks with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models import optim
from models.linear import own_rows
from models.mf import ITEM, USER, MatrixFactorisation
from models.types import History, IndividualUpdates, IntArray, Samples, Tensors
from strategies import own_tables
from strategies.base import StrategyConfig
from strategies.kept_tables import WaitingTables
from strategies.simplex import project_rows

AGGREGATE, SAMPLES, ROUND = "aggregated_item_emb", "samples", "round"
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MixedTablesConfig(StrategyConfig):
    """Settings of both."""

    local_epochs: int = 10
    server_optimiser: optim.OptimiserName = "sgd"
    """Of the shared table; ``sgd`` with ``server_lr`` 1 takes the mean of the round's tables."""
    server_lr: float = 1.0
    batch_size: int = 256
    """Consecutive samples a local Adam step; its loss is their mean."""
    embedding_lr: float = 0.01
    """Local learning rate of the user's vector and item table."""
    similarity: float = 0.3
    """Weight of the similarity of two users' tables in their affinity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least_one("batch_size")
        self._positive("embedding_lr")
        self._not_negative("similarity")


class MixedTables(WaitingTables):
    """Base of FedCA and FedEM: a subclass trains, mixes, and states affinities."""

    tables_folder: ClassVar[str] = "aggregates"
    waiting_name: ClassVar[str] = AGGREGATE
    dense_updates: ClassVar[bool] = True
    common_start: ClassVar[bool] = True
    config: MixedTablesConfig
    model: MatrixFactorisation

    def check(self) -> None:
        """Users have a vector, and items a row each."""
        super().check()
        if not isinstance(self.model, MatrixFactorisation):
            raise ValueError("this strategy needs model=mf: users keep tables of its embeddings")

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """A user's vector, and room for its item table."""
        parameters = self.model.init_private(num_items, rng)
        return parameters | own_tables.room(num_items, self.model.factors)

    # ---- to be given ---------------------------------------------------------------------
    def mixed(self, own_UID: Tensor, aggregate_UID: Tensor, private: Tensors) -> Tensor:
        """Users' tables once the server's have entered; also of one user, without U."""
        raise NotImplementedError

    def affinities(self, shared: Tensors, updates: IndividualUpdates) -> Array:
        """What the weights of each user (row) are to be near to (U, U)."""
        raise NotImplementedError

    # ---- client half ---------------------------------------------------------------------
    def adapt(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> Tensors:
        """A whole local round: the table that it moves is the user's own."""
        return self.client_update(shared, private, epochs, rng).private

    # ---- scoring -------------------------------------------------------------------------
    def scores_all(self, shared: Tensors, private_block: Tensors, history: History) -> Tensor:
        """With each user's table, the server's entered (U, I)."""
        with torch.no_grad():
            tables_UID = self._tables(shared, private_block)
            return (tables_UID @ private_block[USER][..., None])[..., 0]

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray, history: History
    ) -> Tensor:
        """The same for each user's own candidates (U, C)."""
        with torch.no_grad():
            rows_UCD = own_rows(self._tables(shared, private_block), items_UC)
            return (rows_UCD @ private_block[USER][..., None])[..., 0]

    def _tables(self, shared: Tensors, private_block: Tensors) -> Tensor:
        """The table that each user ranks with (U, I, D)."""
        own_UID = own_tables.own_or(private_block, shared[ITEM])
        if AGGREGATE not in shared:
            return own_UID
        return self.mixed(own_UID, shared[AGGREGATE].expand_as(own_UID), private_block)

    # ---- server half ---------------------------------------------------------------------
    def init_server_state(self, shared: Tensors) -> Tensors:
        """The optimiser's state and the number of rounds."""
        return {**super().init_server_state(shared), ROUND: torch.zeros(())}

    def individual_server_update(
        self, shared: Tensors, updates: IndividualUpdates, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """A table for each user of the round; the shared one steps towards their mean."""
        count, tables_UID = server_state[ROUND] + 1, updates.tensors[ITEM]
        weights = project_rows(self.affinities(shared, updates))
        flat_UX = tables_UID.reshape(len(updates), -1).cpu()
        sums_UX = torch.from_numpy(weights).to(flat_UX) @ flat_UX
        self.tables.put(int(count), updates.users_U, sums_UX.view(tables_UID.shape).numpy())
        shares_U = torch.from_numpy(sample_shares(updates)).to(tables_UID)
        mean_ID = torch.einsum("u,uid->id", shares_U, tables_UID)
        cfg, gradient = self.config, {ITEM: shared[ITEM] - mean_ID}
        moved, state = optim.step(
            cfg.server_optimiser, {ITEM: shared[ITEM]}, gradient, server_state, cfg.server_lr
        )
        return moved, {**state, ROUND: count}


def sample_shares(updates: IndividualUpdates) -> Array:
    """Each user's share of the samples of all (U,)."""
    samples_U = updates.tensors[SAMPLES].cpu().numpy().astype(np.float64)
    shares_U: Array = samples_U / samples_U.sum()
    return shares_U
