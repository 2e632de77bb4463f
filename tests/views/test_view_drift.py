"""Drift: a view shows what has changed below it, and quarantine applies to it unchanged."""

import asyncio
from dataclasses import replace

from comity.mcp.entries import EntryKind
from comity.views.model import ToolOverride, View
from tests.support.planned_gateway import refusal_in
from tests.support.visitor import Frame
from tests.views.scene import PAY, READ, ViewScene, viewing

PATH = "/views/payments/mcp"
PAYMENT = ToolOverride("bank", "pay", arguments={"region": "eu"}, description="Pays in the EU.")
CHANGED: Frame = {**PAY, "description": "Pays an amount, and tells everybody."}
TOOLS = {"bank": {"pay": PAY, "read": READ}}


async def _change(scene: ViewScene, tool: str, definition: Frame | None) -> None:
    """Change a tool of the server, and return once the gateway has read its list again."""
    bank = scene.gateway.servers["bank"]
    before = len(bank.upstream.of("tools/list"))
    if definition is None:
        del bank.tools[tool]
    else:
        bank.tools[tool] = definition
    known = _definition(scene, tool)
    await bank.tell_list_changed()
    await bank.upstream.arrival("tools/list", before + 1)
    async with asyncio.timeout(20):
        while _definition(scene, tool) == known:
            await asyncio.sleep(0.01)


def _definition(scene: ViewScene, tool: str) -> bytes | None:
    catalog = scene.gateway.visitor.parts.catalog
    entry = catalog.find_own("bank", EntryKind.TOOL, tool)
    return None if entry is None else entry.definition


async def _show(scene: ViewScene) -> Frame:
    return await scene.gateway.read("/api/views/payments")


async def test_drift_of_a_definition_is_shown_until_the_operator_has_seen_it() -> None:
    view = View("payments", overrides=(PAYMENT,))
    grants = ("view:payments",)
    async with viewing(view, tools=TOOLS, grants=grants, policy_trust_definitions="off") as scene:
        digest = (await _show(scene))["items"][0]["definition"]
        pinned = replace(PAYMENT, definition=digest[:12])
        await scene.apply(views=(replace(view, overrides=(pinned,)),))
        shown = await _show(scene)
        assert shown["problems"] == []
        (item,) = shown["items"]
        assert (item["state"], item["drift"]) == ("served", [])
        assert item["changes"] == {
            "arguments": {"region": "eu"},
            "description": "Pays in the EU.",
        }
        await _change(scene, "pay", CHANGED)
        (listed,) = (await scene.gateway.read("/api/views"))["views"]
        assert listed["problems"] == [
            "bank/pay: its definition has changed since the view was written"
        ]
        client = await scene.client(PATH)
        # The override still applies, and the tool is still served.
        assert (await client.definition("pay"))["description"] == "Pays in the EU."
        # Without the fixed argument in its schema, the tool is withheld.
        await _change(scene, "pay", READ)
        (item,) = (await _show(scene))["items"]
        assert item["state"] == "withheld"
        assert "no argument 'region'" in item["reason"]
        assert await client.names() == []
        await _change(scene, "pay", None)
        shown = await _show(scene)
        assert shown["problems"] == ["bank/pay: its server lists no such tool now"]
        assert shown["items"] == []


async def test_a_quarantined_tool_is_not_served_by_a_view() -> None:
    view = View("payments", select=("bank/read",), overrides=(PAYMENT,))
    async with viewing(view, tools=TOOLS, grants=("view:payments",)) as scene:
        client = await scene.client(PATH)
        assert await client.names() == ["pay", "read"]
        await _change(scene, "pay", CHANGED)
        assert await client.names() == ["read"]
        assert refusal_in(await client.call("pay", {"amount": 1})) == "tool_disabled"
        items = {each["name"]: each for each in (await _show(scene))["items"]}
        assert items["pay"]["state"] == "quarantined"
        assert items["read"]["state"] == "served"
        answer = await scene.gateway.read("/api/views")
        assert [(each["tools"], each["served"]) for each in answer["views"]] == [(2, 1)]


async def test_the_api_removes_secrets_from_fixed_values() -> None:
    secret = "ghp_" + "a" * 36
    override = ToolOverride("bank", "pay", arguments={"region": secret})
    async with viewing(View("payments", overrides=(override,)), tools=TOOLS) as scene:
        assert secret not in str(await _show(scene))
