"""The usual way to simulate a federation: a deep copy of the model for each client.

Written anew as a yardstick, after the structure that public research code shares: an
``nn.Module`` with ``nn.Embedding`` tables is copied for each client, automatic
differentiation gives dense gradients of whole item tables, and the server adds them up. No
step is made on the copy, as its result would be thrown away. The arithmetic is that of
``strategies.fedrecgel``, so the benchmark checks that both give the same sum.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.sam import Radii
from models.types import Samples, Tensors

Gradient = list[Tensor]


class NeuMFModule(nn.Module):
    """Item tables and scoring layers; the user's vectors are given."""

    user_names = ("user_gmf", "user_mlp")
    mlp: nn.ModuleList

    def __init__(self, num_items: int, factors: int = 32) -> None:
        super().__init__()
        self.item_gmf = nn.Embedding(num_items, factors)
        self.item_mlp = nn.Embedding(num_items, 4 * factors)
        widths = [8 * factors, 4 * factors, 2 * factors, factors]
        self.mlp = nn.ModuleList(nn.Linear(wide, narrow) for wide, narrow in pairwise(widths))
        self.out = nn.Linear(2 * factors, 1)

    def forward(self, user: Sequence[Tensor], items_S: Tensor) -> Tensor:
        """Logits (S,)."""
        gmf, mlp = user
        x = torch.cat([mlp.expand(len(items_S), -1), self.item_mlp(items_S)], dim=1)
        for layer in self.mlp:
            x = torch.relu(layer(x))
        logits: Tensor = self.out(torch.cat([gmf * self.item_gmf(items_S), x], dim=1))
        return logits[:, 0]


class MFModule(nn.Module):
    """Item embeddings of a matrix factorisation."""

    user_names = ("user_emb",)

    def __init__(self, num_items: int, factors: int = 32) -> None:
        super().__init__()
        self.item_emb = nn.Embedding(num_items, factors)

    def forward(self, user: Sequence[Tensor], items_S: Tensor) -> Tensor:
        """Logits (S,)."""
        scores: Tensor = self.item_emb(items_S) @ user[0]
        return scores


def load(module: nn.Module, shared: Tensors) -> None:
    """Copy our shared parameters into the module, by name."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(shared[our_name(name)])


def our_name(name: str) -> str:
    """``mlp.0.weight`` is our ``mlp_w0``, ``out.bias`` our ``out_b``; tables keep their name."""
    first, *rest = name.split(".")
    kind = rest[-1][0]
    if len(rest) == 2:
        return f"{first}_{kind}{rest[0]}"
    return first if first.startswith("item") else f"{first}_{kind}"


def train_cohort(
    module: NeuMFModule | MFModule,
    users: Sequence[Tensors],
    samples_U: Sequence[Samples],
    loss_slice: int,
    radii: Radii,
    private_lr: float,
) -> Tensors:
    """Train every client on a copy of its own; returns the summed uploads by our names."""
    total = [torch.zeros_like(p) for p in module.parameters()]
    for user, samples in zip(users, samples_U, strict=True):
        local = copy.deepcopy(module)
        vectors = [nn.Parameter(user[name].clone()) for name in module.user_names]
        adam = torch.optim.Adam(vectors, lr=private_lr)
        uploads = _client(local, vectors, samples, loss_slice, radii)
        for summed, upload in zip(total, uploads, strict=True):
            summed.add_(upload)
        adam.step()
    names = [our_name(name) for name, _ in module.named_parameters()]
    return dict(zip(names, total, strict=True))


def _client(
    model: nn.Module,
    vectors: list[nn.Parameter],
    samples: Samples,
    loss_slice: int,
    radii: Radii,
) -> Gradient:
    """One client's passes; leaves the private gradient in ``.grad``, returns the shared one."""
    shared = list(model.parameters())
    g_shared, g_private = _pass(model, vectors, samples, loss_slice)
    upload = g_shared
    if radii.shared > 0:
        moves = _move(shared, g_shared, radii.shared)
        upload, _ = _pass(model, vectors, samples, loss_slice)
        _undo(shared, moves)
    if radii.private > 0:
        moves = _move(vectors, g_private, radii.private)
        _, g_private = _pass(model, vectors, samples, loss_slice)
        _undo(vectors, moves)
    for vector, gradient in zip(vectors, g_private, strict=True):
        vector.grad = gradient
    return upload


def _pass(
    model: nn.Module, vectors: list[nn.Parameter], samples: Samples, loss_slice: int
) -> tuple[Gradient, Gradient]:
    parameters = [*model.parameters(), *vectors]
    for parameter in parameters:
        parameter.grad = None
    logits_S = model(vectors, torch.from_numpy(samples.items_S))
    labels_S = torch.from_numpy(samples.labels_S).to(logits_S.dtype)
    loss = logits_S.new_zeros(())
    for start in range(0, len(samples), loss_slice):
        part = slice(start, start + loss_slice)
        loss = loss + functional.binary_cross_entropy_with_logits(logits_S[part], labels_S[part])
    loss.backward()
    gradients = [p.grad for p in parameters if p.grad is not None]
    split = len(parameters) - len(vectors)
    return gradients[:split], gradients[split:]


def _move(parameters: list[nn.Parameter], gradient: Gradient, radius: float) -> Gradient:
    norm = torch.sqrt(torch.stack([g.square().sum() for g in gradient]).sum())
    moves = [radius * g / (norm + 1e-12) for g in gradient]
    with torch.no_grad():
        for parameter, move in zip(parameters, moves, strict=True):
            parameter.add_(move)
    return moves


def _undo(parameters: list[nn.Parameter], moves: Gradient) -> None:
    with torch.no_grad():
        for parameter, move in zip(parameters, moves, strict=True):
            parameter.sub_(move)
