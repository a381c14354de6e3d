"""PerFedRec (Luo et al., CIKM 2022, arXiv 2208.09375), on the graph that a user really knows.

A user trains its vector and a copy of the item embeddings by BPR on the star of its own
interactions and uploads how the copy moved. The server clusters users, keeps a table for
everybody and one a cluster, and a user ranks with the mean of its own, its cluster's and the
common scores. ``docs/perfedrec.md`` says why this is a variant and not the public code's method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from models import optim
from models.mf import ITEM, USER, MatrixFactorisation
from models.star_graph import bpr_gradients, star_scores, triples_of
from models.types import (
    ClientResult,
    History,
    IndividualUpdates,
    IntArray,
    Samples,
    Tensors,
    Update,
    positive_items,
    touched_items,
)
from strategies import own_tables
from strategies.base import RecStrategy, StrategyConfig, training_metrics
from strategies.own_tables import HAS_OWN, OWN
from strategies.perfedrec_config import PerFedRecConfig
from strategies.user_clusters import LABELS, clustered, labels_of, no_clusters, projected

CLUSTERS, CLUSTER, MOVED, VECTOR = "cluster_item_emb", "cluster", "item_movement", "user_vector"
TABLES, ROUND = "tables", "round"


class PerFedRec(RecStrategy):
    """Own, cluster and common item embeddings; three scores blended."""

    Config: ClassVar[type[StrategyConfig]] = PerFedRecConfig
    title: ClassVar[str] = "PerFedRec, star-graph variant (CIKM 2022, arXiv 2208.09375)"
    about: ClassVar[str] = "Blends scores of the user's own, its cluster's and the common items"
    needs_individual_updates: ClassVar[bool] = True
    personal_evaluation: ClassVar[bool] = True
    folds_evaluation: ClassVar[bool] = False
    config: PerFedRecConfig
    model: MatrixFactorisation

    def check(self) -> None:
        """The hop over the star is written for dot products."""
        if not isinstance(self.model, MatrixFactorisation):
            raise ValueError("perfedrec needs model=mf, whose scores are dot products")

    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """The common item embeddings (I, D), and each cluster's (K, I, D), at first the same."""
        items_ID = super().init_shared(num_items, rng)[ITEM]
        return {ITEM: items_ID, CLUSTERS: items_ID.repeat(self.config.clusters, 1, 1)}

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """A vector with zero moments, and room for the user's own table."""
        vector = self.model.init_private(num_items, rng)
        state = {**vector, **optim.init_state(self.config.private_optimiser, vector)}
        if not self.config.own_weight:
            return state
        return state | own_tables.room(num_items, self.model.factors)

    # ---- client half ---------------------------------------------------------------------
    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """A step an epoch, on the vector and on the rows of the samples at the same point."""
        cfg, start_ID, loss = self.config, _start(shared), 0.0
        rows_R, own_R = touched_items(epochs), positive_items(epochs)
        rows = torch.from_numpy(rows_R).to(start_ID.device)
        rows_RD, vector, moments = start_ID[rows], {USER: private[USER]}, private
        for samples in epochs:
            triples = triples_of(samples, rows_R, own_R, rows_RD)
            by_rows, by_user, value = bpr_gradients(rows_RD, vector[USER], triples, cfg.reg)
            rows_RD = rows_RD - cfg.item_lr * by_rows
            vector, moments = optim.step(
                cfg.private_optimiser, vector, {USER: by_user}, moments, cfg.private_lr
            )
            loss += value / len(epochs)
        trained_ID = start_ID.index_copy(0, rows, rows_RD)
        uploaded = {MOVED: trained_ID - start_ID}
        if cfg.share_user:
            uploaded[VECTOR] = vector[USER]
        own = own_tables.kept(trained_ID, private) if self._own else {}
        return ClientResult(
            Update({}, 1.0), {**vector, **moments, **own}, training_metrics(loss, epochs), uploaded
        )

    def adapt(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> Tensors:
        """A whole local round: the user's own table is part of what it scores with."""
        return self.client_update(shared, private, epochs, rng).private

    @property
    def _own(self) -> bool:
        return self.config.own_weight > 0

    # ---- scoring -------------------------------------------------------------------------
    def scores_all(self, shared: Tensors, private_block: Tensors, history: History) -> Tensor:
        """The blend of those of the three scores that a user has (U, I)."""
        cfg, users_UD = self.config, private_block[USER]
        own_UI = history.one_hot(len(shared[ITEM])).to(users_UD)
        with torch.no_grad():
            total_UI = cfg.common_weight * star_scores(shared[ITEM], users_UD, own_UI)
            weight_U1 = torch.full_like(total_UI[:, :1], cfg.common_weight)
            if CLUSTER in shared:
                total_UI += cfg.cluster_weight * star_scores(_start(shared), users_UD, own_UI)
                weight_U1 += cfg.cluster_weight
            if self._own:
                has_U1 = cfg.own_weight * private_block[HAS_OWN][:, None]
                total_UI += has_U1 * star_scores(private_block[OWN], users_UD, own_UI)
                weight_U1 = weight_U1 + has_U1
        return total_UI / weight_U1

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray, history: History
    ) -> Tensor:
        """The same for each user's own candidates (U, C)."""
        scores_UI = self.scores_all(shared, private_block, history)
        return scores_UI.gather(1, torch.from_numpy(items_UC).to(scores_UI.device))

    # ---- server half ---------------------------------------------------------------------
    def downlinks(self, users: IntArray) -> dict[int, Tensors]:
        """The cluster of each user that was seen."""
        if LABELS not in self.server_state:
            return {}
        labels = labels_of(self.server_state, users)
        return {user: {CLUSTER: torch.tensor([label])} for user, label in labels.items()}

    def evaluation_personal(
        self, users: IntArray, server_round: int | None = None
    ) -> dict[int, Tensors]:
        """The same; clusters of earlier rounds are not kept."""
        if server_round is not None and server_round != int(self.server_state[ROUND]):
            raise LookupError(f"the users' clusters of round {server_round} are not kept")
        return self.downlinks(users)

    def personal_template(self, shared: Tensors) -> Tensors:
        """The number of a cluster."""
        return {CLUSTER: torch.zeros(1, dtype=torch.int64)}

    def individual_template(self, shared: Tensors) -> Tensors:
        """The movement of a user's copy, and its vector where it shares that."""
        vector = {VECTOR: shared[ITEM][0]} if self.config.share_user else {}
        return {MOVED: shared[ITEM], **vector}

    def init_server_state(self, shared: Tensors) -> Tensors:
        """Moments of the common and the cluster tables, each with its own count; no clusters."""
        cfg, factors = self.config, shared[ITEM].shape[1]
        moments = optim.init_state(cfg.server_optimiser, {TABLES: _stacked(shared)})
        if optim.STEP in moments:
            moments[optim.STEP] = moments[optim.STEP].repeat(cfg.clusters + 1)
        width = factors if cfg.share_user else cfg.sketch * factors
        return {**moments, **no_clusters(cfg.clusters, width), ROUND: torch.zeros(())}

    def individual_server_update(
        self, shared: Tensors, updates: IndividualUpdates, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Cluster the users, then step each table along the mean movement of its members."""
        state = {**server_state, **self._clustered(updates, server_state)}
        state[ROUND] = server_state[ROUND] + 1
        labels = labels_of(state, updates.users_U)
        labels_U = torch.tensor([labels[user] for user in updates.users_U.tolist()])
        members_TU = torch.stack(
            [torch.ones_like(labels_U), *(labels_U == k for k in range(self.config.clusters))]
        ).to(shared[ITEM])
        tables_TID, moments = self._stepped(_stacked(shared), members_TU, updates, server_state)
        return {ITEM: tables_TID[0], CLUSTERS: tables_TID[1:]}, {**state, **moments}

    def _clustered(self, updates: IndividualUpdates, state: Tensors) -> Tensors:
        if self.config.share_user:
            sketches_US = updates.tensors[VECTOR]
        else:
            moved_UID, width = updates.tensors[MOVED], self.config.sketch
            sketches_US = projected(moved_UID, width, self.server_rng(0))
        rng = self.server_rng(1 + int(state[ROUND]))
        return clustered(state, updates.users_U, sketches_US, rng)

    def _stepped(
        self, tables_TID: Tensor, members_TU: Tensor, updates: IndividualUpdates, state: Tensors
    ) -> tuple[Tensor, Tensors]:
        """A step of the tables that have members in the round; the others stay as they are."""
        cfg, active = self.config, members_TU.any(1).nonzero().flatten()
        shares_AU = members_TU[active] / members_TU[active].sum(1, keepdim=True)
        gradient = {TABLES: -torch.einsum("au,uid->aid", shares_AU, updates.tensors[MOVED])}
        names = set(optim.init_state(cfg.server_optimiser, {TABLES: tables_TID}))
        own = {n: state[n][active] for n in names}
        stepped, moments = optim.step(
            cfg.server_optimiser, {TABLES: tables_TID[active]}, gradient, own, cfg.server_lr
        )
        moved_TID = tables_TID.index_copy(0, active, stepped[TABLES])
        return moved_TID, {n: state[n].index_copy(0, active, moments[n]) for n in names}


def _start(shared: Tensors) -> Tensor:
    """The table that a user starts from: its cluster's, or the common one outside clusters."""
    return shared[CLUSTERS][int(shared[CLUSTER])] if CLUSTER in shared else shared[ITEM]


def _stacked(shared: Tensors) -> Tensor:
    """The common table and the clusters' (1 + K, I, D)."""
    return torch.cat([shared[ITEM][None], shared[CLUSTERS]])
