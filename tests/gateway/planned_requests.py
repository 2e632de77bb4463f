"""Requests of several principals to both endpoints, as honest and hostile clients write them."""

import json
import random
from dataclasses import dataclass
from typing import Final

from tests.mcp.tool_call_frames import FrameWriter

LEGACY: Final = "2025-11-25"
MODERN: Final = "2026-07-28"
type HeaderPairs = tuple[tuple[bytes, bytes], ...]
SESSION: Final = b"{session}"
PATHS: Final = (b"/mcp", b"/mcp", b"/servers/stub/mcp", b"/servers/stub/mcp", b"/servers/old/mcp")
META: Final = (
    '"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    '"io.modelcontextprotocol/clientInfo":{"name":"b","version":"1"},'
    '"io.modelcontextprotocol/clientCapabilities":{}%s}'
)
META_MEMBERS: Final = (
    *("", "", "", "", ',"progressToken":7', ',"progressToken":"p"', ',"progress\\u0054oken":8'),
    *(',"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736"', ',"progressToken":1,"progressToken":2'),
    *(',"io.modelcontextprotocol/protocolVersion":"2025-11-25"', ',"x":"é"', ', "y":[ 1 ]'),
)
NAMES: Final = ("echo", "echo", "echo", "add", "add", "drop", "forbidden", "any", "missing")
ARGUMENTS: Final = (
    *('{"text":"hello"}', '{"text":"hello"}', '{"text":"h\\u00e9 \\n"}', '{"text":"日本 😀"}'),
    *('{"a":1,"b":2.5}', '{"a":1}', '{"b":-1}', '{"a":"1"}', '{"a":1,"c":2}', '{"path":"/x"}'),
    *("{}", "null", "[]", '"x"', '{"text":"a","text":"b"}', '{"te\\u0078t":"a","text":"b"}'),
    *('{"text":7}', '{"text":"\\ud800"}', '{"a":1e400}', '{"deep":[[[[[{"a":{}}]]]]]}', '{"text":'),
    *('{ "text" : "spaced" }', '{"text":"two\\nlines"}', '{"text":"sk-abcdefghijklmnopqrstuvwx"}'),
)
VALID_ARGUMENTS: Final = {
    "echo": '{"text":"hello"}',
    "add": '{"a":1,"b":2.5}',
    "drop": '{"path":"/x"}',
    "any": '{"é":[1,{"a":null}]}',
}
PRINCIPALS: Final = ("agent:all",) * 20 + ("agent:some",) * 12 + ("agent:none",) * 3
STRANGERS: Final = ("agent:nobody", "agent:wrong")
IDS: Final = (
    *(
        "1",
        "2",
        "3",
        "4",
        "5",
        "6",
        '"a"',
        '","',
        '"a\\"b,"',
        '",\\"method\\":\\"tools/call\\",\\"params\\":"',
    ),
    *('"é"', '"\\u0041"', "-7", "9007199254740992", "9007199254740993", "null", "1.5", '""'),
)
OTHER_PARAMS: Final = (
    *('"task":{"ttl":60000}', '"requestState":"x"', '"inputResponses":{"a":{"action":"accept"}}'),
    *('"name":"echo"', '"extra":1', '"Name":"add"', '"arguments":{}', '"_meta":{}'),
)
OTHER_MEMBERS: Final = ('"trace":{"trace_id":"a"}', '"auth":"x"', '"ID":2', '"id":1', '"params":{}')
METHODS: Final = (
    *("tools/list", "ping", "prompts/list", "resources/read", "prompts/get", "completion/complete"),
    *("tasks/get", "logging/setLevel", "server/discover", "mgp/health/ping", "no/such", ""),
)
HEADERS: Final = (
    *((b"x-other", b"1"), (b"traceparent", b"00-" + b"ab" * 16 + b"-" + b"cd" * 8 + b"-01")),
    *((b"mcp-param-text", b"hello"), (b"origin", b"http://127.0.0.1:2664"), (b"accept", b"text/*")),
    *((b"host", b"evil.example"), (b"mcp-name", b"other"), (b"mcp-method", b"tools/list")),
    *((b"content-type", b"text/plain"), (b"mcp-protocol-version", b"2024-01-01")),
    *((b"accept", b"text/event-stream, application/json"), (b"mcp-session-id", b"unknown")),
)


@dataclass(frozen=True)
class Request:
    """One generated request. The session in its headers is that of its gateway."""

    principal: str
    path: bytes
    headers: HeaderPairs
    body: bytes
    address: str


class RequestWriter:
    """Writes requests of several principals to both endpoints in both protocol versions."""

    def __init__(self, seed: int, keys: dict[str, str]) -> None:
        self._random = random.Random(seed)  # noqa: S311  # the same requests in each run
        self._choose = self._random.choice
        self._frames = FrameWriter(seed)
        self._keys = keys
        self._strangers = 0

    def _happens(self, share: float) -> bool:
        return self._random.random() < share

    def request(self) -> Request:
        is_modern, path = self._happens(0.6), self._choose(PATHS)
        principal = self._choose(PRINCIPALS + STRANGERS)
        method = "tools/call" if self._happens(0.85) else self._choose(METHODS)
        name = self._name(path)
        headers = self._headers(principal, method, name, is_modern=is_modern)
        body = self._body(method, name, is_modern=is_modern)
        # Each stranger has an address of its own, because wrong credentials of one are limited.
        self._strangers += principal in STRANGERS
        address = f"stranger {self._strangers}" if principal in STRANGERS else "127.0.0.1"
        return Request(principal, path, headers, body, address)

    def _name(self, path: bytes) -> str:
        name = self._choose(NAMES)
        if path != b"/mcp" or self._happens(0.1):
            return name
        return f"{self._choose(('stub', 'stub', 'old', 'none'))}__{name}"

    def _headers(self, principal: str, method: str, name: str, *, is_modern: bool) -> HeaderPairs:
        found = {
            b"host": b"127.0.0.1:2664",
            b"authorization": f"Bearer {self._keys[principal]}".encode(),
            b"accept": b"application/json, text/event-stream",
            b"content-type": b"application/json",
            b"content-length": b"100",
        }
        if principal == "agent:nobody":
            del found[b"authorization"]
        if is_modern:
            found[b"mcp-protocol-version"] = MODERN.encode()
            found[b"mcp-method"] = method.encode()
            found[b"mcp-name"] = name.encode()
        else:
            found[b"mcp-protocol-version"] = LEGACY.encode()
            found[b"mcp-session-id"] = SESSION
        listed = [*found.items()]
        if self._happens(0.06):
            other = self._choose(HEADERS)
            listed = [pair for pair in listed if pair[0] != other[0] or self._happens(0.2)]
            listed.append(other)
        return tuple(listed)

    def _body(self, method: str, name: str, *, is_modern: bool) -> bytes:
        if self._happens(0.06):
            return self._frames.frame()
        is_plain = self._happens(0.5)
        params = [f'"name":{json.dumps(name)}']
        valid = VALID_ARGUMENTS.get(name.rpartition("__")[2], "{}")
        is_valid = is_plain or self._happens(0.6)
        params.append(f'"arguments":{valid if is_valid else self._choose(ARGUMENTS)}')
        more = "" if is_plain else self._choose(META_MEMBERS)
        if is_modern:
            params.append(META % more)
        elif more:
            params.append(f'"_meta":{{{more[1:]}}}')
        id = str(self._random.randrange(1000)) if is_plain else self._choose(IDS)
        members = ['"jsonrpc":"2.0"', f'"id":{id}', f'"method":"{method}"']
        if not is_plain:
            self._add_oddities(params, members)
        members.append(f'"params":{{{",".join(params)}}}')
        gap = "" if is_plain or self._happens(0.9) else self._choose((" ", "\n", "\r\n"))
        data = ("{" + f",{gap}".join(members) + "}").encode()
        return data if is_plain or self._happens(0.95) else self._frames.damaged(data)

    def _add_oddities(self, params: list[str], members: list[str]) -> None:
        if self._happens(0.15):
            params.insert(self._random.randrange(3), self._choose(OTHER_PARAMS))
        if self._happens(0.1):
            self._random.shuffle(params)
        if self._happens(0.05):
            params.pop(0)
        if self._happens(0.06):
            members.insert(self._random.randrange(4), self._choose(OTHER_MEMBERS))
        if self._happens(0.04):
            members.pop(self._random.randrange(len(members)))
        if self._happens(0.06):
            self._random.shuffle(members)
