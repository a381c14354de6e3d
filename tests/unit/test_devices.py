"""Simulated devices: probabilities, times and schedules by hand, and as frequencies."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from server_app.devices.asynchronous import Asynchronous
from server_app.devices.participation import Participation
from server_app.devices.profile import Devices, Fleet, Task
from server_app.devices.synchronous import Synchronous
from server_app.errors import RoundError, ServerError
from strategies.async_config import AsyncConfig

CALM = Devices(
    availability=1.0, availability_exponent=0.0, spread=0.0, drop_out=0.0, latency_s=0.5,
    samples_per_s=100.0, down_bytes_per_s=1000.0, up_bytes_per_s=500.0, slot_s=60.0,
)  # fmt: skip
"""Always there, all alike, nobody drops out."""


def fleet(settings: Devices, activity: list[int], seed: int = 0) -> Fleet:
    """Five samples an interaction, 2000 bytes down and 1000 up."""
    activity_U = np.array(activity)
    return Fleet(settings, seed, activity_U, Task(2000, 1000, 5 * activity_U))


def taken(schedule: Synchronous | Asynchronous, rounds: int) -> list[Participation]:
    return [schedule.take(number) for number in range(1, rounds + 1)]


def test_a_devices_time_is_latency_download_work_upload() -> None:
    """Twice 0.5 s, 2000 / 1000, 5 · 40 / 100, 1000 / 500: 1 + 2 + 2 + 2."""
    assert fleet(CALM, [40, 80]).seconds_U.tolist() == [7.0, 9.0]


def test_probabilities_follow_activity() -> None:
    """Activities 1/4 and 7/4 of the mean, base 0.2: 0.2 · √¼ and 0.2 · √(7/4)."""
    settings = replace(CALM, availability=0.2, availability_exponent=0.5, drop_out=0.1,
                       drop_out_exponent=-1.0)  # fmt: skip
    found = fleet(settings, [10, 70])
    assert found.available_U == pytest.approx([0.1, 0.2 * math.sqrt(7 / 4)])
    assert found.drops_U == pytest.approx([0.4, 0.1 / (7 / 4)])
    assert fleet(replace(settings, availability=0.9), [1, 99]).available_U[1] == 1.0
    assert not fleet(CALM, [10, 70]).drops_U.any()


def test_how_often_users_are_online_and_drop_out() -> None:
    """2000 slots: within five standard errors of the probability, for each of the users."""
    settings = replace(CALM, availability=0.3, availability_exponent=0.5, drop_out=0.2)
    found, slots = fleet(settings, [5, 20, 50, 125], seed=3), 2000
    online_U, lost_U = np.zeros(4), np.zeros(4)
    for slot in range(slots):
        online_U[found.online(slot * settings.slot_s)] += 1
        lost_U += found.dropped(np.arange(4), slot)
    for seen_U, p_U in ((online_U, found.available_U), (lost_U, found.drops_U)):
        band_U = 5 * np.sqrt(p_U * (1 - p_U) / slots)
        assert (np.abs(seen_U / slots - p_U) <= band_U).all()


def test_who_is_online_lasts_for_a_slot() -> None:
    found = fleet(replace(CALM, availability=0.5, availability_exponent=0.0), [10] * 200)
    first, later, next_ = (found.online(clock).tolist() for clock in (0.0, 59.9, 60.0))
    assert first == later != next_


def test_speeds_have_the_median_and_the_spread() -> None:
    """Work alone counts here; of 4000 log-speeds, five standard errors of mean and deviation."""
    users = 4000
    settings = replace(CALM, spread=0.7, latency_s=0.0)
    found = Fleet(settings, 1, np.full(users, 20), Task(0, 0, np.full(users, 100)))
    logs_U = np.log(100 / found.seconds_U)
    assert abs(logs_U.mean() - math.log(100)) <= 5 * 0.7 / math.sqrt(users)
    assert abs(logs_U.std() - 0.7) <= 5 * 0.7 / math.sqrt(2 * users)


def test_a_round_lasts_as_long_as_its_slowest_device() -> None:
    """Everybody is asked: 9 s for the second user, and again."""
    first, second = taken(Synchronous(fleet(CALM, [40, 80]), 0, 1.0), 2)
    assert first.users.tolist() == second.users.tolist() == [0, 1]
    assert (first.tally.seconds, second.tally.clock_s) == (9.0, 18.0)
    assert (first.tally.bytes_down, first.tally.bytes_up) == (4000, 2000)
    assert first.versions.tolist() == [0, 0] and second.versions.tolist() == [1, 1]


def test_who_is_late_is_left_out_and_the_round_ends_at_the_deadline() -> None:
    (first,) = taken(Synchronous(fleet(replace(CALM, deadline_s=8.0), [40, 80]), 0, 1.0), 1)
    assert first.users.tolist() == [0]
    assert (first.tally.late, first.tally.delivered, first.tally.seconds) == (1, 1, 8.0)
    assert first.tally.bytes_up == 2000  # the late update came, too


def test_a_deadline_that_nobody_keeps_ends_the_run() -> None:
    with pytest.raises(RoundError, match=r"the fastest one needs 7\.0 s"):
        taken(Synchronous(fleet(replace(CALM, deadline_s=6.0), [40, 80]), 0, 1.0), 1)


def test_an_empty_attempt_takes_its_time_and_another_follows() -> None:
    """One user who drops out of half of the rounds: attempts are geometric."""
    settings = replace(CALM, drop_out=0.5)
    rounds = taken(Synchronous(fleet(settings, [40]), 0, 1.0), 400)
    empty = sum(each.tally.empty for each in rounds)
    assert abs(empty - 400) <= 5 * math.sqrt(400 * 2)  # variance of a geometric count: q / p² = 2
    for before, after in pairwise(rounds):
        attempts = after.tally.empty + 1
        assert after.tally.clock_s - before.tally.clock_s == pytest.approx(7.0 * attempts)
        assert (after.tally.selected, after.tally.dropped) == (attempts, attempts - 1)


def test_nobody_online_waits_for_the_next_slot() -> None:
    settings = replace(CALM, availability=0.001, availability_exponent=0.0)
    found = fleet(settings, [40])
    (first,) = taken(Synchronous(found, 0, 1.0), 1)
    began = first.tally.clock_s - 7.0
    assert began % 60 == 0
    assert began == 60 * next(s for s in range(10**5) if len(found.online(60.0 * s)))


def test_arrivals_make_steps_in_their_order() -> None:
    """Two devices of 7 and 13 s, a step an arrival: at 7, 13, 14, 21, 26.

    The slow one was asked before the first step and arrives after it: one step old. Asked again at
    13, after two steps, it comes at 26, after two more: two steps old.
    """
    settings = AsyncConfig(buffer=1)
    steps = taken(Asynchronous(fleet(CALM, [40, 160]), 0, 1.0, settings), 5)
    assert [each.tally.clock_s for each in steps] == [7.0, 13.0, 14.0, 21.0, 26.0]
    assert [each.users.tolist() for each in steps] == [[0], [1], [0], [0], [1]]
    assert [each.tally.staleness for each in steps] == [0, 1, 1, 0, 2]
    assert [each.versions.tolist() for each in steps] == [[0], [0], [1], [3], [2]]


def test_old_parameters_are_kept_as_long_as_somebody_works_on_them() -> None:
    schedule = Asynchronous(fleet(CALM, [40, 160]), 0, 1.0, AsyncConfig(buffer=1))
    schedule.take(1)
    assert schedule.oldest() == 0  # the slow device
    schedule.take(2)
    assert schedule.oldest() == 1  # the fast one, asked after the first step


def test_a_stale_update_is_counted_and_not_used() -> None:
    settings = AsyncConfig(buffer=1, max_staleness=0)
    steps = taken(Asynchronous(fleet(CALM, [40, 160]), 0, 1.0, settings), 4)
    assert [each.users.tolist() for each in steps] == [[0], [0], [0], [0]]
    assert sum(each.tally.stale for each in steps) == 2


def test_drop_outs_and_late_devices_give_their_place_to_others() -> None:
    settings = replace(CALM, drop_out=0.3, deadline_s=10.0)
    activity = [40] * 30 + [160] * 10  # the last ten are always late: 13 s
    steps = taken(Asynchronous(fleet(settings, activity), 0, 0.25, AsyncConfig(buffer=5)), 60)
    late, lost = (sum(getattr(s.tally, name) for s in steps) for name in ("late", "dropped"))
    assert all(len(each.users) == 5 and each.users.max() < 30 for each in steps)
    assert late > 0 and lost > 0
    asked = sum(each.tally.selected for each in steps)
    assert 0 <= asked - 60 * 5 - late - lost <= 10 + 5  # at work, or in the buffer


def test_nobody_works_twice_at_once() -> None:
    """An update in the buffer belongs to a user who is not asked before its step."""
    settings = AsyncConfig(buffer=7)
    for step in taken(
        Asynchronous(fleet(CALM, [10 * n for n in range(1, 9)]), 0, 0.5, settings), 30
    ):
        assert len(np.unique(step.users)) == 7


def test_alike_devices_and_a_buffer_of_the_cohort_are_synchronous_rounds() -> None:
    found = fleet(CALM, [40] * 20)
    together = taken(Synchronous(found, 5, 0.3), 8)
    buffered = taken(Asynchronous(found, 5, 0.3, AsyncConfig(buffer=6)), 8)
    for one, other in zip(together, buffered, strict=True):
        assert one.users.tolist() == other.users.tolist()
        assert one.versions.tolist() == other.versions.tolist()
        assert one.tally == other.tally


def test_a_buffer_larger_than_the_federation_is_refused() -> None:
    with pytest.raises(ServerError, match=r"buffer=3 is more than the 2 users"):
        Asynchronous(fleet(CALM, [40, 80]), 0, 1.0, AsyncConfig(buffer=3))


def test_weights_of_age() -> None:
    assert [AsyncConfig(1).weight(s) for s in (0, 3, 8)] == [1.0, 0.5, pytest.approx(1 / 3)]
    assert AsyncConfig(1, exponent=0.0).weight(9) == 1.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slot_s", 0.0),
        ("spread", -1.0),
        ("availability", 0.0),
        ("drop_out", 1.0),
        ("deadline_s", 0.0),
    ],
)
def test_impossible_devices_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{name} must .*, got {value}"):
        replace(CALM, **{name: value})  # type: ignore[arg-type]
