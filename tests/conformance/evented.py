"""A gateway whose events are followed by clients of both eras."""

import asyncio
from typing import Any

from comity.events.model import NOTICE
from tests.conformance.audited import Scene
from tests.conformance.governed import CLIENT, Guest
from tests.support.credentials import bearer
from tests.support.visitor import ENVELOPE, SECONDS, Frame, Reply

BOTH: Frame = {"mgp": {"version": "0.3.0", "extensions": ["bidirectional", "access_control"]}}


class Follower:
    """One who subscribed, by whichever era, and its stream."""

    def __init__(self, guest: Guest, stream: Reply, answer: Frame) -> None:
        self.guest = guest
        self.stream = stream
        self.answer = answer

    async def next(self) -> Frame:
        """What it is told next; of what is no event it takes no notice."""
        async with asyncio.timeout(SECONDS):
            while True:
                event = await self.stream.event()
                if event.data and event.frame["method"] == NOTICE:
                    return event.frame["params"]

    async def until(self, channel: str, **data: object) -> list[Frame]:
        """All that it is told up to an event of that channel with this data."""
        told: list[Frame] = []
        while not told or told[-1]["channel"] != channel or not data.items() <= _of(told[-1]):
            told.append(await self.next())
        return told


def _of(told: Frame) -> Any:
    return told["data"].items()


async def following(guest: Guest, *channels: str, **more: object) -> Follower:
    """A session that subscribed to channels, with its standing stream."""
    await guest.greet(**BOTH)
    guest.visitor.session = guest.session
    stream = await guest.visitor.get()
    return Follower(guest, stream, await subscribe(guest, *channels, **more))


async def subscribe(guest: Guest, *channels: str, **more: object) -> Frame:
    answer = await guest.ask("mgp/events/subscribe", {"channels": list(channels), **more})
    return answer["result"]


async def following_modern(guest: Guest, *channels: str, **more: object) -> Follower:
    """A stream of the modern era that asked for channels."""
    meta = {**ENVELOPE, CLIENT: BOTH}
    asked = {"notifications": {"mgp.events": {"channels": list(channels), **more}}, "_meta": meta}
    stream = await guest.visitor.ask_modern(
        "subscriptions/listen", asked, "ear", **bearer(guest.key)
    )
    agreed = (await stream.event()).frame
    return Follower(guest, stream, agreed["params"]["notifications"]["mgp.events"])


async def call(guest: Guest, tool: str = "read", server: str = "files", **given: Any) -> Frame:
    return await guest.ask("tools/call", {"name": f"{server}__{tool}", "arguments": given})


async def until_nobody_follows(scene: Scene) -> None:
    events = scene.visitor.parts.event_components.events
    async with asyncio.timeout(SECONDS):
        while len(events):
            await asyncio.sleep(0.02)
