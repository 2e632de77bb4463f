"""Servers that hear all that happens: those who are to, while they are there, at their pace."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from comity.kernel import audit_servers
from comity.kernel.audit import MISSED
from comity.kernel.audit_servers import AT_ONCE, MOST_QUEUED, AuditServers
from comity.wire import mcp
from comity.wire.audit import NOTICE, Event, Type
from comity.wire.jsonrpc import Frame
from comity.wire.lifecycle import State
from comity.wire.mcp import Era
from tests.kernel.carriers import (
    SILENCE,
    Params,
    Script,
    ScriptedCarrier,
    discovered,
    hello,
    params_of,
    until,
)
from tests.kernel.desks import Front
from tests.kernel.noted import NOON
from tests.kernel.server_house import AT_ONCE as NO_PAUSE
from tests.kernel.server_house import options

AUDIT: Params = {"version": "0.3.0", "extensions": ["audit"]}


def handshake(*extensions: str) -> Script:
    said = hello(tools={}, mgp={**AUDIT, "extensions": list(extensions)})
    return Script(costs_a_process=True, replies={mcp.INITIALIZE: said, mcp.PING: {}})


def modern() -> Script:
    said = discovered(tools={}, mgp=AUDIT)
    return Script(handshake=False, modern=True, replies={mcp.DISCOVER: said})


@asynccontextmanager
async def auditing(*wanted: str, **scripts: Script) -> AsyncGenerator[tuple[AuditServers, Front]]:
    front = Front(scripts, how=options(backoff=NO_PAUSE))
    told = AuditServers(front.servers, set(wanted).__contains__)
    await front.ready()
    try:
        yield told, front
    finally:
        await front.servers.stop()


def happens(told: AuditServers, times: int = 1, kind: Type = Type.KEY_ISSUED) -> None:
    for _ in range(times):
        told.happened(Event(kind, "person:local", NOON, trace="1f" * 16))


def heard(carrier: ScriptedCarrier) -> list[Frame]:
    return [sent.frame for sent in carrier.sent if sent.frame.method == NOTICE]


@pytest.mark.parametrize("script", [handshake("audit"), modern()], ids=["handshake", "modern"])
async def test_a_marked_server_that_agreed_hears_what_happens(script: Script) -> None:
    async with auditing("log", log=script, other=handshake("audit")) as (told, front):
        happens(told, 3)
        carrier = next(each for each in script.open if each.is_open)
        await until(lambda: len(heard(carrier)) == 3)
        said = params_of(heard(carrier)[0])
        assert said["event_type"] == Type.KEY_ISSUED
        assert MISSED not in dict(said["details"])  # type: ignore[call-overload]
        assert (MISSED in said, len(told)) == (False, 1)
        if carrier.era is Era.MODERN:
            assert carrier.headers_of(NOTICE)[mcp.METHOD_HEADER] == NOTICE.encode()
            assert "_meta" in said
        other = front.scripts["other"].last
        assert not heard(other)


async def test_a_marked_server_that_did_not_agree_hears_nothing_and_somebody_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = handshake("lifecycle")
    async with auditing("log", log=script) as (told, _):
        happens(told)
        assert len(told) == 0
        assert "did not agree on the MGP extension audit" in caplog.text
        assert not heard(script.last)


async def test_what_a_server_asserts_is_told_to_no_other() -> None:
    script = handshake("audit")
    async with auditing("log", log=script) as (told, _):
        happens(told, kind=Type.TESTIMONY)
        happens(told)
        await until(lambda: bool(heard(script.last)))
        assert [params_of(frame)["event_type"] for frame in heard(script.last)] == [Type.KEY_ISSUED]


async def test_a_server_that_does_not_answer_is_told_so_much_and_loses_the_oldest() -> None:
    script = handshake("audit")
    script.replies[mcp.PING] = SILENCE
    async with auditing("log", log=script) as (told, _):
        happens(told, AT_ONCE)
        await until(lambda: len(heard(script.last)) == AT_ONCE)
        happens(told, MOST_QUEUED + 7)
        await asyncio.sleep(0)
        assert len(heard(script.last)) == AT_ONCE
        script.replies[mcp.PING] = {}
        (asked,) = script.last.asked(mcp.PING)
        script.last.answers(asked, {})
        await until(lambda: len(heard(script.last)) == AT_ONCE + MOST_QUEUED)
        assert params_of(heard(script.last)[AT_ONCE])["details"] == {MISSED: 7}
        assert len(script.last.asked(mcp.PING)) > MOST_QUEUED // AT_ONCE


async def test_a_server_that_is_too_slow_is_waited_for_and_told_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_servers, "ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(audit_servers, "PAUSE_SECONDS", 0.01)
    script = handshake("audit")
    script.replies[mcp.PING] = SILENCE
    async with auditing("log", log=script) as (told, _):
        happens(told, 2 * AT_ONCE)
        await until(lambda: len(heard(script.last)) == 2 * AT_ONCE)


async def test_nothing_waits_for_a_server_that_is_away_and_it_learns_what_it_missed() -> None:
    script = handshake("audit")
    async with auditing("log", log=script) as (told, front):
        first = script.last
        script.refuses = "not yet"
        first.dies()
        await until(lambda: len(told) == 0)
        happens(told, 5)
        script.refuses = None
        server = front.servers.need("log")
        await until(lambda: server.state is State.CONNECTED)
        happens(told)
        await until(lambda: bool(heard(script.last)))
        assert script.last is not first
        assert params_of(heard(script.last)[0])["details"] == {MISSED: 5}
