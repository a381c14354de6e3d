"""A node's replies as what is masked: every figure of a reply that is about its users."""

from __future__ import annotations

import numpy as np
from flwr.app import RecordDict

from client_app.node_config import NodeError
from client_app.runtime import Node
from client_app.secagg import masked
from models.metrics import METRICS
from strategies import wire
from strategies.messages import Downlink, EvaluateRequest
from strategies.secagg.payload import Arrays, Payload
from strategies.secagg.protocol import ITEM_COUNTS, evaluation_sum, train_sum


def protected_train(
    node: Node, content: RecordDict, request: Downlink, reply: RecordDict
) -> RecordDict:
    """The reply to a training request: masked where the run asks for it.

    The stored answer is in clear; whoever asks again gets it under the masks of a new session.

    Raises:
        NodeError: for a request of a stock Flower strategy, one with an evaluation in it, or a
            strategy that sends each user's upload.

    """
    if node.cfg.privacy.secagg is None:
        return reply
    if request.evaluate or request.reply_weights:
        raise NodeError("secure aggregation: an evaluation is a sum of its own, and sums are sent")
    if node.strategy.needs_individual_updates:
        raise NodeError("secure aggregation: single users' uploads are not sent")
    uplink = wire.decode_uplink(reply, node.strategy.summed_template(request.shared))
    tensors = {f"update/{n}": _floats(t.to_dense()) for n, t in uplink.update.tensors.items()}
    rows = uplink.update.row_weights or {}
    tensors |= {f"rows/{n}": _floats(t) for n, t in rows.items()}
    figures = {f"sum/{n}": np.float64(v) for n, v in uplink.metrics.items()}
    figures |= {"weight": np.float64(uplink.update.weight), "users": np.float64(uplink.num_users)}
    payload = Payload(tensors, _arrays(figures))
    what = train_sum(request.round)
    return masked(node, content, what, payload, uplink.num_users, uplink.seconds)


def protected_evaluation(
    node: Node, content: RecordDict, request: EvaluateRequest, reply: RecordDict
) -> RecordDict:
    """The reply to an evaluation: sums, counts and exposure, masked where the run asks for it."""
    if node.cfg.privacy.secagg is None:
        return reply
    if request.reply_means:
        raise NodeError("secure aggregation: means of a node's users are not sent")
    ranked = wire.decode_evaluate_reply(reply)
    names = _metric_names(node, request.full)
    figures = {f"sum/{n}": np.float64(ranked.metrics.get(n, 0.0)) for n in names}
    figures |= {f"count/{n}": np.float64(ranked.counts.get(n, 0.0)) for n in names}
    arrays = _arrays(figures)
    if ranked.exposure_I is not None:
        arrays["exposure"] = ranked.exposure_I.astype(np.float64)
    what = evaluation_sum(request.scorer, request.state_round)
    users = len(node.part(request.users))
    return masked(node, content, what, Payload({}, arrays), users, ranked.seconds)


def protected_counts(node: Node, content: RecordDict, reply: RecordDict) -> RecordDict:
    """The reply to a question for item counts, masked where the run asks for it."""
    if node.cfg.privacy.secagg is None:
        return reply
    counts_I = wire.decode_item_counts(reply, node.dataset.num_items)
    payload = Payload({}, {ITEM_COUNTS: counts_I.astype(np.float64)})
    return masked(node, content, ITEM_COUNTS, payload, len(node.users), 0.0)


def _metric_names(node: Node, full: bool) -> list[str]:
    """All that an evaluation can give: a node without a user of a split must not stand out."""
    kinds = ("sampled", "full") if full else ("sampled",)
    splits = ("test", "validation") if node.cfg.protocol.validation else ("test",)
    cutoffs = node.cfg.evaluation.cutoffs
    return [
        f"{s}/{k}/{metric}@{cutoff}"
        for s in splits
        for k in kinds
        for metric in METRICS
        for cutoff in cutoffs
    ]


def _floats(tensor: object) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.asarray(tensor, dtype=np.float64)


def _arrays(figures: dict[str, np.float64]) -> Arrays:
    return {name: np.asarray(value, dtype=np.float64) for name, value in figures.items()}
