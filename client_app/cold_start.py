"""A private state for somebody who was not trained: local steps on frozen shared parameters."""

from __future__ import annotations

import hashlib

import numpy as np

from client_app.negatives import draw_samples
from client_app.ragged import Ragged
from conf.tree import Config
from models.rng import Role, UserStreams, derive_rng
from models.types import History, IntArray, Samples, Tensors
from strategies.base import RecStrategy

STEPS = 30
"""Local rounds of a cold start, each with samples of its own."""
STRANGER_BITS = 62


def cold_start(
    strategy: RecStrategy,
    shared: Tensors,
    history: IntArray,
    cfg: Config,
    identity: int,
    steps: int = STEPS,
) -> Tensors:
    """Private tensors fitted to ``history``, the distinct items of one user.

    The shared parameters stay as they are, and nothing is sent. ``identity`` seeds the user's
    streams: the global index, or :func:`identity_of` for a user who has none. The same history
    gives the same tensors.

    Raises:
        DataError: when too few items are left to draw negatives from.

    """
    num_items = len(next(iter(shared[name] for name in strategy.model.item_tables)))
    drawn = strategy.start_private(num_items, cfg.seed, identity)
    begun = strategy.first_private(
        shared,
        {n: t[None] for n, t in drawn.items()},
        lambda: History(history, np.array([len(history)])),
    )
    private = {n: t[0] for n, t in begun.items()}
    for step in range(1, steps + 1):
        samples = history_samples(strategy, history, num_items, cfg.seed, identity, step)
        rng = derive_rng(cfg.seed, Role.COLD_START, identity, step)
        private = strategy.adapt(shared, private, samples, rng)
    return private


def identity_of(raw_id: str) -> int:
    """A number for the streams of a user who has no index in the federation."""
    digest = hashlib.sha256(raw_id.encode()).digest()
    return int.from_bytes(digest[:8], "little") >> (64 - STRANGER_BITS)


def history_samples(
    strategy: RecStrategy, history: IntArray, num_items: int, seed: int, identity: int, step: int
) -> tuple[Samples, ...]:
    """One local round's epochs of samples, drawn as in training."""
    own = Ragged(np.sort(history), np.array([len(history)]))
    user = np.array([identity])
    width = 1 + strategy.config.num_negatives
    epochs = []
    for epoch in range(strategy.config.local_epochs):
        streams = UserStreams(seed, Role.COLD_START, step, epoch)
        uniforms = streams.uniforms(user, own.lengths_U * width).reshape(-1, width)
        epochs += draw_samples(own, own, num_items, user, uniforms)
    return tuple(epochs)
