"""Every strategy that sums can be masked: a sum is that of its nodes, within the bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_up import small_config
from secagg_nodes import Nodes

from conf.compose import compose
from conf.tree import build_strategy
from server_app.run import run_server
from server_app.secagg import SecureSums, Summed
from strategies import wire
from strategies.messages import Uplink
from strategies.secagg.protocol import train_sum

NODES = 3
HALF_STEP = 2.0**-33
FOLDER = Path(__file__).parents[2] / "conf" / "strategy"


def summing() -> list[str]:
    names = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    built = {name: build_strategy(compose([f"strategy={name}"])) for name in names}
    return [
        n for n, s in built.items() if not (s.needs_individual_updates or s.personal_evaluation)
    ]


@pytest.mark.parametrize("name", summing())
def test_the_masked_sum_is_that_of_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sums, sent = dict[str, Summed](), dict[str, list[Uplink]]()
    collect, decode = SecureSums.collect, wire.decode_uplink

    def kept(self: SecureSums, what: str, *rest: object) -> Summed:
        sums[what] = collect(self, what, *rest)  # type: ignore[arg-type]
        return sums[what]

    def read(*arguments: object) -> Uplink:
        """With masks it is the nodes that read an answer: their own, before they mask it."""
        uplink = decode(*arguments)  # type: ignore[arg-type]
        sent.setdefault(train_sum(uplink.round), []).append(uplink)
        return uplink

    monkeypatch.setattr(SecureSums, "collect", kept)
    monkeypatch.setattr(wire, "decode_uplink", read)
    composed = compose([f"strategy={name}"])
    rounds = composed.strategy_class(composed.strategy, composed.model).period
    cfg = small_config(
        tmp_path,
        f"strategy={name}",
        "privacy=secagg",
        f"federation.num_nodes={NODES}",
        f"federation.rounds={rounds}",
        "federation.fraction=1.0",
        f"evaluation.every={rounds}",
        "name=run",
    )
    run_server(Nodes().grid(NODES), cfg)
    assert len(sent) == rounds
    for what, uplinks in sent.items():
        assert len(uplinks) == NODES
        assert_sum(sums[what], uplinks)


def assert_sum(summed: Summed, uplinks: list[Uplink]) -> None:
    parts = [u.update.tensors for u in uplinks]
    rows = [u.update.row_weights or {} for u in uplinks]
    for prefix, of_nodes in (("update", parts), ("rows", rows)):
        for name in of_nodes[0]:
            each = [np.asarray(t[name].to_dense(), np.float64) for t in of_nodes]  # type: ignore[union-attr]
            found = summed.payload.tensors[f"{prefix}/{name}"]
            # Beside half a step a node: float64 sums here, and one rounding when it is read.
            rounding = (NODES + 1) * 2.0**-53 * np.sum(np.abs(each), axis=0)
            assert (np.abs(found - np.sum(each, axis=0)) <= NODES * HALF_STEP + rounding).all()
    assert round(float(summed.payload.figures["users"])) == sum(u.num_users for u in uplinks)
