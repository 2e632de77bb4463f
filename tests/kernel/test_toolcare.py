"""How tools stand as their servers, pins, permissions and policies change."""

import asyncio
from typing import Any

from comity.kernel.catalog import Catalog, Kind, Offer
from comity.kernel.permits import Meeting, Permits
from comity.kernel.pinned import Pinned
from comity.kernel.toolcare import MOST_COMPARED, ONE_COMPARISON, ToolCare
from comity.rules.names import public_name
from comity.rules.permissions import ApprovalPolicy
from comity.rules.policies import Definitions, Fallback, RequireApproval, ServerPolicy, ToolPolicy
from comity.rules.standings import State
from comity.rules.validators import UNRULED
from comity.wire import jsonrpc
from comity.wire.errors import PERMISSION_DENIED, POLICY_UNKNOWN, TOOL_DISABLED, Unavailable
from comity.wire.negotiation import Statement
from comity.wire.pins import Pin
from comity.wire.security import Risk
from tests.kernel.test_pinned import Store

FETCH: dict[str, Any] = {
    "name": "fetch",
    "inputSchema": {"type": "object", "properties": {"url": {"type": "string"}}},
}


def offer(server: str, definition: dict[str, Any]) -> Offer:
    public = public_name(server, definition["name"])
    written = jsonrpc.to_json({**definition, "name": public})
    return Offer(public, server, definition["name"], written)


class Care:
    def __init__(self, **policies: ServerPolicy) -> None:
        self.catalog = Catalog()
        self.store = Store()
        self.policies = policies
        self.permits = Permits(self.policy)
        self.tools = ToolCare(self.catalog, self.policy, self.permits, Pinned(self.store))
        self.told: list[str] = []
        self.catalog.watch(lambda server, _: self.told.append(server))

    def policy(self, server: str) -> ServerPolicy:
        return self.policies.get(server, ServerPolicy())

    async def lists(self, server: str, *definitions: dict[str, Any]) -> Offer:
        offers = [offer(server, each) for each in definitions]
        await self.tools.vet(server, offers)
        self.catalog.put(server, Kind.TOOL, offers)
        return offers[0]

    async def settle(self) -> None:
        async with asyncio.timeout(10):
            await self.tools.settle()


async def test_a_standing_is_worked_out_once() -> None:
    care = Care()
    found = await care.lists("srv", FETCH)
    assert care.tools.standing(found) is care.tools.standing(found)
    again = offer("srv", FETCH)
    assert care.tools.standing(again) is care.tools.standing(found)
    assert care.tools.rules_of(found) is care.tools.rules_of(found)


async def test_a_tool_that_nobody_listed_is_not_remembered() -> None:
    care = Care(strict=ServerPolicy(definitions=Definitions.APPROVE))
    for server, state in (("srv", State.ACCEPTED), ("strict", State.NEW)):
        await care.lists(server, FETCH)
        unlisted = Offer(f"{server}__x", server, "x", b"{}")
        assert care.tools.standing(unlisted).state is state
        assert care.tools.standing(unlisted) is not care.tools.standing(unlisted)


async def test_a_missing_permission_comes_and_goes_with_its_decision() -> None:
    care = Care(srv=ServerPolicy(approval=ApprovalPolicy.CONFIG_ONLY))
    found = await care.lists("srv", FETCH)
    await care.permits.meet(Meeting("srv", Statement("", frozenset(), ("camera",))))
    refusal = care.tools.standing(found).refusal
    assert refusal is not None
    assert refusal.fault is PERMISSION_DENIED
    care.policies["srv"] = ServerPolicy(permissions=("camera",))
    await care.permits.meet(Meeting("srv", Statement("", frozenset(), ("camera",))))
    assert care.tools.standing(found).refusal is None
    assert "srv" in care.told


async def test_while_the_store_is_away_nothing_of_a_new_server_is_offered() -> None:
    care = Care(free=ServerPolicy(definitions=Definitions.OFF))
    care.store.trouble = Unavailable("away")
    found = await care.lists("srv", FETCH)
    refusal = care.tools.standing(found).refusal
    assert refusal is not None
    assert refusal.fault is POLICY_UNKNOWN
    assert care.tools.standing(await care.lists("free", FETCH)).state is State.ACCEPTED
    care.store.trouble = None
    care.tools.look()
    await care.settle()
    assert care.tools.standing(found).state is State.ACCEPTED


async def test_what_was_accepted_before_the_start_is_what_counts() -> None:
    care = Care()
    await care.store.put(Pin("srv", "fetch", "another", b'{"name":"fetch"}', "person:ana"))
    found = await care.lists("srv", FETCH)
    standing = care.tools.standing(found)
    assert standing.refusal is not None
    assert (standing.state, standing.refusal.fault) == (State.CHANGED, TOOL_DISABLED)
    # Somebody accepts it elsewhere, and the news comes.
    written = care.tools.written(found)
    await care.store.put(Pin("srv", "fetch", standing.digest, written, "person:ana"))
    for whose in ("srv", ""):
        care.tools.pins_changed(whose)
        await care.settle()
    assert care.tools.standing(found).state is State.ACCEPTED


async def test_a_policy_that_changes_counts_when_it_is_told() -> None:
    care = Care()
    found = await care.lists("srv", FETCH)
    assert care.tools.standing(found).risk is Risk.DANGEROUS
    off = ToolPolicy(Risk.SAFE, disabled=True, cost=7)
    care.policies["srv"] = ServerPolicy(tools={"fetch": off})
    care.tools.refresh("srv")
    standing = care.tools.standing(found)
    assert (standing.state, standing.risk, standing.cost) == (State.DISABLED, Risk.SAFE, 7)


async def test_a_server_that_goes_leaves_its_names_to_others() -> None:
    care = Care()
    await care.lists("files", {"name": "delete"})
    rogue = await care.lists("rogue", {"name": "de1ete"})
    assert care.tools.standing(rogue).state is State.SUSPECT
    care.catalog.clear("files")
    assert care.tools.standing(rogue).state is State.ACCEPTED
    await care.lists("rogue", FETCH)
    assert [each.name for each in care.tools.offers_of("rogue")] == ["fetch"]


async def test_a_server_that_tells_each_client_something_else_is_not_read_without_end() -> None:
    care = Care()
    found = await care.lists("srv", {**FETCH, "security": {"risk_level": "safe"}})
    for _ in range(MOST_COMPARED // ONE_COMPARISON + 10):
        plain = jsonrpc.members(jsonrpc.to_json(FETCH))
        assert care.tools.as_shown(found, plain) is found, "this one is familiar"
    told = [
        care.tools.as_shown(found, jsonrpc.members(jsonrpc.to_json({**FETCH, "n": number})))
        for number in range(MOST_COMPARED // ONE_COMPARISON + 10)
    ]
    assert {care.tools.standing(each).state for each in told[:10]} == {State.CHANGED}
    assert care.tools.standing(told[-1]).state is State.UNREADABLE
    care.tools.look()
    other = jsonrpc.members(jsonrpc.to_json({**FETCH, "n": -1}))
    assert care.tools.standing(care.tools.as_shown(found, other)).state is State.CHANGED


async def test_validators_that_nobody_named_are_advice_or_law() -> None:
    named = ToolPolicy(validators=("readonly",), arguments={"url": "text"})
    care = Care(
        warn=ServerPolicy(),
        on=ServerPolicy(fallback=Fallback.ON),
        off=ServerPolicy(fallback=Fallback.OFF),
        named=ServerPolicy(fallback=Fallback.ON, tools={"fetch": named}),
    )
    found = {name: care.tools.standing(await care.lists(name, FETCH)) for name in care.policies}
    told = {name: (each.validators, each.advised) for name, each in found.items()}
    assert told == {
        "warn": ((), ("network_restricted",)),
        "on": (("network_restricted",), ()),
        "off": ((), ()),
        "named": (("readonly",), ()),
    }
    assert found["off"].rules is UNRULED
    assert found["on"].rules.arguments == {"url": "url"}
    assert found["named"].rules.arguments == {"url": "text"}
    care.tools.stop()


async def test_a_tool_that_reads_may_be_answered_for_unless_its_operator_wants_each_call() -> None:
    reads = {**FETCH, "annotations": {"readOnlyHint": True}}
    care = Care(
        always=ServerPolicy(tools={"fetch": ToolPolicy(require_approval=RequireApproval.ALWAYS)}),
        several=ServerPolicy(tools={"fetch": ToolPolicy(approvals=2)}),
        judged=ServerPolicy(risk=Risk.MODERATE),
    )
    for server, definition, is_answered in (
        ("srv", reads, True),
        ("srv2", FETCH, False),
        ("judged", FETCH, True),
        ("always", reads, False),
        ("several", reads, False),
        ("srv3", {**reads, "security": {"permissions_required": ["shell.execute"]}}, False),
        ("srv4", {**reads, "security": {"reversible": False}}, False),
        ("srv5", {**reads, "security": {"confirmation_required": True}}, False),
    ):
        found = await care.lists(server, definition)
        because = care.tools.standing(found).asked_each_time
        assert (because is None) is is_answered, (server, because)
