"""Whole runs of every strategy of conf/strategy: any sharding, a resume, users never trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_run
import torch

from client_app.user_store import UserStore
from conf.tree import Config, ConfigError
from models.types import Tensors
from server_app.callbacks import Callback, RoundRecord, read_metrics
from server_app.checkpoint import load_checkpoint
from server_app.grid import LocalGrid
from server_app.results import RunResult
from server_app.run import run_server

NAMES = sorted(
    path.stem for path in (Path(__file__).parents[2] / "conf" / "strategy").glob("*.yaml")
)
ROUNDS = 4
SETTINGS = ("federation.fraction=0.3", "evaluation.every=2", "federation.checkpoint_every=1")
"""Six of twenty users a round: after four rounds some have never been trained."""


@pytest.fixture(params=NAMES)
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def configured(folder: Path, strategy: str, name: str, *overrides: str) -> Config:
    what = (f"strategy={strategy}", f"name={name}", f"federation.rounds={ROUNDS}")
    return tiny_run.config(folder, *SETTINGS, *what, *overrides)


def trained(cfg: Config, num_nodes: int) -> tuple[RunResult, Tensors]:
    """The result of a run and its last shared parameters."""
    result = run_server(LocalGrid(num_nodes), cfg)
    return result, load_checkpoint(result.folder).shared


def test_a_run_is_the_same_on_one_node_and_on_five(tmp_path: Path, strategy: str) -> None:
    """Sums in another order differ in the last bits of float32, 6e-8 a term.

    Four rounds of learning rates of up to 200 carry such a difference on, so 1e-3 of a tensor's
    norm is asked, and metrics of users whose ranks do not hang on it: two users of twenty.
    """
    found = []
    for num_nodes in (1, 5):
        overrides = (f"federation.num_nodes={num_nodes}",)
        found.append(
            trained(configured(tmp_path, strategy, f"n{num_nodes}", *overrides), num_nodes)
        )
    (one, shared), (five, other) = found
    for name, tensor in shared.items():
        assert tensor.isfinite().all()
        assert (tensor - other[name]).norm() <= 1e-3 * tensor.norm(), name
    assert one.metrics.keys() == five.metrics.keys()
    hits = [name for name in one.metrics if "/hr@" in name]
    assert hits
    for name in hits:
        assert one.counts[name] == tiny_run.NUM_USERS  # those who never trained are ranked too
        assert abs(one.metrics[name] - five.metrics[name]) <= 2 / tiny_run.NUM_USERS + 1e-9, name


def test_users_may_start_from_their_items(tmp_path: Path, strategy: str) -> None:
    """Wherever the score has a dot product; ranked from the first round on, the same on any nodes.

    With sums of ``test_a_run_is_the_same_on_one_node_and_on_five``, one round of them.
    """
    cfg = configured(tmp_path, strategy, "drawn")
    if cfg.model.dot_product is None or cfg.strategy_class.users_follow_items:
        with pytest.raises(ConfigError, match=r"init\.users"):
            configured(tmp_path, strategy, "solved", "init.users=solved")
        return
    words = ("init.users=solved", "federation.rounds=1", "evaluation.every=1")
    found = [
        trained(configured(tmp_path, strategy, f"s{n}", *words, f"federation.num_nodes={n}"), n)
        for n in (1, 5)
    ]
    for name, tensor in found[0][1].items():
        assert (tensor - found[1][1][name]).norm() <= 1e-3 * tensor.norm(), name
    hits = [name for name in found[0][0].metrics if "/hr@" in name]
    for name in hits:
        difference = abs(found[0][0].metrics[name] - found[1][0].metrics[name])
        assert difference <= 2 / tiny_run.NUM_USERS + 1e-9, name


def test_a_resumed_run_has_the_same_bytes(tmp_path: Path, strategy: str) -> None:
    whole, shared = trained(configured(tmp_path, strategy, "whole"), 2)
    half = (f"federation.rounds={ROUNDS // 2}",)
    trained(configured(tmp_path, strategy, "parts", *half), 2)
    parts, resumed = trained(configured(tmp_path, strategy, "parts", "resume=true"), 2)
    assert resumed.keys() == shared.keys()
    assert all(torch.equal(resumed[name], tensor) for name, tensor in shared.items())
    assert parts.metrics == whole.metrics
    assert parts.selected_round == whole.selected_round


class Forgetting(Callback):
    """A user asks its node to be forgotten between two rounds."""

    def __init__(self, folder: Path, user: int) -> None:
        self._folder, self._user = folder, user

    def on_round(self, record: RoundRecord) -> None:
        if record.round == 2:
            (path,) = self._folder.glob("nodes/*.sqlite")
            store = UserStore(path, path.stem)
            assert store.forget(self._user) > 0
            store.close()


def test_a_user_may_be_forgotten_during_a_run(tmp_path: Path, strategy: str) -> None:
    """Also where the server has tensors for the user and sends them on."""
    everybody = ("federation.fraction=1.0", "federation.num_nodes=1", "federation.min_share=0.9")
    cfg = configured(tmp_path, strategy, "forgetting", *everybody)
    run_server(LocalGrid(1), cfg, [Forgetting(tmp_path / "runs" / "forgetting", 3)])
    users = [line["num_users"] for line in read_metrics(tmp_path / "runs" / "forgetting")]
    assert users == [20, 20, 19, 19]
