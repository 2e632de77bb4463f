"""What goes along with calls to live servers: whatever goes wrong, the call is answered, once."""

import logging

import pytest

from comity.kernel.call import Call
from comity.kernel.live.bearing import carry, introduced, speaks_for_itself, take
from comity.kernel.live.hosted import Hosted
from comity.kernel.outbox import Outbox
from comity.rules.live_policy import NOTHING
from comity.wire import jsonrpc
from comity.wire.errors import ACCESS_DENIED, MalformedMessage, Unavailable
from comity.wire.jsonrpc import Frame
from tests.kernel.live.live_link import DECLARED, LinkRoom, calling, params_of

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
ANSWER = jsonrpc.result("c-1", {"content": [], "state": {"checkpoint": "x"}})


class Bears:
    """Does what a test wants."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.fails = fails

    def carries(self, by: Hosted, call: Call, frame: Frame) -> bool:
        return True

    async def bring(self, by: Hosted, call: Call, frame: Frame) -> Frame:
        if self.fails is not None:
            raise self.fails
        return jsonrpc.with_params(frame, jsonrpc.to_raw({**params_of(frame), "state": 1}))

    async def take(self, by: Hosted, call: Call, frame: Frame) -> Frame:
        if self.fails is not None:
            raise self.fails
        return jsonrpc.result("c-1", {"content": []})


def host(link: LinkRoom) -> Hosted:
    return Hosted("srv", link, DECLARED, NOTHING, frozenset())


async def test_a_call_goes_with_what_each_bearer_brings() -> None:
    link = LinkRoom()
    call, frame = calling()
    await carry([Bears(), Bears()], host(link), link, call, (frame, ()))
    assert params_of(link.sent[0]) == {"name": "edit", "state": 1}


@pytest.mark.parametrize(
    "fails", [MalformedMessage("no", ACCESS_DENIED), Unavailable("away"), RuntimeError("secret")]
)
async def test_one_that_may_not_go_is_answered_and_never_sent(
    fails: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    link = LinkRoom()
    call, frame = calling()
    with caplog.at_level(logging.CRITICAL):
        await carry([Bears(fails)], host(link), link, call, (frame, ()))
    assert link.sent == []
    assert call.outbox.final
    call, _ = calling()
    with caplog.at_level(logging.CRITICAL):
        await take([Bears(fails)], host(link), call, ANSWER, 200)
    assert call.outbox.final


async def test_a_link_that_is_gone_fails_the_call() -> None:
    link = LinkRoom()
    link.refuses = Unavailable("gone")
    call, frame = calling()
    await carry([Bears()], host(link), link, call, (frame, ()))
    assert call.outbox.final


class Counted(Outbox):
    """Counts last words."""

    words = 0

    def finish(self, data: bytes, status: int = 200) -> None:
        self.words += 1
        super().finish(data, status)


@pytest.mark.parametrize("fails", [None, Unavailable("away"), RuntimeError()])
async def test_a_call_that_ended_meanwhile_is_not_answered_twice(
    fails: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    _, frame = calling()
    outbox = Counted()
    call = Call(frame, outbox, None, 0)
    call.refuse(ACCESS_DENIED, "meanwhile")
    with caplog.at_level(logging.CRITICAL):
        await carry([Bears(fails)], host(LinkRoom()), LinkRoom(), call, (frame, ()))
        await take([Bears(fails)], host(LinkRoom()), call, ANSWER, 200)
    assert outbox.words == 1


async def test_an_answer_is_given_without_what_is_kept() -> None:
    call, _ = calling()
    await take([Bears()], host(LinkRoom()), call, ANSWER, 200)
    assert call.outbox.final


def test_a_modern_call_says_that_scopes_and_state_count() -> None:
    _, frame = calling(_meta={CAPABILITIES: {"roots": {}, "extensions": {"a/b": {}}}, "x": 1})
    said = params_of(introduced(frame))
    assert said["_meta"]["x"] == 1
    assert said["_meta"][CAPABILITIES] == {
        "roots": {},
        "extensions": {"a/b": {}, "dev.comity/mcpl": {"version": "0.4", "featureSets": True}},
    }
    assert not speaks_for_itself(frame)
    assert speaks_for_itself(introduced(frame))
    assert not speaks_for_itself(jsonrpc.request(1, "tools/call"))
    assert not speaks_for_itself(calling(_meta=7)[1])
