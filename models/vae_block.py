"""Local training of a block of users of the gated autoencoder, in lock-step.

Each user moves copies of his own: of the item rows of his history, one flat table over the
block's (user, item) pairs (P), and of everything else with a leading user dimension. Users
share no entry, so a step of all of them is a step of each. A row of an encoder or of the gate
that is in no pair has no gradient, and Adam leaves it where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models import optim
from models.tables import row_table
from models.types import IntArray, Tensors
from models.vae import DECODER, ENCODER, GATE, OWN, GatedVAE

FIRST = tuple(f"{name}_item" for name in (ENCODER, OWN, GATE))
"""Tables of which a user touches the rows of his history."""


@dataclass(frozen=True)
class VAETraining:
    """How a user trains."""

    lr: float
    """Learning rate of a local Adam that starts afresh."""
    beta: float
    """Weight of the KL divergence."""
    dropout: float
    """Probability that an input, or a hidden unit of the gate, is left out of a step."""
    move_shared: bool = True
    """False keeps the shared parameters as received."""


@dataclass(frozen=True)
class VAETrained:
    """Outcome of a block: the steps' gradients of the shared parameters, added up."""

    gradients: Tensors
    private: Tensors
    """Private parameters after training (U, …)."""
    loss: float
    """Sum over users of the mean loss of a step."""


@dataclass(frozen=True)
class _Pairs:
    """The users' items of all steps, user after user, and which of them each step takes."""

    users_P: Tensor
    items_P: Tensor
    taken_EP: Tensor
    """1 for a pair of a step (E), else 0."""


def train_block(
    model: GatedVAE,
    shared: Tensors,
    private_block: Tensors,
    items_UE: Sequence[Sequence[IntArray]],
    rngs: Sequence[np.random.Generator],
    training: VAETraining,
) -> VAETrained:
    """Train users, a step for each of a user's sets of distinct items."""
    pairs = _pairs(items_UE, shared[f"{DECODER}_item"])
    local = _local(shared, private_block, pairs)
    moving = [n for n in local if training.move_shared or n in private_block]
    state = optim.init_state("adam", {n: local[n] for n in moving})
    total = {n: torch.zeros_like(local[n]) for n in moving if n in shared}
    loss = 0.0
    for taken_P in pairs.taken_EP:
        draws = _Draws.of(model, pairs, rngs, training.dropout, taken_P)
        at = {n: local[n].requires_grad_(n in moving) for n in local}
        losses_U = _losses(model, at, pairs, taken_P, draws, training.beta)
        gradients = dict(
            zip(moving, torch.autograd.grad(losses_U.sum(), [at[n] for n in moving]), strict=True)
        )
        local = {n: t.detach() for n, t in local.items()}
        total = {n: t + gradients[n] for n, t in total.items()}
        own = {n: local[n] for n in moving}
        stepped, state = optim.step("adam", own, gradients, state, training.lr)
        local |= stepped
        loss += float(losses_U.detach().sum()) / len(pairs.taken_EP)
    summed = {n: _summed(n, t, pairs, shared[n]) for n, t in total.items()}
    return VAETrained(summed, _scattered(private_block, local, pairs), loss)


def _pairs(items_UE: Sequence[Sequence[IntArray]], like: Tensor) -> _Pairs:
    """Pairs of a block, on the device and (for what a step takes) of the dtype of ``like``."""
    items_U = [np.unique(np.concatenate(steps)) for steps in items_UE]
    users_P = np.repeat(np.arange(len(items_U)), [len(items) for items in items_U])
    taken = [
        np.concatenate([np.isin(own, step) for own, step in zip(items_U, steps_U, strict=True)])
        for steps_U in zip(*items_UE, strict=True)
    ]
    return _Pairs(
        torch.from_numpy(users_P).to(like.device),
        torch.from_numpy(np.concatenate(items_U)).to(like.device),
        torch.from_numpy(np.stack(taken)).to(like),
    )


def _local(shared: Tensors, private_block: Tensors, pairs: _Pairs) -> Tensors:
    """Each user's own copies."""
    num_users, local = len(next(iter(private_block.values()))), Tensors()
    for name, tensor in shared.items():
        if name in FIRST:
            local[name] = tensor.index_select(0, pairs.items_P)
        else:
            local[name] = tensor.expand(num_users, *tensor.shape).clone()
    for name, tensor in private_block.items():
        rows = (pairs.users_P, pairs.items_P)
        local[name] = tensor[rows] if name in FIRST else tensor.clone()
    return local


@dataclass(frozen=True)
class _Draws:
    """A step's random numbers; those of a user come from his stream alone."""

    clean_P: Tensor
    """Each pair's entry of a user's row, of length 1: the gate's input."""
    input_P: Tensor
    """The same under dropout: the encoders' input."""
    gate_UG: Tensor
    """Factor of each hidden unit of the gate."""
    own_UD: Tensor
    shared_UD: Tensor

    @classmethod
    def of(
        cls,
        model: GatedVAE,
        pairs: _Pairs,
        rngs: Sequence[np.random.Generator],
        dropout: float,
        taken_P: Tensor,
    ) -> _Draws:
        counts_U = torch.bincount(pairs.users_P, minlength=len(rngs)).tolist()
        inputs, gates, noises = [], [], []
        for rng, count in zip(rngs, counts_U, strict=True):
            inputs.append(rng.random(count) >= dropout)
            gates.append(rng.random(model.gate) >= dropout)
            noises.append(rng.standard_normal((2, model.latent), dtype=np.float32))
        # Inverted dropout: what is left in grows by the share that is left out.
        input_P, gate_UG = (
            torch.from_numpy(kept).to(taken_P) / (1 - dropout)
            for kept in (np.concatenate(inputs), np.stack(gates))
        )
        noise_U2D = torch.from_numpy(np.stack(noises)).to(taken_P)
        clean_P = _unit(taken_P, pairs.users_P, len(rngs))
        return cls(clean_P, clean_P * input_P, gate_UG, noise_U2D[:, 0], noise_U2D[:, 1])


def _unit(taken_P: Tensor, users_P: Tensor, num_users: int) -> Tensor:
    """Entries of a user's row of 0 and 1, scaled to length 1."""
    counts_U = taken_P.new_zeros(num_users).index_add_(0, users_P, taken_P)
    return taken_P / counts_U.sqrt()[users_P]


def _losses(
    model: GatedVAE, at: Tensors, pairs: _Pairs, taken_P: Tensor, draws: _Draws, beta: float
) -> Tensor:
    """Negative multinomial log likelihood plus β times the KL divergence, of each user (U,)."""
    num_users = len(draws.gate_UG)

    def first(name: str, input_P: Tensor) -> Tensor:
        rows_PH = input_P[:, None] * at[f"{name}_item"]
        return rows_PH.new_zeros(num_users, rows_PH.shape[1]).index_add(0, pairs.users_P, rows_PH)

    own_mean, own_log = model.encoded(at, OWN, first(OWN, draws.input_P))
    mean, log = model.encoded(at, ENCODER, first(ENCODER, draws.input_P))
    weights_U2 = model.gated(at, first(GATE, draws.clean_P), draws.gate_UG)
    own, common = weights_U2[:, :1], weights_U2[:, 1:]
    own_code = own_mean + (own_log / 2).exp() * draws.own_UD
    code_UD = own * own_code + common * (mean + (log / 2).exp() * draws.shared_UD)
    mixed = own * own_mean + common * mean
    variance = own**2 * own_log.exp() + common**2 * log.exp()
    divergence_U = (mixed**2 + variance - variance.log() - 1).sum(1) / 2
    hidden_UH = model.decoder_hidden(at, code_UD)
    scores_UI = torch.baddbmm(
        at[f"{DECODER}_item_bias"][:, :, None], at[f"{DECODER}_item"], hidden_UH[:, :, None]
    )[:, :, 0]
    logs_P = scores_UI.log_softmax(1)[pairs.users_P, pairs.items_P] * taken_P
    likelihood_U = logs_P.new_zeros(num_users).index_add(0, pairs.users_P, logs_P)
    return beta * divergence_U - likelihood_U


def _summed(name: str, gradient: Tensor, pairs: _Pairs, like: Tensor) -> Tensor:
    """The users' sum, as a table of the shape of ``like``."""
    if name in FIRST:
        return row_table(pairs.items_P, gradient, len(like))
    return gradient.sum(0)


def _scattered(private_block: Tensors, local: Tensors, pairs: _Pairs) -> Tensors:
    """The private block with the users' rows put back."""
    out = Tensors()
    for name, tensor in private_block.items():
        if name in FIRST:
            rows = (pairs.users_P, pairs.items_P)
            out[name] = tensor.index_put(rows, local[name])
        else:
            out[name] = local[name]
    return out
