"""An envelope is read as everybody reads it, or it is not read at all."""

import json
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.wire import envelope as envelopes
from comity.wire.envelope import (
    MOST_ADDRESSED,
    PROTOCOL,
    Envelope,
    Heading,
    Limits,
    decode,
    encode,
    named,
    written,
)
from comity.wire.errors import MalformedMessage

MEMBERS: dict[str, object] = {
    "protocol": PROTOCOL,
    "id": "e1",
    "ts": "2026-11-15T08:30:00Z",
    "from": "agent:ci",
    "to": ["person:ana@example.org"],
    "kind": "mcp/request:tools/call",
    "correlation_id": "e0",
    "payload": {"jsonrpc": "2.0", "id": "e1", "method": "tools/call", "kind": {"from": "x"}},
}
LEAST = {name: MEMBERS[name] for name in ("protocol", "id", "from", "kind", "payload")}


def text_of(members: object) -> bytes:
    return json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode()


def changed(**members: object) -> bytes:
    return text_of({**MEMBERS, **members})


def refusal_of(data: bytes, limits: Limits = envelopes.LIMITS) -> MalformedMessage:
    with pytest.raises(MalformedMessage) as refused:
        decode(data, limits)
    return refused.value


def why_refused(data: bytes) -> str:
    try:
        decode(data)
    except MalformedMessage as refused:
        return str(refused)
    return ""


# What is read.


def test_an_envelope_is_read_member_by_member() -> None:
    found = decode(text_of(MEMBERS))
    assert found == Envelope(
        protocol=PROTOCOL,
        id="e1",
        sender="agent:ci",
        kind="mcp/request:tools/call",
        payload=Raw(text_of(MEMBERS["payload"])),
        to=("person:ana@example.org",),
        correlation_id="e0",
        ts="2026-11-15T08:30:00Z",
    )
    assert not found.is_for_all


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(text_of(LEAST), id="no more than it must hold"),
        pytest.param(text_of({**LEAST, "to": [], "ts": "", "correlation_id": ""}), id="empty"),
        pytest.param(text_of({**LEAST, "to": None, "ts": None, "correlation_id": None}), id="null"),
        pytest.param(json.dumps(LEAST).encode(), id="with spaces"),
        pytest.param(b"\r\n\t " + json.dumps(LEAST, indent=4).encode() + b"\n", id="with lines"),
        pytest.param(text_of(dict(reversed(LEAST.items()))), id="in another order"),
        pytest.param(text_of({**LEAST, "x": {"from": 1, "From": 2}}), id="a member of tomorrow"),
        pytest.param(text_of({**LEAST, "gr\u00f6\u00dfe": 1}), id="in another language"),
        pytest.param(text_of(LEAST).replace(b"agent:ci", b"agent:c\\u0069"), id="escaped value"),
        pytest.param(text_of(LEAST).replace(b'"payload":', b'"payload" : \n'), id="space before"),
    ],
)
def test_what_is_left_out_or_written_otherwise_is_the_same_envelope(data: bytes) -> None:
    found = decode(data)
    assert (found.id, found.sender, found.kind) == ("e1", "agent:ci", "mcp/request:tools/call")
    assert (found.to, found.correlation_id, found.ts) == ((), "", "")
    assert json.loads(bytes(found.payload)) == LEAST["payload"]
    assert found.is_for_all


NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=9)
KINDS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=40)
VALUES = st.one_of(st.none(), st.integers(), st.text(max_size=9), st.just({"from": ["\u00e9"]}))
PAYLOADS = st.dictionaries(st.text(max_size=9), VALUES, max_size=3)
ENVELOPES = st.builds(
    Envelope,
    protocol=st.just(PROTOCOL),
    id=NAMES,
    sender=st.text(max_size=9),
    kind=KINDS,
    payload=PAYLOADS.map(lambda payload: Raw(text_of(payload))),
    to=st.lists(NAMES, max_size=3).map(tuple),
    correlation_id=st.one_of(st.just(""), NAMES),
    ts=st.one_of(st.just(""), NAMES),
)


@given(ENVELOPES)
def test_what_is_written_is_read_again(envelope: Envelope) -> None:
    assert decode(encode(envelope)) == envelope


@given(ENVELOPES, st.booleans(), st.sampled_from((None, 2)))
def test_how_it_is_laid_out_changes_nothing(
    envelope: Envelope, is_escaped: bool, indent: int | None
) -> None:
    members = json.loads(encode(envelope))
    again = decode(json.dumps(members, ensure_ascii=is_escaped, indent=indent).encode())
    assert json.loads(encode(again)) == members


# What is refused.

TWICE = "a member stands twice, or its name is written in escapes"
DEEP = b'{"a":' * 64 + b"1" + b"}" * 64


@pytest.mark.parametrize(
    ("data", "because"),
    [
        pytest.param(changed(protocol="mcpx/v0.2"), "protocol must be 'mcpx/v0.1'", id="version"),
        pytest.param(changed(protocol="MCPX/v0.1"), "protocol must be 'mcpx/v0.1'", id="capitals"),
        pytest.param(changed(payload=[]), "payload must be an object", id="a list as payload"),
        pytest.param(changed(payload="{}"), "payload must be an object", id="a text as payload"),
        pytest.param(changed(payload=None), "payload must be an object", id="null as payload"),
        pytest.param(changed(payload=7), "payload must be an object", id="a number as payload"),
        pytest.param(changed(kind=""), "kind must be printable", id="no kind"),
        pytest.param(changed(kind="chat "), "kind must be printable", id="a space in the kind"),
        pytest.param(changed(kind="chat\n"), "kind must be printable", id="a line in the kind"),
        pytest.param(changed(kind="chat\x00"), "kind must be printable", id="a NUL in the kind"),
        pytest.param(changed(kind="ch\u0430t"), "kind must be printable", id="a foreign letter"),
        pytest.param(changed(kind="a" * 1_025), "kind must be printable", id="a long kind"),
        pytest.param(changed(id=""), "id must be 1 to 256 printable", id="no id"),
        pytest.param(changed(id="a\n"), "id must be 1 to 256 printable", id="a line in the id"),
        pytest.param(changed(id="a" * 257), "id must be 1 to 256 printable", id="a long id"),
        pytest.param(
            changed(correlation_id="a\u202e"), "correlation_id must be", id="turned round"
        ),
        pytest.param(changed(correlation_id="a" * 257), "correlation_id must be", id="a long one"),
        pytest.param(changed(ts="a\n"), "ts must be at most 64 printable", id="a line in ts"),
        pytest.param(changed(ts="9" * 65), "ts must be at most 64 printable", id="a long ts"),
        pytest.param(changed(to=[""]), "to must name at most 1000", id="nobody named"),
        pytest.param(changed(to=["a\x7f"]), "to must name at most 1000", id="DEL in a name"),
        pytest.param(changed(to=["a" * 257]), "to must name at most 1000", id="a long name"),
        pytest.param(changed(to=["a"] * 1_001), "to must name at most 1000", id="too many names"),
        pytest.param(changed(to="agent:ci"), "not an envelope", id="a text as addressees"),
        pytest.param(changed(to=[7]), "not an envelope", id="a number as addressee"),
        pytest.param(changed(to={"a": 1}), "not an envelope", id="an object as addressees"),
        pytest.param(changed(id=7), "not an envelope", id="a number as id"),
        pytest.param(changed(id=None), "not an envelope", id="null as id"),
        pytest.param(changed(kind=["chat"]), "not an envelope", id="a list as kind"),
        pytest.param(changed(ts=1), "not an envelope", id="a number as moment"),
        pytest.param(changed(correlation_id=True), "not an envelope", id="a truth as reference"),
        pytest.param(changed(**{"from": None}), "not an envelope", id="null as sender"),
        pytest.param(b"[]", "not an envelope", id="a list"),
        pytest.param(b"null", "not an envelope", id="null"),
        pytest.param(b"7", "not an envelope", id="a number"),
        pytest.param(b"{}", "not an envelope", id="an empty object"),
        pytest.param(b"[" + text_of(MEMBERS) + b"]", "not an envelope", id="a batch"),
        pytest.param(b"", "not valid JSON", id="nothing"),
        pytest.param(text_of(MEMBERS) * 2, "not valid JSON", id="two in one"),
        pytest.param(text_of(MEMBERS)[:-1], "not valid JSON", id="cut off"),
        pytest.param(text_of(MEMBERS) + b"\x00", "not valid JSON", id="a NUL behind it"),
        pytest.param(b"\xef\xbb\xbf" + text_of(MEMBERS), "not valid JSON", id="byte order mark"),
        pytest.param(json.dumps(LEAST).encode("utf-16"), "not valid JSON", id="another encoding"),
        pytest.param(text_of(LEAST).replace(b'"from"', b'"fro\\u006d"', 1), TWICE, id="an escape"),
        pytest.param(changed(**{"x" * 20_000: 1}), "over 16384 bytes beside", id="a lot beside it"),
        pytest.param(
            text_of(MEMBERS).replace(b'"2.0"', b'"\xff"'),
            "not valid JSON",
            id="no UTF-8 in a payload",
        ),
        pytest.param(
            text_of(MEMBERS).replace(b'"2.0"', b'"\xed\xa0\x80"'),
            "not valid JSON",
            id="a surrogate",
        ),
        pytest.param(text_of(MEMBERS).replace(b'"2.0"', b"NaN"), "not valid JSON", id="no number"),
        pytest.param(text_of(MEMBERS).replace(b'"2.0"', b'"\n"'), "not valid JSON", id="raw line"),
        pytest.param(text_of(LEAST)[:-1] + b',"x":' + DEEP + b"}", "nested deeper", id="deep"),
        pytest.param(
            changed(payload="?").replace(b'"?"', DEEP), "nested deeper", id="deep payload"
        ),
        pytest.param(b"[" * 500_000, "not an envelope", id="only brackets"),
        pytest.param(b'{"payload":' * 90_000, "not valid JSON, or nested too deep", id="payloads"),
    ],
)
def test_what_is_no_envelope_is_refused_in_words(data: bytes, because: str) -> None:
    assert str(refusal_of(data)).startswith(because)


@pytest.mark.parametrize("name", list(LEAST))
def test_an_envelope_without_what_it_must_hold_is_refused(name: str) -> None:
    without = {each: value for each, value in MEMBERS.items() if each != name}
    assert str(refusal_of(text_of(without))).startswith("not an envelope")


def test_as_much_is_read_as_the_limits_say_and_no_more() -> None:
    at_most = changed(id="i" * 256, kind="k" * 1_024, correlation_id="c" * 256, ts="t" * 64)
    assert decode(at_most, Limits(envelope_bytes=len(at_most))).kind == "k" * 1_024
    refused = refusal_of(at_most, Limits(envelope_bytes=len(at_most) - 1))
    assert str(refused) == f"the envelope is over {len(at_most) - 1} bytes"
    assert decode(changed(to=["a"] * MOST_ADDRESSED)).to == ("a",) * MOST_ADDRESSED
    as_deep_as_may_be = b'{"a":' * 63 + b"1" + b"}" * 63
    assert decode(changed(payload="?").replace(b'"?"', as_deep_as_may_be))
    assert decode(changed(payload={"text": "[{" * 500}))


def test_a_refused_envelope_is_told_by_what_it_calls_itself() -> None:
    assert named(changed(protocol="mcp-x/v0")) == ("e1", "mcp/request:tools/call")
    assert named(text_of({"id": "e9", "kind": "x"})) == ("e9", "x")
    for data in (changed(id=7, kind=7), changed(id="a\n", kind="a b"), b"{", b"[" * 500_000):
        assert named(data) == ("", "")
    assert named(changed(id="i" * 257, kind="k" * 1_025)) == ("", "")
    assert named(b'{"id":' + b"[" * 500_000) == ("", "")


# What two readers might read in two ways.


def spelt(name: str, escaped: list[bool]) -> str:
    """A name, with any of its letters written as an escape."""
    return "".join(
        f"\\u{ord(each):04x}" if is_escaped else each
        for each, is_escaped in zip(name, escaped, strict=False)
    )


def standing(pairs: list[tuple[str, str]], between: str) -> bytes:
    """An object in which each member stands where it is put, however often."""
    members = f",{between}".join(f'"{name}":{between}{value}' for name, value in pairs)
    return f"{{{members}}}".encode()


PAIRS = [(name, json.dumps(value, separators=(",", ":"))) for name, value in MEMBERS.items()]
ESCAPED = st.lists(st.booleans(), min_size=14, max_size=14)
BETWEEN = st.sampled_from(("", " ", "\n\t"))


@given(
    st.sampled_from([*MEMBERS, "x"]),
    st.integers(0, len(PAIRS)),
    st.one_of(st.just([False] * 14), ESCAPED),
    BETWEEN,
    st.sampled_from(PAIRS),
)
def test_a_member_that_stands_twice_is_refused_wherever_it_stands(
    name: str, place: int, escaped: list[bool], between: str, other: tuple[str, str]
) -> None:
    value = dict(PAIRS).get(name, "1")
    known = PAIRS if name in MEMBERS else [*PAIRS, (name, "1")]
    for said in (value, other[1]):
        pairs = [*known[:place], (spelt(name, escaped), said), *known[place:]]
        with pytest.raises(MalformedMessage):
            decode(standing(pairs, between))


@given(
    st.sampled_from(list(MEMBERS)),
    st.integers(0, len(PAIRS)),
    st.lists(st.booleans(), min_size=14, max_size=14).filter(any),
    st.one_of(st.just([False] * 14), ESCAPED),
    BETWEEN,
)
def test_a_member_that_is_spelt_in_another_case_is_refused_wherever_it_stands(
    name: str, place: int, upper: list[bool], escaped: list[bool], between: str
) -> None:
    respelt = "".join(
        each.upper() if is_upper else each for each, is_upper in zip(name, upper, strict=False)
    )
    if respelt == name:
        respelt = name.upper()
    pairs = [*PAIRS[:place], (spelt(respelt, escaped), dict(PAIRS)[name]), *PAIRS[place:]]
    because = str(refusal_of(standing(pairs, between)))
    is_plain = spelt(respelt, escaped) == respelt
    assert because == (f"{respelt!r} is spelt {name!r}" if is_plain else TWICE)


@pytest.mark.parametrize("name", ["\u212aind", "t\u017f", "\u212aIND"])
def test_letters_that_fold_into_ours_are_another_case_too(name: str) -> None:
    assert "is spelt" in str(refusal_of(text_of({**MEMBERS, name: "system/welcome"})))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            text_of({**LEAST, **{f"x{each}": 1 for each in range(60_000)}}), id="many members"
        ),
        pytest.param(
            text_of({**LEAST, **{f"x{each}": 1 for each in range(60_000)}})[:-1] + b',"x1":1}',
            id="and one twice",
        ),
        pytest.param(text_of({**LEAST, "x" * 900_000: 1})[:-1] + b',"id":"e1"}', id="a long name"),
        pytest.param(changed(payload={"a": ["[{"] * 150_000}), id="brackets in texts"),
        pytest.param(changed(payload={"a": '\\"' * 150_000}), id="escapes"),
        pytest.param(changed(payload={"a": [{"b": 1}] * 90_000}), id="many objects"),
    ],
)
def test_a_hostile_envelope_takes_bounded_work_and_a_short_answer(data: bytes) -> None:
    began = process_time()
    assert len(why_refused(data)) < 200
    # A look at each name for each name would take minutes.
    assert process_time() - began < 5


# What the gateway writes itself.


def test_the_gateways_own_envelope_is_one_like_any_other() -> None:
    heading = Heading("s1", "2026-11-15T08:30:00Z", ("agent:ci",), "e1")
    you = envelopes.described("agent:ci", ("chat", "mcp/*"))
    envelope = written(
        heading,
        "system:gateway",
        envelopes.WELCOME,
        envelopes.welcome(you, [envelopes.described("agent:b", ())]),
    )
    assert decode(encode(envelope)) == envelope
    assert json.loads(encode(envelope)) == {
        "protocol": PROTOCOL,
        "id": "s1",
        "from": "system:gateway",
        "kind": "system/welcome",
        "payload": {
            "you": {"id": "agent:ci", "capabilities": ["chat", "mcp/*"]},
            "participants": [{"id": "agent:b", "capabilities": []}],
        },
        "to": ["agent:ci"],
        "correlation_id": "e1",
        "ts": "2026-11-15T08:30:00Z",
    }


def test_presence_and_what_was_missed_are_told_as_the_document_has_them() -> None:
    of = envelopes.participant("agent:ci", ())
    assert envelopes.presence(envelopes.JOIN, of) == {
        "event": "join",
        "participant": {"id": "agent:ci", "capabilities": []},
    }
    assert envelopes.missed(3, "a", "c", "slow") == {
        "count": 3,
        "first": "a",
        "last": "c",
        "because": "slow",
    }
