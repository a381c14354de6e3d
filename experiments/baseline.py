"""The arm of a split that a report compares every other arm with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]

from conf.tree import ConfigError
from experiments.arms import Arm, Split

SHORT = {"strategy": "strategy_name", "model": "model_name"}


@dataclass(frozen=True)
class Baseline:
    """The arm with these settings."""

    settings: tuple[tuple[str, Any], ...]
    """Dotted keys and values; empty for no baseline."""

    @classmethod
    def parsed(cls, texts: Sequence[str]) -> Baseline:
        """From ``key=value`` texts.

        Raises:
            ConfigError: for a text that is not one.

        """
        pairs = [text.strip().partition("=") for text in texts]
        for text, (key, sign, value) in zip(texts, pairs, strict=True):
            if not (key and sign and value):
                raise ConfigError(f"--against takes KEY=VALUE[,KEY=VALUE], got {text!r}")
        return cls(tuple((key, yaml.safe_load(value)) for key, _, value in pairs))

    def found_in(self, split: Split) -> tuple[str | None, list[str]]:
        """Label of the arm, None without one; and a line where it cannot be told."""
        if not self.settings:
            return None, []
        fitting = [arm.label for arm in split.arms if self._fits(arm)]
        if len(fitting) == 1:
            return fitting[0], []
        asked = ",".join(f"{key}={value}" for key, value in self.settings)
        found = f"{len(fitting)} arms ({', '.join(fitting)})" if fitting else "no arm"
        return None, [f"{split.name}: {found} with {asked} to compare with."]

    def _fits(self, arm: Arm) -> bool:
        absent = object()
        return all(
            arm.settings.get(SHORT.get(key, key), absent) == value for key, value in self.settings
        )
