"""Settings of PerFedRec."""

from __future__ import annotations

from dataclasses import dataclass

from models import optim
from strategies.base import StrategyConfig


@dataclass(frozen=True)
class PerFedRecConfig(StrategyConfig):
    """Settings of PerFedRec."""

    server_lr: float = 0.01
    private_optimiser: optim.OptimiserName = "adam"
    """Optimiser of a user's vector; its moments stay with the user."""
    private_lr: float = 0.1
    item_lr: float = 5.0
    """Learning rate of plain steps on the user's copy of the item embeddings. The loss is a mean
    over the user's positives, which a step of one of their rows is divided by."""
    reg: float = 0.0
    """Weight of half the squared norms of the vector and of the rows in the samples."""
    clusters: int = 2
    """Tables of clusters; the public code has 5. A cluster's table learns from its members of a
    round alone, so it takes more clusters only where many users take part."""
    share_user: bool = False
    """Upload the user's vector and cluster by it, instead of by a sketch of the movement."""
    sketch: int = 4
    """Random directions along the catalogue that a movement is projected to."""
    own_weight: float = 1.0
    """Weight of the scores of the user's own table in the blend; 0 keeps no such table."""
    cluster_weight: float = 1.0
    common_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("private_lr", "item_lr", "common_weight")
        self._at_least_one("clusters", "sketch")
        self._not_negative("reg", "own_weight", "cluster_weight")
