"""What a node logs about an error: our own are told in a line, others with their traceback."""

from __future__ import annotations

import numpy as np
import pytest

from client_app.app import deliberate
from client_app.errors import DataError
from client_app.failures import TrainError, stage
from client_app.node_config import NodeError
from client_app.user_store import StaleRequestError
from conf.tree import ConfigError
from models.types import IntArray
from strategies.codec import WireError


@pytest.mark.parametrize("kind", [DataError, NodeError, StaleRequestError, ConfigError, WireError])
def test_our_own_errors_need_no_traceback(kind: type[Exception]) -> None:
    assert deliberate(kind("one line"))


def test_an_unforeseen_error_keeps_its_traceback() -> None:
    assert not deliberate(ZeroDivisionError())
    assert not deliberate(ValueError("not one of ours, though ours derive from it"))


@pytest.mark.parametrize(("cause", "ours"), [(DataError("x"), True), (KeyError(3), False)])
def test_a_failed_training_is_judged_by_its_cause(cause: Exception, ours: bool) -> None:
    """A KeyError's text stands in the node's log alone, so the log must hold it."""
    with pytest.raises(TrainError) as raised, stage("training", users()):
        raise cause
    assert deliberate(raised.value) is ours


def users() -> IntArray:
    return np.array([3], dtype=np.int64)
