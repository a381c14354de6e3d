"""Masked sums with real nodes: exact within half a step a node, whoever drops out and when.

A node's number x goes as round(x · 2^32), off by at most 2^-33. The sum of n such is exact modulo
2^64, so it is off by at most n · 2^-33; as a float64 it is rounded by 2^-53 of itself once more.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from made_up import final_tensors, small_config
from secagg_nodes import STAGES, Nodes

from conf.tree import Config, build_strategy
from models.rng import Role, derive_rng
from server_app.callbacks import read_metrics
from server_app.errors import RoundError
from server_app.results import RunResult, load_result
from server_app.run import run_server
from server_app.run_folder import read_state
from server_app.secagg import SecureSums, Summed
from server_app.secagg_journal import Journal
from strategies import wire
from strategies.messages import Uplink
from strategies.secagg.protocol import ITEM_COUNTS, KEYS, SHARES, UNMASK

NODES, ITEMS = 5, 39
HALF_STEP = 2.0**-33
SECURE = ("privacy=secagg", "privacy.secagg.threshold=0.6")
"""Of 5 nodes 3 must stay, which is also the least number of nodes."""
TOLERANT = "federation.min_share=0.5"
"""Two of five nodes hold at most 10 of 24 users."""


def config(folder: Path, *overrides: str) -> Config:
    one = ("federation.rounds=1", "evaluation.every=1", "federation.fraction=1.0")
    return small_config(folder, f"federation.num_nodes={NODES}", *one, *overrides)


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> dict[str, Summed]:
    """Every sum that a server made, by its name."""
    found: dict[str, Summed] = {}
    collect = SecureSums.collect

    def kept(self: SecureSums, what: str, *rest: object) -> Summed:
        found[what] = collect(self, what, *rest)  # type: ignore[arg-type]
        return found[what]

    monkeypatch.setattr(SecureSums, "collect", kept)
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    """Nodes of a run without protection, with their replies."""
    nodes = Nodes()
    cfg = config(tmp_path_factory.mktemp("plain"), "name=plain")
    run_server(nodes.grid(NODES), cfg)
    return nodes


def uplinks(plain: Nodes, cfg: Config) -> dict[str, Uplink]:
    """What each node sends in the first round, by shard."""
    strategy = build_strategy(cfg)
    shared = strategy.init_shared(ITEMS, derive_rng(cfg.seed, Role.INIT_SHARED))
    template = strategy.summed_template(shared)
    contents = [content for _, kind, content in plain.replies if kind == "train"]
    found = [wire.decode_uplink(content, template) for content in contents]
    return {uplink.shard_key: uplink for uplink in found}


def run(cfg: Config, nodes: Nodes) -> RunResult:
    return run_server(nodes.grid(NODES), cfg)


def assert_sum_of(summed: Summed, parts: list[Uplink]) -> None:
    """Every entry of the sum is within the bound of the float64 sum of the nodes' own."""
    bound = len(parts) * HALF_STEP
    for name in parts[0].update.tensors:
        each = [part.update.tensors[name].to_dense().numpy().astype(np.float64) for part in parts]
        exact = np.sum(each, axis=0)
        error = np.abs(summed.payload.tensors[f"update/{name}"] - exact)
        # Adding the float64 numbers here rounds too: a few 2^-53 of their magnitudes.
        rounding = len(parts) * 2.0**-53 * np.sum(np.abs(each), axis=0)
        assert (error <= bound + rounding).all()
        assert np.abs(exact).max() > 1000 * bound, "the bound says something"
    figures = summed.payload.figures
    assert figures["weight"] == sum(part.update.weight for part in parts)
    assert figures["users"] == sum(part.num_users for part in parts) == summed.users
    for name in parts[0].metrics:
        exact_sum = sum(part.metrics[name] for part in parts)
        assert abs(figures[f"sum/{name}"] - exact_sum) <= bound + 2.0**-48 * abs(exact_sum)


def test_the_sum_is_that_of_the_plain_run(
    tmp_path: Path, plain: Nodes, sums: dict[str, Summed]
) -> None:
    cfg = config(tmp_path, *SECURE, "name=secure")
    result = run(cfg, Nodes())
    assert_sum_of(sums["train/1"], list(uplinks(plain, cfg).values()))
    assert result.totals["secagg_sums"] == 4  # item counts, popularity, training, evaluation
    assert result.totals["secagg_dropped"] == 0


def test_counts_and_exposure_are_exact(
    tmp_path: Path, plain: Nodes, sums: dict[str, Summed]
) -> None:
    run(config(tmp_path, *SECURE, "name=secure"), Nodes())
    counts = [wire.decode_item_counts(c, ITEMS) for _, k, c in plain.replies if "item_counts" in k]
    assert (sums[ITEM_COUNTS].payload.figures[ITEM_COUNTS] == np.sum(counts, axis=0)).all()
    ranked = [wire.decode_evaluate_reply(c) for _, k, c in plain.replies if k == "evaluate"]
    popular, figures = ranked[:NODES], sums["evaluate/popularity/0"].payload.figures
    exposures = [reply.exposure_I for reply in popular]
    assert all(exposure is not None for exposure in exposures)
    assert (figures["exposure"] == np.sum(exposures, axis=0)).all()
    name = "test/full/hr@10"
    assert figures[f"count/{name}"] == sum(reply.counts[name] for reply in popular)
    assert figures[f"sum/{name}"] == sum(reply.metrics[name] for reply in popular)


# ---- drop-outs ---------------------------------------------------------------------------
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("leaving", [(3,), (0, 4)])
def test_nodes_that_drop_out_before_a_stage(
    tmp_path: Path, plain: Nodes, sums: dict[str, Summed], stage: str, leaving: tuple[int, ...]
) -> None:
    """Item counts and popularity are the first two sums, training is the third.

    A node that goes before its upload is not in the sum; one that goes after it is.
    """
    turn = 1 if stage == "upload" else 3
    nodes = Nodes(gone=dict.fromkeys(leaving, (STAGES[stage], turn)))
    cfg = config(tmp_path, *SECURE, TOLERANT, "name=secure")
    run(cfg, nodes)
    by_shard = uplinks(plain, cfg)
    names = sorted(by_shard)
    stay = [n for i, n in enumerate(names) if stage == "unmask" or i not in leaving]
    assert sums["train/1"].survivors == tuple(stay)
    assert_sum_of(sums["train/1"], [by_shard[name] for name in stay])
    # Those who went are missed from then on.
    assert sums["evaluate/model/1"].survivors == tuple(
        n for i, n in enumerate(names) if i not in leaving
    )


def test_who_goes_at_each_stage_of_one_sum(
    tmp_path: Path, plain: Nodes, sums: dict[str, Summed]
) -> None:
    """One before the upload, one after it: three of five are left to unmask four."""
    nodes = Nodes(gone={1: ("train", 1), 2: (UNMASK, 3)})
    cfg = config(tmp_path, *SECURE, TOLERANT, "name=secure")
    run(cfg, nodes)
    by_shard = uplinks(plain, cfg)
    stay = [name for i, name in enumerate(sorted(by_shard)) if i != 1]
    assert_sum_of(sums["train/1"], [by_shard[name] for name in stay])


@pytest.mark.parametrize("stage", ["keys", "shares", "upload"])
def test_below_the_threshold_nothing_is_unmasked(tmp_path: Path, stage: str) -> None:
    turn = 1 if stage == "upload" else 3
    nodes = Nodes(gone=dict.fromkeys((0, 1, 2), (STAGES[stage], turn)))
    cfg = config(tmp_path, *SECURE, "federation.min_share=0.1", "name=secure")
    did = {"keys": "gave keys", "shares": "gave shares", "upload": "sent an upload"}[stage]
    line = rf"^train/1: secure aggregation: 2 of 5 nodes {did}, 3 are needed "
    with pytest.raises(RoundError, match=line):
        run(cfg, nodes)
    # Two sums before: of this one no share was ever asked for.
    assert len(nodes.asked(UNMASK)) == 2 * NODES
    assert Journal(tmp_path / "runs" / "secure").survivors("train/1") is None
    assert read_state(tmp_path / "runs" / "secure").status == "failed"
    assert not (tmp_path / "runs" / "secure" / "result.json").exists()


def test_too_few_shares_leave_the_sum_masked(tmp_path: Path) -> None:
    nodes = Nodes(gone=dict.fromkeys((0, 1, 2), (UNMASK, 3)))
    cfg = config(tmp_path, *SECURE, "federation.min_share=0.1", "name=secure")
    line = r"^train/1: secure aggregation: shares of 2 nodes are here, 3 are needed, and the sum "
    with pytest.raises(RoundError, match=line):
        run(cfg, nodes)


def test_a_share_of_users_below_the_policy_ends_the_round(tmp_path: Path) -> None:
    nodes = Nodes(gone={4: (SHARES, 3)})
    with pytest.raises(RoundError, match=r"nodes of 19 of 24 users gave shares \(min_share=1"):
        run(config(tmp_path, *SECURE, "name=secure"), nodes)


def test_a_retry_is_a_new_session_with_new_keys(
    tmp_path: Path, plain: Nodes, sums: dict[str, Summed]
) -> None:
    """The node misses the upload of the third sum, and is there when keys are asked for again."""
    nodes = Nodes(gone={2: ("train", 1)}, back={2: (KEYS, 4)})
    cfg = config(tmp_path, *SECURE, "federation.on_missing=retry", "name=secure")
    result = run(cfg, nodes)
    assert_sum_of(sums["train/1"], list(uplinks(plain, cfg).values()))
    keys = [c["secagg"]["mask-key"] for n, k, c in nodes.replies if (n, k) == (0, KEYS)]
    assert len(set(keys)) == len(keys) == 5
    assert result.totals["failures"] == 1


def test_continue_goes_on_with_those_who_stay(tmp_path: Path, sums: dict[str, Summed]) -> None:
    nodes = Nodes(gone={2: ("train", 1)})
    run(config(tmp_path, *SECURE, "federation.on_missing=continue", "name=secure"), nodes)
    assert len(sums["train/1"].survivors) == 4


# ---- what is written and what is asked again ---------------------------------------------
def test_costs_are_in_every_round_and_in_the_result(tmp_path: Path) -> None:
    cfg = config(tmp_path, *SECURE, "federation.rounds=2", "name=secure")
    run(cfg, Nodes())
    lines = read_metrics(tmp_path / "runs" / "secure")
    costs = [line["secagg"] for line in lines]
    assert [c["sums"] for c in costs] == [4, 2]  # type: ignore[index]
    assert all(c["bytes_up"] > 0 and c["bytes_down"] > 0 and c["seconds"] > 0 for c in costs)  # type: ignore[index]
    totals = load_result(tmp_path / "runs" / "secure").totals
    assert totals["secagg_bytes_up"] == sum(c["bytes_up"] for c in costs)  # type: ignore[index]


def test_a_run_is_repeatable_though_its_keys_are_not(tmp_path: Path) -> None:
    """Masks cancel to the last bit, so the parameters do not depend on them."""
    for name in ("one", "two"):
        run(config(tmp_path, *SECURE, "federation.rounds=2", f"name={name}"), Nodes())
    one, two = (final_tensors(tmp_path / "runs" / name) for name in ("one", "two"))
    assert one == two


def test_a_resumed_run_has_the_bytes_of_an_unbroken_one(tmp_path: Path) -> None:
    three = ("federation.rounds=3", "federation.checkpoint_every=1")
    run(config(tmp_path, *SECURE, *three, "name=whole"), Nodes())
    broken = Nodes(gone=dict.fromkeys(range(NODES), ("train", 2)))
    with pytest.raises(RoundError):
        run(config(tmp_path, *SECURE, *three, "name=broken"), broken)
    run(config(tmp_path, *SECURE, *three, "name=broken", "resume=true"), Nodes())
    whole, again = (final_tensors(tmp_path / "runs" / name) for name in ("whole", "broken"))
    assert whole == again


def test_a_sum_that_was_made_is_not_made_over_others(tmp_path: Path) -> None:
    """Item counts were summed over all five; a resumed run may not have those of four."""
    cfg = config(tmp_path, *SECURE, TOLERANT, "federation.checkpoint_every=1", "name=secure")
    with pytest.raises(RoundError):
        run(cfg, Nodes(gone=dict.fromkeys(range(NODES), ("train", 1))))
    again = config(tmp_path, *SECURE, TOLERANT, "name=secure", "resume=true")
    with pytest.raises(RoundError, match=r"^item_counts: .* 4 of the 5 nodes of this sum "):
        run(again, Nodes(gone={1: (SHARES, 1)}))


def test_uploads_differ_in_nothing_but_masked_numbers(tmp_path: Path) -> None:
    """No field of an upload has a node's number of users, weight, metrics, time or touched rows."""
    nodes = Nodes()
    run(config(tmp_path, *SECURE, "name=secure"), nodes)
    uploads = [content for _, kind, content in nodes.replies if kind == "train"]
    assert len(uploads) == NODES
    for content in uploads:
        assert {type(content[name]) for name in content} == {ArrayRecord, ConfigRecord}
        assert set(content["secagg"]) == {"shard-key", "session", "layout"}
        assert set(content["masked"]) == {"tensors", "figures"}
    assert len({content["secagg"]["layout"] for content in uploads}) == 1
    assert len({len(content["masked"]["tensors"].data) for content in uploads}) == 1


# ---- tampering ---------------------------------------------------------------------------
def flipped(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


def tampering_with_shares_from_the_first(victims: set[int]) -> Nodes:
    def request(node: int, message: Message) -> None:
        if node in victims and message.metadata.message_type == "train":
            record = message.content["secagg"]
            record["shares"] = [flipped(record["shares"][0]), *record["shares"][1:]]

    return Nodes(request=request)


def test_a_tampered_share_is_detected_before_anything_is_sent(tmp_path: Path) -> None:
    nodes = tampering_with_shares_from_the_first({3})
    expected = (
        r"SecAggError: secure aggregation: a sealed share was changed on its way \(from '0000"
    )
    with pytest.raises(RoundError, match=expected):
        run(config(tmp_path, *SECURE, "name=secure"), nodes)
    assert 3 not in [node for node, kind, _ in nodes.replies if kind == "train"]


def test_who_detects_a_tampered_share_drops_out_alone(
    tmp_path: Path, plain: Nodes, sums: dict[str, Summed]
) -> None:
    from server_app.errors import ClientsFailedError

    nodes = tampering_with_shares_from_the_first({3})
    cfg = config(tmp_path, *SECURE, TOLERANT, "name=secure")
    with pytest.raises(ClientsFailedError, match="a sealed share was changed"):
        run(cfg, nodes)
    by_shard = uplinks(plain, cfg)
    stay = [name for i, name in enumerate(sorted(by_shard)) if i != 3]
    assert_sum_of(sums["train/1"], [by_shard[name] for name in stay])


def test_a_false_share_at_the_end_is_detected(tmp_path: Path) -> None:
    """A node that gives another share than it was given: the sum stays masked, and says why."""

    def reply(node: int, message: Message) -> None:
        if node == 0 and message.metadata.message_type == UNMASK:
            record = message.content["secagg"]
            record["first-values"] = [flipped(value) for value in record["first-values"]]

    with pytest.raises(
        RoundError, match=r"secure aggregation: the shares of '000000-.* do not fit"
    ):
        run(config(tmp_path, *SECURE, "name=secure"), Nodes(reply=reply))


def test_a_false_key_in_the_roster_is_detected_by_its_owner(tmp_path: Path) -> None:
    def request(node: int, message: Message) -> None:
        if node == 1 and message.metadata.message_type == SHARES:
            record = message.content["secagg"]
            keys = list(record["mask-keys"])
            record["mask-keys"] = [keys[0], keys[0], *keys[2:]]

    with pytest.raises(RoundError, match="the roster has other keys for this node than its own"):
        run(config(tmp_path, *SECURE, "name=secure"), Nodes(request=request))


def test_a_value_beyond_the_limit_is_refused_on_the_node(tmp_path: Path) -> None:
    limit = "privacy.secagg.limit=1e-9"
    expected = r"RangeError: secure aggregation: an entry of 'update/.* is not within ±1e-09 a user"
    with pytest.raises(RoundError, match=expected):
        run(config(tmp_path, *SECURE, limit, "name=secure"), Nodes())


def test_a_sum_that_could_wrap_is_not_asked_for(tmp_path: Path) -> None:
    """32 bits, 20 after the point: ±2,048. 24 users at 100 each are 2,400."""
    narrow = ("modulus_bits=32", "fraction_bits=20", "limit=100")
    cfg = config(tmp_path, *SECURE, *(f"privacy.secagg.{n}" for n in narrow), "name=secure")
    nodes = Nodes()
    with pytest.raises(RoundError, match=r"a sum over 24 users may not fit 32 bits \(at most 20 "):
        run(cfg, nodes)
    assert not nodes.asked(KEYS)


def test_32_bits_have_the_larger_bound(
    tmp_path: Path, plain: Nodes, sums: dict[str, Summed]
) -> None:
    """20 bits after the point: off by at most 5 · 2^-21."""
    narrow = ("modulus_bits=32", "fraction_bits=20", "limit=50")
    cfg = config(tmp_path, *SECURE, *(f"privacy.secagg.{n}" for n in narrow), "name=secure")
    run(cfg, Nodes())
    parts = list(uplinks(plain, cfg).values())
    errors = []
    for name in parts[0].update.tensors:
        exact = np.sum([p.update.tensors[name].to_dense().double().numpy() for p in parts], axis=0)
        errors.append(np.abs(sums["train/1"].payload.tensors[f"update/{name}"] - exact).max())
    assert max(errors) <= 5 * 2.0**-21 + 1e-12
    assert max(errors) > 5 * HALF_STEP, "the coarser step shows"
