"""The figures of a split, drawn from its runs; why one cannot be drawn, in a line."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.arms import Arm, Split
from experiments.compare import Comparison
from experiments.costs import measured
from experiments.figures import style
from experiments.figures.communication import CommunicationCurve, accuracy_by_bytes
from experiments.figures.curves import LearningCurve, LearningCurves, learning_curves, means
from experiments.figures.sensitivity import Sensitivity, rho_sensitivity
from experiments.figures.surface import Surface, loss_landscape
from experiments.landscape import load_landscape
from experiments.report.by_user import grouped, stability
from experiments.report.no_data import NoDataError
from experiments.user_values import Values

CURVE = ("validation/full/ndcg@10", "test/full/ndcg@10", "validation/sampled/hr@10",
         "test/sampled/hr@10")  # fmt: skip
WORDS = {
    "validation/full/ndcg@10": "NDCG@10, whole catalogue, validation",
    "test/full/ndcg@10": "NDCG@10, whole catalogue, test",
    "validation/sampled/hr@10": "HR@10, sampled candidates, validation",
    "test/sampled/hr@10": "HR@10, sampled candidates, test",
}
RADII = {"rho_shared": "ρ_shared", "rho_private": "ρ_private"}


@dataclass(frozen=True)
class Drawn:
    """A figure as files."""

    slug: str
    caption: str
    files: dict[str, bytes]
    """``png`` and ``svg``."""

    @property
    def source(self) -> str:
        """The SVG as an address that holds it."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.files["svg"]).decode()


Maker = Callable[[Split, Comparison], tuple[Figure, str]]


def draw(split: Split, comparison: Comparison) -> tuple[list[Drawn], list[str]]:
    """The split's figures, and a line for each that cannot be made."""
    found, missing = list[Drawn](), list[str]()
    for name, maker in MAKERS.items():
        try:
            figure, caption = maker(split, comparison)
        except NoDataError as error:
            missing.append(f"No figure of {name}: {error}.")
            continue
        slug = f"{split.slug}-{name.replace(' ', '-')}"
        said = f"{caption} {split.dataset}, protocol {split.protocol}."
        found.append(Drawn(slug, said, style.encoded(figure)))
    return found, missing


def _measure(split: Split) -> str:
    """The first measure that every run's records have at two rounds or more of some run."""
    runs = [run for arm in split.arms for run in arm.runs]
    for name in CURVE:
        points = [measured(run, (name,)) for run in runs]
        if all(points) and any(len(of) > 1 for of in points):
            return name
    raise NoDataError("no measure was evaluated in all runs, and at two rounds or more of one")


def _popularity(comparison: Comparison, measure: str) -> float | None:
    return comparison.popularity.mean(measure) if comparison.popularity else None


def _curve(arm: Arm, measure: str) -> tuple[list[int], Values]:
    """Rounds (E), and values of each seed at each of them (N, E)."""
    points = [measured(run, (measure,)) for run in arm.runs]
    rounds = sorted({round_ for of in points for round_ in of})
    return rounds, np.array([[of.get(round_, np.nan) for round_ in rounds] for of in points])


def curves(split: Split, comparison: Comparison) -> tuple[Figure, str]:
    """Measure against rounds, of arms with several evaluated rounds."""
    measure = _measure(split)
    drawn = []
    for arm in split.arms:
        rounds, values_NE = _curve(arm, measure)
        drawn.append(LearningCurve(arm.label, np.array(rounds, dtype=np.int64), values_NE))
    data = LearningCurves(WORDS[measure], drawn, _popularity(comparison, measure))
    return learning_curves(data), f"{WORDS[measure]} by round; the band goes over seeds."


def communication(split: Split, comparison: Comparison) -> tuple[Figure, str]:
    """Measure against bytes a user, mean over the seeds that were evaluated in the round."""
    measure = _measure(split)
    drawn = []
    for arm in split.arms:
        rounds, values_NE = _curve(arm, measure)
        bytes_NE = np.array([_cumulative(run.records, rounds) for run in arm.runs])
        bytes_E, values_E = means(bytes_NE), means(values_NE)
        if (bytes_E > 0).all():
            drawn.append(CommunicationCurve(arm.label, bytes_E / split.num_users, values_E))
    if not drawn:
        raise NoDataError("the runs' records hold no traffic")
    figure = accuracy_by_bytes(drawn, WORDS[measure], _popularity(comparison, measure))
    return figure, f"{WORDS[measure]} by bytes up and down until the round, for each user."


def _cumulative(records: Sequence[Mapping[str, Any]], rounds: list[int]) -> list[float]:
    """Bytes until each of the rounds; NaN for a round that the run did not reach."""
    sums, total = dict[int, float](), 0.0
    for record in records:
        total += record["bytes_up"] + record["bytes_down"]
        sums[record["round"]] = total
    return [sums.get(round_, np.nan) for round_ in rounds]


def sensitivity(split: Split, comparison: Comparison) -> tuple[Figure, str]:
    """Figure against each radius, of arms that differ in nothing else."""
    figure_name = comparison.figures[-1] if comparison.figures else ""
    series = [one for radius in RADII for one in _series(split, radius, figure_name)]
    if not series:
        raise NoDataError("no two arms differ in a radius alone")
    words = WORDS.get(figure_name, figure_name)
    figure = rho_sensitivity(series, words, _popularity(comparison, figure_name))
    return figure, f"{words} by perturbation radius, mean ± sd over seeds."


def _series(split: Split, radius: str, figure: str) -> Iterator[Sensitivity]:
    groups = dict[str, list[tuple[float, Arm]]]()
    for arm in split.arms:
        key = f"strategy.sam.{radius}"
        rest = " ".join(part for part in arm.label.split() if not part.startswith(f"{radius}="))
        if key in arm.settings and rest != arm.label:
            groups.setdefault(rest, []).append((float(arm.settings[key]), arm))
    for rest, of in groups.items():
        if len(of) < 2:
            continue
        of.sort(key=lambda pair: pair[0])
        seeds = max(len(arm.runs) for _, arm in of)
        values = np.full((len(of), seeds), np.nan)
        for row, (_, arm) in zip(values, of, strict=True):
            row[: len(arm.runs)] = [run.result.metrics.get(figure, np.nan) for run in arm.runs]
        yield Sensitivity(RADII[radius], np.array([rho for rho, _ in of]), values, rest)


def landscapes(split: Split, comparison: Comparison) -> tuple[Figure, str]:
    """The first seed with a landscape of each arm, where one was made."""
    surfaces = []
    for arm in split.arms:
        saved = [(run, load_landscape(run.result.folder)) for run in arm.runs]
        made = [(run, one) for run, one in saved if one is not None]
        if made:
            run, one = made[0]
            label = f"{arm.label}, seed {run.seed}"
            surfaces.append(Surface(label, np.array(one.steps), np.array(one.losses), one.note))
    if not surfaces:
        raise NoDataError("no run has a landscape.json (fedrecgel landscape)")
    return loss_landscape(surfaces), "Training loss around the shared parameters."


MAKERS: dict[str, Maker] = {
    "learning curves": curves,
    "communication": communication,
    "radii": sensitivity,
    "groups": grouped,
    "item stability": stability,
    "landscape": landscapes,
}
"""By name, which is also part of the file's."""
