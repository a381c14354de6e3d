"""What a strategy exchanges and keeps, from the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from conf.tree import Config, build_strategy
from models.types import Tensors
from strategies.base import RecStrategy


@dataclass(frozen=True)
class Description:
    """A strategy with its default settings on a catalogue; sizes in bytes, before compression."""

    name: str
    title: str
    about: str
    model: str
    shared: Mapping[str, tuple[int, ...]]
    """Shapes of the shared parameters."""
    private: Mapping[str, tuple[int, ...]]
    """Shapes of one user's private state; it stays on the node."""
    server_sees: str
    flags: tuple[str, ...]
    down_node: int
    """Bytes a round to each node: the shared parameters."""
    down_user: int
    """Bytes to a user of the cohort beside these, at most."""
    up_node: int
    """Bytes a round from each node, at most: the sum over its users."""
    up_user: int
    """Bytes from each user of the cohort, where the server sees single users."""
    state_user: int
    """Bytes that the node keeps for a user."""

    def as_dict(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def describe(config: Config, num_items: int) -> Description:
    """Describe the strategy of a configuration on ``num_items`` items."""
    strategy: RecStrategy = build_strategy(config)
    shared = strategy.init_shared(num_items, np.random.default_rng(0))
    private = strategy.start_private(num_items, 0, 0)
    personal = strategy.personal_template(shared)
    single = strategy.individual_template(shared) if strategy.needs_individual_updates else {}
    return Description(
        name=config.strategy_name,
        title=strategy.title,
        about=strategy.about,
        model=config.model_name,
        shared=shapes_of(shared),
        private=shapes_of(private),
        server_sees="each user's upload" if single else "sums over the users of a node",
        flags=flags_of(strategy, bool(personal)),
        down_node=bytes_of(shared),
        down_user=bytes_of(personal),
        up_node=bytes_of(strategy.summed_template(shared)),
        up_user=bytes_of(single),
        state_user=bytes_of(private),
    )


def flags_of(strategy: RecStrategy, has_personal: bool) -> tuple[str, ...]:
    """What sets a strategy apart, in words; ``has_personal``: users get tensors of their own."""
    said = {
        "needs every user in every round": not strategy.supports_partial_participation,
        "updates move all rows": strategy.dense_updates,
        "users start alike": strategy.common_start,
        "the server sends users tensors of their own": has_personal,
        "averages weights, so a stock Flower strategy can drive it": strategy.averages_weights,
        f"extra exchanges: {', '.join(strategy.extra_exchanges)}": bool(strategy.extra_exchanges),
    }
    return tuple(flag for flag, holds in said.items() if holds)


def bytes_of(tensors: Tensors) -> int:
    """Size of all tensors."""
    return sum(t.numel() * t.element_size() for t in tensors.values())


def shapes_of(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    """Shape by name."""
    return {name: tuple(t.shape) for name, t in tensors.items()}
