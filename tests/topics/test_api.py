"""What operators see of topics, and how they change who may send what. (MCPx §11.3)"""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from comity.http.api import MAX_BODY_BYTES
from tests.support.credentials import bearer
from tests.support.topic_scene import ANA, BEA, CI, FULL, OPERATOR, OPS, Scene, gathering

PATH = f"/admin/participants/{CI}/capabilities"


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with gathering() as scene:
        await scene.key_of(CI)
        yield scene


async def refused(scene: Scene, body: Any, path: str = PATH) -> str:
    reply = await scene.order(path, body)
    assert reply.status == 400, await reply.body()
    return (await reply.json())["error"]["message"]


async def test_capabilities_are_added_and_removed_as_the_document_has_it(scene: Scene) -> None:
    added = await scene.done(PATH, {"add": ["mcp/proposal:*", "chat"], "remove": []})
    del added["modifiedAt"]
    assert sorted(added.pop("newCapabilities")) == ["chat", "mcp/proposal:*"]
    assert added == {"participantId": CI, "oldCapabilities": [], "modifiedBy": OPERATOR}
    removed = await scene.done(PATH, {"add": [], "remove": ["chat"]})
    assert removed["newCapabilities"] == ["mcp/proposal:*"]
    assert await scene.asked(PATH) == (
        200,
        {"participantId": CI, "capabilities": ["mcp/proposal:*"]},
    )


async def test_they_are_grants_like_others_by_whoever_gave_them(scene: Scene) -> None:
    await scene.done(PATH, {"add": ["chat"], "topic": OPS})
    _, listed = await scene.asked(f"/api/grants?subject={CI}")
    (grant,) = listed["grants"]
    assert (grant["verb"], grant["target"]) == ("topic/send", "ops/chat")
    assert (grant["effect"], grant["granted_by"]) == ("allow", OPERATOR)
    entries = [each for each in await scene.whole_journal() if "ops/chat" in json.dumps(each)]
    assert [each["actor"]["id"] for each in entries] == [OPERATOR]


async def test_without_a_topic_they_are_for_all_and_with_one_for_that(scene: Scene) -> None:
    await scene.done(PATH, {"add": ["chat"]})
    await scene.done(PATH, {"add": ["mcp/proposal:*"], "topic": "dev"})
    for topic, may in ((OPS, {"chat"}), ("dev", {"chat", "mcp/proposal:*"})):
        member = await scene.joins(CI, topic)
        assert {*(await member.hears())["payload"]["you"]["capabilities"]} == may


async def test_a_party_is_named_in_the_path_as_it_is(scene: Scene) -> None:
    for party in (ANA, "agent:100%41"):
        await scene.key_of(party)
    for written in ("person:ana@example.org", "person%3Aana%40example.org"):
        told = await scene.done(f"/admin/participants/{written}/capabilities", {"add": ["chat"]})
        assert told["participantId"] == ANA
    odd = "agent:100%2541"
    told = await scene.done(f"/admin/participants/{odd}/capabilities", {"add": ["chat"]})
    assert told["participantId"] == "agent:100%41"


@pytest.mark.requirement("MCPX-11.3-unknown")
async def test_the_promotion_of_an_unknown_participant_is_refused_with_what_was_meant(
    scene: Scene,
) -> None:
    await scene.grants(BEA, "chat")
    await scene.joins(BEA)
    for unknown, hint in (
        ("ci", f"did you mean '{CI}'?"),
        ("person:bae@example.org", f"did you mean '{BEA}'?"),
        ("agent:nobody-of-them", "comity grants allow"),
    ):
        path = f"/admin/participants/{unknown}/capabilities"
        reply = await scene.order(path, {"add": ["chat"]})
        assert reply.status == 404
        message = (await reply.json())["error"]["message"]
        assert message.startswith(f"there is no participant '{unknown}'; ")
        assert hint in message
        assert (await scene.asked(path))[0] == 404
    _, listed = await scene.asked("/api/grants")
    assert {each["subject"] for each in listed["grants"]} == {BEA, OPERATOR}
    granted = {"subject": "agent:later", "verb": "topic/send", "target": "ops/chat"}
    await scene.done("/api/grants", {**granted, "effect": "allow"})
    path = "/admin/participants/agent:later/capabilities"
    assert (await scene.done(path, {"remove": ["chat"]}))["participantId"] == "agent:later"


async def test_what_cannot_be_done_is_said_and_changes_nothing(scene: Scene) -> None:
    assert "'added' is not one of: add, remove, topic" in await refused(scene, {"added": ["chat"]})
    assert "must be a list" in await refused(scene, {"add": "chat"})
    assert "must be a list" in await refused(scene, {"add": [1]})
    assert "must be a list" in await refused(scene, {"remove": None})
    assert "no capability" in await refused(scene, {"add": ["a b"]})
    assert "name of a topic" in await refused(scene, {"add": ["chat"], "topic": "a b"})
    assert "topic must be a text" in await refused(scene, {"add": ["chat"], "topic": 3})
    assert "at most" in await refused(scene, {"add": [f"k{n}" for n in range(100)]})
    assert "subject" in await refused(
        scene, {"add": ["chat"]}, "/admin/participants/agent:*/capabilities"
    )
    _, listed = await scene.asked("/api/grants")
    assert [each for each in listed["grants"] if each["verb"] == "topic/send"] == []


async def test_a_body_is_json_and_bounded(scene: Scene) -> None:
    visitor = scene.visitor
    reply = await visitor.send("POST", [("content-type", "text/plain")], b"{}", PATH)
    assert reply.status == 415
    headers = [("content-type", "application/json")]
    for body in (b"[", b"[]", b'{"add":[],"add":[]}', b'{"add":' + b"[" * 500 + b"]" * 500 + b"}"):
        assert (await visitor.send("POST", headers, body, PATH)).status == 400
    long = b'{"add": ["' + b"x" * MAX_BODY_BYTES + b'"]}'
    assert (await visitor.send("POST", headers, long, PATH)).status == 413
    assert (await visitor.send("DELETE", path=PATH)).headers["allow"] == "GET, POST"


async def test_elsewhere_there_is_nothing(scene: Scene) -> None:
    for path in ("", "agent:ci", "agent:ci/x", "/capabilities"):
        assert (await scene.asked(f"/admin/participants/{path}"))[0] == 404


async def test_pages_of_other_sites_change_and_read_nothing() -> None:
    async with gathering(allowed_origins=("https://app.example.org",)) as scene:
        headers = {"content-type": "application/json", "origin": "https://app.example.org"}
        body = json.dumps({"add": FULL}).encode()
        reply = await scene.visitor.send("POST", headers.items(), body, PATH)
        assert reply.status == 403
        reply = await scene.visitor.send("GET", headers.items(), path=PATH)
        assert "access-control-allow-origin" not in reply.headers


async def test_who_is_no_operator_sees_and_changes_nothing(scene: Scene) -> None:
    key = await scene.key_of(CI)
    headers = {"content-type": "application/json", **bearer(key)}
    body = json.dumps({"add": FULL}).encode()
    for method, path in (("GET", PATH), ("POST", PATH), ("GET", "/api/topics")):
        reply = await scene.visitor.send(method, headers.items(), body, path)
        assert reply.status == 403, path
    assert (await scene.is_sent_away(CI))[0] == 403


async def test_topics_are_listed_with_who_is_in_them(scene: Scene) -> None:
    await scene.sits(ANA)
    await scene.sits(BEA, topic="dev")
    _, listed = await scene.asked("/api/topics")
    assert listed == {
        "topics": [{"topic": "dev", "members": 1}, {"topic": OPS, "members": 1}],
        "total": 2,
    }
    _, shown = await scene.asked("/api/topics/dev")
    assert [each["participantId"] for each in shown["participants"]] == [BEA]
    for path in ("/api/topics/unknown", "/api/topics/dev/more"):
        assert (await scene.asked(path))[0] == 404
    assert (await scene.order("/api/topics", {})).status == 404


async def test_the_last_envelopes_are_paged_and_threaded_by_correlation(scene: Scene) -> None:
    await scene.done(PATH, {"add": ["chat"]})
    ci = await scene.joins(CI, OPS)
    await ci.hears()
    for number in range(5):
        follows = {"correlation_id": "e0"} if number == 4 else {}
        payload = {"text": f"message {number}", "format": "plain"}
        await ci.says(id=f"e{number}", payload=payload, **follows)
        await ci.hears_until(f"e{number}")
    path = f"/api/topics/{OPS}/envelopes"
    _, first = await scene.asked(f"{path}?limit=3")
    assert [each["id"] for each in first["envelopes"]] == ["e4", "e3", "e2"]
    assert first["envelopes"][0]["payload"]["text"] == "message 4"
    _, rest = await scene.asked(f"{path}?limit=3&cursor={first['next']}")
    assert [each["id"] for each in rest["envelopes"]] == ["e1", "e0"]
    assert "next" not in rest
    _, thread = await scene.asked(f"{path}?correlation=e0")
    assert [each["id"] for each in thread["envelopes"]] == ["e4", "e0"]
    assert (await scene.asked("/api/topics/none/envelopes"))[0] == 404
