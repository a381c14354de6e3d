"""Directions and grids of loss landscapes; the command on a small run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import small_config

from client_app.negatives import block_samples
from experiments.landscape import (
    SAMPLES,
    filter_normalised,
    grid_steps,
    load_landscape,
    loss_grid,
    random_direction,
)
from experiments.objective import MeanLoss
from experiments.trained_users import draw_users, training_loss
from models.rng import Role, UserStreams
from models.sam import Radii
from server_app.cli import run_command
from server_app.cli_finished import FinishedRun
from server_app.errors import ServerError
from server_app.grid import LocalGrid
from server_app.run import run_server

EPS32 = 2.0**-23
USERS, SEED = 10, 3


# ---- directions ---------------------------------------------------------------------------
def test_rows_of_a_direction_have_the_norms_of_the_parameters() -> None:
    point = {
        "table": torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]]),
        "bias": torch.tensor([5.0, 6.0]),
    }
    drawn = {
        "table": torch.tensor([[0.0, 2.0], [1.0, 1.0], [0.0, 0.0]]),
        "bias": torch.tensor([1.0, 1.0]),
    }
    found = filter_normalised(drawn, point)
    assert torch.equal(found["table"], torch.tensor([[0.0, 5.0], [0.0, 0.0], [0.0, 0.0]]))
    assert torch.equal(found["bias"], torch.zeros(2))


def test_random_directions_differ_by_number_and_seed_and_by_nothing_else() -> None:
    generator = np.random.default_rng(0)
    point = {"t": torch.from_numpy(generator.normal(size=(20, 8)).astype(np.float32))}
    one, two, other = (random_direction(point, *key)["t"] for key in ((0, 0), (0, 1), (1, 0)))
    assert torch.equal(one, random_direction(point, 0, 0)["t"])
    assert not torch.equal(one, two)
    assert not torch.equal(one, other)
    # A norm of 8 numbers has a relative rounding error of a few units.
    torch.testing.assert_close(one.norm(dim=1), point["t"].norm(dim=1), rtol=8 * EPS32, atol=0)


@pytest.mark.parametrize("radius", [1.0, 0.3, 0.07])
def test_the_middle_step_is_exactly_zero(radius: float) -> None:
    steps = grid_steps(radius, 7)
    assert steps[3] == 0.0
    assert (steps[0], steps[-1]) == (-radius, radius)


@pytest.mark.parametrize(("radius", "count"), [(1.0, 4), (1.0, 1), (0.0, 5), (-1.0, 5)])
def test_grids_without_a_middle_or_a_size_are_refused(radius: float, count: int) -> None:
    with pytest.raises(ValueError, match="odd number of steps"):
        grid_steps(radius, count)


def test_the_grid_has_a_row_for_each_step_of_the_first_direction() -> None:
    loss = MeanLoss([lambda p: 10.0 * p["x"].sum() + p["y"].sum()])
    point = {"x": torch.zeros(1), "y": torch.zeros(1)}
    one = {"x": torch.ones(1), "y": torch.zeros(1)}
    two = {"x": torch.zeros(1), "y": torch.ones(1)}
    found = loss_grid(loss, point, (one, two), grid_steps(1.0, 3))
    assert found.tolist() == [[-11, -10, -9], [-1, 0, 1], [9, 10, 11]]


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    loss, point = MeanLoss([lambda p: p["x"].log().sum()]), {"x": torch.ones(1)}
    with pytest.raises(ServerError, match="choose a smaller --radius"):
        loss_grid(loss, point, (point, point), grid_steps(2.0, 3))


# ---- a small run --------------------------------------------------------------------------
@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with two small runs, with and without perturbation."""
    folder = tmp_path_factory.mktemp("landscape")
    flat = ("strategy.sam.rho_shared=0", "strategy.sam.rho_private=0")
    for words in (("name=gel",), ("name=zero", *flat)):
        run_server(LocalGrid(2), small_config(folder, "federation.grid=local", *words))
    return folder


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = run_command(list(arguments))
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    return status, error


def test_the_loss_is_what_a_node_computes(runs: Path) -> None:
    run = FinishedRun.opened(runs / "runs" / "gel")
    users = draw_users([run], USERS, SEED)
    assert len(users) == USERS
    assert (np.diff(users) > 0).all()
    found = training_loss(run, users, SEED)
    samples = block_samples(
        run.dataset, users, "honest", run.strategy.config.num_negatives,
        UserStreams(SEED, Role.LANDSCAPE, SAMPLES),
    )  # fmt: skip
    private = run.strategy.private_parameters(run.private(users)[0])
    block = run.strategy.model.block_gradients(
        run.shared, private, samples, run.strategy.loss, Radii()
    )
    # Float32 sums of some ten terms a user, of order one each, in another order.
    mean = float(block.losses[:, 0].double().mean())
    assert found.mean.value(run.shared) == pytest.approx(mean, rel=16 * EPS32)
    value, gradient = found.mean.gradient(run.shared)
    assert value == pytest.approx(mean, rel=16 * EPS32)
    for name, summed in block.shared.items():
        expected = summed.to_dense() / USERS
        error = (gradient[name] - expected).norm()
        assert error <= 1e-5 * expected.norm(), name
    assert found.samples == sum(len(part) for part in samples)
    assert 0 < found.trained <= USERS


def test_users_have_the_state_of_the_selected_round(runs: Path) -> None:
    run = FinishedRun.opened(runs / "runs" / "gel")
    everybody = np.arange(run.dataset.num_users)
    block, trained = run.private(everybody)
    for user, has in zip(everybody.tolist(), trained.tolist(), strict=True):
        drawn = run.strategy.start_private(run.dataset.num_items, run.config.seed, user)
        same = all(torch.equal(block[name][user], tensor) for name, tensor in drawn.items())
        assert same != has, user


def test_forgotten_users_are_not_drawn(runs: Path, tmp_path: Path) -> None:
    import shutil

    folder = shutil.copytree(runs / "runs" / "gel", tmp_path / "gel")
    run = FinishedRun.opened(folder)
    store = run.store(1)
    store.forget(run.dataset.num_users - 1)
    store.close()
    drawn = draw_users([run], 10_000, SEED)
    assert drawn.tolist() == list(range(run.dataset.num_users - 1))


def test_the_command(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    words = ["landscape", "gel", "zero", "--output", str(runs / "runs"), "--out", str(out)]
    words += ["--users", str(USERS), "--grid", "3", "--radius", "0.5", "--seed", str(SEED)]
    assert run_command(words) == 0
    shown = capsys.readouterr().out
    run = FinishedRun.opened(runs / "runs" / "gel")
    loss = training_loss(run, draw_users([run], USERS, SEED), SEED)
    saved = load_landscape(run.folder)
    assert saved is not None
    assert (saved.run, saved.round, saved.users) == ("gel", run.round, USERS)
    assert saved.steps == [-0.5, 0.0, 0.5]
    assert saved.loss == saved.losses[1][1] == loss.mean.value(loss.shared)
    assert f"{saved.loss:.4f}" in shown
    assert 0 <= saved.sharpness.rise <= saved.sharpness.rise_alone
    assert saved.sharpness.eigenvalue > 0
    arrays = np.load(out / "landscape.npz")
    assert arrays["runs"].tolist() == ["gel", "zero"]
    assert arrays["losses"].shape == (2, 3, 3)
    assert arrays["losses"][0].tolist() == saved.losses
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(first) == {"landscape.npz", "landscape.png", "landscape.svg"}
    assert run_command(words) == 0
    again = {path.name: path.read_bytes() for path in out.iterdir()}
    assert [name for name in sorted(first | again) if first.get(name) != again.get(name)] == []


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    assert load_landscape(tmp_path) is None
    (tmp_path / "landscape.json").write_text(json.dumps({"sharpness": {}}))
    with pytest.raises(ServerError, match="is not a landscape of this version"):
        load_landscape(tmp_path)


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("gel", "--grid", "4"), 2, "odd number of steps"),
        (("gel", "--rho", "0"), 2, "--rho must be positive"),
        (("gel", "gel"), 2, "one and the same"),
        (("nothing",), 2, "there is no run 'nothing'"),
    ],
)
def test_refusals(
    runs: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, told: str
) -> None:
    place = ("--output", str(runs / "runs"), "--out", str(runs / "out"))
    found, error = failure(capsys, "landscape", *words, *place)
    assert (found, told in error) == (status, True), error
    assert not (runs / "out").exists()


@pytest.mark.parametrize("strategy", ["fcf", "pfedrec", "fedease"])
def test_strategies_without_such_a_loss_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], strategy: str
) -> None:
    words = ("federation.grid=local", "federation.rounds=1", "name=x", f"strategy={strategy}")
    run_server(LocalGrid(2), small_config(tmp_path, *words))
    place = ("--output", str(tmp_path / "runs"), "--out", str(tmp_path / "out"))
    status, error = failure(capsys, "landscape", "x", *place)
    assert status == 2
    assert f"strategy={strategy} has no landscape" in error


def test_runs_of_different_losses_are_not_compared(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("federation.grid=local", "federation.rounds=1", "strategy.num_negatives=2")
    if not (runs / "runs" / "two").exists():
        run_server(LocalGrid(2), small_config(runs, *words, "name=two"))
    place = ("--output", str(runs / "runs"), "--out", str(runs / "out"))
    status, error = failure(capsys, "landscape", "gel", "two", *place)
    assert (status, "gel and two differ in num_negatives" in error) == (2, True), error


@pytest.mark.parametrize("strategy", ["fedmf", "fedavg", "fedfast", "fedncf", "fedprox"])
def test_strategies_with_such_a_loss(tmp_path: Path, strategy: str) -> None:
    words = ("federation.grid=local", "federation.rounds=2", "name=x", f"strategy={strategy}")
    run_server(LocalGrid(2), small_config(tmp_path, *words))
    run = FinishedRun.opened(tmp_path / "runs" / "x")
    loss = training_loss(run, np.arange(5), SEED)
    moved = {n: t + 0.1 for n, t in run.shared.items()}
    assert 0 < loss.mean.value(run.shared) < np.inf
    assert loss.mean.value(moved) != loss.mean.value(run.shared)


def test_a_store_that_is_gone_is_named(runs: Path) -> None:
    run = replace(FinishedRun.opened(runs / "runs" / "gel"), folder=Path("/nowhere"))
    run = replace(run, config=replace(run.config, output="/nowhere"))
    with pytest.raises(ServerError, match="is gone: with it the private state"):
        run.private(np.arange(3))
