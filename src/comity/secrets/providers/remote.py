"""Requests to key services and secret managers over HTTPS, with credentials of their vendor."""

import asyncio
import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from comity.errors import SECRETS_AWAY, Misconfigured, Unavailable
from comity.http.client.client import request_json
from comity.http.client.proxies import ProxySettings
from comity.secrets.model import KEY_ID_BYTES

CREDENTIAL_SECONDS: Final = 10.0
"""How long a vendor's package may take to find its credentials."""

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_CODE: Final = re.compile(r"[A-Za-z_]{1,64}\Z")


def remote_key_id(name: str) -> str:
    """Return the id of a key that this process cannot see, from its name."""
    return hashlib.sha256(name.encode()).digest()[:KEY_ID_BYTES].hex()


def check_url(url: str, name: str) -> str:
    """Return a URL without its last slash. Raises Misconfigured unless it is encrypted or local."""
    try:
        parts = urlsplit(url)
        is_local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    except ValueError:
        raise Misconfigured(f"{name}: this is no URL") from None
    if not (parts.scheme == "https" or is_local) or not parts.hostname or parts.query:
        raise Misconfigured(
            f"{name}: must be as https://vault.example.org; http:// only for localhost"
        )
    return url.rstrip("/")


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def decode_base64(text: object, name: str) -> bytes:
    """Decode a member of an answer. Raises Unavailable if the service returned something else."""
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except ValueError:
        pass
    raise bad_answer(name)


def bad_answer(name: str) -> Unavailable:
    return Unavailable(f"{name} returned an answer that Comity cannot read", SECRETS_AWAY)


def refusal(name: str, status: int, code: object = "") -> Unavailable:
    """Return the error for a status. The text of the answer may hold secrets and is left out."""
    told = f" {code}" if isinstance(code, str) and _CODE.match(code) else ""
    return Unavailable(f"{name} refused the request: status {status}{told}", SECRETS_AWAY)


async def send_json(
    name: str,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: Mapping[str, object] | None,
    proxies: ProxySettings,
) -> tuple[int, dict[str, Any]]:
    """Send a request whose body, if there is one, is JSON. The answer is that of `send_request`."""
    if body is None:
        return await send_request(name, method, url, headers, b"", proxies)
    typed = {**headers, "content-type": "application/json"}
    return await send_request(name, method, url, typed, encode_json(body), proxies)


async def send_request(
    name: str,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    proxies: ProxySettings,
) -> tuple[int, dict[str, Any]]:
    """Return the status and the members of an answer. Raises Unavailable within seconds."""
    try:
        return await request_json(method, url, headers, body, proxies)
    except Unavailable as problem:
        raise Unavailable(f"{name} does not answer: {problem}", SECRETS_AWAY) from None


def require_extra(name: str, module: str, extra: str) -> None:
    """Raise Misconfigured if the package of an extra is not installed. Imports only its parent."""
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise Misconfigured(f"{name}: install what it needs: pip install 'comity[{extra}]'")


async def find_credentials[T](name: str, find: Callable[[], T]) -> T:
    """Run the blocking code of a package in a thread. Raises Unavailable within seconds."""
    try:
        async with asyncio.timeout(CREDENTIAL_SECONDS):
            return await asyncio.to_thread(find)
    except Unavailable:
        raise
    except Exception as problem:
        # The text of the vendor's error may quote a credential.
        raise Unavailable(
            f"{name}: there are no usable credentials ({type(problem).__name__})", SECRETS_AWAY
        ) from None


def encode_json(value: object) -> bytes:
    return msgspec.json.encode(value)


def member_of(value: object, *names: str) -> object:
    """Return a nested member of an answer, or None."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return value  # pyright: ignore[reportUnknownVariableType]
