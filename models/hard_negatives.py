"""Training on the negatives that a user scores highest of those drawn.

Source: dynamic negative sampling, Zhang et al., SIGIR 2013 ("Optimizing top-N collaborative
filtering via dynamic negative item sampling"): of several uniform draws the one with the highest
present score is trained on, which approximates a ranking loss that looks at the top of the list.
"""

from __future__ import annotations

import numpy as np
import torch

from models.losses import samples_per_positive
from models.sam import Scores
from models.types import Samples, Tensors


def hardest(
    model: Scores, shared: Tensors, private: Tensors, samples: Samples, kept: int
) -> Samples:
    """Each positive followed by the ``kept`` of its negatives with the highest scores.

    Of equal scores the earlier drawn one comes first.

    Raises:
        ValueError: when ``kept`` is more than there are, or as
            :func:`models.losses.samples_per_positive`.

    """
    if len(samples) == 0:
        return samples
    width = samples_per_positive(samples.labels_S)
    if not 1 <= kept < width:
        raise ValueError(f"{kept} of {width - 1} negatives a positive cannot be kept")
    like = next(iter(shared.values()))
    with torch.no_grad():
        logits_S = model.logits(shared, private, torch.from_numpy(samples.items_S).to(like.device))
    scores_PN = logits_S.view(-1, width)[:, 1:]
    order_PN = torch.argsort(scores_PN, dim=1, descending=True, stable=True)[:, :kept]
    first_P1 = torch.zeros_like(order_PN[:, :1])
    chosen_PX = torch.cat([first_P1, 1 + order_PN], dim=1).cpu().numpy()
    items_PX = samples.items_S.reshape(-1, width)
    labels_PX = samples.labels_S.reshape(-1, width)
    rows_P1 = np.arange(len(items_PX))[:, None]
    items_S, labels_S = items_PX[rows_P1, chosen_PX], labels_PX[rows_P1, chosen_PX]
    return Samples(items_S.reshape(-1), labels_S.reshape(-1))
