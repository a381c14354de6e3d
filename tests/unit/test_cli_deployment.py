"""Command lines about deployments that are wrong, or need no process."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from made_up import write_interactions

from server_app import deployment
from server_app.cli import run_command
from server_app.connection import Connection
from server_app.deployment import RECORD, Deployment, Member
from server_app.errors import SuperLinkError
from server_app.processes import process

DATA = ["dataset=file", "dataset.path=ratings.csv", "protocol.num_candidates=20"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRECGEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_interactions(tmp_path / "ratings.csv")
    return tmp_path


# ---- prepare -----------------------------------------------------------------------------
def test_prepare_writes_a_folder_a_node(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["prepare", *DATA, "--sizes", "1,22,1", "--out", "data"]) == 0
    assert "--node-config 'data-path=" in capsys.readouterr().out
    assert sorted(p.name for p in (here / "data").iterdir()) == [
        *("catalogue.tsv", "node-000", "node-001", "node-002")
    ]
    assert json.loads((here / "data" / "node-002" / "shard.json").read_text())["num_users"] == 24


@pytest.mark.parametrize(
    ("arguments", "words", "status"),
    [
        ([], "give either --nodes, or --sizes", 2),
        (["--nodes", "2", "--sizes", "1,23"], "give either --nodes, or --sizes", 2),
        (["--sizes", "1,x"], "must be whole numbers", 2),
        (["--sizes", "1,1"], "add up to 2, but the data has 24 users", 1),
        (["--sizes", "0,24"], "a node hosts one user at least", 1),
        (["--nodes", "25"], "25 nodes are too many for 24 users", 1),
        (["--nodes", "2", "--out", "."], "exists already", 1),
    ],
    ids=str,
)
def test_prepare_refuses(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
    status: int,
) -> None:
    assert run_command(["prepare", *DATA, *arguments]) == status
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1


# ---- run ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "words", "status"),
    [
        (["--superlink", "127.0.0.1:1"], "go with federation=deployment", 2),
        (["federation=deployment", "--superlink", "nowhere"], "must be HOST:PORT", 2),
        (
            ["federation=deployment", "--superlink", "a:1", "--root-certificates", "no.crt"],
            "there is no file",
            2,
        ),
        (["federation=deployment", "--superlink", "127.0.0.1:1"], "no SuperLink answers at", 1),
        (["federation.min_nodes=1"], "federation.min_nodes is for a deployment", 2),
        (
            ["federation=deployment", "federation.min_nodes=3"],
            "federation.min_nodes=3 is more than federation.num_nodes=2",
            2,
        ),
        (["federation.rejoin_s=-1"], "federation.rejoin_s must not be negative", 2),
    ],
    ids=str,
)
def test_run_refuses(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
    status: int,
) -> None:
    assert run_command(["run", *DATA, *arguments]) == status
    assert words in capsys.readouterr().err


def test_the_server_needs_no_data_file_of_a_deployment(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["dataset=file", "federation=deployment", "--superlink", "127.0.0.1:1"]
    assert run_command(["run", *arguments]) == 1
    assert "no SuperLink answers" in capsys.readouterr().err


# ---- deploy ------------------------------------------------------------------------------
@pytest.mark.parametrize("command", ["status", "down"])
def test_there_is_no_deployment(
    here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run_command(["deploy", command]) == 2
    assert f"there is no deployment in {here / 'deployment'}" in capsys.readouterr().err


def test_a_folder_for_other_nodes_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["prepare", *DATA, "--nodes", "2", "--out", "deployment/prepared"]) == 0
    assert run_command(["deploy", "up", "--nodes", "3", *DATA]) == 2
    assert "was prepared for 2 nodes, not 3" in capsys.readouterr().err


def test_status_tells_ended_processes_from_others_with_their_id(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process with this id runs, but it was started at another time."""
    folder = here / "deployment"
    folder.mkdir()
    members = {
        name: Member(name, os.getpid(), "another start", 1) for name in ("superlink", "node-000")
    }
    content = {name: asdict(member) for name, member in members.items()}
    (folder / RECORD).write_text(json.dumps(content))
    assert run_command(["deploy", "status"]) == 0
    shown = capsys.readouterr().out
    assert "ended" in shown and "runs" not in shown
    assert "does not answer" in shown
    assert Deployment(folder).stop() == []
    assert process(os.getpid()) is not None


def test_a_damaged_record_is_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "deployment").mkdir()
    (here / "deployment" / RECORD).write_text("{")
    assert run_command(["deploy", "status"]) == 1
    assert f"{RECORD} cannot be read" in capsys.readouterr().err


def test_a_process_that_ends_at_once_is_shown_with_its_log(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment, "program", lambda name: sys.executable)
    with pytest.raises(SuperLinkError, match=r"superlink has ended: .*log: "):
        Deployment(here / "deployment").start_superlink()


def test_connections_are_written_as_flower_reads_them(tmp_path: Path) -> None:
    assert 'address = "a:1"\ninsecure = true' in Connection("a:1").config
    secure = Connection("a:1", tmp_path / "ca.crt")
    assert f'root-certificates = "{tmp_path / "ca.crt"}"' in secure.config
    assert secure.key != Connection("a:1").key
    assert secure.options == ["--superlink", "a:1", "--root-certificates", str(tmp_path / "ca.crt")]
    assert Connection("a:1").options == ["--superlink", "a:1"]
    assert not Connection("127.0.0.1:1").is_healthy()
    assert not Connection("127.0.0.1:1", tmp_path / "missing").is_healthy()
