"""The command line: exit statuses, one-line errors, plans, and a whole run in this process."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import RecordDict
from made_up import write_interactions
from rich.console import Console

from client_app.runtime import Node
from client_app.training import answer_train
from conf.tree import ConfigError
from server_app import cli_common, cli_launch, cli_run
from server_app.cli import run_command
from server_app.cli_common import parse_seeds
from server_app.flower_run import FlowerStatus, federation_config
from server_app.progress import RoundProgress
from server_app.results import load_result
from server_app.run_folder import RunState
from strategies.messages import Downlink

SMALL = [
    "dataset=file",
    "dataset.path=ratings.csv",
    "model.factors=4",
    "protocol.num_candidates=20",
    "federation.rounds=3",
    "federation.fraction=0.5",
    "evaluation.every=2",
    "cache=cache",
    "federation.grid=local",
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with a small data file, and wide consoles."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDRECGEL_RUNS", raising=False)
    monkeypatch.setattr(cli_common.CONSOLE, "_width", 200)
    write_interactions(tmp_path / "ratings.csv")
    return tmp_path


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = run_command(list(arguments))
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    return status, error


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fedrecgel 0.")
    assert run_command(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("run", "runs", "recommend", "strategies", "stop"))
    assert run_command(["run", "--help"]) == 0
    assert "dataset=file dataset.path=ratings.csv" in capsys.readouterr().out


def test_strategies(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["strategies", "--names"]) == 0
    assert {"fedrecgel", "fedncf"} <= set(capsys.readouterr().out.split())
    assert run_command(["strategies"]) == 0
    assert "arXiv 2603.11503" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "strategy=nix"], "strategy=nix does not exist; choose one of "),
        (["run", "federation.rounds=x"], "federation.rounds: expected a whole number, got 'x'"),
        (["run", "dataset=file"], "dataset.path is required for dataset=file"),
        (["run", "dataset=file", "dataset.path=nix.csv"], "dataset.path: there is no file /"),
        (["run", "seeds=0,0"], "seeds must be distinct whole numbers"),
        (["run", "--resume", "nix"], "there is no run 'nix' in "),
        (["run", "--resume", "nix", "--name", "x"], "--resume names one run"),
        (["runs", "nix"], "there is no run 'nix' in "),
        (["recommend", "--run", "nix", "--user", "1"], "there is no run 'nix' in "),
    ],
)
def test_a_wrong_command_line_is_status_2_and_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    status, error = failure(capsys, *arguments)
    assert status == 2
    assert error.startswith(f"fedrecgel: {expected}")
    assert not (here / "runs").exists()


def test_unknown_commands_and_options_are_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bogus"]) == 2
    assert "No such command" in capsys.readouterr().err
    assert run_command(["run", "--bogus"]) == 2


def test_seeds() -> None:
    assert parse_seeds("0,1,2") == [0, 1, 2]
    assert parse_seeds("[3, 4]") == [3, 4]
    for wrong in ("", "0,", "a", "-1", "1,1"):
        with pytest.raises(ConfigError):
            parse_seeds(wrong)


def test_a_plan_is_absolute_and_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (planned,) = cli_run.plan(SMALL)
    config = planned.config
    assert config.dataset.path == str(here / "ratings.csv")
    assert (config.output, config.cache) == (str(here / "runs"), str(here / "cache"))
    assert str(config.name).startswith("file-fedrecgel-s0-")
    # What is submitted composes to what was checked.
    from conf.compose import compose

    assert compose(planned.overrides) == config
    monkeypatch.setenv("FEDRECGEL_RUNS", str(here / "elsewhere"))
    assert cli_run.plan(SMALL)[0].config.output == str(here / "elsewhere")
    assert cli_run.plan([*SMALL, "output=mine"])[0].config.output == str(here / "mine")


def test_a_plan_of_several_seeds(here: Path) -> None:
    plans = cli_run.plan([*SMALL, "seeds=3,5"], name="x")
    assert [(p.config.seed, p.config.name) for p in plans] == [(3, "x-s3"), (5, "x-s5")]
    unnamed = cli_run.plan(SMALL, seeds="3,5")
    assert len({p.config.name for p in unnamed}) == 2


def test_a_whole_run_here(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", *SMALL, "seeds=0,1", "--name", "x"]) == 0
    shown = capsys.readouterr().out
    assert "file, protocol strict" in shown
    assert "popularity" in shown
    assert "Mean ± standard deviation over runs" in shown
    assert "Top 10 for user 1, without " in shown
    assert f"Results: {here / 'runs' / 'x-s0'}" in shown
    assert load_result(here / "runs" / "x-s1").seed == 1

    status, error = failure(capsys, "run", *SMALL, "--name", "x-s0")
    assert status == 2
    assert "holds a run already; choose another name, or continue it with --resume x-s0" in error

    assert run_command(["run", "--resume", "x-s0", "federation.rounds=5"]) == 0
    capsys.readouterr()
    assert load_result(here / "runs" / "x-s0").rounds == 5

    assert run_command(["runs"]) == 0
    listed = capsys.readouterr().out
    assert "x-s0" in listed and "5/5" in listed and "completed" in listed
    assert run_command(["runs", "x-s1"]) == 0
    assert "users_per_second" in capsys.readouterr().out

    assert run_command(["recommend", "--run", "x-s0", "--user", "7", "--top", "3"]) == 0
    assert "Top 3 for user 7" in capsys.readouterr().out
    status, error = failure(capsys, "recommend", "--run", "x-s0", "--user", "700")
    assert status == 2
    assert error.startswith("fedrecgel: user '700' is not in the prepared data (ids: 1, ")


def test_recommended_items_are_new_to_the_user(here: Path) -> None:
    from server_app.cli_recommend import recommendations

    assert run_command(["run", *SMALL, "--name", "x"]) == 0
    rows = [line.split(",") for line in (here / "ratings.csv").read_text().split()]
    mine = [item for user, item, *_ in rows if user == "7"]
    found = recommendations(here / "runs" / "x", "7", 40)
    # All rows but the last one, which is held out and may be recommended.
    assert found.known == len(set(mine[:-1]))
    listed = [item for item, _, _ in found.items]
    assert not set(listed) & set(mine[:-1])
    assert set(listed) | set(mine[:-1]) == {item for _, item, *_ in rows}
    scores = [score for _, _, score in found.items]
    assert scores == sorted(scores, reverse=True)


def test_a_failed_run_is_status_1_and_says_why(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (here / "ratings.csv").open("a") as file:
        file.write("3,3\n")
    number = len((here / "ratings.csv").read_text().splitlines())
    status = run_command(["run", *SMALL, "--name", "bad"])
    error = capsys.readouterr().err
    assert status == 1
    assert f"ratings.csv:{number}" in error
    assert run_command(["runs"]) == 0
    assert "failed" in capsys.readouterr().out


def test_a_run_whose_clients_failed_shows_its_result_and_is_status_1(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 1 fails in round 2; the policy lets the run go on, to a result that says so."""

    def failing(node: Node, request: Downlink, digest: bytes) -> RecordDict:
        if node.shard_key.startswith("000001") and request.round == 2:
            raise ZeroDivisionError("for a test")
        return answer_train(node, request, digest)

    monkeypatch.setattr("client_app.app.answer_train", failing)
    status = run_command(["run", *SMALL, "federation.min_share=0.1", "--name", "x"])
    shown = capsys.readouterr()
    assert status == 1
    assert "popularity" in shown.out and "HR@10 sampled" in shown.out
    line = shown.err.strip().splitlines()[-1]
    assert line.startswith("fedrecgel: all 3 rounds were trained, but clients failed once; first: ")
    assert "shard '000001-of-000002'" in line and "for a test" in line
    assert run_command(["runs", "x"]) == 0
    listed = capsys.readouterr().out
    assert "HR@10 sampled" in listed and "status: failed" in listed


def test_ctrl_c_is_status_130_and_says_how_to_continue(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_launch, "launch", interrupt)
    status, error = failure(capsys, "run", *SMALL, "--name", "x")
    assert status == 130
    assert error == f"fedrecgel: stopped; continue with: fedrecgel run --resume {here}/runs/x"


def test_simulation_settings(here: Path) -> None:
    (planned,) = cli_run.plan([*SMALL, "federation.num_nodes=1"])
    assert federation_config(planned.config) == (
        "num-supernodes=1 client-resources-num-cpus=1 init-args-num-cpus=1"
    )


def test_the_first_error_of_a_run(tmp_path: Path) -> None:
    failed = FlowerStatus("finished", "failed", "Simulation failed with exception: boom\nmore")
    assert cli_launch._first_error(tmp_path, failed) == "boom"
    state = RunState("failed", "id", 0, "RoundError: round 3: client error: X\nTraceback")
    (tmp_path / "state.json").write_text(json.dumps(state.__dict__))
    assert cli_launch._first_error(tmp_path, failed) == "RoundError: round 3: client error: X"
    stopped = FlowerStatus("finished", "stopped", "")
    assert cli_launch._first_error(tmp_path, stopped) == "the run was stopped"


def record(number: int, evaluation: dict[str, float] | None) -> dict[str, Any]:
    return {
        "round": number,
        "num_users": 50,
        "train": {"loss": 0.5},
        "evaluation": evaluation,
        "bytes_up": 1_000_000,
        "bytes_down": 500_000,
        "seconds": {"train": 0.5},
    }


def test_progress_without_a_terminal_is_a_line_an_evaluation() -> None:
    out = io.StringIO()
    with RoundProgress("x", 4, Console(file=out, width=200)) as progress:
        progress.update(record(1, None))
        progress.update(record(2, {"validation/sampled/hr@10": 0.25}))
        progress.update(record(3, None))
    # 50 users in half a second; two rounds of 1.5 MB.
    line = "x round 2/4: loss 0.5000 · validation HR@10 25.0% · 100 users/s · 3.0 MB\n"
    assert out.getvalue() == line


def test_progress_on_a_terminal_is_a_bar() -> None:
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True, color_system=None)
    with RoundProgress("x", 4, console) as progress:
        progress.update(record(2, {"test/sampled/hr@10": 0.25}))
    assert "2/4" in out.getvalue()
    assert "test HR@10 25.0%" in out.getvalue()
