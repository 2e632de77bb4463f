"""The envelope of a modern request, and arguments repeated in headers."""

import base64
import json

from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound
from msgspec import Raw

from comity.errors import HEADER_MISMATCH, INVALID_PARAMS, UNSUPPORTED_VERSION, Fault
from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import Frame
from comity.mcp.modern_requests import (
    MARK,
    HeaderArgument,
    HeaderRefusal,
    envelope_of,
    era_of,
    header_mismatch_reason,
    headers_for,
    marks_in,
    refuse_envelope,
)
from comity.mcp.protocol import Era
from tests.mcp.json_values import Object, as_object, json_values
from tests.support.cases import loop_over

META: dict[str, object] = {
    protocol.PROTOCOL_VERSION: protocol.LATEST_MODERN,
    protocol.CLIENT_CAPABILITIES: {},
}
CALL = "tools/call"


def asked(method: str = CALL, meta: object = META, **params: object) -> Frame:
    return jsonrpc.make_request(1, method, {**params, "_meta": meta})


def request_headers(
    method: str = CALL, version: str = protocol.LATEST_MODERN, name: bytes | None = b"add"
) -> dict[bytes, bytes]:
    found = {protocol.VERSION_HEADER: version.encode(), protocol.METHOD_HEADER: method.encode()}
    return found if name is None else {**found, protocol.NAME_HEADER: name}


def fault_of(refusal: HeaderRefusal | None) -> Fault | None:
    return None if refusal is None else refusal.fault


@loop_over(
    ("header", "era"),
    [
        (None, Era.HANDSHAKE),
        *((version.encode(), Era.HANDSHAKE) for version in protocol.HANDSHAKE_VERSIONS),
        (b"2026-07-28", Era.MODERN),
        (b"2031-01-01", Era.MODERN),
        (b"", Era.MODERN),
        (b"2025-11-25 ", Era.MODERN),
    ],
)
def test_the_version_header_tells_the_eras_apart(header: bytes | None, era: Era) -> None:
    assert era_of(header) is era


def test_an_envelope_is_found_only_where_it_names_a_version() -> None:
    assert envelope_of(asked()) is not None
    assert envelope_of(asked(meta={"progressToken": 1})) is None
    assert envelope_of(jsonrpc.make_request(1, CALL)) is None
    assert envelope_of(jsonrpc.make_request(1, CALL, {})) is None


def test_a_request_in_order_is_not_refused() -> None:
    assert refuse_envelope(asked(name="add"), request_headers()) is None
    assert refuse_envelope(asked(name="add"), None) is None


@loop_over("missing", sorted(META))
def test_a_request_without_its_envelope_is_told_what_is_missing(missing: str) -> None:
    refusal = refuse_envelope(asked(meta={k: v for k, v in META.items() if k != missing}), None)
    assert refusal is not None
    assert refusal.fault is INVALID_PARAMS
    assert missing in refusal.reason


@loop_over(
    "raw",
    [b"[]", b'{"_meta":1}', b'{"_meta":{"a":1,"a":1}}', b'{"_meta":{},"_meta":{}}'],
    ids=["a list", "a number", "a key twice", "two of them"],
)
def test_parameters_that_cannot_be_read_are_refused(raw: bytes) -> None:
    frame = Frame("2.0", 1, CALL, Raw(raw))
    assert fault_of(refuse_envelope(frame, request_headers())) is INVALID_PARAMS


def test_an_envelope_comes_first_then_the_headers_then_the_version() -> None:
    old = {**META, protocol.PROTOCOL_VERSION: "2031-01-01"}
    wrong_method = request_headers(method="tools/list", version="2031-01-01")
    assert fault_of(refuse_envelope(asked(meta={}), wrong_method)) is INVALID_PARAMS
    assert fault_of(refuse_envelope(asked(meta=old, name="add"), wrong_method)) is HEADER_MISMATCH
    agreeing = request_headers(version="2031-01-01")
    assert fault_of(refuse_envelope(asked(meta=old, name="add"), agreeing)) is UNSUPPORTED_VERSION


def test_a_version_nobody_speaks_is_answered_with_those_that_are() -> None:
    refusal = refuse_envelope(asked(meta={**META, protocol.PROTOCOL_VERSION: "v" * 500}), None)
    assert refusal is not None
    assert refusal.data == {"supported": ["2026-07-28"], "requested": "v" * 64}


@loop_over("version", [1, None, ["2026-07-28"], {"a": 1}])
def test_a_version_that_is_no_string_is_refused(version: object) -> None:
    frame = asked(meta={**META, protocol.PROTOCOL_VERSION: version})
    assert fault_of(refuse_envelope(frame, None)) is INVALID_PARAMS
    assert fault_of(refuse_envelope(frame, request_headers())) is HEADER_MISMATCH


@loop_over(
    ("said", "frame"),
    [
        (request_headers(version="2025-11-25"), asked(name="add")),
        (request_headers(method="tools/list"), asked(name="add")),
        (request_headers(method="TOOLS/CALL"), asked(name="add")),
        (request_headers(name=b"sub"), asked(name="add")),
        (request_headers(name=None), asked(name="add")),
        (request_headers(name=b"Add"), asked(name="add")),
        (request_headers(name=b"=?base64?YWRk"), asked(name="add")),
        (request_headers(name=b"=?base64?Y?="), asked(name=5)),
        (request_headers(name=b"5"), asked(name=5)),
        (
            request_headers("resources/read", name=b"file:///a"),
            asked("resources/read", uri="file:///b"),
        ),
        ({}, asked(name="add")),
    ],
)
def test_a_header_that_contradicts_the_body_is_refused(
    said: dict[bytes, bytes], frame: Frame
) -> None:
    assert fault_of(refuse_envelope(frame, said)) is HEADER_MISMATCH


def test_white_space_around_a_header_says_nothing() -> None:
    spaced = {name: b" " + value + b"\t" for name, value in request_headers().items()}
    assert refuse_envelope(asked(name="add"), spaced) is None


def test_a_name_in_base64_is_compared_by_what_it_says() -> None:
    wrapped = b"=?base64?" + base64.b64encode("größe".encode()) + b"?="
    assert refuse_envelope(asked(name="größe"), request_headers(name=wrapped)) is None
    assert (
        fault_of(refuse_envelope(asked(name="grösse"), request_headers(name=wrapped)))
        is HEADER_MISMATCH
    )


def test_a_name_the_body_does_not_have_is_the_servers_to_refuse() -> None:
    assert refuse_envelope(asked(), request_headers(name=None)) is None
    assert refuse_envelope(asked("tools/list"), request_headers("tools/list", name=None)) is None


def test_a_huge_envelope_is_read_like_any_other() -> None:
    huge = asked(meta={**META, "x": "y" * 10_000}, name="add")
    assert refuse_envelope(huge, request_headers()) is None
    assert fault_of(refuse_envelope(asked(meta={"x": "y" * 10_000}), None)) is INVALID_PARAMS


@given(
    st.dictionaries(st.sampled_from([*request_headers(), b"x"]), st.binary(max_size=12)),
    st.binary(max_size=30),
    st.booleans(),
)
def test_whatever_a_client_sends_it_is_answered(
    said: dict[bytes, bytes], raw: bytes, in_name: bool
) -> None:
    params = b'{"_meta":%b,"name":%b}' % (jsonrpc.to_json(META), raw) if in_name else raw
    refuse_envelope(Frame("2.0", 1, CALL, Raw(params)), {**request_headers(), **said})


REGION: Object = {"type": "string", MARK: "Region"}
COUNT: Object = {"type": "integer", MARK: "Count"}
DRY: Object = {"type": "boolean", MARK: "Dry-Run"}


def marks(schema: object) -> tuple[HeaderArgument, ...]:
    return marks_in(json.dumps({"name": "t", "inputSchema": schema}).encode())


def properties(**named: object) -> Object:
    return {"type": "object", "properties": named}


MARKED = marks(properties(region=REGION, count=COUNT, inner=properties(dry=DRY)))


def test_marked_arguments_are_found_however_deep_they_stand() -> None:
    assert set(MARKED) == {
        HeaderArgument(("region",), b"mcp-param-region", False),
        HeaderArgument(("count",), b"mcp-param-count", True),
        HeaderArgument(("inner", "dry"), b"mcp-param-dry-run", False),
    }


@loop_over(
    "schema",
    [
        properties(a={"type": "string"}),
        {**properties(region=REGION), MARK: "Root"},
        properties(region=REGION, a={"type": "number", MARK: "A"}),
        properties(region=REGION, a={"type": ["string"], MARK: "A"}),
        properties(region=REGION, a={MARK: "A"}),
        properties(region=REGION, a={"type": "string", MARK: 7}),
        properties(region=REGION, a={"type": "string", MARK: ""}),
        properties(region=REGION, a={"type": "string", MARK: "two words"}),
        properties(region=REGION, a={"type": "string", MARK: "a\r\nEvil: 1"}),
        properties(region=REGION, a={"type": "string", MARK: "REGION"}),
        properties(region=REGION, a={"items": REGION}),
        {**properties(region=REGION), "anyOf": [properties(a={"type": "string", MARK: "A"})]},
        {**properties(region=REGION), "$defs": {"a": {"type": "string", MARK: "A"}}},
        properties(region=REGION, a={"not": properties(b={"type": "string", MARK: "B"})}),
        [REGION],
        None,
    ],
)
def test_one_mark_where_none_may_stand_leaves_nothing_marked(schema: object) -> None:
    assert marks(schema) == ()


@loop_over(
    "schema",
    [
        {**properties(region=REGION), "examples": [{MARK: "A"}], "default": {MARK: "B"}},
        {**properties(region=REGION), "properties": {"region": REGION, "a": [{MARK: "A"}]}},
        {**properties(region=REGION), "allOf": {MARK: "A"}, "patternProperties": [{MARK: "B"}]},
    ],
)
def test_what_only_looks_like_a_mark_is_none(schema: object) -> None:
    assert marks(schema) == (HeaderArgument(("region",), b"mcp-param-region", False),)


@loop_over("definition", [b"{}", b"x-mcp-header", b'{"x-mcp-header":1}', b"[]"])
def test_a_definition_that_is_none_has_no_marks(definition: bytes) -> None:
    assert marks_in(definition) == ()


def test_headers_repeat_what_is_there() -> None:
    arguments = {"region": "eu west", "count": 2**60, "inner": {"dry": False}, "other": 1}
    assert dict(headers_for(MARKED, arguments)) == {
        b"mcp-param-region": b"eu west",
        b"mcp-param-count": str(2**60).encode(),
        b"mcp-param-dry-run": b"false",
    }


@loop_over(
    "arguments",
    [None, [], {}, {"region": None, "inner": []}, {"region": {}, "count": [1], "inner": {}}],
)
def test_what_is_not_there_is_not_repeated(arguments: object) -> None:
    assert headers_for(MARKED, arguments) == ()
    assert header_mismatch_reason(MARKED, arguments, ()) is None


@loop_over("region", ["", " a ", "a\r\nEvil: 1", "münchen", "=?base64?YQ==?=", "\0"])
def test_a_value_no_header_may_hold_is_wrapped_and_read_again(region: str) -> None:
    headers = headers_for(MARKED, {"region": region})
    assert all(b"\r" not in value and b"\n" not in value for _, value in headers)
    assert header_mismatch_reason(MARKED, {"region": region}, headers) is None


@loop_over(
    ("arguments", "headers", "because"),
    [
        ({"region": "eu"}, [], "does not repeat"),
        ({"region": "eu"}, [(b"mcp-param-region", b"us")], "does not repeat"),
        ({"region": "eu"}, [(b"mcp-param-region", b"=?base64?!?=")], "does not repeat"),
        ({"region": "eu"}, [(b"mcp-param-region", b"eu")] * 2, "appears twice"),
        ({}, [(b"mcp-param-region", b"eu")], "not there"),
        ({"region": None}, [(b"mcp-param-region", b"")], "not there"),
        ({"region": ["eu"]}, [(b"mcp-param-region", b"eu")], "not there"),
        ({"count": 1}, [(b"mcp-param-count", b"1.5")], "does not repeat"),
        ({"count": 1}, [(b"mcp-param-count", b"1e0")], "does not repeat"),
        ({"count": True}, [(b"mcp-param-count", b"1")], "does not repeat"),
        ({"inner": {"dry": True}}, [(b"mcp-param-dry-run", b"True")], "does not repeat"),
    ],
)
def test_a_header_that_says_another_thing_is_told(
    arguments: object, headers: list[tuple[bytes, bytes]], because: str
) -> None:
    told = header_mismatch_reason(MARKED, arguments, headers)
    assert told is not None
    assert because in told


@loop_over("said", [b"42", b"42.0", b"42.000"])
@loop_over("count", [42, 42.0])
def test_whole_numbers_are_compared_as_numbers(said: bytes, count: object) -> None:
    assert header_mismatch_reason(MARKED, {"count": count}, [(b"mcp-param-count", said)]) is None


def test_a_fraction_is_compared_as_it_is_written() -> None:
    assert header_mismatch_reason(MARKED, {"count": 1.5}, [(b"mcp-param-count", b"1.5")]) is None


def test_a_number_of_many_digits_is_compared_in_bounded_time() -> None:
    largest = int("9" * 4300)
    headers = headers_for(MARKED, {"count": largest})
    assert header_mismatch_reason(MARKED, {"count": largest}, headers) is None
    beyond = [(b"mcp-param-count", b"9" * 4301)]
    assert header_mismatch_reason(MARKED, {"count": largest}, beyond) is not None


_TOKENS = st.sampled_from(["A", "a", "B", "c d", 7])
_SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {}, optional={"type": st.sampled_from(["string", "integer", "number"]), MARK: _TOKENS}
    )
    | json_values,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "items": inner,
            "anyOf": st.lists(inner, max_size=2),
            "$defs": st.dictionaries(st.sampled_from("ab"), inner, max_size=1),
        },
    ),
    max_leaves=6,
)
_ARGUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)


@given(_SCHEMAS, _ARGUMENTS)
def test_headers_are_written_and_read_as_the_official_sdk_does(
    schema: object, arguments: object
) -> None:
    found = marks(schema)
    if inbound.find_invalid_x_mcp_header(schema) is not None:
        assert found == ()
        return
    said = as_object(arguments)
    theirs = inbound.mcp_param_headers(inbound.x_mcp_header_map(schema), said)
    assert {name.decode(): value.decode() for name, value in headers_for(found, said)} == {
        name.lower(): value for name, value in theirs.items()
    }
    ours = {name.decode(): value.decode() for name, value in headers_for(found, said)}
    assert inbound.validate_mcp_param_headers(schema, said, ours) is None
    encoded = [(name.lower().encode(), value.encode()) for name, value in theirs.items()]
    assert header_mismatch_reason(found, said, encoded) is None


@given(
    _ARGUMENTS,
    st.dictionaries(st.sampled_from(["region", "count", "dry-run"]), st.text(max_size=3)),
)
def test_a_contradiction_is_one_for_the_official_sdk_too(
    arguments: object, said: dict[str, str]
) -> None:
    schema = properties(a=REGION, b=COUNT)
    given = as_object(arguments)
    headers = {
        f"mcp-param-{name}": inbound.encode_header_value(value) for name, value in said.items()
    }
    theirs = inbound.validate_mcp_param_headers(schema, given, headers)
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert (header_mismatch_reason(marks(schema), given, encoded) is None) is (theirs is None)
