"""Binary cross-entropy on logits, summed over slices of consecutive samples.

Source: FedRecGEL's public training code uses the sum over slices of 128 samples of the
mean loss of a slice, so a user's loss grows with the number of slices.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional


def sliced_bce(logits_S: Tensor, labels_S: Tensor, loss_slice: int) -> Tensor:
    """Sum over consecutive slices of the mean BCE-with-logits of each slice (scalar).

    No samples give a loss of zero, and zero gradients.
    """
    losses_S = functional.binary_cross_entropy_with_logits(logits_S, labels_S, reduction="none")
    weights_S = torch.from_numpy(sample_weights(len(losses_S), loss_slice)).to(losses_S)
    return (weights_S * losses_S).sum()


def sample_weights(num_samples: int, loss_slice: int) -> npt.NDArray[np.float64]:
    """Weight (S,) of each sample in :func:`sliced_bce`: one over its slice's length."""
    starts = np.arange(num_samples) // loss_slice * loss_slice
    lengths = np.minimum(starts + loss_slice, num_samples) - starts
    return 1.0 / lengths
