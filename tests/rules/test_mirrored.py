"""Arguments in headers: as the official SDK writes them, and compared as it compares them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound

from comity.rules.mirrored import MARK, Mark, contradiction, headers_for, marks_in
from tests.rules.said import Object, as_object, json_values

REGION: Object = {"type": "string", MARK: "Region"}
COUNT: Object = {"type": "integer", MARK: "Count"}
DRY: Object = {"type": "boolean", MARK: "Dry-Run"}


def marks(schema: object) -> tuple[Mark, ...]:
    return marks_in(json.dumps({"name": "t", "inputSchema": schema}).encode())


def properties(**named: object) -> Object:
    return {"type": "object", "properties": named}


MARKED = marks(properties(region=REGION, count=COUNT, inner=properties(dry=DRY)))


def test_marked_arguments_are_found_however_deep_they_stand() -> None:
    assert set(MARKED) == {
        Mark(("region",), b"mcp-param-region", False),
        Mark(("count",), b"mcp-param-count", True),
        Mark(("inner", "dry"), b"mcp-param-dry-run", False),
    }


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    "schema",
    [
        {**properties(region=REGION), "examples": [{MARK: "A"}], "default": {MARK: "B"}},
        {**properties(region=REGION), "properties": {"region": REGION, "a": [{MARK: "A"}]}},
        {**properties(region=REGION), "allOf": {MARK: "A"}, "patternProperties": [{MARK: "B"}]},
    ],
)
def test_what_only_looks_like_a_mark_is_none(schema: object) -> None:
    assert marks(schema) == (Mark(("region",), b"mcp-param-region", False),)


@pytest.mark.parametrize("definition", [b"{}", b"x-mcp-header", b'{"x-mcp-header":1}', b"[]"])
def test_a_definition_that_is_none_has_no_marks(definition: bytes) -> None:
    assert marks_in(definition) == ()


def test_headers_repeat_what_is_there() -> None:
    arguments = {"region": "eu west", "count": 2**60, "inner": {"dry": False}, "other": 1}
    assert dict(headers_for(MARKED, arguments)) == {
        b"mcp-param-region": b"eu west",
        b"mcp-param-count": str(2**60).encode(),
        b"mcp-param-dry-run": b"false",
    }


@pytest.mark.parametrize(
    "arguments",
    [None, [], {}, {"region": None, "inner": []}, {"region": {}, "count": [1], "inner": {}}],
)
def test_what_is_not_there_is_not_repeated(arguments: object) -> None:
    assert headers_for(MARKED, arguments) == ()
    assert contradiction(MARKED, arguments, ()) is None


@pytest.mark.parametrize("region", ["", " a ", "a\r\nEvil: 1", "münchen", "=?base64?YQ==?=", "\0"])
def test_a_value_no_header_may_hold_is_wrapped_and_read_again(region: str) -> None:
    headers = headers_for(MARKED, {"region": region})
    assert all(b"\r" not in value and b"\n" not in value for _, value in headers)
    assert contradiction(MARKED, {"region": region}, headers) is None


@pytest.mark.parametrize(
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
    told = contradiction(MARKED, arguments, headers)
    assert told is not None
    assert because in told


@pytest.mark.parametrize("said", [b"42", b"42.0", b"42.000"])
@pytest.mark.parametrize("count", [42, 42.0])
def test_whole_numbers_are_compared_as_numbers(said: bytes, count: object) -> None:
    assert contradiction(MARKED, {"count": count}, [(b"mcp-param-count", said)]) is None


def test_a_fraction_is_compared_as_it_is_written() -> None:
    assert contradiction(MARKED, {"count": 1.5}, [(b"mcp-param-count", b"1.5")]) is None


def test_a_number_of_many_digits_is_compared_in_bounded_time() -> None:
    largest = int("9" * 4300)
    headers = headers_for(MARKED, {"count": largest})
    assert contradiction(MARKED, {"count": largest}, headers) is None
    beyond = [(b"mcp-param-count", b"9" * 4301)]
    assert contradiction(MARKED, {"count": largest}, beyond) is not None


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
    assert contradiction(found, said, encoded) is None


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
    assert (contradiction(marks(schema), given, encoded) is None) is (theirs is None)
