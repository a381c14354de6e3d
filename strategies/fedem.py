"""FedEM (AAAI 2026, arXiv 2508.12386): each user learns how much of the server's table it takes.

Users keep item tables and the server makes a sum of the round's tables for each of them, near to
the affinities p_j + α · s_ij of samples and similarity (``strategies.mixed_tables``). A private
adapter merges the two, row by row (``models.elastic_merge``); it is trained through merged rows,
and what a user keeps, uploads and ranks with is the merged table. ``docs/fedem.md`` says where
the paper, its public code and this differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from models.adam_rows import adam_rows
from models.elastic_merge import ElasticRates, elastic_adam, init_adapter, merged
from models.mf import ITEM, USER
from models.mini_batches import mini_batches
from models.types import ClientResult, IndividualUpdates, Samples, Tensors, Update
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
from strategies.principal import closeness, first_columns


@dataclass(frozen=True)
class FedEMConfig(MixedTablesConfig):
    """Settings of FedEM."""

    embedding_lr: float = 0.1
    similarity: float = 0.9
    adapter_lr: float = 0.1
    """Local learning rate of the adapter."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("adapter_lr")


class FedEM(MixedTables):
    """Own tables, merged by a private adapter with a weighted sum of the cohort's."""

    Config: ClassVar[type[StrategyConfig]] = FedEMConfig
    title: ClassVar[str] = "FedEM (AAAI 2026, arXiv 2508.12386)"
    about: ClassVar[str] = "Own item tables; a private adapter merges in those of similar users"
    config: FedEMConfig

    def check(self) -> None:
        """The adapter's second layer is half as wide as an embedding."""
        super().check()
        if self.model.factors % 2:
            raise ValueError(f"fedem needs even model.factors, got {self.model.factors}")

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """A user's vector and adapter, and room for its item table."""
        drawn = super().init_private(num_items, rng)
        return {**drawn, **init_adapter(self.model.factors, rng)}

    # ---- client half ---------------------------------------------------------------------
    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """Adam on vector, table and, where the server sent a table, the adapter between."""
        table_ID = own_tables.own_or(private, shared[ITEM])
        batches = mini_batches(epochs, self.config.batch_size)
        if AGGREGATE in shared:
            cfg, server_ID = self.config, shared[AGGREGATE]
            rates = ElasticRates(cfg.embedding_lr, cfg.adapter_lr)
            table_ID, trained, loss = elastic_adam(table_ID, server_ID, private, batches, rates)
            table_ID = merged(table_ID, server_ID, trained)
        else:
            lr = self.config.embedding_lr
            table_ID, user_D, loss = adam_rows(table_ID, private[USER], batches, lr)
            trained = {USER: user_D}
        own = own_tables.kept(table_ID, private)
        upload = {ITEM: table_ID, SAMPLES: table_ID.new_tensor(float(len(epochs[0])))}
        metrics = training_metrics(loss, epochs)
        return ClientResult(Update({}, 1.0), private | trained | own, metrics, upload)

    def mixed(self, own_UID: Tensor, aggregate_UID: Tensor, private: Tensors) -> Tensor:
        """Merged by each user's adapter."""
        return merged(own_UID, aggregate_UID, private)

    # ---- server half ---------------------------------------------------------------------
    def individual_template(self, shared: Tensors) -> Tensors:
        """A user uploads its table and its number of samples."""
        return {ITEM: shared[ITEM], SAMPLES: shared[ITEM].new_zeros(())}

    def affinities(self, shared: Tensors, updates: IndividualUpdates) -> Array:
        """p_j + α · s_ij (U, U)."""
        near_UU = np.broadcast_to(sample_shares(updates), (len(updates), len(updates)))
        if self.config.similarity == 0:
            return near_UU
        reference_ID = shared[ITEM].cpu().numpy()
        columns_UI = first_columns(updates.tensors[ITEM].cpu().numpy(), reference_ID)
        return near_UU + self.config.similarity * closeness(columns_UI)
