"""The outcome of a run, as an object and as ``result.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from server_app.devices.participation import NOT_SUMMED
from server_app.errors import ServerError
from server_app.files import replace_json

RESULT = "result.json"


@dataclass(frozen=True)
class RunResult:
    """What a completed run says. Metrics are means over users, by wire name."""

    name: str
    folder: Path
    dataset: str
    protocol: str
    strategy: str
    title: str
    """The strategy's name as in its paper."""
    model: str
    seed: int
    num_users: int
    num_items: int
    rounds: int
    """The last round trained."""
    selected_round: int
    select: str
    """The rule that selected the round."""
    early_stopped: bool
    metrics: dict[str, float]
    """Metrics of the selected round: test, validation where there is one, catalogue."""
    counts: dict[str, float]
    """Users behind each metric."""
    popularity: dict[str, float] | None
    """The same metrics of ranking by popularity; None when not asked for."""
    totals: dict[str, float] = field(default_factory=dict)
    """Over all rounds: users trained, bytes up and down, seconds by part, failures, client
    errors; the last two over exchanges outside rounds as well."""
    privacy: dict[str, object] | None = None
    """ε and δ of the run and what they are of (``server_app.privacy``); None without one."""
    poisoning: dict[str, float] = field(default_factory=dict)
    """Of a run with an attack or a defence: updates sent and flagged, precision and recall of the
    flags, and what was lost against a clean run (``server_app.poisoning``)."""

    def save(self) -> None:
        """Write ``result.json`` into the run's folder, atomically."""
        values = asdict(self)
        del values["folder"]
        replace_json(self.folder / RESULT, values)


def load_result(folder: Path) -> RunResult:
    """Read the result of a run folder.

    Raises:
        ServerError: when there is no result, or it is not one of ours.

    """
    path = folder / RESULT
    try:
        return RunResult(folder=folder, **json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        raise ServerError(f"{folder} has no {RESULT}: the run has not completed") from None
    except (ValueError, TypeError) as error:
        raise ServerError(f"{path} is not a result of this version: {error}") from None


def totals_of(records: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """Sums over the lines of ``metrics.jsonl``, with users trained per second."""
    totals: dict[str, float] = {}
    for record in records:
        flat = {k: v for k, v in record.items() if k in SUMMED}
        secagg = record.get("secagg")
        if isinstance(secagg, Mapping):
            flat |= {f"secagg_{k}": v for k, v in secagg.items()}
        devices = record.get("devices")
        if isinstance(devices, Mapping):
            flat |= {f"devices_{k}": v for k, v in devices.items() if k not in NOT_SUMMED}
        errors = record.get("client_errors")
        flat |= {"client_errors": len(errors)} if isinstance(errors, list) else {}
        seconds = record.get("seconds")
        if isinstance(seconds, Mapping):
            flat |= {f"seconds_{k}": v for k, v in seconds.items()}
        for key, value in flat.items():
            totals[key] = totals.get(key, 0.0) + float(str(value))
    train = totals.get("seconds_train", 0.0)
    if train > 0:
        totals["users_per_second"] = totals.get("num_users", 0.0) / train
    return totals


SUMMED = ("num_users", "bytes_up", "bytes_down", "failures", "dropped_late")
