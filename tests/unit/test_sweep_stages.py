"""Sweeps that choose settings: what is made first, what is chosen, what is made then."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from made_up import SMALL_RUN, write_interactions

from conf.build import ConfigError
from experiments.sweep import making
from experiments.sweep.jobs import Job, planned
from experiments.sweep.pool import Ended, Event, Progressed
from experiments.sweep.selection import check_select, choices, choosing, reported
from experiments.sweep.spec import Select, Spec
from experiments.sweep.tasks import Failure, Task
from server_app import cli_common
from server_app.cli import run_command
from server_app.results import RESULT, load_result

KEY = "strategy.server_lr"
BY = "validation/sampled/ndcg@10"
SELECT = Select((KEY,), (7, 8), BY)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDRECGEL_RUNS", raising=False)
    monkeypatch.setattr(cli_common.CONSOLE, "_width", 200)
    write_interactions(tmp_path / "ratings.csv")
    return tmp_path


def jobs_of(here: Path, *words: str) -> list[Job]:
    fixed = (*SMALL_RUN, "strategy=fedmf", "protocol.select=last")
    spec = Spec(
        "", (words or ("strategy.local_epochs=1,2", f"{KEY}=0.1,0.2", "seed=0,7,8"),), fixed
    )
    return planned(spec.products(), here / "runs" / "s", here)


def test_the_best_mean_over_the_tuning_seeds_is_chosen_for_each_arm(here: Path) -> None:
    """Means of two seeds: arm 1 has (.5, .55), a tie of (.4, .4) in arm 2 goes to the first."""
    jobs = jobs_of(here)
    assert len(choosing(jobs, SELECT)) == 8 and len(reported(jobs, SELECT)) == 4
    figures = {
        (1, 0.1): (0.9, 0.1), (1, 0.2): (0.5, 0.6), (2, 0.1): (0.3, 0.5), (2, 0.2): (0.5, 0.3),
    }  # fmt: skip

    def figure(job: Job) -> float:
        assert job.config.seed in SELECT.seeds, "a reported seed chose"
        settings = (job.config.strategy.local_epochs, job.config.strategy.server_lr)
        return figures[settings][job.config.seed - 7]

    one, two = choices(jobs, SELECT, figure)
    assert [job.label for job in one.jobs] == ["local_epochs_1-server_lr_0.2-s0"]
    assert [job.label for job in two.jobs] == ["local_epochs_2-server_lr_0.1-s0"]
    assert f"{KEY}=0.1 0.5000, {KEY}=0.2 0.5500" in one.line


def test_a_setting_that_lacks_a_tuning_run_is_not_tried(here: Path) -> None:
    jobs = jobs_of(here, f"{KEY}=0.1,0.2", "seed=0,7,8")

    def figure(job: Job) -> float | None:
        last = job.config.strategy.server_lr == 0.2 and job.config.seed == 8
        return None if last else job.config.strategy.server_lr

    (choice,) = choices(jobs, SELECT, figure)
    assert [job.config.strategy.server_lr for job in choice.jobs] == [0.1]
    (nothing,) = choices(jobs, SELECT, lambda job: None)
    assert nothing.jobs == () and "nothing is chosen" in nothing.line


@pytest.mark.parametrize(
    ("select", "words", "why"),
    [
        (Select((), (7,), BY), (), "needs settings"),
        (Select(("strategy.nothing",), (7,), BY), (), "has no setting strategy.nothing"),
        (Select((KEY,), (9,), BY), (), "no job has seed 9"),
        (Select((KEY,), (0, 7, 8), BY), (), "none is left to report"),
        (Select((KEY,), (7,), "test/full/hr@10"), (), "must be a validation figure"),
        (SELECT, ("seed=0,7,8", "protocol.validation=false"), "holds out no validation items"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(
    here: Path, select: Select, words: Sequence[str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        check_select(select, jobs_of(here, *words))


def in_order(log: list[str], fail: str = "") -> object:
    def work(tasks: Sequence[Task], processes: int, place: Path) -> Iterator[Event]:
        for task in tasks:
            log.append(task.label)
            yield Progressed(task, 0)
            failure = Failure("no luck", "OSError", True) if task.label == fail else None
            if failure is None:
                task.make(lambda rounds: None)
            yield Ended(task, failure)

    return work


def asked(here: Path) -> str:
    values = {
        "title": "t",
        "sweeps": [[f"{KEY}=0.001,0.01", "seed=0,1,7"]],
        "fixed": [*SMALL_RUN, "strategy=fedmf"],
        "references": ["none"],
        "select": {"tune": [KEY], "by": BY, "seeds": [7]},
    }
    (here / "two.yaml").write_text(yaml.safe_dump(values))
    return "two.yaml"


def test_only_the_chosen_setting_is_made_for_the_other_seeds_and_reported(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log: list[str] = []
    monkeypatch.setattr(making, "work", in_order(log))
    assert run_command(["sweep", asked(here), "--name", "s"]) == 0
    first = ["server_lr_0.001-s7", "server_lr_0.01-s7"]
    folder = here / "runs" / "s"
    values = [load_result(folder / label).metrics[BY] for label in first]
    rate = ["0.001", "0.01"][values.index(max(values))]
    assert log == [*first, f"server_lr_{rate}-s0", f"server_lr_{rate}-s1"]
    shown = capsys.readouterr().out
    assert f"{KEY}={rate} by the mean of {BY}" in shown
    assert "│ 0,1 " in shown and "0,1,7" not in shown
    log.clear()
    assert run_command(["sweep", "--resume", "s"]) == 0
    assert log == []
    assert run_command(["report", "runs/s", "--out", "out", "--no-figures"]) == 0
    lines = (here / "out" / "report.md").read_text()
    assert f"{KEY}={rate}" in lines and "tuning seeds 7" in lines
    assert run_command(["report", "runs/s", "--out", "all", "--no-figures", "--tune", "none"]) == 0
    assert "tuning seeds" not in (here / "all" / "report.md").read_text()


def test_a_failed_tuning_run_leaves_the_choice_to_the_others(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    monkeypatch.setattr(making, "work", in_order(log, fail="server_lr_0.01-s7"))
    assert run_command(["sweep", asked(here), "--name", "s"]) == 1
    made = sorted(path.parent.name for path in (here / "runs" / "s").glob(f"*/{RESULT}"))
    assert made == [f"server_lr_0.001-s{seed}" for seed in (0, 1, 7)]


def test_a_report_compares_with_the_arm_that_the_sweep_names(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "work", in_order([]))
    values = {
        "title": "t",
        "sweeps": [["strategy.local_epochs=1,2"]],
        "fixed": [*SMALL_RUN, "strategy=fedmf"],
        "references": ["none"],
        "against": ["strategy.local_epochs=1"],
    }
    (here / "arms.yaml").write_text(yaml.safe_dump(values))
    assert run_command(["sweep", "arms.yaml", "--name", "s"]) == 0
    assert run_command(["report", "runs/s", "--out", "out", "--no-figures"]) == 0
    line = "fedmf local_epochs=2 − fedmf local_epochs=1"
    assert line in (here / "out" / "report.md").read_text()
    assert run_command(["report", "runs/s", "--out", "no", "--no-figures", "--against=none"]) == 0
    page = json.loads((here / "no" / "report.json").read_text())
    (differences,) = [t for n, t in page["splits"][0]["tables"].items() if "differences" in n]
    assert {row["kind"] for row in differences} == {"best", "popularity"}


def test_sweeps_that_choose_differently_need_to_be_told(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, select in (("a", None), ("b", {"tune": [KEY], "by": BY, "seeds": [7]})):
        (here / name).mkdir()
        values = {"title": "", "sweeps": [], "references": [], "select": select, "jobs": []}
        (here / name / "sweep.json").write_text(json.dumps(values))
    assert run_command(["report", "a", "b"]) == 2
    assert "say --tune KEY or none" in capsys.readouterr().err
