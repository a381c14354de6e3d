"""Overrides to tree: one clear line for whatever is wrong, and nothing left in Hydra."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from conf.compose import GROUPS, compose, options
from conf.overrides import absolute_overrides, as_overrides, assignment
from conf.tree import ConfigError, to_mapping


def message(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_defaults() -> None:
    config = compose()
    assert (config.dataset.name, config.protocol.name) == ("ml_100k", "strict")
    assert (config.strategy_name, config.model_name) == ("fedrecgel", "neumf")
    assert (config.federation.rounds, config.strategy.server_lr) == (100, 0.01)
    assert config.federation.grid == "ray"


def test_twice_in_one_process_and_inside_another_hydra() -> None:
    assert compose(["seed=1"]).seed == 1
    assert compose(["seed=2"]).seed == 2
    assert not GlobalHydra.instance().is_initialized()


def test_one_word_swaps_strategy_and_model() -> None:
    config = compose(["strategy=fedmf"])
    assert (config.strategy_name, config.model_name) == ("fedmf", "mf")
    assert type(config.model).__name__ == "MatrixFactorisation"
    assert compose(["strategy=fedmf", "model.factors=4"]).model.factors == 4


def test_keys_that_no_yaml_spells_out_can_be_set() -> None:
    assert compose(["dataset.bad_rows=skip"]).dataset.bad_rows == "skip"
    assert compose(["model.factors=16"]).model.factors == 16


@pytest.mark.parametrize("group", GROUPS)
def test_an_unknown_option_lists_the_options(group: str) -> None:
    text = message(f"{group}=nix")
    assert text == f"{group}=nix does not exist; choose one of {', '.join(options(group))}"
    assert options(group)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("federation.fractoin=0.2", "did you mean federation.fraction?"),
        ("fedration.fraction=0.2", "did you mean federation?"),
        ("strategy.rho=0.2", "unknown key strategy.rho"),
        ("nonsense=1", "unknown key nonsense"),
        ("+federation.more=1", "unknown key federation.more"),
        ("federation.rounds=abc", "federation.rounds: expected a whole number, got 'abc'"),
        ("federation.rounds=true", "federation.rounds: expected a whole number, got True"),
        ("federation.rounds=1,2", "federation.rounds takes one value here, got "),
        ("federation.rounds=${x}", "Interpolation key 'x' not found"),
        ("federation.rounds=???", "Missing mandatory value: rounds"),
        ("dataset=[1,2]", "dataset=[1,2] does not exist; choose one of "),
        ("federation=3", "federation=3 does not exist; choose one of "),
        ("experiment=nix", "experiment=nix does not exist; choose one of best_"),
        ("strategy", "cannot read the override 'strategy'; write key=value"),
        ("~federation.rounds", "cannot be removed; write federation.rounds=value"),
        ("~federation.rounds=100", "cannot be removed; write federation.rounds=value"),
        ("hydra.run.dir=/tmp/x", "hydra.run.dir=/tmp/x: Hydra's own settings have no effect here"),
        ("hydra/launcher=basic", "Hydra's own settings have no effect here"),
        ("=3", "the override '=3' has no key"),
        ("a=[", "cannot read the override 'a=['"),
        ("dataset.path=here.csv", "dataset.path must be an absolute path, got 'here.csv'"),
    ],
)
def test_errors_are_one_line(override: str, expected: str) -> None:
    assert expected in message(override)


@pytest.mark.parametrize(
    "path",
    ["/a b/c.csv", "/a'b", "/a\\b", "/a\\'b", "/x=1,[y]{z}", "/tail\\", "/a.zip:m", "/ü☃", '/q"q'],
)
def test_any_path_survives_quoting(path: str) -> None:
    assert compose(["dataset=file", assignment("dataset.path", path)]).dataset.path == path


def test_relative_paths_are_resolved_against_the_caller() -> None:
    given = ["dataset.path=../data/r.csv", "output=runs", "cache=null", "seed=1", "name=runs"]
    assert absolute_overrides(given, Path("/home/me/work")) == [
        "dataset.path='/home/me/data/r.csv'",
        "output='/home/me/work/runs'",
        "cache=null",
        "seed=1",
        "name=runs",
    ]


@pytest.mark.parametrize("strategy", options("strategy"))
def test_a_tree_written_as_overrides_composes_to_itself(strategy: str) -> None:
    config = compose(
        [f"strategy={strategy}", "seed=3", "name='7'", "dataset=file", "dataset.path='/a b'"]
    )
    assert compose(as_overrides(to_mapping(config))) == config
