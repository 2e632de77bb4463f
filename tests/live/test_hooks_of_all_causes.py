"""Whoever causes an inference, the hooks of all servers run: nothing leaves unreviewed."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from comity.mcp.actors import LOCAL_OPERATOR
from tests.cluster.nodes import modern
from tests.live.channel_scene import BOTH, Frame, Puppet, Scene, message, scene
from tests.live.inference_scene import model, request
from tests.live.model_server import ModelServer, serving
from tests.live.model_speech import Said
from tests.pace import here

BEFORE: Final = "context/beforeInference"
AFTER: Final = "context/afterInference"
SALARY: Final = "the salary is 90000"
REDACTED: Final = "the salary is [REDACTED]"
SET: Final = "compliance.redaction"
HOOKS: Final = ["contextHooks.beforeInference", "contextHooks.afterInference"]
SETS: Final[Frame] = {
    **BOTH,
    SET: {"description": "hooks", "uses": [*HOOKS, "inferenceRequest", "pushEvents"]},
}
BLOCKING: Final[Frame] = {
    "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
    "pushEvents": True,
}
OBSERVING: Final[Frame] = {
    "contextHooks": {"beforeInference": True, "afterInference": True},
    "pushEvents": True,
}
GUARD: Final = """
enabled = ["compliance.*", "channels.publish", "channels.observe"]
rewrites = true
on_failure = "closed"
"""
PLAIN: Final = 'enabled = ["compliance.*", "channels.publish", "channels.observe"]'
SETTINGS: Final = """
[policy]
require_approval = "never"
[topics]
access = "public"
[inference]
sampling = "allow"
[[pushes]]
from = "*/*"
to = "turn"
conversation = "reminders"
reply_to = ["topic:home"]
"""


def redacts(params: Mapping[str, Any]) -> Frame:
    said = params["assistantMessage"].replace("90000", "[REDACTED]")
    return {"featureSet": SET, "modifiedResponse": said}


def remembers(params: Mapping[str, Any]) -> Frame:
    injection = {"namespace": "facts", "position": "beforeUser", "content": "MEMORY"}
    return {"featureSet": SET, "contextInjections": [injection]}


def adds_nothing(params: Mapping[str, Any]) -> Frame:
    return {"featureSet": SET, "contextInjections": []}


def guard(name: str = "guard") -> Puppet:
    plays = {BEFORE: remembers, AFTER: redacts}
    return Puppet(name, SETS, {"register": True}, BLOCKING, dict(plays))


def asker(name: str = "asker") -> Puppet:
    """A server that asks and observes, and may rewrite nothing."""
    return Puppet(name, SETS, {"register": True}, OBSERVING, {BEFORE: adds_nothing})


@dataclass
class House:
    """The gateway, its model, and what its servers heard."""

    scene: Scene
    models: ModelServer
    http: aiohttp.ClientSession
    seen: list[Frame] = field(default_factory=list[Frame])

    async def turn(self, text: str = "what is the salary?") -> Frame:
        """A turn that a person asks for, once it is over."""
        answer = self.scene.parts.api.answer
        begun = await answer("POST", "/api/turns", {"text": text}, LOCAL_OPERATOR)
        return await self.over(str(begun["id"]))

    async def over(self, id: str) -> Frame:
        answer = self.scene.parts.api.answer
        async with asyncio.timeout(here(60)):
            while True:
                found = await answer("GET", f"/api/turns/{id}", {"wait": "20"}, LOCAL_OPERATOR)
                if found["is_over"]:
                    return dict(found)

    async def pushed(self, server: Puppet) -> Frame:
        """The turn that answers a push of this server."""
        event = {
            "featureSet": SET,
            "eventId": f"evt-{len(server.heard)}",
            "timestamp": "2026-07-28T12:00:00Z",
            "origin": {},
            "payload": {"content": [{"type": "text", "text": "what is the salary?"}]},
        }
        accepted = await server.asked("push/event", event)
        return await self.over(accepted["inferenceId"])

    async def sampled(self, server: Puppet) -> Frame:
        """What the server is answered to a sampling request amid a call of its tool."""
        arrived = asyncio.Event()
        server.plays["tools/call"] = lambda _: arrived.set()
        params: Frame = {"name": f"{server.name}__look", "arguments": {}}
        calling = asyncio.create_task(modern(self.http, self.scene.origin, "tools/call", params))
        try:
            async with asyncio.timeout(here(60)):
                await arrived.wait()
            content = {"type": "text", "text": "what is the salary?"}
            wish = {"messages": [{"role": "user", "content": content}], "maxTokens": 50}
            return await server.ask("sampling/createMessage", wish)
        finally:
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)


@asynccontextmanager
async def staged(
    folder: Path,
    *puppets: Puppet,
    live: Mapping[str, str],
    says: tuple[Said, ...] = (Said(SALARY),) * 20,
) -> AsyncGenerator[House]:
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(serving(*says))
        tool = {"name": "look", "inputSchema": {"type": "object"}}
        for each in puppets:
            each.plays.setdefault("tools/list", lambda _: {"tools": [tool]})
        channels = "".join(f'[[channels]]\nserver = "{each.name}"\n' for each in puppets)
        rows = SETTINGS + channels + model("fast", models)
        found = await stack.enter_async_context(scene(folder, *puppets, rows=rows, live=live))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield House(found, models, http)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", "sk-of-the-model")


def prompt_of(house: House) -> str:
    return str(house.models.requests[-1].body["messages"])


@pytest.mark.requirement(
    "MCPL-13.3-allcauses", "MCPL-15.1-ownpush", "MCPL-13.3-failclosed", "MCPL-15.1-memory"
)
async def test_a_push_of_the_redacting_server_is_redacted_and_gets_its_memories(
    tmp_path: Path,
) -> None:
    own = guard()
    async with (
        staged(tmp_path, own, live={"guard": GUARD}) as house,
        house.scene.member("home") as ana,
    ):
        turn = await house.pushed(own)
        assert (turn["reply"], turn["rewrote"], turn["injected"]) == (
            REDACTED,
            ["guard"],
            ["guard"],
        )
        assert "MEMORY" in prompt_of(house)
        chats = await ana.until(1)
        assert [chat.text for chat in chats] == [REDACTED]


@pytest.mark.requirement("MCPL-13.3-allcauses", "MCPL-15.2-compliance")
async def test_a_message_in_a_channel_of_the_redacting_server_is_answered_redacted(
    tmp_path: Path,
) -> None:
    own = guard()
    async with staged(tmp_path, own, live={"guard": GUARD}) as house:
        await own.register("room")
        await own.hears(message("what is the salary?"))
        (published,) = await own.until("channels/publish")
        assert published["content"] == [{"type": "text", "text": REDACTED}]
        assert "90000" not in str(own.said("channels/outgoing/chunk"))
        assert "MEMORY" in prompt_of(house)


@pytest.mark.requirement("MCPL-13.3-allcauses")
@pytest.mark.parametrize("stream", [False, True])
async def test_the_redacting_server_reviews_what_it_asks_a_model_itself(
    tmp_path: Path, stream: bool
) -> None:
    own = guard()
    async with staged(tmp_path, own, live={"guard": GUARD}) as house:
        wanted = request(SET, "what is the salary?", stream=stream)
        found = await own.asked("inference/request", wanted)
        assert found["content"] == REDACTED
        chunks = "".join(each["delta"] for each in own.said("inference/chunk"))
        assert chunks == (REDACTED if stream else "")
        assert len(own.said(AFTER)) == 1
        # It wrote the prompt itself, so it is not asked what to add.
        assert own.said(BEFORE) == []
        assert house.models.requests[-1].last == "what is the salary?"


@pytest.mark.requirement("MCPL-13.3-allcauses", "MCPL-10.7-noloop")
@pytest.mark.parametrize("method", ["inference/request", "sampling/createMessage"])
async def test_a_redacting_server_that_asks_a_model_amid_its_hook_gets_nothing_and_still_reviews(
    tmp_path: Path, method: str
) -> None:
    own = guard()
    answers: list[asyncio.Task[Frame]] = []
    content = {"type": "text", "text": "what is the salary?"}
    wish = {"messages": [{"role": "user", "content": content}], "maxTokens": 50}
    wanted = request(SET) if method == "inference/request" else wish

    def before(params: Mapping[str, Any]) -> Frame:
        # On its way before the hook is answered: on a pipe nothing overtakes.
        loop = asyncio.get_running_loop()
        answers.append(asyncio.Task(own.ask(method, wanted), eager_start=True, loop=loop))
        return remembers(params)

    own.plays[BEFORE] = before
    async with staged(tmp_path, own, live={"guard": GUARD}) as house:
        turn = await house.turn()
        assert (turn["reply"], turn["rewrote"]) == (REDACTED, ["guard"])
        async with asyncio.timeout(here(60)):
            answer = await answers[0]
        assert "error" in answer, answer
        assert len(house.models.requests) == 1


async def caused(house: House, way: str, by: Puppet) -> str:
    """An inference that is caused in this way; what came out, as text."""
    if way == "person":
        return str((await house.turn())["reply"])
    if way == "push":
        return str((await house.pushed(by))["reply"])
    if way == "channel":
        await by.register("room")
        await by.hears(message("what is the salary?"))
        return str(await by.until("channels/publish"))
    if way == "sampling":
        return str(await house.sampled(by))
    wanted = request(SET, "what is the salary?", stream=way == "streamed")
    answer = await by.ask("inference/request", wanted)
    return str(by.said("inference/chunk")) + str(answer)


WAYS: Final = ("person", "push", "channel", "inference", "streamed", "sampling")


@pytest.mark.requirement("MCPL-11.1-hooks", "MCPL-13.3-allcauses")
@pytest.mark.parametrize("way", WAYS)
async def test_a_guard_sees_every_inference(tmp_path: Path, way: str) -> None:
    watching, asking = guard(), asker()
    async with staged(tmp_path, watching, asking, live={"guard": GUARD, "asker": PLAIN}) as house:
        said = await caused(house, way, asking)
        assert "[REDACTED]" in said
        assert "90000" not in said
        assert "MEMORY" in prompt_of(house)
        (before,), (after,) = watching.said(BEFORE), watching.said(AFTER)
        assert before["inferenceId"] == after["inferenceId"]
        assert before["userMessage"] == after["userMessage"] == "what is the salary?"
        assert after["assistantMessage"] == SALARY
        observed = "90000" in str(asking.said(AFTER))
        assert not observed


@pytest.mark.requirement("MCPL-11.1-hooks", "MCPL-13.3-failclosed")
@pytest.mark.parametrize("way", WAYS)
async def test_without_its_guard_no_inference_leaves(tmp_path: Path, way: str) -> None:
    watching, asking = guard(), asker()
    async with staged(tmp_path, watching, asking, live={"guard": GUARD, "asker": PLAIN}) as house:
        await house.scene.parts.servers.stop_server("guard")
        said = await caused(house, way, asking)
        assert "withheld" in said
        assert "salary is" not in said


@pytest.mark.requirement("MCPL-11.1-hooks")
async def test_no_server_reads_the_context_of_a_conversation_by_its_name(tmp_path: Path) -> None:
    watching, asking = guard(), asker()
    async with staged(tmp_path, watching, asking, live={"guard": GUARD, "asker": PLAIN}) as house:
        first = await house.turn()
        stolen = request(SET, conversationId=first["conversation"])
        await asking.asked("inference/request", stolen)
        await asking.asked("inference/request", request(SET))
        persons, named, unnamed = (each["conversationId"] for each in watching.said(BEFORE))
        assert persons == first["conversation"]
        assert named == f"server:asker/{first['conversation']}"
        assert unnamed.startswith("server:asker/inf_")


@pytest.mark.requirement("MCPL-11.1-hooks")
async def test_nobody_observes_what_servers_infer_about_what_they_observed(tmp_path: Path) -> None:
    """Otherwise each inference of a server, or of two of them, would cause the next one."""
    asking, other = asker(), asker("other")
    live = {"asker": PLAIN, "other": PLAIN}
    async with staged(tmp_path, asking, other, live=live) as house:
        await asking.asked("inference/request", request(SET))
        await house.turn()
        await asking.until(AFTER)
        await other.until(AFTER)
        observed = [*asking.said(AFTER), *other.said(AFTER)]
        assert not [each for each in observed if each["conversationId"].startswith("server:")]


@pytest.mark.requirement("MCPL-10.7-depth")
async def test_servers_whose_hooks_ask_models_for_each_other_come_to_an_end(
    tmp_path: Path,
) -> None:
    """Each asks a model for another conversation while its own hook is pending."""
    one, two = asker("one"), asker("two")
    asked: list[asyncio.Task[Frame]] = []

    def asks(puppet: Puppet) -> Any:
        def before(params: Mapping[str, Any]) -> Frame | None:
            number = len(asked)
            wanted = request(SET, conversationId=f"another-{number}")

            async def ask() -> Frame:
                answer = await puppet.ask("inference/request", wanted)
                puppet.answers(params, adds_nothing(params))
                return answer

            asked.append(asyncio.create_task(ask()))
            return None

        return before

    one.plays[BEFORE], two.plays[BEFORE] = asks(one), asks(two)
    async with staged(tmp_path, one, two, live={"one": PLAIN, "two": PLAIN}) as house:
        turn = await house.turn()
        assert turn["state"] == "done"
        async with asyncio.timeout(here(60)):
            answers = await asyncio.gather(*asked)
        refused = [each for each in answers if "error" in each]
        assert refused
        assert all(each["error"]["data"]["error_type"] == "exhausted" for each in refused)
        assert len(asked) <= 2 + 2 + 2
