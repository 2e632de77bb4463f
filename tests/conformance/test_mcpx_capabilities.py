"""Capabilities through the door: what each lets somebody send, and how they change. (MCPx §4, §5,
§7.1, §11.3)"""

from collections.abc import AsyncGenerator, Iterable
from datetime import datetime

import pytest

from comity.errors import OPERATORS_ONLY
from comity.topics.rules import PROFILES
from comity.topics.settings import TopicOverride
from tests.support.topic_scene import (
    ANA,
    BEA,
    CI,
    FULL,
    OPERATOR,
    OPS,
    PROPOSE,
    Member,
    Scene,
    gathering,
)

EVERYTHING = (
    *("mcp/request:tools/call", "mcp/request:tools/list", "mcp/request:tools/call:write_file"),
    *("mcp/request:resources/read", "mcp/request:resources/list", "mcp/request:prompts/list"),
    *("mcp/request:resources/subscribe", "mcp/proposal:tools/call", "mcp/proposal:x:y:z"),
    *("chat", "chatter", "mcp/requests", "mcp/request"),
)
ROWS = {
    "mcp/*": {each for each in EVERYTHING if each.startswith("mcp/")},
    "mcp/request:*": {each for each in EVERYTHING if each.startswith("mcp/request:")},
    "mcp/request:tools/*": {each for each in EVERYTHING if each.startswith("mcp/request:tools/")},
    "mcp/request:resources/*": {each for each in EVERYTHING if "request:resources/" in each},
    "mcp/proposal:*": {each for each in EVERYTHING if each.startswith("mcp/proposal:")},
    "mcp/request:*/list": {each for each in EVERYTHING if each.endswith("/list")},
    "mcp/request:tools/call": {each for each in EVERYTHING if "request:tools/call" in each},
    "chat": {"chat"},
    "unheard-of": set[str](),
}


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with gathering() as scene:
        yield scene


async def passing(member: Member, kinds: Iterable[str] = EVERYTHING) -> set[str]:
    """Which kinds of these a member may say, as the gateway has it; each is tried."""
    passed: set[str] = set()
    for kind in kinds:
        id = await member.says(kind)
        while True:
            heard = await member.hears()
            if heard["id"] == id:
                passed.add(kind)
            elif heard.get("correlation_id") != id:
                continue
            else:
                assert heard["payload"]["error"] == "capability_violation"
            break
    return passed


@pytest.mark.requirement(
    *("MCPX-4.1-wildcards", "MCPX-4.1-w-mcp", "MCPX-4.1-w-request", "MCPX-4.1-w-tools"),
    *("MCPX-4.1-w-resources", "MCPX-4.1-w-proposal", "MCPX-4.2-match", "MCPX-4.2-block"),
    *("MCPX-4.2-ex-request", "MCPX-4.2-ex-chat", "MCPX-8.1-engine", "MCPX-4.1-assign"),
    *("MCPX-6.2-enforce", "MCPX-6.2-caps", "MCPX-6.4-filter"),
)
async def test_a_capability_lets_pass_what_it_covers_and_nothing_else(scene: Scene) -> None:
    watcher = await scene.sits(BEA)
    for number, (capability, covered) in enumerate(ROWS.items()):
        party = f"agent:{number}"
        member = await scene.sits(party, capability)
        assert await passing(member) == covered, capability
        seen = {
            each["kind"]
            for each in await watcher.hears_until(await watcher.says())
            if each["from"] == party
        }
        assert seen == covered, capability


@pytest.mark.requirement("MCPX-4.1-w-response", "MCPX-4.2-ex-response")
async def test_answers_are_let_pass_by_what_covers_them(scene: Scene) -> None:
    ana = await scene.sits(ANA)
    covers = {
        **dict.fromkeys(["mcp/*", "mcp/response:*", "mcp/response:tools/*"], True),
        **dict.fromkeys(["mcp/request:*", "mcp/response:resources/*", "mcp/proposal:*"], False),
    }
    for number, (capability, is_covered) in enumerate(covers.items()):
        answerer = await scene.sits(f"agent:{number}", capability)
        asked = await ana.says("mcp/request:tools/call", to=[answerer.party])
        await answerer.hears_until(asked)
        id = await answerer.says("mcp/response:tools/call", to=[ANA], correlation_id=asked)
        heard = await answerer.hears()
        assert (heard["id"] == id) is is_covered, capability


@pytest.mark.requirement(
    *("MCPX-4.1-p-full", "MCPX-4.1-p-proposal", "MCPX-4.1-p-response", "MCPX-4.1-p-readonly"),
    *("MCPX-4.1-p-tool", "MCPX-5.1-identity", "MCPX-6.2-map", "MCPX-5.1-token"),
)
async def test_each_profile_of_the_document_lets_its_holder_do_what_it_says(scene: Scene) -> None:
    may = {
        "full": ROWS["mcp/*"] | {"chat"},
        "propose": ROWS["mcp/proposal:*"] | {"chat"},
        "respond": {"chat"},
        "read-only": ROWS["mcp/request:*/list"] | {"mcp/request:resources/read", "chat"},
        "tools": ROWS["mcp/request:tools/*"] | {"chat"},
    }
    assert set(PROFILES) == set(may)
    for profile, kinds in may.items():
        party = f"agent:{profile}"
        await scene.grants(party, *PROFILES[profile])
        member = await scene.joins(party)
        you = (await member.hears())["payload"]["you"]
        assert (you["id"], {*you["capabilities"]}) == (party, {*PROFILES[profile]})
        assert await passing(member) == kinds, profile


@pytest.mark.requirement("MCPX-5.1-token")
async def test_a_token_can_hold_its_holder_to_some_of_its_capabilities(scene: Scene) -> None:
    await scene.grants(CI, *FULL)
    narrow = await scene.key_of(CI, permissions=["topic/send ops/mcp/proposal:*"])
    member = await scene.joins(CI, key=narrow)
    assert (await member.hears())["payload"]["you"]["capabilities"] == ["mcp/proposal:*"]
    assert await passing(member) == ROWS["mcp/proposal:*"]
    status, _ = await scene.is_sent_away(CI, {"topic": "dev"})
    assert status == 403


@pytest.mark.requirement(
    *("MCPX-3.5.2-error", "MCPX-3.5.2-fields", "MCPX-4.2-return", "MCPX-4.2-block"),
)
async def test_a_violation_is_told_to_the_violator_alone(scene: Scene) -> None:
    ana, ci = await scene.sits(ANA), await scene.sits(CI, *PROPOSE)
    told = await ci.is_refused("mcp/request:tools/call", to=[ANA])
    assert (told["from"], told["to"]) == ("system:gateway", [CI])
    capabilities = told["payload"].pop("your_capabilities")
    assert {*capabilities} == {*PROPOSE}
    assert told["payload"] == {
        "error": "capability_violation",
        "message": "None of your capabilities covers 'mcp/request:tools/call'",
        "attempted_kind": "mcp/request:tools/call",
    }
    id = await ci.says()
    heard = await ana.hears_until(id)
    assert [each["kind"] for each in heard] == ["system/presence", "chat"]


@pytest.mark.requirement("MCPX-4.1-reject", "MCPX-4.1-onlygateway", "MCPX-3-kind-system")
async def test_nobody_but_the_gateway_says_what_is_its_own(scene: Scene) -> None:
    ana, ci = await scene.sits(ANA), await scene.sits(CI, "*", "system/*", *FULL)
    reserved = [
        *("system/welcome", "system/presence", "system/error", "system/missed", "system/x"),
        *("system", "presence", "system:x", "presence/x", "SYSTEM/welcome", "System/presence"),
    ]
    for kind in reserved:
        told = await ci.is_refused(kind, payload={"event": "leave", "participant": {"id": ANA}})
        assert told["payload"]["error"] == "reserved_kind", kind
    heard = await ana.hears_until(await ci.says())
    assert [each["from"] for each in heard] == ["system:gateway", CI]


@pytest.mark.requirement(
    *("MCPX-4.1-progressive", "MCPX-5.1-dynamic", "MCPX-11.3-admin"),
    *("MCPX-11.3-request", "MCPX-11.3-response", "MCPX-6.2-welcome"),
)
async def test_trust_grows_by_an_operators_word_at_once_and_is_told(scene: Scene) -> None:
    ci = await scene.sits(CI, "mcp/proposal:*", "chat")
    path = f"/admin/participants/{CI}/capabilities"
    ladder = {
        "mcp/request:resources/read": {"mcp/request:resources/read"},
        "mcp/request:tools/*": ROWS["mcp/request:tools/*"],
    }
    known = {"mcp/proposal:*", "chat"}
    for added, kinds in ladder.items():
        told = await scene.done(path, {"add": [added], "remove": []})
        assert {*told["oldCapabilities"]} == known
        known |= {added}
        assert {*told["newCapabilities"]} == known
        assert (told["participantId"], told["modifiedBy"]) == (CI, OPERATOR)
        assert datetime.fromisoformat(told["modifiedAt"]).tzinfo is not None
        assert set(told) == {
            *("participantId", "oldCapabilities", "newCapabilities"),
            *("modifiedBy", "modifiedAt"),
        }
        welcome = await ci.hears_kind("system/welcome")
        assert {*welcome["payload"]["you"]["capabilities"]} == known
        assert await passing(ci, kinds) == kinds
    await scene.done(path, {"add": ["mcp/*"]})
    await ci.hears_kind("system/welcome")
    assert await passing(ci, EVERYTHING) == ROWS["mcp/*"] | {"chat"}
    told = await scene.done(path, {"remove": ["mcp/request:*"]})
    await ci.hears_kind("system/welcome")
    assert await passing(ci, ["mcp/request:tools/call", "mcp/proposal:x"]) == {"mcp/proposal:x"}
    entries = [each for each in await scene.whole_journal() if "GRANT" in each["event_type"]]
    assert {each["actor"]["id"] for each in entries} == {OPERATOR}


@pytest.mark.requirement("MCPX-9.2-expand")
async def test_an_operator_reads_what_a_member_did_and_lets_it_do_more(scene: Scene) -> None:
    await scene.sits(ANA)
    ci = await scene.sits(CI, *PROPOSE)
    kind = "mcp/request:tools/call:write_file"
    for _ in range(3):
        await ci.hears_until(await ci.says("mcp/proposal:tools/call:write_file"))
    await ci.is_refused(kind)
    await scene.visitor.parts.audit_log_components.audit_log.flush()
    _, read = await scene.asked(f"/api/audit?actor={CI}")
    found = [each["type"].removeprefix("dev.comity.") for each in read["entries"]]
    assert (found.count("topic_message"), found.count("topic_refused")) == (3, 1)
    await scene.done(f"/admin/participants/{CI}/capabilities", {"add": ["mcp/request:tools/*"]})
    await ci.hears_kind("system/welcome")
    assert await passing(ci, [kind]) == {kind}


@pytest.mark.requirement("MCPX-9.3-mixed")
async def test_an_administrator_a_service_a_newcomer_and_a_monitor_share_a_topic(
    scene: Scene,
) -> None:
    may = {"mcp/*": ROWS["mcp/*"], "mcp/response:*": set[str]()}
    may |= {each: ROWS[each] for each in ("mcp/proposal:*", "mcp/request:*/list")}
    members = {each: await scene.sits(f"agent:m{n}", each) for n, each in enumerate(may)}
    for capability, member in members.items():
        assert await passing(member) == may[capability], capability
    admin, service, newcomer, monitor = members.values()
    wish = await newcomer.says("mcp/proposal:tools/call:write_file", to=[service.party])
    await admin.hears_until(wish)
    kind = "tools/call:write_file"
    real = await admin.says(f"mcp/request:{kind}", to=[service.party], correlation_id=wish)
    await service.hears_until(real)
    done = await service.says(f"mcp/response:{kind}", to=[admin.party], correlation_id=real)
    for each in (admin, newcomer, monitor):
        assert (await each.hears_until(done))[-1]["correlation_id"] == real


@pytest.mark.requirement("MCPX-11.3-admin")
async def test_only_an_operator_promotes(scene: Scene) -> None:
    ci = await scene.sits(CI, "chat")
    path = f"/admin/participants/{CI}/capabilities"
    key = await scene.key_of(CI)
    reply = await scene.order(path, {"add": FULL}, key)
    assert reply.status == 403
    assert (await reply.json())["error"]["data"]["error_type"] == OPERATORS_ONLY.error_type
    assert (await scene.asked(path, key))[0] == 403
    assert (await scene.order(path, {"add": FULL}, "comity_key_nobody_knows")).status == 401
    assert await passing(ci, FULL[1:]) == {"chat"}


@pytest.mark.requirement("MCPX-7.1-restricted")
async def test_who_is_new_in_a_public_topic_may_only_propose_answer_and_chat() -> None:
    async with gathering(topics_overrides=(TopicOverride("hall", access="public"),)) as scene:
        member = await scene.joins(CI, "hall")
        you = (await member.hears())["payload"]["you"]
        assert {*you["capabilities"]} == {*PROPOSE}
        assert await passing(member) == ROWS["mcp/proposal:*"] | {"chat"}
        assert (await scene.is_sent_away(CI))[0] == 403


@pytest.mark.requirement("MCPX-5.1-topicacl")
async def test_a_topic_is_public_restricted_or_private() -> None:
    rooms = [TopicOverride(each, access=each) for each in ("public", "restricted", "private")]
    async with gathering(topics_overrides=tuple(rooms)) as scene:
        assert await scene.joins(CI, "public")
        status, told = await scene.is_sent_away(CI, {"topic": "restricted"})
        assert (status, told["error"]["data"]["error_type"]) == (403, "joining_refused")
        status, told = await scene.is_sent_away(CI, {"topic": "private"})
        assert status == 404
        for topic in ("restricted", "private"):
            await scene.grants(CI, "chat", topic=topic)
            member = await scene.joins(CI, topic)
            assert (await member.hears())["payload"]["you"]["capabilities"] == ["chat"]


@pytest.mark.requirement("MCPX-2.1-isolation", "MCPX-9.1-flow", "MCPX-2.1-governance")
async def test_who_may_not_act_proposes_and_who_may_fulfils(scene: Scene) -> None:
    ana, bea, worker, ci = [
        await scene.sits(ANA, "mcp/request:*", "chat"),
        await scene.sits(BEA, "chat"),
        await scene.sits("agent:worker", "mcp/response:*"),
        await scene.sits(CI, *PROPOSE, mode="directed"),
    ]
    kind, to = "tools/call:write_file", ["agent:worker"]
    refused = await ci.is_refused(f"mcp/request:{kind}", to=to)
    assert refused["payload"]["error"] == "capability_violation"
    wish = await ci.says(f"mcp/proposal:{kind}", to=to)
    for each in (ana, bea, worker):
        assert (await each.hears_until(wish))[-1]["kind"] == f"mcp/proposal:{kind}"
    real = await ana.says(f"mcp/request:{kind}", to=to, correlation_id=wish)
    await worker.hears_until(real)
    done = await worker.says(f"mcp/response:{kind}", to=[ANA, CI], correlation_id=real)
    for each in (ana, bea, ci):
        assert (await each.hears_until(done))[-1]["correlation_id"] == real


@pytest.mark.requirement("MCPX-10.1-state", "MCPX-8.1-tracking")
async def test_an_operator_sees_what_is_kept_of_each_connection(scene: Scene) -> None:
    await scene.sits(ANA)
    await scene.sits(CI, *PROPOSE, mode="directed")
    _, listed = await scene.asked("/api/topics")
    assert listed == {"topics": [{"topic": OPS, "members": 2}], "total": 1}
    _, shown = await scene.asked(f"/api/topics/{OPS}")
    ana, ci = sorted(shown["participants"], key=lambda each: each["participantId"], reverse=True)
    assert (ana["participantId"], ci["participantId"]) == (ANA, CI)
    assert {*ci["capabilities"]} == {*PROPOSE}
    assert ana["connectionId"] != ci["connectionId"]
    assert datetime.fromisoformat(ci["connectedAt"]).tzinfo is not None
    assert (ana["mode"], ci["mode"], ci["missed"]) == ("all", "directed", 0)
