"""An agent's connection to its gateway: MCP over streamable HTTP, with nothing dropped on the way.

The official client leaves out every member and notice that it does not know, and MGP is made of
those. So frames are read here as the gateway reads them, within the same bounds.

Rule 1: a token goes to the address it was given for; no redirect is followed.
Rule 2: one answer is waited for on its own stream, and read no faster than somebody takes it.
Rule 3: the standing stream is opened again after a cut, ever more slowly; what was told meanwhile
        is lost, and whoever listens is told that.
"""

import asyncio
import importlib
import itertools
import logging
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta
from importlib.metadata import version
from typing import Any, Final, cast
from urllib.parse import urljoin

from msgspec import Raw

from comity.rules.backoff import Backoff
from comity.sdk.agent_words import VERSION, Refused, refused_in
from comity.sdk.line import Token
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    ACCESS_DENIED,
    METHOD_NOT_FOUND,
    NOTHING_HERE,
    RATE_LIMITED,
    TIMEOUT,
    UNAUTHENTICATED,
    UPSTREAM_DOWN,
    Fault,
    MalformedMessage,
    Misconfigured,
    Unavailable,
)
from comity.wire.jsonrpc import UNSET, Frame, FrameWithMembers
from comity.wire.sse import EventParser

log = logging.getLogger(__name__)

LARGEST: Final = 16 * 1024 * 1024
CONNECT_SECONDS: Final = 10.0
API_SECONDS: Final = 60.0
_SESSION: Final = "mcp-session-id"
_FAULTS: Final[dict[int, tuple[Fault, str]]] = {
    401: (UNAUTHENTICATED, "show a token that the gateway knows"),
    403: (ACCESS_DENIED, "ask an operator for access"),
    404: (NOTHING_HERE, "the session is over, or there is no gateway here: connect again"),
    429: (RATE_LIMITED, "come back later"),
}

type Hear = Callable[[Frame], Awaitable[None]]


class AgentLine:
    """One session. `hears` is given what is told amid no call."""

    def __init__(self, url: str, token: Token, hears: Hear) -> None:
        if not url.startswith(("http://", "https://")):
            raise Misconfigured(f"{url!r:.200} is no address: write it as https://host:port/mcp")
        self._url = url
        self._token = token
        self._hears = hears
        self._ids = itertools.count(1)
        self._session: dict[str, str] = {}
        self._http: Any = None
        self._standing: asyncio.Task[None] | None = None
        self.listens = asyncio.Event()

    def __repr__(self) -> str:
        return f"AgentLine({self._url!r})"

    async def open(self, capabilities: Mapping[str, object], name: str) -> Frame:
        """Shake hands; the gateway's whole answer. Raises Unavailable."""
        aiohttp = _package("aiohttp")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        self._http = aiohttp.ClientSession(timeout=timeout)
        hello = {
            "protocolVersion": VERSION,
            "capabilities": capabilities,
            "clientInfo": {"name": name, "version": version("comity")},
        }
        answer = await self.request(mcp.INITIALIZE, hello, self._hears)
        await self._post(jsonrpc.notification(mcp.INITIALIZED))
        self._standing = asyncio.create_task(self._stand())
        return answer

    async def close(self) -> None:
        if self._standing is not None:
            self._standing.cancel()
            await asyncio.gather(self._standing, return_exceptions=True)
        if self._http is not None:
            if self._session:
                try:
                    async with self._http.delete(self._url, headers=self._headers()):
                        pass
                except _package("aiohttp").ClientError:
                    log.debug("the gateway was gone before its session was ended")
            await self._http.close()

    def next_id(self) -> int:
        return next(self._ids)

    async def request(
        self,
        method: str,
        params: Mapping[str, object],
        hear: Hear,
        *,
        named: int | None = None,
        within: timedelta | None = None,
    ) -> Frame:
        """Ask, and hear what is told amid it. Raises Unavailable, MalformedMessage."""
        id = self.next_id() if named is None else named
        asked = jsonrpc.request(id, method, dict(params))
        # Beside the parameters: some methods take no strange ones. (MGP §6.5)
        traced = FrameWithMembers(asked.jsonrpc, asked.id, asked.method, asked.params)
        traced.members = {"trace_id": jsonrpc.to_raw(str(uuid.uuid4()))}
        try:
            async with asyncio.timeout(None if within is None else within.total_seconds()):
                async for frame in self._frames("POST", jsonrpc.encode(traced)):
                    if jsonrpc.is_response(frame) and frame.id == id:
                        return frame
                    await self._take(frame, hear)
        except TimeoutError:
            raise Unavailable(f"{method} was not answered in time", TIMEOUT) from None
        raise Unavailable(f"the stream of {method} ended without an answer", UPSTREAM_DOWN)

    async def api(
        self, how: str, place: str, body: Mapping[str, object] | None = None
    ) -> dict[str, Any] | Refused:
        """Ask the gateway's own API, beside MCP. Raises Unavailable, MalformedMessage."""
        assert self._http is not None, "open it first"
        url = _package("yarl").URL(urljoin(self._url, f"/api/{place}"), encoded=True)
        sent = None if body is None else jsonrpc.to_json(dict(body))
        headers = {**self._headers(), "accept": "application/json"}
        try:
            async with (
                asyncio.timeout(API_SECONDS),
                self._http.request(
                    how, url, data=sent, headers=headers, allow_redirects=False
                ) as reply,
            ):
                is_answer = reply.content_type == "application/json"
                if not is_answer or reply.status in (401, 429):
                    raise _unavailable(reply.status)
                said = await _body(reply)
        except (_package("aiohttp").ClientError, OSError, TimeoutError) as problem:
            kind = type(problem).__name__
            raise Unavailable(f"the gateway was not reached: {kind}", UPSTREAM_DOWN) from None
        if reply.status >= 400:
            refused = refused_in(jsonrpc.decode(said))
            if refused is not None:
                return refused
        return cast("dict[str, Any]", jsonrpc.value(jsonrpc.to_raw(jsonrpc.members(Raw(said)))))

    async def _take(self, frame: Frame, hear: Hear) -> None:
        if jsonrpc.is_request(frame):
            because = "an agent of this kind is asked by callbacks alone"
            id = None if frame.id is UNSET else frame.id
            await self._post(jsonrpc.failure(id, METHOD_NOT_FOUND, because))
        elif jsonrpc.is_notification(frame):
            await hear(frame)

    async def _post(self, frame: Frame) -> None:
        async for _ in self._frames("POST", jsonrpc.encode(frame)):
            pass

    async def _stand(self) -> None:
        """The stream of what is told amid no call, for as long as the session."""
        backoff, failures = Backoff(timedelta(milliseconds=200), timedelta(seconds=30)), 0
        while True:
            try:
                async for frame in self._frames("GET"):
                    failures = 0
                    await self._take(frame, self._hears)
            except (Unavailable, MalformedMessage) as problem:
                if problem.fault in (NOTHING_HERE, UNAUTHENTICATED, ACCESS_DENIED):
                    log.info("nothing more will be told: %s", problem)
                    return
            self.listens.clear()
            failures += 1
            # Apart from others that were cut off with us; nobody guesses anything by it.
            chance = random.random()  # noqa: S311 - spreads a herd
            await asyncio.sleep(backoff.delay(failures, chance).total_seconds())

    async def _frames(self, how: str, body: bytes | None = None) -> AsyncIterator[Frame]:
        assert self._http is not None, "open it first"
        try:
            async with self._http.request(
                how, self._url, data=body, headers=self._headers(how), allow_redirects=False
            ) as reply:
                if session := reply.headers.get(_SESSION):
                    self._session = {_SESSION: session, "mcp-protocol-version": VERSION}
                if how == "GET" and reply.status == 200:
                    self.listens.set()
                async for frame in _read(reply):
                    yield frame
        except (_package("aiohttp").ClientError, OSError, TimeoutError) as problem:
            kind = type(problem).__name__
            raise Unavailable(f"the gateway was not reached: {kind}", UPSTREAM_DOWN) from None

    def _headers(self, how: str = "POST") -> dict[str, str]:
        token = self._token if isinstance(self._token, str) else self._token()
        accepted = "text/event-stream" if how == "GET" else "application/json, text/event-stream"
        return {
            "accept": accepted,
            "content-type": "application/json",
            **self._session,
            **({"authorization": f"Bearer {token}"} if token else {}),
        }


def _package(name: str) -> Any:
    """A package of the extra, loaded when it is needed: `import comity.sdk.agent` needs none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise Misconfigured(
            "to connect an agent, install what that needs: pip install 'comity[sdk]'"
        ) from None


async def _read(reply: Any) -> AsyncIterator[Frame]:
    """The frames of a reply, one document or a stream of them. Raises Unavailable, Malformed."""
    if reply.content_type == "text/event-stream":
        parser = EventParser(LARGEST)
        async for chunk in reply.content.iter_any():
            for event in parser.feed(chunk):
                if event.data:
                    yield jsonrpc.decode(event.data)
        return
    # An error in JSON-RPC's words is an answer, whatever its status.
    is_answer = reply.content_type == "application/json" and reply.status not in _FAULTS
    if not is_answer and reply.status not in (200, 202):
        raise _unavailable(reply.status)
    body = await _body(reply)
    if body:
        yield jsonrpc.decode(body)


async def _body(reply: Any) -> bytes:
    body = bytearray()
    async for chunk in reply.content.iter_any():
        body += chunk
        if len(body) > LARGEST:
            raise MalformedMessage(f"an answer has at most {LARGEST} bytes")
    return bytes(body)


def _unavailable(status: int) -> Unavailable:
    fault, advice = _FAULTS.get(status, (UPSTREAM_DOWN, "try again later"))
    return Unavailable(f"the gateway answered {status}: {advice}", fault)
