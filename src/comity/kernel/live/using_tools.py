"""Tools that a model uses: listed and called through the gate, like anybody's. (design §1)

Rule 1: a model sees what its party may call, and no more than fits. Where there are more tools than
        that it is given the pinned ones, those it used, and the means to find and call the others.
Rule 2: a call is its party's own: judged, limited, held for a person, and written down as that. One
        that still waits after a while is told to be pending, and runs when it is made again.
Rule 3: whatever comes of a call is told the model; a refusal too.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.catalog import Kind, Offer
from comity.kernel.gate import Gate
from comity.kernel.outbox import Outbox
from comity.kernel.toolbelts import Toolbelts
from comity.ports import Headers
from comity.ports.models import ToolOffer, ToolResult, ToolUse
from comity.rules import turns
from comity.rules.meta_tools import DEFINITIONS, MetaTool
from comity.rules.turns import Bounds
from comity.wire import jsonrpc, mcp, tool_discovery
from comity.wire.contents import Block, Content, said
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.negotiation import EXTENSION_KEY, VERSION, Extension
from comity.wire.parties import Actor

OWN: Final = (DEFINITIONS[MetaTool.SEARCH], DEFINITIONS[MetaTool.CALL])
"""The gateway's own tools that a model is given where not all others fit."""

_MOST_PAGES: Final = 1_000
_MGP_NAME: Final[Mapping[str, str]] = {
    MetaTool.SEARCH: tool_discovery.DISCOVER,
    MetaTool.REQUEST: tool_discovery.REQUEST,
    MetaTool.SESSION: tool_discovery.SESSION,
}
_WHO: Final = {"name": "comity-turns", "version": "1"}
_PLAIN: Final = {
    mcp.PROTOCOL_VERSION: mcp.LATEST_MODERN,
    mcp.CLIENT_CAPABILITIES: {},
    mcp.CLIENT_INFO: _WHO,
}
_MGP: Final = {"version": VERSION, "extensions": [Extension.TOOL_DISCOVERY]}
_FINDING: Final = {**_PLAIN, mcp.CLIENT_CAPABILITIES: {"extensions": {EXTENSION_KEY: _MGP}}}
"""Who searches says that it knows how to."""

type Awaiting = Callable[[str], AbstractContextManager[None]]
"""While a server is waited for."""


class Desk(Protocol):
    """The door of all servers."""

    @property
    def gate(self) -> Gate: ...
    async def ask_modern(self, frame: Frame, outbox: Outbox, headers: Headers) -> Call: ...


@dataclass(frozen=True, slots=True)
class Offered:
    """What a model is given to use; `names` are the tools' own, by those it knows."""

    tools: tuple[ToolOffer, ...]
    names: Mapping[str, str]


class UsingTools:
    """Lists and calls tools for turns."""

    def __init__(self, desk: Desk, belts: Toolbelts, bounds: Bounds) -> None:
        self._desk = desk
        self._belts = belts
        self._bounds = bounds

    async def offered(self, actor: Actor) -> Offered:
        """Raises Unavailable."""
        definitions = await self._all(actor)
        if definitions is None:
            definitions = self._belts.listed(self._belts.of_client(actor, None))
        found = [each for each in map(_offer, definitions) if each is not None]
        names = turns.tool_names(each.name for each in found)
        tools = (
            ToolOffer(name, each.description, each.schema)
            for name, each in zip(names, found, strict=True)
        )
        return Offered(tuple(tools), names)

    async def use(
        self, actor: Actor, offered: Offered, use: ToolUse, awaiting: Awaiting
    ) -> ToolResult:
        """What comes of it, as the model may read it."""
        if use.broken:
            return _failed(use, "the arguments are no JSON object; use the tool again with one")
        name, arguments, meta = _aimed(offered.names.get(use.name, use.name), use.arguments)
        offer = self._desk.gate.catalog.named(Kind.TOOL, name)
        try:
            with awaiting("" if offer is None else offer.server):
                params = {"name": name, "arguments": arguments, "_meta": meta}
                answer = await self._ask(actor, mcp.CALL_TOOL, params)
        except (Unavailable, MalformedMessage) as error:
            return _failed(use, str(error))
        result = _result(use, answer)
        if not result.is_error and offer is not None:
            self._keep(actor, offer)
        return ToolResult(
            use.id, turns.cut(result.content, self._bounds.result_length), result.is_error
        )

    def _keep(self, actor: Actor, offer: Offer) -> None:
        """A tool that was of use stays at hand."""
        if self._desk.gate.shows(actor, Kind.TOOL, offer):
            self._belts.load(self._belts.of_client(actor, None), [offer])

    async def _all(self, actor: Actor) -> list[bytes] | None:
        """All tools there are for this actor; None where they take more room than there is."""
        found: list[bytes] = []
        left, cursor = self._bounds.tool_tokens, None
        for _ in range(_MOST_PAGES):
            params: dict[str, object] = {"_meta": _PLAIN}
            if cursor is not None:
                params["cursor"] = cursor
            answer = await self._ask(actor, mcp.LIST_TOOLS, params)
            members = jsonrpc.members(Raw(b"{}") if answer.result is UNSET else answer.result)
            page = cast("list[object]", jsonrpc.value(members.get("tools", Raw(b"[]"))))
            listed = [jsonrpc.to_json(each) for each in page]
            left -= sum(map(self._belts.tokens.count, listed))
            if left < 0:
                return None
            found += listed
            cursor = jsonrpc.text(members.get("nextCursor"))
            if cursor is None:
                return found
        return None

    async def _ask(self, actor: Actor, method: str, params: Mapping[str, object]) -> Frame:
        """The answer of the gate, or of the server behind it. Raises Unavailable."""
        outbox = Outbox()
        outbox.actor = actor
        call = await self._desk.ask_modern(jsonrpc.request(1, method, params), outbox, ())
        try:
            last = await _last_word(outbox)
        except asyncio.CancelledError:
            if not outbox.final:
                call.withdraw(None)
            raise
        if last is None:
            raise Unavailable("the call ended without an answer")
        return jsonrpc.decode(last)


async def _last_word(outbox: Outbox) -> bytes | None:
    """What a call ends with; what is told amid it is let go."""
    told: list[bytes] = []
    while not outbox.final or outbox.frames:
        await outbox.wait()
        outbox.nudged = outbox.suspended = False
        told = outbox.take() or told
    return told[-1] if told else None


@dataclass(frozen=True, slots=True)
class _Offer:
    name: str
    description: str
    schema: Mapping[str, Any]


def _offer(definition: bytes) -> _Offer | None:
    found = cast("dict[str, Any]", jsonrpc.value(definition))
    name, schema = found.get("name"), found.get("inputSchema")
    if not isinstance(name, str) or not isinstance(schema, dict):
        return None
    described = found.get("description")
    text = described if isinstance(described, str) else ""
    return _Offer(name, text, cast("dict[str, Any]", schema))


def _aimed(
    name: str, arguments: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any], Mapping[str, object]]:
    """What a use stands for: the gateway's own tools have other names at its door."""
    if name == MetaTool.CALL and isinstance(arguments.get("name"), str):
        inner = arguments.get("arguments")
        found = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
        return arguments["name"], found, _PLAIN
    if name in _MGP_NAME:
        return _MGP_NAME[name], arguments, _FINDING
    return name, arguments, _PLAIN


def _failed(use: ToolUse, because: str) -> ToolResult:
    return ToolResult(use.id, said(because[:2_000]), is_error=True)


def _result(use: ToolUse, answer: Frame) -> ToolResult:
    error = jsonrpc.error_of(answer)
    if error is not None or answer.result is UNSET:
        return _failed(use, "there was no answer" if error is None else error.message)
    found = cast("dict[str, Any]", jsonrpc.value(answer.result))
    if found.get("resultType", mcp.COMPLETE_RESULT) != mcp.COMPLETE_RESULT:
        return _failed(use, "this tool wants to be asked further, which a turn cannot do")
    blocks = found.get("content")
    listed = cast("list[object]", blocks) if isinstance(blocks, list) else []
    content: Content = tuple(map(_block, listed))
    if not content and "structuredContent" in found:
        content = said(jsonrpc.to_json(found["structuredContent"]).decode())
    return ToolResult(use.id, content or said("(done)"), found.get("isError") is True)


def _block(found: object) -> Block:
    """A block of a tool's answer, whatever it is."""
    block = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    kind, text = block.get("type"), block.get("text")
    if kind == "text" and isinstance(text, str):
        return Block("text", text)
    data, mime = block.get("data"), block.get("mimeType")
    if kind in ("image", "audio") and isinstance(data, str) and isinstance(mime, str):
        return Block(kind, data=data, mime=mime)
    inside = block.get("resource")
    if isinstance(inside, dict):
        embedded = cast("dict[str, Any]", inside)
        text = embedded.get("text")
        if isinstance(text, str):
            return Block("text", text)
        block = embedded
    return Block("text", f"[{kind}: {block.get('uri', '')}]"[:2_000])
