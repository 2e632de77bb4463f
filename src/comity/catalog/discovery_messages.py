"""Messages of tool discovery, the definitions of the meta tools, and their answers as text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from comity.catalog.search.ranking import SearchStrategy
from comity.errors import INVALID_PARAMS, Fault, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.mgp import ServerLifecycleState
from comity.policy.risk import SECURITY_META_KEY, Risk
from comity.toolkit.text import count_noun

DISCOVER_METHOD: Final = "mgp/tools/discover"
REQUEST_METHOD: Final = "mgp/tools/request"
SESSION_METHOD: Final = "mgp/tools/session"
EVICT_METHOD: Final = "mgp/tools/session/evict"

MAX_QUERIES: Final = 8
MAX_RESULTS: Final = 50
MAX_QUERY_LENGTH: Final = 1000
MAX_NAMES: Final = 32
MAX_EVICTED_TOOLS: Final = 1000

type Strategy = Literal["keyword", "semantic", "category", "hybrid"]
"""The search strategies of MGP; `hybrid` is Comity's own, and the default. (MGP §16.4)"""

type _Query = Annotated[str, Meta(min_length=1, max_length=MAX_QUERY_LENGTH)]
type _Name = Annotated[str, Meta(min_length=1, max_length=200)]
type _Names = Annotated[list[_Name], Meta(max_length=MAX_NAMES)]


class ToolRequestOutcome(StrEnum):
    """The outcome of a request for tools. (MGP §16.6)"""

    FULFILLED = "fulfilled"
    PARTIAL = "partial"
    UNAVAILABLE = "unavailable"
    PENDING_APPROVAL = "pending_approval"
    CREATING = "creating"


class _DiscoveryFilterParams(Struct, frozen=True):
    categories: _Names = []
    risk_level_max: Risk | None = None
    status: ServerLifecycleState | None = None


class _DiscoverySearchParams(Struct):
    query: _Query | None = None
    queries: Annotated[list[_Query], Meta(max_length=MAX_QUERIES)] = []
    strategy: Strategy | None = None
    max_results: Annotated[int, Meta(ge=1, le=MAX_RESULTS)] | None = None
    filter: _DiscoveryFilterParams = _DiscoveryFilterParams()


class _RequirementParams(Struct, frozen=True):
    capabilities: Annotated[list[_Name], Meta(max_length=MAX_QUERIES)] = []
    input_types: _Names = []
    output_types: _Names = []
    preferred_risk_level: Risk | None = None


class _DiscoveryRequestParams(Struct):
    reason: _Name = "capability_gap"
    context: Annotated[str, Meta(max_length=4 * MAX_QUERY_LENGTH)] = ""
    requirements: _RequirementParams = _RequirementParams()
    task_trace_id: Annotated[str, Meta(max_length=200)] | None = None


class _ToolEvictionParams(Struct):
    tools: Annotated[list[_Name], Meta(max_length=MAX_EVICTED_TOOLS)]
    reason: Annotated[str, Meta(max_length=MAX_QUERY_LENGTH)] = ""


@dataclass(frozen=True, slots=True)
class ToolSearchParams:
    """The parameters of a search: separate queries with the same filters."""

    queries: tuple[str, ...]
    strategy: Strategy | None = None
    max_results: int | None = None
    categories: tuple[str, ...] = ()
    risk_level_max: Risk | None = None
    status: ServerLifecycleState | None = None


@dataclass(frozen=True, slots=True)
class ToolRequestParams:
    """The capabilities that a client lacks for its task."""

    reason: str
    context: str
    capabilities: tuple[str, ...]
    input_types: tuple[str, ...] = ()
    output_types: tuple[str, ...] = ()
    preferred_risk_level: Risk | None = None
    task_trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class TokenCount:
    """The method of counting tokens, and whether it is exact."""

    method: str
    is_exact: bool

    def to_json(self) -> dict[str, object]:
        return {"method": self.method, "exact": self.is_exact}


@dataclass(frozen=True, slots=True)
class MissingTool:
    """One capability or tool that is not available, and the reason."""

    reason: str
    capability: str = ""
    tool: str = ""
    server: str = ""
    message: str = ""
    approval_request_id: str = ""

    def to_json(self) -> dict[str, object]:
        said = {
            "capability": self.capability,
            "name": self.tool,
            "server_id": self.server,
            "reason": self.reason,
            "message": self.message,
            "approval_id": self.approval_request_id,
        }
        return {member: value for member, value in said.items() if value}


def decode_search(params: Mapping[str, Raw], fault: Fault = INVALID_PARAMS) -> ToolSearchParams:
    """Decode the parameters of a search.

    Raises MalformedMessage if they are invalid or name no query, category or category search.
    """
    said = _decode_params(params, _DiscoverySearchParams, fault)
    queries = (*(() if said.query is None else (said.query,)), *said.queries)
    narrowed = said.filter
    if not queries and not narrowed.categories and said.strategy != "category":
        raise MalformedMessage("describe in `query` what the tool should do", fault)
    if len(queries) > MAX_QUERIES:
        raise MalformedMessage(f"at most {MAX_QUERIES} queries at once", fault)
    return ToolSearchParams(
        tuple(dict.fromkeys(queries)),
        said.strategy,
        said.max_results,
        tuple(narrowed.categories),
        narrowed.risk_level_max,
        narrowed.status,
    )


def decode_tool_request(
    params: Mapping[str, Raw], fault: Fault = INVALID_PARAMS
) -> ToolRequestParams:
    """Decode the parameters of a request for tools.

    Raises MalformedMessage if they are invalid or say nothing of what is lacking.
    """
    said = _decode_params(params, _DiscoveryRequestParams, fault)
    needs = said.requirements
    if not needs.capabilities and not said.context.strip():
        raise MalformedMessage("describe the missing tool in `requirements` or `context`", fault)
    return ToolRequestParams(
        said.reason,
        said.context,
        tuple(dict.fromkeys(needs.capabilities)),
        tuple(needs.input_types),
        tuple(needs.output_types),
        needs.preferred_risk_level,
        said.task_trace_id,
    )


def decode_eviction(
    params: Mapping[str, Raw], fault: Fault = INVALID_PARAMS
) -> tuple[list[str], str]:
    """Return the tools to evict and the reason.

    Raises MalformedMessage if the parameters are invalid.
    """
    said = _decode_params(params, _ToolEvictionParams, fault)
    return said.tools, said.reason


def security_label(
    risk: Risk, needs: Iterable[str], validators: Sequence[str]
) -> dict[str, object]:
    """Return the security label of a tool in MGP's form. (MGP §4.2)"""
    said: dict[str, object] = {"risk_level": risk, "permissions_required": list(needs)}
    if validators:
        said["validator"] = validators[0] if len(validators) == 1 else list(validators)
    return said


def describe_tool(
    definition: bytes, server: str, label: Mapping[str, object], score: float | None = None
) -> dict[str, object]:
    """Return a whole definition with the server, score and security label. (MGP §16.5)"""
    said: dict[str, object] = {**jsonrpc.decode_members(definition)}
    meta = said.get("_meta")
    # Some SDKs drop members that they do not know, so `_meta` repeats the label.
    mirrored = {**(_members(meta) if isinstance(meta, Raw) else {}), SECURITY_META_KEY: label}
    scored = {} if score is None else {"relevance_score": score}
    return {**said, "server_id": server, **scored, "security": label, "_meta": mirrored}


def _members(raw: Raw) -> dict[str, Raw]:
    try:
        return jsonrpc.decode_members(raw)
    except MalformedMessage:
        return {}


def _decode_params[T](params: Mapping[str, Raw], kind: type[T], fault: Fault) -> T:
    try:
        said = {name: jsonrpc.decode_value(raw) for name, raw in params.items() if name != "_meta"}
        return msgspec.convert(said, kind)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"{error}"[:300], fault) from None


RESERVED_PREFIXES: Final = ("mgp.", "mgp/")


class MetaTool(StrEnum):
    """The gateway's own tools by listed name; EVICT is not listed, CREATE only for some clients."""

    SEARCH = "search_tools"
    REQUEST = "request_tools"
    CALL = "call_tool"
    SESSION = "session_tools"
    EVICT = "session_tools.evict"
    CREATE = "create_tool"


LISTED_TOOLS: Final = (MetaTool.SEARCH, MetaTool.REQUEST, MetaTool.CALL, MetaTool.SESSION)
_TOOL_BY_METHOD: Final[Mapping[str, MetaTool]] = {
    DISCOVER_METHOD: MetaTool.SEARCH,
    REQUEST_METHOD: MetaTool.REQUEST,
    SESSION_METHOD: MetaTool.SESSION,
    EVICT_METHOD: MetaTool.EVICT,
}
TOOL_BY_MGP_NAME: Final[Mapping[str, MetaTool]] = {
    **_TOOL_BY_METHOD,
    **{method.replace("/", "."): tool for method, tool in _TOOL_BY_METHOD.items()},
}
TOOL_BY_NAME: Final[Mapping[str, MetaTool]] = {
    **{str(tool): tool for tool in (*LISTED_TOOLS, MetaTool.CREATE)},
    **TOOL_BY_MGP_NAME,
}


def _enum_schema(choices: Iterable[str]) -> dict[str, object]:
    return {"type": "string", "enum": [str(each) for each in choices]}


def _text_schema(description: str) -> dict[str, object]:
    return {"type": "string", "description": description}


def _text_list_schema(description: str) -> dict[str, object]:
    return {"type": "array", "items": {"type": "string"}, "description": description}


def _object_schema(properties: Mapping[str, object], *required: str) -> dict[str, object]:
    said: dict[str, object] = {"type": "object", "properties": properties}
    return {**said, "required": list(required)} if required else said


def _encode_definition(
    name: MetaTool, description: str, schema: Mapping[str, object], **hints: bool
) -> bytes:
    said: dict[str, object] = {
        "name": name,
        "description": description,
        "inputSchema": schema,
        "annotations": {f"{hint}Hint": truth for hint, truth in hints.items()},
    }
    if name is MetaTool.CALL:
        # Whether the call can be a task depends on the target tool.
        said["execution"] = {"taskSupport": "optional"}
    return jsonrpc.to_json(said)


_FILTER_SCHEMA: Final = _object_schema(
    {
        "categories": _text_list_schema("only tools of these categories"),
        "risk_level_max": _enum_schema(Risk),
        "status": _enum_schema(["connected"]),
    }
)
DEFINITIONS: Final[Mapping[MetaTool, bytes]] = {
    MetaTool.SEARCH: _encode_definition(
        MetaTool.SEARCH,
        "Find tools by what they do. Many more tools exist than are listed. Returns whole "
        "definitions, best first; call what you find with call_tool, or by its name.",
        _object_schema(
            {
                "query": _text_schema("a description of the task, in plain words"),
                "queries": _text_list_schema("several such queries at once, for several steps"),
                "strategy": _enum_schema(SearchStrategy),
                "max_results": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_RESULTS,
                },
                "filter": _FILTER_SCHEMA,
            }
        ),
        readOnly=True,
        openWorld=False,
    ),
    MetaTool.REQUEST: _encode_definition(
        MetaTool.REQUEST,
        "Describe what your task needs. The best tools for it are added to your list of tools, "
        "to be called by their names.",
        _object_schema(
            {
                "context": _text_schema("your task, and the missing ability"),
                "requirements": _object_schema(
                    {
                        "capabilities": _text_list_schema("each ability that the tool needs"),
                        "input_types": _text_list_schema("its input, such as csv"),
                        "output_types": _text_list_schema("its output, such as chart"),
                        "preferred_risk_level": _enum_schema(Risk),
                    }
                ),
                "reason": _text_schema("as capability_gap"),
                "task_trace_id": _text_schema("the trace of your task, a UUID"),
            }
        ),
        readOnly=False,
        destructive=False,
        openWorld=False,
    ),
    MetaTool.CALL: _encode_definition(
        MetaTool.CALL,
        "Call a tool that is not in your list, by the name search_tools gave it.",
        _object_schema(
            {
                "name": _text_schema("the tool, as server__tool"),
                "arguments": {"type": "object", "description": "as its inputSchema says"},
            },
            "name",
        ),
        readOnly=False,
        destructive=True,
        openWorld=True,
    ),
    MetaTool.SESSION: _encode_definition(
        MetaTool.SESSION,
        "See which tools are in your list and how many tokens they take; take some out.",
        _object_schema({"evict": _text_list_schema("names of tools to take out")}),
        readOnly=False,
        destructive=False,
        openWorld=False,
    ),
    MetaTool.CREATE: _encode_definition(
        MetaTool.CREATE,
        "Make a tool that does not exist, where request_tools answered `creating`: its answer has "
        "the id and the rules. The code runs in a sandbox, as long as your session.",
        _object_schema(
            {
                "id": _text_schema("the id that request_tools gave"),
                "code": _text_schema("a Python file; each function in it is a tool"),
                "justification": _text_schema("the purpose of the tool"),
            },
            "id",
            "code",
        ),
        readOnly=False,
        destructive=False,
        openWorld=False,
    ),
}


def find_meta_tool(name: str, *, is_listed: bool) -> MetaTool | None:
    """Return the meta tool of a name; if none are listed, only MGP's own names count."""
    return (TOOL_BY_NAME if is_listed else TOOL_BY_MGP_NAME).get(name)


def is_reserved(name: str) -> bool:
    """Return whether the name is reserved, so that it never means a server's tool."""
    return name in TOOL_BY_NAME or name.startswith(RESERVED_PREFIXES)


type Result = Mapping[str, Any]
"""An answer as data; a tool in it is a definition whose members are raw JSON."""

_MAX_DESCRIPTION_LENGTH: Final = 2000
_HOW_TO_CALL_TEXT: Final = (
    'Call one by its name, or with call_tool {"name": "...", "arguments": {...}}.'
)
_CATEGORIES_TEXT: Final = (
    "Categories of tools and how many are in each. Name one in filter.categories."
)
ADVICE_BY_OUTCOME: Final[Mapping[str, str]] = {
    ToolRequestOutcome.FULFILLED: "These tools are in your list now; call them by their names.",
    ToolRequestOutcome.PARTIAL: (
        "Some tools were added to your list. There is no tool for the rest."
    ),
    ToolRequestOutcome.UNAVAILABLE: "There is no tool for this that you may call. Try other words.",
    ToolRequestOutcome.PENDING_APPROVAL: (
        "There are tools for this, but a person must approve their use."
    ),
    ToolRequestOutcome.CREATING: (
        "There is no tool for this yet; you may write one, as `creation` says."
    ),
}


def describe_search_result(result: Result) -> str:
    """Return the result of a search as text for a model."""
    tools, omitted = result["tools"], result.get("omitted", ())
    index = _category_lines(result.get("categories", ()))
    if index and not tools and not omitted:
        return "\n".join([_CATEGORIES_TEXT, *index])
    if not tools and not omitted:
        return (
            "No tool that you may call was found. Try other words, fewer filters, or several "
            "queries at once."
        )
    head = f"{len(tools)} of {count_noun(result['total_available'], 'tool')}, the best first."
    if "fallback_strategy" in result:
        head += f" Searched by {result['fallback_strategy']}, since nothing better is at hand."
    lines = [head, *_tool_lines(tools), *index]
    if omitted:
        named = ", ".join(omitted)
        lines.append(f"Left out, since their definitions do not fit into the budget: {named}")
    return "\n".join([*lines, _HOW_TO_CALL_TEXT])


def describe_request_result(result: Result) -> str:
    """Return the outcome of a request for tools as text for a model."""
    lines = [
        f"{result['status']}: {ADVICE_BY_OUTCOME[result['status']]}",
        *_tool_lines(result["tools_loaded"]),
    ]
    for lacking in result["tools_unavailable"]:
        what = lacking.get("name") or lacking.get("capability", "")
        why = lacking.get("message") or lacking["reason"]
        ask = f" (approval request {lacking['approval_id']})" if "approval_id" in lacking else ""
        lines.append(f"Not available: {what}: {why}{ask}")
    if "creation" in result:
        # Many clients show their model only the text of a result.
        lines.append(jsonrpc.to_json(result["creation"]).decode())
    added = result["context_tokens_added"]
    were = "was" if added == 1 else "were"
    lines.append(f"{count_noun(added, 'token')} {were} added to your list of tools.")
    return "\n".join(lines)


def describe_session_tools(result: Result) -> str:
    """Return the tools of a client and their token costs as text for a model."""
    about = "" if result["token_count"]["exact"] else "about "
    lines = [f"Your tools take {about}{result['total_tokens']} of {result['max_tokens']} tokens."]
    for kind in ("pinned", "cached", "evicted"):
        names = ", ".join(result.get(kind, ()))
        if names or kind != "evicted":
            lines.append(f"{kind}: {names or 'none'}")
    return "\n".join(lines)


def _category_lines(categories: Sequence[Result], parent_path: str = "") -> list[str]:
    """Return one line for each category by its whole path, parents first."""
    lines: list[str] = []
    for each in categories:
        path = f"{parent_path}{each['name']}"
        lines += [f"{path} ({each['tools']})", *_category_lines(each["categories"], f"{path}/")]
    return lines


def _tool_lines(tools: Sequence[Result]) -> list[str]:
    lines: list[str] = []
    for number, tool in enumerate(tools, 1):
        told = f"risk {tool['security']['risk_level']}"
        if "relevance_score" in tool:
            told = f"score {tool['relevance_score']}, {told}"
        name, about = _one_line_text(tool["name"]), _one_line_text(tool.get("description"))
        said = f"{number}. {name} ({told}): {about}"
        schema = bytes(tool["inputSchema"]).decode() if "inputSchema" in tool else "{}"
        lines += [said.removesuffix(": "), f"   inputSchema: {schema}"]
    return lines


def _one_line_text(member: Raw | None) -> str:
    """Return a text member of a definition on one line; its server may use several lines."""
    try:
        said = jsonrpc.decode_text(member) or ""
    except MalformedMessage:
        said = ""
    return " ".join(said.split())[:_MAX_DESCRIPTION_LENGTH]
