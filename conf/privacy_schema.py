"""The dataclasses of protections, attacks and device profiles. Import them from ``conf.tree``."""

from __future__ import annotations

from dataclasses import dataclass

from conf.dp_schema import DPConfig, LDPConfig, PseudoItemsConfig
from conf.secagg_schema import SecAggConfig


@dataclass(frozen=True)
class PrivacyConfig:
    """What is done to updates before a server sees them."""

    dp: DPConfig | None = None
    ldp: LDPConfig | None = None
    pseudo_items: PseudoItemsConfig | None = None
    secagg: SecAggConfig | None = None
    """Sums over nodes alone; None: the server sees each node's."""


@dataclass(frozen=True)
class AttackConfig:
    """What users who are not honest send; only in a simulation."""


@dataclass(frozen=True)
class DefenceConfig:
    """How the server combines updates that may be poisoned."""


@dataclass(frozen=True)
class DevicesConfig:
    """When devices are there, how fast they are, how often they drop out; only in a simulation."""
