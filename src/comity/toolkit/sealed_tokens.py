"""Signed tokens that a client stores and returns to the gateway."""

import base64
import hashlib
import hmac
from typing import Final

import msgspec

_SIGN_BYTES: Final = 32
MAX_LENGTH: Final = 4096
_words = msgspec.json.Decoder(tuple[str, ...])


def seal_token(key: bytes, *words: str) -> str:
    """Return the words as one token that only a holder of the key can create."""
    said = msgspec.json.encode(words)
    return base64.urlsafe_b64encode(_sign(key, said) + said).decode()


def unseal_token(key: bytes, sealed: str) -> tuple[str, ...] | None:
    """Return the words of a token, or None if it was forged or changed."""
    if len(sealed) > MAX_LENGTH:
        return None
    try:
        raw = base64.urlsafe_b64decode(sealed.encode("ascii"))
    except ValueError:
        return None
    # Base64 has several spellings of the same bytes. Only the canonical one is valid.
    if base64.urlsafe_b64encode(raw).decode() != sealed:
        return None
    signature, said = raw[:_SIGN_BYTES], raw[_SIGN_BYTES:]
    if not hmac.compare_digest(signature, _sign(key, said)):
        return None
    return _words.decode(said)


def _sign(key: bytes, said: bytes) -> bytes:
    return hmac.digest(key, said, hashlib.sha256)
