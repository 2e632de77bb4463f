"""A chain holds its entries and their places; an entry is found by what its body says."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.audit import chain
from comity.audit.chain import AuditRecord, ChainCheckpoint, line_of
from comity.audit.events import AuditEvent, AuditType, body_of
from tests.support.cases import loop_over

type Link = tuple[bytes, bytes, int, bytes]

NOW = datetime(2026, 11, 15, 8, 30, 1, 234567, UTC)
_SAID: dict[str, Any] = {
    "type": AuditType.TOOL_EXECUTED,
    "actor": "agent:ci",
    "at": NOW,
    "server": "files",
    "tool": "read",
    "trace": "0af7651916cd43dd8448eb211c80319c",
    "call": "c-1",
    "details": {"a": 1},
}


def an_event(**said: Any) -> AuditEvent:
    return AuditEvent(**_SAID | said)


EVENT = an_event()


def kept(event: AuditEvent) -> AuditRecord:
    return chain.to_stored_record(line_of(event, "node", 1, body_of(event), b"h"))


@pytest.mark.parametrize("name", ChainCheckpoint._fields[:-1])
def test_a_signature_is_over_all_of_a_checkpoint(name: str) -> None:
    own = ChainCheckpoint("node", 1, b"h", NOW, "00ff")
    other: dict[str, object] = {
        "node": "node~2",
        "seq": 2,
        "hash": b"i",
        "at": NOW + timedelta(seconds=1),
        "key": "00fe",
    }
    assert chain.signed_part(own) != chain.signed_part(own._replace(**{name: other[name]}))
    assert chain.signed_part(own) == chain.signed_part(own._replace(signature=b"s"))


def test_an_entry_agrees_with_its_body() -> None:
    assert chain.has_matching_body(kept(EVENT))
    assert chain.has_matching_body(kept(an_event(server="", tool="", call="", trace="")))
    # A store may keep a time as exactly as the body does.
    assert chain.has_matching_body(kept(EVENT)._replace(at=NOW.replace(microsecond=234000)))


@pytest.mark.parametrize(
    "field", ["trace", "call", "type", "actor", "server", "tool", "result", "at", "body"]
)
def test_an_entry_that_is_found_by_something_else_does_not_agree(field: str) -> None:
    other: dict[str, object] = {"at": NOW + timedelta(milliseconds=1), "body": b"{}"}
    assert not chain.has_matching_body(kept(EVENT)._replace(**{field: other.get(field, "other")}))


@loop_over("text", ["a\0b", "é" * 300, "x" * 999, "a\x1b[2Jb", "\N{GRINNING FACE}"])
@loop_over("field", ["trace", "call", "type", "actor", "server", "tool", "result"])
def test_what_no_database_takes_is_kept_in_the_body_alone(field: str, text: str) -> None:
    event = an_event(**{field: text})
    line = kept(event)
    word = getattr(line, field)
    assert len(word) <= chain.MAX_INDEXED_LENGTH
    assert not {"\0", "\x1b"} & set(word)
    assert line.body == body_of(event)
    assert chain.has_matching_body(line)


links = st.tuples(
    st.binary(min_size=32, max_size=32),
    st.binary(max_size=12),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=24),
)


@given(links, links)
def test_two_entries_have_one_hash_only_where_they_are_the_same(one: Link, other: Link) -> None:
    assert (chain.entry_hash(*one) == chain.entry_hash(*other)) == (one == other)


@given(links, st.integers(0, 70))
def test_no_entry_is_another_whose_parts_begin_elsewhere(one: Link, place: int) -> None:
    """Cut the bytes that are hashed at another place: the length of the name stands in the way."""
    before, node, seq, body = one
    rest = node + seq.to_bytes(8) + body
    place %= len(rest) - 7
    other = (before, rest[:place], int.from_bytes(rest[place : place + 8]), rest[place + 8 :])
    assert (chain.entry_hash(*other) == chain.entry_hash(*one)) == (place == len(node))


@given(
    st.lists(st.binary(max_size=8), min_size=2, max_size=8),
    st.integers(0, 7),
    st.sampled_from(["alter", "remove", "insert", "swap", "renumber"]),
)
def test_a_chain_that_was_tampered_with_ends_in_another_hash(
    bodies: list[bytes], place: int, how: str
) -> None:
    place %= len(bodies) - 1
    entries = [(number, body) for number, body in enumerate(bodies, 1)]
    tampered = list(entries)
    match how:
        case "alter":
            tampered[place] = (place + 1, bodies[place] + b"x")
        case "remove":
            del tampered[place]
        case "insert":
            tampered.insert(place, (place + 1, b"new"))
        case "swap":
            tampered[place], tampered[place + 1] = tampered[place + 1], tampered[place]
        case _:
            tampered[place] = (place + 2, bodies[place])
    assert _end_of(tampered) != _end_of(entries)


def _end_of(entries: list[tuple[int, bytes]]) -> bytes:
    reached = chain.GENESIS
    for seq, body in entries:
        reached = chain.entry_hash(reached, b"node", seq, body)
    return reached


points = st.builds(
    ChainCheckpoint,
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    st.integers(0, 2**63),
    st.binary(max_size=4),
    st.sampled_from([NOW.replace(microsecond=0), NOW.replace(microsecond=1_000)]),
    st.text("0123456789abcdef", max_size=6),
    st.just(b""),
)


@given(points, points)
def test_no_two_checkpoints_are_signed_as_the_same_bytes(
    one: ChainCheckpoint, other: ChainCheckpoint
) -> None:
    assert (chain.signed_part(one) == chain.signed_part(other)) == (one == other)


def test_entries_follow_where_no_number_is_missing_and_the_node_is_one() -> None:
    own = [line_of(EVENT, "node", seq, b"", b"") for seq in (4, 5, 6)]
    assert chain.is_next_in_chain(own, "node", 3)
    assert not chain.is_next_in_chain(own, "node", 2)
    assert not chain.is_next_in_chain(own, "other", 3)
    assert not chain.is_next_in_chain([own[0], own[2]], "node", 3)
    assert not chain.is_next_in_chain([own[1], own[0], own[2]], "node", 3)
    assert not chain.is_next_in_chain([own[0], own[1]._replace(node="other")], "node", 3)
