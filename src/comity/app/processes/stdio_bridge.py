"""`comity serve --stdio`: connects a client on stdin and stdout to the running gateway."""

import asyncio
import fcntl
import logging
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from comity.app.checks.machine import check_port
from comity.app.processes.idle_shutdown import acquire_gateway
from comity.app.settings_reader import ConfigSource, LoadedConfig, read_config_file
from comity.cli.api_client import GatewayRecord, find_gateway, record_file
from comity.config.environment import read_variable
from comity.config.files import config_id, prepare_state_folder
from comity.errors import (
    HEADER_MISMATCH,
    INVALID_REQUEST,
    UNSUPPORTED_VERSION,
    UPSTREAM_DOWN,
    MalformedMessage,
    Misconfigured,
    Unavailable,
)
from comity.http.client.pool import HttpConnectionPool
from comity.http.client.sync_client import SYNC_ERRORS, connect_sync, request_sync
from comity.mcp import jsonrpc, modern_requests, protocol
from comity.mcp.framing import NEWLINE, RETURN, LineSplitter, OverlongLine
from comity.mcp.jsonrpc import UNSET, Frame, FrameLimits, Id
from comity.mcp.modern_requests import envelope_of, refuse_envelope
from comity.mcp.protocol import Era, Stream, encode_header_value
from comity.servers.transports.http import HttpTransport, HttpTransportFactory

log = logging.getLogger(__name__)

MCP_PATH: Final = "/mcp"
READ_CHUNK_BYTES: Final = 256 * 1024
FINAL_WRITE_SECONDS: Final = 2.0
HANDSHAKE_TIMEOUT_SECONDS: Final = 30.0
MAX_UNREAD_BYTES: Final = 8 * 1024 * 1024
MAX_LIST_PAGES: Final = 100
_tool_list_decoder: Final = msgspec.json.Decoder(list[Raw])


class GatewayLocation(NamedTuple):
    """The URL of a gateway, its credential, its start time, and the path of its log."""

    url: str
    credential: str
    started: str
    log: str = ""


type Find = Callable[[], Awaitable[GatewayLocation]]
"""Finds the gateway. Raises Unavailable or Misconfigured if there is none."""


@dataclass(eq=False, slots=True)
class BridgeRequest:
    """One request in progress. A request of the bridge itself has a future for the answer."""

    frame: Frame
    answer_future: asyncio.Future[Frame] | None = None
    is_retry: bool = False
    stream: int = 0
    has_begun: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def id(self) -> Id:
        found = self.frame.id
        assert isinstance(found, int | str)
        return found


class StdioBridge:
    """Connects one client on stdin and stdout to the gateway."""

    def __init__(
        self,
        locate_gateway: Find,
        writer: asyncio.StreamWriter,
        limits: FrameLimits,
        path: str = MCP_PATH,
    ) -> None:
        self._locate_gateway = locate_gateway
        self._path = path
        self._limits = limits
        self._stdio_writer = _StdioWriter(writer, self._throttle_streams)
        self._pool = HttpConnectionPool()
        self._era: Era | None = None
        self._is_era_certain = False
        self._location: GatewayLocation | None = None
        self._transport: HttpTransport | None = None
        self._is_gateway_uncertain = False
        self._initialize_frame: Frame | None = None
        self._is_initialized = False
        self._own_ids = count(1)
        self._request_by_stream: dict[int, BridgeRequest] = {}
        self._request_by_client_id: dict[Id, BridgeRequest] = {}
        self._header_arguments_by_tool: dict[str, tuple[modern_requests.HeaderArgument, ...]] = {}
        self._retry_tasks: set[asyncio.Task[None]] = set()

    async def run(self, reader: asyncio.StreamReader, splitter: LineSplitter) -> None:
        """Serve the client until it closes its input, or stops reading."""
        reading = asyncio.ensure_future(self._read(reader, splitter))
        writing = asyncio.ensure_future(self._stdio_writer.run())
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
        finally:
            reading.cancel()
            for task in self._retry_tasks:
                task.cancel()
            await self._disconnect()
            await self._pool.close()
            await self._stdio_writer.finish(writing)

    async def _disconnect(self) -> None:
        self._request_by_stream.clear()
        self._request_by_client_id.clear()
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    # Messages from the client.

    async def _read(self, reader: asyncio.StreamReader, splitter: LineSplitter) -> None:
        while chunk := await reader.read(READ_CHUNK_BYTES):
            for line in splitter.feed(chunk):
                await self._handle_line(line)

    async def _handle_line(self, line: bytes | OverlongLine) -> None:
        if isinstance(line, OverlongLine):
            self._refuse(None, MalformedMessage("the message is too long", INVALID_REQUEST))
            return
        asked: Id | None = None
        try:
            frame = jsonrpc.decode_frame(line, self._limits)
            if frame.method is UNSET or frame.id is UNSET:
                await self._forward_message(frame)
            else:
                asked = BridgeRequest(frame).id
                await self._forward_request(frame, asked)
        except (MalformedMessage, Unavailable) as error:
            self._refuse(asked, error)
        except Misconfigured as error:
            self._refuse(asked, Unavailable(str(error), UPSTREAM_DOWN))

    async def _forward_message(self, frame: Frame) -> None:
        """Forward a notification, or the response to a request of the gateway."""
        cancelled = self._cancelled(frame) if frame.method == protocol.CANCELLED else None
        if self._era is Era.MODERN:
            # In this version of MCP a client may send no notification but a cancellation, and it
            # cancels by closing the stream.
            if cancelled is not None and self._transport is not None:
                self._transport.drop_stream(cancelled.stream)
        elif self._is_initialized:
            transport = await self._connect(Era.HANDSHAKE)
            transport.send(frame, protocol.UNKNOWN)
            await self._flush_notifications(transport)

    def _cancelled(self, frame: Frame) -> BridgeRequest | None:
        """Return the request that the client cancelled, which gets no response from now on."""
        named = jsonrpc.decode_value(frame.parameters.get("requestId", Raw(b"null")))
        if not isinstance(named, int | str) or isinstance(named, bool):
            return None
        return self._end_request(self._request_by_client_id.get(named))

    async def _forward_request(self, frame: Frame, id: Id) -> None:
        if id in self._request_by_client_id:
            raise MalformedMessage(f"id {id!r} is already in use", INVALID_REQUEST)
        era = await self._era_of(frame)
        if self._is_answered_here(frame, id, era):
            return
        transport = await self._connect(era)
        asked = self._send(transport, BridgeRequest(frame))
        if frame.method == protocol.INITIALIZE:
            # The messages that follow belong to the session that this response names.
            with suppress(TimeoutError):
                async with asyncio.timeout(HANDSHAKE_TIMEOUT_SECONDS):
                    await asked.ended.wait()
        else:
            await self._flush_notifications(transport)

    async def _era_of(self, frame: Frame) -> Era:
        """Return the protocol era of the client, as known from its requests up to this one."""
        if (
            self._era is Era.MODERN
            and not self._is_era_certain
            and frame.method == protocol.INITIALIZE
        ):
            await self._disconnect()
            self._era = None
        if self._era is None:
            self._era = Era.HANDSHAKE if envelope_of(frame) is None else Era.MODERN
        self._is_era_certain = self._is_era_certain or frame.method != protocol.DISCOVER
        return self._era

    def _is_answered_here(self, frame: Frame, id: Id, era: Era) -> bool:
        """Return whether the bridge answered a request itself. Raises MalformedMessage."""
        if era is Era.HANDSHAKE:
            if self._is_initialized or frame.method == protocol.INITIALIZE:
                return False
            if frame.method != protocol.PING:
                raise MalformedMessage("begin with initialize", INVALID_REQUEST)
            self._stdio_writer.put(jsonrpc.encode_frame(jsonrpc.make_result(id, {})))
            return True
        if frame.method == protocol.INITIALIZE:
            raise MalformedMessage("this connection speaks 2026-07-28", UNSUPPORTED_VERSION)
        refusal = refuse_envelope(frame, None)
        if refusal is not None:
            told = jsonrpc.make_error(id, refusal.fault, refusal.reason, refusal.data or {})
            self._stdio_writer.put(jsonrpc.encode_frame(told))
        return refusal is not None

    # The connection to the gateway.

    async def _connect(self, era: Era) -> HttpTransport:
        """Return the connection to the gateway that runs now. Raises Unavailable."""
        if self._transport is not None and not self._is_gateway_uncertain:
            return self._transport
        place = await self._locate_gateway()
        self._is_gateway_uncertain = False
        if self._transport is None or place != self._location:
            await self._disconnect()
            headers = {"authorization": f"Bearer {place.credential}"} if place.credential else {}
            factory = HttpTransportFactory(
                self._pool, f"{place.url}{self._path}", headers, self._limits
            )
            transport = HttpTransport(factory, self._pool, era, self._limits)
            await transport.open(self)
            self._location, self._transport = place, transport
            if self._initialize_frame is not None:
                await self._reinitialize(transport, self._initialize_frame)
        return self._transport

    async def _reinitialize(self, transport: HttpTransport, initialize: Frame) -> None:
        answer = await self._send_own_request(transport, initialize)
        if answer.result is UNSET:
            raise Unavailable("the gateway that runs now does not open a session for this client")
        transport.send(jsonrpc.make_notification(protocol.INITIALIZED), protocol.UNKNOWN)
        await self._flush_notifications(transport)

    async def _send_own_request(self, transport: HttpTransport, frame: Frame) -> Frame:
        """Return the response to a request of the bridge itself. Raises Unavailable."""
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._send(transport, BridgeRequest(frame, answer))
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_SECONDS):
            return await answer

    def _send(self, transport: HttpTransport, bridge_request: BridgeRequest) -> BridgeRequest:
        bridge_request.stream = next(self._own_ids)
        self._request_by_stream[bridge_request.stream] = bridge_request
        if bridge_request.answer_future is None:
            self._request_by_client_id[bridge_request.id] = bridge_request
        try:
            transport.send(
                bridge_request.frame,
                bridge_request.stream,
                tuple(self._headers(bridge_request.frame)),
            )
        except Unavailable:
            self._end_request(bridge_request)
            raise
        if self._stdio_writer.is_full:
            transport.pause(bridge_request.stream)
        return bridge_request

    def _headers(self, frame: Frame) -> Iterator[tuple[bytes, bytes]]:
        """Yield the headers in which a modern request repeats parts of its body."""
        if self._era is not Era.MODERN:
            return
        method, params = str(frame.method), frame.parameters
        yield protocol.METHOD_HEADER, method.encode()
        named = jsonrpc.decode_text(params.get(protocol.NAME_PARAM_OF.get(method, "")))
        if named is not None:
            yield protocol.NAME_HEADER, encode_header_value(named)
        marks = (
            self._header_arguments_by_tool.get(named or "", ())
            if method == protocol.CALL_TOOL
            else ()
        )
        if marks and "arguments" in params:
            yield from modern_requests.headers_for(marks, jsonrpc.decode_value(params["arguments"]))

    async def _flush_notifications(self, transport: HttpTransport) -> None:
        with suppress(TimeoutError):
            await transport.flush()

    # Messages from the gateway.

    def on_message(self, data: bytes, stream: Stream, status: int) -> bool:
        asked = self._request_by_stream.get(stream) if stream else None
        try:
            frame = jsonrpc.decode_frame(data, self._limits)
        except MalformedMessage as error:
            log.warning("The gateway sent an invalid message: %s", error)
            return True
        if frame.method is not UNSET:
            if asked is not None or not stream:
                self._stdio_writer.put(data)
        elif asked is not None:
            self._on_answer(asked, frame, data)
        return True

    def _on_answer(self, bridge_request: BridgeRequest, frame: Frame, data: bytes) -> None:
        self._end_request(bridge_request)
        if bridge_request.frame.method == protocol.INITIALIZE and frame.result is not UNSET:
            self._record_session(bridge_request.frame, frame)
        elif bridge_request.frame.method == protocol.LIST_TOOLS and frame.result is not UNSET:
            self._remember_headers(frame.result)
        if bridge_request.answer_future is not None:
            if not bridge_request.answer_future.done():
                bridge_request.answer_future.set_result(frame)
        elif self._lacks_headers(bridge_request, frame):
            task = asyncio.ensure_future(self._retry_with_headers(bridge_request, data))
            self._retry_tasks.add(task)
            task.add_done_callback(self._retry_tasks.discard)
        else:
            same = frame.id == bridge_request.id and type(frame.id) is type(bridge_request.id)
            self._stdio_writer.put(
                data if same else jsonrpc.encode_frame(jsonrpc.with_id(frame, bridge_request.id))
            )

    def _record_session(self, initialize: Frame, answer: Frame) -> None:
        """Record that a session is open."""
        self._initialize_frame, self._is_initialized = initialize, True
        assert isinstance(answer.result, Raw)
        version = jsonrpc.decode_text(jsonrpc.decode_members(answer.result).get("protocolVersion"))
        if self._transport is not None:
            self._transport.set_version(version or protocol.LATEST_HANDSHAKE)
            self._transport.listen()

    def on_stream_ended(self, stream: Stream, because: Unavailable | None) -> None:
        asked = self._end_request(self._request_by_stream.get(stream) if stream else None)
        if asked is None:
            return
        said = "the gateway went away before it had answered; whether it did this is unknown"
        if because is not None and not asked.has_begun:
            said = str(because)
        if self._location is not None and self._location.log:
            said += f" (the log of a gateway that was started for clients is {self._location.log})"
        error = Unavailable(said, UPSTREAM_DOWN if because is None else because.fault)
        if asked.answer_future is None:
            self._refuse(asked.id, error)
        elif not asked.answer_future.done():
            asked.answer_future.set_exception(error)

    def is_for_caller(self, stream: Stream) -> bool:
        return True

    def is_awaited(self, stream: Stream) -> bool:
        return stream in self._request_by_stream

    def on_failure(self, reason: str, is_in_call: bool) -> None:
        """Note that the gateway may have ended. The bridge looks for it before the next message."""
        self._is_gateway_uncertain = True

    def on_stream_opened(self, stream: Stream) -> None:
        if stream in self._request_by_stream:
            self._request_by_stream[stream].has_begun = True

    def on_stream_suspended(self, stream: Stream) -> None:
        """Do nothing: the transport resumes the stream by itself."""

    def on_session_renewed(self) -> None:
        """Do nothing: the gateway lost the session, and the state of the session with it."""

    def on_closed(self, reason: str) -> None:
        """Do nothing: an HTTP connection has no end of its own."""

    def _end_request(self, bridge_request: BridgeRequest | None) -> BridgeRequest | None:
        if bridge_request is not None:
            bridge_request.ended.set()
            self._request_by_stream.pop(bridge_request.stream, None)
            if self._request_by_client_id.get(bridge_request.id) is bridge_request:
                del self._request_by_client_id[bridge_request.id]
        return bridge_request

    def _refuse(self, id: Id | None, error: MalformedMessage | Unavailable) -> None:
        self._stdio_writer.put(
            jsonrpc.encode_frame(jsonrpc.make_error(id, error.fault, str(error)))
        )

    def _throttle_streams(self, is_full: bool) -> None:
        """Pause or resume the streams from the gateway, as fast as the client reads."""
        transport = self._transport
        if transport is not None:
            for stream in self._request_by_stream:
                (transport.pause if is_full else transport.resume)(stream)

    # Arguments that the HTTP transport repeats in headers and stdio does not.

    def _remember_headers(self, result: Raw) -> None:
        """Remember which arguments of these tools HTTP requests must repeat in headers."""
        if modern_requests.MARK.encode() not in bytes(result):
            return
        with suppress(MalformedMessage, msgspec.DecodeError):
            for definition in _tool_list_decoder.decode(
                jsonrpc.decode_members(result).get("tools", b"[]")
            ):
                name = jsonrpc.decode_text(jsonrpc.decode_members(definition).get("name"))
                if name is not None:
                    self._header_arguments_by_tool[name] = modern_requests.marks_in(
                        bytes(definition)
                    )

    def _lacks_headers(self, bridge_request: BridgeRequest, answer: Frame) -> bool:
        """Return whether the gateway refused a call before running it, for missing headers."""
        if self._era is not Era.MODERN or answer.error is UNSET or bridge_request.is_retry:
            return False
        if bridge_request.frame.method != protocol.CALL_TOOL:
            return False
        assert isinstance(answer.error, Raw)
        code = jsonrpc.decode_value(jsonrpc.decode_members(answer.error).get("code", Raw(b"0")))
        return code == HEADER_MISMATCH.code

    async def _retry_with_headers(self, bridge_request: BridgeRequest, refusal: bytes) -> None:
        """List the tools, then send the call again with the headers that it needs."""
        transport = self._transport
        again = BridgeRequest(bridge_request.frame, is_retry=True)
        self._request_by_client_id[bridge_request.id] = again
        try:
            if transport is None or not await self._find_tool_headers(
                transport, bridge_request.frame
            ):
                self._end_request(again)
                self._stdio_writer.put(refusal)
            elif self._request_by_client_id.get(bridge_request.id) is again:
                self._send(transport, again)
        except (Unavailable, TimeoutError) as error:
            self._end_request(again)
            self._refuse(bridge_request.id, Unavailable(str(error)))

    async def _find_tool_headers(self, transport: HttpTransport, frame: Frame) -> bool:
        """Return whether a tool of this name exists. The bridge then knows its headers."""
        params = frame.parameters
        wanted, cursor = jsonrpc.decode_text(params.get("name")) or "", {}
        for page in range(MAX_LIST_PAGES):
            said = {"_meta": params["_meta"], **cursor}
            listed = await self._send_own_request(
                transport, jsonrpc.make_request(page, protocol.LIST_TOOLS, said)
            )
            if wanted in self._header_arguments_by_tool or listed.result is UNSET:
                break
            assert isinstance(listed.result, Raw)
            following = jsonrpc.decode_members(listed.result).get("nextCursor")
            if following is None:
                break
            cursor = {"cursor": following}
        return wanted in self._header_arguments_by_tool


class _StdioWriter:
    """The ordered queue of messages to the client."""

    def __init__(self, writer: asyncio.StreamWriter, on_pressure: Callable[[bool], None]) -> None:
        self._writer = writer
        self._on_pressure = on_pressure
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._unread_bytes = 0
        self.is_full = False

    def put(self, data: bytes) -> None:
        """Queue one message on one line. A line end inside JSON is only white space."""
        if NEWLINE in data or RETURN in data:
            data = data.replace(b"\n", b" ").replace(b"\r", b" ")
        self._unread_bytes += len(data)
        self._queue.put_nowait(data)
        if self._unread_bytes > MAX_UNREAD_BYTES and not self.is_full:
            self.is_full = True
            self._on_pressure(True)

    async def run(self) -> None:
        """Write until `finish` is called, or until the client stops reading."""
        with suppress(ConnectionError):
            while (data := await self._queue.get()) is not None:
                self._writer.write(data + b"\n")
                await self._writer.drain()
                self._unread_bytes -= len(data)
                if self.is_full and self._unread_bytes < MAX_UNREAD_BYTES // 2:
                    self.is_full = False
                    self._on_pressure(False)

    async def finish(self, writing: "asyncio.Task[None]") -> None:
        """Write the remaining messages, unless the client no longer reads."""
        self._queue.put_nowait(None)
        await asyncio.wait((writing,), timeout=FINAL_WRITE_SECONDS)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


START_TIMEOUT_SECONDS: Final = 90.0
READY_TIMEOUT_SECONDS: Final = 5.0
"""How long clients wait for a new gateway to try each of its servers."""

IDLE_SECONDS: Final = 600.0
IDLE_VARIABLE: Final = "COMITY_IDLE_SECONDS"
_LOG_LINES: Final = 20
_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class GatewayLaunchOptions:
    """The configuration of the gateway, and the arguments of `comity serve` that start it."""

    config: Path
    folder: Path
    # Called only when a gateway starts, because it looks for a free port at that moment.
    arguments: Callable[[], Sequence[str]]

    @property
    def log(self) -> Path:
        """The log file of a gateway that the bridge starts."""
        return prepare_state_folder("logs") / f"{config_id(self.config)}.log"


@dataclass(frozen=True, slots=True)
class JoinedGateway:
    """A gateway that keeps running while the handle on its record is open."""

    record: GatewayRecord
    handle: int

    def release(self) -> None:
        os.close(self.handle)


def join_or_start(launch_options: GatewayLaunchOptions) -> JoinedGateway:
    """Return the one gateway of this configuration. Starts it if needed. Raises Unavailable."""
    joined = _join_recorded(launch_options.config)
    if joined is None:
        with _startup_lock(launch_options):
            joined = _join_running(launch_options) or _start_gateway(launch_options)
    _await_ready(joined.record.url)
    return joined


def _join_running(launch_options: GatewayLaunchOptions) -> JoinedGateway | None:
    """Return the running gateway, or None. Waits for a gateway that is about to end."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while (record := find_gateway(launch_options.config)) is not None:
        if (joined := _join_recorded(launch_options.config)) is not None:
            return joined
        if time.monotonic() > deadline:
            raise Unavailable(f"the gateway at {record.url} does not end; end process {record.pid}")
        time.sleep(_POLL_SECONDS)
    return None


def _join_recorded(config: Path) -> JoinedGateway | None:
    record = find_gateway(config)
    handle = None if record is None else acquire_gateway(record_file(record))
    if record is None or handle is None:
        return None
    if find_gateway(config) != record:
        # Another gateway has replaced it in the meantime.
        os.close(handle)
        return None
    return JoinedGateway(record, handle)


@contextmanager
def _startup_lock(launch_options: GatewayLaunchOptions) -> Generator[None]:
    """Hold a lock so that no other process starts a gateway or takes the free port."""
    lock = prepare_state_folder() / "starting.lock"
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        _await_lock(
            handle, f"another process is still starting the gateway; see {launch_options.log}"
        )
        yield
    finally:
        os.close(handle)


def _await_lock(handle: int, error_text: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS + READY_TIMEOUT_SECONDS
    while True:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > deadline:
            raise Unavailable(error_text)
        time.sleep(_POLL_SECONDS)


def _start_gateway(launch_options: GatewayLaunchOptions) -> JoinedGateway:
    arguments = launch_options.arguments()
    try:
        return _launch_gateway(launch_options, arguments)
    except Unavailable:
        # Another process may have taken the port in the meantime.
        again = launch_options.arguments()
        if again == arguments:
            raise
        return _launch_gateway(launch_options, again)


def _launch_gateway(
    launch_options: GatewayLaunchOptions, arguments: Sequence[str]
) -> JoinedGateway:
    idle = os.environ.get(IDLE_VARIABLE) or str(IDLE_SECONDS)
    command = [sys.executable, "-m", "comity.cli", "serve", *arguments]
    # The gateway must not inherit the key of one client.
    environ = {name: value for name, value in os.environ.items() if name != "COMITY_KEY"}
    with _new_log(launch_options.log) as written:
        process = subprocess.Popen(
            [*command, "--end-when-idle", idle],
            cwd=launch_options.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while (joined := _join_recorded(launch_options.config)) is None:
        if process.poll() is not None:
            raise Unavailable(
                f"the gateway did not start: {_last_log_lines(launch_options.log)}\n"
                f"Its log is {launch_options.log}"
            )
        if time.monotonic() > deadline:
            process.terminate()
            raise Unavailable(f"the gateway did not start in time; its log is {launch_options.log}")
        time.sleep(_POLL_SECONDS)
    return joined


@contextmanager
def _new_log(log: Path) -> Generator[int]:
    """Open the log of a new gateway, and keep the previous log beside it."""
    with suppress(OSError):
        log.replace(log.with_suffix(".old.log"))
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def _last_log_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(line.removeprefix("comity: ") for line in lines[-_LOG_LINES:])


def _await_ready(url: str) -> None:
    """Wait until each server was tried, because many clients list the tools only at their start."""
    deadline = time.monotonic() + READY_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        connection = connect_sync(url, timedelta(seconds=1))
        with suppress(*SYNC_ERRORS):
            status, _ = request_sync(connection, "GET", "/ready", {})
            if status == 200:
                return
        time.sleep(_POLL_SECONDS)


_OPTION_BY_SETTING: Final = {
    "host": "--host",
    "port": "--port",
    "telemetry.log_format": "--log-format",
}


def join_gateway(source: ConfigSource, loaded_config: LoadedConfig, view: str = "") -> None:
    """Forward messages between the client on stdin and the gateway until stdin closes.

    With a view, the client gets the tools of that view. Raises Misconfigured if there is none.
    """
    settings = loaded_config.settings
    if view and view not in (each.name for each in settings.views):
        raise Misconfigured(f"there is no view {view!r:.80} in [[views]] of this configuration")
    path = f"/views/{view}{MCP_PATH}" if view else MCP_PATH
    limits = FrameLimits(
        frame_bytes=settings.limits.max_message_bytes, depth=settings.limits.max_depth
    )
    asyncio.run(_run_bridge(_GatewayLocator(source, loaded_config), limits, path))


async def _run_bridge(gateway: "_GatewayLocator", limits: FrameLimits, path: str) -> None:
    loop = asyncio.get_running_loop()
    # Reports a missing gateway before the bridge reads from the client.
    await gateway.find()
    reader = asyncio.StreamReader(limit=READ_CHUNK_BYTES)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, sys.stdout
        )
    except ValueError:
        raise Misconfigured(
            "--stdio needs pipes at stdin and stdout, as an MCP client has them; not files"
        ) from None
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    bridge = StdioBridge(gateway.find, writer, limits, path)
    try:
        await bridge.run(reader, LineSplitter(limits.frame_bytes))
    finally:
        gateway.release()


class _GatewayLocator:
    """Finds the gateway of one configuration, and joins its successor after a restart."""

    def __init__(self, source: ConfigSource, loaded_config: LoadedConfig) -> None:
        self._source = source
        self._loaded_config = loaded_config
        config = loaded_config.files[0].absolute()
        # Paths in a file are relative to its folder, wherever the client starts Comity.
        folder = Path.cwd() if source.config_path is None else config.parent
        self._launch_options = GatewayLaunchOptions(config, folder, self._arguments)
        self._joined: JoinedGateway | None = None

    async def find(self) -> GatewayLocation:
        """Return the location of the gateway and the credential for it. Raises Unavailable."""
        joined = await asyncio.to_thread(join_or_start, self._launch_options)
        self.release()
        self._joined = joined
        key = os.environ.get("COMITY_KEY", "").strip() or joined.record.token
        log = self._launch_options.log
        told = str(log) if log.exists() else ""
        return GatewayLocation(joined.record.url, key, joined.record.started, told)

    def release(self) -> None:
        if self._joined is not None:
            self._joined.release()
            self._joined = None

    def _arguments(self) -> list[str]:
        """Return the arguments for a new gateway. A default port that is taken is replaced."""
        over = dict(self._source.overrides)
        if not self._is_port_chosen():
            running, port = check_port(self._loaded_config.settings)
            over |= {"port": 0} if running or port.verdict == "problem" else {}
        config = str(self._launch_options.config)
        said = [] if self._source.config_path is None else ["-c", config]
        said += ["--discovery"] if "discovery.mode" in over else []
        options = (
            (option, str(over[name])) for name, option in _OPTION_BY_SETTING.items() if name in over
        )
        return [*said, *(word for pair in options for word in pair)]

    def _is_port_chosen(self) -> bool:
        environ = self._source.environ
        # PORT alone may be meant for another program of this shell.
        if "port" in self._source.overrides or read_variable("COMITY_PORT", environ):
            return True
        readings = (read_config_file(file, environ) for file in self._loaded_config.files)
        return any("port" in each.settings_by_table.get("", {}) for each in readings)
