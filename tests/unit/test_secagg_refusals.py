"""What cannot go with secure aggregation is one line before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up import small_config

from conf.compose import compose
from conf.tree import ConfigError, build_strategy
from server_app.first_run import first_config

NAMES = [path.stem for path in (Path(__file__).parents[2] / "conf" / "strategy").glob("*.yaml")]
PAILLIER = ("strategy.server_optimiser=sgd", "strategy.key_folder=/keys")
FOUR = ("privacy=secagg", "federation.num_nodes=4")


@pytest.mark.parametrize("name", NAMES)
def test_strategies_by_what_they_declare(name: str) -> None:
    strategy = build_strategy(compose([f"strategy={name}"]))
    if not (strategy.needs_individual_updates or strategy.personal_evaluation):
        assert compose([f"strategy={name}", *FOUR]).privacy.secagg is not None
        return
    with pytest.raises(ConfigError) as error:
        compose([f"strategy={name}", *FOUR])
    assert str(error.value) == (
        f"privacy=secagg hides single users' updates, and strategy={name} needs them: choose a "
        "strategy that sums (fedrecgel strategies)"
    )


def test_both_kinds_of_strategies_are_there() -> None:
    """Else the test above would say nothing about one of them."""
    needing = {
        n for n in NAMES if build_strategy(compose([f"strategy={n}"])).needs_individual_updates
    }
    assert 0 < len(needing) < len(NAMES)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("federation.num_nodes=2",), "needs at least 3 nodes, and federation.num_nodes=2"),
        (
            ("federation=deployment", "federation.num_nodes=4", "federation.min_nodes=2"),
            "needs at least 3 nodes, and federation.min_nodes=2",
        ),
        (("privacy.secagg.min_nodes=2",), "min_nodes must be at least 3, got 2: of two nodes each"),
        (("privacy.secagg.min_nodes=5",), "needs at least 5 nodes, and federation.num_nodes=4"),
        (("privacy.secagg.threshold=0.5",), "threshold must be above 0.5 and at most 1, got 0.5"),
        (("privacy.secagg.threshold=1.1",), "threshold must be above 0.5 and at most 1, got 1.1"),
        (("privacy.secagg.fraction_bits=64",), "below modulus_bits=64, got 64"),
        (("privacy.secagg.limit=0",), "limit must be positive, got 0"),
        (("privacy.secagg.limit=1e10",), "limit=1e+10 with fraction_bits=32 does not fit"),
        (("privacy.secagg.modulus_bits=32",), "fraction_bits must be at least 0 and below"),
        (("privacy.secagg.modulus_bits=16",), "privacy.secagg.modulus_bits"),
        (("evaluation.user_ranks=true",), "single users' ranks are in clear"),
        (("evaluation.record_uplinks=[1]",), "no node's upload to record"),
        (("evaluation.full=selected",), "evaluation.full=each or never"),
        (("strategy=fedmf", "strategy.encryption=paillier", *PAILLIER), "cannot add ciphertexts"),
    ],
)
def test_settings_that_cannot_be(overrides: tuple[str, ...], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose([*FOUR, *overrides])
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_run_that_goes_first_is_protected_too(tmp_path: Path) -> None:
    cfg = small_config(tmp_path, *FOUR, "init.strategy=fedspectral")
    assert first_config(cfg).privacy == cfg.privacy
    other = small_config(tmp_path, *FOUR, "init.strategy=gpfedrec")
    with pytest.raises(ConfigError, match=r"^init.strategy=gpfedrec: privacy=secagg hides single"):
        first_config(other)
