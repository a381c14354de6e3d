"""The dataclasses of the configuration tree. Import them from ``conf.tree``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from conf.privacy_schema import AttackConfig, DefenceConfig, DevicesConfig, PrivacyConfig


@dataclass(frozen=True)
class SyntheticConfig:
    """A made-up data set (``client_app.synthetic``); no figure on it says anything about people."""

    users: int = 10_000
    items: int = 5_000
    median_rows: float = 20.0
    """Interactions of the user in the middle."""
    spread: float = 0.7
    """Standard deviation of the logarithm of the number of interactions."""
    least_rows: int = 5
    exponent: float = 0.8
    """Of the power law of item popularity: the item of rank r is drawn in proportion to r^-this."""
    clusters: int = 20
    """Clusters of items that users like or do not."""
    taste: float = 0.7
    """Share of interactions with the user's own clusters; the rest follow popularity alone."""
    seed: int = 0
    """Of the data; the run's seed has no part in it."""


@dataclass(frozen=True)
class DatasetConfig:
    """A file of interactions and how to read it."""

    name: str
    """Label in tables and file names."""
    path: str | None = None
    """Absolute path of the file (may be .gz or a .zip member ``a.zip:member``); None: fetch it."""
    fetch: Literal["ml-100k"] | None = None
    """How the file is obtained when ``path`` is not given."""
    synthetic: SyntheticConfig | None = None
    """Made up instead of read; the fields about a file then mean nothing."""
    format: Literal["auto", "inter", "delimited"] = "auto"
    """``inter``: RecBole atomic file, tab-separated with a typed header; ``delimited``: as the
    next fields say; ``auto``: ``inter`` by its suffix or typed header, else ``delimited``."""
    separator: str = ","
    """One or more characters, or a word: comma, tab, space, semicolon, pipe."""
    header: bool = False
    """The first line holds column names."""
    columns: tuple[str, ...] = ("user", "item", "rating", "timestamp")
    """Meaning of each column in order; ``_`` skips one. With a header and names that differ,
    ``user:NAME`` picks by name. ``user`` and ``item`` are required."""
    encoding: str = "utf-8"
    rating_threshold: float | None = None
    """Keep rows whose rating is at least this; None: every row is a positive."""
    time: Literal["timestamp", "random", "file_order"] = "timestamp"
    """Where order within a user comes from. ``random`` is the paper's rule for FilmTrust."""
    id_order: Literal["first_appearance", "number"] = "first_appearance"
    """How raw ids get their order before renumbering, as the paper's notebook does by dataset."""
    titles: str | None = None
    """A file with item titles (RecBole ``.item``), shown by ``recommend``; optional."""
    bad_rows: Literal["error", "skip"] = "error"
    unknown_items: Literal["skip", "error"] = "skip"
    """What a node with a data folder of its own does about items that are not in the catalogue:
    leave their rows out, and say so, or refuse."""
    rows: int | None = None
    users: int | None = None
    items: int | None = None
    """Expected counts of the raw file, checked when given."""
    sha256: tuple[str, ...] = ()
    """Hashes of the known copies of the file (unpacked when .gz); empty: any file will do."""


@dataclass(frozen=True)
class ProtocolConfig:
    """How data is split and ranked. Every printed number carries ``name``."""

    name: str
    min_interactions: int = 5
    """Users with fewer rows (after ``duplicates``) are dropped, once."""
    duplicates: Literal["keep", "last", "first"] = "last"
    """What becomes of repeated (user, item) rows, before the split."""
    ties: Literal["lowest_item", "first_line"] = "lowest_item"
    """Which of a user's rows of the same time counts as the latest: that of the lowest item, as in
    the paper's notebook, or the first in the file, as in PFedRec's code."""
    validation: bool = True
    """Hold out the second latest row as well."""
    negatives: Literal["honest", "exclude_heldout"] = "honest"
    """Pool of training negatives: all but the user's training items, or all but any of his."""
    num_candidates: int = 99
    """Sampled negatives a held-out item is ranked against."""
    candidates: Literal["derived", "notebook"] = "derived"
    """Source of the sampled negatives: our own streams, or the paper notebook's (seed 42)."""
    select: Literal["best_validation", "best_test", "last"] = "best_validation"
    """Which evaluated round is reported."""


@dataclass(frozen=True)
class EngineConfig:
    """How a node trains its part of the cohort."""

    name: Literal["cohort", "loop"] = "cohort"
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """Where users are trained and ranked; ``auto``: on a GPU where there is one."""
    threads: int = 1
    """Torch threads of each worker."""
    workers: int = 1
    """Blocks of users trained at once, each by a Python thread; more than one pays on a node
    with several cores, of which it then uses ``workers`` × ``threads``."""
    block_users: int | None = None
    """Users trained at once by the cohort engine, on average: blocks have about equal numbers
    of samples. None: what suits the model."""
    evaluation_block: int = 64
    """Users ranked at once."""


@dataclass(frozen=True)
class FederationConfig:
    """Rounds, cohort, nodes and what happens when nodes fail."""

    grid: Literal["ray", "local", "deployment"] = "ray"
    """Nodes simulated by Ray, simulated in the server's process, or SuperNodes that connect to
    a SuperLink, each with data of its own."""
    num_nodes: int = 2
    """Nodes of a simulation, among which users are split; of a deployment, nodes awaited."""
    min_nodes: int | None = None
    """A run starts with this many nodes when ``register_timeout_s`` is over, others may join
    later; None: all of ``num_nodes`` are needed."""
    workers: int | None = None
    """Nodes that work at once on the in-process grid; None: as many as the cores allow."""
    rounds: int = 100
    fraction: float = 0.1
    """Share of the users sampled a round; the cohort is its floor, at least one user."""
    deadline_s: float = 600.0
    """A round's replies are awaited this long, in seconds."""
    register_timeout_s: float = 120.0
    """Nodes are awaited this long at the start, in seconds."""
    rejoin_s: float = 0.0
    """Before a round is tried again, nodes that went away are awaited this long, in seconds."""
    min_share: float = 1.0
    """Least share of the cohort's users whose updates must arrive."""
    on_missing: Literal["fail", "retry", "continue"] = "fail"
    """What to do below ``min_share``."""
    retries: int = 2
    """Attempts beyond the first with ``on_missing=retry``; then the run fails."""
    checkpoint_every: int = 5
    """Rounds between checkpoints; an evaluated and the last round are always saved."""


@dataclass(frozen=True)
class EvaluationConfig:
    """When and how held-out items are ranked."""

    every: int = 10
    """Rounds between evaluations; the last round is always evaluated."""
    cutoffs: tuple[int, ...] = (5, 10, 15, 20)
    full: Literal["each", "selected", "never"] = "each"
    """Full-catalogue ranking: at each evaluation, once for the selected round, or not."""
    users: int | None = None
    """Users that are ranked, drawn once for all rounds; None: all of them."""
    item_statistics: bool = True
    """Nodes send item counts and how often items are recommended, for the popularity
    reference, coverage and popularity share. These are sums over a node's users."""
    patience: int | None = None
    """Stop after this many evaluations without a better selection metric; None: never."""
    user_ranks: bool = False
    """Nodes send each ranked user's ranks, for ``user_ranks.npz`` in the run's folder. Personal
    figures: only in a simulation."""
    item_drift: bool = False
    """After each evaluated round a line in ``item_drift.jsonl``: how far the shared item tables
    have moved since the one before."""
    record_uplinks: tuple[int, ...] = ()
    """Rounds whose uploads are kept as the server saw them, for ``fedrecgel audit``
    (``server_app.uplink_record``). Personal data: only in a simulation."""


@dataclass(frozen=True)
class InitConfig:
    """What training starts from in place of drawn embeddings (``server_app.initial_items``)."""

    run: str | None = None
    """Name of the run under ``output``, or its absolute folder, whose item embeddings are taken."""
    strategy: str | None = None
    """Or a strategy of ``conf/strategy``, of which a run goes first, named NAME-init."""
    rounds: int = 10
    """Rounds of that run."""
    fraction: float = 1.0
    """Share of the users that take part in each of its rounds."""
    table: str | None = None
    """Item table of that run; None: each table of the model that the run has as well, else the
    tables that both models multiply with the users' vectors."""
    into: str | None = None
    """Item table of the model that ``table`` becomes; None: that of the same name."""
    std: float | None = None
    """Standard deviation of entries to which a table is scaled; None: it stays as it is."""
    users: Literal["drawn", "solved"] = "drawn"
    """Vectors of users who were not trained yet: drawn, or solved for from their items by ridge
    regression on the item vectors, always those of the round (``models.history_start``)."""
    ridge: float = 1.0
    """Ridge of ``solved``, in mean eigenvalues of the items' Gram matrix."""
    gain: float = 1.0
    """Score that ``solved`` aims at for a user's own items."""


@dataclass(frozen=True)
class TrackingConfig:
    """Where a run is followed beside ``metrics.jsonl`` (``server_app.tracking``)."""

    tensorboard: bool = False
    """Event files in the folder of the run."""
    mlflow: bool = False
    mlflow_uri: str = ""
    """Tracking store of MLflow, such as http://HOST:5000 or sqlite:////ABS/FILE.db; empty:
    ``mlflow.db`` beside the folders of the runs."""
    mlflow_experiment: str = "fedrecgel"


@dataclass(frozen=True)
class Config:
    """The whole resolved configuration of one run."""

    dataset: DatasetConfig
    protocol: ProtocolConfig
    model: Any
    """A model of ``models``, itself a frozen dataclass (``models.neumf.NeuMF``)."""
    strategy: Any
    """The strategy's frozen ``Config`` dataclass; its class is ``strategy_class``."""
    strategy_class: Any
    strategy_name: str
    """The yaml's name: the word that swaps strategies."""
    model_name: str
    engine: EngineConfig = field(default_factory=EngineConfig)
    federation: FederationConfig = field(default_factory=FederationConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    init: InitConfig = field(default_factory=InitConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)
    defence: DefenceConfig = field(default_factory=DefenceConfig)
    devices: DevicesConfig = field(default_factory=DevicesConfig)
    seed: int = 0
    name: str | None = None
    """Name of the run; None: made from dataset, strategy, seed and time."""
    output: str = ""
    """Absolute root of run folders; empty: ``runs`` in the caller's directory."""
    cache: str = ""
    """Absolute root of prepared data; empty: the user's cache directory."""
    resume: bool = False
    """Continue the run ``name`` from its last checkpoint."""
