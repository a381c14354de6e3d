"""Where a node computes: ``engine.device``. Messages and private rows stay on the CPU."""

from __future__ import annotations

import torch

from models.types import Tensors, Update


class DeviceError(RuntimeError):
    """The configured device is not there; the text says what to change."""


def device_of(setting: str) -> torch.device:
    """The device of ``engine.device``: ``cpu``, ``cuda``, or ``auto`` for cuda where it is there.

    Raises:
        DeviceError: for ``cuda`` where torch finds none.

    """
    found = torch.cuda.is_available()
    if setting == "cuda" and not found:
        raise DeviceError(
            "engine.device=cuda, but torch finds no GPU it can use here: choose engine.device=cpu "
            "or auto, or install a torch with CUDA and its driver"
        )
    return torch.device("cuda" if found and setting != "cpu" else "cpu")


def moved(tensors: Tensors, device: torch.device) -> Tensors:
    """The tensors on a device; those that are there already are the same objects."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def on_cpu(update: Update) -> Update:
    """An update as messages carry it."""
    cpu, rows = torch.device("cpu"), update.row_weights
    own = None if rows is None else moved(rows, cpu)
    return Update(moved(update.tensors, cpu), update.weight, own)
