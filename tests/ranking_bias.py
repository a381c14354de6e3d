"""Gradients to compare between engines under a ranking loss; for parity tests."""

from __future__ import annotations

from collections.abc import Sequence

from models.losses import Loss
from models.types import Samples, Tensors

OUT_B = "out_b"
"""NeuMF's output bias, which all scores share."""


def comparable(
    gradients: Tensors, loss: Loss, samples_U: Sequence[Samples], tolerance: float
) -> Tensors:
    """Without the gradient of a bias that all scores share, where it is zero but for rounding.

    A difference of scores does not see the bias: its gradient sums numbers that cancel, and two
    ways to sum them agree relative to these, not to their sum. Their absolute values add up to
    at most twice the weights, which are one a slice; rounding must be ``tolerance`` of that.
    """
    if loss.ranking is None or OUT_B not in gradients:
        return gradients
    slices = sum(-(-len(samples) // loss.slice_size) for samples in samples_U)
    assert float(gradients[OUT_B].abs().max()) <= tolerance * 2 * slices
    return {name: tensor for name, tensor in gradients.items() if name != OUT_B}
