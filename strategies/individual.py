"""Uploads of single users in a training reply, for strategies that need each user's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from models.types import IndividualUpdates, Tensors
from strategies.codec import WireError, check_tensor, from_arrays, to_arrays
from strategies.fields import get, pack, section, unpack

ARRAYS, CONFIG, USERS = "individual", "individual-users", "users"


def encode_individual(
    updates: IndividualUpdates,
) -> dict[str, ArrayRecord | ConfigRecord | MetricRecord]:
    """Records of a node's users: each tensor once, with a leading user dimension."""
    return {
        ARRAYS: to_arrays(updates.tensors),
        CONFIG: ConfigRecord({USERS: pack(updates.users_U)}),
    }


def decode_individual(content: RecordDict, template: Tensors) -> IndividualUpdates:
    """Read and check uploads against the shapes of one user's.

    Raises:
        WireError: for users that do not ascend; a tensor that is missing, unknown, misshapen or
            not finite.

    """
    users_U = unpack(get(section(content.config_records, CONFIG), USERS, bytes))
    if not len(users_U) or (np.diff(users_U) <= 0).any() or users_U[0] < 0:
        raise WireError("users of individual updates must ascend, at least one")
    tensors = from_arrays(section(content.array_records, ARRAYS))
    if set(tensors) != set(template):
        raise WireError(f"individual updates are {sorted(tensors)}, expected {sorted(template)}")
    for name, like in template.items():
        check_tensor(name, tensors[name], (len(users_U), *like.shape), like.dtype)
    return IndividualUpdates(users_U, {name: tensors[name] for name in template})


def gathered(parts: Sequence[IndividualUpdates]) -> IndividualUpdates:
    """Uploads of several nodes, or blocks of a node, by ascending user, whatever the parts."""
    users_U = np.concatenate([part.users_U for part in parts])
    order_U = np.argsort(users_U, kind="stable")
    places = torch.from_numpy(order_U)
    tensors = {
        name: torch.cat([part.tensors[name] for part in parts])[places] for name in parts[0].tensors
    }
    return IndividualUpdates(users_U[order_U], tensors)
