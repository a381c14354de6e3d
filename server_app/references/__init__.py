"""Reference recommenders that see all training rows in one place, by name.

They are no strategies: nothing here is federated. Each has the file that ``METHODS`` names.
"""

from __future__ import annotations

from typing import Any

from server_app.references.base import Reference
from server_app.references.bpr import BPR
from server_app.references.ease import EASE
from server_app.references.ials import IALS
from server_app.references.item_knn import ItemKNN
from server_app.references.neumf import CentralNeuMF
from server_app.references.popularity import Popularity

METHODS: dict[str, type[Reference[Any]]] = {
    method.name: method for method in (Popularity, ItemKNN, EASE, IALS, BPR, CentralNeuMF)
}
"""In the order in which they are shown."""
