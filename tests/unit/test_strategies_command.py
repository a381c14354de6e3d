"""``fedrecgel strategies``: every strategy with its paper, its parameters and what it costs."""

from __future__ import annotations

import json

import pytest

from conf.compose import compose, options
from server_app.cli import run_command
from server_app.cli_strategies import lines_of, size
from server_app.cost import describe


def test_sizes_of_matrix_factorisation_by_hand() -> None:
    """10 items of 4 floats are 160 bytes; a vector, two moments and a step are 13 floats."""
    found = describe(compose(["strategy=fedmf", "model.factors=4"]), 10)
    assert found.shared == {"item_emb": (10, 4)}
    assert (found.down_node, found.up_node) == (160, 160)
    assert (found.down_user, found.up_user) == (0, 0)
    assert found.state_user == 52
    assert found.server_sees == "sums over the users of a node"


@pytest.mark.parametrize("name", options("strategy"))
def test_what_a_strategy_says_of_itself(name: str) -> None:
    found = describe(compose([f"strategy={name}"]), 30)
    assert not set(found.shared) & set(found.private)
    assert found.down_node > 0
    sees_users = found.server_sees == "each user's upload"
    assert (found.up_user > 0, found.up_node > 0) == (sees_users, not sees_users)
    text = "\n".join(lines_of(found))
    assert all(word in text for word in (name, found.title, *found.shared, *found.private))


def test_all_of_them_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["strategies", "--json", "--items", "30"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in listed] == list(options("strategy"))
    assert run_command(["strategies", "--items", "30"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n{name}: " in shown for name in options("strategy"))
    assert max(map(len, shown.splitlines())) <= 96


def test_units() -> None:
    assert [size(n) for n in (0, 999, 1000, 215_296, 1_250_000)] == [
        "0 B",
        "999 B",
        "1 kB",
        "215 kB",
        "1.25 MB",
    ]
