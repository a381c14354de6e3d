"""The profile's clock: time goes to the innermost phase, and every phase exists."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from benchmarks import phases
from benchmarks.bench_profile import CASES
from benchmarks.phases import REST, Phase, timed


def outer() -> str:
    inner(2)
    return inner(1)


def inner(depth: int) -> str:
    return f"inner {depth}"


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that says one second more at each reading."""
    seconds: Iterator[float] = iter(float(second) for second in range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))


@pytest.mark.usefixtures("ticking")
def test_time_goes_to_the_innermost_phase() -> None:
    """Readings: at the start, then at each beginning and end of a phase, a second apart.

    rest begins; outer begins, inner begins and ends, begins and ends, outer ends; rest ends.
    outer is running between its beginning and inner's, between both inners, and after.
    """
    here = __name__
    found = [Phase("outer", f"{here}:outer"), Phase("inner", f"{here}:inner", _named)]
    with timed(found) as clock:
        assert globals()["outer"]() == "inner 1"
    assert dict(clock.seconds) == {REST: 3.0, "outer": 3.0, "depth 1": 1.0, "depth 2": 1.0}


def _named(depth: int) -> str:
    return f"depth {depth}"


def test_functions_are_put_back_after_an_error() -> None:
    before = globals()["outer"]
    with pytest.raises(KeyError), timed([Phase("outer", f"{__name__}:outer")]):
        assert globals()["outer"] is not before
        raise KeyError
    assert globals()["outer"] is before


def test_a_missing_function_is_named() -> None:
    with (
        pytest.raises(LookupError, match=r"phase 'gone': there is no models\.sam:gone"),
        timed([Phase("gone", "models.sam:gone")]),
    ):
        pass


@pytest.mark.parametrize("case", CASES)
def test_every_phase_of_the_profile_exists(case: str) -> None:
    for phase in CASES[case][1]:
        phase.holder()


def test_rest_is_the_name_of_no_phase() -> None:
    assert phases.REST not in {phase.name for _, watched in CASES.values() for phase in watched}
