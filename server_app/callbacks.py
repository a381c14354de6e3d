"""What follows a run: the metrics file, the log, and whatever a caller adds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from logging import INFO
from pathlib import Path

from flwr.common.logger import log

from server_app.files import named
from server_app.records import read_records, truncate_records
from server_app.results import RunResult

METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class RunInfo:
    """What is known when the first round begins."""

    name: str
    folder: Path
    dataset: str
    protocol: str
    strategy: str
    model: str
    seed: int
    first_round: int
    """The first round of this start; above 1 after a resume."""
    rounds: int
    num_users: int
    num_items: int
    num_nodes: int


@dataclass(frozen=True)
class EvaluationRecord:
    """An evaluated round, without what is sealed."""

    round: int
    metrics: dict[str, float]
    selected_round: int
    """The best round so far, which may be this one."""


@dataclass(frozen=True)
class RoundRecord:
    """A finished round: one line of ``metrics.jsonl``."""

    round: int
    rounds: int
    num_users: int
    """Users whose updates arrived."""
    train: dict[str, float]
    """Means over these users."""
    evaluation: dict[str, float] | None
    """Means over all users where a round was evaluated, without what is sealed."""
    evaluated_round: int | None
    """The evaluated round: this one, or the one before where it was ranked with this one's
    training."""
    selected_round: int | None
    bytes_up: int
    bytes_down: int
    seconds: dict[str, float]
    """The round's wall time by part, as ``server_app.meter.PARTS`` has them."""
    failures: int
    """Messages without a usable reply, of training and evaluation; those sent before the first
    round count to it."""
    client_errors: list[str]
    """A line for each client that raised an error, or sent a reply that was rejected, and whose
    users the exchange then went without."""
    dropped_late: int
    privacy: dict[str, object] | None = None
    """ε so far and δ (``server_app.privacy``); None without a mechanism that has a bound."""
    secagg: dict[str, float] | None = None
    """What secure aggregation took beside the uploads (``server_app.secagg_journal.Costs``)."""
    poisoning: dict[str, float] | None = None
    """Malicious updates of the round, and those that the defence flagged; None without either."""
    devices: dict[str, float] | None = None
    """Counts and simulated time (``server_app.devices.participation.Tally``); None without."""


class Callback:
    """Follows a run; every method does nothing by default."""

    def on_start(self, info: RunInfo) -> None:
        """Before the first round of this start."""

    def on_evaluate(self, record: EvaluationRecord) -> None:
        """After an evaluation."""

    def on_round(self, record: RoundRecord) -> None:
        """After a round and, where one was due, its evaluation; before its checkpoint."""

    def on_end(self, result: RunResult) -> None:
        """After the result was written."""

    def on_failure(self, error: BaseException) -> None:
        """When the run ends by an exception, which is raised again afterwards."""


class MetricsLog(Callback):
    """Appends a line a round to ``metrics.jsonl``."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / METRICS

    def on_round(self, record: RoundRecord) -> None:
        """Append and flush, so that followers see whole lines."""
        with named(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record), allow_nan=False) + "\n")


class LogProgress(Callback):
    """Writes a line a round to Flower's log, for ``flwr log`` and ``flwr run --stream``."""

    def on_start(self, info: RunInfo) -> None:
        """Name the run and where it writes."""
        log(INFO, "Run %s: %d users on %d nodes, %d items, rounds %d to %d, results in %s",
            info.name, info.num_users, info.num_nodes, info.num_items,
            info.first_round, info.rounds, info.folder)  # fmt: skip

    def on_round(self, record: RoundRecord) -> None:
        """Say how far the run is."""
        train = " ".join(f"{n} {v:.4f}" for n, v in record.train.items())
        shown = {n: v for n, v in (record.evaluation or {}).items() if n.endswith("@10")}
        evaluation = " ".join(f"{n} {v:.4f}" for n, v in shown.items())
        log(INFO, "Round %d/%d: %d users, %s %s %s", record.round, record.rounds,
            record.num_users, train, evaluation, epsilon_text(record.privacy))  # fmt: skip

    def on_end(self, result: RunResult) -> None:
        """Name the selected round."""
        log(INFO, "Run %s completed: round %d selected, results in %s",
            result.name, result.selected_round, result.folder)  # fmt: skip


def epsilon_text(privacy: Mapping[str, object] | None) -> str:
    """ε and δ in a word each; empty where there is no bound."""
    if privacy is None or privacy["epsilon"] is None:
        return ""
    epsilon, delta = float(str(privacy["epsilon"])), float(str(privacy["delta"]))
    return f"{privacy['mechanism']} ε {epsilon:.2f} δ {delta:.1e}"


def read_metrics(folder: Path) -> list[dict[str, object]]:
    """The complete lines of a run's ``metrics.jsonl``; a line cut off by a crash is left out."""
    return read_records(folder / METRICS)


def truncate_metrics(folder: Path, last_round: int) -> None:
    """Drop the lines of rounds after ``last_round``, which a resumed run trains again."""
    truncate_records(folder / METRICS, last_round)
