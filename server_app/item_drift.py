"""How far the shared item tables move from one evaluated round to the next.

``item_drift.jsonl`` has a line an observed round, written where ``evaluation.item_drift`` asks for
it. The tables are those that the server sends to everybody anyway, as scores use them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from logging import WARNING
from pathlib import Path

import torch
from flwr.common.logger import log
from torch import Tensor

from models.types import IntArray, Tensors
from server_app.files import named
from server_app.records import read_records
from strategies.base import RecStrategy

DRIFT = "item_drift.jsonl"
DECILES = torch.arange(1, 10, dtype=torch.float64) / 10
BLOCK_NUMBERS = 1 << 20
"""Numbers of a table that are held in double precision at once."""


class ItemDrift:
    """Observes the item tables of rounds, in order, and appends what changed to a run's file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / DRIFT
        self._gives_none = False
        self.before: Tensors = {}
        """Tables at the last observation, which a checkpoint keeps; empty before the first."""

    def observe(
        self,
        strategy: RecStrategy,
        server_round: int,
        shared: Tensors,
        item_counts_I: IntArray | None,
    ) -> None:
        """Append a line for a round; a strategy without tables to read is named in the log once.

        ``item_counts_I``: training interactions of each item; None where the server has none,
        and all items count.
        """
        tables = self._tables(strategy, shared)
        if not tables:
            return
        line = {
            "round": server_round,
            "tables": {
                name: movement(table, self.before.get(name), item_counts_I)
                for name, table in sorted(tables.items())
            },
        }
        with named(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        self.before = {name: table.clone() for name, table in tables.items()}

    def _tables(self, strategy: RecStrategy, shared: Tensors) -> Tensors:
        if self._gives_none:
            return {}
        try:
            found, reason = strategy.item_vectors(strategy.opened(shared)), ""
        except (OSError, ValueError, KeyError) as error:
            found, reason = {}, f" that the server can read ({error})"
        if not found:
            self._gives_none = True
            log(WARNING, "%s has no shared item table%s: no %s", strategy.title, reason, DRIFT)
        return found


def movement(
    now: Tensor, before: Tensor | None, item_counts_I: IntArray | None
) -> dict[str, object]:
    """What a line says of one table (I, …), a row an item, whatever a row's own shape.

    Items count that have a training interaction. ``cosine`` is that of an item's row now and
    ``before``, with mean and the nine deciles (linear interpolation); ``step`` the mean of
    ‖now − before‖/‖before‖; ``norm`` the mean length of a row; ``variance`` that of a coordinate
    over the items, mean over coordinates. Items are left out of a figure that is undefined for
    them, a row of zeros having no direction; a figure of no items, or the first time, is None.
    """
    items = range(len(now)) if item_counts_I is None else item_counts_I.nonzero()[0].tolist()
    rows = torch.tensor(list(items), dtype=torch.int64)
    now = _flat(now)
    norm_I, cosine_I, step_I = _by_item(now, None if before is None else _flat(before), rows)
    defined = cosine_I[cosine_I.isfinite()]
    return {
        "items": len(rows),
        "cosine": _mean(cosine_I),
        "cosine_deciles": torch.quantile(defined, DECILES).tolist() if len(defined) else None,
        "norm": _mean(norm_I),
        "step": _mean(step_I),
        "variance": _variance(now, rows),
    }


def _flat(table: Tensor) -> Tensor:
    """A vector an item (I, D); a bias has one coordinate."""
    return table.reshape(len(table), -1)


def _blocks(table: Tensor, rows: Tensor) -> Sequence[Tensor]:
    return torch.split(rows, max(1, BLOCK_NUMBERS // max(1, table.shape[1])))


def _by_item(now: Tensor, before: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Length, cosine and relative step of each row (float64); not finite where undefined."""
    found = [torch.empty(3, 0, dtype=torch.float64)]
    for part in _blocks(now, rows):
        new_RD = now[part].double()
        norm_R = new_RD.norm(dim=1)
        if before is None:
            undefined_R = torch.full_like(norm_R, torch.nan)
            found.append(torch.stack([norm_R, undefined_R, undefined_R]))
            continue
        old_RD = before[part].double()
        length_R = old_RD.norm(dim=1)
        cosine_R = ((new_RD * old_RD).sum(1) / (norm_R * length_R)).clamp(-1, 1)
        found.append(torch.stack([norm_R, cosine_R, (new_RD - old_RD).norm(dim=1) / length_R]))
    norm_I, cosine_I, step_I = torch.cat(found, dim=1)
    return norm_I, cosine_I, step_I


def _mean(values_I: Tensor) -> float | None:
    defined = values_I[values_I.isfinite()]
    return float(defined.mean()) if len(defined) else None


def _variance(table: Tensor, rows: Tensor) -> float | None:
    """Mean over coordinates of their variance over the rows, in two passes."""
    if not len(rows):
        return None
    parts = _blocks(table, rows)
    mean_D = sum((table[p].double().sum(0) for p in parts), torch.zeros(())) / len(rows)
    squares = sum(float(((table[p].double() - mean_D) ** 2).sum()) for p in parts)
    return squares / (len(rows) * table.shape[1])


def read_drift(folder: Path) -> list[Mapping[str, object]]:
    """The complete lines of a run's file; none where there is no file."""
    return list(read_records(folder / DRIFT))
