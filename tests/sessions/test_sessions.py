"""Sessions of handshake clients: what they hold, when they end, and that nothing outlives them."""

import asyncio

import pytest
from msgspec import Raw

from comity.errors import EXHAUSTED, MalformedMessage, Unavailable
from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import LIMITS, Frame
from comity.mcp.protocol import Era
from comity.sessions.calls import ActiveCalls, Call
from comity.sessions.client_streams import MAX_QUEUED_FRAMES, ClientStream
from comity.sessions.sessions import MAX_KEPT_STREAMS, MAX_KNOWN_TASKS, Session, SessionStore
from comity.sessions.upstream import UpstreamConnection
from tests.support.carriers import Clock, Script, settled, until
from tests.support.cases import loop_over

IDLE, PATIENCE = 100.0, 15.0


def sessions(clock: Clock, most: int = 10) -> SessionStore:
    return SessionStore(clock, most, IDLE)


async def linked(session: Session, script: Script) -> UpstreamConnection:
    link = UpstreamConnection("srv", script.create_transport(Era.HANDSHAKE), session, LIMITS)
    await link.open()
    session.own_connections["srv"] = link
    return link


def call_of(session: Session, number: int = 1) -> tuple[Call, Frame]:
    frame = jsonrpc.make_request(number, "tools/call")
    return ActiveCalls(Clock(), 60, 300, 600).begin(frame, ClientStream(), session), frame


def waiting_for(session: Session) -> list[Frame]:
    return [jsonrpc.decode_frame(data) for data in session.standalone.take()]


async def test_a_session_is_found_by_its_id_at_its_own_endpoint_only() -> None:
    held = sessions(Clock(), most=100)
    every = [held.begin("a") for _ in range(100)]
    names = {session.id for session in every}
    assert len(names) == 100
    assert all(len(name) == 32 and name.isascii() and name.isalnum() for name in names)
    session = every[0]
    assert held.find(session.id, "a") is session
    assert held.find(session.id, "b") is None
    assert held.find("x", "a") is None
    assert [*held] == every


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
    held = SessionStore(Clock(), 100, IDLE, max_per_principal=3)
    first, second, third = (held.begin("", "agent:a") for _ in range(3))
    other = held.begin("", "agent:b")
    assert held.find(first.id, "", "agent:a") is first
    held.begin("", "agent:a")
    assert held.find(second.id, "", "agent:a") is None
    assert held.find(first.id, "", "agent:a") is first
    assert held.find(third.id, "", "agent:a") is third
    assert held.find(other.id, "", "agent:b") is other
    await until(lambda: second.is_closed)
    assert len(held) == 4


async def test_a_principal_whose_sessions_are_all_in_use_begins_no_more() -> None:
    held = SessionStore(Clock(), 100, IDLE, max_per_principal=2)
    reading, calling = held.begin("", "agent:a"), held.begin("", "agent:a")
    reading.attached_streams += 1
    call, _ = call_of(calling)
    with pytest.raises(Unavailable, match="max_sessions_per_principal") as refused:
        held.begin("", "agent:a")
    assert refused.value.retry_after is not None
    assert held.begin("", "agent:b")
    call.deliver_answer(jsonrpc.make_result(1, {}))
    assert held.begin("", "agent:a")
    assert (reading.is_closed, calling.id in {each.id for each in held}) == (False, False)


async def test_where_all_places_are_taken_the_largest_holder_gives_one_up() -> None:
    held = SessionStore(Clock(), 6, IDLE, max_per_principal=5)
    small = held.begin("", "agent:small")
    large = [held.begin("", "agent:large") for _ in range(5)]
    for each in large:
        each.attached_streams += 1
    new = held.begin("", "agent:new")
    assert held.find(large[0].id, "", "agent:large") is None
    assert held.find(small.id, "", "agent:small") is small
    assert held.find(new.id, "", "agent:new") is new
    assert len(held) == 6
    await until(lambda: large[0].is_closed)


async def test_nobody_loses_a_session_to_a_principal_that_would_hold_more() -> None:
    held = SessionStore(Clock(), 4, IDLE)
    kept = [held.begin("", f"agent:{name}") for name in "aabb"]
    with pytest.raises(Unavailable) as refused:
        held.begin("", "agent:a")
    assert refused.value.fault is EXHAUSTED
    assert not any(each.is_closed for each in kept)


async def test_a_session_nobody_uses_ends() -> None:
    clock = Clock()
    held = sessions(clock)
    session = held.begin("")
    clock.passes(IDLE)
    held.check(PATIENCE)
    await settled()
    assert len(held) == 1
    assert held.find(session.id, "") is session
    clock.passes(IDLE + 1)
    held.check(PATIENCE)
    await until(lambda: not len(held))
    assert session.is_closed
    assert held.find(session.id, "") is None


async def test_a_session_with_an_open_call_or_stream_is_not_idle() -> None:
    clock = Clock()
    held = sessions(clock)
    calling, reading = held.begin(""), held.begin("")
    call, _ = call_of(calling)
    reading.attached_streams += 1
    clock.passes(IDLE * 10)
    held.check(PATIENCE)
    await settled()
    assert len(held) == 2
    call.deliver_answer(jsonrpc.make_result(1, {}))
    reading.attached_streams -= 1
    held.check(PATIENCE)
    await settled()
    assert len(held) == 2
    clock.passes(IDLE + 1)
    held.check(PATIENCE)
    await until(lambda: not len(held))


async def test_a_question_that_a_client_never_answers_keeps_no_session_alive() -> None:
    clock, script = Clock(), Script()
    held = sessions(clock)
    session = held.begin("")
    await linked(session, script)
    script.last.says(jsonrpc.make_request("q", "vendor/ask"))
    assert len(session.conversation) == 1
    clock.passes(IDLE + 1)
    held.check(PATIENCE)
    await until(lambda: not len(held))
    assert [jsonrpc.error_of(frame) is not None for frame in script.last.told()] == [True]


async def test_a_standing_stream_shows_signs_of_life() -> None:
    clock = Clock()
    held = sessions(clock)
    attached, other = held.begin(""), held.begin("")
    attached.attached_streams += 1
    held.check(PATIENCE)
    assert not attached.standalone.is_nudged
    clock.passes(PATIENCE + 1)
    held.check(PATIENCE)
    assert (attached.standalone.is_nudged, other.standalone.is_nudged) == (True, False)


async def test_the_end_of_a_session_settles_everything() -> None:
    script, session = Script(), Session("", 0)
    link = await linked(session, script)
    call, frame = call_of(session)
    link.send_call(call, frame)
    script.last.says(jsonrpc.make_request("q", "vendor/ask"))
    said = list[str]()
    session.on_close["x"] = lambda: said.append("goodbye")
    standing = session.standalone
    await session.close()
    assert (call.client_stream.is_final, standing.is_final, said) == (True, True, ["goodbye"])
    assert (len(session.conversation), len(link.conversation)) == (0, 0)
    assert not script.last.is_open
    assert session.own_connections == {}
    answered, called_off = script.last.told()
    assert jsonrpc.error_of(answered) is not None
    assert called_off.method == protocol.CANCELLED


async def test_all_sessions_end_with_the_node() -> None:
    held = sessions(Clock())
    every = [held.begin("") for _ in range(3)]
    held.end_streams()
    await held.close()
    assert all(session.is_closed for session in every)
    assert len(held) == 0


async def test_a_link_is_opened_once_for_all_who_need_it() -> None:
    session, script, opened = Session("", 0), Script(), list[UpstreamConnection]()
    gate = asyncio.Event()

    async def open_link() -> UpstreamConnection:
        await gate.wait()
        link = UpstreamConnection("srv", script.create_transport(Era.HANDSHAKE), session, LIMITS)
        await link.open()
        opened.append(link)
        return link

    waiting = [asyncio.ensure_future(session.connection_to("srv", open_link)) for _ in range(3)]
    await settled()
    waiting[0].cancel()
    gate.set()
    async with asyncio.timeout(10):
        found = await asyncio.gather(*waiting[1:])
    assert found == [opened[0]] * 2
    assert len(opened) == 1
    assert await session.connection_to("srv", open_link) is opened[0]
    opened[0].on_closed("gone")
    assert session.own_connections == {}
    assert await session.connection_to("srv", open_link) is opened[1]


async def test_a_link_that_could_not_be_opened_is_tried_again() -> None:
    session = Session("", 0)

    async def fail() -> UpstreamConnection:
        raise Unavailable("no such host")

    for _ in range(2):
        with pytest.raises(Unavailable, match="no such host"):
            await session.connection_to("srv", fail)


async def test_a_failure_that_nobody_waits_for_any_more_is_nobodys() -> None:
    session, gate = Session("", 0), asyncio.Event()

    async def fail() -> UpstreamConnection:
        await gate.wait()
        raise Unavailable("no such host")

    waiting = asyncio.ensure_future(session.connection_to("srv", fail))
    await settled()
    waiting.cancel()
    await asyncio.wait([waiting])
    gate.set()
    await settled()
    assert session.own_connections == {}


async def test_a_link_being_opened_does_not_outlive_its_session() -> None:
    session, ended = Session("", 0), list[str]()

    async def never() -> UpstreamConnection:
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.append("ended")

    waiting = asyncio.ensure_future(session.connection_to("srv", never))
    await settled()
    async with asyncio.timeout(10):
        await session.close()
    assert ended == ["ended"]
    with pytest.raises(Unavailable):
        await waiting


def test_what_a_client_declares_decides_what_it_is_asked() -> None:
    session = Session("", 0)
    session.store_client_info({"capabilities": Raw(b'{"sampling":{}}')})
    assert session.has_capability("sampling")
    assert not session.has_capability("elicitation")
    session.store_client_info({})
    assert not session.has_capability("sampling")


@loop_over("declared", [b"[]", b"5", b'{"a":1,"a":2}'])
def test_capabilities_of_no_known_shape_are_refused(declared: bytes) -> None:
    with pytest.raises(MalformedMessage):
        Session("", 0).store_client_info({"capabilities": Raw(declared)})


def test_what_belongs_to_no_call_waits_in_bounds() -> None:
    session = Session("", 0)
    for number in range(MAX_QUEUED_FRAMES * 3):
        session.send_notification(jsonrpc.make_notification(f"n{number}"))
        assert len(session.standalone.frames) <= MAX_QUEUED_FRAMES


def test_only_the_latest_streams_are_kept_for_resumption() -> None:
    session = Session("", 0)
    standing = session.standalone_resumable()
    assert session.standalone_resumable() is standing
    begun = [session.begin_stream(ClientStream()) for _ in range(MAX_KEPT_STREAMS + 5)]
    assert session.streams is not None
    assert len(session.streams) == MAX_KEPT_STREAMS
    kept = [number in session.streams for number in (0, begun[0].number, begun[-1].number)]
    assert kept == [True, False, True]


def test_the_events_of_a_standing_stream_begun_anew_have_new_ids() -> None:
    session = Session("", 0)
    standing = session.standalone_resumable()
    first = standing.record(b"x")
    standing.client_stream.end()
    again = session.standalone_resumable()
    assert again is not standing
    assert again.record(b"y") != first


def test_a_notice_of_the_clients_is_given_back_for_the_server() -> None:
    session = Session("", 0)
    notice = jsonrpc.make_notification(protocol.ROOTS_CHANGED)
    assert session.handle_message(notice) == notice
    assert session.handle_message(jsonrpc.make_result(9, {})) is None
    assert (
        session.handle_message(jsonrpc.make_notification(protocol.CANCELLED, {"requestId": 9}))
        is None
    )


async def test_what_a_server_says_outside_of_any_call_waits_for_the_client() -> None:
    session, script = Session("", 0), Script()
    link = await linked(session, script)
    script.last.says(jsonrpc.make_notification("vendor/note"))
    script.last.says(jsonrpc.make_notification(protocol.TOOLS_CHANGED))
    script.last.says(jsonrpc.make_request("q", "vendor/ask"))
    link.on_session_renewed()
    told = [frame.method for frame in waiting_for(session)]
    assert told == ["vendor/note", protocol.TOOLS_CHANGED, "vendor/ask"]


async def test_a_client_of_all_servers_hears_of_merged_lists_and_its_own_tasks_only() -> None:
    session, script = Session("", 0), Script()
    session.sees_all_servers = True
    await linked(session, script)
    session.note_task("srv", "t", "public")
    script.last.says(jsonrpc.make_notification("notifications/tasks/status", {"taskId": "other"}))
    script.last.says(jsonrpc.make_notification(protocol.TOOLS_CHANGED))
    script.last.says(jsonrpc.make_notification("notifications/tasks/status", {"taskId": "t"}))
    assert waiting_for(session) == [
        jsonrpc.make_notification("notifications/tasks/status", {"taskId": "public"})
    ]


def test_a_session_knows_a_bounded_number_of_tasks() -> None:
    session = Session("", 0)
    for number in range(MAX_KNOWN_TASKS + 5):
        session.note_task("srv", f"t{number}", "public")
    assert len(session.tasks) == MAX_KNOWN_TASKS
    assert ("srv", "t4") not in session.tasks


async def test_on_a_pipe_of_its_own_the_latest_call_hears_what_is_said_meanwhile() -> None:
    session, script = Session("", 0), Script(starts_process=True)
    link = await linked(session, script)
    call, frame = call_of(session)
    link.send_call(call, frame)
    script.last.says(jsonrpc.make_notification("vendor/note"))
    script.last.says(jsonrpc.make_request("q", "vendor/ask"))
    script.last.says(jsonrpc.make_notification(protocol.TOOLS_CHANGED))
    methods = [jsonrpc.decode_frame(data).method for data in call.client_stream.take()]
    assert methods == ["vendor/note", "vendor/ask"]
    assert [frame.method for frame in waiting_for(session)] == [protocol.TOOLS_CHANGED]
