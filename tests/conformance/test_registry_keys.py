"""Keys at the registry's face: what each permission opens, and credentials inside a message."""

import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from comity.audit.events import event_of
from comity.policy.grants import Effect, Grant
from comity.policy.limits import LimitRule
from comity.toolkit.resilience import RateLimit
from comity.validation.json_schema import compile_schema
from tests.support.credentials import GivenOut, bearer
from tests.support.upstream import Exchange, scripted
from tests.support.visitor import Visitor, at, visiting

JSON = {"content-type": "application/json"}
NAMES = ("add", "drop")


@asynccontextmanager
async def registry(**chosen: Any) -> AsyncGenerator[tuple[Visitor, GivenOut]]:
    """A gateway that asks everybody for a key; whoever has one may use the server `up`."""
    given = GivenOut()
    async with scripted() as server:

        @server.act("tools/list")
        async def listed(exchange: Exchange) -> None:
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]
            await exchange.result({"tools": tools})

        @server.act("tools/call")
        async def called(exchange: Exchange) -> None:
            await exchange.result({"content": []})

        async with visiting(
            at(server.url),
            register=given.register,
            identity_mode="required",
            grants=(Grant("agent:a", "tools/call", "up/*", Effect.ALLOW),),
            policy_require_approval="never",
            **chosen,
        ) as visitor:
            yield visitor, given


async def told(
    visitor: Visitor, method: str, path: str, key: str | None, body: object = None
) -> tuple[int, Any]:
    headers = {**(JSON if method == "POST" else {}), **(bearer(key) if key else {})}
    said = b"" if body is None else json.dumps(body).encode()
    reply = await visitor.send(method, headers.items(), said, path)
    return reply.status, await reply.json()


async def opens(visitor: Visitor, key: str) -> tuple[list[str], list[int], list[int]]:
    """What the catalogue shows, and whether each tool can be read, and called."""
    _, catalogue = await told(visitor, "GET", "/tools", key)
    shown = [tool["name"] for tool in catalogue["tools"]]
    read = [(await told(visitor, "GET", f"/tools/up__{name}", key))[0] for name in NAMES]
    called = [(await told(visitor, "POST", f"/tools/up__{name}", key, {}))[0] for name in NAMES]
    return shown, read, called


@pytest.mark.requirement("REG-perm-ToolInvoke", "REG-perm-ToolRead", "REG-perm-ToolsListAll")
@pytest.mark.parametrize(
    ("permissions", "shown", "read", "called"),
    [
        ((), ["up__add", "up__drop"], [200, 200], [200, 200]),
        (("ToolInvoke(up/add)",), ["up__add"], [200, 403], [200, 403]),
        (("ToolRead(up/add)",), ["up__add"], [200, 403], [403, 403]),
        (("ToolsListAll",), ["up__add", "up__drop"], [200, 200], [403, 403]),
        (("ToolsListAll", "ToolInvoke(drop)"), ["up__add", "up__drop"], [200, 200], [403, 200]),
        (("AdminRead",), [], [403, 403], [403, 403]),
    ],
)
async def test_a_key_opens_what_its_permissions_say(
    permissions: tuple[str, ...], shown: list[str], read: list[int], called: list[int]
) -> None:
    async with registry() as (visitor, given):
        key = given.give("agent:a", permissions=permissions)
        assert await opens(visitor, key) == (shown, read, called)


@pytest.mark.requirement("REG-auth-denied", "REG-err-32005")
async def test_no_permission_of_a_key_gives_more_than_its_party_has() -> None:
    async with registry() as (visitor, given):
        key = given.give("agent:b", permissions=("ToolsListAll", "ToolInvoke(*)"))
        assert await opens(visitor, key) == ([], [403, 403], [403, 403])
        _, refused = await told(visitor, "POST", "/tools/up__add", key, {})
        error = refused["error"]
        assert (error["code"], error["data"]["error_type"]) == (-32005, "AuthorizationError")


@pytest.mark.requirement("REG-auth-fail", "REG-err-32004")
@pytest.mark.parametrize("path", ["/tools", "/tools/up__add", "/openapi.json", "/resources"])
async def test_without_a_key_nothing_is_told(path: str) -> None:
    async with registry() as (visitor, _):
        status, refused = await told(visitor, "GET", path, None)
        assert (status, refused["error"]["code"]) == (401, -32004)
        assert refused["error"]["data"]["error_type"] == "AuthenticationError"


@pytest.mark.requirement("REG-auth-fail", "REG-err-32004")
async def test_a_well_formed_key_counts_only_with_its_id_and_its_secret() -> None:
    async with registry() as (visitor, given):
        right = given.give("agent:a")
        unknown_id = GivenOut().give("agent:a")
        wrong_secret = GivenOut().give("agent:a")
        (known,) = given.keys.values()
        # The gateway knows this id, and has the digest of another secret for it.
        id = wrong_secret.split("_")[2]
        given.keys[id] = replace(known, id=id)
        for key in (unknown_id, wrong_secret):
            status, refused = await told(visitor, "POST", "/tools/up__add", key, {})
            assert (status, refused["error"]["code"]) == (401, -32004)
            assert refused["error"]["data"]["error_type"] == "AuthenticationError"
        assert (await told(visitor, "POST", "/tools/up__add", right, {}))[0] == 200


@pytest.mark.requirement("REG-p4-security")
async def test_each_call_needs_a_key_a_grant_and_a_free_share_and_is_written_down() -> None:
    rule = LimitRule(target="up/drop", rate=RateLimit(2, 3600.0, 2))
    async with registry(limits_rates=(rule,)) as (visitor, given):
        key, stranger = given.give("agent:a"), given.give("agent:b")
        slow = given.give("agent:a", requests_per_minute=1)
        calls = [None, stranger, key, key, key]
        statuses = [(await told(visitor, "POST", "/tools/up__drop", each, {}))[0] for each in calls]
        assert statuses == [401, 403, 200, 200, 429]
        statuses = [(await told(visitor, "GET", "/tools/up__add", slow))[0] for _ in range(2)]
        assert statuses == [200, 429]
        log = visitor.parts.audit_log_components.audit_log
        await log.flush()
        entries = [event_of(line.body) for line in await log.store.page(log.node, 0, 1_000)]
        found = Counter((each.actor, each.type, each.result) for each in entries if each.tool)
        assert found["agent:a", "TOOL_EXECUTED", "SUCCESS"] == 2
        assert found["agent:a", "TOOL_BLOCKED", "BLOCKED"] == 1
        assert found["agent:b", "TOOL_BLOCKED", "BLOCKED"] == 1


@pytest.mark.requirement("REG-p4-fast")
async def test_a_schema_is_made_ready_once_for_all_calls_of_its_tool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []

    def counted(schema: dict[str, Any]) -> object:
        made.append(schema)
        return compile_schema(schema)

    monkeypatch.setattr("comity.validation.schema_validator.compile_schema", counted)
    async with registry() as (visitor, given):
        key = given.give("agent:a")
        for _ in range(20):
            assert (await told(visitor, "POST", "/tools/up__add", key, {}))[0] == 200
            assert (await told(visitor, "POST", "/tools/up__add", key, []))[0] == 400
    assert len(made) == 1


@pytest.mark.requirement("REG-auth-bearer")
async def test_credentials_may_stand_in_the_message_where_an_operator_says_so() -> None:
    async with registry(identity_accept_auth_member=True) as (visitor, given):
        key = given.give("agent:a")
        frame: dict[str, Any] = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "up__add", "arguments": {}},
            "auth": {"type": "bearer", "token": key},
        }
        status, answer = await told(visitor, "POST", "/tools", None, frame)
        assert (status, answer["result"]["content"]) == (200, [])
        # At a tool's own path the body is its arguments, whatever is in them.
        status, refused = await told(visitor, "POST", "/tools/up__add", None, frame)
        assert (status, refused["error"]["code"]) == (401, -32004)
        assert key not in json.dumps(refused)
