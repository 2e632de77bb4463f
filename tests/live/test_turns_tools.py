"""A model uses tools: as its party may, within bounds, and of a thousand those that fit."""

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from comity.wire.asks import State, Verdict
from comity.wire.grants import CALL, Effect, Grant
from comity.wire.parties import LOCAL_OPERATOR, Actor, PartyKind
from tests.live.model_server import Asked as AskedModel
from tests.live.model_server import Said
from tests.live.turn_scene import Hook, Scene, playing
from tests.pace import here

HOST = "agent:host"


def granted(target: str, effect: Effect = Effect.ALLOW) -> Grant:
    return Grant(HOST, CALL, target, effect)


def use(name: str, arguments: Any = None, id: str = "u1") -> Mapping[str, Any]:
    return {"name": name, "arguments": arguments or {}, "id": id}


def offered(scene: Scene, number: int = -1) -> list[str]:
    tools: list[Any] = scene.models.requests[number].body.get("tools", [])
    return sorted(each["function"]["name"] for each in tools)


def results(scene: Scene, number: int = -1) -> list[str]:
    messages = scene.models.requests[number].body["messages"]
    return [json.dumps(each["content"]) for each in messages if each["role"] == "tool"]


def shed(**tools: Any) -> Hook:
    return Hook("shed", hooks={}, tools={"rake": "RAKED", "saw": "SAWN", **tools})


async def test_a_model_uses_what_its_party_may_and_sees_nothing_else(tmp_path: Path) -> None:
    replies = (
        Said("let me see", uses=(use("shed__rake"),)),
        Said(uses=(use("shed__saw", id="u2"),)),
        Said("all done"),
    )
    grants = (granted("shed/rake"),)
    async with playing(tmp_path, [shed()], *replies, turn_party=HOST, grants=grants) as scene:
        turn = await scene.turn("rake the leaves")
        assert offered(scene, 0) == ["shed__rake"]
        assert "RAKED" in results(scene, 1)[0]
        # What it was not offered it may not use either, whatever it makes up.
        assert "SAWN" not in results(scene)[1]
        assert turn["said"] == "let me see\n\nall done"
        assert turn["tools_used"] == 2
        assert [each["params"]["name"] for each in scene.heard("shed", "tools/call")] == ["rake"]
        executed = await _executed(scene)
        assert [(each["actor"], each["tool"]) for each in executed] == [(HOST, "rake")]


async def _executed(scene: Scene) -> list[dict[str, Any]]:
    await scene.parts.journaling.journal.flush()
    from_journal = await scene.noted_as("TOOL_EXECUTED")
    return [each for each in from_journal if each["server"] == "shed"]


async def test_what_comes_of_tools_is_in_the_next_turn_too(tmp_path: Path) -> None:
    replies = (Said(uses=(use("shed__rake"),)), Said("raked"), Said("as I said"))
    async with playing(tmp_path, [shed()], *replies) as scene:
        await scene.turn("rake", conversation="c")
        await scene.turn("and?", conversation="c")
        assert "RAKED" in results(scene)[0]


async def test_a_tool_that_needs_a_person_waits_and_then_is_told_to_be_pending(
    tmp_path: Path,
) -> None:
    replies = (Said(uses=(use("shed__rake"),)), Said("it waits for somebody"))
    grants = (granted("shed/rake", Effect.ASK),)
    async with playing(
        tmp_path,
        [shed()],
        *replies,
        turn_party=HOST,
        grants=grants,
        ask_hold=timedelta(milliseconds=300),
    ) as scene:
        turn = await scene.turn("rake")
        assert turn["state"] == "done"
        assert "approval" in results(scene)[0]
        assert scene.heard("shed", "tools/call") == []


async def test_a_tool_that_a_person_approves_meanwhile_is_used(tmp_path: Path) -> None:
    replies = (Said(uses=(use("shed__rake"),)), Said("raked"))
    grants = (granted("shed/rake", Effect.ASK),)
    async with playing(
        tmp_path, [shed()], *replies, turn_party=HOST, grants=grants, ask_hold=timedelta(minutes=5)
    ) as scene:
        id = await scene.begins("rake")
        approvals = scene.parts.asking.approvals
        async with asyncio.timeout(here(30)):
            while not (waiting := await approvals.asks.page([State.PENDING])):
                await asyncio.sleep(0.02)
        await approvals.answer(LOCAL_OPERATOR, waiting[0].id, Verdict.ACCEPT)
        assert (await scene.ends(id))["said"] == "raked"
        assert "RAKED" in results(scene)[0]


async def test_a_model_that_never_stops_using_tools_is_stopped(tmp_path: Path) -> None:
    def answer(asked: AskedModel) -> Said:
        if not asked.body.get("tools"):
            return Said("enough")
        return Said(uses=(use("shed__rake", id=f"u{len(asked.body['messages'])}"),))

    async with playing(tmp_path, [shed()], answer=answer, turn_steps=4) as scene:
        turn = await scene.turn("rake")
        assert turn["said"] == "enough"
        assert len(scene.models.requests) == 4
        assert turn["tools_used"] == 3


async def test_of_too_many_tools_at_once_a_few_are_used(tmp_path: Path) -> None:
    many = tuple(use("shed__rake", id=f"u{number}") for number in range(5))
    replies = (Said(uses=many), Said("done"))
    async with playing(tmp_path, [shed()], *replies, turn_tools=2) as scene:
        await scene.turn("rake")
        assert len(scene.heard("shed", "tools/call")) == 2
        assert len(results(scene)) == 5
        assert sum("RAKED" in each for each in results(scene)) == 2


async def test_broken_arguments_and_long_answers_are_told_as_that(tmp_path: Path) -> None:
    broken = {"name": "shed__rake", "arguments": "{not json", "id": "u1"}
    replies = (Said(uses=(broken,)), Said(uses=(use("shed__long"),)), Said("done"))
    hook = shed(long="x" * 100_000)
    async with playing(tmp_path, [hook], *replies, turn_result_length=2_000) as scene:
        await scene.turn("rake")
        assert "no JSON object" in results(scene, 1)[0]
        long = results(scene)[1]
        assert "left out" in long
        assert len(long) < 4_000


async def test_a_server_that_dies_of_a_tool_fails_the_tool_and_not_the_turn(tmp_path: Path) -> None:
    replies = (Said(uses=(use("shed__bomb"),)), Said("it is gone"))
    async with playing(tmp_path, [shed(bomb=[{"do": "exit"}])], *replies) as scene:
        turn = await scene.turn("rake")
        assert turn["said"] == "it is gone"


async def test_a_thousand_tools_fit_since_a_model_finds_those_it_needs(tmp_path: Path) -> None:
    tools = {f"tool_{number}": f"GAVE{number}" for number in range(1000)}
    replies = (
        Said(uses=(use("search_tools", {"query": "gives tool_777"}),)),
        Said(uses=(use("call_tool", {"name": "shed__tool_777", "arguments": {}}, "u2"),)),
        Said("found"),
        Said("again"),
    )
    async with playing(tmp_path, [Hook("shed", hooks={}, tools=tools)], *replies) as scene:
        turn = await scene.turn("use the right one", conversation="c")
        assert offered(scene, 0) == ["call_tool", "search_tools"]
        assert "tool_777" in results(scene, 1)[0]
        assert "GAVE777" in results(scene, 2)[1]
        assert turn["said"] == "found"
        assert len(json.dumps(scene.models.requests[0].body)) < 20_000
        # What was of use stays at hand.
        await scene.turn("once more", conversation="c")
        assert "shed__tool_777" in offered(scene)


async def test_who_may_say_something_is_a_grant_for_its_conversations(tmp_path: Path) -> None:
    ana = Actor("person:ana", PartyKind.PERSON, "key:1")
    bob = Actor("person:bob", PartyKind.PERSON, "key:2")
    grants = (Grant("person:ana", "turn/take", "conversations/garden", Effect.ALLOW),)
    async with playing(tmp_path, [], grants=grants) as scene:
        body = {"text": "hello", "conversation": "garden"}
        begun = await scene.asks("POST", actor=ana, body=body)
        await scene.ends(begun["id"])
        assert (await scene.asks("GET", begun["id"], actor=ana))["said"] == "from the model"
        assert len((await scene.asks("GET", actor=ana))["turns"]) == 1
        assert (await scene.asks("GET", actor=bob))["turns"] == []
        assert len((await scene.asks("GET"))["turns"]) == 1
        for actor, said in (
            (bob, body),
            (ana, {**body, "conversation": "office"}),
            (ana, {**body, "say_in": ["topic:everybody"]}),
        ):
            assert await scene.refused("POST", actor=actor, body=said) == "access_denied"
        assert await scene.refused("GET", begun["id"], actor=bob) == "nothing_here"
        assert await scene.refused("GET", "inf_none") == "nothing_here"
        for wrong in ({"text": 7}, {"text": "x", "conversation": 7}, {"text": "x", "say_in": "y"}):
            assert await scene.refused("POST", body=wrong) == "invalid_params"
