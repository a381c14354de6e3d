"""ε by our accountant beside Google's dp-accounting 0.6.0, whose figures stand here."""

from __future__ import annotations

import math

import pytest

from conf.tree import ConfigError
from server_app.accountant import Releases, Sampling, affordable, epsilon, noise_multiplier

DELTA = 1e-5
# multiplier, rate, releases, ε by PLDAccountant, ε by RdpAccountant
POISSON = [(1.0, 0.1, 100, 7.04660, 7.90385), (1.1, 0.01, 1000, 1.51537, 1.71177)]
# multiplier, rate, releases, ε by RdpAccountant with neighbours of REPLACE_ONE
FIXED = [
    (1.0, 0.1, 100, 14.0537502253),
    (2.0, 94 / 943, 100, 5.3588530784),
    (4.0, 0.5, 10, 3.1020156030),
]
# multiplier, releases, ε by PLDAccountant: everybody each time
WHOLE = [(5.0, 40, 5.759481), (2.0, 10, 7.511276), (20.0, 100, 1.993091)]


@pytest.mark.parametrize(("multiplier", "rate", "steps", "tight", "quick"), POISSON)
def test_poisson_cohorts(
    multiplier: float, rate: float, steps: int, tight: float, quick: float
) -> None:
    found = epsilon([Releases(multiplier, rate, steps)], DELTA, "poisson")
    # opacus' upper bound is its estimate and an error of 0.01.
    assert tight - 1e-3 <= found <= tight + 0.02 < quick


@pytest.mark.parametrize(("multiplier", "rate", "steps", "expected"), FIXED)
def test_cohorts_of_fixed_size(multiplier: float, rate: float, steps: int, expected: float) -> None:
    found = epsilon([Releases(multiplier, rate, steps)], DELTA, "fixed")
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize(("multiplier", "steps", "expected"), WHOLE)
def test_everybody_in_every_round(
    multiplier: float, steps: int, expected: float, sampling: Sampling
) -> None:
    found = epsilon([Releases(multiplier, 1.0, steps)], DELTA, sampling)
    assert found == pytest.approx(expected, rel=1e-6)


def test_releases_add_up() -> None:
    """Gaussian noise composes by 1/z²: two releases of z are one of z/√2."""
    twice = epsilon([Releases(3.0, 1.0, 1), Releases(3.0, 1.0, 1)], DELTA, "poisson")
    once = epsilon([Releases(3.0 / math.sqrt(2), 1.0, 1)], DELTA, "poisson")
    assert twice == pytest.approx(once, rel=1e-9)
    assert epsilon([], DELTA, "poisson") == 0.0


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_no_noise_has_no_bound(rate: float) -> None:
    assert epsilon([Releases(0.0, rate, 1)], DELTA, "poisson") == math.inf
    assert epsilon([Releases(1e-9, 1.0, 1)], DELTA, "fixed") == math.inf


@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_delta_is_a_probability(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        epsilon([Releases(1.0, 1.0, 1)], delta, "poisson")


@pytest.mark.parametrize(("rate", "sampling"), [(1.0, "poisson"), (0.2, "fixed"), (0.2, "poisson")])
def test_a_target_becomes_the_least_noise(rate: float, sampling: Sampling) -> None:
    found = noise_multiplier(4.0, DELTA, rate, 10, sampling)

    def spent(multiplier: float) -> float:
        return epsilon([Releases(multiplier, rate, 10)], DELTA, sampling)

    assert spent(found) <= 4.0 < spent(found * 0.99)


def test_a_target_that_no_noise_reaches() -> None:
    with pytest.raises(ConfigError, match="no noise gives"):
        noise_multiplier(1e-9, 1e-12, 1.0, 10, "poisson")


def test_affordable_steps() -> None:
    assert affordable(lambda steps: steps <= 7, 10) == 7
    assert affordable(lambda steps: True, 10) == 10
    assert affordable(lambda steps: steps == 0, 10) == 0
