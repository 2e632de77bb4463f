"""Channels at /api/channels: which there are, opened, closed, and something said in one."""

import secrets
from collections.abc import Mapping
from typing import Any, Final, cast

from comity.kernel.live.channel_places import LivePlaces
from comity.kernel.live.channel_publishing import Words
from comity.kernel.live.channels import Shown
from comity.rules.channels import Place
from comity.surfaces.asked import Asked, Room, View
from comity.wire.contents import said
from comity.wire.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage

LONGEST_SAID: Final = 64 * 1024


class ChannelsApi:
    """What servers bring words to, for those who may administer the gateway."""

    def __init__(self, places: LivePlaces) -> None:
        self._channels = places.ways.channels
        self._places = places

    @property
    def rooms(self) -> dict[str, Room]:
        return {"channels": self.channels}

    async def channels(self, asked: Asked) -> View:
        match asked.method, asked.place:
            case "GET", ():
                return {"channels": [_view(each) for each in self._channels.shown()]}
            case "POST", ("open" | "close" | "say" as deed,):
                return await self._do(deed, asked.body)
            case _:
                raise MalformedMessage("there is no such address under /api/channels", NOTHING_HERE)

    async def _do(self, deed: str, body: Mapping[str, object]) -> View:
        server = _text(body, "server")
        if deed == "open":
            return await self._open(server, body)
        id = _text(body, "channel")
        if deed == "close":
            return {"server": server, "channel": id, "closed": await self._close(server, id)}
        words = Words(f"say:{secrets.token_hex(16)}", "", said(_text(body, "text")))
        message = await self._places.pass_on(Place(id, server), words)
        return {"server": server, "channel": id, "delivered": True, "message": message or None}

    async def _open(self, server: str, body: Mapping[str, object]) -> View:
        if "channel" in body:
            found = await self._channels.reopen(server, _text(body, "channel"))
        else:
            address, metadata = _object(body, "address"), _object(body, "metadata")
            found = await self._channels.open(server, _text(body, "type"), address, metadata)
        return _view(Shown(server, found, "open"))

    async def _close(self, server: str, id: str) -> bool:
        return await self._channels.close(server, id)


def _view(shown: Shown) -> dict[str, object]:
    found = shown.descriptor
    return {
        "server": shown.server,
        "id": found.id,
        "type": found.type,
        "label": found.label,
        "direction": found.direction,
        "address": found.address,
        "metadata": found.metadata,
        "state": shown.state,
    }


def _text(body: Mapping[str, object], name: str) -> str:
    found = body.get(name)
    if not isinstance(found, str) or not 0 < len(found) <= LONGEST_SAID:
        raise MalformedMessage(f"{name} must be a text", INVALID_PARAMS)
    return found


def _object(body: Mapping[str, object], name: str) -> Mapping[str, Any]:
    found = body.get(name, {})
    if not isinstance(found, dict):
        raise MalformedMessage(f"{name} must be an object", INVALID_PARAMS)
    return cast("dict[str, Any]", found)
