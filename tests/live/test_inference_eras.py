"""Models for live servers of each era and transport, and none for who is just asked a hook."""

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from comity.surfaces.asked import Asked
from comity.wire.parties import LOCAL_OPERATOR
from tests.live.end_to_end import Models, models
from tests.live.inference_scene import asking, request
from tests.live.model_server import Said
from tests.live.talker_scene import WAYS, Composed, Frame, Scene, name_of, talking
from tests.pace import here

SETS = {"x.ask": {"description": "Asks a model", "uses": ["inferenceRequest"]}}
DECLARED = {"version": "0.4", "inferenceRequest": {"streaming": True}, "featureSets": SETS}
LIVE = '[servers.live]\nenabled = ["x.*"]\n'
SETTINGS = """
[[models]]
id = "fast"
api = "anthropic"
url = "URL"
model = "fast-1"
"""
WORDS = "one two three four five six seven eight nine ten"
WISH: Frame = {
    "featureSet": "x.ask",
    "stream": True,
    "messages": [{"role": "user", "content": "Count"}],
}


@pytest.fixture(scope="module")
def stage(
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[tuple[tuple[str, Path, Composed], Models]]:
    with (
        models({"text": WORDS, "when": "Count"}) as model,
        talking(
            tmp_path_factory.mktemp("eras"),
            WAYS,
            LIVE,
            SETTINGS.replace("URL", model.url),
            DECLARED,
        ) as house,
    ):
        yield house, model


@pytest.mark.requirement("MCPL-4.1-inference", "MCPL-4.1-chunk", "MCPL-11.4-chunk")
@pytest.mark.parametrize("way", WAYS)
async def test_words_come_in_order_in_each_era_over_each_transport(
    stage: tuple[tuple[str, Path, Composed], Models], way: str
) -> None:
    (origin, config, composed), _ = stage
    async with aiohttp.ClientSession() as http:
        scene = Scene(origin, config, composed, http, name_of(way))
        (answer,) = await scene.ask({"method": "inference/request", "params": WISH})
        assert answer["result"]["content"] == WORDS
        assert answer["result"]["model"] == "fast-1"
        chunks = [each["params"] for each in await scene.seen("inference/chunk")]
        assert "".join(each["delta"] for each in chunks) == WORDS
        assert [each["index"] for each in chunks] == list(range(len(chunks)))
        assert len({each["requestId"] for each in chunks}) == 1
        (info,) = await scene.ask({"method": "model/info", "params": {}})
        assert info["result"]["id"] == "fast-1"


HOOKED = {"version": "0.4", "contextHooks": {"beforeInference": True, "afterInference": False}}


@pytest.mark.requirement("MCPL-10.7-noloop")
@pytest.mark.parametrize(
    ("conversation", "is_refused"), [("main", True), ("", True), ("another", False)]
)
async def test_who_is_asked_about_a_turn_asks_no_model_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conversation: str, is_refused: bool
) -> None:
    monkeypatch.setenv("MODEL_KEY", "sk-of-the-model")
    async with asking(tmp_path, Said("Well.", when="hello"), Said("Aside.", when="loop")) as it:
        answers: list[asyncio.Future[Frame]] = []

        def before(params: Any) -> Frame:
            wanted = request(text="loop", conversationId=conversation)
            # On its way before the hook is answered: on a pipe nothing overtakes.
            asked = it.server.ask("inference/request", wanted)
            answers.append(asyncio.Task(asked, eager_start=True, loop=asyncio.get_running_loop()))
            return {"featureSet": "memory.hooks", "contextInjections": []}

        it.server.plays["context/beforeInference"] = before
        live = {**HOOKED, "featureSets": dict(it.server.sets)}
        it.server.plays["initialize"] = lambda params: {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}, "experimental": {"mcpl": live}},
            "serverInfo": {"name": "memory", "version": "1"},
        }
        # It greets anew, and now says that it wants to be asked before.
        it.server.heard.clear()
        it.server.cut()
        await it.server.until("featureSets/update")
        room = it.scene.parts.rooms["turns"]
        begun = await room(Asked("POST", (), {}, {"text": "hello"}, LOCAL_OPERATOR))
        async with asyncio.timeout(here(60)):
            while not answers:
                await asyncio.sleep(0.01)
            answer = await answers[0]
            turn = dict(
                await room(Asked("GET", (str(begun["id"]),), {"wait": "20"}, {}, LOCAL_OPERATOR))
            )
            while not turn["is_over"]:
                asked = Asked("GET", (str(begun["id"]),), {"wait": "20"}, {}, LOCAL_OPERATOR)
                turn = dict(await room(asked))
        assert turn["said"] == "Well."
        if is_refused:
            assert answer["error"]["code"] == -32600
            assert answer["error"]["data"]["error_type"] == "hook_loop"
        else:
            assert answer["result"]["content"] == "Aside."
