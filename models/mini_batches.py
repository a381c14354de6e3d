"""Consecutive mini-batches of a user's samples."""

from __future__ import annotations

from collections.abc import Sequence

from models.types import Samples


def mini_batches(epochs: Sequence[Samples], size: int) -> list[Samples]:
    """Mini-batches of all epochs in turn; the last one of an epoch may be shorter."""
    return [
        Samples(samples.items_S[at : at + size], samples.labels_S[at : at + size])
        for samples in epochs
        for at in range(0, len(samples), size)
    ]
