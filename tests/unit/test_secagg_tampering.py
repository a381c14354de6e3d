"""What was changed on its way, or cannot be held by the numbers, is found before it counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from secagg_nodes import (
    HALF_STEP,
    SECURE,
    TOLERANT,
    Nodes,
    assert_sum_of,
    config,
    run,
    uplinks,
)

from server_app.errors import ClientsFailedError, RoundError
from server_app.secagg import Summed
from strategies.secagg.protocol import KEYS, SHARES, UNMASK


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
    tmp_path: Path, plain_nodes: Nodes, secure_sums: dict[str, Summed]
) -> None:
    nodes = tampering_with_shares_from_the_first({3})
    cfg = config(tmp_path, *SECURE, TOLERANT, "name=secure")
    with pytest.raises(ClientsFailedError, match="a sealed share was changed"):
        run(cfg, nodes)
    by_shard = uplinks(plain_nodes, cfg)
    stay = [name for i, name in enumerate(sorted(by_shard)) if i != 3]
    assert_sum_of(secure_sums["train/1"], [by_shard[name] for name in stay])


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
    tmp_path: Path, plain_nodes: Nodes, secure_sums: dict[str, Summed]
) -> None:
    """20 bits after the point: off by at most 5 · 2^-21."""
    narrow = ("modulus_bits=32", "fraction_bits=20", "limit=50")
    cfg = config(tmp_path, *SECURE, *(f"privacy.secagg.{n}" for n in narrow), "name=secure")
    run(cfg, Nodes())
    parts = list(uplinks(plain_nodes, cfg).values())
    errors = []
    for name in parts[0].update.tensors:
        exact = np.sum([p.update.tensors[name].to_dense().double().numpy() for p in parts], axis=0)
        errors.append(
            np.abs(secure_sums["train/1"].payload.tensors[f"update/{name}"] - exact).max()
        )
    assert max(errors) <= 5 * 2.0**-21 + 1e-12
    assert max(errors) > 5 * HALF_STEP, "the coarser step shows"
