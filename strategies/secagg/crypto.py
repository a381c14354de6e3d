"""Keys, sealed shares and masks: X25519, HKDF-SHA256, ChaCha20-Poly1305, AES-256-CTR.

All from the package ``cryptography``; Shamir's shares are Flower's (over PyCryptodome). Flower's
own mask generator is not used: it folds a seed into 32 bits and draws from a Mersenne Twister, so
whoever tries all 2^32 seeds reads the mask.
"""

from __future__ import annotations

import os

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from strategies.secagg.fixed_point import UNSIGNED
from strategies.secagg.payload import Vectors

SEED_BYTES, NONCE_BYTES = 32, 12


class SecAggError(ValueError):
    """A step of the protocol that must not be made: one line that says why."""


def new_seed() -> bytes:
    """A fresh secret from the operating system's generator, in simulations too: masks cancel."""
    return os.urandom(SEED_BYTES)


def public_key(private: bytes) -> bytes:
    """The public half of a private key (32 bytes each)."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, other_public: bytes, context: str) -> bytes:
    """The secret (32 bytes) that two nodes share, bound to its use by ``context``.

    Raises:
        SecAggError: for a public key that is no key.

    """
    try:
        other = X25519PublicKey.from_public_bytes(other_public)
        secret = X25519PrivateKey.from_private_bytes(private).exchange(other)
    except ValueError as error:
        raise SecAggError(f"secure aggregation: a public key cannot be used ({error})") from error
    return derived(secret, context)


def derived(secret: bytes, context: str) -> bytes:
    """A key (32 bytes) of a secret for one use."""
    return HKDF(SHA256(), SEED_BYTES, salt=None, info=context.encode()).derive(secret)


def commitment(seed: bytes) -> bytes:
    """Hash of a seed: hides it, and shows whether it was put together rightly."""
    digest = Hash(SHA256())
    digest.update(b"fedrecgel secagg commitment" + seed)
    return digest.finalize()


def seal(key: bytes, plain: bytes, context: str) -> bytes:
    """Encrypted and authenticated together with ``context``."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plain, context.encode())


def unseal(key: bytes, sealed: bytes, context: str) -> bytes:
    """Inverse of :func:`seal`.

    Raises:
        SecAggError: for bytes that were changed, or sealed for another use.

    """
    try:
        nonce, text = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        return ChaCha20Poly1305(key).decrypt(nonce, text, context.encode())
    except (InvalidTag, ValueError) as error:
        raise SecAggError("secure aggregation: a sealed share was changed on its way") from error


def mask(seed: bytes, bits: int, lengths: tuple[int, int], context: str) -> Vectors:
    """Uniform vectors of ``lengths`` numbers modulo 2^bits and 2^64."""
    tensors, figures = lengths
    return Vectors(
        np.frombuffer(_stream(seed, context + "|tensors", tensors * bits // 8), UNSIGNED[bits]),
        np.frombuffer(_stream(seed, context + "|figures", figures * 8), UNSIGNED[64]),
    )


def _stream(seed: bytes, context: str, size: int) -> bytes:
    # A key of its own for each stream, so that the counter may start at zero.
    cipher = Cipher(algorithms.AES(derived(seed, context)), modes.CTR(bytes(16)))
    return cipher.encryptor().update(bytes(size))
