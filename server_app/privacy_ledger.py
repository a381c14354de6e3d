"""What a run has released, in ``privacy.jsonl``: a line a release, written before it is made.

A run that is killed between the two has a line too many, never one too few.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from server_app.accountant import Releases
from server_app.errors import CheckpointError
from server_app.files import named
from server_app.records import read_records, truncate_records

LEDGER = "privacy.jsonl"
MOST = 2**62


@dataclass(frozen=True)
class Release:
    """A noisy sum, or a round of noisy updates."""

    round: int
    multiplier: float
    """Standard deviation of the noise over ``clip`` (over the norm of both bounds)."""
    effective: float
    """The same over the sensitivity, as the accountant counts it."""
    rate: float
    """Probability with which a user is in the cohort; 1 where that is no secret."""
    delta: float


class Ledger:
    """The releases of a run, over all its starts.

    ``resume_round``: the checkpoint that this start continues from. ``repeats_alike``: rounds
    after it are made again to the same bytes, as in a simulation, and are no other releases.

    Raises:
        CheckpointError: where releases of rounds that were trained are missing.

    """

    def __init__(self, folder: Path, resume_round: int, *, repeats_alike: bool) -> None:
        self._path = folder / LEDGER
        # What a crash cut off was not released; later lines must not be added to it.
        truncate_records(self._path, resume_round if repeats_alike else MOST)
        try:
            self.releases = [Release(**r) for r in read_records(self._path)]  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{self._path} cannot be read: {error}") from None
        known = {release.round for release in self.releases}
        if missing := sorted(set(range(1, resume_round + 1)) - known):
            raise CheckpointError(
                f"{self._path} does not have the release of round {missing[0]}, which was "
                "trained: without it ε would be counted too low"
            )

    def note(self, release: Release) -> None:
        """Add a release and force it to disk."""
        with named(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(vars(release), allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.releases.append(release)

    def spent(self) -> list[Releases]:
        """All releases as the accountant takes them."""
        return [Releases(r.effective, r.rate, 1) for r in self.releases]
