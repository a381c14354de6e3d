"""No attack: the clean run beside others, with the same users ranked and the same targets."""

from __future__ import annotations

from dataclasses import dataclass

from client_app.attacks.base import Attack, Round
from models.types import Update


@dataclass(frozen=True)
class Benign(Attack):
    """Users who would be malicious send what honest ones do."""

    def sends(self, server_round: int) -> bool:
        """Never anything else."""
        return False

    def poisoned(self, honest: Update, user: int, scene: Round) -> Update:
        """The honest update."""
        return honest
