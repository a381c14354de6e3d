"""The training loss of a finished run as a function of its shared parameters alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from client_app.negatives import block_samples
from conf.build import ConfigError
from experiments.landscape import (
    SAMPLES,
    USERS,
    Floats,
    Landscape,
    loss_grid,
    random_direction,
    sharpness_of,
)
from experiments.objective import MeanLoss, Term
from models.base import ScoringModel
from models.losses import Loss
from models.rng import Role, UserStreams, derive_rng
from models.types import IntArray, Samples, Tensors
from server_app.cli_finished import FinishedRun


@dataclass(frozen=True)
class TrainingLoss:
    """Mean over some users of what their training samples cost under the selected round."""

    mean: MeanLoss
    shared: Tensors
    """The run's point θ."""
    users_U: IntArray
    trained: int
    """How many of these users had been in a cohort."""
    samples: int
    """Of all of them together."""


def refuse_unsuited(run: FinishedRun) -> None:
    """Refuse a run whose training loss is not one of its shared parameters by ``logits``.

    Raises:
        ConfigError: naming the strategy and why.

    """
    name, strategy = run.config.strategy_name, run.strategy
    why = None
    if strategy.training_loss is None:
        why = "it does not train along a loss of its model's logits"
    elif strategy.has_own_item_parameters:
        why = "its users are ranked by item parameters of their own"
    elif all(t.dim() < 2 for t in run.shared.values()):
        why = "its shared parameters have no rows to scale directions by"
    if why is not None:
        raise ConfigError(f"{run.folder.name}: strategy={name} has no landscape: {why}")


def draw_users(runs: Sequence[FinishedRun], count: int, seed: int) -> IntArray:
    """``count`` users (U,) of all runs drawn without replacement, or all there are; ascending."""
    forgotten = np.concatenate([run.forgotten() for run in runs])
    everybody = np.setdiff1d(np.arange(runs[0].dataset.num_users), forgotten)
    rng = derive_rng(seed, Role.LANDSCAPE, USERS)
    chosen: IntArray = rng.choice(everybody, size=min(count, len(everybody)), replace=False)
    return np.sort(chosen)


def training_loss(run: FinishedRun, users_U: IntArray, seed: int) -> TrainingLoss:
    """The loss of users whose samples are drawn as a node draws them, once and for all.

    Raises:
        ConfigError: as :func:`refuse_unsuited`.
        ServerError: when the private state of users is gone.

    """
    refuse_unsuited(run)
    loss = run.strategy.training_loss
    assert loss is not None
    streams = UserStreams(seed, Role.LANDSCAPE, SAMPLES)
    rule, negatives = run.config.protocol.negatives, run.strategy.config.num_negatives
    samples_U = block_samples(run.dataset, users_U, rule, negatives, streams)
    block, trained_U = run.private(users_U)
    names = run.strategy.private_parameters(block)
    terms = [
        user_term(run.strategy.model, {n: t[row] for n, t in names.items()}, samples, loss)
        for row, samples in enumerate(samples_U)
    ]
    size = sum(len(samples) for samples in samples_U)
    return TrainingLoss(MeanLoss(terms), run.shared, users_U, int(trained_U.sum()), size)


def landscape_of(
    run: FinishedRun,
    users_U: IntArray,
    steps_G: Floats,
    rho: float,
    seed: int,
    done: Callable[[], None] = lambda: None,
) -> Landscape:
    """A run's surface and sharpness; ``done`` is called after each point of the grid.

    Raises:
        ConfigError, ServerError, StoreError: as :func:`training_loss` and ``loss_grid``.

    """
    loss = training_loss(run, users_U, seed)
    directions = (random_direction(loss.shared, seed, 0), random_direction(loss.shared, seed, 1))
    losses_GG = loss_grid(loss.mean, loss.shared, directions, steps_G, done)
    return Landscape(
        run=run.folder.name,
        round=run.round,
        seed=seed,
        users=len(users_U),
        trained=loss.trained,
        samples=loss.samples,
        steps=steps_G.tolist(),
        losses=losses_GG.tolist(),
        sharpness=sharpness_of(loss.mean, loss.shared, rho, seed),
    )


def user_term(model: ScoringModel, private: Tensors, samples: Samples, loss: Loss) -> Term:
    """One user's loss as a function of the shared parameters."""
    items_S, labels_S = torch.from_numpy(samples.items_S), torch.from_numpy(samples.labels_S)

    def term(shared: Tensors) -> torch.Tensor:
        return loss.of_user(model.logits(shared, private, items_S), labels_S)

    return term


def same_question(runs: Sequence[FinishedRun]) -> None:
    """Refuse runs whose losses are not of the same data, samples and kind.

    Raises:
        ConfigError: naming what differs.

    """
    first = runs[0]
    for other in runs[1:]:
        pairs = {
            "data": (first.dataset.fingerprint, other.dataset.fingerprint),
            "protocol.negatives": tuple(r.config.protocol.negatives for r in (first, other)),
            "num_negatives": tuple(r.strategy.config.num_negatives for r in (first, other)),
            "loss": (first.strategy.training_loss, other.strategy.training_loss),
        }
        differing = [name for name, (one, two) in pairs.items() if one != two]
        if differing:
            raise ConfigError(
                f"{first.folder.name} and {other.folder.name} differ in {', '.join(differing)}: "
                "their losses have no common scale; ask for each by itself"
            )
