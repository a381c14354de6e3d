"""Trackers: which figures go where and when, read back by the trackers' own readers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_nodes import FakeNodes, tiny_config

from conf.build import ConfigError
from conf.compose import compose
from conf.fingerprint import code_fingerprint
from conf.tree import Config, from_json, to_json
from server_app import tracking
from server_app.callbacks import RunInfo, read_metrics
from server_app.cli import run_command
from server_app.errors import ClientsFailedError, RoundError, StorageError
from server_app.grid import LocalGrid
from server_app.results import RunResult, load_result
from server_app.run import run_server
from server_app.tracking import Tracker
from strategies.messages import Downlink

SETTINGS = ("federation.rounds=6", "evaluation.every=2", "federation.checkpoint_every=2")


def needs(package: str) -> None:
    pytest.importorskip(package, reason=f"{package} of the extra tracking is not installed")


@pytest.fixture
def nodes() -> FakeNodes:
    return FakeNodes(code_fingerprint())


def fail_in(server_round: int) -> Callable[[int, Downlink], None]:
    def fail(index: int, request: Downlink) -> None:
        if request.round == server_round:
            raise RuntimeError("no power")

    return fail


def config(tmp_path: Path, *overrides: str) -> Config:
    return tiny_config(tmp_path, *SETTINGS, "name=run", *overrides)


def run(tmp_path: Path, nodes: FakeNodes, *overrides: str) -> RunResult:
    return run_server(LocalGrid(2, nodes.app()), config(tmp_path, *overrides))


# ---- settings ------------------------------------------------------------------------------
def test_settings() -> None:
    assert not any(vars(compose([]).tracking)[name] for name in ("tensorboard", "mlflow"))
    both = compose(["tracking=[tensorboard,mlflow]"])
    assert both.tracking.tensorboard and both.tracking.mlflow
    assert from_json(to_json(both)).tracking == both.tracking
    with pytest.raises(ConfigError, match=r"tracking=\[nix\] does not exist; choose one of mlflow"):
        compose(["tracking=[nix]"])


def test_a_missing_package_is_one_line_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    for name in ("mlflow", "tensorboard"):
        with pytest.raises(ConfigError, match=rf"tracking={name} needs .*'\.\[tracking\]'"):
            run_server(LocalGrid(2), config(tmp_path, f"tracking={name}"))
    assert not (tmp_path / "run").exists()
    chosen = ["run", "tracking=mlflow", "federation.grid=local", f"output={tmp_path / 'runs'}"]
    assert run_command(chosen) == 2
    assert "pip install '.[tracking]'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


# ---- what any tracker is told ----------------------------------------------------------------
class Told(Tracker):
    """Notes what it is told, and fails where the test says so."""

    name = "told"

    def __init__(self, cfg: Config, folder: Path) -> None:
        super().__init__(cfg, folder)
        self.params: dict[str, object] = {}
        self.figures: list[tuple[int, dict[str, float]]] = []
        self.closed: list[tuple[str, dict[str, str]]] = []
        self.broken: Callable[[int], bool] = lambda step: False

    def open(self, info: RunInfo, params: dict[str, object], tags: dict[str, str]) -> None:
        if self.broken(0):
            raise OSError("no such server\nand more")
        self.params = params
        assert tags["strategy"] == "fedncf"

    def metrics(self, values: dict[str, float], step: int) -> None:
        if self.broken(step):
            raise OSError("away")
        self.figures.append((step, values))

    def close(self, status: str, tags: dict[str, str]) -> None:
        self.closed.append((status, tags))


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    tracker = Told(config(tmp_path), tmp_path / "run")
    monkeypatch.setattr("server_app.run.trackers", lambda cfg, folder: [tracker])
    return tracker


def test_test_figures_are_told_at_the_end_only(
    tmp_path: Path, nodes: FakeNodes, told: Told
) -> None:
    """Rounds 2, 4 and 6: each a batch of training and one of validation; then the final one."""
    result = run(tmp_path, nodes)
    *rounds, (last, final) = told.figures
    assert [step for step, _ in rounds] == [1, 2, 2, 3, 4, 4, 5, 6, 6]
    assert not any("test/" in name for _, values in rounds for name in values)
    assert rounds[2][1]["validation/sampled/hr@10"] == pytest.approx(0.5)
    assert rounds[0][1]["train/loss"] == pytest.approx(0.5)
    assert (last, final["final/test/sampled/hr@10"]) == (6, result.metrics["test/sampled/hr@10"])
    assert final["popularity/test/full/hr@10"] == pytest.approx(0.1)
    assert told.closed == [("FINISHED", {"selected_round": str(result.selected_round)})]
    assert told.params["federation.rounds"] == 6 and told.params["strategy_name"] == "fedncf"


def test_a_failure_is_told(tmp_path: Path, nodes: FakeNodes, told: Told) -> None:
    nodes.before_train = fail_in(3)
    with pytest.raises(RoundError):
        run(tmp_path, nodes)
    ((status, tags),) = told.closed
    assert status == "FAILED" and "no power" in tags["error"]
    assert not any("test/" in name for _, values in told.figures for name in values)


def test_a_run_whose_clients_failed_has_figures_all_the_same(
    tmp_path: Path, nodes: FakeNodes, told: Told
) -> None:
    def fail(index: int, request: Downlink) -> None:
        if (index, request.round) == (1, 3):
            raise RuntimeError("no power")

    nodes.before_train = fail
    with pytest.raises(ClientsFailedError):
        run(tmp_path, nodes, "federation.on_missing=continue")
    assert told.closed[0][0] == "FAILED" and "selected_round" in told.closed[0][1]
    assert "final/test/sampled/hr@10" in told.figures[-1][1]


def test_an_interrupted_run_is_no_failed_one(
    tmp_path: Path, nodes: FakeNodes, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("server_app.rounds.RoundLoop._record", stop)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, nodes)
    assert [status for status, _ in told.closed] == ["KILLED"]


def test_a_tracker_that_is_away_stops_nothing_and_misses_nothing(
    tmp_path: Path, nodes: FakeNodes, told: Told
) -> None:
    """Away from round 3 on, it is asked once more at the end: everything arrives, in order."""
    attempts: list[int] = []

    def broken(step: int) -> bool:
        attempts.append(step)
        return step == 3 and attempts.count(3) == 1

    told.broken = broken
    result = run(tmp_path, nodes)
    assert attempts[:6] == [0, 1, 2, 2, 3, 3]
    assert [step for step, _ in told.figures] == [1, 2, 2, 3, 4, 4, 5, 6, 6, 6]
    assert len(read_metrics(result.folder)) == 6
    assert told.closed[0][0] == "FINISHED"


def test_a_tracker_that_stays_away(
    tmp_path: Path, nodes: FakeNodes, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(tracking, "log", lambda level, text, *args: lines.append(text % args))
    told.broken = lambda step: step >= 3
    result = run(tmp_path, nodes)
    assert load_result(result.folder) == result
    assert lines == [
        "tracking=told failed: away",
        "tracking=told failed: away",
        "tracking=told has not received all figures; metrics.jsonl and result.json have them",
    ]


def test_a_tracker_that_cannot_begin_is_one_line(
    tmp_path: Path, nodes: FakeNodes, told: Told
) -> None:
    told.broken = lambda step: True
    with pytest.raises(StorageError, match=r"^tracking=told: no such server$"):
        run(tmp_path, nodes)
    assert not nodes.downlinks


# ---- TensorBoard -----------------------------------------------------------------------------
def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder / "tensorboard"), {"tensors": 0, "scalars": 0}).Reload()


def test_tensorboard_reads_every_round_once_after_a_resume(
    tmp_path: Path, nodes: FakeNodes
) -> None:
    needs("tensorboard")
    nodes.before_train = fail_in(4)
    with pytest.raises(RoundError):
        run(tmp_path, nodes, "tracking=tensorboard")
    first = events(tmp_path / "run")
    assert not [tag for tag in first.Tags()["scalars"] if "test/" in tag]
    nodes.before_train = lambda index, request: None
    result = run(tmp_path, nodes, "tracking=tensorboard", "resume=true")
    found = events(result.folder)
    assert [event.step for event in found.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]
    shown = {e.step: e.value for e in found.Scalars("validation/sampled/hr@10")}
    assert shown == pytest.approx({2: 0.5, 4: 0.4, 6: 0.2}, rel=1e-6)
    (final,) = found.Scalars("final/test/sampled/hr@10")
    assert final.value == pytest.approx(result.metrics["test/sampled/hr@10"], rel=1e-6)
    texts = found.Tensors("configuration/text_summary")
    assert b"federation.rounds: 6" in texts[-1].tensor_proto.string_val[0]
    status = found.Tensors("status/text_summary")[-1].tensor_proto.string_val[0]
    assert b"FINISHED" in status


def test_tensorboard_knows_the_settings_as_hyperparameters(
    tmp_path: Path, nodes: FakeNodes
) -> None:
    needs("tensorboard")
    nodes.before_train = fail_in(4)
    with pytest.raises(RoundError):
        run(tmp_path, nodes, "tracking=tensorboard")
    from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

    metadata = events(tmp_path / "run").summary_metadata
    said = {
        name.rpartition("/")[2]: plugin_data_pb2.HParamsPluginData.FromString(
            found.plugin_data.content
        )
        for name, found in metadata.items()
        if found.plugin_data.plugin_name == "hparams"
    }
    start = said["session_start_info"].session_start_info
    assert start.hparams["federation.rounds"].number_value == 6
    assert start.hparams["strategy_name"].string_value == "fedncf"
    assert said["session_end_info"].session_end_info.status == api_pb2.STATUS_FAILURE


# ---- MLflow ----------------------------------------------------------------------------------
def tracked(tmp_path: Path) -> tuple[Any, list[Any]]:
    """A client of the database beside the runs, and the tracked runs in it."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fedrecgel")
    assert experiment is not None
    return client, list(client.search_runs([experiment.experiment_id]))


def test_mlflow_has_one_run_for_a_run_and_its_resume(tmp_path: Path, nodes: FakeNodes) -> None:
    needs("mlflow")
    nodes.before_train = fail_in(4)
    with pytest.raises(RoundError):
        run(tmp_path, nodes, "tracking=mlflow")
    _, (failed,) = tracked(tmp_path)
    assert failed.info.status == "FAILED" and "no power" in failed.data.tags["error"]
    assert not [name for name in failed.data.metrics if "test/" in name]
    nodes.before_train = lambda index, request: None
    more = ("resume=true", "federation.deadline_s=99")
    result = run(tmp_path, nodes, "tracking=mlflow", *more)
    client, (found,) = tracked(tmp_path)
    assert (found.info.run_id, found.info.status) == (failed.info.run_id, "FINISHED")
    assert found.info.run_name == "run"

    def steps(name: str) -> list[int]:
        return [m.step for m in client.get_metric_history(found.info.run_id, name)]

    assert sorted(steps("train/loss")) == [1, 2, 3, 4, 5, 6]
    assert sorted(steps("validation/sampled/hr_at_10")) == [2, 4, 6]
    told = found.data.metrics["final/test/sampled/hr_at_10"]
    assert told == result.metrics["test/sampled/hr@10"]
    assert found.data.params["strategy_name"] == "fedncf"
    assert found.data.params["federation.deadline_s"] == "600.0"
    assert found.data.tags["resumed.federation.deadline_s"] == "99.0"
    assert "error" not in found.data.tags
    assert found.data.tags["selected_round"] == str(result.selected_round)


def test_mlflow_takes_another_store_and_experiment(tmp_path: Path, nodes: FakeNodes) -> None:
    needs("mlflow")
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'other.db'}"
    chosen = (f"tracking.mlflow_uri='{uri}'", "tracking.mlflow_experiment=mine")
    run(tmp_path, nodes, "tracking=mlflow", *chosen)
    assert not (tmp_path / "mlflow.db").exists()
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("mine")
    assert experiment is not None and len(client.search_runs([experiment.experiment_id])) == 1


def test_mlflow_that_cannot_be_written_is_one_line(tmp_path: Path, nodes: FakeNodes) -> None:
    needs("mlflow")
    uri = f"tracking.mlflow_uri='sqlite:///{tmp_path / 'none' / 'none' / 'x.db'}'"
    (tmp_path / "none").write_text("a file where a folder should be")
    with pytest.raises(StorageError, match=r"^tracking=mlflow: .+$"):
        run(tmp_path, nodes, "tracking=mlflow", uri)


def test_both_at_once(tmp_path: Path, nodes: FakeNodes) -> None:
    needs("tensorboard")
    needs("mlflow")
    result = run(tmp_path, nodes, "tracking=[tensorboard,mlflow]")
    _, (found,) = tracked(tmp_path)
    assert found.info.status == "FINISHED"
    assert len(events(result.folder).Scalars("train/loss")) == 6
    assert len(read_metrics(result.folder)) == 6
