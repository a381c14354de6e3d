"""Rényi divergence of Gaussian noise on a cohort of fixed size, drawn without replacement.

Wang, Balle & Kasiviswanathan (AISTATS 2019, arXiv 1808.00087): neighbouring data sets differ in
one user's data, and ``multiplier`` is the noise over how far the sum then moves. With share γ of
the users in a cohort and ε(j) = j / (2 z²), for a whole order α ≥ 2

    (α−1) ε'(α) ≤ log(1 + C(α,2) γ² min(4 (e^ε(2) − 1), 2 e^ε(2))
                        + Σ_{j=3..α} C(α,j) γʲ min(2 e^{(j−1) ε(j)}, 4 √(B(2⌊j/2⌋) B(2⌈j/2⌉))))

(their Theorem 9, with the central moments B of the density ratio where those are less, which they
are for much noise). opacus has no accountant for this sampling; figures are compared with those
of Google's ``dp-accounting`` in a test.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
import numpy.typing as npt

ORDERS = tuple(range(2, 65))
DIGITS = 500
"""B(l) is of the order of z⁻ˡ, a difference of terms of the order of 2ˡ: for z up to 10⁵."""


@lru_cache(maxsize=256)
def divergences(rate: float, multiplier: float) -> npt.NDArray[np.float64]:
    """Of one release, at each of ``ORDERS``."""
    with localcontext() as context:
        context.prec = DIGITS
        ratios = _moments(ORDERS[-1], Decimal(multiplier))
        central = {size: _central(size, ratios) for size in range(2, ORDERS[-1] + 1, 2)}
        share = Decimal(rate)
        terms = [_term(j, share, ratios, central) for j in ORDERS]
        return np.array([_divergence(order, terms) for order in ORDERS])


def _moments(most: int, multiplier: Decimal) -> list[Decimal]:
    """E[(p/q)^j] under q, for j from 0."""
    return [(Decimal(j * (j - 1)) / (2 * multiplier * multiplier)).exp() for j in range(most + 1)]


def _central(size: int, ratios: list[Decimal]) -> Decimal:
    """E[(p/q − 1)^size] under q."""
    terms = ((-1) ** (size - i) * math.comb(size, i) * ratios[i] for i in range(size + 1))
    return sum(terms, Decimal(0))


def _term(j: int, share: Decimal, ratios: list[Decimal], central: dict[int, Decimal]) -> Decimal:
    """The j-th, without its number of combinations."""
    if j == 2:
        return share**2 * min(4 * (ratios[2] - 1), 2 * ratios[2])
    # The largest order is even, so that an odd j has both of its neighbours.
    moment = 4 * (central[j // 2 * 2] * central[(j + 1) // 2 * 2]).sqrt()
    return share**j * min(2 * ratios[j], moment)


def _divergence(order: int, terms: list[Decimal]) -> float:
    total = sum((math.comb(order, j) * terms[j - 2] for j in range(2, order + 1)), Decimal(1))
    return float(total.ln()) / (order - 1)
