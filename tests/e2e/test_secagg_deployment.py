"""Masked sums over real SuperNodes, of which some are killed between two stages of a round.

The run must have the figures of one without masks over the same nodes: what a node was in is in the
server's journal, and a run in process leaves the others out. A sum of ranking metrics over n nodes
is off by at most n · 2^-33, so a mean over at least n users is by at most 2^-33; the parameters
differ by the rounding of float32 sums, which is far less than what changes a rank here.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from made_up import write_interactions
from real_commands import Command
from real_deployment import Site, until
from safetensors.numpy import load_file
from secagg_replay import replay

from conf.compose import compose
from conf.overrides import absolute_overrides
from server_app.results import load_result
from server_app.secagg_journal import Journal

pytestmark = pytest.mark.e2e

NODES, ROUNDS = 4, 3
SETTINGS = [
    "dataset=file",
    "dataset.path=ratings.csv",
    "model.factors=4",
    "protocol.num_candidates=20",
    f"federation.rounds={ROUNDS}",
    "federation.fraction=1.0",
    "evaluation.every=3",
]
TOLERANT = ["privacy=secagg", "federation.min_share=0.5", "federation.deadline_s=20"]


@pytest.fixture(scope="module")
def site(place: Path, environment: dict[str, str], fedrecgel: Command) -> Iterator[Site]:
    write_interactions(place / "ratings.csv")
    found = Site(place, environment, SETTINGS, NODES)
    try:
        found.deployment.start()
        yield found
    finally:
        found.deployment.stop()


def has_given_shares(node: Path, what: str) -> bool:
    """Whether a node's sealed shares of a sum went out: next comes its upload."""
    path = node / "store.sqlite"
    if not path.exists():
        return False
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        try:
            rows = db.execute("SELECT content FROM masking WHERE what=?", (what,)).fetchall()
        except sqlite3.OperationalError:  # the table is not there yet, or the file is busy
            return False
    return any(json.loads(content)["sent"] for (content,) in rows)


def assert_as_without_masks(site: Site, name: str, settings: list[str]) -> None:
    """Figures and parameters of a run without masks over the nodes of each sum."""
    folder = site.place / "runs" / name
    shards = [json.loads((n / "shard.json").read_text()) for n in site.deployment.node_folders]
    keys = [str(shard.get("key") or shard.get("shard_key")) for shard in shards]
    plain = absolute_overrides(
        [
            *settings,
            f"federation.num_nodes={len(keys)}",
            "federation.on_missing=continue",
            f"output={site.place / 'plain'}",
            f"name={name}",
        ],
        site.place,
    )
    expected, found = replay(compose(plain), folder, keys), load_result(folder)
    assert found.counts == expected.counts
    assert found.metrics.keys() == expected.metrics.keys()
    for metric, value in expected.metrics.items():
        assert found.metrics[metric] == pytest.approx(value, rel=0, abs=2.0**-33), metric
    assert found.popularity == pytest.approx(expected.popularity, rel=0, abs=2.0**-33)
    ours, theirs = (tensors(f, found.rounds) for f in (folder, site.place / "plain" / name))
    for tensor, value in theirs.items():
        apart = np.linalg.norm(ours[tensor] - value)
        assert apart <= 1e-5 * np.linalg.norm(value), tensor


def tensors(run: Path, last: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    return load_file(run / "checkpoint" / f"round-{last:09d}" / "tensors.safetensors")


def test_masked_sums_of_real_nodes(site: Site) -> None:
    done = site.run(site.new("whole", "privacy=secagg"))
    assert done.returncode == 0, done.stderr
    assert "secure aggregation: 6 sums, 0 nodes dropped out" in done.stdout
    journal = Journal(site.place / "runs" / "whole")
    assert all(len(journal.survivors(f"train/{r}") or ()) == NODES for r in (1, 2, 3))
    assert_as_without_masks(site, "whole", SETTINGS)


@pytest.mark.faults
def test_a_node_is_killed_between_its_shares_and_its_upload(site: Site) -> None:
    running = site.start(site.new("killed", *TOLERANT))
    victim = site.deployment.node_folders[1]
    until(lambda: has_given_shares(victim, "train/2"), pause=0.01)
    site.kill_node(1)
    output, _ = running.communicate(timeout=400)
    assert running.returncode == 0, output
    journal = Journal(site.place / "runs" / "killed")
    there = [len(journal.survivors(f"train/{r}") or ()) for r in (1, 2, 3)]
    assert there[0] == NODES
    assert there[1:] in ([NODES - 1, NODES - 1], [NODES, NODES - 1])
    assert_as_without_masks(site, "killed", SETTINGS)
    site.restart_node(1)


@pytest.mark.faults
def test_below_the_threshold_the_run_ends_with_one_line(site: Site) -> None:
    """Three of four are needed."""
    running = site.start(site.new("few", *TOLERANT))
    victims = (1, 2)
    until(lambda: has_given_shares(site.deployment.node_folders[1], "train/2"), pause=0.01)
    for victim in victims:
        site.kill_node(victim)
    output, _ = running.communicate(timeout=400)
    assert running.returncode == 1, output
    assert "secure aggregation: " in output
    assert "are needed" in output
    for victim in victims:
        site.restart_node(victim)
