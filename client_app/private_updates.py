"""Differential privacy's part of a node: each user's update clipped and, if so set, noisy.

``privacy=dp`` clips, and with ``noise=distributed`` every user adds its part of the noise before
the update is masked. ``privacy=ldp`` clips, and every user adds noise enough for itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from client_app.node_config import NodeError
from conf.tree import Config
from models.clipping import Bounds, clipped, noisy
from models.noise import NoiseSource, SeededNoise, SystemNoise, gaussian_noise
from models.rng import Role
from models.types import Update
from strategies.base import RecStrategy
from strategies.messages import Downlink


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


def clip_and_noise(
    strategy: RecStrategy, cfg: Config, noise_std: float
) -> tuple[Clip | AddNoise, ...]:
    """The steps of a configuration, in their order; none without privacy=dp or ldp.

    ``noise_std``: standard deviation of a user's noise, which the server says in its request.
    """
    settings = cfg.privacy.dp or cfg.privacy.ldp
    if settings is None:
        return ()
    idle = strategy.idle_tensors
    clip = Clip(Bounds(settings.clip, settings.clip_dense, strategy.row_tables), idle)
    if not adds_noise(cfg):
        return (clip,)
    seed = None if cfg.federation.grid == "deployment" else cfg.seed
    return (clip, AddNoise(noise_std, seed, idle))


def adds_noise(cfg: Config) -> bool:
    """Whether users add noise of their own."""
    dp = cfg.privacy.dp
    return cfg.privacy.ldp is not None or (dp is not None and dp.noise == "distributed")


def check_noise(cfg: Config, request: Downlink) -> None:
    """Raise NodeError for a request without the noise that the configuration has users add.

    A stock Flower strategy knows of no clipping and of no noise.
    """
    if cfg.privacy.dp is None and cfg.privacy.ldp is None:
        return
    if request.reply_weights:
        raise NodeError("privacy=dp and ldp need this project's server: no stock strategy")
    if adds_noise(cfg) and request.noise_std <= 0:
        raise NodeError("the request does not say how much noise users are to add")


def told_metrics(cfg: Config, metrics: dict[str, float]) -> dict[str, float]:
    """Sums of training metrics as they may be sent: none that ε does not cover."""
    settings = cfg.privacy.dp or cfg.privacy.ldp
    return metrics if settings is None or settings.metrics else {}
