"""Calls that wait, are sent again or start a fallback: what was decided before is decided again."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, cast

from comity.approvals.pending_calls import GoOn
from comity.catalog.catalog import Catalog
from comity.errors import (
    ACCESS_DENIED,
    SIGN_IN_REQUIRED,
    TOOL_NOT_FOUND,
    Fault,
    MalformedMessage,
    Unavailable,
)
from comity.gateway.all_servers import AllServersEndpoint
from comity.gateway.call_jobs import CallJobs
from comity.gateway.pipeline import CallGate, PlanCache
from comity.gateway.retries import RetryService
from comity.gateway.view_endpoint import ViewEndpoint
from comity.inference.model import ToolUse
from comity.live.settings import TurnSettings
from comity.live.turns.runner import OfferedTools, TurnTools
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import ANONYMOUS, Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.jsonrpc import Frame
from comity.policy.generation import PolicyGeneration
from comity.policy.grants import Effect
from comity.policy.risk import Risk, ServerPolicy, ToolPolicy, TrustLevel
from comity.registry.export import CatalogExport
from comity.registry.service import RegistryService, RegistryTimeouts
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.methods import MethodRequest
from comity.sessions.sessions import Session
from comity.views.model import View
from comity.views.service import ServedView
from tests.support.asking import Standing
from tests.support.carriers import SILENCE, Params, Script, settled, until
from tests.support.cases import loop_over
from tests.support.changing_policy import ChangingPolicy
from tests.support.desks import Asked, Front, all_servers, one_server
from tests.support.refused import refusal_in
from tests.support.server_house import tools

DONE: Params = {"content": [{"type": "text", "text": "done"}]}


class Reviews:
    """Tools that need no person by themselves."""

    def review_of(self, entry: CatalogEntry) -> Standing:
        return Standing("digest", 1, None, False, False, risk=Risk.SAFE)

    def risk_reasons_of(self, entry: CatalogEntry) -> list[str]:
        return []

    def with_listed_definition(self, entry: CatalogEntry, listed: object) -> CatalogEntry:
        return entry

    def trust_of(self, server: str) -> TrustLevel:
        return TrustLevel.STANDARD


@dataclass
class Stages:
    """The stages of the pipeline, of which one waits until a test opens the gate."""

    waits: str = ""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    counted: int = 0
    validated: int = 0
    unsent: list[str] = field(default_factory=list[str])
    has_limits: bool = True

    def _at(self, stage: str) -> Awaitable[None] | None:
        return self._wait() if self.waits == stage and not self.gate.is_set() else None

    async def _wait(self) -> None:
        await self.gate.wait()

    def count_call(self, *_: object) -> Any:
        self.counted += 1
        return self._at("count")

    def count_request(self, *_: object) -> Any:
        return None

    def check_for(self, _: object) -> Any:
        return self.check

    def __post_init__(self) -> None:
        self.check = self._check

    def _check(self, _: object) -> Any:
        self.validated += 1
        return self._at("validate")

    def applies_to(self, _: object) -> bool:
        return True

    def check_account(self, *_: object) -> Any:
        return self._at("sign_in")

    def record_intent(self, call: Any, *_: object) -> Any:
        call.record = Record()
        return self._at("record")

    def record_not_sent(self, call: Any, reason: str) -> None:
        call.record = None
        self.unsent.append(reason)


@dataclass
class Record:
    id: str = "call"
    was_sent: bool = True


class SignIn:
    def __init__(self, stages: Stages) -> None:
        self.check, self.gate = stages.check_account, stages.gate

    def applies_to(self, _: object) -> bool:
        return True

    def retry_for(self, *parts: Any) -> Any:
        return DemandedSignIn(parts[-1], self.gate)


class DemandedSignIn:
    """A sign-in that the server demands amid the call, and that is there once the gate is open."""

    def __init__(self, proceed: Callable[[GoOn], Coroutine[Any, Any, None]], gate: asyncio.Event):
        self.go_on: GoOn | None = None
        self.on_hold: Callable[[], None] | None = None
        self.client_wait: timedelta | None = None
        self._proceed = proceed
        self._gate = gate

    def survives_refusal(self, call: Call, error: Unavailable | MalformedMessage) -> bool:
        go_on, self.go_on = self.go_on, None
        if go_on is None or not isinstance(error, Unavailable) or not error.challenge:
            return False
        call.connection = None
        if self.on_hold is not None:
            self.on_hold()
        self.task = asyncio.ensure_future(self._wait(call, go_on))
        return True

    async def _wait(self, call: Call, go_on: GoOn) -> None:
        await self._gate.wait()
        try:
            await self._proceed(go_on)
        except (Unavailable, MalformedMessage) as error:
            call.fail(error)


class Holds:
    """People who are asked, and never answer."""

    def __init__(self) -> None:
        self.held: list[str] = []

    def hold(self, call: Any, entry: CatalogEntry, review: Any, *_: object) -> Any:
        return self

    def start(self, *_: object) -> None:
        self.held.append("asked")

    def is_next_round(self, *_: object) -> bool:
        return False

    def without_prompt_reply(self, call: object, frame: Any) -> Any:
        return frame


class Errand(Asked):
    """A call that the gateway makes for an actor that has no connection here."""

    def __init__(self, making: Coroutine[Any, Any, Frame]) -> None:
        self._making = asyncio.ensure_future(making)
        super().__init__(ClientStream(), cast("Any", self._making))

    async def answer(self) -> Frame:
        async with asyncio.timeout(10):
            return await self._making


class Toolbelts:
    """The tool sets of models, which do not matter here."""

    def toolbelt_of_client(self, *_: object) -> None:
        return None

    def load(self, *_: object) -> None:
        return None


@dataclass
class Scene:
    """One server behind one way in, and everything that judges its calls."""

    door: str
    front: Front
    script: Script
    policy: ChangingPolicy
    stages: Stages
    people: Holds
    generation: PolicyGeneration
    session: Session | None = None
    asked: Asked | None = None

    @property
    def sent(self) -> int:
        return sum(len(each.asked(protocol.CALL_TOOL)) for each in self.script.carriers)

    def call(self) -> Asked:
        name = "t" if self.door.startswith(("one", "view")) else "srv__t"
        params: Params = {"name": name, "arguments": {}}
        if self.door == "registry":
            frame, outbox = jsonrpc.make_request(1, protocol.CALL_TOOL, params), ClientStream()
            self.asked = Asked(outbox, asyncio.ensure_future(self._ask_registry(frame, outbox)))
            return self.asked
        if self.door in ("job", "turn"):
            self.asked = Errand(self._run_job(name) if self.door == "job" else self._use(name))
            return self.asked
        if self.door == "meta tool":
            name = "call_tool"
            params = {"name": name, "arguments": params}
        if self.session is not None:
            return self.front.ask(self.session, protocol.CALL_TOOL, params)
        head = ((protocol.METHOD_HEADER, b"tools/call"), (protocol.NAME_HEADER, name.encode()))
        return self.front.handle_modern_request(protocol.CALL_TOOL, params, head)

    async def _run_job(self, name: str) -> Frame:
        """Call the tool as a job of the console."""
        jobs = CallJobs(cast("AllServersEndpoint", self.front.desk))
        job = jobs.start(ANONYMOUS, name, {})
        try:
            while not job.state.is_over:
                await job.changed.wait()
        finally:
            jobs.stop()
        if job.error is not None:
            error = jsonrpc.ErrorBody(job.error["code"], job.error["message"], job.error["data"])
            return Frame("2.0", 1, error=jsonrpc.to_raw(error))
        return jsonrpc.make_result(1, job.result)

    async def _use(self, name: str) -> Frame:
        """Call the tool for the model of a turn."""
        tools = TurnTools(cast("Any", self.front.desk), cast("Any", Toolbelts()), TurnSettings())
        use = ToolUse("use", name, {})
        found = await tools.use(ANONYMOUS, OfferedTools((), {}), use, lambda _: nullcontext())
        if found.is_error:
            return jsonrpc.make_error(1, ACCESS_DENIED, str(found.content))
        return jsonrpc.make_result(1, DONE)

    @cached_property
    def registry(self) -> RegistryService:
        """The registry, with one place at each server."""
        gate, desk = self.front.call_gate, cast("Any", self.front.desk)
        exports = CatalogExport(gate, self.front.servers)
        options = RegistryTimeouts(calls_per_server=1)
        return RegistryService(desk, gate, self.front.underway, exports, options)

    async def _ask_registry(self, frame: Frame, outbox: ClientStream) -> Call:
        async with self.registry.run_request(frame, outbox) as call:
            await outbox.wait_until_final()
            return call

    def change(self, change: str) -> None:
        if change == "set aside":
            self.front.catalog.put("srv", EntryKind.TOOL, (), {"t": "poisoned"})
        else:
            self.policy.effects["t"] = Effect(change)
        self.generation.advance()


@asynccontextmanager
async def scene(
    door: str, waits: str = "", *, is_lasting: bool = True, **more: object
) -> AsyncGenerator[Scene]:
    policy, stages, people, generation = (
        ChangingPolicy(),
        Stages(waits),
        Holds(),
        PolicyGeneration(),
    )
    script = Script(
        modern="legacy" not in door,
        handshake="legacy" in door,
        replies={protocol.LIST_TOOLS: tools("t"), protocol.CALL_TOOL: DONE},
    )

    def keeps(actor: Actor, entry: CatalogEntry, view: str) -> bool:
        return is_lasting

    def make_gate(catalog: Catalog) -> CallGate:
        parts: Any = {
            "approvals": people,
            "intent_recorder": stages,
            "sign_in": SignIn(stages) if waits in ("sign_in", "demand") else None,
            "plan_cache": PlanCache(generation, keeps),
            **more,
        }
        part = cast("Any", stages)
        return CallGate(catalog, policy, cast("Any", Reviews()), part, part, **parts)

    opened = (
        one_server(script, make_gate=make_gate)
        if door.startswith("one")
        else all_servers({"srv": script}, make_gate=make_gate)
    )
    async with opened as front:
        if door.startswith("view"):
            view = ServedView(View("v", select=("srv/*",)), front.catalog, None)
            front.desk = ViewEndpoint(view, cast("Any", None), cast("Any", front.desk))
        if door == "meta tool":
            cast("AllServersEndpoint", front.desk).own_tools = cast("Any", MetaTool())
        session = await front.client() if "legacy" in door else None
        house = Scene(door, front, script, policy, stages, people, generation, session)
        yield house
        if house.asked is not None:
            house.asked.asking.cancel()


class MetaTool:
    """The tool of the gateway that calls another tool."""

    def has_tool(self, name: str) -> bool:
        return name == "call_tool"

    async def handle_call(self, request: MethodRequest) -> Frame:
        return jsonrpc.with_params(request.frame, request.frame.parameters["arguments"])

    def note_use(self, *_: object) -> None:
        """Remember nothing."""


DOORS = [
    *(f"{door} {era}" for door in ("one", "all", "view") for era in ("modern", "legacy")),
    "meta tool",
    "registry",
    "job",
    "turn",
]
"""All ways in. Topics call at the door of one server."""
WAITS = ("count", "validate", "sign_in", "record")
FAULT_BY_CHANGE: dict[str, Fault] = {"deny": ACCESS_DENIED, "set aside": TOOL_NOT_FOUND}


@loop_over("door", DOORS)
@loop_over("waits", WAITS)
@loop_over("change", ["deny", "ask", "set aside", ""])
@loop_over("is_lasting", [True, False])
async def test_what_changes_while_a_call_waits_counts_when_it_goes_on(
    door: str, waits: str, change: str, is_lasting: bool
) -> None:
    async with scene(door, waits, is_lasting=is_lasting) as house:
        asked = house.call()
        await settled()
        assert house.sent == 0
        if change:
            house.change(change)
        house.stages.gate.set()
        if change == "ask":
            await settled()
            assert (house.sent, house.people.held) == (0, ["asked"])
            assert len(house.stages.unsent) == (waits == "record")
        elif change:
            refusal = await asked.refusal()
            if door not in ("registry", "turn"):
                assert refusal["error_type"] == FAULT_BY_CHANGE[change].error_type
            assert (house.sent, house.people.held) == (0, [])
        else:
            assert jsonrpc.error_of(await asked.answer()) is None
            assert (house.sent, house.stages.counted, house.stages.validated) == (1, 1, 1)


def is_done(answer: Frame) -> bool:
    return refusal_in(answer) is None


async def demanded_sign_in(house: Scene) -> Asked:
    """Make a call for which the server demands a sign-in. It answers all later calls."""
    house.script.replies[protocol.CALL_TOOL] = SILENCE
    asked = house.call()
    await until(lambda: house.sent == 1)
    (carrier,) = (each for each in house.script.carriers if each.asked(protocol.CALL_TOOL))
    demand = Unavailable("sign in", SIGN_IN_REQUIRED, challenge="Bearer")
    sent = carrier.asked(protocol.CALL_TOOL)[-1].id
    cast("Any", carrier.receiver).on_stream_ended(sent, demand)
    await settled()
    house.script.replies[protocol.CALL_TOOL] = DONE
    return asked


@loop_over("door", DOORS)
@loop_over("change", ["deny", "ask", "set aside", ""])
async def test_what_changes_while_a_demanded_sign_in_is_awaited_counts_after_it(
    door: str, change: str
) -> None:
    async with scene(door, "demand") as house:
        asked = await demanded_sign_in(house)
        if change:
            house.change(change)
        house.stages.gate.set()
        if change == "ask":
            await settled()
            assert (house.sent, house.people.held) == (1, ["asked"])
            assert house.stages.unsent == ["a person must decide first"]
        else:
            answer = await asked.answer()
            assert (house.sent, is_done(answer)) == ((1, False) if change else (2, True))


async def test_a_call_of_the_registry_that_awaits_a_sign_in_holds_no_place() -> None:
    async with scene("registry", "demand") as house:
        first = await demanded_sign_in(house)
        second = house.call()
        assert is_done(await second.answer())
        house.stages.gate.set()
        assert is_done(await first.answer())
        assert house.sent == 3


class Retryable:
    def tool_policy(self, name: str) -> ToolPolicy:
        return ToolPolicy(idempotent=True, max_retries=2)


@asynccontextmanager
async def failing(door: str, *, is_approved: bool = False) -> AsyncGenerator[tuple[Scene, Asked]]:
    """A call whose first attempt is about to fail, so that the gateway makes it again."""
    policy = cast("ServerPolicy", Retryable())
    retries = RetryService(lambda _: policy, random_value=lambda: 0.0)
    people = Consent() if is_approved else Holds()
    async with scene(door, retries=retries, approvals=people) as house:
        if is_approved:
            house.policy.effects["t"] = Effect.ASK
        house.script.replies[protocol.CALL_TOOL] = SILENCE
        asked = house.call()
        await until(lambda: house.sent == 1)
        yield house, asked


class Consent(Holds):
    """People who approve every call."""

    def hold(self, call: Any, entry: CatalogEntry, review: Any, *_: object) -> Any:
        return Consented(call, review.digest)


class Consented:
    def __init__(self, call: Call, digest: str) -> None:
        self.call = call
        self.digest = digest

    def start(self, go_on: Callable[[], Coroutine[Any, Any, None]], *_: object) -> None:
        self.call.confirmed_definition = self.digest
        self.task = asyncio.ensure_future(go_on())


def fail(house: Scene) -> None:
    """The server answers the open call with an error that may pass."""
    (carrier,) = (each for each in house.script.carriers if each.asked(protocol.CALL_TOOL))
    recovery = {"retryable": True, "retry_after_ms": 1, "retry_strategy": "fixed_delay"}
    error = {"code": 3000, "message": "not now", "data": {"_mgp": recovery}}
    asked = carrier.asked(protocol.CALL_TOOL)[-1]
    house.script.replies[protocol.CALL_TOOL] = DONE
    carrier.says(Frame("2.0", asked.id, error=jsonrpc.to_raw(error)), asked)


@loop_over("door", DOORS)
@loop_over("change", ["deny", "ask", "set aside", ""])
async def test_what_changes_between_two_attempts_of_a_call_counts_for_the_second(
    door: str, change: str
) -> None:
    async with failing(door) as (house, asked):
        if change:
            house.change(change)
        fail(house)
        answer = await asked.answer()
        assert (house.sent, is_done(answer)) == ((1, False) if change else (2, True))
        assert house.people.held == []


@loop_over("door", DOORS)
@loop_over("change", ["deny", "set aside", ""])
async def test_an_approved_call_is_made_again_like_any_other(door: str, change: str) -> None:
    async with failing(door, is_approved=True) as (house, asked):
        if change:
            house.change(change)
        fail(house)
        answer = await asked.answer()
        assert (house.sent, is_done(answer)) == ((1, False) if change else (2, True))


async def test_a_retry_waits_for_no_policy_that_is_unknown() -> None:
    async with failing("one modern") as (house, asked):
        house.policy.is_known = False
        fail(house)
        assert jsonrpc.error_of(await asked.answer()) is not None
        assert house.sent == 1
