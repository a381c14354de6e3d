"""One user's upload of FedRecGEL on MovieLens-100K names the user's items: F1 of 0.95 at least.

Derived in docs/audit.md: rows of the item gradients lie on one line, and the side is the label.
Sums of fifty users are no such answer: within their touched items a random choice is as good as
the share of items that somebody has.
"""

from __future__ import annotations

import pytest

from conf.compose import compose
from experiments.audit.measure import UNION, Finding, attacks_of, measure, sources
from experiments.audit.sources import opened
from server_app.grid import LocalGrid
from server_app.run import run_server


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Finding]:
    folder = tmp_path_factory.mktemp("audit")
    cfg = compose(
        [
            "strategy=fedrecgel", f"output={folder}", "name=run", "federation.grid=local",
            "federation.rounds=1", "federation.fraction=0.05", "protocol.select=last",
            "evaluation.full=never", "evaluation.users=20",
        ]
    )  # fmt: skip
    run = opened(run_server(LocalGrid(2), cfg).folder)
    _, made = sources(run, [1, 50], 5, seed=0)
    judged = measure(run, made, attacks_of(run, ["presence", "direction", "consensus"], 0))
    return {(one.attack, one.users): one for one in judged.findings if one.target == UNION}


@pytest.mark.parametrize("attack", ["direction", "consensus"])
def test_one_users_upload_names_the_items(
    found: dict[tuple[str, int], Finding], attack: str
) -> None:
    one = found[attack, 1]
    assert one.uploads == 5
    assert one.f1 >= 0.95
    assert one.chance < 0.3


def test_sums_of_fifty_do_not(found: dict[tuple[str, int], Finding]) -> None:
    assert found["direction", 50].f1 < 0.95
    assert found["consensus", 50].f1 < 0.95
    assert found["presence", 1].f1 < 0.5
