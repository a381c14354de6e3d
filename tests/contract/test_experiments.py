"""The paper's experiments hold the paper's settings, and take any strategy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conf.compose import compose, options
from conf.tree import ConfigError, from_json, ranks_each_in_full, remarks, to_json

RADII = {
    "paper_filmtrust": ("filmtrust", 0.02, 0.02),
    "paper_lastfm_2k": ("lastfm_2k", 0.01, 0.01),
    "paper_lastfm_2k_listening": ("lastfm_2k_listening", 0.01, 0.01),
    "paper_amazon_video": ("amazon_video", 0.01, 0.2),
    "paper_qb_article": ("qb_article", 0.05, 0.05),
    "paper_qb_article_subset": ("qb_article_subset", 0.05, 0.05),
}
PATH = "dataset.path=/data/file"


def test_every_experiment_is_covered() -> None:
    # Presets, best_*, have tests/contract/test_best_presets.py.
    others = [name for name in options("experiment") if not name.startswith("best_")]
    assert others == sorted([*RADII, "paper_pfedrec", "warm_ml_100k"])


@pytest.mark.parametrize("experiment", sorted(RADII))
def test_the_papers_settings(experiment: str) -> None:
    config = compose([f"experiment={experiment}", PATH])
    dataset, shared, private = RADII[experiment]
    assert config.dataset.name == dataset
    assert config.protocol.name == "paper"
    assert (config.protocol.select, config.protocol.candidates) == ("best_test", "notebook")
    assert (config.protocol.duplicates, config.protocol.min_interactions) == ("keep", 5)
    assert (config.protocol.num_candidates, config.protocol.validation) == (99, False)
    assert (config.federation.rounds, config.federation.fraction) == (100, 0.1)
    assert (config.evaluation.every, config.evaluation.cutoffs) == (1, (5, 10, 15, 20))
    assert config.strategy_name == "fedrecgel"
    assert (config.strategy.server_lr, config.strategy.private_lr) == (0.001, 0.1)
    assert (config.strategy.sam.rho_shared, config.strategy.sam.rho_private) == (shared, private)
    assert (config.strategy.local_epochs, config.strategy.num_negatives) == (1, 4)
    assert (config.model.factors, config.model.mlp_layers) == (32, 3)
    assert from_json(to_json(config)) == config


@pytest.mark.parametrize("experiment", sorted(RADII))
@pytest.mark.parametrize("strategy", options("strategy"))
def test_any_strategy_runs_in_the_papers_setting(experiment: str, strategy: str) -> None:
    config = compose([f"experiment={experiment}", f"strategy={strategy}", PATH])
    assert config.strategy_name == strategy
    assert config.protocol.name == "paper"


def test_pfedrecs_setting() -> None:
    """Its negatives leak; the same without the leak is one override away."""
    leaky = compose(["experiment=paper_pfedrec"])
    assert (leaky.dataset.name, leaky.strategy_name, leaky.model_name) == (
        "ml_100k",
        "pfedrec",
        "linear",
    )
    assert (leaky.federation.rounds, leaky.federation.fraction) == (100, 1.0)
    assert (leaky.strategy.private_lr, leaky.strategy.item_lr_factor) == (0.1, 80.0)
    assert (leaky.strategy.batch_size, leaky.strategy.score_with) == (256, "own")
    assert (leaky.model.factors, leaky.model.init_std) == (32, 1.0)
    assert leaky.protocol.select == "best_validation"
    assert leaky.protocol.negatives == "exclude_heldout"
    honest = compose(["experiment=paper_pfedrec", "protocol.negatives=honest"])
    assert honest.protocol == replace(compose(["protocol=strict"]).protocol, ties="first_line")


def test_the_warm_start_suits_any_strategy_that_steps_along_gradients() -> None:
    """Its own settings reach FedRecGEL and, without perturbation, FedNCF."""
    warm = compose(["experiment=warm_ml_100k"])
    assert (warm.strategy_name, warm.model_name, warm.protocol.name) == (
        "fedrecgel",
        "mf",
        "strict",
    )
    assert (warm.init.strategy, warm.init.users, warm.init.gain) == ("fedspectral", "solved", 2.0)
    assert (warm.strategy.sam.rho_shared, warm.strategy.sam.rho_private) == (0.0, 0.1)
    plain = compose(["experiment=warm_ml_100k", "strategy=fedncf"])
    assert plain.init == warm.init
    for key in ("loss", "num_negatives", "user_dropout", "private_lr", "server_lr"):
        assert getattr(plain.strategy, key) == getattr(warm.strategy, key)
    other = compose(["experiment=warm_ml_100k", "strategy=fedmf"])
    assert other.strategy == compose(["strategy=fedmf"]).strategy
    with pytest.raises(ConfigError, match="fedease makes users of their items by itself"):
        compose(["experiment=warm_ml_100k", "strategy=fedease"])


def test_tensors_of_a_round_are_ranked_with_in_that_round() -> None:
    """Which CoFedRec has and FedRecGEL has not: ``selected`` then comes too late."""
    personal = compose(["experiment=paper_filmtrust", "strategy=cofedrec", PATH])
    plain = compose(["experiment=paper_filmtrust", PATH])
    assert personal.evaluation.full == plain.evaluation.full == "selected"
    assert ranks_each_in_full(personal)
    assert not ranks_each_in_full(plain)
    assert any("every evaluation ranks the whole" in remark for remark in remarks(personal))
    assert not any("every evaluation ranks" in remark for remark in remarks(plain))


def test_the_baseline_differs_in_the_radii_alone() -> None:
    baseline = compose(["experiment=paper_filmtrust", "strategy=fedncf", PATH])
    plain = compose(["strategy=fedncf"])
    assert baseline.strategy.server_lr == 0.001 != plain.strategy.server_lr
    # Settings of one strategy do not reach another.
    alone = compose(["strategy=fedavg"])
    assert (
        compose(["experiment=paper_filmtrust", "strategy=fedavg", PATH]).strategy == alone.strategy
    )


def test_the_command_line_has_the_last_word() -> None:
    overrides = ["strategy.sam.rho_shared=0.5", "federation.rounds=3", "protocol.select=last"]
    config = compose(["experiment=paper_filmtrust", PATH, *overrides])
    assert config.strategy.sam.rho_shared == 0.5
    assert config.strategy.sam.rho_private == 0.02
    assert config.federation.rounds == 3
    assert config.protocol.select == "last"
    other = compose(["experiment=paper_filmtrust", PATH, "dataset=file"])
    assert (other.dataset.name, other.protocol.name) == ("file", "paper")
