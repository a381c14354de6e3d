"""privacy=dp, ldp and pseudo_items in whole runs on a tiny data set."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_run
import torch

from client_app.engine import train_users
from client_app.node_config import NodeError
from client_app.private_updates import check_noise
from client_app.pseudo_items import KEY_FILE, PseudoItems, node_key
from client_app.ragged import Ragged
from conf.compose import compose
from conf.tree import Config, ConfigError, build_strategy, remarks
from models.clipping import norm
from models.types import Tensors, Update
from server_app.accountant import Releases, epsilon
from server_app.callbacks import Callback, RoundRecord, epsilon_text, read_metrics
from server_app.errors import CheckpointError
from server_app.grid import LocalGrid
from server_app.privacy import Privacy
from server_app.privacy_ledger import LEDGER
from server_app.privacy_plan import ADD_REMOVE, REPLACE
from server_app.report import privacy_notes
from server_app.results import RunResult, load_result
from server_app.run import run_server
from server_app.sampling import draw_cohort

SMALL = ["strategy=fedncf", "model=mf", "model.factors=4", "federation.grid=local"]
DP = ["privacy=dp", "privacy.dp.clip=0.1", "federation.fraction=1.0"]
NOISE = "privacy.dp.noise_multiplier=4.0"
SIX_ROUNDS = ["federation.rounds=6", "evaluation.every=2", "federation.checkpoint_every=2"]


def config(folder: Path, *overrides: str) -> Config:
    return tiny_run.config(folder, *SMALL, *overrides)


def run(cfg: Config, *callbacks: Callback) -> RunResult:
    return run_server(LocalGrid(cfg.federation.num_nodes), cfg, callbacks)


class KilledError(RuntimeError):
    pass


class KillAfter(Callback):
    """Raises after a round, before its checkpoint."""

    def __init__(self, last: int) -> None:
        self._last = last

    def on_round(self, record: RoundRecord) -> None:
        if record.round == self._last:
            raise KilledError


# ---- the sum that noise is added to ------------------------------------------------------------
def sum_of(cfg: Config, users: list[int]) -> Tensors:
    node = tiny_run.node(cfg)
    trained = train_users(
        node.strategy,
        tiny_run.shared(cfg),
        np.array(users),
        round_=1,
        base_round=0,
        dataset=node.dataset,
        state=node.state,
        cfg=cfg,
        noise_std=0.0,
    )
    assert trained.update.weight == len(users)
    return trained.update.tensors


def gap(one: Tensors, two: Tensors) -> float:
    return norm({n: one[n].double() - two[n].double() for n in one})


@pytest.mark.parametrize("strategy", ["fedncf", "fedrecgel", "fedavg", "fedprox", "fcf", "pfedrec"])
def test_one_user_more_moves_the_nodes_sum_by_the_clip(tmp_path: Path, strategy: str) -> None:
    """Neighbours by adding or removing a user: sensitivity clip; by replacing one: twice that."""
    clip = 1e-4  # below every user's norm, so that the bound is reached
    overrides = [f"strategy={strategy}", "privacy=dp", NOISE, f"privacy.dp.clip={clip}"]
    extra = ["strategy.weighting=users"] if strategy in ("fedavg", "fedprox") else []
    cfg = tiny_run.config(tmp_path, "federation.grid=local", *overrides, *extra)
    with_user, without = sum_of(cfg, [1, 2, 3, 4]), sum_of(cfg, [1, 2, 3])
    assert gap(with_user, without) == pytest.approx(clip, rel=1e-2)
    assert gap(sum_of(cfg, [1, 2, 3, 4]), sum_of(cfg, [1, 2, 3, 5])) <= 2 * clip * 1.01


def test_separate_bounds_are_both_in_the_noise(tmp_path: Path) -> None:
    dp = ["privacy=dp", NOISE, "privacy.dp.clip=0.003", "privacy.dp.clip_dense=0.004"]
    cfg = tiny_run.config(tmp_path, "strategy=fedncf", "federation.grid=local", *dp)
    one = sum_of(cfg, [1])
    tables = build_strategy(cfg).row_tables
    assert tables and tables < one.keys()
    assert norm({n: t for n, t in one.items() if n in tables}) == pytest.approx(0.003, rel=1e-4)
    assert norm({n: t for n, t in one.items() if n not in tables}) == pytest.approx(0.004, rel=1e-4)
    privacy = Privacy(cfg, tmp_path, 0, 20)
    assert privacy.plan.sensitivity == pytest.approx(0.005)
    assert privacy.plan.std == pytest.approx(4 * 0.005)


def test_the_step_sees_a_fixed_denominator_and_the_stated_noise(tmp_path: Path) -> None:
    cfg = config(tmp_path, "privacy=dp", NOISE, "privacy.dp.clip=0.5", "federation.fraction=0.5")
    zero = {"item_emb": torch.zeros(300, 100)}
    for realised in (7, 13):
        (tmp_path / str(realised)).mkdir()
        privacy = Privacy(cfg, tmp_path / str(realised), 0, 20)
        released = privacy.release(1, frozenset(), Update(zero, realised))
        assert released.weight == 10.0  # half of twenty users, whoever came
        # 30,000 numbers of deviation 4 · 0.5: six standard errors are 6 · 2 / √60,000.
        assert float(released.tensors["item_emb"].std()) == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize(
    ("sampling", "adjacency", "sensitivity"),
    [("poisson", ADD_REMOVE, 0.1), ("fixed", REPLACE, 0.2)],
)
def test_neighbours_follow_from_how_cohorts_are_drawn(
    tmp_path: Path, sampling: str, adjacency: str, sensitivity: float
) -> None:
    cfg = config(tmp_path, *DP, "privacy.dp.epsilon=4", f"privacy.dp.sampling={sampling}")
    plan = Privacy(cfg, tmp_path, 0, 20).plan
    assert (plan.adjacency, plan.sensitivity) == (adjacency, pytest.approx(sensitivity))
    spent = epsilon([Releases(plan.std / sensitivity, 1.0, 100)], plan.delta, "fixed")
    assert 0.99 * 4 <= spent <= 4
    assert plan.delta == pytest.approx(20**-1.1)


def test_row_weights_are_not_released(tmp_path: Path) -> None:
    privacy = Privacy(config(tmp_path, *DP, NOISE), tmp_path, 0, 20)
    rows = {"item_emb": torch.ones(3)}
    with pytest.raises(ValueError, match="row weights"):
        privacy.release(1, frozenset(), Update({"item_emb": torch.ones(3, 2)}, 3.0, rows))


# ---- whole runs --------------------------------------------------------------------------------
def test_epsilon_is_in_every_line_and_in_the_result(tmp_path: Path) -> None:
    result = run(config(tmp_path, *DP, "privacy.dp.epsilon=8", *SIX_ROUNDS))
    lines = [line["privacy"] for line in read_metrics(result.folder)]
    spent = [line["epsilon"] for line in lines if isinstance(line, dict)]
    assert len(spent) == 6 and spent == sorted(spent)
    assert spent[0] > 0 and 7.9 < spent[-1] <= 8.0
    saved = load_result(result.folder).privacy
    assert saved is not None and saved["epsilon"] == spent[-1] and saved["releases"] == 6
    assert saved["adjacency"] == ADD_REMOVE and saved["delta"] == pytest.approx(20**-1.1)
    assert "ε 8.00" in privacy_notes(saved)[0][0]
    # Nothing exact beside the noisy sums: no losses, no item statistics.
    assert all(line["train"] == {} for line in read_metrics(result.folder))
    assert result.popularity is None


def test_a_resumed_run_goes_on_counting_and_ends_alike(tmp_path: Path) -> None:
    overrides = [*DP, "privacy.dp.epsilon=8", *SIX_ROUNDS]
    whole = run(config(tmp_path, *overrides, "name=whole"))
    cut = config(tmp_path, *overrides, "name=cut")
    with pytest.raises(KilledError):
        run(cut, KillAfter(3))  # its checkpoint is of round 2, the ledger has round 3
    ledger = Path(cut.output) / "cut" / LEDGER
    assert [json.loads(line)["round"] for line in ledger.read_text().splitlines()] == [1, 2, 3]
    resumed = run(replace(cut, resume=True))
    assert resumed.privacy == whole.privacy
    assert resumed.metrics == whole.metrics
    assert ledger.read_bytes() == (whole.folder / LEDGER).read_bytes()


def test_more_rounds_do_not_exceed_the_budget(tmp_path: Path) -> None:
    cfg = config(tmp_path, *DP, "privacy.dp.epsilon=8", *SIX_ROUNDS)
    first = run(cfg)
    more = replace(cfg, resume=True, federation=replace(cfg.federation, rounds=12))
    second = run(more)
    assert second.rounds == first.rounds == 6
    assert second.privacy == first.privacy


def test_a_run_ends_before_its_budget_is_exceeded(tmp_path: Path) -> None:
    budget = ["privacy.dp.noise_multiplier=1", "privacy.dp.epsilon=4"]
    result = run(config(tmp_path, *DP, *budget, *SIX_ROUNDS))
    assert result.privacy is not None

    def spent(steps: int) -> float:
        return epsilon([Releases(1.0, 1.0, steps)], 20**-1.1, "poisson")

    assert 0 < result.rounds < 6
    assert spent(result.rounds) == result.privacy["epsilon"] <= 4 < spent(result.rounds + 1)


def test_a_budget_without_a_single_round_is_refused(tmp_path: Path) -> None:
    cfg = config(tmp_path, *DP, "privacy.dp.noise_multiplier=0.2", "privacy.dp.epsilon=1")
    with pytest.raises(ConfigError, match="does not allow a single round"):
        run(cfg)


def test_a_missing_ledger_stops_a_resume(tmp_path: Path) -> None:
    cfg = config(tmp_path, *DP, NOISE, *SIX_ROUNDS)
    result = run(cfg)
    (result.folder / LEDGER).unlink()
    with pytest.raises(CheckpointError, match="does not have the release of round 1"):
        run(replace(cfg, resume=True))


def test_rounds_repeated_in_a_deployment_count_again(tmp_path: Path) -> None:
    """There noise is not repeatable: a round made again after a crash is another release."""
    cfg = config(tmp_path, *DP, NOISE, *SIX_ROUNDS)
    deployed = replace(cfg, federation=replace(cfg.federation, grid="deployment"))
    before, zero = Privacy(deployed, tmp_path, 0, 20), {"item_emb": torch.zeros(4, 2)}
    drawn = [before.release(r, frozenset(), Update(zero, 20.0)).tensors for r in (1, 2, 3)]
    after = Privacy(deployed, tmp_path, 2, 20)
    again = after.release(3, frozenset(), Update(zero, 20.0)).tensors
    assert not torch.equal(again["item_emb"], drawn[2]["item_emb"])
    assert after.spent()["releases"] == 4
    assert after.spent()["epsilon"] == epsilon([Releases(4.0, 1.0, 4)], 20**-1.1, "poisson")


def test_a_poisson_cohort_may_be_empty(tmp_path: Path) -> None:
    fraction = 0.02
    sizes = [len(draw_cohort(0, r, 20, fraction, "poisson")) for r in range(1, 7)]
    assert 0 in sizes and max(sizes) > 0
    dp = ["privacy=dp", NOISE, f"federation.fraction={fraction}", *SIX_ROUNDS]
    result = run(config(tmp_path, *dp))
    assert [line["num_users"] for line in read_metrics(result.folder)] == sizes


def test_cohorts_of_a_deployment_do_not_follow_from_the_seed() -> None:
    drawn = [draw_cohort(None, 1, 1000, 0.3, "poisson").tolist() for _ in range(2)]
    assert drawn[0] != drawn[1]
    # Six standard deviations of a binomial: 6 · √(1000 · 0.3 · 0.7).
    assert all(abs(len(users) - 300) < 87 for users in drawn)
    assert len(set(draw_cohort(None, 1, 1000, 0.3, "fixed").tolist())) == 300


# ---- noise of users ----------------------------------------------------------------------------
def test_ldp_noise_is_on_each_users_update(tmp_path: Path) -> None:
    cfg = config(tmp_path, "privacy=ldp", "privacy.ldp.noise_multiplier=3", "privacy.ldp.clip=0.1")
    node = tiny_run.node(cfg)

    def trained(users: list[int], std: float) -> torch.Tensor:
        shared, where = tiny_run.shared(cfg), {"dataset": node.dataset, "state": node.state}
        found = train_users(
            node.strategy, shared, np.array(users), round_=1, base_round=0, cfg=cfg,
            noise_std=std, **where,  # type: ignore[arg-type]
        )  # fmt: skip
        (table,) = found.update.tensors.values()
        return table

    for users in ([1], [1, 2, 3, 4]):
        noise = (trained(users, 0.3) - trained(users, 0.0)).double()
        assert bool((noise != 0).all())
        expected, count = 0.3 * math.sqrt(len(users)), noise.numel()
        assert float(noise.std()) == pytest.approx(expected, rel=6 / math.sqrt(2 * count))


def test_ldp_counts_rounds_of_a_user(tmp_path: Path) -> None:
    ldp = ["privacy=ldp", "privacy.ldp.epsilon=4", "federation.fraction=1.0", *SIX_ROUNDS]
    result = run(config(tmp_path, *ldp))
    lines = [line["privacy"] for line in read_metrics(result.folder)]
    spent = [line["epsilon"] for line in lines if isinstance(line, dict)]
    assert 3.9 < spent[0] <= 4.0 and spent == sorted(spent)
    assert result.privacy is not None and result.privacy["adjacency"] == REPLACE
    # Noise over 2 · clip is z: six rounds of z are one of z/√6.
    z = float(str(result.privacy["noise_std"])) / float(str(result.privacy["sensitivity"]))
    assert spent[5] == pytest.approx(
        epsilon([Releases(z / math.sqrt(6), 1.0, 1)], 20**-1.1, "fixed"), rel=1e-9
    )


def distributed(cfg: Config) -> Config:
    """As composed together with secure aggregation, whose settings are not of this test."""
    assert cfg.privacy.dp is not None
    dp = replace(cfg.privacy.dp, noise="distributed", sampling="fixed")
    return replace(cfg, privacy=replace(cfg.privacy, dp=dp))


def test_distributed_noise_is_enough_with_the_fewest_users(tmp_path: Path) -> None:
    overrides = [*DP, NOISE, "federation.min_share=0.8", "federation.on_missing=fail"]
    privacy = Privacy(distributed(config(tmp_path, *overrides)), tmp_path, 0, 20)
    privacy.begin(1, 20)
    # 16 of 20 users have at least the noise of the whole together, and 15 have not.
    assert privacy.users_std() * math.sqrt(16) == pytest.approx(4.0 * 0.1)
    table = {"item_emb": torch.ones(3, 2)}
    released = privacy.release(1, frozenset(), Update(table, 16.0))
    assert released.weight == 20.0 and torch.equal(released.tensors["item_emb"], table["item_emb"])
    with pytest.raises(ValueError, match="less noise"):
        privacy.release(1, frozenset(), Update(table, 15.0))
    # Whoever sees the sums may be the server that drew the cohort: no gain by sampling.
    assert privacy.spent()["epsilon"] == epsilon([Releases(2.0, 1.0, 1)], 20**-1.1, "fixed")


def test_a_request_without_noise_is_refused(tmp_path: Path) -> None:
    cfg = distributed(config(tmp_path, *DP, NOISE))
    request = tiny_run.downlink(tiny_run.header(cfg), {}, [1])
    with pytest.raises(NodeError, match="how much noise"):
        check_noise(cfg, request)
    check_noise(cfg, replace(request, noise_std=0.1))
    with pytest.raises(NodeError, match="stock"):
        check_noise(cfg, replace(request, noise_std=0.1, reply_weights=True))


# ---- no ε without a bound ----------------------------------------------------------------------
UNBOUNDED = [
    ["privacy=none"],
    ["privacy=pseudo_items"],
    ["privacy=dp", "privacy.dp.noise_multiplier=1e-9", "federation.fraction=1.0"],
    ["privacy=ldp", "privacy.ldp.noise_multiplier=1e-9"],
]


@pytest.mark.parametrize("overrides", UNBOUNDED, ids=lambda o: "-".join(o[:2]))
def test_no_epsilon_without_a_bound(
    tmp_path: Path, overrides: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    result = run(config(tmp_path, *overrides, "federation.rounds=2", "evaluation.every=2"))
    found = [r["privacy"] for r in read_metrics(result.folder)]
    for privacy in [*found, load_result(result.folder).privacy]:
        assert privacy is None or (isinstance(privacy, dict) and privacy["epsilon"] is None)
        assert epsilon_text(privacy if isinstance(privacy, dict) else None) == ""
    assert privacy_notes(result.privacy) == []
    assert "ε " not in "".join(line for line in caplog.messages if line.startswith("Round "))


# ---- pseudo-items ------------------------------------------------------------------------------
def ragged(*rows: list[int]) -> Ragged:
    return Ragged(np.concatenate([np.array(r) for r in rows]), np.array([len(r) for r in rows]))


def drawing(ratio: float, kept_free: int) -> PseudoItems:
    def stream(user: int) -> np.random.Generator:
        return np.random.default_rng([7, user])

    return PseudoItems(ratio, stream, kept_free)


def test_pseudo_items_are_others_and_stay(tmp_path: Path) -> None:
    train, users = ragged([0, 0, 5], [1, 2, 3, 4]), np.array([3, 8])
    excluded = ragged([0, 5], [1, 2, 3, 4])
    mixed, never = drawing(1.5, 2).mixed(train, excluded, users, 20)
    assert mixed.lengths_U.tolist() == [3 + 3, 4 + 6]  # 1.5 times 2 and 4 distinct items
    assert never.lengths_U.tolist() == [2 + 3, 4 + 6]
    added = set(never.values[:5]) - {0, 5}
    assert len(added) == 3 and added < set(mixed.values[:6].tolist())
    again, _ = drawing(1.5, 2).mixed(ragged([1, 2, 3, 4]), ragged([1, 2, 3, 4]), users[1:], 20)
    assert again.values.tolist() == mixed.values[6:].tolist()


def test_pseudo_items_leave_negatives() -> None:
    _, never = drawing(50.0, 4).mixed(ragged([0, 1]), ragged([0, 1]), np.array([0]), 10)
    assert never.lengths_U.tolist() == [6]


def test_pseudo_items_change_what_is_sent(tmp_path: Path) -> None:
    touched = []
    for privacy in ("none", "pseudo_items"):
        cfg = config(tmp_path, f"privacy={privacy}", "strategy.num_negatives=1")
        (table,) = sum_of(cfg, [0]).values()
        touched.append(int((table.to_dense() != 0).any(1).sum()))
    assert touched[1] > touched[0]


def test_a_nodes_key_is_its_own_and_stays(tmp_path: Path) -> None:
    key = node_key(tmp_path)
    assert len(key) == 32 and node_key(tmp_path) == key
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o077 == 0
    other = tmp_path / "other"
    other.mkdir()
    assert node_key(other) != key
    (other / KEY_FILE).write_bytes(b"short")
    with pytest.raises(ValueError, match="5 bytes"):
        node_key(other)


# ---- what cannot be combined -------------------------------------------------------------------
WRONG = [
    (["privacy=dp"], "needs privacy.dp.epsilon"),
    ([*DP, "privacy.dp.epsilon=-1"], "must be positive"),
    ([*DP, NOISE, "privacy.dp.delta=1.5"], "between 0 and 1"),
    ([*DP, NOISE, "evaluation.item_statistics=true"], "item_statistics"),
    ([*DP, NOISE, "init.run=first"], "init=drawn"),
    ([*DP, NOISE, "init=spectral"], "init=drawn"),
    ([*DP, NOISE, "privacy.dp.noise=distributed"], r"\[secagg,dp\]"),
    (["privacy=[dp,ldp]", NOISE, "privacy.ldp.epsilon=1"], "choose one"),
    (["privacy=ldp", "privacy.ldp.epsilon=1", "privacy.ldp.noise_multiplier=1"], "leave"),
    (["privacy=pseudo_items", "privacy.pseudo_items.ratio=0"], "ratio"),
    ([*DP, NOISE, "privacy.dp.metrics=true", "federation.grid=deployment"], "exact losses"),
]
UNCLIPPED = [
    "strategy=fedease",
    "strategy=fedials",
    "strategy=fedspectral",
    "strategy=fedfast",
    "strategy=gpfedrec",
    "strategy=cofedrec",
    "strategy=fedca",
    "strategy=fedem",
    "strategy=perfedrec",
]


@pytest.mark.parametrize(("overrides", "message"), WRONG, ids=lambda o: "-".join(o)[:60])
def test_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(overrides)


@pytest.mark.parametrize("mechanism", ["dp", "ldp"])
@pytest.mark.parametrize("strategy", UNCLIPPED)
def test_strategies_whose_uploads_are_not_clipped(strategy: str, mechanism: str) -> None:
    with pytest.raises(ConfigError, match="has no guarantee"):
        compose([strategy, f"privacy={mechanism}", f"privacy.{mechanism}.noise_multiplier=1"])


def test_row_counts_of_fedavg_are_refused() -> None:
    overrides = ["strategy=fedavg", *DP, NOISE]
    with pytest.raises(ConfigError, match="weighting=users"):
        compose([*overrides, "strategy.weighting=rows"])
    compose([*overrides, "strategy.weighting=users"])


def test_what_epsilon_does_not_cover_is_said() -> None:
    said = " ".join(remarks(compose([*DP, NOISE])))
    assert "held-out items" in said and "seed" in said
    assert "no ε" in " ".join(remarks(compose(["privacy=pseudo_items"])))


# ---- with other parts ---------------------------------------------------------------------------
@pytest.mark.parametrize("model", ["mf", "neumf"])
@pytest.mark.parametrize("engine", ["loop", "cohort"])
@pytest.mark.parametrize("strategy", ["fedrecgel", "fedavg"])
def test_every_engines_updates_can_be_clipped(
    tmp_path: Path, strategy: str, engine: str, model: str
) -> None:
    """NeuMF's blocks are made in inference mode, which sparse tables remember."""
    words = [f"strategy={strategy}", f"engine={engine}", f"model={model}"]
    done = run(config(tmp_path, *DP, NOISE, *words, "federation.rounds=1"))
    assert done.privacy is not None and done.rounds == 1


def test_noise_on_a_sum_goes_with_no_defence() -> None:
    """A defence makes a sum of its own, on which there would be no noise and yet an ε."""
    with pytest.raises(ConfigError, match="privacy=dp adds noise to the plain sum"):
        compose(["privacy=dp", "privacy.dp.epsilon=8", "defence=median"])
