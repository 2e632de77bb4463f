"""The examples as programs, driven over their pipes by the kit's harness as Comity would."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Final

import pytest

from comity.live.hooks import model
from comity.live.hooks.model import InjectionPosition
from comity.mcp import jsonrpc, mcpl
from comity.sdk.testing import Harness, text_of
from tests.docs.pages import ROOT
from tests.interop.processes import accepts, free_port
from tests.live.end_to_end import fetch, until

pytestmark = pytest.mark.integration

EXAMPLES: Final = ROOT / "examples"
MEMORY: Final = {
    "memory.retrieval": {
        "description": "Recalls what was said before",
        "uses": ["contextHooks.beforeInference"],
    },
    "memory.extraction": {
        "description": "Remembers what is said",
        "uses": ["contextHooks.afterInference"],
    },
    "memory.consolidation": {
        "description": "Sums memories up with a model",
        "uses": ["inferenceRequest"],
    },
    "memory.proactive": {
        "description": "Reminds when it is time",
        "uses": ["pushEvents"],
    },
}


def memory(file: Path, *more: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / "memory_server" / "server.py"), str(file), *more]


def compliance() -> list[str]:
    return [sys.executable, str(EXAMPLES / "compliance_server" / "server.py")]


async def recalled(host: Harness, question: str, conversation: str = "conv-1") -> str:
    """What is remembered about it, once it is: nobody waits for what is only told."""
    found: list[str] = []

    async def look() -> bool:
        injections = await host.before(question, conversation)
        found[:] = [text_of(each.content) for each in injections]
        return bool(found)

    while not await look():
        await asyncio.sleep(0.05)
    return "\n".join(found)


@pytest.mark.timeout(120)
async def test_the_memory_server_declares_what_the_document_prints(tmp_path: Path) -> None:
    async with Harness(memory(tmp_path / "memories.db"), enabled=["memory.*"]) as host:
        said = mcpl.mcpl_member_in(jsonrpc.to_raw(host.welcome["capabilities"]))
        assert said is not None
        declared = json.loads(bytes(said))
        assert declared["version"] == "0.4"
        assert declared["contextHooks"] == {
            "beforeInference": True,
            "afterInference": {"blocking": False},
        }
        assert declared["inferenceRequest"] == {"streaming": True}
        assert declared["pushEvents"] is True
        assert declared["featureSets"] == MEMORY


@pytest.mark.timeout(120)
async def test_what_is_said_is_before_the_model_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "memories.db"
    async with Harness(memory(file), enabled=["memory.*"]) as host:
        assert await host.before("How's the greenhouse project?") == ()
        said = "We scale the greenhouse extension to 8-10 beds. Grow lamps, drip irrigation."
        assert await host.after(said, "Good to know.") == "Good to know."
        assert "8-10 beds" in await recalled(host, "How's the greenhouse project?")
    async with Harness(memory(file), enabled=["memory.*"]) as again:
        (injection,) = await again.before("Is the greenhouse lit?", "conv-other")
        assert injection.namespace == "memory"
        assert injection.position is InjectionPosition.BEFORE_USER
        assert text_of(injection.content).startswith("<memories>\nWe scale the greenhouse")
        assert len(injection.metadata["memoryIds"]) == 1
    async with Harness(memory(file, "--apart"), enabled=["memory.*"]) as apart:
        assert await apart.before("Is the greenhouse lit?", "conv-other") == ()
        assert await apart.before("Is the greenhouse lit?", "conv-1") != ()
    async with Harness(memory(file, "--position", "system"), enabled=["memory.*"]) as printed:
        (injection,) = await printed.before("Is the greenhouse lit?")
        assert injection.position is InjectionPosition.SYSTEM


@pytest.mark.timeout(120)
async def test_many_memories_are_summed_up_by_the_hosts_model(tmp_path: Path) -> None:
    async with Harness(memory(tmp_path / "memories.db"), enabled=["memory.*"]) as host:
        host.models.say("The fair has twelve tents in twelve colours.")
        stated = " ".join(
            f"Tent number {each} of the fair has colour {each}." for each in range(12)
        )
        await host.after(stated, "Noted.")
        await host.until(lambda: host.models.asked)
        (wanted,) = host.models.asked
        assert (wanted.feature, wanted.conversation) == ("memory.consolidation", "conv-1")
        assert (wanted.max_tokens, wanted.stream) == (500, False)
        assert "Tent number 11 of the fair" in host.models.last
        async with asyncio.timeout(60):
            while "twelve tents" not in (found := await recalled(host, "What of the fair?")):
                await asyncio.sleep(0.05)
        assert "Tent number" not in found


@pytest.mark.timeout(120)
async def test_a_reminder_is_pushed_once_under_one_id_however_often_it_starts(
    tmp_path: Path,
) -> None:
    file = tmp_path / "memories.db"
    async with Harness(memory(file), enabled=["memory.*"]) as host:
        await host.after("Remind me in 0 seconds to call the printer.", "I will.")
        await host.until(lambda: host.pushes)
        (push,) = host.pushes
        assert push.feature == "memory.proactive"
        assert text_of(push.content) == "You wanted to be reminded: call the printer"
        assert push.origin["server"] == "memory"
        assert push.id == f"evt_{push.origin['memoryId']}"
        await recalled(host, "printer")
    async with Harness(memory(file), enabled=["memory.*"]) as again:
        await recalled(again, "printer")
        assert again.pushes == []


@pytest.mark.timeout(120)
async def test_what_is_not_enabled_is_not_done(tmp_path: Path) -> None:
    enabled = ["memory.extraction"]
    async with Harness(memory(tmp_path / "memories.db"), enabled=enabled) as host:
        await host.after("Remind me in 0 seconds to feed the cat. The cat is grey.", "Yes.")
        assert await host.before("What colour has the cat?") == ()
        await host.enable("memory.retrieval")
        assert "grey" in await recalled(host, "What colour has the cat?")
        assert host.pushes == []
        await host.enable("memory.proactive")
        await host.until(lambda: host.pushes)


@pytest.mark.timeout(120)
async def test_a_plain_client_has_its_tools_and_sees_nothing_else(tmp_path: Path) -> None:
    async with Harness(memory(tmp_path / "memories.db"), mcpl=False) as client:
        assert "mcpl" not in json.dumps(dict(client.welcome))
        assert set(await client.tools()) == {"recall", "forget"}
        assert (await client.call("recall", {"about": "anything"})).text == ""
        assert (await client.call("forget", {"id": "mem_1"})).text == "there is no such memory"


@pytest.mark.timeout(120)
async def test_the_compliance_server_takes_a_key_out_of_the_answer() -> None:
    async with Harness(compliance(), enabled=["compliance.redaction"]) as host:
        said = mcpl.mcpl_member_in(jsonrpc.to_raw(host.welcome["capabilities"]))
        assert said is not None
        declared = json.loads(bytes(said))
        assert declared["contextHooks"] == {"afterInference": {"blocking": True}}
        assert declared["featureSets"] == {
            "compliance.redaction": {
                "description": "Takes secrets out of answers",
                "uses": ["contextHooks.afterInference"],
            }
        }
        turn = {
            "inferenceId": "inf_7",
            "conversationId": "conv_7",
            "turnIndex": 2,
            "userMessage": "How do I sign in?",
            "assistantMessage": "Use the API key sk-0f1e2d3c4b5a6978 today.",
            "usage": {"inputTokens": 50, "outputTokens": 20},
        }
        answered = dict(await host.request(model.AFTER, turn))
        assert answered == {
            "featureSet": "compliance.redaction",
            "modifiedResponse": "Use the API key [REDACTED] today.",
            "metadata": {"redactions": [{"type": "api_key", "position": [16, 35]}]},
        }
        assert await host.after("Hello?", "Nothing secret.") == "Nothing secret."


TOKEN: Final = "s3cret-of-gitlab"
PUSHED: Final = json.dumps(
    {
        "object_kind": "push",
        "ref": "refs/heads/main",
        "user_name": "release-bot",
        "project": {"path_with_namespace": "harbour/tides"},
        "total_commits_count": 1,
        "commits": [{"message": "round at midnight"}],
    }
).encode()


@pytest.mark.timeout(120)
async def test_gitlab_is_answered_once_its_event_is_kept_and_heard_once() -> None:
    port = free_port()
    command = [sys.executable, str(EXAMPLES / "gitlab_webhook" / "server.py"), str(port)]
    with_token = ["/usr/bin/env", f"GITLAB_TOKEN={TOKEN}", f"PATH={os.defpath}", *command]
    url = f"http://127.0.0.1:{port}/"

    async def post(body: bytes = PUSHED, token: str = TOKEN, key: str = "k1") -> int:
        headers = {"X-Gitlab-Token": token, "Idempotency-Key": key, "X-Gitlab-Event": "Push Hook"}
        return (await asyncio.to_thread(fetch, url, body, headers))[0]

    async with Harness(with_token) as host:
        await until(lambda: accepts(port))
        # Nobody has enabled it: GitLab is to come again.
        assert await post() == 503
        await host.enable("gitlab.notifications")
        # It is told so, and may hear it a moment later.
        while await post() == 503:
            await asyncio.sleep(0.05)
        assert [await post() for _ in range(4)] == [200] * 4
        assert await post(token="s3cret-of-others") == 401
        assert await post(b"{}") == 400
        assert await post(b'{"object_kind": "wiki_page"}') == 200
        (push,) = host.pushes
        assert push.id == "k1"
        assert text_of(push.content).startswith(
            "1 new commits on main by release-bot in harbour/tides"
        )
        assert push.origin["repository"] == "harbour/tides"
