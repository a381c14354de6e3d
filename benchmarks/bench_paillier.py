"""What encryption=paillier costs a node and the server: seconds and bytes a table and round.

    python benchmarks/bench_paillier.py [--quick]

A node decrypts the table and encrypts the sum over its users; the server adds the sums of two
nodes and steps. Nothing is trained: everything else of a round costs what it costs without.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from models.types import Update
from strategies.paillier import Paillier
from strategies.paillier_keys import KEY_BITS, PRIVATE_FILE, PUBLIC_FILE, new_key_pair

FACTORS, FRACTION_BITS, USERS = 32, 24, 47.0
CATALOGUES = (40, 1682)


def seconds(call: Callable[[], object]) -> float:
    """Wall-clock seconds of a call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measured(paillier: Paillier, items: int) -> dict[str, float]:
    """Figures of one table (items, 32)."""
    table = 0.1 * torch.randn(items, FACTORS, generator=torch.Generator().manual_seed(0))
    held = paillier.seal({"item_emb": table})
    sealed = list[torch.Tensor]()
    encrypting = seconds(lambda: sealed.append(paillier.encrypt(table, USERS, "item_emb")))
    updates = [Update({"item_emb": sealed[0]}, USERS)] * 2
    return {
        "ciphertexts": len(held["item_emb"]),
        "encrypt_s": encrypting,
        "decrypt_s": seconds(lambda: paillier.open(held)),
        "server_s": seconds(lambda: paillier.step(held, paillier.add(updates))),
        "bytes_each_way": held["item_emb"].numel(),
        "plain_bytes": table.numel() * table.element_size(),
    }


def main() -> None:
    """Print the table and, unless ``--quick``, write it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small table only; writes no results")
    args = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in zip((PUBLIC_FILE, PRIVATE_FILE), new_key_pair(KEY_BITS), strict=True):
            (folder / file).write_text(text)
        paillier = Paillier(folder, FRACTION_BITS, allow_weak_key=False)
        sizes = CATALOGUES[:1] if args.quick else CATALOGUES
        figures = {f"{items} items": measured(paillier, items) for items in sizes}
    header = ["", "ciphertexts", "encrypt (s)", "decrypt (s)", "server (s)", "bytes", "plain bytes"]
    rows = [
        [name, f"{f['ciphertexts']:,.0f}"]
        + [f"{f[part]:.2f}" for part in ("encrypt_s", "decrypt_s", "server_s")]
        + [f"{f[part]:,.0f}" for part in ("bytes_each_way", "plain_bytes")]
        for name, f in figures.items()
    ]
    title = f"# Paillier\n\n{KEY_BITS} bits, {FACTORS} factors, a node and round, two nodes.\n\n"
    text = title + report.table(header, rows)
    print(text)
    if not args.quick:
        report.write("paillier", figures, text)


if __name__ == "__main__":
    main()
