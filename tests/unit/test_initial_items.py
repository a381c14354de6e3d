"""Starting from another run's item embeddings: taken as they are, and refused where they leak."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_run
import torch

from conf.build import ConfigError
from conf.tree import Config
from server_app.checkpoint import load_checkpoint
from server_app.grid import LocalGrid
from server_app.initial_items import initial_items
from server_app.run import run_server
from strategies.perfedrec import CLUSTERS

STILL = ("strategy=fedmf", "strategy.server_optimiser=sgd", "strategy.server_lr=1e-12")
SETTINGS = ("federation.rounds=2", "federation.num_nodes=1")


def configured(folder: Path, name: str, *overrides: str) -> Config:
    return tiny_run.config(folder, *SETTINGS, f"name={name}", *overrides)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run ``source`` of plain matrix factorisation, which moved."""
    folder = tmp_path_factory.mktemp("source")
    run_server(LocalGrid(1), configured(folder, "source", "strategy=fedmf", "seed=4"))
    return folder


def source_table(place: Path) -> torch.Tensor:
    return load_checkpoint(place / "runs" / "source").best["item_emb"]


def test_a_run_starts_from_the_selected_round(place: Path) -> None:
    """Steps of 1e-12 times a mean gradient below 1 do not show in entries of 1e-2 and more."""
    run_server(LocalGrid(1), configured(place, "still", *STILL, "init.run=source"))
    moved = load_checkpoint(place / "runs" / "still").shared["item_emb"]
    torch.testing.assert_close(moved, source_table(place), rtol=0, atol=1e-11)
    drawn = configured(place, "drawn", *STILL)
    assert initial_items(drawn, tiny_run.NUM_ITEMS) == {}
    run_server(LocalGrid(1), drawn)
    other = load_checkpoint(place / "runs" / "drawn").shared["item_emb"]
    assert (other - source_table(place)).abs().max() > 1e-3


def test_another_table_and_another_scale(place: Path) -> None:
    words = ("strategy=fedncf", "model=neumf", "init.run=source")
    taken = (*words, "init.table=item_emb", "init.into=item_gmf", "init.std=0.5")
    tables = initial_items(configured(place, "x", *taken), tiny_run.NUM_ITEMS)
    assert list(tables) == ["item_gmf"]
    assert float(tables["item_gmf"].std()) == pytest.approx(0.5)
    ratio = tables["item_gmf"] / source_table(place)
    torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio))
    by_itself = initial_items(configured(place, "x", *words), tiny_run.NUM_ITEMS)
    assert torch.equal(by_itself["item_gmf"], source_table(place))
    other = configured(place, "x", "strategy=feddae", "init.run=source")
    with pytest.raises(ConfigError, match=r"has item_emb and the model .*: say init\.table"):
        initial_items(other, tiny_run.NUM_ITEMS)


@pytest.mark.parametrize("strategy", ["perfedrec", "fedrap", "cofedrec", "fedca"])
def test_strategies_that_add_parameters_start_from_it_too(place: Path, strategy: str) -> None:
    cfg = configured(place, "x", f"strategy={strategy}", "init.run=source")
    built = cfg.strategy_class(cfg.strategy, cfg.model)
    built.initial_items = initial_items(cfg, tiny_run.NUM_ITEMS)
    shared = built.init_shared(tiny_run.NUM_ITEMS, np.random.default_rng(0))
    assert torch.equal(shared["item_emb"], source_table(place))
    if strategy == "perfedrec":
        assert torch.equal(shared[CLUSTERS][1], source_table(place))


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["init.run=none"], r"init\.run=none: there is no run in .*none"),
        (["init.run=source", "init.table=x"], r"init\.table must be one of item_emb, got x"),
        (
            ["init.run=source", "protocol.validation=false", "protocol.select=last"],
            r"protocol\.validation=True and this run False",
        ),
        (["init.run=source", "model.factors=8"], r"item_emb is \[32\] and the model's \[8\]"),
        (["init.std=1"], r"init\.table, init\.into and init\.std are of a run: init"),
        (["init.run=source", "init.std=0"], r"init\.std must be positive, got 0"),
        (["init.run=source", "init.into=x"], r"init\.into must be one of item_emb, with init\.t"),
    ],
)
def test_refusals_are_one_line(place: Path, overrides: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        initial_items(configured(place, "x", "strategy=fedmf", *overrides), tiny_run.NUM_ITEMS)


def test_other_data_is_refused(place: Path) -> None:
    cfg = configured(place, "x", "strategy=fedmf", "init.run=source")
    with pytest.raises(ConfigError, match=r"has 40 items, not 41"):
        initial_items(cfg, tiny_run.NUM_ITEMS + 1)
    other = replace(cfg, dataset=replace(cfg.dataset, rating_threshold=4.0))
    with pytest.raises(ConfigError, match=r"rating_threshold=None and this run 4\.0: its embedd"):
        initial_items(other, tiny_run.NUM_ITEMS)
    shuffled = replace(cfg, dataset=replace(cfg.dataset, time="random"))
    with pytest.raises(ConfigError, match=r"has dataset\.time=timestamp and this run random"):
        initial_items(shuffled, tiny_run.NUM_ITEMS)


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (
            ["protocol.negatives=exclude_heldout"],
            r"protocol\.negatives=exclude_heldout and this run h",
        ),
        (["protocol.select=best_test"], r"protocol\.select=best_test and this run best_validation"),
    ],
)
def test_a_run_that_was_told_of_held_out_items_is_refused(
    tmp_path: Path, told: list[str], text: str
) -> None:
    """Negatives that avoid them, or the round that finds them best; unless this run is as well."""
    run_server(LocalGrid(1), configured(tmp_path, "source", "strategy=fedmf", *told))
    with pytest.raises(ConfigError, match=text):
        initial_items(configured(tmp_path, "x", "strategy=fedmf", "init.run=source"), 40)
    same = configured(tmp_path, "x", "strategy=fedmf", "init.run=source", *told)
    assert initial_items(same, tiny_run.NUM_ITEMS)


def test_another_file_of_the_same_name_is_refused(tmp_path: Path) -> None:
    """One row more for user 0, of the same 40 items: another row of his is held out."""
    run_server(LocalGrid(1), configured(tmp_path, "source", "strategy=fedmf"))
    path, next_run = tmp_path / "ratings.csv", ("strategy=fedmf", "init.run=source")
    run_server(LocalGrid(1), configured(tmp_path, "same", *next_run))
    rows = path.read_text().splitlines()
    added = next(i for i in range(40) if not any(row.startswith(f"0,{i},") for row in rows))
    path.write_text("\n".join([*rows, f"0,{added},5,999"]) + "\n")
    with pytest.raises(ConfigError, match="had other users or rows in shard 000000-of-000001"):
        run_server(LocalGrid(1), configured(tmp_path, "other", *next_run))
