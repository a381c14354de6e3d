"""Interaction membership by guess, training and comparison (Yuan et al., WWW 2023, 2301.10964).

The server guesses labels of the touched items, trains a user of its own on them from the
parameters it sent, and believes those labels whose rows then look like the uploaded ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from experiments.audit.upload import (
    Bools,
    Facts,
    Floats,
    Guess,
    NotApplicableError,
    Upload,
    embedding_rows,
)
from models.base import ScoringModel
from models.losses import Loss
from models.types import Tensors


@dataclass(frozen=True)
class Imia:
    """The attack on a model trained along ``loss``; its cost is ``rounds`` · ``epochs`` steps."""

    model: ScoringModel
    loss: Loss | None
    seed: int
    rounds: int = 5
    epochs: int = 20
    lr: float = 0.01
    confirmed: float = 0.9
    """Share of the undecided items whose labels are believed after a round."""

    def __call__(self, upload: Upload, facts: Facts) -> Guess:
        """Guess, train, compare, confirm; the share of positives is known to the server."""
        if self.loss is None or self.loss.ranking is not None:
            raise NotApplicableError("users are not trained on labels of single items")
        tables = embedding_rows(upload, facts.num_items)
        tables = {n: t for n, t in tables.items() if n in upload.shared_before}
        if not tables:
            raise NotApplicableError("no uploaded table is one of the shared item tables")
        rng = np.random.default_rng([self.seed, upload.round, upload.num_users])
        touched_I = np.logical_or.reduce([t.any(axis=1) for t in tables.values()])
        share = 1 / (1 + facts.negatives)
        labels_I, open_I = np.zeros(facts.num_items, bool), touched_I.copy()
        scores_I = np.zeros(facts.num_items)
        for _ in range(self.rounds):
            if not open_I.any():
                break
            # As many positives as are expected in all, drawn among the undecided.
            undecided = np.flatnonzero(open_I)
            missing = round(share * int(touched_I.sum())) - int((labels_I & ~open_I).sum())
            if missing <= 0:
                break
            labels_I[undecided] = False
            labels_I[rng.permutation(undecided)[:missing]] = True
            far_I = self._distances(upload, tables, touched_I, labels_I, facts, rng)
            near = undecided[np.argsort(far_I[undecided], kind="stable")]
            sure = near[: max(1, round(self.confirmed * len(near)))]
            open_I[sure] = False
            scores_I[sure] = np.where(labels_I[sure], 1, -1) / (1 + far_I[sure])
        labels_I &= ~open_I
        return Guess(scores_I - 2.0 * ~touched_I, labels_I, touched_I)

    def _distances(
        self,
        upload: Upload,
        tables: dict[str, Floats],
        touched_I: Bools,
        labels_I: Bools,
        facts: Facts,
        rng: np.random.Generator,
    ) -> Floats:
        """Distance (I,) of each row's movement from the uploaded one, both of unit norm."""
        items = np.flatnonzero(touched_I)
        labels = labels_I[items].astype(np.float32)
        private = self.model.init_private(facts.num_items, rng)
        moved = self._trained(upload.shared_before, private, items, labels)
        far_I = np.zeros(facts.num_items)
        for name, rows_IX in tables.items():
            sent_IX = rows_IX if facts.moves else -rows_IX
            own_IX = moved[name].double().reshape(facts.num_items, -1).numpy()
            units = [t / max(float(np.linalg.norm(t)), 1e-300) for t in (sent_IX, own_IX)]
            far_I += np.linalg.norm(units[0] - units[1], axis=1)
        return far_I

    def _trained(
        self, shared: Tensors, private: Tensors, items: np.ndarray, labels: np.ndarray
    ) -> Tensors:
        assert self.loss is not None
        copy = {n: t.clone().requires_grad_() for n, t in shared.items()}
        user = {n: t.clone().requires_grad_() for n, t in private.items()}
        optimiser = torch.optim.Adam([*copy.values(), *user.values()], lr=self.lr)
        items_S, labels_S = torch.from_numpy(items), torch.from_numpy(labels)
        for _ in range(self.epochs):
            loss = self.loss.of_user(self.model.logits(copy, user, items_S), labels_S)
            parameters = [*copy.values(), *user.values()]
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimiser.step()
        return {n: t.detach() - shared[n] for n, t in copy.items()}
