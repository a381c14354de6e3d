"""An item table that a user keeps in its private state, once it has one."""

from __future__ import annotations

import torch
from torch import Tensor

from models.types import Tensors

OWN, HAS_OWN = "own_item_emb", "has_own"


def room(num_items: int, factors: int) -> Tensors:
    """The private state of a user without a table."""
    return {OWN: torch.zeros(num_items, factors), HAS_OWN: torch.zeros(())}


def kept(items_ID: Tensor, private: Tensors) -> Tensors:
    """That of a user, or of a block of users, with a table."""
    return {OWN: items_ID, HAS_OWN: torch.ones_like(private[HAS_OWN])}


def own_or(private: Tensors, shared_ID: Tensor) -> Tensor:
    """The user's table (I, D), or each user's of a block (U, I, D); the shared one before that."""
    return torch.where(private[HAS_OWN][..., None, None] > 0, private[OWN], shared_ID)
