r"""Random search over settings of a run, by validation alone, recorded trial by trial.

    python benchmarks/search.py benchmarks/spaces/warm_mf.yaml --trials 60 --runs runs/search \
        --out docs/searches/warm_mf.jsonl

A space is a yaml file: ``fixed`` are overrides of every trial, ``choices`` lists of values by key.
A trial draws a value for each key, from the stream of its own number, so a longer search begins
with a shorter one. What is kept of a trial is its settings and the **validation** figures of the
round that validation chose: test figures are not looked at. A recorded trial is not run again.
Overrides on the command line are part of what is recorded, but for paths.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.scratch_run import scratch_run
from models.rng import Role, derive_rng
from server_app.references.rows import SELECTION

EVALUATION = ("protocol=strict", "protocol.select=best_validation", "evaluation.full=each")

PLACES = ("dataset.path=", "dataset.titles=", "cache=")
"""Overrides that a trial's figures do not hang on."""


@dataclass(frozen=True)
class Space:
    """What is searched."""

    fixed: tuple[str, ...]
    choices: dict[str, list[Any]]

    @classmethod
    def read(cls, path: Path) -> Space:
        """From a yaml file with ``fixed`` and ``choices``."""
        found = yaml.safe_load(path.read_text("utf-8"))
        return cls(tuple(found.get("fixed", ())), dict(found["choices"]))

    def beside(self, extra: Sequence[str]) -> Space:
        """With overrides of every trial, but for those that say where things lie."""
        said = [word for word in extra if not word.startswith(PLACES)]
        return Space((*self.fixed, *said), self.choices)

    def trial(self, number: int) -> list[str]:
        """Overrides of a trial."""
        rng = derive_rng(number, Role.SEARCH)
        drawn = {
            key: values[int(rng.integers(len(values)))] for key, values in self.choices.items()
        }
        return [f"{key}={_text(value)}" for key, value in drawn.items()]


def main() -> None:
    """Run what is not recorded yet, write the record sorted, print the best."""
    asked = _arguments()
    space, known = Space.read(asked.space).beside(asked.extra), _recorded(asked.out)
    keys = {_key(space.fixed, space.trial(n)): n for n in reversed(range(asked.trials))}
    missing = sorted(number for key, number in keys.items() if key not in known)
    # A folder of its own: another search has trials of the same numbers.
    run = partial(run_trial, space, asked.extra, asked.runs.resolve() / asked.out.stem)
    with ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("spawn")) as pool:
        for found in pool.map(run, missing):
            known[_key(found["fixed"], found["settings"])] = found
            _write(asked.out, known)
            print(_line(found), flush=True)
    for found in _sorted(known)[: asked.shown]:
        print(_line(found))


def run_trial(space: Space, extra: list[str], root: Path, number: int) -> dict[str, Any]:
    """Settings and validation figures of a trial, or the error that ended it."""
    words, started = space.trial(number), time.perf_counter()
    found: dict[str, Any] = {"fixed": list(space.fixed), "settings": words}
    try:
        settings = [*space.fixed, *words, *extra, *EVALUATION]
        result = scratch_run(root, f"trial-{number}", settings)
    except Exception as error:  # noqa: BLE001  a trial that fails is a finding
        return {**found, "error": f"{type(error).__name__}: {error}"}
    validation = {n: v for n, v in result.metrics.items() if n.startswith("validation/")}
    figures = {n: round(v, 5) for n, v in validation.items() if n.endswith("@10")}
    seconds = round(time.perf_counter() - started, 1)
    return {**found, "round": result.selected_round, "seconds": seconds, "figures": figures}


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool | None) else str(value)


def _key(fixed: Sequence[str], words: Sequence[str]) -> str:
    return json.dumps([list(fixed), list(words)])


def _recorded(path: Path) -> dict[str, dict[str, Any]]:
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    found = [json.loads(line) for line in lines]
    return {_key(each["fixed"], each["settings"]): each for each in found}


def _sorted(known: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(known.values(), key=lambda each: -each.get("figures", {}).get(SELECTION, -1.0))


def _write(path: Path, known: dict[str, dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in _sorted(known)), encoding="utf-8")


def _line(found: dict[str, Any]) -> str:
    said = " ".join(found["settings"])
    if "error" in found:
        return f"failed  {said}: {found['error']}"
    return f"{100 * found['figures'][SELECTION]:6.2f}  round {found['round']:3d}  {said}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("space", type=Path)
    parser.add_argument("--trials", type=int, default=60, help="in all, recorded ones included")
    parser.add_argument("--runs", type=Path, default=Path("runs/search"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--shown", type=int, default=10)
    parser.add_argument("extra", nargs="*", help="overrides such as dataset.path=…")
    return parser.parse_intermixed_args()


if __name__ == "__main__":
    main()
