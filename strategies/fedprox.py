"""FedProx (Li et al., arXiv 1812.06127, Algorithm 2): FedAvg with a proximal term.

A user's local steps descend F(w) + μ/2 · ‖w - w_t‖², where w is its copy of the shared
parameters and w_t what it received: the copy is held near w_t, so that users whose data
differ, or who make many steps, do not drift apart. Private parameters have no term: nobody
else has a copy of them. With μ = 0 this is FedAvg, by the same code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from models.local_sgd import SGDRates
from strategies.base import StrategyConfig
from strategies.fedavg import FedAvg, FedAvgConfig


@dataclass(frozen=True)
class FedProxConfig(FedAvgConfig):
    """Settings of FedProx: FedAvg's and μ."""

    local_epochs: int = 5
    mu: float = 0.0003
    """Weight μ of the proximal term; a local step goes ``shared_lr`` · μ of the way back to the
    received parameters, which must be less than the whole way. 0 is FedAvg."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._not_negative("mu")
        if self.shared_lr * self.mu >= 1:
            # (w - w_t) shrinks by 1 - lr·μ a step: below 0 it flips its sign, below -1 it grows.
            raise ValueError(
                f"mu must be below 1 / shared_lr = {1 / self.shared_lr:g}, got {self.mu}: a local "
                "step would overshoot the received parameters, and twice that diverges on any data"
            )


class FedProx(FedAvg):
    """Local mini-batch SGD with a proximal term, weighted mean of the movements."""

    Config: ClassVar[type[StrategyConfig]] = FedProxConfig
    title: ClassVar[str] = "FedProx (MLSys 2020, arXiv 1812.06127)"
    about: ClassVar[str] = "FedAvg whose local steps are held near the received item embeddings"
    config: FedProxConfig

    @property
    def rates(self) -> SGDRates:
        """FedAvg's, and the weight of the proximal term."""
        return SGDRates(self.config.shared_lr, self.config.private_lr, self.config.mu)
