"""What is written down of calls, by their class: one entry, two that are waited for, or none."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from msgspec import Raw

from comity.audit.events import AuditEvent, AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.catalog.access import ToolReviewStatus
from comity.errors import (
    CODE_UNSAFE,
    RATE_LIMITED,
    UNAUTHENTICATED,
    VALIDATION_BLOCKED,
    Fault,
)
from comity.gateway.call_audit import (
    DEFAULT_CLASSES,
    ArgumentAuditLevel,
    AuditClass,
    CallAudit,
)
from comity.gateway.retries import RetryService
from comity.mcp import jsonrpc, protocol
from comity.mcp.entries import CatalogEntry
from comity.mcp.refusals import Refusal
from comity.policy.grants import Effect, Grant
from comity.policy.risk import Risk, ServerPolicy, ToolPolicy, TrustLevel
from tests.support.carriers import Params, Script, until
from tests.support.cases import loop_over
from tests.support.desks import Asked, Front, all_servers
from tests.support.journals import FailingStore, events, kept

ADD = "a__add"
TOOLS: Params = {"tools": [{"name": "add"}]}


@dataclass(frozen=True)
class Fixed:
    """A tool that stands as the test says."""

    risk: Risk = Risk.DANGEROUS
    refusal: Refusal | None = None
    must_be_confirmed: bool = False
    is_always_confirmed: bool = False
    cost: int = 1
    digest: str = "d"
    quorum: int = 1
    repeat_approval_reason: str | None = None


@dataclass
class Tools:
    now: Fixed

    def review_of(self, entry: CatalogEntry) -> ToolReviewStatus:
        return self.now

    def risk_reasons_of(self, entry: CatalogEntry) -> list[str]:
        return []

    def with_listed_definition(self, catalog_entry: CatalogEntry, entry: object) -> CatalogEntry:
        return catalog_entry

    def trust_of(self, server: str) -> TrustLevel:
        return TrustLevel.STANDARD


class Refusing:
    """Looks at arguments, and may refuse them."""

    def __init__(self) -> None:
        self.refusal: Refusal | None = None

    def check_for(self, entry: CatalogEntry) -> Callable[[object], Refusal | None]:
        return lambda _: self.refusal


class Recorded:
    """A front whose calls are written down."""

    def __init__(self, front: Front, store: FailingStore, inspection: Refusing) -> None:
        self.front = front
        self.store = store
        self.inspection = inspection

    async def call(self, arguments: object = None, **meta: object) -> Asked:
        params: Params = {"name": ADD, "arguments": arguments or {"x": 1}}
        if meta:
            params["_meta"] = meta
        return self.front.ask(await self.front.client(), protocol.CALL_TOOL, params)

    @property
    def recorder(self) -> CallAudit:
        found = self.front.call_gate.pipeline.intent_recorder
        assert isinstance(found, CallAudit)
        return found

    @property
    def journal(self) -> AuditLog:
        return self.recorder._audit_log  # pyright: ignore[reportPrivateUsage]  # to fill it

    def sent(self) -> list[jsonrpc.Frame]:
        return [
            f for each in self.front.scripts["a"].carriers for f in each.asked(protocol.CALL_TOOL)
        ]

    async def events(self) -> list[AuditEvent]:
        found = await events(self.store)
        return [each for each in found if not each.type.startswith("dev.comity.audit_log")]


@asynccontextmanager
async def recorded(
    risk: Risk,
    arguments: ArgumentAuditLevel = ArgumentAuditLevel.RISKY,
    *,
    answers: bool = True,
    is_lasting: bool = True,
    classes: Mapping[Risk, AuditClass] = DEFAULT_CLASSES,
) -> AsyncGenerator[Recorded]:
    store, inspection = FailingStore(), Refusing()
    replies: Params = {protocol.LIST_TOOLS: TOOLS}
    if answers:
        replies[protocol.CALL_TOOL] = {"content": [], "isError": False}
    async with all_servers({"a": Script(replies=replies)}) as front, kept(store) as journal:
        journal.is_durable = is_lasting
        recorder = CallAudit(journal, arguments, classes=classes)
        recorder.set_run_name("run")
        admission = front.call_gate.pipeline
        admission.tools, admission.argument_checker = Tools(Fixed(risk)), inspection
        admission.intent_recorder = front.underway.outcome_recorder = recorder
        yield Recorded(front, store, inspection)


@loop_over("risk", [Risk.SAFE, Risk.MODERATE])
async def test_a_deferred_call_has_one_entry_after_its_answer(risk: Risk) -> None:
    async with recorded(risk) as at:
        at.store.gate.clear()
        await (await at.call()).result()
        at.store.gate.set()
        await until(lambda: sum(at.store.commits) >= 2)
        (only,) = await at.events()
    assert (only.type, only.result, only.server, only.tool) == (
        *(AuditType.TOOL_EXECUTED, AuditResult.SUCCESS, "a", "add"),
    )
    assert only.call == "run-1"
    assert only.details["risk_level"] == risk
    assert only.details["outcome"] == "ok"
    assert "duration_ms" in only.details
    assert "arguments_digest" in only.details
    assert ("arguments" in only.details) is (risk is Risk.MODERATE)
    assert len(only.trace) == 32


ALL_DURABLE = dict.fromkeys(Risk, AuditClass.DURABLE)


@loop_over("risk", [Risk.SAFE, Risk.MODERATE, Risk.DANGEROUS])
async def test_a_durable_call_leaves_after_its_intent_is_kept(risk: Risk) -> None:
    classes = DEFAULT_CLASSES if risk is Risk.DANGEROUS else ALL_DURABLE
    async with recorded(risk, ArgumentAuditLevel.ALL, classes=classes) as at:
        await until(lambda: bool(at.store.commits))
        at.store.gate.clear()
        asked = await at.call()
        for _ in range(20):
            await asyncio.sleep(0)
        assert at.sent() == []
        at.store.gate.set()
        await asked.result()
        intent, outcome = await at.events()
    assert (intent.type, intent.result) == (AuditType.CALL_INTENDED, AuditResult.PENDING)
    assert (outcome.type, outcome.result) == (AuditType.TOOL_EXECUTED, AuditResult.SUCCESS)
    assert intent.call == outcome.call == "run-1"
    assert intent.trace == outcome.trace
    assert intent.details["arguments"] == {"x": 1}


ALL_OFF = dict.fromkeys(Risk, AuditClass.OFF)


async def test_a_call_of_class_off_leaves_no_entry_but_a_refusal_does() -> None:
    async with recorded(Risk.MODERATE, classes=ALL_OFF) as at:
        sent: list[AuditEvent] = []
        at.recorder.on_call_sent = sent.append
        await (await at.call()).result()
        at.inspection.refusal = Refusal(VALIDATION_BLOCKED, "no")
        await (await at.call()).refusal()
        await until(lambda: sum(at.store.commits) >= 2)
        (only,) = await at.events()
    assert (only.type, only.result) == (AuditType.VALIDATION_FAILED, AuditResult.BLOCKED)
    assert [each.tool for each in sent] == ["add"]


async def test_a_full_queue_does_not_stop_calls_of_class_off() -> None:
    async with recorded(Risk.SAFE, classes=ALL_OFF) as at:
        at.store.gate.clear()
        fill_queue(at)
        await (await at.call()).result()
        at.store.gate.set()


class AlwaysApproved:
    """Somebody approved the calls of this tool in advance."""

    def standing_answer(self, *_: object, **__: object) -> Grant | None:
        return Grant("*", "tool.call", "a/add", Effect.ALLOW, id="g-1")


async def test_an_approved_call_is_durable_whatever_the_class_of_its_tool() -> None:
    async with recorded(Risk.SAFE, classes=ALL_OFF) as at:
        pipeline = at.front.call_gate.pipeline
        pipeline.tools = Tools(Fixed(Risk.SAFE, must_be_confirmed=True))
        pipeline.standing_answers = AlwaysApproved()
        await until(lambda: bool(at.store.commits))
        at.store.gate.clear()
        asked = await at.call()
        for _ in range(20):
            await asyncio.sleep(0)
        assert at.sent() == []
        at.store.gate.set()
        await asked.result()
        intent, outcome = await at.events()
    assert (intent.type, outcome.type) == (AuditType.CALL_INTENDED, AuditType.TOOL_EXECUTED)
    assert intent.details["answered_by"] == outcome.details["answered_by"] == "g-1"
    assert "outcome" not in intent.details


async def test_where_nothing_outlives_the_process_a_durable_call_waits_for_nothing() -> None:
    async with recorded(Risk.DANGEROUS, is_lasting=False) as at:
        at.store.gate.clear()
        await (await at.call()).result()
        at.store.gate.set()
        await until(lambda: sum(at.store.commits) >= 3)
        intent, outcome = await at.events()
    assert (intent.type, outcome.type) == (AuditType.CALL_INTENDED, AuditType.TOOL_EXECUTED)
    assert intent.details["arguments"] == {"x": 1}


async def test_its_answer_goes_when_its_outcome_is_kept() -> None:
    async with recorded(Risk.DANGEROUS, answers=False) as at:
        asked = await at.call()
        await until(lambda: len(at.sent()) == 1)
        at.store.gate.clear()
        carrier = at.front.scripts["a"].open[-1]
        carrier.answers(at.sent()[0], {"content": [], "isError": False})
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asked.outbox.is_final
        at.store.gate.set()
        await asked.result()
        assert [each.type for each in await at.events()][-1] == AuditType.TOOL_EXECUTED


async def test_without_its_intent_nothing_leaves_and_the_client_may_try_again() -> None:
    async with recorded(Risk.DANGEROUS) as at:
        await until(lambda: bool(at.store.commits))
        at.store.failures = 10**6
        refusal = await (await at.call()).refusal()
        assert refusal["error_type"] == "audit_log_unavailable"
        assert refusal["retryable"] is True
        assert at.sent() == []
        at.store.failures = 0
        await until(lambda: sum(at.store.commits) >= 3)
        intent, ending = await at.events()
    assert (intent.type, ending.type) == (AuditType.CALL_INTENDED, AuditType.TOOL_BLOCKED)
    assert intent.call == ending.call


async def test_a_client_that_leaves_before_its_intent_is_kept_leaves_no_doubt() -> None:
    async with recorded(Risk.DANGEROUS) as at:
        await until(lambda: bool(at.store.commits))
        at.store.gate.clear()
        asked = await at.call()
        await until(lambda: len(at.front.underway) == 1)
        for _ in range(20):
            await asyncio.sleep(0)
        for call in at.front.underway:
            call.withdraw(None)
        at.store.gate.set()
        await until(lambda: sum(at.store.commits) >= 3)
        assert at.sent() == []
        await asked.asking
        await at.journal.flush()
        intent, end = await at.events()
    assert (intent.type, end.type) == (AuditType.CALL_INTENDED, AuditType.TOOL_BLOCKED)
    assert intent.call == end.call == "run-1"


@loop_over(
    ("fault", "type"),
    [
        (VALIDATION_BLOCKED, AuditType.VALIDATION_FAILED),
        (CODE_UNSAFE, AuditType.CODE_REJECTED),
        (RATE_LIMITED, AuditType.TOOL_BLOCKED),
    ],
)
async def test_what_was_refused_is_in_the_journal_under_its_type(fault: Fault, type: str) -> None:
    async with recorded(Risk.DANGEROUS) as at:
        at.inspection.refusal = Refusal(fault, "because of this")
        refusal = await (await at.call()).refusal()
        await until(lambda: sum(at.store.commits) >= 2)
        (only,) = await at.events()
    assert (only.type, only.result) == (type, AuditResult.BLOCKED)
    assert only.details["reason"] == "because of this"
    assert only.trace == refusal["trace_id"]


async def test_also_what_nobody_looked_at() -> None:
    async with recorded(Risk.DANGEROUS) as at:
        params: Params = {"name": "a__nothing"}
        await at.front.ask(await at.front.client(), protocol.CALL_TOOL, params).error()
        await until(lambda: sum(at.store.commits) >= 2)
        (only,) = await at.events()
    assert (only.type, only.tool) == (AuditType.TOOL_BLOCKED, "a__nothing")


async def test_the_trace_of_a_client_is_the_trace_of_its_entries() -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with recorded(Risk.DANGEROUS) as at:
        await (await at.call(traceparent=f"00-{trace}-b7ad6b7169203331-01")).result()
        assert {each.trace for each in await at.events()} == {trace}


async def test_arguments_are_kept_as_the_policy_says() -> None:
    for policy, risk, is_kept in (
        *(
            (ArgumentAuditLevel.NONE, Risk.DANGEROUS, False),
            (ArgumentAuditLevel.RISKY, Risk.SAFE, False),
        ),
        *(
            (ArgumentAuditLevel.ALL, Risk.SAFE, True),
            (ArgumentAuditLevel.RISKY, Risk.MODERATE, True),
        ),
    ):
        async with recorded(risk, policy) as at:
            await (await at.call()).result()
            await until(lambda at=at: sum(at.store.commits) >= 2)
            assert ("arguments" in (await at.events())[-1].details) is is_kept


async def test_a_call_that_was_cancelled_at_its_server_may_have_run() -> None:
    async with recorded(Risk.DANGEROUS, answers=False) as at:
        asked = await at.call()
        await until(lambda: len(at.sent()) == 1)
        for call in at.front.underway:
            call.withdraw(Raw(b'"enough"'))
        await asked.asking
        await until(lambda: sum(at.store.commits) >= 3)
        last = (await at.events())[-1]
    assert (last.type, last.result) == (AuditType.TOOL_EXECUTED, AuditResult.FAILURE)
    assert last.details["outcome_known"] is False


async def test_a_call_whose_key_was_revoked_at_its_server_may_have_run() -> None:
    async with recorded(Risk.DANGEROUS, answers=False) as at:
        asked = await at.call()
        await until(lambda: len(at.sent()) == 1)
        for call in at.front.underway:
            call.refuse(UNAUTHENTICATED, "the credentials of this request were revoked")
        await asked.asking
        await until(lambda: sum(at.store.commits) >= 3)
        last = (await at.events())[-1]
    assert (last.type, last.result) == (AuditType.TOOL_EXECUTED, AuditResult.FAILURE)
    assert last.details["outcome_known"] is False


def fill_queue(at: Recorded) -> None:
    journal = at.journal
    while journal.has_room:
        journal.enqueue(AuditEvent(AuditType.TOOL_EXECUTED, "agent:x", journal.clock()))


async def test_too_much_that_waits_stops_even_safe_calls() -> None:
    async with recorded(Risk.SAFE) as at:
        at.store.gate.clear()
        fill_queue(at)
        refusal = await (await at.call()).refusal()
        assert refusal["error_type"] == "audit_log_unavailable"
        at.store.gate.set()


async def test_a_tool_that_stood_in_for_another_leaves_no_doubt_either() -> None:
    store = FailingStore()
    replies: Params = {protocol.LIST_TOOLS: {"tools": [{"name": "add"}, {"name": "spare"}]}}
    async with all_servers({"a": Script(replies=replies)}) as front, kept(store) as journal:
        recorder = CallAudit(journal, ArgumentAuditLevel.NONE)
        recorder.set_run_name("run")
        front.call_gate.pipeline.tools = Tools(Fixed(Risk.DANGEROUS))
        front.call_gate.pipeline.intent_recorder = front.underway.outcome_recorder = recorder
        policy = ServerPolicy(tools={"add": ToolPolicy(idempotent=True, fallback_tool="spare")})
        front.call_gate.retries = RetryService({"a": policy}.get, random_value=lambda: 0.0)
        asked = front.ask(await front.client(), protocol.CALL_TOOL, {"name": ADD})
        at = Recorded(front, store, Refusing())
        await until(lambda: len(at.sent()) == 1)
        first = at.sent()[0]
        carrier = next(c for c in front.scripts["a"].open if first in c.asked(protocol.CALL_TOOL))
        failed = {"code": 5002, "message": "down", "data": {"_mgp": {"retryable": True}}}
        carrier.says(jsonrpc.Frame("2.0", first.id, error=jsonrpc.to_raw(failed)), first)
        await until(lambda: len(at.sent()) == 2)
        carrier.answers(at.sent()[1], {"content": [], "isError": False})
        await asked.result()
        await until(lambda: sum(store.commits) >= 5)
        found = await at.events()
    ended = {each.call for each in found if each.type == AuditType.TOOL_EXECUTED}
    assert ended == {each.call for each in found if each.type == AuditType.CALL_INTENDED}
    assert len(ended) == 2
