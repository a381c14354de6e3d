"""What is tried to find the settings of docs/beyond.md, each in a process of its own.

A trial says what validation says of some settings, how long they took and how much memory. Test
figures are not kept, so that nothing can be chosen by them.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.results_cells import DataSource
from benchmarks.scratch_run import scratch_run
from conf.compose import compose
from server_app.references import METHODS
from server_app.references.rows import SELECTION

PRELOADED = ("server_app.run", "server_app.cli_reference_rows", "server_app.results")
"""Imported once: that takes longer than most trials."""
SEED = 0
CENTRAL = "central"
"""First word of a reference's trials."""
SEARCHED = ("popularity", "item_knn", "ease", "ials")
"""References that are tried."""
ALL_USERS = ("federation.fraction=1", "protocol.select=last")
"""Everybody in every round, and the last round's result: nothing else is left to choose."""
ROUNDS = {"fedease": 1, "fedials": 10, "fedspectral": 10}
L2 = (1.0, 5.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
FACTORS = (16, 32, 64, 128)
PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0)
"""λ of the factorisation, of users and items alike."""


@dataclass(frozen=True)
class Found:
    """What became of a trial."""

    validation: float
    """NDCG@10 on the validation items, full ranking."""
    seconds: float
    peak_mb: float
    """Most memory of the process, server and nodes together, in 10⁶ bytes."""


@dataclass(frozen=True)
class CentralTrial:
    """A reference with one of its settings."""

    source: DataSource
    method: str
    settings: tuple[tuple[str, Any], ...]

    @property
    def key(self) -> str:
        """What was tried, in words."""
        return " ".join([f"{CENTRAL} {self.method}", *(f"{k}={v}" for k, v in self.settings)])

    def measure(self, root: Path) -> float:
        """Fit it, and rank the validation items."""
        from server_app.cli_reference_rows import reference_rows

        cfg = compose([*self.source.overrides("strict"), f"seed={SEED}"])
        settings = {self.method: dict(self.settings)}
        return reference_rows(cfg, [self.method], settings=settings)[0].metrics[SELECTION]


@dataclass(frozen=True)
class FederatedTrial:
    """A strategy with some of its settings, and everybody in every round."""

    source: DataSource
    strategy: str
    overrides: tuple[str, ...]

    @property
    def key(self) -> str:
        """What was tried, in words."""
        return " ".join([self.strategy, *self.overrides])

    def measure(self, root: Path) -> float:
        """Run it in ``root``, of which nothing is kept."""
        rounds = ROUNDS[self.strategy]
        words = [f"federation.rounds={rounds}", f"evaluation.every={rounds}", *ALL_USERS]
        words += [f"strategy={self.strategy}", f"seed={SEED}", *self.overrides]
        settings = [*self.source.overrides("strict"), *words]
        return scratch_run(root, "trial", settings).metrics[SELECTION]


Trial = CentralTrial | FederatedTrial


def central_trials(source: DataSource) -> Iterator[CentralTrial]:
    """The references' own grids, and the wider ones that the strategies are searched in."""
    for method in SEARCHED:
        grid: list[Any] = [METHODS[method].Config()] if method == "popularity" else []
        grid += METHODS[method].grid
        own: list[dict[str, Any]] = [dataclasses.asdict(config) for config in grid]
        own += [{"l2": l2} for l2 in L2] if method == "ease" else []
        wider = product(FACTORS, PENALTIES) if method == "ials" else ()
        own += [{"factors": factors, "l2": l2, "alpha": 1.0} for factors, l2 in wider]
        tried = [dataclasses.asdict(METHODS[method].Config(**settings)) for settings in own]
        for settings in {str(t): t for t in tried}.values():
            given = {k: v for k, v in settings.items() if v is not None}
            yield CentralTrial(source, method, tuple(given.items()))


def fedease_trials(source: DataSource, l2_grid: Sequence[float]) -> Iterator[FederatedTrial]:
    """Penalties of the closed form."""
    for l2 in l2_grid:
        yield FederatedTrial(source, "fedease", (f"strategy.l2={l2:g}",))


def fedials_trials(source: DataSource, num_users: int) -> Iterator[FederatedTrial]:
    """One penalty λ for users and items; α = 0, the default."""
    for factors, l2 in product((32, 64, 128), (3.0, 10.0, 30.0, 100.0)):
        words = [f"model.factors={factors}"]
        words += [f"strategy.user_reg={l2:g}", f"strategy.item_reg={l2 / num_users:.6f}"]
        yield FederatedTrial(source, "fedials", tuple(words))


def fedspectral_trials(source: DataSource) -> Iterator[FederatedTrial]:
    """Exponents of items in the matrix and in the score, alike, and the number of factors."""
    for factors, exponent in product((32, 64, 128), (0.0, 0.25, 0.5)):
        words = [f"model.factors={factors}", f"strategy.item_exponent={exponent}"]
        words += [f"strategy.score_exponent={exponent}"]
        yield FederatedTrial(source, "fedspectral", tuple(words))


def measured(trial: Trial, root: Path) -> Found:
    """The trial in a process of its own.

    Raises:
        RuntimeError: when it fails.

    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", *PRELOADED])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(trial, root, theirs))
    process.start()
    theirs.close()
    try:
        found: Found | str = ours.recv()
    except EOFError:
        found = "the process ended without an answer"
    process.join()
    if isinstance(found, str):
        raise RuntimeError(f"{trial.key}: {found}")
    return found


def _measure(trial: Trial, root: Path, answer: Any) -> None:
    started = time.perf_counter()
    try:
        value = trial.measure(root)
    except Exception as error:  # noqa: BLE001  told to the process that asked
        answer.send(f"{type(error).__name__}: {error}")
        return
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    answer.send(Found(value, time.perf_counter() - started, peak))
