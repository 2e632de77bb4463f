"""Topics in memory with servers and the inbox in them, whose calls end as a test says."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from comity.approvals.model import ANSWER_VERB
from comity.approvals.service import ApprovalService
from comity.approvals.store import SqlAsks
from comity.audit.events import AuditEvent
from comity.audit.log import AuditLog, CommitSettings
from comity.catalog.access import ToolReviewSource
from comity.catalog.catalog import Catalog
from comity.mcp import jsonrpc
from comity.mcp.actors import CALL, Actor, PrincipalKind
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.jsonrpc import Frame
from comity.policy.grants import Effect, Grant, GrantSet, StaticRules
from comity.policy.snapshot import GrantSnapshot
from comity.redaction.redact import Redactor
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.telemetry.tracing import Headers
from comity.topics.approvals import TopicApprovals
from comity.topics.gateway_members import ManagedTopic, ManagedTopics, TopicMembersConfig
from comity.topics.proposals import ProposalPolicy, ProposalService
from comity.topics.server_members import ServerMembers
from tests.support.inline_store import inline_journal, inline_records
from tests.support.topic_house import ANA, BEA, Ear, Heard, House

FILES = "server:files"
INBOX = "system:approvals"
KEY = b"the same on every node"
USUAL_GRANTS = (
    Grant(ANA, ANSWER_VERB, "*", Effect.ALLOW),
    *(Grant(party, CALL, "files/*", Effect.ALLOW) for party in (ANA, BEA)),
)


@dataclass
class Left:
    """What was written down of a call that is on its way."""

    id: str = "call-1"
    was_sent: bool = True


class Desk:
    """The way to a server that answers at once, or when a test lets it."""

    def __init__(self) -> None:
        self.asked: list[Frame] = []
        self.outboxes: list[ClientStream] = []
        self.answer: dict[str, Any] | None = {"content": []}
        self.refuses = False

    async def handle_modern_request(
        self, frame: Frame, client_stream: ClientStream, headers: Headers
    ) -> Call:
        call = Call(frame, client_stream, None, 0.0)
        self.asked.append(frame)
        self.outboxes.append(client_stream)
        if not self.refuses:
            call.record = Left()
        if self.answer is not None:
            self.finish(self.answer)
        return call

    def finish(self, answer: dict[str, Any], number: int = -1) -> None:
        frame = self.asked[number]
        assert isinstance(frame.id, int | str)
        self.outboxes[number].finish(jsonrpc.encode_frame(jsonrpc.make_result(frame.id, answer)))

    def headers_for(self, frame: Frame) -> Headers:
        return ()

    def initialize_result(self, version: str | None) -> dict[str, object]:
        return {"protocolVersion": version}

    @property
    def actors(self) -> list[str]:
        return [outbox.actor.party for outbox in self.outboxes]


@dataclass
class FurnishedHouse(House):
    """One node: its topics, their furniture, and the inbox, which may be another's too."""

    furniture: TopicMembersConfig = field(default_factory=lambda: TopicMembersConfig(("files",)))
    asks: SqlAsks | None = None
    granted: tuple[Grant, ...] = USUAL_GRANTS
    tools: ToolReviewSource | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.servers = ["files"]
        self.desk = Desk()
        self.events: list[AuditEvent] = []
        self.judge = GrantSnapshot(
            GrantSet.from_grants((), StaticRules(self.granted)), lambda: self.now
        )
        self.journal = AuditLog(
            inline_journal(), "n", CommitSettings(timedelta(0)), lambda: self.now
        )
        self.journal.event_listeners.append(self.events.append)
        self.asks = self.asks or inline_records().approval_requests
        self.approvals = ApprovalService(
            self.asks, self.judge, self.journal, clock=lambda: self.now
        )
        catalog = Catalog()
        catalog.put(
            "files", EntryKind.TOOL, [CatalogEntry("files__write", "files", "write", b"{}")]
        )
        redactor = Redactor(["hunter2hunter2"], KEY)
        self.known = ProposalPolicy(self.judge, catalog, self.tools, redactor.redact, KEY)
        self.proposals = ProposalService(self.approvals, self.known, _person, self.journal)
        self.mounted = ServerMembers(
            lambda name: self.desk if name in self.servers else None,
            *(self.proposals, (redactor.hide, redactor.mark), self.journal),
        )
        self.furnishing = ManagedTopics(
            lambda _: self.furniture,
            self.grants,
            lambda: self.servers,
            lambda: self.time,
            lambda: self.now,
        )
        self.topic_asks = TopicApprovals(
            self.approvals, lambda: list(self.furnishing.topics.values())
        )
        self.furnishing.handlers += (self.mounted, self.proposals, self.topic_asks)
        self.furnishing.close_listeners.append(self.proposals.on_topic_closed)
        self.topics.open_listeners.append(self.furnishing.add_members)
        self.approvals.watchers += (
            self.proposals.on_approval_changed,
            self.topic_asks.on_approval_changed,
        )

    @property
    def place(self) -> ManagedTopic:
        return self.furnishing.topics["ops"]

    def types(self) -> list[str]:
        return [str(event.type).removeprefix("dev.comity.") for event in self.events]

    async def settled(self) -> None:
        """Until everything has happened that follows from what was said."""
        for _ in range(3):
            for each in (self.proposals, self.mounted, self.topic_asks):
                await each.wait_until_idle()

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
    return Actor(party, PrincipalKind.PERSON)


@asynccontextmanager
async def furnished(**chosen: Any) -> AsyncGenerator[FurnishedHouse]:
    """One node, whose journal is kept as long as it is there."""
    house = FurnishedHouse(**chosen)
    async with house.journal.run():
        yield house
