"""The way back from a server of the modern era: opened, held, opened again, and bounded."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from comity.kernel.live import reversing as under_test
from comity.kernel.live.reversing import Reverse
from comity.kernel.pulse import LiveLink
from comity.rules.backoff import Backoff
from comity.wire import jsonrpc, reverse
from comity.wire.errors import METHOD_NOT_FOUND, Unavailable
from comity.wire.jsonrpc import Frame
from tests.kernel.live.live_link import LinkRoom, breath

type Respond = Callable[[Frame], None]


class Dealt:
    """Who deals with what comes back."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.responds: list[Respond] = []

    def __call__(self, link: LiveLink, frame: Frame, respond: Respond) -> None:
        self.frames.append(frame)
        self.responds.append(respond)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    soon = Backoff(timedelta(0), timedelta(0))
    monkeypatch.setattr(under_test, "Backoff", lambda: soon)


def modern_link() -> LinkRoom:
    link = LinkRoom(modern=True)

    async def held(method: str, params: object) -> Frame:
        if method == reverse.LISTEN:
            await asyncio.Event().wait()
        return jsonrpc.result(1, {})

    link.reply = held
    return link


async def test_it_is_asked_for_once_and_held_open() -> None:
    link = modern_link()
    way = Reverse(link, Dealt())
    await breath()
    assert [method for method, _ in link.asked] == [reverse.LISTEN]
    way.close()


async def test_it_is_opened_again_where_it_was_lost_and_not_where_there_is_none() -> None:
    link, dealt = LinkRoom(modern=True), Dealt()
    tries = 0

    async def lost(method: str, params: object) -> Frame:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise Unavailable("gone")
        return jsonrpc.failure(1, METHOD_NOT_FOUND, "no such method")

    link.reply = lost
    Reverse(link, dealt)
    await breath()
    assert tries == 3


async def test_with_the_link_it_ends() -> None:
    link = LinkRoom(modern=True)

    async def ends(method: str, params: object) -> Frame:
        link.is_open = False
        return jsonrpc.result(1, {})

    link.reply = ends
    Reverse(link, Dealt())
    await breath()
    assert len(link.asked) == 1


async def test_what_is_carried_is_dealt_with_and_what_cannot_be_read_is_not() -> None:
    link, dealt = modern_link(), Dealt()
    way = Reverse(link, dealt)
    way.heard(jsonrpc.notification(reverse.ASKED, {"id": 7, "method": "push/event", "params": {}}))
    way.heard(jsonrpc.notification(reverse.TOLD, {"method": "featureSets/changed", "id": 8}))
    way.heard(jsonrpc.notification(reverse.ASKED, {"method": "push/event"}))
    way.heard(jsonrpc.notification(reverse.ASKED, {"method": 7}))
    assert [(each.method, each.id) for each in dealt.frames] == [
        ("push/event", 7),
        ("featureSets/changed", jsonrpc.UNSET),
    ]
    dealt.responds[0](jsonrpc.result(7, {"accepted": True}))
    dealt.responds[0](jsonrpc.failure(7, METHOD_NOT_FOUND, "no"))
    await breath()
    (_, answer), (_, error) = [each for each in link.asked if each[0] == reverse.RESPOND]
    assert (answer["id"], answer["result"]) == (7, {"accepted": True})
    assert error["error"]["code"] == -32601
    way.close()


async def test_who_takes_no_answers_gets_no_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "MOST_ANSWERS", 2)
    monkeypatch.setattr(under_test, "RESPOND_SECONDS", 0.01)
    link, dealt = LinkRoom(modern=True), Dealt()

    async def silent(method: str, params: object) -> Frame:
        await asyncio.Event().wait()
        raise AssertionError

    link.reply = silent
    way = Reverse(link, dealt)
    way.heard(jsonrpc.notification(reverse.ASKED, {"id": 7, "method": "push/event"}))
    for _ in range(5):
        dealt.responds[0](jsonrpc.result(7, {}))
    await breath()
    assert len([each for each in link.asked if each[0] == reverse.RESPOND]) == 2
    way.close()
