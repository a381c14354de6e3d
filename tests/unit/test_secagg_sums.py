"""Masked sums with real nodes: exact within half a step a node, whoever drops out and when.

A node's number x goes as round(x · 2^32), off by at most 2^-33. The sum of n such is exact modulo
2^64, so it is off by at most n · 2^-33; as a float64 it is rounded by 2^-53 of itself once more.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from made_up import final_tensors
from secagg_nodes import (
    ITEMS,
    NODES,
    SECURE,
    STAGES,
    TOLERANT,
    Nodes,
    assert_sum_of,
    config,
    run,
    uplinks,
)

from server_app.callbacks import read_metrics
from server_app.errors import RoundError
from server_app.results import load_result
from server_app.run_folder import read_state
from server_app.secagg import Summed
from server_app.secagg_journal import Journal
from strategies import wire
from strategies.secagg.protocol import ITEM_COUNTS, KEYS, SHARES, UNMASK


def test_the_sum_is_that_of_the_plain_run(
    tmp_path: Path, plain_nodes: Nodes, secure_sums: dict[str, Summed]
) -> None:
    cfg = config(tmp_path, *SECURE, "name=secure")
    result = run(cfg, Nodes())
    assert_sum_of(secure_sums["train/1"], list(uplinks(plain_nodes, cfg).values()))
    assert result.totals["secagg_sums"] == 4  # item counts, popularity, training, evaluation
    assert result.totals["secagg_dropped"] == 0


def test_counts_and_exposure_are_exact(
    tmp_path: Path, plain_nodes: Nodes, secure_sums: dict[str, Summed]
) -> None:
    run(config(tmp_path, *SECURE, "name=secure"), Nodes())
    counts = [
        wire.decode_item_counts(c, ITEMS) for _, k, c in plain_nodes.replies if "item_counts" in k
    ]
    assert (secure_sums[ITEM_COUNTS].payload.figures[ITEM_COUNTS] == np.sum(counts, axis=0)).all()
    ranked = [wire.decode_evaluate_reply(c) for _, k, c in plain_nodes.replies if k == "evaluate"]
    popular, figures = ranked[:NODES], secure_sums["evaluate/popularity/0"].payload.figures
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
    tmp_path: Path,
    plain_nodes: Nodes,
    secure_sums: dict[str, Summed],
    stage: str,
    leaving: tuple[int, ...],
) -> None:
    """Item counts and popularity are the first two sums, training is the third.

    A node that goes before its upload is not in the sum; one that goes after it is.
    """
    turn = 1 if stage == "upload" else 3
    nodes = Nodes(gone=dict.fromkeys(leaving, (STAGES[stage], turn)))
    cfg = config(tmp_path, *SECURE, TOLERANT, "name=secure")
    run(cfg, nodes)
    by_shard = uplinks(plain_nodes, cfg)
    names = sorted(by_shard)
    stay = [n for i, n in enumerate(names) if stage == "unmask" or i not in leaving]
    assert secure_sums["train/1"].survivors == tuple(stay)
    assert_sum_of(secure_sums["train/1"], [by_shard[name] for name in stay])
    # Those who went are missed from then on.
    assert secure_sums["evaluate/model/1"].survivors == tuple(
        n for i, n in enumerate(names) if i not in leaving
    )


def test_who_goes_at_each_stage_of_one_sum(
    tmp_path: Path, plain_nodes: Nodes, secure_sums: dict[str, Summed]
) -> None:
    """One before the upload, one after it: three of five are left to unmask four."""
    nodes = Nodes(gone={1: ("train", 1), 2: (UNMASK, 3)})
    cfg = config(tmp_path, *SECURE, TOLERANT, "name=secure")
    run(cfg, nodes)
    by_shard = uplinks(plain_nodes, cfg)
    stay = [name for i, name in enumerate(sorted(by_shard)) if i != 1]
    assert_sum_of(secure_sums["train/1"], [by_shard[name] for name in stay])


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
    tmp_path: Path, plain_nodes: Nodes, secure_sums: dict[str, Summed]
) -> None:
    """The node misses the upload of the third sum, and is there when keys are asked for again."""
    nodes = Nodes(gone={2: ("train", 1)}, back={2: (KEYS, 4)})
    cfg = config(tmp_path, *SECURE, "federation.on_missing=retry", "name=secure")
    result = run(cfg, nodes)
    assert_sum_of(secure_sums["train/1"], list(uplinks(plain_nodes, cfg).values()))
    keys = [c["secagg"]["mask-key"] for n, k, c in nodes.replies if (n, k) == (0, KEYS)]
    assert len(set(keys)) == len(keys) == 5
    assert result.totals["failures"] == 1


def test_continue_goes_on_with_those_who_stay(
    tmp_path: Path, secure_sums: dict[str, Summed]
) -> None:
    nodes = Nodes(gone={2: ("train", 1)})
    run(config(tmp_path, *SECURE, "federation.on_missing=continue", "name=secure"), nodes)
    assert len(secure_sums["train/1"].survivors) == 4


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
