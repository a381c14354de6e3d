"""Run folders: names, locks, and what a resume may change."""

from __future__ import annotations

import fcntl
import json
import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from fake_nodes import FakeNodes, tiny_config

from conf.fingerprint import code_fingerprint
from conf.tree import from_mapping, to_json
from server_app.errors import RunFolderError
from server_app.grid import LocalGrid
from server_app.lock import is_locked
from server_app.run import run_server
from server_app.run_folder import (
    RunFolder,
    RunState,
    read_config,
    read_state,
    with_defaults,
)


def test_the_default_name_says_what_it_is_and_is_never_reused(tmp_path: Path) -> None:
    cfg, now = tiny_config(tmp_path, "seed=3"), datetime(2026, 1, 2, 3, 4, 5)
    assert with_defaults(cfg, now).name == "tiny-fedncf-s3-20260102-030405"
    assert with_defaults(cfg, now).name == "tiny-fedncf-s3-20260102-030405-2"


def test_the_default_output_is_runs_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert with_defaults(replace(tiny_config(tmp_path), output="")).output == str(tmp_path / "runs")


def test_the_written_configuration_builds_the_same_tree(tmp_path: Path) -> None:
    cfg = tiny_config(tmp_path, "name=run")
    with RunFolder.opened(cfg) as folder:
        values = read_config(folder.path)
    assert to_json(from_mapping(values)) == to_json(cfg)


def test_a_folder_with_a_run_is_refused(tmp_path: Path) -> None:
    cfg = tiny_config(tmp_path, "name=run")
    with RunFolder.opened(cfg):
        pass
    with pytest.raises(RunFolderError, match="holds a run already"), RunFolder.opened(cfg):
        pass


def test_two_servers_cannot_write_the_same_run(tmp_path: Path) -> None:
    cfg = tiny_config(tmp_path, "name=run")
    with RunFolder.opened(cfg):
        again = replace(cfg, resume=True)
        with pytest.raises(RunFolderError, match="in use"), RunFolder.opened(again):
            pass


def test_a_running_state_without_a_process_reads_as_interrupted(tmp_path: Path) -> None:
    cfg = tiny_config(tmp_path, "name=run")
    with RunFolder.opened(cfg) as folder:
        folder.write_state(RunState("running", "id", 0))
        assert read_state(folder.path).status == "running"
    assert read_state(tmp_path / "run").status == "interrupted"


def test_a_look_at_the_lock_neither_writes_nor_holds_up_a_start(tmp_path: Path) -> None:
    cfg = tiny_config(tmp_path, "name=run")
    with RunFolder.opened(cfg) as folder:
        pass
    lock = folder.path / "lock"
    lock.write_text("pid 7\n")
    assert not is_locked(folder.path)
    assert lock.read_text() == "pid 7\n"
    with lock.open("rb") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        # Another lister does not take the first for a run ...
        assert not is_locked(folder.path)
        # ... and a run that starts meanwhile waits until the look is over.
        threading.Timer(0.1, lambda: fcntl.flock(look, fcntl.LOCK_UN)).start()
        with RunFolder.opened(replace(cfg, resume=True)):
            assert is_locked(folder.path)


def test_a_folder_without_a_lock_is_not_in_use(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "override", ["seed=1", "strategy.private_lr=0.2", "federation.fraction=0.4", "model.factors=3"]
)
def test_a_resume_with_another_setting_names_it(tmp_path: Path, override: str) -> None:
    with RunFolder.opened(tiny_config(tmp_path, "name=run")):
        pass
    key = override.split("=", maxsplit=1)[0]
    cfg = tiny_config(tmp_path, "name=run", "resume=true", override)
    with pytest.raises(RunFolderError, match=f"another {key}"), RunFolder.opened(cfg):
        pass
    assert json.loads(to_json(tiny_config(tmp_path, "name=run"))) == read_config(tmp_path / "run")


def test_rounds_may_grow_but_not_shrink(tmp_path: Path) -> None:
    with RunFolder.opened(tiny_config(tmp_path, "name=run")):
        pass
    fewer = tiny_config(tmp_path, "name=run", "resume=true", "federation.rounds=5")
    with pytest.raises(RunFolderError, match="fewer rounds"), RunFolder.opened(fewer):
        pass
    more = tiny_config(tmp_path, "name=run", "resume=true", "federation.rounds=9")
    with RunFolder.opened(more) as folder:
        assert folder.path == tmp_path / "run"


def test_there_must_be_a_run_to_resume(tmp_path: Path) -> None:
    cfg = tiny_config(tmp_path, "name=run", "resume=true")
    with pytest.raises(RunFolderError, match="no run to resume"), RunFolder.opened(cfg):
        pass
    assert not (tmp_path / "run").exists()


def test_a_completed_run_resumed_with_more_rounds_goes_on(tmp_path: Path) -> None:
    nodes = FakeNodes(code_fingerprint())
    run_server(LocalGrid(2, nodes.app()), tiny_config(tmp_path, "name=run"))
    trained = len(nodes.downlinks)
    cfg = tiny_config(tmp_path, "name=run", "resume=true", "federation.rounds=8")
    result = run_server(LocalGrid(2, nodes.app()), cfg)
    assert result.rounds == 8
    assert {d.round for _, d in nodes.downlinks[trained:]} == {7, 8}
    assert {d.header.incarnation for _, d in nodes.downlinks[trained:]} == {1}
    assert len({d.header.run_id for _, d in nodes.downlinks}) == 1


@pytest.mark.parametrize(
    ("first", "second", "warned"), [(4, 8, True), (6, 8, False), (3, 6, False), (4, 4, False)]
)
def test_a_resume_that_cannot_equal_an_unbroken_run_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: int, second: int, warned: bool
) -> None:
    """Evaluations are due every three rounds; round 4 is evaluated because it is the last of
    four, and would not be in a run of eight."""
    nodes = FakeNodes(code_fingerprint())
    run_server(LocalGrid(2, nodes.app()), tiny_config(tmp_path, "name=run", _rounds(first)))
    cfg = tiny_config(tmp_path, "name=run", "resume=true", _rounds(second))
    caplog.clear()
    run_server(LocalGrid(2, nodes.app()), cfg)
    texts = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert any(f"Round {first} was evaluated as the last" in text for text in texts) is warned


def _rounds(number: int) -> str:
    return f"federation.rounds={number}"
