"""Whether nodes can keep what they send and receive, before anything is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conf.build import ConfigError
from conf.tree import Config
from strategies.messages import MAX_STORED_BYTES

if TYPE_CHECKING:
    from models.types import Tensors
    from strategies.base import RecStrategy


def check_storable(cfg: Config, strategy: RecStrategy, shared: Tensors, num_items: int) -> None:
    """Compare with what a value in a node's file can hold.

    A node keeps its answer until the next round, and in a deployment the shared parameters.

    Raises:
        ConfigError: when an answer is too large however few users a node has, or the parameters.

    """
    summed = strategy.summed_template(shared)
    whole = {n: t for n, t in summed.items() if n not in strategy.row_tables}
    asked = [("an answer", whole, strategy.send_less)]
    if cfg.federation.grid == "deployment":
        asked.append(("the shared parameters", shared, strategy.receive_less))
    for what, tensors, advice in asked:
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        if size >= MAX_STORED_BYTES:
            raise ConfigError(
                f"strategy={cfg.strategy_name}: with {num_items} items {what} takes "
                f"{size / 1e9:.2f} GB, and a node can keep at most {MAX_STORED_BYTES / 1e9:g} GB: "
                f"{advice}"
            )
