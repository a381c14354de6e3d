"""The usual way to simulate a federation: every client trains a deep copy, densely.

Written anew as a yardstick, after the structure that public research code shares, FedRecGEL's
included. A client and round:

1. the server's modules are deep-copied into the client's model one by one, and an optimiser
   over all of the copy is made;
2. the loss is summed over slices of the samples, each slice a forward pass of its own; one
   backward pass gives gradients of whole item tables and of the user alike, which are kept;
3. each perturbation is written out for all parameters of its block, added, followed by a
   forward and backward pass of everything, and taken back;
4. the kept gradients are put in place and both optimisers step: the user's own Adam, and the
   one over the copy, although the copy is dropped;
5. the gradients are cloned as the upload, and the server adds each to its own.

The arithmetic of the upload and of the user's step is that of ``strategies``; the benchmark
checks it before it times anything.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.dense_models import DenseModule
from models.sam import NORM_EPS, Radii
from models.types import Tensors

Gradient = list[Tensor]
MakeOptimiser = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class TensorSamples:
    """A user's samples as tensors (S,): the user's row, always 0, items and labels."""

    users_S: Tensor
    items_S: Tensor
    labels_S: Tensor

    def part(self, start: int, size: int) -> TensorSamples:
        """Up to ``size`` consecutive samples."""
        rows = slice(start, start + size)
        return TensorSamples(self.users_S[rows], self.items_S[rows], self.labels_S[rows])

    def slices(self, size: int) -> list[TensorSamples]:
        """All samples in consecutive parts of ``size``."""
        return [self.part(start, size) for start in range(0, len(self.items_S), size)]


class Client(ABC):
    """A user's model and the optimiser of its private parameters, kept between rounds."""

    def __init__(
        self, model: DenseModule, private: Tensors, private_optimiser: MakeOptimiser
    ) -> None:
        """``model`` becomes the client's own."""
        self.model = model
        model.load(private)
        self.private_optimiser = private_optimiser(self.parameters(private=True))

    def parameters(self, *, private: bool) -> list[nn.Parameter]:
        """Of the private or of the shared block."""
        return [parameter for _, parameter in self.model.named(private=private)]

    def receive(self, server: DenseModule) -> None:
        """Copy the server's modules, one by one."""
        for name in server.shared_names():
            setattr(self.model, name, copy.deepcopy(getattr(server, name)))

    def loss(self, samples: TensorSamples) -> Tensor:
        """Mean over the samples."""
        logits_S = self.model(samples.users_S, samples.items_S)
        return functional.binary_cross_entropy_with_logits(logits_S, samples.labels_S)

    @abstractmethod
    def train(self, server: DenseModule, samples: TensorSamples) -> Gradient:
        """One round; returns what is uploaded."""


class SAMClient(Client):
    """Sharpness-aware gradients of both blocks; plain ones where a radius is zero."""

    def __init__(
        self,
        model: DenseModule,
        private: Tensors,
        private_lr: float,
        radii: Radii,
        loss_slice: int,
    ) -> None:
        super().__init__(model, private, partial(torch.optim.Adam, lr=private_lr))
        self.radii, self.loss_slice = radii, loss_slice

    def train(self, server: DenseModule, samples: TensorSamples) -> Gradient:
        """One round; returns the gradient of the shared block."""
        self.receive(server)
        shared, private = self.parameters(private=False), self.parameters(private=True)
        shared_adam = torch.optim.Adam(shared)
        self._backward(samples)
        h_shared, h_private = _saved(shared), _saved(private)
        if self.radii.shared > 0:
            h_shared = self._perturbed(shared, h_shared, self.radii.shared, samples)
        if self.radii.private > 0:
            h_private = self._perturbed(private, h_private, self.radii.private, samples)
        self.model.zero_grad()
        for parameter, gradient in zip([*shared, *private], [*h_shared, *h_private], strict=True):
            parameter.grad = gradient.clone()
        shared_adam.step()
        self.private_optimiser.step()
        return _saved(shared)

    def _backward(self, samples: TensorSamples) -> None:
        self.model.zero_grad()
        parts = [self.loss(part) for part in samples.slices(self.loss_slice)]
        torch.stack(parts).sum().backward()  # type: ignore[no-untyped-call]

    def _perturbed(
        self, block: list[nn.Parameter], along: Gradient, radius: float, samples: TensorSamples
    ) -> Gradient:
        """The block's gradient at the point moved by ``radius`` along a gradient."""
        norm = torch.norm(torch.stack([torch.norm(gradient) for gradient in along]))
        moves = [radius * gradient / (norm + NORM_EPS) for gradient in along]
        with torch.no_grad():
            for parameter, move in zip(block, moves, strict=True):
                parameter.add_(move)
        self._backward(samples)
        gradients = _saved(block)
        with torch.no_grad():
            for parameter, move in zip(block, moves, strict=True):
                parameter.sub_(move)
        return gradients


class Server:
    """The shared model and its optimiser."""

    def __init__(self, model: DenseModule, optimiser: MakeOptimiser) -> None:
        self.model = model
        self.shared = dict(model.named(private=False))
        self.optimiser = optimiser(list(self.shared.values()))

    def round(
        self, clients: Sequence[Client], samples_U: Sequence[TensorSamples], weight: float
    ) -> None:
        """Train every client, and step along the sum of their uploads by ``weight``."""
        self.optimiser.zero_grad()
        for parameter in self.shared.values():
            parameter.grad = torch.zeros_like(parameter)
        for client, samples in zip(clients, samples_U, strict=True):
            self._add(client.train(self.model, samples), weight)
        self.optimiser.step()

    def _add(self, upload: Gradient, weight: float) -> None:
        for parameter, tensor in zip(self.shared.values(), upload, strict=True):
            assert parameter.grad is not None
            parameter.grad += tensor / weight


def _saved(parameters: list[nn.Parameter]) -> Gradient:
    return [p.grad.clone() for p in parameters if p.grad is not None]
