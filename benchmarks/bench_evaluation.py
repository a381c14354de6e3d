"""Time and memory of ranking everyone, in the shape of MovieLens-1M, beside the products alone.

    python benchmarks/bench_evaluation.py [--quick]

6,040 users, 3,706 items, made up: full ranking of test and validation item with exposures, and
ranking against 99 sampled candidates. One torch thread; every row is a process of its own. The
bound is what the products of NeuMF's layers above the first take for all (user, item) pairs,
by plain ``torch.mm`` of 2,048 pairs, or for matrix factorisation the product of both tables:
there it is the ranking that takes the time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report

USERS, ITEMS = 6040, 3706
CANDIDATES, BLOCK, REPEATS = 99, 64, 3
CUTOFFS = (5, 10, 15, 20)


def point(model_name: str, users: int, items: int) -> dict[str, float]:
    """Seconds of both rankings and of the bound, and the memory they add."""
    import numpy as np
    import torch

    from benchmarks.growth_point import _memory
    from benchmarks.made_up import Shape, made_up_dataset
    from client_app.evaluation import evaluate
    from models.mf import MatrixFactorisation
    from models.neumf import NeuMF
    from models.types import IntArray, Tensors

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    model = {"neumf": NeuMF(), "mf": MatrixFactorisation()}[model_name]
    shape = Shape(users=users, items=items, median_rows=96.0, most_rows=items // 2)
    held = rng.integers(0, items, (2, users))
    dataset = replace(
        made_up_dataset(shape, 0),
        test_U=held[0],
        validation_U=held[1],
        test_candidates_UC=rng.integers(0, items, (users, CANDIDATES)),
        validation_candidates_UC=rng.integers(0, items, (users, CANDIDATES)),
    )
    shared = model.init_shared(items, rng)
    rows = [model.init_private(7, rng) for _ in range(users)]
    private = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    del rows

    def of(some: IntArray) -> Tensors:
        return {name: tensor[torch.from_numpy(some)] for name, tensor in private.items()}

    def ranked(full: bool) -> None:
        evaluate(
            lambda some: model.scores_all(shared, of(some)),
            dataset,
            np.arange(users),
            CUTOFFS,
            full,
            BLOCK,
            lambda some, chosen: model.score_candidates(shared, of(some), chosen),
        )

    before = _memory("VmRSS")
    found = {"full": best(lambda: ranked(True)), "sampled": best(lambda: ranked(False))}
    added = _memory("VmHWM") - before
    return {**found, "bound": bound(model_name, users, items), "added_bytes": added}


def best(call: Callable[[], object]) -> float:
    """Shortest of a few times, in seconds."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def bound(model_name: str, users: int, items: int) -> float:
    """Seconds that the needed products take alone."""
    import torch

    if model_name == "mf":
        users_UD, items_DI = torch.randn(BLOCK, 32), torch.randn(32, items)
        out = torch.empty(BLOCK, items)
        return best(lambda: torch.mm(users_UD, items_DI, out=out)) * users / BLOCK
    layers = [torch.randn(128, 64), torch.randn(64, 32)]
    steps = [torch.randn(2048, 128), torch.empty(2048, 64), torch.empty(2048, 32)]

    def products() -> None:
        for _ in range(20):
            for k, weight in enumerate(layers):
                torch.mm(steps[k], weight, out=steps[k + 1])

    return best(products) / 20 * users * items / 2048


def main() -> None:
    """Print the table and, unless ``--quick``, write it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer users; writes no results")
    parser.add_argument("--point", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.point:
        print(json.dumps(point(args.point[0], *map(int, args.point[1:]))))
        return
    users = USERS // 20 if args.quick else USERS
    cases = [("neumf", users, ITEMS), ("mf", users, ITEMS), ("mf", users, 10 * ITEMS)]
    figures, rows = {}, []
    for case in cases:
        command = [sys.executable, __file__, "--point", *map(str, case)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        name = f"{case[0]}, {case[1]:,} users, {case[2]:,} items"
        figures[name] = {**found, "full_to_bound": found["full"] / found["bound"]}
        cells = [f"{found[part]:.2f}" for part in ("full", "bound")]
        ratio, added = (
            f"{figures[name]['full_to_bound']:.2f}",
            f"{found['added_bytes'] / 2**20:.0f}",
        )
        rows.append([name, *cells, ratio, f"{found['sampled']:.2f}", added])
    header = ["", "full (s)", "products alone (s)", "ratio", "sampled (s)", "added MiB"]
    text = f"# Evaluation\n\nOne core.\n\n{report.table(header, rows)}"
    print(text)
    if not args.quick:
        report.write("evaluation", figures, text)


if __name__ == "__main__":
    main()
