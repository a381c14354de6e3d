"""The answer to a training request: trained and committed once, then given from the store."""

from __future__ import annotations

import hashlib
import time

from flwr.app import RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from client_app.answers import ranking
from client_app.node_config import NodeError
from client_app.private_updates import check_noise, told_metrics
from client_app.received import Received
from client_app.retention import TrainKey
from client_app.runtime import Node
from client_app.versions import train_versions
from models.types import IntArray, Tensors, Update
from strategies import wire
from strategies.fields import pack
from strategies.messages import Downlink, EvaluateRequest, Uplink


def answer_train(node: Node, request: Downlink, shared_digest: bytes) -> RecordDict:
    """Train the request's users and commit; an answered request gets its stored answer.

    Raises:
        NodeError: for users of other nodes, or a request this strategy cannot answer.
        StaleRequestError: for a round that was trained for another request.
        TrainError: naming users and stage.

    """
    _check_supported(node, request)
    users = node.part(request.users)
    key = TrainKey(
        round=request.round,
        base_round=request.base_round,
        incarnation=request.header.incarnation,
        digest=request_digest(node, request, users, shared_digest),
        keep_rounds=request.keep_rounds,
    )
    store, run_id = node.state.store, request.header.run_id
    stored = store.answer(run_id, key)
    content = _train(node, request, users, key) if stored is None else from_bytes(stored)
    if request.evaluate:
        content = wire.attach_evaluation(content, _ranked(node, request))
    return _averaged(node, request, content) if request.reply_weights else content


def _ranked(node: Node, request: Downlink) -> RecordDict:
    """What the evaluation of the base round, asked for by itself, would reply."""
    full, base = request.evaluate == "full", request.base_round
    asked = EvaluateRequest(
        request.header, base, base, "model", full, request.shared, request.ranked
    )
    return wire.encode_evaluate_reply(ranking(node, asked))


def _train(node: Node, request: Downlink, users: IntArray, key: TrainKey) -> RecordDict:
    started = time.perf_counter()
    trained = train_versions(node, request, users)
    uplink = Uplink(
        shard_key=node.shard_key,
        round=request.round,
        num_users=len(users),
        update=trained.update,
        metrics=told_metrics(node.cfg, trained.metrics),
        seconds=time.perf_counter() - started,
        individual=trained.individual,
        by_user=trained.by_user,
    )
    answer = to_bytes(wire.encode_uplink(uplink, node.strategy.row_tables))
    store, run_id = node.state.store, request.header.run_id
    received = (
        None
        if node.folder is None
        else Received.of("model", request.base_round, request.header.config_json, request.shared)
    )
    return from_bytes(store.commit(run_id, key, trained.users, trained.rows, answer, received))


def request_digest(node: Node, request: Downlink, users: IntArray, shared_digest: bytes) -> bytes:
    """Hash of everything that the answer to a training request depends on."""
    cfg = node.cfg
    digest = hashlib.sha256(shared_digest + pack(users))
    settings = (
        cfg.strategy_name,
        cfg.strategy,
        cfg.model,
        cfg.protocol,
        cfg.engine,
        cfg.seed,
        cfg.init,
        cfg.privacy,
        cfg.attack,
        cfg.defence,
    )
    told = f"{request.round} {request.base_round} {request.noise_std!r} {settings!r}"
    digest.update(told.encode())
    digest.update(node.dataset.fingerprint.encode())
    for user, tensors in sorted(request.personal.items()):
        _add_tensors(digest, str(user), tensors)
    for part in request.older:
        digest.update(pack(part.users))
        _add_tensors(digest, f"older {part.version} {part.weight!r}", part.shared)
    return digest.digest()


def _add_tensors(digest: hashlib._Hash, of: str, tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        digest.update(f"{of} {name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.numpy().tobytes())


def to_bytes(content: RecordDict) -> bytes:
    """Records as stored in the node's file: Flower's own serialisation."""
    data: bytes = recorddict_to_proto(content).SerializeToString()
    return data


def from_bytes(data: bytes) -> RecordDict:
    """Inverse of :func:`to_bytes`."""
    return recorddict_from_proto(ProtoRecordDict.FromString(data))


def averaged_weights(shared: Tensors, update: Update) -> Tensors:
    """Weights after the mean movement of the node's users, row by row where rows are weighted."""
    mean = update.mean()
    return {n: t + mean[n] for n, t in shared.items()}


def _averaged(node: Node, request: Downlink, content: RecordDict) -> RecordDict:
    uplink = wire.decode_uplink(content, request.shared)
    means = {n: v / uplink.num_users for n, v in uplink.metrics.items()}
    weights = averaged_weights(request.shared, uplink.update)
    return wire.encode_weights(weights, uplink.update.weight, means)


def _check_supported(node: Node, request: Downlink) -> None:
    name, strategy = node.cfg.strategy_name, node.strategy
    asked = set(node.part(request.users)) | set(node.forgotten)
    if request.personal and not set(request.personal) <= asked:
        raise NodeError(f"strategy={name}: personal tensors of users that are not asked for")
    check_noise(node.cfg, request)
    if request.reply_weights and node.cfg.defence.by_user:
        raise NodeError(
            "a defence is the server half's of this project: a stock Flower strategy needs "
            "defence=none"
        )
    if request.reply_weights and not strategy.averages_weights:
        raise NodeError(
            f"strategy={name} does not average weights: to do so, as a stock Flower strategy "
            "does, would be another algorithm. Use its own server half, or strategy=fedavg"
        )
