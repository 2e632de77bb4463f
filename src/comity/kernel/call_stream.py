"""What one call tells before its end, in the words that its client understands. (MGP §12, D-26)

A client that asked for pieces hears them; one that negotiated `streaming` hears MGP's progress; one
that gave a progress token hears MCP's, of which pieces are steps unless it hears them anyway.
"""

import logging
from typing import Final

import msgspec
from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.outbox import Outbox
from comity.rules import streaming as rules
from comity.rules.streaming import Ladder, Pieces
from comity.wire import jsonrpc
from comity.wire import streaming as wire
from comity.wire.errors import MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.mcp import COMPLETE_RESULT, INPUT_REQUIRED, PROGRESS

log = logging.getLogger(__name__)

PAUSE_FRAMES: Final = 256
PAUSE_BYTES: Final = 512 * 1024
"""How much waits for a slow reader before the server is asked to pause; twice that is dropped."""


class CallStream:
    """The pieces and the progress of one call."""

    def __init__(
        self, *, asked: bool = False, hears: bool = False, token: Raw | None = None
    ) -> None:
        self.pieces = Pieces()
        self.passed = 0
        self.dropped = 0
        self.refused = 0
        self.is_again = False
        self._asked = asked
        self._hears = hears
        self._ladder = None if token is None else Ladder(token)
        self._differs = False
        self._is_cut_short = False

    def make_room(self, outbox: Outbox) -> None:
        """Have the source pause sooner than for what is not told in pieces."""
        outbox.pause_frames, outbox.pause_bytes = PAUSE_FRAMES, PAUSE_BYTES

    def told(self, call: Call, frame: Frame) -> bool:
        try:
            if frame.method == wire.CHUNK:
                self._tell_piece(call, frame)
            elif frame.method == wire.STREAM_PROGRESS:
                self._tell_share(call, frame)
            elif frame.method == PROGRESS:
                self._tell_progress(call, frame)
            else:
                return False
        except MalformedMessage as error:
            self.refused += 1
            log.info("%s is dropped: %s", frame.method, error)
        return True

    def _tell_piece(self, call: Call, frame: Frame) -> None:
        chunk = wire.chunk_in(frame.params)
        if not self.pieces.take(chunk):
            return
        if self._asked:
            own = {**jsonrpc.params_of(frame), "request_id": call.asker_id}
            said = jsonrpc.notification(wire.CHUNK, own)
        elif self._ladder is not None:
            said = self._ladder.piece(chunk)
        else:
            self.dropped += 1
            return
        if self._say(call, said):
            self.passed += 1
        else:
            self.dropped += 1

    def _tell_share(self, call: Call, frame: Frame) -> None:
        told = wire.progress_in(frame.params)
        if self._hears:
            own = {**jsonrpc.params_of(frame), "request_id": call.asker_id}
            self._say(call, jsonrpc.notification(wire.STREAM_PROGRESS, own))
        said = None if self._ladder is None else self._ladder.share(told)
        if said is not None:
            self._say(call, said)

    def _tell_progress(self, call: Call, frame: Frame) -> None:
        """MCP's own: as it is to who gave a token, and in MGP's words to who hears those."""
        params = jsonrpc.params_of(frame)
        said = None if self._ladder is None else self._ladder.own(params)
        if said is not None:
            self._say(call, said)
        if self._hears:
            share, message = rules.as_share(params)
            self._say(call, wire.progress(call.asker_id, share, message))

    def _say(self, call: Call, frame: Frame) -> bool:
        data = jsonrpc.encode(frame)
        return call.outbox.has_room_for(len(data)) and call.outbox.put(data)

    def finished(self, call: Call, frame: Frame) -> Frame:
        if frame.result is UNSET:
            return frame
        try:
            result = jsonrpc.members(frame.result)
            if jsonrpc.text(result.get("resultType")) == INPUT_REQUIRED:
                return frame
            said = wire.said_in(result)
            self.pieces.ended(rules.count_in(said) if self.pieces.heard else None)
            self._differs = self.pieces.differs_from(result)
        except MalformedMessage:
            return frame
        self._warn(call)
        if self._asked and (self.pieces.heard or said):
            told = wire.with_said(result, {**self._outline(call), **said, **self._losses()})
        elif said and not self._hears:
            # The gateway asked for pieces, not this client, to whom all of this is plain MCP.
            told = wire.unsaid(result)
        else:
            return frame
        return msgspec.structs.replace(frame, result=jsonrpc.to_raw(told))

    def cut_short(self, call: Call) -> Frame:
        """The answer to a call that its client has cancelled: what has come so far. (D-25)"""
        self._is_cut_short = True
        said = {**self._outline(call), **self._losses(), "cancelled": True}
        content = jsonrpc.to_raw(self.pieces.content())
        result = wire.with_said({"content": content}, said)
        if call.client is None:
            result["resultType"] = COMPLETE_RESULT
        return jsonrpc.result(call.asker_id, result)

    def summary(self) -> dict[str, object]:
        """What the journal keeps of it; nothing of what was said."""
        if not (self.pieces.heard or self._is_cut_short):
            return {}
        pieces = self.pieces
        noted = {
            "chunks": pieces.heard,
            "missing": pieces.missing,
            "late": pieces.late,
            "refused": self.refused,
            "dropped": self.dropped,
            "truncated": pieces.truncated,
            "differs": self._differs,
            "again": self.is_again,
            "cancelled_with_partial": self._is_cut_short,
        }
        return {"streamed": {name: said for name, said in noted.items() if said}}

    def _outline(self, call: Call) -> dict[str, object]:
        now = call.began if call.underway is None else call.underway.now()
        lasted = round((now - call.began) * 1000)
        sent = self.pieces.heard + self.pieces.missing
        return {"streamed": sent > 0, "chunks_sent": sent, "duration_ms": lasted}

    def _losses(self) -> dict[str, object]:
        lost = self.pieces.missing + self.dropped
        told: dict[str, object] = {"chunks_missing": lost} if lost else {}
        if self.is_again:
            # It was made again after some of it had been told; of that attempt nothing was.
            told["made_again"] = True
        return told

    def _warn(self, call: Call) -> None:
        pieces = self.pieces
        if not (pieces.missing or pieces.late or self.dropped or self.refused or self._differs):
            return
        told = {"trace_id": call.trace_id()}
        log.warning(
            "a streamed %s lost pieces: %d missing, %d late, %d dropped, %d refused%s",
            *(call.method, pieces.missing, pieces.late, self.dropped, self.refused),
            "; they differ from the answer" if self._differs else "",
            extra=told,
        )
