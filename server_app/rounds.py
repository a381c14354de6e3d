"""The round loop, written once for all strategies; it is the strategies' ``Session``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from flwr.app import MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from conf.tree import Config
from server_app.callbacks import Callback, RoundRecord
from server_app.checkpoint import Checkpoint, CheckpointStore
from server_app.concurrency import fitting_workers
from server_app.evaluator import Evaluator
from server_app.examiner import Examined, Examiner
from server_app.exchange import Courier
from server_app.gather import Gatherer
from server_app.item_drift import ItemDrift
from server_app.meter import RoundMeter
from server_app.secagg import SecureSums
from server_app.trainer import Trainer
from server_app.uplink_record import UplinkRecord
from strategies.base import RecStrategy
from strategies.codec import to_arrays
from strategies.hooks import train_means
from strategies.messages import Downlink, EvaluateRequest, Header, Uplink


@dataclass(frozen=True)
class Tools:
    """What the loop works with."""

    courier: Courier
    gatherer: Gatherer
    trainer: Trainer
    evaluator: Evaluator
    checkpoints: CheckpointStore
    drift: ItemDrift | None = None
    secure: SecureSums | None = None
    uplinks: UplinkRecord | None = None


@dataclass(frozen=True)
class Identity:
    """What a checkpoint says about the run it belongs to."""

    header: Header
    config_hash: str
    shards: Callable[[], Mapping[str, Mapping[str, str]]]
    """Those of the run so far: in a deployment more may join."""
    trained: Callable[[], Mapping[str, int]]
    """By shard: the last round whose answer was used."""


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
        self._fitting = fitting_workers(cfg)
        self.examiner = Examiner(cfg, tools.evaluator, callbacks, resume_from, tools.drift)
        self.checkpoint_seconds = 0.0
        """Of the checkpoint since the last round's record."""
        self.round = 0 if resume_from is None else resume_from.round

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
            strategy.resumed(self.round)
        result = Result()
        while self.round < num_rounds and not self.examiner.early_stopped:
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
        uplinks = self._train(strategy, server_round, meter)
        examined = self.examiner.examine(strategy, server_round, num_rounds, uplinks, meter)
        self.round = server_round
        record = self._record(strategy, num_rounds, uplinks, examined, meter)
        for callback in self._callbacks:
            callback.on_round(record)
        if (
            examined
            or self.examiner.is_due
            or server_round % self._cfg.federation.checkpoint_every == 0
        ):
            self._save(strategy)
        return record

    def _train(self, strategy: RecStrategy, server_round: int, meter: RoundMeter) -> list[Uplink]:
        trainer, folded = self._tools.trainer, self.examiner.folded()
        with meter.part("train"):
            uplinks = trainer.train(strategy, server_round, self._keep_rounds(), folded)
        meter.node_work("train", trainer.node_seconds)
        if self._tools.uplinks is not None:
            self._tools.uplinks.keep(server_round, strategy.shared, uplinks, trainer.asked)
        with meter.part("server"):
            trainer.step(strategy, server_round, uplinks)
        return uplinks

    def _record(
        self,
        strategy: RecStrategy,
        num_rounds: int,
        uplinks: Sequence[Uplink],
        examined: Examined | None,
        meter: RoundMeter,
    ) -> RoundRecord:
        failed, secure = self._tools.gatherer.failures.take(), self._tools.secure
        privacy = self._tools.trainer.privacy
        return RoundRecord(
            round=self.round,
            rounds=num_rounds,
            num_users=sum(uplink.num_users for uplink in uplinks),
            train=train_means(uplinks),
            evaluation=None if examined is None else examined.visible,
            evaluated_round=None if examined is None else examined.round,
            selected_round=self.examiner.selection.round,
            bytes_up=meter.bytes_up,
            bytes_down=meter.bytes_down,
            seconds=meter.seconds,
            failures=failed.count,
            client_errors=failed.client_errors,
            dropped_late=meter.dropped_late,
            privacy=None if privacy is None else privacy.spent(),
            secagg=None if secure is None else secure.costs.take(),
            poisoning=self._tools.trainer.poisoning(strategy, self.round),
            devices=self._devices(),
        )

    def _devices(self) -> dict[str, float] | None:
        """Counts and simulated time of the round, where devices decide who takes part."""
        devices = self._tools.trainer.devices
        tally = None if devices is None else devices.tally
        return None if tally is None else asdict(tally)

    def _keep_rounds(self) -> tuple[int, ...]:
        """The last checkpoint's round, then the others that may be asked for again."""
        checkpoints = self._tools.checkpoints
        selected = self.examiner.selection.round
        others = checkpoints.state_rounds | (set() if selected is None else {selected})
        return (checkpoints.newest, *sorted(others - {checkpoints.newest}))

    def _save(self, strategy: RecStrategy) -> None:
        started, identity = time.perf_counter(), self._identity
        devices = self._tools.trainer.devices
        self._tools.checkpoints.save(
            Checkpoint(
                round=self.round,
                run_id=identity.header.run_id,
                incarnation=identity.header.incarnation,
                config_hash=identity.config_hash,
                shards=identity.shards(),
                selection=self.examiner.selection,
                shared=strategy.shared,
                server_state=strategy.server_state,
                best=self.examiner.best,
                best_ranks=self.examiner.best_ranks,
                observed=self.examiner.observed,
                trained=identity.trained(),
                evaluation_due=self.examiner.is_due,
                versions={} if devices is None else devices.versions,
            )
        )
        checkpoints = self._tools.checkpoints
        strategy.checkpointed(checkpoints.rounds, checkpoints.selected)
        self.checkpoint_seconds += time.perf_counter() - started
