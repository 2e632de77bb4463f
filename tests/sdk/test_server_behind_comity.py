"""The kit's own server behind a real gateway, in each era and over each transport."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import pytest

from tests.cluster.nodes import modern
from tests.interop.peers import ROOT
from tests.interop.processes import comity, http_server
from tests.live.end_to_end import KEY, Models, fetch, models, words_in
from tests.pace import here

WAYS: Final = ("handshake pipes", "handshake http", "modern pipes", "modern http")
COMMAND: Final = [sys.executable, "-m", "tests.sdk.live_kit"]
SECONDS: Final = 60.0
SETTINGS: Final = """
[store]
url = "sqlite:///{folder}/comity.db"
[[models]]
id = "main"
api = "openai"
url = "{model}/v1"
model = "test-model"
key_env = "MODEL_KEY"
"""
SERVER: Final = """
[[servers]]
id = "{id}"
protocol = "{protocol}"
{reached}
[servers.live]
enabled = ["kit.*"]
disabled = ["kit.off"]
positions = ["system", "beforeUser"]
rewrites = true
[servers.live.scopes."kit.files"]
whitelist = ["/project/**"]
blacklist = ["**/.env"]
[servers.live.scope_of]
reach = "/path"
[[pushes]]
from = "{id}/kit.*"
to = "turn"
conversation = "{id}-pushed"
[[channels]]
server = "{id}"
channel = "**"
to = "turn"
"""

type Frame = dict[str, Any]


@dataclass(frozen=True, slots=True)
class House:
    """The gateway and its model."""

    origin: str
    models: Models


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Generator[House]:
    folder = tmp_path_factory.mktemp("kit")
    with ExitStack() as stack:
        model = stack.enter_context(models())
        parts = [SETTINGS.format(folder=folder, model=model.url)]
        parts += [_server(way, stack) for way in WAYS]
        config = folder / "comity.toml"
        config.write_text("\n".join(parts))
        yield House(stack.enter_context(comity(config, {"MODEL_KEY": KEY})), model)


def _server(way: str, stack: ExitStack) -> str:
    era, over = way.split()
    if over == "http":
        url = stack.enter_context(http_server(lambda port: [*COMMAND, str(port)]))
        reached = f'transport = "http"\nurl = "{url}/mcp"'
    else:
        reached = f"command = {json.dumps(COMMAND[0])}\nargs = {json.dumps(COMMAND[1:])}\n"
        reached += f"env = {{ PYTHONPATH = {json.dumps(str(ROOT))} }}"
    protocol = "2026-07-28" if era == "modern" else "2025-11-25"
    return SERVER.format(id=way.replace(" ", "-"), protocol=protocol, reached=reached)


@dataclass(frozen=True, slots=True)
class Kit:
    """One server behind the gateway, as its clients and its operator meet it."""

    id: str
    house: House
    http: aiohttp.ClientSession

    async def call(self, tool: str, **given: Any) -> Any:
        answer = await self.answer(tool, **given)
        assert not answer.get("isError"), answer
        found = answer["structuredContent"]
        return found.get("result", found)

    async def answer(self, tool: str, **given: Any) -> Frame:
        asked = {"name": f"{self.id}__{tool}", "arguments": given}
        said = await modern(self.http, self.house.origin, "tools/call", asked)
        assert "result" in said.body, said.body
        return said.body["result"]

    async def seen(self, kind: str, is_it: Callable[[Frame], bool] = lambda _: True) -> Frame:
        """What the server saw of one kind, once it did."""
        deadline = time.monotonic() + here(SECONDS)
        while True:
            looked = await self.call("look", kind=kind)
            found = [each for each in looked["seen"] if is_it(each)]
            if found:
                return found[-1]
            assert time.monotonic() < deadline, looked
            await asyncio.sleep(0.05)

    async def enabled(self) -> list[str]:
        """The sets that it was told it may use; none while it is not there."""
        asked = {"name": f"{self.id}__look", "arguments": {"kind": ""}}
        said = await modern(self.http, self.house.origin, "tools/call", asked)
        return said.body.get("result", {}).get("structuredContent", {}).get("enabled", [])

    async def api(self, place: str, body: object = None) -> Any:
        sent = None if body is None else json.dumps(body).encode()
        status, said = await asyncio.to_thread(fetch, f"{self.house.origin}/api/{place}", sent)
        assert status in (200, 201), (status, said)
        return json.loads(said)

    async def turn(self, text: str) -> Frame:
        begun = await self.api("turns", {"text": text, "conversation": f"{self.id}-{text}"})
        return await self.turned(begun["id"])

    async def turned(self, id: str) -> Frame:
        deadline = time.monotonic() + here(SECONDS)
        while not (found := await self.api(f"turns/{id}?wait=5"))["is_over"]:
            assert time.monotonic() < deadline, found
        return found


@pytest.fixture(params=WAYS)
async def kit(house: House, request: pytest.FixtureRequest) -> AsyncGenerator[Kit]:
    async with aiohttp.ClientSession() as http:
        found = Kit(request.param.replace(" ", "-"), house, http)
        deadline = time.monotonic() + here(SECONDS)
        # On a machine that is busy a server may need more than one start.
        while "kit.push" not in await found.enabled():
            assert time.monotonic() < deadline, "nothing was ever enabled"
            await asyncio.sleep(0.05)
        yield found


@pytest.mark.requirement(
    *("MCPL-3.1-experimental", "MCPL-4.1-push", "MCPL-6.5-servertag"),
    *("MCPL-6.7-respect", "MCPL-9.1-event", "MCPL-9.2-eventId", "MCPL-9.2-payload"),
    *("MCPL-4-jsonrpc", "MCPL-9.4-stable"),
)
async def test_a_push_becomes_a_turn_once(kit: Kit) -> None:
    first = await kit.call("push", event="evt-1", text=f"The bell rings in {kit.id}.")
    again = await kit.call("push", event="evt-1", text=f"The bell rings in {kit.id}.")
    never = await kit.call("push", event="evt-2", text="Nobody hears this", by="kit.off")
    assert first["accepted"], first
    turn = await kit.turned(first["inference"])
    assert turn["conversation"] == f"{kit.id}-pushed"
    assert (again["accepted"], never["accepted"]) == (False, False)
    asked = [words_in(each) for each in kit.house.models.asked()]
    assert len([each for each in asked if f"The bell rings in {kit.id}." in each]) == 1
    assert not any("Nobody hears this" in each for each in asked)


@pytest.mark.requirement(
    *("MCPL-4.1-before", "MCPL-4.1-after", "MCPL-6.5-resulttag", "MCPL-10.2-result"),
    *("MCPL-10.3-blocks", "MCPL-10.4-position", "MCPL-10.5-result", "MCPL-10.7-noloop"),
)
async def test_a_turn_is_shaped_before_and_after(kit: Kit) -> None:
    text = f"What do I drink in {kit.id}?"
    kit.house.models.add({"text": "Tea, with sk-1. consolidate", "when": text.replace("?", r"\?")})
    turn = await kit.turn(text)
    asked = next(each for each in kit.house.models.asked() if text in words_in(each))
    assert "The kit remembers tea." in words_in(asked)
    assert "The kit is at hand." in json.dumps(asked["messages"])
    assert "[REDACTED]" in json.dumps(turn)
    assert "sk-1" not in turn["reply"]
    before = await kit.seen("before", lambda each: each["user"] == text)
    after = await kit.seen("after", lambda each: each["inference"] == before["inference"])
    assert "sk-1" in after["answer"] or "[REDACTED]" in after["answer"]
    await kit.seen("learned")
    assert "Sum up" in (await kit.seen("consolidated"))["text"]


@pytest.mark.requirement(
    *("MCPL-4.1-inference", "MCPL-4.1-chunk", "MCPL-4.1-model", "MCPL-11.1-request"),
    *("MCPL-11.2-stream", "MCPL-11.2-messages", "MCPL-11.2-maxTokens", "MCPL-11.2-temperature"),
)
async def test_a_model_is_asked_through_the_host(kit: Kit) -> None:
    asking = f"Sing for {kit.id}"
    kit.house.models.add({"text": "La la la la", "when": asking})
    for stream in (False, True):
        reply = await kit.call("think", text=asking, stream=stream)
        assert (reply["text"], reply["finish"]) == ("La la la la", "end_turn")
        assert "".join(reply["pieces"]) == ("La la la la" if stream else "")
    refused = await kit.answer("think", text=asking, by="kit.off")
    assert refused["isError"]
    assert "kit.off" in json.dumps(refused["content"])
    asked = next(each for each in kit.house.models.asked() if asking in words_in(each))
    assert (asked["temperature"], asked.get("max_tokens")) == (0.5, 200)
    found = await kit.call("model")
    assert found["id"] in ("test-model", "main")


@pytest.mark.requirement(
    *("MCPL-8.2-checkpoint", "MCPL-8.2-tree", "MCPL-8.3-data", "MCPL-4.1-rollback"),
    *("MCPL-8.6-result",),
)
async def test_state_is_kept_by_the_host_and_rolled_back(kit: Kit) -> None:
    assert await kit.call("add_note", text="a") == 1
    assert await kit.call("add_note", text="b") == 2
    tree = await kit.api(f"state/{kit.id}/kit.notes")
    nodes = tree["checkpoints"]
    first = next(each["checkpoint"] for each in nodes if each["parent"] is None)
    assert [each["parent"] for each in nodes if each["parent"] is not None] == [first]
    await kit.api(f"state/{kit.id}/kit.notes/rollback", {"checkpoint": first})
    assert (await kit.seen("rollback"))["checkpoint"] == first
    assert await kit.call("add_note", text="c") == 2
    tree = await kit.api(f"state/{kit.id}/kit.notes")
    assert sorted(each["parent"] or "" for each in tree["checkpoints"]) == ["", first, first]


@pytest.mark.requirement("MCPL-4.1-elevate", "MCPL-7.4-elevate", "MCPL-7.3-payload")
async def test_a_scope_is_asked_for_through_the_host(kit: Kit) -> None:
    inside = await kit.call("reach", path="/project/a.py", beyond="/project/b.py")
    assert (inside["approved"], inside["payload"]["path"]) == (True, "/project/b.py")
    assert inside["scope"] == "/project/a.py"
    outside = await kit.call("reach", path="/project/a.py", beyond="/project/.env")
    assert not outside["approved"]
    assert outside["reason"]


@pytest.mark.requirement(
    *("MCPL-4.1-chregister", "MCPL-4.1-chchanged", "MCPL-4.1-chlist", "MCPL-4.1-chopen"),
    *("MCPL-4.1-chclose", "MCPL-4.1-chpublish", "MCPL-4.1-chincoming", "MCPL-4.1-choutcomplete"),
    *("MCPL-14.3-register", "MCPL-14.3-changed", "MCPL-14.3-list", "MCPL-14.3-open"),
    *("MCPL-14.3-close", "MCPL-14.3-publishack", "MCPL-14.3-incoming", "MCPL-4.1-choutchunk"),
)
async def test_words_come_in_and_go_out_through_channels(kit: Kit) -> None:
    kit.house.models.add({"text": "Yes, I am.", "when": f"Is anybody in {kit.id}"})
    assert "kit:#lobby" in await kit.call("channels")
    assert "kit:#more" in await kit.call("channels", add="kit:#more")
    (arrived,) = await kit.call("hear", id="m-1", text=f"Is anybody in {kit.id}?")
    assert arrived["accepted"], arrived
    assert arrived["conversation"]
    post = await kit.seen("post")
    assert (post["channel"], post["text"]) == ("kit:#lobby", "Yes, I am.")
    await kit.seen("outgoing", lambda each: each["whole"])
    await kit.seen("outgoing", lambda each: not each["whole"])
    body: Frame = {"server": kit.id, "type": "kit", "address": {"channel": "#attic"}}
    assert (await kit.api("channels/open", body))["id"] == "kit:#attic"
    said = {"server": kit.id, "channel": "kit:#attic", "text": "Hello attic"}
    assert (await kit.api("channels/send", said))["message"].startswith("out-")
    closed = await kit.api("channels/close", {"server": kit.id, "channel": "kit:#attic"})
    assert closed["closed"]
    assert (await kit.seen("closed"))["channel"] == "kit:#attic"


@pytest.mark.requirement("MCPL-4.1-fschanged", "MCPL-6.7-changed")
async def test_sets_that_came_later_are_enabled_as_was_said_before(kit: Kit) -> None:
    assert await kit.call("grow") == "grown"
    deadline = time.monotonic() + here(SECONDS)
    while "kit.grown" not in await kit.enabled():
        assert time.monotonic() < deadline, "it was never enabled"
        await asyncio.sleep(0.05)
    pushed = await kit.call("push", event="evt-grown", text="New", by="kit.grown")
    assert pushed["accepted"], pushed
