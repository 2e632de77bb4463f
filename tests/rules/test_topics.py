"""Who may send an envelope into a topic, in which order it is refused, and who is given it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.rules.capabilities import Capabilities
from comity.rules.topics import Mode, Refusal, Violation, is_topic, receives, why_not
from comity.rules.trails import Trail
from comity.wire.envelope import PROTOCOL, Envelope

ANA, BEA, CI = "person:ana@example.org", "person:bea@example.org", "agent:ci"
EVERYTHING = Capabilities(("*",))


def said(
    kind: str = "chat",
    by: str = CI,
    id: str = "new",
    *,
    to: tuple[str, ...] = (),
    follows: str = "",
) -> Envelope:
    return Envelope(PROTOCOL, id, by, kind, Raw(b"{}"), to, follows)


def seen() -> Trail:
    trail = Trail()
    trail.add(said("mcp/request:tools/call", ANA, "asked", to=(CI,)))
    trail.add(said("mcp/request:tools/call", ANA, "asked-bea", to=(BEA,)))
    return trail


@pytest.mark.parametrize(
    ("envelope", "may", "error"),
    [
        pytest.param(said(), ("chat",), None, id="an honest chat"),
        pytest.param(said("x/y"), ("*",), None, id="a kind that nobody knows"),
        pytest.param(said(by=ANA), ("*",), Violation.IDENTITY, id="somebody else's name"),
        pytest.param(said(by=""), ("*",), Violation.IDENTITY, id="no name"),
        pytest.param(said(by="agent:CI"), ("*",), Violation.IDENTITY, id="its name in capitals"),
        pytest.param(
            said("system/welcome", ANA), ("*",), Violation.IDENTITY, id="that comes first"
        ),
        pytest.param(said("system/welcome"), ("*",), Violation.RESERVED, id="a welcome"),
        pytest.param(said("Presence"), ("*",), Violation.RESERVED, id="a presence"),
        pytest.param(said("system"), (), Violation.RESERVED, id="reserved before not granted"),
        pytest.param(said("mcp/reject"), ("*",), Violation.STRICT, id="a later kind"),
        pytest.param(
            said("mcp/withdraw:p1"), ("*",), Violation.STRICT, id="with something behind it"
        ),
        pytest.param(said("mcp/rejected"), ("*",), None, id="that only begins like a later kind"),
        pytest.param(said("mcp/request:x"), ("chat",), Violation.CAPABILITY, id="not granted"),
        pytest.param(
            said("mcp/request:x", id="asked"), ("chat",), Violation.CAPABILITY, id="and known"
        ),
        pytest.param(said(id="asked"), ("*",), Violation.DUPLICATE, id="an id that is known"),
        pytest.param(said("mcp/response:x", follows="asked"), ("*",), None, id="an answer"),
        pytest.param(said("mcp/response", follows="asked"), ("*",), None, id="of no method"),
        pytest.param(said("mcp/response:x"), ("*",), Violation.UNASKED, id="to nothing"),
        pytest.param(
            said("mcp/response"), ("*",), Violation.UNASKED, id="to nothing, of no method"
        ),
        pytest.param(
            said("mcp/response:x", follows="asked-bea"), ("*",), Violation.UNASKED, id="for another"
        ),
        pytest.param(
            said("mcp/response:x", id="asked", follows="asked"),
            ("*",),
            Violation.DUPLICATE,
            id="under the id of the question",
        ),
    ],
)
def test_an_envelope_is_refused_for_the_first_thing_that_is_wrong(
    envelope: Envelope, may: tuple[str, ...], error: Violation | None
) -> None:
    refusal = why_not(envelope, CI, Capabilities(may), seen())
    assert (refusal and refusal.error) is error
    assert refusal is None or refusal.message


def test_a_refusal_says_what_is_missing() -> None:
    lacking = why_not(said("mcp/request:tools/call"), CI, Capabilities(("chat",)), Trail())
    assert lacking == Refusal(
        Violation.CAPABILITY, "None of your capabilities covers 'mcp/request:tools/call'"
    )
    spoofed = why_not(said(by=ANA), CI, EVERYTHING, Trail())
    assert spoofed is not None
    assert spoofed.message == "'from' must be 'agent:ci', which is who you are here"


@pytest.mark.parametrize("kind", ["mcp/reject", "mcp/withdraw"])
def test_a_topic_that_is_not_strict_has_the_later_kinds(kind: str) -> None:
    assert why_not(said(kind), CI, EVERYTHING, Trail(), is_strict=False) is None
    lacking = why_not(said(kind), CI, Capabilities(("chat",)), Trail(), is_strict=False)
    assert lacking is not None
    assert lacking.error is Violation.CAPABILITY


@given(
    st.text("abmcp/resquty:*", max_size=20),
    st.lists(st.text("abcmp/:*", max_size=6), max_size=3),
    st.booleans(),
)
def test_whatever_is_granted_nobody_speaks_for_another(
    kind: str, may: list[str], is_strict: bool
) -> None:
    refusal = why_not(said(kind, ANA), CI, Capabilities(may), Trail(), is_strict=is_strict)
    assert refusal is not None
    assert refusal.error is Violation.IDENTITY


MEMBERS = st.sampled_from((ANA, BEA, CI))


@given(st.lists(MEMBERS, max_size=3), MEMBERS, st.frozensets(MEMBERS, max_size=2))
def test_who_takes_all_is_given_all_and_who_does_not_what_concerns_it(
    to: list[str], member: str, concerned: frozenset[str]
) -> None:
    envelope = said(to=tuple(to))
    assert envelope.is_for_all is (not to)
    assert receives(envelope, member, Mode.ALL, concerned)
    wanted = not to or member in to or member in concerned
    assert receives(envelope, member, Mode.DIRECTED, concerned) is wanted


@pytest.mark.parametrize(
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
