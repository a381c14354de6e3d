"""``fedrecgel keys``: a Paillier key pair for ``strategy.encryption=paillier``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conf.build import ConfigError
from server_app.cli_common import CONSOLE
from server_app.key_files import PRIVATE, PUBLIC, write_new
from strategies.paillier_keys import (
    KEY_BITS,
    PRIVATE_FILE,
    PUBLIC_FILE,
    check_bits,
    new_key_pair,
)


def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the two files.")],
    bits: Annotated[int, typer.Option(min=256, help="Length of the modulus.")] = KEY_BITS,
    allow_weak_key: Annotated[
        bool, typer.Option("--allow-weak-key", help="Accept fewer than 2048 bits, for trying.")
    ] = False,
) -> None:
    """Make a Paillier key pair: public.json for the server, private.json for the nodes alone.

    Files that are there stay: ciphertexts of a run can be read with its own key only.
    """
    try:
        check_bits(bits, allow_weak_key)
        made = new_key_pair(bits)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    files = ((PRIVATE_FILE, made[1], PRIVATE), (PUBLIC_FILE, made[0], PUBLIC))
    for name, _, _ in files:
        if (folder / name).exists():
            raise ConfigError(f"{folder / name} is there already; choose another folder")
    for name, text, mode in files:
        write_new(folder / name, text.encode(), mode)
    for what, name in (("server and nodes", PUBLIC_FILE), ("nodes alone", PRIVATE_FILE)):
        CONSOLE.print(f"{what}: {folder / name}", markup=False, highlight=False, soft_wrap=True)
