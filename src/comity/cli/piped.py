"""A small tool server on pipes, of the handshake era: what is said, and in which thread.

Each call has a thread of its own, so that all else is answered meanwhile.
"""

import json
from importlib.metadata import version
from threading import Lock, Thread
from typing import Any, TextIO

import msgspec

from comity.cli.asking import members
from comity.wire import mcp
from comity.wire.errors import METHOD_NOT_FOUND

type Frame = dict[str, Any]


class Piped:
    """One conversation with one client."""

    name = "comity"

    def __init__(self, reader: TextIO, writer: TextIO) -> None:
        self._reader = reader
        self._writer = writer
        self._writing = Lock()

    def serve(self) -> None:
        """Until the client closes our input."""
        for line in self._reader:
            try:
                frame = msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.DecodeError:
                continue
            if "method" not in frame:
                self.answered(frame)
            elif frame.get("method") == mcp.CALL_TOOL:
                Thread(target=self._answer, args=(frame,), daemon=True).start()
            elif "id" in frame:
                self._answer(frame)

    def answered(self, frame: Frame) -> None:
        """What the client says to a question of ours."""

    def tools(self) -> list[Frame]:
        """The definitions of all tools."""
        return []

    def call(self, name: str, arguments: Frame, meta: Frame) -> Frame | None:
        """What a tool gives; None where there is no such tool."""
        return None

    def say(self, frame: Frame) -> None:
        with self._writing:
            self._writer.write(json.dumps({"jsonrpc": "2.0", **frame}) + "\n")
            self._writer.flush()

    def _answer(self, frame: Frame) -> None:
        params = members(frame.get("params"))
        self.say({"id": frame.get("id"), **self._answer_to(frame["method"], params)})

    def _answer_to(self, method: str, params: Frame) -> Frame:
        if method == mcp.INITIALIZE:
            return {"result": self._hello(params)}
        if method == mcp.PING:
            return {"result": {}}
        if method == mcp.LIST_TOOLS:
            return {"result": {"tools": self.tools()}}
        given = None
        if method == mcp.CALL_TOOL:
            arguments, meta = members(params.get("arguments")), members(params.get("_meta"))
            given = self.call(str(params.get("name")), arguments, meta)
        if given is None:
            code = METHOD_NOT_FOUND.code
            return {"error": {"code": code, "message": f"no {method} of that name"}}
        return {"result": given}

    def _hello(self, params: Frame) -> Frame:
        wanted = params.get("protocolVersion")
        spoken = wanted if wanted in mcp.HANDSHAKE_VERSIONS else mcp.LATEST_HANDSHAKE
        return {
            "protocolVersion": spoken,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": self.name, "version": version("comity")},
        }


def text(said: str, *, is_error: bool = False) -> Frame:
    """A result that is one text."""
    return {"content": [{"type": "text", "text": said}], "isError": is_error}
