"""What a node tells of a failure: one bounded line with words and frames, and no user's items."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from made_up import small_config

from client_app.failures import MAX_LENGTH, describe, stage
from conf.tree import Config
from models.types import ClientResult, Samples, Tensors
from server_app.errors import RoundError
from server_app.grid import LocalGrid
from server_app.run import run_server
from server_app.run_folder import read_state


def caught(function: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as info:
        function()
    return info.value


def dig(depth: int, text: str) -> None:
    """``depth`` frames of different functions, then an error."""
    source, names = "", [f"a_function_with_a_long_name_{i:04d}" for i in range(depth)]
    for name, inner in zip(names, [*names[1:], "fail"], strict=True):
        source += f"def {name}():\n    {inner}()\n"

    def fail() -> None:
        raise RuntimeError(text)

    scope = {"fail": fail}
    exec(compile(source, "/somewhere/deep/module.py", "exec"), scope)
    scope[names[0]]()


def failing_in_a_stage(error: Exception) -> None:
    with stage("training", np.array([4])):
        raise error


def test_a_cause_is_told_with_its_frames_innermost_last() -> None:
    text = describe(caught(lambda: failing_in_a_stage(ZeroDivisionError("inner words"))))
    pattern = (
        r"TrainError: user 4: training: ZeroDivisionError: inner words at "
        r"unit/test_failures\.py:\d+ caught > unit/test_failures\.py:\d+ <lambda> > "
        r"unit/test_failures\.py:\d+ failing_in_a_stage"
    )
    assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize("error", [KeyError(1234), IndexError("index 1234 is out of bounds")])
def test_the_text_of_a_lookup_error_stays_on_the_node(error: Exception) -> None:
    for failing in (lambda: failing_in_a_stage(error), lambda: dict[int, int]()[1234]):
        text = describe(caught(failing))
        assert "1234" not in text
        assert re.search(r"(Key|Index)Error: \(text in the node's log\) at ", text), text
        assert "test_failures.py" in text


def test_an_error_is_one_line_of_bounded_length_that_keeps_the_innermost_frame() -> None:
    for depth, words in ((200, "deep"), (3, "much\n to say " * 500), (200, "both\n" * 500)):
        text = describe(caught(lambda depth=depth, words=words: dig(depth, words)))
        assert text.startswith(f"RuntimeError: {words.split()[0]}")
        assert "\n" not in text
        assert MAX_LENGTH - 100 < len(text) <= MAX_LENGTH or depth == 3
        assert len(text) <= MAX_LENGTH
        assert re.search(r" > unit/test_failures\.py:\d+ fail$", text), text


def test_an_error_without_words_or_frames() -> None:
    assert describe(ValueError()) == "ValueError"
    assert describe(ValueError("words")) == "ValueError: words"


def run_with(monkeypatch: pytest.MonkeyPatch, cfg: Config, error: Exception) -> str:
    def client_update(
        self: object,
        shared: Tensors,
        private: Tensors,
        epochs: Sequence[Samples],
        rng: np.random.Generator,
    ) -> ClientResult:
        raise error

    monkeypatch.setattr(cfg.strategy_class, "client_update", client_update)
    with pytest.raises(RoundError) as info:
        run_server(LocalGrid(2), cfg)
    return str(info.value)


def test_a_failing_strategy_ends_the_run_with_words_and_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real ClientApp: what the strategy's author wrote and where, at the server's terminal."""
    cfg = small_config(tmp_path, "name=run", "engine=loop", "federation.num_nodes=2")
    text = run_with(monkeypatch, cfg, ZeroDivisionError("inner words"))
    assert re.search(
        r"client error: TrainError: user \d+: training: ZeroDivisionError: inner words at .*"
        r"client_app/engine\.py:\d+ local > strategies/base\.py:\d+ cohort_update > "
        r"unit/test_failures\.py:\d+ client_update",
        text,
    ), text
    state = read_state(tmp_path / "runs" / "run")
    assert state.status == "failed"
    assert "ZeroDivisionError: inner words" in str(state)


def test_a_failing_lookup_ends_the_run_with_frames_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = small_config(tmp_path, "name=run", "engine=loop", "federation.num_nodes=2")
    text = run_with(monkeypatch, cfg, IndexError("item 1234"))
    assert "1234" not in text
    assert re.search(r"IndexError: \(text in the node's log\) at .* client_update", text), text
