"""A made-up data set with popular items and latent taste, of any size, from a seed.

Every item belongs to one cluster and has a weight by a power law of its rank. A user likes a
few clusters. Each of his interactions is drawn from one of them, or with probability
1 − ``taste`` from the whole catalogue, and within it in proportion to the items' weights.
Items are distinct in a user; the order of the draws is their order in time. Numbers of
interactions are log-normal. Users are independent of each other given the items, so they are
made in blocks, and memory is that of the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from client_app.ragged import Ragged
from conf.tree import SyntheticConfig
from models.rng import Role, Uniforms, UserStreams, derive_rng
from models.types import IntArray

ITEMS_STREAM, USERS_STREAM = 0, 1
FAVOURITES = 3
"""Clusters a user likes; the first twice as often as the others."""
SPARE = 2.0
"""Draws a wanted item, so that few users ask for more when they draw an item again."""
LENGTH_NUMBERS = 2
BLOCK = 16384


@dataclass(frozen=True)
class Catalogue:
    """Items by cluster, the more popular first, and where draws fall.

    ``order_I`` lists items cluster by cluster. ``cumulative_I`` is cluster k's number plus the
    cumulative share of its items' weights, so that k + u, u uniform, finds one of them;
    ``overall_I`` the same over all items of ``order_I``.
    """

    order_I: IntArray
    cumulative_I: npt.NDArray[np.float64]
    overall_I: npt.NDArray[np.float64]
    clusters: int


def make_catalogue(config: SyntheticConfig) -> Catalogue:
    """Ranks and clusters of all items, at random."""
    rng = derive_rng(config.seed, Role.SYNTHETIC, ITEMS_STREAM)
    weights_I = np.arange(1, config.items + 1, dtype=np.float64) ** -config.exponent
    weights_I = weights_I[rng.permutation(config.items)]
    # Item i is in cluster i mod K before the shuffle: no cluster is empty.
    cluster_I = rng.permutation(np.arange(config.items) % config.clusters)
    order_I = np.lexsort((-weights_I, cluster_I))
    weights_I, cluster_I = weights_I[order_I], cluster_I[order_I]
    running_I = np.cumsum(weights_I)
    sums_K = np.bincount(cluster_I, weights_I, minlength=config.clusters)
    before_K = np.cumsum(sums_K) - sums_K
    inside_I = (running_I - before_K[cluster_I]) / sums_K[cluster_I]
    last_I = np.append(cluster_I[1:] != cluster_I[:-1], True)
    inside_I[last_I] = 1.0  # rounding must leave no gap before the next cluster
    return Catalogue(order_I, cluster_I + inside_I, running_I / running_I[-1], config.clusters)


def draw_users(config: SyntheticConfig, catalogue: Catalogue, users_U: IntArray) -> Ragged:
    """Distinct items of users in their order in time, the same whatever users are beside."""
    streams = UserStreams(config.seed, Role.SYNTHETIC, USERS_STREAM)
    lengths_U = lengths(config, streams, users_U)
    found = np.empty(int(lengths_U.sum()), dtype=np.int64)
    starts_U = np.cumsum(lengths_U) - lengths_U
    left, factor = np.arange(len(users_U)), SPARE
    while len(left):
        draws_U = np.ceil(factor * lengths_U[left]).astype(np.int64) + FAVOURITES
        drawn = _draws(config, catalogue, streams, users_U[left], draws_U)
        complete = _keep_first(drawn, lengths_U[left], starts_U[left], found)
        left, factor = left[~complete], 2 * factor
    return Ragged(found, lengths_U)


def lengths(config: SyntheticConfig, streams: UserStreams, users_U: IntArray) -> IntArray:
    """Number of each user's interactions (U,), from the first two numbers of its stream."""
    u = streams.uniforms(users_U, np.full(len(users_U), LENGTH_NUMBERS)).reshape(-1, LENGTH_NUMBERS)
    # Box and Muller; 1 − u is never 0.
    normal_U = np.sqrt(-2.0 * np.log(1.0 - u[:, 0])) * np.cos(2.0 * np.pi * u[:, 1])
    rows_U = np.exp(np.log(config.median_rows) + config.spread * normal_U)
    most = max(config.least_rows, config.items // 4)
    rows: IntArray = np.clip(np.rint(rows_U), config.least_rows, most).astype(np.int64)
    return rows


def _draws(
    config: SyntheticConfig,
    catalogue: Catalogue,
    streams: UserStreams,
    users_U: IntArray,
    draws_U: IntArray,
) -> Ragged:
    """Items, repeats included, that users draw one after another."""
    numbers = streams.uniforms(users_U, LENGTH_NUMBERS + FAVOURITES + 2 * draws_U)
    starts_U = np.cumsum(LENGTH_NUMBERS + FAVOURITES + 2 * draws_U) - 2 * draws_U
    places = np.arange(FAVOURITES) + (starts_U - FAVOURITES)[:, None]
    liked_UF = (numbers[places] * config.clusters).astype(np.int64)
    rows = np.repeat(np.arange(len(users_U)), draws_U)
    within = np.arange(int(draws_U.sum())) - np.repeat(np.cumsum(draws_U) - draws_U, draws_U)
    at = starts_U[rows] + 2 * within
    return Ragged(_items(config, catalogue, liked_UF[rows], numbers[at], numbers[at + 1]), draws_U)


def _items(
    config: SyntheticConfig,
    catalogue: Catalogue,
    liked_DF: IntArray,
    choice_D: Uniforms,
    place_D: Uniforms,
) -> IntArray:
    """The item of each draw: ``choice`` says of which cluster, ``place`` which of its items."""
    by_taste_D = choice_D < config.taste
    # The favourites' shares of ``taste``: two for the first, one for each other. The bound keeps
    # the quotient finite for the smallest tastes.
    within_D = np.minimum(choice_D, config.taste)
    share_D = within_D / config.taste * (FAVOURITES + 1) if config.taste > 0 else within_D
    favourite_D = np.clip(share_D.astype(np.int64) - 1, 0, FAVOURITES - 1)
    cluster_D = np.take_along_axis(liked_DF, favourite_D[:, None], axis=1)[:, 0]
    inside_D = np.searchsorted(catalogue.cumulative_I, cluster_D + place_D, side="right")
    overall_D = np.searchsorted(catalogue.overall_I, place_D, side="right")
    found: IntArray = catalogue.order_I[np.where(by_taste_D, inside_D, overall_D)]
    return found


def _keep_first(
    drawn: Ragged, lengths_U: IntArray, starts_U: IntArray, found: IntArray
) -> npt.NDArray[np.bool_]:
    """Write each user's first distinct items to its part of ``found``; which users have enough."""
    base = int(drawn.values.max()) + 1
    keys = drawn.keys(base)
    _, first = np.unique(keys, return_index=True)
    fresh = np.zeros(len(keys), dtype=bool)
    fresh[first] = True
    counts = np.cumsum(fresh)
    before_U = np.append(0, counts)[drawn.starts]
    rank = counts - before_U[drawn.users] - 1
    complete_U: npt.NDArray[np.bool_] = (
        np.append(counts, 0)[drawn.starts + drawn.lengths_U - 1] - before_U >= lengths_U
    )
    kept = fresh & (rank < lengths_U[drawn.users]) & complete_U[drawn.users]
    found[starts_U[drawn.users[kept]] + rank[kept]] = drawn.values[kept]
    return complete_U
