"""What the decoder accepts and refuses, the parts of a frame, and frames that Comity writes."""

import json
from typing import cast

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from comity.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    MalformedMessage,
)
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import ErrorBody, ExtendedFrame, Frame, FrameLimits
from tests.mcp import json_texts
from tests.mcp.json_texts import Written, read_loosely, unhurried
from tests.support.cases import loop_over

DEEP = 100_000
LONE = {
    "high": b"\\ud800",
    "high before a letter": b"\\ud800abc",
    "high before an escaped letter": b"\\ud800\\u0041",
    "two high": b"\\ud800\\ud800",
    "low": b"\\udc00",
    "low first": b"\\udc00\\ud800",
    "in UTF-8": b"\xed\xa0\x80",
}


def call(params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"m","params":%b}' % params


def under(request_id: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"method":"m"}' % request_id


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """A call nested exactly so deep, its own object included."""
    return call(opening * (depth - 1) + b"0" + closing * (depth - 1))


def refusal(data: bytes, limits: FrameLimits = jsonrpc.LIMITS) -> MalformedMessage:
    with pytest.raises(MalformedMessage) as caught:
        jsonrpc.decode_frame(data, limits)
    return caught.value


def outcome(data: bytes, limits: FrameLimits) -> str:
    try:
        jsonrpc.decode_frame(data, limits)
    except MalformedMessage as error:
        return str(error)
    return "read"


def again(data: bytes) -> bytes:
    return jsonrpc.encode_frame(jsonrpc.decode_frame(data))


@loop_over(
    "data",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1,2.50,"x"]}}',
        b'{"jsonrpc":"2.0","method":"m"}',
        b'{"jsonrpc":"2.0","id":"a","result":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":null}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no","data":{"x":1}}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}',
        b'{"jsonrpc":"2.0","method":"m","params":[1,"positional"]}',
        b'{"jsonrpc":"2.0","method":"m","params":null}',
    ],
)
def test_a_plain_frame_comes_out_byte_for_byte(data: bytes) -> None:
    assert again(data) == data
    assert type(jsonrpc.decode_frame(data)) is Frame


@loop_over(
    ("data", "kind"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"m"}', (True, False, False)),
        (b'{"jsonrpc":"2.0","method":"m"}', (False, True, False)),
        (b'{"jsonrpc":"2.0","id":1,"result":1}', (False, False, True)),
        (b'{"jsonrpc":"2.0","id":null,"error":1}', (False, False, True)),
    ],
)
def test_a_frame_is_of_exactly_one_kind(data: bytes, kind: tuple[bool, bool, bool]) -> None:
    frame = jsonrpc.decode_frame(data)
    asks, tells = jsonrpc.is_request(frame), jsonrpc.is_notification(frame)
    assert (asks, tells, jsonrpc.is_response(frame)) == kind


@loop_over(
    "data",
    [
        *(b"", b" ", b"\x00", b"{", b"nonsense", b'{"jsonrpc":"2.0","id":1,"method":"m"'),
        *(under(b"1") + b"x", under(b"1") + b"{}", under(b"1") + b"\x00"),
        *(under(b"01"), under(b"+1"), under(b"1."), under(b"0x1"), under(b"'a'"), under(b"1_0")),
        *(call(b"[1,]"), call(b'{"a":1,}'), call(b"{1:2}"), call(b"[1 2]"), call(b'{"a" 1}')),
        *(call(b"tru"), call(b"[-]"), call(b"[00]"), call(b"[1e]"), call(b"[.5]"), call(b"/**/1")),
    ],
)
def test_what_is_not_json_is_a_parse_error(data: bytes) -> None:
    assert refusal(data).fault is PARSE_ERROR


@loop_over(
    "data",
    [
        *(b"1", b"null", b'"2.0"', b"true", b"{}", b'{"jsonrpc":"2.0"}', b'{"method":"m"}'),
        *(b'{"jsonrpc":"1.0","method":"m"}', b'{"jsonrpc":2.0,"method":"m"}'),
        *(b'{"jsonrpc":null,"method":"m"}', b'{"jsonrpc":"2.0","method":1}'),
        *(b'{"jsonrpc":"2.0","method":null}', b'{"jsonrpc":"2.0","id":1}'),
        *(b'{"jsonrpc":"2.0","result":1}', b'{"jsonrpc":"2.0","error":{}}'),
        *(b'{"jsonrpc":"2.0","id":null,"result":1}',),
        *(b'{"jsonrpc":"2.0","id":1,"result":1,"error":{}}',),
        *(b'{"jsonrpc":"2.0","id":1,"method":"m","result":1}',),
        *(b'{"jsonrpc":"2.0","id":1,"method":"m","error":{}}',),
        *(b'{"jsonrpc":"2.0","method":"m","params":1,"result":1,"error":{}}',),
    ],
)
def test_json_that_is_no_message_is_an_invalid_request(data: bytes) -> None:
    assert refusal(data).fault is INVALID_REQUEST


@loop_over("data", [b"[]", b" \n[" + under(b"1") + b"]", b"[" * DEEP])
def test_a_batch_is_refused_by_its_name(data: bytes) -> None:
    assert "batches" in str(refusal(data))


@loop_over("request_id", [b"0", b"-1", b"1", b'"1"', b'""', b"9007199254740992"])
def test_an_id_is_kept_in_its_exact_type(request_id: bytes) -> None:
    assert again(under(request_id)) == under(request_id)
    expected = str if request_id.startswith(b'"') else int
    assert type(jsonrpc.decode_frame(under(request_id)).id) is expected


@loop_over(
    "request_id",
    [
        *(b"1.0", b"1e3", b"0.5", b"-0.0", b"1e400", b"true", b"false", b"null", b"[]", b"{}"),
        *(b"9007199254740993", b"-9007199254740993", b"1" * 30, b"1" * 5000),
    ],
)
def test_an_id_that_readers_disagree_about_is_refused(request_id: bytes) -> None:
    assert refusal(under(request_id)).fault is INVALID_REQUEST


def test_an_id_and_a_method_may_be_long_but_not_endless() -> None:
    limits = FrameLimits(id_characters=3, method_characters=2)
    exact = b'{"jsonrpc":"2.0","id":"\xc3\xa9bc","method":"mn"}'
    assert jsonrpc.encode_frame(jsonrpc.decode_frame(exact, limits)) == exact
    assert "id is too long" in str(refusal(exact.replace(b"bc", b"bcd"), limits))
    assert "method's name is too long" in str(refusal(exact.replace(b"mn", b"mno"), limits))
    answer = b'{"jsonrpc":"2.0","id":"abcd","result":1}'
    assert "id is too long" in str(refusal(answer, limits))


def test_a_frame_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    data = call(b'"%b"' % (b"x" * 100))
    assert jsonrpc.decode_frame(data, FrameLimits(frame_bytes=len(data)))
    assert "message over" in str(refusal(data, FrameLimits(frame_bytes=len(data) - 1)))


@loop_over("inside", [b"x" * 8, b"\xc3\xa9" * 4, b'\\"' * 4, b"\\\\" * 4])
def test_a_string_at_the_limit_passes_and_one_byte_more_does_not(inside: bytes) -> None:
    limits = FrameLimits(string_bytes=8)
    assert jsonrpc.decode_frame(call(b'["%b","",{"%b":1}]' % (inside, inside)), limits)
    assert "string over 8 bytes" in str(refusal(call(b'["%bx"]' % inside), limits))
    assert "string over 8 bytes" in str(refusal(call(b'{"%bx":1}' % inside), limits))


@loop_over(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"":', b"}]")])
def test_depth_is_exact_at_its_limit(opening: bytes, closing: bytes) -> None:
    levels = len(opening.replace(b'"a":', b"").replace(b'"":', b""))
    middle = opening * 6 + b"0" + closing * 6
    depth = 6 * levels + 1
    assert jsonrpc.decode_frame(call(middle), FrameLimits(depth=depth))
    assert "nested deeper" in str(refusal(call(middle), FrameLimits(depth=depth - 1)))


@loop_over(
    ("inside", "depth"),
    [
        (b'["[[[[[{{{{{"]', 2),
        (b'["\\"[[[[{{{{"]', 2),
        (b'["\\\\",["[[[[{{{{"]]', 3),
        (b'["\\\\\\"[[[[",{"]]]":"\\u005b\\u007b[["}]', 3),
        (b"[" + b"[]," * 200 + b"{}]", 3),
        (b'{"a":[[],[[]],[]],"b":{}}', 5),
        (b'"[[[["', 1),
    ],
)
def test_only_brackets_outside_strings_nest(inside: bytes, depth: int) -> None:
    assert jsonrpc.decode_frame(call(inside), FrameLimits(depth=depth))
    assert jsonrpc.excess_reason(call(inside), depth - 1) == f"nested deeper than {depth - 1}"
    assert not jsonrpc.excess_reason(call(inside), depth)
    assert not jsonrpc.excess_reason(call(inside), depth + 60)


@loop_over("depth", [65, 66, 1000, 2000, DEEP])
def test_depth_beyond_the_usual_limit_is_refused_however_deep(depth: int) -> None:
    assert jsonrpc.decode_frame(nested(64))
    assert refusal(nested(depth)).fault is INVALID_REQUEST
    unread = b'{"jsonrpc":"2.0","method":"m","x":' + b"[" * depth + b"]" * depth + b"}"
    assert refusal(unread).fault is INVALID_REQUEST


def test_with_the_depth_limit_lifted_the_stack_is_still_safe() -> None:
    """Two readers follow one another, and each may come to the end of its stack first."""
    limits = FrameLimits(depth=DEEP)
    shallow, deep = 64, DEEP
    while deep - shallow > 1:
        middle = (shallow + deep) // 2
        try:
            jsonrpc.decode_frame(nested(middle), limits)
            shallow = middle
        except MalformedMessage:
            deep = middle
    # The white space at the end makes the second reader look.
    around = range(shallow - 8, shallow + 2)
    outcomes = {outcome(nested(depth, b'{"":', b"}") + b" ", limits) for depth in around}
    assert outcomes == {"read", "nested too deep"}


@loop_over("end", [b"\n", b"\r", b"\r\n"])
def test_no_line_inside_a_frame_becomes_a_message_of_its_own(end: bytes) -> None:
    """Read line by line, the middle of these parameters would be a call that nobody judged."""
    hidden = b'{"jsonrpc":"2.0","id":7,"method":"tools/call"}'
    plain = call(b'{"a":' + end + hidden + end + b"}")
    stranger = b'{"jsonrpc":"2.0","method":"m","x":[' + end + hidden + end + b"]}"
    for data in (plain, stranger):
        assert not {*b"\r\n"} & {*again(data)}
        assert again(data).replace(b" ", b"") == data.replace(end, b"")
    around = end + b"{" + end + b'"jsonrpc" :\t"2.0","method":"m"}' + end
    assert again(around) == b'{"jsonrpc":"2.0","method":"m"}'


@loop_over(
    "data",
    [
        b'{"jsonrpc":"2.0","method":"m","method":"n"}',
        b'{"jsonrpc":"2.0","method":"m","method":"m"}',
        b'{"jsonrpc":"2.0","jsonrpc":"2.0","method":"m"}',
        b'{"jsonrpc":"2.0","method":"m","\\u006d\\u0065thod":"n"}',
        b'{ "jsonrpc" : "2.0" , "method" : "m" , "method" : "n" }',
        b'{"jsonrpc":"2.0","id":1,"method":"m","id":2}',
        b'{"jsonrpc":"2.0","id":1,"result":1,"result":2}',
        b'{"jsonrpc":"2.0","method":"m","params":{"a":1},"params":{}}',
        b'{"jsonrpc":"2.0","method":"m","x":1,"x":2}',
        b'{"jsonrpc":"2.0","method":"m","x":1,"\\u0078":2}',
        b'{"jsonrpc":"2.0","method":"m","x":{"a":1,"a":2},"x":2}',
    ],
)
def test_a_repeated_member_is_refused(data: bytes) -> None:
    assert "repeated" in str(refusal(data))


@loop_over(
    "data",
    [
        call(b'{"a":1,"a":2}'),
        call(b'[{"a":{"b":1,"b":2}}]') + b" ",
        b'{"jsonrpc":"2.0","method":"m","x":{"a":1,"a":2}}',
    ],
)
def test_a_repeated_key_that_nobody_reads_passes_as_it_stands(data: bytes) -> None:
    assert again(data) == data.strip()


@loop_over(
    "name", ["Method", "ID", "paramS", "Result", "ERROR", "JsonRpc", "param\u017f", "re\u017fult"]
)
@loop_over("escaped", [False, True])
def test_a_member_that_differs_only_in_case_is_refused(name: str, escaped: bool) -> None:
    spelling = "".join(f"\\u{ord(letter):04x}" for letter in name) if escaped else name
    data = f'{{"jsonrpc":"2.0","id":1,"method":"m","{spelling}":2}}'.encode()
    assert "shadows" in str(refusal(data))


def test_unknown_members_are_kept_beside_the_known_ones() -> None:
    data = b'{"jsonrpc":"2.0","id":1,"method":"m","trace_id":"t","members":{"a":[1]},"":0}'
    frame = jsonrpc.decode_frame(data)
    assert type(frame) is ExtendedFrame
    assert set(frame.members) == {"trace_id", "members", ""}
    assert jsonrpc.encode_frame(frame) == data
    assert again(jsonrpc.encode_frame(frame)) == data


@loop_over("word", [b"NaN", b"Infinity", b"-Infinity", b"nan", b"-NaN"])
@loop_over("place", [b"%b", b"[%b]", b'{"a":[{"b":%b}]}'])
def test_numbers_that_are_none_are_refused_at_any_depth(word: bytes, place: bytes) -> None:
    assert refusal(call(place % word)).fault is PARSE_ERROR
    assert refusal(under(word)).fault is PARSE_ERROR


@loop_over("lone", LONE.values(), ids=LONE.keys())
@loop_over(
    "place",
    [
        b'{"jsonrpc":"2.0","id":"%b","method":"m"}',
        b'{"jsonrpc":"2.0","method":"%b"}',
        b'{"jsonrpc":"2.0","method":"m","params":"%b"}',
        b'{"jsonrpc":"2.0","method":"m","params":{"a":["%b"]}}',
        b'{"jsonrpc":"2.0","method":"m","params":{"%b":1}}',
        b'{"jsonrpc":"2.0","method":"m","%b":1}',
        b'{"jsonrpc":"2.0","method":"m","x":["%b"]}',
        b'{"jsonrpc":"2.0","id":1,"result":{"a":{"%b":{}}}}',
    ],
)
def test_half_a_surrogate_pair_is_refused_read_or_unread(place: bytes, lone: bytes) -> None:
    assert refusal(place % lone).fault is PARSE_ERROR
    assert jsonrpc.decode_frame(place % b"\\ud83d\\ude00")


@loop_over("broken", [b"\xff", b"\xc3", b"\xc0\xaf", b"\xf5\x80\x80\x80", b"\x80"])
@loop_over("place", [call(b'"%b"'), call(b'{"%b":1}'), under(b'"%b"')])
def test_broken_utf8_is_refused_read_or_unread(place: bytes, broken: bytes) -> None:
    assert refusal(place % broken).fault is PARSE_ERROR


@loop_over("control", [b"\x00", b"\x01", b"\n", b"\r", b"\t", b"\x1f", b"\\\n", b"\\x"])
@loop_over("place", [call(b'"%b"'), call(b'{"%b":1}'), under(b'"%b"')])
def test_control_characters_inside_strings_are_refused(place: bytes, control: bytes) -> None:
    assert refusal(place % control).fault is PARSE_ERROR


@loop_over("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-16-be"])
def test_only_utf8_without_a_mark_is_read(encoding: str) -> None:
    assert refusal(under(b"1").decode().encode(encoding)).fault is PARSE_ERROR


@loop_over("number", [b"1" * 40, b"1" * 9000, b"18446744073709551616", b"1e400"])
def test_a_number_of_any_size_passes_unread_and_exact(number: bytes) -> None:
    assert again(call(b'{"n":[%b]}' % number)) == call(b'{"n":[%b]}' % number)


def test_a_refusal_does_not_repeat_megabytes_of_what_it_refuses() -> None:
    long = b"x" * 1_000_000
    assert len(str(refusal(b'{"jsonrpc":"%b","method":"m"}' % long))) < 300
    assert len(str(refusal(b'{"jsonrpc":"2.0","id":[],"method":"%b"}' % long))) < 300


@loop_over(
    ("inside", "values"),
    [
        (b"[" + b",".join([b"{}"] * 50) + b"]", 100),
        (b"[" + b",".join([b'"a,{["'] * 50) + b"]", 50),
        (b"{" + b",".join(b'"%d":[]' % number for number in range(50)) + b"}", 100),
        (b'["' + b",{[" * 500 + b'"]', 1),
        (b'["' + b'\\",' * 500 + b'"]', 1),
        (b'["\\\\",["' + b'\\\\\\"[,' * 500 + b'"]]', 3),
        (b"[0" + b"    ,    0" * 50 + b"]", 51),
    ],
)
def test_values_are_counted_exactly_and_none_that_stands_in_a_string(
    inside: bytes, values: int
) -> None:
    """A bracket or a comma stands before each but the first; those of the message itself are 4."""
    exact = values + 4
    assert jsonrpc.decode_frame(call(inside), FrameLimits(values=exact))
    refused = refusal(call(inside), FrameLimits(values=exact - 1))
    assert str(refused) == f"more than {exact - 1} values"
    assert refused.fault is INVALID_REQUEST


def _levels_and_values(value: object) -> tuple[int, int]:
    """How deep a value is nested, and how many brackets and commas outside of strings it has."""
    if isinstance(value, dict):
        held = list(cast("dict[str, object]", value).values())
    elif isinstance(value, list):
        held = cast("list[object]", value)
    else:
        return 0, 0
    inner = [_levels_and_values(each) for each in held]
    values = max(1, len(held)) + sum(count for _, count in inner)
    return 1 + max((levels for levels, _ in inner), default=0), values


@given(json_texts.objects, st.integers(0, 4), st.integers(1, 12))
@unhurried
@example(Written('{"a":"' + "{[:,]}" * 300 + '"}'), 1, 1)
@example(Written('{"a":[' + "[]," * 300 + "1]}"), 3, 303)
@example(Written('{"a":[' + "[]," * 300 + "1]}"), 2, 302)
@example(Written('{"a":[' + "[]," * 300 + "1]}"), 3, 600)
@example(Written('{"a":1,"b":2,"c":3}'), 1, 2)
def test_limits_are_exact_whatever_strings_hold(written: Written, depth: int, most: int) -> None:
    assume(not written.repeated)
    levels, values = _levels_and_values(read_loosely(written.data))
    expected = "values" if values > most else "nested" if levels > depth else ""
    reason = jsonrpc.excess_reason(written.data, depth, most)
    assert (expected in reason) if expected else (reason == "")


def test_a_long_text_of_any_signs_is_one_value() -> None:
    for piece in (b",", b"{[", b'\\"', b"\\\\", b"1,2,3\\n", b'{\\"a\\":[1,2]},'):
        text = piece * (400_000 // len(piece))
        assert jsonrpc.decode_frame(call(b'["%b"]' % text), FrameLimits(values=10))


def test_escapes_are_bounded_too() -> None:
    most = 2**20
    assert jsonrpc.decode_frame(call(b'"%b"' % (b"\\n" * most)))
    assert "escapes" in str(refusal(call(b'"%b"' % (b"\\n" * (most + 1)))))


def plain(found: dict[str, Raw]) -> dict[str, bytes]:
    return {name: bytes(raw) for name, raw in found.items()}


def with_error(error: bytes) -> Frame:
    return jsonrpc.decode_frame(b'{"jsonrpc":"2.0","id":1,"error":%b}' % error)


@loop_over("data", [b'{"a":1,"b":{"c":[ ]}}', b' { "a" :1 ,"\\u0062":{"c":[ ]}} '])
def test_members_are_given_raw_under_their_decoded_names(data: bytes) -> None:
    assert plain(jsonrpc.decode_members(data)) == {"a": b"1", "b": b'{"c":[ ]}'}
    assert plain(jsonrpc.decode_members(Raw(data))) == {"a": b"1", "b": b'{"c":[ ]}'}


@loop_over(
    "data",
    [
        *(b'{"a":1,"a":1}', b'{"a":1,"\\u0061":2}', b'{ "a" : 1 , "a" : 2 }', b'{"":1,"":2}'),
        *(
            b'{"a":{"x":1},"a":1}',
            b'{"\\ud83d\\ude00":1,"\xf0\x9f\x98\x80":2}',
            b'{"a":1,"b":2,"a":3}',
        ),
    ],
)
def test_a_repeated_key_is_refused_where_members_are_read(data: bytes) -> None:
    with pytest.raises(MalformedMessage, match="repeated") as caught:
        jsonrpc.decode_members(data)
    assert caught.value.fault is INVALID_REQUEST


def test_a_repeated_key_below_the_members_is_left_to_whoever_reads_it() -> None:
    found = jsonrpc.decode_members(b'{ "a" : {"b":1,"b":2} }')
    assert bytes(found["a"]) == b'{"b":1,"b":2}'
    with pytest.raises(MalformedMessage, match="repeated"):
        jsonrpc.decode_members(found["a"])


@loop_over(
    "data",
    [
        *(b"", b"[1]", b"null", b'"a"', b"1", b"{", b'{"a":NaN}', b'{"a":"\\ud800"}'),
        *(b'{"\xff":1}', b'{ "a":"\xff"}', b'{"a":' + b"[" * DEEP + b"]" * DEEP + b"}"),
    ],
)
def test_what_has_no_members_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage) as caught:
        jsonrpc.decode_members(data)
    assert caught.value.fault is INVALID_REQUEST


@unhurried
@given(json_texts.objects)
def test_members_are_refused_exactly_if_a_key_is_repeated_among_them(written: Written) -> None:
    if written.repeated_here:
        with pytest.raises(MalformedMessage, match="repeated"):
            jsonrpc.decode_members(written.data)
    else:
        found = jsonrpc.decode_members(written.data)
        read = {name: read_loosely(bytes(raw)) for name, raw in found.items()}
        assert read == read_loosely(written.data)


@unhurried
@given(json_texts.frames())
def test_a_frame_is_decoded_only_without_repetition_and_loses_nothing(written: Written) -> None:
    try:
        frame = jsonrpc.decode_frame(written.data)
    except MalformedMessage:
        return
    assert not written.repeated_here
    encoded = jsonrpc.encode_frame(frame)
    assert len(encoded) <= len(written.data)
    assert not {*b"\r\n"} & {*encoded}
    assert read_loosely(encoded) == read_loosely(written.data)
    assert jsonrpc.encode_frame(jsonrpc.decode_frame(encoded)) == encoded


@loop_over(
    ("data", "expected"),
    [
        *((b"1", 1), (b"1.0", 1.0), (b"true", True), (b"null", None), (b'"\\u0061"', "a")),
        *((b"18446744073709551616", 2**64), (b"-9223372036854775809", -(2**63) - 1)),
        *((b"1" * 4300, int("1" * 4300)), (b' [1e3, {"a":[0]}] ', [1000.0, {"a": [0]}])),
        *((b'{"a":{"b":[1.10,1e-7]}}', {"a": {"b": [1.1, 1e-7]}}),),
    ],
)
def test_a_value_is_read_whole_and_integers_stay_exact(data: bytes, expected: object) -> None:
    assert jsonrpc.decode_value(data) == expected
    assert type(jsonrpc.decode_value(Raw(data))) is type(expected)


@loop_over(
    "data",
    [
        *(b"", b"NaN", b"1e400", b"1" * 4301, b'"\\ud800"', b'"\xff"', b'{"\\udc00":1}', b"[1"),
        *(b"[" * DEEP, b"[" * DEEP + b"]" * DEEP),
        *(
            b'{"a":1,"a":2}',
            b'[{"a":[{"b":1,"b":1}]}]',
            b'{"a":1e3,"b":1,"b":1}',
            b'[{"":1,"":2} ]',
        ),
        b'{"n":[1e5,123456789012345680.0],"a":0,"a":0}',
    ],
)
def test_a_value_that_two_readers_could_read_differently_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage) as caught:
        jsonrpc.decode_value(data)
    assert caught.value.fault is INVALID_REQUEST


@unhurried
@given(json_texts.values)
def test_a_value_is_refused_exactly_if_a_key_is_repeated_anywhere(written: Written) -> None:
    if written.repeated:
        with pytest.raises(MalformedMessage, match="repeated"):
            jsonrpc.decode_value(written.data)
    else:
        assert jsonrpc.decode_value(written.data) == json.loads(written.text)


@loop_over(
    ("frame", "data"),
    [
        (jsonrpc.make_request(1, "m"), b'{"jsonrpc":"2.0","id":1,"method":"m"}'),
        (
            jsonrpc.make_request("a", "m", {"x": [1]}),
            b'{"jsonrpc":"2.0","id":"a","method":"m","params":{"x":[1]}}',
        ),
        (jsonrpc.make_notification("m"), b'{"jsonrpc":"2.0","method":"m"}'),
        (jsonrpc.make_notification("m", {}), b'{"jsonrpc":"2.0","method":"m","params":{}}'),
        (jsonrpc.make_result(1, None), b'{"jsonrpc":"2.0","id":1,"result":null}'),
    ],
)
def test_frames_of_our_own_are_written_plainly(frame: Frame, data: bytes) -> None:
    assert jsonrpc.encode_frame(frame) == data
    assert jsonrpc.decode_frame(data) == frame


def test_a_failure_always_names_its_kind_and_reason() -> None:
    frame = jsonrpc.make_error(None, METHOD_NOT_FOUND, "no such thing", {"hint": "look"})
    error = jsonrpc.error_of(jsonrpc.decode_frame(jsonrpc.encode_frame(frame)))
    told = {"error_type": "method_not_found", "reason": "no such thing", "hint": "look"}
    assert error == ErrorBody(-32601, "no such thing", told)
    bare = jsonrpc.error_of(jsonrpc.make_error(1, METHOD_NOT_FOUND, "no"))
    assert bare == ErrorBody(-32601, "no", {"error_type": "method_not_found", "reason": "no"})


def test_an_error_is_read_once_with_unknown_members_left_aside() -> None:
    frame = with_error(b'{"code":-1,"message":"m","data":{"a":[1]},"more":2}')
    assert jsonrpc.error_of(frame) == ErrorBody(-1, "m", {"a": [1]})
    assert jsonrpc.error_of(frame) is jsonrpc.error_of(frame)
    assert jsonrpc.error_of(with_error(b'{"code":-1,"message":"m"}')) == ErrorBody(-1, "m", UNSET)
    assert jsonrpc.error_of(jsonrpc.make_result(1, {})) is None


@loop_over(
    "error",
    [
        *(b"5", b"null", b"{}", b'{"code":"x","message":"m"}', b'{"code":1.0,"message":"m"}'),
        *(b'{"code":1,"code":2,"message":"m"}', b'{"code":1,"message":null}'),
        *(
            b'{"code":1,"message":"m","data":{"a":1,"a":2}}',
            b'{"code":%b,"message":""}' % (b"1" * 5000),
        ),
    ],
)
def test_a_misshapen_error_reads_as_an_internal_error(error: bytes) -> None:
    found = jsonrpc.error_of(with_error(error))
    assert found is not None
    assert found.code == INTERNAL_ERROR.code


def test_a_frame_keeps_everything_else_under_another_id_and_other_parameters() -> None:
    frame = jsonrpc.make_request(1, "m", {"x": 1})
    assert jsonrpc.with_id(frame, "b") == jsonrpc.make_request("b", "m", {"x": 1})
    assert jsonrpc.with_params(frame, Raw(b"[]")) == jsonrpc.make_request(1, "m", [])
    answer = with_error(b'{"code":1,"message":"m"}')
    assert jsonrpc.with_id(answer, 9).error == answer.error
    unknown = jsonrpc.decode_frame(b'{"jsonrpc":"2.0","id":1,"method":"m","trace":"t"}')
    changed = jsonrpc.with_params(jsonrpc.with_id(unknown, "b"), Raw(b"{}"))
    expected = b'{"jsonrpc":"2.0","id":"b","method":"m","params":{},"trace":"t"}'
    assert jsonrpc.encode_frame(changed) == expected
    bare = ExtendedFrame("2.0", method="m")
    assert jsonrpc.encode_frame(bare) == b'{"jsonrpc":"2.0","method":"m"}'


@loop_over(
    ("data", "answered"),
    [
        (b'{"jsonrpc":"1.0","id":7,"result":{}}', 7),
        (b'{"jsonrpc":"2.0","id":"x","result":1,"error":2}', "x"),
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","result":{}}', None),
        (b'{"id":7.5,"result":{}}', None),
        (b'{"id":7,', None),
        (b"[" * 100_000, None),
    ],
)
def test_a_broken_answer_still_names_its_question(data: bytes, answered: int | str | None) -> None:
    assert jsonrpc.answered_id(data) == answered


@loop_over("raw", [b'[{"a":1,"a":1}]', b'{"a":NaN}', b"[" * DEEP, b"1", b"null", b"", None])
def test_text_is_a_string_and_anything_else_is_not_decoded(raw: bytes | None) -> None:
    """None of them could be: each would raise."""
    assert jsonrpc.decode_text(raw) is None
    assert jsonrpc.decode_text(b' "a\\u0062"') == "ab"


@loop_over("raw", [b'[{"a":1,"a":1}]', b'{"a":NaN}', b" [" * DEEP, None])
def test_what_holds_others_is_no_scalar(raw: bytes | None) -> None:
    assert jsonrpc.decode_scalar(raw) is None
    assert [jsonrpc.decode_scalar(each) for each in (b"1", b'"1"', b"true")] == [1, "1", True]


def test_in_a_long_value_a_number_is_short() -> None:
    """One of thousands of digits is read, but not hundreds of them."""
    texts = b'"' + b"1" * 5000 + b'",' + b'"x",' * 20_000
    assert jsonrpc.decode_value(b"[" + texts + b"1" * 100 + b"]")
    with pytest.raises(MalformedMessage, match="number is too long"):
        jsonrpc.decode_value(b"[" + texts + b"1" * 101 + b"]")


def test_what_one_reader_does_with_the_members_of_a_long_object_no_other_sees() -> None:
    raw = Raw(b'{"a":1,"b":"' + b"x" * 100_000 + b'"}')
    jsonrpc.decode_members(raw).pop("b")
    assert jsonrpc.decode_members(raw).keys() == {"a", "b"}
    other = Raw(b'{"c":1,"b":"' + b"x" * 100_000 + b'"}')
    assert jsonrpc.decode_members(other).keys() == {"c", "b"}
    assert jsonrpc.decode_members(raw).keys() == {"a", "b"}


def test_an_object_with_more_members_than_anybody_writes_is_refused() -> None:
    names = b",".join(b'"%d":1' % number for number in range(10_000))
    assert len(jsonrpc.decode_members(b"{" + names + b"}")) == 10_000
    with pytest.raises(MalformedMessage, match="more than 10000 members"):
        jsonrpc.decode_members(b"{" + names + b',"x":1}')


def test_a_fraction_is_the_same_in_a_long_value() -> None:
    written = [b"0.1", b"4.9406564584124654e-324", b"1.7976931348623157e308", b"-0.0", b"1e3"]
    long = b"[" + b",".join(written) + b',"' + b"x" * 100_000 + b'"]'
    short = b"[" + b",".join(written) + b"]"
    *found, _ = cast("list[object]", jsonrpc.decode_value(long))
    assert repr(found) == repr(jsonrpc.decode_value(short))
    with pytest.raises(MalformedMessage):
        jsonrpc.decode_value(long[:-1] + b",1e400]")


def test_of_a_long_error_only_the_beginning_is_read() -> None:
    data = b'{"a":1,"a":"' + b"x" * 64 * 1024 + b'"}'
    long = with_error(b'{"code":7,"message":"no","data":' + data + b"}")
    assert jsonrpc.error_of(long) == ErrorBody(7, "no")
    wordy = with_error(b'{"code":7,"message":"' + b"x" * 70_000 + b'"}')
    assert jsonrpc.error_of(wordy) == ErrorBody(7, "x" * 8192)
    for odd in (b'{"code":[],"message":"no"', b'{"code":7,"message":{}', b'{"code":7'):
        misshapen = with_error(odd + b',"data":' + data + b"}")
        assert jsonrpc.error_of(misshapen) == ErrorBody(
            INTERNAL_ERROR.code, "the peer sent an error of no known shape"
        )
