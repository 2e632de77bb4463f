"""Sessions that share a link: nobody is guessed at, and each hears what it asked for."""

import asyncio

import pytest

from comity.kernel.call import Call
from comity.kernel.links import Link
from comity.kernel.outbox import Outbox
from comity.kernel.sessions import Session
from comity.kernel.sharing import MOST_FOLLOWED, Sharers
from comity.kernel.underway import Underway
from comity.wire import jsonrpc, mcp
from comity.wire.errors import EXHAUSTED, METHOD_NOT_FOUND, MalformedMessage
from comity.wire.jsonrpc import LIMITS, Frame
from comity.wire.mcp import Era
from tests.kernel.carriers import Clock, Script, ScriptedCarrier, settled


class Den:
    """A stdio server that several sessions share."""

    def __init__(self, sessions: int) -> None:
        self.changes: list[str] = []
        self.ends: list[str] = []
        self.sharers = Sharers(self.changes.append, lambda link, because: self.ends.append(because))
        self.sessions = [Session("", 0) for _ in range(sessions)]
        for session in self.sessions:
            self.sharers.attach(session)
        self.script = Script(costs_a_process=True)
        self.carrier: ScriptedCarrier = self.script.carrier(Era.HANDSHAKE)
        self.link = Link("srv", self.carrier, self.sharers, LIMITS)
        self._underway = Underway(Clock(), 60, 300)

    def call(self, session: Session | None, number: int = 1) -> Call:
        frame = jsonrpc.request(number, "tools/call", {})
        call = self._underway.begin(frame, Outbox(), session)
        self.link.ask(call, frame)
        return call

    def answers(self) -> list[Frame]:
        return [frame for frame in self.carrier.told() if jsonrpc.is_response(frame)]


async def opened(sessions: int) -> Den:
    den = Den(sessions)
    await den.link.open()
    return den


def methods_in(outbox: Outbox) -> list[object]:
    return [jsonrpc.decode(data).method for data in outbox.take()]


def message(level: object) -> Frame:
    return jsonrpc.notification(mcp.MESSAGE, {"level": level, "data": "x"})


NOTE = jsonrpc.notification("vendor/note")
ASK = jsonrpc.request("q", "vendor/ask")


async def test_how_a_server_fares_is_told_to_all_who_agreed_with_it_and_to_nobody_else() -> None:
    den = await opened(4)
    declared = jsonrpc.to_raw({"mgp": {"version": "0.3.0", "extensions": ["lifecycle"]}})
    for session in den.sessions[:3]:
        session.introduce({"capabilities": declared})
    den.sessions[2].sees_all_servers = True
    call = den.call(den.sessions[3])
    den.carrier.says(jsonrpc.notification("notifications/mgp.lifecycle", {}))
    heard = [methods_in(session.standalone) for session in den.sessions]
    assert heard == [["notifications/mgp.lifecycle"]] * 2 + [[], []]
    assert methods_in(call.outbox) == []


async def test_what_is_said_while_one_client_waits_is_that_clients() -> None:
    den = await opened(2)
    den.call(den.sessions[0])
    call = den.call(den.sessions[0], 2)
    den.carrier.says(NOTE)
    den.carrier.says(ASK)
    assert methods_in(call.outbox) == ["vendor/note", "vendor/ask"]
    assert [methods_in(session.standalone) for session in den.sessions] == [[], []]


async def test_where_two_clients_wait_nobody_is_guessed_at() -> None:
    den = await opened(2)
    calls = [den.call(session) for session in den.sessions]
    den.carrier.says(NOTE)
    den.carrier.says(message("error"))
    den.carrier.says(ASK)
    outboxes = [call.outbox for call in calls] + [each.standalone for each in den.sessions]
    assert [methods_in(outbox) for outbox in outboxes] == [[]] * 4
    (refusal,) = den.answers()
    error = jsonrpc.error_of(refusal)
    assert error is not None
    assert error.code == METHOD_NOT_FOUND.code
    assert 'sharing = "session"' in error.message


async def test_where_two_clients_are_there_and_none_waits_nobody_is_guessed_at() -> None:
    den = await opened(2)
    den.carrier.says(NOTE)
    den.carrier.says(ASK)
    assert [methods_in(session.standalone) for session in den.sessions] == [[], []]
    assert [jsonrpc.error_of(frame) is not None for frame in den.answers()] == [True]


async def test_the_only_client_hears_what_belongs_to_no_call() -> None:
    den = await opened(1)
    den.carrier.says(NOTE)
    den.carrier.says(ASK)
    assert methods_in(den.sessions[0].standalone) == ["vendor/note", "vendor/ask"]


async def test_with_nobody_there_a_question_is_refused() -> None:
    den = await opened(0)
    den.carrier.says(NOTE)
    den.carrier.says(ASK)
    assert [jsonrpc.error_of(frame) is not None for frame in den.answers()] == [True]


async def test_the_gateways_own_requests_are_nobodys_call() -> None:
    den = await opened(1)
    asking = asyncio.ensure_future(den.link.request("silent"))
    await settled()
    den.carrier.says(NOTE)
    assert methods_in(den.sessions[0].standalone) == ["vendor/note"]
    asking.cancel()
    await asyncio.wait([asking])


async def test_two_requests_that_stand_alone_are_two_clients() -> None:
    den = await opened(0)
    first = den.call(None)
    den.carrier.says(NOTE)
    second = den.call(None)
    den.carrier.says(NOTE)
    assert [methods_in(first.outbox), methods_in(second.outbox)] == [["vendor/note"], []]


async def test_a_client_that_left_is_not_told_and_not_asked() -> None:
    den = await opened(2)
    den.sharers.detach(den.sessions[0])
    assert len(den.sharers) == 1
    assert den.sessions[0] not in den.sharers
    den.carrier.says(NOTE)
    assert methods_in(den.sessions[0].standalone) == []
    assert methods_in(den.sessions[1].standalone) == ["vendor/note"]


async def test_changes_of_lists_are_told_to_all() -> None:
    den = await opened(3)
    den.sessions[2].sees_all_servers = True
    den.carrier.says(jsonrpc.notification(mcp.TOOLS_CHANGED))
    told = [methods_in(session.standalone) for session in den.sessions]
    assert told == [[mcp.TOOLS_CHANGED], [mcp.TOOLS_CHANGED], []]


async def test_a_server_that_began_anew_may_have_changed_everything() -> None:
    den = await opened(1)
    den.link.renewed()
    assert sorted(den.changes) == sorted(mcp.LIST_CHANGES)
    quiet = Sharers(None, lambda link, because: None)
    quiet.renewed(den.link)
    quiet.told(den.link, jsonrpc.notification(mcp.TOOLS_CHANGED))


async def test_the_end_of_the_link_is_passed_on() -> None:
    den = await opened(1)
    den.carrier.dies("exit status 1")
    assert den.ends == ["exit status 1"]


async def test_only_who_follows_a_resource_hears_of_it() -> None:
    den = await opened(3)
    first, second, _ = den.sessions
    for session in (first, second):
        den.sharers.follow(session, "x:1")
    den.sharers.follow(second, "x:2")
    for uri in ("x:1", "x:2", "x:3"):
        den.carrier.says(jsonrpc.notification(mcp.RESOURCE_UPDATED, {"uri": uri}))
    assert [len(methods_in(session.standalone)) for session in den.sessions] == [1, 2, 0]


async def test_only_the_last_to_leave_a_resource_ends_its_subscription() -> None:
    den = await opened(2)
    first, second = den.sessions
    for session in (first, second):
        den.sharers.follow(session, "x:1")
        den.sharers.follow(session, "x:1")
    assert not den.sharers.unfollow(first, "x:1")
    assert not den.sharers.unfollow(first, "x:1")
    assert den.sharers.unfollow(second, "x:1")
    assert not den.sharers.unfollow(second, "x:1")


async def test_a_session_follows_only_so_many_resources() -> None:
    den = await opened(2)
    first, second = den.sessions
    for number in range(MOST_FOLLOWED):
        den.sharers.follow(first, f"x:{number}")
    den.sharers.follow(first, "x:0")
    den.sharers.follow(second, "x:more")
    with pytest.raises(MalformedMessage) as caught:
        den.sharers.follow(first, "x:more")
    assert caught.value.fault is EXHAUSTED
    assert len(den.sharers.detach(first)) == MOST_FOLLOWED


async def test_who_leaves_unfollows_everything() -> None:
    den = await opened(2)
    first, second = den.sessions
    den.sharers.follow(first, "x:1")
    den.sharers.follow(first, "x:2")
    den.sharers.follow(second, "x:2")
    assert den.sharers.detach(first) == ["x:1"]
    assert den.sharers.detach(second) == ["x:2"]


async def test_the_most_talkative_level_that_anybody_asked_for_counts() -> None:
    den = await opened(4)
    assert den.sharers.lowest_level() is None
    for session, level in zip(den.sessions, ("error", "info", "critical", "nonsense"), strict=True):
        session.level = level
    assert den.sharers.lowest_level() == "info"
    den.sharers.detach(den.sessions[1])
    assert den.sharers.lowest_level() == "error"


@pytest.mark.parametrize(
    ("wanted", "level", "heard"),
    [
        (None, "debug", True),
        ("warning", "info", False),
        ("warning", "warning", True),
        ("warning", "error", True),
        ("warning", "nonsense", True),
        ("nonsense", "debug", True),
        ("warning", 5, True),
    ],
)
async def test_a_log_message_reaches_whom_it_is_loud_enough_for(
    wanted: str | None, level: object, heard: bool
) -> None:
    den = await opened(1)
    (session,) = den.sessions
    session.level = wanted
    den.carrier.says(message(level))
    assert bool(methods_in(session.standalone)) is heard
    call = den.call(session)
    den.carrier.says(message(level))
    assert bool(methods_in(call.outbox)) is heard
