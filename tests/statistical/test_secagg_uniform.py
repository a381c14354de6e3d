"""What the server sees of one node looks uniform, whatever the node has to say.

The bytes of a masked upload are those of AES in counter mode plus a fixed number, modulo 2^64: of
uniform numbers, the sum with anything is uniform. So Pearson's statistic over the 256 values of a
byte is chi-squared with 255 degrees of freedom; the band of each test is its 1e-6 and 1 - 1e-6
quantiles, so that of about twenty tests one fails by chance once in 25,000 runs. A control shows
that the same statistic sees an upload without masks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_up import small_config
from scipy import stats
from secagg_nodes import Nodes

from server_app.run import run_server
from strategies.secagg.fixed_point import FixedPoint

LOW, HIGH = stats.chi2.ppf([1e-6, 1 - 1e-6], 255)
NODES = 4


def statistic(data: bytes) -> float:
    """Pearson's, over the values of a byte."""
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    expected = len(data) / 256
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.fixture(scope="module")
def uploads(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[bytes]]:
    """By node: the numbers of its uploads of training, of two runs with the same seed."""
    folder, found = tmp_path_factory.mktemp("seen"), dict[int, list[bytes]]()
    for name in ("one", "two"):
        cfg = small_config(
            folder,
            f"federation.num_nodes={NODES}",
            "federation.rounds=1",
            "privacy=secagg",
            "model=mf",
            "model.factors=256",
            f"name={name}",
        )
        nodes = Nodes()
        run_server(nodes.grid(NODES), cfg)
        for node, kind, content in nodes.replies:
            if kind == "train":
                words = content["masked"]["tensors"].numpy()  # type: ignore[index]
                found.setdefault(node, []).append(words.tobytes())
    return found


@pytest.mark.parametrize("node", range(NODES))
def test_an_upload_looks_uniform(uploads: dict[int, list[bytes]], node: int) -> None:
    for data in uploads[node]:
        assert len(data) >= 8 * 39 * 256  # a value of a byte 312 times, 39 in one of eight
        assert LOW < statistic(data) < HIGH
        # The most and the least significant byte of a number, which would show sign and size.
        words = np.frombuffer(data, np.uint8).reshape(-1, 8)
        assert LOW < statistic(words[:, 7].tobytes()) < HIGH
        assert LOW < statistic(words[:, 0].tobytes()) < HIGH


@pytest.mark.parametrize("node", range(NODES))
def test_two_uploads_of_the_same_sum_have_nothing_in_common(
    uploads: dict[int, list[bytes]], node: int
) -> None:
    """The runs send the same numbers; the difference of their uploads is that of two masks."""
    one, two = (np.frombuffer(data, np.uint64) for data in uploads[node])
    assert LOW < statistic((one - two).tobytes()) < HIGH


def test_the_statistic_sees_numbers_without_masks() -> None:
    """Small numbers, with their zeros and their signs, are far outside the band."""
    values = np.random.default_rng(0).normal(0, 1e-3, 39 * 64)
    words = FixedPoint(64, 32, 1.0).encode(values, 1, "x")
    assert statistic(words.tobytes()) > 100 * HIGH


def test_the_band_is_that_of_uniform_bytes() -> None:
    bytes_of = np.random.default_rng(0).integers(0, 256, (200, 20_000), dtype=np.uint8)
    assert all(LOW < statistic(row.tobytes()) < HIGH for row in bytes_of)


def test_the_folder_for_audits_has_what_the_server_saw(tmp_path: Path) -> None:
    from server_app.secagg_journal import seen_by_server

    cfg = small_config(
        tmp_path,
        "federation.num_nodes=3",
        "federation.rounds=1",
        "privacy=secagg",
        "privacy.secagg.keep_uploads=true",
        "name=kept",
    )
    nodes = Nodes()
    run_server(nodes.grid(3), cfg)
    number = FixedPoint(64, 32, 65536.0)
    seen = seen_by_server(tmp_path / "runs" / "kept", "train/1", number)
    assert len(seen) == 3
    sent = {c["secagg"]["shard-key"]: c for _, k, c in nodes.replies if k == "train"}  # type: ignore[index]
    for key, payload in seen.items():
        words = sent[key]["masked"]["tensors"].numpy()  # type: ignore[index]
        first = sorted(payload.tensors)[0]
        shown = payload.tensors[first].ravel()
        assert (shown == number.decode(words[: shown.size])).all()
        # Read as if there were no masks: most of them thousands of times a user's limit.
        assert np.median(np.abs(shown)) > 1e6
