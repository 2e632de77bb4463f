"""Keys and secrets on this machine: files, variables, the keyring of the system, the pepper."""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from comity.config.secret_files import read_secret, variable_text
from comity.errors import SECRETS_AWAY, Misconfigured, Unavailable
from comity.secrets.model import KEY_ID_BYTES, NONCE_BYTES
from comity.secrets.providers.remote import find_credentials, require_extra

MIN_KEY_BYTES: Final = 32
_WRAPPING: Final = b"comity key that wraps data keys"
_KEY_ID: Final = b"comity id of a key"


class LocalKeyService:
    """A key in the memory of this process, derived from the text of a key or from the pepper."""

    def __init__(self, name: str, material: bytes) -> None:
        self.name = name
        self.id = hmac.digest(material, _KEY_ID, hashlib.sha256)[:KEY_ID_BYTES].hex()
        self._key = hmac.digest(material, _WRAPPING, hashlib.sha256)
        self._cipher: Any = None

    def __repr__(self) -> str:
        return f"LocalKeyService({self.name!r})"

    async def wrap(self, data_key: bytes) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._open_cipher().encrypt(nonce, data_key, _WRAPPING)

    async def unwrap(self, wrapped: bytes) -> bytes | None:
        # Imported here because it loads slowly, and not every process decrypts.
        from cryptography.exceptions import InvalidTag

        try:
            found: bytes = self._open_cipher().decrypt(
                wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], _WRAPPING
            )
        except (InvalidTag, ValueError):
            return None
        return found

    def _open_cipher(self) -> Any:
        if self._cipher is None:
            # Imported here for the same reason.
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            self._cipher = AESGCM(self._key)
        return self._cipher


def read_file_key(path: str) -> LocalKeyService:
    """Return the key in a file. Raises Misconfigured if other users can read the file."""
    return _checked_key(f"file:{path}", read_secret(path, "secrets.keys"))


def read_variable_key(variable: str, environ: Mapping[str, str]) -> LocalKeyService:
    """Return the key in a variable, or in the file that NAME_FILE names."""
    found = variable_text(variable, environ)
    if not found:
        raise Misconfigured(f"secrets.keys: the variable {variable} is not set; set it to a key")
    return _checked_key(f"env:{variable}", found.strip().encode())


def read_keyring_key(place: str) -> LocalKeyService:
    """Return the key in the keyring of the system. `place` is SERVICE/NAME."""
    service, _, name = place.rpartition("/")
    if not service or not name:
        raise Misconfigured(f"secrets.keys: keyring:{place} must be as keyring:comity/key")
    require_extra(f"keyring:{place}", "keyring", "keyring")
    try:
        found = _keyring_text(service, name)
    except Exception as problem:
        # Each keyring has errors of its own.
        raise Misconfigured(
            f"keyring:{place}: the keyring cannot be read ({type(problem).__name__})"
        ) from None
    if not found:
        raise Misconfigured(
            f"keyring:{place}: there is no such key; add it with `keyring set {service} {name}`"
        )
    return _checked_key(f"keyring:{place}", found.strip().encode())


def _checked_key(name: str, material: bytes) -> LocalKeyService:
    if len(material) < MIN_KEY_BYTES:
        raise Misconfigured(
            f"secrets.keys: {name} has fewer than {MIN_KEY_BYTES} bytes; make a key with "
            "`openssl rand -base64 32`"
        )
    return LocalKeyService(name, material)


def _keyring_text(service: str, name: str) -> str | None:
    # Imported here because the package is an extra, and loads slowly.
    import keyring

    return keyring.get_password(service, name)


class FileSecretSource:
    """The files of one folder, of which each holds the secret of its name: `file:FOLDER`."""

    def __init__(self, folder: str) -> None:
        self.name = f"file:{folder}"
        self._folder = Path(folder).expanduser()

    async def read(self, name: str) -> str | None:
        return await asyncio.to_thread(self._read, name)

    def _read(self, name: str) -> str | None:
        file = self._folder / name
        try:
            if name.startswith(".") or not file.exists():
                return None
            return read_secret(file, f"the secret {name}").decode()
        except UnicodeDecodeError:
            raise Misconfigured(f"the secret {name}: the file is not UTF-8") from None
        except OSError as problem:
            raise Misconfigured(f"the secret {name}: {problem.strerror} in {self.name}") from None


class EnvironmentSecretSource:
    """The variables of this process, and the files that `NAME_FILE` variables name."""

    name = "env"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    async def read(self, name: str) -> str | None:
        return await asyncio.to_thread(variable_text, name, self._environ)


class KeyringSecretSource:
    """The entries of one service in the keyring of the system: `keyring:SERVICE`."""

    def __init__(self, service: str) -> None:
        self.name = f"keyring:{service}"
        require_extra(self.name, "keyring", "keyring")
        self._service = service

    async def read(self, name: str) -> str | None:
        found = await find_credentials(self.name, lambda: _keyring_text(self._service, name))
        if found is not None and "\0" in found:
            raise Unavailable(f"{self.name}: the secret {name} holds a NUL", SECRETS_AWAY)
        return found
