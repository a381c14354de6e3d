"""Ways to train one round of a cohort: the dense style, and our engines.

Each makes the sum of the cohort's updates and the server's step. Samples are given or, in
:func:`whole_round`, drawn by the engine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import torch

from benchmarks import dense_samples
from benchmarks.dense_fedavg import SGDClient
from benchmarks.dense_models import MODULES, DenseModule
from benchmarks.dense_style import Client, SAMClient, Server, TensorSamples
from benchmarks.made_up import Work, private_of
from client_app.engine import block_size, blocks, train_users
from client_app.parallel import in_order
from models.rng import Role, derive_rng
from models.types import CohortResult, IntArray, SumOfUpdates, Tensors, Update
from strategies.base import RecStrategy


# ---- the dense style -----------------------------------------------------------------------
class Dense:
    """Clients and server of the dense style, with our initial parameters and samples."""

    def __init__(self, work: Work) -> None:
        self.work, config = work, work.strategy.config
        self.dtype = next(iter(work.shared.values())).dtype
        self.samples = [dense_samples.as_tensors(s, self.dtype) for s in work.samples]
        adam, sgd = torch.optim.Adam, torch.optim.SGD
        kind = adam if config.server_optimiser == "adam" else sgd
        self.server = Server(self._module(), partial(kind, lr=config.server_lr))
        self.server.model.load(work.shared)
        self.clients = [self._client(int(user)) for user in work.users]
        self.weight = float(self._weight())

    def round(self) -> None:
        """Train all clients and step the server."""
        self.server.round(self.clients, self.samples, self.weight)

    def sums(self) -> Tensors:
        """The last round's uploads, summed, with the sign of our updates."""
        sign = self.weight if self.work.strategy.update_kind == "gradient" else -self.weight
        named = self.server.shared.items()
        return {name: sign * p.grad.view_as(p) for name, p in named if p.grad is not None}

    def _module(self) -> DenseModule:
        items, factors = self.work.dataset.num_items, self.work.cfg.model.factors
        return MODULES[self.work.cfg.model_name](items, factors).to(self.dtype)

    def _client(self, user: int) -> Client:
        module, config = self._module(), self.work.strategy.config
        private = private_of(self.work, user)
        if self.work.strategy.update_kind == "delta":
            rates = (config.shared_lr, config.private_lr)
            return SGDClient(module, private, rates, config.batch_size)
        return SAMClient(module, private, config.private_lr, self.work.radii, config.loss_slice)

    def _weight(self) -> int:
        if self.work.strategy.update_kind == "delta":
            return sum(len(samples) for samples in self.work.samples)
        return len(self.clients)


class DenseDrawing:
    """Drawing the cohort's samples in lists."""

    def __init__(self, work: Work) -> None:
        self.num_negatives: int = work.strategy.config.num_negatives
        self.masks = torch.zeros(len(work.users), work.dataset.num_items, dtype=torch.bool)
        for user, mask_I in enumerate(self.masks):
            mask_I[torch.from_numpy(work.dataset.train_of(user).copy())] = True
        self.rng = random.Random(int(derive_rng(0, Role.TRAIN).integers(1 << 40)))

    def draw(self) -> list[TensorSamples]:
        """Samples of every user."""
        return [dense_samples.draw(mask_I, self.num_negatives, self.rng) for mask_I in self.masks]


# ---- our engines ---------------------------------------------------------------------------
def updates(work: Work, users: IntArray | None = None) -> Update:
    """The engine's sum of updates from given samples, of the whole cohort or of some users."""
    users = work.users if users is None else users
    strategy, state, engine = work.strategy, work.state, work.cfg.engine
    size = block_size(strategy, work.cfg) if engine.name == "cohort" else 1

    def train(part: slice) -> CohortResult:
        block = users[part]
        private = state.layout.unpack(state.rows(block, 0))
        epochs = [work.epochs[user] for user in block]
        rngs = [derive_rng(work.cfg.seed, Role.STRATEGY, 0, 1)] * len(block)
        if engine.name == "cohort":
            return strategy.cohort_update(work.shared, private, epochs, rngs)
        return RecStrategy.cohort_update(strategy, work.shared, private, epochs, rngs)

    total = SumOfUpdates(work.shared)
    sizes_U = work.dataset.indptr[users + 1] - work.dataset.indptr[users]
    for result in in_order(train, blocks(sizes_U, size), engine.workers, engine.threads):
        total.add(result.update)
    return total.result()


def stepped(work: Work, update: Update) -> Tensors:
    """Shared parameters after the server's step."""
    state = work.strategy.init_server_state(work.shared)
    return work.strategy.server_update(work.shared, update, state)[0]


def whole_round(work: Work, users: IntArray | None = None) -> Update:
    """The engine as a node calls it: draws the samples, trains and checks the result."""
    return train_users(
        work.strategy,
        work.shared,
        work.users if users is None else users,
        round_=1,
        base_round=0,
        dataset=work.dataset,
        state=work.state,
        cfg=work.cfg,
    ).update


def given_round(work: Work) -> Tensors:
    """Shared parameters after a round of given samples."""
    return stepped(work, updates(work))


def drawn_round(work: Work) -> Tensors:
    """Shared parameters after a round that draws its samples."""
    return stepped(work, whole_round(work))


def balanced_halves(sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Positions in two parts of about the same total size: the largest first, to the smaller."""
    halves: tuple[list[int], list[int]] = ([], [])
    totals = [0, 0]
    for position in sorted(range(len(sizes)), key=lambda p: (-sizes[p], p)):
        part = totals.index(min(totals))
        halves[part].append(position)
        totals[part] += sizes[position]
    return sorted(halves[0]), sorted(halves[1])
