"""One live server: how it is asked and told in either era, and what it may do."""

import asyncio
from datetime import timedelta

import pytest

from comity.kernel.live import hosted as under_test
from comity.kernel.live.hosted import Hosted
from comity.rules.live_policy import NOTHING, UNDECIDED
from comity.wire import jsonrpc
from comity.wire.errors import UPSTREAM_SLOW, MalformedMessage, Unavailable
from comity.wire.features import Use
from comity.wire.jsonrpc import Frame
from tests.kernel.live.live_link import DECLARED, LinkRoom, breath

SOON = timedelta(seconds=30)


def hosting(*, modern: bool = False, enabled: tuple[str, ...] = ("memory.push",)) -> Hosted:
    return Hosted("srv", LinkRoom(modern=modern), DECLARED, NOTHING, frozenset(enabled))


def link_of(hosted: Hosted) -> LinkRoom:
    assert isinstance(hosted.link, LinkRoom)
    return hosted.link


def test_what_it_may_do_is_what_is_enabled_for_that_use() -> None:
    hosted = hosting()
    assert hosted.require("memory.push", Use.PUSH).name == "memory.push"
    assert [each.name for each in hosted.using(Use.PUSH)] == ["memory.push"]
    assert hosted.using(Use.BEFORE) == []
    assert hosted.standing("memory.read") is UNDECIDED
    with pytest.raises(MalformedMessage):
        hosted.require("memory.read", Use.BEFORE)


async def test_it_is_told_by_a_notice_and_in_the_modern_era_by_a_request() -> None:
    old, new = hosting(), hosting(modern=True)
    for hosted in (old, new):
        await hosted.tell("inference/chunk", {"index": 1})
    assert link_of(old).told == [("inference/chunk", {"index": 1})]
    ((method, params),) = link_of(new).asked
    assert method == "inference/chunk"
    assert params["index"] == 1
    assert "dev.comity/mcpl" in str(params["_meta"])


async def test_a_modern_server_is_told_one_thing_after_the_other_and_not_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(under_test, "MOST_TOLD", 3)
    hosted, gate = hosting(modern=True), asyncio.Event()

    async def slow(method: str, params: object) -> Frame:
        await gate.wait()
        return jsonrpc.result(1, {})

    link_of(hosted).reply = slow
    telling = [asyncio.ensure_future(hosted.tell("x", {"n": n})) for n in range(5)]
    await breath()
    assert [params["n"] for _, params in link_of(hosted).asked] == [0]
    gate.set()
    await asyncio.gather(*telling)
    assert [params["n"] for _, params in link_of(hosted).asked] == [0, 1, 2]


async def test_a_server_that_does_not_hear_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(under_test, "TELL_SECONDS", 0.01)
    hosted = hosting(modern=True)

    async def silent(method: str, params: object) -> Frame:
        await asyncio.Event().wait()
        raise AssertionError

    link_of(hosted).reply = silent
    await hosted.tell("x", {})

    async def gone(method: str, params: object) -> Frame:
        raise Unavailable("gone")

    link_of(hosted).reply = gone
    await hosted.tell("x", {})


async def test_what_it_answers_is_given_and_its_errors_keep_their_code() -> None:
    hosted = hosting()

    async def answers(method: str, params: object) -> Frame:
        if method == "state/rollback":
            return jsonrpc.decode(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32005,"message":"x"}}')
        return jsonrpc.result(1, {"ok": True})

    link_of(hosted).reply = answers
    assert bytes(await hosted.ask("channels/open", {}, SOON)) == b'{"ok":true}'
    with pytest.raises(MalformedMessage) as refused:
        await hosted.ask("state/rollback", {}, SOON)
    assert refused.value.fault.code == -32005


async def test_it_is_asked_within_bounds() -> None:
    hosted = hosting()

    async def silent(method: str, params: object) -> Frame:
        await asyncio.Event().wait()
        raise AssertionError

    link_of(hosted).reply = silent
    with pytest.raises(Unavailable) as refused:
        await hosted.ask("context/beforeInference", {}, timedelta(milliseconds=10))
    assert refused.value.fault is UPSTREAM_SLOW
