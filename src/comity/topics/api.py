"""Operator API for topics: their members, and what a principal may send. (MCPx §11.3)

The MCPx document defines the path `POST /admin/participants/{id}/capabilities`.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from comity.errors import NOTHING_HERE, MalformedMessage
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission, View
from comity.http.api_input import EmptyQuery, RequestBody
from comity.http.asgi import PARTICIPANTS
from comity.policy.grants import ANY_TARGET
from comity.toolkit.text import format_timestamp
from comity.topics.service import CapabilityAdmin, TopicService
from comity.topics.topic import Topic

_MAX_SHOWN: Final = 1_000

type Clock = Callable[[], datetime]


class CapabilityChangeBody(RequestBody, frozen=True):
    """Capabilities to add and remove, in one topic or in all topics."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    topic: str = ANY_TARGET


class ParticipantsApi:
    """Routes for topics, their members and the capabilities of each participant."""

    def __init__(
        self,
        topics: TopicService,
        capability_admin: CapabilityAdmin,
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self._topics = topics
        self._capability_admin = capability_admin
        self._clock = clock

    @property
    def routes(self) -> ApiRoutes:
        read, write = Permission.ADMIN_READ, Permission.ADMIN_WRITE
        capabilities = PARTICIPANTS + "{principal:path}/capabilities"
        return (
            ApiRoute("GET", "/api/topics", read, self._list_topics, EmptyQuery),
            ApiRoute("GET", "/api/topics/{topic}", read, self._show_topic, EmptyQuery),
            ApiRoute("GET", capabilities, read, self._show_capabilities, EmptyQuery),
            ApiRoute("POST", capabilities, write, self._change, CapabilityChangeBody),
        )

    async def _show_capabilities(self, request: ApiRequest[EmptyQuery]) -> View:
        party = request.path["principal"]
        return {
            "participantId": party,
            "capabilities": self._capability_admin.of(party, ANY_TARGET),
        }

    async def _change(self, request: ApiRequest[CapabilityChangeBody]) -> View:
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

    async def _list_topics(self, _: ApiRequest[EmptyQuery]) -> View:
        listed = sorted(self._topics.topics.values(), key=lambda topic: topic.name)
        shown = [{"topic": each.name, "members": each.member_count} for each in listed]
        return {"topics": shown[:_MAX_SHOWN], "total": len(shown)}

    async def _show_topic(self, request: ApiRequest[EmptyQuery]) -> View:
        topic = self._topics.topics.get(request.path["topic"])
        if topic is None:
            told = "this topic has no members; `comity topics` lists the others"
            raise MalformedMessage(told, NOTHING_HERE)
        return {"topic": topic.name, "participants": _members(topic)[:_MAX_SHOWN]}


def _members(topic: Topic) -> list[View]:
    here: list[View] = [
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
