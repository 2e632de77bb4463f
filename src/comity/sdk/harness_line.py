"""The line between a test and the server that it drives: in this process, or a command's pipes.

Frames are plain dictionaries, in both eras. In the modern one a server asks on the long request
that its host keeps open, and what a host would notify it sends as a request. (mcp-wire §4)
"""

import asyncio
import itertools
import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, cast

from mcp import MCPError
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from comity.sdk.server import Server
from comity.wire import features, mcp, reverse
from comity.wire.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, MalformedMessage

log = logging.getLogger(__name__)

type Era = Literal["handshake", "modern"]
type Frame = dict[str, Any]
type Answer = Callable[[str, Mapping[str, Any], str | int], Awaitable[Mapping[str, Any]]]
type Hear = Callable[[str, Mapping[str, Any]], Awaitable[None]]

WE: Final = {"name": "comity-harness", "version": "1"}
_NOTHING: Final[Mapping[str, Any]] = {}


class Failed(MCPError):
    """The server answered with an error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        code, message = error.get("code"), str(error.get("message", ""))
        super().__init__(code if isinstance(code, int) else 0, message, error.get("data"))


class Line:
    """What is said to one server and by it; `answer` and `hear` are its host."""

    def __init__(self, era: Era, seconds: float, offered: Mapping[str, Any] | None) -> None:
        self.answer: Answer = _nobody
        self.hear: Hear = _silent
        # What the server asked and told, in both eras as it would be in the first.
        self.said: list[Frame] = []
        self._era = era
        self._seconds = seconds
        self._offered = offered
        self._ids = itertools.count(1)
        self._pending: dict[object, asyncio.Future[Frame]] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._write: Any = None

    async def greet(self) -> Mapping[str, Any]:
        """What the server says of itself."""
        if self._era == "modern":
            return await self.request(mcp.DISCOVER, _NOTHING)
        mcpl = {} if self._offered is None else {"experimental": {features.KEY: self._offered}}
        said = await self.request(
            mcp.INITIALIZE,
            {"protocolVersion": mcp.LATEST_HANDSHAKE, "capabilities": mcpl, "clientInfo": WE},
        )
        await self._send({"method": mcp.INITIALIZED})
        return said

    def listen(self) -> None:
        """Keep the way back open, where there is none by itself."""
        if self._era == "modern" and self._offered is not None:
            self._start(self._listen())

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Raises Failed, and TimeoutError for a server that stays silent."""
        async with asyncio.timeout(self._seconds):
            return await self._request(method, params)

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        if self._era == "modern":
            await self.request(method, params)
        else:
            await self._send({"method": method, "params": dict(params)})

    async def run(self, read: Any, write: Any) -> None:
        """Until the server hangs up."""
        self._write = write
        async for item in read:
            if isinstance(item, SessionMessage):
                dumped = item.message.model_dump(by_alias=True, mode="json", exclude_unset=True)
                self._take(dumped)
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(Failed({"code": 0, "message": "the server has gone"}))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _listen(self) -> None:
        await self._request(reverse.LISTEN, _NOTHING)

    async def _request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        id = next(self._ids)
        waiting = self._pending[id] = asyncio.get_running_loop().create_future()
        try:
            await self._send({"id": id, "method": method, "params": self._worded(params)})
            frame = await waiting
        finally:
            self._pending.pop(id, None)
        if "error" in frame:
            raise Failed(frame["error"])
        return frame.get("result") or _NOTHING

    def _worded(self, params: Mapping[str, Any]) -> dict[str, Any]:
        if self._era != "modern":
            return dict(params)
        mcpl = {} if self._offered is None else {features.EXTENSION_KEY: self._offered}
        meta = {
            mcp.PROTOCOL_VERSION: mcp.LATEST_MODERN,
            mcp.CLIENT_CAPABILITIES: {"extensions": mcpl},
            mcp.CLIENT_INFO: WE,
        }
        return {**params, "_meta": meta}

    def _take(self, frame: Frame) -> None:
        method, id = frame.get("method"), frame.get("id")
        params = cast("Mapping[str, Any]", frame.get("params") or _NOTHING)
        if method is None:
            waiting = self._pending.get(id)
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)
        elif id is not None:
            self.said.append(frame)
            self._start(self._answered(method, params, id))
        elif method == reverse.ASKED:
            self.said.append(dict(params))
            self._start(self._respond(params))
        elif method == reverse.TOLD:
            self.said.append(dict(params))
            self._start(self.hear(str(params.get("method")), params.get("params") or _NOTHING))
        else:
            self.said.append(frame)
            self._start(self.hear(method, params))

    async def _answered(self, method: str, params: Mapping[str, Any], id: str | int) -> None:
        await self._send({"id": id, **await self._outcome(method, params, id)})

    async def _respond(self, carried: Mapping[str, Any]) -> None:
        id = cast("str", carried.get("id"))
        params = carried.get("params") or _NOTHING
        outcome = await self._outcome(str(carried.get("method")), params, id)
        await self.request(reverse.RESPOND, {"id": id, **outcome})

    async def _outcome(self, method: str, params: Mapping[str, Any], id: str | int) -> Frame:
        try:
            return {"result": dict(await self.answer(method, params, id))}
        except MalformedMessage as problem:
            return {"error": {"code": problem.fault.code, "message": str(problem)}}
        except Exception as bug:
            log.exception("the harness failed to answer %s", method)
            return {"error": {"code": INTERNAL_ERROR.code, "message": repr(bug)}}

    async def _send(self, frame: Frame) -> None:
        message = jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **frame})
        await self._write.send(SessionMessage(message))

    def _start(self, doing: Any) -> None:
        task = asyncio.ensure_future(doing)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Future[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # What failed here is told by whoever waits; a line that is cut tells it itself.
            task.exception()


@asynccontextmanager
async def served(server: Server | Sequence[str], line: Line) -> AsyncGenerator[None]:
    """A server object in this process, or a command on its pipes, until the way out."""
    begun, stop = asyncio.Event(), asyncio.Event()
    run = _object if isinstance(server, Server) else _command
    task = asyncio.ensure_future(run(cast("Any", server), line, begun, stop))
    waiting = asyncio.ensure_future(begun.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield
    finally:
        waiting.cancel()
        line.close()
        stop.set()
        await task


async def _object(server: Server, line: Line, begun: asyncio.Event, stop: asyncio.Event) -> None:
    # The SDK's own server within has no public name.
    inner = cast("Any", server.mcp)._lowlevel_server
    async with server.running(), create_client_server_memory_streams() as (ours, its):
        options = inner.create_initialization_options()
        serving = asyncio.ensure_future(inner.run(*its, options))
        reading = asyncio.ensure_future(line.run(*ours))
        begun.set()
        await stop.wait()
        for task in (serving, reading):
            task.cancel()
        await asyncio.gather(serving, reading, return_exceptions=True)


async def _command(
    command: Sequence[str], line: Line, begun: asyncio.Event, stop: asyncio.Event
) -> None:
    program, *rest = command
    params = StdioServerParameters(command=program or sys.executable, args=rest)
    async with stdio_client(params) as (read, write):
        reading = asyncio.ensure_future(line.run(read, write))
        begun.set()
        await stop.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _nobody(method: str, params: Mapping[str, Any], id: str | int) -> Mapping[str, Any]:
    raise MalformedMessage(f"there is no {method}", METHOD_NOT_FOUND)


async def _silent(method: str, params: Mapping[str, Any]) -> None:
    return None
