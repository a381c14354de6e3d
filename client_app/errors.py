"""The error of everything that concerns data on a node."""

from __future__ import annotations


class DataError(ValueError):
    """A data file, its description or the data cache is unusable; the message is one line."""
