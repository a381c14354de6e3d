"""What a server that defends itself makes of users' updates; rules: ``server_app.defences``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from models.types import IntArray, Tensors, Update

if TYPE_CHECKING:
    from strategies.base import RecStrategy
    from strategies.by_user import UserUpdates


@dataclass(frozen=True)
class Scene:
    """What the server knows in a round."""

    strategy: RecStrategy
    shared: Tensors
    server_state: Tensors
    round: int


@dataclass(frozen=True)
class Verdict:
    """The update that the server steps with, and whom the rule took action against."""

    update: Update
    """As a sum over users: the strategy divides it as always."""
    flagged_U: IntArray | None = None
    """Global indices of users whose update was left out or cut; None where a rule judges
    coordinates, not users."""
    figures: Mapping[str, float] | None = None
    """What else there is to say of the round."""


class Combines(Protocol):
    """A defence as the strategy's server half sees it."""

    def combined(self, updates: UserUpdates, scene: Scene) -> Verdict:
        """The sum to step with.

        Raises:
            ValueError: when the updates are too few for the rule.

        """
