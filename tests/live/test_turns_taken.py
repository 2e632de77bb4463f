"""Turns as those see them who began them: one after the other, once, in time, word by word."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.live.model_server import Said
from tests.live.turn_scene import TELLING, Hook, playing, rewrites
from tests.pace import here

GRANTED = {"rewrites": True}


async def test_turns_of_a_conversation_are_taken_one_by_one_and_others_beside(
    tmp_path: Path,
) -> None:
    async with playing(tmp_path, [], Said("slow", hold=True, when="first"), Said("quick")) as scene:
        first = await scene.begins("first", conversation="a")
        async with asyncio.timeout(here(30)):
            await scene.models.came.wait()
        second = await scene.begins("second", conversation="a")
        assert (await scene.turn("beside", conversation="b"))["state"] == "done"
        assert (await scene.asks("GET", second))["state"] == "waiting"
        scene.models.release()
        assert (await scene.ends(first))["said"] == "slow"
        assert (await scene.ends(second))["turn"] == 1


async def test_a_cause_has_one_turn(tmp_path: Path) -> None:
    async with playing(tmp_path, []) as scene:
        begun = [
            await scene.asks("POST", body={"text": "hello", "key": "k", "conversation": each})
            for each in ("a", "a", "b")
        ]
        assert len({each["id"] for each in begun}) == 1
        assert [each["is_new"] for each in begun] == [True, False, False]
        await scene.ends(begun[0]["id"])
        assert len(scene.models.requests) == 1


async def test_a_model_that_is_away_fails_the_turn_and_the_next_one_follows(
    tmp_path: Path,
) -> None:
    replies = (Said(status=400, body='{"error": {"message": "no"}}'), Said("well"))
    async with playing(tmp_path, [], *replies, turn_attempts=1) as scene:
        first = await scene.turn("hello", conversation="c")
        assert first["state"] == "failed"
        assert first["error"]
        second = await scene.turn("hello", conversation="c")
        assert (second["said"], second["turn"]) == ("well", 1)


async def test_without_a_model_a_turn_fails_and_says_so(tmp_path: Path) -> None:
    async with playing(tmp_path, [], models=()) as scene:
        turn = await scene.turn("hello")
        assert turn["state"] == "failed"
        assert turn["error"]


async def test_a_turn_that_takes_too_long_has_failed(tmp_path: Path) -> None:
    brief = timedelta(seconds=1)
    async with playing(tmp_path, [], Said("slow", hold=True), turn_deadline=brief) as scene:
        turn = await scene.turn("hello")
        assert (turn["state"], turn["error"]) == ("failed", "the turn took too long")


async def test_words_are_shown_while_they_come_unless_somebody_looks_at_them_first(
    tmp_path: Path,
) -> None:
    text = " ".join(f"word{number}" for number in range(100))
    pieces = tuple(f"{each} " for each in text.split(" "))
    slow = Said(text, pieces=pieces, hold_after=60)
    async with playing(tmp_path, [], slow) as scene:
        id = await scene.begins("hello")
        shown = ""
        async with asyncio.timeout(here(30)):
            while not shown:
                shown += (await scene.asks("GET", id, after=len(shown), wait=1))["words"]
        assert (await scene.asks("GET", id))["state"] == "waiting"
        scene.models.release()
        turn = await scene.ends(id)
        assert turn["said"].startswith(shown)
        rest = (await scene.asks("GET", id, after=len(shown)))["words"]
        assert shown + rest == turn["said"]
    hook = Hook("asked", after=(rewrites("other words"),), live=GRANTED)
    async with playing(tmp_path, [hook], slow) as scene:
        id = await scene.begins("hello")
        async with asyncio.timeout(here(30)):
            await scene.models.came.wait()
        assert (await scene.asks("GET", id, wait=1))["words"] == ""
        scene.models.release()
        await scene.ends(id)
        assert (await scene.asks("GET", id))["words"] == "other words"


async def test_a_server_that_only_listens_holds_up_nobody(tmp_path: Path) -> None:
    never: Any = ({"do": "sleep", "seconds": 3600},)
    async with playing(tmp_path, [Hook("told", after=never, hooks=TELLING)]) as scene:
        assert (await scene.turn("hello"))["state"] == "done"
