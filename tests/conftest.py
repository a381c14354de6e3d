"""Fixtures that several test folders share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


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
