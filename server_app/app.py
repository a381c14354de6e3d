"""The ServerApp that `flwr run` starts: overrides to configuration to run."""

from __future__ import annotations

import shlex

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from conf.compose import compose
from server_app.callbacks import LogProgress
from server_app.run import run_server

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configuration of ``overrides``; an exception makes Flower's run a failed one."""
    overrides = shlex.split(str(context.run_config.get("overrides", "")))
    run_server(grid, compose(overrides), [LogProgress()])
