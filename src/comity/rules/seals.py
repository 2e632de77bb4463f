"""Words we give to a client and take back from it: it can carry them, but not make or change them.

A seal hides nothing. It says that these words were ours and are unaltered; whether they still hold
is for whoever unseals them to know.
"""

import base64
import hashlib
import hmac
from typing import Final

import msgspec

_SIGN_BYTES: Final = 32
LONGEST: Final = 4096
_words = msgspec.json.Decoder(tuple[str, ...])


def seal(key: bytes, *words: str) -> str:
    """The words as one text that only a holder of the key can have made."""
    said = msgspec.json.encode(words)
    return base64.urlsafe_b64encode(_sign(key, said) + said).decode()


def unseal(key: bytes, sealed: str) -> tuple[str, ...] | None:
    """The words, or None if anybody else made or changed them."""
    if len(sealed) > LONGEST:
        return None
    try:
        raw = base64.urlsafe_b64decode(sealed.encode("ascii"))
    except ValueError:
        return None
    # Base64 can be spelled in several ways, of which one is ours.
    if base64.urlsafe_b64encode(raw).decode() != sealed:
        return None
    signature, said = raw[:_SIGN_BYTES], raw[_SIGN_BYTES:]
    if not hmac.compare_digest(signature, _sign(key, said)):
        return None
    return _words.decode(said)


def _sign(key: bytes, said: bytes) -> bytes:
    return hmac.digest(key, said, hashlib.sha256)
