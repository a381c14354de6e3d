"""Settings of secure aggregation (``docs/secagg.md``). Import them from ``conf.tree``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SecAggConfig:
    """The server learns sums over nodes alone."""

    threshold: float = 0.67
    """Share of a round's nodes that must stay to its end; never less than a majority."""
    min_nodes: int = 3
    """Fewest nodes of a sum, at least 3: of two nodes each would know the other's part."""
    modulus_bits: Literal[32, 64] = 64
    """Bits of a number of an update on the wire; weights, metrics and counts have 64."""
    fraction_bits: int = 32
    """Of these, after the point: a node's numbers are off by at most half of 2^-this."""
    limit: float = 65536.0
    """Largest magnitude of a number of an update, for each user of a node: beyond it the node
    refuses. ``limit`` · 2^``fraction_bits`` · users has to stay below 2^(``modulus_bits`` - 1)."""
    keep_uploads: bool = False
    """The server keeps each node's masked upload in the run's folder, for audits."""
