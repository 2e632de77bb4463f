"""Partial results, progress and cancellation of a call, in MGP's words. (MGP §12, D-24 to D-26)

What a request or a result says beside MCP stands in `_mgp`; because SDKs drop members that they do
not know, it is repeated in `_meta` under a key of ours, and read from either place.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw, Struct, UnsetType

from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame, Id
from comity.wire.negotiation import EXTENSION_KEY

CHUNK: Final = "notifications/mgp.stream.chunk"
STREAM_PROGRESS: Final = "notifications/mgp.stream.progress"
CANCEL: Final = "mgp/stream/cancel"
TOLD: Final = frozenset({CHUNK, STREAM_PROGRESS})
"""What a server tells of a call, which it names by its request's id."""

MEMBER: Final = "_mgp"
MIRROR: Final = EXTENSION_KEY
"""Where `_meta` repeats what `_mgp` says."""

NOT_ACTIVE: Final = "not_active"
LARGEST_CHUNK: Final = 256 * 1024
LONGEST_NAME: Final = 256
MOST_CHUNKS: Final = 2**31
_NOTHING: Final = Raw(b"{}")


class Chunk(Struct):
    """One piece of a result; `request_id` is the id that the server knows the call by."""

    request_id: int | str
    index: int
    content: dict[str, Raw]
    done: bool = False

    @property
    def text(self) -> str | None:
        """What it says, where it is text."""
        return jsonrpc.text(self.content.get("text")) if self.kind == "text" else None

    @property
    def kind(self) -> str | None:
        return jsonrpc.text(self.content.get("type"))


class Progress(Struct):
    """How far a call is, from 0 to 1."""

    request_id: int | str
    progress: float
    message: str | None = None
    estimated_remaining_ms: float | None = None


class _Cancel(Struct):
    request_id: int | str
    reason: str | None = None


class _Asked(Struct):
    stream: bool = False
    stream_id: str | None = None


class _Named(Struct):
    request_id: int | str


_chunk: Final = msgspec.json.Decoder(Chunk)
_progress: Final = msgspec.json.Decoder(Progress)
_cancel: Final = msgspec.json.Decoder(_Cancel)
_asked: Final = msgspec.json.Decoder(_Asked)
_named: Final = msgspec.json.Decoder(_Named)


def named_in(params: Raw | UnsetType) -> Id | None:
    """The request that a notice names; None where it names none."""
    try:
        return None if params is UNSET else _named.decode(params).request_id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def chunk_in(params: Raw | UnsetType) -> Chunk:
    """The piece that these parameters are. Raises MalformedMessage."""
    if params is UNSET or len(params) > LARGEST_CHUNK:
        raise MalformedMessage(f"a chunk has at most {LARGEST_CHUNK} bytes", INVALID_PARAMS)
    found = _decoded(_chunk, params)
    if not 0 <= found.index < MOST_CHUNKS:
        raise MalformedMessage("the index of a chunk begins at 0", INVALID_PARAMS)
    if found.kind is None or (found.kind == "text" and found.text is None):
        raise MalformedMessage("a chunk is a piece of content", INVALID_PARAMS)
    return found


def progress_in(params: Raw | UnsetType) -> Progress:
    """How far these parameters say that a call is. Raises MalformedMessage."""
    if params is UNSET or len(params) > LARGEST_CHUNK:
        raise MalformedMessage(f"progress has at most {LARGEST_CHUNK} bytes", INVALID_PARAMS)
    return _decoded(_progress, params)


def cancel_in(params: Raw | UnsetType) -> tuple[Id, str | None]:
    """Which request is to be cancelled, and why. Raises MalformedMessage."""
    if params is UNSET:
        raise MalformedMessage("request_id is missing", INVALID_PARAMS)
    found = _decoded(_cancel, params)
    return found.request_id, found.reason


def asked_in(frame: Frame) -> tuple[bool, str | None]:
    """Whether a request asks to be streamed, and by which name it can be cancelled later."""
    try:
        params = jsonrpc.params_of(frame)
        meta = jsonrpc.members(params.get("_meta", _NOTHING))
        found = [_asked.decode(raw) for raw in (params.get(MEMBER), meta.get(MIRROR)) if raw]
    except (msgspec.DecodeError, UnicodeDecodeError, MalformedMessage):
        # Whatever it was, it is no wish that anybody here understands.
        return False, None
    names = [each.stream_id for each in found if each.stream_id]
    named = names[0] if names and len(names[0]) <= LONGEST_NAME else None
    return any(each.stream for each in found), named


def said_in(result: Mapping[str, Raw]) -> dict[str, Raw]:
    """What a result says beside MCP, in either place."""
    mirrored = _object(_object(result.get("_meta")).get(MIRROR))
    return {**mirrored, **_object(result.get(MEMBER))}


def with_said(result: Mapping[str, Raw], said: Mapping[str, object]) -> dict[str, object]:
    """The same result, saying this in both places."""
    meta = _object(result.get("_meta"))
    return {**result, MEMBER: said, "_meta": {**meta, MIRROR: said}}


def unsaid(result: Mapping[str, Raw]) -> dict[str, object]:
    """The same result with nothing but what MCP knows."""
    plain: dict[str, object] = {name: raw for name, raw in result.items() if name != MEMBER}
    meta = {name: raw for name, raw in _object(result.get("_meta")).items() if name != MIRROR}
    plain.pop("_meta", None)
    return {**plain, "_meta": meta} if meta else plain


def chunk(request_id: Id, index: int, content: object, *, done: bool = False) -> Frame:
    """A piece of a result on its way to whoever asked for it. (MGP §12.4)"""
    told = {"request_id": request_id, "index": index, "content": content, "done": done}
    return jsonrpc.notification(CHUNK, told)


def progress(request_id: Id, share: float, message: str | None = None, **more: object) -> Frame:
    """How far a call is, for whoever made it. (MGP §12.6)"""
    told: dict[str, object] = {"request_id": request_id, "progress": share, **more}
    if message is not None:
        told["message"] = message
    return jsonrpc.notification(STREAM_PROGRESS, told)


def cancelled(content: list[object], *, truncated: bool = False) -> dict[str, object]:
    """The answer to a cancellation that came in time. (MGP §12.7)"""
    more = {"truncated": True} if truncated else {}
    return {"cancelled": True, "partial_result": {"content": content, **more}}


def too_late() -> dict[str, object]:
    """The answer where there is nothing to cancel any more. (D-25)"""
    return {"cancelled": False, "reason": NOT_ACTIVE}


def _object(raw: Raw | None) -> dict[str, Raw]:
    """The members of what should be an object; of anything else there are none."""
    try:
        return {} if raw is None else jsonrpc.members(raw)
    except MalformedMessage:
        return {}


def _decoded[Shape](decoder: msgspec.json.Decoder[Shape], params: Raw) -> Shape:
    try:
        jsonrpc.members(params)
        return decoder.decode(params)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"misshapen: {error!s:.200}", INVALID_PARAMS) from None
