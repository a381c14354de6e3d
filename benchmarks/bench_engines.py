"""Time one round of local training: the dense per-client style, the loop and the cohort engine.

    python benchmarks/bench_engines.py [--strategy fedrecgel fedmf] [--users 94] [--repeats 5]

The users are made up in the shape of MovieLens-100K (943 users, 1,682 items, about 100
training rows a user, popularity by a power law), so nothing is downloaded. Every way trains
the same cohort from the same samples; they alternate in one process, so ratios hold on a
noisy machine. "dense" is ``benchmarks.dense_style``; its sum is compared with ours first.
``cohort x2`` has two processes with half of the cohort each, as two nodes would.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import dense_style
from benchmarks.roofline import gemm_flops, needed_flops
from client_app.negatives import draw_samples
from conf.compose import compose
from models.rng import Role, derive_rng
from models.sam import Radii
from models.types import Samples, Tensors
from strategies.base import RecStrategy

NUM_ITEMS, MIN_ROWS, MAX_ROWS, BLOCK = 1682, 19, 735, 32
MODULES: dict[str, type[dense_style.NeuMFModule] | type[dense_style.MFModule]] = {
    "neumf": dense_style.NeuMFModule,
    "mf": dense_style.MFModule,
}


@dataclass(frozen=True)
class Work:
    """A strategy and a cohort to train, users by ascending number of samples."""

    strategy: RecStrategy
    model_name: str
    shared: Tensors
    users: list[Tensors]
    samples: list[Samples]

    @property
    def radii(self) -> Radii:
        """Of the strategy, zero where it has none."""
        config = self.strategy.config
        return Radii(getattr(config, "rho_shared", 0.0), getattr(config, "rho_private", 0.0))


def made_up_work(strategy_name: str, num_users: int, seed: int = 0) -> Work:
    """Log-normal numbers of training rows, power-law items, four negatives a positive."""
    cfg = compose([f"strategy={strategy_name}"])
    strategy: RecStrategy = cfg.strategy_class(cfg.strategy, cfg.model)
    rng = derive_rng(seed, Role.SYNTHETIC)
    rows = np.clip(rng.lognormal(np.log(65), 1.0, num_users), MIN_ROWS, MAX_ROWS).astype(int)
    popularity = 1.0 / np.arange(1, NUM_ITEMS + 1) ** 0.7
    popularity /= popularity.sum()
    samples = []
    for user, size in enumerate(np.sort(rows)):
        items = np.sort(rng.choice(NUM_ITEMS, size, replace=False, p=popularity))
        stream = derive_rng(seed, Role.TRAIN, user, 1)
        samples.append(draw_samples(items, items, NUM_ITEMS, strategy.config.num_negatives, stream))
    shared = strategy.init_shared(NUM_ITEMS, derive_rng(seed, Role.INIT_SHARED))
    users = [
        strategy.init_private(derive_rng(seed, Role.INIT_PRIVATE, u)) for u in range(num_users)
    ]
    return Work(strategy, cfg.model_name, shared, users, samples)


# ---- ways to train it ----------------------------------------------------------------------
def dense(work: Work) -> Tensors:
    """A deep copy a client, dense gradients."""
    dtype = next(iter(work.shared.values())).dtype
    module = MODULES[work.model_name](NUM_ITEMS).to(dtype)
    dense_style.load(module, work.shared)
    config = work.strategy.config
    return dense_style.train_cohort(
        module, work.users, work.samples, config.loss_slice, work.radii, config.private_lr
    )


def loop(work: Work) -> Tensors:
    """Our reference engine, user by user."""
    total: Tensors = {n: torch.zeros_like(t) for n, t in work.shared.items()}
    for row, samples in enumerate(work.samples):
        stream = derive_rng(0, Role.STRATEGY, row, 1)
        result = work.strategy.client_update(work.shared, work.users[row], [samples], stream)
        for name, tensor in result.update.tensors.items():
            total[name] += tensor
    return total


def cohort(work: Work, rows: range | None = None) -> Tensors:
    """Our default engine in blocks; ``rows`` picks a part of the cohort."""
    rows = range(len(work.users)) if rows is None else rows
    total: Tensors = {n: torch.zeros_like(t) for n, t in work.shared.items()}
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        private = {n: torch.stack([work.users[r][n] for r in block]) for n in work.users[0]}
        rngs = [derive_rng(0, Role.STRATEGY, r, 1) for r in block]
        epochs_U = [[work.samples[r]] for r in block]
        update = work.strategy.cohort_update(work.shared, private, epochs_U, rngs).update
        for name, tensor in update.tensors.items():
            total[name] += tensor
    return total


_mine: dict[str, Work] = {}


def _start_worker(strategy_name: str, num_users: int) -> None:
    torch.set_num_threads(1)
    _mine["work"] = made_up_work(strategy_name, num_users)


def _half(parity: int) -> None:
    work = _mine["work"]
    cohort(work, range(parity, len(work.users), 2))


# ---- measuring -----------------------------------------------------------------------------
def timed(call: Callable[[], object], threads: int) -> float:
    """Seconds of one call with so many torch threads."""
    torch.set_num_threads(threads)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def check_equal(work: Work) -> None:
    """Refuse to time ways that do not compute the same.

    In double precision: in single precision an input of a ReLU that is zero up to rounding
    may pass in one way and not in another.
    """
    torch.set_num_threads(1)
    shared = {name: tensor.double() for name, tensor in work.shared.items()}
    users = [{name: tensor.double() for name, tensor in user.items()} for user in work.users]
    double = replace(work, shared=shared, users=users)
    reference, others = dense(double), {"loop": loop(double), "cohort": cohort(double)}
    for way, sums in others.items():
        for name, tensor in sums.items():
            error = float((tensor - reference[name]).norm() / reference[name].norm())
            if error > 1e-10:
                raise SystemExit(f"{way} differs from dense in {name} by {error:.1e}")


def measure(strategy_name: str, num_users: int, repeats: int) -> tuple[Work, dict[str, float]]:
    """Median seconds of a round by way, alternating between the ways."""
    work = made_up_work(strategy_name, num_users)
    check_equal(work)
    cores = os.cpu_count() or 1
    pool = ProcessPoolExecutor(2, get_context("spawn"), _start_worker, (strategy_name, num_users))
    with pool:

        def halves() -> list[None]:
            return list(pool.map(_half, (0, 1)))

        ways: dict[str, tuple[Callable[[], object], int]] = {
            "dense": (lambda: dense(work), 1),
            f"dense, {cores} threads": (lambda: dense(work), cores),
            "loop": (lambda: loop(work), 1),
            "cohort": (lambda: cohort(work), 1),
            "cohort x2": (halves, 1),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        halves()
        for _ in range(repeats):
            for name, (call, threads) in ways.items():
                seconds[name].append(timed(call, threads))
    return work, {name: median(values) for name, values in seconds.items()}


def report(strategy_name: str, work: Work, seconds: dict[str, float]) -> None:
    """Print a strategy's rows."""
    best_dense = min(value for name, value in seconds.items() if name.startswith("dense"))
    for name, value in seconds.items():
        per_user = value / len(work.users)
        print(
            f"{strategy_name:<11}{name:<18}{per_user * 1e3:>9.3f}{1 / per_user:>9.0f}"
            f"{best_dense / value:>8.1f}"
        )
    if work.model_name == "neumf":
        torch.set_num_threads(1)
        needed, peak = needed_flops(work.samples, work.radii), gemm_flops()
        share = needed / seconds["cohort"] / peak
        print(
            f"{strategy_name:<11}{needed / len(work.users) / 1e6:.0f} MFLOP a user, "
            f"{peak / 1e9:.0f} GFLOP/s in a plain product here: {share:.0%} of the roofline"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--strategy", nargs="+", default=["fedrecgel", "fedncf", "fedmf"])
    parser.add_argument("--users", type=int, default=94)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, ", end="")
    print(f"{args.users} users a round, median of {args.repeats}; ratio to the faster dense way")
    print(f"{'strategy':<11}{'way':<18}{'ms/user':>9}{'users/s':>9}{'ratio':>8}")
    for name in args.strategy:
        report(name, *measure(name, args.users, args.repeats))


if __name__ == "__main__":
    main()
