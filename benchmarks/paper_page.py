"""The page docs/paper.md as sections: one an experiment, known by its line ``make NAME``."""

from __future__ import annotations

import re
from collections.abc import Mapping

ORDER = (
    "paper_filmtrust",
    "paper_lastfm_2k",
    "paper_lastfm_2k_listening",
    "paper_amazon_video",
    "paper_qb_article",
    "paper_qb_article_subset",
    "ablation",
    "rho",
    "landscape",
    "does_sam_help",
    "does_sam_help_filmtrust",
)
"""Experiments in the order of the page."""
COMMAND = re.compile(r"^`make ([a-z0-9-]+)`$", re.MULTILINE)


def page(head: str, sections: Mapping[str, str]) -> str:
    """The whole text, experiments in their order."""
    names = sorted(sections, key=ORDER.index)
    return "\n".join([head.rstrip("\n") + "\n", *(sections[n].rstrip("\n") + "\n" for n in names)])


def kept(text: str) -> dict[str, str]:
    """The sections of a page by their experiment, which the line ``make NAME`` names.

    Raises:
        ValueError: for a section that has no such line, or whose experiment has no place on the
            page or a section already.

    """
    found = dict[str, str]()
    for part in re.split(r"(?m)^(?=## )", text)[1:]:
        title, command = part.splitlines()[0], COMMAND.search(part)
        if command is None:
            raise ValueError(f"no `make …` in the section {title!r}")
        name = placed(command[1].replace("-", "_"))
        if name in found:
            raise ValueError(f"a second section of {name}: {title!r}")
        found[name] = part
    return found


def placed(name: str) -> str:
    """The name of an experiment that has its place.

    Raises:
        ValueError: for any other name.

    """
    if name not in ORDER:
        raise ValueError(f"{name!r} has no place on the page, which has {', '.join(ORDER)}")
    return name
