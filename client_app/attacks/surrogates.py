"""Vectors that attackers fit to items they know, for users whose vectors they do not have."""

from __future__ import annotations

import numpy as np

from client_app.attacks.base import Round
from client_app.cold_start import cold_start, history_samples
from models.rng import Role, derive_rng
from models.types import ClientResult, IntArray, Tensors


def surrogate(scene: Round, items: IntArray, place: int, steps: int) -> Tensors:
    """Private state fitted to distinct items, the shared parameters held fixed.

    ``place`` seeds it: a number that no user has, so that no user's vector is drawn.
    """
    identity = scene.dataset.num_users + place
    return cold_start(scene.strategy, scene.shared, items, scene.cfg, identity, steps)


def trained_surrogate(scene: Round, items: IntArray, place: int, steps: int) -> ClientResult:
    """The honest local training of a user with these items, from its surrogate vector."""
    private, strategy = surrogate(scene, items, place, steps), scene.strategy
    identity, seed = scene.dataset.num_users + place, scene.cfg.seed
    num_items = scene.dataset.num_items
    # Steps of the cold start count from 1: those of the rounds come after all of them.
    step = steps + scene.round
    samples = history_samples(strategy, np.unique(items), num_items, seed, identity, step)
    rng = derive_rng(seed, Role.COLD_START, identity, step)
    return strategy.client_update(scene.shared, private, samples, rng)
