"""Answers to hello, item counts and evaluation; training is in ``client_app.training``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from flwr.app import RecordDict
from torch import Tensor

from client_app.device import device_of, moved
from client_app.evaluation import CandidateScores, CatalogueScores, evaluate, popularity
from client_app.exposure import watch_targets
from client_app.node_config import NodeError
from client_app.private_state import Known
from client_app.received import Kind, Received
from client_app.runtime import Node
from conf.fingerprint import code_fingerprint
from models.types import History, IntArray, Tensors, UserRanks
from strategies import wire
from strategies.messages import EvaluateReply, EvaluateRequest, HelloReply, HelloRequest

PartScores = Callable[[slice, Tensors, Tensors, History], Tensor]
"""Scores of a part of some users, from shared and private tensors and histories."""


def answer_hello(node: Node, request: HelloRequest) -> RecordDict:
    """Who the node is and what it runs on; drops private state that a resume abandons.

    Raises:
        StoreError: when the state of the round to resume from is no longer kept.

    """
    data, state, header = node.dataset, node.state, request.header
    last_round = 0
    if not state.new_run:
        last_round = state.store.last_round(header.run_id)
        state.store.resume(header.run_id, header.incarnation, request.resume_round)
    reply = HelloReply(
        shard_key=node.shard_key,
        users=node.users,
        code=code_fingerprint(),
        data=data.fingerprint,
        catalogue=data.catalogue,
        num_items=data.num_items,
        population=data.num_users,
        left_out=data.counts.get("unknown_items", 0),
        last_round=last_round,
        new_run=state.new_run,
        activity=data.train_lengths(node.users) if node.cfg.devices.simulated else None,
    )
    return wire.encode_hello(reply)


def answer_item_counts(node: Node) -> RecordDict:
    """Training interactions of each item over the node's users."""
    return wire.encode_item_counts(node.dataset.item_counts(node.users))


def answer_evaluate(node: Node, request: EvaluateRequest) -> RecordDict:
    """Rank the held-out items of the request's users, or of all users of the node.

    Raises:
        NodeError: for an unknown scorer, or users of other nodes.

    """
    reply = ranking(node, request)
    return wire.encode_means(reply) if request.reply_means else wire.encode_evaluate_reply(reply)


def ranking(node: Node, request: EvaluateRequest) -> EvaluateReply:
    """The ranking itself, for :func:`answer_evaluate` and for a training reply."""
    started = time.perf_counter()
    scorers = {"model": _model, "popularity": _popularity}
    if request.scorer not in scorers:
        raise NodeError(f"unknown scorer {request.scorer!r}: choose one of {sorted(scorers)}")
    catalogue, candidates = scorers[request.scorer](node, request)
    _keep(node, request)
    users = node.part(request.users)
    sums = evaluate(
        catalogue,
        node.dataset,
        users,
        node.cfg.evaluation.cutoffs,
        request.full,
        node.cfg.engine.evaluation_block,
        candidates,
        watch_targets(node.dataset, node.cfg),
    )
    return EvaluateReply(
        shard_key=node.shard_key,
        round=request.round,
        metrics=dict(sums.metrics),
        counts=dict(sums.counts),
        exposure_I=sums.exposure_I if node.cfg.evaluation.item_statistics else None,
        seconds=time.perf_counter() - started,
        ranks=UserRanks(users, sums.ranks) if node.cfg.evaluation.user_ranks else None,
    )


def _keep(node: Node, request: EvaluateRequest) -> None:
    """Keep what is to be scored with, for recommendations without a network."""
    if node.folder is None:
        return
    kind: Kind = "model" if request.scorer == "model" else "popularity"
    received = Received.of(kind, request.state_round, request.header.config_json, request.shared)
    node.state.store.receive(request.header.run_id, received)


def _model(node: Node, request: EvaluateRequest) -> tuple[CatalogueScores, CandidateScores]:
    """The strategy's model with the private state of the requested round."""
    strategy, device = node.strategy, device_of(node.cfg.engine.device)
    known = Known(strategy.opened(request.shared), node.dataset.history)
    shared = moved(known.shared, device)
    personal = request.personal

    def private(users: IntArray) -> Tensors:
        return moved(node.state.block(users, request.state_round, known), device)

    def by_part(users: IntArray, score: PartScores) -> Tensor:
        """Scores of the users with what each received, their private state and their history."""
        scored = []
        for part in _parts(users, personal):
            own = users[part]
            received = shared | moved(personal.get(int(own[0]), {}), device)
            history = node.dataset.history(own)
            scored.append(score(part, received, private(own), history).cpu())
        return torch.cat(scored)

    def catalogue(users: IntArray) -> Tensor:
        return by_part(users, lambda part, *known: strategy.scores_all(*known))

    def candidates(users: IntArray, items_UC: IntArray) -> Tensor:
        def score(part: slice, received: Tensors, own: Tensors, history: History) -> Tensor:
            return strategy.score_candidates(received, own, items_UC[part], history)

        return by_part(users, score)

    return catalogue, candidates


def _parts(users: IntArray, personal: Mapping[int, Tensors]) -> list[slice]:
    """Users scored together: all of them, or each by itself where some have own tensors."""
    if not any(int(user) in personal for user in users):
        return [slice(0, len(users))]
    return [slice(place, place + 1) for place in range(len(users))]


def _popularity(node: Node, request: EvaluateRequest) -> tuple[CatalogueScores, CandidateScores]:
    """The item counts that the request carries, alike for all users."""
    counts_I = request.shared.get("item_counts")
    if counts_I is None or tuple(counts_I.shape) != (node.dataset.num_items,):
        raise NodeError("scorer popularity needs item_counts, one number an item")
    return popularity(counts_I.numpy())
