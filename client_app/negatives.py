"""Training samples of a block of users: each positive with its own sampled negatives.

Numbers come from :class:`models.rng.UserStreams`, so a user's samples do not depend on the
block. A whole number below n is ⌊n·u⌋ of a uniform u with 53 bits, n·u rounded to a double:
its probabilities differ from 1/n by less than 2⁻⁵² each.
"""

from __future__ import annotations

from itertools import chain

import numpy as np

from client_app.data import Dataset
from client_app.distinct import distinct_in_order, nth_outside
from client_app.errors import DataError
from client_app.pseudo_items import PseudoItems
from client_app.ragged import Ragged, distinct_items
from models.rng import Uniforms, UserStreams
from models.types import IntArray, Samples

PIECE = 32
"""Users drawn for at once: their table of items (:func:`nth_outside`) stays in cache."""
KEY_BITS = 40
"""Of a key that orders positives. A user of P has two equal ones with chance below P² · 2⁻⁴¹."""


def block_samples(
    dataset: Dataset,
    users_U: IntArray,
    rule: str,
    num_negatives: int,
    streams: UserStreams,
    pseudo: PseudoItems | None = None,
) -> list[Samples]:
    """Samples of one epoch for each of ``users``; ``rule`` is ``protocol.negatives``.

    ``pseudo`` adds positives that users do not have.

    Raises:
        DataError: as :func:`draw_samples`.

    """
    pieces = [users_U[at : at + PIECE] for at in range(0, len(users_U), PIECE)]
    drawn = (_piece(dataset, piece, rule, num_negatives, streams, pseudo) for piece in pieces)
    return list(chain.from_iterable(drawn))


def _piece(
    dataset: Dataset,
    users_U: IntArray,
    rule: str,
    num_negatives: int,
    streams: UserStreams,
    pseudo: PseudoItems | None,
) -> list[Samples]:
    train = dataset.train_rows(users_U)
    excluded = excluded_items(train, dataset.heldout(users_U), rule, dataset.num_items)
    if pseudo is not None:
        train, excluded = pseudo.mixed(train, excluded, users_U, dataset.num_items)
    uniforms = streams.uniforms(users_U, train.lengths_U * (1 + num_negatives))
    uniforms_PX = uniforms.reshape(-1, 1 + num_negatives)
    return draw_samples(train, excluded, dataset.num_items, users_U, uniforms_PX)


def excluded_items(train: Ragged, held_U2: IntArray, rule: str, num_items: int) -> Ragged:
    """Sorted distinct items never drawn as a training negative, by user.

    ``train`` is sorted within a user; ``held_U2`` holds held-out items, negative for none.

    ``honest``: the user's training items, so that a held-out item may be drawn like any other.
    ``exclude_heldout``: held-out items too. That leaks the answer: an item the user has not
    trained on and that is never a negative can only be a held-out one.
    """
    if rule not in ("honest", "exclude_heldout"):
        raise ValueError(f"protocol.negatives must be honest or exclude_heldout, got {rule!r}")
    return distinct_items(train, num_items, held_U2 if rule == "exclude_heldout" else None)


def draw_samples(
    train: Ragged, excluded: Ragged, num_items: int, users_U: IntArray, uniforms_PX: Uniforms
) -> list[Samples]:
    """Each user's positives in random order, each followed by its negatives.

    A positive is drawn once for each of its rows in ``train``. Its negatives are uniform,
    without replacement, over the items outside ``excluded`` (sorted and distinct in a user),
    and independent of other positives'. ``uniforms`` has a row a positive: a key for the order,
    then one number a negative. A user of P positives gets P · (1 + negatives) samples.
    ``users`` are their indices, to name one in an error; there are fewer than 2^23.

    Raises:
        DataError: naming the user who has fewer items than negatives outside ``excluded``.

    """
    num_negatives = uniforms_PX.shape[1] - 1
    outside_U = num_items - excluded.lengths_U
    _check_pool(outside_U, num_negatives, num_items, users_U)
    items_PX = np.empty(uniforms_PX.shape, dtype=np.int64)
    items_PX[:, 0] = train.values[_order(train.users, uniforms_PX[:, 0])]
    # Negatives first: each operation runs along many positives, not along a few negatives.
    bounds_KP = outside_U[train.users].astype(float) - np.arange(num_negatives)[:, None]
    ranks = distinct_in_order((bounds_KP * uniforms_PX.T[1:]).astype(np.int64).T)
    items_PX[:, 1:] = nth_outside(ranks, train.users, excluded, num_items)
    labels_PX = np.zeros(items_PX.shape, dtype=np.float32)
    labels_PX[:, 0] = 1.0
    return _by_user(items_PX, labels_PX, train)


def _order(users_P: IntArray, uniforms_P: Uniforms) -> IntArray:
    """Places in random order within each user, users in theirs: one sort for all of them.

    The keys are whole numbers: added to a user's place, uniforms would lose bits to it, and
    the order of two close ones would depend on the block.
    """
    keys = (users_P << KEY_BITS) + (uniforms_P * 2.0**KEY_BITS).astype(np.int64)
    return np.argsort(keys, kind="stable")


def _check_pool(outside_U: IntArray, num_negatives: int, num_items: int, users_U: IntArray) -> None:
    few_U = np.flatnonzero(outside_U < num_negatives)
    if len(few_U):
        user, outside = users_U[few_U[0]], outside_U[few_U[0]]
        raise DataError(
            f"{num_negatives} negatives a positive were asked for, but only {outside} of "
            f"{num_items} items may be drawn for user {user}; lower strategy.num_negatives"
        )


def _by_user(items_PX: IntArray, labels_PX: np.ndarray, train: Ragged) -> list[Samples]:
    """Views of each user's samples."""
    items_S, labels_S, width = items_PX.reshape(-1), labels_PX.reshape(-1), items_PX.shape[1]
    starts, stops = train.starts * width, (train.starts + train.lengths_U) * width
    return [
        Samples(items_S[start:stop], labels_S[start:stop])
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    ]
