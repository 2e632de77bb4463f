"""Topics for operators: who is where, and what somebody may send, changed at once. (MCPx §11.3)

`POST /admin/participants/{id}/capabilities` is the document's; `/api/topics` shows what there is.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, cast

from comity.kernel.promotion import Promotion
from comity.kernel.rooms import Room as Topic
from comity.kernel.topics import Topics
from comity.surfaces.asked import Asked, Room, View, read_json, refuse_other_sites
from comity.surfaces.doorway import Receive, Scope, Send, answer, empty
from comity.surfaces.gateway import ACTOR, PARTICIPANTS
from comity.wire import jsonrpc
from comity.wire.audit import stamp
from comity.wire.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.wire.grants import EVERYTHING
from comity.wire.parties import NOBODY, Actor

_SUFFIX: Final = "/capabilities"
_MEMBERS: Final = frozenset({"add", "remove", "topic"})
_MOST_SHOWN: Final = 1_000
_FRESH: Final = ((b"cache-control", b"no-store"),)

type Clock = Callable[[], datetime]


class ParticipantsApi:
    """The document's own endpoint, and the room of `/api/topics`."""

    def __init__(
        self, topics: Topics, promotion: Promotion, clock: Clock = lambda: datetime.now(UTC)
    ) -> None:
        self._topics = topics
        self._promotion = promotion
        self._clock = clock

    @property
    def rooms(self) -> dict[str, Room]:
        return {"topics": self._look}

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        actor: Actor = scope.get(ACTOR, NOBODY)
        party = scope["path"].removeprefix(PARTICIPANTS).removesuffix(_SUFFIX)
        if not scope["path"].endswith(_SUFFIX) or not party:
            raise MalformedMessage(f"the path is {PARTICIPANTS}ID{_SUFFIX}", NOTHING_HERE)
        if scope["method"] not in ("GET", "POST"):
            await empty(send, 405, ((b"allow", b"GET, POST"),))
            return
        if scope["method"] == "GET":
            capabilities = self._promotion.of(party, EVERYTHING)
            told: dict[str, object] = {"participantId": party, "capabilities": capabilities}
        else:
            refuse_other_sites(headers)
            told = await self._change(actor, party, await read_json(headers, receive))
        await answer(send, 200, jsonrpc.to_json(told), _FRESH)

    async def _change(self, actor: Actor, party: str, body: dict[str, object]) -> dict[str, object]:
        strangers = body.keys() - _MEMBERS
        if strangers:
            raise MalformedMessage(
                f"{min(strangers)!r} is not known here; send add, remove and topic", INVALID_PARAMS
            )
        topic = body.get("topic", EVERYTHING)
        if not isinstance(topic, str):
            raise MalformedMessage("topic must be the name of a topic, or *", INVALID_PARAMS)
        add, remove = (_texts(body.get(name, []), name) for name in ("add", "remove"))
        changed = await self._promotion.change(actor, party, topic, add, remove)
        return {
            "participantId": changed.party,
            "oldCapabilities": changed.before,
            "newCapabilities": changed.now,
            "modifiedBy": actor.party,
            "modifiedAt": stamp(self._clock()),
        }

    async def _look(self, asked: Asked) -> View:
        """Every topic of this node, or one of them with its members."""
        if asked.method != "GET" or len(asked.place) > 1:
            raise MalformedMessage("there is nothing here; GET /api/topics", NOTHING_HERE)
        if not asked.place:
            listed = sorted(self._topics.rooms.values(), key=lambda room: room.name)
            shown = [{"topic": each.name, "members": each.members} for each in listed]
            return {"topics": shown[:_MOST_SHOWN], "total": len(shown)}
        room = self._topics.rooms.get(asked.place[0])
        if room is None:
            told = "nobody is in a topic of that name here; `comity topic list` lists the others"
            raise MalformedMessage(told, NOTHING_HERE)
        return {"topic": room.name, "participants": _members(room)[:_MOST_SHOWN]}


def _members(room: Topic) -> list[View]:
    here: list[View] = [
        {
            "connectionId": seat.connection,
            "participantId": seat.party,
            "capabilities": seat.may.listed,
            "connectedAt": "" if seat.joined_at is None else stamp(seat.joined_at),
            "mode": seat.mode,
            "missed": seat.missed.count,
        }
        for seat in room.seats.values()
    ]
    return here + [
        {"participantId": party, "capabilities": there.capabilities, "node": there.node}
        for party, there in room.elsewhere.items()
    ]


def _texts(given: object, name: str) -> list[str]:
    found = cast("list[object]", given) if isinstance(given, list) else [None]
    texts = [each for each in found if isinstance(each, str)]
    if len(texts) < len(found):
        raise MalformedMessage(f"{name} must be a list of capabilities", INVALID_PARAMS)
    return texts
