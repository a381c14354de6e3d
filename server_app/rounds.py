"""The round loop, written once for all strategies; it is the strategies' ``Session``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from conf.tree import Config
from models.types import Tensors
from server_app.callbacks import Callback, EvaluationRecord, RoundRecord
from server_app.checkpoint import Checkpoint, CheckpointStore
from server_app.concurrency import fitting_workers
from server_app.evaluator import Evaluator
from server_app.exchange import Courier
from server_app.gather import Gatherer
from server_app.meter import RoundMeter
from server_app.ranking import Ranking
from server_app.selection import Selection, consider, is_sealed, measure_of, out_of_patience
from server_app.trainer import Folded, Trainer
from strategies.base import RecStrategy
from strategies.codec import to_arrays
from strategies.hooks import train_means
from strategies.messages import Downlink, EvaluateReply, EvaluateRequest, Header, Uplink


@dataclass(frozen=True)
class Tools:
    """What the loop works with."""

    courier: Courier
    gatherer: Gatherer
    trainer: Trainer
    evaluator: Evaluator
    checkpoints: CheckpointStore


@dataclass(frozen=True)
class Identity:
    """What a checkpoint says about the run it belongs to."""

    header: Header
    config_hash: str
    shards: Callable[[], Mapping[str, Mapping[str, str]]]
    """Those of the run so far: in a deployment more may join."""


@dataclass(frozen=True)
class _Due:
    """A round that is to be ranked, with its shared parameters."""

    round: int
    shared: Tensors


class RoundLoop:
    """Trains round after round: exchange, server step, evaluation, selection, checkpoint."""

    def __init__(
        self,
        cfg: Config,
        tools: Tools,
        identity: Identity,
        callbacks: Sequence[Callback] = (),
        resume_from: Checkpoint | None = None,
    ) -> None:
        self._cfg = cfg
        self._tools = tools
        self._identity = identity
        self._callbacks = callbacks
        self._resume_from = resume_from
        self._measure = measure_of(cfg)
        self._fitting = fitting_workers(cfg)
        self._sealed = is_sealed(cfg)
        self.checkpoint_seconds = 0.0
        """Of the checkpoint since the last round's record."""
        self.round = 0 if resume_from is None else resume_from.round
        self.selection = Selection() if resume_from is None else resume_from.selection
        self.best: Tensors = {} if resume_from is None else resume_from.best
        self._due: _Due | None = None
        if resume_from is not None and resume_from.evaluation_due:
            self._due = _Due(resume_from.round, resume_from.shared)

    @property
    def early_stopped(self) -> bool:
        """Whether patience has run out."""
        return out_of_patience(self.selection, self._cfg.evaluation.patience)

    # ---- hooks.Session -------------------------------------------------------------------
    def plan_train(self, server_round: int) -> Mapping[int, Downlink]:
        """The training request of each node id; empty outside a training exchange."""
        return self._tools.trainer.plan()

    def plan_evaluate(self, server_round: int) -> Mapping[int, EvaluateRequest]:
        """The evaluation request of each node id; empty outside an evaluation."""
        return self._tools.evaluator.plan()

    def run(self, strategy: RecStrategy, grid: Grid, num_rounds: int, timeout: float) -> Result:
        """Train up to round ``num_rounds``; ``timeout`` is the deadline of an exchange.

        Raises:
            RoundError: when replies are missing beyond the policy, or the server's step gives
                values that are not finite.

        """
        self._tools.gatherer.deadline_s = timeout
        if self._resume_from is None:
            self._save(strategy)
        else:
            strategy.set_shared(self._resume_from.shared, self._resume_from.server_state)
        result = Result()
        while self.round < num_rounds and not self.early_stopped:
            record = self._round(strategy, num_rounds)
            result.train_metrics_clientapp[record.round] = MetricRecord(dict(record.train))
            if record.evaluation is not None:
                means = MetricRecord(dict(record.evaluation))
                result.evaluate_metrics_clientapp[record.round] = means
        result.arrays = to_arrays(strategy.shared)
        return result

    # ---- one round -----------------------------------------------------------------------
    def _round(self, strategy: RecStrategy, num_rounds: int) -> RoundRecord:
        server_round = self.round + 1
        meter = RoundMeter(self._tools.courier, self._fitting, self.checkpoint_seconds)
        self.checkpoint_seconds = 0.0
        due = self._due
        uplinks = self._train(strategy, server_round, meter)
        ranking = None
        if due is not None:
            known = [uplink.evaluation for uplink in uplinks if uplink.evaluation is not None]
            ranking = self._evaluate(strategy, due, meter, known)
            self._due = None
        if self._is_evaluated(server_round, num_rounds):
            due = _Due(server_round, strategy.shared)
            if self._folds(strategy, server_round, num_rounds):
                self._due = due
            else:
                ranking = self._evaluate(strategy, due, meter)
        self.round = server_round
        record = self._record(num_rounds, uplinks, ranking, due, meter)
        for callback in self._callbacks:
            callback.on_round(record)
        if ranking or self._due or server_round % self._cfg.federation.checkpoint_every == 0:
            self._save(strategy)
        return record

    def _train(self, strategy: RecStrategy, server_round: int, meter: RoundMeter) -> list[Uplink]:
        trainer = self._tools.trainer
        with meter.part("train"):
            uplinks = trainer.train(strategy, server_round, self._keep_rounds(), self._folded())
        meter.node_work("train", [uplink.seconds for uplink in uplinks])
        with meter.part("server"):
            trainer.step(strategy, server_round, uplinks)
        return uplinks

    def _is_evaluated(self, server_round: int, num_rounds: int) -> bool:
        return server_round % self._cfg.evaluation.every == 0 or server_round == num_rounds

    def _folds(self, strategy: RecStrategy, server_round: int, num_rounds: int) -> bool:
        """Whether a round's evaluation waits for the next round's messages.

        In a deployment an exchange costs seconds, whatever it is for. Not where the outcome may
        end the run at once, and not where the next round has an evaluation of its own.
        """
        return (
            self._cfg.federation.grid == "deployment"
            and strategy.folds_evaluation
            and self._cfg.evaluation.patience is None
            and server_round < num_rounds
            and not self._is_evaluated(server_round + 1, num_rounds)
        )

    def _folded(self) -> Folded | None:
        if self._due is None:
            return None
        full = self._cfg.evaluation.full == "each"
        return self._tools.evaluator.folded(self._due.round, full=full)

    def _evaluate(
        self,
        strategy: RecStrategy,
        due: _Due,
        meter: RoundMeter,
        known: Sequence[EvaluateReply] = (),
    ) -> Ranking:
        """Rank a round; ``known`` are the replies that came with training."""
        meter.folded_work("evaluate", [reply.seconds for reply in known])
        with meter.part("evaluate"):
            ranking = self._tools.evaluator.evaluate(
                strategy,
                due.round,
                due.shared,
                full=self._cfg.evaluation.full == "each",
                known=known,
            )
        if not known:
            meter.node_work("evaluate", ranking.seconds)
        self.selection = consider(
            self.selection, due.round, ranking.metrics, ranking.counts, self._measure
        )
        if self.selection.round == due.round:
            self.best = due.shared
        assert self.selection.round is not None
        record = EvaluationRecord(due.round, ranking.visible(self._sealed), self.selection.round)
        for callback in self._callbacks:
            callback.on_evaluate(record)
        return ranking

    def _record(
        self,
        num_rounds: int,
        uplinks: Sequence[Uplink],
        ranking: Ranking | None,
        evaluated: _Due | None,
        meter: RoundMeter,
    ) -> RoundRecord:
        failed = self._tools.gatherer.failures.take()
        return RoundRecord(
            round=self.round,
            rounds=num_rounds,
            num_users=sum(uplink.num_users for uplink in uplinks),
            train=train_means(uplinks),
            evaluation=None if ranking is None else ranking.visible(self._sealed),
            evaluated_round=None if ranking is None or evaluated is None else evaluated.round,
            selected_round=self.selection.round,
            bytes_up=meter.bytes_up,
            bytes_down=meter.bytes_down,
            seconds=meter.seconds,
            failures=failed.count,
            client_errors=failed.client_errors,
            dropped_late=meter.dropped_late,
        )

    def _keep_rounds(self) -> tuple[int, ...]:
        """The last checkpoint's round, then the others that may be asked for again."""
        checkpoints = self._tools.checkpoints
        selected = self.selection.round
        others = checkpoints.state_rounds | (set() if selected is None else {selected})
        return (checkpoints.newest, *sorted(others - {checkpoints.newest}))

    def _save(self, strategy: RecStrategy) -> None:
        started, identity = time.perf_counter(), self._identity
        self._tools.checkpoints.save(
            Checkpoint(
                round=self.round,
                run_id=identity.header.run_id,
                incarnation=identity.header.incarnation,
                config_hash=identity.config_hash,
                shards=identity.shards(),
                selection=self.selection,
                shared=strategy.shared,
                server_state=strategy.server_state,
                best=self.best,
                evaluation_due=self._due is not None,
            )
        )
        self.checkpoint_seconds += time.perf_counter() - started
