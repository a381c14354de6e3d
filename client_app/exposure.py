"""How often the targets of an attack are recommended to users who do not know them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from client_app.attacks.base import Attack
from client_app.data import Dataset
from client_app.evaluation import Watch
from conf.tree import Config
from models.types import IntArray

EXPOSURE_RATIO = "attack/er@{0}"
"""Name of a metric, by cut-off."""


def watch_targets(dataset: Dataset, cfg: Config) -> Watch | None:
    """What is to be counted beside the ranking; None without an attack.

    Raises:
        NodeError: for targets that are not in the catalogue.

    """
    if not isinstance(cfg.attack, Attack):
        return None
    targets_T = cfg.attack.target_items(cfg.seed, dataset)
    cutoffs = cfg.evaluation.cutoffs
    return lambda users_U, scores_UI: exposure_ratios(
        dataset, users_U, scores_UI, targets_T, cutoffs
    )


def exposure_ratios(
    dataset: Dataset,
    users_U: IntArray,
    scores_UI: Tensor,
    targets_T: IntArray,
    cutoffs: Sequence[int],
) -> dict[str, tuple[float, int]]:
    """Sum over users and their number by ``attack/er@K``.

    A user's value is the part of the targets it has not interacted with, in training or in a
    held-out row, that stand in its top K of the catalogue without its training and validation
    items; a target loses ties. Users who know all targets do not count.
    """
    train, held_U2 = dataset.train_rows(users_U), dataset.heldout(users_U)
    hidden_UI = np.zeros((len(users_U), dataset.num_items), dtype=bool)
    hidden_UI[train.users, train.values] = True
    (validated,) = np.nonzero(held_U2[:, 1] >= 0)
    hidden_UI[validated, held_U2[validated, 1]] = True
    known_UT = hidden_UI[:, targets_T] | (held_U2[:, :1] == targets_T)
    places_UT = _places(scores_UI, torch.from_numpy(~hidden_UI), targets_T)
    unknown_U = (~known_UT).sum(1)
    out = {}
    for cutoff in cutoffs:
        shown_U = ((places_UT < cutoff) & ~known_UT).sum(1)
        values_U = shown_U[unknown_U > 0] / unknown_U[unknown_U > 0]
        out[EXPOSURE_RATIO.format(cutoff)] = (float(values_U.sum()), len(values_U))
    return out


def _places(scores_UI: Tensor, open_UI: Tensor, targets_T: IntArray) -> IntArray:
    """Number (U, T) of open items, the target aside, that score at least as high."""
    places = []
    for target in targets_T.tolist():
        ahead_UI = open_UI & (scores_UI >= scores_UI[:, target : target + 1])
        ahead_UI[:, target] = False
        places.append(ahead_UI.sum(1))
    found: IntArray = torch.stack(places, dim=1).numpy()
    return found
