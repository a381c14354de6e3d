"""Differential privacy's part of a node: each user's update clipped and, if so set, noisy.

``privacy=dp`` clips, and with ``noise=distributed`` every user adds its part of the noise before
the update is masked. ``privacy=ldp`` clips, and every user adds noise enough for itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from conf.tree import Config, DPConfig, LDPConfig
from models.clipping import Bounds, clipped, noisy
from models.noise import NoiseSource, SeededNoise, SystemNoise, gaussian_noise
from models.rng import Role
from models.types import Update
from strategies.base import RecStrategy


@dataclass(frozen=True)
class Clip:
    """A user's update within its bounds, with weight 1."""

    bounds: Bounds
    idle: frozenset[str]

    def __call__(self, update: Update, user: int, round_: int) -> Update:
        """The clipped update; see ``models.clipping``."""
        return clipped(update, self.bounds, self.idle).update


@dataclass(frozen=True)
class AddNoise:
    """A user's own Gaussian noise on every number of its update."""

    std: float
    seed: int | None
    """Of a simulation; None: the operating system's generator."""
    idle: frozenset[str]

    def __call__(self, update: Update, user: int, round_: int) -> Update:
        """The update with noise, dense: no row tells whether it was touched."""
        own: NoiseSource = (
            SystemNoise()
            if self.seed is None
            else SeededNoise(self.seed, Role.PRIVACY_USER, user, round_)
        )
        told = {n: t for n, t in update.tensors.items() if n not in self.idle}
        noise = gaussian_noise(told, self.std, own)
        return replace(update, tensors=noisy(update.tensors, noise))


def bounds_of(settings: DPConfig | LDPConfig, strategy: RecStrategy) -> Bounds:
    """The bounds of a user's update: item tables and the rest, or all together."""
    return Bounds(settings.clip, settings.clip_dense, strategy.row_tables)


def clip_and_noise(
    strategy: RecStrategy, cfg: Config, share: float | None
) -> tuple[Clip | AddNoise, ...]:
    """The steps of a configuration, in their order; none without privacy=dp or ldp.

    ``share``: standard deviation of a user's noise over the norm of both bounds, which the
    server says in its request; None where nodes add none.
    """
    settings = cfg.privacy.dp or cfg.privacy.ldp
    if settings is None:
        return ()
    bounds, idle = bounds_of(settings, strategy), strategy.idle_tensors
    clip = Clip(bounds, idle)
    if share is None:
        return (clip,)
    seed = None if cfg.federation.grid == "deployment" else cfg.seed
    return (clip, AddNoise(share * bounds.total, seed, idle))


def share_of_noise(multiplier: float, least_users: int) -> float:
    """Of each user, so that the fewest users of a round have ``multiplier`` together."""
    return multiplier / math.sqrt(least_users)


def told_metrics(cfg: Config, metrics: dict[str, float]) -> dict[str, float]:
    """Sums of training metrics as they may be sent: none that ε does not cover."""
    settings = cfg.privacy.dp or cfg.privacy.ldp
    return metrics if settings is None or settings.metrics else {}
