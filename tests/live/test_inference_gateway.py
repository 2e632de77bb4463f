"""Models for live servers through a whole gateway: in each era, by sampling, within budgets."""

import asyncio
import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from comity.approvals.model import ApprovalDecision, ApprovalKind, ApprovalRequest, ApprovalState
from comity.audit.events import AuditType
from comity.mcp.actors import LOCAL_OPERATOR
from tests.conformance.conftest import standing
from tests.conformance.questioned import answer, asks, calling, until_asked, until_state
from tests.conformance.ways import Frame as Message
from tests.conformance.ways import House, on_pipes, on_port
from tests.interop.hand_client import SECONDS, Exchange
from tests.interop.processes import http_server
from tests.live.end_to_end import Models, models
from tests.live.inference_scene import KEY, Asking, asking, request
from tests.live.model_speech import Said
from tests.live.talker_scene import WAYS, Composed, Frame, Scene, name_of, talking
from tests.pace import here

pytestmark = pytest.mark.integration
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
        answer_api = it.scene.parts.api.answer
        begun = await answer_api("POST", "/api/turns", {"text": "hello"}, LOCAL_OPERATOR)
        path = f"/api/turns/{begun['id']}"
        async with asyncio.timeout(here(60)):
            while not answers:
                await asyncio.sleep(0.01)
            answer = await answers[0]
            turn = await answer_api("GET", path, {"wait": "20"}, LOCAL_OPERATOR)
            while not turn["is_over"]:
                turn = await answer_api("GET", path, {"wait": "20"}, LOCAL_OPERATOR)
        assert turn["reply"] == "Well."
        if is_refused:
            assert answer["error"]["code"] == -32600
            assert answer["error"]["data"]["error_type"] == "hook_loop"
        else:
            assert answer["result"]["content"] == "Aside."


SAMPLING_WISH: Message = {
    "messages": [
        {"role": "user", "content": {"type": "text", "text": "Summarise these logs."}},
    ],
    "systemPrompt": "Be brief.",
    "maxTokens": 200,
    "stopSequences": ["END"],
    "modelPreferences": {"hints": [{"name": "large-model"}], "costPriority": 0.8},
}
SAMPLING_SETTINGS = """
[approvals]
request_ttl = "60s"
[inference]
sampling = "SAMPLING"
[[models]]
id = "fast"
api = "openai"
url = "URL/v1"
model = "fast-1"
"""
ANSWER: Message = {
    "role": "assistant",
    "content": {"type": "text", "text": "The pool was exhausted."},
    "model": "fast-1",
    "stopReason": "endTurn",
}
REPLY: Message = {"text": "The pool was exhausted.", "when": "logs"}


@contextmanager
def gateway(folder: Path, sampling: str) -> Generator[tuple[House, Models]]:
    """A whole gateway before a server on pipes and one over HTTP, and a model."""
    with models(REPLY) as model, http_server(on_port("questioner"), {}) as far:
        servers = {
            "near": on_pipes("questioner", EXTENSIONS="[]"),
            "far": {"type": "http", "url": f"{far}/mcp"},
        }
        text = SAMPLING_SETTINGS.replace("SAMPLING", sampling).replace("URL", model.url)
        with standing(folder, servers, text) as house:
            yield house, model


@pytest.fixture(scope="module")
def asking_client(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[House, Models]]:
    with gateway(tmp_path_factory.mktemp("sampled"), "ask") as found:
        yield found


def heard(exchange: Exchange) -> Message:
    """What the server was answered."""
    return exchange.result["structuredContent"]["answer"]


@pytest.mark.parametrize("server", ["near", "far"])
async def test_a_person_lets_the_gateway_answer_for_a_client_without_a_model(
    asking_client: tuple[House, Models], server: str
) -> None:
    house, model = asking_client
    before = len(model.asked())
    async with house.among_all(server).talk({}) as talk:
        calls = calling(talk, "sample", params=SAMPLING_WISH)
        (ask,) = await until_asked(house, "sampling")
        assert f"Server {server} wants to ask a model" in ask["summary"]
        assert "Summarise these logs." in json.dumps(ask)
        assert len(model.asked()) == before
        status, _ = await answer(house, ask["id"], "accept")
        assert status == 200
        assert heard(await calls) == {"result": ANSWER}
    asked = model.asked()[-1]
    assert asked["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Summarise these logs."},
    ]
    assert (asked["max_tokens"], asked["stop"]) == (200, ["END"])
    assert (await until_state(house, ask["id"], "consumed"))["state"] == "consumed"


async def test_a_person_who_says_no_is_heard(asking_client: tuple[House, Models]) -> None:
    house, model = asking_client
    before = len(model.asked())
    async with house.among_all("near").talk({}) as talk:
        calls = calling(talk, "sample", params=SAMPLING_WISH)
        (ask,) = await until_asked(house, "sampling")
        await answer(house, ask["id"], "decline", reason="not these logs")
        error = heard(await calls)["error"]
    assert error["code"] == -32600
    assert "not these logs" in error["message"]
    assert len(model.asked()) == before


async def test_who_hangs_up_leaves_no_question_behind(asking_client: tuple[House, Models]) -> None:
    house, model = asking_client
    before = len(model.asked())
    async with house.among_all("near").talk({}) as talk:
        calls = calling(talk, "sample", params=SAMPLING_WISH)
        (ask,) = await until_asked(house, "sampling")
        calls.cancel()
        await asyncio.gather(calls, return_exceptions=True)
    assert (await until_state(house, ask["id"], "withdrawn"))["state"] == "withdrawn"
    assert len(model.asked()) == before


async def test_a_client_that_has_a_model_is_asked_itself(
    asking_client: tuple[House, Models],
) -> None:
    house, model = asking_client
    before = len(model.asked())
    own: Message = {**ANSWER, "model": "its-own"}
    async with house.among_all("near").talk({"sampling": {}}) as talk:
        talk.client.answer = lambda frame: {"result": own}
        exchange = await talk.call("sample", {"params": SAMPLING_WISH})
    assert heard(exchange)["result"]["model"] == "its-own"
    assert await asks(house) == []
    assert len(model.asked()) == before


WRONG: list[Message] = [
    {"messages": []},
    {"messages": [{"role": "user", "content": {"type": "tool_use", "id": "1"}}]},
    {"maxTokens": -1},
    {"maxTokens": "x"},
    {"tools": [{"name": "x", "inputSchema": {}}]},
    {"stopSequences": ["x"] * 100},
]


@pytest.mark.parametrize("wrong", WRONG)
async def test_what_cannot_be_sampled_is_asked_of_nobody(
    asking_client: tuple[House, Models], wrong: Message
) -> None:
    house, model = asking_client
    before = len(model.asked())
    async with house.among_all("near").talk({}) as talk:
        exchange = await talk.call("sample", {"params": {**SAMPLING_WISH, **wrong}})
    assert heard(exchange)["error"]["code"] == -32602
    assert await asks(house) == []
    assert len(model.asked()) == before


@pytest.mark.parametrize(("choice", "asked"), [("allow", 1), ("deny", 0)])
async def test_an_operator_may_decide_for_all_times(
    tmp_path: Path, choice: str, asked: int
) -> None:
    with gateway(tmp_path, choice) as (house, model):
        async with house.among_all("near").talk({}) as talk:
            async with asyncio.timeout(SECONDS):
                said = heard(await talk.call("sample", {"params": SAMPLING_WISH}))
        assert said.get("result") == (ANSWER if asked else None)
        assert len(model.asked()) == asked
        assert await asks(house) == []


COMITY = str(Path(sys.executable).with_name("comity"))
SAYS: dict[str, Any] = {"preferences": {"maxTokens": 100}}
PRICED_REPLY = Said("x", usage=(10, 40), when="Hello")
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
    rows = {"principal": '"server:*"', "on_exceeded": '"ask"' if asks else '"refuse"', **more}
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
    answered = it.scene.parts.api.answer("GET", "/api/models/usage", {}, LOCAL_OPERATOR)
    return cast("Any", dict(await answered))


async def until_person_is_asked(
    it: Asking, kind: ApprovalKind = ApprovalKind.BUDGET
) -> ApprovalRequest:
    asks = it.scene.parts.approval_components.approvals.store
    async with asyncio.timeout(here(30)):
        while True:
            for ask in await asks.page([ApprovalState.PENDING]):
                if ask.kind is kind:
                    return ask
            await asyncio.sleep(0.02)


@pytest.mark.requirement("MCPL-13.1-mitigate")
async def test_what_is_used_up_is_refused_until_the_next_day(tmp_path: Path) -> None:
    async with asking(tmp_path, PRICED_REPLY, settings=budget(500)) as it:
        error = await until_used_up(it)
        assert error["code"] == -32603
        assert error["data"]["error_type"] == "budget_exceeded"
        assert 0 < error["data"]["retry_after_ms"] <= 24 * 3600 * 1000
        assert "resets at" in error["message"]
        found = await spent(it)
        (account,) = found["budgets"]
        assert 300 < account["spent_tokens"] <= 500
        assert account["held_tokens"] == 0
        (by,) = found["usage"]
        assert (by["principal"], by["feature"], by["model"]) == (
            *("server:memory", "memory.consolidation", "fast"),
        )
        assert by["input_tokens"] + by["output_tokens"] == account["spent_tokens"]
        assert by["requests"] == len(it.models.requests)
        (noted,) = it.noted(AuditType.BUDGET_EXCEEDED)
        assert noted["account"] == "server:*|*|server:memory"


@pytest.mark.requirement("MCPL-13.1-mitigate", "MCPL-2-hostcontrol")
async def test_money_counts_as_tokens_do(tmp_path: Path) -> None:
    # Ten tokens read and forty said cost nine cents.
    rows = PRICED + budget(money_per_day="1.0")
    async with asking(tmp_path, PRICED_REPLY, rows=rows) as it:
        assert (await until_used_up(it))["data"]["error_type"] == "budget_exceeded"
        (account,) = (await spent(it))["budgets"]
        assert account["spent_money"] <= 1.0
        assert account["spent_money"] == pytest.approx(0.09 * len(it.models.requests))


async def test_a_budget_of_one_feature_set_leaves_the_others_alone(tmp_path: Path) -> None:
    settings = budget(300, feature='"memory.light"')
    async with asking(tmp_path, PRICED_REPLY, settings=settings) as it:
        await until_used_up(it, "memory.light")
        for feature in ("memory.consolidation", "compliance.redaction"):
            await it.server.asked("inference/request", request(feature, **SAYS))


async def test_a_budget_of_nothing_is_a_prohibition(tmp_path: Path) -> None:
    async with asking(tmp_path, PRICED_REPLY, settings=budget(asks=True, tokens_per_day="0")) as it:
        assert (await until_used_up(it))["data"]["error_type"] == "budget_exceeded"
        assert it.models.requests == []
        assert (
            await it.scene.parts.approval_components.approvals.store.page([ApprovalState.PENDING])
            == []
        )


async def test_people_are_asked_and_whoever_waited_goes_on(tmp_path: Path) -> None:
    async with asking(tmp_path, PRICED_REPLY, settings=budget(300, asks=True)) as it:
        asked = asyncio.gather(
            # Even one after the other they are too many for it.
            *(it.server.ask("inference/request", request(**SAYS)) for _ in range(8))
        )
        ask = await until_person_is_asked(it)
        assert "server:memory has used up today's budget" in ask.message
        assert ask.about["raise_tokens"] == 150
        approvals = it.scene.parts.approval_components.approvals
        served: list[dict[str, Any]] = []
        async with asyncio.timeout(here(60)):
            while not asked.done():
                for each in await approvals.store.page([ApprovalState.PENDING]):
                    await approvals.answer(LOCAL_OPERATOR, each.id, ApprovalDecision.ACCEPT)
                await asyncio.sleep(0.05)
            served = await asked
        assert [each for each in served if "error" in each] == []
        (account,) = (await spent(it))["budgets"]
        assert account["spent_tokens"] <= 300 + account["raised_tokens"]
        raised = it.noted(AuditType.BUDGET_RAISED)
        assert sum(int(str(each["tokens"])) for each in raised) == account["raised_tokens"]
        assert len(raised) * 150 == account["raised_tokens"]


async def test_people_who_say_no_are_not_asked_again_at_once(tmp_path: Path) -> None:
    async with asking(tmp_path, PRICED_REPLY, settings=budget(150, asks=True)) as it:
        await it.server.asked("inference/request", request(**SAYS))
        refused = asyncio.ensure_future(it.server.ask("inference/request", request(**SAYS)))
        ask = await until_person_is_asked(it)
        approvals = it.scene.parts.approval_components.approvals
        await approvals.answer(LOCAL_OPERATOR, ask.id, ApprovalDecision.DECLINE)
        error = (await refused)["error"]
        assert error["data"]["error_type"] == "budget_exceeded"
        assert "more was declined" in error["message"]
        again = await it.server.ask("inference/request", request(**SAYS))
        assert "more was declined" in again["error"]["message"]
        assert await approvals.store.page([ApprovalState.PENDING]) == []
        assert len(it.models.requests) == 1


async def test_who_does_not_wait_for_an_answer_finds_it_later(tmp_path: Path) -> None:
    settings = budget(150, asks=True) + '[approvals]\nclient_wait = "100ms"\n'
    async with asking(tmp_path, PRICED_REPLY, settings=settings) as it:
        await it.server.asked("inference/request", request(**SAYS))
        error = (await it.server.ask("inference/request", request(**SAYS)))["error"]
        ask = await until_person_is_asked(it)
        assert ask.id in error["message"]
        await it.scene.parts.approval_components.approvals.answer(
            LOCAL_OPERATOR, ask.id, ApprovalDecision.ACCEPT
        )
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
    settings = budget(1_000) + budget(5_000, principal='"person:*"')
    async with asking(tmp_path, PRICED_REPLY, rows=PRICED, settings=settings) as it:
        at = ("--url", it.scene.origin)
        await it.server.asked("inference/request", request(**SAYS))
        status, listed = await run("models", *at)
        assert status == 0, listed
        assert "fast *" in listed
        assert "1000/2000" in listed
        status, tried = await run("models", "test", "fast", "Hello there", *at)
        assert status == 0, tried
        assert "10 tokens in, 40 out, 0.0900" in tried
        status, told = await run("models", "usage", "-o", "json", *at)
        assert {each["principal"] for each in json.loads(told)["usage"]} == {
            *("server:memory", LOCAL_OPERATOR.party),
        }
        status, table = await run("models", "usage", *at)
        assert "50 of 1,000" in table
        status, refused = await run("models", "test", "nobody", "Hello", *at)
        assert (status != 0, "there is no model" in refused) == (True, True)
        for output in (listed, tried, told, table, refused):
            assert KEY not in output


async def test_who_is_refused_again_and_again_does_not_fill_the_journal(tmp_path: Path) -> None:
    async with asking(tmp_path, PRICED_REPLY, settings=budget(tokens_per_day="0")) as it:
        for _ in range(10):
            frames = [it.server.ask("inference/request", request(**SAYS)) for _ in range(30)]
            answers = await asyncio.gather(*frames)
            assert {each["error"]["data"]["error_type"] for each in answers} == {"budget_exceeded"}
        assert 0 < len(it.noted(AuditType.BUDGET_EXCEEDED)) < 150
