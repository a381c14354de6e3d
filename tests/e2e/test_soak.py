"""Fifty rounds in which a random SuperNode is killed with -9 every few rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from real_commands import Command
from real_deployment import Site, until

from client_app.doctor import examine

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(2400)]

NODES, ROUNDS, EVERY = 3, 50, 4
SETTINGS = [
    "dataset=file",
    "dataset.path=ratings.csv",
    "model.factors=4",
    "protocol.num_candidates=20",
    f"federation.rounds={ROUNDS}",
    "federation.fraction=0.5",
    "evaluation.every=25",
]


def test_a_run_survives_its_nodes(
    place: Path, environment: dict[str, str], fedrecgel: Command
) -> None:
    """Same bytes as an undisturbed simulation: nothing was lost, nobody was trained twice."""
    local = ["federation.grid=local", f"federation.num_nodes={NODES}", "--name", "calm"]
    calm = fedrecgel("run", *SETTINGS, *local)
    assert calm.returncode == 0, calm.stderr
    site = Site(place, environment, SETTINGS, NODES)
    rng, kills = np.random.default_rng(7), 0
    try:
        site.deployment.start()
        running = site.start(site.new("stormy"))
        for after in range(EVERY, ROUNDS - 1, EVERY):
            until(lambda: running.poll() is not None or len(site.rounds("stormy")) >= after)  # noqa: B023
            assert running.poll() is None
            node, pause = int(rng.integers(NODES)), float(rng.uniform(0.0, 6.0))
            with pytest.raises(AssertionError):
                until(lambda: running.poll() is not None, pause)
            site.kill_node(node)
            kills += 1
            site.restart_node(node)
        output, _ = running.communicate(timeout=1200)
        assert running.returncode == 0, output
    finally:
        site.deployment.stop()
    assert kills == len(range(EVERY, ROUNDS - 1, EVERY))
    assert site.tensors("stormy", ROUNDS) == site.tensors("calm", ROUNDS)
    assert [line["num_users"] for line in site.rounds("stormy")] == [12] * ROUNDS
    for folder in site.deployment.node_folders:
        report = examine(folder / "store.sqlite")
        assert report.problems == ()
        assert {p.name for p in folder.iterdir()} <= KEPT


KEPT = {
    "shard.json",
    "users.tsv",
    "catalogue.tsv",
    "interactions.inter",
    "cache",
    "store.sqlite",
    "store.sqlite-wal",
    "store.sqlite-shm",
}
"""What may be in a node's folder: no half-written file."""
