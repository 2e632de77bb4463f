"""JSON-RPC frames, decoded within limits and encoded again. (MCP §2)

Rule 1: what is judged is what is sent on. A frame is decoded and encoded again, never passed as
        bytes, so two readers cannot see two messages in it.
Rule 2: nobody's JSON library refuses duplicate keys, so they are found by arithmetic: encoding a
        decoded object never lengthens it, and only white space, escapes, unknown members and
        duplicates shorten it. Where the length is the same none of these is there, and the slow
        look is spared. In a value decoded whole, the colons outside strings are counted instead.
Rule 3: ids are compared by exact type and value; 1, 1.0, true and "1" are four things.
Rule 4: a message is bounded in work before anything of it is built: in its bytes, its values, its
        depth and its escapes. So no message holds the event loop for longer than its bytes do.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from math import isinf
from typing import Literal, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from comity.wire.errors import INTERNAL_ERROR, INVALID_REQUEST, Fault, MalformedMessage
from comity.wire.lines import BEGINNING, NEWLINE, RETURN

type Id = int | str


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a stranger's message is read at all."""

    frame_bytes: int = 4 * 1024 * 1024
    depth: int = 64
    values: int = 50_000
    string_bytes: int = 4 * 1024 * 1024
    id_characters: int = 256
    method_characters: int = 256


LIMITS = Limits()
"""Of what servers say. Its values are counted in 15 ms, and few of them are ever built."""

FROM_CLIENTS = Limits(values=20_000)
"""Arguments are built, examined and written down: 20,000 values take 50 ms, all in all."""

LARGEST_ID = 2**53


class Frame(Struct, omit_defaults=True, dict=True):
    """One JSON-RPC message; what nobody here reads stays raw."""

    jsonrpc: Literal["2.0"]
    id: int | str | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET

    @cached_property
    def parameters(self) -> dict[str, Raw]:
        """The members of `params`; several look at them on the way, and nobody changes them."""
        return {} if self.params is UNSET else members(self.params)

    @cached_property
    def problem(self) -> "ErrorBody | None":
        """The error that a response carries, decoded once; nobody changes it."""
        return None if self.error is UNSET else _error_in(self.error)


class FrameWithMembers(Frame, omit_defaults=True, dict=True):
    """A frame with top-level members that JSON-RPC does not know; they are kept. (MGP §6.5)"""

    members: dict[str, Raw] = {}


class _Broken(Struct):
    id: int | str | None = None
    method: Raw | UnsetType = UNSET


class ErrorBody(Struct, omit_defaults=True):
    """The `error` member of a response."""

    code: int
    message: str
    data: object = UNSET


_encoder = msgspec.json.Encoder()
_frame_decoder = msgspec.json.Decoder(Frame)
_broken_decoder = msgspec.json.Decoder(_Broken)
_members_decoder = msgspec.json.Decoder(dict[str, Raw])
_value_decoder = msgspec.json.Decoder(object)
_KNOWN = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})

to_json = _encoder.encode


def decode(data: bytes, limits: Limits = LIMITS) -> Frame:
    """Read one frame; everything a hostile peer can do to JSON ends here."""
    size = len(data)
    if size > limits.frame_bytes:
        raise MalformedMessage(f"message over {limits.frame_bytes} bytes", INVALID_REQUEST)
    if size > _BEGINNING and _values_in(data[:_BEGINNING]) > limits.values:
        # Most that holds too much need not be read to its end.
        raise MalformedMessage(_too_many(limits.values), INVALID_REQUEST)
    frame = _parse(data)
    _check_shape(frame, limits)
    # Each level takes two brackets, so a short message cannot be deep.
    if size > 2 * limits.depth or size > limits.string_bytes:
        _check_bulk(data, limits)
    if len(_encoder.encode(frame)) != size or NEWLINE in data or RETURN in data:
        return _look_closer(data)
    return frame


def answers(data: bytes) -> Id | None:
    """Which question a refused message was meant to answer, where that much can be read."""
    try:
        broken = _broken_decoder.decode(data)
    except RecursionError:
        return answers_from(data[:BEGINNING])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return broken.id if broken.method is UNSET else None


def answers_from(beginning: bytes) -> int | None:
    """The same from the beginning of a message that is too long to be read."""
    found = _BEGINS_AS_ANSWER.match(beginning)
    return int(found[1]) if found is not None else None


def _parse(data: bytes) -> Frame:
    try:
        # msgspec checks UTF-8 in what it decodes but not in what it leaves raw.
        if not data.isascii():
            data.decode()
        return _frame_decoder.decode(data)
    except msgspec.ValidationError as error:
        raise MalformedMessage(_wrong_shape(data, str(error)), INVALID_REQUEST) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise MalformedMessage("not valid JSON") from None
    except RecursionError:
        raise MalformedMessage("nested too deep", INVALID_REQUEST) from None


def encode(frame: Frame) -> bytes:
    """The frame as compact JSON on one line."""
    if type(frame) is FrameWithMembers:
        plain = _members_decoder.decode(_encoder.encode(frame))
        plain.pop("members", None)
        return _encoder.encode(plain | frame.members)
    return _encoder.encode(frame)


def members(raw: Raw | bytes) -> dict[str, Raw]:
    """The members of an object, each still raw; a repeated key is refused."""
    if len(raw) <= _LONG_VALUE:
        return _members(raw)
    latest, found = _latest.read
    if latest is not raw:
        found = _members(raw)
        _latest.read = raw, found
    return {**found}


class _Latest:
    """The long object whose members were read last: several readers ask for them in turn."""

    read: tuple[Raw | bytes, dict[str, Raw]] = (b"", {})


_latest = _Latest()


def _members(raw: Raw | bytes) -> dict[str, Raw]:
    try:
        found = _members_decoder.decode(raw)
        if len(found) > _MOST_MEMBERS:
            raise MalformedMessage(f"more than {_MOST_MEMBERS} members", INVALID_REQUEST)
        if len(_encoder.encode(found)) != len(raw):
            bytes(raw).decode()
            if len(_pairs_decoder.decode(raw)) > len(found):
                raise _repeated()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedMessage("expected an object", INVALID_REQUEST) from None
    return found


def params_of(frame: Frame) -> dict[str, Raw]:
    """The members of a frame's parameters; none where it has none."""
    return frame.parameters


def value(raw: Raw | bytes) -> object:
    """A raw member decoded whole; a repeated key is refused at every level.

    Integers stay exact, up to the 4,300 digits that the interpreter converts in bounded time; in
    a long value up to 100, because the time that many of them take grows with their square.
    """
    data = bytes(raw)
    try:
        if len(data) <= _LONG_VALUE:
            found = _value_decoder.decode(data)
        elif _holds_a_long_number(data):
            raise MalformedMessage("a number is too long to be read", INVALID_REQUEST)
        else:
            found = shaped(data, object)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedMessage("not valid JSON", INVALID_REQUEST) from None
    if type(found) in (dict, list):
        named = _members_in(found)
        if data.count(b":") != named and _outside_strings(data).count(b":") != named:
            raise _repeated()
    return found


def shaped[T](raw: Raw | bytes, shape: type[T]) -> T:
    """A raw member decoded to a shape of what a stranger may say; raises msgspec's DecodeError."""
    return _decoder_of(shape).decode(raw)


@cache
def _decoder_of[T](shape: type[T]) -> msgspec.json.Decoder[T]:
    # msgspec takes 15 us for a fraction near the end of what a double holds, and Python one.
    return msgspec.json.Decoder(shape, float_hook=_fraction)


def _fraction(written: str) -> float:
    found = float(written)
    if isinf(found):
        raise msgspec.ValidationError("a number is out of range")
    return found


def scalar(raw: Raw | bytes | None) -> object:
    """A raw member that should be a string or a number; None where it is an object or a list."""
    return None if raw is None or _begins(raw) in b"{[" else value(raw)


def text(raw: Raw | bytes | None) -> str | None:
    """A raw member that should be a string, or None where it is something else."""
    found = None if raw is None or _begins(raw) != b'"' else value(raw)
    return found if isinstance(found, str) else None


def to_raw(anything: object) -> Raw:
    """A value as a raw member."""
    return Raw(_encoder.encode(anything))


def request(request_id: Id, method: str, params: object = UNSET) -> Frame:
    """A question that expects an answer under `id`."""
    return Frame("2.0", request_id, method, UNSET if params is UNSET else to_raw(params))


def notification(method: str, params: object = UNSET) -> Frame:
    """A message that expects no answer."""
    return Frame("2.0", UNSET, method, UNSET if params is UNSET else to_raw(params))


def result(request_id: Id | None, body: object) -> Frame:
    """The answer that something worked."""
    return Frame("2.0", request_id, result=to_raw(body))


def failure(
    request_id: Id | None, fault: Fault, message: str, data: Mapping[str, object] | None = None
) -> Frame:
    """The answer that something did not; `data` always names the kind of error."""
    told = {"error_type": fault.error_type, "reason": message, **(data or {})}
    body = ErrorBody(fault.code, message, told)
    return Frame("2.0", request_id, error=to_raw(body))


def error_of(frame: Frame) -> ErrorBody | None:
    """The error a response carries, or None; a misshapen one reads as an internal error."""
    return frame.problem


def _error_in(raw: Raw) -> ErrorBody:
    try:
        if _begins(raw) == b"{":
            return _beginning_of(raw) if len(raw) > _LONG_ERROR else _whole(raw)
    except (msgspec.ValidationError, MalformedMessage):
        pass
    return ErrorBody(INTERNAL_ERROR.code, "the peer sent an error of no known shape")


def _whole(raw: Raw) -> ErrorBody:
    return msgspec.convert(value(raw), ErrorBody)


def _beginning_of(raw: Raw) -> ErrorBody:
    """Of a long error only what every error has: nobody here reads such data."""
    found = members(raw)
    said = text(found.get("message"))
    cut = None if said is None else said[:_LONGEST_MESSAGE]
    return msgspec.convert({"code": scalar(found.get("code")), "message": cut}, ErrorBody)


def with_id(frame: Frame, request_id: Id) -> Frame:
    """The same frame under another id."""
    if type(frame) is FrameWithMembers:
        return msgspec.structs.replace(frame, id=request_id)
    return Frame("2.0", request_id, frame.method, frame.params, frame.result, frame.error)


def with_params(frame: Frame, params: Raw) -> Frame:
    """The same frame with other parameters."""
    return msgspec.structs.replace(frame, params=params)


def is_request(frame: Frame) -> bool:
    return frame.method is not UNSET and frame.id is not UNSET


def is_notification(frame: Frame) -> bool:
    return frame.method is not UNSET and frame.id is UNSET


def is_response(frame: Frame) -> bool:
    return frame.method is UNSET


def excess(data: bytes, depth: int, values: int = FROM_CLIENTS.values) -> str:
    """What valid JSON has too much of, in words: levels, values or escapes; empty where nothing.

    Nothing is built before this is known, and it takes as long as a look at each byte does.
    """
    if len(data) > _MOST_ESCAPES and data.count(b"\\") > _MOST_ESCAPES:
        return f"more than {_MOST_ESCAPES} escapes"
    opened = data.count(b"{") + data.count(b"[")
    if opened <= depth and (len(data) <= values or opened + data.count(b",") <= values):
        return ""
    # Strings may hold brackets and commas, so only those outside of them are counted now. Each
    # value has at most two strings, its name and itself; so it is known before they are cut out.
    plain = _plain(data)
    if plain.count(b'"') > 4 * values:
        return _too_many(values)
    outside = _without_strings(plain)
    opened = outside.count(b"{") + outside.count(b"[")
    if opened + outside.count(b",") > values:
        return _too_many(values)
    return f"nested deeper than {depth}" if opened > depth and _depth(outside) > depth else ""


def _values_in(beginning: bytes) -> int:
    """How many values begin in the beginning of a message."""
    outside = _outside_strings(beginning)
    return outside.count(b"{") + outside.count(b"[") + outside.count(b",")


def _too_many(values: int) -> str:
    return f"more than {values} values"


def _depth(outside: bytes) -> int:
    """How deep brackets nest that stand outside of strings."""
    brackets = outside.translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)))


def _plain(data: bytes) -> bytes:
    """Valid JSON without what could be taken for the end of a string and is none."""
    if b'\\"' not in data:
        return data
    return data.replace(b"\\\\", b"").replace(b'\\"', b"")


def _outside_strings(data: bytes) -> bytes:
    """All of valid JSON that stands in no string."""
    return _without_strings(_plain(data))


def _without_strings(plain: bytes) -> bytes:
    return b"".join(plain.split(b'"')[::2])


def _members_in(found: object) -> int:
    """How many members the objects of a value have together."""
    count, left = 0, [found]
    while left:
        each = left.pop()
        if type(each) is dict:
            values = cast("dict[str, object]", each).values()
            count += len(values)
            left += values
        elif type(each) is list:
            left += cast("list[object]", each)
    return count


def _holds_a_long_number(data: bytes) -> bool:
    if _LONG_NUMBER not in data.translate(_ONE_DIGIT):
        return False
    return _LONG_NUMBER in _outside_strings(data).translate(_ONE_DIGIT)


def _begins(raw: Raw | bytes) -> bytes:
    """The first byte of a value, which tells of what kind it is."""
    first = bytes(memoryview(raw)[:1])
    return bytes(raw).lstrip()[:1] if first.isspace() else first


_BEGINS_AS_ANSWER = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"result"'
)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_STEPS = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_ONE_DIGIT = bytes.maketrans(b"0123456789", b"0" * 10)
_LONG_NUMBER = b"0" * 101
_LONG_VALUE = 32 * 1024
_LONG_ERROR = 64 * 1024
_LONGEST_MESSAGE = 8192
_MOST_MEMBERS = 10_000
_BEGINNING = 256 * 1024
_MOST_ESCAPES = 1024 * 1024
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_ESCAPES = re.compile(rb"\\.")
_STRINGS = re.compile(rb'"[^"]*"')


def _check_bulk(data: bytes, limits: Limits) -> None:
    if because := excess(data, limits.depth, limits.values):
        raise MalformedMessage(because, INVALID_REQUEST)
    if len(data) > limits.string_bytes:
        _check_strings(data, limits.string_bytes)


def _check_shape(frame: Frame, limits: Limits) -> None:
    if frame.method is UNSET:
        _check_answer(frame)
    elif frame.result is not UNSET or frame.error is not UNSET:
        raise MalformedMessage("a question and an answer at once", INVALID_REQUEST)
    elif frame.id is None:
        raise MalformedMessage("the id of a request is a string or an integer", INVALID_REQUEST)
    elif len(frame.method) > limits.method_characters:
        raise MalformedMessage("the method's name is too long", INVALID_REQUEST)
    if type(frame.id) is int:
        if not -LARGEST_ID <= frame.id <= LARGEST_ID:
            raise MalformedMessage("an id beyond 2^53, where readers disagree", INVALID_REQUEST)
    elif type(frame.id) is str and len(frame.id) > limits.id_characters:
        raise MalformedMessage("the id is too long", INVALID_REQUEST)


def _check_answer(frame: Frame) -> None:
    if (frame.result is UNSET) == (frame.error is UNSET):
        raise MalformedMessage("neither a request nor one answer", INVALID_REQUEST)
    if frame.id is UNSET or (frame.id is None and frame.error is UNSET):
        raise MalformedMessage("an answer without an id", INVALID_REQUEST)


def _look_closer(data: bytes) -> Frame:
    """The rare way: white space, escapes, unknown members, duplicates; only these are refused."""
    # What stays raw keeps its white space, and on stdio the end of a line ends a message: a line
    # inside the parameters would be a message of its own, which nobody had judged.
    data = data.translate(_ONE_LINE)
    found = members(data)
    unknown = {name: raw for name, raw in found.items() if name not in _KNOWN}
    for name in unknown:
        if name.casefold() in _KNOWN:
            # A reader that ignores case would see another message (CVE-2026-27896); to such a
            # reader the long s of "param\u017f" is an s as well, which lower() does not know.
            raise MalformedMessage(f"member {name!r} shadows a JSON-RPC member", INVALID_REQUEST)
    frame = _frame_decoder.decode(data)
    if not unknown:
        return frame
    return FrameWithMembers(
        "2.0", frame.id, frame.method, frame.params, frame.result, frame.error, unknown
    )


class _Key:
    """A key that equals no other, so that an object keeps all of its members."""

    __slots__ = ()


def _repeated() -> MalformedMessage:
    return MalformedMessage("a key is repeated in an object", INVALID_REQUEST)


_pairs_decoder = msgspec.json.Decoder(dict[_Key, Raw], dec_hook=lambda _, __: _Key())


def _check_strings(data: bytes, limit: int) -> None:
    plain = _ESCAPES.sub(b"__", data)
    if any(len(found.group()) - 2 > limit for found in _STRINGS.finditer(plain)):
        raise MalformedMessage(f"a string over {limit} bytes", INVALID_REQUEST)


def _wrong_shape(data: bytes, because: str) -> str:
    if data.lstrip()[:1] == b"[":
        return "batches are not part of MCP; send one message"
    # The reason may quote the peer, who may have written megabytes where "2.0" belongs.
    return f"not a JSON-RPC 2.0 message: {because:.200}"
