"""Topics in memory with servers and the inbox in them, whose calls end as a test says."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from comity.adapters.memory.asks import MemoryAsks
from comity.adapters.memory.journal import MemoryJournal
from comity.kernel.approvals import Approvals
from comity.kernel.call import Call
from comity.kernel.catalog import Catalog, Kind, Offer
from comity.kernel.catalog_access import Tools
from comity.kernel.furnished import Furnished, Furnishing, Furniture
from comity.kernel.grants import Grants
from comity.kernel.journal import Journal, Pace
from comity.kernel.mounted import Mounted
from comity.kernel.outbox import Outbox
from comity.kernel.proposal_asks import Known
from comity.kernel.proposed import Proposals
from comity.kernel.topic_asks import TopicAsks
from comity.ports import Headers
from comity.rules.access import Access, Decided
from comity.rules.redaction import Redactor
from comity.wire import jsonrpc
from comity.wire.asks import ANSWER
from comity.wire.audit import Event
from comity.wire.grants import CALL, Effect, Grant
from comity.wire.jsonrpc import Frame
from comity.wire.parties import Actor, PartyKind
from tests.kernel.topic_house import ANA, BEA, Ear, Heard, House

FILES = "server:files"
INBOX = "system:inbox"
KEY = b"the same on every node"
USUAL_GRANTS = (
    Grant(ANA, ANSWER, "*", Effect.ALLOW),
    *(Grant(party, CALL, "files/*", Effect.ALLOW) for party in (ANA, BEA)),
)


@dataclass
class Left:
    """What was written down of a call that is on its way."""

    id: str = "call-1"
    has_left: bool = True


class Desk:
    """The way to a server that answers at once, or when a test lets it."""

    def __init__(self) -> None:
        self.asked: list[Frame] = []
        self.outboxes: list[Outbox] = []
        self.answer: dict[str, Any] | None = {"content": []}
        self.refuses = False

    async def ask_modern(self, frame: Frame, outbox: Outbox, headers: Headers) -> Call:
        call = Call(frame, outbox, None, 0.0)
        self.asked.append(frame)
        self.outboxes.append(outbox)
        if not self.refuses:
            call.record = Left()
        if self.answer is not None:
            self.finish(self.answer)
        return call

    def finish(self, answer: dict[str, Any], number: int = -1) -> None:
        frame = self.asked[number]
        assert isinstance(frame.id, int | str)
        self.outboxes[number].finish(jsonrpc.encode(jsonrpc.result(frame.id, answer)))

    def headers_for(self, frame: Frame) -> Headers:
        return ()

    def introduction(self, wanted: str | None) -> dict[str, object]:
        return {"protocolVersion": wanted}

    @property
    def actors(self) -> list[str]:
        return [outbox.actor.party for outbox in self.outboxes]


@dataclass
class FurnishedHouse(House):
    """One node: its topics, their furniture, and the inbox, which may be another's too."""

    furniture: Furniture = field(default_factory=lambda: Furniture(("files",)))
    asks: MemoryAsks | None = None
    granted: tuple[Grant, ...] = USUAL_GRANTS
    tools: Tools | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.servers = ["files"]
        self.desk = Desk()
        self.events: list[Event] = []
        self.judge = Grants(Access.of((), Decided(self.granted)), lambda: self.now)
        self.journal = Journal(MemoryJournal(), "n", Pace(timedelta(0)), lambda: self.now)
        self.journal.noted.append(self.events.append)
        self.asks = self.asks or MemoryAsks(lambda what, ids: None)
        self.approvals = Approvals(self.asks, self.judge, self.journal, clock=lambda: self.now)
        catalog = Catalog()
        catalog.put("files", Kind.TOOL, [Offer("files__write", "files", "write", b"{}")])
        redactor = Redactor(["hunter2hunter2"], KEY)
        self.known = Known(self.judge, catalog, self.tools, redactor.redact, KEY)
        self.proposals = Proposals(self.approvals, self.known, _person, self.journal)
        self.mounted = Mounted(
            lambda name: self.desk if name in self.servers else None,
            *(self.proposals, (redactor.hide, redactor.mark), self.journal),
        )
        self.furnishing = Furnishing(
            lambda _: self.furniture,
            self.grants,
            lambda: self.servers,
            lambda: self.time,
            lambda: self.now,
        )
        self.topic_asks = TopicAsks(self.approvals, lambda: list(self.furnishing.places.values()))
        self.furnishing.attendants += (self.mounted, self.proposals, self.topic_asks)
        self.furnishing.closed.append(self.proposals.closed)
        self.topics.furnish.append(self.furnishing.furnish)
        self.approvals.watchers += (self.proposals.heard, self.topic_asks.heard)

    @property
    def place(self) -> Furnished:
        return self.furnishing.places["ops"]

    def types(self) -> list[str]:
        return [str(event.type).removeprefix("dev.comity.") for event in self.events]

    async def settled(self) -> None:
        """Until everything has happened that follows from what was said."""
        for _ in range(3):
            for each in (self.proposals, self.mounted, self.topic_asks):
                await each.settle()

    def calls(self, party: str, id: str, about: str = "", name: str = "write") -> None:
        more: Heard = {"correlation_id": about} if about else {}
        self.says(party, id, f"mcp/request:tools/call:{name}", **more, to=[FILES], payload=a_call())

    def proposes(self, party: str, id: str, to: Iterable[str] = (FILES,)) -> None:
        payload = {"method": "tools/call", "params": a_call()["params"]}
        self.says(party, id, "mcp/proposal:tools/call:write", to=list(to), payload=payload)


def a_call(name: str = "write") -> Heard:
    params = {"name": name, "arguments": {"path": "/a"}}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}


def notices(ear: Ear) -> list[str]:
    return [each["payload"]["notice"] for each in ear.heard("system/notice")]


def responses(ear: Ear) -> list[Heard]:
    return [each for each in ear.heard() if each["kind"].startswith("mcp/response:")]


def _person(party: str) -> Actor:
    return Actor(party, PartyKind.PERSON)


@asynccontextmanager
async def furnished(**chosen: Any) -> AsyncGenerator[FurnishedHouse]:
    """One node, whose journal is kept as long as it is there."""
    house = FurnishedHouse(**chosen)
    async with house.journal.kept():
        yield house
