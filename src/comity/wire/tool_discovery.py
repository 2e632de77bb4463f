"""How tools are searched for, asked for and kept in a session, in MGP's words. (MGP §16.5-16.8)

Each method is also a tool of the same name, with the same parameters as its arguments. (D-19)
What stands beside the members that the document names is ours: why there is less than was wanted,
and how tokens were counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, Fault, MalformedMessage
from comity.wire.lifecycle import State
from comity.wire.security import MIRROR, Risk

DISCOVER: Final = "mgp/tools/discover"
REQUEST: Final = "mgp/tools/request"
SESSION: Final = "mgp/tools/session"
EVICT: Final = "mgp/tools/session/evict"

MOST_QUERIES: Final = 8
MOST_RESULTS: Final = 50
LONGEST_QUERY: Final = 1000
MOST_NAMES: Final = 32
MOST_EVICTED: Final = 1000

type Strategy = Literal["keyword", "semantic", "category", "hybrid"]
"""How tools are searched; the last one is ours, and the default. (MGP §16.4)"""

type _Query = Annotated[str, Meta(min_length=1, max_length=LONGEST_QUERY)]
type _Name = Annotated[str, Meta(min_length=1, max_length=200)]
type _Names = Annotated[list[_Name], Meta(max_length=MOST_NAMES)]


class Outcome(StrEnum):
    """What became of a request for tools. (MGP §16.6)"""

    FULFILLED = "fulfilled"
    PARTIAL = "partial"
    UNAVAILABLE = "unavailable"
    PENDING_APPROVAL = "pending_approval"
    CREATING = "creating"


class _Filter(Struct, frozen=True):
    categories: _Names = []
    risk_level_max: Risk | None = None
    status: State | None = None


class _Search(Struct):
    query: _Query | None = None
    queries: Annotated[list[_Query], Meta(max_length=MOST_QUERIES)] = []
    strategy: Strategy | None = None
    max_results: Annotated[int, Meta(ge=1, le=MOST_RESULTS)] | None = None
    filter: _Filter = _Filter()


class _Requirements(Struct, frozen=True):
    capabilities: Annotated[list[_Name], Meta(max_length=MOST_QUERIES)] = []
    input_types: _Names = []
    output_types: _Names = []
    preferred_risk_level: Risk | None = None


class _Request(Struct):
    reason: _Name = "capability_gap"
    context: Annotated[str, Meta(max_length=4 * LONGEST_QUERY)] = ""
    requirements: _Requirements = _Requirements()
    task_trace_id: Annotated[str, Meta(max_length=200)] | None = None


class _Evict(Struct):
    tools: Annotated[list[_Name], Meta(max_length=MOST_EVICTED)]
    reason: Annotated[str, Meta(max_length=LONGEST_QUERY)] = ""


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for: each query for itself, and all of them among the same tools."""

    queries: tuple[str, ...]
    strategy: Strategy | None = None
    max_results: int | None = None
    categories: tuple[str, ...] = ()
    risk_level_max: Risk | None = None
    status: State | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody lacks for its task."""

    reason: str
    context: str
    capabilities: tuple[str, ...]
    input_types: tuple[str, ...] = ()
    output_types: tuple[str, ...] = ()
    preferred_risk_level: Risk | None = None
    task_trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """A number of tokens, and how it was found."""

    method: str
    is_exact: bool

    def told(self) -> dict[str, object]:
        return {"method": self.method, "exact": self.is_exact}


@dataclass(frozen=True, slots=True)
class Lacking:
    """One thing that was wanted and is not there, with whatever is known of why."""

    reason: str
    capability: str = ""
    tool: str = ""
    server: str = ""
    message: str = ""
    ask: str = ""

    def told(self) -> dict[str, object]:
        said = {
            "capability": self.capability,
            "name": self.tool,
            "server_id": self.server,
            "reason": self.reason,
            "message": self.message,
            "ask_id": self.ask,
        }
        return {member: value for member, value in said.items() if value}


def search(params: Mapping[str, Raw], fault: Fault = INVALID_PARAMS) -> Search:
    """Raises MalformedMessage."""
    said = _read(params, _Search, fault)
    queries = (*(() if said.query is None else (said.query,)), *said.queries)
    narrowed = said.filter
    if not queries and not narrowed.categories and said.strategy != "category":
        raise MalformedMessage("say in `query` what the tool should do", fault)
    if len(queries) > MOST_QUERIES:
        raise MalformedMessage(f"at most {MOST_QUERIES} queries at once", fault)
    return Search(
        tuple(dict.fromkeys(queries)),
        said.strategy,
        said.max_results,
        tuple(narrowed.categories),
        narrowed.risk_level_max,
        narrowed.status,
    )


def wanted(params: Mapping[str, Raw], fault: Fault = INVALID_PARAMS) -> Wanted:
    """Raises MalformedMessage."""
    said = _read(params, _Request, fault)
    needs = said.requirements
    if not needs.capabilities and not said.context.strip():
        raise MalformedMessage("say what is lacking, in `requirements` or `context`", fault)
    return Wanted(
        said.reason,
        said.context,
        tuple(dict.fromkeys(needs.capabilities)),
        tuple(needs.input_types),
        tuple(needs.output_types),
        needs.preferred_risk_level,
        said.task_trace_id,
    )


def evicted(params: Mapping[str, Raw], fault: Fault = INVALID_PARAMS) -> tuple[list[str], str]:
    """Which tools are to go, and why; raises MalformedMessage."""
    said = _read(params, _Evict, fault)
    return said.tools, said.reason


def security(risk: Risk, needs: Iterable[str], validators: Sequence[str]) -> dict[str, object]:
    """What is known of the risk of a tool, as the document labels it. (MGP §4.2)"""
    said: dict[str, object] = {"risk_level": risk, "permissions_required": list(needs)}
    if validators:
        said["validator"] = validators[0] if len(validators) == 1 else list(validators)
    return said


def tool(
    definition: bytes, server: str, label: Mapping[str, object], score: float | None = None
) -> dict[str, object]:
    """A whole definition, and beside it what the gateway knows of the tool. (MGP §16.5)"""
    said: dict[str, object] = {**jsonrpc.members(definition)}
    meta = said.get("_meta")
    # Some SDKs drop every member that they do not know.
    mirrored = {**(_members(meta) if isinstance(meta, Raw) else {}), MIRROR: label}
    scored = {} if score is None else {"relevance_score": score}
    return {**said, "server_id": server, **scored, "security": label, "_meta": mirrored}


def _members(raw: Raw) -> dict[str, Raw]:
    try:
        return jsonrpc.members(raw)
    except MalformedMessage:
        return {}


def _read[T](params: Mapping[str, Raw], kind: type[T], fault: Fault) -> T:
    try:
        said = {name: jsonrpc.value(raw) for name, raw in params.items() if name != "_meta"}
        return msgspec.convert(said, kind)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"{error}"[:300], fault) from None
