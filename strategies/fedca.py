"""FedCA (arXiv 2406.03933): tables mixed by similarity and complementarity of users.

A user trains a vector and an item table of its own by Adam, and uploads the table, the first
principal axes of the rows of its samples' items, and how many samples it has. The server's
affinity of users i and j is p_j + a · c_ij + b · s_ij: the share of samples, the cosine of the mean
principal angle between the users' axes, and a similarity of their tables. The user takes part of
the table that the server makes for it, ``strategies.mixed_tables``: Q ← ρ Q + (1 - ρ) Σ_j w_ij Q_j.
``docs/fedca.md`` says where the paper, its public code and this differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from models.adam_rows import adam_rows
from models.mf import ITEM, USER
from models.mini_batches import mini_batches
from models.types import ClientResult, IndividualUpdates, Samples, Tensors, Update, touched_items
from strategies import own_tables
from strategies.base import StrategyConfig, training_metrics
from strategies.mixed_tables import (
    AGGREGATE,
    SAMPLES,
    Array,
    MixedTables,
    MixedTablesConfig,
    sample_shares,
)
from strategies.principal import alignment, closeness, first_columns, principal_axes

BASIS = "basis"


@dataclass(frozen=True)
class FedCAConfig(MixedTablesConfig):
    """Settings of FedCA."""

    own_share: float = 0.9
    """ρ, what a user keeps of its own table as the server's enters, from 0 to 1."""
    complementarity: float = 0.3
    """Weight of the cosine of the mean principal angle in the affinity."""
    components: int = 4
    """Principal axes that a user uploads, at most ``model.factors``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.own_share <= 1:
            raise ValueError(f"own_share must lie in 0..1, got {self.own_share}")
        self._not_negative("complementarity")
        self._at_least_one("components")


class FedCA(MixedTables):
    """Own tables; a weighted sum of the cohort's for each of its users."""

    Config: ClassVar[type[StrategyConfig]] = FedCAConfig
    title: ClassVar[str] = "FedCA (arXiv 2406.03933)"
    about: ClassVar[str] = "Own item tables, mixed by users' similarity and complementarity"
    config: FedCAConfig

    def check(self) -> None:
        """As many axes as there are factors, at most."""
        super().check()
        if self.config.components > self.model.factors:
            raise ValueError(
                f"components must be at most model.factors, {self.model.factors}, "
                f"got {self.config.components}"
            )

    # ---- client half ---------------------------------------------------------------------
    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """Adam on vector and table, from the user's table with the server's entered."""
        start_ID = own_tables.own_or(private, shared[ITEM])
        if AGGREGATE in shared:
            start_ID = self.mixed(start_ID, shared[AGGREGATE], private)
        batches, cfg = mini_batches(epochs, self.config.batch_size), self.config
        table_ID, user_D, loss = adam_rows(start_ID, private[USER], batches, cfg.embedding_lr)
        rows_RD = table_ID[torch.from_numpy(touched_items(batches)).to(table_ID.device)]
        axes_DK = principal_axes(rows_RD.cpu().numpy(), cfg.components)
        upload = {
            ITEM: table_ID,
            BASIS: torch.from_numpy(axes_DK).to(table_ID),
            SAMPLES: table_ID.new_tensor(float(len(epochs[0]))),
        }
        kept = {USER: user_D} | own_tables.kept(table_ID, private)
        return ClientResult(Update({}, 1.0), kept, training_metrics(loss, epochs), upload)

    def mixed(self, own_UID: Tensor, aggregate_UID: Tensor, private: Tensors) -> Tensor:
        """ρ of the own table and the rest of the server's."""
        return own_UID.lerp(aggregate_UID, 1 - self.config.own_share)

    # ---- server half ---------------------------------------------------------------------
    def individual_template(self, shared: Tensors) -> Tensors:
        """A user uploads table, axes and number of samples."""
        like = shared[ITEM]
        basis_DK = like.new_zeros(like.shape[1], self.config.components)
        return {ITEM: like, BASIS: basis_DK, SAMPLES: like.new_zeros(())}

    def affinities(self, shared: Tensors, updates: IndividualUpdates) -> Array:
        """p_j + a · c_ij + b · s_ij (U, U)."""
        cfg, single = self.config, {n: t.cpu().numpy() for n, t in updates.tensors.items()}
        near_UU = np.broadcast_to(sample_shares(updates), (len(updates), len(updates)))
        if cfg.complementarity > 0:
            near_UU = near_UU + cfg.complementarity * alignment(single[BASIS])
        if cfg.similarity > 0:
            columns_UI = first_columns(single[ITEM], shared[ITEM].cpu().numpy())
            near_UU = near_UU + cfg.similarity * closeness(columns_UI)
        return near_UU
