"""Real processes: a home of its own for Flower, ended by the tests that started it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_up import write_interactions
from real_commands import BINARIES, Command


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small data file and the home of a SuperLink."""
    folder = tmp_path_factory.mktemp("e2e")
    write_interactions(folder / "ratings.csv")
    return folder


@pytest.fixture(scope="module")
def environment(place: Path) -> dict[str, str]:
    """Variables of the commands: our own home, no trace of the developer's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "FEDRECGEL_"))}
    return {**kept, "FEDRECGEL_HOME": str(place / "home")}


@pytest.fixture(scope="module")
def fedrecgel(place: Path, environment: dict[str, str]) -> Iterator[Command]:
    """Runs ``fedrecgel`` in ``place``; the SuperLink it starts is stopped at the end."""

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BINARIES / "fedrecgel"), *arguments],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    yield command
    stopped = command("stop")
    assert stopped.returncode == 0, stopped.stderr
