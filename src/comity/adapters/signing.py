"""Who signs a journal: an Ed25519 key in a file that nobody else can read."""

import importlib
import secrets
from pathlib import Path
from typing import Any, Final

from comity.adapters.secret_files import read_secret, write_secret
from comity.wire.errors import Misconfigured

_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64
_BEGINS: Final = "comity-journal-key-1:"


class Signer:
    """Signs for one node. `key` is the public key, as hexadecimal digits."""

    def __init__(self, secret: bytes) -> None:
        self._private = _ed25519().Ed25519PrivateKey.from_private_bytes(secret)
        self._key: str = self._private.public_key().public_bytes_raw().hex()

    @property
    def key(self) -> str:
        return self._key

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)

    def __repr__(self) -> str:
        return f"Signer({self._key!r})"


def load_or_make(path: Path) -> Signer:
    """The key in that file, which is made where there is none. Raises Misconfigured."""
    try:
        return Signer(_read(path) if path.exists() else _make(path))
    except OSError as problem:
        because = problem.strerror or type(problem).__name__
        raise Misconfigured(f"the key of the journal, {path}: {because}") from None


def verify(key: str, data: bytes, signature: bytes) -> bool:
    """Whether this was signed with the key of which this is the public half."""
    try:
        public = bytes.fromhex(key)
    except ValueError:
        return False
    if len(public) != _KEY_BYTES or len(signature) != _SIGNATURE_BYTES:
        return False
    ed25519 = _ed25519()
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (ValueError, importlib.import_module("cryptography.exceptions").InvalidSignature):
        return False
    return True


def _make(path: Path) -> bytes:
    """Create a key; where another process was first, its key is the one."""
    secret = secrets.token_bytes(_KEY_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_secret(path, f"{_BEGINS}{secret.hex()}\n".encode("ascii"), keep_existing=True)
    return _read(path)


def _read(path: Path) -> bytes:
    said = read_secret(path, "the key of the journal").decode("ascii", "replace")
    try:
        secret = bytes.fromhex(said.removeprefix(_BEGINS))
    except ValueError:
        secret = b""
    if not said.startswith(_BEGINS) or len(secret) != _KEY_BYTES:
        raise Misconfigured(f"{path} holds no key of a journal; name another file in [journal]")
    return secret


def _ed25519() -> Any:
    """Loaded by name, because it comes with the extras that keep a journal for good."""
    try:
        return importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    except ModuleNotFoundError:
        raise Misconfigured(
            "to sign a journal, or to look at its signatures, install what that needs: "
            "pip install 'comity[sqlite]'"
        ) from None
