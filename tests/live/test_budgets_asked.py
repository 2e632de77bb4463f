"""A budget through the whole gateway: used up, refused with when it opens, raised by people."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from comity.surfaces.asked import Asked
from comity.wire.asks import Ask, Kind, State, Verdict
from comity.wire.audit import Type
from comity.wire.parties import LOCAL_OPERATOR
from tests.live.inference_scene import KEY, Asking, asking, request
from tests.live.model_server import Said
from tests.pace import here

COMITY = str(Path(sys.executable).with_name("comity"))
SAYS: dict[str, Any] = {"preferences": {"maxTokens": 100}}
REPLY = Said("x", usage=(10, 40), when="Hello")
PRICED = """
[[models]]
id = "fast"
api = "openai"
model = "fast-1"
url = "URL/v1"
key_env = "MODEL_KEY"
price_input = 1000
price_output = 2000
"""


@pytest.fixture(autouse=True)
def the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)


def budget(tokens: int = 0, *, asks: bool = False, **more: str) -> str:
    rows = {"party": '"server:*"', "on_exceeded": '"ask"' if asks else '"refuse"', **more}
    if tokens:
        rows["tokens_per_day"] = str(tokens)
    return "[[budgets]]\n" + "\n".join(f"{name} = {value}" for name, value in rows.items()) + "\n"


async def until_used_up(it: Asking, feature: str = "memory.consolidation") -> dict[str, Any]:
    """The refusal, after as many answers as there was room for."""
    while True:
        answer = await it.server.ask("inference/request", request(feature, **SAYS))
        if "error" in answer:
            return answer["error"]


async def spent(it: Asking) -> dict[str, Any]:
    room = it.scene.parts.rooms["models"]
    return cast("Any", dict(await room(Asked("GET", ("spent",), {}, {}, LOCAL_OPERATOR))))


async def until_asked(it: Asking, kind: Kind = Kind.BUDGET) -> Ask:
    asks = it.scene.parts.asking.approvals.asks
    async with asyncio.timeout(here(30)):
        while True:
            for ask in await asks.page([State.PENDING]):
                if ask.kind is kind:
                    return ask
            await asyncio.sleep(0.02)


@pytest.mark.requirement("MCPL-13.1-mitigate")
async def test_what_is_used_up_is_refused_until_the_next_day(tmp_path: Path) -> None:
    async with asking(tmp_path, REPLY, settings=budget(500)) as it:
        error = await until_used_up(it)
        assert error["code"] == -32603
        assert error["data"]["error_type"] == "budget_exceeded"
        assert 0 < error["data"]["retry_after_ms"] <= 24 * 3600 * 1000
        assert "opens again at" in error["message"]
        found = await spent(it)
        (account,) = found["budgets"]
        assert 300 < account["spent_tokens"] <= 500
        assert account["held_tokens"] == 0
        (by,) = found["spent"]
        assert (by["party"], by["feature"], by["model"]) == (
            *("server:memory", "memory.consolidation", "fast"),
        )
        assert by["input_tokens"] + by["output_tokens"] == account["spent_tokens"]
        assert by["requests"] == len(it.models.requests)
        (noted,) = it.noted(Type.BUDGET_EXCEEDED)
        assert noted["account"] == "server:*|*|server:memory"


@pytest.mark.requirement("MCPL-13.1-mitigate", "MCPL-2-hostcontrol")
async def test_money_counts_as_tokens_do(tmp_path: Path) -> None:
    # Ten tokens read and forty said cost nine cents.
    rows = PRICED + budget(money_per_day="1.0")
    async with asking(tmp_path, REPLY, rows=rows) as it:
        assert (await until_used_up(it))["data"]["error_type"] == "budget_exceeded"
        (account,) = (await spent(it))["budgets"]
        assert account["spent_money"] <= 1.0
        assert account["spent_money"] == pytest.approx(0.09 * len(it.models.requests))


async def test_a_budget_of_one_feature_set_leaves_the_others_alone(tmp_path: Path) -> None:
    settings = budget(300, feature='"memory.light"')
    async with asking(tmp_path, REPLY, settings=settings) as it:
        await until_used_up(it, "memory.light")
        for feature in ("memory.consolidation", "compliance.redaction"):
            await it.server.asked("inference/request", request(feature, **SAYS))


async def test_a_budget_of_nothing_is_a_prohibition(tmp_path: Path) -> None:
    async with asking(tmp_path, REPLY, settings=budget(asks=True, tokens_per_day="0")) as it:
        assert (await until_used_up(it))["data"]["error_type"] == "budget_exceeded"
        assert it.models.requests == []
        assert await it.scene.parts.asking.approvals.asks.page([State.PENDING]) == []


async def test_people_are_asked_and_whoever_waited_goes_on(tmp_path: Path) -> None:
    async with asking(tmp_path, REPLY, settings=budget(300, asks=True)) as it:
        asked = asyncio.gather(
            # Even one after the other they are too many for it.
            *(it.server.ask("inference/request", request(**SAYS)) for _ in range(8))
        )
        ask = await until_asked(it)
        assert "server:memory has used up today's budget" in ask.message
        assert ask.about["raise_tokens"] == 150
        approvals = it.scene.parts.asking.approvals
        served: list[dict[str, Any]] = []
        async with asyncio.timeout(here(60)):
            while not asked.done():
                for each in await approvals.asks.page([State.PENDING]):
                    await approvals.answer(LOCAL_OPERATOR, each.id, Verdict.ACCEPT)
                await asyncio.sleep(0.05)
            served = await asked
        assert [each for each in served if "error" in each] == []
        (account,) = (await spent(it))["budgets"]
        assert account["spent_tokens"] <= 300 + account["raised_tokens"]
        raised = it.noted(Type.BUDGET_RAISED)
        assert sum(int(str(each["tokens"])) for each in raised) == account["raised_tokens"]
        assert len(raised) * 150 == account["raised_tokens"]


async def test_people_who_say_no_are_not_asked_again_at_once(tmp_path: Path) -> None:
    async with asking(tmp_path, REPLY, settings=budget(150, asks=True)) as it:
        await it.server.asked("inference/request", request(**SAYS))
        refused = asyncio.ensure_future(it.server.ask("inference/request", request(**SAYS)))
        ask = await until_asked(it)
        approvals = it.scene.parts.asking.approvals
        await approvals.answer(LOCAL_OPERATOR, ask.id, Verdict.DECLINE)
        error = (await refused)["error"]
        assert error["data"]["error_type"] == "budget_exceeded"
        assert "more was declined" in error["message"]
        again = await it.server.ask("inference/request", request(**SAYS))
        assert "more was declined" in again["error"]["message"]
        assert await approvals.asks.page([State.PENDING]) == []
        assert len(it.models.requests) == 1


async def test_who_does_not_wait_for_an_answer_finds_it_later(tmp_path: Path) -> None:
    settings = budget(150, asks=True) + '[asks]\nhold = "100ms"\n'
    async with asking(tmp_path, REPLY, settings=settings) as it:
        await it.server.asked("inference/request", request(**SAYS))
        error = (await it.server.ask("inference/request", request(**SAYS)))["error"]
        ask = await until_asked(it)
        assert ask.id in error["message"]
        await it.scene.parts.asking.approvals.answer(LOCAL_OPERATOR, ask.id, Verdict.ACCEPT)
        await it.server.asked("inference/request", request(**SAYS))


async def test_what_fails_costs_nothing_and_what_was_heard_does(tmp_path: Path) -> None:
    cut = Said("one two three four five six", cut_after=2)
    async with asking(tmp_path, Said(status=400), cut, settings=budget(1_000)) as it:
        await it.server.ask("inference/request", request(**SAYS))
        (account,) = (await spent(it))["budgets"]
        assert (account["spent_tokens"], account["held_tokens"]) == (0, 0)
        await it.server.ask("inference/request", request(stream=True, **SAYS))
        (account,) = (await spent(it))["budgets"]
        assert 0 < account["spent_tokens"] < 100
        assert account["held_tokens"] == 0


async def run(*words: str) -> tuple[int, str]:
    program = await asyncio.create_subprocess_exec(
        COMITY, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(here(60)):
        said, _ = await program.communicate()
    return program.returncode or 0, said.decode()


async def test_a_person_sees_models_tries_one_and_sees_what_was_spent(tmp_path: Path) -> None:
    settings = budget(1_000) + budget(5_000, party='"person:*"')
    async with asking(tmp_path, REPLY, rows=PRICED, settings=settings) as it:
        at = ("--url", it.scene.origin)
        await it.server.asked("inference/request", request(**SAYS))
        status, listed = await run("models", *at)
        assert status == 0, listed
        assert "fast *" in listed
        assert "1000/2000" in listed
        status, tried = await run("models", "try", "fast", "Hello there", *at)
        assert status == 0, tried
        assert "10 tokens read, 40 said, 0.0900" in tried
        status, told = await run("models", "spent", "--json", *at)
        assert {each["party"] for each in json.loads(told)["spent"]} == {
            *("server:memory", LOCAL_OPERATOR.party),
        }
        status, table = await run("models", "spent", *at)
        assert "50 of 1,000" in table
        status, refused = await run("models", "try", "nobody", "Hello", *at)
        assert (status != 0, "there is no model" in refused) == (True, True)
        for output in (listed, tried, told, table, refused):
            assert KEY not in output


async def test_who_is_refused_again_and_again_does_not_fill_the_journal(tmp_path: Path) -> None:
    async with asking(tmp_path, REPLY, settings=budget(tokens_per_day="0")) as it:
        for _ in range(10):
            frames = [it.server.ask("inference/request", request(**SAYS)) for _ in range(30)]
            answers = await asyncio.gather(*frames)
            assert {each["error"]["data"]["error_type"] for each in answers} == {"budget_exceeded"}
        assert 0 < len(it.noted(Type.BUDGET_EXCEEDED)) < 150
