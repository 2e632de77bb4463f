"""Resources that members of topics follow: one listen request to a server for each of them."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, cast

from comity.errors import (
    ACCESS_DENIED,
    EXHAUSTED,
    METHOD_NOT_FOUND,
    UPSTREAM_FAILED,
    UPSTREAM_SLOW,
    MalformedMessage,
    Unavailable,
)
from comity.gateway.subscriptions import AGREE_TIMEOUT_SECONDS
from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import Frame
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.telemetry.tracing import Headers
from comity.toolkit.background import BackgroundTasks
from comity.topics import envelope as topic_requests
from comity.topics.envelope import REQUEST, EnvelopeKind
from comity.topics.gateway_members import GatewayMember, ManagedTopic

log = logging.getLogger(__name__)

MAX_FOLLOWED_PER_MEMBER: Final = 32
"""How many resources one member may follow in one topic."""

MAX_UPDATES_AT_ONCE: Final = 32
"""The most updates of one subscription that are sent in one turn of the event loop."""

ENDED_NOTICE: Final = "unsubscribed"

type _Members = Mapping[str, object]


class ServerDesk(Protocol):
    """The endpoint of one server. Its calls pass the call pipeline."""

    async def handle_modern_request(
        self, frame: Frame, client_stream: ClientStream, headers: Headers
    ) -> Call: ...
    def headers_for(self, frame: Frame) -> Headers: ...
    def initialize_result(self, version: str | None) -> Mapping[str, object]: ...


@dataclass(frozen=True, slots=True)
class ResourceFollower:
    """A followed resource: its topic, the member of the server, and the first request.

    `readers` are the subscriber and the others in its request, such as a proposer.
    """

    managed_topic: ManagedTopic
    server: GatewayMember
    envelope: str
    readers: tuple[str, ...]
    uri: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.managed_topic.topic, self.readers[0], self.server.party, self.uri

    @property
    def is_current(self) -> bool:
        """Whether the server is still in the topic, and the subscriber still a member here."""
        place = self.managed_topic
        is_there = place.room.local_members.get(self.server.party) is self.server.member
        return is_there and self.readers[0] in place.room.local_members


class TopicSubscriptions:
    """The subscriptions of all members of the topics on this node."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str, str, str], tuple[ResourceFollower, Call]] = {}
        self._background_tasks = BackgroundTasks("resources followed in topics")

    def __len__(self) -> int:
        return len(self._calls)

    async def follow(
        self, endpoint: ServerDesk, follower: ResourceFollower, stream: ClientStream
    ) -> None:
        """Follow a resource, and return once the server has agreed.

        Raises MalformedMessage or Unavailable with the reason of a refusal.
        """
        if follower.key in self._calls:
            return
        if not _can_subscribe(endpoint):
            raise MalformedMessage("this server has no subscriptions", METHOD_NOT_FOUND)
        if sum(key[:2] == follower.key[:2] for key in self._calls) >= MAX_FOLLOWED_PER_MEMBER:
            reason = f"you follow {MAX_FOLLOWED_PER_MEMBER} resources here already"
            raise MalformedMessage(reason, EXHAUSTED)
        frame = _listen_request(follower)
        call = await endpoint.handle_modern_request(frame, stream, endpoint.headers_for(frame))
        try:
            updates = await _wait_until_agreed(stream, follower.uri)
        except BaseException:
            call.withdraw(None)
            raise
        # Two requests for one resource may have waited for the same server: the first one stays.
        if follower.key in self._calls or not follower.is_current:
            call.withdraw(None)
            return
        self._calls[follower.key] = (follower, call)
        self._background_tasks.start(self._relay(follower, stream, updates))

    def unfollow(self, follower: ResourceFollower) -> None:
        _, call = self._calls.pop(follower.key, (follower, None))
        if call is not None:
            call.withdraw(None)

    def look(self) -> None:
        """End the subscriptions of members, servers and topics that are gone."""
        for follower, _ in list(self._calls.values()):
            if not follower.is_current:
                self.unfollow(follower)

    def stop(self) -> None:
        self._background_tasks.cancel()

    async def _relay(
        self, follower: ResourceFollower, stream: ClientStream, updates: list[bytes]
    ) -> None:
        """Send the updates of one resource into its topic, until the subscription ends."""
        while True:
            # An update says only that there is something to read: several are as good as one.
            uris = dict.fromkeys([_updated_uri(each) for each in updates])
            for uri in list(uris)[:MAX_UPDATES_AT_ONCE]:
                if uri:
                    _send_update(follower, uri)
            if stream.is_final and not stream.frames:
                break
            await stream.wait()
            stream.is_nudged = stream.is_suspended = False
            updates = stream.take()
        if self._calls.pop(follower.key, None) is not None:
            reason = f"the updates of {follower.uri[:200]} have ended; subscribe again"
            follower.managed_topic.notify(ENDED_NOTICE, reason, follower.readers, follower.envelope)


def _can_subscribe(endpoint: ServerDesk) -> bool:
    capabilities = cast("_Members", endpoint.initialize_result(None).get("capabilities", {}))
    return "subscribe" in cast("_Members", capabilities.get("resources", {}))


def _listen_request(follower: ResourceFollower) -> Frame:
    params = {
        "_meta": topic_requests.MODERN_META,
        "notifications": {"resourceSubscriptions": [follower.uri]},
    }
    return Frame("2.0", follower.envelope, protocol.LISTEN, jsonrpc.to_raw(params))


async def _wait_until_agreed(stream: ClientStream, uri: str) -> list[bytes]:
    """Wait for the acknowledgement of a server. Returns the messages that came after it."""
    try:
        async with asyncio.timeout(AGREE_TIMEOUT_SECONDS):
            while not stream.frames and not stream.is_final:
                await stream.wait()
                stream.is_nudged = stream.is_suspended = False
    except TimeoutError:
        raise Unavailable("the server did not agree in time", UPSTREAM_SLOW) from None
    if not stream.frames:
        raise Unavailable("the server ended the subscription", UPSTREAM_FAILED)
    first, *updates = stream.take()
    frame = jsonrpc.decode_frame(first)
    error = jsonrpc.error_of(frame)
    if error is not None:
        raise MalformedMessage(f"the server would not: {error.message:.200}", UPSTREAM_FAILED)
    if frame.method != protocol.ACKNOWLEDGED or uri not in _acknowledged_uris(frame):
        raise MalformedMessage("you may not read this resource", ACCESS_DENIED)
    return updates


def _acknowledged_uris(frame: Frame) -> list[object]:
    params = topic_requests.decode_params(frame)
    notifications = params.get("notifications")
    if not isinstance(notifications, dict):
        return []
    uris = cast("_Members", notifications).get("resourceSubscriptions")
    return cast("list[object]", uris) if isinstance(uris, list) else []


def _updated_uri(data: bytes) -> str:
    frame = jsonrpc.decode_frame(data)
    if frame.method != protocol.RESOURCE_UPDATED:
        return ""
    return jsonrpc.decode_text(frame.parameters.get("uri")) or ""


def _send_update(follower: ResourceFollower, uri: str) -> None:
    if not follower.is_current:
        return
    place = follower.managed_topic
    payload = {"jsonrpc": "2.0", "method": protocol.RESOURCE_UPDATED, "params": {"uri": uri}}
    kind = EnvelopeKind(REQUEST, protocol.RESOURCE_UPDATED, topic_requests.quote_context(uri))
    readers = [each for each in follower.readers if place.room.has(each)]
    try:
        follower.server.send(place.new_header(readers, follower.envelope), str(kind), payload)
    except MalformedMessage as error:
        # The server names the resource, by a text of any length.
        log.info("An update does not fit into topic %r: %s", place.topic, error)
