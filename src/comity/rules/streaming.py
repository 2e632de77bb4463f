"""What has come of a call before its end: pieces in order, progress that only grows. (MGP §12)

Rule 1: pieces go on in the order of their index, which begins at 0. One that comes twice, or too
        late, is dropped; one that never came is counted as missing, and the rest goes on.
Rule 2: the answer at the end counts, whatever the pieces were.
Rule 3: of the pieces the beginning is kept for whoever cancels, up to a bound; the rest is told as
        truncated.
Rule 4: MCP's progress grows with each word (MCP §4.4); MGP's is a share of 1. Pieces that are told
        to a client of plain MCP are steps of 1. (D-26)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from math import floor, isfinite
from typing import Final

import msgspec
from msgspec import Raw, UnsetType

from comity.rules.negotiation import offer
from comity.wire import jsonrpc, streaming
from comity.wire.errors import MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.lines import BACKSLASH
from comity.wire.mcp import CLIENT_CAPABILITIES, PROGRESS
from comity.wire.negotiation import Extension, declare, stated
from comity.wire.streaming import Chunk, Progress

MOST_KEPT_BYTES: Final = 256 * 1024
MOST_KEPT_PIECES: Final = 4096
LONGEST_MESSAGE: Final = 4096
_CUT: Final = "…"
_PROGRESS_BY: Final = "progressToken"
_NOTHING: Final = Raw(b"{}")
_STREAM: Final = {"stream": True}
_OFFERED: Final = declare({}, offer({Extension.STREAMING}))
_blocks: Final = msgspec.json.Decoder(list[dict[str, Raw]])


@dataclass(slots=True)
class Pieces:
    """The pieces of one result, as far as they have come."""

    heard: int = 0
    missing: int = 0
    late: int = 0
    truncated: bool = False
    _next: int = 0
    _is_done: bool = False
    _bytes: int = 0
    _kept: list[str | Mapping[str, Raw]] = field(default_factory=list[str | Mapping[str, Raw]])

    def take(self, chunk: Chunk) -> bool:
        """Whether this piece goes on; one that is out of its order does not."""
        if chunk.index < self._next or self._is_done:
            self.late += 1
            return False
        self.missing += chunk.index - self._next
        self._next = chunk.index + 1
        self._is_done = chunk.done
        self.heard += 1
        self._keep(chunk)
        return True

    def ended(self, sent: int | None) -> None:
        """The answer is there: the server may have said how many pieces there were."""
        if sent is not None and self._next < sent <= streaming.MOST_CHUNKS:
            self.missing += sent - self._next
            self._next = sent

    def content(self) -> list[object]:
        """What has come so far, as the content of a result; texts in a row are one."""
        joined: list[object] = []
        for is_text, pieces in groupby(self._kept, lambda piece: isinstance(piece, str)):
            if is_text:
                joined.append({"type": "text", "text": "".join(map(str, pieces))})
            else:
                joined.extend(pieces)
        return joined

    def differs_from(self, result: Mapping[str, Raw]) -> bool:
        """Whether whole pieces say something else than the text of the answer."""
        if self.missing or self.truncated or not self.heard:
            return False
        text = "".join(piece for piece in self._kept if isinstance(piece, str))
        return text != _text_of(result)

    def _keep(self, chunk: Chunk) -> None:
        text = chunk.text
        piece = chunk.content if text is None else text
        size = sum(map(len, chunk.content.values()))
        if len(self._kept) >= MOST_KEPT_PIECES or self._bytes + size > MOST_KEPT_BYTES:
            # Nothing after a hole is kept: what is, is the beginning.
            self.truncated = True
        if not self.truncated:
            self._bytes += size
            self._kept.append(piece)


@dataclass(slots=True)
class Ladder:
    """The progress that a client of MCP hears of one call; each step is above the one before."""

    token: Raw
    _last: float = -1.0
    _pieces: int = 0

    def piece(self, chunk: Chunk) -> Frame:
        """A piece, told as a step that has its text for a message."""
        self._pieces += 1
        return self._step(chunk.text or f"[{chunk.kind or 'content':.40}]")

    def share(self, told: Progress) -> Frame | None:
        """A share of 1; None where it is no step forward."""
        share = min(max(told.progress, 0.0), 1.0) if isfinite(told.progress) else 0.0
        if self._pieces:
            return None if told.message is None else self._step(told.message)
        return self._tell(share, told.message, total=1) if share > self._last else None

    def own(self, params: Mapping[str, Raw]) -> Frame | None:
        """What the server itself says in MCP's words: as it is, until pieces are steps as well."""
        value = _number(params.get("progress"))
        if self._pieces:
            message = jsonrpc.text(params.get("message"))
            return None if message is None else self._step(message)
        self._last = max(self._last, value or 0.0)
        return jsonrpc.notification(PROGRESS, {**params, "progressToken": self.token})

    def _step(self, message: str) -> Frame:
        return self._tell(float(floor(max(self._last, 0.0)) + 1), message)

    def _tell(self, value: float, message: str | None, **more: object) -> Frame:
        self._last = value
        said = {} if message is None else {"message": cut(message)}
        told = {"progressToken": self.token, "progress": value, **more, **said}
        return jsonrpc.notification(PROGRESS, told)


def token_in(params: Raw | UnsetType) -> Raw | None:
    """The token under which a request wants to hear of its progress. (MCP §4.4)"""
    written = b"" if params is UNSET else bytes(params)
    if params is UNSET or (_PROGRESS_BY.encode() not in written and BACKSLASH not in written):
        return None
    try:
        return _meta_of(jsonrpc.members(params)).get(_PROGRESS_BY)
    except MalformedMessage:
        return None


def asking(frame: Frame, token: str | None = None) -> Frame:
    """A call that asks its server to stream, and to tell of its progress under this token.

    In the modern era each request says what its client can do: this one can hear pieces.
    """
    params = jsonrpc.params_of(frame)
    meta: dict[str, object] = {**_meta_of(params)}
    if token is not None:
        meta.setdefault(_PROGRESS_BY, token)
    capabilities = jsonrpc.members(_meta_of(params).get(CLIENT_CAPABILITIES, _NOTHING))
    if CLIENT_CAPABILITIES in meta and stated(jsonrpc.to_raw(capabilities)) is None:
        meta[CLIENT_CAPABILITIES] = {**capabilities, **_OFFERED}
    meta[streaming.MIRROR] = _STREAM
    said = {**params, streaming.MEMBER: _STREAM, "_meta": meta}
    return jsonrpc.with_params(frame, jsonrpc.to_raw(said))


def unasked(frame: Frame, token: str | None = None) -> Frame:
    """A call to a server that does not stream: what its client said of that stays behind."""
    params = jsonrpc.params_of(frame)
    meta: dict[str, object] = {**_meta_of(params)}
    is_silent = streaming.MEMBER not in params and streaming.MIRROR not in meta
    if is_silent and (token is None or _PROGRESS_BY in meta):
        return frame
    meta.pop(streaming.MIRROR, None)
    if token is not None:
        meta.setdefault(_PROGRESS_BY, token)
    plain: dict[str, object] = {**params}
    plain.pop(streaming.MEMBER, None)
    plain.pop("_meta", None)
    said = {**plain, "_meta": meta} if meta else plain
    return jsonrpc.with_params(frame, jsonrpc.to_raw(said))


def as_share(params: Mapping[str, Raw]) -> tuple[float, str | None]:
    """MCP's progress as a share of 1; without a total nobody knows of what, and it stays 0."""
    value, total = _number(params.get("progress")), _number(params.get("total"))
    message = jsonrpc.text(params.get("message"))
    share = value / total if value is not None and total is not None and total > 0 else 0.0
    return min(max(share, 0.0), 1.0), None if message is None else cut(message)


def cut(message: str) -> str:
    """A message of bounded length."""
    return message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 1] + _CUT


def count_in(said: Mapping[str, Raw]) -> int | None:
    """How many pieces a server says that it has sent."""
    found = jsonrpc.scalar(said.get("chunks_sent"))
    return found if type(found) is int and found >= 0 else None


def _meta_of(params: Mapping[str, Raw]) -> dict[str, Raw]:
    return jsonrpc.members(params["_meta"]) if "_meta" in params else {}


def _number(raw: Raw | None) -> float | None:
    found = None if raw is None else jsonrpc.value(raw)
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
    return "".join(jsonrpc.text(block.get("text")) or "" for block in blocks)
