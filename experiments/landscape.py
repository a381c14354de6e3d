"""The training loss around a run's shared parameters, in two random directions.

Source: Li et al., "Visualizing the Loss Landscape of Neural Nets" (arXiv 1712.09913), section 4:
L(θ + α d₁ + β d₂) with Gaussian directions of which each filter is scaled to the norm of the
same filter of θ. Here a filter is a row of a table (an item's embedding), or of a layer's matrix
(the weights of one output unit); tensors of one dimension, the biases, stay where they are, as
in that paper's code. Users' private parameters stay too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from experiments.objective import MeanLoss, combined
from experiments.sharpness import highest_rise, mean_rise_alone, top_eigenvalue
from models.rng import Role, derive_rng
from models.types import Tensors
from server_app.errors import ServerError
from server_app.files import replace_file, replace_json

FILE = "landscape.json"
Floats = npt.NDArray[np.float64]
DIRECTIONS, USERS, START, SAMPLES = ((0, 1), 2, 3, 4)
"""Index of each stream of the role LANDSCAPE: two directions, the users, the start of the
eigenvalue's search, and the users' training samples."""


@dataclass(frozen=True)
class SharpnessNumbers:
    """Sharpness of the mean training loss at a run's shared parameters."""

    radius: float
    """ρ of the balls, Euclidean over all shared parameters."""
    rise: float
    """Highest rise of the mean loss in the ball (``experiments.sharpness``)."""
    rise_alone: float
    """Mean over users of the highest rise of each one's own loss in a ball of its own."""
    eigenvalue: float
    """Greatest eigenvalue of the Hessian by the shared parameters."""
    residual: float
    products: int


@dataclass(frozen=True)
class Landscape:
    """One run's surface and numbers, as ``landscape.json`` holds them."""

    run: str
    round: int
    """The selected round, whose parameters these are."""
    seed: int
    """Of users, samples and directions."""
    users: int
    """Users whose losses are averaged, drawn from all of them."""
    trained: int
    """Those of them that had been in a cohort by that round."""
    samples: int
    """Training samples of these users together."""
    steps: list[float]
    """α, and likewise β: ascending, 0 in the middle."""
    losses: list[list[float]]
    """Mean training loss at (α, β), one row an α."""
    sharpness: SharpnessNumbers

    @property
    def loss(self) -> float:
        """Mean training loss at the run's parameters."""
        middle = len(self.steps) // 2
        return self.losses[middle][middle]

    @property
    def note(self) -> str:
        """Two lines for a figure: the rise and the eigenvalue."""
        numbers = self.sharpness
        rise = f"rise within {numbers.radius:g}: {numbers.rise:.3g}"
        return f"{rise}\ntop eigenvalue: {numbers.eigenvalue:.3g}"

    def save(self, folder: Path) -> None:
        """Write ``landscape.json`` into a run's folder, atomically."""
        replace_json(folder / FILE, asdict(self))


def load_landscape(folder: Path) -> Landscape | None:
    """The landscape that was saved in a run's folder; None where none was.

    Raises:
        ServerError: for a file that is not one of ours.

    """
    path = folder / FILE
    try:
        values = json.loads(path.read_text("utf-8"))
        return Landscape(**{**values, "sharpness": SharpnessNumbers(**values["sharpness"])})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise ServerError(f"{path} is not a landscape of this version: {error}") from None


# ---- the surface -----------------------------------------------------------------------------
def filter_normalised(drawn: Tensors, point: Tensors) -> Tensors:
    """Rows of ``drawn`` scaled to the norms of the same rows of ``point``; no biases."""
    return {name: _rows_like(tensor, point[name]) for name, tensor in drawn.items()}


def _rows_like(drawn: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if like.dim() < 2:
        return torch.zeros_like(like)
    wanted, has = (t.flatten(1).norm(dim=1) for t in (like, drawn))
    scale = wanted / torch.where(has > 0, has, torch.ones_like(has))
    scaled: torch.Tensor = drawn * scale.view(-1, *[1] * (drawn.dim() - 1))
    return scaled


def random_direction(point: Tensors, seed: int, number: int) -> Tensors:
    """The filter-normalised direction ``number`` (0 or 1) of a seed."""
    rng = derive_rng(seed, Role.LANDSCAPE, DIRECTIONS[number])
    drawn = {
        n: torch.from_numpy(rng.standard_normal(tuple(t.shape), dtype=np.float32)).to(t)
        for n, t in sorted(point.items())
    }
    return filter_normalised(drawn, point)


def grid_steps(radius: float, count: int) -> Floats:
    """``count`` steps, an odd number, from -radius to radius, with exactly 0 in the middle.

    Raises:
        ValueError: for an even count or one below 3, or a radius that is not positive.

    """
    if count < 3 or count % 2 == 0 or not 0 < radius < math.inf:
        raise ValueError(
            f"a grid needs an odd number of steps, at least 3, and a positive radius; got {count} "
            f"and {radius:g}"
        )
    half = count // 2
    steps: Floats = radius * np.arange(-half, half + 1) / half
    return steps


def loss_grid(
    loss: MeanLoss,
    point: Tensors,
    directions: tuple[Tensors, Tensors],
    steps_G: Floats,
    done: Callable[[], None] = lambda: None,
) -> Floats:
    """L(θ + α d₁ + β d₂) for all steps (G, G), one row an α; ``done`` is called at each point.

    Raises:
        ServerError: where the loss is not finite.

    """
    loss_GG, (one, two) = np.empty((len(steps_G), len(steps_G))), directions
    for a, alpha in enumerate(steps_G.tolist()):
        for b, beta in enumerate(steps_G.tolist()):
            loss_GG[a, b] = loss.value(combined((1.0, point), (alpha, one), (beta, two)))
            done()
    if not np.isfinite(loss_GG).all():
        raise ServerError("the loss is not finite on the whole grid: choose a smaller --radius")
    return loss_GG


# ---- the numbers -----------------------------------------------------------------------------
def sharpness_of(loss: MeanLoss, point: Tensors, radius: float, seed: int) -> SharpnessNumbers:
    """All sharpness numbers of a mean loss at a point."""
    top = top_eigenvalue(loss, point, derive_rng(seed, Role.LANDSCAPE, START))
    return SharpnessNumbers(
        radius=radius,
        rise=highest_rise(loss, point, radius, first=top.vector),
        rise_alone=mean_rise_alone(loss, point, radius),
        eigenvalue=top.value,
        residual=top.residual,
        products=top.products,
    )


def save_arrays(path: Path, landscapes: Sequence[Landscape]) -> None:
    """Write ``landscape.npz``: runs (R,), steps (R, G) and losses (R, G, G)."""
    buffer = BytesIO()
    np.savez(
        buffer,
        runs=np.array([found.run for found in landscapes]),
        steps=np.array([found.steps for found in landscapes]),
        losses=np.array([found.losses for found in landscapes]),
    )
    replace_file(path, buffer.getvalue())
