"""The two MCP eras as the bench speaks them: versions, headers and prebuilt messages."""

import json
from dataclasses import dataclass
from typing import Literal

type Era = Literal["handshake", "modern"]

HANDSHAKE = "2025-11-25"
MODERN = "2026-07-28"

_CLIENT = {"name": "bench", "version": "1"}
_ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": _CLIENT,
}

# Every call has a number of eight digits, so that requests differ and their length does not.
FIRST_CALL = 10_000_000
_PLACE = str(FIRST_CALL)


@dataclass(frozen=True, slots=True)
class CallTemplate:
    """A `tools/call` as bytes, into which only its number has to be written, twice."""

    before: bytes
    between: bytes
    after: bytes

    def numbered(self, number: int) -> bytes:
        return b"%b%d%b%d%b" % (self.before, number, self.between, number, self.after)

    @classmethod
    def cut(cls, example: bytes) -> "CallTemplate":
        before, between, after = example.split(_PLACE.encode())
        return cls(before, between, after)


def call_body(era: Era, tool: str = "echo") -> bytes:
    """The call numbered FIRST_CALL; its text repeats the number, so no cache can answer it."""
    params: dict[str, object] = {"name": tool, "arguments": {"text": f"call {_PLACE}, please"}}
    return _message("tools/call", params, era, FIRST_CALL)


def initialize_body() -> bytes:
    params: dict[str, object] = {
        "protocolVersion": HANDSHAKE,
        "capabilities": {},
        "clientInfo": _CLIENT,
    }
    return _message("initialize", params, "handshake", 1)


def initialized_body() -> bytes:
    return _encode({"jsonrpc": "2.0", "method": "notifications/initialized"})


def discover_body() -> bytes:
    return _message("server/discover", {}, "modern", 1)


def http_headers(era: Era, method: str, name: str | None, session: str | None) -> dict[str, str]:
    """What a well-behaved client of `era` sends beside the body."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    if method != "initialize":
        headers["MCP-Protocol-Version"] = MODERN if era == "modern" else HANDSHAKE
    if era == "modern":
        headers["Mcp-Method"] = method
        if name is not None:
            headers["Mcp-Name"] = name
    if session is not None:
        headers["Mcp-Session-Id"] = session
    return headers


def _message(method: str, params: dict[str, object], era: Era, number: int) -> bytes:
    if era == "modern":
        params = {"_meta": _ENVELOPE, **params}
    return _encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def _encode(message: dict[str, object]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()
