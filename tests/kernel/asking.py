"""A desk whose one tool needs a person's yes each time, with asks and a journal in memory."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from comity.adapters.memory.asks import MemoryAsks
from comity.adapters.memory.journal import MemoryJournal
from comity.kernel.approvals import Approvals, AskOptions
from comity.kernel.catalog import Offer
from comity.kernel.grants import AllowAll
from comity.kernel.held import Holding
from comity.kernel.journal import Journal, Pace
from comity.kernel.outbox import Outbox
from comity.kernel.own_rounds import OwnRounds
from comity.kernel.own_tasks import OwnTasks
from comity.kernel.recording import Arguments, Recorder
from comity.kernel.sessions import Session
from comity.kernel.url_asks import StreamAsks
from comity.ports import Kept
from comity.rules.access import Judgement
from comity.rules.patterns import Level
from comity.rules.refusals import Refusal
from comity.rules.tasks import TaskNames
from comity.wire import jsonrpc, mcp
from comity.wire.asks import ANSWER_OWN, Ask, State, Verdict
from comity.wire.audit import Event, Type
from comity.wire.grants import Effect, Grant
from comity.wire.parties import Actor, PartyKind
from comity.wire.security import Risk
from tests.kernel.carriers import Params, Script, until
from tests.kernel.desks import MODERN, Asked, Front, all_servers, one_server

ANA = Actor("person:ana@example.org", PartyKind.PERSON)
BEA = Actor("person:bea@example.org", PartyKind.PERSON)
AGENT = Actor("agent:ci")
OTHER = Actor("agent:other")
TOOL: Params = {"name": "delete", "inputSchema": {"type": "object"}}
DONE: Params = {"content": [{"type": "text", "text": "deleted"}]}
ARGUMENTS: Params = {"path": "/tmp/x"}
FORM: Params = {"elicitation": {"form": {}}}
TASKS: Params = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
PAGE: Params = {"elicitation": {"form": {}, "url": {}}}


@dataclass(frozen=True)
class Standing:
    """A tool that each time needs a person's yes."""

    digest: str
    quorum: int = 1
    refusal: Refusal | None = None
    must_be_confirmed: bool = True
    is_confirmed_always: bool = True
    asked_each_time: str | None = None
    cost: int = 1
    risk: Risk = Risk.DANGEROUS


class Grants(AllowAll):
    """Whoever is named may answer, and some of them for themselves."""

    def __init__(self) -> None:
        self.authorities = {ANA.party, BEA.party}
        self.own: set[str] = set()
        self.denied = False

    def judge(self, actor: Actor, verb: str, server: str, name: str) -> Judgement:
        if verb == mcp.CALL_TOOL:
            effect = Effect.DENY if self.denied else Effect.ASK
            return Judgement(effect, "", level=Level.OFFER)
        may = actor.party in (self.own if verb == ANSWER_OWN else self.authorities)
        grant = Grant(actor.party, verb, "*", Effect.ALLOW)
        return Judgement(Effect.ALLOW if may else Effect.DENY, "", grant if may else None)


@dataclass
class Tools:
    quorum: int = 1
    refusal: Refusal | None = None
    version: str = "first"

    def standing(self, offer: Offer) -> Standing:
        return Standing(f"{offer.name} {self.version}", self.quorum, self.refusal)

    def as_shown(self, offer: Offer, entry: Mapping[str, object]) -> Offer:
        return offer


class Time:
    """The time of day, which passes when a test says so."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def passes(self, length: timedelta) -> None:
        self.now += length


@dataclass
class Bed:
    """Everything behind one door, and who is asked."""

    front: Front
    script: Script
    options: AskOptions = field(default_factory=AskOptions)

    def __post_init__(self) -> None:
        self.time, self.grants, self.tools = Time(), Grants(), Tools()
        self.asks = MemoryAsks(self._told)
        self.journal = Journal(MemoryJournal(), "node", Pace(timedelta(milliseconds=1)))
        self.events: list[Event] = []
        self.journal.listeners.append(self.events.append)
        self.approvals = Approvals(self.asks, self.grants, self.journal, self.options, self.time)
        gate, recorder = self.front.gate, Recorder(self.journal, lambda it: it, Arguments.ALL)
        recorder.begin_run("run")
        self.admission = gate.admission
        self.admission.tools = self.tools
        self.admission.recording = self.front.underway.recorder = recorder
        self.holding = Holding(self.approvals, self.admission, self.grants, self.front.catalog)
        self.own_tasks = OwnTasks(TaskNames(b"k" * 32), self.time)
        self.admission.own_tasks = self.own_tasks
        self.holding.forms = [OwnRounds(), StreamAsks(), self.own_tasks]
        self.admission.asking = self.holding
        self._ids = itertools.count(1)

    def _told(self, what: Kept, ids: object) -> None:
        """Nobody else looks at these records."""

    # Who calls.

    def call(
        self,
        session: Session,
        actor: Actor = AGENT,
        arguments: Params | None = None,
        **members: object,
    ) -> Asked:
        """A call of the tool by a handshake client."""
        return self._asked(session, actor, self._params(arguments, members))

    def call_modern(
        self,
        actor: Actor = AGENT,
        arguments: Params | None = None,
        capabilities: Params | None = None,
        **members: object,
    ) -> Asked:
        meta = {**MODERN, mcp.CLIENT_CAPABILITIES: capabilities or {}}
        meta |= members.pop("meta", {})  # type: ignore[arg-type]  # a test's own mapping
        return self._asked(None, actor, {**self._params(arguments, members), "_meta": meta})

    def _params(self, arguments: Params | None, members: Params) -> Params:
        return {"name": "delete", "arguments": ARGUMENTS if arguments is None else arguments} | (
            members
        )

    def ask(self, session: Session | None, actor: Actor, method: str, params: Params) -> Asked:
        """Any request, of either era."""
        if session is None:
            params = {"_meta": {**MODERN, mcp.CLIENT_CAPABILITIES: TASKS}, **params}
        return self._asked(session, actor, params, method)

    def _asked(
        self, session: Session | None, actor: Actor, params: Params, method: str = mcp.CALL_TOOL
    ) -> Asked:
        frame = jsonrpc.request(next(self._ids), method, params)
        # Every byte comes the way it would come.
        frame = jsonrpc.decode(jsonrpc.encode(frame))
        outbox = Outbox()
        outbox.actor = actor
        desk = self.front.desk
        asking = (
            desk.ask_modern(frame, outbox, ())
            if session is None
            else desk.ask(session, frame, outbox)
        )
        return Asked(outbox, asyncio.ensure_future(asking))

    # What came of it.

    @property
    def runs(self) -> int:
        """How often the server was told to do it."""
        return sum(len(carrier.asked(mcp.CALL_TOOL)) for carrier in self.script.carriers)

    async def open_ask(self) -> Ask:
        """The one question that waits for an answer."""
        async with asyncio.timeout(10):
            while True:
                found = await self.asks.page((State.PENDING, State.DEFERRED))
                if found:
                    return found[-1]
                await asyncio.sleep(0)

    async def answer(self, verdict: Verdict = Verdict.ACCEPT, by: Actor = ANA) -> Ask:
        return await self.approvals.answer(by, (await self.open_ask()).id, verdict)

    async def answer_to(self, ask: Ask, verdict: Verdict = Verdict.ACCEPT) -> Ask:
        return await self.approvals.answer(ANA, ask.id, verdict)

    async def told(self) -> list[str]:
        """What the journal says, in order."""
        await self.journal.flush()
        return [Type(event.type).name for event in self.events]

    async def nothing_waits(self) -> None:
        await until(lambda: not len(self.holding.chores))


@asynccontextmanager
async def asking(
    script: Script | None = None,
    options: AskOptions | None = None,
    *,
    at_all: bool = False,
) -> AsyncGenerator[Bed]:
    """The door of one server, or of all, whose one tool is asked about."""
    script = script or Script()
    script.replies = {
        mcp.LIST_TOOLS: {"tools": [TOOL]},
        mcp.CALL_TOOL: lambda _: DONE,
        **script.replies,
    }
    opened = all_servers({"files": script}) if at_all else one_server(script)
    async with opened as front:
        bed = Bed(front, script, options or AskOptions())
        async with bed.journal.kept():
            try:
                yield bed
            finally:
                bed.own_tasks.chores.cancel()
                bed.holding.stop()
                bed.approvals.stop()
