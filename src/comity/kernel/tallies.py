"""How often everything was called, how that ended and how long it took, counted as it happens.

Rule 1: a call pays for a look-up, a bisection and three additions, later and in a row with others
        (`comity.kernel.underway`); whoever reads does the sums.
Rule 2: no label is a client's word. A method is one of MCP's, a tool one of the catalog's, and all
        else is OTHER; a server that renames its tools for ever fills its places once.
"""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from comity.rules import tasks
from comity.wire import jsonrpc, mcp
from comity.wire.errors import MalformedMessage
from comity.wire.exposition import Family, Labels, Sample, Spread, Sum
from comity.wire.jsonrpc import Frame

BOUNDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
"""Seconds. A relayed call takes one or two thousandths, a slow tool minutes."""

OTHER: Final = "other"
MOST_TOOLS: Final = 1000
"""How many tools of one server are told apart."""

OK: Final = "ok"
TOOL_ERROR: Final = "tool_error"
ERROR: Final = "error"
CANCELLED: Final = "cancelled"
NO_ERROR: Final = b'"isError":false}}'
"""How the answer of a tool that had none ends as a rule; nothing else that ends so is an error."""

METHODS: Final = tasks.METHODS | {
    *(mcp.INITIALIZE, mcp.DISCOVER, mcp.PING, mcp.LISTEN, mcp.CALL_TOOL, mcp.GET_PROMPT),
    *(mcp.READ_RESOURCE, mcp.SUBSCRIBE, mcp.UNSUBSCRIBE, mcp.COMPLETE, mcp.SET_LEVEL),
    *(mcp.LIST_TOOLS, mcp.LIST_RESOURCES, mcp.LIST_TEMPLATES, mcp.LIST_PROMPTS, "tasks/list"),
}


class Tally:
    """What was counted of one method at one server, or of one tool."""

    __slots__ = ("counts", "method", "outcomes", "seconds", "server", "tool")

    def __init__(self, server: str, method: str, tool: str = "") -> None:
        self.server = server
        self.method = method
        self.tool = tool
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0


class ServerTallies:
    """What was counted at one server, or (with no name) of what the gateway answers by itself."""

    __slots__ = ("_is_offered", "methods", "server", "tools")

    def __init__(self, server: str, is_offered: Callable[[str, str], bool]) -> None:
        self.server = server
        self.methods: dict[str, Tally] = {}
        self.tools: dict[str, Tally] = {}
        self._is_offered = is_offered

    def add(
        self,
        method: str,
        params: Raw | UnsetType,
        tool: str | None,
        outcome: str,
        seconds: float,
    ) -> Tally:
        """Count a request that has ended."""
        tally = self.of(method, params, tool)
        tally.counts[bisect_left(BOUNDS, seconds)] += 1
        tally.seconds += seconds
        tally.outcomes[outcome] += 1
        return tally

    def of(self, method: str, params: Raw | UnsetType, tool: str | None) -> Tally:
        """Where a request is counted; a tool that was not told is read from its parameters."""
        if method != mcp.CALL_TOOL:
            return self.methods.get(method) or self._begin_method(method)
        name = name_in(params) if tool is None else tool
        return self.tools.get(name) or self._begin_tool(name)

    def summed(self) -> list[Tally]:
        """One for each method: the tallies of tools are added up."""
        calls = Tally(self.server, mcp.CALL_TOOL)
        for tally in self.tools.values():
            calls.seconds += tally.seconds
            calls.counts = [a + b for a, b in zip(calls.counts, tally.counts, strict=True)]
            for outcome, count in tally.outcomes.items():
                calls.outcomes[outcome] += count
        return [*self.methods.values(), *([calls] if self.tools else ())]

    def _begin_method(self, method: str) -> Tally:
        known = label_of(method)
        return self.methods.setdefault(known, Tally(self.server, known))

    def _begin_tool(self, name: str) -> Tally:
        if len(self.tools) >= MOST_TOOLS or not self._is_offered(self.server, name):
            name = OTHER
        return self.tools.setdefault(name, Tally(self.server, mcp.CALL_TOOL, name))


class Tallies:
    """Every tally of this process; `is_offered` says whether a server has a tool of that name."""

    def __init__(self, is_offered: Callable[[str, str], bool] = lambda server, tool: False) -> None:
        self._is_offered = is_offered
        self._servers: dict[str, ServerTallies] = {}

    def at(self, server: str) -> ServerTallies:
        found = self._servers.get(server)
        if found is None:
            found = self._servers[server] = ServerTallies(server, self._is_offered)
        return found

    def families(self) -> list[Family]:
        """All of it, as a scrape reads it."""
        by_method = [tally for server in self._servers.values() for tally in server.summed()]
        tools = [
            ((("server", server.server), ("tool", tally.tool)), tally)
            for server in self._servers.values()
            for tally in server.tools.values()
        ]
        return [
            Family(
                "comity_calls_total",
                "counter",
                "Requests of clients that have ended, by how they ended.",
                _by_outcome((_of_method(tally), tally) for tally in by_method),
            ),
            Family(
                "comity_call_duration_seconds",
                "histogram",
                "Time from a request's arrival to its answer.",
                [(_of_method(t), Spread(BOUNDS, tuple(t.counts), t.seconds)) for t in by_method],
            ),
            Family(
                "comity_tool_calls_total",
                "counter",
                "Calls of tools that have ended, by how they ended.",
                _by_outcome(tools),
            ),
            Family(
                "comity_tool_call_duration_seconds",
                "summary",
                "Time from the arrival of a tool's call to its answer.",
                [(labels, Sum(sum(t.counts), t.seconds)) for labels, t in tools],
            ),
        ]


def outcome_of(method: str, frame: Frame, encoded: bytes) -> str:
    """How a request ended that was answered: by a result, by a tool's own error, by an error."""
    if frame.error is not UNSET:
        return ERROR
    if method != mcp.CALL_TOOL:
        return OK
    # Elsewhere than at the top the words may be data, so what looks like an error is looked up.
    at = encoded.rfind(b'"isError"')
    if at < 0 or encoded.startswith(b":false", at + 9):
        return OK
    return TOOL_ERROR if _is_error(frame) else OK


def _is_error(frame: Frame) -> bool:
    assert frame.result is not UNSET
    try:
        return bytes(jsonrpc.members(frame.result).get("isError", b"")) == b"true"
    except MalformedMessage:
        return False


class _Named(msgspec.Struct, gc=False):
    name: str


_decode = msgspec.json.Decoder(_Named).decode
_NAME_FIRST: Final = re.compile(rb'\{"name":"([A-Za-z0-9_./-]{1,128})"')


def name_in(params: Raw | UnsetType) -> str:
    """Which tool a call is about; long arguments are not read through for the sake of it."""
    if params is UNSET:
        return ""
    found = _NAME_FIRST.match(params) if len(params) > 1000 else None
    try:
        return _decode(params).name if found is None else found[1].decode()
    except msgspec.DecodeError:
        return ""


def label_of(method: str) -> str:
    return method if method in METHODS else OTHER


def _by_outcome(tallies: Iterable[tuple[Labels, Tally]]) -> list[Sample]:
    return [
        ((*labels, ("outcome", outcome)), count)
        for labels, tally in tallies
        for outcome, count in tally.outcomes.items()
    ]


def _of_method(tally: Tally) -> Labels:
    return (("server", tally.server), ("method", tally.method))
