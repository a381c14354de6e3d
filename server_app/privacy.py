"""Differential privacy's part of the server: cohorts, noise on sums, and the count of ε."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from logging import INFO, WARNING
from pathlib import Path

from flwr.common.logger import log

from conf.tree import Config, ConfigError
from models.clipping import noisy
from models.noise import SeededNoise, SystemNoise, gaussian_noise
from models.rng import Role
from models.types import IntArray, Update
from server_app.accountant import Releases, affordable
from server_app.privacy_ledger import Ledger, Release
from server_app.privacy_plan import multiplier_of, plan_of
from server_app.sampling import cohort_size, draw_cohort
from strategies.base import RecStrategy

COVERS = "updates of users, and all that follows from them; not figures of held-out items"


class Privacy:
    """The mechanism of one run with privacy=dp or ldp."""

    def __init__(self, cfg: Config, folder: Path, resume_round: int, num_users: int) -> None:
        """Raises as :class:`Ledger` and :func:`multiplier_of` do."""
        self._cfg, self._seeded = cfg, cfg.federation.grid != "deployment"
        self._ledger = Ledger(folder, resume_round, repeats_alike=self._seeded)
        plan = plan_of(cfg, num_users)
        if self._ledger.releases:
            last = self._ledger.releases[-1]
            self.plan = replace(plan, multiplier=last.multiplier, delta=last.delta)
        else:
            self.plan = replace(plan, multiplier=multiplier_of(cfg, plan, num_users))
        self._num_users = num_users
        self.rounds = self._affordable(resume_round)
        """The last round that the budget allows, or that was asked for."""

    def _affordable(self, done: int) -> int:
        """Raise ConfigError where not even one round is."""
        asked, plan = self._cfg.federation.rounds, self.plan
        if plan.target is None or plan.mechanism == "ldp":
            return asked
        target, spent = plan.target, self._ledger.spent()
        rate = plan.rate(self._cfg.federation.fraction, self._num_users)

        def fits(steps: int) -> bool:
            return plan.epsilon([*spent, Releases(plan.effective, rate, steps)]) <= target

        rounds = done + affordable(fits, asked - done)
        if not rounds:
            raise ConfigError(
                f"privacy.dp.noise_multiplier={plan.multiplier:g} does not allow a single round "
                f"within epsilon={target:g}"
            )
        if rounds < asked:
            log(WARNING, "The privacy budget of epsilon=%g ends the run after round %d of %d",
                target, rounds, asked)  # fmt: skip
        return rounds

    def announce(self) -> None:
        """Say in the log what is done."""
        plan = self.plan
        log(INFO, "privacy=%s: noise of standard deviation %.4g on a sum of sensitivity %.4g (%s), "
            "delta=%.3g", plan.mechanism, plan.std, plan.sensitivity, plan.adjacency,
            plan.delta)  # fmt: skip

    # ---- a round -------------------------------------------------------------------------
    def cohort(self, server_round: int, num_users: int) -> IntArray:
        """Places of the round's users, drawn as accounted; those of fixed size without dp."""
        dp = self._cfg.privacy.dp
        sampling = "fixed" if dp is None else dp.sampling
        seed = self._cfg.seed if self._seeded else None
        return draw_cohort(seed, server_round, num_users, self._cfg.federation.fraction, sampling)

    def begin(self, server_round: int, num_users: int) -> None:
        """Count a round whose noise is added by nodes, before they are asked."""
        self._num_users = num_users
        if self.plan.at_nodes:
            self._note(server_round)

    def users_std(self) -> float:
        """Standard deviation of the noise that each user adds; 0 where the server does."""
        if not self.plan.at_nodes:
            return 0.0
        if self.plan.mechanism == "ldp":
            return self.plan.std
        return self.plan.std / math.sqrt(self._least())

    def attach(self, strategy: RecStrategy, server_round: int) -> None:
        """Have the strategy's next step made from the released sum."""
        strategy.on_sum = partial(self.release, server_round, strategy.idle_tensors)

    def release(self, server_round: int, idle: frozenset[str], summed: Update) -> Update:
        """The sum with noise, over a denominator that no user's presence changes.

        Raises:
            ValueError: for row weights, or fewer users than noise was made for.

        """
        if summed.row_weights is not None:
            raise ValueError("row weights tell users' items, and have no noise")
        if self.plan.mechanism == "ldp":
            return summed
        expected = self._expected()
        if self.plan.at_nodes:
            if (least := self._least()) > round(summed.weight):
                raise ValueError(f"{summed.weight:g} users have less noise than {least} would")
            return Update(summed.tensors, expected)
        self._note(server_round)
        source = (
            SeededNoise(self._cfg.seed, Role.PRIVACY_SERVER, server_round)
            if self._seeded
            else SystemNoise()
        )
        told = {n: t for n, t in summed.tensors.items() if n not in idle}
        noise = gaussian_noise(told, self.plan.std, source)
        return Update(noisy(summed.tensors, noise), expected)

    def _note(self, server_round: int) -> None:
        plan = self.plan
        rate = plan.rate(self._cfg.federation.fraction, self._num_users)
        self._ledger.note(Release(server_round, plan.multiplier, plan.effective, rate, plan.delta))

    def _expected(self) -> float:
        """Users of a cohort: their expectation, or their fixed number."""
        fraction = self._cfg.federation.fraction
        if self.plan.sampling == "poisson":
            return fraction * self._num_users
        return float(cohort_size(self._num_users, fraction))

    def _least(self) -> int:
        """The fewest users with which a round goes on."""
        cohort = cohort_size(self._num_users, self._cfg.federation.fraction)
        return max(1, math.ceil(round(self._cfg.federation.min_share * cohort, 9)))

    # ---- what is printed -----------------------------------------------------------------
    def spent(self) -> dict[str, object]:
        """For a round's record: ε so far, null where no bound is known, and δ."""
        plan, found = self.plan, self.plan.epsilon(self._ledger.spent())
        return {
            "mechanism": plan.mechanism,
            "epsilon": found if math.isfinite(found) else None,
            "delta": plan.delta,
            "releases": len(self._ledger.releases),
            "noise_multiplier": plan.multiplier,
        }

    def summary(self) -> dict[str, object]:
        """For ``result.json``: the same, with what it is of."""
        plan, cfg = self.plan, self._cfg
        settings = cfg.privacy.dp or cfg.privacy.ldp
        assert settings is not None
        return {
            **self.spent(),
            "adjacency": plan.adjacency,
            "clip": settings.clip,
            "clip_dense": settings.clip_dense,
            "sensitivity": plan.sensitivity,
            "noise_std": plan.std,
            "rate": plan.rate(cfg.federation.fraction, self._num_users),
            "sampling": plan.sampling,
            "noise": "nodes" if plan.at_nodes else "server",
            "covers": COVERS,
        }


def privacy_of(cfg: Config, folder: Path, resume_round: int, num_users: int) -> Privacy | None:
    """None without privacy=dp or ldp."""
    if cfg.privacy.dp is None and cfg.privacy.ldp is None:
        return None
    privacy = Privacy(cfg, folder, resume_round, num_users)
    privacy.announce()
    return privacy
