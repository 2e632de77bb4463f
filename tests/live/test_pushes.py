"""`push/event` through a whole gateway: accepted once, routed as the file says, and bounded."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from comity.sdk.events import Chat
from comity.sdk.participant import Options, join
from tests.live.model_server import Said, serving
from tests.live.push_scene import Answer, House, Pusher
from tests.pace import here
from tests.webhooks.gateways import Client
from tests.webhooks.receiving import a_receiver

pytestmark = pytest.mark.timeout(600)
ROUTES = """
[policy]
require_approval = "never"
[topics]
access = "public"
[webhooks]
allow_hosts = ["127.0.0.1"]
[limits]
push_bytes = 65536
[[pushes]]
from = "ci/ci.builds"
to = "turn"
conversation = "{/thread}"
say_in = ["topic:ops"]
[[pushes]]
from = "ci/ci"
to = "topic:ops"
[[pushes]]
from = "ci/ci.posts"
to = "webhooks"
[[pushes]]
from = "ci/ci.told"
to = "events"
[[pushes]]
from = "ci/ci.quiet"
to = "nothing"
"""
SETS = ("ci", "ci.builds", "ci.posts", "ci.told", "ci.quiet", "ci.lost", "other")


def model_at(url: str) -> str:
    return f"""
[[models]]
id = "m"
api = "openai"
model = "m"
url = "{url}/v1"
"""


def house(folder: Path, more: str = "", url: str = "") -> House:
    made = House(folder, f"{ROUTES}{model_at(url) if url else ''}{more}")
    sets = ", ".join(
        f'\\"{name}\\": {{\\"description\\": \\"x\\", \\"uses\\": [\\"pushEvents\\"]}}'
        for name in SETS
    )
    hooks = '\\"ci.hooks\\": {\\"description\\": \\"x\\", \\"uses\\": [\\"tools\\"]}'
    text = made.config.read_text("utf-8")
    found = text.replace("env = { ", f'env = {{ PUSHING_SETS = "{{{sets}, {hooks}}}", ')
    made.config.write_text(found, "utf-8")
    return made


@pytest.fixture
async def pusher(tmp_path: Path) -> AsyncGenerator[Pusher]:
    async with house(tmp_path).open() as pusher:
        yield pusher


@pytest.mark.requirement(
    *("MCPL-4.1-push", "MCPL-9.3-accepted", "MCPL-9.3-inferenceId", "MCPL-9.4-dedupe"),
)
async def test_a_push_is_answered_by_a_model_in_a_topic_and_once(tmp_path: Path) -> None:
    async with (
        serving(Said("The build is red.")) as models,
        house(tmp_path, url=models.url).open() as pusher,
        join(pusher.origin, "ops", options=Options(alias="ana")) as me,
    ):
        (first,) = await pusher.results("evt-1", origin={"thread": "t1"})
        assert first["accepted"] is True
        async with asyncio.timeout(here(60)):
            async for event in me:
                if "The build is red." in getattr(event, "text", ""):
                    break
        (again,) = await pusher.results("evt-1", origin={"thread": "t1"})
        assert again["accepted"] is False
        assert again["reason"].startswith("duplicate")
        assert again["inferenceId"] == first["inferenceId"]
        kept = await pusher.settled("evt-1")
        assert (kept["to"], kept["inference"]) == ("turn", first["inferenceId"])
        assert kept["conversation"] == "ci/t1"
        assert len(models.requests) == 1
        assert "said of evt-1" in str(models.requests[0].body)
        await pusher.noted("push_received")
        await pusher.noted("push_done")
        assert "said of evt-1" not in str(await pusher.journal())


@pytest.mark.requirement("MCPL-9.4-dedupe")
async def test_a_push_counts_once_across_restarts(tmp_path: Path) -> None:
    async with serving(Said("Well.")) as models:
        home = house(tmp_path, url=models.url)
        async with home.open() as pusher:
            (first,) = await pusher.results("evt-1")
            await pusher.settled("evt-1")
        async with home.open() as pusher:
            (again,) = await pusher.results("evt-1")
            assert (again["accepted"], again["inferenceId"]) == (False, first["inferenceId"])
            (other,) = await pusher.results("evt-2")
            assert other["accepted"] is True


async def test_a_push_is_said_in_a_topic_with_its_server_as_the_source(pusher: Pusher) -> None:
    async with join(pusher.origin, "ops", options=Options(alias="ana")) as me:
        heard: list[tuple[str, str]] = []
        all_heard = asyncio.Event()

        async def listen() -> None:
            async for event in me:
                if isinstance(event, Chat):
                    heard.append((event.sender, event.text))
                    if "evt-2" in event.text:
                        all_heard.set()

        listening = asyncio.create_task(listen())
        (said,) = await pusher.results("evt-1", featureSet="ci")
        assert said == {"accepted": True}
        await pusher.results("evt-1", "evt-2", featureSet="ci")
        async with asyncio.timeout(here(60)):
            await all_heard.wait()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        assert heard == [("server:ci", "said of evt-1"), ("server:ci", "said of evt-2")]


@pytest.mark.parametrize("feature", ["ci.posts", "ci.told"])
async def test_a_push_is_posted_to_who_subscribed(pusher: Pusher, feature: str) -> None:
    async with a_receiver() as receiver:
        client = Client(pusher.http, pusher.origin)
        await client.greet()
        assert "result" in await client.subscribe(receiver.url, "push.received")
        ids = [f"evt-{each}" for each in range(5)]
        await pusher.results(*ids, *ids, featureSet=feature)
        await receiver.until(lambda: len(receiver.taken) >= 5, here(60))
        told = [said["data"] for _, said in receiver.taken]
        assert sorted(each["event_id"] for each in told) == ids
        assert told[0]["content"][0]["text"].startswith("said of evt-")
        assert told[0]["server_id"] == "ci"


@pytest.mark.requirement("MCPL-9.3-accepted", "MCPL-9.3-reason")
async def test_what_nobody_routes_is_told_so_and_what_goes_nowhere_is_accepted(
    pusher: Pusher,
) -> None:
    (lost,) = await pusher.results("evt-1", featureSet="ci.lost")
    assert lost["accepted"] is False
    assert lost["reason"].startswith("no route")
    assert await pusher.results("evt-1", featureSet="ci.quiet") == [{"accepted": True}]
    assert [each["event"] for each in (await pusher.listed())["pushes"]] == ["evt-1"]


@pytest.mark.requirement("MCPL-9.3-accepted")
async def test_who_may_not_push_gets_an_error_and_not_an_answer(pusher: Pusher) -> None:
    """D-60"""
    for feature, code in (("other", -32001), ("ci.hooks", -32001), ("unknown", -32003)):
        (answer,) = await pusher.push("evt-1", featureSet=feature)
        assert answer["error"]["code"] == code
    assert (await pusher.listed())["pushes"] == []


@pytest.mark.requirement("MCPL-9.3-reason")
async def test_a_server_that_floods_is_held_back_and_harms_nobody(tmp_path: Path) -> None:
    home = house(tmp_path)
    text = home.config.read_text("utf-8")
    home.config.write_text(text.replace("push_bytes", "push_rate = 20\npush_bytes"), "utf-8")
    async with home.open() as pusher:
        answers: list[Answer] = []
        for some in range(10):
            ids = [f"evt-{some}-{each}" for each in range(40)]
            answers += await pusher.push(*ids, featureSet="ci.quiet")
        accepted = [each for each in answers if each.get("result", {}).get("accepted")]
        reasons = {str(each["result"].get("reason"))[:5] for each in answers if "result" in each}
        assert 20 <= len(accepted) <= 20 + here(60)
        assert reasons == {"None", "rate:"}
        assert len((await pusher.listed())["pushes"]) == len(accepted)
        assert 0 < len(await pusher.noted("push_refused")) < 370


def pushed(**changed: Any) -> Answer:
    params = {
        "featureSet": "ci.quiet",
        "eventId": "evt-1",
        "timestamp": "2026-07-28T12:00:00Z",
        "payload": {"content": [{"type": "text", "text": "x"}]},
        **changed,
    }
    return {"method": "push/event", "params": params}


def raw(grown: int = 0, **changed: Any) -> Answer:
    """As the server writes it, however wrong."""
    written = json.dumps(pushed(**changed)["params"]).replace("\\\\", "\\")
    return {"raw": written, "grown": grown}


@pytest.mark.requirement("MCPL-4.1-push")
async def test_hostile_pushes_are_refused_and_the_next_good_one_is_taken(pusher: Pusher) -> None:
    hostile: tuple[Answer, ...] = (
        pushed(eventId=""),
        pushed(eventId=7),
        pushed(eventId="a\0b"),
        raw(eventId="GROWN", grown=1_000_000),
        raw(eventId="GROWN", grown=3_000_000),
        pushed(timestamp="yesterday"),
        pushed(timestamp="0001-01-01T00:00:00+14:00"),
        pushed(origin=[]),
        pushed(payload={}),
        pushed(payload={"content": {"type": "film"}}),
        pushed(payload={"content": [{"type": "text", "text": "x" * 100_000}]}),
        pushed(payload={"content": [{"type": "text", "text": "x"}] * 1_000}),
        {"method": "push/event", "params": []},
        {"method": "push/event"},
    )
    for frame in hostile:
        (answer,) = await pusher.ask(frame)
        assert "error" in answer, str(frame)[:200]
        assert len(str(answer)) < 2_000
    assert (await pusher.listed())["pushes"] == []
    assert await pusher.ask(pushed()) == [{"result": {"accepted": True}}]


async def test_ten_megabytes_are_not_read_and_the_server_may_go_on(pusher: Pusher) -> None:
    """More than a frame may have."""
    asking = asyncio.create_task(pusher.ask(raw(eventId="GROWN", grown=10_000_000)))
    async with asyncio.timeout(here(90)):
        while True:
            try:
                answer = await pusher.results("evt-2", featureSet="ci.quiet")
                break
            except (AssertionError, KeyError):
                # Where the server was cut off for it, it is started again.
                await asyncio.sleep(0.1)
    assert answer == [{"accepted": True}]
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert [each["event"] for each in (await pusher.listed())["pushes"]] == ["evt-2"]


async def test_without_a_store_a_push_counts_once_while_the_gateway_runs(tmp_path: Path) -> None:
    quiet = '[[pushes]]\nfrom = "*/*"\nto = "nothing"\n'
    async with House(tmp_path, quiet, is_kept=False).open() as pusher:
        answers = await pusher.results("evt-1", "evt-1", "evt-2")
        assert sorted(each["accepted"] for each in answers) == [False, True, True]
