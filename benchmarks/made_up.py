"""Made-up cohorts in the shape of MovieLens-100K, or of any other size; nothing is downloaded.

Log-normal numbers of training rows a user, items by a power law. Users are numbered by
ascending number of rows, the order in which an engine trains them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from client_app.data import Dataset
from client_app.engine import draw_epochs
from client_app.private_rows import RowBlock, RowLayout
from client_app.private_state import Known, PrivateState
from conf.compose import compose
from conf.tree import Config
from models.rng import Role, derive_rng
from models.sam import Radii
from models.types import IntArray, Samples, Tensors
from strategies.base import RecStrategy
from strategies.sam_config import SAMConfig


@dataclass(frozen=True)
class Shape:
    """Size of a cohort; the defaults are a tenth of MovieLens-100K's users."""

    users: int = 94
    items: int = 1682
    median_rows: float = 65.0
    """Training rows of the user in the middle."""
    spread: float = 1.0
    """Standard deviation of the logarithm of a user's number of rows; 0: all alike."""
    most_rows: int = 735
    least_rows: int = 19


class HeldState(PrivateState):
    """Private rows held in memory, as they were before the first round."""

    def __init__(self, layout: RowLayout, rows_UP: RowBlock) -> None:
        self.layout, self.rows_UP = layout, rows_UP

    def rows(self, users: IntArray, as_of_round: int, known: Known | None = None) -> RowBlock:
        """Rows of users (U, P), the same for any round."""
        return self.rows_UP[users]


@dataclass(frozen=True)
class Work:
    """A strategy and the cohort that a round trains: all users of ``dataset``."""

    cfg: Config
    strategy: RecStrategy
    shared: Tensors
    dataset: Dataset
    state: HeldState

    @cached_property
    def users(self) -> IntArray:
        """Indices of the cohort."""
        return np.arange(self.dataset.num_users, dtype=np.int64)

    @cached_property
    def epochs(self) -> list[list[Samples]]:
        """Samples of each user's local epochs in round 1, drawn once (U lists)."""
        draw = (self.strategy, self.dataset, self.cfg)
        drawn = draw_epochs(*draw, np.asarray(self.users), round_=1)
        return [list(epochs) for epochs in drawn]

    @property
    def samples(self) -> list[Samples]:
        """Each user's samples (U of them), with one local epoch.

        Raises:
            ValueError: when there is more than one local epoch.

        """
        return [samples for (samples,) in self.epochs]

    @property
    def radii(self) -> Radii:
        """Of the strategy, zero where it has none."""
        sam: SAMConfig | None = getattr(self.strategy.config, "sam", None)
        return Radii() if sam is None else sam.radii

    def with_engine(self, **changed: object) -> Work:
        """The same work with other settings of the engine."""
        return replace(self, cfg=replace(self.cfg, engine=replace(self.cfg.engine, **changed)))  # type: ignore[arg-type]


def made_up(overrides: Sequence[str], shape: Shape, seed: int = 0) -> Work:
    """Work of a configuration such as ``["strategy=fedmf"]`` on a made-up cohort."""
    cfg = compose([*overrides, f"seed={seed}"])
    strategy: RecStrategy = cfg.strategy_class(cfg.strategy, cfg.model)
    shared = strategy.init_shared(shape.items, derive_rng(seed, Role.INIT_SHARED))
    state = _initial_state(strategy, shape.users, seed)
    return Work(cfg, strategy, shared, made_up_dataset(shape, seed), state)


def made_up_dataset(shape: Shape, seed: int) -> Dataset:
    """Training rows only: nothing is held out."""
    rng = derive_rng(seed, Role.SYNTHETIC)
    rows_U = rng.lognormal(np.log(shape.median_rows), shape.spread, shape.users)
    most = min(shape.most_rows, shape.items // 2)
    rows_U = np.sort(np.clip(rows_U.round().astype(np.int64), shape.least_rows, most))
    popularity_I = 1.0 / np.arange(1, shape.items + 1) ** 0.7
    # A draw without replacement: the items with the largest keys log(weight) + Gumbel noise.
    log_weights_I = np.log(popularity_I)
    items = [_largest(log_weights_I + rng.gumbel(size=shape.items), size) for size in rows_U]
    none_U, empty_UC = np.full(shape.users, -1), np.empty((shape.users, 0), dtype=np.int64)
    return Dataset(
        user_ids=np.arange(shape.users).astype(np.str_),
        item_ids=np.arange(shape.items).astype(np.str_),
        indptr=np.concatenate([[0], np.cumsum(rows_U)]),
        train_items=np.concatenate(items),
        test_U=none_U,
        validation_U=none_U,
        test_candidates_UC=empty_UC,
        validation_candidates_UC=empty_UC,
        titles=None,
        fingerprint="made up",
        catalogue="made up",
    )


def doubled(work: Work) -> Work:
    """The same work in double precision."""
    shared = {name: tensor.double() for name, tensor in work.shared.items()}
    layout = replace(work.state.layout, dtype="<f8")
    state = HeldState(layout, work.state.rows_UP.astype("<f8"))
    return replace(work, shared=shared, state=state)


def _initial_state(strategy: RecStrategy, num_users: int, seed: int) -> HeldState:
    rngs = [derive_rng(seed, Role.INIT_PRIVATE, user) for user in range(num_users)]
    users = [strategy.init_private(7, rng) for rng in rngs]
    layout = RowLayout.of(users[0])
    block = {name: torch.stack([user[name] for user in users]) for name in layout.names}
    return HeldState(layout, layout.pack(block))


def _largest(keys_I: np.ndarray[tuple[int], np.dtype[np.float64]], count: int) -> IntArray:
    chosen = np.argpartition(keys_I, len(keys_I) - count)[len(keys_I) - count :]
    return np.sort(chosen).astype(np.int64)


def private_of(work: Work, user: int) -> Tensors:
    """One user's private parameters, without an optimiser's moments."""
    block = work.state.layout.unpack(work.state.rows_UP[user : user + 1])
    return {n: t[0] for n, t in work.strategy.private_parameters(block).items()}
