"""Calls that wait, are sent again or start a fallback: what was decided before is decided again."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from comity.catalog.catalog import Catalog
from comity.errors import ACCESS_DENIED, TOOL_NOT_FOUND, Fault
from comity.gateway.all_servers import AllServersEndpoint
from comity.gateway.pipeline import CallGate, PlanCache
from comity.gateway.view_endpoint import ViewEndpoint
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.jsonrpc import Frame
from comity.policy.grants import Effect
from comity.policy.risk import Risk
from comity.policy.snapshot import PolicyGeneration
from comity.registry.export import CatalogExport
from comity.registry.service import RegistryService, RegistryTimeouts
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.methods import MethodRequest
from comity.sessions.sessions import Session
from comity.views.model import View
from comity.views.service import ServedView
from tests.support.asking import Standing
from tests.support.carriers import Params, Script, settled
from tests.support.cases import loop_over
from tests.support.changing_policy import ChangingPolicy
from tests.support.desks import Asked, Front, all_servers, one_server
from tests.support.server_house import tools

DONE: Params = {"content": [{"type": "text", "text": "done"}]}


class Reviews:
    """Tools that need no person by themselves."""

    def review_of(self, entry: CatalogEntry) -> Standing:
        return Standing("digest", 1, None, False, False, risk=Risk.SAFE)

    def with_listed_definition(self, entry: CatalogEntry, listed: object) -> CatalogEntry:
        return entry


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
        self.check = stages.check_account

    def applies_to(self, _: object) -> bool:
        return True

    def retry_for(self, *_: object) -> Any:
        return None


class Holds:
    """People who are asked, and never answer."""

    def __init__(self) -> None:
        self.held: list[str] = []

    def hold(self, call: Any, entry: CatalogEntry, *_: object) -> Any:
        return self

    def start(self, *_: object) -> None:
        self.held.append("asked")

    def is_next_round(self, *_: object) -> bool:
        return False

    def without_prompt_reply(self, call: object, frame: Any) -> Any:
        return frame


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
        if self.door == "meta tool":
            name = "call_tool"
            params = {"name": name, "arguments": params}
        if self.session is not None:
            return self.front.ask(self.session, protocol.CALL_TOOL, params)
        head = ((protocol.METHOD_HEADER, b"tools/call"), (protocol.NAME_HEADER, name.encode()))
        return self.front.handle_modern_request(protocol.CALL_TOOL, params, head)

    async def _ask_registry(self, frame: Frame, outbox: ClientStream) -> Call:
        gate, desk = self.front.call_gate, cast("Any", self.front.desk)
        exports = CatalogExport(gate, self.front.servers)
        registry = RegistryService(desk, gate, self.front.underway, exports, RegistryTimeouts())
        async with registry.run_request(frame, outbox) as call:
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
            "sign_in": SignIn(stages) if waits == "sign_in" else None,
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
]
"""All ways in. Topics call at the door of one server; jobs and turns call at the door of all."""
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
            if door != "registry":
                assert refusal["error_type"] == FAULT_BY_CHANGE[change].error_type
            assert (house.sent, house.people.held) == (0, [])
        else:
            assert jsonrpc.error_of(await asked.answer()) is None
            assert (house.sent, house.stages.counted, house.stages.validated) == (1, 1, 1)
