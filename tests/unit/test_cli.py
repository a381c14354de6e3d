"""The command line: exit statuses, one-line errors, plans, and a whole run in this process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from pathlib import Path

import click
import pytest
import typer
from flwr.app import RecordDict
from made_up import SMALL_RUN, write_interactions
from rich.console import Console

from client_app.runtime import Node
from client_app.training import answer_train
from conf.tree import ConfigError
from server_app import cli_app, cli_common, cli_launch, cli_run, cli_runs
from server_app.cli import run_command
from server_app.cli_common import parse_seeds
from server_app.errors import RunStoppedError, SuperLinkError
from server_app.flower_run import FlowerStatus, federation_config
from server_app.lock import locked
from server_app.results import load_result
from server_app.run_folder import RunState
from server_app.superlink_home import SuperLink
from strategies.messages import Downlink

SMALL = [*SMALL_RUN, "federation.grid=local"]


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


def every_command(group: click.Group | None = None) -> list[click.Command]:
    """Each command, those of groups too."""
    if group is None:
        whole = typer.main.get_command(cli_app.app)
        assert isinstance(whole, click.Group)
        return every_command(whole)
    found = list[click.Command]()
    for command in group.commands.values():
        found += every_command(command) if isinstance(command, click.Group) else [command]
    return found


@pytest.mark.parametrize("command", every_command(), ids=lambda command: str(command.name))
def test_help_is_free_of_markup(command: click.Command) -> None:
    shown = command.get_help(click.Context(command, info_name=command.name))
    assert shown.startswith(f"Usage: {command.name} ")
    assert not re.search(r"\\\[|\[/?(bold|dim|red|green|yellow|cyan|italic)", shown)


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


@pytest.mark.parametrize("extra", [["seeds=1", "seeds=2"], ["seeds=1", "seed=7"], ["++seed=7"]])
def test_seeds_from_two_places_are_refused(here: Path, extra: list[str]) -> None:
    option = "3" if extra == ["++seed=7"] else None
    with pytest.raises(ConfigError, match="more than once"):
        cli_run.plan([*SMALL, *extra], seeds=option)


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
    assert capsys.readouterr().err.startswith("Warning: Round 3 was evaluated as the last of")
    assert load_result(here / "runs" / "x-s0").rounds == 5

    assert run_command(["runs"]) == 0
    listed = capsys.readouterr().out
    assert "x-s0" in listed and "5/5" in listed and "completed" in listed
    assert run_command(["runs", "x-s1"]) == 0
    assert "training speed: " in capsys.readouterr().out

    assert run_command(["recommend", "--run", "x-s0", "--user", "7", "--top", "3"]) == 0
    assert "Top 3 for user 7" in capsys.readouterr().out
    status, error = failure(capsys, "recommend", "--run", "x-s0", "--user", "700")
    assert status == 2
    assert error.startswith("fedrecgel: user '700' is not in the prepared data (ids: 1, ")


def test_recommended_items_are_new_to_the_user(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from server_app.cli_recommendations import recommendations

    assert run_command(["run", *SMALL, "--name", "x"]) == 0
    rows = [line.split(",") for line in (here / "ratings.csv").read_text().split()]
    mine = [item for user, item, *_ in rows if user == "7"]
    found = recommendations(here / "runs" / "x", "7", 40)
    # All rows but the last one, which is held out and may be recommended.
    assert found.known == len(set(mine[:-1]))
    assert found.left_out == "training and validation items (the held-out test item may appear)"
    listed = [item for item, _, _ in found.items]
    assert not set(listed) & set(mine[:-1])
    assert set(listed) | set(mine[:-1]) == {item for _, item, *_ in rows}
    scores = [score for _, _, score in found.items]
    assert scores == sorted(scores, reverse=True)

    hidden = recommendations(here / "runs" / "x", "7", 40, hide_heldout=True)
    assert [row for row in found.items if row[0] != mine[-1]] == hidden.items
    assert hidden.known == found.known + 1
    arguments = ["--run", "x", "--user", "7", "--top", "40"]
    capsys.readouterr()
    assert run_command(["recommend", *arguments]) == 0
    assert f"user 7, without {found.known} {found.left_out}" in capsys.readouterr().out
    assert run_command(["recommend", *arguments, "--hide-heldout"]) == 0
    words = "training and validation items, the held-out test item among them"
    assert f"user 7, without {hidden.known} {words}" in capsys.readouterr().out


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
    assert len(error.splitlines()) == 1
    log = (here / "runs" / "bad" / "flwr.log").read_text()
    assert "query.hello failed: DataError: " in log
    assert "Traceback" not in log
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
    assert "Traceback" not in shown.err and "\x1b" not in shown.err
    log = (here / "runs" / "x" / "flwr.log").read_text()
    assert "Traceback" in log and "ZeroDivisionError: for a test" in log and "\x1b" not in log
    assert run_command(["runs", "x"]) == 0
    listed = capsys.readouterr().out
    assert "HR@10 sampled" in listed and "status: failed" in listed


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (KeyboardInterrupt(), "stopped"),
        (
            RunStoppedError("its SuperLink has ended"),
            "the run was stopped (its SuperLink has ended)",
        ),
    ],
)
def test_a_stopped_run_is_status_130_and_says_how_to_continue(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
    said: str,
) -> None:
    def interrupt(*arguments: object) -> None:
        raise raised

    monkeypatch.setattr(cli_launch, "launch", interrupt)
    status, error = failure(capsys, "run", *SMALL, "--name", "x")
    assert status == 130
    assert error == f"fedrecgel: {said}; it has no checkpoint yet to continue from"
    (here / "runs" / "y" / "checkpoint" / "round-000000000").mkdir(parents=True)
    monkeypatch.setattr("server_app.cli_folder.check_folder", lambda config: None)
    status, error = failure(capsys, "run", *SMALL, "--name", "y")
    assert status == 130
    assert error == f"fedrecgel: {said}; continue with: fedrecgel run --resume {here}/runs/y"


@pytest.mark.parametrize(
    "status", [FlowerStatus("finished", "stopped", ""), SuperLinkError("does not answer")]
)
def test_a_run_that_ends_with_its_superlink_was_stopped(
    here: Path, monkeypatch: pytest.MonkeyPatch, status: FlowerStatus | SuperLinkError
) -> None:
    """Flower says so, or the SuperLink is not there any more to say anything."""

    class Stopped:
        run_id = 1

        def status(self) -> FlowerStatus:
            if isinstance(status, SuperLinkError):
                raise status
            return status

        def log(self) -> str:
            raise SuperLinkError("does not answer")

    (planned,) = cli_run.plan([*SMALL, "federation.grid=ray"])
    gone = SuperLink(0, 1, "", "")
    monkeypatch.setattr(cli_launch.superlink, "ensure", lambda: gone)
    monkeypatch.setattr(cli_launch, "stage", lambda home: home)
    monkeypatch.setattr(cli_launch, "home_folder", lambda: here)
    submitted = contextlib.nullcontext(Stopped())
    monkeypatch.setattr(cli_launch.FlowerRun, "submitted", lambda *given: submitted)
    with pytest.raises(RunStoppedError):
        cli_launch.launch(planned.overrides, planned.config, Console(file=io.StringIO()))


def test_a_run_in_use_is_refused_before_anything_starts(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_command(["run", *SMALL, "--name", "x"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(cli_launch, "launch", lambda *given: pytest.fail("started"))
    for arguments in (["--resume", "x"], [*SMALL, "--name", "x"]):
        with locked(here / "runs" / "x"):
            status, error = failure(capsys, "run", *arguments)
        assert status == 2
        assert error == (
            f"fedrecgel: {here}/runs/x is in use by another process (pid {os.getpid()})"
        )


def test_simulation_settings(here: Path) -> None:
    (planned,) = cli_run.plan([*SMALL, "federation.num_nodes=1"])
    assert federation_config(planned.config) == (
        "num-supernodes=1 client-resources-num-cpus=1 init-args-num-cpus=1"
    )


def test_simulation_workers_have_cores_of_their_own(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 8 cores 3 threads each leave room for 2 workers, 9 for one that has to do."""
    monkeypatch.setattr("server_app.concurrency.cores", lambda: 8)
    for threads, workers in (1, 5), (3, 2), (9, 1):
        chosen = [*SMALL, "federation.num_nodes=5", f"engine.threads={threads}"]
        (planned,) = cli_run.plan(chosen)
        assert federation_config(planned.config).endswith(f"init-args-num-cpus={workers}")


def test_the_first_error_of_a_run(tmp_path: Path) -> None:
    failed = FlowerStatus("finished", "failed", "Simulation failed with exception: boom\nmore")
    assert cli_launch._first_error(tmp_path, failed) == "boom"
    state = RunState("failed", "id", 0, "RoundError: round 3: client error: X\nTraceback")
    (tmp_path / "state.json").write_text(json.dumps(state.__dict__))
    assert cli_launch._first_error(tmp_path, failed) == "RoundError: round 3: client error: X"


def test_a_remark_is_printed_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [*SMALL, "protocol.select=best_test", "protocol.validation=false"]
    assert run_command(["run", *settings, "seeds=0,1", "--name", "x"]) == 0
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("an optimistic number") == 1
    assert "From run x-s1:\nTop 10 for user" in shown.out


def test_totals_have_labels_and_units() -> None:
    totals = {"bytes_up": 1_250_000.0, "seconds_train": 2.25, "failures": 2.0, "other": 0.5}
    assert cli_runs.total_lines(totals) == [
        "sent by nodes: 1.2 MB",
        "time training: 2.2 s",
        "failed messages: 2",
        "other: 0.5",
    ]


def test_a_narrow_list_of_runs_keeps_whole_names() -> None:
    name = "ml_100k-fedrecgel-s0-20250101-120000"
    rows = [[name, "completed", "ml_100k", "strict", "fedrecgel", "0", "100/100", "48.12"]]
    for width, headings in ((80, 4), (200, 8)):
        console = Console(file=io.StringIO(), width=width)
        table = cli_runs._listing(rows, console)
        assert len(table.columns) == headings
        console.print(table)
        assert name in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_run_is_shown_with_a_plain_path(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", *SMALL, "--name", "x"]) == 0
    capsys.readouterr()
    assert run_command(["runs", "../runs/x/"]) == 0
    shown = capsys.readouterr().out
    assert f"folder: {here}/runs/x\n" in shown and "  result.json\n" in shown
