"""Fixtures that several test folders share."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent

# A loaded machine is no defect, and CI shall see the same examples at every run.
hypothesis.settings.register_profile("fedrecgel", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("fedrecgel")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Sums are reproducible for a fixed thread count."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with the public datasets; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("FEDRECGEL_DATA", ROOT.parent / "shared" / "data")).resolve()
    if not folder.is_dir():
        pytest.skip("the public datasets are not here: set FEDRECGEL_DATA to their folder")
    return folder
