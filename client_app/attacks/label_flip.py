"""Label flipping: what the user has chosen counts as what it does not want, and the reverse.

The user's local training is made once more on the same samples, with labels 1 − y, from the same
shared parameters and the same vector of the user.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from client_app.attacks.base import Attack, Round
from models.types import Samples, Update


@dataclass(frozen=True)
class LabelFlip(Attack):
    """An update of samples whose labels are flipped."""

    knows: ClassVar[str] = "its own items and vector"

    def poisoned(self, honest: Update, user: int, scene: Round) -> Update:
        """The update of the flipped samples."""
        return scene.again(user, flipped)

    def problem(self, strategy: Any) -> str | None:
        """Ranking losses and hard negatives need each positive before its negatives."""
        config = strategy.config
        ranks = getattr(config, "loss", "bce") != "bce"
        if ranks or getattr(config, "hard_negatives", None) is not None:
            return "flipped labels need strategy.loss=bce and no strategy.hard_negatives"
        return super().problem(strategy)


def flipped(samples: Samples) -> Samples:
    """The samples with each label y as 1 − y."""
    return replace(samples, labels_S=(1 - samples.labels_S).astype(samples.labels_S.dtype))
