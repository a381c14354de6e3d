"""Starts (``init``) that a configuration cannot have."""

from __future__ import annotations

from collections.abc import Iterator

from conf.schema import Config


def init_problems(config: Config) -> Iterator[str]:
    """What is wrong with where item embeddings and users start from, a line each."""
    init, tables = config.init, sorted(config.model.item_tables)
    if init.run is not None and init.strategy is not None:
        yield "init.run and init.strategy both say where to start from: give one of them"
    of_a_run = (init.table, init.into, init.std)
    if init.run is None and init.strategy is None and of_a_run != (None, None, None):
        yield "init.table, init.into and init.std are of a run: init.run or init.strategy names it"
    for key in ("ridge", "gain"):
        if getattr(init, key) <= 0:
            yield f"init.{key} must be positive, got {getattr(init, key)}"
    if init.users == "solved":
        yield from _solved(config)
    if init.into is not None and (init.table is None or init.into not in tables):
        yield f"init.into must be one of {', '.join(tables)}, with init.table, got {init.into}"
    if init.std is not None and init.std <= 0:
        yield f"init.std must be positive, got {init.std}"


def _solved(config: Config) -> Iterator[str]:
    if config.model.dot_product is None:
        yield (
            f"init.users=solved needs a dot product of a user's vector with the items, which "
            f"model={config.model_name} has not"
        )
    if config.strategy_class.users_follow_items:
        yield (
            f"strategy={config.strategy_name} makes users of their items by itself: "
            "init.users=drawn"
        )
