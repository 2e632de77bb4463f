"""A desk whose one tool needs a person's yes each time, with asks and a journal in memory."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from comity.approvals.client_prompts import ElicitationPrompt, InputRequiredPrompt, TaskPrompt
from comity.approvals.model import ANSWER_OWN_VERB, ApprovalDecision, ApprovalRequest, ApprovalState
from comity.approvals.pending_calls import ApprovedCallSteps, PendingCalls
from comity.approvals.service import ApprovalService
from comity.approvals.settings import ApprovalSettings
from comity.audit.events import AuditEvent, AuditType
from comity.audit.log import AuditLog, CommitSettings
from comity.gateway.call_audit import ArgumentAuditLevel, CallAudit
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import Actor, PrincipalKind
from comity.mcp.entries import CatalogEntry
from comity.mcp.eras import TaskIds
from comity.mcp.refusals import Refusal
from comity.policy.grants import Decision, Effect, Grant, TargetSpecificity
from comity.policy.risk import Risk, TrustLevel
from comity.policy.snapshot import AllowAll
from comity.sessions.client_streams import ClientStream
from comity.sessions.sessions import Session
from comity.storage.changes import RecordKind
from tests.support.carriers import Params, Script, until
from tests.support.desks import MODERN, Asked, Front, all_servers, one_server
from tests.support.inline_store import inline_journal, inline_records

ANA = Actor("person:ana@example.org", PrincipalKind.PERSON)
BEA = Actor("person:bea@example.org", PrincipalKind.PERSON)
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
    is_always_confirmed: bool = True
    repeat_approval_reason: str | None = None
    cost: int = 1
    risk: Risk = Risk.DANGEROUS


class Grants(AllowAll):
    """Whoever is named may answer, and some of them for themselves."""

    def __init__(self) -> None:
        self.authorities = {ANA.party, BEA.party}
        self.own: set[str] = set()
        self.denied = False

    def authorize(
        self, actor: Actor, verb: str, server: str, name: str, view: str = ""
    ) -> Decision:
        if verb == protocol.CALL_TOOL:
            effect = Effect.DENY if self.denied else Effect.ASK
            return Decision(effect, "", level=TargetSpecificity.OFFER)
        may = actor.party in (self.own if verb == ANSWER_OWN_VERB else self.authorities)
        grant = Grant(actor.party, verb, "*", Effect.ALLOW)
        return Decision(Effect.ALLOW if may else Effect.DENY, "", grant if may else None)


@dataclass
class Tools:
    quorum: int = 1
    refusal: Refusal | None = None
    version: str = "first"

    def review_of(self, entry: CatalogEntry) -> Standing:
        return Standing(f"{entry.name} {self.version}", self.quorum, self.refusal)

    def risk_reasons_of(self, entry: CatalogEntry) -> list[str]:
        return []

    def with_listed_definition(
        self, catalog_entry: CatalogEntry, entry: Mapping[str, object]
    ) -> CatalogEntry:
        return catalog_entry

    def trust_of(self, server: str) -> TrustLevel:
        return TrustLevel.STANDARD


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
    options: ApprovalSettings = field(default_factory=ApprovalSettings)

    def __post_init__(self) -> None:
        self.time, self.grants, self.tools = Time(), Grants(), Tools()
        self.asks = inline_records(self._told).approval_requests
        self.journal = AuditLog(inline_journal(), "node", CommitSettings(timedelta(milliseconds=1)))
        self.events: list[AuditEvent] = []
        self.journal.listeners.append(self.events.append)
        self.approvals = ApprovalService(
            self.asks, self.grants, self.journal, self.options, self.time
        )
        gate, recorder = (
            self.front.call_gate,
            CallAudit(self.journal, ArgumentAuditLevel.ALL),
        )
        recorder.set_run_name("run")
        self.admission = gate.pipeline
        self.admission.tools = self.tools
        self.admission.intent_recorder = self.front.underway.outcome_recorder = recorder
        self.last_steps = ApprovedCallSteps(self.tools, recorder)
        self.holding = PendingCalls(
            self.approvals, self.last_steps, self.grants, self.front.catalog
        )
        self.own_tasks = TaskPrompt(TaskIds(b"k" * 32), self.time)
        self.admission.own_tasks = self.own_tasks
        self.holding.client_prompts = [InputRequiredPrompt(), ElicitationPrompt(), self.own_tasks]
        self.admission.approvals = self.holding
        self._ids = itertools.count(1)

    def _told(self, what: RecordKind, ids: object) -> None:
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
        meta = {**MODERN, protocol.CLIENT_CAPABILITIES: capabilities or {}}
        meta |= members.pop("meta", {})  # type: ignore[arg-type]  # a test's own mapping
        return self._asked(None, actor, {**self._params(arguments, members), "_meta": meta})

    def _params(self, arguments: Params | None, members: Params) -> Params:
        return {"name": "delete", "arguments": ARGUMENTS if arguments is None else arguments} | (
            members
        )

    def ask(self, session: Session | None, actor: Actor, method: str, params: Params) -> Asked:
        """Any request, of either era."""
        if session is None:
            params = {"_meta": {**MODERN, protocol.CLIENT_CAPABILITIES: TASKS}, **params}
        return self._asked(session, actor, params, method)

    def _asked(
        self,
        session: Session | None,
        actor: Actor,
        params: Params,
        method: str = protocol.CALL_TOOL,
    ) -> Asked:
        frame = jsonrpc.make_request(next(self._ids), method, params)
        # Every byte comes the way it would come.
        frame = jsonrpc.decode_frame(jsonrpc.encode_frame(frame))
        outbox = ClientStream()
        outbox.actor = actor
        desk = self.front.desk
        asking = (
            desk.handle_modern_request(frame, outbox, ())
            if session is None
            else desk.handle_request(session, frame, outbox)
        )
        return Asked(outbox, asyncio.ensure_future(asking))

    # What came of it.

    @property
    def runs(self) -> int:
        """How often the server was told to do it."""
        return sum(len(carrier.asked(protocol.CALL_TOOL)) for carrier in self.script.carriers)

    async def open_ask(self) -> ApprovalRequest:
        """The one question that waits for an answer."""
        async with asyncio.timeout(10):
            while True:
                found = await self.asks.page((ApprovalState.PENDING, ApprovalState.DEFERRED))
                if found:
                    return found[-1]
                await asyncio.sleep(0)

    async def answer(
        self, verdict: ApprovalDecision = ApprovalDecision.ACCEPT, by: Actor = ANA
    ) -> ApprovalRequest:
        return await self.approvals.answer(by, (await self.open_ask()).id, verdict)

    async def answer_to(
        self, ask: ApprovalRequest, verdict: ApprovalDecision = ApprovalDecision.ACCEPT
    ) -> ApprovalRequest:
        return await self.approvals.answer(ANA, ask.id, verdict)

    async def told(self) -> list[str]:
        """What the journal says, in order."""
        await self.journal.flush()
        return [AuditType(event.type).name for event in self.events]

    async def nothing_waits(self) -> None:
        await until(lambda: not len(self.holding.background_tasks))


@asynccontextmanager
async def asking(
    script: Script | None = None,
    options: ApprovalSettings | None = None,
    *,
    at_all: bool = False,
) -> AsyncGenerator[Bed]:
    """The door of one server, or of all, whose one tool is asked about."""
    script = script or Script()
    script.replies = {
        protocol.LIST_TOOLS: {"tools": [TOOL]},
        protocol.CALL_TOOL: lambda _: DONE,
        **script.replies,
    }
    opened = all_servers({"files": script}) if at_all else one_server(script)
    async with opened as front:
        bed = Bed(front, script, options or ApprovalSettings())
        async with bed.journal.run():
            try:
                yield bed
            finally:
                bed.own_tasks.background_tasks.cancel()
                bed.holding.stop()
                bed.approvals.stop()
