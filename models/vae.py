"""Variational autoencoder with a shared and a private encoder, mixed by a private gate.

Mult-VAE (Liang et al., WWW 2018, arXiv 1802.05814) in the form of FedDAE (arXiv 2408.08931):
a user's row of interactions x, 0 or 1 an item and scaled to length 1, goes through two encoders
and a gate; the mean of their codes, weighted by the gate, is decoded to a score an item. All
tables are stored with the catalogue first, so that a user touches the rows of his items only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from models.base import ScoringModel
from models.types import IntArray, Tensors

ENCODER, OWN, GATE, DECODER = "encoder", "own_encoder", "gate", "decoder"
HISTORY = "history"
"""Name, in a block of private tensors to score with, of the users' rows of 0 and 1 (U, I)."""


@dataclass(frozen=True)
class GatedVAE(ScoringModel):
    """Shared encoder and decoder, private encoder and gate; scores from a user's history.

    Shared: ``encoder_item`` (I, H), ``encoder_bias`` (H,) and, for each further layer k,
    ``encoder_weight_k``, ``encoder_bias_k``, the last of them twice ``latent`` wide (means, then
    log variances); ``decoder_weight_k``, ``decoder_bias_k``, ``decoder_item`` (I, H) and
    ``decoder_item_bias`` (I,). Private: an encoder of the same shape (``own_encoder_…``) and the
    gate, ``gate_item`` (I, G), ``gate_bias`` (G,), ``gate_weight_1`` (2, G), ``gate_bias_1`` (2,).

    Scoring asks for ``history`` among the private tensors, see :data:`HISTORY`.

    Raises:
        ValueError: when a width is below 1.

    """

    latent: int = 32
    """Width of the code."""
    hidden: tuple[int, ...] = ()
    """Widths of the encoders' tanh layers; the decoder has them in reverse. The paper's are
    768, 512 with a code of 256: 8 MB of private encoder a user for 1,682 items."""
    gate: int = 16
    """Width of the gate's hidden layer; the paper's code has 256."""

    item_tables: ClassVar[frozenset[str]] = frozenset(
        {"encoder_item", "decoder_item", "decoder_item_bias"}
    )
    scores_from_history: ClassVar[bool] = True
    block_users: ClassVar[int] = 8
    """Each user moves a copy of the decoder: more of them leave the cache."""

    def __post_init__(self) -> None:
        widths = {"latent": self.latent, "gate": self.gate}
        widths |= {f"hidden[{k}]": width for k, width in enumerate(self.hidden)}
        for name, width in widths.items():
            if width < 1:
                raise ValueError(f"{name} must be at least 1, got {width}")

    # ---- parameters ------------------------------------------------------------------------
    def init_shared(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Draw encoder and decoder, by Glorot's normal rule; biases are 0."""
        encoder = self._encoder(ENCODER, num_items, rng)
        widths = [self.latent, *reversed(self.hidden)]
        decoder = _layers(DECODER, widths, rng)
        decoder[f"{DECODER}_item"] = _glorot(rng, num_items, widths[-1])
        decoder[f"{DECODER}_item_bias"] = torch.zeros(num_items)
        return encoder | decoder

    def init_private(self, num_items: int, rng: np.random.Generator) -> Tensors:
        """Draw one user's encoder and gate, by the same rule."""
        own = self._encoder(OWN, num_items, rng)
        return own | _item_network(GATE, num_items, [self.gate, 2], rng)

    def _encoder(self, name: str, num_items: int, rng: np.random.Generator) -> Tensors:
        return _item_network(name, num_items, [*self.hidden, 2 * self.latent], rng)

    # ---- scores ----------------------------------------------------------------------------
    def logits(self, shared: Tensors, private: Tensors, items_S: Tensor) -> Tensor:
        """Scores of one user from the mean code (S,); differentiable."""
        code_UD = self._mean_code(shared, {n: t[None] for n, t in private.items()})
        return self._decoded(shared, code_UD)[0, items_S]

    def scores(self, shared: Tensors, private_block: Tensors, items_R: IntArray | None) -> Tensor:
        """Scores of a block of users from their mean codes (U, R), or (U, I)."""
        scores_UI = self._decoded(shared, self._mean_code(shared, private_block))
        return scores_UI if items_R is None else scores_UI[:, torch.from_numpy(items_R)]

    def score_candidates(
        self, shared: Tensors, private_block: Tensors, items_UC: IntArray
    ) -> Tensor:
        """Scores of each user's own candidates (U, C)."""
        hidden_UH = self.decoder_hidden(shared, self._mean_code(shared, private_block))
        items = torch.from_numpy(items_UC).to(hidden_UH.device)
        rows_UCH = shared[f"{DECODER}_item"][items]
        products_UC = torch.einsum("uch,uh->uc", rows_UCH, hidden_UH)
        return products_UC + shared[f"{DECODER}_item_bias"][items]

    def _mean_code(self, shared: Tensors, private_block: Tensors) -> Tensor:
        """The gate's mean of the two encoders' mean codes (U, D).

        Raises:
            ValueError: when the users' histories are not there.

        """
        if HISTORY not in private_block:
            raise ValueError("the autoencoder scores from histories; strategy=feddae gives them")
        input_UI = private_block[HISTORY].to(shared[f"{DECODER}_item"])
        input_UI = input_UI / input_UI.sum(1, keepdim=True).sqrt().clamp(min=1)
        first_UH = input_UI @ shared[f"{ENCODER}_item"]
        own_UH, gate_UG = (
            (input_UI[:, None] @ private_block[f"{name}_item"])[:, 0] for name in (OWN, GATE)
        )
        own_UD, shared_UD = (
            self.encoded(parameters, name, first)[0]
            for parameters, name, first in (
                (private_block, OWN, own_UH),
                (shared, ENCODER, first_UH),
            )
        )
        weights_U2 = self.gated(private_block, gate_UG)
        return weights_U2[:, :1] * own_UD + weights_U2[:, 1:] * shared_UD

    def _decoded(self, shared: Tensors, code_UD: Tensor) -> Tensor:
        hidden_UH = self.decoder_hidden(shared, code_UD)
        return hidden_UH @ shared[f"{DECODER}_item"].T + shared[f"{DECODER}_item_bias"]

    # ---- the parts of the network ----------------------------------------------------------
    # Each takes parameters common to the users, or with a leading user dimension.
    def encoded(self, parameters: Tensors, name: str, first_UH: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log variances (U, D) from an encoder's sum of item rows."""
        hidden_UH = first_UH + parameters[f"{name}_bias"]
        for k in range(1, len(self.hidden) + 1):
            hidden_UH = _linear(parameters, name, k, hidden_UH.tanh())
        return hidden_UH[:, : self.latent], hidden_UH[:, self.latent :]

    def gated(self, parameters: Tensors, first_UG: Tensor, kept_UG: Tensor | None = None) -> Tensor:
        """Weights of the private and of the shared code (U, 2), which sum to 1.

        ``kept`` is the factor of each hidden unit under dropout.
        """
        hidden_UG = (first_UG + parameters[f"{GATE}_bias"]).relu()
        if kept_UG is not None:
            hidden_UG = hidden_UG * kept_UG
        return _linear(parameters, GATE, 1, hidden_UG).softmax(1)

    def decoder_hidden(self, parameters: Tensors, code_UD: Tensor) -> Tensor:
        """What the decoder's item rows are multiplied with (U, H)."""
        for k in range(1, len(self.hidden) + 1):
            code_UD = _linear(parameters, DECODER, k, code_UD).tanh()
        return code_UD


def _linear(parameters: Tensors, name: str, layer: int, input_UH: Tensor) -> Tensor:
    output = parameters[f"{name}_weight_{layer}"] @ input_UH[:, :, None]
    return output[:, :, 0] + parameters[f"{name}_bias_{layer}"]


def _item_network(
    name: str, num_items: int, widths: Sequence[int], rng: np.random.Generator
) -> Tensors:
    """A first layer with a row an item, and the layers that follow."""
    item = _glorot(rng, num_items, widths[0])
    first = {f"{name}_item": item, f"{name}_bias": torch.zeros(widths[0])}
    return first | _layers(name, widths, rng)


def _layers(name: str, widths: Sequence[int], rng: np.random.Generator) -> Tensors:
    """Weights (out, in) and biases (out,) between consecutive widths, counted from 1."""
    layers = Tensors()
    for k, (inner, outer) in enumerate(pairwise(widths), start=1):
        layers[f"{name}_weight_{k}"] = _glorot(rng, outer, inner)
        layers[f"{name}_bias_{k}"] = torch.zeros(outer)
    return layers


def _glorot(rng: np.random.Generator, rows: int, columns: int) -> Tensor:
    draw = rng.standard_normal((rows, columns), dtype=np.float32)
    return torch.from_numpy(draw * np.float32(np.sqrt(2 / (rows + columns))))
