"""What may happen while a call waits for a person, played with every client.

Each story has a tool of its own for each client, so that they are told side by side and never meet.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from comity.audit.events import AuditEvent
from tests.interop.approving.callers import Caller, Kind, Said, SdkCaller
from tests.interop.approving.stage import SECONDS, Gateway, Person

APPROVE: Said = {"action": "accept", "content": {"decision": "approve"}}
UNSURE = ("policy_unknown", "late")
"""What a client hears, or not, of a gateway that was starved for a moment: it calls again."""

DECLINE: Said = {"action": "accept", "content": {"decision": "decline"}}


@dataclass
class Cell:
    """What came of one story with one client."""

    kind: Kind
    story: str
    said: list[Said] = field(default_factory=list[Said])
    runs: int = 0
    events: list[AuditEvent] = field(default_factory=list[AuditEvent])
    failure: Exception | None = None

    @property
    def tool(self) -> str:
        return f"{self.story}_{self.kind.id}"


@dataclass
class Scene:
    """One cell under way."""

    cell: Cell
    person: Person
    caller: Caller

    @property
    def gateway(self) -> Gateway:
        return self.person.gateway

    @property
    def tool(self) -> str:
        return self.cell.tool

    def begin(self) -> asyncio.Task[Said]:
        return asyncio.create_task(self.caller.call(self.gateway, self.tool))

    async def asked(self) -> tuple[str, asyncio.Task[Said]]:
        """Call, until somebody is asked about it; whoever does not wait has been let go by then."""
        asking = asyncio.create_task(self.person.ask_about(self.tool))
        call = self.begin()
        while not asking.done():
            await asyncio.wait([asking, call], return_when=asyncio.FIRST_COMPLETED)
            if call.done() and not asking.done():
                await asyncio.wait([asking], timeout=1)
            if call.done() and not asking.done():
                # It gave up before anybody was asked, or the gateway was starved for a moment.
                call = self.begin()
        ask = (await asking)["id"]
        if isinstance(self.caller, SdkCaller) and (self.cell.kind.answers or self.cell.kind.visits):
            await self.caller.asked(self.tool)
        if isinstance(self.caller, SdkCaller) and self.cell.kind.visits:
            self.caller.say(self.tool, {"action": "accept"})
        elif not self.cell.kind.waits:
            self.cell.said.append(await call)
        return ask, call

    async def decide(self, ask: str, verdict: str) -> None:
        """An authority's word; or the client's own, where it is asked itself."""
        if isinstance(self.caller, SdkCaller) and self.cell.kind.answers:
            self.caller.say(self.tool, APPROVE if verdict == "accept" else DECLINE)
        else:
            await self.person.decide(ask, verdict)

    async def end(self, call: asyncio.Task[Said]) -> Said:
        """What the client hears in the end, if need be by calling again."""
        if not self.cell.kind.waits:
            call = self.begin()
        while (said := await call)["kind"] in UNSURE:
            call = self.begin()
        self.cell.said.append(said)
        return said


async def approved(scene: Scene) -> None:
    ask, call = await scene.asked()
    await scene.decide(ask, "accept")
    await scene.end(call)


async def declined(scene: Scene) -> None:
    ask, call = await scene.asked()
    await scene.decide(ask, "decline")
    await scene.end(call)


async def expired(scene: Scene) -> None:
    """Nobody says anything until it is too late; and then it is."""
    ask, call = await scene.asked()
    found = await scene.person.ask_about(scene.tool, "expired")
    assert found["id"] == ask
    assert (await scene.person.answer(ask, "accept"))[0] == 400
    if scene.cell.kind.answers:
        await scene.decide(ask, "accept")
    if scene.cell.kind.waits:
        scene.cell.said.append(await call)


async def left(scene: Scene) -> None:
    """The client goes without a word, is approved then, and calls again."""
    ask, call = await scene.asked()
    await scene.caller.leave()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await scene.person.decide(ask, "accept")
    again = scene.begin()
    async with asyncio.timeout(SECONDS):
        while scene.gateway.runs(scene.tool) == 0:
            again = scene.begin() if again.done() else again
            await asyncio.sleep(0.1)
    # Whether this one ran or the first did, nobody approves another.
    await asyncio.wait([again], timeout=10)
    await scene.caller.leave()
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)


async def drifted(scene: Scene) -> None:
    """The tool becomes another while somebody thinks about it."""
    ask, call = await scene.asked()
    (scene.gateway.folder / f"{scene.tool}.drift").touch()
    owner = Person(scene.gateway, scene.person.http, scene.caller.party)
    async with asyncio.timeout(SECONDS):
        while scene.tool in await owner.listed():
            await asyncio.sleep(0.1)
    await scene.decide(ask, "accept")
    await scene.end(call)


STORIES: dict[str, Callable[[Scene], Awaitable[None]]] = {
    "approved": approved,
    "declined": declined,
    "left": left,
    "drifted": drifted,
}


async def killed(scene: Scene, waits: asyncio.Event, is_back: asyncio.Event) -> None:
    """The gateway is killed while the call waits; after it is back, the client calls again."""
    ask, call = await scene.asked()
    waits.set()
    await is_back.wait()
    if isinstance(scene.caller, SdkCaller) and scene.cell.kind.answers:
        # The round goes on at a gateway that has never heard of it.
        scene.caller.say(scene.tool, APPROVE)
        scene.cell.said.append(await call)
        return
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await scene.person.decide(ask, "accept")
    while (said := await scene.begin())["kind"] in UNSURE:
        pass
    scene.cell.said.append(said)


async def play(scene: Scene, story: Awaitable[None]) -> None:
    """A story to its end; what goes wrong in it is its own cell's."""
    try:
        async with asyncio.timeout(2 * SECONDS):
            await story
    except Exception as error:
        scene.cell.failure = error
