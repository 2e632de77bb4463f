"""One approval, one execution: 2,000 schedules, each decided by a seed.

Executors on two nodes, people, an agent that would like to be one, clients that leave, time, tools
that change and grants that go meet at every wait. The parts are those of the gateway; only the
store pauses before and after each step, as one that is elsewhere does.
"""

import asyncio
import heapq
import secrets
from asyncio import Handle, TimerHandle
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast, override
from unittest.mock import patch

import pytest

from comity.approvals.model import (
    ANSWER_OWN_VERB,
    ANSWER_VERB,
    EVENT_BY_END_STATE,
    LIVE_STATES,
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalEvent,
    ApprovalFilter,
    ApprovalRequest,
    ApprovalState,
    add_answer,
    apply_event,
)
from comity.approvals.pending_calls import (
    ApprovedCall,
    ApprovedCallSteps,
    PendingCall,
    PendingCalls,
)
from comity.approvals.service import ApprovalService, ApprovalSettings
from comity.errors import MalformedMessage
from comity.mcp import protocol
from comity.mcp.actors import Actor, PrincipalKind
from comity.mcp.entries import CatalogEntry
from comity.mcp.jsonrpc import Frame
from comity.mcp.refusals import Refusal
from comity.policy.grants import Decision, Effect, Grant
from comity.policy.risk import Risk
from tests.pace import at_length

STEPS = 20_000
"""More than this is taken for work that never ends."""


class SeededLoop(asyncio.AbstractEventLoop):
    """Of all that is ready any may be next, so a task can be overtaken wherever it waits."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311  # it has to be the same each time
        self._now = 0.0
        self._ready: list[Handle] = []
        self._later: list[tuple[float, int, TimerHandle]] = []
        self._number = 0
        self.failures: list[dict[str, Any]] = []

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(work)
            for _ in range(STEPS):
                if task.done():
                    return task.result()
                self._step()
            raise AssertionError(f"not done after {STEPS} steps")
        finally:
            asyncio._set_running_loop(None)

    def _step(self) -> None:
        while self._later and (self._later[0][0] <= self._now or not self._ready):
            when, _, handle = heapq.heappop(self._later)
            if not handle.cancelled():
                self._now = max(self._now, when)
                self._ready.append(handle)
        assert self._ready, "everybody waits, and nothing will ever happen"
        chosen = self.random.randrange(len(self._ready))
        self._ready[chosen], self._ready[-1] = self._ready[-1], self._ready[chosen]
        handle = self._ready.pop()
        if not handle.cancelled():
            handle._run()

    # What asyncio asks of a loop.

    @override
    def time(self) -> float:
        return self._now

    @override
    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    @override
    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    @override
    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> TimerHandle:
        handle = TimerHandle(when, callback, args, self, context)
        self._number += 1
        heapq.heappush(self._later, (when, self._number, handle))
        return handle

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """It is passed over when its time comes."""

    @override
    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    @override
    def create_task(self, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, **kwargs)

    @override
    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context)

    @override
    def get_debug(self) -> bool:
        return False

    @override
    def is_running(self) -> bool:
        return True

    @override
    def is_closed(self) -> bool:
        return False


SEEDS = at_length(2_000, 500)
SEEDS_OF_A_FLAW = 200
START = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
OPTIONS = ApprovalSettings(
    request_ttl=timedelta(seconds=30),
    approval_ttl=timedelta(seconds=8),
    client_wait=timedelta(seconds=6),
    denial_cooldown=timedelta(seconds=5),
)
ANA = Actor("person:ana@example.org", PrincipalKind.PERSON)
BEA = Actor("person:bea@example.org", PrincipalKind.PERSON)
AGENT = Actor("agent:ci")
OTHER = Actor("agent:other")
FRAME = Frame("2.0", 1, protocol.CALL_TOOL)


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


@dataclass(frozen=True)
class Execution:
    ask: str
    call: str
    asked: str
    definition: str
    was_allowed: bool


class Asks:
    """What a store keeps of asks, each step at once: thousands of schedules wait for no database.

    `tests/contracts` holds the real stores to the same.
    """

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told
        self.all: dict[str, ApprovalRequest] = {}

    def _put(self, ask: ApprovalRequest | None) -> ApprovalRequest | None:
        if ask is not None:
            self.all[ask.id] = ask
            self._told(ask.id)
        return ask

    def _step(
        self, id: str, happened: ApprovalEvent, at: datetime, call: str = ""
    ) -> ApprovalRequest | None:
        ask = self.all.get(id)
        after = None if ask is None else apply_event(ask, happened, at)
        return None if after is None else self._put(replace(after, call=call))

    def open(self, request: ApprovalRequest) -> ApprovalRequest:
        live = [each for each in self.page(LIVE_STATES) if each.digest == request.digest]
        for present in live:
            if present.expires_at > request.created_at:
                return present
            self._step(present.id, ApprovalEvent.EXPIRED, request.created_at)
        self._put(request)
        return request

    def latest(self, digest: str) -> ApprovalRequest | None:
        return next((each for each in self.page()[::-1] if each.digest == digest), None)

    def page(
        self, states: Collection[ApprovalState] = (), after: str = "", limit: int = 250
    ) -> list[ApprovalRequest]:
        found = (ask for ask in self.all.values() if ask.state in (states or ApprovalState))
        return sorted((ask for ask in found if ask.id > after), key=lambda ask: ask.id)[:limit]

    def answer(self, id: str, answer: ApprovalAnswer, until: datetime) -> ApprovalRequest | None:
        ask = self.all.get(id)
        return None if ask is None else self._put(add_answer(ask, answer, until))

    def use(self, id: str, call: str, at: datetime) -> ApprovalRequest | None:
        ask = self.all.get(id)
        is_late = ask is None or ask.expires_at <= at
        return None if is_late else self._step(id, ApprovalEvent.CONSUMED, at, call)

    def restore(self, id: str, call: str) -> ApprovalRequest | None:
        ask = self.all.get(id)
        if ask is None or ask.call != call:
            return None
        is_asked_again = any(each.digest == ask.digest for each in self.page(LIVE_STATES))
        return None if is_asked_again else self._step(id, ApprovalEvent.RELEASED, ask.created_at)

    def end(self, id: str, state: ApprovalState, at: datetime) -> ApprovalRequest | None:
        return self._step(id, EVENT_BY_END_STATE[state], at)

    def expire(self, at: datetime, limit: int) -> list[ApprovalRequest]:
        late = [ask for ask in self.page(LIVE_STATES) if ask.expires_at <= at][:limit]
        return [ask for each in late if (ask := self._step(each.id, ApprovalEvent.EXPIRED, at))]

    def erase(self, id: str) -> None:
        ask = self.all[id]
        self.all[id] = replace(ask, answers=tuple(replace(a, content={}) for a in ask.answers))


class Store:
    """Asks that are kept, and never at once."""

    def __init__(self, loop: SeededLoop, asks: Asks) -> None:
        self.asks = asks
        self._loop = loop

    async def pause(self) -> None:
        chance = self._loop.random.random()
        await asyncio.sleep(0 if chance < 0.9 else chance)

    async def _do[**P, T](self, step: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        await self.pause()
        done = step(*args, **named)
        await self.pause()
        return done

    async def open(self, request: ApprovalRequest, *, with_notice: bool = False) -> ApprovalRequest:
        return await self._do(self.asks.open, request)

    async def get(self, id: str) -> ApprovalRequest | None:
        return await self._do(self.asks.all.get, id)

    async def find_latest(self, digest: str) -> ApprovalRequest | None:
        return await self._do(self.asks.latest, digest)

    async def page(
        self, states: Collection[ApprovalState] = (), after: str = "", limit: int = 250
    ) -> Any:
        return await self._do(self.asks.page, states, after, limit)

    async def find(self, criteria: ApprovalFilter, limit: int = 250) -> Sequence[ApprovalRequest]:
        return await self.page(criteria.states, criteria.after, limit)

    async def count_matches(self, criteria: ApprovalFilter) -> int:
        return await self.count(criteria.states)

    async def count(self, states: Collection[ApprovalState]) -> int:
        return len(await self.page(states, limit=10_000))

    async def answer(
        self, id: str, answer: ApprovalAnswer, until: datetime, *, with_notice: bool = False
    ) -> ApprovalRequest | None:
        return await self._do(self.asks.answer, id, answer, until)

    async def consume(
        self, id: str, call: str, at: datetime, *, with_notice: bool = False
    ) -> ApprovalRequest | None:
        return await self._do(self.asks.use, id, call, at)

    async def release(self, id: str, call: str) -> ApprovalRequest | None:
        return await self._do(self.asks.restore, id, call)

    async def end(
        self, id: str, state: ApprovalState, at: datetime, *, with_notice: bool = False
    ) -> ApprovalRequest | None:
        return await self._do(self.asks.end, id, state, at)

    async def expire(self, at: datetime, limit: int = 250, *, with_notice: bool = False) -> Any:
        return await self._do(self.asks.expire, at, limit)

    async def erase_content(self, id: str) -> None:
        await self._do(self.asks.erase, id)


class NaiveStore(Store):
    """One that reads, and then writes: what everybody would write who thinks of one at a time."""

    @override
    async def consume(
        self, id: str, call: str, at: datetime, *, with_notice: bool = False
    ) -> ApprovalRequest | None:
        ask = await self.get(id)
        if ask is None or ask.state is not ApprovalState.APPROVED or ask.expires_at <= at:
            return None
        await self._do(self.asks.use, id, call, at)
        return replace(ask, state=ApprovalState.CONSUMED, call=call)


@dataclass
class World:
    """Two nodes with one store, and what is so just now."""

    loop: SeededLoop
    make: type[Store] = Store
    asker: Actor = AGENT
    definition: str = "first"
    may_call: bool = True
    quorum: int = 1
    executions: list[Execution] = field(default_factory=list[Execution])
    refused: list[str] = field(default_factory=list[str])
    calls: int = 0

    def __post_init__(self) -> None:
        self.asks = Asks(self._told)
        self.store = self.make(self.loop, self.asks)
        judge = cast("Any", self)
        self.nodes = [
            ApprovalService(self.store, judge, None, OPTIONS, self.clock) for _ in range(2)
        ]
        steps = ApprovedCallSteps(cast("Any", self), cast("Any", self))
        self.holdings = [PendingCalls(node, steps, judge, cast("Any", self)) for node in self.nodes]

    def clock(self) -> datetime:
        return START + timedelta(seconds=self.loop.time())

    def _told(self, id: str) -> None:
        for node in self.nodes:
            self.loop.call_soon(node.on_changed, id)

    # What the kernel asks of others: who may what, what a tool is, what is written down.

    def authorize(
        self, actor: Actor, verb: str, server: str, name: str, view: str = ""
    ) -> Decision:
        """Whoever wants to may answer, if it were for grants; nobody for itself."""
        if verb == protocol.CALL_TOOL:
            return Decision(Effect.ASK if self.may_call else Effect.DENY, "")
        allowed = Grant(actor.party, ANSWER_VERB, "*", Effect.ALLOW)
        effect = Effect.DENY if verb == ANSWER_OWN_VERB else Effect.ALLOW
        return Decision(effect, "", allowed)

    def find_own(self, server: str, kind: object, name: str) -> CatalogEntry:
        return CatalogEntry("files__delete", "files", "delete", self.definition.encode())

    def review_of(self, entry: CatalogEntry) -> Standing:
        return Standing(entry.definition.decode(), self.quorum)

    def risk_reasons_of(self, entry: CatalogEntry) -> list[str]:
        return []

    async def record_intent(self, call: Any, *_: object) -> None:
        await self.store.pause()
        call.record = SimpleNamespace(id=call.id, has_left=False)

    def record_not_sent(self, call: Any, reason: str) -> None:
        call.record = None

    # Who does what.

    def held(self, node: int, patience: Callable[[object], None]) -> tuple[PendingCall, Any]:
        self.calls += 1
        call = SimpleNamespace(
            view="",
            id=f"call-{self.calls}",
            client=None,
            client_stream=SimpleNamespace(actor=self.asker, registry=None, is_final=False),
            prompt_reply=None,
            retrier=None,
            is_recorded=False,
            is_bridged=False,
            is_detached=False,
            connection=None,
            on_cancel=None,
            record=None,
            permitted_by="",
            pause_deadlines=lambda: None,
            resume_deadlines=lambda: None,
            ensure_trace_id=lambda: "0" * 32,
            refuse_with=patience,
            fail=patience,
        )
        offer = self.find_own("files", None, "delete")
        arguments = {"path": "/tmp/x"}
        holding = self.holdings[node]
        held = holding.hold(
            cast("Any", call), offer, cast("Any", self.review_of(offer)), arguments, FRAME
        )
        return cast("PendingCall", held), call

    async def executor(self, node: int, tries: int) -> None:
        """Calls, and calls again when it is told so."""
        for _ in range(tries):
            await self.some_time(6)
            over = self.loop.create_future()
            held, call = self.held(node, over.set_result)
            asked = self.definition

            held.start(partial(self.execute, call, asked, over))
            if self.loop.random.random() < 0.15:
                await self.some_time(8)
                if call.on_cancel is not None:
                    call.on_cancel()
                # The client has gone; whatever becomes of the call, nobody waits for it.
                continue
            await over

    async def execute(self, call: Any, asked: str, over: asyncio.Future[object]) -> None:
        now = (self.definition, self.may_call)
        self.executions.append(Execution(call.permitted_by, call.id, asked, *now))
        over.set_result(None)

    async def authority(self, actor: Actor, tries: int) -> None:
        for _ in range(tries):
            await self.some_time(6)
            verdict = self.loop.random.choice(VERDICTS)
            node = self.loop.random.choice(self.nodes)
            found, _ = await node.page(actor)
            for ask in found:
                try:
                    await node.answer(actor, ask.id, verdict)
                except MalformedMessage as error:
                    self.refused.append(f"{actor.party} {error}")

    async def world(self, tries: int) -> None:
        """Time passes, tools change and change back, grants go and come, asks are withdrawn."""
        for _ in range(tries):
            await self.some_time(6)
            match self.loop.random.randrange(6):
                case 0:
                    self.definition = "second" if self.definition == "first" else "first"
                case 1:
                    self.may_call = not self.may_call
                case 2:
                    for ask in await self.store.page(
                        (ApprovalState.PENDING, ApprovalState.APPROVED)
                    ):
                        await self.nodes[0].withdraw(ask, "not wanted any more")
                case _:
                    await self.loop.random.choice(self.nodes).expire_overdue()

    async def some_time(self, seconds: float) -> None:
        await asyncio.sleep(self.loop.random.random() * seconds)

    async def live(self) -> None:
        deeds = [self.executor(number % 2, 3) for number in range(4)]
        deeds += [self.authority(actor, 4) for actor in (ANA, BEA, AGENT, OTHER)]
        await asyncio.gather(*deeds, self.world(6))
        # Long after the last has given up.
        await asyncio.sleep(60)
        await self.nodes[0].expire_overdue()
        await asyncio.sleep(60)


VERDICTS = [
    *[ApprovalDecision.ACCEPT] * 6,
    ApprovalDecision.DECLINE,
    ApprovalDecision.CANCEL,
    ApprovalDecision.DEFER,
]


def lived(seed: int, make: type[Store] = Store) -> World:
    loop = SeededLoop(seed)
    asker = loop.random.choice([AGENT, AGENT, ANA])
    world = World(loop, make, asker, quorum=loop.random.choice([1, 1, 2]))
    # Not even an id is left to chance.
    with patch.object(secrets, "token_bytes", loop.random.randbytes):
        loop.run(world.live())
    assert loop.failures == []
    return world


def doubles(world: World) -> list[str]:
    times = Counter(each.ask for each in world.executions)
    return [ask for ask, count in times.items() if count > 1]


def wrong(world: World) -> list[Execution]:
    """Those of another tool than people were asked about, or of somebody who no longer may."""
    return [
        each for each in world.executions if each.definition != each.asked or not each.was_allowed
    ]


def unfounded(world: World) -> list[Execution]:
    """Those without enough people who said yes, in time, and were not the asker."""
    return [each for each in world.executions if not _is_founded(each, world)]


def _is_founded(execution: Execution, world: World) -> bool:
    ask = world.asks.all.get(execution.ask)
    if ask is None or (ask.state, ask.call) != (ApprovalState.CONSUMED, execution.call):
        return False
    people = {each.by for each in ask.answers if each.verdict is ApprovalDecision.ACCEPT}
    if not people <= {ANA.party, BEA.party} - {ask.asker} or len(people) < ask.quorum:
        return False
    return ask.ended_at is not None and ask.ended_at < ask.expires_at


@pytest.mark.timeout(180)
def test_an_approval_is_executed_once_in_every_schedule() -> None:
    met = Counter[str]()
    for seed in range(SEEDS):
        world = lived(seed)
        assert doubles(world) == [], seed
        assert wrong(world) == [], seed
        assert unfounded(world) == [], seed
        # Whatever became of a question, nobody counts it as open for ever.
        assert [vars(node)["_requesters"] for node in world.nodes] == [{}, {}], seed
        met["executions"] += len(world.executions)
        met["schedules without one"] += not world.executions
        met.update(_what_became_of_asks(world))
        met["refused"] += any("only a person" in each for each in world.refused)
        met["own refused"] += any("your own request" in each for each in world.refused)
    # Everything that can happen did, or the schedules would show little.
    assert met["executions"] > SEEDS // 2, met
    assert {*ApprovalState} - {*LIVE_STATES} <= {*met}, met
    assert min(met["refused"], met["own refused"], met["schedules without one"]) > 0, met


def _what_became_of_asks(world: World) -> Counter[str]:
    return Counter(str(ask.state) for ask in world.asks.page())


def test_a_store_that_reads_and_then_writes_is_found_out() -> None:
    found = sum(bool(doubles(lived(seed, NaiveStore))) for seed in range(SEEDS_OF_A_FLAW))
    assert found > 0


def test_a_call_that_is_not_looked_at_once_more_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(_: ApprovedCall) -> None:
        """As if nothing ever changed."""

    monkeypatch.setattr(ApprovedCall, "refusal_reason", nothing)
    found = sum(bool(wrong(lived(seed))) for seed in range(SEEDS_OF_A_FLAW))
    assert found > 0


def test_a_seed_leads_to_the_same_schedule_each_time() -> None:
    for seed in range(20):
        first, second = lived(seed), lived(seed)
        assert first.executions == second.executions
        assert first.refused == second.refused
