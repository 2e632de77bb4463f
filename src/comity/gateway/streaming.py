"""Partial results and cancellation of MGP streaming."""

import asyncio
import itertools
import logging
from collections import Counter
from typing import Final
from weakref import WeakValueDictionary

import msgspec
from msgspec import Raw

from comity.errors import INVALID_PARAMS, MalformedMessage, Unavailable
from comity.gateway.era_bridge import BridgedCall
from comity.mcp import jsonrpc, protocol
from comity.mcp import mgp_streaming as rules
from comity.mcp import mgp_streaming as wire
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mgp import MgpExtension, NegotiatedTerms
from comity.mcp.mgp_streaming import ChunkBuffer, ProgressCounter
from comity.mcp.protocol import COMPLETE_RESULT, INPUT_REQUIRED, PROGRESS
from comity.sessions.calls import Call, CallClient, GatewayCall, PendingMessage
from comity.sessions.client_streams import ClientStream
from comity.sessions.methods import MethodRequest, method
from comity.sessions.upstream import QuestionConnection
from comity.telemetry.metrics import MetricFamily
from comity.toolkit.background import BackgroundTasks

log = logging.getLogger(__name__)

PAUSE_FRAMES: Final = 256
PAUSE_BYTES: Final = 512 * 1024
"""The amount that waits for a slow client before the server is paused. Twice that is dropped."""


class CallProgressStream:
    """The chunks and the progress of one call."""

    def __init__(
        self,
        *,
        wants_streaming: bool = False,
        client_has_streaming: bool = False,
        token: Raw | None = None,
    ) -> None:
        self.chunks = ChunkBuffer()
        self.passed_count = 0
        self.dropped_count = 0
        self.refused_count = 0
        self.is_retry = False
        self._wants_streaming = wants_streaming
        self._client_has_streaming = client_has_streaming
        self._progress_counter = None if token is None else ProgressCounter(token)
        self._has_mismatch = False
        self._is_cut_short = False

    def lower_pause_limits(self, client_stream: ClientStream) -> None:
        """Pause the server earlier than for calls that do not stream."""
        client_stream.pause_frames, client_stream.pause_bytes = PAUSE_FRAMES, PAUSE_BYTES

    def handle_notification(self, call: Call, frame: Frame) -> bool:
        try:
            if frame.method == wire.CHUNK:
                self._send_chunk(call, frame)
            elif frame.method == wire.STREAM_PROGRESS:
                self._send_stream_progress(call, frame)
            elif frame.method == PROGRESS:
                self._send_progress(call, frame)
            else:
                return False
        except MalformedMessage as error:
            self.refused_count += 1
            log.info("%s is dropped: %s", frame.method, error)
        return True

    def _send_chunk(self, call: Call, frame: Frame) -> None:
        chunk = wire.chunk_in(frame.params)
        if not self.chunks.add(chunk):
            return
        if self._wants_streaming:
            own = {**frame.parameters, "request_id": call.client_request_id}
            said = jsonrpc.make_notification(wire.CHUNK, own)
        elif self._progress_counter is not None:
            said = self._progress_counter.chunk_progress(chunk)
        else:
            self.dropped_count += 1
            return
        if self._send_to_client(call, said):
            self.passed_count += 1
        else:
            self.dropped_count += 1

    def _send_stream_progress(self, call: Call, frame: Frame) -> None:
        told = wire.progress_in(frame.params)
        if self._client_has_streaming:
            own = {**frame.parameters, "request_id": call.client_request_id}
            self._send_to_client(call, jsonrpc.make_notification(wire.STREAM_PROGRESS, own))
        said = None if self._progress_counter is None else self._progress_counter.share(told)
        if said is not None:
            self._send_to_client(call, said)

    def _send_progress(self, call: Call, frame: Frame) -> None:
        """Pass on MCP progress.

        A client that gave a token receives it unchanged. A client with MGP streaming receives it as
        MGP progress.
        """
        params = frame.parameters
        said = (
            None
            if self._progress_counter is None
            else self._progress_counter.server_progress(params)
        )
        if said is not None:
            self._send_to_client(call, said)
        if self._client_has_streaming:
            share, message = rules.as_share(params)
            self._send_to_client(
                call, wire.progress_notification(call.client_request_id, share, message)
            )

    def _send_to_client(self, call: Call, frame: Frame) -> bool:
        data = jsonrpc.encode_frame(frame)
        return call.client_stream.has_room_for(len(data)) and call.client_stream.put(data)

    def add_summary(self, call: Call, frame: Frame) -> Frame:
        if frame.result is UNSET:
            return frame
        try:
            result = jsonrpc.decode_members(frame.result)
            if jsonrpc.decode_text(result.get("resultType")) == INPUT_REQUIRED:
                return frame
            said = wire.mgp_members_in(result)
            self.chunks.count_missing(rules.count_in(said) if self.chunks.heard else None)
            self._has_mismatch = self.chunks.differs_from(result)
        except MalformedMessage:
            return frame
        self._warn(call)
        if self._wants_streaming and (self.chunks.heard or said):
            told = wire.with_mgp_members(
                result, {**self._summary_meta(call), **said, **self._loss_counts()}
            )
        elif said and not self._client_has_streaming:
            # The gateway requested the chunks, not this client, which knows only plain MCP.
            told = wire.strip_stream_result(result)
        else:
            return frame
        return msgspec.structs.replace(frame, result=jsonrpc.to_raw(told))

    def partial_answer(self, call: Call) -> Frame:
        """Return the answer to a cancelled call: the content that has arrived so far. (D-25)"""
        self._is_cut_short = True
        said = {**self._summary_meta(call), **self._loss_counts(), "cancelled": True}
        content = jsonrpc.to_raw(self.chunks.content())
        result = wire.with_mgp_members({"content": content}, said)
        if call.client is None:
            result["resultType"] = COMPLETE_RESULT
        return jsonrpc.make_result(call.client_request_id, result)

    def summary(self) -> dict[str, object]:
        """Return what the audit log keeps of the stream. It contains no content."""
        if not (self.chunks.heard or self._is_cut_short):
            return {}
        pieces = self.chunks
        noted = {
            "chunks": pieces.heard,
            "missing": pieces.missing,
            "late": pieces.late,
            "refused": self.refused_count,
            "dropped": self.dropped_count,
            "truncated": pieces.truncated,
            "differs": self._has_mismatch,
            "again": self.is_retry,
            "cancelled_with_partial": self._is_cut_short,
        }
        return {"streamed": {name: said for name, said in noted.items() if said}}

    def _summary_meta(self, call: Call) -> dict[str, object]:
        now = call.started_at if call.active_calls is None else call.active_calls.now()
        lasted = round((now - call.started_at) * 1000)
        sent = self.chunks.heard + self.chunks.missing
        return {"streamed": sent > 0, "chunks_sent": sent, "duration_ms": lasted}

    def _loss_counts(self) -> dict[str, object]:
        lost = self.chunks.missing + self.dropped_count
        told: dict[str, object] = {"chunks_missing": lost} if lost else {}
        if self.is_retry:
            # The call was repeated after the client had received chunks. The client received no
            # chunk of the new attempt.
            told["made_again"] = True
        return told

    def _warn(self, call: Call) -> None:
        pieces = self.chunks
        if not (
            pieces.missing
            or pieces.late
            or self.dropped_count
            or self.refused_count
            or self._has_mismatch
        ):
            return
        told = {"trace_id": call.trace_id()}
        log.warning(
            "a streamed %s lost pieces: %d missing, %d late, %d dropped, %d refused%s",
            call.method,
            pieces.missing,
            pieces.late,
            self.dropped_count,
            self.refused_count,
            "; they differ from the answer" if self._has_mismatch else "",
            extra=told,
        )


CANCEL_TIMEOUT_SECONDS: Final = 2.0
"""The time that a server has to confirm a cancellation."""

_PASSED_LABEL: Final = "passed"
_DROPPED_LABEL: Final = "dropped"
_STRAY_LABEL: Final = "stray"
_STREAMING_BYTES: Final = MgpExtension.STREAMING.encode()


class StreamingService:
    """Tracks the calls that stream, and cancels them for their clients."""

    def __init__(self, *, for_progress: bool = True) -> None:
        # Whether servers stream for clients that know only MCP's progress.
        self.for_progress = for_progress
        self._call_by_name: WeakValueDictionary[tuple[str, str], Call] = WeakValueDictionary()
        self._notification_counts: Counter[tuple[str, str]] = Counter()
        self._progress_tokens = itertools.count(1)
        self._background_tasks = BackgroundTasks("calls that stream")

    # On the way to a server.

    def prepare_request(self, connection: QuestionConnection, call: Call, frame: Frame) -> Frame:
        """Return the request as the gateway sends it to the server.

        Raises MalformedMessage if its `stream_id` is already in use or its fields are invalid.
        """
        if (
            connection.mgp is None
            and not call.is_detached
            and (
                # What the client said: the request to the server may be without it already.
                _STREAMING_BYTES not in bytes(call.params)
                if call.client is None and type(call) is Call and call.params is not UNSET
                else call.client is not None and call.client.mgp is None
            )
        ):
            # Neither the client nor the server uses MGP, so the request has no streaming fields.
            return frame
        front = call.current_call if isinstance(call, BridgedCall) else call
        if front is None or isinstance(front, GatewayCall):
            return frame
        if front.is_detached:
            # The client polls a detached call and receives nothing in between.
            return rules.strip_stream_request(frame)
        is_mgp = (front.client is not None or _may_mention_streaming(front)) and _has_streaming(
            front.terms()
        )
        can_stream = _has_streaming(connection.mgp) or (
            is_mgp and _negotiates_with_server(front.client)
        )
        if not is_mgp and not can_stream:
            return frame
        token = rules.token_in(front.params)
        if not is_mgp and (token is None or not self.for_progress):
            return rules.strip_stream_request(frame)
        asked, name = wire.streaming_request_in(frame) if is_mgp else (False, None)
        stream = self._start_stream(front, asked=asked, is_mgp=is_mgp, token=token)
        if name is not None and front.client is None:
            self._register_name(front, name)
        # A retry does not stream again after the client has received chunks.
        is_streamed = can_stream and (asked or not is_mgp) and not stream.chunks.heard
        stream.is_retry = stream.is_retry or bool(stream.chunks.heard)
        call.is_streamed = is_streamed
        named = f"comity-{next(self._progress_tokens)}" if is_mgp else None
        return (
            rules.request_streaming(frame, named)
            if is_streamed
            else rules.strip_stream_request(frame, named)
        )

    def _start_stream(
        self, client_call: Call, *, asked: bool, is_mgp: bool, token: Raw | None
    ) -> CallProgressStream:
        if isinstance(client_call.stream, CallProgressStream):
            return client_call.stream
        stream = CallProgressStream(wants_streaming=asked, client_has_streaming=is_mgp, token=token)
        client_call.stream = stream
        stream.lower_pause_limits(client_call.client_stream)
        return stream

    def _register_name(self, client_call: Call, name: str) -> None:
        key = (client_call.client_stream.actor.party, name)
        other = self._call_by_name.get(key)
        if other is not None and other is not client_call and _is_open(other):
            raise MalformedMessage("this stream_id is in use already", INVALID_PARAMS)
        self._call_by_name[key] = client_call

    # Notifications from a server.

    def handle_notification(
        self, server: str, frame: Frame, pending_message: PendingMessage | None
    ) -> bool:
        """Pass on a notification about a call. Return whether that call streams."""
        front = (
            pending_message.current_call
            if isinstance(pending_message, BridgedCall)
            else pending_message
        )
        stream = front.stream if isinstance(front, Call) else None
        is_asked = frame.method != wire.CHUNK or (
            isinstance(pending_message, Call) and pending_message.is_streamed
        )
        if pending_message is None or not isinstance(stream, CallProgressStream) or not is_asked:
            self._notification_counts[server, _STRAY_LABEL] += 1
            log.info("server %r: %s of no call that streams", server, frame.method)
            return False
        before = stream.passed_count
        pending_message.deliver_notification(frame)
        if frame.method == wire.CHUNK:
            self._notification_counts[
                server, _PASSED_LABEL if stream.passed_count > before else _DROPPED_LABEL
            ] += 1
        return True

    # Cancellation.

    def cancel_upstream(
        self,
        connection: QuestionConnection,
        pending_message: PendingMessage | None,
        cancellation: Frame,
    ) -> bool:
        """Cancel a streaming call at its server in MGP's form, and return whether that applies.

        For a modern server it does not apply, because MCP's own cancellation suffices.
        """
        if (
            not isinstance(pending_message, Call)
            or not pending_message.is_streamed
            or connection.initialize_result is None
        ):
            return False
        self._background_tasks.start(
            _cancel_request(connection, pending_message.outgoing_id, cancellation), at_once=True
        )
        return True

    @method("mgp/stream/cancel", MgpExtension.STREAMING)
    async def _cancel(self, request: MethodRequest) -> dict[str, object]:
        return self.cancel(request.session, request.call, request.frame)

    def cancel(self, client: CallClient | None, by: Call, frame: Frame) -> dict[str, object]:
        """Cancel a call and return the answer to the cancellation. Raises MalformedMessage."""
        named, reason = wire.cancel_in(frame.params)
        if client is not None:
            found = client.conversation.find_peer_request(named)
        else:
            found = self._call_by_name.get((by.client_stream.actor.party, str(named)))
        if not isinstance(found, Call) or found is by or not _is_open(found):
            return wire.too_late()
        said = UNSET if reason is None else jsonrpc.to_raw(rules.shorten_message(reason))
        return _answer_partially(found, None if said is UNSET else said)

    def metric_families(self) -> list[MetricFamily]:
        return [
            MetricFamily(
                "comity_stream_chunks_total",
                "counter",
                "Pieces of results: passed on, dropped for a slow reader, or of no such call.",
                [
                    ((("server", server), ("outcome", outcome)), number)
                    for (server, outcome), number in self._notification_counts.items()
                ],
            )
        ]


def _answer_partially(call: Call, reason: Raw | None) -> dict[str, object]:
    stream = call.stream if isinstance(call.stream, CallProgressStream) else None
    if call.method != protocol.CALL_TOOL:
        call.withdraw(reason)
        return wire.cancellation_result([])
    stream = CallProgressStream() if stream is None else stream
    call.stream = stream
    answer = stream.partial_answer(call)
    call.answer_partially(answer, reason)
    return wire.cancellation_result(stream.chunks.content(), truncated=stream.chunks.truncated)


async def _cancel_request(
    connection: QuestionConnection, outgoing_id: int, cancellation: Frame
) -> None:
    """Cancel in MGP's form, and in MCP's form if the server does not understand the first."""
    params = cancellation.parameters
    reason = {"reason": params["reason"]} if "reason" in params else {}
    try:
        async with asyncio.timeout(CANCEL_TIMEOUT_SECONDS):
            answer = await connection.request(wire.CANCEL, {"request_id": outgoing_id, **reason})
    except (Unavailable, MalformedMessage, TimeoutError) as error:
        log.info("server %r did not answer a cancellation: %s", connection.server, error)
        connection.send_message(cancellation)
        return
    if answer.error is not UNSET:
        connection.send_message(cancellation)


def _is_open(call: Call) -> bool:
    return not (call.is_recorded or call.client_stream.is_final)


def _negotiates_with_server(client: CallClient | None) -> bool:
    """Return whether the client negotiates with the server itself, so its terms apply."""
    return client is not None and client.speaks_mgp_with_servers


def _has_streaming(terms: NegotiatedTerms | None) -> bool:
    return terms is not None and MgpExtension.STREAMING in terms.extensions


def _may_mention_streaming(call: Call) -> bool:
    """Return whether a modern request may have negotiated streaming.

    The search in the raw bytes saves decoding, since most requests say nothing about it.
    """
    return call.params is not UNSET and _STREAMING_BYTES in bytes(call.params)
