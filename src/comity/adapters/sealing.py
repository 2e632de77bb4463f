"""Hides the secrets of webhooks from whoever reads a store without its pepper: AES in GCM."""

import hashlib
import hmac
import importlib
import secrets
from typing import Any, Final

from comity.wire.errors import Misconfigured

_NONCE: Final = 12
_PURPOSE: Final = b"secrets of webhooks"


class Sealed:
    """By a key that follows from the pepper, so that every node can read what another sealed."""

    def __init__(self, pepper: bytes) -> None:
        try:
            ciphers: Any = importlib.import_module("cryptography.hazmat.primitives.ciphers.aead")
            self._tampered: Any = importlib.import_module("cryptography.exceptions").InvalidTag
        except ModuleNotFoundError:
            raise Misconfigured(
                "to keep webhooks, install what that needs: pip install 'comity[sqlite]'"
            ) from None
        self._cipher = ciphers.AESGCM(hmac.digest(pepper, _PURPOSE, hashlib.sha256))

    def __repr__(self) -> str:
        return "Sealed()"

    def seal(self, secret: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._cipher.encrypt(nonce, secret, _PURPOSE)

    def unseal(self, sealed: bytes) -> bytes | None:
        try:
            return self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], _PURPOSE)
        except (self._tampered, ValueError):
            return None


class Unsealed:
    """For what is only ever in memory."""

    def seal(self, secret: bytes) -> bytes:
        return secret

    def unseal(self, sealed: bytes) -> bytes | None:
        return sealed
