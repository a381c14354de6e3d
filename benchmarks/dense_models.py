"""The scoring models of ``models`` as ``nn.Module``s with embedding tables, for dense autograd.

A client has a module of its own: a user table of one row, and copies of the server's item
tables and layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from models.types import Tensors


class DenseModule(nn.Module):
    """A scoring model whose children are shared or private."""

    private_names: ClassVar[tuple[str, ...]]
    """Children that hold the user's parameters; the others are shared."""

    def forward(self, users_S: Tensor, items_S: Tensor) -> Tensor:
        """Logits (S,)."""
        raise NotImplementedError

    def shared_names(self) -> list[str]:
        """Children that the server has too."""
        return [name for name, _ in self.named_children() if name not in self.private_names]

    def named(self, *, private: bool) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of the private or the shared children by the names of ``models``."""
        for name, parameter in self.named_parameters():
            if (name.split(".")[0] in self.private_names) == private:
                yield our_name(name), parameter

    def load(self, tensors: Tensors) -> None:
        """Copy those of our shared or private parameters that are given, by name."""
        with torch.no_grad():
            for name, parameter in [*self.named(private=False), *self.named(private=True)]:
                if name in tensors:
                    parameter.copy_(tensors[name].view_as(parameter))


class NeuMFModule(DenseModule):
    """Embedding tables, a perceptron over the joined embeddings, one output layer."""

    private_names = ("user_gmf", "user_mlp")

    def __init__(self, num_items: int, factors: int = 32) -> None:
        super().__init__()
        self.user_gmf = nn.Embedding(1, factors)
        self.user_mlp = nn.Embedding(1, 4 * factors)
        self.item_gmf = nn.Embedding(num_items, factors)
        self.item_mlp = nn.Embedding(num_items, 4 * factors)
        layers: list[nn.Module] = []
        for wide, narrow in pairwise([8 * factors, 4 * factors, 2 * factors, factors]):
            layers += [nn.Dropout(0.0), nn.Linear(wide, narrow), nn.ReLU()]
        self.mlp = nn.Sequential(*layers)
        self.out = nn.Linear(2 * factors, 1)

    def forward(self, users_S: Tensor, items_S: Tensor) -> Tensor:
        """Logits (S,)."""
        product = self.user_gmf(users_S) * self.item_gmf(items_S)
        joined = torch.cat([self.user_mlp(users_S), self.item_mlp(items_S)], dim=-1)
        logits: Tensor = self.out(torch.cat([product, self.mlp(joined)], dim=-1))
        return logits.view(-1)


class MFModule(DenseModule):
    """The inner product of a user's and an item's embedding."""

    private_names = ("user_emb",)

    def __init__(self, num_items: int, factors: int = 32) -> None:
        super().__init__()
        self.user_emb = nn.Embedding(1, factors)
        self.item_emb = nn.Embedding(num_items, factors)

    def forward(self, users_S: Tensor, items_S: Tensor) -> Tensor:
        """Logits (S,)."""
        product: Tensor = self.user_emb(users_S) * self.item_emb(items_S)
        return product.sum(dim=-1)


MODULES: dict[str, type[NeuMFModule] | type[MFModule]] = {"neumf": NeuMFModule, "mf": MFModule}


def our_name(name: str) -> str:
    """``mlp.4.weight`` is our ``mlp_w1``, ``out.bias`` our ``out_b``; tables keep their name."""
    first, *rest = name.split(".")
    if first.startswith(("item", "user")):
        return first
    kind = rest[-1][0]
    # dropout, linear and ReLU make three children a layer
    return f"{first}_{kind}{int(rest[0]) // 3}" if len(rest) == 2 else f"{first}_{kind}"
