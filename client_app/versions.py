"""Training a request's users from the shared parameters that each of them was given.

In asynchronous aggregation devices that deliver together were asked at different times. Each
version's users are trained by themselves; what goes back is one sum, weighted by age.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from client_app.engine import Trained, train_users
from client_app.node_config import NodeError
from client_app.runtime import Node
from models.types import IntArray, SumOfUpdates, Tensors, Update
from strategies.messages import Downlink


def train_versions(node: Node, request: Downlink, users: IntArray) -> Trained:
    """Train ``users``, which are the node's part of the request's, from their versions.

    Raises:
        NodeError: for a user of two versions, or one who is not asked for.
        Exception: as :func:`client_app.engine.train_users`.

    """
    if not request.older:
        return _train(node, request, request.shared, users)
    parts = _parts(request, users)
    results = [(weight, _train(node, request, shared, own)) for shared, own, weight in parts]
    return _together(node, request, results)


def _parts(request: Downlink, users: IntArray) -> list[tuple[Tensors, IntArray, float]]:
    """Parameters, users and weight of each version that has users here, the newest last."""
    asked = np.concatenate([part.users for part in request.older])
    if len(np.unique(asked)) < len(asked):
        raise NodeError("a user is asked to train from two versions of the shared parameters")
    if request.users is None or not np.isin(asked, request.users).all():
        raise NodeError("older shared parameters are for users that are not asked for")
    parts = [(p.shared, np.intersect1d(users, p.users), p.weight) for p in request.older]
    parts.append((request.shared, np.setdiff1d(users, asked), 1.0))
    return [part for part in parts if len(part[1])]


def _train(node: Node, request: Downlink, shared: Tensors, users: IntArray) -> Trained:
    return train_users(
        node.strategy,
        shared,
        users,
        round_=request.round,
        base_round=request.base_round,
        dataset=node.dataset,
        state=node.state,
        cfg=node.cfg,
        personal=request.personal,
        noise_std=request.noise_std,
    )


def _together(node: Node, request: Downlink, results: Sequence[tuple[float, Trained]]) -> Trained:
    """One answer: rows of all, metrics added, updates weighted and added.

    Weights of updates stay those of whole users: the server divides by how many there are
    (FedBuff, algorithm 1), so that what age takes from one is not given to the others.
    """
    total, metrics = SumOfUpdates(node.strategy.summed_template(request.shared)), dict[str, float]()
    for weight, trained in results:
        update = trained.update
        scaled = {name: weight * tensor for name, tensor in update.tensors.items()}
        total.add(Update(scaled, update.weight, update.row_weights))
        for name, value in trained.metrics.items():
            metrics[name] = metrics.get(name, 0.0) + value
    users = np.concatenate([trained.users for _, trained in results])
    rows = np.concatenate([trained.rows for _, trained in results])
    return Trained(users, rows, total.result(), metrics)
