"""A server process for the kill test: stops itself by SIGKILL where it is told to."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from made_up import small_config

from server_app import checkpoint
from server_app.callbacks import Callback, RoundRecord
from server_app.grid import LocalGrid
from server_app.run import run_server


class KillAfter(Callback):
    """Kills the process after a round's line was written, before its checkpoint."""

    def __init__(self, server_round: int) -> None:
        self._round = server_round

    def on_round(self, record: RoundRecord) -> None:
        if record.round == self._round:
            os.kill(os.getpid(), signal.SIGKILL)


def kill_while_saving(server_round: int) -> None:
    """Kill the process when a checkpoint's files are written but not yet in place."""
    write, written = checkpoint.write_synced, []

    def write_then_die(path: Path, data: bytes) -> None:
        write(path, data)
        if f"{server_round:09d}" in str(path.parent):
            written.append(path)
        if len(written) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.write_synced = write_then_die


def main() -> None:
    folder, when, server_round, *overrides = sys.argv[1:]
    torch.set_num_threads(1)
    cfg = small_config(Path(folder), "name=run", *overrides)
    callbacks = [KillAfter(int(server_round))] if when == "round" else []
    if when == "saving":
        kill_while_saving(int(server_round))
    run_server(LocalGrid(cfg.federation.num_nodes), cfg, callbacks)


if __name__ == "__main__":
    main()
