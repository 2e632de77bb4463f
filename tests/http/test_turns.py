"""In each round of the loop one request of each principal begins; nobody waits for another's."""

import asyncio
from typing import Any

from comity.app.authentication import HttpAuthenticator
from comity.app.http import HttpApp
from comity.errors import SESSION_UNKNOWN, MalformedMessage
from comity.http.asgi import ACTOR, HostOriginCheck, Receive, Scope, Send, read_body, send_json
from comity.http.fast_path import Continuation, FastPathRequest, RequestHead
from comity.http.request_turns import FairRequestQueue
from comity.identity.authentication import Authenticator
from comity.mcp.actors import Actor
from comity.policy.snapshot import AllowAll
from tests.support.credentials import GivenOut

ROUNDS = 200


async def rounds(count: int = 1) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_first_request_of_each_principal_begins_at_once() -> None:
    turns = FairRequestQueue()
    assert turns.begins("agent:a")
    assert turns.begins("agent:b")
    assert not turns.begins("agent:a")
    await rounds()
    assert turns.begins("agent:a")


async def test_each_round_begins_one_request_of_each_principal() -> None:
    turns, begun = FairRequestQueue(), list[str]()
    for principal in ("a", "b"):
        turns.begins(principal)
    for number in range(3):
        turns.queue("a", lambda n=number: begun.append(f"a{n}"))
    turns.queue("b", lambda: begun.append("b0"))
    await rounds()
    assert begun == ["a0", "b0"]
    # Whoever waits is before whoever comes.
    assert not turns.begins("a")
    await rounds()
    assert begun == ["a0", "b0", "a1"]
    await rounds(2)
    assert (begun[-1], len(turns)) == ("a2", 0)


async def test_a_wait_ends_with_its_turn_and_one_that_was_given_up_holds_up_nobody() -> None:
    turns = FairRequestQueue()
    await turns.turn("a")
    waiting = [asyncio.ensure_future(turns.turn("a")) for _ in range(3)]
    await rounds()
    waiting[1].cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting, return_exceptions=True)
    assert len(turns) == 0


async def test_a_request_that_fails_holds_up_no_other() -> None:
    turns, begun = FairRequestQueue(), list[str]()
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: failures.append(told))

    def fail() -> None:
        raise ValueError("a bug")

    turns.begins("a")
    turns.queue("a", fail)
    turns.queue("a", lambda: begun.append("a"))
    await rounds(5)
    assert begun == ["a"]
    assert len(failures) == 1


class Lane:
    """The connection under a request of these tests."""

    def __init__(self) -> None:
        self.data = b""
        self.went_on: Continuation | None = None

    @property
    def address(self) -> str:
        return "192.0.2.7"

    def written(self, request: FastPathRequest, data: bytes) -> None:
        self.data = data

    def continued(self, request: FastPathRequest, continuation: Continuation) -> None:
        self.went_on = continuation


class CallDoor:
    """Takes calls in the express lane, and tells in which order; what is odd it leaves."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def serve(self, request: FastPathRequest, actor: Actor) -> bool:
        self.begun.append(actor.party)
        if request.body == b"odd":
            raise MalformedMessage("no such session", SESSION_UNKNOWN)
        if request.body == b"left":
            return False
        request.answer(200, b"{}")
        return True

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        body = await read_body(receive, headers, 100)
        await send_json(send, 200, body + b" of " + scope[ACTOR].party.encode())


class House:
    """A gateway that asks who comes, before one door."""

    def __init__(self) -> None:
        self.given_out = GivenOut()
        self.door = CallDoor()
        reception = HttpAuthenticator(Authenticator(self.given_out.register), AllowAll())
        self.gateway = HttpApp(HostOriginCheck(), {"/mcp": self.door}, None, reception)

    def send(self, key: str, body: bytes = b"") -> tuple[FastPathRequest, Lane]:
        shown = [(b"host", b"localhost"), (b"authorization", b"Bearer " + key.encode())]
        lane = Lane()
        request = FastPathRequest(lane, RequestHead(b"/mcp", dict(shown), shown, True), body)
        assert self.gateway.serve(request)
        return request, lane


async def test_a_flood_of_one_principal_is_not_before_the_call_of_another() -> None:
    house = House()
    hostile, good = house.given_out.give("agent:hostile"), house.given_out.give("agent:good")
    flood = [house.send(hostile)[1] for _ in range(100)]
    _, lane = house.send(good)
    assert house.door.begun == ["agent:hostile", "agent:good"]
    assert lane.data
    await rounds(10)
    house.send(good)
    assert house.door.begun.count("agent:hostile") <= 12
    await rounds(ROUNDS)
    assert all(each.data for each in flood)
    assert house.door.begun.count("agent:hostile") == 100


async def test_a_client_that_leaves_before_its_turn_has_no_turn() -> None:
    house = House()
    key = house.given_out.give("agent:a")
    house.send(key)
    request, lane = house.send(key)
    request.lose()
    await rounds(3)
    assert house.door.begun == ["agent:a"]
    assert lane.data == b""


async def test_what_is_left_to_others_after_its_turn_is_served_as_any_other() -> None:
    house = House()
    key = house.given_out.give("agent:a")
    for body in (b"left", b"odd"):
        house.send(key)
        _, lane = house.send(key, body)
        await rounds(3)
        assert lane.went_on is not None
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any], said: list[dict[str, Any]] = sent) -> None:
            said.append(message)

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        await lane.went_on(receive, send)
        assert [each.get("status", each.get("body")) for each in sent] == [
            200,
            body + b" of agent:a",
        ]
