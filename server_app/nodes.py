"""The node directory: nodes are greeted, checked, admitted or refused, and found again.

In a simulation every node must fit, and one that does not ends the run. In a deployment one
that does not fit is refused and told why, and the others go on if they are enough. There
nodes may join, leave and come back under a new id in any round.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from flwr.common.logger import log

from conf.tree import FederationConfig
from server_app.errors import NodeError
from server_app.exchange import Courier
from server_app.greeting import Greeter
from server_app.refusals import refuse_alike
from server_app.roster import Roster, lost_state, majority_first, older_state, same_shard
from strategies.messages import Header, HelloReply

INFO, WARNING = 20, 30
POLL_S = 0.1
LATE_HELLO_S, MAX_GREETINGS = 30.0, 3
"""How long, and how often, a node that appears during the run is given to introduce itself."""
SHOWN_USERS = 5


class NodeDirectory(Roster):
    """The roster of a run, kept true by greeting nodes."""

    def __init__(self, courier: Courier, header: Header, federation: FederationConfig) -> None:
        super().__init__()
        self._courier = courier
        self._federation = federation
        self._seen: set[int] = set()
        self.trained: dict[str, int] = {}
        """By shard: the last round whose answer was used."""
        self._asked: Counter[int] = Counter()
        deployed = federation.grid == "deployment"
        self._greeter = Greeter(courier, header, tell=deployed)

    @property
    def refused(self) -> Mapping[int, str]:
        """Why a node was not admitted, by node id."""
        return self._greeter.refused

    @property
    def _deployed(self) -> bool:
        return self._federation.grid == "deployment"

    # ---- registration --------------------------------------------------------------------
    def register(self, resume_round: int = 0, needed: frozenset[str] = frozenset()) -> None:
        """Wait for the configured nodes and check that their shards fit together.

        ``resume_round``: the round that this start continues from; 0 at the run's beginning.
        ``needed``: shards that took part before, without which a run cannot be resumed.

        Raises:
            NodeError: at the deadline, or for other code, another catalogue, a shard key
                reported twice, users hosted twice or missing, or a node that fails.

        """
        self._greeter.resume_round = resume_round
        cfg = self._federation
        deadline = time.monotonic() + cfg.register_timeout_s
        replies: dict[int, HelloReply] = {}
        while True:
            online = set(self._courier.grid.get_node_ids())
            left = deadline - time.monotonic()
            unasked = online - replies.keys() - self.refused.keys()
            if unasked and left > 0:
                replies |= self._introduced(unasked, left)
            elif len(replies) + len(self.refused) >= cfg.num_nodes:
                break
            elif left <= 0:
                if len(replies) >= (cfg.min_nodes or cfg.num_nodes):
                    break
                raise NodeError(self._too_few(len(online), len(replies)))
            else:
                time.sleep(min(POLL_S, left))
        self._admit(replies)
        if absent := sorted(needed - self.shards.keys()):
            raise NodeError(
                f"shards {', '.join(absent)} took part in the run that is to be resumed and are "
                "not there: start their nodes and resume again"
            )

    def _introduced(self, unasked: set[int], left: float) -> dict[int, HelloReply]:
        hellos = self._greeter.greet(unasked, left, may_start=self._greeter.resume_round == 0)
        if not self._deployed:
            refuse_alike(list(hellos.values()))
        found = {}
        for node_id, reply in sorted(hellos.items()):
            try:
                found[node_id] = self._greeter.introduction(node_id, reply)
            except NodeError as error:
                self._turn_away(node_id, error)
        return found

    def _admit(self, replies: Mapping[int, HelloReply]) -> None:
        expected = self._federation.num_nodes
        if len(replies) > expected and not self._deployed:
            raise NodeError(
                f"{len(replies)} nodes are registered but federation.num_nodes={expected}: "
                f"set federation.num_nodes={len(replies)} or change the number of nodes"
            )
        for node_id, reply in majority_first(replies):
            try:
                self.add(node_id, reply)
            except NodeError as error:
                self._turn_away(node_id, error)
        self._seen = set(replies) | self.refused.keys()
        if len(self.shards) < (self._federation.min_nodes or expected):
            raise NodeError(self._too_few(len(self._seen), len(self.shards)))
        self._check_cover()

    def _check_cover(self) -> None:
        """Every user of a simulation has a node; in a deployment some nodes may come later."""
        missing, total = self.missing(), self.num_users + len(self.missing())
        if len(missing) and not self._deployed:
            raise NodeError(f"no shard hosts user {missing[0]}: the shards do not cover all users")
        if len(missing):
            some = ", ".join(map(str, missing[:SHOWN_USERS].tolist()))
            more = ", …" if len(missing) > SHOWN_USERS else ""
            log(WARNING, "%d of %d users are on no node: %s%s", len(missing), total, some, more)

    # ---- during the run ------------------------------------------------------------------
    def refresh(self) -> None:
        """Greet nodes under ids not seen before: a shard that comes back, or one that joins."""
        unknown = set(self._courier.grid.get_node_ids()) - self._seen
        if not unknown:
            return
        self._asked.update(unknown)
        # A node that is silent is asked again in a later round, but not for ever.
        self._seen |= {node for node in unknown if self._asked[node] >= MAX_GREETINGS}
        wait_s = min(self._federation.deadline_s, LATE_HELLO_S)
        replies = self._greeter.greet(unknown, wait_s, may_start=False)
        self._seen |= replies.keys()
        for node_id, reply in sorted(replies.items()):
            try:
                self._take_over(node_id, self._greeter.introduction(node_id, reply))
            except NodeError as error:
                self._greeter.refuse(node_id, str(error))

    def _take_over(self, node_id: int, hello: HelloReply) -> None:
        known = self.shards.get(hello.shard_key)
        if known is None and self._deployed:
            self._join(node_id, hello)
            return
        if known is None or not same_shard(known, hello):
            raise NodeError(
                f"shard {hello.shard_key!r} is not the one of this run: its users or data differ"
            )
        if hello.new_run:
            raise NodeError(lost_state([hello.shard_key]))
        trained = self.trained.get(hello.shard_key, 0)
        if hello.last_round < trained:
            raise NodeError(older_state(hello.shard_key, hello.last_round, trained))
        self.move(hello.shard_key, node_id)
        log(INFO, "Shard %r is now on node %d", hello.shard_key, node_id)

    def _join(self, node_id: int, hello: HelloReply) -> None:
        """A shard that was not there at the start; it begins the run now."""
        if hello.new_run:
            replies = self._greeter.greet([node_id], LATE_HELLO_S, may_start=True)
            if node_id not in replies:
                raise NodeError(f"shard {hello.shard_key!r} went away as it was to join")
            hello = self._greeter.introduction(node_id, replies[node_id])
        self.add(node_id, hello)
        log(INFO, "Shard %r joins on node %d", hello.shard_key, node_id)

    def _turn_away(self, node_id: int, error: NodeError) -> None:
        """At the start: refuse one node of a deployment; a simulation ends."""
        if not self._deployed:
            raise error
        self._greeter.refuse(node_id, str(error))

    def _too_few(self, online: int, answered: int) -> str:
        cfg = self._federation
        if self.refused:
            (first, reason), *others = sorted(self.refused.items())
            more = f" (and {len(others)} more)" if others else ""
            return (
                f"{answered} of {cfg.num_nodes} nodes are fit for the run; node {first} was "
                f"refused: {reason}{more}"
            )
        return (
            f"{answered} of {cfg.num_nodes} nodes introduced themselves within "
            f"{cfg.register_timeout_s:g} s ({online} online): start the missing nodes, lower "
            "federation.num_nodes or raise federation.register_timeout_s"
        )
