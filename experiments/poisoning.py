"""The table of a sweep over attacks and defences: ``python -m experiments.poisoning FOLDER``.

A row a pair of attack and defence: means over seeds, and what was lost against the run of the same
strategy and seed without attack (``attack=benign``) and without defence.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from conf.tree import Config, from_mapping
from server_app.errors import ServerError
from server_app.results import RunResult, load_result
from server_app.run_folder import CONFIG, read_config

CLEAN = ("benign", "none")
HR, NDCG, ER = "test/sampled/hr@10", "test/sampled/ndcg@10", "attack/er@10"
TITLES = ("attack", "defence", "HR@10", "lost", "NDCG@10", "lost", "ER@10", "precision", "recall")
Pair = tuple[str, str]


@dataclass(frozen=True)
class _Run:
    pair: Pair
    group: tuple[object, ...]
    """What a clean run must share: data, strategy, model, rounds, seed."""
    result: RunResult


def table(folder: Path) -> str:
    """The table in Markdown, in per cent.

    Raises:
        ServerError: when the folder holds no complete run with an attack.

    """
    runs = list(_runs(folder))
    if not runs:
        raise ServerError(f"{folder} holds no complete run with an attack")
    clean = {run.group: run.result for run in runs if run.pair == CLEAN}
    pairs = sorted({run.pair for run in runs}, key=lambda pair: (pair[0] != CLEAN[0], pair))
    rows = [_row(pair, [run for run in runs if run.pair == pair], clean) for pair in pairs]
    return "\n".join(_line(cells) for cells in (TITLES, ["---"] * len(TITLES), *rows))


def _runs(folder: Path) -> Iterable[_Run]:
    for place in sorted(path.parent for path in folder.glob(f"*/{CONFIG}")):
        config = from_mapping(read_config(place))
        if not config.attack.watches:
            continue
        try:
            result = load_result(place)
        except ServerError:
            continue
        yield _Run((_name(config.attack), _name(config.defence)), _group(config), result)


def _name(part: object) -> str:
    """The file that the attack or defence is in; none for the plain one."""
    module = type(part).__module__
    return "none" if module.startswith("conf.") else module.rsplit(".", 1)[-1]


def _group(config: Config) -> tuple[object, ...]:
    fraction = getattr(config.attack, "fraction", None)
    rounds = config.federation.rounds
    return (config.dataset, config.strategy_name, config.model, rounds, config.seed, fraction)


def _row(pair: Pair, runs: list[_Run], clean: Mapping[tuple[object, ...], RunResult]) -> list[str]:
    def mean(name: str) -> str:
        return _per_cent([run.result.metrics.get(name) for run in runs])

    def lost(name: str) -> str:
        pairs = [(clean.get(run.group), run.result) for run in runs]
        return _per_cent(
            [None if c is None else c.metrics[name] - r.metrics[name] for c, r in pairs]
        )

    def found(name: str) -> str:
        return _per_cent([run.result.poisoning.get(name) for run in runs])

    figures = [mean(HR), lost(HR), mean(NDCG), lost(NDCG), mean(ER)]
    return [*pair, *figures, found("precision"), found("recall")]


def _per_cent(values: Iterable[float | None]) -> str:
    """Mean; a dash unless every run has a value."""
    known = list(values)
    if any(value is None for value in known):
        return "–"
    return f"{100 * statistics.fmean(value for value in known if value is not None):.2f}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table of a folder and keep it there as ``poisoning.md``."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m experiments.poisoning FOLDER")
    folder = Path(sys.argv[1])
    try:
        text = table(folder)
    except ServerError as error:
        sys.exit(str(error))
    (folder / "poisoning.md").write_text(text + "\n", "utf-8")
    print(text)


if __name__ == "__main__":
    main()
