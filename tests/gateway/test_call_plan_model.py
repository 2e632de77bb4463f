"""Call plans against a gate without plans, for any order of calls and changes.

After each step, every principal calls every tool in every way. The gateway answers with the plans
and the known heads that it keeps. A second gate on the same parts has no plans, and says what the
answer must be. The rules change what both read: grants, keys, principals, definitions, permissions,
limits, policies, servers and the time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, ClassVar, override

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from comity.app.gateway import GatewayParts, assemble_gateway
from comity.app.settings import ServerSettings
from comity.errors import MalformedMessage, Unavailable
from comity.gateway.pipeline import CallGate, CallPlan, Outcome
from comity.http.asgi import Receive, Scope, Send
from comity.http.fast_path import Continuation, FastPathRequest, RequestHead
from comity.identity.authentication import RequestCredentials
from comity.identity.keys import mint_key
from comity.identity.principals import ApiKey, Principal
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.protocol import public_name
from comity.policy.grants import PERMISSION_VERB, Effect, Grant, Guardrail, view_target
from comity.policy.limits import LimitRule
from comity.policy.risk import Risk, ToolPolicy
from comity.servers.wiring import options_of
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.toolkit.resilience import RateLimit
from comity.views.model import View
from comity.views.service import ViewService
from tests.pace import at_length
from tests.support.planned_gateway import USUAL
from tests.support.settings import settings_with
from tests.support.visitor import Frame

PATH = "/model"
START = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
PRINCIPALS = ("agent:a", "agent:b")
SERVERS = ("one", "two")
TOOLS = ("read", "write", "reаd")  # noqa: RUF001  # the last one only looks like the first
VIEW = View("v", select=("one/*", "two/read"))
PERMISSION = "network.outbound"
FRAME = jsonrpc.make_request(1, protocol.CALL_TOOL, {"name": "read", "arguments": {}})
DEFINITIONS: dict[str, Frame] = {
    "plain": {"inputSchema": {"type": "object"}},
    "described": {"inputSchema": {"type": "object"}, "description": "It does more."},
    "strict": {"inputSchema": {"type": "object", "required": ["path"]}},
    "permission": {
        "inputSchema": {"type": "object"},
        "security": {"risk_level": "safe", "permissions_required": [PERMISSION]},
    },
}
POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"tools": {"read": ToolPolicy(disabled=True)}},
    {"tools": {"*": ToolPolicy(risk=Risk.DANGEROUS)}},
    {"tools": {"write": ToolPolicy(validators=("unknown",))}},
    {"live": {"scope_of": {"read": "/path"}}},
    {"policy": {"trust_definitions": "off"}},
    {"policy": {"on_suspicious_definition": "strict"}},
)
ROUTES = (
    *((server, tool) for server in SERVERS for tool in TOOLS),
    *(("", public_name(server, tool)) for server in SERVERS for tool in TOOLS),
    *(("", tool) for tool in TOOLS),
    *((view_target(VIEW.name), name) for name in ("read", "write", "two__read")),
)
"""The ways to call a tool: at its server, by its public or bare name, and through a view."""

principals = st.sampled_from(PRINCIPALS)
servers = st.sampled_from(SERVERS)
effects = st.sampled_from([Effect.ALLOW, Effect.ALLOW, Effect.DENY, Effect.ASK])
targets = st.sampled_from(["*", "one/*", "one/read", "two/read", "two/*", "one/write"])
lasting = st.sampled_from([None, None, 10, 30])


class ModelTime(datetime):
    """The wall clock of the model, which stands still between two steps."""

    at: ClassVar[datetime] = START

    @override
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return cls.at


@pytest.fixture(autouse=True)
def model_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("policy.snapshot", "policy.server_permissions", "identity.authentication"):
        monkeypatch.setattr(f"comity.{module}.datetime", ModelTime)
    monkeypatch.setattr("comity.app.http.KNOWN_SECONDS", 3600.0)


class ModelEndpoint:
    """An endpoint that notes who called it."""

    def __init__(self) -> None:
        self.actor: Actor | None = None

    def serve(self, request: FastPathRequest, actor: Actor) -> bool:
        self.actor = actor
        return True

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        raise AssertionError("the model has no ordinary requests")


class ModelConnection:
    """A connection whose requests need no answer."""

    address = "127.0.0.1"

    def written(self, request: FastPathRequest, data: bytes) -> None:
        raise AssertionError(data)

    def continued(self, request: FastPathRequest, continuation: Continuation) -> None:
        raise AssertionError(request)


class Plans(RuleBasedStateMachine):
    """One gateway, and a gate without plans on the same parts."""

    planned_calls: ClassVar[int] = 0
    refusals: ClassVar[int] = 0
    outlasted_changes: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        ModelTime.at = START
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.heads: dict[str, RequestHead] = {}
        self.keys: dict[str, ApiKey] = {}
        self.groups: dict[str, tuple[str, ...]] = dict.fromkeys(PRINCIPALS, ())
        self.endpoint = ModelEndpoint()
        self.parts = self.run(self._begin())

    def run[T](self, step: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(step)

    async def _begin(self) -> GatewayParts:
        self.settings = settings_with(**{**USUAL, "policy_default_policy": "allow"})
        parts = await self.stack.enter_async_context(assemble_gateway(self.settings))
        parts.http_app.add_endpoints({PATH: self.endpoint})
        records = parts.snapshot.records
        for name in PRINCIPALS:
            await records.parties.put(Principal(name))
            whole, self.keys[name] = mint_key(parts.authenticator.pepper, ApiKey("", name, b""))
            await records.keys.put(self.keys[name], START)
            headers = {b"host": b"127.0.0.1", b"authorization": f"Bearer {whole}".encode()}
            self.heads[name] = RequestHead(PATH.encode(), headers, list(headers.items()), True)
        await parts.snapshot.refresh()
        gate = parts.all_servers_endpoint.call_gate
        self.gate, pipeline = gate, gate.pipeline
        self.oracle = CallGate(
            gate.catalog,
            parts.snapshot.grants,
            pipeline.tools,
            pipeline.limits,
            pipeline.argument_checker,
            approvals=pipeline.approvals,
            scope_checker=pipeline.scope_checker,
            own_tasks=pipeline.own_tasks,
            intent_recorder=pipeline.intent_recorder,
        )
        grants = parts.snapshot.grants
        self.views = ViewService(gate.catalog, grants, pipeline.tools, grants.generation)
        self.views.replace([VIEW])
        for server in SERVERS:
            _apply_policy(parts, server, {})
            await _list_tools(parts, server, dict.fromkeys(TOOLS, "plain"))
        return parts

    @override
    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.runner.close()

    # Grants and settings.

    @rule(
        subject=st.sampled_from([*PRINCIPALS, "group:g", "*"]),
        about=targets,
        effect=effects,
        ends=lasting,
    )
    def put_grant(self, subject: str, about: str, effect: Effect, ends: int | None) -> None:
        self._put(Grant(subject, protocol.CALL_TOOL, about, effect, expires_at=_at(ends)))

    @rule(server=servers, tool=st.sampled_from(TOOLS), seconds=st.sampled_from([10, 30]))
    def deny_for_a_while(self, server: str, tool: str, seconds: int) -> None:
        target = f"{server}/{tool}"
        self._put(Grant("*", protocol.CALL_TOOL, target, Effect.DENY, expires_at=_at(seconds)))

    @rule(server=servers, effect=st.sampled_from([Effect.ALLOW, Effect.DENY]), ends=lasting)
    def decide_permission(self, server: str, effect: Effect, ends: int | None) -> None:
        self._put(
            Grant(f"server:{server}", PERMISSION_VERB, PERMISSION, effect, expires_at=_at(ends))
        )

    def _put(self, grant: Grant) -> None:
        self.run(self.parts.snapshot.records.grants.put(grant))
        self.run(self.parts.snapshot.refresh())

    @rule(which=st.integers(0, 9))
    def revoke_grant(self, which: int) -> None:
        grants = self.run(self.parts.snapshot.records.grants.page())
        if grants:
            one = grants[which % len(grants)]
            revoke = self.parts.snapshot.records.grants.revoke
            self.run(revoke(one.subject, one.verb, one.target))
            self.run(self.parts.snapshot.refresh())

    @rule(default=st.sampled_from(["deny", "allow", "allow"]))
    def change_default_policy(self, default: Any) -> None:
        self._apply(policy=replace(self.settings.policy, default_policy=default))

    @rule(about=st.sampled_from(["", "one/read", "two/*"]))
    def change_guardrails(self, about: str) -> None:
        rules = (Guardrail("agent:a", protocol.CALL_TOOL, about),) if about else ()
        self._apply(forbid=rules)

    @rule(is_limited=st.booleans())
    def change_limits(self, is_limited: bool) -> None:
        rates = (LimitRule(rate=RateLimit(9, 60.0, 9)),) if is_limited else ()
        self._apply(limits=replace(self.settings.limits, rates=rates))

    def _apply(self, **changed: Any) -> None:
        self.settings = replace(self.settings, **changed)
        self.run(self.parts.policy_components.apply_settings(self.settings))

    # Keys and principals.

    @rule(name=principals, permissions=st.sampled_from([(), (), ("ToolInvoke(one/read)",)]))
    def change_key(self, name: str, permissions: tuple[str, ...]) -> None:
        self._put_key(name, permissions=permissions, revoked_at=None, expires_at=None)

    @rule(name=principals)
    def revoke_key(self, name: str) -> None:
        self._put_key(name, revoked_at=ModelTime.at)

    @rule(name=principals, ends=lasting)
    def end_key(self, name: str, ends: int | None) -> None:
        self._put_key(name, expires_at=_at(ends))

    def _put_key(self, name: str, **changed: Any) -> None:
        self.keys[name] = replace(self.keys[name], **changed)
        self.run(self.parts.snapshot.records.keys.put(self.keys[name], ModelTime.at))
        self.run(self.parts.snapshot.refresh())

    @rule(name=principals, is_disabled=st.booleans())
    def disable_principal(self, name: str, is_disabled: bool) -> None:
        self._put_principal(name, disabled=is_disabled)

    @rule(name=principals, groups=st.sampled_from([(), ("g",)]))
    def change_groups(self, name: str, groups: tuple[str, ...]) -> None:
        self.groups[name] = groups
        self._put_principal(name)

    def _put_principal(self, name: str, *, disabled: bool = False) -> None:
        principal = Principal(name, groups=self.groups[name], disabled=disabled)
        self.run(self.parts.snapshot.records.parties.put(principal))
        self.run(self.parts.snapshot.refresh())

    # Servers and their tools.

    @rule(
        server=servers,
        tools=st.dictionaries(st.sampled_from(TOOLS), st.sampled_from(sorted(DEFINITIONS))),
    )
    def list_tools(self, server: str, tools: dict[str, str]) -> None:
        self.run(_list_tools(self.parts, server, tools))

    @rule(server=servers, tool=st.sampled_from(TOOLS))
    def accept_definition(self, server: str, tool: str) -> None:
        self.run(_accept_definition(self.parts, server, tool))

    @rule(server=servers, changed=st.sampled_from(POLICIES))
    def change_policy(self, server: str, changed: dict[str, Any]) -> None:
        self.run(_in_loop(lambda: _apply_policy(self.parts, server, changed)))

    @rule(server=servers, changed=st.sampled_from([POLICIES[0], POLICIES[4]]))
    def change_live_policy(self, server: str, changed: dict[str, Any]) -> None:
        told = ServerSettings(server, server, "http", url="http://127.0.0.1:9/", **changed)
        self.run(_in_loop(lambda: self.parts.server_policies.update_server(told)))

    @rule(server=servers)
    def remove_server(self, server: str) -> None:
        def remove() -> None:
            self.parts.catalog.clear(server)
            self.parts.server_policies.remove_server(server)

        self.run(_in_loop(remove))

    @rule(select=st.sampled_from([VIEW.select, ("two/*",), ("one/read", "two/read")]))
    def change_view(self, select: tuple[str, ...]) -> None:
        views = [replace(VIEW, select=select)]
        self.run(_in_loop(lambda: self.views.replace(views)))

    @rule(seconds=st.sampled_from([5, 10, 40]))
    def pass_time(self, seconds: int) -> None:
        ModelTime.at += timedelta(seconds=seconds)

    # Calls.

    @invariant()
    def every_call_is_decided_as_without_plans(self) -> None:
        self.run(self._compare_all())

    async def _compare_all(self) -> None:
        for name in PRINCIPALS:
            # A principal begins one request in each round of the event loop.
            await asyncio.sleep(0)
            actor = self._known_actor(name)
            assert actor == self._current_actor(name)
            if actor is None:
                Plans.refusals += 1
                continue
            for server, tool in ROUTES:
                told = self._decide(self.gate, actor, server, tool)
                expected = self._decide(self.oracle, actor, server, tool)
                await _compare(told, expected)

    def _known_actor(self, name: str) -> Actor | None:
        """Return the actor of a request with the same head as before, or None for a refusal."""
        self.endpoint.actor = None
        is_served = self.parts.http_app.serve(
            FastPathRequest(ModelConnection(), self.heads[name], b"")
        )
        assert is_served == (self.endpoint.actor is not None)
        return self.endpoint.actor

    def _current_actor(self, name: str) -> Actor | None:
        """Return the actor that the credentials name now, or None if they are not valid."""
        headers = self.heads[name].headers
        arrival = RequestCredentials(headers, "127.0.0.1", PATH, True)
        try:
            return self.parts.authenticator.recognise(headers[b"authorization"], arrival)
        except MalformedMessage:
            return None

    def _decide(
        self, gate: CallGate, actor: Actor, server: str, tool: str
    ) -> tuple[object, CallPlan | None]:
        """Return what a gate decides about a call, and the plan for the rest of its checks."""
        stream = ClientStream()
        stream.actor = actor
        call = Call(FRAME, stream, None, 0)
        cache = gate.plan_cache
        key = (actor.party, actor.groups, actor.permissions, actor.excluded, server, tool)
        known = None if cache is None else cache.plans.get(key)
        number = 0 if cache is None else cache.generation.number
        was_checked = known is not None and known.generation < number
        try:
            if server == view_target(VIEW.name):
                view = self.views.get(VIEW.name)
                assert view is not None
                call.view = view.name
                plan = gate.view_plan_for(call, view, tool)
            else:
                plan = gate.plan_for(call, server, tool)
        except (MalformedMessage, Unavailable) as error:
            Plans.refusals += 1
            return (type(error), error.fault.error_type, str(error)), None
        Plans.planned_calls += plan is known
        Plans.outlasted_changes += plan is known and was_checked
        stages = tuple(stage.__name__ for stage in plan.stages)
        return (plan.entry, call.decision, plan.review, stages), plan


async def _compare(
    told: tuple[object, CallPlan | None], expected: tuple[object, CallPlan | None]
) -> None:
    assert told[0] == expected[0]
    if told[1] is not None and expected[1] is not None:
        for arguments in ({}, {"path": "/x"}):
            assert await _verdict(told[1], arguments) == await _verdict(expected[1], arguments)


async def _verdict(plan: CallPlan, arguments: object) -> Outcome:
    found = None if plan.check is None else plan.check(arguments)
    return await found if isinstance(found, Awaitable) else found


def _at(seconds: int | None) -> datetime | None:
    return None if seconds is None else ModelTime.at + timedelta(seconds=seconds)


async def _in_loop(step: Callable[[], object]) -> None:
    step()


def _apply_policy(parts: GatewayParts, server: str, changed: dict[str, Any]) -> None:
    """Apply the settings of a server, as the registry does when it adds the server."""
    told = ServerSettings(server, server, "http", url="http://127.0.0.1:9/", **changed)
    options = options_of(told, parts.upstream_registry.settings)
    parts.server_policies.apply_to_server(told, options)


async def _accept_definition(parts: GatewayParts, server: str, tool: str) -> None:
    reviews = parts.server_policies.tool_reviews
    entry = reviews.find_entry(server, tool)
    if entry is not None:
        digests = {tool: reviews.review_of(entry).digest}
        await reviews.accept(server, digests, "person:operator")


async def _list_tools(parts: GatewayParts, server: str, tools: dict[str, str]) -> None:
    """Put the list of a server into the catalog, as the reader of lists does."""
    entries: list[CatalogEntry] = []
    for tool, kind in tools.items():
        public = public_name(server, tool)
        definition = jsonrpc.to_json({**DEFINITIONS[kind], "name": public})
        entries.append(CatalogEntry(public, server, tool, definition))
    await parts.server_policies.tool_reviews.review_list(server, entries)
    parts.catalog.put(server, EntryKind.TOOL, entries)


@pytest.fixture
def counted() -> Generator[None]:
    Plans.planned_calls = Plans.refusals = Plans.outlasted_changes = 0
    yield
    assert Plans.planned_calls > 200
    # Changes elsewhere left plans alone, so it was put to the test that they were right to do so.
    assert Plans.outlasted_changes > 200
    assert Plans.refusals > 200


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("counted")
def test_no_order_of_calls_and_changes_meets_a_stale_plan() -> None:
    bounds = settings(max_examples=at_length(300, 12), stateful_step_count=50, deadline=None)
    run_state_machine_as_test(Plans, settings=bounds)
