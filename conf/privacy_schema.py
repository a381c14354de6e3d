"""The dataclasses of protections, attacks and device profiles. Import them from ``conf.tree``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from conf.dp_schema import DPConfig, LDPConfig, PseudoItemsConfig
from conf.secagg_schema import SecAggConfig

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PrivacyConfig:
    """What is done to updates before a server sees them."""

    dp: DPConfig | None = None
    ldp: LDPConfig | None = None
    pseudo_items: PseudoItemsConfig | None = None
    secagg: SecAggConfig | None = None
    """Sums over nodes alone; None: the server sees each node's."""

    @property
    def sums_only(self) -> bool:
        """Whether the server sees nothing but sums over users: a block says so of itself."""
        blocks = [getattr(self, field.name) for field in fields(self)]
        return any(getattr(block, "sums_only", False) for block in blocks)


@dataclass(frozen=True)
class AttackConfig:
    """What users who are not honest send; only in a simulation. This one: every user is honest.

    A yaml's ``_target_`` names another, a class of ``client_app.attacks``.
    """

    watches: ClassVar[bool] = False
    """There are malicious users, and items that they care for."""

    def malicious(self, seed: int, num_users: int) -> Indices:
        """Global indices of the malicious users, ascending."""
        return np.empty(0, np.int64)

    def sends(self, server_round: int) -> bool:
        """Whether the malicious users' updates of the round are not honest."""
        return False

    def problem(self, strategy: Any) -> str | None:
        """Why the attack cannot be made with the strategy; None: it can."""
        return None


@dataclass(frozen=True)
class DefenceConfig:
    """How the server combines updates that may be poisoned. This one: as the strategy does.

    A yaml's ``_target_`` names another, a class of ``server_app.defences``.
    """

    by_user: ClassVar[bool] = False
    """Nodes send each user's update by itself instead of their sum."""


@dataclass(frozen=True)
class DevicesConfig:
    """When devices are there, how fast they are, how often they drop out; only in a simulation.

    This one: every device is there, and as fast as this machine. A yaml's ``_target_`` names
    another, a class of ``server_app.devices``.
    """

    simulated: ClassVar[bool] = False
    """Who takes part is decided by devices, on a clock of their own."""
