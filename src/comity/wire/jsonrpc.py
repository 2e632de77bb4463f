"""JSON-RPC frames, decoded within limits and encoded again. (MCP §2)

Rule 1: what is judged is what is sent on. A frame is decoded and encoded again, never passed as
        bytes, so two readers cannot see two messages in it.
Rule 2: nobody's JSON library refuses duplicate keys, so they are found by arithmetic: encoding a
        decoded object never lengthens it, and only white space, escapes, unknown members and
        duplicates shorten it. Where the length is the same none of these is there, and the slow
        look is spared.
Rule 3: ids are compared by exact type and value; 1, 1.0, true and "1" are four things.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from comity.wire.errors import INTERNAL_ERROR, INVALID_REQUEST, Fault, MalformedMessage
from comity.wire.lines import BACKSLASH, NEWLINE, RETURN

type Id = int | str
type _Look = Callable[[list[tuple[str, object]]], dict[str, object]]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a stranger's message is read at all."""

    frame_bytes: int = 4 * 1024 * 1024
    depth: int = 64
    string_bytes: int = 4 * 1024 * 1024
    id_characters: int = 256
    method_characters: int = 256


LIMITS = Limits()
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
_error_decoder = msgspec.json.Decoder(ErrorBody)
_value_decoder = msgspec.json.Decoder(object)
# A fraction is written back as it stood: 1e3 would become 1000.0 and upset the sum of rule 2.
_as_written_decoder = msgspec.json.Decoder(object, float_hook=Raw)
_KNOWN = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})

to_json = _encoder.encode


def decode(data: bytes, limits: Limits = LIMITS) -> Frame:
    """Read one frame; everything a hostile peer can do to JSON ends here."""
    size = len(data)
    if size > limits.frame_bytes:
        raise MalformedMessage(f"message over {limits.frame_bytes} bytes", INVALID_REQUEST)
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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
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
    try:
        found = _members_decoder.decode(raw)
        if len(_encoder.encode(found)) != len(raw):
            _refuse_duplicates(bytes(raw), _tell_repeated)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedMessage("expected an object", INVALID_REQUEST) from None
    return found


def params_of(frame: Frame) -> dict[str, Raw]:
    """The members of a frame's parameters; none where it has none."""
    return frame.parameters


def value(raw: Raw | bytes) -> object:
    """A raw member decoded whole; a repeated key is refused at every level.

    Integers stay exact, up to the 4,300 digits that the interpreter converts in bounded time.
    """
    try:
        found = _value_decoder.decode(raw)
        if type(found) in (dict, list):
            as_written = _encoder.encode(_as_written_decoder.decode(raw))
            if len(as_written) != len(raw):
                _refuse_duplicates(bytes(raw), _refuse_repeated)
        return found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedMessage("not valid JSON", INVALID_REQUEST) from None


def text(raw: Raw | bytes | None) -> str | None:
    """A raw member that should be a string, or None where it is something else."""
    found = None if raw is None else value(raw)
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
    if frame.error is UNSET:
        return None
    try:
        value(frame.error)
        return _error_decoder.decode(frame.error)
    except (msgspec.DecodeError, MalformedMessage):
        return ErrorBody(INTERNAL_ERROR.code, "the peer sent an error of no known shape")


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


def deeper_than(depth: int, data: bytes) -> bool:
    """Whether brackets nest deeper in valid JSON; each pass peels one level, in C."""
    plain = _ESCAPES.sub(b"", data) if BACKSLASH in data else data
    # Two quotes side by side hold no bracket: most strings are gone before the slower look.
    quoted = plain.translate(_ONE_BRACKET, _NOT_STRUCTURE).replace(b'""', b"")
    brackets = _STRINGS.sub(b"", quoted)
    for _ in range(depth):
        if not brackets:
            return False
        brackets = brackets.replace(b"{}", b"")
    return bool(brackets)


_BEGINS_AS_ANSWER = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"result"'
)
_ONE_BRACKET = bytes.maketrans(b"[]", b"{}")
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'{}[]"'))
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_ESCAPES = re.compile(rb"\\.")
_STRINGS = re.compile(rb'"[^"]*"')


def _check_bulk(data: bytes, limits: Limits) -> None:
    if data.count(b"{") + data.count(b"[") > limits.depth and deeper_than(limits.depth, data):
        raise MalformedMessage(f"nested deeper than {limits.depth}", INVALID_REQUEST)
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
    _refuse_duplicates(data, _tell_repeated)
    found = _members_decoder.decode(data)
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


def _refuse_duplicates(data: bytes, look: _Look) -> None:
    """Refuse a repeated key at this level; deeper ones are refused when somebody reads them."""
    try:
        found = json.loads(data, object_pairs_hook=look, parse_int=str, parse_float=str)
    except RecursionError:
        raise MalformedMessage("nested too deep", INVALID_REQUEST) from None
    if isinstance(found, _Repeated):
        raise MalformedMessage("a key is repeated in an object", INVALID_REQUEST)


class _Repeated(dict[str, object]):
    """An object in which a key stood twice."""


def _tell_repeated(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Repeated(found)


def _refuse_repeated(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = _tell_repeated(pairs)
    if isinstance(found, _Repeated):
        raise MalformedMessage("a key is repeated in an object", INVALID_REQUEST)
    return found


def _check_strings(data: bytes, limit: int) -> None:
    plain = _ESCAPES.sub(b"__", data)
    if any(len(found.group()) - 2 > limit for found in _STRINGS.finditer(plain)):
        raise MalformedMessage(f"a string over {limit} bytes", INVALID_REQUEST)


def _wrong_shape(data: bytes, because: str) -> str:
    if data.lstrip()[:1] == b"[":
        return "batches are not part of MCP; send one message"
    # The reason may quote the peer, who may have written megabytes where "2.0" belongs.
    return f"not a JSON-RPC 2.0 message: {because:.200}"
