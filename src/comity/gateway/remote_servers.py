"""Servers that another node runs, and sessions that another node holds."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, Protocol

from comity.cluster import streams
from comity.cluster.bus import Lease
from comity.cluster.leases import EXPIRY_FRACTION, SOON, ServerLocation, no_node_error
from comity.cluster.nodes import ClusterMembers, epoch_in
from comity.cluster.streams import (
    Answer,
    ClusterStreamReader,
    ClusterStreams,
    RemoteCallHeader,
    StreamReplyWriter,
)
from comity.errors import CUT_OFF, SERVER_NOT_READY, Unavailable
from comity.gateway.one_server import McpEndpoint
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import ANONYMOUS, Actor, PrincipalKind
from comity.mcp.jsonrpc import Frame, FrameLimits
from comity.mcp.protocol import Era, Stream
from comity.mcp.refusals import Refusal
from comity.sessions.calls import ActiveCalls, Call, CallClient
from comity.sessions.client_streams import ClientStream
from comity.sessions.upstream import (
    TransportFactory,
    TransportListener,
    UpstreamConnection,
    UpstreamTransport,
)
from comity.telemetry.metrics import ServerCounters
from comity.telemetry.tracing import Headers, trace_context_in

log = logging.getLogger(__name__)

FENCE_META_KEY: Final = "dev.comity/fence"
"""The `_meta` key that gives the server the token of its lease."""

FENCE_VARIABLE: Final = "COMITY_FENCE"
NODE_VARIABLE: Final = "COMITY_NODE"


class RemoteTransportFactory(Protocol):
    """Creates transports to a server that another node runs."""

    def create_transport(self, era: Era) -> UpstreamTransport: ...


class PlacedServer:
    """A server that runs only once in the cluster, on this node or on another."""

    def __init__(
        self,
        location: ServerLocation,
        eras: frozenset[Era],
        make_local_factory: Callable[[Lease], TransportFactory],
        remote_factory: RemoteTransportFactory,
    ) -> None:
        self._location = location
        self._eras = eras
        self._make_local_factory = make_local_factory
        self._remote_factory = remote_factory
        self._transports: set[FencedTransport] = set()

    @property
    def starts_process(self) -> bool:
        return self._location.lease is not None

    def create_transport(self, era: Era) -> UpstreamTransport:
        lease = self._location.lease
        if lease is None:
            return self._remote_factory.create_transport(era)
        made = FencedTransport(
            self._make_local_factory(lease).create_transport(era),
            self._location,
            lease,
            self._transports.discard,
        )
        made.is_revoked = era not in self._eras
        self._transports.add(made)
        return made

    async def stop_local(self) -> None:
        """End all processes on this node before another node may start the server."""
        reason = f"this node may no longer run server {self._location.server!r}"
        await asyncio.gather(*(each.revoke(reason) for each in list(self._transports)))


class FencedTransport:
    """The transport to a process of the server, bound to the lease under which it runs."""

    def __init__(
        self,
        transport: UpstreamTransport,
        location: ServerLocation,
        lease: Lease,
        on_close: "Callable[[FencedTransport], object]",
    ) -> None:
        self.is_revoked = False
        self._transport = transport
        self._location = location
        self._lease = lease
        self._on_close = on_close
        self._listener: TransportListener | None = None
        self._closing: asyncio.Future[None] | None = None

    @property
    def has_separate_streams(self) -> bool:
        return self._transport.has_separate_streams

    @property
    def has_exited_cleanly(self) -> bool:
        return self._transport.has_exited_cleanly

    async def open(self, listener: TransportListener) -> None:
        if self.is_revoked:
            raise Unavailable("it does not allow this MCP version")
        self._location.require(self._lease)
        self._listener = listener
        await self._transport.open(listener)

    def send(self, frame: Frame, stream: Stream, headers: Headers = ()) -> None:
        # The lease may have ended since the connection was opened.
        self._location.require(self._lease)
        if frame.method == protocol.CALL_TOOL:
            frame = add_fence_token(frame, self._lease.token)
        self._transport.send(frame, stream, headers)

    def set_version(self, version: str) -> None:
        self._transport.set_version(version)

    def listen(self) -> None:
        self._transport.listen()

    def pause(self, stream: Stream) -> None:
        self._transport.pause(stream)

    def resume(self, stream: Stream) -> None:
        self._transport.resume(stream)

    def drop_stream(self, stream: Stream) -> None:
        self._transport.drop_stream(stream)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._transport.close())
            self._closing.add_done_callback(lambda _: self._on_close(self))
        try:
            await asyncio.wait([self._closing])
        except asyncio.CancelledError:
            # A caller that stops waiting is in a hurry, so the process is killed.
            self._closing.cancel()
            raise

    def stderr_lines(self) -> Sequence[str]:
        return self._transport.stderr_lines()

    async def revoke(self, reason: str) -> None:
        """Fail all waiting calls, accept no more, and end the process before the lease ends."""
        if self._listener is not None:
            self._listener.on_closed(reason)
        try:
            async with asyncio.timeout(max(0.0, self._location.seconds_left(EXPIRY_FRACTION))):
                await self.close()
        except TimeoutError:
            log.warning("Server %r did not stop in time and is killed", self._location.server)


def add_fence_token(frame: Frame, token: int) -> Frame:
    """Return the call with the token of the lease under which it is made."""
    params = frame.parameters
    meta = jsonrpc.decode_members(params["_meta"]) if "_meta" in params else {}
    told = {**params, "_meta": {**meta, FENCE_META_KEY: token}}
    return jsonrpc.with_params(frame, jsonrpc.to_raw(told))


def lease_environment(lease: Lease) -> dict[str, str]:
    """Return the environment variables that tell a server its lease when it starts."""
    return {FENCE_VARIABLE: str(lease.token), NODE_VARIABLE: lease.holder}


STREAM_SUBJECT: Final = "mcp"
_STREAM_OPENED: Final = b"s"
_MESSAGE: Final = b"m"
_NODE_WAIT_SECONDS: Final = 5.0
"""How long a new connection waits until the node of its server is known."""


class RemoteServer:
    """Reaches one server through the node that runs it."""

    starts_process = False

    def __init__(self, location: ServerLocation, cluster_streams: ClusterStreams) -> None:
        self.location = location
        self.cluster_streams = cluster_streams
        self.transports: set[RemoteTransport] = set()
        # The reason of the last failure.
        self.close_reason = ""

    def create_transport(self, era: Era) -> UpstreamTransport:
        return RemoteTransport(self, era)

    def close_all(self) -> None:
        """Close all connections, because the server moved to another node."""
        for each in list(self.transports):
            each.fail(f"server {self.location.server!r} has moved to another node")


class RemoteTransport:
    """A connection to a server through another node, with one stream for each request."""

    has_separate_streams = True
    has_exited_cleanly = False
    connects_node: Final = True

    def __init__(self, remote_server: RemoteServer, era: Era) -> None:
        self._remote_server = remote_server
        self._place = remote_server.location
        self._carrying = remote_server.cluster_streams
        self._era = era
        self._node = ""
        self._listener: TransportListener | None = None
        self._task_by_stream: dict[Stream, asyncio.Task[None]] = {}
        self._resume_event_by_stream: dict[Stream, asyncio.Event] = {}

    async def open(self, listener: TransportListener) -> None:
        if self._era is Era.HANDSHAKE:
            # Nodes use only the modern protocol version, so the earlier failure there is the real
            # reason.
            raise Unavailable(self._remote_server.close_reason or "nodes use MCP 2026-07-28 only")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_NODE_WAIT_SECONDS):
                await self._place.is_known.wait()
        if self._place.other_node is None:
            missing = no_node_error(self._place.server)
            self._remote_server.close_reason = str(missing)
            raise missing
        self._node, self._listener = self._place.other_node, listener
        self._remote_server.transports.add(self)

    def send(self, frame: Frame, stream: Stream, headers: Headers = ()) -> None:
        """Send a request to the other node.

        Other frames are dropped: in the modern version, closing the stream cancels a request.
        Raises Unavailable if the server is no longer at that node.
        """
        if not jsonrpc.is_request(frame):
            return
        if self._listener is None or self._place.other_node != self._node:
            raise no_node_error(self._place.server)
        self._carrying.require(self._node)
        task = asyncio.ensure_future(self._run_request(frame, stream, headers))
        self._task_by_stream[stream] = task
        task.add_done_callback(lambda _: self._forget(stream, task))

    def set_version(self, version: str) -> None:
        """Do nothing: nodes use one protocol version."""

    def listen(self) -> None:
        """Do nothing: notifications arrive on the streams of requests."""

    def pause(self, stream: Stream) -> None:
        self._resume_event_by_stream.setdefault(stream, asyncio.Event())

    def resume(self, stream: Stream) -> None:
        paused = self._resume_event_by_stream.pop(stream, None)
        if paused is not None:
            paused.set()

    def drop_stream(self, stream: Stream) -> None:
        task = self._task_by_stream.get(stream)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        self._remote_server.transports.discard(self)
        asked = list(self._task_by_stream.values())
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    def stderr_lines(self) -> Sequence[str]:
        return ()

    def fail(self, reason: str) -> None:
        self._remote_server.transports.discard(self)
        if self._listener is not None:
            self._listener.on_closed(reason)
        for task in list(self._task_by_stream.values()):
            task.cancel()

    async def _run_request(self, frame: Frame, stream: Stream, headers: Headers) -> None:
        receiver = self._listener
        assert receiver is not None
        answers: ClusterStreamReader | None = None
        try:
            actor = _actor_of_request(receiver, stream)
            head = RemoteCallHeader(
                self._place.server,
                headers,
                actor.party,
                actor.kind,
                actor.credential,
                actor.groups,
                actor.permissions,
                actor.excluded,
            )
            answers = await self._carrying.open(
                self._node,
                STREAM_SUBJECT,
                streams.encode_message(head),
                jsonrpc.encode_frame(frame),
            )
            async for said in answers:
                self._on_data(said, receiver, stream)
                if stream in self._resume_event_by_stream:
                    await self._resume_event_by_stream[stream].wait()
            receiver.on_stream_ended(stream, None)
        except Unavailable as error:
            self._remote_server.close_reason = str(error)
            receiver.on_stream_ended(stream, error)
        finally:
            if answers is not None:
                answers.close()

    def _on_data(self, data: bytes, listener: TransportListener, stream: Stream) -> None:
        if data[:1] == _STREAM_OPENED:
            listener.on_stream_opened(stream)
        elif data[:1] == _MESSAGE and data[1:4].isdigit():
            listener.on_message(data[4:], stream, int(data[1:4]))
        else:
            log.warning("server %r: another node has a different definition", self._place.server)

    def _forget(self, stream: Stream, task: asyncio.Task[None]) -> None:
        self.resume(stream)
        if self._task_by_stream.get(stream) is task:
            del self._task_by_stream[stream]
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.error("A call to another node failed", exc_info=bug)
            if self._listener is not None:
                self._listener.on_stream_ended(
                    stream, Unavailable("the gateway failed; see its log")
                )


def _actor_of_request(listener: TransportListener, stream: Stream) -> Actor:
    """Return the actor of a request, so that only this actor can resume its parked calls."""
    errand = (
        listener.conversation.find_stream_owner(stream)
        if isinstance(listener, UpstreamConnection)
        else None
    )
    return errand.client_stream.actor if isinstance(errand, Call) else ANONYMOUS


class RemoteCall(Call):
    """A call from another node. That node reports a refusal to its client."""

    refusal: Refusal | None = None
    is_remote = True

    def refuse_with(self, refusal: Refusal) -> None:
        self.refusal = refusal
        self._end_call(refusal.fault.error_type, None)
        self.client_stream.end()


class RemoteCalls(ActiveCalls):
    """The calls from other nodes.

    The node that received a call counts it, records it and applies its deadline.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now, 0.0, 0.0, 0.0)

    def begin(
        self,
        frame: Frame,
        client_stream: ClientStream,
        client: CallClient | None,
        counted: ServerCounters | None = None,
    ) -> Call:
        call = RemoteCall(frame, client_stream, client, self.now())
        call.active_calls = self
        self._calls[call] = None
        return call

    def end(self, call: Call, outcome: str, answer: Frame | None) -> None:
        self._calls.pop(call, None)


class RemoteCallHandler:
    """Answers calls from other nodes with the servers that run on this node."""

    def __init__(
        self, endpoint_of: Callable[[str], McpEndpoint | None], limits: FrameLimits
    ) -> None:
        self._endpoint_of = endpoint_of
        self._limits = limits

    async def answer(self, head: bytes, body: bytes, reply: StreamReplyWriter) -> None:
        asked = streams.relay_head(head)
        desk = self._endpoint_of(asked.server)
        if desk is None:
            reason = f"server {asked.server!r:.80} does not run at the node that was asked"
            raise Unavailable(reason, SERVER_NOT_READY, SOON)
        frame = jsonrpc.decode_frame(body, self._limits)
        client_stream = ClientStream()
        client_stream.actor = Actor(
            asked.party,
            _principal_kind(asked.kind),
            asked.credential,
            permissions=asked.permissions,
            excluded=asked.excluded,
            groups=asked.groups,
        )
        client_stream.trace = trace_context_in(dict(asked.headers))
        call = await desk.handle_modern_request(frame, client_stream, asked.headers)
        try:
            await _send_messages(client_stream, reply)
        finally:
            if not client_stream.is_final:
                call.withdraw(None)
        if isinstance(call, RemoteCall) and call.refusal is not None:
            refusal = call.refusal
            raise Unavailable(refusal.reason, refusal.fault, refusal.retry_after)


async def _send_messages(client_stream: ClientStream, reply: StreamReplyWriter) -> None:
    is_told = False
    while True:
        if client_stream.is_streaming and not is_told:
            is_told = True
            await reply.send(_STREAM_OPENED)
        taken, is_final = client_stream.take(), client_stream.is_final
        for place, said in enumerate(taken):
            status = client_stream.status if is_final and place == len(taken) - 1 else 200
            await reply.send(b"%s%03d%s" % (_MESSAGE, status, said))
        if is_final and not client_stream.frames:
            return
        client_stream.is_nudged = client_stream.is_suspended = False
        if not client_stream.frames and not client_stream.is_final:
            await client_stream.wait()


def _principal_kind(named: str) -> PrincipalKind:
    try:
        return PrincipalKind(named)
    except ValueError:
        return PrincipalKind.AGENT


HTTP_STREAM_SUBJECT: Final = "http"
SESSION_RETRY_DELAY: Final = timedelta(seconds=1)


class SessionRouter:
    """Finds the node of a session and forwards requests to it."""

    def __init__(self, peers: ClusterMembers, cluster_streams: ClusterStreams) -> None:
        self._peers = peers
        self._cluster_streams = cluster_streams

    def node_of(self, session_id: str) -> str | None:
        """Return the other node that holds a session, or None if no other node does.

        Raises Unavailable while this node does not yet know all other nodes.
        """
        epoch = epoch_in(session_id)
        if epoch is None or epoch == self._peers.me.epoch:
            return None
        node = self._peers.of_epoch(epoch)
        if node is None and not self._peers.has_heard_all:
            raise Unavailable(
                "the node of this session is unknown; try again later",
                CUT_OFF,
                SESSION_RETRY_DELAY,
            )
        return node

    async def forward_request(self, node: str, head: bytes, body: bytes) -> ClusterStreamReader:
        """Send a request to a node. The reader yields the head of the answer, then its body."""
        return await self._cluster_streams.open(node, HTTP_STREAM_SUBJECT, head, body)

    def set_handler(self, handler: Answer) -> None:
        """Set the function that answers requests which other nodes forward to this node."""
        self._cluster_streams.answer(HTTP_STREAM_SUBJECT, handler)
