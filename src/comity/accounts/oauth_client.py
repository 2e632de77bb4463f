"""Requests to protected servers and authorization servers, within strict bounds."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, cast
from urllib.parse import SplitResult, urlencode, urlsplit

from comity.accounts import messages
from comity.accounts.messages import (
    Challenge,
    IssuerMetadata,
    OAuthClientCredentials,
    ResourceMetadata,
    TokenAnswer,
)
from comity.errors import UPSTREAM_DOWN, Misconfigured, Unavailable
from comity.http.client.client import open_response
from comity.http.client.pool import HttpConnectionPool
from comity.identity.login.messages import basic_authorization
from comity.validation.network import answers_problem, host_problem

log = logging.getLogger(__name__)

REQUEST_SECONDS: Final = 10.0
MAX_ANSWER_BYTES: Final = 256 * 1024
_FORM: Final = "application/x-www-form-urlencoded"
UNKNOWN_CLIENT_ERRORS: Final = frozenset({"invalid_client", "unauthorized_client"})
_ENDED_GRANTS: Final = frozenset({"invalid_grant", *UNKNOWN_CLIENT_ERRORS})

type Resolve = Callable[[str], Awaitable[Sequence[str]]]


class OAuthHttpClient:
    """Sends OAuth requests. It follows no redirect, and reaches private addresses only by name.

    Metadata is written by strangers. An address that it names must be public, unless it has the
    host of an address that the operator wrote. `trusted` holds those: of the server, and of the
    issuer in its settings.
    """

    def __init__(self, pool: HttpConnectionPool, resolve: Resolve) -> None:
        self._resolve = resolve
        self._trusted_pool = pool
        self._public_pool = pool.like(self._find_public)

    async def close(self) -> None:
        await self._public_pool.close()

    async def _find_public(self, host: str) -> Sequence[str]:
        """Resolve a host for the pool. The checked addresses are those that are connected to."""
        problem, name = host_problem(host)
        answers: Sequence[str] = (host,)
        if problem is None and name:
            answers = await self._resolve(name)
            problem = answers_problem(answers)
        if problem is not None:
            raise Unavailable(f"the address of {host:.100} is refused: {problem}", UPSTREAM_DOWN)
        return answers

    # Discovery.

    async def discover(
        self, server_url: str, challenge: Challenge | None
    ) -> ResourceMetadata | None:
        """Read the metadata of a protected server, or return None if it has none.

        Raises Unavailable if the metadata cannot be used.
        """
        urls = messages.resource_metadata_urls(server_url, challenge)
        found = await self._first(urls, (server_url,))
        if found is None and challenge is not None and challenge.resource_metadata:
            raise Unavailable("the server does not say where to sign in", UPSTREAM_DOWN)
        if found is None:
            return None
        url, document = found
        return messages.read_resource_metadata(document, server_url, url)

    async def issuer_metadata(self, issuer: str, trusted: tuple[str, ...]) -> IssuerMetadata:
        """Read the metadata of an authorization server. Raises Unavailable."""
        found = await self._first(messages.issuer_metadata_urls(issuer), trusted)
        if found is None:
            raise Unavailable(
                f"the authorization server {issuer:.200} has no metadata", UPSTREAM_DOWN
            )
        try:
            return messages.read_issuer_metadata(found[1], issuer)
        except Unavailable as error:
            raise Unavailable(
                f"the authorization server {issuer:.200} cannot be used: {error}", UPSTREAM_DOWN
            ) from None

    async def _first(
        self, urls: Sequence[str], trusted: tuple[str, ...]
    ) -> tuple[str, dict[str, Any]] | None:
        """Return the first of several documents that exists."""
        for url in urls:
            status, document = await self._exchange("GET", url, trusted)
            if status == 200:
                return url, document
            if status not in (401, 403, 404, 405):
                host = urlsplit(url).netloc
                raise Unavailable(f"{host} answered HTTP {status} for metadata", UPSTREAM_DOWN)
        return None

    # Clients and tokens.

    async def register(
        self, metadata: IssuerMetadata, request: Mapping[str, object], trusted: tuple[str, ...]
    ) -> OAuthClientCredentials:
        """Register this gateway at an authorization server. (RFC 7591) Raises Unavailable."""
        status, answer = await self._exchange(
            "POST",
            metadata.registration_endpoint,
            trusted,
            {"content-type": "application/json"},
            json.dumps(request).encode(),
        )
        if status not in (200, 201):
            code = messages.error_code_in(answer)
            raise Unavailable(
                f"the authorization server {metadata.issuer:.200} refused to register this "
                f"gateway: HTTP {status} {code}".rstrip(),
                UPSTREAM_DOWN,
            )
        uris = cast("list[str]", request["redirect_uris"])
        return messages.read_registration(answer, uris[0])

    async def request_token(
        self,
        metadata: IssuerMetadata,
        client: OAuthClientCredentials,
        fields: Mapping[str, str],
        trusted: tuple[str, ...],
    ) -> TokenAnswer | str:
        """Request a token, or return the error code of a grant that is refused for good.

        Raises Unavailable for every other refusal.
        """
        status, answer = await self._post_as_client(
            metadata.token_endpoint, metadata, client, fields, trusted
        )
        if status == 200:
            return messages.read_token_answer(answer)
        code = messages.error_code_in(answer)
        if code in _ENDED_GRANTS:
            log.info("The authorization server %s refused a grant: %s", metadata.issuer, code)
            return code
        raise Unavailable(
            f"the authorization server {metadata.issuer:.200} gave no token: "
            f"HTTP {status} {code}".rstrip(),
            UPSTREAM_DOWN,
        )

    async def revoke(
        self,
        metadata: IssuerMetadata,
        client: OAuthClientCredentials,
        token: str,
        trusted: tuple[str, ...],
    ) -> bool:
        """Revoke a token at its issuer. (RFC 7009) Return whether the issuer confirmed it."""
        if not metadata.revocation_endpoint:
            return False
        try:
            status, _ = await self._post_as_client(
                metadata.revocation_endpoint, metadata, client, {"token": token}, trusted
            )
        except Unavailable as error:
            log.warning("A token was not revoked at %s: %s", metadata.issuer, error)
            return False
        return status == 200

    async def _post_as_client(
        self,
        url: str,
        metadata: IssuerMetadata,
        client: OAuthClientCredentials,
        fields: Mapping[str, str],
        trusted: tuple[str, ...],
    ) -> tuple[int, dict[str, Any]]:
        form, headers = {**fields, "client_id": client.client_id}, {"content-type": _FORM}
        offered = metadata.client_auth_methods
        method = client.auth_method or (
            "client_secret_basic" if "client_secret_basic" in offered else "client_secret_post"
        )
        if client.secret and method == "client_secret_basic":
            # The id stays in the form too, because servers of the official SDK demand it there.
            headers["authorization"] = basic_authorization(client.client_id, client.secret)
        elif client.secret:
            form["client_secret"] = client.secret
        return await self._exchange("POST", url, trusted, headers, urlencode(form).encode())

    async def _exchange(
        self,
        method: str,
        url: str,
        trusted: tuple[str, ...],
        headers: Mapping[str, str] = MappingProxyType({}),
        body: bytes = b"",
    ) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON object of an answer. Other answers are empty objects."""
        host = urlsplit(url).netloc
        pool = self._pool_for(url, trusted)
        try:
            async with (
                asyncio.timeout(REQUEST_SECONDS),
                open_response(
                    pool, method, url, {"accept": "application/json", **headers}, body
                ) as response,
            ):
                status, answer = response.status, await response.read(MAX_ANSWER_BYTES)
        except TimeoutError:
            raise Unavailable(f"{host:.200} took too long to answer", UPSTREAM_DOWN) from None
        except Misconfigured:
            raise Unavailable(f"the address {url:.200} cannot be used", UPSTREAM_DOWN) from None
        try:
            found: object = json.loads(answer)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            if status == 200 and method == "GET":
                raise Unavailable(f"{host:.200} answered with no JSON object", UPSTREAM_DOWN)
            found = {}
        return status, cast("dict[str, Any]", found)

    def _pool_for(self, url: str, trusted: tuple[str, ...]) -> HttpConnectionPool:
        """Return the pool for an address. Only a trusted host may be private or plain."""
        there = urlsplit(url)
        if any(_is_trusted(there, urlsplit(each)) for each in trusted):
            return self._trusted_pool
        if there.scheme != "https":
            raise Unavailable(f"the address of {there.netloc:.200} is not HTTPS", UPSTREAM_DOWN)
        return self._public_pool


def _is_trusted(there: SplitResult, trusted: SplitResult) -> bool:
    """Return whether an address has the host of a trusted one.

    A host with TLS cannot move its sign-ins to a plain address.
    """
    if there.hostname == trusted.hostname and there.scheme in ("https", trusted.scheme):
        return True
    return _is_loopback(trusted.hostname) and _is_loopback(there.hostname)


def _is_loopback(host: str | None) -> bool:
    return host in ("127.0.0.1", "::1", "localhost")
