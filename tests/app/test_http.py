"""Which door a path leads to, called as an ASGI application."""

import json
import logging
from typing import Any, cast

import pytest

from comity.app.http import HttpApp
from comity.errors import MalformedMessage, Unavailable
from comity.http import asgi
from comity.http.asgi import HostOriginCheck, Message, Receive, Scope, Send
from comity.http.fast_path import FastPathRequest
from comity.mcp.actors import Actor
from tests.support.listening import Application, listening


class Door:
    """An endpoint that answers with its path, or raises what it was made with."""

    def __init__(self, raises: Exception | None = None, *, begins: bool = True) -> None:
        self.raises, self.begins = raises, begins

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        if self.raises is None:
            await asgi.send_json(send, 200, scope["path"].encode())
            return
        if self.begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise self.raises


class House:
    """A gateway with some endpoints, and what it last sent."""

    def __init__(self) -> None:
        doors = {
            "/open": Door(),
            "/falling": Door(ZeroDivisionError("canary"), begins=False),
            "/unavailable": Door(Unavailable("nobody is there"), begins=False),
            "/picky": Door(MalformedMessage("say it properly"), begins=False),
            "/breaking": Door(ZeroDivisionError()),
        }
        self.heads: dict[bytes, bytes] = {}
        way = HostOriginCheck(origins=["https://console.example.org"])
        self.gateway = HttpApp(way, doors)

    async def visit(
        self, path: str, headers: list[tuple[bytes, bytes]] | None = None, kind: str = "http"
    ) -> tuple[int, bytes]:
        sent: list[dict[str, Any]] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b""}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start" and sent:
                raise RuntimeError("a response had begun")
            sent.append(message)

        said = [(b"host", b"localhost")] if headers is None else headers
        scope = {"type": kind, "path": path, "method": "GET", "headers": said}
        await self.gateway(scope, receive, send)
        if not sent:
            return 0, b""
        self.heads = dict(sent[0]["headers"])
        return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:])


@pytest.fixture
def house() -> House:
    return House()


async def test_a_path_leads_to_its_door_exactly(house: House) -> None:
    assert await house.visit("/open") == (200, b"/open")
    for path in ("/open/", "//open", "/OPEN", "/open/..", "/", ""):
        status, body = await house.visit(path)
        assert status == 404
        assert "/mcp" in json.loads(body)["error"]["message"]


async def test_a_door_comes_and_goes_while_people_pass(house: House) -> None:
    house.gateway.add_endpoints({"/new": Door()})
    assert await house.visit("/new") == (200, b"/new")
    house.gateway.remove_endpoints(["/new", "/never-there"])
    assert (await house.visit("/new"))[0] == 404
    assert (await house.visit("/open"))[0] == 200


async def test_nothing_is_told_to_a_page_that_was_lured_here(house: House) -> None:
    for path in ("/open", "/falling", "/nowhere"):
        status, _ = await house.visit(path, [(b"host", b"evil.example")])
        assert status == 421
        lured = [(b"host", b"localhost"), (b"origin", b"null")]
        assert (await house.visit(path, lured))[0] == 403


@pytest.mark.parametrize("name", [b"host", b"origin"])
async def test_a_host_or_origin_that_appears_twice_is_refused(house: House, name: bytes) -> None:
    """Two readers of one request would otherwise go by two of them."""
    good = {b"host": b"localhost", b"origin": b"http://localhost"}
    for twice in ((b"evil.example", good[name]), (good[name], b"evil.example")):
        headers = [(b"host", b"localhost")] if name == b"origin" else []
        status, _ = await house.visit("/open", [*headers, *((name, value) for value in twice)])
        assert status in (400, 403, 421)


async def test_bug_is_logged_with_its_trace_and_answered_without_details(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    parent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await house.visit("/falling", [(b"host", b"localhost"), (b"traceparent", parent)])
    status, body = await house.visit("/falling")
    assert (status, json.loads(body)["error"]["code"]) == (500, -32603)
    assert b"canary" not in body
    traces = [getattr(record, "trace_id", None) for record in caplog.records]
    assert traces == ["0af7651916cd43dd8448eb211c80319c", None]
    for record in caplog.records:
        assert record.levelno == logging.ERROR
        assert record.exc_info is not None


async def test_status_says_whose_fault_it_was(house: House) -> None:
    assert (await house.visit("/unavailable"))[0] == 503
    assert (await house.visit("/picky"))[0] == 400
    # A response that has begun is not followed by a second one.
    assert (await house.visit("/breaking"))[0] == 200


async def test_what_is_no_http_is_left_alone(house: House) -> None:
    assert await house.visit("/open", kind="websocket") == (0, b"")


CONSOLE = (b"origin", b"https://console.example.org")
PREFLIGHT = (b"access-control-request-method", b"POST")


async def test_pages_of_an_origin_that_was_named_may_ask_first_and_read(house: House) -> None:
    host = (b"host", b"localhost")
    asked = (b"access-control-request-headers", b"content-type,mcp-protocol-version")
    assert await house.visit("/open", [host, CONSOLE, PREFLIGHT, asked]) == (204, b"")
    assert house.heads[b"access-control-allow-origin"] == CONSOLE[1]
    assert house.heads[b"access-control-allow-headers"] == asked[1]
    assert b"POST" in house.heads[b"access-control-allow-methods"]
    assert await house.visit("/open", [host, CONSOLE]) == (200, b"/open")
    assert house.heads[b"access-control-allow-origin"] == CONSOLE[1]
    assert house.heads[b"access-control-expose-headers"] == b"mcp-session-id, www-authenticate"
    # What went wrong can be read as well.
    assert (await house.visit("/picky", [host, CONSOLE]))[0] == 400
    assert house.heads[b"access-control-allow-origin"] == CONSOLE[1]


async def test_a_page_that_another_program_serves_here_may_not_read(house: House) -> None:
    """It comes from loopback, so it is not turned away; but its browser is told nothing."""
    host, page = (b"host", b"localhost"), (b"origin", b"http://localhost:3000")
    assert await house.visit("/open", [host, page, PREFLIGHT]) == (200, b"/open")
    assert b"access-control-allow-origin" not in house.heads


async def test_a_page_of_elsewhere_is_turned_away_also_when_it_asks_first(house: House) -> None:
    page = (b"origin", b"https://elsewhere.example.org")
    status, _ = await house.visit("/open", [(b"host", b"localhost"), page, PREFLIGHT])
    assert status == 403
    assert b"access-control-allow-origin" not in house.heads


class BrokenDoor:
    """A door with a bug, where calls are taken that have come as a whole."""

    async def __call__(self, scope: Any, headers: Any, receive: Any, send: Any) -> None:
        raise AssertionError("what may have begun is begun again")

    def serve(self, request: FastPathRequest, actor: Actor) -> bool:
        raise RuntimeError("secret of the bug")


async def test_a_bug_in_the_express_lane_is_told_once_and_begins_nothing_again() -> None:
    gateway = cast("Application", HttpApp(HostOriginCheck(), {"/mcp": BrokenDoor()}))
    async with listening(gateway) as door:
        peer = await door.connect()
        peer.say(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}")
        said = await peer.reader.readuntil(b"}}")
    assert said.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in said
