"""The two MCP eras as the bench speaks them: versions, headers and prebuilt messages."""

import json
from dataclasses import dataclass
from typing import Literal, cast

from bench.bodies import PLAIN, VARIANTS, Body, text_of

type Era = Literal["handshake", "modern"]

HANDSHAKE = "2025-11-25"
MODERN = "2026-07-28"
VERSION_BY_ERA: dict[Era, str] = {"handshake": HANDSHAKE, "modern": MODERN}

_CLIENT = {"name": "bench", "version": "1"}
_ENVELOPE: dict[str, object] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": _CLIENT,
}

# Every call has a number of eight digits, so that requests differ.
FIRST_CALL = 10_000_000
_PLACE = str(FIRST_CALL).encode()
_TEXT = "the text of the call"


@dataclass(frozen=True, slots=True)
class CallTemplate:
    """The variants of a `tools/call` as bytes, without the number of the call."""

    variants: tuple[tuple[bytes, ...], ...]

    def numbered(self, number: int) -> bytes:
        return (b"%d" % number).join(self.variants[number % VARIANTS])

    @classmethod
    def cut(cls, *examples: bytes) -> "CallTemplate":
        """Make a template of one example for each variant, all with the number FIRST_CALL."""
        return cls(tuple(tuple(example.split(_PLACE)) for example in examples))


def call_bodies(era: Era, tool: str = "echo", body: Body = PLAIN) -> list[bytes]:
    """Every variant of the call numbered FIRST_CALL.

    The text repeats the number, so that no cache can answer the call.
    """
    return [call_body(era, tool, body, variant) for variant in range(VARIANTS)]


def call_body(era: Era, tool: str = "echo", body: Body = PLAIN, variant: int = 0) -> bytes:
    params: dict[str, object] = {"name": tool, "arguments": {"text": _TEXT}}
    if body == "progress":
        params["_meta"] = {"progressToken": FIRST_CALL}
    message = _message("tools/call", params, era, FIRST_CALL)
    return message.replace(b'"%b"' % _TEXT.encode(), text_of(body, FIRST_CALL, variant))


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
        params = {"_meta": _ENVELOPE} | params | {"_meta": _ENVELOPE | _meta_of(params)}
    return _encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def _meta_of(params: dict[str, object]) -> dict[str, object]:
    return cast("dict[str, object]", params.get("_meta", {}))


def _encode(message: dict[str, object]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()
