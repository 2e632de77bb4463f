"""The parts of a frame, read one by one, and the frames that Comity writes itself."""

import json
from typing import cast

import msgspec
import pytest
from hypothesis import given
from msgspec import UNSET, Raw

from comity.wire import jsonrpc
from comity.wire.errors import INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, MalformedMessage
from comity.wire.jsonrpc import ErrorBody, Frame, FrameWithMembers
from tests.wire import json_texts
from tests.wire.json_texts import Written, read_loosely, unhurried

DEEP = 100_000


def plain(found: dict[str, Raw]) -> dict[str, bytes]:
    return {name: bytes(raw) for name, raw in found.items()}


def with_error(error: bytes) -> Frame:
    return jsonrpc.decode(b'{"jsonrpc":"2.0","id":1,"error":%b}' % error)


@pytest.mark.parametrize("data", [b'{"a":1,"b":{"c":[ ]}}', b' { "a" :1 ,"\\u0062":{"c":[ ]}} '])
def test_members_are_given_raw_under_their_decoded_names(data: bytes) -> None:
    assert plain(jsonrpc.members(data)) == {"a": b"1", "b": b'{"c":[ ]}'}
    assert plain(jsonrpc.members(Raw(data))) == {"a": b"1", "b": b'{"c":[ ]}'}


@pytest.mark.parametrize(
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
        jsonrpc.members(data)
    assert caught.value.fault is INVALID_REQUEST


def test_a_repeated_key_below_the_members_is_left_to_whoever_reads_it() -> None:
    found = jsonrpc.members(b'{ "a" : {"b":1,"b":2} }')
    assert bytes(found["a"]) == b'{"b":1,"b":2}'
    with pytest.raises(MalformedMessage, match="repeated"):
        jsonrpc.members(found["a"])


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[1]", b"null", b'"a"', b"1", b"{", b'{"a":NaN}', b'{"a":"\\ud800"}'),
        *(b'{"\xff":1}', b'{ "a":"\xff"}', b'{"a":' + b"[" * DEEP + b"]" * DEEP + b"}"),
    ],
)
def test_what_has_no_members_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage) as caught:
        jsonrpc.members(data)
    assert caught.value.fault is INVALID_REQUEST


@unhurried
@given(json_texts.objects)
def test_members_are_refused_exactly_if_a_key_is_repeated_among_them(written: Written) -> None:
    if written.repeated_here:
        with pytest.raises(MalformedMessage, match="repeated"):
            jsonrpc.members(written.data)
    else:
        found = jsonrpc.members(written.data)
        read = {name: read_loosely(bytes(raw)) for name, raw in found.items()}
        assert read == read_loosely(written.data)


@unhurried
@given(json_texts.objects)
def test_encoding_an_object_never_lengthens_it_and_repetition_shortens_it(written: Written) -> None:
    """The arithmetic of rule 2, with the library alone."""
    found = msgspec.json.decode(written.data, type=dict[str, Raw])
    encoded = msgspec.json.encode(found)
    assert len(encoded) <= len(written.data)
    assert not (len(encoded) == len(written.data) and written.repeated_here)


@unhurried
@given(json_texts.frames())
def test_encoding_a_frame_never_lengthens_it_and_repetition_shortens_it(written: Written) -> None:
    try:
        encoded = msgspec.json.encode(msgspec.json.decode(written.data, type=Frame))
    except msgspec.ValidationError:
        return
    assert len(encoded) <= len(written.data)
    assert not (len(encoded) == len(written.data) and written.repeated_here)


@unhurried
@given(json_texts.frames())
def test_a_frame_is_decoded_only_without_repetition_and_loses_nothing(written: Written) -> None:
    try:
        frame = jsonrpc.decode(written.data)
    except MalformedMessage:
        return
    assert not written.repeated_here
    encoded = jsonrpc.encode(frame)
    assert len(encoded) <= len(written.data)
    assert not {*b"\r\n"} & {*encoded}
    assert read_loosely(encoded) == read_loosely(written.data)
    assert jsonrpc.encode(jsonrpc.decode(encoded)) == encoded


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        *((b"1", 1), (b"1.0", 1.0), (b"true", True), (b"null", None), (b'"\\u0061"', "a")),
        *((b"18446744073709551616", 2**64), (b"-9223372036854775809", -(2**63) - 1)),
        *((b"1" * 4300, int("1" * 4300)), (b' [1e3, {"a":[0]}] ', [1000.0, {"a": [0]}])),
        *((b'{"a":{"b":[1.10,1e-7]}}', {"a": {"b": [1.1, 1e-7]}}),),
    ],
)
def test_a_value_is_read_whole_and_integers_stay_exact(data: bytes, expected: object) -> None:
    assert jsonrpc.value(data) == expected
    assert type(jsonrpc.value(Raw(data))) is type(expected)


@pytest.mark.parametrize(
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
        jsonrpc.value(data)
    assert caught.value.fault is INVALID_REQUEST


@unhurried
@given(json_texts.values)
def test_a_value_is_refused_exactly_if_a_key_is_repeated_anywhere(written: Written) -> None:
    if written.repeated:
        with pytest.raises(MalformedMessage, match="repeated"):
            jsonrpc.value(written.data)
    else:
        assert jsonrpc.value(written.data) == json.loads(written.text)


def test_text_is_a_string_or_nothing() -> None:
    assert jsonrpc.text(Raw(b'"a\\u0062"')) == "ab"
    assert jsonrpc.text(Raw(b"1")) is None
    assert jsonrpc.text(None) is None


@pytest.mark.parametrize(
    ("frame", "data"),
    [
        (jsonrpc.request(1, "m"), b'{"jsonrpc":"2.0","id":1,"method":"m"}'),
        (
            jsonrpc.request("a", "m", {"x": [1]}),
            b'{"jsonrpc":"2.0","id":"a","method":"m","params":{"x":[1]}}',
        ),
        (jsonrpc.notification("m"), b'{"jsonrpc":"2.0","method":"m"}'),
        (jsonrpc.notification("m", {}), b'{"jsonrpc":"2.0","method":"m","params":{}}'),
        (jsonrpc.result(1, None), b'{"jsonrpc":"2.0","id":1,"result":null}'),
    ],
)
def test_frames_of_our_own_are_written_plainly(frame: Frame, data: bytes) -> None:
    assert jsonrpc.encode(frame) == data
    assert jsonrpc.decode(data) == frame


def test_a_failure_always_names_its_kind_and_reason() -> None:
    frame = jsonrpc.failure(None, METHOD_NOT_FOUND, "no such thing", {"hint": "look"})
    error = jsonrpc.error_of(jsonrpc.decode(jsonrpc.encode(frame)))
    told = {"error_type": "method_not_found", "reason": "no such thing", "hint": "look"}
    assert error == ErrorBody(-32601, "no such thing", told)
    bare = jsonrpc.error_of(jsonrpc.failure(1, METHOD_NOT_FOUND, "no"))
    assert bare == ErrorBody(-32601, "no", {"error_type": "method_not_found", "reason": "no"})


def test_an_answer_that_worked_carries_no_error() -> None:
    assert jsonrpc.error_of(jsonrpc.result(1, {})) is None


def test_an_error_is_read_with_what_is_unknown_left_aside() -> None:
    frame = with_error(b'{"code":-1,"message":"m","data":[1],"more":2}')
    assert jsonrpc.error_of(frame) == ErrorBody(-1, "m", [1])
    assert jsonrpc.error_of(with_error(b'{"code":-1,"message":"m"}')) == ErrorBody(-1, "m", UNSET)


@pytest.mark.parametrize(
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
    frame = jsonrpc.request(1, "m", {"x": 1})
    assert jsonrpc.with_id(frame, "b") == jsonrpc.request("b", "m", {"x": 1})
    assert jsonrpc.with_params(frame, Raw(b"[]")) == jsonrpc.request(1, "m", [])
    answer = with_error(b'{"code":1,"message":"m"}')
    assert jsonrpc.with_id(answer, 9).error == answer.error


def test_unknown_members_survive_another_id_and_other_parameters() -> None:
    frame = jsonrpc.decode(b'{"jsonrpc":"2.0","id":1,"method":"m","trace":"t"}')
    changed = jsonrpc.with_params(jsonrpc.with_id(frame, "b"), Raw(b"{}"))
    expected = b'{"jsonrpc":"2.0","id":"b","method":"m","params":{},"trace":"t"}'
    assert jsonrpc.encode(changed) == expected


def test_a_frame_with_room_for_unknown_members_needs_none() -> None:
    assert jsonrpc.encode(FrameWithMembers("2.0", method="m")) == b'{"jsonrpc":"2.0","method":"m"}'


@pytest.mark.parametrize(
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
    assert jsonrpc.answers(data) == answered


@pytest.mark.parametrize("raw", [b'[{"a":1,"a":1}]', b'{"a":NaN}', b"[" * DEEP, b"1", b"null", b""])
def test_what_is_no_string_is_not_decoded_to_see_that(raw: bytes) -> None:
    """None of them could be: each would raise."""
    assert jsonrpc.text(raw) is None
    assert jsonrpc.text(b' "a"') == "a"


@pytest.mark.parametrize("raw", [b'[{"a":1,"a":1}]', b'{"a":NaN}', b" [" * DEEP, None])
def test_what_holds_others_is_no_scalar(raw: bytes | None) -> None:
    assert jsonrpc.scalar(raw) is None
    assert [jsonrpc.scalar(each) for each in (b"1", b'"1"', b"true")] == [1, "1", True]


def test_in_a_long_value_a_number_is_short() -> None:
    """One of thousands of digits is read, but not hundreds of them."""
    texts = b'"' + b"1" * 5000 + b'",' + b'"x",' * 20_000
    assert jsonrpc.value(b"[" + texts + b"1" * 100 + b"]")
    with pytest.raises(MalformedMessage, match="number is too long"):
        jsonrpc.value(b"[" + texts + b"1" * 101 + b"]")


def test_an_error_is_decoded_once_for_all_who_look_at_it() -> None:
    frame = with_error(b'{"code":1,"message":"no","data":{"a":[1]}}')
    assert jsonrpc.error_of(frame) is jsonrpc.error_of(frame)
    assert jsonrpc.error_of(frame) == ErrorBody(1, "no", {"a": [1]})


def test_what_one_reader_does_with_the_members_of_a_long_object_no_other_sees() -> None:
    raw = Raw(b'{"a":1,"b":"' + b"x" * 100_000 + b'"}')
    jsonrpc.members(raw).pop("b")
    assert jsonrpc.members(raw).keys() == {"a", "b"}
    other = Raw(b'{"c":1,"b":"' + b"x" * 100_000 + b'"}')
    assert jsonrpc.members(other).keys() == {"c", "b"}
    assert jsonrpc.members(raw).keys() == {"a", "b"}


def test_an_object_with_more_members_than_anybody_writes_is_refused() -> None:
    names = b",".join(b'"%d":1' % number for number in range(10_000))
    assert len(jsonrpc.members(b"{" + names + b"}")) == 10_000
    with pytest.raises(MalformedMessage, match="more than 10000 members"):
        jsonrpc.members(b"{" + names + b',"x":1}')


def test_a_fraction_is_the_same_in_a_long_value() -> None:
    written = [b"0.1", b"4.9406564584124654e-324", b"1.7976931348623157e308", b"-0.0", b"1e3"]
    long = b"[" + b",".join(written) + b',"' + b"x" * 100_000 + b'"]'
    short = b"[" + b",".join(written) + b"]"
    *found, _ = cast("list[object]", jsonrpc.value(long))
    assert repr(found) == repr(jsonrpc.value(short))
    with pytest.raises(MalformedMessage):
        jsonrpc.value(long[:-1] + b",1e400]")


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
