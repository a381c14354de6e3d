"""What is said when nodes cannot introduce themselves: the file and line first, no jargon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_run

from client_app.errors import DataError
from client_app.failures import describe
from conf.tree import Config
from server_app.errors import NodeError
from server_app.exchange import Courier
from server_app.grid import LocalGrid
from server_app.nodes import NodeDirectory
from server_app.refusals import plain_text, refusal


def register(cfg: Config) -> None:
    federation = replace(cfg.federation, register_timeout_s=20.0)
    grid = LocalGrid(federation.num_nodes)
    NodeDirectory(Courier(grid), tiny_run.header(cfg), federation).register()


def test_a_bad_row_is_told_by_file_and_line_alone(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path)
    path = tmp_path / "ratings.csv"
    path.write_text(path.read_text() + "1,2\n")
    line = path.read_text().count("\n")
    with pytest.raises(NodeError) as error:
        register(cfg)
    assert str(error.value) == (
        f"{path}:{line}: 2 fields, expected 4; dataset.bad_rows=skip leaves bad rows out"
    )


def test_more_nodes_than_users_are_refused_at_once(tmp_path: Path) -> None:
    cfg = tiny_run.config(tmp_path, "federation.num_nodes=21")
    with pytest.raises(NodeError, match=r"^21 nodes are too many for the 20 users .*num_nodes=20 "):
        register(cfg)
    assert not (tmp_path / "runs").exists(), "a node made a store"
    register(tiny_run.config(tmp_path, "federation.num_nodes=20"))


def caught(error: Exception) -> str:
    try:
        raise error
    except Exception as raised:  # noqa: BLE001  any kind
        return describe(raised)


def test_a_single_node_is_named_behind_a_plain_error() -> None:
    text = caught(DataError("/d/r.csv:2: 3 fields at x.py:3 y, expected 4"))
    assert "test_refusals.py" in text
    assert refusal(12, text) == "/d/r.csv:2: 3 fields at x.py:3 y, expected 4 (node 12)"


def test_any_other_error_keeps_its_type_and_frames() -> None:
    text = caught(ZeroDivisionError("division"))
    assert plain_text(text) is None
    assert refusal(12, text) == f"node 12 failed to introduce itself: {text}"


def test_long_frames_are_cut_off_too() -> None:
    frames = "... > client_app/a.py:1 f > client_app/b.py:22 <lambda>"
    assert plain_text(f"StoreError: no place at {frames}") == "no place"
