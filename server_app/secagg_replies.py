"""Sums over nodes as the replies that the rest of the server knows: one node's, with all users."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from models.types import IntArray, Tensors, Update
from server_app.errors import RoundError
from server_app.secagg import Summed
from strategies.codec import WireError, check_tensor
from strategies.messages import EvaluateReply, Uplink
from strategies.secagg.protocol import ITEM_COUNTS

ALL = "all"
"""Shard key of a sum over nodes."""


def summed_uplink(summed: Summed, round_: int, template: Tensors) -> Uplink:
    """The uplink of all survivors together.

    Raises:
        RoundError: for a sum that is not one of updates of this shape, or of no users.

    """
    tensors, figures = summed.payload.tensors, summed.payload.figures
    update = {
        name: torch.from_numpy(tensors.get(f"update/{name}", np.empty(0)).copy()).to(like)
        for name, like in template.items()
    }
    try:
        for name, like in template.items():
            check_tensor(name, update[name], tuple(like.shape), like.dtype)
    except WireError as error:
        raise RoundError(f"round {round_}: the sum of the uploads: {error}") from error
    rows = {
        name.removeprefix("rows/"): torch.from_numpy(values.astype(np.float32))
        for name, values in tensors.items()
        if name.startswith("rows/")
    }
    users, weight = round(_figure(figures, "users")), _figure(figures, "weight")
    if not 1 <= users <= summed.users or not weight > 0:
        raise RoundError(
            f"round {round_}: the sum of the uploads has {users} users of {summed.users} and "
            f"weight {weight:g}"
        )
    return Uplink(
        shard_key=ALL,
        round=round_,
        num_users=users,
        update=Update(update, weight, rows or None),
        metrics=_prefixed(figures, "sum/"),
        seconds=max(summed.seconds),
    )


def summed_evaluation(summed: Summed, round_: int) -> EvaluateReply:
    """The evaluation of all survivors together; metrics of no user are left out."""
    figures = summed.payload.figures
    counts = {n: float(round(c)) for n, c in _prefixed(figures, "count/").items() if round(c) > 0}
    sums = _prefixed(figures, "sum/")
    exposure = figures.get("exposure")
    return EvaluateReply(
        shard_key=ALL,
        round=round_,
        # Half a step of rounding a node may lead out of the range that a sum of hits has.
        metrics={n: min(max(sums[n], 0.0), counts[n]) for n in counts},
        counts=counts,
        exposure_I=None if exposure is None else _whole(exposure),
        seconds=max(summed.seconds),
    )


def summed_counts(summed: Summed, num_items: int) -> IntArray:
    """Item counts (I,) over all survivors.

    Raises:
        RoundError: for a sum of another size, or with a negative count.

    """
    counts_I = _whole(summed.payload.figures.get(ITEM_COUNTS, np.empty(0)))
    if len(counts_I) != num_items or (counts_I < 0).any():
        raise RoundError(f"item counts: the sum of the uploads is not one of {num_items} items")
    return counts_I


def _figure(
    figures: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]], name: str
) -> float:
    return float(figures[name]) if name in figures else 0.0


def _prefixed(
    figures: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]], prefix: str
) -> dict[str, float]:
    return {n.removeprefix(prefix): float(v) for n, v in figures.items() if n.startswith(prefix)}


def _whole(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> IntArray:
    return np.rint(values).astype(np.int64)
