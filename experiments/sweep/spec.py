"""What a sweep asks for: products of overrides, from the command line or a yaml file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from conf.build import ConfigError, build
from conf.compose import GROUPS, expand, options

DEFAULTS = ("evaluation.user_ranks=true", "evaluation.item_drift=true")
"""What a sweep records beyond a single run; any of it can be overridden."""

REFERENCES = ("popularity", "item_knn", "ease", "ials")
"""References that are fitted in seconds to minutes."""


@dataclass(frozen=True)
class Select:
    """Settings chosen for each arm by validation, on seeds that a report then drops.

    An arm is what is left of a job's settings without ``tune`` and the seed. The runs of
    ``seeds`` are made first; the other seeds are made of each arm's chosen setting alone.
    """

    tune: tuple[str, ...]
    """Keys whose values are compared within an arm."""
    seeds: tuple[int, ...]
    """Seeds over which ``by`` is averaged; figures are reported of the other seeds."""
    by: str = "validation/full/ndcg@10"


@dataclass(frozen=True)
class Spec:
    """A sweep as asked for; the jobs are the union of its products."""

    title: str
    sweeps: tuple[tuple[str, ...], ...]
    """Products in Hydra's multirun grammar."""
    fixed: tuple[str, ...] = ()
    """Overrides of every product."""
    references: tuple[str, ...] = REFERENCES
    select: Select | None = None
    against: tuple[str, ...] = ()
    """Settings ``key=value`` of the arm that a report compares every other one with."""

    def products(self) -> list[list[str]]:
        """The overrides of each job, product after product; equal ones are not merged."""
        return [job for sweep in self.sweeps for job in expand(with_more(self.fixed, sweep))]

    def with_overrides(self, given: Sequence[str]) -> Spec:
        """The sweep with overrides that replace those of the same key in every product."""
        given = normalised(given)
        sweeps = tuple(tuple(with_more(sweep, given)) for sweep in self.sweeps)
        return dataclasses.replace(self, fixed=tuple(without(self.fixed, given)), sweeps=sweeps)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--also {text!r} cannot be read: {error}") from None


def spec_of(arguments: Sequence[str], also: Sequence[str]) -> tuple[Spec, str]:
    """The sweep of a command line, and a name that is the same for the same sweep.

    ``also``: further products, each a text of overrides; what the arguments do not sweep over
    holds for them too.

    Raises:
        ConfigError: one line.

    """
    named = [text for text in arguments if "=" not in text]
    given = normalised(text for text in arguments if "=" in text)
    if len(named) > 1:
        raise ConfigError(f"one sweep file at a time, got {' '.join(named)}")
    if named:
        spec, name = read_spec(named[0])
        spec, name = spec.with_overrides(given), "-".join([name, *_choices(given)])
    else:
        spec, name = Spec("", (tuple(given),)), ""
    common = [text for text in given if len(expand([text])) == 1]
    more = [tuple(with_more(common, normalised(_words(text)))) for text in also]
    spec = dataclasses.replace(spec, sweeps=(*spec.sweeps, *more))
    return spec, name or _derived_name(spec)


def read_spec(word: str) -> tuple[Spec, str]:
    """A sweep from a yaml file, or by its name in ``conf/sweep``; and its name.

    Raises:
        ConfigError: no such sweep, or not one.

    """
    if word in options("sweep"):
        name, text = word, (files("conf") / "sweep" / f"{word}.yaml").read_text("utf-8")
    elif (path := Path(word)).is_file():
        name, text = path.stem, path.read_text("utf-8")
    else:
        raise ConfigError(
            f"there is no sweep {word!r}: give overrides key=v1,v2, a yaml file, or one of "
            + ", ".join(options("sweep"))
        )
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{word}: {' '.join(str(error).split())}") from None
    spec = build(Spec, values, "")
    sweeps = tuple(tuple(normalised(sweep)) for sweep in spec.sweeps)
    return dataclasses.replace(spec, sweeps=sweeps, fixed=tuple(normalised(spec.fixed))), name


def normalised(overrides: Iterable[str]) -> list[str]:
    """``seeds=0,1,2``, brackets or not, as ``fedrecgel run`` has it: the same as ``seed=0,1,2``."""
    return [_seed(text) if key_of(text) == "seeds" else text for text in overrides]


def _seed(text: str) -> str:
    value = text.partition("=")[2]
    return f"seed={value[1:-1] if value.startswith('[') and value.endswith(']') else value}"


def key_of(override: str) -> str:
    """The key of an override, without Hydra's signs."""
    return override.partition("=")[0].lstrip("+")


def with_more(overrides: Sequence[str], more: Sequence[str]) -> list[str]:
    """``overrides`` and then ``more``, which replace those of the same key."""
    return [*without(overrides, more), *more]


def without(overrides: Sequence[str], others: Sequence[str]) -> list[str]:
    """``overrides`` of keys that ``others`` do not have."""
    keys = {key_of(text) for text in others}
    return [text for text in overrides if key_of(text) not in keys]


def _choices(given: Sequence[str]) -> list[str]:
    """Groups that were chosen: runs of another experiment or data set are another sweep."""
    chosen = [text for text in given if key_of(text) in (*GROUPS, "experiment")]
    return [re.sub(r"[^A-Za-z0-9._-]+", "_", text.partition("=")[2]) for text in chosen]


def _derived_name(spec: Spec) -> str:
    swept = [key_of(text) for sweep in spec.sweeps for text in sweep if len(expand([text])) > 1]
    words = [key.rpartition(".")[2] for key in dict.fromkeys(swept)] or ["one"]
    digest = hashlib.sha256(json.dumps(spec.sweeps).encode()).hexdigest()[:8]
    return re.sub(r"[^A-Za-z0-9._-]+", "_", f"sweep-{'-'.join(words)[:60]}-{digest}")
