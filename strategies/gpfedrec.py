"""GPFedRec (KDD 2024, arXiv 2305.07866): users are held near the mean of similar users' tables.

A user trains a copy of the item embeddings, its own vector and an MLP of its own, and uploads
the copy. The server links users whose copies are alike (``strategies.user_graph``), sends each
user the mean over its neighbours as a target that the next copy is held near, and everybody
the mean of the cohort's targets to start from. ``docs/gpfedrec.md`` says where the paper, its
public code and this differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from models import optim
from models.mini_batches import mini_batches
from models.pulled_sgd import PulledRates, pulled_step
from models.types import (
    ClientResult,
    History,
    IndividualUpdates,
    IntArray,
    Samples,
    Tensors,
    Update,
)
from models.user_mlp import ITEM, USER, UserMLP
from strategies import own_tables
from strategies.base import StrategyConfig, training_metrics
from strategies.kept_tables import KeptTables
from strategies.own_tables import HAS_OWN, OWN
from strategies.user_graph import Affinity, GraphRule, UserGraph

TARGET, ROUND = "target_item_emb", "round"
ScoreWith = Literal["own", "shared"]


@dataclass(frozen=True)
class GPFedRecConfig(StrategyConfig):
    """Settings of GPFedRec."""

    server_optimiser: optim.OptimiserName = "sgd"
    """``sgd`` with ``server_lr`` 1 takes the mean of the targets as it is, which is the paper's."""
    server_lr: float = 1.0
    batch_size: int = 256
    """Consecutive samples a local SGD step; its loss is their mean."""
    mlp_lr: float = 1.0
    """Local learning rate of the user's MLP."""
    user_lr: float = 8.0
    """Local learning rate of the user's vector."""
    item_lr: float = 50000.0
    """Local learning rate of the user's copy of the item embeddings."""
    pull: float = 0.5
    """How much of the way to the target each step takes every item row, from 0 to below 2."""
    affinity: Affinity = "similarity"
    """Link users of a great cosine ``similarity``, or of a great cosine distance as ``released``
    code does by default."""
    gamma: float = 1.0
    """Linked are users whose affinity is above this times the mean affinity."""
    neighbours: int = 0
    """Link this many of the greatest affinity instead; 0 goes by ``gamma``."""
    mp_layers: int = 1
    """Times that tables are averaged over neighbours."""
    score_with: ScoreWith = "own"
    """Rank with the user's ``own`` copy as it left training, or with the ``shared`` table."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least_one("batch_size", "mp_layers")
        self._positive("mlp_lr", "user_lr", "item_lr")
        if not 0 <= self.pull < 2:
            # From 2 on a step ends at least as far beyond the target as it began before it.
            raise ValueError(f"pull must lie in 0..2, below 2, got {self.pull}")
        if self.gamma < 0 or self.neighbours < 0:
            raise ValueError("gamma and neighbours must not be negative")
        self._one_of("affinity", get_args(Affinity))
        self._one_of("score_with", get_args(ScoreWith))


class GPFedRec(KeptTables):
    """Local training near a target of one's own; targets from a graph of users."""

    Config: ClassVar[type[StrategyConfig]] = GPFedRecConfig
    title: ClassVar[str] = "GPFedRec (KDD 2024, arXiv 2305.07866)"
    about: ClassVar[str] = "Item tables of users held near the mean of similar users' tables"
    update_kind: ClassVar[Literal["gradient", "delta"]] = "delta"
    tables_folder: ClassVar[str] = "tables"
    dense_updates: ClassVar[bool] = True
    common_start: ClassVar[bool] = True
    config: GPFedRecConfig
    model: UserMLP

    def check(self) -> None:
        """The MLP must be the user's own."""
        if not isinstance(self.model, UserMLP):
            raise ValueError("gpfedrec needs model=user_mlp, whose MLP belongs to each user")

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """A user's vector and MLP, and room for its copy of the items where it ranks with it."""
        parameters = self.model.init_private(num_items, rng)
        if self.config.score_with == "shared":
            return parameters
        return parameters | own_tables.room(num_items, self.model.factors)

    # ---- client half ---------------------------------------------------------------------
    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """Mini-batch SGD on copy, vector and MLP; the copy starts from the shared table."""
        items_ID, own = shared[ITEM].clone(), self.private_parameters(private)
        target_ID, loss = shared.get(TARGET, shared[ITEM]), 0.0
        batches = mini_batches(epochs, self.config.batch_size)
        for batch in batches:
            own, batch_loss = pulled_step(self.model, items_ID, target_ID, own, batch, self._rates)
            loss += batch_loss / len(batches)
        metrics = training_metrics(loss, epochs)
        kept = own_tables.kept(items_ID, private) if self._own else {}
        return ClientResult(Update({}, 1.0), {**own, **kept}, metrics, {ITEM: items_ID})

    @cached_property
    def _rates(self) -> PulledRates:
        cfg = self.config
        private = {n: cfg.user_lr if n == USER else cfg.mlp_lr for n in self.private_names}
        return PulledRates(cfg.item_lr, private, cfg.pull)

    def adapt(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> Tensors:
        """A whole local round where the copy ranks; else each batch starts from ``shared``."""
        if self._own:
            return self.client_update(shared, private, epochs, rng).private
        batches = mini_batches(epochs, self.config.batch_size)
        return super().adapt(shared, private, batches, rng)

    @property
    def _own(self) -> bool:
        return self.config.score_with == "own"

    # ---- scoring -------------------------------------------------------------------------
    def scores_all(self, shared: Tensors, private_block: Tensors, history: History) -> Tensor:
        """With each user's copy as it left training, (U, I); the shared table before that."""
        if not self._own:
            return super().scores_all(shared, private_block, history)
        return self._scores(own_tables.own_or(private_block, shared[ITEM]), private_block)

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray, history: History
    ) -> Tensor:
        """The same for each user's own candidates (U, C)."""
        if not self._own:
            return super().score_candidates(shared, private_block, items_UC, history)
        index_UC = torch.from_numpy(items_UC).to(shared[ITEM].device)
        users_U1 = torch.arange(len(index_UC), device=index_UC.device)[:, None]
        has_own_U11 = private_block[HAS_OWN][:, None, None] > 0
        own_UCD = private_block[OWN][users_U1, index_UC]
        rows_UCD = torch.where(has_own_U11, own_UCD, shared[ITEM][index_UC])
        return self._scores(rows_UCD, private_block)

    def _scores(self, rows_URD: Tensor, private_block: Tensors) -> Tensor:
        with torch.no_grad():
            return self.model.score_rows(rows_URD, self.private_parameters(private_block))

    # ---- server half ---------------------------------------------------------------------
    @cached_property
    def graph(self) -> UserGraph:
        """The graph over all users who uploaded a table."""
        cfg = self.config
        return UserGraph(
            self.tables, GraphRule(cfg.affinity, cfg.gamma, cfg.neighbours, cfg.mp_layers)
        )

    def init_server_state(self, shared: Tensors) -> Tensors:
        """The optimiser's state and the number of rounds."""
        return {**super().init_server_state(shared), ROUND: torch.zeros(())}

    def individual_server_update(
        self, shared: Tensors, updates: IndividualUpdates, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Keep the tables, then step towards the mean over the cohort of each user's target."""
        count = server_state[ROUND] + 1
        self.tables.put(int(count), updates.users_U, updates.tensors[ITEM].cpu().numpy())
        mean_1U = self.graph.weights(updates.users_U).mean(axis=0, keepdims=True)
        ((_, sum_1X),) = self.tables.weighted_sums(mean_1U, self.graph.users_U)
        mean_ID = torch.from_numpy(sum_1X).reshape(shared[ITEM].shape).to(shared[ITEM])
        cfg, gradient = self.config, {ITEM: shared[ITEM] - mean_ID}
        moved, state = optim.step(
            cfg.server_optimiser, {ITEM: shared[ITEM]}, gradient, server_state, cfg.server_lr
        )
        return moved, {**state, ROUND: count}

    def downlinks(self, users: IntArray) -> dict[int, Tensors]:
        """The target of each user that uploaded a table before; others have the shared table."""
        known_K = np.intersect1d(users, self.tables.users())
        if not len(known_K) or self.config.pull == 0:
            return {}
        weights_KU, targets = self.graph.weights(known_K), dict[int, Tensors]()
        for part, sums_BX in self.tables.weighted_sums(weights_KU, self.graph.users_U):
            tables_BID = torch.from_numpy(sums_BX).view(len(sums_BX), -1, self.model.factors)
            rows = zip(known_K[part].tolist(), tables_BID, strict=True)
            targets |= {user: {TARGET: table_ID} for user, table_ID in rows}
        return targets

    def personal_template(self, shared: Tensors) -> Tensors:
        """A target: an item table."""
        return {} if self.config.pull == 0 else {TARGET: shared[ITEM]}
