"""Explanations and dry runs of grants tell which view lets which tool through."""

from typing import Any

import pytest

from comity.policy.grants import Guardrail
from comity.views.model import ToolOverride, View
from tests.support.planned_gateway import CALLER
from tests.support.visitor import Frame
from tests.views.scene import PAY, READ, ViewScene, viewing

PAYMENTS = View("payments", overrides=(ToolOverride("bank", "pay", name="pay_eu"),))
READING = View("reading", select=("files/read", "bank/pay"))
TOOLS = {"bank": {"pay": PAY}, "files": {"read": READ, "delete": READ}}
type Grants = tuple[tuple[str, str], ...]

# The grants of the caller, the decision about bank/pay at other endpoints, that in each view, and
# the reason in the view `payments`.
EXPLAINED: dict[str, tuple[Grants, str, tuple[str, str], str]] = {
    "no grant": ((), "deny", ("deny", "deny"), "no entry is about it"),
    "a grant on one view": (
        (("view:payments", "allow"),),
        "deny",
        ("allow", "deny"),
        "an entry about the view (view:payments) says allow",
    ),
    "a view that asks": (
        (("view:payments", "ask"), ("bank/pay", "allow")),
        "allow",
        ("ask", "allow"),
        "an entry about the view (view:payments) says ask",
    ),
    "a denial of the tool": (
        (("view:payments", "allow"), ("bank/pay", "deny")),
        "deny",
        ("deny", "deny"),
        "an entry about this target (bank/pay) says deny",
    ),
    "a denial of one view": (
        (("view:payments", "deny"), ("bank/*", "allow")),
        "allow",
        ("deny", "allow"),
        "an entry about the view (view:payments) says deny",
    ),
    "both views": (
        (("view:payments", "allow"), ("view:reading", "ask")),
        "deny",
        ("allow", "ask"),
        "an entry about the view (view:payments) says allow",
    ),
}


async def explain(scene: ViewScene, tool: str = "bank/pay") -> Frame:
    return await scene.gateway.read(f"/api/grants/explain?principal={CALLER}&tool={tool}")


@pytest.mark.parametrize("case", EXPLAINED)
async def test_an_explanation_tells_the_decision_in_each_view(case: str) -> None:
    grants, elsewhere, in_views, reason = EXPLAINED[case]
    async with viewing(PAYMENTS, READING, tools=TOOLS) as scene:
        for grant in grants:
            await scene.gateway.grant(*grant)
        found = await explain(scene)
    assert found["effect"] == elsewhere
    told = [(each["view"], each["name"], each["effect"]) for each in found["views"]]
    assert told == [
        ("payments", "pay_eu", in_views[0]),
        ("reading", "pay", in_views[1]),
    ]
    assert reason in found["views"][0]["sentence"]


async def test_a_guardrail_and_a_tool_outside_of_all_views_are_explained() -> None:
    forbid = (Guardrail("agent:*", "*", "view:payments", "closed"),)
    async with viewing(PAYMENTS, tools=TOOLS, grants=("view:payments",), forbid=forbid) as scene:
        (view,) = (await explain(scene))["views"]
        assert view["effect"] == "deny"
        assert "a guardrail forbids * on view:payments to agent:* (closed)." in view["sentence"]
        assert (await explain(scene, "files/delete"))["views"] == []


# The grants before, the change, and each changed decision: its tool, its view, before and after.
type Change = tuple[str, str, str, str]
PREVIEWED: dict[str, tuple[Grants, dict[str, Any], set[Change]]] = {
    "a grant on a view": (
        (),
        {"put": [{"target": "view:reading"}]},
        {("read", "reading", "deny", "allow"), ("pay", "reading", "deny", "allow")},
    ),
    "a view loses its grant": (
        (("view:payments", "allow"),),
        {"delete": [{"target": "view:payments"}]},
        {("pay", "payments", "allow", "deny")},
    ),
    "a view that asks from now on": (
        (("view:payments", "allow"),),
        {"put": [{"target": "view:payments", "effect": "ask"}]},
        {("pay", "payments", "allow", "ask")},
    ),
    "a denial of a tool that only views let through": (
        (("view:payments", "allow"),),
        {"put": [{"target": "bank/*", "effect": "deny"}]},
        {("pay", "payments", "allow", "deny")},
    ),
    "a tool that views decide about as other endpoints do": (
        (),
        {"put": [{"target": "bank/pay"}]},
        {("pay", "", "deny", "allow")},
    ),
    "a view that does not exist": ((), {"put": [{"target": "view:nothing"}]}, set()),
}


async def dry_run(scene: ViewScene, **change: list[Frame]) -> Frame:
    said = {
        name: [{"subject": CALLER, **each} for each in grants] for name, grants in change.items()
    }
    return await scene.gateway.order("/api/grants/preview", **said)


@pytest.mark.parametrize("case", PREVIEWED)
async def test_a_dry_run_tells_what_changes_in_views(case: str) -> None:
    grants, change, changed = PREVIEWED[case]
    async with viewing(PAYMENTS, READING, tools=TOOLS) as scene:
        for grant in grants:
            await scene.gateway.grant(*grant)
        found = await dry_run(scene, **change)
    members = ("tool", "view", "before", "after")
    told = [tuple(each[name] for name in members) for each in found["changes"]]
    assert sorted(told) == sorted(changed)


async def test_past_calls_are_decided_at_the_view_where_they_were_made() -> None:
    grants = ("view:reading", "files/delete")
    async with viewing(READING, tools=TOOLS, grants=grants) as scene:
        client = await scene.client("/views/reading/mcp")
        for _ in range(2):
            await client.call("read", {})
        await (await scene.client("/mcp")).call("files__delete", {})
        parts = scene.gateway.visitor.parts
        await parts.audit_log_components.audit_log.flush()
        asked = await dry_run(scene, put=[{"target": "view:reading", "effect": "ask"}])
        assert (asked["past_calls"]["calls"], asked["past_calls"]["asked"]) == (2, 2)
        kept = await dry_run(scene, put=[{"target": "files/*", "justification": "again"}])
        assert (kept["past_calls"]["denied"], kept["past_calls"]["changed"]) == (0, 0)
        lost = await dry_run(scene, delete=[{"target": "view:reading"}])
        assert (lost["past_calls"]["calls"], lost["past_calls"]["denied"]) == (2, 2)
