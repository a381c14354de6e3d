"""What releases of noisy sums cost together: ε at a given δ, by the accountants of opacus.

A release adds Gaussian noise to the sum over a sampled cohort. Its ``multiplier`` is the noise's
standard deviation over the L2 sensitivity of the sum, its ``rate`` the probability with which a
user is in the cohort. By how cohorts are drawn:

* ``poisson``, each user by itself: privacy loss distributions (Gopi et al., NeurIPS 2021,
  arXiv 2106.02848), or Rényi divergences where these cannot be computed;
* ``fixed``, so many without replacement: Rényi divergences (``server_app.without_replacement``);
* everybody each time, or no claim that a cohort is secret: the exact curve of Gaussian noise
  (Balle & Wang, ICML 2018; Dong, Roth & Su 2022).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Literal

import numpy as np

from conf.tree import Config, ConfigError
from server_app.without_replacement import ORDERS, divergences

Sampling = Literal["poisson", "fixed"]
PRECISION = 1e-3
"""Relative, of a noise multiplier that is looked for."""
LEAST, MOST = 1e-2, 1e6
"""Noise multipliers among which one is looked for."""
TIGHTEST = 0.7
"""The tight bound's least multiplier over that of the quick bound is not below this."""
FRACTIONAL = tuple(1 + tenth / 10 for tenth in range(1, 100))
WHOLE = (*range(11, 64), 80, 128, 256)


@dataclass(frozen=True)
class Releases:
    """``steps`` releases alike."""

    multiplier: float
    rate: float
    steps: int


def check_accountant(cfg: Config) -> None:
    """Raise ConfigError where opacus is needed and not installed."""
    needed = cfg.privacy.dp is not None or cfg.privacy.ldp is not None
    if needed and find_spec("opacus") is None:
        raise ConfigError("privacy=dp and ldp need opacus for ε: pip install 'fedrecgel[privacy]'")


def epsilon(releases: Sequence[Releases], delta: float, sampling: Sampling) -> float:
    """An upper bound of ε for all releases together; infinite where there is none.

    Raises:
        ValueError: for a δ outside (0, 1).

    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1, got {delta}")
    return _epsilon(_merged(releases), delta, sampling)


def noise_multiplier(
    target: float, delta: float, rate: float, steps: int, sampling: Sampling
) -> float:
    """The least multiplier, to 0.1 %, with which so many releases cost at most ``target``.

    Raises:
        ConfigError: where none of up to a million does.

    """
    low, high = LEAST, MOST
    if epsilon([Releases(high, rate, steps)], delta, sampling) > target:
        raise ConfigError(f"no noise gives epsilon={target:g} at delta={delta:g}")
    if sampling == "poisson" and rate < 1:
        # The bound that is quick to compute says where to look with the tight one.
        quick = _least(low, high, lambda z: _quick(z, rate, steps, delta) <= target)
        low, high = (quick * TIGHTEST, quick)

    def fits(multiplier: float) -> bool:
        return epsilon([Releases(multiplier, rate, steps)], delta, sampling) <= target

    return _least(low, high, fits)


def _least(low: float, high: float, fits: Callable[[float], bool]) -> float:
    """The least number above ``low`` that fits, to ``PRECISION``; ``high`` does."""
    while high / low > 1 + PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def affordable(fits: Callable[[int], bool], most: int) -> int:
    """The greatest number of steps from 0 to ``most`` that fits, if fewer fit as well."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _merged(releases: Sequence[Releases]) -> tuple[Releases, ...]:
    steps: dict[tuple[float, float], int] = {}
    for each in releases:
        key = (each.multiplier, each.rate)
        steps[key] = steps.get(key, 0) + each.steps
    return tuple(Releases(*key, count) for key, count in steps.items() if count)


@lru_cache(maxsize=1024)
def _epsilon(releases: tuple[Releases, ...], delta: float, sampling: Sampling) -> float:
    if not releases:
        return 0.0
    if any(each.multiplier <= 0 for each in releases):
        return math.inf
    if all(each.rate == 1 for each in releases):
        return gaussian(math.sqrt(sum(each.steps / each.multiplier**2 for each in releases)), delta)
    if sampling == "fixed":
        spent = [each.steps * divergences(each.rate, each.multiplier) for each in releases]
        return _converted(ORDERS, np.sum(spent, axis=0), delta)
    return min(_by_loss_distribution(releases, delta), _by_divergence(releases, delta))


def gaussian(mu: float, delta: float) -> float:
    """ε of Gaussian noise 1/``mu`` times the sensitivity, exactly; infinite above 500."""
    from opacus.accountants.analysis.gdp import delta_eps_mu, eps_from_mu

    if delta_eps_mu(eps=0.0, mu=mu) <= delta:
        return 0.0
    if delta_eps_mu(eps=500.0, mu=mu) > delta:
        return math.inf
    return float(eps_from_mu(mu=mu, delta=delta))


def _by_loss_distribution(releases: Sequence[Releases], delta: float) -> float:
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    # The library's formulas have no rate of one.
    if any(each.rate == 1 for each in releases):
        return math.inf
    accountant.history = [(each.multiplier, each.rate, each.steps) for each in releases]
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = float(accountant.get_epsilon(delta))
    except (RuntimeError, ValueError, MemoryError, OverflowError):
        return math.inf  # the mesh would be too fine or too long: the other bound holds
    return found if math.isfinite(found) and found >= 0 else math.inf


def _by_divergence(releases: Sequence[Releases], delta: float) -> float:
    from opacus.accountants.analysis.rdp import compute_rdp

    orders = (*FRACTIONAL, *WHOLE)
    with np.errstate(all="ignore"):
        spent = [
            compute_rdp(
                q=each.rate, noise_multiplier=each.multiplier, steps=each.steps, orders=list(orders)
            )
            for each in releases
        ]
    return _converted(orders, np.sum(spent, axis=0), delta)


def _quick(multiplier: float, rate: float, steps: int, delta: float) -> float:
    return _by_divergence([Releases(multiplier, rate, steps)], delta)


def _converted(orders: Sequence[float], spent_A: np.ndarray, delta: float) -> float:
    """ε by the best of the orders (Balle et al., AISTATS 2020)."""
    from opacus.accountants.analysis.rdp import get_privacy_spent

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the best order is the first or last one
        found, _ = get_privacy_spent(orders=list(orders), rdp=spent_A, delta=delta)
    return max(0.0, float(found))
