"""Checks that settings have in common; each raises ValueError naming the setting and its value."""

from __future__ import annotations

from collections.abc import Sequence


class Checks:
    """Mixed into dataclasses of settings, for their ``__post_init__``."""

    def _at_least_one(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def _positive(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")

    def _not_negative(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

    def _one_of(self, name: str, allowed: Sequence[str]) -> None:
        if getattr(self, name) not in allowed:
            said = ", ".join(allowed)
            raise ValueError(f"{name} must be one of {said}, got {getattr(self, name)!r}")
