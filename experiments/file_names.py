"""Names in the folder of a sweep, which writes them, and a report, which reads them."""

from __future__ import annotations

REFERENCES = "references"
"""Folder of the references of the splits."""
STAMP = "job.json"
"""In a run's folder: the digest of the data that the run is of."""
FAILED = ".failed.json"
"""After a job's label: why it failed."""
