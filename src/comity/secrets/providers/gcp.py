"""Google Cloud: keys of Cloud KMS, and secrets of Secret Manager. Tokens come from google-auth."""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

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
    require_extra,
    send_json,
)

_PREFIX: Final = "gcp:"
_SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)
_KEY: Final = re.compile(
    r"projects/[a-z0-9:.-]+/locations/[a-z0-9-]+/keyRings/[\w-]+/cryptoKeys/[\w-]+", re.ASCII
)
_PROJECT: Final = re.compile(r"projects/[a-z0-9:.-]+", re.ASCII)
_CONTEXT: Final = encode_base64(b"comity data key")


class _GoogleClient:
    """Sends requests with the token of the application's default credentials."""

    def __init__(
        self, name: str, service: str, proxies: ProxySettings, environ: Mapping[str, str]
    ) -> None:
        require_extra(name, "google.auth", "gcp")
        self._name = name
        self._proxies = proxies
        self._credentials: Any = None
        # The variable by which gcloud is given another endpoint, such as a private one.
        variable = f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}"
        self._url = check_url(
            environ.get(variable) or f"https://{service}.googleapis.com", variable
        )

    async def send(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> tuple[int, dict[str, Any]]:
        token = await find_credentials(self._name, self._token)
        headers = {"authorization": f"Bearer {token}"}
        return await send_json(
            self._name,
            method,
            f"{self._url}/v1/{quote(path, safe='/:')}",
            headers,
            body,
            self._proxies,
        )

    def _token(self) -> str:
        # Imported here because the package is an extra, and loads slowly.
        import google.auth

        # Imported here for the same reason.
        from google.auth.transport.requests import Request

        if self._credentials is None:
            auth: Any = google.auth
            self._credentials = auth.default(scopes=_SCOPES)[0]
        if not self._credentials.valid:
            self._credentials.refresh(Request())
        token: object = self._credentials.token
        if not isinstance(token, str) or not token:
            raise Unavailable(f"{self._name}: there is no token of Google Cloud", SECRETS_AWAY)
        return token


class GoogleKeyService:
    """A symmetric key of Cloud KMS, by its resource name: `gcp:projects/…/cryptoKeys/KEY`."""

    def __init__(self, key: str, proxies: ProxySettings, environ: Mapping[str, str]) -> None:
        self.name = _PREFIX + key
        self.id = remote_key_id(self.name)
        self._key = key
        if not _KEY.fullmatch(key):
            raise Misconfigured(
                "secrets.keys: write a key of Cloud KMS as "
                "gcp:projects/P/locations/L/keyRings/R/cryptoKeys/K"
            )
        self._client = _GoogleClient(self.name, "cloudkms", proxies, environ)

    async def wrap(self, data_key: bytes) -> bytes:
        body = {"plaintext": encode_base64(data_key), "additionalAuthenticatedData": _CONTEXT}
        status, answer = await self._client.send("POST", f"{self._key}:encrypt", body)
        if status != 200:
            raise refusal(self.name, status, member_of(answer, "error", "status"))
        return decode_base64(answer.get("ciphertext"), self.name)

    async def unwrap(self, wrapped: bytes) -> bytes | None:
        body = {"ciphertext": encode_base64(wrapped), "additionalAuthenticatedData": _CONTEXT}
        status, answer = await self._client.send("POST", f"{self._key}:decrypt", body)
        if status == 400 and member_of(answer, "error", "status") == "INVALID_ARGUMENT":
            return None
        if status != 200:
            raise refusal(self.name, status, member_of(answer, "error", "status"))
        return decode_base64(answer.get("plaintext"), self.name)


class GoogleSecretSource:
    """The newest versions of the secrets of one project: `gcp:projects/PROJECT`."""

    def __init__(self, project: str, proxies: ProxySettings, environ: Mapping[str, str]) -> None:
        self.name = _PREFIX + project
        self._project = project
        if not _PROJECT.fullmatch(project):
            raise Misconfigured(f"secrets.sources: {self.name} must be as gcp:projects/PROJECT")
        self._client = _GoogleClient(self.name, "secretmanager", proxies, environ)

    async def read(self, name: str) -> str | None:
        path = f"{self._project}/secrets/{name}/versions/latest:access"
        status, answer = await self._client.send("GET", path)
        if status == 404:
            return None
        if status != 200:
            raise refusal(self.name, status, member_of(answer, "error", "status"))
        try:
            return decode_base64(member_of(answer, "payload", "data"), self.name).decode()
        except UnicodeDecodeError:
            raise bad_answer(self.name) from None
