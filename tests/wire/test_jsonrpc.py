"""What the decoder lets in, what it refuses and why, and that what it lets in is not changed."""

import pytest

from comity.wire import jsonrpc
from comity.wire.errors import INVALID_REQUEST, PARSE_ERROR, MalformedMessage
from comity.wire.jsonrpc import Frame, FrameWithMembers, Limits

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


def refusal(data: bytes, limits: Limits = jsonrpc.LIMITS) -> MalformedMessage:
    with pytest.raises(MalformedMessage) as caught:
        jsonrpc.decode(data, limits)
    return caught.value


def outcome(data: bytes, limits: Limits) -> str:
    try:
        jsonrpc.decode(data, limits)
    except MalformedMessage as error:
        return str(error)
    return "read"


def again(data: bytes) -> bytes:
    return jsonrpc.encode(jsonrpc.decode(data))


@pytest.mark.parametrize(
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
    assert type(jsonrpc.decode(data)) is Frame


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"m"}', (True, False, False)),
        (b'{"jsonrpc":"2.0","method":"m"}', (False, True, False)),
        (b'{"jsonrpc":"2.0","id":1,"result":1}', (False, False, True)),
        (b'{"jsonrpc":"2.0","id":null,"error":1}', (False, False, True)),
    ],
)
def test_a_frame_is_of_exactly_one_kind(data: bytes, kind: tuple[bool, bool, bool]) -> None:
    frame = jsonrpc.decode(data)
    asks, tells = jsonrpc.is_request(frame), jsonrpc.is_notification(frame)
    assert (asks, tells, jsonrpc.is_response(frame)) == kind


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("data", [b"[]", b" \n[" + under(b"1") + b"]", b"[" * DEEP])
def test_a_batch_is_refused_by_its_name(data: bytes) -> None:
    assert "batches" in str(refusal(data))


@pytest.mark.parametrize("request_id", [b"0", b"-1", b'"1"', b'""', b"9007199254740992"])
def test_an_id_is_kept_in_its_exact_type(request_id: bytes) -> None:
    assert again(under(request_id)) == under(request_id)


def test_the_number_one_and_the_string_one_are_two_ids() -> None:
    number, word = jsonrpc.decode(under(b"1")).id, jsonrpc.decode(under(b'"1"')).id
    assert (type(number), type(word)) == (int, str)


@pytest.mark.parametrize(
    "request_id",
    [
        *(b"1.0", b"1e3", b"0.5", b"-0.0", b"1e400", b"true", b"false", b"null", b"[]", b"{}"),
        *(b"9007199254740993", b"-9007199254740993", b"1" * 30, b"1" * 5000),
    ],
)
def test_an_id_that_readers_disagree_about_is_refused(request_id: bytes) -> None:
    assert refusal(under(request_id)).fault is INVALID_REQUEST


def test_an_id_and_a_method_may_be_long_but_not_endless() -> None:
    limits = Limits(id_characters=3, method_characters=2)
    exact = b'{"jsonrpc":"2.0","id":"\xc3\xa9bc","method":"mn"}'
    assert jsonrpc.encode(jsonrpc.decode(exact, limits)) == exact
    assert "id is too long" in str(refusal(exact.replace(b"bc", b"bcd"), limits))
    assert "method's name is too long" in str(refusal(exact.replace(b"mn", b"mno"), limits))
    answer = b'{"jsonrpc":"2.0","id":"abcd","result":1}'
    assert "id is too long" in str(refusal(answer, limits))


def test_a_frame_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    data = call(b'"%b"' % (b"x" * 100))
    assert jsonrpc.decode(data, Limits(frame_bytes=len(data)))
    assert "message over" in str(refusal(data, Limits(frame_bytes=len(data) - 1)))


@pytest.mark.parametrize("inside", [b"x" * 8, b"\xc3\xa9" * 4, b'\\"' * 4, b"\\\\" * 4])
def test_a_string_at_the_limit_passes_and_one_byte_more_does_not(inside: bytes) -> None:
    limits = Limits(string_bytes=8)
    assert jsonrpc.decode(call(b'["%b","",{"%b":1}]' % (inside, inside)), limits)
    assert "string over 8 bytes" in str(refusal(call(b'["%bx"]' % inside), limits))
    assert "string over 8 bytes" in str(refusal(call(b'{"%bx":1}' % inside), limits))


@pytest.mark.parametrize(
    ("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"":', b"}]")]
)
def test_depth_is_exact_at_its_limit(opening: bytes, closing: bytes) -> None:
    levels = len(opening.replace(b'"a":', b"").replace(b'"":', b""))
    middle = opening * 6 + b"0" + closing * 6
    depth = 6 * levels + 1
    assert jsonrpc.decode(call(middle), Limits(depth=depth))
    assert "nested deeper" in str(refusal(call(middle), Limits(depth=depth - 1)))


@pytest.mark.parametrize(
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
    assert jsonrpc.decode(call(inside), Limits(depth=depth))
    assert jsonrpc.excess(call(inside), depth - 1) == f"nested deeper than {depth - 1}"
    assert not jsonrpc.excess(call(inside), depth)
    assert not jsonrpc.excess(call(inside), depth + 60)


@pytest.mark.parametrize("depth", [65, 66, 1000, 2000, DEEP])
def test_depth_beyond_the_usual_limit_is_refused_however_deep(depth: int) -> None:
    assert jsonrpc.decode(nested(64))
    assert refusal(nested(depth)).fault is INVALID_REQUEST
    unread = b'{"jsonrpc":"2.0","method":"m","x":' + b"[" * depth + b"]" * depth + b"}"
    assert refusal(unread).fault is INVALID_REQUEST


def test_with_the_depth_limit_lifted_the_stack_is_still_safe() -> None:
    """Two readers follow one another, and each may come to the end of its stack first."""
    limits = Limits(depth=DEEP)
    shallow, deep = 64, DEEP
    while deep - shallow > 1:
        middle = (shallow + deep) // 2
        try:
            jsonrpc.decode(nested(middle), limits)
            shallow = middle
        except MalformedMessage:
            deep = middle
    # The white space at the end makes the second reader look.
    around = range(shallow - 8, shallow + 2)
    outcomes = {outcome(nested(depth, b'{"":', b"}") + b" ", limits) for depth in around}
    assert outcomes == {"read", "nested too deep"}


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_no_line_inside_a_frame_becomes_a_message_of_its_own(end: bytes) -> None:
    """Read line by line, the middle of these parameters would be a call that nobody judged."""
    hidden = b'{"jsonrpc":"2.0","id":7,"method":"tools/call"}'
    plain = call(b'{"a":' + end + hidden + end + b"}")
    stranger = b'{"jsonrpc":"2.0","method":"m","x":[' + end + hidden + end + b"]}"
    for data in (plain, stranger):
        assert not {*b"\r\n"} & {*again(data)}
        assert again(data).replace(b" ", b"") == data.replace(end, b"")


def test_the_ends_of_lines_around_a_frame_are_shed() -> None:
    data = b'\r\n{\n"jsonrpc" :\t"2.0","method":"m"}\n'
    assert again(data) == b'{"jsonrpc":"2.0","method":"m"}'


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    "data",
    [
        call(b'{"a":1,"a":2}'),
        call(b'[{"a":{"b":1,"b":2}}]') + b" ",
        b'{"jsonrpc":"2.0","method":"m","x":{"a":1,"a":2}}',
    ],
)
def test_a_repeated_key_that_nobody_reads_passes_as_it_stands(data: bytes) -> None:
    assert again(data) == data.strip()


@pytest.mark.parametrize(
    "name", ["Method", "ID", "paramS", "Result", "ERROR", "JsonRpc", "param\u017f", "re\u017fult"]
)
@pytest.mark.parametrize("escaped", [False, True])
def test_a_member_that_differs_only_in_case_is_refused(name: str, escaped: bool) -> None:
    spelling = "".join(f"\\u{ord(letter):04x}" for letter in name) if escaped else name
    data = f'{{"jsonrpc":"2.0","id":1,"method":"m","{spelling}":2}}'.encode()
    assert "shadows" in str(refusal(data))


def test_unknown_members_are_kept_beside_the_known_ones() -> None:
    data = b'{"jsonrpc":"2.0","id":1,"method":"m","trace_id":"t","members":{"a":[1]},"":0}'
    frame = jsonrpc.decode(data)
    assert type(frame) is FrameWithMembers
    assert set(frame.members) == {"trace_id", "members", ""}
    assert jsonrpc.encode(frame) == data
    assert again(jsonrpc.encode(frame)) == data


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"-Infinity", b"nan", b"-NaN"])
@pytest.mark.parametrize("place", [b"%b", b"[%b]", b'{"a":[{"b":%b}]}'])
def test_numbers_that_are_none_are_refused_at_any_depth(word: bytes, place: bytes) -> None:
    assert refusal(call(place % word)).fault is PARSE_ERROR
    assert refusal(under(word)).fault is PARSE_ERROR


@pytest.mark.parametrize("lone", LONE.values(), ids=LONE.keys())
@pytest.mark.parametrize(
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
    assert jsonrpc.decode(place % b"\\ud83d\\ude00")


@pytest.mark.parametrize("broken", [b"\xff", b"\xc3", b"\xc0\xaf", b"\xf5\x80\x80\x80", b"\x80"])
@pytest.mark.parametrize("place", [call(b'"%b"'), call(b'{"%b":1}'), under(b'"%b"')])
def test_broken_utf8_is_refused_read_or_unread(place: bytes, broken: bytes) -> None:
    assert refusal(place % broken).fault is PARSE_ERROR


@pytest.mark.parametrize(
    "control", [b"\x00", b"\x01", b"\n", b"\r", b"\t", b"\x1f", b"\\\n", b"\\x"]
)
@pytest.mark.parametrize("place", [call(b'"%b"'), call(b'{"%b":1}'), under(b'"%b"')])
def test_control_characters_inside_strings_are_refused(place: bytes, control: bytes) -> None:
    assert refusal(place % control).fault is PARSE_ERROR


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-16-be"])
def test_only_utf8_without_a_mark_is_read(encoding: str) -> None:
    assert refusal(under(b"1").decode().encode(encoding)).fault is PARSE_ERROR


@pytest.mark.parametrize("number", [b"1" * 40, b"1" * 9000, b"18446744073709551616", b"1e400"])
def test_a_number_of_any_size_passes_unread_and_exact(number: bytes) -> None:
    assert again(call(b'{"n":[%b]}' % number)) == call(b'{"n":[%b]}' % number)


def test_a_refusal_does_not_repeat_megabytes_of_what_it_refuses() -> None:
    long = b"x" * 1_000_000
    assert len(str(refusal(b'{"jsonrpc":"%b","method":"m"}' % long))) < 300
    assert len(str(refusal(b'{"jsonrpc":"2.0","id":[],"method":"%b"}' % long))) < 300


@pytest.mark.parametrize(
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
    assert jsonrpc.decode(call(inside), Limits(values=exact))
    refused = refusal(call(inside), Limits(values=exact - 1))
    assert str(refused) == f"more than {exact - 1} values"
    assert refused.fault is INVALID_REQUEST


def test_a_long_text_of_any_signs_is_one_value() -> None:
    for piece in (b",", b"{[", b'\\"', b"\\\\", b"1,2,3\\n", b'{\\"a\\":[1,2]},'):
        text = piece * (400_000 // len(piece))
        assert jsonrpc.decode(call(b'["%b"]' % text), Limits(values=10))


def test_escapes_are_bounded_too() -> None:
    most = 2**20
    assert jsonrpc.decode(call(b'"%b"' % (b"\\n" * most)))
    assert "escapes" in str(refusal(call(b'"%b"' % (b"\\n" * (most + 1)))))
