"""The MCP client: one session over streamable HTTP. Agents and `comity call` use it."""

import asyncio
import itertools
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import version
from typing import Any, Final, cast
from urllib.parse import urljoin

from msgspec import Raw

from comity.errors import (
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
from comity.http.client.client import HttpResponse, new_pool, open_response
from comity.http.client.pool import HttpConnectionPool
from comity.mcp import jsonrpc, protocol
from comity.mcp.framing import SseParser
from comity.mcp.jsonrpc import UNSET, ExtendedFrame, Frame
from comity.sdk.agent_results import VERSION, AgentRefusal, refused_in
from comity.toolkit.background import PausableTimeout, draw_delay
from comity.toolkit.resilience import RetrySchedule

log = logging.getLogger(__name__)

UNLIMITED: Final = PausableTimeout()

LARGEST: Final = 16 * 1024 * 1024
API_SECONDS: Final = 60.0
_SESSION: Final = "mcp-session-id"
_FAULTS: Final[dict[int, tuple[Fault, str]]] = {
    401: (UNAUTHENTICATED, "show a token that the gateway knows"),
    403: (ACCESS_DENIED, "ask an operator for access"),
    404: (NOTHING_HERE, "the session is over, or there is no gateway here: connect again"),
    429: (RATE_LIMITED, "come back later"),
}

FAREWELL_SECONDS: Final = 2.0
MAX_OPEN_REQUESTS: Final = 64
RESUME_SECONDS: Final = 0.5

type Hear = Callable[[Frame], Awaitable[None]]
type AnswerRequest = Callable[[Frame], Awaitable[Mapping[str, object] | None]]
"""The result for a request of the server; None where the client does not answer such requests."""


class McpClientSession:
    """One session. `hears` takes the notifications that belong to no call."""

    def __init__(
        self,
        url: str,
        token: str | Callable[[], str],
        hears: Hear,
        answers: AnswerRequest | None = None,
        max_bytes: int = LARGEST,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise Misconfigured(f"{url!r:.200} is no address: write it as https://host:port/mcp")
        self._url = url
        self._token = token
        self._hears = hears
        self._answers = answers
        self._max_bytes = max_bytes
        self._is_traced = False
        self._ids = itertools.count(1)
        self._session: dict[str, str] = {}
        self._pool: HttpConnectionPool | None = None
        self._standing: asyncio.Task[None] | None = None
        self.listens = asyncio.Event()

    def __repr__(self) -> str:
        return f"McpClientSession({self._url!r})"

    async def open(
        self,
        capabilities: Mapping[str, object],
        name: str,
        *,
        within: timedelta | None = None,
        listens: bool = True,
    ) -> Frame:
        """Shake hands; gives the gateway's whole answer. Raises Unavailable, MalformedMessage.

        `listens` opens the stream of notifications that belong to no call.
        """
        self._pool = new_pool(self._url)
        self._is_traced = "mgp" in capabilities
        hello = {
            "protocolVersion": VERSION,
            "capabilities": capabilities,
            "clientInfo": {"name": name, "version": version("comity")},
        }
        answer = await self.request(protocol.INITIALIZE, hello, self._hears, within=within)
        await self._post(jsonrpc.make_notification(protocol.INITIALIZED))
        if listens:
            self._standing = asyncio.create_task(self._stand())
        return answer

    async def close(self) -> None:
        if self._standing is not None:
            self._standing.cancel()
            await asyncio.gather(self._standing, return_exceptions=True)
        if self._pool is not None:
            if self._session:
                try:
                    async with (
                        asyncio.timeout(FAREWELL_SECONDS),
                        open_response(self._pool, "DELETE", self._url, self._headers()),
                    ):
                        pass
                except (Unavailable, TimeoutError):
                    log.debug("the gateway was gone before its session was ended")
            await self._pool.close()

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
        """Send a request, and give its answer; `hear` takes the notifications that come before.

        The time in which this client answers requests of the server does not count to `within`.
        Raises Unavailable, MalformedMessage.
        """
        id = self.next_id() if named is None else named
        asked = jsonrpc.make_request(id, method, dict(params))
        if self._is_traced:
            # Beside the parameters: some methods take no strange ones. (MGP §6.5)
            traced = ExtendedFrame(asked.jsonrpc, asked.id, asked.method, asked.params)
            traced.members = {"trace_id": jsonrpc.to_raw(str(uuid.uuid4()))}
            asked = traced
        seconds = None if within is None else within.total_seconds()
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._answer_to(asked, hear, PausableTimeout(limit))
        except TimeoutError:
            if method != protocol.INITIALIZE:
                await self.withdraw(id)
            raise Unavailable(f"{method} was not answered in time", TIMEOUT) from None

    async def withdraw(self, id: int) -> None:
        """Tell the server that this client does not wait for the answer any more."""
        cancelled = jsonrpc.make_notification(protocol.CANCELLED, {"requestId": id})
        with suppress(Unavailable, MalformedMessage, TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._post(cancelled)

    async def _answer_to(self, request: Frame, handler: Hear, limit: PausableTimeout) -> Frame:
        try:
            async with asyncio.TaskGroup() as group:
                replies = _Replies(group, self._post)
                answer = await self._read_answer(request, handler, limit, replies)
                # A reply that needs no person is made in one turn of the loop, and is still sent.
                await asyncio.sleep(0)
                replies.cancel_undecided()
                return answer
        except ExceptionGroup as failures:
            # The first failure has ended all others.
            raise failures.exceptions[0] from None

    async def _read_answer(
        self, request: Frame, handler: Hear, limit: PausableTimeout, replies: "_Replies"
    ) -> Frame:
        how, body, more = "POST", jsonrpc.encode_frame(request), dict[str, str]()
        while True:
            parser = SseParser(self._max_bytes)
            async for frame in self._frames(how, body, parser, more):
                if jsonrpc.is_response(frame) and frame.id == request.id:
                    return frame
                if jsonrpc.is_request(frame):
                    # Read on while a person answers: the server may withdraw its request.
                    replies.start(frame, self._reply_to(frame, limit))
                    continue
                replies.heed_cancellation(frame)
                await self._take(frame, handler)
            if not parser.last_event_id:
                break
            # The server lets its stream rest: the answer is fetched where the stream ended.
            await asyncio.sleep(RESUME_SECONDS)
            how, body, more = "GET", b"", {"last-event-id": parser.last_event_id}
        reason = f"the stream of {request.method} ended without an answer"
        raise Unavailable(reason, UPSTREAM_DOWN)

    async def api(
        self, how: str, place: str, body: Mapping[str, object] | None = None
    ) -> dict[str, Any] | AgentRefusal:
        """Ask the gateway's own API, beside MCP. Raises Unavailable, MalformedMessage."""
        assert self._pool is not None, "open it first"
        url = urljoin(self._url, f"/api/{place}")
        sent = b"" if body is None else jsonrpc.to_json(dict(body))
        headers = {**self._headers(), "accept": "application/json"}
        try:
            async with (
                asyncio.timeout(API_SECONDS),
                open_response(self._pool, how, url, headers, sent) as reply,
            ):
                is_answer = reply.content_type == "application/json"
                if not is_answer or reply.status in (401, 429):
                    raise _unavailable(reply.status)
                said = await self._body(reply)
        except TimeoutError:
            raise Unavailable("the gateway did not answer in time", UPSTREAM_DOWN) from None
        if reply.status >= 400:
            refused = refused_in(jsonrpc.decode_frame(said))
            if refused is not None:
                return refused
        return cast(
            "dict[str, Any]",
            jsonrpc.decode_value(jsonrpc.to_raw(jsonrpc.decode_members(Raw(said)))),
        )

    async def _take(self, frame: Frame, handler: Hear, limit: PausableTimeout = UNLIMITED) -> None:
        if jsonrpc.is_notification(frame):
            await handler(frame)
        if jsonrpc.is_request(frame):
            await self._post(await self._reply_to(frame, limit))

    async def _reply_to(self, frame: Frame, limit: PausableTimeout) -> Frame:
        """Return the reply to a request of the server."""
        result: Mapping[str, object] | None = None
        if self._answers is not None:
            # A person who answers may take their time.
            with limit.paused():
                result = await self._answers(frame)
        id = None if frame.id is UNSET else frame.id
        if result is None:
            reason = "this client does not answer such requests"
            return jsonrpc.make_error(id, METHOD_NOT_FOUND, reason)
        return jsonrpc.make_result(id, dict(result))

    async def _post(self, frame: Frame) -> None:
        async for _ in self._frames("POST", jsonrpc.encode_frame(frame)):
            pass

    async def _stand(self) -> None:
        """Read the stream of notifications that belong to no call, as long as the session lasts."""
        backoff, failures = RetrySchedule(timedelta(milliseconds=200), timedelta(seconds=30)), 0
        while True:
            try:
                async for frame in self._frames("GET"):
                    failures = 0
                    await self._take(frame, self._hears)
            except (Unavailable, MalformedMessage) as problem:
                if problem.fault in (NOTHING_HERE, UNAUTHENTICATED, ACCESS_DENIED):
                    log.info("No more notifications will arrive: %s", problem)
                    return
            self.listens.clear()
            failures += 1
            await asyncio.sleep(draw_delay(backoff, failures).total_seconds())

    async def _frames(
        self,
        how: str,
        body: bytes = b"",
        parser: SseParser | None = None,
        more: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Frame]:
        """The frames of a reply: one document, or a stream of them.

        Raises Unavailable, MalformedMessage.
        """
        assert self._pool is not None, "open it first"
        headers = {**self._headers(how), **(more or {})}
        async with open_response(self._pool, how, self._url, headers, body) as reply:
            if session := reply.headers.get(_SESSION):
                self._session = {_SESSION: session, "mcp-protocol-version": VERSION}
            if how == "GET" and reply.status == 200:
                self.listens.set()
            if reply.content_type == "text/event-stream":
                parser = parser or SseParser(self._max_bytes)
                async for chunk in reply.chunks():
                    for event in parser.feed(chunk):
                        if event.data:
                            yield jsonrpc.decode_frame(event.data)
                return
            # An error in JSON-RPC's words is an answer, whatever its status.
            is_answer = reply.content_type == "application/json" and reply.status not in _FAULTS
            if not is_answer and reply.status not in (200, 202):
                raise _unavailable(reply.status)
            if said := await self._body(reply):
                yield jsonrpc.decode_frame(said)

    async def _body(self, reply: HttpResponse) -> bytes:
        body = bytearray()
        async for chunk in reply.chunks():
            body += chunk
            if len(body) > self._max_bytes:
                raise MalformedMessage(f"an answer has at most {self._max_bytes} bytes")
        return bytes(body)

    def _headers(self, how: str = "POST") -> dict[str, str]:
        token = self._token if isinstance(self._token, str) else self._token()
        accepted = "text/event-stream" if how == "GET" else "application/json, text/event-stream"
        return {
            "accept": accepted,
            "content-type": "application/json",
            **self._session,
            **({"authorization": f"Bearer {token}"} if token else {}),
        }


class _Replies:
    """The replies in progress to the requests that a server sends during one call."""

    def __init__(self, group: asyncio.TaskGroup, post: Hear) -> None:
        self._group = group
        self._post = post
        # The requests that a person may still decide about.
        self._tasks: dict[asyncio.Task[None], object] = {}

    def start(self, request: Frame, reply: Coroutine[Any, Any, Frame]) -> None:
        if len(self._tasks) >= MAX_OPEN_REQUESTS:
            reply.close()
            raise MalformedMessage(f"a server has at most {MAX_OPEN_REQUESTS} open requests")
        task = self._group.create_task(self._send(reply))
        self._tasks[task] = request.id

    async def _send(self, reply: Coroutine[Any, Any, Frame]) -> None:
        task = asyncio.current_task()
        try:
            frame = await reply
        finally:
            if task is not None:
                self._tasks.pop(task, None)
        await self._post(frame)

    def heed_cancellation(self, frame: Frame) -> None:
        """Cancel the reply to a request that this notification withdraws, if it is one."""
        if frame.method == protocol.CANCELLED:
            id = jsonrpc.decode_scalar(frame.parameters.get("requestId"))
            for task in [task for task, request_id in self._tasks.items() if request_id == id]:
                task.cancel()

    def cancel_undecided(self) -> None:
        """Cancel what waits for a person: after the answer of the call, no reply has an effect."""
        for task in list(self._tasks):
            task.cancel()


def _unavailable(status: int) -> Unavailable:
    fault, advice = _FAULTS.get(status, (UPSTREAM_DOWN, "try again later"))
    return Unavailable(f"the gateway answered {status}: {advice}", fault)
