"""Chunks, progress and cancellation of MGP streaming."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from math import floor, isfinite
from typing import Final

import msgspec
from msgspec import Raw, Struct, UnsetType

from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.framing import BACKSLASH
from comity.mcp.jsonrpc import UNSET, Frame, Id
from comity.mcp.mgp import (
    EXTENSION_KEY,
    MgpExtension,
    declare_mgp,
    decode_statement,
    offer_extensions,
)
from comity.mcp.protocol import CLIENT_CAPABILITIES, PROGRESS

CHUNK: Final = "notifications/mgp.stream.chunk"
STREAM_PROGRESS: Final = "notifications/mgp.stream.progress"
CANCEL: Final = "mgp/stream/cancel"
STREAM_NOTIFICATIONS: Final = frozenset({CHUNK, STREAM_PROGRESS})
"""The notifications of a server that name a call by the id of its request."""

MEMBER: Final = "_mgp"
MIRROR: Final = EXTENSION_KEY
"""The member of `_meta` that repeats `_mgp`."""

NOT_ACTIVE: Final = "not_active"
MAX_CHUNK_BYTES: Final = 256 * 1024
MAX_NAME_LENGTH: Final = 256
MAX_CHUNKS: Final = 2**31
_EMPTY_OBJECT: Final = Raw(b"{}")


class StreamChunk(Struct):
    """One chunk of a result. `request_id` is the id of the call at the server."""

    request_id: int | str
    index: int
    content: dict[str, Raw]
    done: bool = False

    @property
    def text(self) -> str | None:
        """The text of the chunk, or None for other content."""
        return jsonrpc.decode_text(self.content.get("text")) if self.kind == "text" else None

    @property
    def kind(self) -> str | None:
        return jsonrpc.decode_text(self.content.get("type"))


class StreamProgress(Struct):
    """The progress of a call, from 0 to 1."""

    request_id: int | str
    progress: float
    message: str | None = None
    estimated_remaining_ms: float | None = None


class _StreamCancelParams(Struct):
    request_id: int | str
    reason: str | None = None


class _StreamRequestMeta(Struct):
    stream: bool = False
    stream_id: str | None = None


class _StreamRequestId(Struct):
    request_id: int | str


_chunk: Final = msgspec.json.Decoder(StreamChunk)
_progress: Final = msgspec.json.Decoder(StreamProgress)
_cancel: Final = msgspec.json.Decoder(_StreamCancelParams)
_asked: Final = msgspec.json.Decoder(_StreamRequestMeta)
_named: Final = msgspec.json.Decoder(_StreamRequestId)


def request_id_in(params: Raw | UnsetType) -> Id | None:
    """Return the request that a notification names, or None."""
    try:
        return None if params is UNSET else _named.decode(params).request_id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def chunk_in(params: Raw | UnsetType) -> StreamChunk:
    """Decode a chunk. Raises MalformedMessage."""
    if params is UNSET or len(params) > MAX_CHUNK_BYTES:
        raise MalformedMessage(f"a chunk has at most {MAX_CHUNK_BYTES} bytes", INVALID_PARAMS)
    found = _decode(_chunk, params)
    if not 0 <= found.index < MAX_CHUNKS:
        raise MalformedMessage("the index of a chunk begins at 0", INVALID_PARAMS)
    if found.kind is None or (found.kind == "text" and found.text is None):
        raise MalformedMessage("a chunk is a piece of content", INVALID_PARAMS)
    return found


def progress_in(params: Raw | UnsetType) -> StreamProgress:
    """Decode the progress of a call. Raises MalformedMessage."""
    if params is UNSET or len(params) > MAX_CHUNK_BYTES:
        raise MalformedMessage(f"progress has at most {MAX_CHUNK_BYTES} bytes", INVALID_PARAMS)
    return _decode(_progress, params)


def cancel_in(params: Raw | UnsetType) -> tuple[Id, str | None]:
    """Return the request to cancel and the reason. Raises MalformedMessage."""
    if params is UNSET:
        raise MalformedMessage("request_id is missing", INVALID_PARAMS)
    found = _decode(_cancel, params)
    return found.request_id, found.reason


def streaming_request_in(frame: Frame) -> tuple[bool, str | None]:
    """Return whether a request wants streaming, and the name for a later cancellation."""
    try:
        params = frame.parameters
        meta = jsonrpc.decode_members(params.get("_meta", _EMPTY_OBJECT))
        found = [_asked.decode(raw) for raw in (params.get(MEMBER), meta.get(MIRROR)) if raw]
    except (msgspec.DecodeError, UnicodeDecodeError, MalformedMessage):
        # A malformed member means no streaming.
        return False, None
    names = [each.stream_id for each in found if each.stream_id]
    named = names[0] if names and len(names[0]) <= MAX_NAME_LENGTH else None
    return any(each.stream for each in found), named


def mgp_members_in(result: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the MGP members of a result, from either place."""
    mirrored = _object(_object(result.get("_meta")).get(MIRROR))
    return {**mirrored, **_object(result.get(MEMBER))}


def with_mgp_members(result: Mapping[str, Raw], fields: Mapping[str, object]) -> dict[str, object]:
    """Return the result with these MGP members in both places."""
    meta = _object(result.get("_meta"))
    return {**result, MEMBER: fields, "_meta": {**meta, MIRROR: fields}}


def strip_stream_result(result: Mapping[str, Raw]) -> dict[str, object]:
    """Return the result with MCP members only."""
    plain: dict[str, object] = {name: raw for name, raw in result.items() if name != MEMBER}
    meta = {name: raw for name, raw in _object(result.get("_meta")).items() if name != MIRROR}
    plain.pop("_meta", None)
    return {**plain, "_meta": meta} if meta else plain


def chunk_notification(request_id: Id, index: int, content: object, *, done: bool = False) -> Frame:
    """Return the notification of a chunk. (MGP §12.4)"""
    told = {"request_id": request_id, "index": index, "content": content, "done": done}
    return jsonrpc.make_notification(CHUNK, told)


def progress_notification(
    request_id: Id, share: float, message: str | None = None, **more: object
) -> Frame:
    """Return the notification of progress. (MGP §12.6)"""
    told: dict[str, object] = {"request_id": request_id, "progress": share, **more}
    if message is not None:
        told["message"] = message
    return jsonrpc.make_notification(STREAM_PROGRESS, told)


def cancellation_result(content: list[object], *, truncated: bool = False) -> dict[str, object]:
    """Return the response to a cancellation that came in time. (MGP §12.7)"""
    more = {"truncated": True} if truncated else {}
    return {"cancelled": True, "partial_result": {"content": content, **more}}


def too_late() -> dict[str, object]:
    """Return the response to a cancellation of a call that has ended. (D-25)"""
    return {"cancelled": False, "reason": NOT_ACTIVE}


def _object(raw: Raw | None) -> dict[str, Raw]:
    """Return the members of an object, and none for any other value."""
    try:
        return {} if raw is None else jsonrpc.decode_members(raw)
    except MalformedMessage:
        return {}


def _decode[Shape](decoder: msgspec.json.Decoder[Shape], params: Raw) -> Shape:
    try:
        jsonrpc.decode_members(params)
        return decoder.decode(params)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"misshapen: {error!s:.200}", INVALID_PARAMS) from None


MAX_KEPT_BYTES: Final = 256 * 1024
MAX_KEPT_PIECES: Final = 4096
MAX_MESSAGE_LENGTH: Final = 4096
_CUT: Final = "…"
_PROGRESS_TOKEN: Final = "progressToken"  # noqa: S105 - the name of a member
_STREAM: Final = {"stream": True}
_OFFERED: Final = declare_mgp({}, offer_extensions({MgpExtension.STREAMING}))
_blocks: Final = msgspec.json.Decoder(list[dict[str, Raw]])


@dataclass(slots=True)
class ChunkBuffer:
    """The received chunks of one result."""

    heard: int = 0
    missing: int = 0
    late: int = 0
    truncated: bool = False
    _next: int = 0
    _is_done: bool = False
    _bytes: int = 0
    _kept: list[str | Mapping[str, Raw]] = field(default_factory=list[str | Mapping[str, Raw]])

    def add(self, chunk: StreamChunk) -> bool:
        """Add a chunk, and return whether to forward it. A chunk out of order is dropped."""
        if chunk.index < self._next or self._is_done:
            self.late += 1
            return False
        self.missing += chunk.index - self._next
        self._next = chunk.index + 1
        self._is_done = chunk.done
        self.heard += 1
        self._keep(chunk)
        return True

    def count_missing(self, sent: int | None) -> None:
        """Count missing chunks at the end, if the server said how many it sent."""
        if sent is not None and self._next < sent <= MAX_CHUNKS:
            self.missing += sent - self._next
            self._next = sent

    def content(self) -> list[object]:
        """Return the received content as the content of a result. Adjacent texts are joined."""
        joined: list[object] = []
        for is_text, pieces in groupby(self._kept, lambda piece: isinstance(piece, str)):
            if is_text:
                joined.append({"type": "text", "text": "".join(map(str, pieces))})
            else:
                joined.extend(pieces)
        return joined

    def differs_from(self, result: Mapping[str, Raw]) -> bool:
        """Return whether a complete set of chunks differs from the text of the response."""
        if self.missing or self.truncated or not self.heard:
            return False
        text = "".join(piece for piece in self._kept if isinstance(piece, str))
        return text != _text_of(result)

    def _keep(self, chunk: StreamChunk) -> None:
        text = chunk.text
        piece = chunk.content if text is None else text
        size = sum(map(len, chunk.content.values()))
        if len(self._kept) >= MAX_KEPT_PIECES or self._bytes + size > MAX_KEPT_BYTES:
            # Nothing after a gap is kept, so the kept content is always a prefix.
            self.truncated = True
        if not self.truncated:
            self._bytes += size
            self._kept.append(piece)


@dataclass(slots=True)
class ProgressCounter:
    """The progress of one call for a client of plain MCP. Every step is greater than the last."""

    token: Raw
    _last: float = -1.0
    _pieces: int = 0

    def chunk_progress(self, chunk: StreamChunk) -> Frame:
        """Return a chunk as a progress step with its text as the message."""
        self._pieces += 1
        return self._step(chunk.text or f"[{chunk.kind or 'content':.40}]")

    def share(self, progress: StreamProgress) -> Frame | None:
        """Return progress with a total of 1, or None if it does not increase."""
        share = min(max(progress.progress, 0.0), 1.0) if isfinite(progress.progress) else 0.0
        if self._pieces:
            return None if progress.message is None else self._step(progress.message)
        return self._progress(share, progress.message, total=1) if share > self._last else None

    def server_progress(self, params: Mapping[str, Raw]) -> Frame | None:
        """Return MCP progress of the server. It stays unchanged until chunks count as steps too."""
        value = _number(params.get("progress"))
        if self._pieces:
            message = jsonrpc.decode_text(params.get("message"))
            return None if message is None else self._step(message)
        self._last = max(self._last, value or 0.0)
        return jsonrpc.make_notification(PROGRESS, {**params, "progressToken": self.token})

    def _step(self, message: str) -> Frame:
        return self._progress(float(floor(max(self._last, 0.0)) + 1), message)

    def _progress(self, value: float, message: str | None, **more: object) -> Frame:
        self._last = value
        said = {} if message is None else {"message": shorten_message(message)}
        told = {"progressToken": self.token, "progress": value, **more, **said}
        return jsonrpc.make_notification(PROGRESS, told)


def token_in(params: Raw | UnsetType) -> Raw | None:
    """Return the progress token of a request. (MCP §4.4)"""
    written = b"" if params is UNSET else bytes(params)
    if params is UNSET or (_PROGRESS_TOKEN.encode() not in written and BACKSLASH not in written):
        return None
    try:
        return _meta_of(jsonrpc.decode_members(params)).get(_PROGRESS_TOKEN)
    except MalformedMessage:
        return None


def request_streaming(frame: Frame, token: str | None = None) -> Frame:
    """Return a call that requests streaming, and progress under this token.

    In the modern version each request declares its client. This one declares streaming.
    """
    params = frame.parameters
    meta: dict[str, object] = {**_meta_of(params)}
    if token is not None:
        meta.setdefault(_PROGRESS_TOKEN, token)
    capabilities = jsonrpc.decode_members(_meta_of(params).get(CLIENT_CAPABILITIES, _EMPTY_OBJECT))
    if CLIENT_CAPABILITIES in meta and decode_statement(jsonrpc.to_raw(capabilities)) is None:
        meta[CLIENT_CAPABILITIES] = {**capabilities, **_OFFERED}
    meta[MIRROR] = _STREAM
    said = {**params, MEMBER: _STREAM, "_meta": meta}
    return jsonrpc.with_params(frame, jsonrpc.to_raw(said))


def strip_stream_request(frame: Frame, token: str | None = None) -> Frame:
    """Return a call for a server without streaming, without the MGP members of its client."""
    params = frame.parameters
    meta: dict[str, object] = {**_meta_of(params)}
    is_silent = MEMBER not in params and MIRROR not in meta
    if is_silent and (token is None or _PROGRESS_TOKEN in meta):
        return frame
    meta.pop(MIRROR, None)
    if token is not None:
        meta.setdefault(_PROGRESS_TOKEN, token)
    plain: dict[str, object] = {**params}
    plain.pop(MEMBER, None)
    plain.pop("_meta", None)
    said = {**plain, "_meta": meta} if meta else plain
    return jsonrpc.with_params(frame, jsonrpc.to_raw(said))


def as_share(params: Mapping[str, Raw]) -> tuple[float, str | None]:
    """Return MCP progress as a share of 1. Without a total the share is unknown, and stays 0."""
    value, total = _number(params.get("progress")), _number(params.get("total"))
    message = jsonrpc.decode_text(params.get("message"))
    share = value / total if value is not None and total is not None and total > 0 else 0.0
    return min(max(share, 0.0), 1.0), None if message is None else shorten_message(message)


def shorten_message(message: str) -> str:
    """Return a message of bounded length."""
    return (
        message if len(message) <= MAX_MESSAGE_LENGTH else message[: MAX_MESSAGE_LENGTH - 1] + _CUT
    )


def count_in(fields: Mapping[str, Raw]) -> int | None:
    """Return how many chunks a server says it sent, or None."""
    found = jsonrpc.decode_scalar(fields.get("chunks_sent"))
    return found if type(found) is int and found >= 0 else None


def _meta_of(params: Mapping[str, Raw]) -> dict[str, Raw]:
    return jsonrpc.decode_members(params["_meta"]) if "_meta" in params else {}


def _number(raw: Raw | None) -> float | None:
    found = None if raw is None else jsonrpc.decode_value(raw)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        return float(found) if isfinite(found) else None
    except OverflowError:
        return None


def _text_of(result: Mapping[str, Raw]) -> str:
    try:
        blocks = _blocks.decode(result.get("content", b"[]"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return "".join(jsonrpc.decode_text(block.get("text")) or "" for block in blocks)
