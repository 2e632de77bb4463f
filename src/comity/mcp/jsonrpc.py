"""JSON-RPC messages: decoding within limits, and encoding."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from math import isinf
from typing import Any, ClassVar, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from comity.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    INVALID_TOOL_ARGS,
    Fault,
    MalformedMessage,
)
from comity.mcp.framing import BEGINNING, NEWLINE, RETURN

type Id = int | str


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits on an untrusted message."""

    frame_bytes: int = 4 * 1024 * 1024
    depth: int = 64
    values: int = 50_000
    string_bytes: int = 4 * 1024 * 1024
    id_characters: int = 256
    method_characters: int = 256


LIMITS = FrameLimits()
"""Limits for messages of servers. Counting the values takes 15 ms, and few are ever decoded."""

FROM_CLIENTS = FrameLimits(values=20_000)
"""Limits for messages of clients.

Arguments are decoded, validated and recorded: 20,000 values take 50 ms for all steps.
"""

MAX_ID_BYTES = 2**53


class ToolCallParams(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The parameters of a tool call that has no others."""

    name: str
    arguments: Raw | UnsetType = UNSET
    meta: Raw | UnsetType = msgspec.field(default=UNSET, name="_meta")


class _ToolCall(Struct, omit_defaults=True, forbid_unknown_fields=True):
    jsonrpc: Literal["2.0"]
    id: int | str
    method: Literal["tools/call"]
    params: ToolCallParams


class Frame(Struct, omit_defaults=True, dict=True):
    """One JSON-RPC message. Members that Comity does not read stay raw."""

    # The parameters of a plain tool call, which were decoded together with the frame.
    tool: ClassVar[ToolCallParams | None] = None
    # The compact encoding, if it is known, and where its id ends.
    encoded: ClassVar[bytes | None] = None
    id_end: ClassVar[int] = 0

    jsonrpc: Literal["2.0"]
    id: int | str | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET

    @cached_property
    def parameters(self) -> dict[str, Raw]:
        """The members of `params`, decoded once. Several readers share them; do not change them."""
        return {} if self.params is UNSET else decode_members(self.params)

    @cached_property
    def arguments(self) -> dict[str, object]:
        """The arguments of a tool call, decoded once. Missing arguments are an empty object.

        Several readers share them; do not change them. Raises MalformedMessage if they are not an
        object.
        """
        raw = self.parameters.get("arguments", UNSET) if self.tool is None else self.tool.arguments
        found: object = {} if raw is UNSET else decode_value(raw)
        if not isinstance(found, dict):
            raise MalformedMessage("arguments must be an object", INVALID_TOOL_ARGS)
        return found  # pyright: ignore[reportUnknownVariableType]  # JSON: any values

    @cached_property
    def problem(self) -> "ErrorBody | None":
        """The error of a response, decoded once. Several readers share it; do not change it."""
        return None if self.error is UNSET else _error_in(self.error)


class ExtendedFrame(Frame, omit_defaults=True, dict=True):
    """A frame with unknown top-level members, which are kept. (MGP §6.5)"""

    members: dict[str, Raw] = {}


class _BrokenFrame(Struct):
    id: int | str | None = None
    method: Raw | UnsetType = UNSET


class ErrorBody(Struct, omit_defaults=True):
    """The `error` member of a response."""

    code: int
    message: str
    data: object = UNSET


_encoder = msgspec.json.Encoder()
_frame_decoder = msgspec.json.Decoder(Frame)
_tool_call_decoder = msgspec.json.Decoder(_ToolCall)
_broken_decoder = msgspec.json.Decoder(_BrokenFrame)
_members_decoder = msgspec.json.Decoder(dict[str, Raw])
_value_decoder = msgspec.json.Decoder(object)
_text_decoder = msgspec.json.Decoder(str)
_KNOWN_MEMBERS = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})

to_json = _encoder.encode


def decode_frame(data: bytes, limits: FrameLimits = LIMITS) -> Frame:
    """Decode one untrusted frame. Raises MalformedMessage for every violation of the limits."""
    size = len(data)
    if size > limits.frame_bytes:
        raise MalformedMessage(f"message over {limits.frame_bytes} bytes", INVALID_REQUEST)
    if size > _BEGINNING and _values_in(data[:_BEGINNING]) > limits.values:
        # Most oversize messages are refused before they are read to their end.
        raise MalformedMessage(_too_many(limits.values), INVALID_REQUEST)
    frame = _tool_call_in(data, limits) if _TOOL_CALL in data else None
    if frame is None:
        frame = _parse(data)
        _check_shape(frame, limits)
    # Each level takes two brackets, so a short message cannot be deep; and most messages hold fewer
    # brackets than they may have levels. `count` looks at each byte, and `replace` leaps from one
    # bracket to the next: a tenth of the time in a long text. Its limit bounds what it does.
    is_long, most = size > limits.values or size > limits.string_bytes, limits.depth + 1
    if is_long or (
        size > 2 * limits.depth
        and size - len(data.replace(b"{", b"", most).replace(b"[", b"", most)) > limits.depth
    ):
        _check_bulk(data, limits)
    if frame.encoded is not None:
        return frame
    encoded = _encoder.encode(frame)
    # The same length means that no member is repeated or unknown.
    if len(encoded) != size or NEWLINE in data or RETURN in data:
        return _look_closer(data)
    if frame.id is not UNSET and frame.id is not None:
        # A text may end in a comma, so only the encoding of the id itself shows where it ends.
        length = len(_encoder.encode(frame.id)) if type(frame.id) is str else 0
        id_end = len(_ID) + length if length else encoded.index(b",", len(_ID))
        members = vars(frame)
        members["encoded"], members["id_end"] = encoded, id_end
    return frame


_ID: Final = b'{"jsonrpc":"2.0","id":'
_TOOL_CALL: Final = b'"method":"tools/call"'
_PARAMS: Final = b',"method":"tools/call","params":'


def _tool_call_in(data: bytes, limits: FrameLimits) -> Frame | None:
    """Decode a tool call with its parameters at once. Returns None for any unusual form.

    Its encoding is as long as the message, so no member is repeated at either level. The encoding
    can be sent in place of the message.
    """
    try:
        if not data.isascii():
            data.decode()
        found = _tool_call_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    id, encoded = found.id, _encoder.encode(found)
    if len(encoded) != len(data) or NEWLINE in data or RETURN in data:
        return None
    if abs(id) > MAX_ID_BYTES if isinstance(id, int) else len(id) > limits.id_characters:
        return None
    return _from_tool_call(id, found.params, encoded)


def _from_tool_call(id: Id, tool: ToolCallParams, encoded: bytes) -> Frame:
    # A quote inside of a string has a backslash before it, so this is not part of the id.
    id_end = encoded.index(_PARAMS)
    frame = Frame("2.0", id, "tools/call", Raw(encoded[id_end + len(_PARAMS) : -1]))
    members = vars(frame)
    members["tool"], members["encoded"], members["id_end"] = tool, encoded, id_end
    return frame


def answered_id(data: bytes) -> Id | None:
    """Return the id of the request that a refused message answers, if it can be read."""
    try:
        broken = _broken_decoder.decode(data)
    except RecursionError:
        return answers_from(data[:BEGINNING])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return broken.id if broken.method is UNSET else None


def answers_from(beginning: bytes) -> int | None:
    """Return the same from the beginning of a message that is too long."""
    found = _BEGINS_AS_ANSWER.match(beginning)
    return int(found[1]) if found is not None else None


def _parse(data: bytes) -> Frame:
    try:
        # msgspec checks UTF-8 in values that it decodes, but not in raw ones.
        if not data.isascii():
            data.decode()
        return _frame_decoder.decode(data)
    except msgspec.ValidationError as error:
        raise MalformedMessage(_wrong_shape(data, str(error)), INVALID_REQUEST) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise MalformedMessage("not valid JSON") from None
    except RecursionError:
        raise MalformedMessage("nested too deep", INVALID_REQUEST) from None


def encode_frame(frame: Frame) -> bytes:
    """Encode the frame as compact JSON on one line."""
    if frame.encoded is not None:
        return frame.encoded
    if type(frame) is ExtendedFrame:
        plain = _members_decoder.decode(_encoder.encode(frame))
        plain.pop("members", None)
        return _encoder.encode(plain | frame.members)
    return _encoder.encode(frame)


def decode_members(raw: Raw | bytes) -> dict[str, Raw]:
    """Return the raw members of an object. Raises MalformedMessage for a repeated key."""
    if len(raw) <= _LONG_VALUE_BYTES:
        return _members(raw)
    latest, found = _latest.read
    if latest is not raw:
        found = _members(raw)
        _latest.read = raw, found
    return {**found}


class _LatestMembers:
    """Caches the members of the last long object, because several readers need them in turn."""

    read: tuple[Raw | bytes, dict[str, Raw]] = (b"", {})


_latest = _LatestMembers()


def _members(raw: Raw | bytes) -> dict[str, Raw]:
    try:
        found = _members_decoder.decode(raw)
        if len(found) > _MAX_MEMBERS:
            raise MalformedMessage(f"more than {_MAX_MEMBERS} members", INVALID_REQUEST)
        if len(_encoder.encode(found)) != len(raw):
            bytes(raw).decode()
            if len(_pairs_decoder.decode(raw)) > len(found):
                raise _repeated_key_error()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedMessage("expected an object", INVALID_REQUEST) from None
    return found


def decode_value(raw: Raw | bytes) -> object:
    """Decode a raw member completely. Raises MalformedMessage for a repeated key at any level.

    Integers stay exact up to the 4,300 digits that the interpreter converts in bounded time. In a
    long value the limit is 100 digits, because the time for many of them grows with their square.
    """
    data = bytes(raw)
    found: Any
    try:
        if len(data) <= _LONG_VALUE_BYTES:
            found = _value_decoder.decode(data)
        elif _holds_a_long_number(data):
            raise MalformedMessage("a number is too long to be read", INVALID_REQUEST)
        else:
            found = decode_shape(data, object)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedMessage("not valid JSON", INVALID_REQUEST) from None
    if type(found) in (dict, list):
        # An object without a brace behind its own holds no other. Most arguments are such ones.
        is_alone = found.__class__ is dict and data.find(b"{", 1) < 0
        named = len(found) if is_alone else _members_in(found)
        colons = len(data) - len(data.replace(b":", b"", named + 1))
        if colons != named and _outside_strings(data).count(b":") != named:
            raise _repeated_key_error()
    return found


def decode_shape[T](raw: Raw | bytes, shape: type[T]) -> T:
    """Decode an untrusted raw member into a type. Raises DecodeError of msgspec."""
    return _decoder_of(shape).decode(raw)


@cache
def _decoder_of[T](shape: type[T]) -> msgspec.json.Decoder[T]:
    # For a fraction near the limits of a double, msgspec takes 15 us and Python takes one.
    return msgspec.json.Decoder(shape, float_hook=_fraction)


def _fraction(text: str) -> float:
    found = float(text)
    if isinf(found):
        raise msgspec.ValidationError("a number is out of range")
    return found


def decode_scalar(raw: Raw | bytes | None) -> object:
    """Decode a raw string or number. Returns None for an object or a list."""
    return None if raw is None or _begins(raw) in b"{[" else decode_value(raw)


def decode_text(raw: Raw | bytes | None) -> str | None:
    """Decode a raw string. Returns None for any other value."""
    if raw is None:
        return None
    try:
        return _text_decoder.decode(raw)
    except msgspec.ValidationError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError):
        if _begins(raw) != b'"':
            return None
        raise MalformedMessage("not valid JSON", INVALID_REQUEST) from None


def to_raw(value: object) -> Raw:
    """Encode a value as a raw member."""
    return Raw(_encoder.encode(value))


def make_request(request_id: Id, method: str, params: object = UNSET) -> Frame:
    """Return a request with this id."""
    return Frame("2.0", request_id, method, UNSET if params is UNSET else to_raw(params))


def make_notification(method: str, params: object = UNSET) -> Frame:
    """Return a notification."""
    return Frame("2.0", UNSET, method, UNSET if params is UNSET else to_raw(params))


def make_result(request_id: Id | None, body: object) -> Frame:
    """Return a successful response."""
    return Frame("2.0", request_id, result=to_raw(body))


def make_error(
    request_id: Id | None, fault: Fault, message: str, data: Mapping[str, object] | None = None
) -> Frame:
    """Return an error response. Its `data` always names the kind of error."""
    told = {"error_type": fault.error_type, "reason": message, **(data or {})}
    body = ErrorBody(fault.code, message, told)
    return Frame("2.0", request_id, error=to_raw(body))


def error_of(frame: Frame) -> ErrorBody | None:
    """Return the error of a response, or None. A malformed one becomes an internal error."""
    return frame.problem


def _error_in(raw: Raw) -> ErrorBody:
    try:
        if _begins(raw) == b"{":
            return _decode_long_error(raw) if len(raw) > _LONG_ERROR_BYTES else _decode_error(raw)
    except (msgspec.ValidationError, MalformedMessage):
        pass
    return ErrorBody(INTERNAL_ERROR.code, "the peer sent an error of no known shape")


def _decode_error(raw: Raw) -> ErrorBody:
    return msgspec.convert(decode_value(raw), ErrorBody)


def _decode_long_error(raw: Raw) -> ErrorBody:
    """Decode only the standard members of a long error, because Comity does not read its data."""
    found = decode_members(raw)
    said = decode_text(found.get("message"))
    cut = None if said is None else said[:_MAX_MESSAGE_LENGTH]
    return msgspec.convert({"code": decode_scalar(found.get("code")), "message": cut}, ErrorBody)


def with_id(frame: Frame, request_id: Id) -> Frame:
    """Return the frame with another id."""
    if type(frame) is ExtendedFrame:
        return msgspec.structs.replace(frame, id=request_id)
    other = Frame("2.0", request_id, frame.method, frame.params, frame.result, frame.error)
    if frame.encoded is not None:
        id = b"%d" % request_id if type(request_id) is int else _encoder.encode(request_id)
        rest = frame.encoded[frame.id_end :]
        members = vars(other)
        members["tool"], members["id_end"] = frame.tool, len(_ID) + len(id)
        members["encoded"] = b"%b%b%b" % (_ID, id, rest)
    return other


def with_tool_name(frame: Frame, name: str) -> Frame:
    """Return a tool call that names another tool."""
    tool = frame.tool
    if tool is None or frame.id is UNSET or frame.id is None:
        return with_params(frame, to_raw({**frame.parameters, "name": name}))
    return make_tool_call(frame.id, ToolCallParams(name, tool.arguments, tool.meta))


def make_tool_call(request_id: Id, tool: ToolCallParams) -> Frame:
    """Return a tool call with these parameters."""
    encoded = _encoder.encode(_ToolCall("2.0", request_id, "tools/call", tool))
    return _from_tool_call(request_id, tool, encoded)


def with_params(frame: Frame, params: Raw) -> Frame:
    """Return the frame with other parameters."""
    return msgspec.structs.replace(frame, params=params)


def is_request(frame: Frame) -> bool:
    return frame.method is not UNSET and frame.id is not UNSET


def is_notification(frame: Frame) -> bool:
    return frame.method is not UNSET and frame.id is UNSET


def is_response(frame: Frame) -> bool:
    return frame.method is UNSET


def excess_reason(data: bytes, depth: int, values: int = FROM_CLIENTS.values) -> str:
    """Return which limit valid JSON exceeds: levels, values or escapes. Empty if none.

    The check decodes nothing and takes linear time in the number of bytes.
    """
    if len(data) > _MAX_ESCAPES and data.count(b"\\") > _MAX_ESCAPES:
        return f"more than {_MAX_ESCAPES} escapes"
    # Where one limit is reached, what follows counts again.
    size, most = len(data), depth + 1
    opened = size - len(data.replace(b"{", b"", most).replace(b"[", b"", most))
    if opened <= depth and (
        size <= values or opened + size - len(data.replace(b",", b"", values + 1)) <= values
    ):
        return ""
    # Strings may hold brackets and commas, so this removes them before it counts. Each value has at
    # most two strings, its name and itself, so their number is bounded before the removal.
    plain = _plain(data)
    if plain.count(b'"') > 4 * values:
        return _too_many(values)
    outside = _without_strings(plain)
    opened = outside.count(b"{") + outside.count(b"[")
    if opened + outside.count(b",") > values:
        return _too_many(values)
    return f"nested deeper than {depth}" if opened > depth and _depth(outside) > depth else ""


def _values_in(beginning: bytes) -> int:
    """Return how many values begin in the beginning of a message."""
    outside = _outside_strings(beginning)
    return outside.count(b"{") + outside.count(b"[") + outside.count(b",")


def _too_many(values: int) -> str:
    return f"more than {values} values"


def _depth(outside: bytes) -> int:
    """Return the nesting depth of brackets outside of strings."""
    brackets = outside.translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)))


def _plain(data: bytes) -> bytes:
    """Return valid JSON without the escapes that look like the end of a string."""
    if b'\\"' not in data:
        return data
    return data.replace(b"\\\\", b"").replace(b'\\"', b"")


def _outside_strings(data: bytes) -> bytes:
    """Return the parts of valid JSON outside of strings."""
    return _without_strings(_plain(data))


def _without_strings(plain: bytes) -> bytes:
    return b"".join(plain.split(b'"')[::2])


def _members_in(value: object) -> int:
    """Return the total number of members in all objects of a value."""
    # `Any`, because a cast costs a call for each value.
    count, left = 0, list[Any]((value,))
    while left:
        each = left.pop()
        if each.__class__ is dict:
            count += len(each)
            left += each.values()
        elif each.__class__ is list:
            left += each
    return count


def _holds_a_long_number(data: bytes) -> bool:
    if _LONG_NUMBER not in data.translate(_ONE_DIGIT):
        return False
    return _LONG_NUMBER in _outside_strings(data).translate(_ONE_DIGIT)


def _begins(raw: Raw | bytes) -> bytes:
    """Return the first byte of a value, which shows its JSON type."""
    first = bytes(memoryview(raw)[:1])
    return bytes(raw).lstrip()[:1] if first.isspace() else first


_BEGINS_AS_ANSWER = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"result"'
)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_STEPS = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_ONE_DIGIT = bytes.maketrans(b"0123456789", b"0" * 10)
_LONG_NUMBER = b"0" * 101
_LONG_VALUE_BYTES = 32 * 1024
_LONG_ERROR_BYTES = 64 * 1024
_MAX_MESSAGE_LENGTH = 8192
_MAX_MEMBERS = 10_000
_BEGINNING = 256 * 1024
_MAX_ESCAPES = 1024 * 1024
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_ESCAPES = re.compile(rb"\\.")
_STRINGS = re.compile(rb'"[^"]*"')


def _check_bulk(data: bytes, limits: FrameLimits) -> None:
    if reason := excess_reason(data, limits.depth, limits.values):
        raise MalformedMessage(reason, INVALID_REQUEST)
    if len(data) > limits.string_bytes:
        _check_strings(data, limits.string_bytes)


def _check_shape(frame: Frame, limits: FrameLimits) -> None:
    if frame.method is UNSET:
        if (frame.result is UNSET) == (frame.error is UNSET):
            raise MalformedMessage("neither a request nor one answer", INVALID_REQUEST)
        if frame.id is UNSET or (frame.id is None and frame.error is UNSET):
            raise MalformedMessage("an answer without an id", INVALID_REQUEST)
    elif frame.result is not UNSET or frame.error is not UNSET:
        raise MalformedMessage("a question and an answer at once", INVALID_REQUEST)
    elif frame.id is None:
        raise MalformedMessage("the id of a request is a string or an integer", INVALID_REQUEST)
    elif len(frame.method) > limits.method_characters:
        raise MalformedMessage("the method's name is too long", INVALID_REQUEST)
    if type(frame.id) is int:
        if not -MAX_ID_BYTES <= frame.id <= MAX_ID_BYTES:
            raise MalformedMessage("an id beyond 2^53, where readers disagree", INVALID_REQUEST)
    elif type(frame.id) is str and len(frame.id) > limits.id_characters:
        raise MalformedMessage("the id is too long", INVALID_REQUEST)


def _look_closer(data: bytes) -> Frame:
    """Decode a frame with white space, escapes or unknown members. Raises for duplicate members."""
    # Raw values keep their white space, and on stdio a newline ends a message. A newline inside the
    # parameters would start another message that passed no check.
    data = data.translate(_ONE_LINE)
    found = decode_members(data)
    unknown = {name: raw for name, raw in found.items() if name not in _KNOWN_MEMBERS}
    for name in unknown:
        if name.casefold() in _KNOWN_MEMBERS:
            # A reader that ignores case would see another message (CVE-2026-27896). For such a
            # reader the long s of "param\u017f" is an s too, which lower() does not fold.
            raise MalformedMessage(f"member {name!r} shadows a JSON-RPC member", INVALID_REQUEST)
    frame = _frame_decoder.decode(data)
    if not unknown:
        return frame
    return ExtendedFrame(
        "2.0", frame.id, frame.method, frame.params, frame.result, frame.error, unknown
    )


class _UniqueKey:
    """A key that equals no other, so that a dict keeps duplicate members."""

    __slots__ = ()


def _repeated_key_error() -> MalformedMessage:
    return MalformedMessage("a key is repeated in an object", INVALID_REQUEST)


_pairs_decoder = msgspec.json.Decoder(dict[_UniqueKey, Raw], dec_hook=lambda _, __: _UniqueKey())


def _check_strings(data: bytes, limit: int) -> None:
    plain = _ESCAPES.sub(b"__", data)
    if any(len(found.group()) - 2 > limit for found in _STRINGS.finditer(plain)):
        raise MalformedMessage(f"a string over {limit} bytes", INVALID_REQUEST)


def _wrong_shape(data: bytes, reason: str) -> str:
    if data.lstrip()[:1] == b"[":
        return "batches are not part of MCP; send one message"
    # The reason may quote the peer, which may have sent megabytes in place of "2.0".
    return f"not a JSON-RPC 2.0 message: {reason:.200}"
