"""A configured mechanism as the accountant sees it: noise, sensitivity, cohorts, δ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from conf.tree import Config, ConfigError, DPConfig, LDPConfig
from models.clipping import Bounds
from server_app.accountant import Releases, Sampling, epsilon, noise_multiplier
from server_app.sampling import cohort_size

DELTA_EXPONENT = -1.1
ADD_REMOVE, REPLACE = "add or remove one user", "replace one user's data"


@dataclass(frozen=True)
class Plan:
    """What is released a round, and what it costs.

    The L2 sensitivity of the sum that noise is added to is ``bound`` where a user is added or
    removed (cohorts drawn user by user), twice that where its data is replaced (a cohort of
    fixed size, or a user's own noise).
    """

    mechanism: Literal["dp", "ldp"]
    bound: float
    """Greatest L2 norm of one user's whole update."""
    sampling: Sampling
    secret: bool
    """The cohort is unknown to whoever sees the releases."""
    at_nodes: bool
    """Users add the noise; else the server does."""
    delta: float
    target: float | None
    multiplier: float = 0.0
    """Standard deviation of the noise over ``bound``; of one user's own with ``ldp``."""

    @property
    def adjacency(self) -> str:
        """Which data sets are neighbours."""
        return ADD_REMOVE if self._moves_once else REPLACE

    @property
    def _moves_once(self) -> bool:
        return self.mechanism == "dp" and self.sampling == "poisson"

    @property
    def sensitivity(self) -> float:
        """How far the sum moves, at most, between neighbours."""
        return self.bound if self._moves_once else 2 * self.bound

    @property
    def std(self) -> float:
        """Of the noise on each number of the sum (of one user's update with ``ldp``)."""
        return self.multiplier * self.bound

    @property
    def effective(self) -> float:
        """The noise's standard deviation over the sensitivity."""
        return self.std / self.sensitivity

    def rate(self, fraction: float, num_users: int) -> float:
        """Probability with which a user is in a cohort, as far as that is a secret."""
        if not self.secret:
            return 1.0
        if self.sampling == "poisson":
            return fraction
        return cohort_size(num_users, fraction) / num_users

    def epsilon(self, releases: list[Releases]) -> float:
        """ε of the releases together; infinite where there is no bound."""
        return epsilon(releases, self.delta, self.sampling)


def plan_of(cfg: Config, num_users: int) -> Plan:
    """The plan of a configuration, without its noise: see :func:`multiplier_of`."""
    dp, ldp = cfg.privacy.dp, cfg.privacy.ldp
    settings: DPConfig | LDPConfig | None = dp or ldp
    assert settings is not None
    distributed = dp is not None and dp.noise == "distributed"
    return Plan(
        mechanism="ldp" if dp is None else "dp",
        bound=Bounds(settings.clip, settings.clip_dense).total,
        sampling="fixed" if dp is None else dp.sampling,
        # Who adds noise on nodes does not trust the server, and that draws the cohorts.
        secret=dp is not None and not distributed,
        at_nodes=dp is None or distributed,
        delta=settings.delta or num_users**DELTA_EXPONENT,
        target=settings.epsilon,
    )


def multiplier_of(cfg: Config, plan: Plan, num_users: int) -> float:
    """The noise multiplier that is set, or the least that keeps within the target.

    Of all rounds for ``dp``, of one round for ``ldp``.

    Raises:
        ConfigError: where no noise is enough.

    """
    settings = cfg.privacy.dp or cfg.privacy.ldp
    assert settings is not None
    if settings.noise_multiplier is not None:
        return settings.noise_multiplier
    assert plan.target is not None
    rate = plan.rate(cfg.federation.fraction, num_users)
    steps = cfg.federation.rounds if plan.mechanism == "dp" else 1
    least = noise_multiplier(plan.target, plan.delta, rate, steps, plan.sampling)
    if not math.isfinite(least):
        raise ConfigError(f"no noise gives epsilon={plan.target:g}")
    return least * plan.sensitivity / plan.bound
