"""What happens to a single user's update before it is added to the others of the node."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from client_app.attacks.base import Attack, AttackStep, Round
from client_app.private_updates import clip_and_noise
from conf.tree import Config
from models.types import CohortResult, IntArray, Update
from strategies.base import RecStrategy


class UserUpdateStep(Protocol):
    """A clip, a noise, an attack: from a user's update to the one that counts."""

    def __call__(self, update: Update, user: int, round_: int) -> Update:
        """The update of the user in the round; the given one is not modified."""


def user_update_steps(
    strategy: RecStrategy, cfg: Config, scene: Round, noise_std: float = 0.0
) -> tuple[UserUpdateStep, ...]:
    """The steps of a configuration, in their order; users train one by one where there are any.

    ``scene``: what attackers may know of the round. ``noise_std``: of the noise that each user
    adds, as the server's request says.
    """
    steps = list[UserUpdateStep]()
    if isinstance(cfg.attack, Attack):
        steps.append(AttackStep(cfg.attack, scene))
    return (*steps, *clip_and_noise(strategy, cfg, noise_std))


def after_steps(
    result: CohortResult, user: IntArray, round_: int, steps: tuple[UserUpdateStep, ...]
) -> CohortResult:
    """The result of a block of one user, with its update as the steps leave it."""
    update = result.update
    for step in steps:
        update = step(update, int(user[0]), round_)
    return replace(result, update=update)
