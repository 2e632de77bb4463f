"""Attacks 14, 17 and 18: no message holds the event loop, wherever its bytes come in.

A real gateway with a watch on its loop is sent every hostile body of `stalling/bodies.py` at every
door, and its servers say them too. After each, somebody else is served. The work for a message is
bounded: what its decoders build, and how many bytes they read. Where nothing else is measured on
the machine, the longest hold is bounded too, by the time that its core needs.
"""

import asyncio
import hmac
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.pace import at_length, here
from tests.security.stalling import bodies, places
from tests.security.stalling.bodies import MEBIBYTE, Made
from tests.security.stalling.scene import (
    GRANTED,
    OPERATOR,
    SECRET,
    UNGRANTED,
    Scene,
    Seen,
    staged,
)
from tests.support.visitor import BOTH, ENVELOPE, SECONDS

pytestmark = [pytest.mark.timeout(1800), pytest.mark.asyncio(loop_scope="module")]

ROOM: Final = at_length(4 * MEBIBYTE, MEBIBYTE // 2) - 600
"""For a value, in a message that may have 4 MiB."""

MOST_BUILT: Final = 150_000
"""Values that decoders make of one message, all together: none is made more than thrice."""

MOST_READ: Final = 10
"""How often a decoder reads the whole of a message."""

HELD_SECONDS: Final = 0.1
TRIES: Final = 4
IS_TIMED: Final = os.environ.get("COMITY_WHOLE") == "1"

type Say = Callable[[bytes], Awaitable[None]]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Scene]:
    async with staged(tmp_path_factory.mktemp("stalls")) as scene:
        yield scene


class Watching:
    """Says what is hostile, one after the other, and notes what each has cost."""

    def __init__(self, scene: Scene, room: int = ROOM) -> None:
        self._scene = scene
        self._room = room
        self._seen: dict[str, Seen] = {}

    async def say(self, name: str, data: bytes, say: Say) -> None:
        seen = await self._said(name, data, say)
        for _ in range(TRIES if IS_TIMED else 0):
            if seen.held <= HELD_SECONDS:
                break
            # A body that holds the loop, or keeps others from being served, does so each time. A
            # machine that was busy elsewhere lengthens one try, also in the thread's own time.
            again = await self._said(name, data, say)
            seen = replace(seen, held=min(seen.held, again.held))
        self._seen[name] = seen

    async def _said(self, name: str, data: bytes, say: Say) -> Seen:
        for _ in range(TRIES):
            await self._scene.seen()
            await say(data)
            if await self._scene.is_served():
                return await self._scene.seen()
        raise AssertionError(f"nobody else is served after {name}")

    async def values(
        self, templates: Mapping[str, bytes], shapes: Mapping[str, Made], say: Say
    ) -> None:
        """Every value, each at one place or at three, so that each place has many of them."""
        at = list(templates.items())
        for number, (name, make) in enumerate(shapes.items()):
            value = make(self._room)
            for step in range(min(len(at), at_length(3, 1))):
                place, said = at[(number + step * 7) % len(at)]
                await self.say(f"{name} as {place}", said.replace(places.VALUE, value), say)

    async def whole(self, shapes: Mapping[str, Made], say: Say) -> None:
        for name, make in shapes.items():
            await self.say(name, make(self._room), say)

    def judge(self) -> None:
        """Print the worst, and hold all against the bounds."""
        assert len(self._seen) >= 10
        for measure in ("held", "built", "read"):
            name, worst = max(self._seen.items(), key=lambda each: getattr(each[1], measure))
            print(f"{measure}: {getattr(worst, measure):.3f} by {name}")
        room = self._room + 1000
        over = [
            f"{name}: {seen}"
            for name, seen in self._seen.items()
            if seen.built > MOST_BUILT or seen.read > MOST_READ * room + 2 * MEBIBYTE
        ]
        assert over == []
        if IS_TIMED:
            bound = here(HELD_SECONDS)
            assert [
                f"{name}: {seen}" for name, seen in self._seen.items() if seen.held > bound
            ] == []


def of_a_client() -> dict[str, Made]:
    permitted = {f"permitted {name}": make for name, make in bodies.FROM_A_CLIENT.items()}
    return {**bodies.VALUES, **permitted}


def of_a_server() -> dict[str, Made]:
    permitted = {f"permitted {name}": make for name, make in bodies.FROM_A_SERVER.items()}
    return {**bodies.VALUES, **permitted}


def with_tool(templates: Mapping[str, bytes], tool: str) -> dict[str, bytes]:
    return {name: said.replace(b"TOOL", tool.encode()) for name, said in templates.items()}


async def test_there_are_many_shapes_and_each_has_its_name() -> None:
    shapes = [*of_a_client(), *bodies.BODIES, *bodies.STREAMS, *bodies.HEADERS]
    assert len(shapes) == len(set(shapes)) >= 120


@pytest.mark.parametrize("party", [GRANTED, UNGRANTED])
@pytest.mark.parametrize("path", ["/mcp", "/servers/line/mcp"])
async def test_no_message_of_a_client_in_a_session_holds_the_loop(
    scene: Scene, party: str, path: str
) -> None:
    if (party, path) == (UNGRANTED, "/servers/line/mcp"):
        pytest.skip("there is no such place for it, and its body is not read")

    async def say(data: bytes) -> None:
        await scene.post(data, await scene.session(party, path), path)

    watching = Watching(scene)
    tool = "line__plain" if path == "/mcp" else "plain"
    await watching.values(with_tool(places.CLIENT, tool), of_a_client(), say)
    await watching.whole(bodies.BODIES, say)
    watching.judge()


async def test_no_message_of_a_client_without_a_session_holds_the_loop(scene: Scene) -> None:
    headers = scene.modern("line__plain")

    async def say(data: bytes) -> None:
        await scene.post(data, headers, "/mcp")

    watching = Watching(scene)
    await watching.values(with_tool(places.MODERN, "line__plain"), of_a_client(), say)
    await watching.whole(bodies.BODIES, say)
    watching.judge()


async def test_no_message_of_nobody_holds_the_loop(scene: Scene) -> None:
    """Credentials may stand in a message here, so it is read before anybody is known."""
    headers = {"content-type": "application/json", "accept": BOTH}

    async def say(data: bytes) -> None:
        status = await scene.post(data, headers, "/mcp")
        assert status in (0, 400, 401, 413, 429)

    watching = Watching(scene)
    shown = ("the credentials", "the token", "an unknown member", "an argument")
    templates = {name: places.CLIENT[name] for name in shown}
    await watching.values(with_tool(templates, "line__plain"), of_a_client(), say)
    await watching.whole(bodies.BODIES, say)
    watching.judge()


async def test_no_message_at_the_registry_holds_the_loop(scene: Scene) -> None:
    headers = {"content-type": "application/json", **scene.shown(GRANTED)}

    async def call(data: bytes) -> None:
        await scene.post(data, headers, "/tools/line__plain")

    async def validate(data: bytes) -> None:
        await scene.post(data, headers, "/tools/line__plain/validate")

    async def speak(data: bytes) -> None:
        await scene.post(data, headers, "/tools")

    watching = Watching(scene)
    whole = {"an argument": b'{"a":%b}', "all of the body": b"%b"}
    await watching.values(whole, of_a_client(), call)
    await watching.values(whole, bodies.FROM_A_CLIENT, validate)
    spoken = with_tool(places.CLIENT, "line__plain")
    await watching.values(spoken, bodies.FROM_A_CLIENT, speak)
    await watching.whole(bodies.BODIES, speak)
    watching.judge()


async def test_no_message_of_an_old_client_holds_the_loop(scene: Scene) -> None:
    """Answers come on a stream that is read all the while."""
    headers = {"accept": "text/event-stream", **scene.shown(GRANTED)}
    stream = await scene.visitor.send("GET", headers.items(), path="/sse")
    endpoint = (await stream.event()).data.decode()
    reading = asyncio.ensure_future(stream.events())
    told = {"content-type": "application/json", **scene.shown(GRANTED)}

    async def say(data: bytes) -> None:
        await scene.post(data, told, endpoint)

    hello = places.CLIENT["capabilities"].replace(places.VALUE, b"{}")
    await say(hello)
    watching = Watching(scene)
    templates = with_tool(places.CLIENT, "line__plain")
    await watching.values(templates, bodies.FROM_A_CLIENT, say)
    await watching.whole(bodies.BODIES, say)
    reading.cancel()
    stream.leave()
    watching.judge()


async def test_no_message_of_an_operator_holds_the_loop(scene: Scene) -> None:
    headers = {"content-type": "application/json", **scene.shown(OPERATOR)}
    room = 256 * 1024 - 600

    async def say(data: bytes) -> None:
        await scene.post(data, headers, "/api/grants")

    watching = Watching(scene, room)
    templates = {
        "the body": b"%b",
        "a subject": b'{"subject":%b,"verb":"tools/call","target":"x/*","effect":"allow"}',
        "a condition": (
            b'{"subject":"agent:x","verb":"tools/call","target":"x/*","effect":"allow","where":%b}'
        ),
        "a member that nobody knows": b'{"x":%b}',
    }
    await watching.values(templates, of_a_client(), say)
    await watching.whole(bodies.BODIES, say)
    watching.judge()


@pytest.mark.parametrize("is_signed", [True, False], ids=["signed", "unsigned"])
async def test_no_webhook_holds_the_loop(scene: Scene, is_signed: bool) -> None:
    room = 256 * 1024 - 600

    async def say(data: bytes) -> None:
        signature = hmac.digest(SECRET if is_signed else b"another", data, "sha256").hex()
        headers = {
            "content-type": "application/json",
            "x-github-event": "push",
            "x-github-delivery": "d-1",
            "x-hub-signature-256": f"sha256={signature}",
        }
        await scene.post(data, headers, "/hooks/hook")

    watching = Watching(scene, room)
    await watching.values({"the body": b"%b", "a member": b'{"a":%b}'}, of_a_client(), say)
    await watching.whole(bodies.BODIES, say)
    watching.judge()


async def test_no_envelope_in_a_topic_holds_the_loop(scene: Scene) -> None:
    room = MEBIBYTE - 600
    url = scene.origin.replace("http://", "ws://") + "/ws?topic=stalls-"
    # Whoever comes to one topic again and again has to wait there.
    topics = count(1)
    begin = (
        b'{"protocol":"mcpx/v0.1","from":"' + GRANTED.encode() + b'","id":@,"kind":#,"payload":$}'
    )

    def said(id: bytes = b'"1"', kind: bytes = b'"chat"', payload: bytes = b"{}") -> bytes:
        return begin.replace(b"@", id).replace(b"#", kind).replace(b"$", payload)

    sockets: list[ClientConnection] = []

    async def say(data: bytes) -> None:
        async with asyncio.timeout(SECONDS):
            if not sockets or sockets[0].close_code is not None:
                headers = scene.shown(GRANTED)
                place = f"{url}{next(topics)}"
                socket = await connect(
                    place, additional_headers=headers, compression=None, max_queue=None
                )
                sockets[:] = [socket]
            # What is refused may end the connection; then there is another for the next.
            with suppress(ConnectionClosed):
                await sockets[0].send(data.decode("utf-8", "replace"), text=True)
                await (await sockets[0].ping())

    watching = Watching(scene, room)
    call = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":%b}}'
    templates = {
        "a text": said(payload=b'{"text":%b}'),
        "the payload": said(payload=b"%b"),
        "an id": said(id=b"%b"),
        "a kind": said(kind=b"%b"),
        "a request": said(kind=b'"mcp/request"', payload=call),
        "a proposal": said(kind=b'"mcp/proposal"', payload=call),
    }
    await watching.values(templates, of_a_client(), say)
    await watching.whole(bodies.BODIES, say)
    watching.judge()


async def test_no_head_of_a_request_holds_the_loop(scene: Scene) -> None:
    async def say(headers: Iterable[tuple[str, str]]) -> None:
        usual = {"content-type": "application/json", **scene.shown(GRANTED)}
        pairs = [*usual.items(), *headers]
        names = [name for name, _ in headers]
        if "authorization" in names:
            pairs.remove(("authorization", usual["authorization"]))
        try:
            reply = await scene.visitor.send("POST", pairs, b"{}", "/mcp")
            await reply.body()
            reply.leave()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass

    watching = Watching(scene)
    for name, headers in bodies.HEADERS.items():

        async def say_these(_: bytes, headers: list[tuple[str, str]] = headers) -> None:
            await say(headers)

        await watching.say(name, b"", say_these)
    watching.judge()


async def played(scene: Scene, server: str, data: bytes, *, modern: bool = False) -> None:
    """Have a server say it amid a call."""
    scene.play.write_bytes(data)
    tool = f"{server}__play"
    meta: dict[str, object] = {"progressToken": "p", **(ENVELOPE if modern else {})}
    params = {"name": tool, "arguments": {"file": str(scene.play)}, "_meta": meta}
    said = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = scene.modern(tool) if modern else await scene.session(GRANTED, "/mcp")
    await scene.post(json.dumps(said).encode(), headers, "/mcp")


@pytest.mark.parametrize("server", ["line", "body", "event"])
@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "modern"])
async def test_no_message_of_a_server_holds_the_loop(
    scene: Scene, server: str, modern: bool
) -> None:
    async def say(data: bytes) -> None:
        await played(scene, server, data, modern=modern)

    watching = Watching(scene)
    await watching.values(places.SERVER, of_a_server(), say)
    await watching.whole(bodies.BODIES, say)
    watching.judge()


async def test_no_field_of_a_stream_holds_the_loop(scene: Scene) -> None:
    async def say(data: bytes) -> None:
        await played(scene, "event", data)

    watching = Watching(scene)
    await watching.whole(bodies.STREAMS, say)
    watching.judge()


async def test_no_list_of_a_server_holds_the_loop(scene: Scene, tmp_path: Path) -> None:
    listing = tmp_path / "list"

    async def say(data: bytes) -> None:
        listing.write_bytes(data)
        before = await listed(scene, "line__list", {"file": str(listing)})
        assert before is not None
        async with asyncio.timeout(SECONDS):
            # Once as it is hostile, and once as it was.
            while (await listed(scene, "line__listed", {}) or 0) < before + 2:
                await asyncio.sleep(0.01)

    watching = Watching(scene)
    await watching.values(places.LISTS, of_a_server(), say)
    watching.judge()


async def listed(scene: Scene, tool: str, arguments: dict[str, str]) -> int | None:
    """How often the hostile server was asked for its list; None while it has no such tool."""
    said = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    params = {"name": tool, "arguments": arguments}
    headers = await scene.session(GRANTED, "/mcp")
    body = json.dumps({**said, "params": params}).encode()
    reply = await scene.visitor.send("POST", headers.items(), body, "/mcp")
    (*_, answer) = await reply.frames()
    reply.leave()
    return int(answer["result"]["content"][0]["text"]) if "result" in answer else None
