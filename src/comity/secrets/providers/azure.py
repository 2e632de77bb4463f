"""Azure Key Vault: its keys and its secrets. Tokens come from azure-identity."""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

from comity.errors import Misconfigured
from comity.http.client.proxies import ProxySettings
from comity.secrets.providers.remote import (
    bad_answer,
    check_url,
    find_credentials,
    member_of,
    refusal,
    remote_key_id,
    require_extra,
    send_json,
)

_PREFIX: Final = "azure:"
_SCOPE: Final = "https://vault.azure.net/.default"
_VERSION: Final = "api-version=7.4"
_KEY: Final = re.compile(r"(https?://[^/]+)/keys/[0-9A-Za-z-]{1,127}", re.ASCII)
_ALGORITHM: Final = "RSA-OAEP-256"


class _AzureClient:
    """Sends requests with a token of the default credential of Azure."""

    def __init__(self, name: str, proxies: ProxySettings) -> None:
        require_extra(name, "azure.identity", "azure")
        self._name = name
        self._proxies = proxies
        self._credential: Any = None

    async def send(
        self, method: str, url: str, body: Mapping[str, object] | None = None
    ) -> tuple[int, dict[str, Any]]:
        token = await find_credentials(self._name, self._token)
        headers = {"authorization": f"Bearer {token}"}
        return await send_json(
            self._name, method, f"{url}?{_VERSION}", headers, body, self._proxies
        )

    def _token(self) -> str:
        # Imported here because the package is an extra, and loads slowly.
        from azure.identity import DefaultAzureCredential

        if self._credential is None:
            self._credential = DefaultAzureCredential()
        # The credential keeps the token until shortly before its end.
        return str(self._credential.get_token(_SCOPE).token)


class AzureKeyService:
    """An RSA key of a vault or a managed HSM: `azure:https://NAME.vault.azure.net/keys/KEY`.

    Each version of the key has an address. A wrapped data key is that address, then the bytes.
    """

    def __init__(self, key: str, proxies: ProxySettings) -> None:
        self.name = _PREFIX + key
        self.id = remote_key_id(self.name)
        if not _KEY.fullmatch(key):
            raise Misconfigured(
                "secrets.keys: write a key of Azure as azure:https://NAME.vault.azure.net/keys/KEY"
            )
        self._key = check_url(key, "secrets.keys")
        self._version = re.compile(re.escape(self._key) + r"/[0-9A-Za-z]{1,64}", re.ASCII)
        self._client = _AzureClient(self.name, proxies)

    async def wrap(self, data_key: bytes) -> bytes:
        body = {"alg": _ALGORITHM, "value": _encode_url(data_key)}
        status, answer = await self._client.send("POST", f"{self._key}/wrapkey", body)
        if status != 200:
            raise refusal(self.name, status, member_of(answer, "error", "code"))
        version, found = answer.get("kid"), answer.get("value")
        if not isinstance(version, str) or not self._version.fullmatch(version):
            raise bad_answer(self.name)
        return f"{version}\n{found}".encode()

    async def unwrap(self, wrapped: bytes) -> bytes | None:
        version, _, value = wrapped.decode("latin-1").partition("\n")
        # The token is sent to no other address, whatever the store holds.
        if not self._version.fullmatch(version):
            return None
        body = {"alg": _ALGORITHM, "value": value}
        status, answer = await self._client.send("POST", f"{version}/unwrapkey", body)
        if status == 400:
            return None
        if status != 200:
            raise refusal(self.name, status, member_of(answer, "error", "code"))
        return _decode_url(answer.get("value"), self.name)


class AzureSecretSource:
    """The secrets of one vault: `azure:https://NAME.vault.azure.net`.

    Names of Azure have no underscore. The secret DB_PASSWORD is DB-PASSWORD there.
    """

    def __init__(self, vault: str, proxies: ProxySettings) -> None:
        self.name = _PREFIX + vault
        self._vault = check_url(vault, "secrets.sources")
        self._client = _AzureClient(self.name, proxies)

    async def read(self, name: str) -> str | None:
        known_as = re.sub(r"[^0-9A-Za-z-]", "-", name)
        status, answer = await self._client.send("GET", f"{self._vault}/secrets/{known_as}")
        if status == 404:
            return None
        if status != 200:
            raise refusal(self.name, status, member_of(answer, "error", "code"))
        found = answer.get("value")
        if not isinstance(found, str):
            raise bad_answer(self.name)
        return found


def _encode_url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode_url(text: object, name: str) -> bytes:
    if not isinstance(text, str):
        raise bad_answer(name)
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise bad_answer(name) from None
