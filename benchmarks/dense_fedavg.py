"""FedAvg's client in the dense style: gradient descent on a deep copy of all tables."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.dense_models import DenseModule
from benchmarks.dense_style import Client, Gradient, TensorSamples
from models.types import Tensors


class SGDClient(Client):
    """Mini-batch gradient descent on the whole copy and on the user, as in FedAvg."""

    def __init__(
        self, model: DenseModule, private: Tensors, lrs: tuple[float, float], batch_size: int
    ) -> None:
        """``lrs`` are the learning rates of the shared and of the private block."""
        super().__init__(model, private, partial(torch.optim.SGD, lr=lrs[1]))
        self.shared_lr, self.batch_size = lrs[0], batch_size

    def train(self, server: DenseModule, samples: TensorSamples) -> Gradient:
        """One round; returns the number of samples times how far the copy moved, downhill."""
        self.receive(server)
        shared = self.parameters(private=False)
        optimiser = torch.optim.SGD(shared, lr=self.shared_lr)
        for batch in samples.slices(self.batch_size):
            self.model.zero_grad()
            self.loss(batch).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            self.private_optimiser.step()
        weight, start = len(samples.items_S), [p for _, p in server.named(private=False)]
        with torch.no_grad():
            return [weight * (before - now) for before, now in zip(start, shared, strict=True)]
