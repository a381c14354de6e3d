"""A small made-up dataset and configurations for runs with the real client."""

from __future__ import annotations

from pathlib import Path

from conf.compose import compose
from conf.tree import Config
from models.rng import Role, derive_rng

NUM_USERS, NUM_ITEMS = 24, 40

SMALL_RUN = [
    "dataset=file",
    "dataset.path=ratings.csv",
    "model.factors=4",
    "protocol.num_candidates=20",
    "federation.rounds=3",
    "federation.fraction=0.5",
    "evaluation.every=2",
    "cache=cache",
]
"""Overrides of a small run by the command line, in a folder that holds ``ratings.csv``."""


def write_interactions(path: Path) -> Path:
    """Users 1.. with 6 to 12 different items each, most of them from their half."""
    lines = []
    for user in range(NUM_USERS):
        rng = derive_rng(5, Role.SYNTHETIC, user)
        weights = [3.0 if item % 2 == user % 2 else 1.0 for item in range(NUM_ITEMS)]
        chosen = rng.choice(
            NUM_ITEMS,
            size=int(rng.integers(6, 13)),
            replace=False,
            p=[w / sum(weights) for w in weights],
        )
        lines += [f"{user + 1},{item + 1},4,{time}" for time, item in enumerate(chosen)]
    path.write_text("\n".join(lines) + "\n")
    return path


def small_config(folder: Path, *overrides: str) -> Config:
    """Six rounds of FedRecGEL on the made-up data; everything it writes is in ``folder``."""
    data = folder / "made_up.csv"
    if not data.exists():
        write_interactions(data)
    chosen = [word for word in overrides if word.startswith(("strategy=", "model="))]
    narrow = ["model.factors=4"] if hasattr(compose(chosen).model, "factors") else []
    return compose(
        [
            "dataset=file",
            f"dataset.path={data}",
            "dataset.name=made_up",
            "strategy=fedrecgel",
            *narrow,
            "protocol.num_candidates=20",
            "federation.rounds=6",
            "federation.fraction=0.5",
            "federation.checkpoint_every=2",
            "evaluation.every=3",
            f"output={folder / 'runs'}",
            f"cache={folder / 'cache'}",
            *overrides,
        ]
    )


def final_tensors(run_folder: Path) -> bytes:
    """Bytes of the newest checkpoint's tensors."""
    return (_newest(run_folder) / "tensors.safetensors").read_bytes()


def best_tensors(run_folder: Path) -> bytes:
    """Bytes of the selected round's shared parameters."""
    return (_newest(run_folder) / "best.safetensors").read_bytes()


def _newest(run_folder: Path) -> Path:
    return sorted((run_folder / "checkpoint").glob("round-*"))[-1]
