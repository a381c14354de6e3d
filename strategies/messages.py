"""The messages between server and nodes as typed records; ``strategies.wire`` encodes them.

Private parameters have no field here, so they cannot be sent. What a user uploads has one: where
a method keeps a copy of its upload to rank with (an own item table), server and node both have it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from models.types import IndividualUpdates, IntArray, Tensors, Update, UserRanks
from strategies.by_user import UserUpdates

HELLO, ITEM_COUNTS, REFUSED = "query.hello", "query.item_counts", "query.refused"
"""Flower message types beside train and evaluate."""
MAX_STORED_BYTES = 1_000_000_000
"""Most that a node can keep of an answer, or of parameters received: SQLite's limit of a value."""


@dataclass(frozen=True)
class Header:
    """What every request carries."""

    run_id: str
    """Ours, and survives a resume; Flower's does not."""
    incarnation: int
    """Counts the server's starts within a run; higher after each resume."""
    config_json: str
    """The resolved configuration tree."""
    code: str = ""
    """Fingerprint of the server's sources."""


@dataclass(frozen=True)
class HelloRequest:
    """The server greets a node, once at its start and whenever a node appears later."""

    header: Header
    may_start: bool = True
    """The run begins: no node can have private state of it, so the node may start it."""
    resume_round: int = 0
    """The round this start of the server continues from; a node's newer rows are abandoned."""


@dataclass(frozen=True)
class HelloReply:
    """A node introduces itself: its shard of users and what it runs on."""

    shard_key: str
    users: IntArray
    """Global indices of the users on the node."""
    code: str
    data: str
    catalogue: str
    num_items: int
    population: int
    """Users of the whole federation, N."""
    left_out: int = 0
    """Interactions of the node's users with items that are not in the catalogue."""
    last_round: int = 0
    """The last round that the node's store holds of this run; 0 before the first."""
    new_run: bool = False
    """The node's store knew nothing of this run; for a shard that took part before, it is lost."""
    activity: IntArray | None = None
    """Training interactions of each of ``users``, where devices are simulated by them."""


@dataclass(frozen=True)
class Older:
    """Users of a request who were asked earlier, with the parameters that they were given then."""

    version: int
    """The round after whose step these were the shared parameters."""
    users: IntArray
    weight: float
    """What their updates are multiplied by in the sum, for their age."""
    shared: Tensors


@dataclass(frozen=True)
class Downlink:
    """Shared parameters and the node's share of the round's cohort."""

    header: Header
    round: int
    base_round: int
    """The round whose private state training starts from (the one before, usually)."""
    keep_rounds: tuple[int, ...]
    """Rounds whose private state a resume or a recommendation may still ask for; the first
    is the last checkpoint's, and everything newer than that is kept as well."""
    users: IntArray | None
    """The cohort's users on this node; None: all of them (stock Flower strategies)."""
    shared: Tensors
    personal: dict[int, Tensors] = field(default_factory=dict)
    """By user: tensors beside the shared ones."""
    evaluate: Literal["", "sampled", "full"] = ""
    """Rank held-out items too, with ``shared`` and the private state of ``base_round``."""
    ranked: IntArray | None = None
    """Users of the node that are ranked then; None: all of them."""
    noise_std: float = 0.0
    """Standard deviation of the noise that each user adds to its clipped update."""
    reply_weights: bool = False
    """Reply with averaged weights (stock Flower strategies) instead of the sum of updates."""
    older: tuple[Older, ...] = ()
    """Some of ``users`` who start from older shared parameters; the others have weight one."""


@dataclass(frozen=True)
class Uplink:
    """The sum over a node's users of their updates, with sums of their metrics."""

    shard_key: str
    round: int
    num_users: int
    update: Update
    metrics: dict[str, float]
    """Sums over users; divide by ``num_users``."""
    seconds: float
    """Wall time of the node's training."""
    individual: IndividualUpdates | None = None
    """Each user's upload, for strategies that need it; ``update`` then has no tensors."""
    by_user: UserUpdates | None = None
    """Each user's update, for a server with a defence; ``update`` then has no tensors."""
    evaluation: EvaluateReply | None = None
    """The ranking that the request asked for beside training."""


@dataclass(frozen=True)
class EvaluateRequest:
    """Rank the held-out items of users of a node."""

    header: Header
    round: int
    state_round: int
    """The round whose private state is scored."""
    scorer: str
    """``model`` or ``popularity`` (``shared`` then holds ``item_counts`` (I,))."""
    full: bool
    """Rank against the whole catalogue too, beside the sampled candidates."""
    shared: Tensors
    users: IntArray | None = None
    """Users of the node that are ranked; None: all of them."""
    personal: dict[int, Tensors] = field(default_factory=dict)
    """By user: tensors beside the shared ones."""
    reply_means: bool = False
    """Reply with means over users (stock Flower strategies) instead of sums and counts."""


@dataclass(frozen=True)
class EvaluateReply:
    """Sums and counts of ranking metrics, and how often each item was recommended."""

    shard_key: str
    round: int
    metrics: dict[str, float]
    """Sums over users, by ``{test|validation}/{sampled|full}/{hr@10|…}``."""
    counts: dict[str, float]
    """Number of users behind each metric, by the same names."""
    exposure_I: IntArray | None
    """How often each item stands in a user's full-ranking top 10 (None: not asked)."""
    seconds: float
    ranks: UserRanks | None = None
    """Each ranked user's ranks, where the configuration has ``evaluation.user_ranks``."""
