"""Every strategy: on simulated devices, and with asynchronous steps or a reason against them."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up import small_config

from conf.compose import compose, options
from conf.tree import ConfigError
from server_app.grid import LocalGrid
from server_app.run import run_server

DEVICES = ("devices=phones", "devices.slot_s=2", "federation.rounds=2", "evaluation.every=2")
ASYNCHRONOUS = {
    "fedavg", "feddae", "fedfast", "fedmf", "fedncf", "fedprox", "fedrap", "fedrecgel", "pfedrec",
}  # fmt: skip
"""Strategies whose updates may be of different ages."""
WHOLE = {"federation.fraction=1.0"}


def settings(strategy: str) -> list[str]:
    """Rounds that the strategy can have."""
    chosen = compose([f"strategy={strategy}", "federation.fraction=1.0"])
    period = chosen.strategy_class(chosen.strategy, chosen.model).period
    rounds = [f"federation.rounds={2 * period}", f"evaluation.every={period}"]
    return [f"strategy={strategy}", *DEVICES, *(rounds if period > 1 else [])]


@pytest.mark.parametrize("strategy", options("strategy"))
def test_devices_decide_who_takes_part(tmp_path: Path, strategy: str) -> None:
    words = settings(strategy)
    if not compose([f"strategy={strategy}", *WHOLE]).strategy_class.supports_partial_participation:
        with pytest.raises(ConfigError, match="devices are not always there"):
            small_config(tmp_path, *words, *WHOLE)
        return
    result = run_server(LocalGrid(2), small_config(tmp_path, "name=run", *words))
    assert result.totals["devices_delivered"] == result.totals["num_users"] > 0
    assert result.totals["devices_seconds"] > 0


@pytest.mark.parametrize("strategy", options("strategy"))
def test_steps_are_asynchronous_or_refused(tmp_path: Path, strategy: str) -> None:
    words = [*settings(strategy), "strategy.async.buffer=3"]
    if strategy not in ASYNCHRONOUS:
        with pytest.raises(ConfigError, match=rf"strategy={strategy}"):
            small_config(tmp_path, *words)
        return
    result = run_server(LocalGrid(2), small_config(tmp_path, "name=run", *words))
    assert result.totals["devices_delivered"] == result.totals["num_users"] == 6


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["strategy.async.buffer=3"], "strategy.async needs simulated devices"),
        (["devices=phones", "federation.grid=deployment"], "devices are simulated"),
        (["devices=phones", "privacy=dp", "privacy.dp.epsilon=8"], "cohorts that are drawn evenly"),
        (
            [
                "devices=phones",
                "strategy.async.buffer=3",
                "privacy=secagg",
                "federation.num_nodes=3",
            ],
            "privacy=secagg sums them alike",
        ),
        (["devices=phones", "strategy.async.buffer=3", "defence=median"], "a defence takes them"),
        (
            ["devices=phones", "strategy.async.buffer=3", "evaluation.record_uplinks=[1]"],
            "evaluation.record_uplinks keeps uploads",
        ),
        (["devices=phones", "devices.spread=-1"], "devices.spread must not be negative"),
    ],
    ids=lambda found: found if isinstance(found, str) else " ".join(found),
)
def test_what_does_not_go_together_is_one_line(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        compose(words)
    assert "\n" not in str(refused.value)
