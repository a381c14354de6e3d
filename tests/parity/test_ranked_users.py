"""Ranking some of the users: the same ones everywhere, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up import NUM_USERS, final_tensors, small_config

from server_app.grid import LocalGrid
from server_app.results import RunResult
from server_app.run import run_server


def run(folder: Path, name: str, nodes: int, *overrides: str) -> RunResult:
    cfg = small_config(folder, f"name={name}", f"federation.num_nodes={nodes}", *overrides)
    return run_server(LocalGrid(nodes), cfg)


def test_figures_are_those_of_the_drawn_users(tmp_path: Path) -> None:
    """Five users, on one node or on several: the same hit rates, of so many users.

    With 24 nodes each hosts one user; those without a ranked one are not asked.
    """
    one, many, single = (
        run(tmp_path, f"run-{nodes}", nodes, "evaluation.users=5") for nodes in (1, 4, NUM_USERS)
    )
    everyone = run(tmp_path, "all", 4)
    assert set(one.counts.values()) == {5.0}
    assert one.counts == many.counts == single.counts
    assert one.popularity is not None and many.popularity is not None
    assert one.popularity == pytest.approx(many.popularity)
    assert many.popularity == pytest.approx(single.popularity or {})
    assert one.popularity != everyone.popularity
    assert final_tensors(many.folder) == final_tensors(everyone.folder)
    assert "figures over 5 of 24 users" in _users_line(many)


def test_as_many_as_there_are_is_everyone(tmp_path: Path) -> None:
    whole = run(tmp_path, "whole", 2, f"evaluation.users={NUM_USERS}")
    plain = run(tmp_path, "plain", 2)
    assert whole.metrics == plain.metrics
    assert whole.counts == plain.counts


def _users_line(result: RunResult) -> str:
    from server_app.report import result_table

    return "; ".join(note for notes in result_table(result).notes for note in notes)
