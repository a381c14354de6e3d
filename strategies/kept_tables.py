"""Servers that keep item tables of single users, on disk in the run's folder."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch

from models.types import IntArray, Tensors
from strategies.base import RecStrategy
from strategies.user_tables import UserTables


class KeptTables(RecStrategy):
    """Base of strategies with tables by user, which follow the run's checkpoints."""

    needs_individual_updates: ClassVar[bool] = True
    tables_folder: ClassVar[str]
    """Where the tables are, in the strategy's part of the run's folder."""

    @cached_property
    def tables(self) -> UserTables:
        """In the run's folder; elsewhere in a temporary one."""
        if self.workspace is not None:
            return UserTables(self.workspace / self.tables_folder)
        self._temporary = tempfile.TemporaryDirectory(prefix=f"{self.tables_folder}-")
        return UserTables(Path(self._temporary.name), durable=False)

    def resumed(self, server_round: int) -> None:
        """Forget tables of later rounds."""
        self.tables.forget_after(server_round)

    def checkpointed(self, rounds: Sequence[int], selected: Sequence[int]) -> None:
        """Drop tables that neither these rounds nor the present one ask for."""
        self.tables.prune(rounds)


class WaitingTables(KeptTables):
    """The tables are for their users: each waits until its user is trained or ranked next."""

    personal_evaluation: ClassVar[bool] = True
    folds_evaluation: ClassVar[bool] = False
    waiting_name: ClassVar[str]
    """Name under which a node receives a waiting table; its shape is the item table's."""

    def downlinks(self, users: IntArray) -> dict[int, Tensors]:
        """The table that waits for each of these users."""
        return self.evaluation_personal(users)

    def personal_template(self, shared: Tensors) -> Tensors:
        """A waiting table."""
        (item_table,) = self.model.item_tables
        return {self.waiting_name: shared[item_table]}

    def evaluation_personal(
        self, users: IntArray, server_round: int | None = None
    ) -> dict[int, Tensors]:
        """The same: a user is ranked with the table that its next training starts from."""
        waiting, name = self.tables.tables(users.tolist(), server_round), self.waiting_name
        return {user: {name: torch.from_numpy(table)} for user, table in waiting.items()}

    def checkpointed(self, rounds: Sequence[int], selected: Sequence[int]) -> None:
        """As every server of tables, but keep what users are ranked with in the selected rounds."""
        self.tables.prune(sorted({*rounds, *selected}))
