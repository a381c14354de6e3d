"""PFedRec (Zhang et al., IJCAI 2023, arXiv 2301.08143): dual personalisation.

A user is a score function: a private linear layer over the item embeddings, instead of a user
embedding. A sampled user takes the shared table, and for each mini-batch steps its score
function and then its copy of the table. It uploads how far the copy moved and keeps the copy to
rank with (``score_with=own``); the server adds the mean movement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from models import optim
from models.alternating_sgd import AlternatingRates, alternating_sgd
from models.linear import BIAS, ITEM, WEIGHT, LinearScoring, own_rows, score_rows
from models.losses import Loss
from models.mini_batches import mini_batches
from models.sam import Radii, sam_gradients
from models.types import ClientResult, CohortResult, History, IntArray, Samples, Tensors, Update
from strategies import own_tables
from strategies.base import RecStrategy, StrategyConfig, block_metrics, training_metrics
from strategies.own_tables import HAS_OWN, OWN

ScoreWith = Literal["own", "shared"]
PLAIN = Radii()


@dataclass(frozen=True)
class PFedRecConfig(StrategyConfig):
    """Settings of PFedRec."""

    server_optimiser: optim.OptimiserName = "sgd"
    """``sgd`` with ``server_lr`` 1 is the mean of the users' tables, which is the paper's."""
    server_lr: float = 1.0
    batch_size: int = 256
    """Consecutive samples a pair of local steps; the loss is their mean."""
    private_lr: float = 0.1
    """Local learning rate of the score function."""
    item_lr_factor: float = 80.0
    """The items' local learning rate is this times ``private_lr`` times the number of items:
    a mean over users, of whom few have a given item, shrinks its movement."""
    score_with: ScoreWith = "own"
    """Rank with the user's ``own`` copy as it left training (the paper's), or with the ``shared``
    table. A user who was never trained has the shared one in any case."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least_one("batch_size")
        self._positive("private_lr", "item_lr_factor")
        self._one_of("score_with", get_args(ScoreWith))

    def rates(self, num_items: int) -> AlternatingRates:
        """Learning rates in a catalogue of this size."""
        return AlternatingRates(self.private_lr, self.private_lr * num_items * self.item_lr_factor)


class PFedRec(RecStrategy):
    """Private score function, own copy of the item embeddings, plain mean of the copies."""

    Config: ClassVar[type[StrategyConfig]] = PFedRecConfig
    title: ClassVar[str] = "PFedRec (IJCAI 2023, arXiv 2301.08143)"
    about: ClassVar[str] = "Users are linear score functions, and rank with a table of their own"
    update_kind: ClassVar[Literal["gradient", "delta"]] = "delta"
    common_start: ClassVar[bool] = True
    config: PFedRecConfig
    model: LinearScoring

    def check(self) -> None:
        """The local steps are written for a linear score function."""
        if not isinstance(self.model, LinearScoring):
            raise ValueError("pfedrec needs model=linear, whose score function is the user's")

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """A score function, and room for the user's copy of the items where it ranks with it."""
        parameters = self.model.init_private(num_items, rng)
        if not self._own:
            return parameters
        return parameters | own_tables.room(num_items, self.model.factors)

    # ---- client half ---------------------------------------------------------------------
    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """For each mini-batch a step of the scorer, then of the copy: the readable reference."""
        local, scorer, loss = shared, self.private_parameters(private), 0.0
        rates = self.config.rates(len(shared[ITEM]))
        batches = mini_batches(epochs, self.config.batch_size)
        for batch in batches:
            first = sam_gradients(self.model, local, scorer, batch, Loss(len(batch)), PLAIN)
            scorer = optim.step("sgd", scorer, first.private, {}, rates.scorer)[0]
            second = sam_gradients(self.model, local, scorer, batch, Loss(len(batch)), PLAIN)
            local = optim.step("sgd", local, second.shared, {}, rates.items)[0]
            loss += float(first.losses[0]) / len(batches)
        moved = {ITEM: local[ITEM] - shared[ITEM]}
        kept = own_tables.kept(local[ITEM], private) if self._own else {}
        return ClientResult(Update(moved, 1.0), {**scorer, **kept}, training_metrics(loss, epochs))

    def cohort_update(
        self,
        shared: Tensors,
        private_block: Tensors,
        epochs_U: Sequence[Sequence[Samples]],
        rngs: Sequence[np.random.Generator],
    ) -> CohortResult:
        """The same for a block of users in lock-step; exact, see ``models.alternating_sgd``."""
        items_ID = shared[ITEM]
        batches_U = [mini_batches(epochs, self.config.batch_size) for epochs in epochs_U]
        scorers = (private_block[WEIGHT], private_block[BIAS])
        trained = alternating_sgd(items_ID, *scorers, batches_U, self.config.rates(len(items_ID)))
        private = {WEIGHT: trained.weights_UD, BIAS: trained.biases_U}
        if self._own:
            tables_UID = trained.pairs.tables(trained.rows_PD, items_ID)
            private |= own_tables.kept(tables_UID, private_block)
        update = Update({ITEM: trained.pairs.moved(trained.rows_PD, items_ID)}, len(epochs_U))
        metrics = block_metrics(trained.loss, epochs_U)
        return CohortResult(update, private, metrics)

    def adapt(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> Tensors:
        """A local round of a user who ranks with its copy; else each batch from ``shared``."""
        if self._own:
            return self.client_update(shared, private, epochs, rng).private
        return super().adapt(shared, private, mini_batches(epochs, self.config.batch_size), rng)

    @property
    def _own(self) -> bool:
        return self.config.score_with == "own"

    # ---- scoring -------------------------------------------------------------------------
    def scores_all(self, shared: Tensors, private_block: Tensors, history: History) -> Tensor:
        """With each user's copy as it left training, (U, I); the shared table before that."""
        scores_UI = super().scores_all(shared, private_block, history)
        if not self._own:
            return scores_UI
        own_UI = score_rows(private_block[OWN], private_block)
        return torch.where(private_block[HAS_OWN][:, None] > 0, own_UI, scores_UI)

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray, history: History
    ) -> Tensor:
        """The same for each user's own candidates (U, C)."""
        scores_UC = super().score_candidates(shared, private_block, items_UC, history)
        if not self._own:
            return scores_UC
        own_UC = score_rows(own_rows(private_block[OWN], items_UC), private_block)
        return torch.where(private_block[HAS_OWN][:, None] > 0, own_UC, scores_UC)
