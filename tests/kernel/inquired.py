"""A link whose server asks people amid calls, the inbox that it asks through, and who answers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta

from comity.adapters.memory.asks import MemoryAsks
from comity.kernel.approvals import Approvals
from comity.kernel.call import Call
from comity.kernel.callbacks import Callbacks
from comity.kernel.elicited import Elicited
from comity.kernel.grants import Grants
from comity.kernel.inquiries import Inquiries
from comity.kernel.pulse import Speaking
from comity.kernel.question import Errand, Question
from comity.kernel.terms import STAND_IN
from comity.rules.access import Access
from comity.rules.negotiation import Terms
from comity.wire import jsonrpc
from comity.wire.asks import ANSWER, Ask, State, Verdict
from comity.wire.grants import Effect, Grant
from comity.wire.jsonrpc import Frame
from comity.wire.negotiation import Extension
from comity.wire.parties import Actor, PartyKind
from tests.kernel.carriers import WAIT_SECONDS, params_of, until
from tests.kernel.link_room import Room

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
ANA = Actor("person:ana@example.org", PartyKind.PERSON)
AGENT = Actor("agent:ci")
AGREED = Terms("0.3.0", frozenset({Extension.BIDIRECTIONAL}))


class Study:
    """The server at one end, people at the other."""

    def __init__(self, process: bool = True, *, stand_in: bool = True) -> None:
        self.now = NOW
        self.grants = Grants(Access.of([Grant(ANA.party, ANSWER, "*", Effect.ALLOW)]), self.clock)
        self.asks = MemoryAsks(lambda _what, _whose: None)
        self.approvals = Approvals(self.asks, self.grants, clock=self.clock)
        self.inquiries = Inquiries(self.approvals)
        self.callbacks = Callbacks(self.inquiries)
        self.elicited = Elicited(self.inquiries, timedelta(minutes=5), stand_in=stand_in)
        self.room = Room(process)
        self.room.link.mgp = AGREED
        self.room.link.hello = {}
        self.room.link.pulse.questions = self

    def clock(self) -> datetime:
        return self.now

    async def open(self) -> "Study":
        await self.room.link.open()
        return self

    # As a link's questions.

    @property
    def stand_ins(self) -> Mapping[str, object]:
        return STAND_IN if self.elicited.stand_in else {}

    def called_back(self, link: Speaking, frame: Frame, amid: Errand | None) -> bool:
        return self.callbacks.called_back(link, frame, amid)

    def instead(self, question: Question, frame: Frame) -> bool:
        return self.elicited.instead(question, frame)

    # What happens.

    def call(self) -> tuple[Call, Frame]:
        """A call of an agent's, and the request as the server sees it."""
        call, frame = self.room.call(name="delete", arguments={})
        call.outbox.actor, call.tool = AGENT, "delete"
        return call, frame

    def call_back(self, amid: Frame, of: str = "confirmation", **other: object) -> None:
        said = {"callback_id": "cb", "request_id": amid.id, "type": of, "message": "Sure?"}
        notice = jsonrpc.notification("notifications/mgp.callback.request", {**said, **other})
        self.room.carrier.says(notice, amid)

    def responses(self) -> list[tuple[object, object]]:
        """What the server was answered so far; it says that it heard."""
        asked = self.room.carrier.asked("mgp/callback/respond")
        for frame in asked:
            self.room.carrier.answers(frame, {})
        return [(params_of(each)["callback_id"], params_of(each)["response"]) for each in asked]

    async def asked(self, number: int = 1) -> list[Ask]:
        """The asks that are open, once there are so many."""
        found: list[Ask] = []

        async def look() -> bool:
            found[:] = await self.asks.page([State.PENDING])
            return len(found) >= number

        await self.eventually(look)
        return found

    async def eventually(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not await is_so():
                await asyncio.sleep(0)

    async def state(self, ask: Ask, state: State) -> Ask:
        """The ask once it is in this state."""
        found: list[Ask] = []

        async def look() -> bool:
            current = await self.asks.get(ask.id)
            found[:] = [] if current is None else [current]
            return current is not None and current.state is state

        await self.eventually(look)
        return found[0]

    async def answer(self, ask: Ask, verdict: Verdict = Verdict.ACCEPT, **content: object) -> Ask:
        return await self.approvals.answer(ANA, ask.id, verdict, "", content)

    async def told(self, number: int = 1) -> list[tuple[object, object]]:
        """What the server was answered, once it was so often."""
        await until(lambda: len(self.room.carrier.asked("mgp/callback/respond")) >= number)
        return self.responses()
