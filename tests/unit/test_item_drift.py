"""How far item tables move: figures by hand, and the file over breaks of a run."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_nodes import FakeNodes, tiny_config
from hypothesis import given
from hypothesis import strategies as st

from conf.fingerprint import code_fingerprint
from conf.tree import build_strategy
from server_app import item_drift
from server_app.checkpoint import load_checkpoint
from server_app.errors import RoundError
from server_app.grid import LocalGrid
from server_app.item_drift import ItemDrift, movement, read_drift
from server_app.run import run_server
from strategies.messages import Downlink

ON = "evaluation.item_drift=true"
SETTINGS = ("federation.rounds=8", "evaluation.every=3", ON)
BEFORE = torch.tensor([[1.0, 0.0], [0.0, 2.0], [5.0, 5.0], [0.0, 0.0]])
NOW = torch.tensor([[0.0, 3.0], [0.0, 4.0], [9.0, 9.0], [1.0, 0.0]])


def test_figures_by_hand() -> None:
    """Item 2 has no interaction. Item 0 turns by a right angle, a step of √10; item 1 doubles,
    a step of 1; item 3 was zero, so it has a length but neither direction nor step."""
    got = movement(NOW, BEFORE, np.array([1, 7, 0, 2]))
    assert got["items"] == 3
    assert got["cosine"] == 0.5
    assert got["cosine_deciles"] == pytest.approx([0.1 * tenth for tenth in range(1, 10)])
    assert got["norm"] == pytest.approx((3 + 4 + 1) / 3, rel=1e-15)
    assert got["step"] == pytest.approx((math.sqrt(10) + 1) / 2, rel=1e-15)
    # Coordinates (0, 0, 1) and (3, 4, 0): variances 2/9 and 26/9.
    assert got["variance"] == pytest.approx((2 / 9 + 26 / 9) / 2, rel=1e-15)


def test_a_bias_an_item_has_one_coordinate() -> None:
    """1 becomes −3 and 2 becomes 3: cosines −1 and 1, steps 4 and 1/2, variance 3² of ±3."""
    got = movement(torch.tensor([-3.0, 3.0]), torch.tensor([1.0, 2.0]), None)
    figures = [got[name] for name in ("items", "cosine", "norm", "step", "variance")]
    assert figures == [2, 0.0, 3.0, 2.25, 9.0]


def test_the_first_time_there_is_nothing_to_compare_with() -> None:
    got = movement(NOW, None, None)
    assert (got["items"], got["cosine"], got["cosine_deciles"], got["step"]) == (4, *[None] * 3)
    assert got["norm"] == pytest.approx((3 + 4 + math.sqrt(162) + 1) / 4, rel=1e-15)


def test_no_item_with_an_interaction_gives_no_figures() -> None:
    got = movement(NOW, BEFORE, np.zeros(4, np.int64))
    assert got == {"items": 0, **dict.fromkeys(list(got)[1:])}


@given(seed=st.integers(0, 2**32), factor=st.floats(0.125, 8), rows=st.integers(1, 40))
def test_a_scaled_table_keeps_its_direction(seed: int, factor: float, rows: int) -> None:
    """Cosine 1 and step |factor − 1|, to the rounding of float32 entries: 2^-24 relative each."""
    table = torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed)) + 0.01
    got = movement(table * factor, table, None)
    assert got["cosine"] == pytest.approx(1, abs=2**-23)
    assert got["step"] == pytest.approx(abs(factor - 1), abs=8 * 2**-23)


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of whole numbers, and rows one by one: equal to the bit."""
    whole = movement(NOW, BEFORE, None)
    monkeypatch.setattr(item_drift, "BLOCK_NUMBERS", 2)
    assert movement(NOW, BEFORE, None) == whole


@pytest.fixture
def nodes() -> FakeNodes:
    return FakeNodes(code_fingerprint())


def run(tmp_path: Path, nodes: FakeNodes, *overrides: str, name: str = "run") -> Path:
    cfg = tiny_config(tmp_path, *SETTINGS, f"name={name}", *overrides)
    return run_server(LocalGrid(2, nodes.app()), cfg).folder


def test_a_line_after_every_evaluated_round(tmp_path: Path, nodes: FakeNodes) -> None:
    lines = read_drift(run(tmp_path, nodes))
    assert [line["round"] for line in lines] == [3, 6, 8]
    for number, line in enumerate(lines):
        tables = line["tables"]
        assert isinstance(tables, dict) and tables.keys() == {"item_gmf", "item_mlp"}
        for figures in tables.values():
            assert figures["items"] == 12 and figures["variance"] > 0
            assert (figures["cosine"] is None) == (number == 0)


def test_without_the_switch_there_is_no_file(tmp_path: Path, nodes: FakeNodes) -> None:
    folder = run(tmp_path, nodes, "evaluation.item_drift=false")
    assert read_drift(folder) == [] and not (folder / "item_drift.jsonl").exists()
    assert load_checkpoint(folder).observed == {}
    assert not list(folder.rglob("observed*"))


@pytest.mark.parametrize("stop", [2, 4, 7])
@pytest.mark.parametrize("grid", ["local", "deployment"])
def test_a_break_does_not_show(tmp_path: Path, nodes: FakeNodes, grid: str, stop: int) -> None:
    """In a deployment round 3 is ranked with round 4, so that its line is of a later round."""
    where = (f"federation.grid={grid}", "federation.num_nodes=2")

    def fail(index: int, request: Downlink) -> None:
        if request.round == stop:
            raise RuntimeError("no")

    nodes.before_train = fail
    with pytest.raises(RoundError):
        run(tmp_path, nodes, *where)
    nodes.before_train = lambda index, request: None
    # What a start wrote after its last checkpoint and before it was killed:
    with (tmp_path / "run" / "item_drift.jsonl").open("a") as file:
        file.write(f'{{"round": {stop}, "tables": {{}}}}\n')
        file.write('{"round": 9')
    resumed = run(tmp_path, nodes, *where, "resume=true")
    whole = run(tmp_path, FakeNodes(code_fingerprint()), *where, name="whole")
    for file in ("item_drift.jsonl", "checkpoint/round-000000008/observed.safetensors"):
        assert (resumed / file).read_bytes() == (whole / file).read_bytes()


def test_a_strategy_without_tables_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = build_strategy(tiny_config(tmp_path))
    monkeypatch.setattr(type(strategy), "item_vectors", lambda self, shared: {})
    drift = ItemDrift(tmp_path)
    logger = logging.getLogger("flwr")
    monkeypatch.setattr(logger, "propagate", True)
    for server_round in (1, 2):
        drift.observe(strategy, server_round, {}, None)
    assert not (tmp_path / "item_drift.jsonl").exists()
    (told,) = [r.getMessage() for r in caplog.records if "item table" in r.getMessage()]
    assert told.endswith("has no shared item table: no item_drift.jsonl")
