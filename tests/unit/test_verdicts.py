from __future__ import annotations

from pathlib import Path

import pytest

from conf.tree import ConfigError
from experiments.claim_files import known_claims, load_claims
from experiments.verdicts import (
    NOISE,
    NOT_REPRODUCED,
    REPRODUCED,
    UNTESTED,
    judge_figure,
    judge_order,
)

SEEDS = [0.49, 0.50, 0.51]
"""Mean 0.5, sd 0.01: t interval ± 4.3027 · 0.01 / √3 = 0.0248; one more seed ± 0.0497."""


@pytest.mark.parametrize(
    ("claimed", "users", "verdict"),
    [
        (0.52, 100, REPRODUCED),  # users: ± 1.96 · √(0.25 / 100) = 0.098, wider than ± 0.0248
        (0.53, 100, NOISE),  # outside ± 0.0248, within ± 0.098
        (0.60, 100, NOT_REPRODUCED),
        (0.54, 10_000, NOISE),  # users: ± 0.0098; one more seed: ± 0.0497
        (0.505, 10_000, NOISE),  # in the interval of the mean, which is too wide to say more
        (0.56, 10_000, NOT_REPRODUCED),
    ],
)
def test_a_claimed_figure(claimed: float, users: int, verdict: str) -> None:
    assert judge_figure(claimed, SEEDS, users) == verdict


def test_two_seeds_reproduce_nothing() -> None:
    assert judge_figure(0.5, [0.5, 0.5], 100) == NOISE
    assert judge_figure(0.7, [0.5, 0.5], 100) == NOT_REPRODUCED


def test_an_order() -> None:
    assert judge_order([(0.1, 0.2), (0.01, 0.4)]) == REPRODUCED
    assert judge_order([(0.1, 0.2), (-0.01, 0.4)]) == NOISE
    assert judge_order([(-0.2, -0.1)]) == NOT_REPRODUCED
    assert judge_order([(-0.2, 0.0)]) == NOISE
    assert judge_order([]) == UNTESTED


def test_the_claims_that_come_along() -> None:
    claims = {of.dataset: of for of in known_claims()}
    assert claims["filmtrust"].figures["chosen"]["test/sampled/hr@10"] == 91.77
    assert {of.protocol for of in claims.values()} == {"paper"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "holds no claims"),
        ("source: x", "holds no claims"),
        ("{source: s, dataset: d, protocol: p, arms: {}, figures: {a: {f: 1}}}", "no arm 'a'"),
        ("{source: s, dataset: d, protocol: p, arms: {a: {}}, figures: {a: {f: 101}}}", "per cent"),
        (
            "{source: s, dataset: d, protocol: p, arms: {a: {}}, figures: {}, better: [[a]]}",
            "pairs",
        ),
    ],
)
def test_bad_claims_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_claims(path)
