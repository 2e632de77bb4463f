"""Who is told what was written down, and what becomes of those who read slowly."""

from typing import Any

import pytest

from comity.kernel.audit import FILTER, MISSED, MOST_BYTES, MOST_WAITING, Notices
from comity.kernel.call import Call
from comity.kernel.grants import Grants
from comity.kernel.outbox import Outbox
from comity.kernel.sessions import Session
from comity.rules.access import Access
from comity.rules.negotiation import Terms
from comity.wire import jsonrpc, mcp
from comity.wire.audit import NOTICE, Event, Type
from comity.wire.errors import POLICY_UNKNOWN, Unavailable
from comity.wire.grants import ADMIN_READ, Effect, Grant
from comity.wire.parties import Actor, PartyKind
from tests.kernel.noted import NOON

CI, OPS = Actor("agent:ci"), Actor("person:ana@example.org", PartyKind.PERSON)
AUDIT = Terms("0.3.0", frozenset({"audit"}))


def grants(*targets: str) -> Grants:
    return Grants(Access.of([Grant(OPS.party, ADMIN_READ, each, Effect.ALLOW) for each in targets]))


def event(actor: str = CI.party, server: str = "files", tool: str = "read", **more: Any) -> Event:
    kind = more.pop("type", Type.TOOL_EXECUTED)
    return Event(kind, actor, NOON, server=server, tool=tool, trace="1f" * 16, **more)


def listening(notices: Notices, actor: Actor, terms: Terms | None = AUDIT) -> Session:
    session = Session("", 0, actor.party)
    session.mgp = terms
    notices.attach(session, actor)
    return session


def told(outbox: Outbox) -> list[dict[str, Any]]:
    frames = [jsonrpc.decode(data) for data in outbox.take()]
    assert {frame.method for frame in frames} <= {NOTICE}
    return [jsonrpc.value(frame.params) for frame in frames]  # type: ignore[misc,arg-type]


@pytest.mark.parametrize("terms", [None, Terms("0.3.0", frozenset({"lifecycle"}))])
def test_only_whoever_agreed_on_it_is_told(terms: Terms | None) -> None:
    notices = Notices(grants("*"))
    silent, hears = listening(notices, OPS, terms), listening(notices, OPS)
    notices.happened(event())
    assert not told(silent.standalone)
    (notice,) = told(hears.standalone)
    assert notice["actor"] == {"type": "system", "id": CI.party}
    assert notice["target"] == {"server_id": "files", "tool_name": "read"}
    assert len(notices) == 1


@pytest.mark.parametrize(
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
    notices = Notices(grants(*granted))
    session = listening(notices, OPS)
    for each in (event(), event(server="mail"), event(server="", tool="")):
        notices.happened(each)
    found = [notice["target"].get("server_id") for notice in told(session.standalone)]
    assert found == heard


def test_everybody_hears_what_it_did_itself() -> None:
    notices = Notices(grants())
    session = listening(notices, CI)
    notices.happened(event())
    notices.happened(event(OPS.party))
    assert [each["actor"]["id"] for each in told(session.standalone)] == [CI.party]


def test_while_nobody_can_know_what_is_allowed_only_ones_own_is_told() -> None:
    class Unsure(Grants):
        def judge(self, actor: Actor, verb: str, server: str, name: str) -> Any:
            raise Unavailable("nobody knows", POLICY_UNKNOWN)

    notices = Notices(Unsure())
    session = listening(notices, OPS)
    notices.happened(event())
    notices.happened(event(OPS.party))
    assert len(told(session.standalone)) == 1


def test_whoever_came_by_a_key_that_counts_no_more_hears_nothing() -> None:
    counting = {OPS.party}
    notices = Notices(grants("*"), lambda actor: actor.party in counting)
    session = listening(notices, OPS)
    notices.happened(event(OPS.party))
    counting.clear()
    notices.happened(event(OPS.party))
    assert len(told(session.standalone)) == 1


def test_what_a_server_asserts_is_told_to_nobody() -> None:
    notices = Notices(grants("*"))
    session = listening(notices, OPS)
    notices.happened(event("server:files", type=Type.TESTIMONY))
    assert not told(session.standalone)


def test_who_reads_too_slowly_loses_notices_and_is_told_how_many() -> None:
    notices = Notices(grants("*"))
    slow, quick = listening(notices, OPS), listening(notices, OPS)
    for _ in range(MOST_WAITING + 5):
        notices.happened(event())
        assert len(told(quick.standalone)) == 1
    assert len(told(slow.standalone)) == MOST_WAITING
    notices.happened(event())
    notices.happened(event())
    first, second = told(slow.standalone)
    assert first["details"] == {MISSED: 5}
    assert MISSED not in second["details"]


def test_what_is_long_waits_in_smaller_numbers() -> None:
    notices = Notices(grants("*"))
    session = listening(notices, OPS)
    for _ in range(100):
        notices.happened(event(details={"reason": "x" * 100_000}))
    assert session.standalone.size < MOST_BYTES + 200_000
    assert len(told(session.standalone)) < 15


async def test_a_session_that_ends_is_forgotten() -> None:
    notices = Notices(grants("*"))
    session = listening(notices, OPS)
    await session.close()
    assert len(notices) == 0


def listen(notices: Notices, *extensions: str) -> tuple[Call, dict[str, object]]:
    said = {"mgp": {"version": "0.3.0", "extensions": list(extensions)}}
    frame = jsonrpc.request("mine", mcp.LISTEN, {"_meta": {mcp.CLIENT_CAPABILITIES: said}})
    outbox = Outbox()
    outbox.actor = OPS
    call = Call(frame, outbox, None, 0)
    return call, notices.listen(call, frame)


def test_a_stream_of_the_modern_era_is_told_under_its_own_name() -> None:
    notices = Notices(grants("*"))
    call, agreed = listen(notices, "audit")
    assert agreed == {FILTER: True}
    for _ in range(MOST_WAITING + 1):
        notices.happened(event())
    first, *_ = told(call.outbox)
    assert first["_meta"] == {mcp.SUBSCRIPTION_ID: "mine"}
    notices.happened(event())
    (after,) = told(call.outbox)
    assert after["details"] == {MISSED: 1}
    notices.forget(call)
    notices.happened(event())
    assert not told(call.outbox)


def test_a_stream_that_did_not_agree_on_it_is_not_told() -> None:
    notices = Notices(grants("*"))
    call, agreed = listen(notices, "lifecycle")
    notices.happened(event())
    assert (agreed, told(call.outbox)) == ({}, [])
