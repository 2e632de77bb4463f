"""What servers say has happened stands apart, is bounded, and borrows no trace."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from comity.kernel import testimony
from comity.kernel.audit_recorder import AT_ONCE
from comity.kernel.outbox import Outbox
from comity.kernel.testimony import CLAIMED, DEEPEST, LONGEST_WORD, MOST_BYTES, read
from comity.wire import jsonrpc, mcp
from comity.wire.audit import NOTICE, Event, Result, Type, as_uuid
from comity.wire.errors import MalformedMessage
from comity.wire.parties import PartyKind
from tests.kernel.carriers import Params, Script, ScriptedCarrier, hello, until
from tests.kernel.desks import Front
from tests.kernel.noted import SECRET, Noted, redact
from tests.kernel.server_house import AT_ONCE as NO_PAUSE
from tests.kernel.server_house import options

TRACE = "1f" * 16
SAID: Params = {
    "timestamp": "2026-11-02T08:15:30.120Z",
    "trace_id": as_uuid(TRACE),
    "event_type": "com.example.deleted",
    "actor": {"type": "agent", "id": "agent.night_watch"},
    "target": {"server_id": "pantry", "tool_name": "throw_away"},
    "result": "SUCCESS",
    "details": {"path": "/x"},
}


class Heard(Noted):
    """One server that testifies, and what is noted of that."""

    def __init__(self, *extensions: str) -> None:
        super().__init__()
        said = hello(tools={}, mgp={"version": "0.3.0", "extensions": list(extensions)})
        self.script = Script(costs_a_process=True, replies={mcp.INITIALIZE: said})
        self.front = Front({"files": self.script}, how=options(backoff=NO_PAUSE))
        self.testimony = testimony.Testimony(self.journal, redact, self.front.servers)

    @property
    def carrier(self) -> ScriptedCarrier:
        return self.script.last

    def says(self, **other: Any) -> list[Event]:
        """Have the server say it, with something otherwise; gives what was noted."""
        said = {key: value for key, value in {**SAID, **other}.items() if value is not None}
        self.carrier.says(jsonrpc.notification(NOTICE, said))
        return self.take()

    def calls(self, trace: str = TRACE) -> None:
        """A call that the server has open."""
        reached = self.front.servers.need("files").reached
        frame = jsonrpc.request(1, mcp.CALL_TOOL, {"name": "x", "trace_id": trace})
        call = self.front.underway.begin(frame, Outbox(), None)
        call.is_for_all_servers = True
        reached.own_link().link.ask(call, frame)

    def ends(self, server: str = "files", kind: Type = Type.TOOL_EXECUTED) -> None:
        self.journal.note(Event(kind, "agent:ci", self.now, server=server, trace=TRACE))
        self.take()


@asynccontextmanager
async def heard(*extensions: str) -> AsyncGenerator[Heard]:
    found = Heard(*(extensions or ("audit",)))
    await found.front.ready()
    try:
        yield found
    finally:
        await found.front.servers.stop()


async def test_a_servers_word_stands_as_its_word() -> None:
    async with heard() as house:
        (event,) = house.says(details={"key": SECRET})
        assert (event.type, event.actor, event.kind) == (
            Type.TESTIMONY,
            "server:files",
            PartyKind.SERVER,
        )
        assert (event.server, event.tool, event.result) == ("files", "", Result.UNKNOWN)
        asserted = event.details["asserted"]
        assert isinstance(asserted, dict)
        assert asserted == {
            **{key: value for key, value in SAID.items() if key != "trace_id"},
            "details": {"key": SECRET},
        }


async def test_what_a_notice_says_of_its_own_way_is_no_testimony() -> None:
    async with heard() as house:
        (event,) = house.says(_meta={"com.example/x": 7}, trace_id=None, details=None)
        asserted = event.details["asserted"]
        assert isinstance(asserted, dict)
        assert asserted.keys() == SAID.keys() - {"trace_id", "details"}


async def test_a_server_that_did_not_agree_on_it_is_not_heard() -> None:
    async with heard("lifecycle") as house:
        assert not house.says()
        assert house.testimony.ended not in house.journal.noted


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_trace_is_believed_of_a_call_that_is_open_there(is_open: bool) -> None:
    async with heard() as house:
        house.calls(TRACE if is_open else "2e" * 16)
        (event,) = house.says()
        assert (event.trace == TRACE) is is_open
        assert event.details.get(CLAIMED) == (None if is_open else as_uuid(TRACE))


@pytest.mark.parametrize(
    ("server", "seconds", "is_believed"),
    [("files", 0, True), ("files", 59, True), ("files", 61, False), ("mail", 0, False)],
)
async def test_a_trace_is_believed_of_a_call_that_has_just_ended_there(
    server: str, seconds: float, is_believed: bool
) -> None:
    async with heard() as house:
        house.ends(server)
        house.pass_time(seconds)
        (event,) = house.says()
        assert (event.trace == TRACE) is is_believed


async def test_what_never_reached_a_server_is_no_call_of_its() -> None:
    async with heard() as house:
        house.ends(kind=Type.TOOL_BLOCKED)
        (event,) = house.says()
        assert event.trace != TRACE


async def test_what_ended_long_ago_is_not_kept_in_mind() -> None:
    async with heard() as house:
        house.ends()
        house.now += timedelta(minutes=2)
        later = Event(Type.OFFER_USED, "x", house.now, server="files", trace="2e" * 16)
        house.journal.note(later)
        house.take()
        house.now -= timedelta(minutes=2)
        (event,) = house.says()
        assert event.trace != TRACE


@pytest.mark.parametrize("claimed", ["", "free text", "0" * 32, None])
async def test_a_trace_that_is_none_is_replaced(claimed: str | None) -> None:
    async with heard() as house:
        (event,) = house.says(trace_id=claimed)
        assert len(event.trace) == 32
        assert event.details.get(CLAIMED, "") == (claimed or "")


@pytest.mark.parametrize(
    "other",
    [
        {"timestamp": None},
        {"event_type": None},
        {"event_type": ""},
        {"event_type": 7},
        {"actor": {"type": "agent"}},
        {"actor": {"type": "agent", "id": "x", "more": 1}},
        {"target": "files"},
        {"result": ["SUCCESS"]},
        {"details": []},
        {"unknown": True},
        {"result": "x" * (LONGEST_WORD + 1)},
        {"details": {"x": "x" * MOST_BYTES}},
        {"details": {"x": jsonrpc.value(b"[" * DEEPEST + b"]" * DEEPEST)}},
    ],
)
async def test_what_has_another_form_is_left_out_and_counted(other: Params) -> None:
    async with heard() as house:
        assert not house.says(**other)
        (event,) = house.says()
        assert event.details["left_out"] == 1


def test_an_event_without_parameters_is_none() -> None:
    with pytest.raises(MalformedMessage):
        read(jsonrpc.notification(NOTICE))


async def test_a_server_that_says_too_much_is_counted() -> None:
    async with heard() as house:
        events = [event for _ in range(AT_ONCE + 9) for event in house.says()]
        assert len(events) == AT_ONCE
        house.pass_time(10)
        (event,) = house.says()
        assert event.details["left_out"] == 9


async def test_nothing_is_taken_from_a_server_while_the_journal_has_no_room() -> None:
    async with heard() as house:
        while house.journal.has_room:
            house.journal.note(Event(Type.KEY_ISSUED, "x", house.now))
        house.take()
        assert not house.says()


async def test_a_server_that_comes_again_without_it_is_heard_no_more() -> None:
    async with heard() as house:
        assert house.says()
        first = house.carrier
        house.script.replies[mcp.INITIALIZE] = hello(tools={})
        first.dies()
        await until(lambda: house.carrier is not first and house.carrier.is_open)
        server = house.front.servers.need("files")
        await until(lambda: NOTICE not in server.pulse.notices)
        assert not house.says()
        assert house.testimony.ended not in house.journal.noted
