"""Updates of single users in a training reply, for servers that defend themselves."""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from models.types import IntArray, Tensors
from strategies.by_user import TableRows, UserUpdates
from strategies.codec import INDEX, VALUES, WireError, check_tensor, to_tensor
from strategies.fields import get, integer_vector, pack, section, unpack

ARRAYS, CONFIG, USERS, WEIGHTS = "user-updates", "user-updates-of", "users", "#weights"
LENGTHS, ROW_WEIGHTS = "#lengths", "#row-weights"


def encode_user_updates(
    updates: UserUpdates,
) -> dict[str, ArrayRecord | ConfigRecord | MetricRecord]:
    """Records of a node's users."""
    arrays = {WEIGHTS: Array(updates.weights_U.numpy())}
    arrays |= {name: Array(tensor.numpy()) for name, tensor in updates.dense.items()}
    for name, table in updates.tables.items():
        arrays[name + INDEX] = Array(table.rows_R.numpy())
        arrays[name + VALUES] = Array(table.values_RX.numpy())
        arrays[name + LENGTHS] = Array(table.lengths_U)
        if table.weights_R is not None:
            arrays[name + ROW_WEIGHTS] = Array(table.weights_R.numpy())
    return {ARRAYS: ArrayRecord(arrays), CONFIG: ConfigRecord({USERS: pack(updates.users_U)})}


def decode_user_updates(content: RecordDict, template: Tensors) -> UserUpdates:
    """Read and check updates against the shapes of the shared parameters.

    A user may leave out parameters that the strategy's users never change.

    Raises:
        WireError: for anything missing, unknown, misshapen, not finite or out of order.

    """
    users_U = unpack(get(section(content.config_records, CONFIG), USERS, bytes))
    if not len(users_U) or (np.diff(users_U) <= 0).any() or users_U[0] < 0:
        raise WireError("users of single updates must ascend, at least one")
    record = section(content.array_records, ARRAYS)
    weights_U = to_tensor(record, WEIGHTS) if WEIGHTS in record else torch.empty(0)
    check_tensor("weights of users", weights_U, (len(users_U),), torch.float64)
    if not bool((weights_U > 0).all()):
        raise WireError("weights of users must be positive")
    tables, dense = dict[str, TableRows](), dict[str, Tensor]()
    for name in _names(record, template):
        if name in record:
            dense[name] = to_tensor(record, name)
            check_tensor(
                name, dense[name], (len(users_U), *template[name].shape), template[name].dtype
            )
        else:
            tables[name] = _table(record, name, template[name], len(users_U))
    return UserUpdates(users_U, weights_U, tables, dense)


def _names(record: ArrayRecord, template: Tensors) -> list[str]:
    known = {n + s: n for n in template for s in ("", INDEX, VALUES, LENGTHS, ROW_WEIGHTS)}
    for name in record:
        if name != WEIGHTS and name not in known:
            raise WireError(f"unknown tensor {name!r}; expected {sorted(template)}")
    found = {known[name] for name in record if name != WEIGHTS}
    if not found:
        raise WireError("updates of single users hold no tensor")
    return [name for name in template if name in found]


def _table(record: ArrayRecord, name: str, like: Tensor, num_users: int) -> TableRows:
    for suffix in (INDEX, VALUES, LENGTHS):
        if name + suffix not in record:
            raise WireError(f"tensor {name!r} is missing")
    lengths_U = integer_vector(record, name + LENGTHS)
    rows_R, values_RX = to_tensor(record, name + INDEX), to_tensor(record, name + VALUES)
    if len(lengths_U) != num_users or (lengths_U < 0).any() or lengths_U.sum() != len(rows_R):
        raise WireError(f"numbers of rows of {name!r} do not fit its rows")
    check_tensor(name, values_RX, (len(rows_R), *like.shape[1:]), like.dtype)
    _check_rows(name, rows_R, lengths_U, len(like))
    weights_R = to_tensor(record, name + ROW_WEIGHTS) if name + ROW_WEIGHTS in record else None
    if weights_R is not None:
        check_tensor(f"{name} row weights", weights_R, (len(rows_R),), weights_R.dtype)
        if not weights_R.is_floating_point() or not bool((weights_R >= 0).all()):
            raise WireError(f"row weights of {name!r} must be finite and not negative")
    return TableRows(rows_R, values_RX, lengths_U, weights_R)


def _check_rows(name: str, rows_R: Tensor, lengths_U: IntArray, num_items: int) -> None:
    if rows_R.dtype != torch.int64 or rows_R.dim() != 1:
        raise WireError(f"row indices of {name!r} must be a vector of int64")
    if len(rows_R) and (rows_R.min() < 0 or rows_R.max() >= num_items):
        raise WireError(f"row indices of {name!r} must lie within 0..{num_items - 1}")
    keys = np.repeat(np.arange(len(lengths_U)), lengths_U) * num_items + rows_R.numpy()
    if (np.diff(keys) <= 0).any():
        raise WireError(f"row indices of {name!r} must ascend within each user")
