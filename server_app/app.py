"""The ServerApp that `flwr run` starts: overrides to configuration to run."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from conf.compose import compose
from conf.overrides import default_runs
from server_app.callbacks import LogProgress
from server_app.run import run_server

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configuration of ``overrides``; an exception makes Flower's run a failed one.

    Without ``output`` run folders go to ``FEDRECGEL_RUNS`` or ``~/fedrecgel-runs``: the working
    folder of this process is that of the SuperLink. The log names the run's folder.
    """
    cfg = compose(shlex.split(str(context.run_config.get("overrides", ""))))
    root = cfg.output or default_runs(Path.home() / "fedrecgel-runs")
    run_server(grid, replace(cfg, output=root), [LogProgress()])
