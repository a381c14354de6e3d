"""EASE^R (Steck, WWW 2019, arXiv 1905.03375) from the users' summed pairs of items.

A user uploads xxᵀ, packed as a triangle or in a count sketch, less what was counted of it before,
so the server's sum counts every user once however often it takes part. The server solves for the
item weights in float64 and sends them; a user is scored from its history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from models.count_sketch import CountSketch
from models.ease import COUNTED, WEIGHTS, ItemWeights, as_bits, from_bits
from models.gram import ease_weights, gram, item_pairs, num_pairs, places, shift_of
from models.gram_sketch import estimated_pairs
from models.types import (
    CohortResult,
    History,
    IntArray,
    Samples,
    Tensors,
    Update,
    positive_items,
)
from strategies.base import StrategyConfig, block_metrics
from strategies.from_history import Remembering

COUNTS, PAIRS, ROUND, UNSOLVED = "item_counts", "pairs", "round", "unsolved"


@dataclass(frozen=True)
class FedEASEConfig(StrategyConfig):
    """Settings of FedEASE; those of the server's optimiser are not used."""

    num_negatives: int = 1
    """Drawn, but not used: the model is one of positives."""
    l2: float = 100.0
    """λ, added to the diagonal of the Gram matrix."""
    solve_every: int = 1
    """The weights are solved anew in each round that is a multiple of this."""
    sketch_width: int | None = None
    """Buckets a row of the sketch of the pairs; None uploads all pairs as they are."""
    sketch_rows: int = 3
    """Rows of the sketch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("l2")
        self._at_least_one("solve_every", "sketch_rows")
        if self.sketch_width is not None:
            self._at_least_one("sketch_width")


class FedEASE(Remembering):
    """Sums of pairs up, weights in closed form down."""

    Config: ClassVar[type[StrategyConfig]] = FedEASEConfig
    title: ClassVar[str] = "EASE^R (WWW 2019, arXiv 1905.03375), federated sums"
    about: ClassVar[str] = "Item-item weights in closed form from summed pairs of items"
    common_start: ClassVar[bool] = True
    send_less: ClassVar[str] = "set strategy.sketch_width"
    receive_less: ClassVar[str] = "set model.top_k"
    config: FedEASEConfig
    model: ItemWeights

    def check(self) -> None:
        """The weights are those of items to items."""
        if not isinstance(self.model, ItemWeights):
            raise ValueError("fedease needs model=ease, whose parameters have a closed form")

    @property
    def period(self) -> int:
        """Rounds from one solve to the next."""
        return self.config.solve_every

    @property
    def sketch(self) -> CountSketch | None:
        """How pairs are sketched, if they are."""
        cfg = self.config
        return None if cfg.sketch_width is None else CountSketch(cfg.sketch_rows, cfg.sketch_width)

    # ---- client half ---------------------------------------------------------------------
    def cohort_update(
        self,
        shared: Tensors,
        private_block: Tensors,
        epochs_U: Sequence[Sequence[Samples]],
        rngs: Sequence[np.random.Generator],
    ) -> CohortResult:
        """What the server's sum lacks of these users; their private sets say so from then on."""
        words_UW = private_block[COUNTED]
        sums, changed = self.summed_template(shared), 0
        now_U = [positive_items(epochs) for epochs in epochs_U]
        for now, words_W in zip(now_U, words_UW, strict=True):
            before = from_bits(words_W)
            if not np.array_equal(now, before):
                self._add(sums, now, 1.0)
                self._add(sums, before, -1.0)
                changed += 1
        history = History(np.concatenate(now_U), np.array([len(now) for now in now_U]))
        metrics = block_metrics(self._squared_error(shared, history), epochs_U)
        own = torch.stack([as_bits(now, words_UW.shape[1], words_UW) for now in now_U])
        update = Update(sums, float(len(epochs_U)))
        return CohortResult(update, {COUNTED: own}, metrics | {"counted": float(changed)})

    def _add(self, sums: Tensors, items_S: IntArray, sign: float) -> None:
        """Add a user's items and pairs, in place."""
        counts_I, pairs = sums[COUNTS], sums[PAIRS]
        index_S = torch.from_numpy(items_S).to(counts_I.device)
        counts_I.index_add_(0, index_S, counts_I.new_full((len(index_S),), sign))
        for lower, upper in item_pairs(items_S):
            keys, signs = places(lower, upper), pairs.new_full((len(lower),), sign)
            if self.sketch is None:
                pairs.index_add_(0, torch.from_numpy(keys).to(pairs.device), signs)
            else:
                self.sketch.add(pairs, keys, signs)

    def _squared_error(self, shared: Tensors, history: History) -> float:
        """‖x − xB‖² of the users with the weights received, which nothing else uses."""
        scores_UI = self.model.summed(shared, history).double()
        users_S, items_S = (
            torch.from_numpy(i).to(scores_UI.device) for i in (history.users, history.items_S)
        )
        own = scores_UI[users_S, items_S]
        return float((scores_UI**2).sum() - 2 * own.sum()) + len(own)

    # ---- scoring -------------------------------------------------------------------------
    def scores_all(self, shared: Tensors, private_block: Tensors, history: History) -> Tensor:
        """Scores (U, I) from the histories, of users counted or not."""
        with torch.no_grad():
            return self.model.summed(shared, history)

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray, history: History
    ) -> Tensor:
        """Scores (U, C) of each user's own candidates."""
        scores_UI = self.scores_all(shared, private_block, history)
        return scores_UI.gather(1, torch.from_numpy(items_UC).to(scores_UI.device))

    # ---- server half ---------------------------------------------------------------------
    def summed_template(self, shared: Tensors) -> Tensors:
        """Item counts (I,), and all pairs (P,) or their sketch (R, W); zeros."""
        table, sketch = shared[WEIGHTS], self.sketch
        shape = (num_pairs(len(table)),) if sketch is None else (sketch.rows, sketch.width)
        return {COUNTS: table.new_zeros(len(table)), PAIRS: table.new_zeros(shape)}

    def init_server_state(self, shared: Tensors) -> Tensors:
        """Zero sums, the round, and whether the weights are older than the sums."""
        flags = {name: shared[WEIGHTS].new_zeros(()) for name in (ROUND, UNSOLVED)}
        return self.summed_template(shared) | flags

    def server_update(
        self, shared: Tensors, summed: Update, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Add to the sums; weights anew where these changed and the round is one to solve in.

        Raises:
            ValueError: when a count is too large for its type, or the system has no solution.

        """
        state = {n: server_state[n] + t for n, t in summed.tensors.items()}
        _check_exact(state)
        changed = any(bool(t.any()) for t in summed.tensors.values())
        state[ROUND] = server_state[ROUND] + 1
        state[UNSOLVED] = server_state[UNSOLVED].logical_or(torch.tensor(changed)).to(state[ROUND])
        if not state[UNSOLVED] or state[ROUND] % self.config.solve_every:
            return shared, state
        state[UNSOLVED] = torch.zeros_like(state[UNSOLVED])
        return {WEIGHTS: self.model.packed(self._weights(state), shared[WEIGHTS].dtype)}, state

    def _weights(self, sums: Tensors) -> Tensor:
        """B (I, I) in float64."""
        counts_I, pairs, sketch = sums[COUNTS], sums[PAIRS], self.sketch
        if sketch is None:
            return ease_weights(gram(counts_I, pairs), self.config.l2)
        pairs_P = estimated_pairs(sketch, pairs, counts_I)
        l2 = self.config.l2 + shift_of(counts_I, pairs_P, self.config.l2)
        return ease_weights(gram(counts_I, pairs_P), l2)


def _check_exact(sums: Tensors) -> None:
    """Whole numbers add up exactly below 2²⁴ in float32, 2⁵³ in float64."""
    for name, tensor in sums.items():
        limit = 2 / torch.finfo(tensor.dtype).eps
        if tensor.numel() and max(-tensor.min(), tensor.max()) >= limit:
            raise ValueError(f"{name} reached {limit:.3g}: more users than {tensor.dtype} counts")
