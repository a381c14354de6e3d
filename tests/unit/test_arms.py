from __future__ import annotations

import json
from pathlib import Path

import pytest

from conf.tree import ConfigError
from experiments.arms import Split, labels, splits_of
from experiments.collect import collect
from experiments.tuning import Tuning
from tests.report_runs import made_up_run

RANKS = [0, 1, 20, 30]
GEL = ("strategy=fedrecgel", "model=mf")


def splits(folder: Path, tuning: Tuning | None = None) -> tuple[list[Split], dict[str, str]]:
    collection = collect([folder])
    left_out = dict(collection.left_out)
    return splits_of(collection, tuning or Tuning(), left_out), left_out


def test_labels_say_what_sets_apart() -> None:
    """Both keys that end in lr differ, so neither is cut short."""
    each = [{"a.lr": 1, "b.lr": 2, "c.x": 0, "d._target_": "p"},
            {"a.lr": 3, "b.lr": 4, "c.x": 0, "d._target_": "q"}]  # fmt: skip
    assert labels(each) == ["a.lr=1 b.lr=2", "a.lr=3 b.lr=4"]
    assert labels([{"a.lr": 1}, {"a.lr": None}]) == ["lr=1", "lr=null"]
    assert labels([{"a.lr": 1}]) == [""]


def test_arms_differ_in_more_than_seed_name_and_place(tmp_path: Path) -> None:
    for seed in (1, 0):
        made_up_run(tmp_path, f"a{seed}", RANKS, *GEL, f"seed={seed}", f"engine.workers={1 + seed}")
    made_up_run(tmp_path, "b", RANKS, *GEL, "strategy.sam.rho_shared=0.05")
    made_up_run(tmp_path, "c", RANKS, "strategy=fedavg")
    made_up_run(tmp_path, "d", RANKS, "strategy=fedrecgel", "model=neumf")
    ((split,), left_out) = splits(tmp_path)
    assert {arm.label: [run.seed for run in arm.runs] for arm in split.arms} == {
        "fedavg": [0],
        "fedrecgel model=mf rho_shared=0.02": [0, 1],
        "fedrecgel model=mf rho_shared=0.05": [0],
        "fedrecgel model=neumf": [0],
    }
    assert left_out == {}


def test_other_candidates_are_another_split(tmp_path: Path) -> None:
    made_up_run(tmp_path, "a", RANKS)
    made_up_run(tmp_path, "b", RANKS, "protocol.num_candidates=50")
    made_up_run(tmp_path, "c", RANKS, "protocol=paper")
    found, _ = splits(tmp_path)
    assert [split.name for split in found] == [
        "file, protocol paper",
        "file, protocol strict num_candidates=50",
        "file, protocol strict num_candidates=99",
    ]
    assert found[1].slug == "file-strict-num_candidates=50"


def test_what_is_in_no_table_is_named(tmp_path: Path) -> None:
    made_up_run(tmp_path, "a", RANKS)
    made_up_run(tmp_path, "a-again", RANKS)
    made_up_run(tmp_path, "ends", RANKS, status="failed")
    made_up_run(tmp_path, "warm", RANKS, "strategy=fedrecgel", "model=mf", "init.strategy=fedials")
    made_up_run(tmp_path, "warm-init", RANKS, "strategy=fedials")
    (tmp_path / "job.failed.json").write_text(json.dumps({"error": "no luck"}))
    ((split,), left_out) = splits(tmp_path)
    assert len(split.arms) == 2
    assert left_out == {
        "a-again": "same settings and seed as a",
        "ends": "failed: a reason",
        "job": "failed: no luck",
        "warm-init": "the start of warm",
    }


def test_a_folder_given_twice_counts_once(tmp_path: Path) -> None:
    made_up_run(tmp_path / "x", "a", RANKS)
    collection = collect([tmp_path, tmp_path / "x", tmp_path / "x" / "a"])
    assert [run.result.name for run in collection.runs] == ["a"]


def tuned(folder: Path) -> None:
    """Learning rate 0.1 is the better for seed 0, 0.2 for seeds 1 and 2."""
    better, worse = [0, 0, 0, 30], [0, 30, 30, 30]
    for seed in range(3):
        for rate, good in (("0.1", seed == 0), ("0.2", seed > 0)):
            ranks = better if good else worse
            lr = f"strategy.server_lr={rate}"
            made_up_run(folder, f"lr{rate}-{seed}", ranks, "strategy=fedavg", lr, f"seed={seed}")


def test_the_best_on_tuning_seeds_is_reported_over_the_others(tmp_path: Path) -> None:
    tuned(tmp_path)
    ((split,), _) = splits(tmp_path, Tuning(("strategy.server_lr",), (0,)))
    (arm,) = split.arms
    assert arm.label == "fedavg"
    assert arm.choice is not None
    assert arm.choice.setting == "strategy.server_lr=0.1"
    assert [run.seed for run in arm.runs] == [1, 2]
    # Three hits of four at the first place, and one of four.
    assert arm.choice.tried == (("strategy.server_lr=0.1", 0.75), ("strategy.server_lr=0.2", 0.25))


def test_without_tuning_seeds_all_choose_and_are_reported(tmp_path: Path) -> None:
    tuned(tmp_path)
    ((split,), _) = splits(tmp_path, Tuning(("strategy.server_lr",)))
    (arm,) = split.arms
    assert arm.choice is not None
    assert arm.choice.setting == "strategy.server_lr=0.2"
    assert [run.seed for run in arm.runs] == [0, 1, 2]


def test_a_setting_without_a_tuning_seed_is_not_tried(tmp_path: Path) -> None:
    tuned(tmp_path)
    made_up_run(tmp_path, "extra", RANKS, "strategy=fedavg", "strategy.server_lr=0.2", "seed=5")
    ((split,), left_out) = splits(tmp_path, Tuning(("strategy.server_lr",), (0, 5)))
    (arm,) = split.arms
    assert arm.choice is not None and len(arm.choice.tried) == 1
    wanted = {f"lr0.1-{seed}": "its setting has no run of tuning seed 5" for seed in range(3)}
    assert left_out == wanted


def test_there_is_no_choice_without_validation(tmp_path: Path) -> None:
    made_up_run(tmp_path, "a", RANKS, "strategy=fedavg", "protocol=paper")
    with pytest.raises(ConfigError, match="no validation figures"):
        splits(tmp_path, Tuning(("strategy.server_lr",)))
