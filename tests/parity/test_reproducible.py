"""Equal configuration, equal bytes: whatever the order of replies, ids or processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up import best_tensors, final_tensors, small_config

from models.rng import Role
from server_app import run as run_module
from server_app.grid import LocalGrid
from server_app.results import RunResult
from server_app.run import run_server

STRATEGIES = ["fedrecgel", "fedncf", "fedavg", "fedmf"]


def run(
    folder: Path, name: str, *overrides: str, shuffle: int | None = None, workers: int = 1
) -> RunResult:
    cfg = small_config(folder, f"name={name}", "federation.num_nodes=4", *overrides)
    return run_server(LocalGrid(4, shuffle_seed=shuffle, workers=workers), cfg)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_order_of_replies_does_not_matter(tmp_path: Path, strategy: str, workers: int) -> None:
    """Nodes one by one in another order, or several at once."""
    model = {"fedavg": "mf", "fedmf": "mf"}.get(strategy, "neumf")
    chosen = (f"strategy={strategy}", "model.factors=4")
    first = run(tmp_path, "a", *chosen)
    second = run(tmp_path, "b", *chosen, shuffle=11, workers=workers)
    assert first.model == model
    assert final_tensors(first.folder) == final_tensors(second.folder)
    assert best_tensors(first.folder) == best_tensors(second.folder)
    assert (first.metrics, first.selected_round) == (second.metrics, second.selected_round)
    assert first.popularity == second.popularity


@pytest.mark.parametrize("every", [1, 3])
def test_the_selected_round_can_be_ranked_at_the_end(tmp_path: Path, every: int) -> None:
    """The nodes keep the selected round's private state: ranking it after the last round gives
    the figures it had when it was evaluated."""
    rounds = []
    for seed in range(4):
        chosen = (f"evaluation.every={every}", "federation.rounds=9", f"seed={seed}")
        each = run(tmp_path, f"each-{seed}", *chosen)
        selected = run(tmp_path, f"selected-{seed}", *chosen, "evaluation.full=selected")
        assert each.selected_round == selected.selected_round
        assert any(name.startswith("test/full/") for name in selected.metrics)
        assert selected.metrics == each.metrics
        rounds.append(selected.selected_round)
    assert min(rounds) < 9  # else the last round's state would do


def test_another_seed_gives_another_result(tmp_path: Path) -> None:
    first, second = run(tmp_path, "a"), run(tmp_path, "b", "seed=1")
    assert final_tensors(first.folder) != final_tensors(second.folder)


def test_training_depends_on_the_initial_parameters_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The positive control of the tests above: one other stream shows in the bytes."""
    first = run(tmp_path, "a")
    derive = run_module.derive_rng

    def other(seed: int, role: Role, *indices: int) -> object:
        return derive(seed, role, *indices, 1)

    monkeypatch.setattr(run_module, "derive_rng", other)
    second = run(tmp_path, "b")
    assert final_tensors(first.folder) != final_tensors(second.folder)
