"""What happens around calls is written down: by whom, about what, with which outcome."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from comity.kernel.audit_recorder import AT_ONCE, MOST_NAMED, Bound, kind_of
from comity.kernel.standing import Transition
from comity.rules.permissions import Decided
from comity.wire.audit import Result, Type, params_of
from comity.wire.grants import PERMISSION, Effect, Grant
from comity.wire.lifecycle import Reason, State
from comity.wire.parties import GATEWAY, LOCAL, Actor, Key, Party, PartyKind
from comity.wire.pins import Pin
from comity.wire.security import Decision
from tests.kernel.noted import NOON, SECRET, Noted

ANA = Actor("person:ana@example.org", PartyKind.PERSON)


def step(previous: State, state: State, reason: str = "", **more: Any) -> Transition:
    return Transition("files", previous, state, reason, NOON, **more)


def connected(noted: Noted) -> None:
    noted.servers.stepped(step(State.CONNECTING, State.CONNECTED))
    noted.take()


@pytest.mark.parametrize(
    ("party", "kind"),
    [
        *((LOCAL.party, PartyKind.PERSON), ("server:files", PartyKind.SERVER)),
        *((GATEWAY, PartyKind.SYSTEM), ("agent:ci", PartyKind.AGENT), ("ci", PartyKind.AGENT)),
    ],
)
def test_a_partys_name_says_what_it_is(party: str, kind: PartyKind) -> None:
    assert kind_of(party) is kind


def test_a_server_connects_by_itself_or_by_order() -> None:
    noted = Noted()
    for state in (State.CONNECTING, State.CONNECTED):
        noted.servers.stepped(step(State.REGISTERED, state))
    assert noted.told() == [(Type.SERVER_CONNECTED, GATEWAY, "files")]
    noted.servers.stepped(step(State.CONNECTING, State.CONNECTED, by=ANA.party))
    assert noted.told() == [(Type.SERVER_CONNECTED, ANA.party, "files")]


@pytest.mark.parametrize(
    ("state", "reason", "by", "actor"),
    [
        (State.ERROR, "exited with status 1", "", "server:files"),
        (State.DISCONNECTED, "exited with status 0", "", "server:files"),
        (State.DISCONNECTED, Reason.KERNEL_SHUTDOWN, "", GATEWAY),
        (State.DISCONNECTED, Reason.OPERATOR_REQUEST, ANA.party, ANA.party),
        (State.RESTARTING, Reason.OPERATOR_REQUEST, ANA.party, ANA.party),
    ],
)
def test_who_left_is_told_from_who_was_sent_away(
    state: State, reason: str, by: str, actor: str
) -> None:
    noted = Noted()
    connected(noted)
    noted.servers.stepped(step(State.CONNECTED, State.DRAINING, reason, by=by))
    noted.servers.stepped(step(State.DRAINING, state, reason, by=by))
    noted.servers.stepped(step(state, State.CONNECTING, reason))
    (event,) = noted.take()
    assert (event.type, event.actor) == (Type.SERVER_DISCONNECTED, actor)
    assert event.details["reason"] == reason


def test_a_server_that_never_was_there_does_not_leave() -> None:
    noted = Noted()
    noted.servers.stepped(step(State.CONNECTING, State.ERROR, "no such file"))
    noted.servers.stepped(step(State.ERROR, State.RESTARTING, "no such file"))
    assert not noted.take()


@pytest.mark.parametrize("was_there", [True, False])
def test_whoever_is_given_up_is_told_so_by_the_name_that_mgp_has_for_it(was_there: bool) -> None:
    noted = Noted()
    if was_there:
        connected(noted)
    noted.servers.stepped(step(State.CONNECTED, State.ERROR, f"died: {SECRET}", is_given_up=True))
    left, given_up = noted.take()
    assert left.type == Type.SERVER_DISCONNECTED
    assert left.actor == ("server:files" if was_there else GATEWAY)
    assert left.details == {"reason": "died: [secret]", "restart_limit_exceeded": True}
    assert (given_up.type, given_up.actor) == (Type.RESTART_LIMIT_EXCEEDED, GATEWAY)


def policy(decision: Decision) -> Decided:
    return Decided(decision, "policy auto_approve", "its server's policy approves")


def by_ana(decision: Decision, seconds: float | None = None) -> Decided:
    ends = None if seconds is None else NOON + timedelta(seconds=seconds)
    return Decided(decision, ANA.party, "an operator said so", ends)


APPROVED, DENIED, DEFERRED = Decision.APPROVED, Decision.DENIED, Decision.DEFERRED


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (None, policy(APPROVED), Type.PERMISSION_GRANTED),
        (None, policy(DENIED), Type.PERMISSION_DENIED),
        (None, policy(DEFERRED), None),
        (None, by_ana(APPROVED), None),
        (policy(DEFERRED), by_ana(APPROVED), None),
        (policy(DEFERRED), policy(APPROVED), Type.PERMISSION_GRANTED),
        (policy(APPROVED), policy(APPROVED), None),
        (policy(APPROVED), policy(DENIED), Type.PERMISSION_REVOKED),
        (policy(APPROVED), by_ana(DENIED), None),
        (by_ana(APPROVED), policy(DEFERRED), None),
        (by_ana(APPROVED, 3600), policy(DEFERRED), None),
        (by_ana(APPROVED, -1), policy(DEFERRED), Type.PERMISSION_REVOKED),
        (by_ana(DENIED), policy(APPROVED), Type.PERMISSION_GRANTED),
    ],
)
def test_what_follows_without_anybodys_word_is_the_gateways(
    before: Decided | None, now: Decided, told: Type | None
) -> None:
    noted = Noted()
    if before is not None:
        noted.permissions.decided("files", {"camera": before})
        noted.take()
    noted.permissions.decided("files", {"camera": now})
    events = noted.take()
    assert [event.type for event in events] == ([] if told is None else [told])
    for event in events:
        assert (event.actor, event.server) == (GATEWAY, "files")
        assert event.details["permission"] == "camera"
        assert ("expired" in event.details) is (before == by_ana(APPROVED, -1))


def test_what_cannot_be_known_for_a_while_is_no_change() -> None:
    noted = Noted()
    noted.permissions.decided("files", {"camera": policy(APPROVED)})
    noted.take()
    unknown = Decided(DEFERRED, GATEWAY, "what is allowed is not known just now")
    for now in (unknown, policy(APPROVED)):
        noted.permissions.decided("files", {"camera": now})
    assert not noted.take()
    noted.permissions.dismissed("files")
    noted.permissions.decided("files", {"camera": policy(APPROVED)})
    assert len(noted.take()) == 1


@pytest.mark.parametrize(
    ("target", "place"),
    [
        *(("files/read", ("files", "read")), ("files/*", ("files", ""))),
        *(("*", ("", "")), ("f*/read", ("", "read"))),
    ],
)
@pytest.mark.parametrize("effect", list(Effect))
def test_a_grant_is_told_with_what_it_is_about(
    target: str, place: tuple[str, str], effect: Effect
) -> None:
    noted = Noted()
    grant = Grant("agent:ci", "tools/call", target, effect, justification=f"as {SECRET} said")
    noted.grants.granted(ANA, grant, "1f" * 16)
    noted.grants.revoked(ANA, ("agent:ci", "tools/call", target))
    granted, revoked = noted.take()
    assert (granted.type, granted.actor, granted.kind) == (
        Type.ACCESS_GRANTED,
        ANA.party,
        PartyKind.PERSON,
    )
    assert (granted.server, granted.tool) == (revoked.server, revoked.tool) == place
    assert granted.details["permission"] == effect
    assert granted.details["justification"] == "as [secret] said"
    assert granted.trace == "1f" * 16
    assert (revoked.type, revoked.result) == (Type.ACCESS_REVOKED, Result.SUCCESS)
    assert UUID(revoked.trace)


def test_what_a_person_decides_of_a_permission_is_the_persons() -> None:
    noted = Noted()
    for effect in (Effect.ALLOW, Effect.DENY, Effect.ASK):
        noted.grants.granted(ANA, Grant("server:files", PERMISSION, "camera", effect))
    noted.grants.revoked(ANA, ("server:files", PERMISSION, "camera"))
    events = noted.take()
    assert [event.type for event in events] == [
        Type.PERMISSION_GRANTED,
        Type.PERMISSION_DENIED,
        Type.PERMISSION_REVOKED,
        Type.PERMISSION_REVOKED,
    ]
    assert {(event.actor, event.server, event.tool) for event in events} == {
        (ANA.party, "files", "")
    }
    assert {event.details["permission"] for event in events} == {"camera"}


def test_who_was_not_let_is_told_as_blocked() -> None:
    noted = Noted()
    stranger = Actor("agent:ci")
    noted.grants.granted(stranger, Grant("agent:ci", "*", "*", Effect.ALLOW), refused=True)
    noted.grants.revoked(stranger, ("agent:ci", "*", "*"), refused=True)
    assert [event.result for event in noted.take()] == [Result.BLOCKED, Result.BLOCKED]


def test_keys_and_their_holders_are_told_and_never_what_opens_a_door() -> None:
    noted = Noted()
    key = Key("k1", "agent:ci", b"mac", f"for {SECRET}", ("AdminRead",), expires_at=NOON)
    noted.keys.issued(ANA.party, key, "k0")
    noted.keys.revoked(ANA.party, key, NOON)
    noted.keys.party_changed(ANA.party, Party("agent:ci"), "disabled")
    issued, revoked, changed = noted.take()
    assert issued.details == {
        "key": "k1",
        "party": "agent:ci",
        "label": "for [secret]",
        "permissions": ["AdminRead"],
        "expires_at": "2026-01-01T12:00:00.000Z",
        "replaces": "k0",
    }
    assert revoked.details["counts_until"] == "2026-01-01T12:00:00.000Z"
    assert changed.details == {"party": "agent:ci", "kind": "agent", "change": "disabled"}
    assert {event.actor for event in (issued, revoked, changed)} == {ANA.party}


def test_many_tools_are_one_entry() -> None:
    noted = Noted()
    pins = [Pin("files", f"t{i}", "d", b"{}", GATEWAY, NOON) for i in range(MOST_NAMED + 5)]
    noted.definitions.accepted("files", pins, GATEWAY)
    (event,) = noted.take()
    assert (event.details["number"], event.details["more"]) == (MOST_NAMED + 5, 5)
    assert event.type == Type.DEFINITION_ACCEPTED


def test_what_a_server_changes_without_end_is_counted() -> None:
    noted = Noted()
    for _ in range(AT_ONCE + 7):
        noted.definitions.changed("files", {"read": "d"})
    events = noted.take()
    assert len(events) == AT_ONCE
    assert {event.actor for event in events} == {"server:files"}
    noted.pass_time(10)
    noted.definitions.changed("files", {"read": "d"})
    (event,) = noted.take()
    assert event.details["left_out"] == 7


def test_a_bound_is_for_each_name_by_itself() -> None:
    noted = Noted()
    bound = Bound(noted.journal.clock, most=1)
    assert (bound.take("a"), bound.take("a"), bound.take("b")) == (0, None, 0)
    bound.leave_out("a")
    noted.pass_time(10)
    assert bound.take("a") == 2
    bound.forget("a")
    assert bound.take("a") == 0


def test_every_entry_has_the_form_of_mgp() -> None:
    noted = Noted()
    connected(noted)
    noted.servers.stepped(step(State.CONNECTED, State.ERROR, "gone"))
    said = params_of(noted.take()[0])
    assert said.keys() == {
        *("timestamp", "trace_id", "event_type", "actor", "target", "result", "details"),
    }
    assert UUID(str(said["trace_id"]))
    assert said["target"] == {"server_id": "files"}
