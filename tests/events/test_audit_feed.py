"""Audit events to clients and to servers, and what servers report themselves."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from comity.audit.events import NOTICE, AuditEvent, AuditResult, AuditType
from comity.audit.log import MAX_EVENTS_AT_ONCE
from comity.errors import POLICY_UNKNOWN, Unavailable
from comity.events import audit_feed
from comity.events.audit_feed import (
    AT_ONCE,
    CLAIMED,
    FILTER,
    MAX_DEPTH,
    MAX_QUEUED,
    MAX_REPORT_BYTES,
    MAX_WORD_LENGTH,
    MISSED,
    MOST_BYTES,
    MOST_WAITING,
    AuditFeed,
    AuditServerFeed,
)
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import ADMIN_READ, Actor, PrincipalKind
from comity.mcp.jsonrpc import Frame
from comity.mcp.mgp import NegotiatedTerms, ServerLifecycleState
from comity.mcp.protocol import Era
from comity.policy.grants import Effect, Grant, GrantSet
from comity.policy.snapshot import GrantSnapshot
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.sessions import Session
from comity.toolkit.text import as_uuid
from tests.support.carriers import (
    SILENCE,
    Params,
    Script,
    ScriptedCarrier,
    discovered,
    hello,
    params_of,
    until,
)
from tests.support.cases import loop_over
from tests.support.desks import Front
from tests.support.noted import NOON, SECRET, Noted
from tests.support.server_house import AT_ONCE as NO_PAUSE
from tests.support.server_house import options

CI, OPS = Actor("agent:ci"), Actor("person:ana@example.org", PrincipalKind.PERSON)
AUDIT_TERMS = NegotiatedTerms("0.3.0", frozenset({"audit"}))


def grants(*targets: str) -> GrantSnapshot:
    return GrantSnapshot(
        GrantSet.from_grants([Grant(OPS.party, ADMIN_READ, each, Effect.ALLOW) for each in targets])
    )


def an_event(
    actor: str = CI.party, server: str = "files", tool: str = "read", **more: Any
) -> AuditEvent:
    kind = more.pop("type", AuditType.TOOL_EXECUTED)
    return AuditEvent(kind, actor, NOON, server=server, tool=tool, trace="1f" * 16, **more)


def listening(
    notices: AuditFeed, actor: Actor, terms: NegotiatedTerms | None = AUDIT_TERMS
) -> Session:
    session = Session("", 0, actor.party)
    session.mgp = terms
    notices.attach(session, actor)
    return session


def notices_in(outbox: ClientStream) -> list[dict[str, Any]]:
    frames = [jsonrpc.decode_frame(data) for data in outbox.take()]
    assert {frame.method for frame in frames} <= {NOTICE}
    return [jsonrpc.decode_value(frame.params) for frame in frames]  # type: ignore[misc,arg-type]


@loop_over("terms", [None, NegotiatedTerms("0.3.0", frozenset({"lifecycle"}))])
def test_only_whoever_agreed_on_it_is_told(terms: NegotiatedTerms | None) -> None:
    notices = AuditFeed(grants("*"))
    silent, hears = listening(notices, OPS, terms), listening(notices, OPS)
    notices.on_event(an_event())
    assert not notices_in(silent.standalone)
    (notice,) = notices_in(hears.standalone)
    assert notice["actor"] == {"type": "system", "id": CI.party}
    assert notice["target"] == {"server_id": "files", "tool_name": "read"}
    assert len(notices) == 1


@loop_over(
    ("granted", "heard"),
    [
        ((), []),
        (("files/*",), ["files"]),
        (("files/read",), ["files"]),
        (("files/write",), []),
        (("*",), ["files", "mail", None]),
    ],
)
def test_of_others_somebody_hears_what_it_may_read(
    granted: tuple[str, ...], heard: list[str | None]
) -> None:
    notices = AuditFeed(grants(*granted))
    session = listening(notices, OPS)
    for each in (an_event(), an_event(server="mail"), an_event(server="", tool="")):
        notices.on_event(each)
    found = [notice["target"].get("server_id") for notice in notices_in(session.standalone)]
    assert found == heard


def test_everybody_hears_what_it_did_itself() -> None:
    notices = AuditFeed(grants())
    session = listening(notices, CI)
    notices.on_event(an_event())
    notices.on_event(an_event(OPS.party))
    assert [each["actor"]["id"] for each in notices_in(session.standalone)] == [CI.party]


def test_a_caller_is_not_told_by_which_rule_its_call_was_denied() -> None:
    notices = AuditFeed(grants("*"))
    caller, auditor = listening(notices, CI), listening(notices, OPS)
    details = {"outcome": "access_denied", "decided_by": {"kind": "grant"}}
    notices.on_event(an_event(details=details))
    (own,), (whole,) = notices_in(caller.standalone), notices_in(auditor.standalone)
    assert own["details"] == {"outcome": "access_denied"}
    assert whole["details"] == details


def test_while_nobody_can_know_what_is_allowed_only_ones_own_is_told() -> None:
    class Unsure(GrantSnapshot):
        def authorize(self, actor: Actor, verb: str, server: str, name: str, view: str = "") -> Any:
            raise Unavailable("nobody knows", POLICY_UNKNOWN)

    notices = AuditFeed(Unsure())
    session = listening(notices, OPS)
    notices.on_event(an_event())
    notices.on_event(an_event(OPS.party))
    assert len(notices_in(session.standalone)) == 1


def test_whoever_came_by_a_key_that_counts_no_more_hears_nothing() -> None:
    counting = {OPS.party}
    notices = AuditFeed(grants("*"), lambda actor: actor.party in counting)
    session = listening(notices, OPS)
    notices.on_event(an_event(OPS.party))
    counting.clear()
    notices.on_event(an_event(OPS.party))
    assert len(notices_in(session.standalone)) == 1


def test_what_a_server_asserts_is_told_to_nobody() -> None:
    notices = AuditFeed(grants("*"))
    session = listening(notices, OPS)
    notices.on_event(an_event("server:files", type=AuditType.SERVER_REPORT))
    assert not notices_in(session.standalone)


def test_who_reads_too_slowly_loses_notices_and_is_told_how_many() -> None:
    notices = AuditFeed(grants("*"))
    slow, quick = listening(notices, OPS), listening(notices, OPS)
    for _ in range(MOST_WAITING + 5):
        notices.on_event(an_event())
        assert len(notices_in(quick.standalone)) == 1
    assert len(notices_in(slow.standalone)) == MOST_WAITING
    notices.on_event(an_event())
    notices.on_event(an_event())
    first, second = notices_in(slow.standalone)
    assert first["details"] == {MISSED: 5}
    assert MISSED not in second["details"]


def test_what_is_long_waits_in_smaller_numbers() -> None:
    notices = AuditFeed(grants("*"))
    session = listening(notices, OPS)
    for _ in range(100):
        notices.on_event(an_event(details={"reason": "x" * 100_000}))
    assert session.standalone.size < MOST_BYTES + 200_000
    assert len(notices_in(session.standalone)) < 15


async def test_a_session_that_ends_is_forgotten() -> None:
    notices = AuditFeed(grants("*"))
    session = listening(notices, OPS)
    await session.close()
    assert len(notices) == 0


def listen(notices: AuditFeed, *extensions: str) -> tuple[Call, dict[str, object]]:
    said = {"mgp": {"version": "0.3.0", "extensions": list(extensions)}}
    frame = jsonrpc.make_request(
        "mine", protocol.LISTEN, {"_meta": {protocol.CLIENT_CAPABILITIES: said}}
    )
    outbox = ClientStream()
    outbox.actor = OPS
    call = Call(frame, outbox, None, 0)
    return call, notices.listen(call, frame)


def test_a_stream_of_the_modern_era_is_told_under_its_own_name() -> None:
    notices = AuditFeed(grants("*"))
    call, agreed = listen(notices, "audit")
    assert agreed == {FILTER: True}
    for _ in range(MOST_WAITING + 1):
        notices.on_event(an_event())
    first, *_ = notices_in(call.client_stream)
    assert first["_meta"] == {protocol.SUBSCRIPTION_ID: "mine"}
    notices.on_event(an_event())
    (after,) = notices_in(call.client_stream)
    assert after["details"] == {MISSED: 1}
    notices.forget(call)
    notices.on_event(an_event())
    assert not notices_in(call.client_stream)


def test_a_stream_that_did_not_agree_on_it_is_not_told() -> None:
    notices = AuditFeed(grants("*"))
    call, agreed = listen(notices, "lifecycle")
    notices.on_event(an_event())
    assert (agreed, notices_in(call.client_stream)) == ({}, [])


AUDIT_EXTENSION: Params = {"version": "0.3.0", "extensions": ["audit"]}


def handshake(*extensions: str) -> Script:
    said = hello(tools={}, mgp={**AUDIT_EXTENSION, "extensions": list(extensions)})
    return Script(starts_process=True, replies={protocol.INITIALIZE: said, protocol.PING: {}})


def modern() -> Script:
    said = discovered(tools={}, mgp=AUDIT_EXTENSION)
    return Script(handshake=False, modern=True, replies={protocol.DISCOVER: said})


@asynccontextmanager
async def auditing(
    *wanted: str, **scripts: Script
) -> AsyncGenerator[tuple[AuditServerFeed, Front]]:
    front = Front(scripts, how=options(backoff=NO_PAUSE))
    told = AuditServerFeed(front.servers, set(wanted).__contains__)
    await front.ready()
    try:
        yield told, front
    finally:
        await front.servers.stop()


def happens(told: AuditServerFeed, times: int = 1, kind: AuditType = AuditType.KEY_ISSUED) -> None:
    for _ in range(times):
        told.on_event(AuditEvent(kind, "person:local", NOON, trace="1f" * 16))


def notices_sent(carrier: ScriptedCarrier) -> list[Frame]:
    return [sent.frame for sent in carrier.sent if sent.frame.method == NOTICE]


@loop_over("script", [handshake("audit"), modern()], ids=["handshake", "modern"])
async def test_a_marked_server_that_agreed_hears_what_happens(script: Script) -> None:
    async with auditing("log", log=script, other=handshake("audit")) as (told, front):
        happens(told, 3)
        carrier = next(each for each in script.open if each.is_open)
        await until(lambda: len(notices_sent(carrier)) == 3)
        said = params_of(notices_sent(carrier)[0])
        assert said["event_type"] == AuditType.KEY_ISSUED
        assert MISSED not in dict(said["details"])  # type: ignore[call-overload]
        assert (MISSED in said, len(told)) == (False, 1)
        if carrier.era is Era.MODERN:
            assert carrier.headers_of(NOTICE)[protocol.METHOD_HEADER] == NOTICE.encode()
            assert "_meta" in said
        other = front.scripts["other"].last
        assert not notices_sent(other)


async def test_a_marked_server_that_did_not_agree_hears_nothing_and_somebody_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = handshake("lifecycle")
    async with auditing("log", log=script) as (told, _):
        happens(told)
        assert len(told) == 0
        assert "did not negotiate the MGP extension audit" in caplog.text
        assert not notices_sent(script.last)


async def test_what_a_server_asserts_is_told_to_no_other() -> None:
    script = handshake("audit")
    async with auditing("log", log=script) as (told, _):
        happens(told, kind=AuditType.SERVER_REPORT)
        happens(told)
        await until(lambda: bool(notices_sent(script.last)))
        assert [params_of(frame)["event_type"] for frame in notices_sent(script.last)] == [
            AuditType.KEY_ISSUED
        ]


async def test_a_server_that_does_not_answer_is_told_so_much_and_loses_the_oldest() -> None:
    script = handshake("audit")
    script.replies[protocol.PING] = SILENCE
    async with auditing("log", log=script) as (told, _):
        happens(told, AT_ONCE)
        await until(lambda: len(notices_sent(script.last)) == AT_ONCE)
        happens(told, MAX_QUEUED + 7)
        await asyncio.sleep(0)
        assert len(notices_sent(script.last)) == AT_ONCE
        script.replies[protocol.PING] = {}
        (asked,) = script.last.asked(protocol.PING)
        script.last.answers(asked, {})
        await until(lambda: len(notices_sent(script.last)) == AT_ONCE + MAX_QUEUED)
        assert params_of(notices_sent(script.last)[AT_ONCE])["details"] == {MISSED: 7}
        assert len(script.last.asked(protocol.PING)) > MAX_QUEUED // AT_ONCE


async def test_a_server_that_is_too_slow_is_waited_for_and_told_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_feed, "ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(audit_feed, "PAUSE_SECONDS", 0.01)
    script = handshake("audit")
    script.replies[protocol.PING] = SILENCE
    async with auditing("log", log=script) as (told, _):
        happens(told, 2 * AT_ONCE)
        await until(lambda: len(notices_sent(script.last)) == 2 * AT_ONCE)


async def test_nothing_waits_for_a_server_that_is_away_and_it_learns_what_it_missed() -> None:
    script = handshake("audit")
    async with auditing("log", log=script) as (told, front):
        first = script.last
        script.refuses = "not yet"
        first.dies()
        await until(lambda: len(told) == 0)
        happens(told, 5)
        script.refuses = None
        server = front.servers.require("log")
        await until(lambda: server.state is ServerLifecycleState.CONNECTED)
        happens(told)
        await until(lambda: bool(notices_sent(script.last)))
        assert script.last is not first
        assert params_of(notices_sent(script.last)[0])["details"] == {MISSED: 5}


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


class ReportingServer(Noted):
    """One server that testifies, and what is noted of that."""

    def __init__(self, *extensions: str) -> None:
        super().__init__()
        said = hello(tools={}, mgp={"version": "0.3.0", "extensions": list(extensions)})
        self.script = Script(starts_process=True, replies={protocol.INITIALIZE: said})
        self.front = Front({"files": self.script}, how=options(backoff=NO_PAUSE))
        self.testimony = audit_feed.ServerAuditReports(self.journal, self.front.servers)

    @property
    def carrier(self) -> ScriptedCarrier:
        return self.script.last

    def says(self, **other: Any) -> list[AuditEvent]:
        """Have the server say it, with something otherwise; gives what was noted."""
        said = {key: value for key, value in {**SAID, **other}.items() if value is not None}
        self.carrier.says(jsonrpc.make_notification(NOTICE, said))
        return self.take()

    def calls(self, trace: str = TRACE) -> None:
        """A call that the server has open."""
        reached = self.front.servers.require("files").connections
        frame = jsonrpc.make_request(1, protocol.CALL_TOOL, {"name": "x", "trace_id": trace})
        call = self.front.underway.begin(frame, ClientStream(), None)
        call.is_for_all_servers = True
        reached.require_own().connection.send_call(call, frame)

    def ends(self, server: str = "files", kind: AuditType = AuditType.TOOL_EXECUTED) -> None:
        self.journal.enqueue(AuditEvent(kind, "agent:ci", self.now, server=server, trace=TRACE))
        self.take()


@asynccontextmanager
async def reporting(*extensions: str) -> AsyncGenerator[ReportingServer]:
    found = ReportingServer(*(extensions or ("audit",)))
    await found.front.ready()
    try:
        yield found
    finally:
        await found.front.servers.stop()


async def test_a_servers_word_stands_as_its_word() -> None:
    async with reporting() as reporter:
        (event,) = reporter.says(details={"key": SECRET})
        assert (event.type, event.actor, event.kind) == (
            AuditType.SERVER_REPORT,
            "server:files",
            PrincipalKind.SERVER,
        )
        assert (event.server, event.tool, event.result) == ("files", "", AuditResult.UNKNOWN)
        asserted = event.details["asserted"]
        assert isinstance(asserted, dict)
        assert asserted == {
            **{key: value for key, value in SAID.items() if key != "trace_id"},
            "details": {"key": SECRET},
        }


async def test_what_a_notice_says_of_its_own_way_is_no_testimony() -> None:
    async with reporting() as reporter:
        (event,) = reporter.says(_meta={"com.example/x": 7}, trace_id=None, details=None)
        asserted = event.details["asserted"]
        assert isinstance(asserted, dict)
        assert asserted.keys() == SAID.keys() - {"trace_id", "details"}


async def test_a_server_that_did_not_agree_on_it_is_not_heard() -> None:
    async with reporting("lifecycle") as reporter:
        assert not reporter.says()
        assert reporter.testimony.on_call_ended not in reporter.journal.event_listeners


@loop_over("is_open", [True, False])
async def test_a_trace_is_believed_of_a_call_that_is_open_there(is_open: bool) -> None:
    async with reporting() as reporter:
        reporter.calls(TRACE if is_open else "2e" * 16)
        (event,) = reporter.says()
        assert (event.trace == TRACE) is is_open
        assert event.details.get(CLAIMED) == (None if is_open else as_uuid(TRACE))


@loop_over(
    ("server", "seconds", "is_believed"),
    [("files", 0, True), ("files", 59, True), ("files", 61, False), ("mail", 0, False)],
)
async def test_a_trace_is_believed_of_a_call_that_has_just_ended_there(
    server: str, seconds: float, is_believed: bool
) -> None:
    async with reporting() as reporter:
        reporter.ends(server)
        reporter.pass_time(seconds)
        (event,) = reporter.says()
        assert (event.trace == TRACE) is is_believed


async def test_what_never_reached_a_server_is_no_call_of_its() -> None:
    async with reporting() as reporter:
        reporter.ends(kind=AuditType.TOOL_BLOCKED)
        (event,) = reporter.says()
        assert event.trace != TRACE


async def test_what_ended_long_ago_is_not_kept_in_mind() -> None:
    async with reporting() as reporter:
        reporter.ends()
        reporter.now += timedelta(minutes=2)
        later = AuditEvent(
            AuditType.CATALOG_ENTRY_USED, "x", reporter.now, server="files", trace="2e" * 16
        )
        reporter.journal.enqueue(later)
        reporter.take()
        reporter.now -= timedelta(minutes=2)
        (event,) = reporter.says()
        assert event.trace != TRACE


@loop_over("claimed", ["", "free text", "0" * 32, None])
async def test_a_trace_that_is_none_is_replaced(claimed: str | None) -> None:
    async with reporting() as reporter:
        (event,) = reporter.says(trace_id=claimed)
        assert len(event.trace) == 32
        assert event.details.get(CLAIMED, "") == (claimed or "")


@loop_over(
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
        {"result": "x" * (MAX_WORD_LENGTH + 1)},
        {"details": {"x": "x" * MAX_REPORT_BYTES}},
        {"details": {"x": jsonrpc.decode_value(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)}},
    ],
)
async def test_what_has_another_form_is_left_out_and_counted(other: Params) -> None:
    async with reporting() as reporter:
        assert not reporter.says(**other)
        (event,) = reporter.says()
        assert event.details["left_out"] == 1


async def test_a_server_that_says_too_much_is_counted() -> None:
    async with reporting() as reporter:
        events = [event for _ in range(MAX_EVENTS_AT_ONCE + 9) for event in reporter.says()]
        assert len(events) == MAX_EVENTS_AT_ONCE
        reporter.pass_time(10)
        (event,) = reporter.says()
        assert event.details["left_out"] == 9


async def test_nothing_is_taken_from_a_server_while_the_journal_has_no_room() -> None:
    async with reporting() as reporter:
        while reporter.journal.has_room:
            reporter.journal.enqueue(AuditEvent(AuditType.KEY_ISSUED, "x", reporter.now))
        reporter.take()
        assert not reporter.says()


async def test_a_server_that_comes_again_without_it_is_heard_no_more() -> None:
    async with reporting() as reporter:
        assert reporter.says()
        first = reporter.carrier
        reporter.script.replies[protocol.INITIALIZE] = hello(tools={})
        first.dies()
        await until(lambda: reporter.carrier is not first and reporter.carrier.is_open)
        server = reporter.front.servers.require("files")
        await until(lambda: NOTICE not in server.activity.notification_handlers)
        assert not reporter.says()
        assert reporter.testimony.on_call_ended not in reporter.journal.event_listeners
