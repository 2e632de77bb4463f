"""New API keys: drawn by lot, shown once, and kept only as what recognises them."""

import secrets
from dataclasses import replace
from typing import Final

from comity.rules import keys
from comity.wire.parties import Key

ENVIRONMENT: Final = "live"


def mint(pepper: bytes, wanted: Key, environment: str = ENVIRONMENT) -> tuple[str, Key]:
    """The key itself, for its holder alone, and the record of it; `wanted` says all the rest."""
    key_id, secret = _draw(keys.ID_LENGTH), _draw(keys.SECRET_LENGTH)
    whole = keys.write(environment, key_id, secret)
    return whole, replace(wanted, id=key_id, mac=keys.mac(pepper, whole.encode()))


def _draw(length: int) -> str:
    return "".join(secrets.choice(keys.ALPHABET) for _ in range(length))
