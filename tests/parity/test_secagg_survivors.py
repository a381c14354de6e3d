"""Twenty nodes of MovieLens-100K, two lost in mid-round: as without masks over the same nodes.

A sum of ranking metrics over n nodes is off by at most n · 2^-33, so a mean over at least n users
by at most 2^-33. Parameters differ by the order and width in which sums are rounded.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from secagg_nodes import Nodes
from secagg_replay import replay

from conf.compose import compose
from server_app.run import run_server
from server_app.secagg_journal import Journal
from strategies.secagg.protocol import SHARES

NODES, ROUNDS = 20, 2
SETTINGS = (
    "dataset=ml_100k",
    "model=mf",
    "federation.fraction=0.5",
    f"federation.num_nodes={NODES}",
    f"federation.rounds={ROUNDS}",
    f"evaluation.every={ROUNDS}",
)


def test_two_of_twenty_nodes_are_lost(tmp_path: Path) -> None:
    """One goes before its shares of round 2, one before its upload of it.

    Counts and popularity are the first two sums, round 1 the third, round 2 the fourth.
    """
    nodes = Nodes(gone={3: (SHARES, 4), 11: ("train", 2)})
    output, cache = f"output={tmp_path}", f"cache={tmp_path / 'cache'}"
    tolerant = ("privacy=secagg", "federation.min_share=0.8", "name=secure")
    secure = run_server(nodes.grid(NODES), compose([*SETTINGS, output, cache, *tolerant]))
    journal = Journal(tmp_path / "secure")
    there = [journal.survivors(what) or () for what in ("train/1", "train/2", "evaluate/model/2")]
    assert [len(names) for names in there] == [20, 18, 18]
    plain = compose([*SETTINGS, output, cache, "federation.on_missing=continue", "name=plain"])
    expected = replay(plain, tmp_path / "secure", list(there[0]))
    assert (secure.counts, secure.rounds) == (expected.counts, expected.rounds)
    for name, value in expected.metrics.items():
        assert secure.metrics[name] == pytest.approx(value, rel=0, abs=2.0**-33), name
    ours, theirs = (
        load_file(tmp_path / n / "checkpoint" / f"round-{ROUNDS:09d}" / "tensors.safetensors")
        for n in ("secure", "plain")
    )
    for name, value in theirs.items():
        assert np.linalg.norm(ours[name] - value) <= 1e-5 * np.linalg.norm(value), name
