from __future__ import annotations

import json
from pathlib import Path

import pytest

from conf.compose import compose
from conf.tree import ConfigError, to_mapping
from experiments.arms import Split, labels, splits_of
from experiments.collect import collect
from experiments.options import with_options
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


def noted_data(run: Path, data: str | None) -> None:
    (run / "job.json").write_text(json.dumps({"data": data}))


def test_equally_large_files_are_other_splits(tmp_path: Path) -> None:
    """Users and items are as many, but the held-out items are not the same."""
    for name, data in (("a", "1" * 64), ("b", "2" * 64)):
        noted_data(made_up_run(tmp_path, name, RANKS), data)
    found, _ = splits(tmp_path)
    assert [[arm.runs[0].result.name for arm in split.arms] for split in found] == [["a"], ["b"]]
    assert [split.name for split in found] == [
        "file, protocol strict data=111111111111",
        "file, protocol strict data=222222222222",
    ]


def test_a_run_that_notes_no_file_joins_the_only_file_there_is(tmp_path: Path) -> None:
    noted_data(made_up_run(tmp_path, "a", RANKS), "1" * 64)
    made_up_run(tmp_path, "b", RANKS, "seed=1")
    ((split,), _) = splits(tmp_path)
    assert [run.result.name for run in split.arms[0].runs] == ["a", "b"]
    assert split.name == "file, protocol strict"


def reference(folder: Path, name: str, hr: float, data: str, candidates: int) -> None:
    row = {"method": "ease", "title": "EASE", "implementation": "own", "settings": {},
           "dataset": "file", "protocol": "strict", "seed": 0, "num_users": 4, "num_items": 50,
           "metrics": {"test/sampled/hr@10": hr}, "counts": {}, "seconds_fit": 0.0,
           "seconds_rank": 0.0}  # fmt: skip
    config = {"protocol.num_candidates": candidates, "dataset.rows": 7, "evaluation.users": None}
    values = {"rows": [row], "made_of": {"config": config, "data": data}}
    (folder / "references").mkdir(exist_ok=True)
    (folder / "references" / f"{name}.json").write_text(json.dumps(values))


def test_references_of_other_candidates_or_data_are_not_of_a_split(tmp_path: Path) -> None:
    """Data set, protocol, size, method and seed are the same in all of them."""
    noted_data(made_up_run(tmp_path, "a", RANKS), "1" * 64)
    noted_data(made_up_run(tmp_path, "b", RANKS, "protocol.num_candidates=20"), "1" * 64)
    reference(tmp_path, "r1", 0.9, "2" * 64, 20)
    reference(tmp_path, "r2", 0.7, "1" * 64, 20)
    reference(tmp_path, "r3", 0.5, "1" * 64, 99)
    found, _ = splits(tmp_path)
    shown = {
        split.settings["protocol.num_candidates"]: [
            one.row.metrics["test/sampled/hr@10"] for one in split.references["ease"]
        ]
        for split in found
    }
    assert shown == {20: [0.7], 99: [0.5]}


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("result.json", b"null", "result"),
        ("result.json", b"\xff\xfe", "result"),
        ("metrics.jsonl", b"nonsense\n", "metrics.jsonl"),
        ("metrics.jsonl", b"\xff\n", "metrics.jsonl"),
        ("config.yaml", b"\xff\xfe\x00", "config.yaml"),
    ],
)
def test_a_damaged_run_is_named_and_sinks_no_other(
    tmp_path: Path, file: str, content: bytes, why: str
) -> None:
    for name in ("a", "b"):
        made_up_run(tmp_path, name, RANKS)
    (tmp_path / "a" / file).write_bytes(content)
    found = collect([tmp_path])
    assert [run.result.name for run in found.runs] == ["b"]
    assert list(found.left_out) == ["a"]
    assert why in found.left_out["a"]
    assert "\n" not in found.left_out["a"]


def test_damaged_ranks_leave_the_figures(tmp_path: Path) -> None:
    run = made_up_run(tmp_path, "a", RANKS)
    (run / "user_ranks.npz").write_bytes(b"PK\x03\x04")
    found = collect([tmp_path])
    assert [dict(run.ranks) for run in found.runs] == [{}]
    (remark,) = found.remarks
    assert remark.startswith("a: its user ranks are not used: user_ranks.npz")


def test_runs_of_one_name_in_several_sweeps_are_told_apart(tmp_path: Path) -> None:
    for sweep in ("one", "two"):
        made_up_run(tmp_path / sweep, "a", RANKS)
    made_up_run(tmp_path / "one", "b", RANKS, "strategy=fedavg")
    (tmp_path / "two" / "b.failed.json").write_text(json.dumps({"error": "too little memory"}))
    _, left_out = splits(tmp_path)
    assert left_out == {
        "two/a": "same settings and seed as one/a",
        "two/b": "failed: too little memory",
    }


def test_a_folder_without_runs_is_refused_beside_failed_jobs(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    made_up_run(tmp_path / "one", "a", RANKS)
    (tmp_path / "one" / "b.failed.json").write_text(json.dumps({"error": "a reason"}))
    with pytest.raises(ConfigError, match="there are no runs"):
        collect([tmp_path / "one", tmp_path / "empty"])


def test_a_section_that_others_lack_is_told_by_its_name() -> None:
    found = labels(
        [
            {"strategy.async": None, "privacy.dp": None},
            {"strategy.async.buffer": 40, "privacy.dp": None},
            {"strategy.async": None, "privacy.dp.epsilon": 8, "privacy.dp.clip": 1},
            {"strategy.async": None, "privacy.dp.epsilon": 2, "privacy.dp.clip": 1},
        ]
    )
    assert found == ["", "async", "dp epsilon=8", "dp epsilon=2"]


def test_options_are_told_by_their_names() -> None:
    """Phones as they come, with one other value, and what is no option at all."""

    def dotted(*words: str) -> dict[str, object]:
        section = to_mapping(compose(words))["devices"]
        return {f"devices.{key}": value for key, value in section.items()} | {"seed": 1}

    assert with_options(dotted()) | {"x": 1} == {
        "attack": "none", "defence": "none", "devices": "none", "seed": 1, "x": 1,
    }  # fmt: skip
    assert with_options(dotted("devices=phones"))["devices"] == "phones"
    assert "devices.spread" not in with_options(dotted("devices=phones"))
    other = with_options(dotted("devices=harsh", "devices.spread=3"))
    assert (other["devices"], other["devices.spread"]) == ("harsh", 3.0)
    assert "devices.drop_out" not in other
