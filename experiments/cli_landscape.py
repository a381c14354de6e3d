"""``fedrecgel landscape``: the training loss around one or two finished runs, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from conf.build import ConfigError
from server_app.cli_common import CONSOLE, ERRORS, quiet_flower, run_folder
from server_app.cli_node import node_errors
from server_app.cli_runs import Output

if TYPE_CHECKING:
    from experiments.landscape import Floats, Landscape
    from server_app.cli_finished import FinishedRun

RHO = 0.02
"""Radius of the balls by default: FedRecGEL's own for the shared block."""


def landscape(
    run: Annotated[str, typer.Argument(help="A completed run: its name, or its folder.")],
    out: Annotated[Path, typer.Option(help="Folder for landscape.npz, .png and .svg.")],
    run2: Annotated[
        str | None, typer.Argument(help="Another, shown beside it on the same scale.")
    ] = None,
    users: Annotated[int, typer.Option(min=1, help="Users whose losses are averaged.")] = 200,
    grid: Annotated[int, typer.Option(help="Steps along each direction, odd.")] = 21,
    radius: Annotated[float, typer.Option(help="Farthest step, in norms of the filters.")] = 1.0,
    rho: Annotated[float, typer.Option(help="Radius of the balls of the sharpness.")] = RHO,
    seed: Annotated[int, typer.Option(min=0, help="Of users, samples and directions.")] = 0,
    output: Output = None,
) -> None:
    """Draw the training loss around a run's shared parameters, and tell how sharp it is.

    Two random directions, scaled filter by filter (Li et al., arXiv 1712.09913); the mean loss of
    a fixed sample of users with their own private parameters. Numbers: the highest rise of that
    loss within --rho by gradient ascent, the same of each user's own loss (mean), and the greatest
    eigenvalue of its Hessian. Surface and numbers are saved as landscape.json in the run's folder.
    """
    quiet_flower()
    from server_app.cli_finished import FinishedRun

    steps = _steps(radius, grid, rho)
    folders = [run_folder(name, output) for name in (run, run2) if name is not None]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError("the two runs are one and the same")
    draw = _drawing()
    with node_errors():
        opened = [FinishedRun.opened(folder) for folder in folders]
        found = _landscapes(opened, users, steps, rho, seed)
    for one, made in zip(opened, found, strict=True):
        made.save(one.folder)
    _write(out, found, draw)
    _print(found, out)


def _steps(radius: float, grid: int, rho: float) -> Floats:
    from experiments.landscape import grid_steps

    if not 0 < rho < math.inf:
        raise ConfigError(f"--rho must be positive, got {rho:g}")
    try:
        return grid_steps(radius, grid)
    except ValueError as error:
        raise ConfigError(f"--grid and --radius: {error}") from None


def _drawing() -> Callable[[list[Landscape], Path], None]:
    """What draws the figure; asked for before the work, so that a missing package ends it."""
    try:
        from experiments.figures import style
        from experiments.figures.surface import Surface, loss_landscape
    except ModuleNotFoundError as error:
        raise ConfigError(f"figures need {error.name}: pip install 'fedrecgel[report]'") from None

    def draw(found: list[Landscape], stem: Path) -> None:
        surfaces = [
            Surface(made.run, np.array(made.steps), np.array(made.losses), made.note)
            for made in found
        ]
        style.save(loss_landscape(surfaces), stem)

    return draw


def _landscapes(
    runs: list[FinishedRun], users: int, steps: Floats, rho: float, seed: int
) -> list[Landscape]:
    import torch
    from rich.progress import Progress

    from experiments.trained_users import draw_users, landscape_of, refuse_unsuited, same_question

    for run in runs:
        refuse_unsuited(run)
    same_question(runs)
    torch.set_num_threads(runs[0].config.engine.threads)  # as the run: sums are those of its nodes
    chosen_U = draw_users(runs, users, seed)
    with Progress(console=ERRORS, transient=True) as progress:
        task = progress.add_task("landscape", total=len(runs) * len(steps) ** 2)
        done = partial(progress.advance, task)
        return [landscape_of(run, chosen_U, steps, rho, seed, done) for run in runs]


def _write(
    out: Path, found: list[Landscape], draw: Callable[[list[Landscape], Path], None]
) -> None:
    from experiments.landscape import save_arrays

    out.mkdir(parents=True, exist_ok=True)
    save_arrays(out / "landscape.npz", found)
    draw(found, out / "landscape")


def _print(found: list[Landscape], out: Path) -> None:
    from experiments.sharpness import ASCENT_STEPS
    from server_app.tables import FittedTable, Row

    first, headings = found[0], ["round", "loss", "rise", "rise, each alone", "eigenvalue"]
    ball = f"within {first.sharpness.radius:g} of all shared parameters together"
    notes = [
        f"mean training loss of {first.users} users on {first.samples} samples",
        *(f"{made.run}: {made.trained} of them trained by its round" for made in found),
        f"rise: the highest {ball}, by {ASCENT_STEPS} steps of gradient ascent",
        "each alone: mean over users of the rise of the user's own loss",
        "eigenvalue: greatest of the Hessian by the shared parameters",
    ]
    rows = [Row([made.run], _cells(made)) for made in found]
    CONSOLE.print(FittedTable("Sharpness", ["run"], headings, rows, [notes]))
    CONSOLE.print(f"Figure and arrays: {out}", markup=False, highlight=False, soft_wrap=True)


def _cells(made: Landscape) -> list[str]:
    numbers = made.sharpness
    rises = [f"{numbers.rise:.3g}", f"{numbers.rise_alone:.3g}"]
    return [str(made.round), f"{made.loss:.4f}", *rises, f"{numbers.eigenvalue:.4g}"]
