"""What a reference recommender is: one that sees all training rows in one place.

A reference knows nothing of nodes, files or protocols: it gets a matrix and gives scores.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from torch import Tensor

from models.types import FloatArray, IntArray
from server_app.errors import ServerError

if TYPE_CHECKING:  # an optional dependency
    from scipy.sparse import csr_array

EXTRA = "references"
INSTALL = f"pip install fedrecgel[{EXTRA}]"

Scorer = Callable[[IntArray], Tensor]
"""Users (U,) to their scores of all items (U, I); higher is better, none is NaN."""


@dataclass(frozen=True)
class LabelledPairs:
    """Samples of all users in one epoch: ``labels_S`` is 1.0 for a positive, else 0.0."""

    users_S: IntArray
    items_S: IntArray
    labels_S: FloatArray


Draw = Callable[[int, int, int], LabelledPairs]
"""Seed, epoch (from 1) and negatives a positive to the samples of that epoch."""


class UnavailableError(ServerError):
    """A reference cannot be fitted here; the message says what it would take."""


class MissingExtraError(UnavailableError):
    """A package of the extra is not installed."""


@dataclass(frozen=True)
class NoSettings:
    """Of a method that has none."""


Settings = TypeVar("Settings")


class Reference(ABC, Generic[Settings]):
    """One method with its settings; ``draw`` is there for those that train on sampled negatives.

    A method is a subclass in a file of its own, listed in ``METHODS`` of this package.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    """The method and its source."""
    Config: ClassVar[type]
    """Frozen dataclass of the settings, all with defaults."""
    grid: ClassVar[Sequence[Any]] = ()
    """Settings that ``--tune`` chooses from; empty: there is nothing to choose."""

    def __init__(self, config: Settings, draw: Draw) -> None:
        self.config = config
        self.draw = draw

    @property
    def packages(self) -> tuple[str, ...]:
        """Modules of the extra that these settings need."""
        return ("scipy",)

    @property
    def implementation(self) -> str:
        """Whose code computes, with its version where that is another project's."""
        return "own"

    @abstractmethod
    def fit(self, train_UI: csr_array, seed: int) -> Scorer:
        """Fit to the numbers of training rows (U, I) of every user and item.

        The matrix has float64 data and sorted indices, without explicit zeros; an entry above 1
        is a pair that the protocol keeps repeats of. It must not be changed.

        Raises:
            UnavailableError: when this machine cannot do it.

        """

    def check_installed(self) -> None:
        """Raise MissingExtraError when a package is missing."""
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                raise MissingExtraError(f"not installed: {INSTALL} ({self.name} needs {package})")


class ImplicitOrOwn(Reference[Settings]):
    """A method that the library ``implicit`` has, and this project too; a setting says which."""

    @property
    def packages(self) -> tuple[str, ...]:
        """The library only where it is asked for."""
        return ("scipy", "implicit") if self._by_implicit else ("scipy",)

    @property
    def implementation(self) -> str:
        """The library with its version, or ours."""
        return f"implicit {version('implicit')}" if self._by_implicit else "own (torch)"

    @property
    def _by_implicit(self) -> bool:
        config: Any = self.config
        return bool(config.implementation == "implicit")


def binary(train_UI: csr_array) -> csr_array:
    """The same pairs, each counted once."""
    once_UI = train_UI.copy()
    once_UI.data[:] = 1.0
    return once_UI
