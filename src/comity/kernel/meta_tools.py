"""The gateway's own tools at the door of all servers, in both eras. (D-19, MGP §16.2, §16.3)

Rule 1: in discovery mode a client lists these, its pinned tools and what it has used or asked for;
        without it all tools there are, and only MGP's own names mean these, to who negotiated them.
Rule 2: `call_tool` is not answered here. It becomes the call of its target before anybody looks at
        it, so that the gate, the journal and the server see what they would have seen without it.
Rule 3: what is done with a tool is kept of whoever may: a call puts it into its caller's belt.
"""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.catalog import Offer
from comity.kernel.discovering import Discovering
from comity.kernel.own_methods import Asked
from comity.kernel.requesting import Requesting
from comity.rules import refusals, tool_words
from comity.rules.meta_tools import RESERVED, MetaTool, is_reserved, meant
from comity.rules.negotiation import Terms, of_request
from comity.rules.secret_forms import without_secrets
from comity.rules.tool_words import Result
from comity.wire import jsonrpc, tool_discovery
from comity.wire.errors import (
    INVALID_TOOL_ARGS,
    METHOD_NOT_FOUND,
    TOOL_NOT_FOUND,
    MalformedMessage,
)
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.mcp import COMPLETE_RESULT
from comity.wire.negotiation import Extension

_SPOKEN: Final[Mapping[MetaTool, Callable[[Result], str]]] = {
    MetaTool.SEARCH: tool_words.found,
    MetaTool.REQUEST: tool_words.requested,
    MetaTool.SESSION: tool_words.session,
    MetaTool.EVICT: tool_words.session,
}
_MENTION: Final = Extension.TOOL_DISCOVERY.encode()
_OF_CALL: Final = frozenset({"name", "arguments"})


class MetaTools:
    """What `comity.kernel.own_tools` speaks of."""

    def __init__(self, discovering: Discovering, requesting: Requesting, *, is_on: bool) -> None:
        self._discovering = discovering
        self._requesting = requesting
        self._belts = discovering.belts
        self._is_on = is_on

    def listed(self, call: Call) -> list[bytes] | None:
        """Raises Unavailable."""
        if not self._is_on:
            return None
        return self._belts.listed(self._belts.of(call))

    def takes(self, name: str | None) -> bool:
        if name is None:
            return False
        return is_reserved(name) if self._is_on else name.startswith(RESERVED)

    def used(self, call: Call, offer: Offer) -> None:
        if self._is_on or self._has_a_belt(call):
            self._belts.use(call, offer)

    def _has_a_belt(self, call: Call) -> bool:
        """Of those who list all tools, only who negotiated it; in the modern era, for this call."""
        if call.client is not None:
            return call.client.mgp is not None and _agreed(call.client.mgp)
        if call.params is UNSET or _MENTION not in bytes(call.params):
            return False
        terms = of_request(call.params)
        return terms is not None and _agreed(terms)

    async def called(self, asked: Asked) -> Frame | None:
        params = asked.params
        name = jsonrpc.text(params.get("name")) or ""
        tool = meant(name, is_listed=self._is_on) if self._is_open_to(asked) else None
        if tool is None:
            said = without_secrets(name[:1000])
            raise MalformedMessage(f"no such name in tools: {said!r:.200}", TOOL_NOT_FOUND)
        arguments = _arguments(params)
        if tool is MetaTool.CALL:
            return _aimed(asked, params, arguments)
        if "task" in params:
            raise MalformedMessage(f"{name} is not done as a task", METHOD_NOT_FOUND)
        result = await self._answer(tool, asked, arguments)
        text = {"type": "text", "text": _SPOKEN[tool](result)}
        body: dict[str, object] = {"content": [text], "structuredContent": result, "isError": False}
        if asked.session is None:
            body = {"resultType": COMPLETE_RESULT, **body}
        asked.call.answered(jsonrpc.result(asked.call.asker_id, body))
        return None

    def _is_open_to(self, asked: Asked) -> bool:
        return self._is_on or (asked.terms is not None and _agreed(asked.terms))

    async def _answer(self, tool: MetaTool, asked: Asked, arguments: Mapping[str, Raw]) -> Result:
        if tool is MetaTool.SEARCH:
            said = tool_discovery.search(arguments, INVALID_TOOL_ARGS)
            return await self._discovering.search(asked.call, said)
        if tool is MetaTool.REQUEST:
            wanted = tool_discovery.wanted(arguments, INVALID_TOOL_ARGS)
            return await self._requesting.request(asked, wanted)
        if tool is MetaTool.SESSION and "evict" in arguments:
            arguments = {"tools": arguments["evict"]}
        elif tool is MetaTool.SESSION:
            return self._discovering.session(asked.call)
        names, _ = tool_discovery.evicted(arguments, INVALID_TOOL_ARGS)
        return self._discovering.evict(asked.call, names)


def _agreed(terms: Terms) -> bool:
    return Extension.TOOL_DISCOVERY in terms.extensions


def _arguments(params: Mapping[str, Raw]) -> dict[str, Raw]:
    try:
        return jsonrpc.members(params["arguments"]) if "arguments" in params else {}
    except MalformedMessage:
        raise MalformedMessage("arguments must be an object", INVALID_TOOL_ARGS) from None


def _aimed(asked: Asked, params: Mapping[str, Raw], arguments: Mapping[str, Raw]) -> Frame:
    """The call of the target: all that was said around it is said of that call."""
    name = jsonrpc.text(arguments.get("name"))
    if not name:
        raise MalformedMessage("say in `name` which tool is called", INVALID_TOOL_ARGS)
    if is_reserved(name):
        raise MalformedMessage(
            f"{name} is a tool of the gateway's own; call it directly", INVALID_TOOL_ARGS
        )
    strangers = ", ".join(sorted(arguments.keys() - _OF_CALL))
    if strangers:
        because = f"what {name!r:.80} is called with belongs into `arguments`: {strangers:.200}"
        raise MalformedMessage(without_secrets(because), INVALID_TOOL_ARGS)
    aimed = {**params, "name": arguments["name"], "arguments": arguments.get("arguments")}
    if aimed["arguments"] is None:
        del aimed["arguments"]
    frame = jsonrpc.with_params(asked.frame, jsonrpc.to_raw(aimed))
    # From here on it is that call: what it is refused, counted and written down as.
    asked.call.params, asked.call.tool = refusals.kept(frame.params), name
    return frame
