"""FedNCF: federated neural collaborative filtering with private user embeddings.

Source: Perifanis & Efraimidis, "Federated Neural Collaborative Filtering",
Knowledge-Based Systems 242 (2022), arXiv 2106.04405, in the form that FedRecGEL is
compared with: FedRecGEL's local training without any perturbation, by the same code.
``docs/fedncf.md`` says how the paper's own training differs.
"""

from __future__ import annotations

from typing import ClassVar

from models.sam import Radii
from strategies.base import StrategyConfig
from strategies.fedrecgel import FedRecGEL, PrivateAdamConfig


class FedNCF(FedRecGEL):
    """Plain gradients of the shared block; the user's own Adam on the private block."""

    Config: ClassVar[type[StrategyConfig]] = PrivateAdamConfig
    title: ClassVar[str] = "FedNCF (Knowledge-Based Systems 2022, arXiv 2106.04405)"
    about: ClassVar[str] = "FedRecGEL's training of NeuMF without any perturbation"

    @property
    def radii(self) -> Radii:
        """No perturbation."""
        return Radii()
