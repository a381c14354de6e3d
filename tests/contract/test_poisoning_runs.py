"""Every attack and every defence in whole runs, and that attacks do what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from conf.compose import compose, options
from experiments.poisoning import table
from server_app.checkpoint import load_checkpoint
from server_app.errors import ServerError
from server_app.grid import LocalGrid
from server_app.results import RunResult
from server_app.run import run_server

BASE = [
    "dataset=synthetic",
    "dataset.synthetic.users=60",
    "dataset.synthetic.items=50",
    "dataset.synthetic.clusters=3",
    "protocol.num_candidates=10",
    "protocol.select=last",
    "federation.grid=local",
    "federation.fraction=0.5",
    "attack.fraction=0.2",
    "model=mf",
    "model.factors=4",
]


def run(folder: Path, *overrides: str, nodes: int = 1, rounds: int = 2) -> RunResult:
    more = [f"federation.rounds={rounds}", f"evaluation.every={rounds}", f"output={folder}"]
    nodes_of = f"federation.num_nodes={nodes}"
    cfg = compose([*BASE, *more, f"cache={folder / 'cache'}", nodes_of, *overrides])
    return run_server(LocalGrid(nodes), cfg)


def attacks() -> list[str]:
    return [name for name in options("attack") if name != "none"]


@pytest.mark.parametrize("attack", attacks())
def test_every_attack_runs(tmp_path: Path, attack: str) -> None:
    result = run(tmp_path, f"attack={attack}", "model=neumf", "model.mlp_layers=1")
    assert result.counts["test/full/hr@10"] == 48  # malicious users are not ranked
    assert 0 <= result.metrics["attack/er@10"] <= 1
    assert (result.poisoning["malicious"] > 0) == (attack != "benign")


@pytest.mark.parametrize("attack", ["cluster", "a_hum", "fedrecattack", "little_is_enough"])
@pytest.mark.parametrize("strategy", ["fedavg", "pfedrec"])
def test_crafted_movements(tmp_path: Path, attack: str, strategy: str) -> None:
    own = "model=linear" if strategy == "pfedrec" else "model=mf"
    result = run(tmp_path, f"strategy={strategy}", own, f"attack={attack}", "defence=median")
    assert result.poisoning["malicious"] > 0


@pytest.mark.parametrize("defence", [name for name in options("defence") if name != "none"])
def test_every_defence_runs_and_nodes_make_no_difference(tmp_path: Path, defence: str) -> None:
    one, three = (
        run(tmp_path / str(nodes), "attack=gaussian", f"defence={defence}", nodes=nodes)
        for nodes in (1, 3)
    )
    # Updates are taken by ascending user: the same to the bit, and so are its malicious users.
    first, second = (load_checkpoint(result.folder).shared for result in (one, three))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert one.poisoning == three.poisoning
    # Sums of 48 users' values in another order: each addition rounds at 1.1e-16.
    assert one.metrics == pytest.approx(three.metrics, rel=48 * 2.3e-16)
    lines = [json.loads(line) for line in (one.folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line["poisoning"]["malicious"] > 0 for line in lines)
    if defence in ("krum", "multikrum", "union", "norm_bound"):
        assert {"flagged", "flagged_malicious"} <= set(lines[0]["poisoning"])
        assert "recall" in one.poisoning


@pytest.mark.parametrize("attack", ["promotion", "a_hum", "fedrecattack"])
def test_promotion_raises_the_exposure_of_the_targets(tmp_path: Path, attack: str) -> None:
    same = ("attack.num_targets=2", "strategy.server_lr=0.05")
    clean = run(tmp_path, "attack=benign", "name=clean", *same, rounds=12)
    bad = run(tmp_path, f"attack={attack}", "attack.clean=clean", *same, rounds=12)
    rise = bad.metrics["attack/er@10"] - clean.metrics["attack/er@10"]
    assert rise > 0.1
    assert bad.poisoning["rise/attack/er@10"] == rise


def test_flipped_labels_lower_ndcg(tmp_path: Path) -> None:
    same = ("attack.fraction=0.4", "strategy.server_lr=0.05")
    clean = run(tmp_path, "attack=benign", "name=clean", *same, rounds=12)
    bad = run(tmp_path, "attack=label_flip", "attack.clean=clean", *same, rounds=12)
    assert bad.metrics["test/full/ndcg@10"] < clean.metrics["test/full/ndcg@10"]
    assert bad.poisoning["drop/test/full/ndcg@10"] > 0


def test_multikrum_finds_noise(tmp_path: Path) -> None:
    result = run(tmp_path, "attack=gaussian", "defence=multikrum", "defence.malicious=0.3")
    assert result.poisoning["recall"] == 1


def test_honest_rounds_before_the_start(tmp_path: Path) -> None:
    late = run(tmp_path, "attack=gaussian", "attack.start_round=3", "name=late")
    clean = run(tmp_path, "attack=benign", "name=clean")
    assert late.metrics == clean.metrics and late.poisoning["malicious"] == 0


def test_table_of_a_sweep(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="holds no complete run"):
        table(tmp_path)
    clean = run(tmp_path, "attack=benign", "name=a")
    bad = run(tmp_path, "attack=gaussian", "defence=multikrum", "name=b")
    lines = table(tmp_path).splitlines()
    assert lines[2].startswith("| benign | none |") and len(lines) == 4
    lost = 100 * (clean.metrics["test/sampled/hr@10"] - bad.metrics["test/sampled/hr@10"])
    assert lines[3].split(" | ")[3] == f"{lost:.2f}"


def test_an_unknown_target_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"there is no item 'x' in the catalogue"):
        run(tmp_path, "attack=promotion", 'attack.targets=["x"]')


def test_a_clean_run_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"attack\.clean=gone"):
        run(tmp_path, "attack=promotion", "attack.clean=gone")
