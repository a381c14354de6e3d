"""Settings of CoFedRec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from models import optim
from strategies.base import StrategyConfig

StartFrom = Literal["initial", "mean"]


@dataclass(frozen=True)
class CoFedRecConfig(StrategyConfig):
    """Settings of CoFedRec. ``server_optimiser`` and ``server_lr`` have no part in it."""

    local_epochs: int = 2
    server_optimiser: optim.OptimiserName = "sgd"
    server_lr: float = 1.0
    batch_size: int = 256
    """Consecutive samples a local step; its loss is their mean."""
    scorer_lr: float = 0.1
    """Local learning rate of the user's scorer."""
    item_lr: float = 5000.0
    """Local learning rate of the user's item table; a sample moves its row by this over the
    batch size."""
    contrast: float = 0.04
    """Local learning rate of the sum over items of the contrastive loss; 0 leaves it out."""
    tau: float = 0.1
    """Temperature of the contrastive loss."""
    tau_base: float = 0.5
    """The contrastive loss is scaled by ``tau`` over this."""
    supcon_items: int | None = None
    """Items drawn anew a step for the contrastive loss; None takes all, which is exact."""
    clusters: int = 30
    """Clusters of items, at most the number of items."""
    start_from: StartFrom = "mean"
    """A user without a table starts from the ``initial`` one, or from the ``mean`` of the uploads
    of the latest round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least_one("batch_size", "clusters")
        self._positive("scorer_lr", "item_lr", "tau", "tau_base")
        self._not_negative("contrast")
        if self.supcon_items is not None and self.supcon_items < 2:
            raise ValueError(f"supcon_items must be at least 2, got {self.supcon_items}")
        if self.start_from not in get_args(StartFrom):
            raise ValueError(f"start_from must be initial or mean, got {self.start_from!r}")
