"""The transport to an HTTP API that an OpenAPI document describes.

It answers MCP messages in this process. The handshake and the list of tools come from the compiled
document, and a tool call becomes one HTTP request. Everything above sees an ordinary server.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from msgspec import Raw

from comity.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UPSTREAM_DOWN,
    UPSTREAM_SLOW,
    MalformedMessage,
    Misconfigured,
    Unavailable,
)
from comity.http.client.client import await_response, open_response
from comity.http.client.dial import HttpOrigin, header_line, request_head
from comity.http.client.pool import HttpConnectionPool
from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import LIMITS, UNSET, Frame, FrameLimits
from comity.mcp.protocol import Era, Stream
from comity.servers.openapi.compiler import CompileJob, compile_apart, make_compiler
from comity.servers.openapi.document import MAX_DOCUMENT_BYTES
from comity.servers.openapi.operations import ApiOperation, CompiledApi
from comity.servers.openapi.requests import OperationRequest, write_request
from comity.servers.openapi.results import error_result, read_response
from comity.servers.openapi.security import ApiCredentials
from comity.sessions.upstream import TransportListener, UpstreamTransport
from comity.telemetry.tracing import Headers
from comity.toolkit.text import escape_unsafe
from comity.toolkit.worker_process import SideProcess

log = logging.getLogger(__name__)

FETCH_SECONDS: Final = 30.0
MAX_CONCURRENT_CALLS: Final = 256
USER_AGENT: Final = "comity"
_TRACE_HEADERS: Final = frozenset({b"traceparent", b"tracestate"})
# The statuses of a gateway whose API is away, as opposed to one operation that failed.
_AWAY: Final = frozenset({502, 503, 504})
_ACCEPT: Final = "application/json, */*;q=0.5"


@dataclass(frozen=True, slots=True, repr=False)
class OpenApiSource:
    """The settings of a server that an OpenAPI document describes."""

    document: str
    url: str
    headers: Mapping[str, str]
    auth: Mapping[str, str]
    operations: tuple[str, ...]
    timeout: timedelta = timedelta(minutes=5)

    @property
    def is_remote(self) -> bool:
        return self.document.startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True, repr=False)
class OpenApiClient:
    """A loaded document, its list of tools in pages, and where its requests go."""

    api: CompiledApi
    pages: tuple[bytes, ...]
    origin: HttpOrigin
    base_path: str
    pool: HttpConnectionPool
    credentials: ApiCredentials
    headers: tuple[tuple[str, str], ...]


class OpenApiTransportFactory:
    """Creates transports to one API. They share the document, which is read at each start."""

    starts_process = False

    def __init__(
        self,
        source: OpenApiSource,
        pool: HttpConnectionPool,
        public_pool: HttpConnectionPool,
        limits: FrameLimits = LIMITS,
    ) -> None:
        self.source = source
        self.limits = limits
        self._pool = pool.separate()
        # A URL that the document names, and not the operator, must lead to a public address.
        self._public_pool = public_pool.separate()
        self._users = 0
        self._loading: asyncio.Task[OpenApiClient] | None = None
        for name, value in source.headers.items():
            header_line(name, value)
        if source.url:
            HttpOrigin.of(source.url)

    def create_transport(self, era: Era) -> UpstreamTransport:
        return OpenApiTransport(self, era)

    async def acquire(self) -> OpenApiClient:
        """Return the loaded document. The first user loads it. Raises Unavailable."""
        self._users += 1
        try:
            if self._loading is None:
                self._loading = asyncio.get_running_loop().create_task(self._load())
            return await asyncio.shield(self._loading)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Forget the document once it has no user, so that the next start reads it again."""
        self._users -= 1
        if not self._users and self._loading is not None:
            if not self._loading.done():
                self._loading.cancel()
            self._loading = None

    async def _load(self) -> OpenApiClient:
        source = self.source
        data = await self._fetch() if source.is_remote else await asyncio.to_thread(self._read)
        process = make_compiler()
        try:
            # The thread waits for the process that compiles the document.
            return await asyncio.to_thread(self._compile, data, process)
        except asyncio.CancelledError:
            process.close()
            raise
        except (MalformedMessage, Misconfigured) as error:
            raise self._error(str(error)) from None

    def _compile(self, data: bytes, process: SideProcess) -> OpenApiClient:
        source = self.source
        api = compile_apart(
            CompileJob(
                data,
                source.operations,
                source.document if source.is_remote else "",
                tuple(source.headers),
            ),
            process,
        )
        for reason in api.skipped:
            log.info("OpenAPI document %s: skipped %s", self._shown, escape_unsafe(reason))
        credentials = ApiCredentials.of(api.schemes, source.auth, source.headers)
        if not source.url and (source.auth or source.headers):
            raise MalformedMessage(
                "a server with `auth` or `headers` needs a `url`, so that the document does not "
                f"decide where credentials go; the document names {escape_unsafe(api.url):.200}"
            )
        if not source.url and not api.url:
            raise MalformedMessage("it names no server; set `url`")
        origin, target = HttpOrigin.of(source.url or api.url)
        headers = {"accept": _ACCEPT, "user-agent": USER_AGENT}
        given = {name.lower() for name in source.headers}
        headers = {name: each for name, each in headers.items() if name not in given}
        return OpenApiClient(
            api,
            tuple(_make_pages(api, self.limits)),
            origin,
            target.partition("?")[0].rstrip("/"),
            self._pool if source.url else self._public_pool,
            credentials,
            (*headers.items(), *source.headers.items()),
        )

    async def _fetch(self) -> bytes:
        """Return the document at its URL. Credentials are not sent there."""
        try:
            async with (
                asyncio.timeout(FETCH_SECONDS),
                open_response(
                    self._pool, "GET", self.source.document, {"user-agent": USER_AGENT}
                ) as response,
            ):
                if response.status != 200:
                    raise self._error(f"HTTP {response.status} instead of the document")
                return await response.read(MAX_DOCUMENT_BYTES)
        except TimeoutError:
            raise self._error("it took too long to fetch") from None
        except Misconfigured as error:
            raise self._error(str(error)) from None

    def _read(self) -> bytes:
        path = Path(self.source.document).expanduser()
        try:
            if not path.is_file():
                raise self._error("there is no such file")
            with path.open("rb") as file:
                return file.read(MAX_DOCUMENT_BYTES + 1)
        except OSError as error:
            raise self._error(error.strerror or "it cannot be read") from None

    @property
    def _shown(self) -> str:
        """The place of the document. The tail of a URL may hold a secret, so it is not shown."""
        if not self.source.is_remote:
            return self.source.document[-200:]
        return f"at {self.source.document.partition('://')[2].partition('/')[0].rpartition('@')[2]}"

    def _error(self, reason: str) -> Unavailable:
        return Unavailable(f"OpenAPI document {self._shown}: {reason}", UPSTREAM_DOWN)


def _make_pages(api: CompiledApi, limits: FrameLimits) -> list[bytes]:
    """Return the results of `tools/list`, each within the limits of a message."""
    most_bytes, most_values = limits.frame_bytes // 4, limits.values // 2
    pages: list[list[bytes]] = [[]]
    size = values = 0
    for operation in api.operations.values():
        definition = operation.definition
        count = sum(definition.count(sign) for sign in (b",", b"{", b"["))
        if pages[-1] and (size + len(definition) > most_bytes or values + count > most_values):
            pages.append([])
            size = values = 0
        pages[-1].append(definition)
        size, values = size + len(definition), values + count
    last = len(pages) - 1
    return [
        b'{"tools":[%b]%b}' % (b",".join(page), b"" if number == last else _cursor(number + 1))
        for number, page in enumerate(pages)
    ]


def _cursor(number: int) -> bytes:
    return b',"nextCursor":"%d"' % number


class OpenApiTransport:
    """One connection. It holds no state but its open calls."""

    has_separate_streams = True
    has_exited_cleanly = False

    def __init__(self, transport_factory: OpenApiTransportFactory, era: Era) -> None:
        self._transport_factory = transport_factory
        self._era = era
        self._client: OpenApiClient | None = None
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._listener: TransportListener

    async def open(self, listener: TransportListener) -> None:
        if self._era is Era.MODERN:
            raise Unavailable("an OpenAPI server is reached by MCP 2025-11-25")
        self._listener = listener
        self._client = await self._transport_factory.acquire()

    def send(self, frame: Frame, stream: Stream, headers: Headers = ()) -> None:
        client = self._client
        if client is None:
            raise Unavailable("the connection is closed", UPSTREAM_DOWN)
        if not stream or frame.id is UNSET or frame.id is None:
            return
        loop = asyncio.get_running_loop()
        if frame.method == protocol.CALL_TOOL:
            if len(self._calls) >= MAX_CONCURRENT_CALLS:
                raise Unavailable("the server has too many open calls", UPSTREAM_DOWN)
            trace = tuple(each for each in headers if each[0] in _TRACE_HEADERS)
            task = loop.create_task(self._call(client, frame, stream, trace))
            self._calls[stream] = task
            task.add_done_callback(lambda _: self._calls.pop(stream, None))
            return
        answer = _answer(client, frame)
        # Scheduled, because the caller registers its request around this method.
        loop.call_soon(self._deliver, answer, stream)

    def set_version(self, version: str) -> None:
        """Do nothing: no message here repeats the version."""

    def listen(self) -> None:
        """Do nothing: an API sends no messages of its own."""

    def pause(self, stream: Stream) -> None:
        """Do nothing: an answer is one message."""

    def resume(self, stream: Stream) -> None: ...

    def drop_stream(self, stream: Stream) -> None:
        task = self._calls.pop(stream, None) if stream else None
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        if self._client is None:
            return
        self._client = None
        calls = list(self._calls.values())
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        self._transport_factory.release()

    def stderr_lines(self) -> Sequence[str]:
        return ()

    def _deliver(self, answer: Frame, stream: int) -> None:
        if self._client is not None:
            self._listener.on_message(jsonrpc.encode_frame(answer), stream, 200)

    async def _call(self, client: OpenApiClient, frame: Frame, stream: int, trace: Headers) -> None:
        try:
            self._deliver(await self._answer_call(client, frame, trace), stream)
        except Unavailable as error:
            self._listener.on_failure(str(error), True)
            self._listener.on_stream_ended(stream, error)
        except Exception:
            # A bug, whose task reports it. Its caller must not wait for an answer.
            self._listener.on_stream_ended(stream, Unavailable("the call failed in the gateway"))
            raise

    async def _answer_call(self, client: OpenApiClient, frame: Frame, trace: Headers) -> Frame:
        assert frame.id is not UNSET
        name = jsonrpc.decode_text(frame.parameters.get("name"))
        operation = client.api.operations.get(name or "")
        if operation is None:
            return jsonrpc.make_error(frame.id, INVALID_PARAMS, f"no tool {name!r:.80}")
        try:
            request = write_request(
                operation,
                frame.arguments,
                client.base_path,
                client.credentials.choose(operation.security),
            )
        except MalformedMessage as error:
            return jsonrpc.make_result(frame.id, error_result(str(error)))
        result = await self._exchange(client, operation, request, trace)
        answer = jsonrpc.make_result(frame.id, result)
        limit = self._transport_factory.limits.frame_bytes
        if isinstance(answer.result, Raw) and len(answer.result) > limit - 1024:
            return jsonrpc.make_result(frame.id, error_result(_too_large(limit)))
        return answer

    async def _exchange(
        self,
        client: OpenApiClient,
        operation: ApiOperation,
        request: OperationRequest,
        trace: Headers,
    ) -> dict[str, Any]:
        limits = self._transport_factory.limits
        try:
            head = request_head(
                request.method,
                request.target,
                client.origin,
                _merge_headers(client.headers, request.headers),
            )
        except Misconfigured as error:
            return error_result(str(error))
        for name, value in trace:
            head += b"%b: %b\r\n" % (name, value)
        try:
            async with (
                asyncio.timeout(self._transport_factory.source.timeout.total_seconds()),
                await_response(client.pool, client.origin, head, request.body) as response,
            ):
                body = bytearray()
                async for chunk in response.chunks():
                    body += chunk
                    if len(body) > limits.frame_bytes // 3:
                        return error_result(_too_large(limits.frame_bytes // 3))
        except TimeoutError:
            raise Unavailable("the API did not answer in time", UPSTREAM_SLOW) from None
        if response.status in _AWAY:
            self._listener.on_failure(f"the API answered HTTP {response.status}", True)
        return read_response(
            response.status,
            response.content_type,
            client.credentials.redact(bytes(body)),
            limits,
            needs_object=operation.has_output_schema,
        )


def _too_large(limit: int) -> str:
    return f"the answer of the API has over {limit} bytes; ask for less, such as a smaller page"


def _merge_headers(
    fixed: Sequence[tuple[str, str]], own: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return all headers. A header of the operator wins over the same header of a request."""
    given = {name.lower() for name, _ in fixed}
    cookies = "; ".join(value for name, value in (*fixed, *own) if name.lower() == "cookie")
    found = [each for each in fixed if each[0].lower() != "cookie"]
    found += [each for each in own if each[0].lower() not in given | {"cookie"}]
    return [*found, ("cookie", cookies)] if cookies else found


def _answer(client: OpenApiClient, frame: Frame) -> Frame:
    """Answer every request but a tool call."""
    assert frame.id is not UNSET
    if frame.method == protocol.INITIALIZE:
        return jsonrpc.make_result(
            frame.id,
            {
                "protocolVersion": protocol.LATEST_HANDSHAKE,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": client.api.title, "version": client.api.version},
            },
        )
    if frame.method == protocol.PING:
        return jsonrpc.make_result(frame.id, {})
    if frame.method == protocol.LIST_TOOLS:
        try:
            cursor = jsonrpc.decode_text(frame.parameters.get("cursor")) or "0"
        except MalformedMessage:
            cursor = ""
        if cursor.isdecimal() and len(cursor) < 6 and int(cursor) < len(client.pages):
            return jsonrpc.make_result(frame.id, Raw(client.pages[int(cursor)]))
        return jsonrpc.make_error(frame.id, INVALID_PARAMS, "the cursor is unknown")
    return jsonrpc.make_error(frame.id, METHOD_NOT_FOUND, f"no method {frame.method!r:.80}")
