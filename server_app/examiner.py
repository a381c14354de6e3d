"""When rounds are ranked, which of them is the best so far, and whether to go on.

In a deployment a round may be ranked with the training messages of the next: there an exchange
costs seconds, whatever it is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conf.tree import Config, ranks_each_in_full
from models.types import Tensors
from server_app.callbacks import Callback, EvaluationRecord
from server_app.checkpoint import Checkpoint
from server_app.evaluator import Evaluator
from server_app.item_drift import ItemDrift
from server_app.meter import RoundMeter
from server_app.ranking import Ranking
from server_app.selection import Selection, consider, is_sealed, measure_of, out_of_patience
from server_app.trainer import Folded
from strategies.base import RecStrategy
from strategies.messages import EvaluateReply, Uplink


@dataclass(frozen=True)
class Examined:
    """A ranked round, and what may be shown of it."""

    round: int
    visible: dict[str, float]


@dataclass(frozen=True)
class _Due:
    """A round that is to be ranked, with its shared parameters."""

    round: int
    shared: Tensors


class Examiner:
    """Has rounds ranked and keeps the best."""

    def __init__(
        self,
        cfg: Config,
        evaluator: Evaluator,
        callbacks: Sequence[Callback],
        resume_from: Checkpoint | None,
        drift: ItemDrift | None = None,
    ) -> None:
        self._cfg, self._evaluator, self._callbacks = cfg, evaluator, callbacks
        self._measure, self._sealed = measure_of(cfg), is_sealed(cfg)
        self._full = ranks_each_in_full(cfg)
        self._due: _Due | None = None
        self.selection = Selection() if resume_from is None else resume_from.selection
        self.best: Tensors = {} if resume_from is None else resume_from.best
        self.best_ranks = None if resume_from is None else resume_from.best_ranks
        """Each user's ranks at the selected round, where they were asked for."""
        self._drift = drift
        if drift is not None and resume_from is not None:
            drift.before = resume_from.observed
        if resume_from is not None and resume_from.evaluation_due:
            self._due = _Due(resume_from.round, resume_from.shared)

    @property
    def early_stopped(self) -> bool:
        """Whether patience has run out."""
        return out_of_patience(self.selection, self._cfg.evaluation.patience)

    @property
    def observed(self) -> Tensors:
        """Item tables of the round observed last, for the checkpoint."""
        return {} if self._drift is None else self._drift.before

    @property
    def is_due(self) -> bool:
        """Whether the last round is to be ranked with the next round's messages."""
        return self._due is not None

    def folded(self) -> Folded | None:
        """What the next training messages are to ask for beside training."""
        if self._due is None:
            return None
        return self._evaluator.folded(self._due.round, full=self._full)

    def examine(
        self,
        strategy: RecStrategy,
        server_round: int,
        num_rounds: int,
        uplinks: Sequence[Uplink],
        meter: RoundMeter,
    ) -> Examined | None:
        """Rank what is to be ranked after a round's training; None where nothing is.

        That is the round before, by what came with ``uplinks``, or this round. A round never
        has both.

        Raises:
            RoundError: when replies are missing beyond the policy.

        """
        due, self._due = self._due, None
        if due is not None:
            known = [uplink.evaluation for uplink in uplinks if uplink.evaluation is not None]
            meter.folded_work("evaluate", [reply.seconds for reply in known])
            return self._rank(strategy, due, meter, known)
        if not self._is_evaluated(server_round, num_rounds):
            return None
        due = _Due(server_round, strategy.shared)
        if self._folds(strategy, server_round, num_rounds):
            self._due = due
            return None
        return self._rank(strategy, due, meter)

    def _is_evaluated(self, server_round: int, num_rounds: int) -> bool:
        return server_round % self._cfg.evaluation.every == 0 or server_round == num_rounds

    def _folds(self, strategy: RecStrategy, server_round: int, num_rounds: int) -> bool:
        """Not where the outcome may end the run, nor where the next round is ranked itself."""
        return (
            self._cfg.federation.grid == "deployment"
            and strategy.folds_evaluation
            and self._cfg.privacy.secagg is None  # an evaluation is a sum of its own
            and self._cfg.evaluation.patience is None
            and server_round < num_rounds
            and not self._is_evaluated(server_round + 1, num_rounds)
        )

    def _rank(
        self,
        strategy: RecStrategy,
        due: _Due,
        meter: RoundMeter,
        known: Sequence[EvaluateReply] = (),
    ) -> Examined:
        with meter.part("evaluate"):
            ranking = self._evaluator.evaluate(
                strategy, due.round, due.shared, full=self._full, known=known
            )
        if not known:
            meter.node_work("evaluate", ranking.seconds)
        if self._drift is not None:
            counts_I = self._evaluator.item_counts_I
            self._drift.observe(strategy, due.round, due.shared, counts_I)
        return self._consider(due, ranking)

    def _consider(self, due: _Due, ranking: Ranking) -> Examined:
        self.selection = consider(
            self.selection, due.round, ranking.metrics, ranking.counts, self._measure
        )
        if self.selection.round == due.round:
            self.best, self.best_ranks = due.shared, ranking.ranks
        assert self.selection.round is not None
        visible = ranking.visible(self._sealed)
        record = EvaluationRecord(due.round, visible, self.selection.round)
        for callback in self._callbacks:
            callback.on_evaluate(record)
        return Examined(due.round, visible)
