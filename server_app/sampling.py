"""Users drawn by global index, the same for every node layout: cohorts, and who is ranked."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

import numpy as np

from models.noise import system_uniforms
from models.rng import Role, derive_rng
from models.types import IntArray


def cohort_size(num_users: int, fraction: float) -> int:
    """Floor of ``fraction`` times ``num_users``, at least one user.

    The product is exact in decimal: 0.29 of 100 users is 29, not the 28 of binary floats.

    Raises:
        ValueError: if there is no user or the fraction is not in (0, 1].

    """
    if num_users < 1:
        raise ValueError(f"there must be at least one user, got {num_users}")
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], got {fraction}")
    return max(1, math.floor(Fraction(repr(fraction)) * num_users))


def sample_cohort(seed: int, server_round: int, num_users: int, fraction: float) -> IntArray:
    """Draw the users of a round without replacement; ascending global indices.

    The draw depends on (seed, round) alone, so a resumed run needs no sampler state.
    """
    rng = derive_rng(seed, Role.COHORT, server_round)
    drawn = rng.choice(num_users, size=cohort_size(num_users, fraction), replace=False)
    return np.sort(drawn).astype(np.int64)


def draw_cohort(
    seed: int | None,
    server_round: int,
    num_users: int,
    fraction: float,
    sampling: Literal["poisson", "fixed"],
) -> IntArray:
    """A cohort of fixed size as above, or each user by itself with probability ``fraction``.

    Poisson cohorts may be empty. Without a seed numbers come from the operating system: cohorts
    are then a secret, as the count of privacy takes them to be, and never the same again.
    """
    if seed is not None and sampling == "fixed":
        return sample_cohort(seed, server_round, num_users, fraction)
    size = cohort_size(num_users, fraction)
    if seed is None:
        uniforms_U = system_uniforms(num_users)
    else:
        uniforms_U = derive_rng(seed, Role.COHORT, server_round).random(num_users)
    if sampling == "poisson":
        return np.flatnonzero(uniforms_U < fraction)
    return np.sort(np.argsort(uniforms_U, kind="stable")[:size])


def ranked_users(seed: int, num_users: int, count: int | None) -> IntArray | None:
    """The users whose held-out items are ranked, in every round alike; None: all of them."""
    if count is None or count >= num_users:
        return None
    drawn = derive_rng(seed, Role.EVALUATION).choice(num_users, size=count, replace=False)
    return np.sort(drawn).astype(np.int64)
