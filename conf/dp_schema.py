"""Settings of differential privacy and of pseudo-items. Import them from ``conf.tree``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class DPConfig:
    """User-level differential privacy of what the server releases (``docs/dp.md``)."""

    epsilon: float | None = None
    """Budget of the run. Without ``noise_multiplier`` the noise is chosen so that all rounds of
    ``federation.rounds`` keep within it; with it, the run ends before it would be exceeded."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise on the sum over ``clip`` (over the norm of both bounds)."""
    delta: float | None = None
    """None: the number of users to the power of -1.1."""
    clip: float = 1.0
    """Greatest L2 norm of a user's whole update, or of its item tables with ``clip_dense``."""
    clip_dense: float | None = None
    """Greatest norm of all other tensors of the update together; None: one norm for all."""
    sampling: Literal["poisson", "fixed"] = "poisson"
    """Each user by itself with probability ``federation.fraction``, or so many of them."""
    noise: Literal["central", "distributed"] = "central"
    """Added once by the server, or in parts by the nodes (needs privacy=[secagg,dp])."""
    metrics: bool = False
    """Nodes send training losses as well, exact and uncounted: only in a simulation."""


@dataclass(frozen=True)
class LDPConfig:
    """Local differential privacy: each user's update is clipped and noisy on its node."""

    epsilon: float | None = None
    """Of one round of one user; gives the noise. Or ``noise_multiplier``, one of the two."""
    noise_multiplier: float | None = None
    """Standard deviation of each user's noise over ``clip`` (over the norm of both bounds)."""
    delta: float | None = None
    """None: the number of users to the power of -1.1."""
    clip: float = 1.0
    clip_dense: float | None = None
    """As of ``privacy.dp``."""
    metrics: bool = False


@dataclass(frozen=True)
class PseudoItemsConfig:
    """Items that a user did not interact with are trained as if it had. No ε follows."""

    ratio: float = 1.0
    """Pseudo-items over the user's own training items."""
