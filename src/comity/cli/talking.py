"""A small MCP client: one session with a gateway, one request at a time, over streamable HTTP.

It speaks the handshake era, in which a server can ask amid a call; the gateway brings both eras'
servers to it. It is plain blocking code, because a command has nothing else to do meanwhile.
"""

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.metadata import version
from typing import Any, Final, Self

from comity.cli.asking import Gateway, members
from comity.wire import mcp
from comity.wire.errors import METHOD_NOT_FOUND, MalformedMessage, Unavailable
from comity.wire.sse import EventParser

type Frame = dict[str, Any]

CAPABILITIES: Final[Frame] = {"elicitation": {"form": {}, "url": {}}}
PATH: Final = "/mcp"
ANSWER_BYTES: Final = 64 * 1024 * 1024
READ_BYTES: Final = 64 * 1024
FAREWELL: Final = timedelta(seconds=2)


class Talk:
    """One session, from `initialize` to its end. Use it in a `with`."""

    def __init__(
        self,
        gateway: Gateway,
        patience: timedelta,
        tell: Callable[[str, Frame], None],
        answer: Callable[[Frame], Frame | None],
    ) -> None:
        self._gateway = gateway
        self._tell = tell
        self._answer = answer
        self._patience = patience
        self._ends = time.monotonic() + patience.total_seconds()
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **gateway.credentials,
        }
        self._latest = 0

    def __enter__(self) -> Self:
        about = {"name": "comity-call", "version": version("comity")}
        hello = {
            "protocolVersion": mcp.LATEST_HANDSHAKE,
            "capabilities": CAPABILITIES,
            "clientInfo": about,
        }
        self.ask(mcp.INITIALIZE, hello)
        self._headers["MCP-Protocol-Version"] = mcp.LATEST_HANDSHAKE
        self._post({"method": mcp.INITIALIZED})
        return self

    def __exit__(self, *_: object) -> None:
        """Take leave; a gateway that is gone needs none."""
        if "Mcp-Session-Id" not in self._headers:
            return
        with contextlib.suppress(OSError, http.client.HTTPException, Unavailable):
            connection = self._gateway.connect(FAREWELL)
            connection.request("DELETE", PATH, headers=self._headers)
            connection.getresponse().read(READ_BYTES)
            connection.close()

    def ask(self, method: str, params: Frame) -> Frame:
        """The answer, `result` or `error` in it; what comes before it is told or answered.

        Raises Unavailable where the gateway is gone, TimeoutError where the time has run out, and
        withdraws the request where it is interrupted.
        """
        self._latest += 1
        asked = self._latest
        try:
            return self._asked(asked, {"id": asked, "method": method, "params": params})
        except (KeyboardInterrupt, TimeoutError):
            self._withdraw(asked)
            raise

    def _asked(self, asked: int, frame: Frame) -> Frame:
        connection, reply = self._send(frame)
        while True:
            parser = EventParser()
            with contextlib.closing(connection):
                for heard in self._frames(reply, parser, connection):
                    if heard.get("id") == asked and "method" not in heard:
                        return heard
                    self._hear(heard)
            if not parser.last_event_id:
                raise Unavailable("the gateway ended the answer before it was whole")
            # The server lets its stream rest; the rest is fetched where it was left.
            time.sleep(min(0.5, self._left()))
            connection, reply = self._open("GET", None, {"Last-Event-ID": parser.last_event_id})

    def _hear(self, frame: Frame) -> None:
        method, params = frame.get("method"), members(frame.get("params"))
        if "id" not in frame:
            self._tell(str(method), params)
            return
        answer: Frame = {"error": {"code": METHOD_NOT_FOUND.code, "message": "nobody answers here"}}
        if method == mcp.PING:
            answer = {"result": {}}
        elif method == mcp.ELICIT:
            # Whoever answers may take their time.
            began = time.monotonic()
            said = self._answer(params)
            answer = answer if said is None else {"result": said}
            self._ends += time.monotonic() - began
        self._post({"id": frame["id"], **answer})

    def _withdraw(self, asked: int) -> None:
        self._ends = time.monotonic() + FAREWELL.total_seconds()
        with contextlib.suppress(Unavailable, TimeoutError):
            self._post({"method": mcp.CANCELLED, "params": {"requestId": asked}})

    def _post(self, frame: Frame) -> None:
        connection, reply = self._send(frame)
        with contextlib.closing(connection):
            reply.read(READ_BYTES)

    def _send(self, frame: Frame) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        return self._open("POST", json.dumps({"jsonrpc": "2.0", **frame}).encode(), {})

    def _open(
        self, verb: str, body: bytes | None, more: dict[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._gateway.connect(timedelta(seconds=self._left()))
        try:
            connection.request(verb, PATH, body, {**self._headers, **more})
            reply = connection.getresponse()
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as problem:
            raise self._gateway.unreachable(problem) from None
        session = reply.headers.get("Mcp-Session-Id")
        if session:
            self._headers["Mcp-Session-Id"] = session
        if reply.status >= 400:
            connection.close()
            if reply.status == 401:
                raise self._gateway.key_needed("it is not known, or counts no more")
            raise Unavailable(f"{self._gateway.url} answered with HTTP status {reply.status}")
        return connection, reply

    def _frames(
        self,
        reply: http.client.HTTPResponse,
        parser: EventParser,
        connection: http.client.HTTPConnection,
    ) -> Iterator[Frame]:
        try:
            if not reply.headers.get("Content-Type", "").startswith("text/event-stream"):
                yield _frame(reply.read(ANSWER_BYTES))
                return
            while piece := self._read(reply, connection):
                for event in parser.feed(piece):
                    if event.data:
                        yield _frame(event.data)
        except MalformedMessage as problem:
            raise Unavailable(f"the gateway sent a broken stream: {problem}") from None
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as problem:
            raise self._gateway.unreachable(problem) from None

    def _read(
        self, reply: http.client.HTTPResponse, connection: http.client.HTTPConnection
    ) -> bytes:
        if connection.sock is not None:
            # Signs of life come all the time; what counts is the time as a whole.
            connection.sock.settimeout(self._left())
        return reply.read1(READ_BYTES)

    def _left(self) -> float:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def _frame(data: bytes) -> Frame:
    try:
        return members(json.loads(data))
    except (ValueError, RecursionError):
        raise Unavailable("the gateway sent what is no message") from None
