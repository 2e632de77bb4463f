"""Call metrics for each method, server and tool, and the Prometheus text format."""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import inf, isnan
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from comity.errors import MalformedMessage
from comity.mcp import eras, jsonrpc, protocol
from comity.mcp.jsonrpc import Frame
from comity.telemetry.outcomes import ERROR, OK, TOOL_ERROR, class_of

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
MAX_VALUE_LENGTH: Final = 128
LINES_IN_A_PIECE: Final = 500

type Labels = tuple[tuple[str, str], ...]
type FamilyKind = Literal["counter", "gauge", "histogram", "summary"]


class Histogram(NamedTuple):
    """Durations by bucket; `counts` has one more place than `bounds`, for longer durations."""

    bounds: tuple[float, ...]
    counts: Sequence[int]
    total: float


class Summary(NamedTuple):
    """The number and the sum of durations."""

    number: int
    total: float


type Figure = float | Histogram | Summary
type Sample = tuple[Labels, Figure]


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """The samples of one metric, with its help text."""

    name: str
    kind: FamilyKind
    help: str
    samples: Sequence[Sample]


def encode_metrics(families: Iterable[MetricFamily]) -> Iterator[bytes]:
    """Yield the page that Prometheus scrapes, in pieces.

    Other tasks can run between two pieces.
    """
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escape_help(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, figure in family.samples:
            lines += _lines(family.name, _said(labels), figure)
            if len(lines) >= LINES_IN_A_PIECE:
                yield _joined(lines)
                lines = []
    if lines:
        yield _joined(lines)


def _joined(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _lines(name: str, labels: str, figure: Figure) -> list[str]:
    braced = f"{{{labels}}}" if labels else ""
    if isinstance(figure, Histogram):
        before = f"{name}_bucket{{{labels}{',' if labels else ''}"
        reached = list(accumulate(figure.counts))
        return [
            *(
                f"{before}{le} {count}"
                for le, count in zip(_les(figure.bounds), reached, strict=True)
            ),
            f"{name}_sum{braced} {_number(figure.total)}",
            f"{name}_count{braced} {reached[-1]}",
        ]
    if isinstance(figure, Summary):
        return [
            f"{name}_sum{braced} {_number(figure.total)}",
            f"{name}_count{braced} {figure.number}",
        ]
    return [f"{name}{braced} {_number(figure)}"]


@lru_cache(16)
def _les(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(f'le="{_number(bound)}"}}' for bound in (*bounds, inf))


@lru_cache(8192)
def _said(labels: Labels) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in labels)


def _escape(value: str) -> str:
    cut = value if len(value) <= MAX_VALUE_LENGTH else value[: MAX_VALUE_LENGTH - 1] + "…"
    return _CONTROL.sub("?", cut).replace("\\", r"\\").replace('"', r"\"")


def _escape_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    if value in (inf, -inf):
        return "+Inf" if value > 0 else "-Inf"
    if isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) else repr(value)


# All line separators that a reader may know, and characters that move a terminal's cursor.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


BOUNDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
"""In seconds. A relayed call takes one or two milliseconds, a slow tool minutes."""

OTHER: Final = "other"
MOST_TOOLS: Final = 1000
"""The number of tools of one server with a counter of their own."""

NO_ERROR: Final = b'"isError":false}}'
"""The usual end of a tool result without an error; no result with an error ends so."""

METHODS: Final = eras.METHODS | {
    *(
        protocol.INITIALIZE,
        protocol.DISCOVER,
        protocol.PING,
        protocol.LISTEN,
        protocol.CALL_TOOL,
        protocol.GET_PROMPT,
    ),
    *(
        protocol.READ_RESOURCE,
        protocol.SUBSCRIBE,
        protocol.UNSUBSCRIBE,
        protocol.COMPLETE,
        protocol.SET_LEVEL,
    ),
    *(
        protocol.LIST_TOOLS,
        protocol.LIST_RESOURCES,
        protocol.LIST_TEMPLATES,
        protocol.LIST_PROMPTS,
        "tasks/list",
    ),
}


class CallCounter:
    """The counts of one method at one server, or of one tool."""

    __slots__ = ("counts", "method", "outcomes", "seconds", "server", "tool")

    def __init__(self, server: str, method: str, tool: str = "") -> None:
        self.server = server
        self.method = method
        self.tool = tool
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0


class ServerCounters:
    """The counters of one server, or of the gateway's own answers if the name is empty."""

    __slots__ = ("_is_offered", "methods", "server", "tools")

    def __init__(self, server: str, is_offered: Callable[[str, str], bool]) -> None:
        self.server = server
        self.methods: dict[str, CallCounter] = {}
        self.tools: dict[str, CallCounter] = {}
        self._is_offered = is_offered

    def add(
        self,
        method: str,
        params: Raw | UnsetType,
        tool: str | None,
        outcome: str,
        seconds: float,
    ) -> CallCounter:
        """Count a request that has ended, and return its counter."""
        tally = self.of(method, params, tool)
        tally.counts[bisect_left(BOUNDS, seconds)] += 1
        tally.seconds += seconds
        tally.outcomes[outcome] += 1
        return tally

    def of(self, method: str, params: Raw | UnsetType, tool: str | None) -> CallCounter:
        """Return the counter of a request; without `tool`, the name is read from the params."""
        if method != protocol.CALL_TOOL:
            return self.methods.get(method) or self._begin_method(method)
        name = name_in(params) if tool is None else tool
        return self.tools.get(name) or self._begin_tool(name)

    def by_method(self) -> list[CallCounter]:
        """Return one counter for each method; the counters of tools are added up."""
        calls = CallCounter(self.server, protocol.CALL_TOOL)
        for tally in self.tools.values():
            calls.seconds += tally.seconds
            calls.counts = [a + b for a, b in zip(calls.counts, tally.counts, strict=True)]
            for outcome, count in tally.outcomes.items():
                calls.outcomes[outcome] += count
        return [*self.methods.values(), *([calls] if self.tools else ())]

    def _begin_method(self, method: str) -> CallCounter:
        known = label_of(method)
        return self.methods.setdefault(known, CallCounter(self.server, known))

    def _begin_tool(self, name: str) -> CallCounter:
        # Names that clients make up must not create counters without limit.
        if len(self.tools) >= MOST_TOOLS or not self._is_offered(self.server, name):
            name = OTHER
        return self.tools.setdefault(name, CallCounter(self.server, protocol.CALL_TOOL, name))


class CallMetrics:
    """All call counters of this process.

    `is_offered` tells whether a server has a tool of that name.
    """

    def __init__(self, is_offered: Callable[[str, str], bool] = lambda server, tool: False) -> None:
        self._is_offered = is_offered
        self._servers: dict[str, ServerCounters] = {}

    def at(self, server: str) -> ServerCounters:
        found = self._servers.get(server)
        if found is None:
            found = self._servers[server] = ServerCounters(server, self._is_offered)
        return found

    def servers(self) -> list[ServerCounters]:
        """Return the counters of each server, and of the gateway's own answers."""
        return list(self._servers.values())

    def families(self) -> list[MetricFamily]:
        """Return all call metrics for a scrape."""
        by_method = [tally for server in self._servers.values() for tally in server.by_method()]
        tools = [
            ((("server", server.server), ("tool", tally.tool)), tally)
            for server in self._servers.values()
            for tally in server.tools.values()
        ]
        return [
            MetricFamily(
                "comity_calls_total",
                "counter",
                "Requests of clients that have ended, by how they ended.",
                _by_outcome((_of_method(tally), tally) for tally in by_method),
            ),
            MetricFamily(
                "comity_call_duration_seconds",
                "histogram",
                "Time from a request's arrival to its answer.",
                [(_of_method(t), Histogram(BOUNDS, tuple(t.counts), t.seconds)) for t in by_method],
            ),
            MetricFamily(
                "comity_tool_calls_total",
                "counter",
                "Calls of tools that have ended, by how they ended.",
                _by_outcome(tools),
            ),
            MetricFamily(
                "comity_tool_call_duration_seconds",
                "summary",
                "Time from the arrival of a tool's call to its answer.",
                [(labels, Summary(sum(t.counts), t.seconds)) for labels, t in tools],
            ),
        ]


def outcome_of(method: str, frame: Frame, encoded: bytes) -> str:
    """Return how an answered request ended: result, tool error or protocol error."""
    if frame.error is not UNSET:
        return ERROR
    if method != protocol.CALL_TOOL:
        return OK
    # Below the top level the text may be data, so a possible error is decoded.
    at = encoded.rfind(b'"isError"')
    if at < 0 or encoded.startswith(b":false", at + 9):
        return OK
    return TOOL_ERROR if _is_error(frame) else OK


def _is_error(frame: Frame) -> bool:
    assert frame.result is not UNSET
    try:
        return bytes(jsonrpc.decode_members(frame.result).get("isError", b"")) == b"true"
    except MalformedMessage:
        return False


class _ToolNameParams(msgspec.Struct, gc=False):
    name: str


_decode = msgspec.json.Decoder(_ToolNameParams).decode
_NAME_FIRST: Final = re.compile(rb'\{"name":"([A-Za-z0-9_./-]{1,128})"')


def name_in(params: Raw | UnsetType) -> str:
    """Return the tool that a call names, without decoding long arguments."""
    if params is UNSET:
        return ""
    found = _NAME_FIRST.match(params) if len(params) > 1000 else None
    try:
        return _decode(params).name if found is None else found[1].decode()
    except msgspec.DecodeError:
        return ""


def label_of(method: str) -> str:
    return method if method in METHODS else OTHER


def _by_outcome(counters: Iterable[tuple[Labels, CallCounter]]) -> list[Sample]:
    return [
        ((*labels, ("class", class_of(outcome)), ("outcome", outcome)), count)
        for labels, tally in counters
        for outcome, count in tally.outcomes.items()
    ]


def _of_method(counter: CallCounter) -> Labels:
    return (("server", counter.server), ("method", counter.method))
