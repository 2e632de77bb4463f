"""The gateway's own tools, by which any MCP client finds tools, calls them and keeps a few. (D-19)

Rule 1: they are listed under names that every model takes; MGP's names, with dots for slashes or
        as they are, mean the same. Their prefix is kept for them: no server's tool is found by a
        bare name that begins so.
Rule 2: none of them may be what `call_tool` calls.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from comity.rules.search import Strategy
from comity.wire import jsonrpc, tool_discovery
from comity.wire.security import Risk

RESERVED: Final = ("mgp.", "mgp/")


class MetaTool(StrEnum):
    """What each of them does, by the name under which it is listed; the last is not listed."""

    SEARCH = "search_tools"
    REQUEST = "request_tools"
    CALL = "call_tool"
    SESSION = "session_tools"
    EVICT = "session_tools.evict"


LISTED: Final = (MetaTool.SEARCH, MetaTool.REQUEST, MetaTool.CALL, MetaTool.SESSION)
_METHODS: Final[Mapping[str, MetaTool]] = {
    tool_discovery.DISCOVER: MetaTool.SEARCH,
    tool_discovery.REQUEST: MetaTool.REQUEST,
    tool_discovery.SESSION: MetaTool.SESSION,
    tool_discovery.EVICT: MetaTool.EVICT,
}
BY_MGP_NAME: Final[Mapping[str, MetaTool]] = {
    **_METHODS,
    **{method.replace("/", "."): tool for method, tool in _METHODS.items()},
}
BY_NAME: Final[Mapping[str, MetaTool]] = {**{str(tool): tool for tool in LISTED}, **BY_MGP_NAME}


def _one_of(choices: Iterable[str]) -> dict[str, object]:
    return {"type": "string", "enum": [str(each) for each in choices]}


def _text(meaning: str) -> dict[str, object]:
    return {"type": "string", "description": meaning}


def _texts(meaning: str) -> dict[str, object]:
    return {"type": "array", "items": {"type": "string"}, "description": meaning}


def _schema(properties: Mapping[str, object], *required: str) -> dict[str, object]:
    said: dict[str, object] = {"type": "object", "properties": properties}
    return {**said, "required": list(required)} if required else said


def _definition(
    name: MetaTool, description: str, schema: Mapping[str, object], **hints: bool
) -> bytes:
    said: dict[str, object] = {
        "name": name,
        "description": description,
        "inputSchema": schema,
        "annotations": {f"{hint}Hint": truth for hint, truth in hints.items()},
    }
    if name is MetaTool.CALL:
        # Whether it can be a task, its target says.
        said["execution"] = {"taskSupport": "optional"}
    return jsonrpc.to_json(said)


_FILTER: Final = _schema(
    {
        "categories": _texts("only tools of these categories"),
        "risk_level_max": _one_of(Risk),
        "status": _one_of(["connected"]),
    }
)
DEFINITIONS: Final[Mapping[MetaTool, bytes]] = {
    MetaTool.SEARCH: _definition(
        MetaTool.SEARCH,
        "Find tools by what they do. Many more tools exist than are listed. Returns whole "
        "definitions, best first; call what you find with call_tool, or by its name.",
        _schema(
            {
                "query": _text("what the tool should do, in plain words"),
                "queries": _texts("several such queries at once, for several steps"),
                "strategy": _one_of(Strategy),
                "max_results": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": tool_discovery.MOST_RESULTS,
                },
                "filter": _FILTER,
            }
        ),
        readOnly=True,
        openWorld=False,
    ),
    MetaTool.REQUEST: _definition(
        MetaTool.REQUEST,
        "Say what you lack for your task, and have the best tools for it put into your list of "
        "tools, to be called by their names.",
        _schema(
            {
                "context": _text("what you are doing and what is missing"),
                "requirements": _schema(
                    {
                        "capabilities": _texts("each thing that a tool should be able to do"),
                        "input_types": _texts("what it is given, as csv"),
                        "output_types": _texts("what it gives, as chart"),
                        "preferred_risk_level": _one_of(Risk),
                    }
                ),
                "reason": _text("as capability_gap"),
                "task_trace_id": _text("the trace of your task, a UUID"),
            }
        ),
        readOnly=False,
        destructive=False,
        openWorld=False,
    ),
    MetaTool.CALL: _definition(
        MetaTool.CALL,
        "Call a tool that is not in your list, by the name search_tools gave it.",
        _schema(
            {
                "name": _text("the tool, as server__tool"),
                "arguments": {"type": "object", "description": "as its inputSchema says"},
            },
            "name",
        ),
        readOnly=False,
        destructive=True,
        openWorld=True,
    ),
    MetaTool.SESSION: _definition(
        MetaTool.SESSION,
        "See which tools are in your list and how many tokens they take; take some out.",
        _schema({"evict": _texts("names of tools to take out")}),
        readOnly=False,
        destructive=False,
        openWorld=False,
    ),
}


def meant(name: str, *, is_listed: bool) -> MetaTool | None:
    """Which of them a name means; where none are listed, only MGP's own names mean any."""
    return (BY_NAME if is_listed else BY_MGP_NAME).get(name)


def is_reserved(name: str) -> bool:
    """Whether no server's tool may be meant by this name."""
    return name in BY_NAME or name.startswith(RESERVED)
