"""The settings that every property test runs under."""

from __future__ import annotations

import os

import hypothesis


def test_no_property_test_fails_for_a_slow_machine() -> None:
    assert hypothesis.settings.default.deadline is None
    assert hypothesis.settings.default.derandomize is ("CI" in os.environ)
