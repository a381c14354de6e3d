"""Evaluation exchanges: the model at a round, the popularity reference, item counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from conf.tree import Config
from models.types import IntArray, Tensors
from server_app.errors import RoundError
from server_app.evaluation_check import Asked, asked_names, problem
from server_app.gather import Ask, Gatherer
from server_app.nodes import NodeDirectory
from server_app.poisoning import honest_users
from server_app.ranking import Ranking, summarise
from server_app.sampling import ranked_users
from server_app.secagg import SecureSums
from server_app.secagg_replies import summed_counts, summed_evaluation
from server_app.trainer import Folded, own_of
from strategies import wire
from strategies.base import RecStrategy
from strategies.codec import WireError, to_arrays
from strategies.hooks import Failure, error_of
from strategies.messages import ITEM_COUNTS, EvaluateReply, EvaluateRequest, Header
from strategies.secagg import protocol


@dataclass(frozen=True)
class _ItemCounts:
    """A node's item counts with the fields that every gathered reply has."""

    shard_key: str
    counts_I: IntArray


class Evaluator:
    """Runs evaluations of all users; the round loop asks it for each node's request."""

    def __init__(
        self,
        cfg: Config,
        directory: NodeDirectory,
        gatherer: Gatherer,
        header: Header,
        secure: SecureSums | None = None,
    ) -> None:
        self._cfg = cfg
        self._secure = secure
        self._directory = directory
        self._gatherer = gatherer
        self._header = header
        self._request: EvaluateRequest | None = None
        self._outstanding: frozenset[str] = frozenset()
        self._parts: dict[str, IntArray] | None = None
        self._personal: Mapping[int, Tensors] = {}
        self.item_counts_I: IntArray | None = None

    def plan(self) -> Mapping[int, EvaluateRequest]:
        """The request of each node id; empty outside an evaluation."""
        if self._request is None:
            return {}
        ranked = self._ranked()
        return {
            self._directory.node(key): replace(
                self._request, users=ranked.get(key), personal=self._personal_of(key)
            )
            for key in sorted(self._outstanding)
        }

    def _personal_of(self, key: str) -> dict[int, Tensors]:
        """Tensors of the shard's ranked users beside the shared ones."""
        if not self._personal:
            return {}
        users = self._ranked().get(key, self._directory.shards[key].users)
        return own_of(users, self._personal)

    def _ranked(self) -> dict[str, IntArray]:
        """The ranked users of each shard that has some; empty when all users are ranked."""
        if self._parts is None:
            directory, count = self._directory, self._cfg.evaluation.users
            users = honest_users(self._cfg, directory.users, directory.num_users)
            places = ranked_users(self._cfg.seed, len(users), count)
            all_are = places is None and len(users) == directory.num_users
            self._parts = (
                {} if all_are else directory.split(users if places is None else users[places])
            )
        return self._parts

    def evaluate(
        self,
        strategy: RecStrategy,
        server_round: int,
        shared: Tensors,
        *,
        full: bool,
        scorer: str = "model",
        known: Sequence[EvaluateReply] = (),
    ) -> Ranking:
        """Rank the held-out items of all users with the state of ``server_round``.

        ``known`` are replies that are here already; their shards are not asked.

        Raises:
            RoundError: when replies are missing beyond the policy.

        """
        request = EvaluateRequest(self._header, server_round, server_round, scorer, full, {})
        self._parts = None  # a shard may have joined since
        arrays = to_arrays(shared)  # encoded once for all nodes
        self._personal = {}
        if scorer == "model" and strategy.personal_evaluation:
            self._personal = strategy.evaluation_personal(self._directory.users)

        def ask(outstanding: frozenset[str]) -> Iterable[Message]:
            self._request, self._outstanding = request, outstanding
            grid = self._gatherer.grid
            return strategy.configure_evaluate(server_round, arrays, ConfigRecord(), grid)

        by_key = {reply.shard_key: reply for reply in known}
        asked = {key: users for key, users in self._ranked_of().items() if key not in by_key}
        try:
            if self._secure is not None:
                return self._secure_ranking(request, asked, ask)
            replies = (
                []
                if not asked
                else self._gatherer.gather(
                    f"evaluation of {scorer} at round {server_round}",
                    asked,
                    ask,
                    strategy.collect_evaluate,
                    self._check(request),
                )
            )
        finally:
            self._request, self._personal = None, {}
        by_key |= {reply.shard_key: reply for reply in replies}
        # In the order of keys, as if all had come together: sums are the same to the bit.
        return summarise([by_key[key] for key in sorted(by_key)], self.item_counts_I)

    def _secure_ranking(
        self, request: EvaluateRequest, users_of: Mapping[str, int], ask: Ask
    ) -> Ranking:
        """From the sum over nodes; checked as one node's reply would be."""
        assert self._secure is not None
        what = protocol.evaluation_sum(request.scorer, request.state_round)
        summed = self._secure.collect(what, users_of, ask)
        reply = summed_evaluation(summed, request.round)
        if found := problem(reply, self._asked_for(request), summed.users, None):
            raise RoundError(f"{what}: the sum of the uploads {found}")
        return replace(summarise([reply], self.item_counts_I), seconds=summed.seconds)

    def folded(self, server_round: int, *, full: bool) -> Folded:
        """The evaluation of a round, to be asked for with the next round's training."""
        request = EvaluateRequest(self._header, server_round, server_round, "model", full, {})
        self._parts = None  # a shard may have joined since
        return Folded("full" if full else "sampled", self._ranked(), self._check(request))

    def count_items(self) -> None:
        """Ask every node how often its users interacted with each item; keeps the sum (I,)."""

        def ask(outstanding: frozenset[str]) -> list[Message]:
            content = wire.encode_request(self._header)
            nodes = [self._directory.node(key) for key in sorted(outstanding)]
            return [Message(content, node, ITEM_COUNTS, group_id="items") for node in nodes]

        if self._secure is not None:
            summed = self._secure.collect(protocol.ITEM_COUNTS, self._users_of(), ask)
            self.item_counts_I = summed_counts(summed, self._directory.num_items)
            return
        replies = self._gatherer.gather(
            "item counts", self._users_of(), ask, self._collect_counts, lambda reply: None
        )
        self.item_counts_I = np.sum([reply.counts_I for reply in replies], axis=0)

    def popularity(self, strategy: RecStrategy) -> Ranking:
        """The ranking by number of training interactions, on the same split.

        Raises:
            RoundError: when item counts were not collected.

        """
        if self.item_counts_I is None:
            raise RoundError("the popularity reference needs evaluation.item_statistics=true")
        shared = {"item_counts": torch.from_numpy(self.item_counts_I)}
        full = self._cfg.evaluation.full != "never"
        return self.evaluate(strategy, 0, shared, full=full, scorer="popularity")

    def _asked_for(self, request: EvaluateRequest) -> Asked:
        return Asked(
            round=request.round,
            names=asked_names(self._cfg, request.full),
            exposure=request.full and self._cfg.evaluation.item_statistics,
            num_items=self._directory.num_items,
            places={
                "sampled": self._cfg.protocol.num_candidates + 1,
                "full": self._directory.num_items,
            },
        )

    def _check(self, request: EvaluateRequest) -> Callable[[EvaluateReply], str | None]:
        asked = self._asked_for(request)
        users_of, ranked = self._ranked_of(), self._users_with_ranks()
        return lambda reply: problem(
            reply, asked, users_of[reply.shard_key], ranked.get(reply.shard_key)
        )

    def _users_with_ranks(self) -> dict[str, IntArray]:
        """By shard: the users whose ranks are asked for."""
        if not self._cfg.evaluation.user_ranks:
            return {}
        shards = self._directory.shards
        return self._ranked() or {key: hello.users for key, hello in shards.items()}

    def _ranked_of(self) -> dict[str, int]:
        """Number of ranked users by shard; a shard without one is not asked."""
        return {key: len(users) for key, users in self._ranked().items()} or self._users_of()

    def _users_of(self) -> dict[str, int]:
        return {key: len(hello.users) for key, hello in self._directory.shards.items()}

    def _collect_counts(
        self, replies: Iterable[Message]
    ) -> tuple[list[_ItemCounts], list[Failure]]:
        usable, failures = list[_ItemCounts](), list[Failure]()
        for reply in replies:
            meta = reply.metadata
            where = (meta.reply_to_message_id, meta.src_node_id)
            if reply.has_error():
                failures.append(error_of(reply))
                continue
            try:
                counts_I = self._decode(reply.content)
            except WireError as error:
                failures.append(Failure(*where, f"rejected: {error}"))
            else:
                shard = self._directory.shard_at(meta.src_node_id)
                usable.append(_ItemCounts(shard, counts_I))
        return usable, failures

    def _decode(self, content: RecordDict) -> IntArray:
        counts_I = wire.decode_item_counts(content, self._directory.num_items)
        if (counts_I < 0).any():
            raise WireError("item counts must not be negative")
        return counts_I
