"""FedAvg (McMahan et al., arXiv 1602.05629, Algorithm 1) on the shared parameters.

A sampled user copies the shared parameters, runs local epochs of mini-batch SGD on the copy
and on its private parameters, keeps the latter and uploads how far the copy moved. The
server adds the weighted mean movement; seen as a pseudo-gradient it may also go through
Adam (FedOpt, arXiv 2003.00295).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from models import optim
from models.sam import Radii, sam_gradients
from models.types import ClientResult, CohortResult, IntArray, Samples, Tensors, Update
from strategies.base import RecStrategy, StrategyConfig

Weighting = Literal["samples", "users", "rows"]
PLAIN = Radii()


@dataclass(frozen=True)
class FedAvgConfig(StrategyConfig):
    """Settings of FedAvg."""

    server_optimiser: optim.OptimiserName = "sgd"
    """``sgd`` with ``server_lr`` 1 is plain averaging; others take the movement as a gradient."""
    server_lr: float = 1.0
    batch_size: int = 256
    """Consecutive samples a local SGD step; its loss is their mean."""
    shared_lr: float = 200.0
    """Local learning rate of the shared parameters. A sample moves its row by this over the
    batch size, and the mean over users shrinks that again, hence the size (see ``weighting``)."""
    private_lr: float = 10.0
    """Local learning rate of the private parameters."""
    weighting: Weighting = "samples"
    """Mean over users weighted by their number of ``samples`` (the paper's), over ``users``
    alike, or an item row over the users that have a sample of it (``rows``): most users leave
    most rows as they are, so a mean of whole tables shrinks the movement of rare items.
    Changing this asks for another ``shared_lr``: ``docs/fedavg.md``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        for name in ("shared_lr", "private_lr"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.weighting not in get_args(Weighting):
            allowed = ", ".join(get_args(Weighting))
            raise ValueError(f"weighting must be one of {allowed}, got {self.weighting!r}")


class FedAvg(RecStrategy):
    """Local mini-batch SGD, weighted mean of the movements."""

    Config: ClassVar[type[StrategyConfig]] = FedAvgConfig
    title: ClassVar[str] = "FedAvg (arXiv 1602.05629)"
    update_kind: ClassVar[Literal["gradient", "delta"]] = "delta"
    config: FedAvgConfig

    # ---- client half ---------------------------------------------------------------------
    def client_update(
        self, shared: Tensors, private: Tensors, epochs: Sequence[Samples], rng: np.random.Generator
    ) -> ClientResult:
        """Local SGD on a copy of all shared parameters: the readable reference."""
        local, loss, batches = shared, 0.0, self._batches(epochs)
        for batch in batches:
            user = sam_gradients(self.model, local, private, batch, len(batch), PLAIN)
            local = optim.step("sgd", local, user.shared, {}, self.config.shared_lr)[0]
            private = optim.step("sgd", private, user.private, {}, self.config.private_lr)[0]
            loss += float(user.losses[0]) / len(batches)
        weight, rows = self._weight(epochs), self._row_weights(shared, [_touched(epochs)])
        moved = {n: weight * (local[n] - shared[n]) for n in shared}
        return ClientResult(Update(moved, weight, rows), private, _metrics(loss, epochs))

    def cohort_update(
        self,
        shared: Tensors,
        private_block: Tensors,
        epochs_U: Sequence[Sequence[Samples]],
        rngs: Sequence[np.random.Generator],
    ) -> CohortResult:
        """The same, each user training only the rows of the item tables it has samples of.

        A row without a sample has no gradient and SGD leaves it where it is, so the movement
        of the user's own rows is all there is to add.
        """
        total = {n: torch.zeros_like(t) for n, t in shared.items()}
        private_out = {n: t.clone() for n, t in private_block.items()}
        rows_U = [_touched(epochs) for epochs in epochs_U]
        loss = 0.0
        for user, epochs in enumerate(epochs_U):
            own = {n: t[user : user + 1] for n, t in private_block.items()}
            private, user_loss = self._train_rows(shared, own, epochs, rows_U[user], total)
            for name, tensor in private.items():
                private_out[name][user] = tensor[0]
            loss += user_loss
        weight = sum(self._weight(epochs) for epochs in epochs_U)
        update = Update(total, weight, self._row_weights(shared, rows_U))
        metrics = _metrics(loss, [samples for epochs in epochs_U for samples in epochs])
        return CohortResult(update, private_out, metrics)

    def _train_rows(
        self,
        shared: Tensors,
        private: Tensors,
        epochs: Sequence[Samples],
        rows_R: IntArray,
        total: Tensors,
    ) -> tuple[Tensors, float]:
        """Train a block of one user on ``rows_R`` and add its movement to ``total`` in place."""
        rows, tables = torch.from_numpy(rows_R), self.model.item_tables
        start = {n: t.index_select(0, rows) if n in tables else t for n, t in shared.items()}
        local, loss = start, 0.0
        relabelled = [Samples(np.searchsorted(rows_R, s.items_S), s.labels_S) for s in epochs]
        batches = self._batches(relabelled)
        for batch in batches:
            block = self.model.block_gradients(local, private, [batch], len(batch), PLAIN)
            local = optim.step("sgd", local, block.shared, {}, self.config.shared_lr)[0]
            private = optim.step("sgd", private, block.private, {}, self.config.private_lr)[0]
            loss += float(block.losses[0, 0]) / len(batches)
        for name, tensor in local.items():
            moved = self._weight(epochs) * (tensor - start[name])
            if name in tables:
                total[name].index_add_(0, rows, moved)
            else:
                total[name] += moved
        return private, loss

    def _batches(self, epochs: Sequence[Samples]) -> list[Samples]:
        """Consecutive mini-batches of all epochs; the last one of an epoch may be shorter."""
        size = self.config.batch_size
        return [
            Samples(s.items_S[at : at + size], s.labels_S[at : at + size])
            for s in epochs
            for at in range(0, len(s), size)
        ]

    def _weight(self, epochs: Sequence[Samples]) -> float:
        """The user's weight in the mean: its samples an epoch, or 1."""
        return float(len(epochs[0])) if self.config.weighting == "samples" else 1.0

    def _row_weights(self, shared: Tensors, rows_U: Sequence[IntArray]) -> Tensors | None:
        """How many of the users touched each row, a (I,) tensor a table; None unless ``rows``."""
        if self.config.weighting != "rows":
            return None
        tables = [n for n in shared if n in self.model.item_tables]
        counts = np.concatenate(rows_U)
        return {
            n: torch.from_numpy(np.bincount(counts, minlength=len(shared[n]))).to(shared[n].dtype)
            for n in tables
        }

    # ---- server half ---------------------------------------------------------------------
    def server_update(
        self, shared: Tensors, summed: Update, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Add the mean movement: the optimiser descends along its negative.

        Raises:
            ValueError: when ``rows`` weighting is set and an update lacks its row weights.

        """
        if self.config.weighting == "rows" and summed.row_weights is None:
            raise ValueError("weighting=rows needs the row weights of the update")
        gradient = {n: -_mean(n, t, summed) for n, t in summed.tensors.items()}
        cfg = self.config
        return optim.step(cfg.server_optimiser, shared, gradient, server_state, cfg.server_lr)


def _mean(name: str, tensor: Tensor, summed: Update) -> Tensor:
    """Mean movement; of a row over the users that touched it, where row weights say so."""
    counts = (summed.row_weights or {}).get(name)
    if counts is None:
        return tensor / summed.weight
    # No user touched a row of count zero, so its sum is zero as well.
    return tensor / counts.clamp(min=1).reshape(-1, *[1] * (tensor.dim() - 1))


def _touched(epochs: Sequence[Samples]) -> IntArray:
    """Item rows that the user has samples of, ascending."""
    return np.unique(np.concatenate([samples.items_S for samples in epochs]))


def _metrics(loss: float, samples: Sequence[Samples]) -> dict[str, float]:
    return {"loss": loss, "num_samples": float(sum(len(part) for part in samples))}
