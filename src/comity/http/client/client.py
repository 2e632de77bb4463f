"""HTTP requests with an awaitable response, over the connection pool.

The transports of MCP servers use the pool itself, because every microsecond counts there. Tokens,
checkpoints, webhooks and the SDK use this module.
"""

import asyncio
import functools
import json
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, Final, cast
from urllib.parse import urlencode

from comity.errors import UPSTREAM_DOWN, Misconfigured, Unavailable
from comity.http.client.connection import HttpClientRequest
from comity.http.client.dial import HttpOrigin, proxy_chooser, request_head
from comity.http.client.pool import HttpConnectionPool
from comity.http.client.proxies import NO_PROXIES, ProxySettings

MAX_BUFFERED_BYTES: Final = 256 * 1024
FETCH_SECONDS: Final = 5.0
MAX_FETCHED_BYTES: Final = 256 * 1024


class HttpResponse:
    """A response: its head, and its body as it arrives. Reading pauses while data is unread."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.request: HttpClientRequest | None = None
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._is_complete = False
        self._error: Unavailable | None = None
        self._changed = asyncio.Event()

    @property
    def content_type(self) -> str:
        """The media type, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body piece by piece. Raise Unavailable if it breaks off."""
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._size -= len(chunk)
                if self.request is not None and self._size <= MAX_BUFFERED_BYTES:
                    self.request.resume()
                yield chunk
            if self._is_complete:
                return
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()

    async def read(self, max_bytes: int) -> bytes:
        """Return the whole body. Raise Unavailable if it is too long or breaks off."""
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > max_bytes:
                raise Unavailable(f"the answer has more than {max_bytes} bytes", UPSTREAM_DOWN)
        return bytes(body)

    async def wait_for_head(self) -> None:
        while not self.status and self._error is None:
            self._changed.clear()
            await self._changed.wait()
        if not self.status and self._error is not None:
            raise self._error

    # Callbacks of the pool.

    def started(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        self._changed.set()

    def data(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self.request is not None and self._size > MAX_BUFFERED_BYTES:
            self.request.pause()
        self._changed.set()

    def ended(self) -> None:
        self._is_complete = True
        self._changed.set()

    def failed(self, error: Unavailable) -> None:
        self._error = error
        self._changed.set()


@asynccontextmanager
async def open_response(
    pool: HttpConnectionPool,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes = b"",
) -> AsyncGenerator[HttpResponse]:
    """Yield the response to a request once its head has arrived. Redirects are not followed.

    Raises Unavailable, and Misconfigured if the URL is invalid. A body that is unread at the end
    is discarded.
    """
    origin, target = HttpOrigin.of(url)
    head = request_head(method, target, origin, headers.items())
    async with await_response(pool, origin, head, body) as response:
        yield response


@asynccontextmanager
async def await_response(
    pool: HttpConnectionPool, origin: HttpOrigin, head: bytes, body: bytes
) -> AsyncGenerator[HttpResponse]:
    """Like `open_response`, for a request whose head is already encoded."""
    response = HttpResponse()
    response.request = pool.send(origin, head, body, response)
    try:
        await response.wait_for_head()
        yield response
    finally:
        if not response.request.is_settled:
            response.request.abort()


@functools.cache
def default_tls() -> ssl.SSLContext:
    """Return a shared context. Creating one takes a tenth of a second and a megabyte."""
    return ssl.create_default_context()


def new_pool(url: str, proxies: ProxySettings = NO_PROXIES) -> HttpConnectionPool:
    """Return a pool for one server. Only an HTTPS URL needs the certificates."""
    tls = default_tls() if url.startswith("https:") else None
    return HttpConnectionPool(tls, choose_proxy=proxy_chooser(proxies))


async def post_once(
    url: str, headers: Mapping[str, str], body: bytes, proxies: ProxySettings
) -> int:
    """Send a POST and return the status of the response, within seconds. Raises Unavailable."""
    async with _exchange("POST", url, headers, body, proxies) as response:
        return response.status


async def fetch_json(
    url: str,
    proxies: ProxySettings = NO_PROXIES,
    *,
    seconds: float = FETCH_SECONDS,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the members of the JSON object at a URL. Raises Unavailable."""
    status, found = await request_json("GET", url, headers, b"", proxies, seconds)
    if status != 200:
        raise _request_failed_error(HttpOrigin.of(url)[0].authority, f"status {status}")
    return found


async def post_form(
    url: str, fields: Mapping[str, str], headers: Mapping[str, str], proxies: ProxySettings
) -> tuple[int, dict[str, Any]]:
    """Post a form, and return the result of `request_json`."""
    kind = {"content-type": "application/x-www-form-urlencoded", **headers}
    body = urlencode(fields).encode("ascii")
    return await request_json("POST", url, kind, body, proxies)


async def request_json(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    proxies: ProxySettings,
    seconds: float = FETCH_SECONDS,
) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON object of an answer. Raises Unavailable.

    The answer of another status than 200 may be any text. It counts as an empty object.
    """
    host = HttpOrigin.of(url)[0].authority
    accept = {"accept": "application/json", **headers}
    try:
        async with _exchange(method, url, accept, body, proxies, seconds) as response:
            status, answer = response.status, await response.read(MAX_FETCHED_BYTES)
    except Unavailable as problem:
        raise _request_failed_error(host, str(problem)) from None
    try:
        found: object = json.loads(answer)
    except (ValueError, RecursionError):
        if status == 200:
            raise _request_failed_error(host, "the answer is not JSON") from None
        found = {}
    if not isinstance(found, dict):
        if status == 200:
            raise _request_failed_error(host, "the answer is not a JSON object")
        found = {}
    return status, cast("dict[str, Any]", found)


@asynccontextmanager
async def _exchange(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    proxies: ProxySettings,
    seconds: float = FETCH_SECONDS,
) -> AsyncGenerator[HttpResponse]:
    """Send one request over a connection of its own, within seconds."""
    try:
        async with (
            asyncio.timeout(seconds),
            new_pool(url, proxies) as pool,
            open_response(pool, method, url, headers, body) as response,
        ):
            yield response
    except TimeoutError:
        raise Unavailable("it took too long", UPSTREAM_DOWN) from None
    except Misconfigured as problem:
        raise Unavailable(str(problem), UPSTREAM_DOWN) from None


def _request_failed_error(host: str, reason: str) -> Unavailable:
    return Unavailable(f"{host} did not return the requested data: {reason:.200}", UPSTREAM_DOWN)
