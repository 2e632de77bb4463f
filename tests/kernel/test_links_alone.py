"""A link by itself: its handshake, its own requests, and a server that says what it likes."""

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.links import Link
from comity.kernel.outbox import MOST_FRAMES, Outbox
from comity.kernel.sessions import Session
from comity.kernel.sharing import Sharers
from comity.kernel.underway import Underway
from comity.wire import jsonrpc, mcp
from comity.wire.errors import INTERNAL_ERROR, MalformedMessage, Unavailable
from comity.wire.jsonrpc import LIMITS, Frame
from comity.wire.mcp import UNKNOWN, Era
from tests.kernel.carriers import (
    SILENCE,
    Clock,
    Script,
    hello,
    settled,
    until,
)
from tests.kernel.link_room import Room, is_error, opened

hostile_values = st.sampled_from(
    [
        b"null",
        b"[]",
        b"5",
        b'"x"',
        b"{}",
        b'{"a":1,"a":2}',
        b'{"_meta":{"b":1,"b":2}}',
        b'{"_meta":{"progressToken":{"c":1,"c":2}}}',
        b'{"uri":{"d":1,"d":2}}',
        b'{"level":["e"]}',
        b'{"taskId":{"f":1,"f":1}}',
        b'{"protocolVersion":"x\\r\\nevil: 1"}',
        b'{"requestId":{"g":1,"g":1}}',
        b'{"progressToken":1e999}',
        b'{"progressToken":' + b"9" * 5000 + b"}",
    ]
)
hostile_methods = st.sampled_from(
    [
        mcp.PROGRESS,
        mcp.CANCELLED,
        mcp.MESSAGE,
        mcp.RESOURCE_UPDATED,
        mcp.TOOLS_CHANGED,
        mcp.SAMPLE,
        mcp.PING,
        "notifications/tasks/status",
        "vendor/x",
    ]
)
hostile_frames = st.one_of(
    st.builds(
        b'{"jsonrpc":"2.0","method":"%b","params":%b}'.__mod__,
        st.tuples(hostile_methods.map(str.encode), hostile_values),
    ),
    st.builds(
        b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}'.__mod__,
        st.tuples(st.integers(0, 3), hostile_methods.map(str.encode), hostile_values),
    ),
    st.builds(
        b'{"jsonrpc":"2.0","id":%d,"result":%b}'.__mod__,
        st.tuples(st.integers(0, 5), hostile_values),
    ),
    st.builds(
        b'{"jsonrpc":"2.0","id":%d,"error":%b}'.__mod__,
        st.tuples(st.integers(0, 5), hostile_values),
    ),
    st.binary(max_size=20),
)


@given(st.booleans(), st.booleans(), st.lists(hostile_frames, max_size=12), st.data())
def test_whatever_a_server_says_nothing_is_raised_and_nothing_is_left(
    process: bool, merged: bool, frames: list[bytes], data: st.DataObject
) -> None:
    asyncio.run(_hear_all(process, merged, frames, data))


async def _hear_all(process: bool, merged: bool, frames: list[bytes], data: st.DataObject) -> None:
    script = Script(costs_a_process=process)
    session = Session("", 0)
    session.sees_all_servers = merged
    session.level = "error"
    sharers = Sharers(None, lambda link, because: None)
    sharers.attach(session)
    link = Link("srv", script.carrier(Era.HANDSHAKE), sharers if process else session, LIMITS)
    await link.open()
    underway = Underway(Clock(), 60, 300)
    calls = list[Call]()
    for number in range(3):
        frame = jsonrpc.request(number, mcp.LISTEN if number else "tools/call", {})
        calls.append(underway.begin(frame, Outbox(), session))
        if number == 2:
            calls[-1].adapt = _read_everything
        link.ask(calls[-1], frame)
    for frame in frames:
        stream = UNKNOWN if process else data.draw(st.integers(0, 4))
        link.heard(frame, stream, 200)
    await link.close()
    assert all(call.outbox.final for call in calls)
    assert len(underway) == len(link.conversation) == 0


def _read_everything(frame: Frame) -> Frame:
    assert isinstance(frame.result, Raw)
    jsonrpc.members(frame.result)
    return frame


async def test_a_request_of_our_own_is_answered_or_raises() -> None:
    room = await opened()
    room.script.replies |= {"a": {"n": 1}, "b": Unavailable("no", INTERNAL_ERROR)}
    async with asyncio.timeout(10):
        assert (await room.link.request("a")).result is not jsonrpc.UNSET
        assert is_error(await room.link.request("b"))
    asking = asyncio.ensure_future(room.link.request("silent"))
    await settled()
    room.carrier.dies()
    with pytest.raises(Unavailable):
        await asking
    with pytest.raises(Unavailable):
        await room.link.request("a")


async def test_a_request_of_our_own_survives_pauses_and_floods() -> None:
    """A stream that a server closes for now once made the gateway spin for ever."""
    room = await opened()
    told = list[Frame]()
    asking = asyncio.ensure_future(room.link.request("silent", on_told=told.append))
    await settled()
    asked = room.carrier.sent[-1].frame
    room.link.stream_opened(int(str(asked.id)))
    room.link.stream_suspended(int(str(asked.id)))
    for _ in range(MOST_FRAMES * 2):
        room.carrier.says(jsonrpc.notification("vendor/note"), amid=asked)
    await settled()
    assert not asking.done()
    room.carrier.answers(asked, {"n": 1})
    async with asyncio.timeout(10):
        assert await asking == jsonrpc.result("comity", {"n": 1})
    assert len(told) == MOST_FRAMES * 2


async def test_a_request_of_our_own_that_is_given_up_is_called_off() -> None:
    room = await opened()
    asking = asyncio.ensure_future(room.link.request("silent"))
    await settled()
    asking.cancel()
    await asyncio.wait([asking])
    assert [frame.method for frame in room.carrier.told()] == [mcp.CANCELLED]
    assert len(room.link.conversation) == 0


async def test_a_link_full_of_calls_is_unavailable_to_our_own() -> None:
    room = await opened()
    for number in range(4096):
        room.link.conversation.ask(jsonrpc.request(number, "x"), room.call)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        await room.link.request("a")
    with pytest.raises(MalformedMessage):
        room.call()
    room.link.conversation.close()


async def test_a_handshake_comes_before_the_word_that_it_is_over() -> None:
    room = await opened()
    async with asyncio.timeout(10):
        found = await room.link.greet({"capabilities": {}})
    assert [sent.frame.method for sent in room.carrier.sent] == ["initialize", mcp.INITIALIZED]
    assert found == room.link.hello
    assert room.carrier.versions == [mcp.LATEST_HANDSHAKE]
    assert room.link.declares("tools")
    assert not room.link.declares("logging")


@pytest.mark.parametrize(
    "answer",
    [
        Unavailable("go away"),
        [],
        "x",
        {"protocolVersion": "x\r\nevil: 1"},
        {"protocolVersion": 5},
        {**hello(), "protocolVersion": "1999-01-01"},
        Raw(b'{"protocolVersion":{"a":1,"a":2}}'),
    ],
    ids=["refused", "list", "word", "control", "number", "older", "a key twice"],
)
async def test_a_handshake_that_goes_wrong_closes_the_link(answer: object) -> None:
    room = Room()
    room.script.replies["initialize"] = answer
    with pytest.raises((Unavailable, MalformedMessage)):
        await room.link.begin(timedelta(seconds=5), {})
    assert not room.carrier.is_open
    assert not room.link.is_open
    assert all("\r" not in version for version in room.carrier.versions)


async def test_a_server_that_never_answers_the_handshake_is_given_up() -> None:
    room = Room()
    room.script.replies["initialize"] = SILENCE
    with pytest.raises(Unavailable, match="silent"):
        await room.link.begin(timedelta(milliseconds=20), {})
    assert not room.carrier.is_open


async def test_a_link_that_its_client_greets_is_only_opened() -> None:
    room = Room()
    await room.link.begin(timedelta(seconds=5), None)
    assert room.carrier.is_open
    assert room.carrier.sent == []


async def test_capabilities_of_no_known_shape_declare_nothing() -> None:
    room = await opened()
    room.link.hello = {"capabilities": Raw(b'{"tools":1,"tools":2}')}
    assert not room.link.declares("tools")


async def test_a_link_made_anew_is_told_to_the_audience() -> None:
    room = await opened()
    room.link.renewed()
    assert room.renewals == 1
    await until(lambda: room.renewals)
