"""Every example that MCPx and MCPL print, replayed under default settings and compared as printed.

What operators decide (who may send what, which feature sets are enabled) stands in each scene.
Names of participants get the kind of their principal, and identifiers are those of the gateway.
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from comity.topics.rules import TopicCapabilities
from tests.live.channel_scene import Puppet, message
from tests.live.channel_scene import scene as live_scene
from tests.live.model_server import ModelServer, serving
from tests.live.model_speech import Said
from tests.support.topic_scene import Scene, gathering
from tests.support.visitor import SECONDS

type Frame = dict[str, Any]

DEVIATIONS: Final = {
    "MCPX 3": "A participant is named by its principal, as `agent:robot-alpha` (D-37).",
    "MCPX 3.5.1": "A topic lists the members of the gateway too, where it has some.",
    "MCPX 3.5.2": "The message says it in other words; all other members are as printed.",
    "MCPX 4.2": "At a topic's own server the kind has to match the payload (D-41).",
    "MCPX 10.1": "`GET /api/topics/{topic}` shows it, with `mode` and `missed` beside it.",
    "MCPX 11.3": "The capabilities come in another order.",
    "MCPL 5.2": "The protocol version is the one in force, and `channels` is added.",
    "MCPL 7.5": "`/etc/hosts` waits for a person. The payload has `dev.comity/scope` too.",
    "MCPL 9.3": "Without an entry in `[[pushes]]` a push is not accepted, and the reason says so.",
    "MCPL 10.1": "`conversationId` and `inferenceId` are the gateway's.",
    "MCPL 12.2": "`vendor` is the API of the model's provider, as far as it is configured.",
    "MCPL 14.3": "`channels/register` answers with a result for each channel.",
}
"""Where the gateway does otherwise, by document and section, and why."""

SHOWN_ELSEWHERE: Final = {
    "MCPX 9.1": "test_mcpx_servers.py",
    "MCPX 9.4": "test_mcpx_inbox.py",
    "MCPL 8.2": "../live/test_state_gateway.py",
    "MCPL 8.5": "../live/test_state_gateway.py",
    "MCPL 15.1": "../live/test_examples_gateway.py",
    "MCPL 15.2": "../live/test_examples_gateway.py",
}
"""Examples that need several rounds or processes."""


def test_each_example_that_is_shown_elsewhere_is_there() -> None:
    here = Path(__file__).parent
    assert all((here / each).resolve().exists() for each in SHOWN_ELSEWHERE.values())


# MCPx.

ROBOT, COORDINATOR = "agent:robot-alpha", "agent:coordinator"
TRUSTED, TARGET, UNTRUSTED = "agent:trusted-agent", "agent:target-agent", "agent:untrusted-agent"
HUMAN, ALICE, MONITOR = "person:human-user", "person:user-alice", "agent:monitor"
MAY: Final = {
    ROBOT: ("mcp/*", "chat"),
    TRUSTED: ("mcp/*", "chat"),
    TARGET: ("mcp/response:*", "chat"),
    UNTRUSTED: ("mcp/proposal:*", "chat"),
    HUMAN: ("mcp/*", "chat"),
    ALICE: ("chat",),
    MONITOR: ("chat",),
}
CALL: Final = {
    "name": "dangerous_operation",
    "arguments": {"target": "production"},
}


def rpc(id: int, params: Frame) -> Frame:
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


def done(id: int, text: str) -> Frame:
    return {"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}}


def envelope(id: str, sender: str, kind: str, payload: Frame, **more: Any) -> Frame:
    head = {"protocol": "mcpx/v0.1", "id": id, "from": sender, "kind": kind}
    return {**head, **more, "payload": payload}


OPERATION: Final = "tools/call:dangerous_operation"
ENVELOPES: Final = (
    envelope(
        "2f6b6e70-7b36-4b8b-9ad8-7c4f7d0e2d0b",
        ROBOT,
        "mcp/request:tools/call",
        rpc(1, {"name": "x", "arguments": {}}),
        ts="2025-08-26T14:00:00Z",
        to=[COORDINATOR],
        correlation_id="env-1",
    ),
    envelope("env-call-1", TRUSTED, f"mcp/request:{OPERATION}", rpc(42, CALL), to=[TARGET]),
    envelope(
        "env-resp-1",
        TARGET,
        f"mcp/response:{OPERATION}",
        done(42, "Operation completed"),
        to=[TRUSTED],
        correlation_id="env-call-1",
    ),
    envelope(
        "env-req-1",
        UNTRUSTED,
        f"mcp/proposal:{OPERATION}",
        {"method": "tools/call", "params": CALL},
        to=[TARGET],
    ),
    envelope(
        "env-fulfill-1",
        HUMAN,
        f"mcp/request:{OPERATION}",
        rpc(44, CALL),
        to=[TARGET],
        correlation_id="env-req-1",
    ),
    envelope(
        "env-fulfill-resp-1",
        TARGET,
        f"mcp/response:{OPERATION}",
        done(44, "Operation completed successfully"),
        to=[HUMAN, UNTRUSTED],
        correlation_id="env-fulfill-1",
    ),
    envelope("env-chat-1", ALICE, "chat", {"text": "Hello everyone!", "format": "plain"}),
)
"""MCPx §3 to §3.3, in their order."""


async def test_the_printed_envelopes_arrive_as_they_were_sent() -> None:
    async with gathering() as scene:
        members = {party: await scene.sits(party, *may) for party, may in MAY.items()}
        for sent in ENVELOPES:
            await members[sent["from"]].socket.send(json.dumps(sent))
            for party in (MONITOR, *sent.get("to", ())):
                if party in members:
                    assert (await members[party].hears_until(sent["id"]))[-1] == sent


async def test_the_printed_messages_of_the_gateway_are_as_printed() -> None:
    async with gathering() as scene:
        first = await scene.sits("agent:agent-1", "mcp/*", "chat")
        await scene.grants("agent:new-agent", "mcp/proposal:*", "chat")
        newcomer = await scene.joins("agent:new-agent")
        you = {"id": "agent:new-agent", "capabilities": ["mcp/proposal:*", "chat"]}
        welcome = await newcomer.hears_kind("system/welcome")
        assert (welcome["from"], welcome["to"]) == ("system:gateway", ["agent:new-agent"])
        assert as_set(welcome["payload"]["you"]) == as_set(you)
        (other,) = welcome["payload"]["participants"]
        assert as_set(other) == as_set({"id": "agent:agent-1", "capabilities": ["mcp/*", "chat"]})
        presence = await first.hears_kind("system/presence")
        assert presence["from"] == "system:gateway"
        assert presence["payload"]["event"] == "join"
        assert as_set(presence["payload"]["participant"]) == as_set(you)
        attempt = await newcomer.says("mcp/request:tools/call", payload=rpc(1, CALL))
        violation = await newcomer.hears_kind("system/error")
        assert (violation["from"], violation["to"]) == ("system:gateway", ["agent:new-agent"])
        assert violation["correlation_id"] == attempt
        said = violation["payload"]
        assert said.keys() == {"error", "message", "attempted_kind", "your_capabilities"}
        assert said["error"] == "capability_violation"
        assert said["attempted_kind"] == "mcp/request:tools/call"
        assert {*said["your_capabilities"]} == {"mcp/proposal:*", "chat"}


def as_set(participant: Frame) -> Frame:
    return {**participant, "capabilities": {*participant["capabilities"]}}


async def test_the_printed_promotion_and_the_printed_state() -> None:
    async with gathering() as scene:
        await scene.sits("agent:agent-a", "mcp/proposal:*", "chat")
        body = {"add": ["mcp/request:tools/*"], "remove": []}
        changed = await scene.done("/admin/participants/agent:agent-a/capabilities", body)
        assert changed.keys() == {
            *("participantId", "oldCapabilities", "newCapabilities"),
            *("modifiedBy", "modifiedAt"),
        }
        assert {*changed["oldCapabilities"]} == {"mcp/proposal:*", "chat"}
        assert {*changed["newCapabilities"]} == {"mcp/proposal:*", "mcp/request:tools/*", "chat"}
        (state,) = (await shown_state(scene))["participants"]
        printed = {"connectionId", "participantId", "capabilities", "connectedAt"}
        assert state.keys() - printed == {"mode", "missed"}
        assert printed <= state.keys()


async def shown_state(scene: Scene) -> Frame:
    status, found = await scene.asked("/api/topics/ops")
    assert status == 200
    return found


MATCHES: Final = {
    "mcp/request:tools/call": (
        *("mcp/*", "mcp/request:*", "mcp/request:tools/*", "mcp/request:tools/call"),
    ),
    "mcp/response:tools/call": ("mcp/*", "mcp/response:*", "mcp/response:tools/*"),
    "mcp/request:resources/subscribe": ("mcp/*", "mcp/request:resources/*"),
    "mcp/request:resources/list": ("mcp/request:resources/*", "mcp/request:*/list"),
    "mcp/proposal:tools/call": ("mcp/*", "mcp/proposal:*"),
    "chat": ("chat",),
}
"""MCPx §4.1 and §4.2: kinds, and the printed capabilities that match them."""


def test_the_printed_patterns_match_as_printed() -> None:
    every = {each for capabilities in MATCHES.values() for each in capabilities}
    for kind, capabilities in MATCHES.items():
        for capability in every:
            does = TopicCapabilities([capability]).allows(kind)
            # A capability that is printed for a kind may match others that are not printed.
            assert does or capability not in capabilities, (kind, capability)
        if kind == "chat":
            allowed = [each for each in every if TopicCapabilities([each]).allows(kind)]
            assert allowed == ["chat"]


# MCPL.

SETS: Final = {
    "memory.retrieval": {
        "description": "Retrieve relevant memories before inference",
        "uses": ["contextHooks.beforeInference"],
    },
    "memory.extraction": {
        "description": "Extract new memories from conversations",
        "uses": ["contextHooks.afterInference"],
    },
    "memory.consolidation": {
        "description": "Summarize and consolidate memories using AI inference",
        "uses": ["inferenceRequest"],
    },
    "memory.proactive": {
        "description": "Push reminders based on triggers",
        "uses": ["pushEvents"],
    },
    "files.edit": {
        "description": "Edit files on the filesystem",
        "uses": ["tools"],
        "scoped": True,
    },
    "channels.publish": {
        "description": "Publish to registered channels",
        "uses": ["channels.publish"],
        "scoped": True,
    },
    "channels.observe": {
        "description": "Observe outgoing/incoming messages",
        "uses": ["channels.observe"],
        "scoped": True,
    },
}
ENABLED: Final = """
enabled = ["memory.retrieval", "memory.extraction", "memory.proactive", "files.edit",
           "channels.publish", "channels.observe"]
[servers.live.scopes."files.edit"]
whitelist = ["/project/**", "/tmp/**"]
blacklist = ["**/.env", "**/secrets/**"]
[servers.live.scopes."channels.publish"]
whitelist = ["discord:acme/*"]
"""
DECLARED: Final = {
    "pushEvents": True,
    "contextHooks": {"beforeInference": True, "afterInference": {"blocking": False}},
    "inferenceRequest": {"streaming": True},
    "modelInfo": True,
}
DESCRIPTOR: Final = {
    "id": "discord:#general",
    "type": "discord",
    "label": "#general (Acme Discord)",
    "direction": "bidirectional",
    "address": {"guild": "acme", "channel": "#general"},
    "metadata": {"serverId": "discord-connector"},
}
INJECTED: Final = "<memories>\nUser is scaling mannequin installation to 8-10 units.\n</memories>"


def rows(model: ModelServer) -> str:
    return f"""
[[models]]
id = "main"
api = "openai"
url = "{model.url}/v1"
model = "claude-opus-4-5-20251101"

[[channels]]
server = "printed"

[[pushes]]
from = "printed/*"
to = "turn"
"""


def printed_server() -> Puppet:
    return Puppet("printed", SETS, {"register": True, "lifecycle": True}, DECLARED)


async def test_the_printed_negotiation_and_configuration(tmp_path: Path) -> None:
    server = printed_server()
    async with serving() as model, live_scene(tmp_path, server, rows=rows(model), live=ENABLED):
        (greeting,) = server.said("initialize")
        offered = greeting["capabilities"]["experimental"]["mcpl"]
        printed = {
            "version": "0.4",
            "pushEvents": True,
            "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
            "inferenceRequest": {"streaming": True},
            "featureSets": True,
        }
        assert {name: offered[name] for name in printed} == printed
        assert offered.keys() - printed.keys() <= {"channels", "state", "modelInfo", "scopes"}
        update = server.said("featureSets/update")[0]
        assert {"memory.retrieval", "memory.extraction"} <= {*update["enabled"]}
        assert "memory.consolidation" in update["disabled"]
        assert update["scopes"]["files.edit"] == {
            "whitelist": ["/project/**", "/tmp/**"],
            "blacklist": ["**/.env", "**/secrets/**"],
        }


async def test_the_printed_refusals_and_the_printed_elevation(tmp_path: Path) -> None:
    server = printed_server()
    async with serving() as model, live_scene(tmp_path, server, rows=rows(model), live=ENABLED):
        asked = {
            "featureSet": "memory.consolidation",
            "messages": [{"role": "user", "content": "Summarize these memories: ..."}],
        }
        error = (await server.ask("inference/request", asked))["error"]
        assert error["code"] == -32001
        data = error["data"]
        assert (data["featureSet"], data["canEnable"]) == ("memory.consolidation", True)
        assert await server.code("inference/request", {**asked, "featureSet": "x.y"}) == -32003
        payload = {"path": "/project/src/main.ts", "mode": "append"}
        scope = {"label": "/project/src/main.ts", "payload": payload}
        elevated = await server.asked("scope/elevate", {"featureSet": "files.edit", "scope": scope})
        assert elevated.keys() == {"approved", "payload"}
        assert elevated["approved"]
        assert elevated["payload"].items() >= payload.items()
        scope = {"label": "/project/.env", "payload": {"path": "/project/.env"}}
        denied = await server.asked("scope/elevate", {"featureSet": "files.edit", "scope": scope})
        assert (denied["approved"], denied.keys()) == (False, {"approved", "reason"})


async def test_the_printed_push_and_the_printed_hooks(tmp_path: Path) -> None:
    server = printed_server()
    injection = {
        "namespace": "memory",
        "position": "beforeUser",
        "content": [{"type": "text", "text": INJECTED}],
        "metadata": {"memoryIds": ["mem_a1"]},
    }
    server.plays["context/beforeInference"] = lambda _: {
        "featureSet": "memory.retrieval",
        "contextInjections": [injection],
    }
    push = {
        "featureSet": "memory.proactive",
        "eventId": "evt_reminder_001",
        "timestamp": "2026-01-23T14:00:00Z",
        "origin": {"server": "memory", "memoryId": "mem_followup"},
        "payload": {
            "content": [{"type": "text", "text": "You mentioned following up with Alice today"}]
        },
    }
    async with (
        serving(*(Said("Based on your recent work..."),) * 3) as model,
        live_scene(tmp_path, server, rows=rows(model), live=ENABLED),
    ):
        accepted = await server.asked("push/event", push)
        assert accepted.keys() == {"accepted", "inferenceId"}
        assert accepted["accepted"]
        (before,) = await server.until("context/beforeInference")
        printed = {"inferenceId", "conversationId", "turnIndex", "userMessage", "model"}
        assert printed <= before.keys()
        assert before["inferenceId"] == accepted["inferenceId"]
        assert {"id", "vendor", "contextWindow", "capabilities"} >= before["model"].keys()
        (after,) = await server.until("context/afterInference")
        assert printed | {"assistantMessage", "usage"} <= after.keys()
        assert after["assistantMessage"] == "Based on your recent work..."
        assert after["usage"].keys() == {"inputTokens", "outputTokens"}
        assert "User is scaling mannequin installation" in str(model.requests[0].body)
        again = await server.asked("push/event", push)
        assert not again["accepted"]


async def test_the_printed_inference_and_the_printed_model(tmp_path: Path) -> None:
    server = printed_server()
    live = 'enabled = ["memory.*"]'
    asked: Frame = {
        "featureSet": "memory.consolidation",
        "conversationId": "conv_123",
        "stream": False,
        "messages": [{"role": "user", "content": "Summarize these memories: ..."}],
        "preferences": {"maxTokens": 500, "temperature": 0.7},
    }
    summary = "Consolidated memory summary..."
    async with (
        serving(Said(summary, usage=(450, 120)), Said(summary, usage=(450, 120))) as model,
        live_scene(tmp_path, server, rows=rows(model), live=live),
    ):
        result = await server.asked("inference/request", asked)
        usage = {"inputTokens": 450, "outputTokens": 120}
        assert result.keys() == {"content", "model", "finishReason", "usage"}
        assert (result["content"], result["usage"]) == (summary, usage)
        assert result["finishReason"] == "end_turn"
        await server.asked("inference/request", {**asked, "stream": True})
        chunks = server.said("inference/chunk")
        assert {frozenset(each) for each in chunks} == {frozenset({"requestId", "index", "delta"})}
        assert "".join(each["delta"] for each in chunks) == summary
        assert [each["index"] for each in chunks] == [*range(len(chunks))]
        about = await server.asked("model/info", {})
        assert about.keys() <= {"id", "vendor", "contextWindow", "capabilities"}
        assert about["id"]


def check_incoming(server: Puppet) -> None:
    channels = server.said("context/beforeInference")[0]["channels"]
    assert channels.keys() == {"incoming", "defaultOutgoing", "candidates"}
    place = {"channelId": "discord:#general", "messageId": "dmsg_123", "threadId": "t_42"}
    assert channels["incoming"] == place


async def check_outgoing(server: Puppet) -> None:
    complete = (await server.until("channels/outgoing/complete"))[0]
    chunks = server.said("channels/outgoing/chunk")
    named = {"inferenceId", "conversationId", "channelId"}
    assert complete.keys() == named | {"content"}
    assert {frozenset(each) for each in chunks} == {frozenset(named | {"index", "delta"})}


async def test_the_printed_channels_and_their_messages(tmp_path: Path) -> None:
    server = printed_server()
    opened = {name: DESCRIPTOR[name] for name in DESCRIPTOR if name != "metadata"}
    server.plays["channels/open"] = lambda _: {"channel": opened}
    server.plays["channels/close"] = lambda _: {"closed": True}
    server.plays["channels/list"] = lambda _: {"channels": []}
    status = message(
        "What's the status?",
        "discord:#general",
        "dmsg_123",
        threadId="t_42",
        author={"id": "u_777", "name": "Alice"},
        timestamp="2026-03-05T10:30:00Z",
        metadata={"mentions": ["@bob"]},
    )
    wondering = message(
        "I was wondering the same",
        "discord:#general",
        "dmsg_124",
        threadId="t_42",
        author={"id": "u_888", "name": "Bob"},
        timestamp="2026-03-05T10:30:05Z",
        metadata={},
    )
    async with (
        serving(*(Said("Hello team"),) * 4) as model,
        live_scene(tmp_path, server, rows=rows(model), live=ENABLED) as stage,
        asyncio.timeout(SECONDS),
    ):
        registered = await server.asked("channels/register", {"channels": [DESCRIPTOR]})
        assert [each["accepted"] for each in registered["results"]] == [True]
        listed = await server.asked("channels/list", {})
        assert listed == {"channels": [DESCRIPTOR]}
        results = await server.hears(status, wondering)
        for result, id in zip(results, ("dmsg_123", "dmsg_124"), strict=True):
            assert result.keys() == {"messageId", "accepted", "conversationId"}
            assert (result["messageId"], result["accepted"]) == (id, True)
        assert results[0]["conversationId"] == results[1]["conversationId"]
        published = (await server.until("channels/publish"))[0]
        assert {"conversationId", "channelId", "stream", "content"} <= published.keys()
        assert published["channelId"] == "discord:#general"
        assert published["content"] == [{"type": "text", "text": "Hello team"}]
        check_incoming(server)
        await check_outgoing(server)
        server.tell("channels/changed", {"added": [], "removed": ["discord:#random"]})
        closed = await stage.api("POST", "close", server="printed", channel="discord:#general")
        assert closed["closed"]
        assert server.said("channels/close") == [{"channelId": "discord:#general"}]
        await stage.api(
            *("POST", "open"),
            server="printed",
            type="discord",
            address=DESCRIPTOR["address"],
        )
        assert server.said("channels/open") == [
            {"type": "discord", "address": DESCRIPTOR["address"], "metadata": {}}
        ]
        unknown = await server.hears(message("x", "discord:#nowhere"))
        assert unknown[0]["code"] in (-32023, -32017)


@pytest.mark.parametrize("name", ["mcpx", "mcpl"])
def test_the_docs_list_the_deviations_from_the_printed_examples(name: str) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / f"{name}.md"
    text = page.read_text("utf-8")
    mine = {key: why for key, why in DEVIATIONS.items() if key.startswith(name.upper())}
    for section, why in listed(mine).items():
        assert f"| §{section} | {why} |" in text


def listed(deviations: Mapping[str, str]) -> dict[str, str]:
    return {key.partition(" ")[2]: why for key, why in deviations.items()}
