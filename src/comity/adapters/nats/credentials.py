"""Credentials of NATS in a file: a `.creds` file (JWT and seed), or the seed of an nkey alone.

The file is read at each connection, so that one which was renewed counts without a restart; a
seed is decoded, signs what the server gave, and is kept nowhere.
"""

import base64
import binascii
import importlib
import re
from pathlib import Path
from typing import Any, Final

from comity.wire.errors import Misconfigured

_SEED: Final = re.compile(rb"^(SU[A-Z2-7]{56})\s*$", re.MULTILINE)
_TOKEN: Final = re.compile(
    rb"-----BEGIN NATS USER JWT-----\s+([A-Za-z0-9_.=-]+)\s+------END NATS USER JWT------"
)
_USER: Final = 20 << 3
_MOST: Final = 64 * 1024


class Credentials:
    """Raises Misconfigured at once where the file cannot serve."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._signing: Any = importlib.import_module(
                "cryptography.hazmat.primitives.asymmetric.ed25519"
            )
        except ModuleNotFoundError:
            raise Misconfigured(
                "credentials in a file need what signs with them: pip install cryptography"
            ) from None
        self.public_key()

    def __repr__(self) -> str:
        return f"<credentials in {self._file}>"

    def token(self) -> bytes | None:
        """The JWT, where the file has one."""
        found = _TOKEN.search(self._text())
        return None if found is None else found[1]

    def public_key(self) -> str:
        public = self._key().public_key().public_bytes_raw()
        body = bytes([_USER]) + public
        check = binascii.crc_hqx(body, 0).to_bytes(2, "little")
        return base64.b32encode(body + check).rstrip(b"=").decode()

    def signature(self, nonce: str) -> bytes:
        return base64.b64encode(self._key().sign(nonce.encode()))

    def _key(self) -> Any:
        found = _SEED.search(self._text())
        if found is None:
            raise self._useless()
        padded = found[1] + b"=" * (-len(found[1]) % 8)
        raw = base64.b32decode(padded)
        if binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
            raise self._useless()
        return self._signing.Ed25519PrivateKey.from_private_bytes(raw[2:34])

    def _text(self) -> bytes:
        try:
            with self._file.open("rb") as file:
                return file.read(_MOST)
        except OSError:
            raise self._useless() from None

    def _useless(self) -> Misconfigured:
        return Misconfigured(
            f"{self._file} holds no seed of a NATS user (it begins with SU): name the .creds file"
            " that `nsc generate creds` wrote, or a file with the seed alone, readable by us"
        )
