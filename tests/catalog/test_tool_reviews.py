"""Reviews of tools: accepted definitions, and the state of each tool as its server changes."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from comity.catalog.catalog import Catalog
from comity.catalog.definitions import AcceptedTool, ReviewState
from comity.catalog.tool_reviews import (
    COMPARISON_COST,
    MAX_COMPARED_BYTES,
    AcceptedDefinitions,
    ToolReviewService,
)
from comity.errors import (
    PERMISSION_DENIED,
    POLICY_UNKNOWN,
    TOOL_DISABLED,
    MalformedMessage,
    Unavailable,
)
from comity.mcp import jsonrpc
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.mgp import MgpStatement
from comity.mcp.protocol import public_name
from comity.policy.risk import (
    ApprovalPolicy,
    DefinitionPolicy,
    FallbackValidatorPolicy,
    RequireApproval,
    Risk,
    ServerPolicy,
    ToolPolicy,
)
from comity.policy.server_permissions import PermissionService, ServerIntroduction
from comity.validation.rules import UNRULED
from tests.support.inline_store import inline_records


def accepted_tool(tool: str, digest: str = "d", by: str = "system:gateway") -> AcceptedTool:
    return AcceptedTool("srv", tool, digest, b'{"name":"x"}', by)


class FailingPinStore:
    """Records that fail when they are told to."""

    def __init__(self) -> None:
        self.kept = inline_records().accepted_tools
        self.trouble: Exception | None = None
        self.writes: list[int] = []

    async def put(self, *pins: AcceptedTool) -> None:
        self._fail()
        self.writes.append(len(pins))
        await self.kept.put(*pins)

    async def get(self, server: str, tool: str) -> AcceptedTool | None:
        self._fail()
        return await self.kept.get(server, tool)

    async def list_for(self, server: str) -> Sequence[AcceptedTool]:
        self._fail()
        return await self.kept.list_for(server)

    async def remove(self, server: str, tool: str = "") -> bool:
        return await self.kept.remove(server, tool)

    def _fail(self) -> None:
        if self.trouble is not None:
            raise self.trouble


async def settled(accepted_definitions: AcceptedDefinitions) -> None:
    async with asyncio.timeout(10):
        await accepted_definitions.wait_until_written()


async def test_what_is_accepted_counts_at_once_and_is_written_in_few_goes() -> None:
    store = FailingPinStore()
    accepted_definitions = AcceptedDefinitions(store)
    await accepted_definitions.load("srv")
    for number in range(450):
        accepted_definitions.accept(accepted_tool(f"t{number}"))
    accepted = accepted_definitions.get("srv", "t7")
    assert accepted is not None
    assert (accepted.digest, await accepted_definitions.definition("srv", "t7")) == (
        "d",
        b'{"name":"x"}',
    )
    await settled(accepted_definitions)
    assert store.writes == [200, 200, 50]
    assert await accepted_definitions.definition("srv", "t7") == b'{"name":"x"}'
    assert await accepted_definitions.definition("srv", "none") is None


async def test_another_start_knows_what_was_accepted_before() -> None:
    store = FailingPinStore()
    await store.put(accepted_tool("a", "old"))
    accepted_definitions = AcceptedDefinitions(store)
    assert not accepted_definitions.is_known("srv")
    await accepted_definitions.load("srv")
    assert accepted_definitions.is_known("srv")
    assert accepted_definitions.definitions_of("srv")["a"].digest == "old"
    await store.put(accepted_tool("a", "new"))
    await accepted_definitions.load("srv")
    assert accepted_definitions.definitions_of("srv")["a"].digest == "old"
    await accepted_definitions.load("srv", reload=True)
    assert accepted_definitions.definitions_of("srv")["a"].digest == "new"


async def test_a_store_that_is_away_is_written_to_when_it_is_back() -> None:
    store = FailingPinStore()
    accepted_definitions = AcceptedDefinitions(store)
    await accepted_definitions.load("srv")
    store.trouble = Unavailable("away")
    accepted_definitions.accept(accepted_tool("a"))
    await settled(accepted_definitions)
    assert await store.kept.get("srv", "a") is None
    with pytest.raises(Unavailable):
        await accepted_definitions.load("other")
    assert not accepted_definitions.is_known("other")
    store.trouble = None
    await accepted_definitions.load("srv", reload=True)
    assert accepted_definitions.get("srv", "a") is not None
    accepted_definitions.retry_writes()
    await settled(accepted_definitions)
    assert await store.kept.get("srv", "a") is not None
    accepted_definitions.retry_writes()
    accepted_definitions.stop()


async def test_what_no_store_keeps_counts_until_the_next_start() -> None:
    store = FailingPinStore()
    accepted_definitions = AcceptedDefinitions(store)
    await accepted_definitions.load("srv")
    store.trouble = MalformedMessage("too long")
    accepted_definitions.accept(accepted_tool("a"))
    await settled(accepted_definitions)
    assert accepted_definitions.get("srv", "a") is not None
    store.trouble = None
    accepted_definitions.retry_writes()
    assert store.writes == []


async def test_what_a_person_accepts_is_written_before_it_counts() -> None:
    store = FailingPinStore()
    accepted_definitions = AcceptedDefinitions(store)
    store.trouble = Unavailable("away")
    with pytest.raises(Unavailable):
        await accepted_definitions.accept_durably([accepted_tool("a", by="person:ana")])
    assert accepted_definitions.get("srv", "a") is None
    store.trouble = None
    await accepted_definitions.accept_durably([accepted_tool("a", by="person:ana")])
    accepted = accepted_definitions.get("srv", "a")
    assert accepted is not None
    assert accepted.by == "person:ana"


FETCH: dict[str, Any] = {
    "name": "fetch",
    "inputSchema": {"type": "object", "properties": {"url": {"type": "string"}}},
}


def entry(server: str, definition: dict[str, Any]) -> CatalogEntry:
    public = public_name(server, definition["name"])
    written = jsonrpc.to_json({**definition, "name": public})
    return CatalogEntry(public, server, definition["name"], written)


class Reviews:
    def __init__(self, **policies: ServerPolicy) -> None:
        self.catalog = Catalog()
        self.store = FailingPinStore()
        self.policies = policies
        self.permits = PermissionService(self.policy)
        self.tools = ToolReviewService(
            self.catalog, self.policy, self.permits, AcceptedDefinitions(self.store)
        )
        self.told: list[str] = []
        self.catalog.watch(lambda server, _: self.told.append(server))

    def policy(self, server: str) -> ServerPolicy:
        return self.policies.get(server, ServerPolicy())

    async def lists(self, server: str, *definitions: dict[str, Any]) -> CatalogEntry:
        offers = [entry(server, each) for each in definitions]
        await self.tools.review_list(server, offers)
        self.catalog.put(server, EntryKind.TOOL, offers)
        return offers[0]

    async def settle(self) -> None:
        async with asyncio.timeout(10):
            await self.tools.wait_until_idle()


async def test_a_standing_is_worked_out_once() -> None:
    reviews = Reviews()
    found = await reviews.lists("srv", FETCH)
    assert reviews.tools.review_of(found) is reviews.tools.review_of(found)
    again = entry("srv", FETCH)
    assert reviews.tools.review_of(again) is reviews.tools.review_of(found)
    assert reviews.tools.rules_of(found) is reviews.tools.rules_of(found)


async def test_a_tool_that_nobody_listed_is_not_remembered() -> None:
    reviews = Reviews(strict=ServerPolicy(definitions=DefinitionPolicy.APPROVE))
    for server, state in (("srv", ReviewState.ACCEPTED), ("strict", ReviewState.NEW)):
        await reviews.lists(server, FETCH)
        unlisted = CatalogEntry(f"{server}__x", server, "x", b"{}")
        assert reviews.tools.review_of(unlisted).state is state
        assert reviews.tools.review_of(unlisted) is not reviews.tools.review_of(unlisted)


async def test_a_missing_permission_comes_and_goes_with_its_decision() -> None:
    reviews = Reviews(srv=ServerPolicy(approval=ApprovalPolicy.CONFIG_ONLY))
    found = await reviews.lists("srv", FETCH)
    await reviews.permits.decide_introduction(
        ServerIntroduction("srv", MgpStatement("", frozenset(), ("camera",)))
    )
    refusal = reviews.tools.review_of(found).refusal
    assert refusal is not None
    assert refusal.fault is PERMISSION_DENIED
    reviews.policies["srv"] = ServerPolicy(permissions=("camera",))
    await reviews.permits.decide_introduction(
        ServerIntroduction("srv", MgpStatement("", frozenset(), ("camera",)))
    )
    assert reviews.tools.review_of(found).refusal is None
    assert "srv" in reviews.told


async def test_while_the_store_is_away_nothing_of_a_new_server_is_offered() -> None:
    reviews = Reviews(free=ServerPolicy(definitions=DefinitionPolicy.OFF))
    reviews.store.trouble = Unavailable("away")
    found = await reviews.lists("srv", FETCH)
    refusal = reviews.tools.review_of(found).refusal
    assert refusal is not None
    assert refusal.fault is POLICY_UNKNOWN
    assert reviews.tools.review_of(await reviews.lists("free", FETCH)).state is ReviewState.ACCEPTED
    reviews.store.trouble = None
    reviews.tools.check()
    await reviews.settle()
    assert reviews.tools.review_of(found).state is ReviewState.ACCEPTED


async def test_what_was_accepted_before_the_start_is_what_counts() -> None:
    reviews = Reviews()
    await reviews.store.put(
        AcceptedTool("srv", "fetch", "another", b'{"name":"fetch"}', "person:ana")
    )
    found = await reviews.lists("srv", FETCH)
    standing = reviews.tools.review_of(found)
    assert standing.refusal is not None
    assert (standing.state, standing.refusal.fault) == (ReviewState.CHANGED, TOOL_DISABLED)
    # Somebody accepts it elsewhere, and the news comes.
    written = reviews.tools.canonical_definition_of(found)
    await reviews.store.put(AcceptedTool("srv", "fetch", standing.digest, written, "person:ana"))
    for whose in ("srv", ""):
        reviews.tools.on_accepted_changed(whose)
        await reviews.settle()
    assert reviews.tools.review_of(found).state is ReviewState.ACCEPTED


async def test_a_policy_that_changes_counts_when_it_is_told() -> None:
    reviews = Reviews()
    found = await reviews.lists("srv", FETCH)
    assert reviews.tools.review_of(found).risk is Risk.DANGEROUS
    off = ToolPolicy(Risk.SAFE, disabled=True, cost=7)
    reviews.policies["srv"] = ServerPolicy(tools={"fetch": off})
    reviews.tools.refresh("srv")
    standing = reviews.tools.review_of(found)
    assert (standing.state, standing.risk, standing.cost) == (ReviewState.DISABLED, Risk.SAFE, 7)


async def test_a_server_that_goes_leaves_its_names_to_others() -> None:
    reviews = Reviews()
    await reviews.lists("files", {"name": "delete"})
    rogue = await reviews.lists("rogue", {"name": "de1ete"})
    assert reviews.tools.review_of(rogue).state is ReviewState.SUSPECT
    reviews.catalog.clear("files")
    assert reviews.tools.review_of(rogue).state is ReviewState.ACCEPTED
    await reviews.lists("rogue", FETCH)
    assert [each.name for each in reviews.tools.entries_of("rogue")] == ["fetch"]


async def test_a_server_that_tells_each_client_something_else_is_not_read_without_end() -> None:
    reviews = Reviews()
    found = await reviews.lists("srv", {**FETCH, "security": {"risk_level": "safe"}})
    for _ in range(MAX_COMPARED_BYTES // COMPARISON_COST + 10):
        plain = jsonrpc.decode_members(jsonrpc.to_json(FETCH))
        assert reviews.tools.with_listed_definition(found, plain) is found, "this one is familiar"
    told = [
        reviews.tools.with_listed_definition(
            found, jsonrpc.decode_members(jsonrpc.to_json({**FETCH, "n": number}))
        )
        for number in range(MAX_COMPARED_BYTES // COMPARISON_COST + 10)
    ]
    assert {reviews.tools.review_of(each).state for each in told[:10]} == {ReviewState.CHANGED}
    assert reviews.tools.review_of(told[-1]).state is ReviewState.UNREADABLE
    reviews.tools.check()
    other = jsonrpc.decode_members(jsonrpc.to_json({**FETCH, "n": -1}))
    assert (
        reviews.tools.review_of(reviews.tools.with_listed_definition(found, other)).state
        is ReviewState.CHANGED
    )


async def test_validators_that_nobody_named_are_advice_or_law() -> None:
    named = ToolPolicy(validators=("readonly",), arguments={"url": "text"})
    reviews = Reviews(
        warn=ServerPolicy(),
        on=ServerPolicy(fallback=FallbackValidatorPolicy.ON),
        off=ServerPolicy(fallback=FallbackValidatorPolicy.OFF),
        named=ServerPolicy(fallback=FallbackValidatorPolicy.ON, tools={"fetch": named}),
    )
    found = {
        name: reviews.tools.review_of(await reviews.lists(name, FETCH)) for name in reviews.policies
    }
    told = {name: (each.validators, each.advisory_validators) for name, each in found.items()}
    assert told == {
        "warn": ((), ("network_restricted",)),
        "on": (("network_restricted",), ()),
        "off": ((), ()),
        "named": (("readonly",), ()),
    }
    assert found["off"].rules is UNRULED
    assert found["on"].rules.arguments == {"url": "url"}
    assert found["named"].rules.arguments == {"url": "text"}
    reviews.tools.stop()


async def test_a_tool_that_reads_may_be_answered_for_unless_its_operator_wants_each_call() -> None:
    reads = {**FETCH, "annotations": {"readOnlyHint": True}}
    reviews = Reviews(
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
        found = await reviews.lists(server, definition)
        because = reviews.tools.review_of(found).repeat_approval_reason
        assert (because is None) is is_answered, (server, because)
