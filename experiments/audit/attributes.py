"""Whether uploads of single users tell their sex, age or occupation."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from conf.build import ConfigError
from experiments.audit.upload import Floats
from models.rng import Role, derive_rng
from models.types import IntArray

FOLDS = 10
RIDGE = 1.0
"""In mean squared lengths of a user's features."""
FOLDS_STREAM = 1
AGES = (25, 35, 50)
"""Bounds of the age bands."""


@dataclass(frozen=True)
class AttributeScore:
    """Accuracy over users by cross-validation beside that of the most frequent value."""

    attribute: str
    users: int
    classes: int
    accuracy: float
    error: float
    """Standard error over users, of the accuracy."""
    majority: float

    def as_json(self) -> dict[str, object]:
        """For audit.json."""
        return asdict(self)


def read_attributes(path: Path) -> dict[str, dict[str, str]]:
    """By attribute and raw user id: values of a RecBole ``.user`` file; age in bands.

    Raises:
        ConfigError: for a file without users or attributes.

    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
    except OSError as error:
        raise ConfigError(f"--attributes {path}: {error.strerror}") from None
    names = {key.split(":")[0]: key for key in rows[0]} if rows else {}
    wanted = [n for n in ("gender", "age", "occupation") if n in names]
    if "user_id" not in names or not wanted:
        raise ConfigError(f"--attributes {path}: needs user_id and gender, age or occupation")
    found: dict[str, dict[str, str]] = {}
    for name in wanted:
        values = {row[names["user_id"]]: row[names[name]] for row in rows}
        found[name] = {u: _band(v) for u, v in values.items()} if name == "age" else values
    return found


def cross_validated(
    attribute: str, features_UX: Floats, values_U: Sequence[str], seed: int
) -> AttributeScore:
    """A ridge classifier, one against the rest, on standardised features, over ten folds.

    Raises:
        ConfigError: for fewer users than folds.

    """
    names, classes_U = np.unique(np.array(values_U), return_inverse=True)
    if len(values_U) < FOLDS:
        raise ConfigError(f"attributes need {FOLDS} users at least, got {len(values_U)}")
    order = derive_rng(seed, Role.AUDIT, FOLDS_STREAM).permutation(len(values_U))
    right_U = np.zeros(len(values_U), dtype=bool)
    for fold in range(FOLDS):
        test = order[fold::FOLDS]
        train = np.setdiff1d(order, test)
        said = _classified(features_UX[train], classes_U[train], features_UX[test], len(names))
        right_U[test] = said == classes_U[test]
    share = float(right_U.mean())
    return AttributeScore(
        attribute,
        len(values_U),
        len(names),
        share,
        float(np.sqrt(share * (1 - share) / len(values_U))),
        float(np.bincount(classes_U).max() / len(values_U)),
    )


def _classified(train_UX: Floats, classes_U: IntArray, test_UX: Floats, count: int) -> IntArray:
    """Classes (U,) of the test users; solved over users, as these are fewer than features."""
    middle, spread = train_UX.mean(0), train_UX.std(0)
    scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
    train, test = (train_UX - middle) * scale, (test_UX - middle) * scale
    targets_UC = np.eye(count)[classes_U]
    means_C = targets_UC.mean(0)
    gram = train @ train.T
    gram[np.diag_indices_from(gram)] += RIDGE * max(float(np.trace(gram)) / len(gram), 1e-300)
    scores = test @ (train.T @ np.linalg.solve(gram, targets_UC - means_C)) + means_C
    found: IntArray = scores.argmax(1)
    return found


def _band(age: str) -> str:
    return str(int(np.searchsorted(AGES, int(age), side="right")))
