"""Decisions on topics: what a member may send, who is given it, servers as members, proposals."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.mcp.actors import LOCAL, Actor
from comity.policy.grants import Effect, Grant, GrantSet, Guardrail, StaticRules
from comity.topics import rules
from comity.topics.envelope import PROTOCOL, Envelope
from comity.topics.rules import (
    FULL,
    JOIN,
    LIFETIME,
    MAX_CHAIN_LENGTH,
    PROPOSE,
    SEND,
    DeliveryMode,
    MessageTrail,
    ProposalEvent,
    ProposalState,
    TopicCapabilities,
    TopicEntitlement,
    TopicRefusal,
    TopicViolation,
    TrackedProposal,
    TrailEntry,
    decide_membership,
    decide_topic_entitlement,
    envelope_refusal,
    is_recipient,
    is_topic,
    may_end,
    party_of,
)
from comity.topics.rules import TopicAccess as Entrance
from tests.support.cases import loop_over

ANA, BEA, CI = "person:ana@example.org", "person:bea@example.org", "agent:ci"
EVERYTHING = TopicCapabilities(("*",))


def message(
    kind: str = "chat",
    by: str = CI,
    id: str = "new",
    *,
    to: tuple[str, ...] = (),
    follows: str = "",
) -> Envelope:
    return Envelope(PROTOCOL, id, by, kind, Raw(b"{}"), to, follows)


def seen() -> MessageTrail:
    trail = MessageTrail()
    trail.add(message("mcp/request:tools/call", ANA, "asked", to=(CI,)))
    trail.add(message("mcp/request:tools/call", ANA, "asked-bea", to=(BEA,)))
    return trail


@loop_over(
    ("envelope", "may", "error"),
    [
        pytest.param(message(), ("chat",), None, id="an honest chat"),
        pytest.param(message("x/y"), ("*",), None, id="a kind that nobody knows"),
        pytest.param(message(by=ANA), ("*",), TopicViolation.IDENTITY, id="somebody else's name"),
        pytest.param(message(by=""), ("*",), TopicViolation.IDENTITY, id="no name"),
        pytest.param(
            message(by="agent:CI"), ("*",), TopicViolation.IDENTITY, id="its name in capitals"
        ),
        pytest.param(
            message("system/welcome", ANA), ("*",), TopicViolation.IDENTITY, id="that comes first"
        ),
        pytest.param(message("system/welcome"), ("*",), TopicViolation.RESERVED, id="a welcome"),
        pytest.param(message("Presence"), ("*",), TopicViolation.RESERVED, id="a presence"),
        pytest.param(
            message("system"), (), TopicViolation.RESERVED, id="reserved before not granted"
        ),
        pytest.param(message("mcp/reject"), ("*",), TopicViolation.STRICT, id="a later kind"),
        pytest.param(
            message("mcp/withdraw:p1"), ("*",), TopicViolation.STRICT, id="with something behind it"
        ),
        pytest.param(
            message("mcp/rejected"), ("*",), None, id="that only begins like a later kind"
        ),
        pytest.param(
            message("mcp/request:x"), ("chat",), TopicViolation.CAPABILITY, id="not granted"
        ),
        pytest.param(
            message("mcp/request:x", id="asked"),
            ("chat",),
            TopicViolation.CAPABILITY,
            id="and known",
        ),
        pytest.param(
            message(id="asked"), ("*",), TopicViolation.DUPLICATE, id="an id that is known"
        ),
        pytest.param(message("mcp/response:x", follows="asked"), ("*",), None, id="an answer"),
        pytest.param(message("mcp/response", follows="asked"), ("*",), None, id="of no method"),
        pytest.param(message("mcp/response:x"), ("*",), TopicViolation.UNASKED, id="to nothing"),
        pytest.param(
            message("mcp/response"), ("*",), TopicViolation.UNASKED, id="to nothing, of no method"
        ),
        pytest.param(
            message("mcp/response:x", follows="asked-bea"),
            ("*",),
            TopicViolation.UNASKED,
            id="for another",
        ),
        pytest.param(
            message("mcp/response:x", id="asked", follows="asked"),
            ("*",),
            TopicViolation.DUPLICATE,
            id="under the id of the question",
        ),
    ],
)
def test_an_envelope_is_refused_for_the_first_thing_that_is_wrong(
    envelope: Envelope, may: tuple[str, ...], error: TopicViolation | None
) -> None:
    refusal = envelope_refusal(envelope, CI, TopicCapabilities(may), seen())
    assert (refusal and refusal.error) is error
    assert refusal is None or refusal.message


def test_a_refusal_says_what_is_missing() -> None:
    lacking = envelope_refusal(
        message("mcp/request:tools/call"), CI, TopicCapabilities(("chat",)), MessageTrail()
    )
    assert lacking == TopicRefusal(
        TopicViolation.CAPABILITY, "None of your capabilities covers 'mcp/request:tools/call'"
    )
    spoofed = envelope_refusal(message(by=ANA), CI, EVERYTHING, MessageTrail())
    assert spoofed is not None
    assert spoofed.message == "'from' must be 'agent:ci', which is who you are here"


@loop_over("kind", ["mcp/reject", "mcp/withdraw"])
def test_a_topic_that_is_not_strict_has_the_later_kinds(kind: str) -> None:
    assert envelope_refusal(message(kind), CI, EVERYTHING, MessageTrail(), is_strict=False) is None
    lacking = envelope_refusal(
        message(kind), CI, TopicCapabilities(("chat",)), MessageTrail(), is_strict=False
    )
    assert lacking is not None
    assert lacking.error is TopicViolation.CAPABILITY


@given(
    st.text("abmcp/resquty:*", max_size=20),
    st.lists(st.text("abcmp/:*", max_size=6), max_size=3),
    st.booleans(),
)
def test_whatever_is_granted_nobody_speaks_for_another(
    kind: str, may: list[str], is_strict: bool
) -> None:
    refusal = envelope_refusal(
        message(kind, ANA), CI, TopicCapabilities(may), MessageTrail(), is_strict=is_strict
    )
    assert refusal is not None
    assert refusal.error is TopicViolation.IDENTITY


MEMBERS = st.sampled_from((ANA, BEA, CI))


@given(st.lists(MEMBERS, max_size=3), MEMBERS, st.frozensets(MEMBERS, max_size=2))
def test_who_takes_all_is_given_all_and_who_does_not_what_concerns_it(
    to: list[str], member: str, concerned: frozenset[str]
) -> None:
    envelope = message(to=tuple(to))
    assert envelope.is_for_all is (not to)
    assert is_recipient(envelope, member, DeliveryMode.ALL, concerned)
    wanted = not to or member in to or member in concerned
    assert is_recipient(envelope, member, DeliveryMode.DIRECTED, concerned) is wanted


@loop_over(
    ("name", "can_be_one"),
    [
        *((each, True) for each in ("ops", "a", "9", "Ops-2.b_c", "a" * 64)),
        *(
            (each, False)
            for each in ("", "a" * 65, ".", "..", ".a", "-a", "_a", "a/b", "a b", "a*")
        ),
        *((each, False) for each in ("a\n", "\na", "a\x00", "a>", "\u00e9", "a:b", "a\u0660", "*")),
    ],
)
def test_the_name_of_a_topic_is_a_word_that_every_bus_can_carry(
    name: str, can_be_one: bool
) -> None:
    assert is_topic(name) is can_be_one


NOT_SEEN = "no request with the id in correlation_id was seen here"
NOT_YOURS = "the request was not addressed to you"


def earlier(
    id: str, by: str, kind: str = "chat", *, to: tuple[str, ...] = (), follows: str = ""
) -> Envelope:
    return message(kind, by, id, to=to, follows=follows)


def trail_of(*envelopes: Envelope, most: int = 100) -> MessageTrail:
    trail = MessageTrail(most)
    for each in envelopes:
        trail.add(each)
    return trail


def test_who_used_an_id_first_is_whom_it_stands_for() -> None:
    trail = trail_of(
        earlier("a", ANA, "mcp/request:x", to=(BEA,)), earlier("a", CI, "mcp/request:x", to=(CI,))
    )
    assert trail.get("a") == TrailEntry(ANA, (BEA,), "mcp/request:x", "")
    assert trail.response_refusal(earlier("r", CI, "mcp/response:x", follows="a")) == NOT_YOURS


@given(st.integers(1, 9), st.lists(st.integers(0, 30)))
def test_the_oldest_is_forgotten_first_and_never_more_than_needed(
    most: int, numbers: list[int]
) -> None:
    trail, kept = MessageTrail(most), list[int]()
    for number in numbers:
        trail.add(earlier(str(number), CI))
        kept = kept if number in kept else [*kept, number][-most:]
    assert [number for number in range(31) if str(number) in trail] == sorted(kept)


@loop_over(
    ("by", "follows", "because"),
    [
        pytest.param(CI, "to-ci", "", id="whom it was addressed to"),
        pytest.param(BEA, "to-both", "", id="one of two"),
        pytest.param(BEA, "to-all", "", id="anybody, where it was for all"),
        pytest.param(BEA, "to-ci", NOT_YOURS, id="somebody else"),
        pytest.param(ANA, "to-ci", NOT_YOURS, id="who asked"),
        pytest.param(CI, "nowhere", NOT_SEEN, id="what nobody asked"),
        pytest.param(CI, "", NOT_SEEN, id="nothing"),
        pytest.param(CI, "a-chat", NOT_SEEN, id="a chat"),
        pytest.param(CI, "a-proposal", NOT_SEEN, id="a proposal"),
        pytest.param(CI, "a-response", NOT_SEEN, id="a response"),
        pytest.param(CI, "lookalike", NOT_SEEN, id="what only looks like a request"),
    ],
)
def test_only_whoever_was_asked_answers(by: str, follows: str, because: str) -> None:
    trail = trail_of(
        earlier("to-ci", ANA, "mcp/request:tools/call", to=(CI,)),
        earlier("to-both", ANA, "mcp/request:tools/call", to=(CI, BEA)),
        earlier("to-all", ANA, "mcp/request:tools/call"),
        earlier("a-chat", ANA, "chat", to=(CI,)),
        earlier("a-proposal", ANA, "mcp/proposal:tools/call", to=(CI,)),
        earlier("a-response", ANA, "mcp/response:tools/call", to=(CI,)),
        earlier("lookalike", ANA, "mcp/requests:tools/call", to=(CI,)),
    )
    response = earlier("answer", by, "mcp/response:tools/call", follows=follows)
    assert trail.response_refusal(response) == because


def test_an_envelope_concerns_all_who_said_what_it_follows_from() -> None:
    trail = trail_of(
        earlier("proposal", CI, "mcp/proposal:tools/call"),
        earlier("fulfilment", ANA, "mcp/request:tools/call", follows="proposal"),
    )
    response = earlier("answer", "agent:files", "mcp/response:tools/call", follows="fulfilment")
    assert trail.earlier_senders(response) == {ANA, CI}
    assert trail.earlier_senders(earlier("x", BEA)) == frozenset()
    assert trail.earlier_senders(earlier("x", BEA, follows="unknown")) == frozenset()


def test_a_chain_is_followed_no_further_than_its_bound_even_in_a_ring() -> None:
    steps = [earlier(str(each), f"agent:{each}", follows=str(each - 1)) for each in range(100)]
    concerned = trail_of(*steps).earlier_senders(earlier("x", CI, follows="99"))
    assert concerned == {f"agent:{99 - each}" for each in range(MAX_CHAIN_LENGTH)}
    ring = trail_of(
        earlier("a", ANA, follows="b"),
        earlier("b", BEA, follows="a"),
        earlier("c", CI, follows="c"),
    )
    assert ring.earlier_senders(earlier("x", CI, follows="a")) == {ANA, BEA}
    assert ring.earlier_senders(earlier("x", CI, follows="c")) == {CI}


def test_envelopes_for_very_many_are_forgotten_sooner() -> None:
    trail = MessageTrail()
    many = tuple(f"agent:{number}" for number in range(1_000))
    for number in range(20):
        trail.add(Envelope(PROTOCOL, f"e{number}", "agent:a", "chat", Raw(b"{}"), to=many))
    assert [number for number in range(20) if f"e{number}" in trail] == [16, 17, 18, 19]
    trail.add(Envelope(PROTOCOL, "last", "agent:a", "chat", Raw(b"{}")))
    assert "e16" in trail
    assert "last" in trail


NOW = datetime(2026, 1, 1, tzinfo=UTC)
AGENT = Actor("agent:ci")
RESTRICTED, PUBLIC = (Entrance.RESTRICTED, PROPOSE), (Entrance.PUBLIC, PROPOSE)


def entitled(
    *grants: Grant,
    actor: Actor = AGENT,
    topic: str = "ops",
    terms: tuple[Entrance, tuple[str, ...]] = RESTRICTED,
    forbids: tuple[Guardrail, ...] = (),
) -> TopicEntitlement:
    access = GrantSet.from_grants((), StaticRules(grants, forbids))
    return decide_topic_entitlement(access, actor, topic, NOW, terms)


def allow(target: str, party: str = AGENT.party, verb: str = SEND) -> Grant:
    return Grant(party, verb, target, Effect.ALLOW)


def deny(target: str) -> Grant:
    return Grant(AGENT.party, SEND, target, Effect.DENY)


def bound(*permissions: tuple[str, str]) -> Actor:
    return Actor(AGENT.party, permissions=permissions)


@loop_over("target", ["ops/mcp/proposal:*", "*/mcp/proposal:*", "o*/mcp/proposal:*"])
def test_a_capability_is_granted_in_a_topic_or_in_many(target: str) -> None:
    assert entitled(allow(target)).capabilities.listed == ("mcp/proposal:*",)
    assert entitled(allow(target)).is_admitted


def test_nothing_else_that_was_granted_lets_into_a_topic() -> None:
    assert not entitled().is_admitted
    others = allow("dev/chat"), allow("ops/chat", verb="tools/call"), allow("ops/chat", "agent:x")
    assert not entitled(*others).is_admitted
    assert not entitled(allow("ops/*", "*"), actor=Actor("")).is_admitted
    everybody = entitled(allow("ops/chat", "*"), allow("ops/mcp/proposal:*"), allow("ops/a b"))
    assert set(everybody.capabilities.listed) == {"chat", "mcp/proposal:*"}


@loop_over("target", ["ops/*", "*"])
@loop_over("verb", [SEND, "topic/*", "*"])
def test_a_whole_topic_is_all_that_members_say(target: str, verb: str) -> None:
    assert entitled(allow(target, verb=verb)).capabilities.listed == FULL


def test_denying_comes_first() -> None:
    may = entitled(allow("ops/mcp/*"), allow("ops/chat"), deny("ops/mcp/request:*")).capabilities
    assert may.allows("mcp/proposal:tools/call")
    assert not may.allows("mcp/request:tools/call")
    assert entitled(allow("ops/chat"), deny("ops/chat")).capabilities.listed == ()


@loop_over("terms", [RESTRICTED, PUBLIC])
def test_who_was_denied_everything_is_not_let_in(
    terms: tuple[Entrance, tuple[str, ...]],
) -> None:
    shut = entitled(allow("ops/chat"), deny("ops/*"), terms=terms)
    assert not shut.is_admitted
    assert shut.capabilities.listed == ()
    assert entitled(allow("ops/chat"), deny("dev/*"), terms=terms).is_admitted


def test_what_would_ask_allows_nothing() -> None:
    asks = Grant(AGENT.party, SEND, "ops/mcp/request:*", Effect.ASK)
    assert not entitled(asks).is_admitted
    assert not entitled(asks, allow("ops/chat")).capabilities.allows("mcp/request:tools/call")


def test_a_grant_with_a_condition_is_no_entry() -> None:
    conditional = Grant(
        AGENT.party, SEND, "ops/chat", Effect.ALLOW, where={"paths": {}, "only": []}
    )
    assert not entitled(conditional).is_admitted


def test_a_guardrail_denies_whatever_was_granted() -> None:
    forbid = Guardrail("agent:*", SEND, "*/mcp/request:*", "agents propose")
    may = entitled(allow("ops/*"), forbids=(forbid,)).capabilities
    assert may.allows("mcp/proposal:tools/call")
    assert not may.allows("mcp/request:tools/call")
    person = Actor("person:ana@example.org")
    allowed = allow("ops/*", person.party)
    assert entitled(allowed, actor=person, forbids=(forbid,)).capabilities.allows(
        "mcp/request:tools/call"
    )


def test_in_a_public_topic_everybody_has_what_is_usual() -> None:
    assert entitled(terms=PUBLIC).capabilities.listed == PROPOSE
    assert entitled(terms=PUBLIC).is_admitted
    more = entitled(allow("ops/mcp/request:*"), terms=PUBLIC).capabilities
    assert more.listed == (*PROPOSE, "mcp/request:*")


def test_whoever_runs_the_gateway_alone_is_at_home_in_every_topic() -> None:
    alias = Actor("local:worker", LOCAL.kind, LOCAL.credential)
    assert entitled(actor=alias).capabilities.listed == PROPOSE
    assert entitled(actor=alias, terms=(Entrance.PRIVATE, PROPOSE)).is_admitted


def test_what_has_expired_is_not_there_and_the_first_end_is_told() -> None:
    soon, later = NOW + timedelta(hours=1), NOW + timedelta(hours=2)
    grants = [
        Grant(AGENT.party, SEND, "ops/chat", Effect.ALLOW, expires_at=later),
        Grant(AGENT.party, SEND, "ops/mcp/*", Effect.ALLOW, expires_at=soon),
        Grant(AGENT.party, SEND, "ops/x", Effect.ALLOW, expires_at=NOW),
    ]
    entitlement = entitled(*grants)
    assert set(entitlement.capabilities.listed) == {"chat", "mcp/*"}
    assert entitlement.until == soon


@loop_over(
    ("bounds", "left"),
    [
        ((SEND, "ops/mcp/proposal:*"), ("mcp/proposal:*",)),
        ((SEND, "*/chat"), ("chat",)),
        (("topic/*", "ops/*"), ("mcp/*", "chat")),
        (("*", "*"), ("mcp/*", "chat")),
        ((SEND, "ops/unheard"), ()),
    ],
)
def test_a_bounded_credential_allows_no_more_than_its_bounds(
    bounds: tuple[str, str], left: tuple[str, ...]
) -> None:
    within = entitled(allow("ops/*"), actor=bound(bounds))
    assert within.capabilities.listed == left
    assert within.is_admitted


@loop_over("terms", [RESTRICTED, PUBLIC])
def test_a_credential_that_is_bound_to_other_things_opens_no_topic(
    terms: tuple[Entrance, tuple[str, ...]],
) -> None:
    for bounds in ((SEND, "dev/*"), ("tools/call", "*")):
        assert not entitled(allow("ops/*"), actor=bound(bounds), terms=terms).is_admitted


FILES = party_of("files")


def is_mounted(*grants: Grant, written: bool = False, forbids: tuple[Guardrail, ...] = ()) -> bool:
    access = GrantSet.from_grants(grants, StaticRules(guardrails=forbids))
    return decide_membership(access, "files", "ops", NOW, is_written=written).is_member


@loop_over("target", ["ops/*", "ops/files", "*", "o*/*"])
def test_a_grant_to_the_server_itself_puts_it_into_a_topic(target: str) -> None:
    assert is_mounted(Grant(FILES, JOIN, target, Effect.ALLOW))


@loop_over(
    "grant",
    [
        Grant("*", "*", "*", Effect.ALLOW),
        Grant("*", JOIN, "*", Effect.ALLOW),
        Grant(FILES, "*", "*", Effect.ALLOW),
        Grant("server:web", JOIN, "ops/*", Effect.ALLOW),
        Grant(FILES, JOIN, "dev/*", Effect.ALLOW),
        Grant(FILES, JOIN, "ops/web", Effect.ALLOW),
        Grant(FILES, "topic/send", "ops/*", Effect.ALLOW),
        Grant(FILES, JOIN, "ops/*", Effect.ALLOW, expires_at=NOW),
        Grant(FILES, JOIN, "ops/*", Effect.ASK),
    ],
)
def test_nothing_less_than_that_does(grant: Grant) -> None:
    assert not is_mounted()
    assert not is_mounted(grant)


def test_a_file_puts_it_there_and_a_denial_comes_first() -> None:
    assert is_mounted(written=True)
    allowed = Grant(FILES, JOIN, "ops/*", Effect.ALLOW)
    for denied in (
        Grant(FILES, JOIN, "ops/*", Effect.DENY),
        Grant("*", "topic/*", "*", Effect.DENY),
    ):
        assert not is_mounted(denied, allowed, written=True)
    guardrail = Guardrail("server:*", JOIN, "ops/*")
    assert not is_mounted(allowed, written=True, forbids=(guardrail,))


def test_it_is_said_until_when_that_is_so() -> None:
    soon = NOW + timedelta(hours=1)
    access = GrantSet.from_grants([Grant(FILES, JOIN, "ops/*", Effect.ALLOW, expires_at=soon)])
    assert decide_membership(access, "files", "ops", NOW, is_written=False) == (True, soon)
    assert not decide_membership(access, "files", "ops", soon, is_written=False).is_member


PROPOSAL = TrackedProposal(
    "p1", CI, ("agent:files",), "tools/call", {"name": "rm"}, NOW, NOW + LIFETIME
)
ENDS = {
    ProposalState.ANSWERED,
    ProposalState.REJECTED,
    ProposalState.WITHDRAWN,
    ProposalState.EXPIRED,
}


@loop_over(("state", "happened"), [*product(sorted(ENDS), ProposalEvent)])
def test_what_has_ended_stays_as_it_was(state: ProposalState, happened: ProposalEvent) -> None:
    ended = replace(PROPOSAL, status=state, fulfilled_by=ANA, fulfilment="r1")
    assert rules.apply_event(ended, happened, "agent:mallory", "r2") is ended
    assert not ended.is_open


@given(st.lists(st.tuples(st.sampled_from(ProposalEvent), st.integers(0, 9)), max_size=12))
def test_the_first_fulfilment_counts_whatever_else_happens(
    story: list[tuple[ProposalEvent, int]],
) -> None:
    told = [PROPOSAL]
    for happened, number in story:
        told.append(rules.apply_event(told[-1], happened, f"person:{number}", f"r{number}"))
    states = list(dict.fromkeys(each.status for each in told))
    changes = [after for before, after in pairwise(told) if after is not before]
    assert len(changes) == len(states) - 1
    fulfilled = {(each.fulfilled_by, each.fulfilment) for each in told} - {("", "")}
    assert len(fulfilled) == (ProposalState.FULFILLED in states)
    assert told[0].is_open


def test_a_fulfilment_names_who_did_it_and_a_response_ends_it() -> None:
    fulfilled = rules.apply_event(PROPOSAL, ProposalEvent.FULFILMENT, ANA, "r1")
    assert (fulfilled.status, fulfilled.fulfilled_by, fulfilled.fulfilment) == (
        "fulfilled",
        ANA,
        "r1",
    )
    again = rules.apply_event(fulfilled, ProposalEvent.FULFILMENT, "person:bea@example.org", "r2")
    assert again is fulfilled
    answered = rules.apply_event(fulfilled, ProposalEvent.RESPONSE, "agent:files", "a1")
    assert (answered.status, answered.fulfilled_by) == ("answered", ANA)


@loop_over(
    ("happened", "state"),
    [
        (ProposalEvent.REJECTION, ProposalState.REJECTED),
        (ProposalEvent.WITHDRAWAL, ProposalState.WITHDRAWN),
        (ProposalEvent.TIMEOUT, ProposalState.EXPIRED),
        (ProposalEvent.RESPONSE, ProposalState.PENDING),
    ],
)
def test_what_is_pending_ends_by_a_word_or_by_time(
    happened: ProposalEvent, state: ProposalState
) -> None:
    after = rules.apply_event(PROPOSAL, happened, ANA, "x1")
    assert (after.status, after.fulfilled_by) == (state, "")
    assert after.is_open is (state is ProposalState.PENDING)


@loop_over(
    ("happened", "by", "counts"),
    [
        (ProposalEvent.WITHDRAWAL, CI, True),
        (ProposalEvent.WITHDRAWAL, ANA, False),
        (ProposalEvent.REJECTION, CI, False),
        (ProposalEvent.REJECTION, ANA, True),
        (ProposalEvent.FULFILMENT, ANA, True),
        (ProposalEvent.FULFILMENT, CI, True),
        (ProposalEvent.RESPONSE, "agent:files", True),
    ],
)
def test_only_its_proposer_withdraws_and_only_others_reject(
    happened: ProposalEvent, by: str, counts: bool
) -> None:
    assert may_end(PROPOSAL, happened, by) is counts
