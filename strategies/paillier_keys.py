"""Key pairs of Paillier's cryptosystem in files: the server reads one, nodes read both.

``public.json`` holds the modulus n, ``private.json`` its factors, as decimal text in JSON.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PUBLIC_FILE, PRIVATE_FILE = "public.json", "private.json"
KEY_BITS = 2048
"""Length of the modulus: what factoring records and common recommendations allow for."""


def require_phe() -> None:
    """Raise ValueError where the package that does the arithmetic is missing."""
    if find_spec("phe") is None:
        raise ValueError(
            "encryption=paillier needs the package phe: pip install 'fedrecgel[paillier]'"
        )


def new_key_pair(bits: int) -> tuple[str, str]:
    """Texts of the public and of the private file of a new key pair."""
    require_phe()
    import phe

    public, private = phe.generate_paillier_keypair(n_length=bits)
    return (
        json.dumps({"n": str(public.n)}) + "\n",
        json.dumps({"p": str(private.p), "q": str(private.q)}) + "\n",
    )


def read_public(folder: Path, allow_weak: bool) -> Any:
    """The public key of a folder.

    Raises:
        ValueError: for a file that is missing or malformed, or a modulus that is too short.

    """
    import phe

    (n,) = _numbers(folder / PUBLIC_FILE, ("n",))
    check_bits(n.bit_length(), allow_weak)
    return phe.PaillierPublicKey(n)


def read_private(folder: Path, public: Any) -> Any:
    """The private key of a folder, which must belong to the public one.

    Raises:
        ValueError: for a file that is missing or malformed, or another pair's.

    """
    import phe

    p, q = _numbers(folder / PRIVATE_FILE, ("p", "q"))
    if p * q != public.n or p == q:
        raise ValueError(f"{folder / PRIVATE_FILE} does not belong to {PUBLIC_FILE} beside it")
    return phe.PaillierPrivateKey(public, p, q)


def check_bits(bits: int, allow_weak: bool) -> None:
    """Raise ValueError for a key of less than 2048 bits, unless weak keys are allowed."""
    if bits < KEY_BITS and not allow_weak:
        raise ValueError(
            f"a Paillier key of {bits} bits is weak: use {KEY_BITS}, or allow_weak_key for trying"
        )


def _numbers(path: Path, names: tuple[str, ...]) -> list[int]:
    try:
        content = json.loads(path.read_text())
        return [int(content[name]) for name in names]
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; fedrecgel keys {path.parent} makes a pair") from None
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path} is not a key file as fedrecgel keys makes it") from None
