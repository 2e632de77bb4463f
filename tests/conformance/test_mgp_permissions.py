"""Permissions of servers: declared, decided, told, and held against every call. (MGP §3)"""

from collections.abc import Iterator
from uuid import UUID

import pytest

from tests.conformance.guarding import (
    ALL,
    answer_to,
    asked,
    decide,
    decisions,
    frames,
    guarded,
    guarding,
    listed,
    until_heard,
)
from tests.conformance.realm import offer
from tests.conformance.ways import Frame, House

RISKS = {
    "filesystem.read": "moderate",
    "filesystem.write": "dangerous",
    "network.outbound": "moderate",
    "network.listen": "dangerous",
    "shell.execute": "dangerous",
    "code_execution": "dangerous",
    "memory.read": "safe",
    "memory.write": "moderate",
    "system.info": "safe",
    "camera": "dangerous",
    "notification": "safe",
}


CUSTOM = "com.example.own"
TOOL_OF = {name: name.replace(".", "_") for name in (*RISKS, CUSTOM)}
NEEDY: list[Frame] = [
    {"name": tool, "security": {"risk_level": "safe", "permissions_required": [name]}}
    for name, tool in TOOL_OF.items()
]
"""A tool for each permission, which says of itself that it is safe."""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("guarded")
    with guarding(
        folder,
        asking=guarded("shell", "camera", approval_policy="interactive"),
        telling=guarded("shell.execute", "memory.read", approval_policy="interactive"),
        claiming=guarded("shell.execute", approval_policy="interactive"),
        open=guarded(*ALL, "com.example.own", "odd"),
        closed=guarded("shell.execute", "camera", approval_policy="deny_all"),
        given=guarded("shell.execute", approval_policy="deny_all", permissions=["shell"]),
        listed=guarded("shell", "camera", approval_policy="config_only", permissions=["camera"]),
        strict=guarded("camera", approval_policy="deny_all", on_denied="reject"),
        ending=guarded("shell.execute", approval_policy="interactive"),
        needy=guarded(tools=NEEDY, trust="trusted"),
    ) as house:
        yield house


@pytest.mark.requirement(
    "MGP-3.1-decide",
    "MGP-3.3-interactive",
    "MGP-3.4-flow",
    "MGP-3.5-request",
    "MGP-3.5-request_id",
    "MGP-3.5-permissions",
    "MGP-3.5-policy",
    "MGP-3.5-message",
)
async def test_a_server_is_told_to_wait_before_it_is_told_to_begin(house: House) -> None:
    heard = await frames(house, "asking")
    order = [frame["method"] for frame in heard][:3]
    assert order == ["initialize", "mgp/permission/request", "notifications/initialized"]
    offered = heard[0]["params"]["capabilities"]["mgp"]["extensions"]
    assert offered == ["audit", "bidirectional", "lifecycle", "security", "streaming"]
    params = heard[1]["params"]
    assert params.pop("request_id").startswith("perm-")
    assert UUID(params.pop("trace_id"))
    assert params == {
        "permissions": ["shell.execute", "camera"],
        "policy": "interactive",
        "message": "Waiting for operator approval",
    }
    assert await decisions(house, "asking") == {"shell.execute": "deferred", "camera": "deferred"}


@pytest.mark.requirement(
    "MGP-3.6-response",
    "MGP-3.6-grants",
    "MGP-3.6-approved_by",
    "MGP-3.6-expires_at",
    "MGP-3.6-approved",
    "MGP-3.4-flow",
)
async def test_what_an_operator_decides_is_told_to_the_server(house: House) -> None:
    (question,) = await until_heard(house, "telling", "mgp/permission/request")
    await decide(house, "approve", "telling", "shell", expires_in_seconds=3600)
    await decide(house, "deny", "telling", "memory.read", justification="not here")
    told = await until_heard(house, "telling", "mgp/permission/response", times=2)
    first, second = (each["params"] for each in told)
    assert first["request_id"] == second["request_id"] == question["params"]["request_id"]
    assert (first["grants"], second["grants"]) == (
        {"shell.execute": "approved"},
        {"memory.read": "denied"},
    )
    assert first["approved_by"] == "person:local"
    assert first["expires_at"].endswith("Z")
    assert "expires_at" not in second
    assert "result" in await answer_to(house, "telling", "run")


@pytest.mark.requirement(*(f"MGP-3.2-{name}" for name in RISKS))
async def test_every_standard_permission_has_its_risk(house: House) -> None:
    found = (await asked(house, "permissions", server="open"))["permissions"]
    standard = {each["permission"]: each["risk"] for each in found if each["permission"] in RISKS}
    assert standard == RISKS
    assert {each["decision"] for each in found if each["permission"] in RISKS} == {"approved"}


@pytest.mark.requirement("MGP-3.2-custom", *(f"MGP-3.2-{name}" for name in RISKS))
async def test_a_call_is_as_risky_as_what_its_tool_needs(house: House) -> None:
    """Whatever the tool says of itself; and so it is written down."""
    found = (await asked(house, "definitions", server="needy", all="true"))["tools"]
    risks = {each["tool"]: each["risk"] for each in found}
    assert {name: risks[TOOL_OF[name]] for name in RISKS} == RISKS
    # Of what somebody named himself nobody knows how harmless it is.
    assert risks[TOOL_OF[CUSTOM]] == "dangerous"
    told: dict[str, str] = {}
    async with house.among_all("needy").talk(offer("audit")) as talk:
        await talk.client.listen()
        for name in RISKS:
            assert "result" in (await talk.call(TOOL_OF[name])).response
        while len(told) < len(RISKS):
            params = (await talk.told("notifications/mgp.audit"))["params"]
            if params["event_type"] == "TOOL_EXECUTED" and params["target"]["server_id"] == "needy":
                told[params["target"]["tool_name"]] = params["details"]["risk_level"]
    assert told == {TOOL_OF[name]: risk for name, risk in RISKS.items()}


@pytest.mark.requirement("MGP-3.2-custom")
async def test_a_name_by_a_domain_is_taken_and_one_that_nobody_knows_waits(house: House) -> None:
    found = await decisions(house, "open")
    assert (found["com.example.own"], found["odd"]) == ("approved", "deferred")


@pytest.mark.requirement("MGP-3.3-deny_all", "MGP-3.3-config_only", "MGP-3.1-decide")
async def test_each_policy_decides_in_its_own_way(house: House) -> None:
    assert await decisions(house, "closed") == {"shell.execute": "denied", "camera": "denied"}
    assert await decisions(house, "given") == {"shell.execute": "approved"}
    assert await decisions(house, "listed") == {"shell.execute": "denied", "camera": "approved"}


@pytest.mark.requirement("MGP-14.3-1000", "MGP-3.4-outcome", "MGP-8.2-enforce")
async def test_a_tool_whose_server_lacks_a_permission_is_refused_and_others_work(
    house: House,
) -> None:
    refused = (await answer_to(house, "closed", "run"))["error"]
    assert (refused["code"], refused["data"]["_mgp"]["category"]) == (1000, "security")
    details = refused["data"]["_mgp"]["details"]
    assert details["permissions"] == {"shell.execute": "denied"}
    assert "comity servers permissions approve closed shell.execute" in refused["message"]
    plain = (await answer_to(house, "closed", "run", mgp=False))["result"]
    assert plain["isError"] is True
    assert "result" in await answer_to(house, "closed", "look")
    async with house.among_all("closed").talk() as talk:
        names = await listed(talk)
        assert "closed__look" in names
        assert "closed__run" not in names
    async with house.own("closed").talk() as talk:
        assert await listed(talk) == {"seen", "become", "claim", "look"}
    called = [
        f["params"]["name"] for f in await frames(house, "closed") if f["method"] == "tools/call"
    ]
    assert "run" not in called


@pytest.mark.requirement("MGP-3.4-outcome")
async def test_a_server_is_rejected_where_its_operator_wants_that(house: House) -> None:
    server = await asked(house, "servers", "strict")
    assert server["state"] != "connected"
    assert "lacks permissions: camera (denied)" in server["reason"]


async def test_no_word_of_the_server_gives_it_anything(house: House) -> None:
    """Its answers say that all is approved; its own requests are refused. (S1, D-08)"""
    for method in ("response", "grant", "request", "await"):
        given = {"method": f"mgp/permission/{method}", "permission": "shell.execute"}
        for way in (house.among_all("claiming"), house.own("claiming")):
            async with way.talk() as talk:
                answer = (await talk.call("claim", given)).result["structuredContent"]["answer"]
                assert answer["error"]["code"] == -32601
                assert "only operators decide" in answer["error"]["message"]
    assert await decisions(house, "claiming") == {"shell.execute": "deferred"}
    assert (await answer_to(house, "claiming", "run"))["error"]["code"] == 1000


async def test_after_its_end_an_approval_is_not_there(house: House) -> None:
    await decide(house, "approve", "ending", "shell.execute", expires_in_seconds=2)
    assert "result" in await answer_to(house, "ending", "run")
    questions = await until_heard(house, "ending", "mgp/permission/request", times=2)
    assert questions[1]["params"]["request_id"] != questions[0]["params"]["request_id"]
    assert (await answer_to(house, "ending", "run"))["error"]["code"] == 1000


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"server": "nowhere", "permission": "camera"}, "there is no server"),
        ({"server": "closed"}, "permission is missing"),
        ({"server": "closed", "permission": "a*"}, "no permission can be named"),
        ({"server": "closed", "permission": "camera", "expires_in_seconds": 0}, "of 1 to 31622400"),
        ({"server": "closed", "permission": "camera", "approved_by": "person:x"}, "leave it out"),
    ],
)
async def test_a_decision_that_cannot_be_is_refused(
    house: House, body: dict[str, object], status: str
) -> None:
    found = await asked(house, "permissions", "approve", body=body)
    assert status in found["error"]["message"]
