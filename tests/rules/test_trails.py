"""What was lately said: whom an answer may come from, and whom an envelope concerns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.rules.kinds import Kind
from comity.rules.trails import LONGEST_CHAIN, Step, Trail
from comity.wire.envelope import PROTOCOL, Envelope

ANA, BEA, CI = "person:ana@example.org", "person:bea@example.org", "agent:ci"
NOT_SEEN = "no request with the id in correlation_id was seen here"
NOT_YOURS = "the request was not addressed to you"


def said(
    id: str, by: str, kind: str = "chat", *, to: tuple[str, ...] = (), follows: str = ""
) -> Envelope:
    return Envelope(PROTOCOL, id, by, kind, Raw(b"{}"), to, follows)


def trail_of(*envelopes: Envelope, most: int = 100) -> Trail:
    trail = Trail(most)
    for each in envelopes:
        trail.add(each)
    return trail


def test_an_envelope_is_remembered_by_its_id() -> None:
    trail = trail_of(said("a", ANA, "mcp/request:tools/call:rm", to=(CI,), follows="p"))
    assert "a" in trail
    assert "b" not in trail
    assert trail.get("a") == Step(ANA, (CI,), "mcp/request:tools/call:rm", "p")
    assert trail.get("b") is None
    assert trail.asked("a") == Kind("mcp/request", "tools/call", "rm")
    assert trail.asked("b") is None


def test_who_used_an_id_first_is_whom_it_stands_for() -> None:
    trail = trail_of(
        said("a", ANA, "mcp/request:x", to=(BEA,)), said("a", CI, "mcp/request:x", to=(CI,))
    )
    assert trail.get("a") == Step(ANA, (BEA,), "mcp/request:x", "")
    assert trail.why_not_answer(said("r", CI, "mcp/response:x", follows="a")) == NOT_YOURS


@given(st.integers(1, 9), st.lists(st.integers(0, 30)))
def test_the_oldest_is_forgotten_first_and_never_more_than_needed(
    most: int, numbers: list[int]
) -> None:
    trail, kept = Trail(most), list[int]()
    for number in numbers:
        trail.add(said(str(number), CI))
        kept = kept if number in kept else [*kept, number][-most:]
    assert [number for number in range(31) if str(number) in trail] == sorted(kept)


@pytest.mark.parametrize(
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
        said("to-ci", ANA, "mcp/request:tools/call", to=(CI,)),
        said("to-both", ANA, "mcp/request:tools/call", to=(CI, BEA)),
        said("to-all", ANA, "mcp/request:tools/call"),
        said("a-chat", ANA, "chat", to=(CI,)),
        said("a-proposal", ANA, "mcp/proposal:tools/call", to=(CI,)),
        said("a-response", ANA, "mcp/response:tools/call", to=(CI,)),
        said("lookalike", ANA, "mcp/requests:tools/call", to=(CI,)),
    )
    response = said("answer", by, "mcp/response:tools/call", follows=follows)
    assert trail.why_not_answer(response) == because


def test_an_envelope_concerns_all_who_said_what_it_follows_from() -> None:
    trail = trail_of(
        said("proposal", CI, "mcp/proposal:tools/call"),
        said("fulfilment", ANA, "mcp/request:tools/call", follows="proposal"),
    )
    response = said("answer", "agent:files", "mcp/response:tools/call", follows="fulfilment")
    assert trail.concerned(response) == {ANA, CI}
    assert trail.concerned(said("x", BEA)) == frozenset()
    assert trail.concerned(said("x", BEA, follows="unknown")) == frozenset()


def test_a_chain_is_followed_no_further_than_its_bound_even_in_a_ring() -> None:
    steps = [said(str(each), f"agent:{each}", follows=str(each - 1)) for each in range(100)]
    concerned = trail_of(*steps).concerned(said("x", CI, follows="99"))
    assert concerned == {f"agent:{99 - each}" for each in range(LONGEST_CHAIN)}
    ring = trail_of(
        said("a", ANA, follows="b"), said("b", BEA, follows="a"), said("c", CI, follows="c")
    )
    assert ring.concerned(said("x", CI, follows="a")) == {ANA, BEA}
    assert ring.concerned(said("x", CI, follows="c")) == {CI}


def test_envelopes_for_very_many_are_forgotten_sooner() -> None:
    trail = Trail()
    many = tuple(f"agent:{number}" for number in range(1_000))
    for number in range(20):
        trail.add(Envelope(PROTOCOL, f"e{number}", "agent:a", "chat", Raw(b"{}"), to=many))
    assert [number for number in range(20) if f"e{number}" in trail] == [16, 17, 18, 19]
    trail.add(Envelope(PROTOCOL, "last", "agent:a", "chat", Raw(b"{}")))
    assert "e16" in trail
    assert "last" in trail
