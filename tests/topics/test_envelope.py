"""An envelope, its kind and its payload are read as everybody reads them, or not at all."""

import json
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.errors import MalformedMessage
from comity.mcp import jsonrpc, protocol
from comity.mcp.eras import initialize_result
from comity.topics import envelope as envelopes
from comity.topics.envelope import (
    MAX_RECIPIENTS,
    PROPOSAL,
    PROTOCOL,
    REQUEST,
    Envelope,
    EnvelopeHeader,
    EnvelopeKind,
    EnvelopeLimits,
    build_envelope,
    context_of,
    decode_envelope,
    encode_envelope,
    identify_envelope,
    is_fulfilment,
    is_reserved,
    mismatch_reason,
    of_payload,
    parse_kind,
    proposed_in,
    request_in,
    to_common_answer,
    to_modern_request,
    whole_kind,
)
from comity.topics.rules import TopicCapabilities
from tests.support.cases import loop_over

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


def refusal_of(data: bytes, limits: EnvelopeLimits = envelopes.LIMITS) -> MalformedMessage:
    with pytest.raises(MalformedMessage) as refused:
        decode_envelope(data, limits)
    return refused.value


def why_refused(data: bytes) -> str:
    try:
        decode_envelope(data)
    except MalformedMessage as refused:
        return str(refused)
    return ""


# What is read.
def test_an_envelope_is_read_member_by_member() -> None:
    found = decode_envelope(text_of(MEMBERS))
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


@loop_over(
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
    found = decode_envelope(data)
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
    assert decode_envelope(encode_envelope(envelope)) == envelope


@given(ENVELOPES, st.booleans(), st.sampled_from((None, 2)))
def test_how_it_is_laid_out_changes_nothing(
    envelope: Envelope, is_escaped: bool, indent: int | None
) -> None:
    members = json.loads(encode_envelope(envelope))
    again = decode_envelope(json.dumps(members, ensure_ascii=is_escaped, indent=indent).encode())
    assert json.loads(encode_envelope(again)) == members


# What is refused.
TWICE = "a member is duplicated, or its name has escapes"
DEEP = b'{"a":' * 64 + b"1" + b"}" * 64


@loop_over(
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


@loop_over("name", list(LEAST))
def test_an_envelope_without_what_it_must_hold_is_refused(name: str) -> None:
    without = {each: value for each, value in MEMBERS.items() if each != name}
    assert str(refusal_of(text_of(without))).startswith("not an envelope")


def test_as_much_is_read_as_the_limits_say_and_no_more() -> None:
    at_most = changed(id="i" * 256, kind="k" * 1_024, correlation_id="c" * 256, ts="t" * 64)
    assert decode_envelope(at_most, EnvelopeLimits(envelope_bytes=len(at_most))).kind == "k" * 1_024
    refused = refusal_of(at_most, EnvelopeLimits(envelope_bytes=len(at_most) - 1))
    assert str(refused) == f"the envelope is over {len(at_most) - 1} bytes"
    assert decode_envelope(changed(to=["a"] * MAX_RECIPIENTS)).to == ("a",) * MAX_RECIPIENTS
    as_deep_as_may_be = b'{"a":' * 63 + b"1" + b"}" * 63
    assert decode_envelope(changed(payload="?").replace(b'"?"', as_deep_as_may_be))
    assert decode_envelope(changed(payload={"text": "[{" * 500}))


def test_a_refused_envelope_is_told_by_what_it_calls_itself() -> None:
    assert identify_envelope(changed(protocol="mcp-x/v0")) == ("e1", "mcp/request:tools/call")
    assert identify_envelope(text_of({"id": "e9", "kind": "x"})) == ("e9", "x")
    for data in (changed(id=7, kind=7), changed(id="a\n", kind="a b"), b"{", b"[" * 500_000):
        assert identify_envelope(data) == ("", "")
    assert identify_envelope(changed(id="i" * 257, kind="k" * 1_025)) == ("", "")
    assert identify_envelope(b'{"id":' + b"[" * 500_000) == ("", "")


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
            decode_envelope(standing(pairs, between))


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


@loop_over("name", ["\u212aind", "t\u017f", "\u212aIND"])
def test_letters_that_fold_into_ours_are_another_case_too(name: str) -> None:
    assert "is spelt" in str(refusal_of(text_of({**MEMBERS, name: "system/welcome"})))


@loop_over(
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
    heading = EnvelopeHeader("s1", "2026-11-15T08:30:00Z", ("agent:ci",), "e1")
    you = envelopes.encode_participant("agent:ci", ("chat", "mcp/*"))
    envelope = build_envelope(
        heading,
        "system:gateway",
        envelopes.WELCOME,
        envelopes.build_welcome(you, [envelopes.encode_participant("agent:b", ())]),
    )
    assert decode_envelope(encode_envelope(envelope)) == envelope
    assert json.loads(encode_envelope(envelope)) == {
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


CALL_PAYLOAD = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "rm"}}
READ = {"jsonrpc": "2.0", "method": "resources/read", "params": {"uri": "file:///a"}}
LIST = {"jsonrpc": "2.0", "method": "tools/list"}


@loop_over(
    ("kind", "parts"),
    [
        ("chat", EnvelopeKind("chat")),
        ("chat:a:b", EnvelopeKind("chat:a:b")),
        ("", EnvelopeKind("")),
        ("mcp/request", EnvelopeKind("mcp/request")),
        ("mcp/request:tools/list", EnvelopeKind("mcp/request", "tools/list")),
        ("mcp/response:tools/call:rm", EnvelopeKind("mcp/response", "tools/call", "rm")),
        (
            "mcp/proposal:resources/read:file:///a:b",
            EnvelopeKind("mcp/proposal", "resources/read", "file:///a:b"),
        ),
        ("mcp/request::x", EnvelopeKind("mcp/request", "", "x")),
        ("MCP/request:tools/list", EnvelopeKind("MCP/request:tools/list")),
        ("mcp/requests:tools/list", EnvelopeKind("mcp/requests:tools/list")),
    ],
)
def test_only_the_first_two_colons_part_a_kind(kind: str, parts: EnvelopeKind) -> None:
    assert parse_kind(kind) == parts


@given(
    st.sampled_from(("mcp/request", "mcp/response", "mcp/proposal")),
    st.text("ab/", min_size=1),
    st.text("ab/:"),
)
def test_a_kind_is_written_as_it_was_read(family: str, method: str, context: str) -> None:
    kind = EnvelopeKind(family, method, context)
    assert parse_kind(str(kind)) == kind


@loop_over(
    ("kind", "is_the_gateways"),
    [
        *((each, True) for each in ("system", "presence", "system/", "system/welcome", "system:")),
        *((each, True) for each in ("SYSTEM/error", "Presence", "presence/join", "system//x")),
        *(
            (each, True)
            for each in ("\u017fystem/error", "pre\u017fence", "system/\n", "system:a/b")
        ),
        *((each, False) for each in ("", "chat", "systems", "system.x", "system-x", "presences/x")),
        *((each, False) for each in ("mcp/system/x", "/system/x", " system/x", "syste", "mcp/*")),
    ],
)
def test_system_and_presence_and_all_below_are_reserved(kind: str, is_the_gateways: bool) -> None:
    assert is_reserved(kind) is is_the_gateways


@given(st.text(max_size=12))
def test_what_is_reserved_is_so_in_every_case(kind: str) -> None:
    assert is_reserved(kind.swapcase()) is is_reserved(kind)


@loop_over(
    ("payload", "kind"),
    [
        (CALL_PAYLOAD, "mcp/request:tools/call:rm"),
        (READ, "mcp/request:resources/read:file:///a"),
        ({"method": "prompts/get", "params": {"name": "p"}}, "mcp/request:prompts/get:p"),
        (LIST, "mcp/request:tools/list"),
        ({"method": "tools/list", "params": {"name": "x"}}, "mcp/request:tools/list"),
        ({"method": "tools/call"}, "mcp/request:tools/call"),
        ({"method": "tools/call", "params": ["rm"]}, "mcp/request:tools/call"),
        ({"method": "tools/call", "params": {"name": 7}}, "mcp/request:tools/call"),
        ({"method": "tools/call", "params": {"uri": "rm"}}, "mcp/request:tools/call"),
        ({"method": 7}, "mcp/request"),
        ({}, "mcp/request"),
    ],
)
def test_the_kind_of_a_payload_is_its_method_and_what_it_is_about(
    payload: dict[str, object], kind: str
) -> None:
    assert str(of_payload("mcp/request", payload)) == kind


RESULT: dict[str, object] = {"jsonrpc": "2.0", "id": 1, "result": {}}
ERROR: dict[str, object] = {"jsonrpc": "2.0", "id": 1, "error": {}}
ASKED = EnvelopeKind("mcp/request", "tools/call", "rm")


@loop_over(
    ("kind", "payload", "asked", "because"),
    [
        pytest.param("chat", {"text": "hello"}, None, "", id="a chat says nothing about itself"),
        pytest.param("mcp/request:tools/call:rm", CALL_PAYLOAD, None, "", id="an honest request"),
        pytest.param("mcp/request:tools/call", CALL_PAYLOAD, None, "", id="without its context"),
        pytest.param(
            "mcp/proposal:tools/call:rm", {**CALL_PAYLOAD, "jsonrpc": 0}, None, "", id="a proposal"
        ),
        pytest.param(
            "mcp/request:tools/call:ls",
            CALL_PAYLOAD,
            None,
            "the kind is for 'ls', the payload for 'rm'",
            id="a lie",
        ),
        pytest.param(
            "mcp/proposal:tools/call:ls",
            CALL_PAYLOAD,
            None,
            "the kind is for 'ls', the payload for 'rm'",
            id="in both",
        ),
        pytest.param(
            "mcp/request:tools/list",
            CALL_PAYLOAD,
            None,
            "the kind is for 'tools/list', the payload for 'tools/call'",
            id="another method",
        ),
        pytest.param(
            "mcp/request:tools/list:x",
            LIST,
            None,
            "the kind is for 'x', the payload for ''",
            id="too much",
        ),
        pytest.param(
            "mcp/request", {}, None, "the kind is for '', the payload for ''", id="no method"
        ),
        pytest.param(
            "mcp/request:tools/list",
            {"method": "tools/list"},
            None,
            "the payload is no JSON-RPC 2.0 message",
            id="no JSON-RPC",
        ),
        pytest.param("mcp/response:tools/call:rm", RESULT, ASKED, "", id="a result"),
        pytest.param("mcp/response:tools/call", ERROR, ASKED, "", id="an error"),
        pytest.param("mcp/response:tools/list", RESULT, None, "", id="of what nobody remembers"),
        pytest.param(
            "mcp/response:tools/call",
            {**RESULT, **ERROR},
            ASKED,
            "a response holds either a result or an error",
            id="both at once",
        ),
        pytest.param(
            "mcp/response:tools/call",
            CALL_PAYLOAD,
            ASKED,
            "a response holds either a result or an error",
            id="a request as a response",
        ),
        pytest.param(
            "mcp/response:tools/call:ls",
            RESULT,
            ASKED,
            f"it answers {ASKED}, but its kind is for mcp/response:tools/call:ls",
            id="another context",
        ),
        pytest.param(
            "mcp/response:tools/list",
            RESULT,
            ASKED,
            f"it answers {ASKED}, but its kind is for mcp/response:tools/list",
            id="another question",
        ),
    ],
)
def test_a_kind_that_does_not_tell_the_truth_is_found(
    kind: str, payload: dict[str, object], asked: EnvelopeKind | None, because: str
) -> None:
    assert mismatch_reason(parse_kind(kind), payload, asked) == because


METHODS = st.sampled_from(("tools/call", "tools/list", "resources/read", "prompts/get", "x"))
CONTEXTS = st.text("ab:/", max_size=5)


@given(st.sampled_from(("mcp/request", "mcp/proposal")), METHODS, CONTEXTS, METHODS, CONTEXTS)
def test_a_kind_passes_only_for_the_method_and_context_that_it_names(
    family: str, said: str, about: str, method: str, name: str
) -> None:
    parameter = envelopes.CONTEXT_OF.get(method, "other")
    payload = {"jsonrpc": "2.0", "method": method, "params": {parameter: name}}
    context = name if method in envelopes.CONTEXT_OF else ""
    is_honest = said == method and about in ("", context)
    assert (mismatch_reason(EnvelopeKind(family, said, about), payload) == "") is is_honest


CALL_KIND = "mcp/request:tools/call"


def request_envelope(kind: str, payload: Any) -> Envelope:
    return build_envelope(EnvelopeHeader("e-1", ""), "agent:ci", kind, payload)


def call(name: str = "read", **more: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": {"path": "/a"}, **more}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}


@loop_over("kind", [CALL_KIND, f"{CALL_KIND}:read"])
def test_a_request_that_is_what_its_kind_says_is_read(kind: str) -> None:
    frame = request_in(request_envelope(kind, call()))
    assert (frame.id, frame.method, context_of(frame)) == (7, "tools/call", "read")


@loop_over(
    ("kind", "payload"),
    [
        (f"{CALL_KIND}:read", call("write")),
        (f"{CALL_KIND}:READ", call("read")),
        (f"{CALL_KIND}:read:x", call("read")),
        ("mcp/request:tools/list", call()),
        (CALL_KIND, {**call(), "method": "tools/list"}),
        (CALL_KIND, {**call(), "jsonrpc": "1.0"}),
        (CALL_KIND, {**call(), "params": ["read"]}),
        (CALL_KIND, {**call(), "params": None}),
        (CALL_KIND, {"jsonrpc": "2.0", "id": 7, "result": {}}),
        (CALL_KIND, {**call(), "result": {}}),
        (CALL_KIND, {**call(), "id": None}),
        (CALL_KIND, {**call(), "id": [7]}),
        (CALL_KIND, {**call(), "Method": "tools/list"}),
        (f"{CALL_KIND}:", {"jsonrpc": "2.0", "id": 7, "method": 7}),
    ],
)
def test_what_is_not_what_its_kind_says_is_dropped(kind: str, payload: Any) -> None:
    with pytest.raises(MalformedMessage):
        request_in(request_envelope(kind, payload))


@loop_over(
    "payload",
    [
        '{"jsonrpc":"2.0","id":7,"method":"tools/call","method":"tools/call","params":{}}',
        '{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"write","name":"read"}}',
        '{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"read","_meta":{"a":1,"a":2}}}',
    ],
)
def test_a_member_that_stands_twice_is_read_by_nobody(payload: str) -> None:
    head = f'{{"protocol":"mcpx/v0.1","id":"1","from":"a","kind":"{CALL_KIND}:read","payload":'
    with pytest.raises(MalformedMessage):
        request_in(decode_envelope(f"{head}{payload}}}".encode()))


def test_what_is_denied_by_its_whole_name_is_denied_by_a_shorter_kind() -> None:
    may = TopicCapabilities(["mcp/request:*"], [f"{CALL_KIND}:delete*"])
    frame = request_in(request_envelope(CALL_KIND, call("delete_all")))
    assert not may.allows(whole_kind(REQUEST, frame))
    odd = request_in(request_envelope(CALL_KIND, call("delete é\n x")))
    assert not may.allows(whole_kind(REQUEST, odd))
    assert TopicCapabilities([CALL_KIND]).allows(whole_kind(REQUEST, odd))


def test_a_proposal_is_read_as_strictly() -> None:
    proposed: Any = {"method": "tools/call", "params": {"name": "write", "arguments": {}}}
    frame = proposed_in(request_envelope(f"{PROPOSAL}:tools/call:write", proposed))
    assert (frame.method, context_of(frame)) == ("tools/call", "write")
    for kind, payload in (
        (f"{PROPOSAL}:tools/call:read", proposed),
        (f"{PROPOSAL}:tools/list", proposed),
        (f"{PROPOSAL}:tools/call", {"method": 1}),
        (f"{PROPOSAL}:tools/call", {}),
    ):
        with pytest.raises(MalformedMessage):
            proposed_in(request_envelope(kind, payload))


def test_only_what_a_method_knows_goes_on_to_the_server() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    brought: dict[str, Any] = {
        "task": {"ttl": 1},
        "requestState": "sealed",
        "inputResponses": {},
        "_meta": {
            "progressToken": 1,
            "traceparent": trace,
            protocol.CLIENT_CAPABILITIES: {"roots": {}},
        },
    }
    plain = to_modern_request(request_in(request_envelope(CALL_KIND, call(**brought))))
    params = json.loads(bytes(plain.params))  # type: ignore[arg-type]
    assert params.keys() == {"name", "arguments", "_meta"}
    assert params["_meta"]["traceparent"] == trace
    assert params["_meta"][protocol.CLIENT_CAPABILITIES] == {}
    assert "progressToken" not in params["_meta"]


def test_an_answer_is_without_the_stamps_of_an_era() -> None:
    stamped = jsonrpc.make_result(1, {"content": [], "resultType": "complete", "ttlMs": 0})
    assert jsonrpc.decode_value(to_common_answer(stamped, "tools/call").result) == {"content": []}  # type: ignore[arg-type]
    with pytest.raises(MalformedMessage):
        to_common_answer(jsonrpc.make_result(1, {"resultType": "input_required"}), "tools/call")


def test_a_server_says_of_itself_what_a_topic_carries() -> None:
    hello = jsonrpc.decode_members(
        b'{"protocolVersion":"2025-06-18","serverInfo":{"name":"s","version":"1"},'
        b'"capabilities":{"tools":{"listChanged":true},"logging":{},"tasks":{}}}'
    )
    told = initialize_result(hello, "2025-06-18")
    assert told["capabilities"] == {"tools": {}}
    assert told["protocolVersion"] == "2025-06-18"


@loop_over(
    ("request_kind", "proposal", "is_so"),
    [
        (f"{CALL_KIND}:write", "mcp/proposal:tools/call:write", True),
        (CALL_KIND, "mcp/proposal:tools/call:write", True),
        (f"{CALL_KIND}:write", "mcp/proposal:tools/call", True),
        (f"{CALL_KIND}:read", "mcp/proposal:tools/call:write", False),
        ("mcp/request:tools/list", "mcp/proposal:tools/call", False),
        (CALL_KIND, CALL_KIND, False),
        ("chat", "mcp/proposal:tools/call", False),
    ],
)
def test_a_fulfilment_does_what_was_proposed(request_kind: str, proposal: str, is_so: bool) -> None:
    assert is_fulfilment(request_kind, proposal) is is_so
