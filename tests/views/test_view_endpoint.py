"""The endpoint of a view, over HTTP and in both protocol versions."""

import asyncio
import json
from typing import Any

import pytest

from comity.audit.chain import AuditFilter
from comity.audit.events import event_of
from comity.policy.grants import Effect, Grant, Guardrail
from comity.views.model import PrefixRule, ToolOverride, View
from tests.support.planned_gateway import OPERATOR, OPERATOR_GRANTS, refusal_in
from tests.support.visitor import LATEST, MODERN, Frame
from tests.views.scene import PAY, READ, ViewScene, viewing

PAYMENTS = View(
    "payments",
    select=("files/read", "mail/*"),
    overrides=(
        ToolOverride(
            "bank",
            "pay",
            name="pay_eu",
            description="Pays in the EU.",
            arguments={"region": "eu"},
            defaults={"amount": 5},
            annotations={"destructiveHint": True},
        ),
    ),
)
TOOLS = {
    "bank": {"pay": PAY, "refund": PAY},
    "files": {"read": READ, "delete": READ},
    "mail": {"read": READ, "send": READ},
}
VERSIONS = pytest.mark.parametrize("version", [LATEST, MODERN])
PATH = "/views/payments/mcp"
# Names that a server could read as the argument `region`.
LOOKALIKES = (
    *(
        "re\u0261ion",
        "regio\u0578",
        "reg\u13a5on",
        "\uab47egion",
        "r\u0435gi\u043en",
        "reg\u2170on",
    ),
    *("region[0]", "region[]", "[region]", "$.region", "/region", "arguments.region", "opt.region"),
    *("region=us&x", "region;", "region#", '"region', "region ", " region", "re\u200bgion"),
    *("\uff52\uff45\uff47\uff49\uff4f\uff4e", "regi0n", "reg1on", "r\u00e9gion", "re\u034fgion"),
    *("region\x00", "region\t", "re\ngion", "\u211degion", "\u202eregion", "", "."),
)


@VERSIONS
async def test_a_view_lists_and_calls_its_tools_with_its_fixed_arguments(version: str) -> None:
    async with viewing(PAYMENTS, tools=TOOLS, grants=("view:payments",)) as scene:
        client = await scene.client(PATH, version)
        assert await client.names() == ["files__read", "mail__read", "pay_eu", "send"]
        definition = await client.definition("pay_eu")
        assert definition["description"] == "Pays in the EU."
        assert definition["annotations"] == {"destructiveHint": True}
        schema = definition["inputSchema"]
        assert schema["properties"] == {"amount": {"type": "number", "default": 5}}
        assert "required" not in schema
        assert not refusal_in(await client.call("pay_eu", {}))
        assert not refusal_in(await client.call("pay_eu", {"amount": 7}))
        sent = [(each["name"], each["arguments"]) for each in scene.received("bank")]
        assert sent == [
            ("pay", {"amount": 5, "region": "eu"}),
            ("pay", {"amount": 7, "region": "eu"}),
        ]
        # The schema of the real tool decides about the final arguments.
        assert refusal_in(await client.call("pay_eu", {"amount": "x"})) == "invalid_tool_args"
        for arguments in ({"region": "us"}, {"Region": "us"}, {"re-gion": "us", "amount": 1}):
            refused = await client.call("pay_eu", arguments)
            assert refusal_in(refused) == "invalid_tool_args"
            assert "fixed by this view" in json.dumps(refused)
        # No other name of a tool leads anywhere: neither its own nor its public one.
        for name in ("pay", "bank__pay", "refund", "bank__refund", "read", "delete"):
            assert refusal_in(await client.call(name, {})) == "tool_not_found"
        assert len(scene.received("bank")) == 2
        # The grant of the view opens nothing elsewhere.
        assert await scene.status("/servers/bank/mcp", version) == 404
        other = await scene.client("/mcp", version)
        assert await other.names() == []
        assert refusal_in(await other.call("bank__pay", {"region": "us", "amount": 1}))


@VERSIONS
async def test_no_name_that_a_server_could_read_as_a_fixed_argument_passes(version: str) -> None:
    schema = {**PAY["inputSchema"], "additionalProperties": True}
    texts = {name: {"type": "string"} for name in ("region", "from.the\u00e4ccount")}
    schema["properties"] = {**texts, "amount": {"type": "number"}}
    tools = {**TOOLS, "bank": {"pay": {**PAY, "inputSchema": schema}}}
    async with viewing(PAYMENTS, tools=tools, grants=("view:payments",)) as scene:
        client = await scene.client(PATH, version)
        for name in LOOKALIKES:
            for arguments in ({name: "us"}, {"amount": 1, name: "us"}):
                refused = await client.call("pay_eu", arguments)
                assert refusal_in(refused) == "invalid_tool_args", name
        assert scene.received("bank") == []
        # Plain names pass, and so do those that the tool declares.
        given = {"note-1": "x", "from_": "y", "from.the\u00e4ccount": "z"}
        assert not refusal_in(await client.call("pay_eu", given))
        (sent,) = scene.received("bank")
        assert sent["arguments"] == {"amount": 5, **given, "region": "eu"}


async def test_headers_of_a_client_cannot_name_another_tool_or_argument() -> None:
    schema = {**PAY["inputSchema"]}
    schema["properties"] = {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "amount": {"type": "integer", "x-mcp-header": "Amount"},
    }
    tools = {**TOOLS, "bank": {"pay": {**PAY, "inputSchema": schema}}}
    async with viewing(PAYMENTS, tools=tools, grants=("view:payments",)) as scene:
        client = await scene.client(PATH)
        params: Frame = {"name": "pay_eu", "arguments": {"amount": 3}}
        sent = {"mcp-param-region": "us", "mcp-param-amount": "3"}
        assert not refusal_in(await client.ask("tools/call", params, **sent))
        headers = scene.gateway.servers["bank"].upstream.of("tools/call")[-1].headers
        assert headers["mcp-name"] == "pay"
        assert headers["mcp-param-region"] == "eu"
        assert headers["mcp-param-amount"] == "3"


@VERSIONS
@pytest.mark.parametrize(
    ("grants", "forbid", "names"),
    [
        # (targets with effects, a guardrail, the names that the client sees; None: no such path)
        ([], None, None),
        ([("view:other", "allow")], None, None),
        ([("view:payments", "allow")], None, ["files__read", "mail__read", "pay_eu", "send"]),
        ([("view:payments", "deny"), ("*", "allow")], None, None),
        ([("files/*", "allow")], None, ["files__read"]),
        ([("files/delete", "allow")], None, None),
        ([("view:payments", "allow"), ("mail/*", "deny")], None, ["files__read", "pay_eu"]),
        (
            [("view:payments", "allow"), ("*/re*", "deny")],
            None,
            ["pay_eu", "send"],
        ),
        ([("view:payments", "allow")], "bank/*", ["files__read", "mail__read", "send"]),
        ([("view:payments", "allow")], "view:payments", None),
    ],
)
async def test_a_view_never_opens_what_is_denied(
    grants: list[tuple[str, str]], forbid: str | None, names: list[str] | None, version: str
) -> None:
    forbidden = () if forbid is None else (Guardrail("*", "tools/call", forbid),)
    async with viewing(PAYMENTS, tools=TOOLS, forbid=forbidden) as scene:
        for target, effect in grants:
            await scene.gateway.grant(target, effect)
        unknown = await scene.status("/views/unknown/mcp", version)
        if names is None:
            assert await scene.status(PATH, version) == unknown == 404
            return
        client = await scene.client(PATH, version)
        assert await client.names() == names
        for name in ("files__read", "mail__read", "pay_eu", "send"):
            answer = await client.call(name, {})
            assert refusal_in(answer) == ("" if name in names else "tool_not_found"), name


async def test_a_key_bound_to_a_view_opens_only_that_view() -> None:
    async with viewing(PAYMENTS, tools=TOOLS, grants=("*",)) as scene:
        made = await scene.gateway.new_key(permissions=["tools/call view:payments"])
        client = await scene.client(PATH, key=made["key"])
        assert "pay_eu" in await client.names()
        assert not refusal_in(await client.call("pay_eu", {}))
        other = await scene.client("/mcp", key=made["key"])
        assert await other.names() == []


async def test_the_audit_log_names_the_view_and_the_real_call() -> None:
    async with viewing(PAYMENTS, tools=TOOLS, grants=("view:payments",)) as scene:
        client = await scene.client(PATH)
        assert not refusal_in(await client.call("pay_eu", {"amount": 7}))
        assert refusal_in(await client.call("pay_eu", {"region": "us"}))
        parts = scene.gateway.visitor.parts
        await parts.audit_log_components.audit_log.flush()
        found = await parts.snapshot.records.audit_log.find(AuditFilter(server="bank", tool="pay"))
        events = [event_of(each.body) for each in found]
        told = [(each.type, each.details["view"]) for each in events]
        assert ("TOOL_EXECUTED", "payments") in told
        assert ("VALIDATION_FAILED", "payments") in told


async def test_an_approved_call_runs_with_the_grant_of_its_view_only_while_it_holds() -> None:
    answering = Grant(OPERATOR, "approval/answer", "*", Effect.ALLOW)
    grants = (*OPERATOR_GRANTS, answering)
    async with viewing(PAYMENTS, tools=TOOLS) as scene:
        await scene.apply(grants=grants)
        await scene.gateway.grant("view:payments", "ask")
        client = await scene.client(PATH)

        async def hold(amount: int) -> str:
            """Make a call that waits for approval, and approve it. Returns the refusal."""
            refusal = refusal_in(await client.call("pay_eu", {"amount": amount}))
            (waiting,) = (await scene.gateway.read("/api/approvals"))["approvals"]
            assert (waiting["server"], waiting["tool"]) == ("bank", "pay")
            # The person sees the arguments that the server would receive.
            assert "eu" in json.dumps(waiting)
            await scene.gateway.order(f"/api/approvals/{waiting['id']}/answer", verdict="accept")
            return refusal

        assert await hold(7) == "pending_approval"
        assert not refusal_in(await client.call("pay_eu", {"amount": 7}))
        assert scene.received("bank")[-1]["arguments"] == {"amount": 7, "region": "eu"}
        assert await hold(8)
        await scene.gateway.grant("bank/pay", "deny")
        assert refusal_in(await client.call("pay_eu", {"amount": 8})) == "tool_not_found"
        assert len(scene.received("bank")) == 1


async def test_calls_through_a_view_use_plans_that_a_change_voids() -> None:
    async with viewing(PAYMENTS, tools=TOOLS, grants=("view:payments",)) as scene:
        caller = await scene.gateway.caller(PATH, "pay_eu", {"amount": 1}, scene.key)
        plan = await _plan_of(scene, caller)
        assert plan.view_tool is not None
        # Other settings change the fixed argument of the very next call.
        changed = ToolOverride("bank", "pay", name="pay_eu", arguments={"region": "us"})
        await scene.apply(views=(View("payments", overrides=(changed,)),))
        assert not await caller.call()
        assert scene.received("bank")[-1]["arguments"]["region"] == "us"
        await scene.gateway.grant("view:payments", "deny")
        assert await caller.is_refused_soon() in ("nothing_here", "tool_not_found")


async def _plan_of(scene: ViewScene, caller: Any) -> Any:
    async with asyncio.timeout(20):
        while True:
            assert not await caller.call()
            plan = scene.gateway.plan_of("pay")
            if plan is not None:
                return plan


async def test_views_are_added_changed_and_removed_while_the_gateway_runs() -> None:
    async with viewing(tools=TOOLS, grants=("*",)) as scene:
        assert await scene.status(PATH) == 404
        await scene.apply(views=(PAYMENTS,))
        client = await scene.client(PATH, LATEST)
        assert "pay_eu" in await client.names()
        other = View("payments", select=("bank/*",), prefix=PrefixRule.ALWAYS)
        await scene.apply(views=(other,))
        assert await client.names() == ["bank__pay", "bank__refund"]
        await scene.apply(views=())
        assert await scene.status(PATH) == 404
        assert (await client.send("tools/list", {})).status == 404


@VERSIONS
async def test_a_change_of_a_server_reaches_the_clients_of_its_view(version: str) -> None:
    async with viewing(PAYMENTS, tools=TOOLS, grants=("view:payments",)) as scene:
        client = await scene.client(PATH, version)
        stream = await client.listen()
        bank = scene.gateway.servers["bank"]
        # The fixed argument vanishes, so the tool is withheld.
        bank.tools["pay"] = READ
        await bank.tell_list_changed()
        async with asyncio.timeout(20):
            while "pay_eu" in await client.names():
                changed = await stream.event()
                assert changed.frame["method"].endswith("list_changed")
        assert refusal_in(await client.call("pay_eu", {})) == "tool_not_found"
        stream.leave()


OF_THE_GATEWAY = ("events/list", "events/poll", "mgp/tools/discover", "mgp/access/query")


@VERSIONS
async def test_a_view_neither_declares_nor_answers_what_is_about_the_whole_gateway(
    version: str,
) -> None:
    async with viewing(PAYMENTS, tools=TOOLS, grants=("view:payments",)) as scene:
        for path, declared in ((PATH, False), ("/mcp", True)):
            client = await scene.client(path, version)
            mgp = {"version": "0.6.0", "extensions": ["tool_discovery", "streaming"]}
            info = {"name": "c", "version": "1"}
            said = {"protocolVersion": LATEST, "capabilities": {"mgp": mgp}, "clientInfo": info}
            hello = await client.ask("initialize" if version == LATEST else "server/discover", said)
            capabilities = hello["result"]["capabilities"]
            assert ("events" in capabilities) is declared
            if version == LATEST:
                extensions = capabilities["mgp"]["extensions"]
                assert extensions == (
                    ["streaming", "tool_discovery"] if declared else ["streaming"]
                )
            if not declared:
                codes = [(await client.ask(each))["error"]["code"] for each in OF_THE_GATEWAY]
                assert codes == [-32601] * len(OF_THE_GATEWAY)
