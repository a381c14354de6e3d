"""The server's half of a strategy, with its plain defaults: sum, mean, optimiser step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from models import optim
from models.rng import Role, derive_rng
from models.types import IndividualUpdates, IntArray, SumOfUpdates, Tensors, Update


class ServerHalf:
    """What the server does with updates, and what it sends to single users."""

    update_kind: ClassVar[Literal["gradient", "delta"]] = "gradient"
    """What the shared part of an update is: a gradient, or the weighted movement of weights
    (then a stock Flower strategy, which averages weights, can drive the nodes too)."""

    @property
    def averages_weights(self) -> bool:
        """Whether the server's mean is one of weights by ``Update.weight``, as stock Flower's."""
        return self.update_kind == "delta" and not self.needs_individual_updates

    @property
    def plain_updates(self) -> bool:
        """Whether users' updates are gradients or movements of the shared parameters, in the clear.

        Such are what attacks change and defences compare.
        """
        return not self.needs_individual_updates

    needs_individual_updates: ClassVar[bool] = False
    """The server must see each user's update, not only their sum."""
    personal_evaluation: ClassVar[bool] = False
    """Users are ranked with tensors of their own from the server: :meth:`evaluation_personal`."""
    folds_evaluation: ClassVar[bool] = True
    """A round's model can be ranked by what the next training request carries: the shared
    parameters, and nothing of a user's own."""
    extra_exchanges: ClassVar[tuple[str, ...]] = ()
    """Messages beyond one train and one evaluate exchange a round, by name."""
    send_less: ClassVar[str] = "make the model smaller"
    """What to set where a sum of updates is too large to be kept."""
    receive_less: ClassVar[str] = "make the model smaller"
    """The same of the shared parameters."""
    idle_tensors: ClassVar[frozenset[str]] = frozenset()
    """Tensors of an update that the server's step does not read and that no data is in."""

    @property
    def clip_problem(self) -> str | None:
        """Why a clipped user's update, or a noisy sum of them, is of no use; None where it is."""
        if self.needs_individual_updates:
            return "its server needs each user's update by itself, and noise is on sums"
        return None

    config: Any
    seed: int = 0
    """The run's, for :meth:`server_rng`."""
    workspace: Path | None = None
    """Folder of the run for what the server keeps on disk; None outside a run."""

    # ---- to single users -------------------------------------------------------------------
    def downlinks(self, users: IntArray) -> dict[int, Tensors]:
        """Tensors for users of the cohort beside the shared ones, by user; asked once a round.

        A node trains a user who has some by itself, with ``shared | personal``.
        """
        return {}

    def personal_template(self, shared: Tensors) -> Tensors:
        """Names and shapes of one user's tensors of :meth:`downlinks` at their largest."""
        return {}

    def evaluation_personal(
        self, users: IntArray, server_round: int | None = None
    ) -> dict[int, Tensors]:
        """The same for ranking these users; only where ``personal_evaluation``.

        ``server_round``: as it was after this round; None is the present.

        Raises:
            LookupError: when that is not kept.

        """
        return {}

    # ---- the round's step ------------------------------------------------------------------
    def summed_template(self, shared: Tensors) -> Tensors:
        """Names and shapes of a sum of updates: none where each user's update is sent."""
        return {} if self.needs_individual_updates else shared

    def individual_template(self, shared: Tensors) -> Tensors:
        """Names and shapes of one user's upload, where ``needs_individual_updates``."""
        return shared

    def combined(self, updates: Sequence[Update], shared: Tensors) -> Update:
        """The sum of the nodes' updates, in the given order."""
        total = SumOfUpdates(self.summed_template(shared))
        for update in updates:
            total.add(update)
        return total.result()

    def init_server_state(self, shared: Tensors) -> Tensors:
        """State that the server keeps between rounds, as named tensors (checkpointed)."""
        return optim.init_state(self.config.server_optimiser, shared)

    def server_update(
        self, shared: Tensors, summed: Update, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Step the server's optimiser: against the mean gradient, or along the mean movement."""
        sign, cfg = (-1 if self.update_kind == "delta" else 1), self.config
        gradient = {n: sign * t for n, t in summed.mean().items()}
        return optim.step(cfg.server_optimiser, shared, gradient, server_state, cfg.server_lr)

    def individual_server_update(
        self, shared: Tensors, updates: IndividualUpdates, server_state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """The step from each user's upload, where ``needs_individual_updates``.

        ``updates`` is in ascending order of users, however they are spread over nodes.
        """
        raise NotImplementedError

    def server_rng(self, step: int) -> np.random.Generator:
        """The server's own stream of a step."""
        return derive_rng(self.seed, Role.SERVER, step)

    # ---- what is kept on disk --------------------------------------------------------------
    def resumed(self, server_round: int) -> None:
        """The run goes on from the checkpoint of this round; drop what is newer."""

    def checkpointed(self, rounds: Sequence[int], selected: Sequence[int]) -> None:
        """Checkpoints of these rounds are kept; drop what none of them can ask for.

        ``selected`` are the rounds that these have selected, whose users may be ranked again.
        """
