"""CoFedRec (WWW 2024, arXiv 2411.01690): clusters of items for all, a mean of tables for some.

Every user keeps an item table and a linear scorer of its own and uploads the table. The server
clusters the items on the mean of the uploads and sends the labels, by which a contrastive loss
of each user draws items of a cluster together. It also draws a core user and a cluster, finds
the users like the core on the cluster's items, and gives this group the mean of its tables.
``docs/cofedrec.md`` says where the paper, its public code and this differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from logging import INFO
from typing import ClassVar

import numpy as np
import torch
from flwr.common.logger import log
from torch import Tensor

from models.contrastive_sgd import Clusters, ContrastiveRates, contrastive_step
from models.kmeans import kmeans
from models.linear import ITEM, LinearScoring, own_rows, score_rows
from models.mini_batches import mini_batches
from models.supcon import Temperatures
from models.types import (
    ClientResult,
    FloatArray,
    History,
    IndividualUpdates,
    IntArray,
    Samples,
    Tensors,
    Update,
)
from strategies import own_tables
from strategies.base import StrategyConfig, training_metrics
from strategies.cofedrec_config import CoFedRecConfig
from strategies.kept_tables import WaitingTables
from strategies.own_tables import OWN
from strategies.user_groups import group_of, likeness
from strategies.user_tables import NO_TABLE

LABELS, GROUP = "labels", "group_item_emb"
ROUND, GROUP_SIZE = "round", "group_size"
UNKNOWN = -1.0
"""Label of every item before the first clustering."""


class CoFedRec(WaitingTables):
    """Own tables with contrastive supervision; one group's tables are averaged a round."""

    Config: ClassVar[type[StrategyConfig]] = CoFedRecConfig
    title: ClassVar[str] = "CoFedRec (WWW 2024, arXiv 2411.01690)"
    about: ClassVar[str] = "Own item tables, clusters of items as supervision, means within groups"
    tables_folder: ClassVar[str] = "groups"
    waiting_name: ClassVar[str] = GROUP
    dense_updates: ClassVar[bool] = True
    common_start: ClassVar[bool] = True
    config: CoFedRecConfig
    model: LinearScoring

    def check(self) -> None:
        """The scorer must be the linear one."""
        if not isinstance(self.model, LinearScoring):
            raise ValueError("cofedrec needs model=linear: its scorer is linear")

    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """The table that all users start from, and no labels yet."""
        labels_I = torch.full((num_items,), UNKNOWN)
        return {**super().init_shared(num_items, rng), LABELS: labels_I}

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """A user's scorer, and room for its item table."""
        scorer = self.model.init_private(num_items, rng)
        return scorer | own_tables.room(num_items, self.model.factors)

    # ---- client half ---------------------------------------------------------------------
    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """Two steps a mini-batch, from the group's table, one's own, or the shared one."""
        items_ID, scorer = self._table(shared, private).clone(), self.private_parameters(private)
        batches = mini_batches(epochs, self.config.batch_size)
        loss, contrast = 0.0, 0.0
        for batch in batches:
            clusters = self._clusters(shared[LABELS], rng)
            scorer, *found = contrastive_step(items_ID, scorer, batch, clusters, self._rates)
            loss += found[0] / len(batches)
            contrast += found[1] / len(batches)
        metrics = training_metrics(loss, epochs) | {"supcon_loss": contrast}
        kept = scorer | own_tables.kept(items_ID, private)
        return ClientResult(Update({}, 1.0), kept, metrics, {ITEM: items_ID})

    def adapt(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> Tensors:
        """A whole local round: the table that it moves is the user's own."""
        return self.client_update(shared, private, epochs, rng).private

    def _table(self, shared: Tensors, private: Tensors) -> Tensor:
        """What a user's next training or ranking goes by (I, D); of a block (U, I, D)."""
        if GROUP in shared:
            return shared[GROUP].expand_as(private[OWN])
        return own_tables.own_or(private, shared[ITEM])

    def _clusters(self, labels_I: Tensor, rng: np.random.Generator) -> Clusters | None:
        """All items with their labels, or some of them where that is set; None without labels."""
        count, wanted = len(labels_I), self.config.supcon_items
        if labels_I[0] == UNKNOWN or self.config.contrast == 0:
            return None
        if wanted is None or wanted >= count:
            return Clusters(torch.arange(count, device=labels_I.device), labels_I, 1.0)
        drawn_R = torch.from_numpy(rng.choice(count, wanted, replace=False)).to(labels_I.device)
        return Clusters(drawn_R, labels_I[drawn_R], count / wanted)

    @cached_property
    def _rates(self) -> ContrastiveRates:
        cfg = self.config
        at = Temperatures(cfg.tau, cfg.tau_base)
        return ContrastiveRates(cfg.scorer_lr, cfg.item_lr, cfg.contrast, at)

    # ---- scoring -------------------------------------------------------------------------
    def scores_all(self, shared: Tensors, private_block: Tensors, history: History) -> Tensor:
        """With each user's table (U, I): the group's, its own, or the shared one."""
        with torch.no_grad():
            return score_rows(self._table(shared, private_block), private_block)

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray, history: History
    ) -> Tensor:
        """The same for each user's own candidates (U, C)."""
        with torch.no_grad():
            rows_UCD = own_rows(self._table(shared, private_block), items_UC)
            return score_rows(rows_UCD, private_block)

    # ---- server half ---------------------------------------------------------------------
    def individual_template(self, shared: Tensors) -> Tensors:
        """A user uploads its table."""
        return {ITEM: shared[ITEM]}

    def init_server_state(self, shared: Tensors) -> Tensors:
        """The number of rounds, and users of the latest group."""
        return {ROUND: torch.zeros(()), GROUP_SIZE: torch.zeros(())}

    def individual_server_update(
        self, shared: Tensors, updates: IndividualUpdates, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """New labels for all, and the mean of a group's tables for its members."""
        count, tables_UID = int(server_state[ROUND]) + 1, updates.tensors[ITEM].cpu().numpy()
        rng, mean_ID = self.server_rng(count), updates.tensors[ITEM].mean(dim=0)
        labels_I = kmeans(mean_ID.cpu().numpy(), self.config.clusters, rng)
        group = _draw_group(tables_UID, labels_I, rng)
        self._keep(count, updates.users_U, tables_UID, group)
        log(INFO, "round %d: a group of %d of %d users", count, len(group), len(updates))
        state = {
            ROUND: server_state[ROUND] + 1,
            GROUP_SIZE: torch.full_like(server_state[GROUP_SIZE], len(group)),
        }
        start_ID = mean_ID if self.config.start_from == "mean" else shared[ITEM]
        return {ITEM: start_ID, LABELS: torch.from_numpy(labels_I).to(shared[LABELS])}, state

    def _keep(
        self, round_: int, users_U: IntArray, tables_UID: FloatArray, group: IntArray
    ) -> None:
        """The group's table is for its members; whoever else was trained has what it had."""
        rows_U = np.full(len(users_U), NO_TABLE)
        if len(group) < 2:  # the core's own table, which it has
            self.tables.put(round_, users_U, tables_UID[:0], rows_U)
            return
        rows_U[group] = 0
        mean_1ID = tables_UID[group].mean(axis=0, keepdims=True)
        self.tables.put(round_, users_U, mean_1ID, rows_U)


def _draw_group(tables_UID: FloatArray, labels_I: IntArray, rng: np.random.Generator) -> IntArray:
    """Positions of the users like a random core on a random cluster that has items."""
    core = int(rng.integers(len(tables_UID)))
    items_R = np.flatnonzero(labels_I == rng.choice(np.unique(labels_I)))
    return group_of(likeness(tables_UID, core, items_R), core)
