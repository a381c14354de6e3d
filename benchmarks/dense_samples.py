"""Drawing a user's samples as public research code does: in lists, an item at a time."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from benchmarks.dense_style import TensorSamples
from models.types import Samples


def draw(interacted_I: Tensor, num_negatives: int, rng: random.Random) -> TensorSamples:
    """The user's items in random order, each followed by items it has not interacted with.

    ``interacted_I`` (I,) is True for the user's items. Negatives of one positive are distinct.
    """
    positives = torch.nonzero(interacted_I).view(-1).tolist()
    others = torch.nonzero(~interacted_I).view(-1).tolist()
    rng.shuffle(positives)
    users, items, labels = [], [], []
    for positive in positives:
        users.append(0)
        items.append(positive)
        labels.append(1.0)
        for negative in rng.sample(others, num_negatives):
            users.append(0)
            items.append(negative)
            labels.append(0.0)
    return TensorSamples(torch.tensor(users), torch.tensor(items), torch.tensor(labels))


def as_tensors(samples: Samples, dtype: torch.dtype = torch.float32) -> TensorSamples:
    """Our samples for a dense client, with labels of ``dtype``."""
    users_S = torch.zeros(len(samples), dtype=torch.int64)
    labels_S = torch.from_numpy(samples.labels_S).to(dtype)
    return TensorSamples(users_S, torch.from_numpy(samples.items_S), labels_S)
