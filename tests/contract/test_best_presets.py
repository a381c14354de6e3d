"""The presets that recommend best on a data set: strict, few rounds, nothing chosen on test."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_run

from benchmarks.beyond_log import OUT, Log
from benchmarks.beyond_page import CLOSED_FORMS
from benchmarks.results_cells import DataSource
from conf.compose import compose, options
from conf.tree import Config, from_json, to_json
from server_app.grid import LocalGrid
from server_app.run import run_server

PRESETS = [name for name in options("experiment") if name.startswith("best_")]


def preset(name: str, *overrides: str) -> Config:
    return compose([f"experiment={name}", "dataset.path=/data/file", *overrides])


def test_there_is_one_for_each_data_set_that_was_searched() -> None:
    assert PRESETS == ["best_amazon_video", "best_filmtrust", "best_ml_100k", "best_ml_1m"]


@pytest.mark.parametrize("name", PRESETS)
def test_settings_of_a_preset(name: str) -> None:
    """At most 10 rounds' worth of everybody, protocol strict, no round chosen."""
    config = preset(name)
    assert f"best_{config.dataset.name}" == name
    assert (config.protocol.name, config.protocol.validation) == ("strict", True)
    assert config.protocol.select == "last"
    assert config.federation.rounds * config.federation.fraction <= 10
    assert config.federation.rounds % config.evaluation.every == 0
    assert from_json(to_json(config)) == config


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("strategy", options("strategy"))
def test_any_strategy_composes_and_the_command_line_has_the_last_word(
    name: str, strategy: str
) -> None:
    config = preset(name, f"strategy={strategy}", "federation.rounds=7")
    assert (config.strategy_name, config.federation.rounds) == (strategy, 7)
    assert config.protocol.select == "last"


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("strategy", CLOSED_FORMS)
def test_settings_are_those_that_validation_says_are_best(name: str, strategy: str) -> None:
    """Of all trials that are recorded; FedEASE has the λ of its central method."""
    log, source = Log(OUT), DataSource(name.removeprefix("best_"))
    words = log.best(source, strategy)[0].split()[1:] if strategy != "fedease" else []
    if strategy == "fedease":
        words = [f"strategy.l2={log.chosen_references(source)['ease']['l2']}"]
    config = preset(name, f"strategy={strategy}")
    assert preset(name, f"strategy={strategy}", *words) == config


@pytest.mark.parametrize("name", PRESETS)
def test_the_strategy_is_the_one_that_validation_says_is_best(name: str) -> None:
    log, source = Log(OUT), DataSource(name.removeprefix("best_"))
    figures = {"fedease": log.best(source, "central ease")[1]}
    figures |= {other: log.best(source, other)[1] for other in CLOSED_FORMS[1:]}
    assert preset(name).strategy_name == max(figures, key=lambda strategy: figures[strategy])


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_runs(name: str, tmp_path: Path) -> None:
    """On twenty users of a made-up file, which are all counted."""
    tiny = tiny_run.config(tmp_path)
    words = ["dataset=file", f"dataset.path={tiny.dataset.path}", "protocol.num_candidates=10"]
    words += [f"output={tmp_path / 'runs'}", f"cache={tmp_path / 'cache'}", "name=tiny"]
    config = compose([f"experiment={name}", *words])
    result = run_server(LocalGrid(config.federation.num_nodes), config)
    assert result.selected_round == result.rounds == config.federation.rounds
    assert result.totals["num_users"] == tiny_run.NUM_USERS * config.federation.rounds
    assert result.metrics["validation/full/ndcg@10"] > 0


def test_the_bundled_data_set_needs_no_path() -> None:
    assert compose(["experiment=best_ml_100k"]).dataset.fetch == "ml-100k"
