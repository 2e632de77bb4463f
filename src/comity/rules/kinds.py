"""What a kind of envelope is about: a family, a method, a context. (MCPx §3.1, D-38, D-42, D-43)

Rule 1: only the first two colons part it; a context may hold more of them, as a URI does.
Rule 2: `system` and `presence`, and all below them, are the gateway's own in any spelling.
Rule 3: a kind says the truth about its payload, or whoever receives it drops it. (§4.3)
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, cast

from comity.wire import mcp
from comity.wire.envelope import PROPOSAL, REQUEST, RESPONSE

_RESERVED: Final = ("system", "presence")
_FAMILIES: Final = frozenset({REQUEST, RESPONSE, PROPOSAL})
CONTEXT_OF: Final = {mcp.CALL_TOOL: "name", mcp.GET_PROMPT: "name", mcp.READ_RESOURCE: "uri"}
"""Which parameter of a method is its context; the others have none."""


class Kind(NamedTuple):
    family: str
    method: str = ""
    context: str = ""

    def __str__(self) -> str:
        return ":".join(part for part in self if part)


def parse(kind: str) -> Kind:
    """The parts of a kind; whatever is not MCP's is a family of its own."""
    family, _, rest = kind.partition(":")
    if family not in _FAMILIES:
        return Kind(kind)
    method, _, context = rest.partition(":")
    return Kind(family, method, context)


def is_reserved(kind: str) -> bool:
    """Whether only the gateway may say it."""
    folded = kind.casefold()
    return any(
        folded.startswith(name) and folded[len(name) : len(name) + 1] in ("", "/", ":")
        for name in _RESERVED
    )


def of_payload(family: str, payload: Mapping[str, object]) -> Kind:
    """The kind that a request or proposal with this payload has."""
    method = payload.get("method")
    if not isinstance(method, str):
        return Kind(family)
    params = payload.get("params")
    name = CONTEXT_OF.get(method)
    if name is None or not isinstance(params, dict):
        return Kind(family, method)
    context = cast("dict[str, object]", params).get(name)
    return Kind(family, method, context if isinstance(context, str) else "")


def mismatch(kind: Kind, payload: Mapping[str, object], asked: Kind | None = None) -> str:
    """Why a payload is not what its kind says; empty where it is. `asked` is what a response
    answers: a response holds no method of its own, so the kind it answers is its measure."""
    if kind.family == RESPONSE:
        return _not_an_answer(kind, payload, asked)
    if kind.family not in (REQUEST, PROPOSAL):
        return ""
    found = of_payload(kind.family, payload)
    if not found.method or found.method != kind.method:
        return f"the kind says {kind.method!r}, the payload {found.method!r}"
    if kind.context and found.context != kind.context:
        return f"the kind says {kind.context!r}, the payload {found.context!r}"
    if kind.family == REQUEST and payload.get("jsonrpc") != "2.0":
        return "the payload is no JSON-RPC 2.0 message"
    return ""


def _not_an_answer(kind: Kind, payload: Mapping[str, object], asked: Kind | None) -> str:
    if ("result" in payload) == ("error" in payload):
        return "a response holds either a result or an error"
    if asked is not None and (kind.method, kind.context or asked.context) != asked[1:]:
        return f"it answers {asked}, and says that it answers {kind}"
    return ""
