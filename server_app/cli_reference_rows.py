"""References fitted and ranked on the split, the candidates and the users of a federated run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from client_app.data import Dataset, load_dataset, shard_bounds
from client_app.errors import DataError
from client_app.evaluation import evaluate
from client_app.negatives import block_samples
from conf.build import ConfigError, build, unknown_keys
from conf.tree import Config
from models.rng import Role, UserStreams
from models.types import UserRanks
from server_app.errors import StorageError
from server_app.ranking import Ranking, summarise
from server_app.references import METHODS
from server_app.references.base import Draw, LabelledPairs, Reference, Scorer, UnavailableError
from server_app.references.rows import SELECTION, ReferenceRow, Trial
from server_app.sampling import ranked_users
from strategies.messages import EvaluateReply

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SHOWN_CUTOFF = 10

Settings = Mapping[str, Mapping[str, Any]]
"""Values of settings by method and key; what is missing has its default."""


@dataclasses.dataclass(frozen=True)
class _Fitted:
    """A method with its settings, fitted and ranked."""

    method: Reference[Any]
    ranking: Ranking
    seconds_fit: float
    seconds_rank: float


def reference_rows(
    cfg: Config,
    methods: Sequence[str],
    *,
    settings: Settings | None = None,
    tune: bool = False,
    on_unavailable: Callable[[str, UnavailableError], None] | None = None,
    on_ranks: Callable[[str, UserRanks], None] | None = None,
) -> list[ReferenceRow]:
    """Fit ``methods`` (names of ``METHODS``) and rank the held-out items; a row each, in order.

    Data, protocol, seed, candidates and ranked users are those of a federated run of ``cfg``,
    whose popularity row equals the one here to the bit. With ``tune`` the settings of each
    method's grid are compared by NDCG@10 on the validation items (full ranking), and the test
    figures are those of the best, which is the earlier one of equals.

    ``on_ranks`` is handed each method's name and the ranks behind its row, by user.

    A method that cannot be fitted here is handed to ``on_unavailable`` and has no row; without
    it the error is raised, before any fit where a package is missing.

    Raises:
        ConfigError: for unknown methods or settings, ``tune`` without validation items.
        UnavailableError: a missing package or too little memory.
        StorageError: when the data cannot be read.

    """
    options = _options(cfg, methods, settings or {}, tune)
    skip = on_unavailable or _raise
    usable = [name for name in methods if _is_installed(name, options[name], skip)]
    if not usable:
        return []
    try:
        dataset = load_dataset(cfg)
        train_UI, draw = training_matrix(dataset), _draw(cfg, dataset)
        rows = []
        for name in usable:
            try:
                with _threads(cfg.engine.threads):
                    best, row = _row(cfg, dataset, train_UI, name, options[name], draw)
            except UnavailableError as error:
                skip(name, error)
                continue
            rows.append(row)
            if on_ranks is not None and best.ranks is not None:
                on_ranks(name, best.ranks)
    except DataError as error:
        raise StorageError(str(error)) from None
    return rows


def training_matrix(dataset: Dataset) -> csr_array:
    """Number of training rows (U, I) of each user and item, float64, indices sorted."""
    from scipy.sparse import csr_array

    data = np.ones(len(dataset.train_items))
    parts = (data, np.array(dataset.train_items), np.array(dataset.indptr))
    train_UI = csr_array(parts, shape=(dataset.num_users, dataset.num_items))
    train_UI.sum_duplicates()
    return train_UI


def rank(cfg: Config, dataset: Dataset, scorer: Scorer) -> Ranking:
    """What a federated run of ``cfg`` would say of these scores.

    Users are ranked in the shards of a simulation and summed in their order: floating-point sums
    depend on it.
    """
    chosen = ranked_users(cfg.seed, dataset.num_users, cfg.evaluation.users)
    users = np.arange(dataset.num_users) if chosen is None else chosen
    nodes, cutoffs = cfg.federation.num_nodes, {*cfg.evaluation.cutoffs, SHOWN_CUTOFF}
    replies = []
    for index in range(nodes):
        lo, hi = shard_bounds(dataset.num_users, index, nodes)
        part = users[np.searchsorted(users, lo) : np.searchsorted(users, hi)]
        sums = evaluate(scorer, dataset, part, sorted(cutoffs), True, cfg.engine.evaluation_block)
        replies.append(
            EvaluateReply(
                shard_key=f"{index:09}",
                round=0,
                metrics=sums.metrics,
                counts=sums.counts,
                exposure_I=sums.exposure_I,
                seconds=0.0,
                ranks=UserRanks(part, sums.ranks),
            )
        )
    return summarise(replies, dataset.item_counts(np.arange(dataset.num_users)))


def _options(
    cfg: Config, methods: Sequence[str], settings: Settings, tune: bool
) -> dict[str, Sequence[Any]]:
    """The settings that each method is to be fitted with: one, or its grid."""
    unknown_keys(methods, [*METHODS], "")
    unknown_keys(settings, methods, "")
    if tune and not cfg.protocol.validation:
        raise ConfigError(
            f"--tune chooses by validation items, which protocol={cfg.protocol.name} does not "
            "hold out; choose under protocol=strict and give the settings here"
        )
    options = dict[str, Sequence[Any]]()
    for name in methods:
        method, given = METHODS[name], settings.get(name, {})
        chosen: Any = build(method.Config, given, name)
        varied = [dataclasses.replace(each, **given) for each in method.grid]
        # A setting that is given is the same everywhere, and so are some of the grid then.
        options[name] = list(dict.fromkeys(varied)) if tune and varied else [chosen]
    return options


def _is_installed(
    name: str, options: Sequence[Any], skip: Callable[[str, UnavailableError], None]
) -> bool:
    try:
        METHODS[name](options[0], _no_draw).check_installed()
    except UnavailableError as error:
        skip(name, error)
        return False
    return True


def _row(
    cfg: Config,
    dataset: Dataset,
    train_UI: csr_array,
    name: str,
    options: Sequence[Any],
    draw: Draw,
) -> tuple[Ranking, ReferenceRow]:
    """The best fit's ranking, and the row."""
    fits = [_fitted(cfg, dataset, train_UI, METHODS[name](each, draw)) for each in options]
    best = fits[0] if len(fits) == 1 else max(fits, key=_validation)
    tried = () if len(fits) == 1 else fits
    return best.ranking, ReferenceRow(
        method=name,
        title=best.method.title,
        implementation=best.method.implementation,
        settings=dataclasses.asdict(best.method.config),
        dataset=cfg.dataset.name,
        protocol=cfg.protocol.name,
        seed=cfg.seed,
        num_users=dataset.num_users,
        num_items=dataset.num_items,
        metrics=best.ranking.metrics,
        counts=best.ranking.counts,
        seconds_fit=best.seconds_fit,
        seconds_rank=best.seconds_rank,
        trials=tuple(
            Trial(dataclasses.asdict(f.method.config), _validation(f), f.seconds_fit) for f in tried
        ),
    )


def _fitted(cfg: Config, dataset: Dataset, train_UI: csr_array, method: Reference[Any]) -> _Fitted:
    started = time.perf_counter()
    scorer = method.fit(train_UI, cfg.seed)
    fitted = time.perf_counter()
    ranking = rank(cfg, dataset, scorer)
    return _Fitted(method, ranking, fitted - started, time.perf_counter() - fitted)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Torch with so many threads: steps on a minibatch are too small for more to pay."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _validation(fit: _Fitted) -> float:
    return fit.ranking.metrics[SELECTION]


def _draw(cfg: Config, dataset: Dataset) -> Draw:
    """Samples of an epoch for all users: those that a round of the same number would draw."""
    users_U, rule = np.arange(dataset.num_users), cfg.protocol.negatives

    def draw(seed: int, epoch: int, num_negatives: int) -> LabelledPairs:
        streams = UserStreams(seed, Role.TRAIN, epoch, 0)
        samples_U = block_samples(dataset, users_U, rule, num_negatives, streams)
        lengths_U = [len(samples) for samples in samples_U]
        return LabelledPairs(
            np.repeat(users_U, lengths_U),
            np.concatenate([samples.items_S for samples in samples_U]),
            np.concatenate([samples.labels_S for samples in samples_U]),
        )

    return draw


def _no_draw(seed: int, epoch: int, num_negatives: int) -> LabelledPairs:
    raise NotImplementedError("only a fit draws")


def _raise(name: str, error: UnavailableError) -> None:
    raise error
