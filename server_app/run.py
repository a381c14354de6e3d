"""One run from configuration to result, over any grid: Ray, in-process or deployment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from logging import WARNING

from flwr.common.logger import log
from flwr.serverapp import Grid

from conf.fingerprint import code_fingerprint
from conf.tree import Config, build_strategy, ranks_each_in_full, remarks, to_json
from models.rng import Role, derive_rng
from models.types import Tensors
from server_app.accountant import check_accountant
from server_app.callbacks import Callback, MetricsLog, RunInfo, read_metrics
from server_app.defences.base import Defence
from server_app.devices.rounds import device_rounds
from server_app.errors import CheckpointError
from server_app.evaluator import Evaluator
from server_app.exchange import Courier
from server_app.failures import client_errors, refuse_client_errors
from server_app.first_run import make_first
from server_app.gather import MAX_REPLY_BYTES, Gatherer
from server_app.initial_items import initial_items
from server_app.item_drift import ItemDrift
from server_app.nodes import NodeDirectory
from server_app.poisoning import clean_run, drops, in_total
from server_app.privacy import privacy_of
from server_app.ranking import Ranking
from server_app.results import RunResult, totals_of
from server_app.roster import lost_state, older_state
from server_app.rounds import Identity, RoundLoop, Tools
from server_app.run_folder import RunFolder, strategy_folder, with_defaults
from server_app.secagg import SecureSums
from server_app.secagg_journal import Journal
from server_app.snapshot import fingerprint
from server_app.start import Start, config_hash, recorded
from server_app.storable import check_storable
from server_app.tracking import check_installed, trackers
from server_app.trainer import Trainer
from server_app.uplink_record import UplinkRecord
from server_app.user_ranks import MODEL, POPULARITY, save_user_ranks
from strategies.base import RecStrategy
from strategies.codec import to_arrays
from strategies.messages import Header, HelloReply

BYTES_A_ROW = 16
"""Of a row of a table in a reply: its index and its weight."""
RANK_BYTES = 5 * 8
"""Of a user in a reply with ranks: its index and up to four ranks."""


def run_server(grid: Grid, cfg: Config, callbacks: Sequence[Callback] = ()) -> RunResult:
    """Train and evaluate one configuration; everything it leaves is in the run's folder.

    Raises:
        ConfigError: for a tracker whose package is not there, before anything starts.
        ServerError: nodes that do not fit, a round that cannot be completed, a folder that is
            in use; the run's ``state.json`` then says ``failed`` with the reason.
        ClientsFailedError: when clients failed where the policy let the run go on; the result
            is written all the same.

    """
    check_installed(cfg)
    check_accountant(cfg)
    cfg = with_defaults(cfg)
    with RunFolder.opened(cfg) as folder:
        followers = [MetricsLog(folder.path), *trackers(cfg, folder.path), *callbacks]
        with recorded(folder, cfg, followers) as start:
            if cfg.init.strategy is not None and start.resume_from is None:
                make_first(grid, cfg, run_server)
            result = _Run(grid, cfg, folder, start, followers).execute()
        for callback in followers:
            callback.on_end(result)
        return result


class _Run:
    """The objects of one start and the order in which they work."""

    def __init__(
        self,
        grid: Grid,
        cfg: Config,
        folder: RunFolder,
        start: Start,
        callbacks: Sequence[Callback],
    ) -> None:
        self.cfg, self.folder, self.start, self.callbacks = cfg, folder, start, callbacks
        self.strategy: RecStrategy = build_strategy(cfg)
        self.strategy.seed = cfg.seed
        self.strategy.defence = cfg.defence if isinstance(cfg.defence, Defence) else None
        self.clean = clean_run(cfg)
        self.strategy.workspace = strategy_folder(folder.path)
        self.header = Header(
            start.state.run_id, start.state.incarnation, to_json(cfg), code_fingerprint()
        )
        courier = Courier(grid)
        self.directory = NodeDirectory(courier, self.header, cfg.federation)
        gatherer = Gatherer(self.directory, courier, cfg.federation)
        secure, settings = None, cfg.privacy.secagg
        if settings is not None:
            journal = Journal(folder.path, keep_uploads=settings.keep_uploads)
            secure = SecureSums(cfg, self.directory, courier, gatherer, self.header, journal)
        self.evaluator = Evaluator(cfg, self.directory, gatherer, self.header, secure)
        trainer = Trainer(cfg, self.directory, gatherer, self.header, secure)
        drift = ItemDrift(folder.path) if cfg.evaluation.item_drift else None
        kept = cfg.evaluation.record_uplinks
        uplinks = UplinkRecord(folder.path, kept) if kept else None
        self.tools = Tools(
            courier, gatherer, trainer, self.evaluator, start.checkpoints, drift, secure, uplinks
        )

    def execute(self) -> RunResult:
        """Register the nodes, train, rank the selected round, write the result."""
        cfg, statistics = self.cfg, self.cfg.evaluation.item_statistics
        for remark in remarks(cfg):
            log(WARNING, "%s", remark)
        loop = self.strategy.session = self._loop()
        rounds = self._private(loop)
        rng = derive_rng(cfg.seed, Role.INIT_SHARED)
        if self.start.resume_from is None:
            shards = identities(self.directory.shards)
            self.strategy.initial_items = initial_items(cfg, self.directory.num_items, shards)
        shared = self.strategy.init_shared(self.directory.num_items, rng)
        check_storable(cfg, self.strategy, shared, self.directory.num_items)
        if self.tools.uplinks is not None:
            users = math.ceil(cfg.federation.fraction * self.directory.num_users)
            nodes = len(self.directory.shards)
            self.tools.uplinks.check(self.strategy, shared, nodes, users)
        self.tools.gatherer.reply_limit = self._reply_limit(shared)
        checkpoint = self.start.resume_from
        versions = {} if checkpoint is None else dict(checkpoint.versions)
        self.tools.trainer.devices = device_rounds(
            cfg, self.strategy, self.directory.shards, shared, loop.round, versions
        )
        if statistics:
            self.evaluator.count_items()
        popularity = self.evaluator.popularity(self.strategy) if statistics else None
        self._announce(loop, rounds)
        self.strategy.start(
            self.tools.courier.grid, to_arrays(shared), rounds, cfg.federation.deadline_s
        )
        selected = self._selected(loop)
        self._save_ranks(selected, popularity)
        result = self._result(loop, selected, popularity)
        result.save()
        refuse_client_errors(result.rounds, client_errors(self._records(loop)))
        return result

    def _private(self, loop: RoundLoop) -> int:
        """Prepare the run's mechanism, if any; the last round, which its budget may bring forward.

        The count of what was released goes on where the run is resumed.
        """
        cfg, users = self.cfg, self.directory.num_users
        privacy = privacy_of(cfg, self.folder.path, loop.round, users)
        self.tools.trainer.privacy = privacy
        return cfg.federation.rounds if privacy is None else privacy.rounds

    def _reply_limit(self, shared: Tensors) -> int:
        """Bytes of the largest honest reply, with each user's upload where these are sent."""
        # What is summed may be larger than what is shared.
        sizes = (shared, self.strategy.summed_template(shared))
        limit = max(reply_limit(tensors, self.directory.num_items) for tensors in sizes)
        limit += self._ranks_limit()
        if self.strategy.defence is not None:
            # A user's update has at most each tensor, with an index and a weight a row.
            users = math.ceil(self.cfg.federation.fraction * self.directory.num_users)
            return limit + users * reply_limit(shared, self.directory.num_items)
        if not self.strategy.needs_individual_updates:
            return limit
        upload = self.strategy.individual_template(shared)
        users = math.ceil(self.cfg.federation.fraction * self.directory.num_users)
        return limit + users * sum(t.numel() * t.element_size() for t in upload.values())

    def _ranks_limit(self) -> int:
        """Bytes of each user's index and ranks, where a reply has them."""
        asked = self.cfg.evaluation.user_ranks
        return RANK_BYTES * self.directory.num_users if asked else 0

    def _records(self, loop: RoundLoop) -> list[dict[str, object]]:
        """The rounds' records; the last checkpoint, and what failed in exchanges after them."""
        after = self.tools.gatherer.failures
        outside: dict[str, object] = {
            "failures": after.count,
            "client_errors": after.client_errors,
            "seconds": {"checkpoint": loop.checkpoint_seconds},
        }
        return [*read_metrics(self.folder.path), outside]

    def _loop(self) -> RoundLoop:
        checkpoint = self.start.resume_from
        resume_round = 0 if checkpoint is None else checkpoint.round
        known = {} if checkpoint is None else checkpoint.shards
        self.directory.register(resume_round, frozenset(known))
        now = identities(self.directory.shards)
        if differing := sorted(key for key in known if known[key] != now.get(key)):
            raise CheckpointError(
                "the nodes do not host the shards of the run to be resumed: users or data of "
                + ", ".join(differing)
            )
        lost = [key for key in known if self.directory.shards[key].new_run]
        if resume_round > 0 and lost:
            raise CheckpointError(lost_state(lost))
        trained = {} if checkpoint is None else dict(checkpoint.trained)
        for key, last in sorted(trained.items()):
            if (there := self.directory.shards[key].last_round) < last:
                raise CheckpointError(older_state(key, there, last))
        self.directory.trained = trained
        identity = Identity(
            self.header,
            config_hash(self.cfg),
            lambda: identities(self.directory.shards),
            lambda: self.directory.trained,
        )
        return RoundLoop(self.cfg, self.tools, identity, self.callbacks, checkpoint)

    def _announce(self, loop: RoundLoop, rounds: int) -> None:
        cfg, directory = self.cfg, self.directory
        info = RunInfo(
            name=str(cfg.name),
            folder=self.folder.path,
            dataset=cfg.dataset.name,
            protocol=cfg.protocol.name,
            strategy=cfg.strategy_name,
            model=cfg.model_name,
            seed=cfg.seed,
            first_round=loop.round + 1,
            rounds=rounds,
            num_users=directory.num_users,
            num_items=directory.num_items,
            num_nodes=len(directory.shards),
        )
        for callback in self.callbacks:
            callback.on_start(info)

    def _selected(self, loop: RoundLoop) -> Ranking:
        """Figures of the selected round; ranked once more against the catalogue if asked."""
        selection = loop.examiner.selection
        if selection.round is None:
            raise CheckpointError("no round was evaluated")
        if self.cfg.evaluation.full != "selected" or ranks_each_in_full(self.cfg):
            ranks = loop.examiner.best_ranks
            return Ranking(selection.metrics, selection.counts, ranks=ranks)
        return self.evaluator.evaluate(
            self.strategy, selection.round, loop.examiner.best, full=True
        )

    def _save_ranks(self, selected: Ranking, popularity: Ranking | None) -> None:
        """Each user's ranks, where nodes were asked for them."""
        found = {MODEL: selected, POPULARITY: popularity}
        ranks = {n: r.ranks for n, r in found.items() if r is not None and r.ranks is not None}
        if ranks:
            save_user_ranks(self.folder.path, ranks)

    def _result(self, loop: RoundLoop, ranking: Ranking, popularity: Ranking | None) -> RunResult:
        cfg, directory, privacy = self.cfg, self.directory, self.tools.trainer.privacy
        assert loop.examiner.selection.round is not None
        return RunResult(
            name=str(cfg.name),
            folder=self.folder.path,
            dataset=cfg.dataset.name,
            protocol=cfg.protocol.name,
            strategy=cfg.strategy_name,
            title=self.strategy.title,
            model=cfg.model_name,
            seed=cfg.seed,
            num_users=directory.num_users,
            num_items=directory.num_items,
            rounds=loop.round,
            selected_round=loop.examiner.selection.round,
            select=cfg.protocol.select,
            early_stopped=loop.examiner.early_stopped and loop.round < cfg.federation.rounds,
            metrics=ranking.metrics,
            counts=ranking.counts,
            popularity=None if popularity is None else popularity.metrics,
            totals=totals_of(self._records(loop)),
            privacy=None if privacy is None else privacy.summary(),
            poisoning=self._poisoning(loop, ranking),
        )

    def _poisoning(self, loop: RoundLoop, ranking: Ranking) -> dict[str, float]:
        found = in_total(self._records(loop))
        if self.clean is None:
            return found
        return found | drops(ranking.metrics, self.clean, ranking.counts)


def identities(shards: Mapping[str, HelloReply]) -> dict[str, dict[str, str]]:
    """By shard key: hashes of its users and of their data, as a checkpoint keeps them."""
    return {
        key: {"users": fingerprint(hello.users.tobytes()), "data": hello.data}
        for key, hello in shards.items()
    }


def reply_limit(shared: Tensors, num_items: int) -> int:
    """Bytes of the largest honest reply: every shared tensor with a weight and an index a row.

    Twice that, and a megabyte for metrics and names.
    """
    numbers = sum(tensor.numel() * tensor.element_size() for tensor in shared.values())
    rows = sum(len(tensor) for tensor in shared.values() if tensor.dim())
    return 2 * (numbers + BYTES_A_ROW * (rows + num_items)) + MAX_REPLY_BYTES
