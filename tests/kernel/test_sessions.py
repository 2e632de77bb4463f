"""Sessions of handshake clients: what they hold, when they end, and that nothing outlives them."""

import asyncio

import pytest
from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.links import Link
from comity.kernel.outbox import MOST_FRAMES, Outbox
from comity.kernel.sessions import STREAMS_KEPT, Session, Sessions
from comity.kernel.underway import Underway
from comity.wire import jsonrpc, mcp
from comity.wire.errors import EXHAUSTED, MalformedMessage, Unavailable
from comity.wire.jsonrpc import LIMITS, Frame
from comity.wire.mcp import Era
from tests.kernel.carriers import Clock, Script, settled, until

IDLE, PATIENCE = 100.0, 15.0


def sessions(clock: Clock, most: int = 10) -> Sessions:
    return Sessions(clock, most, IDLE)


async def linked(session: Session, script: Script) -> Link:
    link = Link("srv", script.carrier(Era.HANDSHAKE), session, LIMITS)
    await link.open()
    session.links["srv"] = link
    return link


def call_of(session: Session, number: int = 1) -> tuple[Call, Frame]:
    frame = jsonrpc.request(number, "tools/call")
    return Underway(Clock(), 60, 300).begin(frame, Outbox(), session), frame


def waiting_for(session: Session) -> list[Frame]:
    return [jsonrpc.decode(data) for data in session.standalone.take()]


async def test_a_session_is_found_by_its_id_at_its_own_door_only() -> None:
    held = sessions(Clock())
    session = held.begin("a")
    assert held.find(session.id, "a") is session
    assert held.find(session.id, "b") is None
    assert held.find("x", "a") is None
    assert [*held] == [session]


async def test_session_ids_cannot_be_guessed() -> None:
    held = sessions(Clock(), most=100)
    names = {held.begin("").id for _ in range(100)}
    assert len(names) == 100
    assert all(len(name) == 32 and name.isascii() and name.isalnum() for name in names)


async def test_there_are_only_so_many_sessions() -> None:
    held = sessions(Clock(), most=2)
    first = held.begin("")
    held.begin("")
    with pytest.raises(Unavailable) as caught:
        held.begin("")
    assert caught.value.fault is EXHAUSTED
    await held.end(first)
    await held.end(first)
    held.begin("")
    assert len(held) == 2


async def test_a_principal_that_has_its_share_loses_its_own_idlest_session() -> None:
    held = Sessions(Clock(), 100, IDLE, each=3)
    first, second, third = (held.begin("", "agent:a") for _ in range(3))
    other = held.begin("", "agent:b")
    assert held.find(first.id, "", "agent:a") is first
    held.begin("", "agent:a")
    assert held.find(second.id, "", "agent:a") is None
    assert held.find(first.id, "", "agent:a") is first
    assert held.find(third.id, "", "agent:a") is third
    assert held.find(other.id, "", "agent:b") is other
    await until(lambda: second.closed)
    assert len(held) == 4


async def test_a_principal_whose_sessions_are_all_in_use_begins_no_more() -> None:
    held = Sessions(Clock(), 100, IDLE, each=2)
    reading, calling = held.begin("", "agent:a"), held.begin("", "agent:a")
    reading.attached += 1
    call, _ = call_of(calling)
    with pytest.raises(Unavailable, match="max_sessions_per_principal") as refused:
        held.begin("", "agent:a")
    assert refused.value.retry_after is not None
    assert held.begin("", "agent:b")
    call.answered(jsonrpc.result(1, {}))
    assert held.begin("", "agent:a")
    assert (reading.closed, calling.id in {each.id for each in held}) == (False, False)


async def test_where_all_places_are_taken_the_largest_holder_gives_one_up() -> None:
    held = Sessions(Clock(), 6, IDLE, each=5)
    small = held.begin("", "agent:small")
    large = [held.begin("", "agent:large") for _ in range(5)]
    for each in large:
        each.attached += 1
    new = held.begin("", "agent:new")
    assert held.find(large[0].id, "", "agent:large") is None
    assert held.find(small.id, "", "agent:small") is small
    assert held.find(new.id, "", "agent:new") is new
    assert len(held) == 6
    await until(lambda: large[0].closed)


async def test_nobody_loses_a_session_to_a_principal_that_would_hold_more() -> None:
    held = Sessions(Clock(), 4, IDLE)
    kept = [held.begin("", f"agent:{name}") for name in "aabb"]
    with pytest.raises(Unavailable) as refused:
        held.begin("", "agent:a")
    assert refused.value.fault is EXHAUSTED
    assert not any(each.closed for each in kept)


async def test_a_session_nobody_uses_ends() -> None:
    clock = Clock()
    held = sessions(clock)
    session = held.begin("")
    clock.passes(IDLE)
    held.look(PATIENCE)
    await settled()
    assert len(held) == 1
    assert held.find(session.id, "") is session
    clock.passes(IDLE + 1)
    held.look(PATIENCE)
    await until(lambda: not len(held))
    assert session.closed
    assert held.find(session.id, "") is None


async def test_a_session_with_an_open_call_or_stream_is_not_idle() -> None:
    clock = Clock()
    held = sessions(clock)
    calling, reading = held.begin(""), held.begin("")
    call, _ = call_of(calling)
    reading.attached += 1
    clock.passes(IDLE * 10)
    held.look(PATIENCE)
    await settled()
    assert len(held) == 2
    call.answered(jsonrpc.result(1, {}))
    reading.attached -= 1
    held.look(PATIENCE)
    await settled()
    assert len(held) == 2
    clock.passes(IDLE + 1)
    held.look(PATIENCE)
    await until(lambda: not len(held))


async def test_a_question_that_a_client_never_answers_keeps_no_session_alive() -> None:
    clock, script = Clock(), Script()
    held = sessions(clock)
    session = held.begin("")
    await linked(session, script)
    script.last.says(jsonrpc.request("q", "vendor/ask"))
    assert len(session.conversation) == 1
    clock.passes(IDLE + 1)
    held.look(PATIENCE)
    await until(lambda: not len(held))
    assert [jsonrpc.error_of(frame) is not None for frame in script.last.told()] == [True]


async def test_a_standing_stream_shows_signs_of_life() -> None:
    clock = Clock()
    held = sessions(clock)
    attached, other = held.begin(""), held.begin("")
    attached.attached += 1
    held.look(PATIENCE)
    assert not attached.standalone.nudged
    clock.passes(PATIENCE + 1)
    held.look(PATIENCE)
    assert (attached.standalone.nudged, other.standalone.nudged) == (True, False)


async def test_the_end_of_a_session_settles_everything() -> None:
    script, session = Script(), Session("", 0)
    link = await linked(session, script)
    call, frame = call_of(session)
    link.ask(call, frame)
    script.last.says(jsonrpc.request("q", "vendor/ask"))
    said = list[str]()
    session.farewells["x"] = lambda: said.append("goodbye")
    standing = session.standalone
    await session.close()
    assert (call.outbox.final, standing.final, said) == (True, True, ["goodbye"])
    assert (len(session.conversation), len(link.conversation)) == (0, 0)
    assert not script.last.is_open
    assert session.links == {}
    answered, called_off = script.last.told()
    assert jsonrpc.error_of(answered) is not None
    assert called_off.method == mcp.CANCELLED


async def test_all_sessions_end_with_the_node() -> None:
    held = sessions(Clock())
    every = [held.begin("") for _ in range(3)]
    held.end_streams()
    await held.close()
    assert all(session.closed for session in every)
    assert len(held) == 0


async def test_a_link_is_opened_once_for_all_who_need_it() -> None:
    session, script, opened = Session("", 0), Script(), list[Link]()
    gate = asyncio.Event()

    async def open_link() -> Link:
        await gate.wait()
        link = Link("srv", script.carrier(Era.HANDSHAKE), session, LIMITS)
        await link.open()
        opened.append(link)
        return link

    waiting = [asyncio.ensure_future(session.link_to("srv", open_link)) for _ in range(3)]
    await settled()
    waiting[0].cancel()
    gate.set()
    async with asyncio.timeout(10):
        found = await asyncio.gather(*waiting[1:])
    assert found == [opened[0]] * 2
    assert len(opened) == 1
    assert await session.link_to("srv", open_link) is opened[0]
    opened[0].closed("gone")
    assert session.links == {}
    assert await session.link_to("srv", open_link) is opened[1]


async def test_a_link_that_could_not_be_opened_is_tried_again() -> None:
    session = Session("", 0)

    async def fail() -> Link:
        raise Unavailable("no such host")

    for _ in range(2):
        with pytest.raises(Unavailable, match="no such host"):
            await session.link_to("srv", fail)


async def test_a_failure_that_nobody_waits_for_any_more_is_nobodys() -> None:
    session, gate = Session("", 0), asyncio.Event()

    async def fail() -> Link:
        await gate.wait()
        raise Unavailable("no such host")

    waiting = asyncio.ensure_future(session.link_to("srv", fail))
    await settled()
    waiting.cancel()
    await asyncio.wait([waiting])
    gate.set()
    await settled()
    assert session.links == {}


async def test_a_link_being_opened_does_not_outlive_its_session() -> None:
    session, ended = Session("", 0), list[str]()

    async def never() -> Link:
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.append("ended")

    waiting = asyncio.ensure_future(session.link_to("srv", never))
    await settled()
    async with asyncio.timeout(10):
        await session.close()
    assert ended == ["ended"]
    with pytest.raises(Unavailable):
        await waiting


def test_what_a_client_declares_decides_what_it_is_asked() -> None:
    session = Session("", 0)
    session.introduce({"capabilities": Raw(b'{"sampling":{}}')})
    assert session.may_be_asked("sampling")
    assert not session.may_be_asked("elicitation")
    session.introduce({})
    assert not session.may_be_asked("sampling")


@pytest.mark.parametrize("declared", [b"[]", b"5", b'{"a":1,"a":2}'])
def test_capabilities_of_no_known_shape_are_refused(declared: bytes) -> None:
    with pytest.raises(MalformedMessage):
        Session("", 0).introduce({"capabilities": Raw(declared)})


def test_what_belongs_to_no_call_waits_in_bounds() -> None:
    session = Session("", 0)
    for number in range(MOST_FRAMES * 3):
        session.tell(jsonrpc.notification(f"n{number}"))
        assert len(session.standalone.frames) <= MOST_FRAMES


def test_a_stream_is_kept_so_that_it_can_be_taken_up_again() -> None:
    session = Session("", 0)
    standing = session.standing_stream()
    assert session.standing_stream() is standing
    begun = [session.begin_stream(Outbox()) for _ in range(STREAMS_KEPT + 5)]
    assert session.streams is not None
    assert len(session.streams) == STREAMS_KEPT
    assert 0 in session.streams
    assert begun[0].number not in session.streams
    assert begun[-1].number in session.streams


def test_the_events_of_a_standing_stream_begun_anew_have_new_ids() -> None:
    session = Session("", 0)
    standing = session.standing_stream()
    first = standing.record(b"x")
    standing.outbox.end()
    again = session.standing_stream()
    assert again is not standing
    assert again.record(b"y") != first


def test_a_notice_of_the_clients_is_given_back_for_the_server() -> None:
    session = Session("", 0)
    notice = jsonrpc.notification(mcp.ROOTS_CHANGED)
    assert session.hear(notice) == notice
    assert session.hear(jsonrpc.result(9, {})) is None
    assert session.hear(jsonrpc.notification(mcp.CANCELLED, {"requestId": 9})) is None


async def test_what_a_server_says_outside_of_any_call_waits_for_the_client() -> None:
    session, script = Session("", 0), Script()
    link = await linked(session, script)
    script.last.says(jsonrpc.notification("vendor/note"))
    script.last.says(jsonrpc.notification(mcp.TOOLS_CHANGED))
    script.last.says(jsonrpc.request("q", "vendor/ask"))
    link.renewed()
    told = [frame.method for frame in waiting_for(session)]
    assert told == ["vendor/note", mcp.TOOLS_CHANGED, "vendor/ask"]


async def test_a_client_of_all_servers_hears_of_merged_lists_and_public_tasks_only() -> None:
    session, script = Session("", 0), Script()
    session.sees_all_servers = True
    await linked(session, script)
    script.last.says(jsonrpc.notification(mcp.TOOLS_CHANGED))
    script.last.says(jsonrpc.notification("notifications/tasks/status", {"taskId": "t"}))
    assert waiting_for(session) == [
        jsonrpc.notification("notifications/tasks/status", {"taskId": "srv:t"})
    ]


async def test_on_a_pipe_of_its_own_the_latest_call_hears_what_is_said_meanwhile() -> None:
    session, script = Session("", 0), Script(costs_a_process=True)
    link = await linked(session, script)
    call, frame = call_of(session)
    link.ask(call, frame)
    script.last.says(jsonrpc.notification("vendor/note"))
    script.last.says(jsonrpc.request("q", "vendor/ask"))
    script.last.says(jsonrpc.notification(mcp.TOOLS_CHANGED))
    methods = [jsonrpc.decode(data).method for data in call.outbox.take()]
    assert methods == ["vendor/note", "vendor/ask"]
    assert [frame.method for frame in waiting_for(session)] == [mcp.TOOLS_CHANGED]
