"""What a member asks of a server in its topic: read strictly, and asked in the server's own words.

Rule 1: a kind says the truth about its payload, or nothing is done. What a member may not send
        under its whole name it may not send under a shorter one either. (MCPx §4.3, D-41)
Rule 2: of a request only what its method knows goes on to the server; the rest was the member's own
        idea, or is ours to say.
Rule 3: what comes back is MCP as a participant knows it, without the stamps of one of its eras.
"""

from collections.abc import Mapping
from typing import Final, cast
from urllib.parse import quote

from msgspec import Raw, UnsetType

from comity.rules import eras
from comity.rules.kinds import Kind, mismatch, of_payload, parse
from comity.wire import jsonrpc, mcp
from comity.wire.envelope import PROPOSAL, REQUEST, RESPONSE, Envelope
from comity.wire.errors import INVALID_REQUEST, MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame

KEPT: Final[Mapping[str, tuple[str, ...]]] = {
    mcp.CALL_TOOL: ("name", "arguments"),
    mcp.GET_PROMPT: ("name", "arguments"),
    mcp.READ_RESOURCE: ("uri",),
    mcp.COMPLETE: ("ref", "argument", "context"),
    mcp.LIST_TOOLS: ("cursor",),
    mcp.LIST_PROMPTS: ("cursor",),
    mcp.LIST_RESOURCES: ("cursor",),
    mcp.LIST_TEMPLATES: ("cursor",),
}
"""What a server in a topic can be asked, and which parameters of it go on."""

VERBS: Final = frozenset({mcp.CALL_TOOL, mcp.GET_PROMPT, mcp.READ_RESOURCE})
"""Methods that are about one thing of a server's, which grants name."""

_OFFERED: Final = frozenset({"tools", "resources", "prompts", "completions"})
_TRACES: Final = ("traceparent", "tracestate", "baggage")
_ENVELOPE: Final[Mapping[str, object]] = {
    mcp.PROTOCOL_VERSION: mcp.LATEST_MODERN,
    # Nobody can be asked anything amid a call: whoever asked is one of many who listen.
    mcp.CLIENT_CAPABILITIES: {},
    mcp.CLIENT_INFO: {"name": "comity-topic", "version": "1"},
}
# Everything that a kind may hold as it is; other characters of a name are spelt out.
_PLAIN: Final = "".join(chr(code) for code in range(33, 127) if chr(code) != "%")


def request_in(envelope: Envelope) -> Frame:
    """The request that an envelope says it is. Raises MalformedMessage with why it is not."""
    frame = jsonrpc.decode(bytes(envelope.payload), jsonrpc.FROM_CLIENTS)
    if frame.method is UNSET:
        raise MalformedMessage("the payload is no request", INVALID_REQUEST)
    _check(envelope.kind, {"jsonrpc": "2.0", "method": frame.method}, frame.params)
    return frame


def proposed_in(envelope: Envelope) -> Frame:
    """What a proposal proposes, as a request without an id. Raises the same."""
    found = jsonrpc.members(envelope.payload)
    method = jsonrpc.text(found.get("method"))
    if method is None:
        raise MalformedMessage("the payload proposes no method", INVALID_REQUEST)
    params = found.get("params", UNSET)
    _check(envelope.kind, {"method": method}, params)
    return Frame("2.0", UNSET, method, params)


def _check(kind: str, said: dict[str, object], params: Raw | UnsetType) -> None:
    if params is not UNSET:
        said["params"] = jsonrpc.value(params)
        if not isinstance(said["params"], dict):
            raise MalformedMessage("params must be an object", INVALID_REQUEST)
    because = mismatch(parse(kind), said)
    if because:
        raise MalformedMessage(because, INVALID_REQUEST)


def whole_kind(family: str, frame: Frame) -> str:
    """The kind of a request or proposal with its context, whether or not its sender named it."""
    named = of_payload(family, {"method": frame.method, "params": values(frame)})
    spelt = quote(named.context, safe=_PLAIN) if named.context else ""
    return str(Kind(family, named.method, spelt))


def context_of(frame: Frame) -> str:
    return of_payload(REQUEST, {"method": frame.method, "params": values(frame)}).context


def values(frame: Frame) -> dict[str, object]:
    """The parameters, decoded; what is no object has none."""
    found = None if frame.params is UNSET else jsonrpc.value(frame.params)
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def asked_plainly(frame: Frame) -> Frame:
    """The request as a server is asked: of the modern era, with nothing but what it knows."""
    params = jsonrpc.params_of(frame)
    kept = {name: params[name] for name in KEPT[str(frame.method)] if name in params}
    meta = eras.meta_of(params)
    traces = {name: meta[name] for name in _TRACES if jsonrpc.text(meta.get(name))}
    said = {**kept, "_meta": {**traces, **_ENVELOPE}}
    return Frame("2.0", frame.id, frame.method, jsonrpc.to_raw(said))


def answered_plainly(answer: Frame, method: str) -> Frame:
    """The answer without what only one era knows. Raises MalformedMessage."""
    return answer if answer.result is UNSET else eras.handshake_result(answer, method)


def introduced(said: Mapping[str, Raw], wanted: str | None) -> dict[str, object]:
    """What a server says of itself, as the answer to `initialize`: no more than a topic carries."""
    welcome = eras.welcome(said, wanted)
    named = cast("Mapping[str, object]", welcome["capabilities"])
    return {**welcome, "capabilities": {name: {} for name in named if name in _OFFERED}}


def response_kind(kind: str) -> str:
    """What a response to that request is called: with the same method, and the same context."""
    return str(parse(kind)._replace(family=RESPONSE))


def is_fulfilment(request: str, proposal: str) -> bool:
    """Whether a request of this kind does what a proposal of that kind proposes."""
    asked, proposed = parse(request), parse(proposal)
    if asked.family != REQUEST or proposed.family != PROPOSAL or asked.method != proposed.method:
        return False
    return not (asked.context and proposed.context) or asked.context == proposed.context
