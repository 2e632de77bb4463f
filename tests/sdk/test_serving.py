"""Whoever addresses a participant is answered: once for each proposal, and never too much."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from comity.sdk.events import Payload, Request
from comity.sdk.serving import MOST_AT_ONCE, MOST_OF_ONE, Failure, Serving
from comity.wire import envelope as wire
from comity.wire.errors import INVALID_PARAMS, MalformedMessage, Unavailable
from tests.sdk.made import ANA, ME, PARAMS, request


class Behind:
    """What stands behind a participant; it does what it is told by the method."""

    def __init__(self) -> None:
        self.asked = 0
        self.go = asyncio.Event()

    async def answer(self, method: str, params: Payload) -> Payload | Failure:
        self.asked += 1
        match method:
            case "waits":
                await self.go.wait()
            case "refuses":
                raise MalformedMessage("not so", INVALID_PARAMS)
            case "breaks":
                raise RuntimeError("a secret")
            case "fails":
                return Failure(-32050, "no", {"why": "so"})
            case _:
                pass
        return {"done": method}


class Desk:
    """A participant that only answers."""

    def __init__(self, longest: timedelta = timedelta(seconds=20)) -> None:
        self.behind = Behind()
        self.said: list[tuple[Request, Mapping[str, object]]] = []
        self.news = asyncio.Event()
        self.serving = Serving(self.behind, self.respond, longest)
        self.problem: Exception | None = None

    async def respond(self, asked: Request, body: Mapping[str, object]) -> None:
        if self.problem is not None and "result" in body:
            raise self.problem
        self.said.append((asked, body))
        self.news.set()

    def ask(self, method: str, proposal: str = "", sender: str = ANA, rpc: int | None = 1) -> None:
        envelope = wire.decode(request(to=[ME], sender=sender))
        self.serving.take(Request(envelope, method, PARAMS, rpc), proposal)

    async def answers(self, count: int) -> list[Mapping[str, object]]:
        async with asyncio.timeout(20):
            while len(self.said) < count:
                self.news.clear()
                await self.news.wait()
        return [body for _, body in self.said]


def message(body: Mapping[str, Any]) -> str:
    return str(body["error"]["message"])


async def test_a_result_a_failure_and_an_error_are_answers() -> None:
    desk = Desk()
    for method in ("works", "fails", "refuses", "breaks"):
        desk.ask(method)
    works, fails, refuses, breaks = await desk.answers(4)
    assert works == {"result": {"done": "works"}}
    assert fails == {"error": {"code": -32050, "message": "no", "data": {"why": "so"}}}
    assert refuses == {"error": {"code": INVALID_PARAMS.code, "message": "not so"}}
    assert "secret" not in message(breaks)


async def test_a_notification_is_answered_by_nobody() -> None:
    desk = Desk()
    desk.ask("works", rpc=None)
    desk.ask("works")
    assert len(await desk.answers(1)) == desk.behind.asked == 1


async def test_one_proposal_is_done_once_whoever_fulfils_it() -> None:
    desk = Desk()
    desk.ask("works", "proposal-1")
    desk.ask("works", "proposal-1", "agent:other")
    desk.ask("works", "proposal-2")
    answers = await desk.answers(3)
    assert desk.behind.asked == 2
    refused = [body for body in answers if "error" in body]
    assert [message(body).startswith("this proposal was fulfilled before") for body in refused] == [
        True
    ]


async def test_too_much_at_once_is_refused_and_nobody_takes_all() -> None:
    desk = Desk()
    for _ in range(MOST_OF_ONE + 1):
        desk.ask("waits")
    (busy,) = await desk.answers(1)
    assert "too much" in message(busy)
    for number in range(MOST_AT_ONCE):
        desk.ask("waits", sender=f"agent:{number // MOST_OF_ONE}")
    desk.behind.go.set()
    answers = await desk.answers(MOST_OF_ONE + 1 + MOST_AT_ONCE)
    assert sum("result" in body for body in answers) <= MOST_AT_ONCE
    assert desk.behind.asked <= MOST_AT_ONCE


async def test_what_takes_too_long_is_told_so() -> None:
    desk = Desk(timedelta(milliseconds=20))
    desk.ask("waits")
    (late,) = await desk.answers(1)
    assert message(late) == "it was not done in time"


async def test_an_answer_that_cannot_be_sent_is_told_as_that() -> None:
    desk = Desk()
    desk.problem = MalformedMessage("the envelope is over 1048576 bytes")
    desk.ask("works")
    (told,) = await desk.answers(1)
    assert "cannot be sent: the envelope is over" in message(told)


@pytest.mark.parametrize("problem", [Unavailable("gone"), PermissionError("may not")])
async def test_an_answer_that_nobody_takes_breaks_nothing(problem: Exception) -> None:
    desk = Desk()
    desk.problem = problem
    desk.ask("works")
    desk.ask("fails")
    await desk.answers(1)


async def test_what_is_being_done_ends_with_the_membership() -> None:
    desk = Desk()
    desk.ask("waits")
    await asyncio.sleep(0)
    await desk.serving.close()
    assert desk.said == []
