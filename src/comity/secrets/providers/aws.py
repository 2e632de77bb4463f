"""AWS: keys of KMS, and secrets of Secrets Manager. Credentials and signatures are botocore's."""

import re
from collections.abc import Mapping
from typing import Any, Final

from comity.errors import SECRETS_AWAY, Misconfigured, Unavailable
from comity.http.client.proxies import ProxySettings
from comity.secrets.providers.remote import (
    bad_answer,
    check_url,
    decode_base64,
    encode_base64,
    encode_json,
    find_credentials,
    refusal,
    remote_key_id,
    require_extra,
    send_request,
)

_PREFIX: Final = "aws:"
_KEY: Final = re.compile(r"arn:aws[a-z-]*:kms:([a-z0-9-]+):[0-9]{12}:key/[A-Za-z0-9-]+")
_REGION: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]+")
_CONTEXT: Final = {"comity": "data key"}
_NOT_OURS: Final = ("InvalidCiphertextException", "IncorrectKeyException")


class _AwsClient:
    """Sends signed requests to one service in one region."""

    def __init__(
        self,
        name: str,
        service: str,
        region: str,
        proxies: ProxySettings,
        environ: Mapping[str, str],
    ) -> None:
        require_extra(name, "botocore", "aws")
        self._name = name
        self._service = service
        self._region = region
        self._proxies = proxies
        self._credentials: Any = None
        # The variables by which all programs of AWS are given another endpoint.
        own = {"kms": "KMS", "secretsmanager": "SECRETS_MANAGER"}[service]
        given = environ.get(f"AWS_ENDPOINT_URL_{own}") or environ.get("AWS_ENDPOINT_URL")
        domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        url = given or f"https://{service}.{region}.{domain}"
        self._url = check_url(url, "AWS_ENDPOINT_URL") + "/"

    async def send(self, target: str, body: Mapping[str, object]) -> tuple[int, dict[str, Any]]:
        encoded = encode_json(body)
        headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": target}
        signed = await find_credentials(self._name, lambda: self._sign(headers, encoded))
        return await send_request(self._name, "POST", self._url, signed, encoded, self._proxies)

    def _sign(self, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        auth, requests, session = _import_botocore()
        if self._credentials is None:
            self._credentials = session.Session().get_credentials()
        if self._credentials is None:
            raise Unavailable(f"{self._name}: there are no credentials of AWS", SECRETS_AWAY)
        request = requests.AWSRequest("POST", self._url, headers=dict(headers), data=body)
        frozen = self._credentials.get_frozen_credentials()
        auth.SigV4Auth(frozen, self._service, self._region).add_auth(request)
        return {str(name): str(value) for name, value in request.headers.items()}


def _import_botocore() -> tuple[Any, Any, Any]:
    """Return the modules of the package, which has no types."""
    # Imported here because the package is an extra, and loads slowly.
    from botocore import (  # pyright: ignore[reportMissingTypeStubs]
        auth,
        awsrequest,
        session,
    )

    return auth, awsrequest, session


class AwsKeyService:
    """A symmetric key of KMS, by its ARN: `aws:arn:aws:kms:REGION:ACCOUNT:key/ID`."""

    def __init__(self, key: str, proxies: ProxySettings, environ: Mapping[str, str]) -> None:
        self.name = _PREFIX + key
        self.id = remote_key_id(self.name)
        self._key = key
        found = _KEY.fullmatch(key)
        if found is None:
            raise Misconfigured(
                "secrets.keys: write a key of AWS KMS with its ARN, as "
                "aws:arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab"
            )
        self._client = _AwsClient(self.name, "kms", found[1], proxies, environ)

    async def wrap(self, data_key: bytes) -> bytes:
        status, answer = await self._client.send(
            "TrentService.Encrypt",
            {
                "KeyId": self._key,
                "Plaintext": encode_base64(data_key),
                "EncryptionContext": _CONTEXT,
            },
        )
        if status != 200:
            raise refusal(self.name, status, _error_code(answer))
        return decode_base64(answer.get("CiphertextBlob"), self.name)

    async def unwrap(self, wrapped: bytes) -> bytes | None:
        status, answer = await self._client.send(
            "TrentService.Decrypt",
            {
                "KeyId": self._key,
                "CiphertextBlob": encode_base64(wrapped),
                "EncryptionContext": _CONTEXT,
            },
        )
        if status == 400 and _error_code(answer) in _NOT_OURS:
            return None
        if status != 200:
            raise refusal(self.name, status, _error_code(answer))
        return decode_base64(answer.get("Plaintext"), self.name)


class AwsSecretSource:
    """Secrets of Secrets Manager: `aws:REGION`, or `aws:REGION/PREFIX` for names with a prefix."""

    def __init__(self, place: str, proxies: ProxySettings, environ: Mapping[str, str]) -> None:
        self.name = _PREFIX + place
        region, slash, prefix = place.partition("/")
        if not _REGION.fullmatch(region) or (slash and not prefix):
            raise Misconfigured(
                f"secrets.sources: {self.name} must be as aws:eu-central-1 or "
                "aws:eu-central-1/comity/"
            )
        self._prefix = prefix
        self._client = _AwsClient(self.name, "secretsmanager", region, proxies, environ)

    async def read(self, name: str) -> str | None:
        status, answer = await self._client.send(
            "secretsmanager.GetSecretValue", {"SecretId": self._prefix + name}
        )
        if status == 400 and _error_code(answer) == "ResourceNotFoundException":
            return None
        if status != 200:
            raise refusal(self.name, status, _error_code(answer))
        found = answer.get("SecretString")
        if not isinstance(found, str):
            raise bad_answer(self.name)
        return found


def _error_code(answer: Mapping[str, object]) -> str:
    """Return the name of an error, which some services write behind a namespace and `#`."""
    return str(answer.get("__type", "")).rpartition("#")[2]
