"""How hosts are reached, and the seams of the SDK that the kit stands on."""

import asyncio
from typing import Any

import pytest

from comity.sdk.harness import Failed, Harness
from comity.sdk.harness_line import Era
from comity.sdk.live_hosts import Heard
from comity.sdk.server import Feature, Lost, Refused, Server
from comity.wire.errors import INVALID_REQUEST, MalformedMessage
from tests.pace import here

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])


def pushing() -> tuple[Server, Feature]:
    server = Server("memory")
    uses = ["pushEvents", "inferenceRequest"]
    return server, server.feature("memory.proactive", "Reminds when it is time", uses=uses)


@ERAS
async def test_a_request_of_the_server_keeps_the_id_that_it_was_given(era: Era) -> None:
    """A chunk names its request by it: under an id of the SDK's no piece would find its way."""
    server, proactive = pushing()
    async with Harness(server, ["memory.*"], era=era) as host:
        await proactive.enabled()
        await asyncio.gather(*(proactive.push(f"evt-{n}", "Hi") for n in range(3)))
        ids = [each["id"] for each in host.line.said]
    assert len(set(ids)) == 3
    assert all(isinstance(id, str) and id.startswith("live-") and len(id) > 20 for id in ids)


@ERAS
async def test_methods_and_notices_that_the_sdk_does_not_know_reach_the_kit(era: Era) -> None:
    server, proactive = pushing()
    async with Harness(server, era=era) as host:
        await host.tell("featureSets/update", {"enabled": ["memory.*"]})
        await asyncio.wait_for(proactive.enabled(), here(30))
        with pytest.raises(Failed) as unknown:
            await host.request("context/duringInference", {})
    assert unknown.value.code == -32601


async def test_every_host_hears_of_an_event_and_one_is_asked_for_a_model() -> None:
    server, proactive = pushing()
    async with Harness(server, ["memory.*"]) as first, Harness(server, ["memory.*"]) as second:
        for host in (first, second):
            host.models.say("Yes")
            await host.tools()
        await proactive.enabled()
        assert (await proactive.push("evt-1", "Hi")).accepted
        assert (await proactive.infer("Hm?")).text == "Yes"
        assert [len(host.pushes) for host in (first, second)] == [1, 1]
        assert [len(host.models.asked) for host in (first, second)] == [0, 1]
        await second.disable("memory.proactive")
        await second.tools()
        assert (await proactive.push("evt-2", "Hi")).accepted
        assert (await proactive.infer("Hm?")).text == "Yes"
        assert [len(host.pushes) for host in (first, second)] == [2, 1]


@ERAS
async def test_a_host_that_has_gone_is_asked_nothing(era: Era) -> None:
    server, proactive = pushing()
    async with Harness(server, ["memory.*"]):
        async with Harness(server, ["memory.*"], era=era) as host:
            await host.tools()
        assert (await proactive.push("evt-1", "Hi")).accepted
    assert not (await proactive.push("evt-2", "Hi")).accepted


async def test_a_request_that_meets_a_hook_on_its_way_is_asked_again() -> None:
    server, proactive = pushing()
    async with Harness(server, ["memory.*"]) as host:
        await proactive.enabled()
        host.models.say("At last")
        answer, tries = host.line.answer, list[str]()

        async def hooked(method: str, params: Any, id: Any) -> Any:
            tries.append(method)
            if len(tries) < 3:
                raise MalformedMessage("hook_loop: a hook is pending", INVALID_REQUEST)
            return await answer(method, params, id)

        host.line.answer = hooked
        assert (await proactive.infer("Hm?")).text == "At last"
        tries.clear()

        async def never(method: str, params: Any, id: Any) -> Any:
            tries.append(method)
            raise MalformedMessage("no", INVALID_REQUEST)

        host.line.answer = never
        with pytest.raises(Refused):
            await proactive.infer("Hm?")
        assert len(tries) == 1


@pytest.mark.parametrize(
    "params", [{}, {"id": 1}, {"id": None}, {"id": "live-guessed", "result": {}}, {"id": ["x"]}]
)
async def test_nobody_answers_what_was_not_asked(params: Any) -> None:
    server, _ = pushing()
    async with Harness(server, ["memory.*"], era="modern") as host:
        with pytest.raises(Failed) as refused:
            await host.request("mcpl/respond", params)
    assert refused.value.code == -32602


async def test_the_way_back_is_of_the_modern_era_alone() -> None:
    server, _ = pushing()
    async with Harness(server, ["memory.*"]) as host:
        for method in ("mcpl/listen", "mcpl/respond"):
            with pytest.raises(Failed) as refused:
                await host.request(method, {})
            assert refused.value.code == -32601


async def test_an_answer_may_be_an_error_of_any_make() -> None:
    class Session:
        async def send_notification(self, note: Any, id: Any) -> None:
            asked.append(note.params["id"])

    class Asked:
        session, request_id = Session(), 1

    asked: list[str] = []
    way = Heard(Asked())  # type: ignore[arg-type]  # as much of it as is used
    answers: list[Any] = [
        {"error": {"code": -32001, "message": "no", "data": {"a": 1}}},
        {"error": {"code": "x"}},
        {"result": [1]},
        {},
    ]
    for answer in answers:
        waiting = asyncio.ensure_future(way.ask("push/event", {}, f"live-{len(asked)}", here(10)))
        await asyncio.sleep(0)
        assert way.answered({"id": asked[-1], **answer})
        assert not way.answered({"id": asked[-1], **answer})
        if "error" in answer:
            with pytest.raises(Refused):
                await waiting
        else:
            assert await waiting == {}
    waiting = asyncio.ensure_future(way.ask("push/event", {}, "live-last", here(10)))
    await asyncio.sleep(0)
    way.end()
    with pytest.raises(Lost):
        await waiting
    with pytest.raises(Lost):
        await way.ask("push/event", {}, "live-late", 0.01)
