"""Calls under way: each counted once when it ends, and told to a tracer from its beginning."""

from collections.abc import Callable

from comity.kernel.call import Call
from comity.kernel.outbox import Outbox
from comity.kernel.sessions import Session
from comity.kernel.tallies import Tallies
from comity.kernel.underway import Underway
from comity.ports import Ending, Headers, Trace
from comity.wire import jsonrpc
from comity.wire.errors import TIMEOUT
from comity.wire.exposition import Sum
from comity.wire.jsonrpc import Frame
from comity.wire.traces import Context

CALL = jsonrpc.request(1, "tools/call", {"name": "look"})
WELL = jsonrpc.result(1, {"content": []})


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Record:
    """A tracer of one call, which is its own trace."""

    def __init__(self) -> None:
        self.begun: list[tuple[Trace | None, str, str]] = []
        self.endings: list[Ending] = []
        self.context: Context | None = None

    def begin(self, frame: Frame, told: Trace | None, session: str, version: str) -> Trace:
        self.begun.append((told, session, version))
        return self

    def onward(
        self, frame: Frame, headers: Headers, server: str, in_headers: bool
    ) -> tuple[Frame, Headers]:
        return frame, headers

    def ended(self, ending: Ending) -> None:
        self.endings.append(ending)

    async def close(self) -> None: ...


def watched() -> tuple[Underway, Clock, Record]:
    clock, record = Clock(), Record()
    underway = Underway(clock, 60, 300, Tallies(lambda server, tool: tool == "look"))
    underway.tracer = record
    return underway, clock, record


def counted(underway: Underway) -> dict[str, float | Sum]:
    families = {family.name: family for family in underway.count().families()}
    ends = families["comity_tool_calls_total"].samples
    return {labels[-1][1]: number for labels, number in ends if isinstance(number, int) and number}


def test_a_call_that_is_withdrawn_after_its_answer_is_counted_once() -> None:
    underway, clock, record = watched()
    call = underway.begin(CALL, Outbox(), None, underway.tallies.at("files"))
    clock.now += 2
    call.answered(WELL)
    call.withdraw(None)
    call.refuse(TIMEOUT, "too late")
    assert counted(underway) == {"ok": 1}
    (ending,) = record.endings
    assert ending[:4] == ("files", "tools/call", "look", "ok")
    assert ending.answer is not None


def test_each_end_has_its_word() -> None:
    underway, _, record = watched()
    ends: list[Callable[[Call], None]] = [
        lambda call: call.answered(jsonrpc.failure(1, TIMEOUT, "no")),
        lambda call: call.withdraw(None),
        Call.expire,
    ]
    for end in ends:
        end(underway.begin(CALL, Outbox(), None, underway.tallies.at("files")))
    assert [ending.outcome for ending in record.endings] == ["error", "cancelled", "timeout"]
    assert counted(underway) == {"error": 1, "cancelled": 1, "timeout": 1}


def test_a_tracer_hears_whose_call_it_is_and_what_the_door_was_told() -> None:
    underway, _, record = watched()
    told, outbox = Record(), Outbox()
    outbox.trace = told
    underway.begin(CALL, outbox, None)
    session = Session("files", 0)
    session.version = "2025-06-18"
    underway.begin(CALL, Outbox(), session)
    assert record.begun == [(told, "", "2026-07-28"), (None, session.id, "2025-06-18")]
    assert outbox.trace is record


def test_the_tool_of_a_call_too_long_to_keep_is_remembered() -> None:
    underway, _, record = watched()
    params = {"name": "look", "arguments": {"a": "x" * 100_000}}
    call = underway.begin(
        jsonrpc.request(1, "tools/call", params), Outbox(), None, underway.tallies.at("files")
    )
    call.answered(WELL)
    assert record.endings[0].tool == "look"


def test_a_trace_beside_the_parameters_is_the_calls() -> None:
    underway, _, _ = watched()
    said = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "trace_id": "1f" * 16}
    call = underway.begin(jsonrpc.decode(jsonrpc.to_json(said)), Outbox(), None)
    assert call.traced() == "1f" * 16
