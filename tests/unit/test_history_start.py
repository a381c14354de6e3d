"""Users that start from their items: by hand, free of scale, on a node and in a whole run."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny_run
import torch

from client_app.cold_start import cold_start
from client_app.private_state import Known
from conf.build import ConfigError
from conf.tree import build_strategy
from models.als import SOLVED_AT_ONCE
from models.history_start import SolvedStart
from models.mf import ITEM, USER, MatrixFactorisation
from models.neumf import NeuMF
from models.types import History, Tensors
from server_app.checkpoint import load_checkpoint
from server_app.errors import RunFolderError
from server_app.grid import LocalGrid
from server_app.run import run_server
from strategies.fedspectral import SHARE

SPECTRAL = ("strategy=fedrecgel", "init=spectral", "init.rounds=2", "federation.num_nodes=1")
STILL = ("strategy.server_optimiser=sgd", "strategy.server_lr=1e-12")


def history(*users: list[int]) -> History:
    flat = np.array([item for items in users for item in items], dtype=np.int64)
    return History(flat, np.array([len(items) for items in users], dtype=np.int64))


def test_one_coordinate_by_hand() -> None:
    """Items 2 and 1: QᵀQ = 5, also the mean eigenvalue; with ridge 1 the system is 5 + 5.

    A user of the first item has 2 / 10, of both 3 / 10, of none 0; a gain of 4 multiplies these.
    """
    model, shared = MatrixFactorisation(factors=1), {ITEM: torch.tensor([[2.0], [1.0]])}
    found = SolvedStart(1.0, 4.0).vectors(model, shared, history([0], [0, 1], []))
    torch.testing.assert_close(found[USER], torch.tensor([[0.8], [1.2], [0.0]]).double())


def test_neumf_solves_for_items_as_its_output_weighs_them() -> None:
    """Output weights -1 and 0.5 turn rows (2, 0), (0, 2) into (-2, 0), (0, 1).

    QᵀQ is diag(4, 1), of mean 2.5; ridge 0.4 adds 1: users (-2 / 5, 0) and (0, 1 / 2).
    """
    model = NeuMF(factors=2, mlp_layers=1)
    shared = {"item_gmf": 2 * torch.eye(2), "out_w": torch.tensor([[-1.0, 0.5, 9.0, 9.0]])}
    found = SolvedStart(0.4, 1.0).vectors(model, shared, history([0], [1]))
    expected = torch.tensor([[-0.4, 0.0], [0.0, 0.5]]).double()
    torch.testing.assert_close(found["user_gmf"], expected)


def test_scores_do_not_depend_on_the_scale_of_the_items() -> None:
    rng = np.random.default_rng(0)
    items_ID, model = torch.from_numpy(rng.normal(size=(9, 3))), MatrixFactorisation(factors=3)
    users, scores = history([0, 4], [1, 2, 8]), []
    for scale in (1.0, 1e-4):
        shared = {ITEM: scale * items_ID}
        found = SolvedStart(0.3, 1.0).vectors(model, shared, users)
        scores.append(found[USER] @ shared[ITEM].T)
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-9, atol=1e-12)
    nothing = SolvedStart(0.3, 1.0).vectors(model, {ITEM: 0 * items_ID}, users)
    assert not nothing[USER].any()


def test_parts_are_the_users_in_order() -> None:
    rng = np.random.default_rng(1)
    items_ID, model = torch.from_numpy(rng.normal(size=(5, 2))), MatrixFactorisation(factors=2)
    users = [list(range(user % 6)) for user in range(SOLVED_AT_ONCE + 3)]
    start, shared = SolvedStart(1.0, 1.0), {ITEM: items_ID}
    together = start.vectors(model, shared, history(*users))[USER]
    for user in (0, SOLVED_AT_ONCE - 1, SOLVED_AT_ONCE, SOLVED_AT_ONCE + 2):
        alone = start.vectors(model, shared, history(users[user]))[USER]
        torch.testing.assert_close(together[user : user + 1], alone, rtol=1e-12, atol=1e-14)


def test_a_node_solves_for_users_until_they_are_trained(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path, "strategy=fedrecgel", "model=mf", "init.users=solved")
    node, shared, users = tiny_run.node(cfg), tiny_run.shared(cfg), np.array([3, 4])
    known, drawn = Known(shared, node.dataset.history), node.state.block(users, 0)
    found = node.state.block(users, 0, known)
    expected = SolvedStart(1.0, 1.0).vectors(cfg.model, shared, node.dataset.history(users))
    assert torch.equal(found[USER], expected[USER].float())
    assert (found[USER] - drawn[USER]).abs().max() > 1e-3
    assert all(torch.equal(found[name], drawn[name]) for name in found if name != USER)
    doubled = node.state.block(users, 0, Known({ITEM: 2 * shared[ITEM]}, known.history))
    torch.testing.assert_close(2 * doubled[USER], found[USER])  # always by the round's items


def test_a_cold_start_begins_there_too(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path, "strategy=fedrecgel", "model=mf", "init.users=solved")
    shared, items = tiny_run.shared(cfg), np.array([1, 5])
    found = cold_start(build_strategy(cfg), shared, items, cfg, identity=3, steps=0)
    expected = SolvedStart(1.0, 1.0).vectors(cfg.model, shared, history([1, 5]))
    assert torch.equal(found[USER], expected[USER][0].float())


def first_run(folder: Path, *overrides: str) -> Tensors:
    cfg = tiny_run.config(folder, *SPECTRAL, *STILL, *overrides)
    run_server(LocalGrid(1), cfg)
    return load_checkpoint(folder / "runs" / "tiny").shared


def test_a_run_of_another_strategy_goes_first(tmp_path: Path) -> None:
    """Items are those of the first run's score: rows times the power 1/4 of their shares.

    Steps of 1e-12 times a mean gradient below 1 do not show.
    """
    found = first_run(tmp_path, "federation.rounds=1")["item_gmf"]
    source = load_checkpoint(tmp_path / "runs" / "tiny-init")
    assert source.round == 2
    scored = source.best[ITEM] * source.best[SHARE][:, None] ** 0.25
    torch.testing.assert_close(found, scored * (0.1 / scored.std()), rtol=1e-5, atol=1e-10)


def test_a_resumed_run_does_not_ask_for_the_first_again(tmp_path: Path) -> None:
    first_run(tmp_path, "federation.rounds=1")
    shutil.rmtree(tmp_path / "runs" / "tiny-init")
    first_run(tmp_path, "federation.rounds=2", "resume=true")
    assert not (tmp_path / "runs" / "tiny-init").exists()


def test_the_first_run_is_gone_on_with_and_not_made_twice(tmp_path: Path) -> None:
    """A run that is made again finds its first run complete; with other settings it refuses."""
    first_run(tmp_path, "federation.rounds=1")
    made = (tmp_path / "runs" / "tiny-init" / "metrics.jsonl").stat()
    shutil.rmtree(tmp_path / "runs" / "tiny")
    first_run(tmp_path, "federation.rounds=1")
    assert (tmp_path / "runs" / "tiny-init" / "metrics.jsonl").stat().st_mtime == made.st_mtime
    shutil.rmtree(tmp_path / "runs" / "tiny")
    with pytest.raises(RunFolderError, match=r"cannot resume with another federation\.fraction"):
        first_run(tmp_path, "federation.rounds=1", "init.fraction=0.5")


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["init.run=x", "init.strategy=fedials"], r"init\.run and init\.strategy both say"),
        (["init.rounds=0"], r"init\.rounds must be at least 1, got 0"),
        (["init.fraction=0"], r"init\.fraction must be above 0 and at most 1, got 0"),
        (["init.ridge=0"], r"init\.ridge must be positive, got 0"),
        (["init.gain=-1"], r"init\.gain must be positive, got -1"),
        (["init.users=solved", "strategy=feddae"], r"which model=vae has not"),
        (["init.users=solved", "strategy=fedspectral"], r"strategy=fedspectral makes users of"),
        (["init.users=x"], r"init\.users: .x. is not allowed; choose one of drawn"),
        (["init=x"], r"init=x does not exist; choose one of drawn, spectral"),
    ],
)
def test_refusals_are_one_line(tmp_path: Path, overrides: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        tiny_run.config(tmp_path, *overrides)


def test_an_unknown_first_strategy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"init\.strategy must be one of cofedrec, .*, got x"):
        first_run(tmp_path, "init.strategy=x")


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["init.table=item_emb", "init.into=item_mlp"], r"item_mlp is .* and the model's"),
        (["init.strategy=fedease"], r"tiny-init has item_weights and the model item_gmf"),
    ],
)
def test_items_that_do_not_fit_are_refused_before_the_first_run(
    tmp_path: Path, overrides: list[str], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        first_run(tmp_path, *overrides)
    assert not (tmp_path / "runs" / "tiny-init").exists()
