"""One approval, one execution, whatever comes between: 2,000 schedules, each decided by a seed.

Executors on two nodes, people, an agent that would like to be one, clients that leave, time, tools
that change and grants that go meet at every wait. The parts are those of the kernel; only the
store pauses before and after each step, as one that is elsewhere does.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, cast, override
from unittest.mock import patch

import pytest

from comity.adapters.memory.asks import MemoryAsks
from comity.kernel.admission import Admission
from comity.kernel.approvals import Approvals, AskOptions
from comity.kernel.catalog import Offer
from comity.kernel.held import HeldCall, Holding
from comity.ports import Kept
from comity.rules.access import Judgement
from comity.rules.asks import LIVE
from comity.rules.refusals import Refusal
from comity.wire import mcp
from comity.wire.asks import ANSWER, ANSWER_OWN, Answer, Ask, State, Verdict
from comity.wire.errors import MalformedMessage
from comity.wire.grants import Effect, Grant
from comity.wire.jsonrpc import Frame
from comity.wire.parties import Actor, PartyKind
from comity.wire.security import Risk
from tests.kernel.seeded import SeededLoop
from tests.pace import at_length

SEEDS = at_length(2_000, 500)
SEEDS_OF_A_FLAW = 200
START = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
OPTIONS = AskOptions(
    expires=timedelta(seconds=30),
    lasts=timedelta(seconds=8),
    hold=timedelta(seconds=6),
    declined_for=timedelta(seconds=5),
)
ANA = Actor("person:ana@example.org", PartyKind.PERSON)
BEA = Actor("person:bea@example.org", PartyKind.PERSON)
AGENT = Actor("agent:ci")
OTHER = Actor("agent:other")
FRAME = Frame("2.0", 1, mcp.CALL_TOOL)


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


@dataclass(frozen=True)
class Execution:
    ask: str
    call: str
    asked: str
    definition: str
    was_allowed: bool


class Store:
    """Asks in memory, and never at once."""

    def __init__(self, loop: SeededLoop, asks: MemoryAsks) -> None:
        self.asks = asks
        self._loop = loop

    async def pause(self) -> None:
        chance = self._loop.random.random()
        await asyncio.sleep(0 if chance < 0.9 else chance)

    async def _do[T](self, step: Awaitable[T]) -> T:
        await self.pause()
        done = await step
        await self.pause()
        return done

    async def open(self, ask: Ask) -> Ask:
        return await self._do(self.asks.open(ask))

    async def get(self, id: str) -> Ask | None:
        return await self._do(self.asks.get(id))

    async def latest(self, digest: str) -> Ask | None:
        return await self._do(self.asks.latest(digest))

    async def page(self, states: Collection[State] = (), after: str = "", limit: int = 250) -> Any:
        return await self._do(self.asks.page(states, after, limit))

    async def count(self, states: Collection[State]) -> int:
        return await self._do(self.asks.count(states))

    async def answer(self, id: str, answer: Answer, until: datetime) -> Ask | None:
        return await self._do(self.asks.answer(id, answer, until))

    async def use(self, id: str, call: str, at: datetime) -> Ask | None:
        return await self._do(self.asks.use(id, call, at))

    async def restore(self, id: str, call: str) -> Ask | None:
        return await self._do(self.asks.restore(id, call))

    async def end(self, id: str, state: State, at: datetime) -> Ask | None:
        return await self._do(self.asks.end(id, state, at))

    async def expire(self, at: datetime, limit: int = 250) -> Any:
        return await self._do(self.asks.expire(at, limit))

    async def erase(self, id: str) -> None:
        await self._do(self.asks.erase(id))


class NaiveStore(Store):
    """One that reads, and then writes: what everybody would write who thinks of one at a time."""

    @override
    async def use(self, id: str, call: str, at: datetime) -> Ask | None:
        ask = await self.get(id)
        if ask is None or ask.state is not State.ACCEPTED or ask.expires_at <= at:
            return None
        await self._do(self.asks.use(id, call, at))
        return replace(ask, state=State.USED, call=call)


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
        self.asks = MemoryAsks(self._told)
        self.store = self.make(self.loop, self.asks)
        judge = cast("Any", self)
        self.nodes = [Approvals(self.store, judge, None, OPTIONS, self.clock) for _ in range(2)]
        admission = Admission(tools=cast("Any", self))
        admission.recording = cast("Any", self)
        self.holdings = [Holding(node, admission, judge, cast("Any", self)) for node in self.nodes]

    def clock(self) -> datetime:
        return START + timedelta(seconds=self.loop.time())

    def _told(self, _: Kept, ids: Any) -> None:
        for node in self.nodes:
            for id in ids:
                self.loop.call_soon(node.changed, id)

    # What the kernel asks of others: who may what, what a tool is, what is written down.

    def judge(self, actor: Actor, verb: str, server: str, name: str) -> Judgement:
        """Whoever wants to may answer, if it were for grants; nobody for itself."""
        if verb == mcp.CALL_TOOL:
            return Judgement(Effect.ASK if self.may_call else Effect.DENY, "")
        allowed = Grant(actor.party, ANSWER, "*", Effect.ALLOW)
        effect = Effect.DENY if verb == ANSWER_OWN else Effect.ALLOW
        return Judgement(effect, "", allowed)

    def offered(self, server: str, kind: object, name: str) -> Offer:
        return Offer("files__delete", "files", "delete", self.definition.encode())

    def standing(self, offer: Offer) -> Standing:
        return Standing(offer.definition.decode(), self.quorum)

    async def intend(self, call: Any, *_: object) -> None:
        await self.store.pause()
        call.record = SimpleNamespace(id=call.id, has_left=False)

    def missed(self, call: Any) -> None:
        call.record = None

    # Who does what.

    def held(self, node: int, patience: Callable[[object], None]) -> tuple[HeldCall, Any]:
        self.calls += 1
        call = SimpleNamespace(
            id=f"call-{self.calls}",
            outbox=SimpleNamespace(actor=self.asker, registry=None, final=False),
            brought=None,
            retrying=None,
            is_concluded=False,
            is_bridged=False,
            link=None,
            minted=0,
            record=None,
            answered_by="",
            hold=lambda: None,
            release=lambda: None,
            traced=lambda: "0" * 32,
            turn_down=patience,
            failed=patience,
        )
        offer = self.offered("files", None, "delete")
        arguments = {"path": "/tmp/x"}
        holding = self.holdings[node]
        held = holding.hold(
            cast("Any", call), offer, cast("Any", self.standing(offer)), arguments, FRAME
        )
        return cast("HeldCall", held), call

    async def executor(self, node: int, tries: int) -> None:
        """Calls, and calls again when it is told so."""
        for _ in range(tries):
            await self.some_time(6)
            over = self.loop.create_future()
            held, call = self.held(node, over.set_result)
            asked = self.definition

            held.begin(partial(self.execute, call, asked, over))
            if self.loop.random.random() < 0.15:
                await self.some_time(8)
                held.forsake(0, None)
                # The client has gone; whatever becomes of the call, nobody waits for it.
                continue
            await over

    async def execute(self, call: Any, asked: str, over: asyncio.Future[object]) -> None:
        now = (self.definition, self.may_call)
        self.executions.append(Execution(call.answered_by, call.id, asked, *now))
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
                    for ask in await self.store.page((State.PENDING, State.ACCEPTED)):
                        await self.nodes[0].withdraw(ask, "not wanted any more")
                case _:
                    await self.loop.random.choice(self.nodes).sweep()

    async def some_time(self, seconds: float) -> None:
        await asyncio.sleep(self.loop.random.random() * seconds)

    async def live(self) -> None:
        deeds = [self.executor(number % 2, 3) for number in range(4)]
        deeds += [self.authority(actor, 4) for actor in (ANA, BEA, AGENT, OTHER)]
        await asyncio.gather(*deeds, self.world(6))
        # Long after the last has given up.
        await asyncio.sleep(60)
        await self.nodes[0].sweep()
        await asyncio.sleep(60)


VERDICTS = [*[Verdict.ACCEPT] * 6, Verdict.DECLINE, Verdict.CANCEL, Verdict.DEFER]


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
    ask = _kept(execution.ask, world)
    if ask is None or (ask.state, ask.call) != (State.USED, execution.call):
        return False
    people = {each.by for each in ask.answers if each.verdict is Verdict.ACCEPT}
    if not people <= {ANA.party, BEA.party} - {ask.asker} or len(people) < ask.quorum:
        return False
    return ask.ended_at is not None and ask.ended_at < ask.expires_at


def _kept(id: str, world: World) -> Ask | None:
    """Memory answers without a wait, so nobody has to run a loop for it."""
    try:
        world.asks.get(id).send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("memory has waited")


@pytest.mark.timeout(180)
def test_an_approval_is_executed_once_in_every_schedule() -> None:
    met = Counter[str]()
    for seed in range(SEEDS):
        world = lived(seed)
        assert doubles(world) == [], seed
        assert wrong(world) == [], seed
        assert unfounded(world) == [], seed
        # Whatever became of a question, nobody counts it as open for ever.
        assert [vars(node)["_askers"] for node in world.nodes] == [{}, {}], seed
        met["executions"] += len(world.executions)
        met["schedules without one"] += not world.executions
        met.update(_what_became_of_asks(world))
        met["refused"] += any("only a person" in each for each in world.refused)
        met["own refused"] += any("your own request" in each for each in world.refused)
    # Everything that can happen did, or the schedules would show little.
    assert met["executions"] > SEEDS // 2, met
    assert {*State} - {*LIVE} <= {*met}, met
    assert min(met["refused"], met["own refused"], met["schedules without one"]) > 0, met


def _what_became_of_asks(world: World) -> Counter[str]:
    try:
        world.asks.page().send(None)
    except StopIteration as done:
        return Counter(str(ask.state) for ask in done.value)
    raise AssertionError("memory has waited")


def test_a_store_that_reads_and_then_writes_is_found_out() -> None:
    found = sum(bool(doubles(lived(seed, NaiveStore))) for seed in range(SEEDS_OF_A_FLAW))
    assert found > 0


def test_a_call_that_is_not_looked_at_once_more_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(_: HeldCall) -> None:
        """As if nothing ever changed."""

    monkeypatch.setattr(HeldCall, "_changed_meanwhile", nothing)
    found = sum(bool(wrong(lived(seed))) for seed in range(SEEDS_OF_A_FLAW))
    assert found > 0


def test_a_seed_leads_to_the_same_schedule_each_time() -> None:
    for seed in range(20):
        first, second = lived(seed), lived(seed)
        assert first.executions == second.executions
        assert first.refused == second.refused
