"""Time one round of local training: the loop engine against the cohort engine.

    python benchmarks/bench_engines.py [--strategy fedrecgel] [--users 94] [--repeats 5]

The users are made up in the shape of MovieLens-100K (943 users, 1,682 items, 105 training
rows a user on average, popularity by a power law), so nothing is downloaded. Each engine
trains the same cohort from the same samples; the table gives the median over repeats.
Both run in one process and alternate, so the ratio holds on a noisy machine.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch

from client_app.negatives import draw_samples
from conf.compose import compose
from models.rng import Role, derive_rng
from models.types import Samples, Tensors

NUM_ITEMS, MEAN_ROWS, MIN_ROWS = 1682, 105, 19


def made_up_cohort(num_users: int, num_negatives: int, seed: int) -> list[list[Samples]]:
    """Samples of one round for each user: log-normal sizes, power-law items."""
    rng = derive_rng(seed, Role.SYNTHETIC)
    sizes = np.clip(rng.lognormal(np.log(65), 1.0, num_users), MIN_ROWS, 735).astype(int)
    weights = 1.0 / np.arange(1, NUM_ITEMS + 1) ** 0.7
    cohort = []
    for user, size in enumerate(sizes):
        items = np.sort(rng.choice(NUM_ITEMS, size, replace=False, p=weights / weights.sum()))
        stream = derive_rng(seed, Role.TRAIN, user, 1)
        cohort.append([draw_samples(items, items, NUM_ITEMS, num_negatives, stream)])
    return cohort


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(strategy_name: str, num_users: int, repeats: int, block: int) -> dict[str, list[float]]:
    """Seconds of each repeat by engine, alternating between the two."""
    cfg = compose([f"strategy={strategy_name}"])
    strategy = cfg.strategy_class(cfg.strategy, cfg.model)
    cohort = made_up_cohort(num_users, cfg.strategy.num_negatives, cfg.seed)
    cohort.sort(key=lambda epochs: len(epochs[0]))
    shared: Tensors = strategy.init_shared(NUM_ITEMS, derive_rng(0, Role.INIT_SHARED))
    users = [strategy.init_private(derive_rng(0, Role.INIT_PRIVATE, u)) for u in range(num_users)]

    def rngs(rows: Sequence[int]) -> list[np.random.Generator]:
        return [derive_rng(0, Role.STRATEGY, row, 1) for row in rows]

    def loop() -> None:
        for row, epochs in enumerate(cohort):
            strategy.client_update(shared, users[row], epochs, rngs([row])[0])

    def blocks() -> None:
        for start in range(0, num_users, block):
            rows = range(start, min(start + block, num_users))
            private = {n: torch.stack([users[r][n] for r in rows]) for n in users[0]}
            strategy.cohort_update(shared, private, [cohort[r] for r in rows], rngs(rows))

    engines = {"loop": loop, "cohort": blocks}
    for call in engines.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(repeats):
        for name, call in engines.items():
            seconds[name].append(timed(call))
    return seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", nargs="+", default=["fedrecgel", "fedncf", "fedavg", "fedmf"])
    parser.add_argument("--users", type=int, default=94)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{platform.machine()}, torch {torch.__version__}, {args.threads} thread(s), ", end="")
    print(f"{args.users} users a round, median of {args.repeats}")
    print(f"{'strategy':<12}{'engine':<8}{'ms/user':>9}{'users/s':>9}{'ratio':>7}")
    for name in args.strategy:
        seconds = measure(name, args.users, args.repeats, args.block)
        base = median(seconds["loop"])
        for engine, values in seconds.items():
            per_user = median(values) / args.users
            ratio = base / median(values)
            print(f"{name:<12}{engine:<8}{per_user * 1e3:>9.2f}{1 / per_user:>9.0f}{ratio:>7.1f}")


if __name__ == "__main__":
    main()
