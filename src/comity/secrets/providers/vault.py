"""HashiCorp Vault and OpenBao: keys of the transit engine, and secrets of the KV engine."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from comity.config.secret_files import variable_text
from comity.errors import SECRETS_AWAY, Misconfigured, Unavailable
from comity.http.client.proxies import ProxySettings
from comity.secrets.providers.remote import (
    bad_answer,
    check_url,
    decode_base64,
    encode_base64,
    find_credentials,
    member_of,
    refusal,
    remote_key_id,
    send_json,
)

_PREFIX: Final = "vault:"


class _VaultClient:
    """Sends requests with the token of VAULT_TOKEN to the address of VAULT_ADDR."""

    def __init__(self, name: str, proxies: ProxySettings, environ: Mapping[str, str]) -> None:
        self._name = name
        self._proxies = proxies
        self._environ = environ
        address = environ.get("VAULT_ADDR", "")
        if not address:
            raise Misconfigured(f"{name}: set VAULT_ADDR to the URL of Vault")
        self._address = check_url(address, "VAULT_ADDR")

    async def send(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> tuple[int, dict[str, Any]]:
        # Read each time, because an agent of Vault renews the file of the token.
        token = await find_credentials(self._name, self._token)
        headers = {"x-vault-token": token, "x-vault-request": "true"}
        if namespace := self._environ.get("VAULT_NAMESPACE"):
            headers["x-vault-namespace"] = namespace
        return await send_json(
            self._name, method, f"{self._address}/v1/{quote(path)}", headers, body, self._proxies
        )

    def _token(self) -> str:
        token = variable_text("VAULT_TOKEN", self._environ)
        if not token:
            raise Unavailable(
                f"{self._name}: set VAULT_TOKEN or VAULT_TOKEN_FILE to a token", SECRETS_AWAY
            )
        return token


class VaultKeyService:
    """A key of the transit engine: `vault:ENGINE/KEY`."""

    def __init__(self, key: str, proxies: ProxySettings, environ: Mapping[str, str]) -> None:
        self.name = _PREFIX + key
        self.id = remote_key_id(self.name)
        self._mount, _, self._key = key.rpartition("/")
        if not self._mount or not self._key:
            raise Misconfigured(f"secrets.keys: {self.name} must be as vault:transit/comity")
        self._client = _VaultClient(self.name, proxies, environ)

    async def wrap(self, data_key: bytes) -> bytes:
        status, answer = await self._client.send(
            "POST",
            f"{self._mount}/encrypt/{self._key}",
            {"plaintext": encode_base64(data_key)},
        )
        if status != 200:
            raise refusal(self.name, status)
        found = member_of(answer, "data", "ciphertext")
        if not isinstance(found, str):
            raise bad_answer(self.name)
        return found.encode()

    async def unwrap(self, wrapped: bytes) -> bytes | None:
        status, answer = await self._client.send(
            "POST",
            f"{self._mount}/decrypt/{self._key}",
            {"ciphertext": wrapped.decode("latin-1")},
        )
        if status == 400:
            return None
        if status != 200:
            raise refusal(self.name, status)
        return decode_base64(member_of(answer, "data", "plaintext"), self.name)


class VaultSecretSource:
    """A secret of the KV engine, version 2: `vault:ENGINE/PATH`. Its members are the secrets."""

    def __init__(self, path: str, proxies: ProxySettings, environ: Mapping[str, str]) -> None:
        self.name = _PREFIX + path
        self._mount, _, self._path = path.partition("/")
        if not self._mount or not self._path:
            raise Misconfigured(f"secrets.sources: {self.name} must be as vault:secret/comity")
        self._client = _VaultClient(self.name, proxies, environ)

    async def read(self, name: str) -> str | None:
        status, answer = await self._client.send("GET", f"{self._mount}/data/{self._path}")
        if status == 404:
            return None
        if status != 200:
            raise refusal(self.name, status)
        found = member_of(answer, "data", "data", name)
        if found is not None and not isinstance(found, str):
            raise bad_answer(self.name)
        return found
