"""Operator API for topics: their members, and what a principal may send. (MCPx §11.3)

The MCPx document defines the path `POST /admin/participants/{id}/capabilities`.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from comity.errors import NOTHING_HERE, MalformedMessage
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import EmptyQuery, RequestBody, RequestQuery
from comity.http.asgi import PARTICIPANTS
from comity.mcp import jsonrpc
from comity.policy.grants import ANY_TARGET
from comity.toolkit.text import format_timestamp
from comity.topics.envelope import Envelope
from comity.topics.rules import DeliveryMode
from comity.topics.service import CapabilityAdmin, TopicQuestion, TopicService
from comity.topics.topic import Topic

_MAX_SHOWN: Final = 1_000
MAX_ENVELOPES: Final = 100
MAX_SHOWN_PAYLOAD: Final = 16 * 1024
MAX_PAGE_BYTES: Final = 256 * 1024
"""A page must fit into one message of the bus, which takes 1 MB unless configured."""

type Clock = Callable[[], datetime]


class CapabilityChangeBody(RequestBody, frozen=True):
    """Capabilities to add and remove, in one topic or in all topics."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    topic: str = ANY_TARGET


class TopicSummaryView(TypedDict):
    """A topic in a list."""

    topic: str
    members: int


class TopicListView(TypedDict):
    """The topics that have members, on all nodes."""

    topics: list[TopicSummaryView]
    total: int


class MemberView(TypedDict):
    """A member of a topic. `node` names the node that serves it, if that is another one."""

    participantId: str
    capabilities: Sequence[str]
    connectionId: NotRequired[str]
    connectedAt: NotRequired[str]
    mode: NotRequired[DeliveryMode]
    missed: NotRequired[int]
    node: NotRequired[str]


class TopicView(TypedDict):
    """A topic and its members."""

    topic: str
    participants: list[MemberView]


class EnvelopeView(TypedDict):
    """An envelope. Its payload has passed redaction, and is null if it is too large to show."""

    number: int
    id: str
    sender: str
    to: Sequence[str]
    kind: str
    correlation_id: str | None
    ts: str
    payload: object
    bytes: int


class EnvelopePage(TypedDict):
    """The last envelopes of a topic that a node delivered, the newest first."""

    envelopes: list[EnvelopeView]
    next: NotRequired[str]


class EnvelopeQuery(RequestQuery, frozen=True):
    """Which envelopes to list. `correlation` finds an envelope and the replies to it."""

    correlation: str = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_ENVELOPES)] = MAX_ENVELOPES
    # The number of the last envelope of the page before.
    cursor: Annotated[int, Meta(ge=0, le=10**15)] = 0


class CapabilityView(TypedDict):
    """The capabilities of a participant in all topics."""

    participantId: str
    capabilities: Sequence[str]


class CapabilityChangeView(TypedDict):
    """The capabilities of a participant before and after a change. (MCPx §11.3)"""

    participantId: str
    oldCapabilities: Sequence[str]
    newCapabilities: Sequence[str]
    modifiedBy: str
    modifiedAt: str


class ParticipantsApi:
    """Routes for topics, their members and the capabilities of each participant."""

    def __init__(
        self,
        topics: TopicService,
        capability_admin: CapabilityAdmin,
        clock: Clock = lambda: datetime.now(UTC),
        redact: Callable[[object], object] = lambda value: value,
    ) -> None:
        self._redact = redact
        self._topics = topics
        self._capability_admin = capability_admin
        self._clock = clock
        topics.answer_peer = self._answer_peer

    @property
    def routes(self) -> ApiRoutes:
        read, write = Permission.ADMIN_READ, Permission.ADMIN_WRITE
        capabilities = PARTICIPANTS + "{principal:path}/capabilities"
        return (
            ApiRoute("GET", "/api/topics", read, self._list_topics, EmptyQuery),
            ApiRoute("GET", "/api/topics/{topic}", read, self._show_topic, EmptyQuery),
            ApiRoute(
                "GET",
                "/api/topics/{topic}/envelopes",
                read,
                self._list_envelopes,
                EnvelopeQuery,
            ),
            ApiRoute("GET", capabilities, read, self._show_capabilities, EmptyQuery),
            ApiRoute("POST", capabilities, write, self._change, CapabilityChangeBody),
        )

    async def _show_capabilities(self, request: ApiRequest[EmptyQuery]) -> CapabilityView:
        party = request.path["principal"]
        self._capability_admin.require_known(party)
        return {
            "participantId": party,
            "capabilities": self._capability_admin.of(party, ANY_TARGET),
        }

    async def _change(self, request: ApiRequest[CapabilityChangeBody]) -> CapabilityChangeView:
        actor, wanted = request.actor, request.input
        changed = await self._capability_admin.change(
            actor, request.path["principal"], wanted.topic, wanted.add, wanted.remove
        )
        return {
            "participantId": changed.party,
            "oldCapabilities": changed.before,
            "newCapabilities": changed.now,
            "modifiedBy": actor.party,
            "modifiedAt": format_timestamp(self._clock()),
        }

    async def _list_topics(self, _: ApiRequest[EmptyQuery]) -> TopicListView:
        members = {each["topic"]: each["members"] for each in self._topics_here()}
        for answer in await self._ask_peers(TopicQuestion()):
            for each in _topic_lists.decode(answer)["topics"]:
                count = max(members.get(each["topic"], 0), each["members"])
                members[each["topic"]] = count
        shown: list[TopicSummaryView] = [
            {"topic": name, "members": members[name]} for name in sorted(members)
        ]
        return {"topics": shown[:_MAX_SHOWN], "total": len(shown)}

    def _topics_here(self) -> list[TopicSummaryView]:
        return [
            {"topic": each.name, "members": each.member_count}
            for each in self._topics.topics.values()
        ]

    async def _show_topic(self, request: ApiRequest[EmptyQuery]) -> TopicView:
        name = request.path["topic"]
        topic = self._topics.topics.get(name)
        if topic is not None:
            return _topic_view(topic)
        for answer in await self._ask_peers(TopicQuestion(name)):
            return _topic_views.decode(answer)
        raise _no_topic()

    async def _list_envelopes(self, request: ApiRequest[EnvelopeQuery]) -> EnvelopePage:
        """Return one page of the last envelopes, the newest first."""
        name, wanted = request.path["topic"], request.input
        topic = self._topics.topics.get(name)
        question = TopicQuestion(name, wanted.limit, wanted.cursor, wanted.correlation)
        if topic is not None:
            return self._envelope_page(topic, question)
        for answer in await self._ask_peers(question):
            return _envelope_pages.decode(answer)
        raise _no_topic()

    def _envelope_page(self, topic: Topic, question: TopicQuestion) -> EnvelopePage:
        shown: list[EnvelopeView] = []
        size = 0
        for number, envelope in reversed(topic.recent_envelopes()):
            if question.cursor and number >= question.cursor:
                continue
            if question.correlation not in ("", envelope.id, envelope.correlation_id):
                continue
            if len(shown) == question.limit or size > MAX_PAGE_BYTES:
                return {"envelopes": shown, "next": str(shown[-1]["number"])}
            shown.append(self._envelope_view(number, envelope))
            size += min(len(envelope.payload), MAX_SHOWN_PAYLOAD)
        return {"envelopes": shown}

    # Questions between nodes: a topic can have all its members on another node.

    async def _ask_peers(self, question: TopicQuestion) -> Sequence[bytes]:
        return () if self._topics.peers is None else await self._topics.peers.ask(question)

    def _answer_peer(self, question: TopicQuestion, own_node: str) -> bytes:
        """Answer another node, which has checked the permission of its operator."""
        if not question.topic:
            here = self._topics_here()[:_MAX_SHOWN]
            return bytes(jsonrpc.to_raw({"topics": here, "total": len(here)})) if here else b""
        topic = self._topics.topics.get(question.topic)
        if topic is None:
            return b""
        if question.limit:
            limit = min(question.limit, MAX_ENVELOPES)
            page = self._envelope_page(topic, question._replace(limit=limit))
            return bytes(jsonrpc.to_raw(page))
        view = _topic_view(topic)
        members: list[MemberView] = [{"node": own_node, **each} for each in view["participants"]]
        return bytes(jsonrpc.to_raw({**view, "participants": members}))

    def _envelope_view(self, number: int, envelope: Envelope) -> EnvelopeView:
        size = len(envelope.payload)
        is_shown = size <= MAX_SHOWN_PAYLOAD
        return {
            "number": number,
            "id": envelope.id,
            "sender": envelope.sender,
            "to": envelope.to,
            "kind": envelope.kind,
            "correlation_id": envelope.correlation_id or None,
            "ts": envelope.ts,
            "payload": self._redact(jsonrpc.decode_value(envelope.payload)) if is_shown else None,
            "bytes": size,
        }


_topic_lists: Final = msgspec.json.Decoder(TopicListView)
_topic_views: Final = msgspec.json.Decoder(TopicView)
_envelope_pages: Final = msgspec.json.Decoder(EnvelopePage)


def _no_topic() -> MalformedMessage:
    told = "this topic has no members; `comity topics` lists the others"
    return MalformedMessage(told, NOTHING_HERE)


def _topic_view(topic: Topic) -> TopicView:
    return {"topic": topic.name, "participants": _members(topic)[:_MAX_SHOWN]}


def _members(topic: Topic) -> list[MemberView]:
    here: list[MemberView] = [
        {
            "connectionId": member.connection,
            "participantId": member.party,
            "capabilities": member.may.listed,
            "connectedAt": "" if member.joined_at is None else format_timestamp(member.joined_at),
            "mode": member.mode,
            "missed": member.missed.count,
        }
        for member in topic.local_members.values()
    ]
    return here + [
        {"participantId": party, "capabilities": there.capabilities, "node": there.node}
        for party, there in topic.remote_members.items()
    ]
