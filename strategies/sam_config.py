"""Settings of sharpness-aware local gradients, a section ``sam`` of a strategy's settings."""

from __future__ import annotations

from dataclasses import dataclass

from models.sam import Radii
from strategies.checks import Checks


@dataclass(frozen=True)
class SAMConfig(Checks):
    """Radii of the perturbations (``models.sam``); the defaults are FedRecGEL's for FilmTrust."""

    rho_shared: float = 0.02
    """Perturbation radius of the shared block; 0 switches it off."""
    rho_private: float = 0.02
    """Perturbation radius of the private block; 0 switches it off."""
    adaptive: bool = False
    """ASAM (arXiv 2102.11600): radii relative to the size of each parameter. The same effect
    then asks for larger radii: that paper has 0.5 where it gives SAM 0.05."""

    def __post_init__(self) -> None:
        self._not_negative("rho_shared", "rho_private")

    @property
    def radii(self) -> Radii:
        """The same as the models take it."""
        return Radii(self.rho_shared, self.rho_private, self.adaptive)
