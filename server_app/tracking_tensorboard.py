"""TensorBoard: event files in the run's folder, with the settings as hyperparameters."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2
from torch.utils.tensorboard import SummaryWriter

from conf.tree import Config
from server_app.callbacks import RunInfo
from server_app.tracking import FINISHED, Tracker

EVENTS = "tensorboard"


class TensorBoardTracker(Tracker):
    """Writes ``tensorboard/`` in the run's folder."""

    name = "tensorboard"

    def __init__(self, cfg: Config, folder: Path) -> None:
        super().__init__(cfg, folder)
        self._writer: Any = None

    def open(self, info: RunInfo, params: dict[str, object], tags: dict[str, str]) -> None:
        """Add a file; what a broken start wrote of the rounds to come is dropped by readers."""
        folder = str(self._folder / EVENTS)
        self._writer = SummaryWriter(folder, purge_step=info.first_round)
        shown = {key: _hyperparameter(value) for key, value in params.items()}
        start = summary_v2.hparams_pb(shown, trial_id=info.name)
        self._writer.file_writer.add_summary(start, 0)
        self._text("configuration", yaml.safe_dump({**params}, sort_keys=True))
        self._text("tags", yaml.safe_dump(tags))
        self._writer.flush()

    def metrics(self, values: dict[str, float], step: int) -> None:
        """Scalars, on disk when this returns."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, status: str, tags: dict[str, str]) -> None:
        """The status, as text and as that of the hyperparameters' session."""
        success = status == FINISHED
        ended = api_pb2.STATUS_SUCCESS if success else api_pb2.STATUS_FAILURE
        self._writer.file_writer.add_summary(_session_end(ended), 0)
        self._text("status", yaml.safe_dump({"status": status, **tags}))
        self._writer.close()

    def _text(self, name: str, text: str) -> None:
        # Indented text is shown as it is.
        lines = "".join(f"    {line}\n" for line in text.splitlines())
        self._writer.add_text(name, lines, 0)


def _session_end(status: int) -> Any:
    """The hyperparameters' session has ended; TensorBoard's own function needs TensorFlow."""
    ended = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
    content = plugin_data_pb2.HParamsPluginData(
        version=metadata.PLUGIN_DATA_VERSION, session_end_info=ended
    )
    plugin = SummaryMetadata.PluginData(
        plugin_name=metadata.PLUGIN_NAME, content=content.SerializeToString()
    )
    about = SummaryMetadata(plugin_data=plugin)
    return Summary(value=[Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=about)])


def _hyperparameter(value: object) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)
