"""Finished runs made up for tests of reports: folders as a run leaves them, without training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped]

from conf.compose import compose
from conf.tree import to_json
from models.types import UserRanks
from server_app.results import RunResult
from server_app.run_folder import RunState
from server_app.user_ranks import save_user_ranks

KINDS = ("test/sampled", "test/full", "validation/sampled", "validation/full")


def figures(ranks_U: Sequence[int]) -> dict[str, float]:
    """HR@10 and NDCG@10 of 0-based ranks, the same for all kinds of ranking."""
    hits = [rank < 10 for rank in ranks_U]
    gains = [hit / np.log2(rank + 2) for hit, rank in zip(hits, ranks_U, strict=True)]
    hr, ndcg = float(np.mean(hits)), float(np.mean(gains))
    return {f"{kind}/{name}@10": v for kind in KINDS for name, v in (("hr", hr), ("ndcg", ndcg))}


def kept(ranks_U: Sequence[int]) -> UserRanks:
    array = np.array(ranks_U, dtype=np.int64)
    return UserRanks(np.arange(len(array)), dict.fromkeys(KINDS, array))


def made_up_run(
    folder: Path,
    name: str,
    ranks_U: Sequence[int],
    *overrides: str,
    popularity_U: Sequence[int] | None = None,
    with_ranks: bool = True,
    status: str = "completed",
) -> Path:
    """A run of one seed whose users were ranked like this; two evaluated rounds."""
    cfg = compose(["dataset=file", "dataset.path=/data.csv", f"output={folder}", *overrides])
    run = folder / name
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump({**json.loads(to_json(cfg)), "name": name}))
    state = RunState(status, "id", 1, None if status == "completed" else "a reason")
    (run / "state.json").write_text(json.dumps(state.__dict__))
    worst = [99] * len(ranks_U) if popularity_U is None else popularity_U
    metrics, popular = figures(ranks_U), figures(worst)
    if not cfg.protocol.validation:
        metrics, popular = (
            {key: value for key, value in of.items() if key.startswith("test")}
            for of in (metrics, popular)
        )
    if status == "completed":
        RunResult(
            name=name, folder=run, dataset=cfg.dataset.name, protocol=cfg.protocol.name,
            strategy=cfg.strategy_name, title=cfg.strategy_name, model=cfg.model_name,
            seed=cfg.seed, num_users=len(ranks_U), num_items=50, rounds=20, selected_round=20,
            select=cfg.protocol.select, early_stopped=False, metrics=metrics,
            counts=dict.fromkeys(metrics, float(len(ranks_U))), popularity=popular,
            totals={"num_users": 10.0, "bytes_up": 5_000.0, "bytes_down": 20_000.0,
                    "seconds_train": 1.5, "seconds_other": 0.5},
        ).save()  # fmt: skip
        lines = [_record(10, 0.5, metrics), _record(20, 1.0, metrics)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if with_ranks:
        save_user_ranks(run, {"model": kept(ranks_U), "popularity": kept(worst)})
    return run


def _record(round_: int, factor: float, metrics: dict[str, float]) -> dict[str, Any]:
    evaluation = {name: factor * value for name, value in metrics.items()}
    return {
        "round": round_,
        "evaluation": evaluation,
        "evaluated_round": round_,
        "bytes_up": 2_500,
        "bytes_down": 10_000,
    }
