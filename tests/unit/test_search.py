"""Searches: trials by number alone, recorded with validation figures and never run twice."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny_run

from benchmarks import search
from benchmarks.search import Space, run_trial
from conf.compose import compose
from models.rng import Role, derive_rng
from server_app.references.rows import SELECTION
from server_app.results import RunResult

RECORDS = Path(search.__file__).parents[1] / "docs" / "searches"
SPACES = sorted((Path(search.__file__).parent / "spaces").glob("*.yaml"))


def tiny(folder: Path) -> list[str]:
    """Overrides of the tiny data set."""
    cfg = tiny_run.config(folder)
    words = ["dataset=file", f"dataset.path={cfg.dataset.path}", "protocol.num_candidates=10"]
    return [*words, "federation.rounds=1", "federation.num_nodes=1", f"cache={folder / 'cache'}"]


def test_a_trial_hangs_on_its_number_alone() -> None:
    space = Space(("strategy=fedmf",), {"a": [1, 2, 3], "b": [None, 0.5]})
    rng = derive_rng(7, Role.SEARCH)
    a, b = int(rng.integers(3)), int(rng.integers(2))
    assert space.trial(7) == [f"a={a + 1}", f"b={['null', '0.5'][b]}"]
    assert len({tuple(space.trial(number)) for number in range(60)}) == 6


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_every_value_of_a_space_is_allowed(path: Path) -> None:
    space = Space.read(path)
    for place in range(max(len(values) for values in space.choices.values())):
        drawn = {key: values[place % len(values)] for key, values in space.choices.items()}
        words = [f"{key}={search._text(value)}" for key, value in drawn.items()]
        compose([*space.fixed, *words, *search.EVALUATION])


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_record_has_the_trials_of_its_space(path: Path) -> None:
    """As many as were drawn, and no others: none was left out or added by hand."""
    space = Space.read(Path(search.__file__).parent / "spaces" / f"{path.stem}.yaml")
    recorded = [json.loads(line) for line in path.read_text().splitlines()]
    found = {search._key(each["fixed"], each["settings"]) for each in recorded}
    drawn = {search._key(space.fixed, space.trial(n)) for n in range(len(recorded))}
    assert found == drawn
    assert len(found) == len(recorded)


def test_a_trial_keeps_validation_figures_alone(tmp_path: Path) -> None:
    space = Space(("strategy=fedmf",), {"strategy.server_lr": [0.05]})
    found = run_trial(space, tiny(tmp_path), tmp_path / "runs", 3)
    assert found["settings"] == ["strategy.server_lr=0.05"]
    assert found["figures"][SELECTION] >= 0
    assert "test/" not in json.dumps(found)
    assert not list((tmp_path / "runs").iterdir())
    failing = Space(("strategy=fedmf",), {"strategy.server_lr": [-1]})
    error = run_trial(failing, tiny(tmp_path), tmp_path / "runs", 0)["error"]
    assert "server_lr must be positive" in error


def test_settings_of_the_command_line_are_part_of_a_trial_and_none_is_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two values of one key: four numbers are two trials, of each seed."""
    (tmp_path / "space.yaml").write_text("fixed: [a=1]\nchoices: {b: [1, 2]}")
    tried = []

    def note(root: Path, name: str, words: list[str]) -> RunResult:
        tried.append((root.name, words))
        raise ValueError("not run")

    monkeypatch.setattr(search, "scratch_run", note)
    monkeypatch.setattr(search, "ProcessPoolExecutor", lambda jobs, _: ThreadPoolExecutor(jobs))
    out = tmp_path / "out.jsonl"
    command = ["search", str(tmp_path / "space.yaml"), "--out", str(out), "--jobs", "1"]
    for seed in ("seed=1", "seed=2", "seed=2"):
        words = [seed, f"dataset.path=/{len(tried)}", "--trials", "4"]
        monkeypatch.setattr("sys.argv", [*command, *words])
        search.main()
    assert [folder for folder, _ in tried] == ["out"] * 4  # another search has another
    recorded = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted((*r["fixed"], *r["settings"]) for r in recorded) == [
        ("a=1", f"seed={seed}", f"b={b}") for seed in (1, 2) for b in (1, 2)
    ]


def test_a_recorded_trial_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Best first, whatever the order of the trials; another space has trials of its own."""
    (tmp_path / "space.yaml").write_text(
        "fixed: [strategy=fedmf]\nchoices: {strategy.server_lr: [0.1, 0.05, 0.2], seed: [0, 1]}"
    )
    out, words = tmp_path / "found.jsonl", tiny(tmp_path)
    command = ["search", str(tmp_path / "space.yaml"), "--out", str(out), "--jobs", "1"]
    runs = ["--runs", str(tmp_path / "runs"), *words]
    monkeypatch.setattr("sys.argv", [*command, "--trials", "2", *runs])
    search.main()
    first = {line["settings"][0]: line for line in map(json.loads, out.read_text().splitlines())}
    monkeypatch.setattr("sys.argv", [*command, "--trials", "3", *runs])
    search.main()
    after = [json.loads(line) for line in out.read_text().splitlines()]
    for line in after:
        if line["settings"] in [known["settings"] for known in first.values()]:
            assert line == first[line["settings"][0]]  # seconds as well
    figures = [line["figures"][SELECTION] for line in after]
    assert figures == sorted(figures, reverse=True)
    assert len(after) == len(
        {tuple(Space.read(tmp_path / "space.yaml").trial(n)) for n in range(3)}
    )
    assert "round" in capsys.readouterr().out
