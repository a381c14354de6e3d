"""The configuration tree: strict types, ranges, impossible pairs, exact JSON."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from conf.tree import Config, ConfigError, build_strategy, from_json, from_mapping, remarks, to_json
from models.neumf import NeuMF
from strategies.fedrecgel import FedRecGEL

VALID: dict[str, Any] = {
    "dataset": {"name": "file", "path": "/data/ratings.csv"},
    "protocol": {"name": "strict"},
    "model": {"_target_": "models.neumf.NeuMF", "factors": 8},
    "strategy": {"_target_": "strategies.fedrecgel.FedRecGEL", "server_lr": 0.01},
    "strategy_name": "fedrecgel",
    "model_name": "neumf",
}


def tree(**changes: Any) -> dict[str, Any]:
    """``VALID`` with dotted keys (``__`` for the dot) set."""
    mapping = copy.deepcopy(VALID)
    for key, value in changes.items():
        *sections, name = key.split("__")
        place = mapping
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return mapping


def message(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        from_mapping(tree(**changes))
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_valid_tree_is_typed() -> None:
    config = from_mapping(VALID)
    assert isinstance(config, Config)
    assert config.model == NeuMF(factors=8)
    assert config.strategy_class is FedRecGEL
    assert config.strategy.server_lr == 0.01
    assert isinstance(build_strategy(config), FedRecGEL)


def test_json_round_trip_is_exact() -> None:
    config = from_mapping(
        tree(federation__fraction=1 / 3, strategy__server_lr=0.1 + 0.2, seed=2**53 + 1)
    )
    again = from_json(to_json(config))
    assert again == config
    assert to_json(again) == to_json(config)
    # 0.1 + 0.2 is not 0.3: digits are kept, not rounded.
    assert again.strategy.server_lr == 0.1 + 0.2 != 0.3


def test_an_int_is_a_float_but_nothing_else_is_converted() -> None:
    assert from_mapping(tree(strategy__server_lr=1)).strategy.server_lr == 1.0
    assert isinstance(from_mapping(tree(strategy__server_lr=1)).strategy.server_lr, float)
    assert message(seed=True) == "seed: expected a whole number, got True"
    assert message(seed="abc") == "seed: expected a whole number, got 'abc'"
    assert message(seed=1.0) == "seed: expected a whole number, got 1.0"
    assert message(federation__fraction=True) == "federation.fraction: expected a number, got True"
    assert message(protocol__validation=1) == "protocol.validation: expected true or false, got 1"
    assert message(dataset__path=3) == "dataset.path: expected a text, got 3"
    assert message(federation=3) == "federation: expected a section with keys, got 3"
    assert message(federation__fraction=float("nan")).endswith("expected a finite number, got nan")
    assert message(evaluation__cutoffs=10).startswith("evaluation.cutoffs: expected a list")
    assert message(evaluation__cutoffs=[5, "x"]).startswith(
        "evaluation.cutoffs[1]: expected a whole"
    )
    assert message(seed=None) == "seed: expected a whole number, got null"


def test_unknown_keys_are_named_with_the_closest() -> None:
    text = message(federation__fracton=0.1)
    assert text.startswith("unknown key federation.fracton; did you mean federation.fraction?")
    assert "num_nodes" in text
    assert message(strategy__sam__rho_share=0.1).startswith(
        "unknown key strategy.sam.rho_share; did you mean strategy.sam.rho_shared?"
    )
    assert message(fedration={}).startswith("unknown key fedration; did you mean federation?")


@pytest.mark.parametrize("key", ["rho_shared", "rho_private", "adaptive", "rho_share"])
def test_a_setting_that_is_in_a_section_is_named_with_it(key: str) -> None:
    text = message(**{f"strategy__{key}": 0.1})
    full = key + "d" * (key == "rho_share")
    assert text.startswith(f"unknown key strategy.{key}; did you mean strategy.sam.{full}?")


def test_missing_keys_and_choices() -> None:
    incomplete = tree()
    del incomplete["protocol"]["name"]
    with pytest.raises(ConfigError, match=r"^protocol\.name is required$"):
        from_mapping(incomplete)
    assert message(engine__name="fast") == (
        "engine.name: 'fast' is not allowed; choose one of cohort, loop"
    )
    assert message(strategy__server_optimiser="lion").startswith(
        "strategy.server_optimiser: 'lion' is not allowed; choose one of "
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"federation__rounds": 0}, "federation.rounds must be at least 1, got 0"),
        ({"federation__num_nodes": 0}, "federation.num_nodes must be at least 1, got 0"),
        ({"federation__fraction": 0.0}, "federation.fraction must be above 0 and at most 1"),
        ({"federation__fraction": 1.1}, "federation.fraction must be above 0 and at most 1"),
        ({"federation__min_share": 0.0}, "federation.min_share must be above 0 and at most 1"),
        ({"federation__deadline_s": 0.0}, "federation.deadline_s must be positive, got 0.0"),
        ({"evaluation__cutoffs": [10, 5]}, "evaluation.cutoffs must be ascending"),
        ({"evaluation__cutoffs": [5, 5]}, "evaluation.cutoffs must be ascending"),
        ({"evaluation__cutoffs": [0, 5]}, "evaluation.cutoffs must be ascending"),
        ({"evaluation__cutoffs": []}, "evaluation.cutoffs must be ascending"),
        ({"evaluation__cutoffs": [5]}, "evaluation.cutoffs must hold 10"),
        ({"evaluation__patience": 0}, "evaluation.patience must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"seed": 2**63}, "seed must be below 2**63"),
        ({"strategy__server_lr": 0.0}, "strategy.server_lr must be positive, got 0.0"),
        ({"dataset__path": "ratings.csv"}, "dataset.path must be an absolute path"),
        ({"output": "runs"}, "output must be an absolute path, got 'runs'"),
        ({"name": "../up"}, "name must be letters, digits"),
        ({"dataset__sha256": ["abc"]}, "dataset.sha256 must be 64 hexadecimal digits"),
    ],
)
def test_ranges(changes: dict[str, Any], expected: str) -> None:
    assert message(**changes).startswith(expected)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dataset__path": None}, "dataset.path is required for dataset=file"),
        ({"protocol__validation": False}, "protocol.select=best_validation needs"),
        (
            {"protocol__select": "last", "evaluation__patience": 3},
            "evaluation.patience stops on the selection metric",
        ),
        ({"resume": True}, "resume=true needs the name of the run"),
        ({"dataset__columns": ["user", "item"]}, "dataset.time=timestamp needs a timestamp"),
        (
            {"dataset__columns": ["user", "item", "stars"]},
            "dataset.columns: 'stars' is not allowed",
        ),
        ({"dataset__columns": ["user", "user"]}, "dataset.columns names user 2 times"),
        ({"dataset__columns": ["user", "timestamp"]}, "dataset.columns must contain item"),
        (
            {"dataset__columns": ["user:u", "item:i", "timestamp:t"]},
            "dataset.columns picks by name (user:NAME): this needs dataset.header=true",
        ),
        (
            {"dataset__rating_threshold": 4.0, "dataset__columns": ["user", "item", "timestamp"]},
            "dataset.rating_threshold needs a rating",
        ),
    ],
)
def test_impossible_pairs(changes: dict[str, Any], expected: str) -> None:
    assert message(**changes).startswith(expected)


def test_a_strategy_that_needs_everyone_refuses_a_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedRecGEL, "supports_partial_participation", False)
    expected = "strategy=fedrecgel needs every user in every round: federation.fraction=1.0"
    assert message() == expected
    assert from_mapping(tree(federation__fraction=1.0)).federation.fraction == 1.0


def test_a_strategy_that_refuses_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: FedRecGEL) -> None:
        raise ValueError("needs another model")

    monkeypatch.setattr(FedRecGEL, "check", refuse)
    assert message() == "strategy=fedrecgel with model=neumf: needs another model"


@pytest.mark.parametrize(
    "target", ["os.system", "strategies.base", "conf.tree.Config", "strategies.nix.Y", 3, None]
)
def test_only_our_packages_are_imported(target: Any) -> None:
    assert message(strategy___target_=target).startswith("strategy._target_: ")


def test_not_json() -> None:
    with pytest.raises(ConfigError, match="not valid JSON"):
        from_json("{")
    with pytest.raises(ConfigError, match="must be a JSON object"):
        from_json(json.dumps([1]))


def test_what_is_allowed_but_optimistic_is_flagged() -> None:
    assert remarks(from_mapping(VALID)) == []
    leaky = from_mapping(tree(protocol__negatives="exclude_heldout"))
    assert any("leaks the answer" in line for line in remarks(leaky))
    best_test = from_mapping(tree(protocol__select="best_test"))
    assert any("optimistic" in line for line in remarks(best_test))
