"""Strategies in which a user follows from its items, and one user is trained as a block of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from models.types import ClientResult, Samples, Tensors, Update
from strategies.base import RecStrategy


class BlockOfOne(RecStrategy):
    """The cohort's update is the one that is written; a user's own is that of a block of one."""

    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """A block of one."""
        block = {n: t[None] for n, t in private.items()}
        result = self.cohort_update(shared, block, [epochs], [rng])
        tensors = {n: t.to_dense() for n, t in result.update.tensors.items()}
        own = {n: t[0] for n, t in result.private.items()}
        return ClientResult(Update(tensors, 1.0), own, result.metrics)


class Remembering(BlockOfOne):
    """A user is scored by its items; its private state says what the server has of it."""

    users_follow_items: ClassVar[bool] = True
    plain_updates = False
    """Not: sums of statistics."""

    @property
    def clip_problem(self) -> str | None:
        """What a user remembers to have sent would not be what was added."""
        return (
            "its server adds up exact statistics of users' items, of which each user remembers its "
            "part: clipped, the sums would no longer be what the closed form solves"
        )

    def adapt(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> Tensors:
        """As it was: nothing of it is scored with, and nothing was uploaded."""
        return private
