"""Encryption of webhook secrets with AES-GCM, so that a reader of the store cannot see them."""

import hashlib
import hmac
import secrets
from typing import Final

_NONCE: Final = 12
_PURPOSE: Final = b"secrets of webhooks"


class PepperSealer:
    """Encrypts with a key derived from the pepper, so that every node can decrypt."""

    def __init__(self, pepper: bytes) -> None:
        # Imported here because it loads slowly, and the SDK loads this module without using it.
        from cryptography.exceptions import InvalidTag

        # Imported here for the same reason.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._invalid_tag = InvalidTag
        self._cipher = AESGCM(hmac.digest(pepper, _PURPOSE, hashlib.sha256))

    def __repr__(self) -> str:
        return "Sealed()"

    def seal(self, secret: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._cipher.encrypt(nonce, secret, _PURPOSE)

    def unseal(self, sealed: bytes) -> bytes | None:
        """Return the plain text, or None if it was sealed with another key or changed."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], _PURPOSE)
        except (self._invalid_tag, ValueError):
            return None
