"""Attacks 7 and 8 of `docs/design/security.md` §1.5: stolen sessions, pages lured to loopback."""

from collections.abc import AsyncGenerator

import pytest

from tests.support.upstream import Upstream, scripted
from tests.support.visitor import BOTH, Visitor, at, request, visiting

POST = (("content-type", "application/json"), ("accept", BOTH))
CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"plain"}}'


@pytest.fixture
async def server() -> AsyncGenerator[Upstream]:
    async with scripted(modern=True) as server:
        yield server


@pytest.fixture
async def visitor(server: Upstream) -> AsyncGenerator[Visitor]:
    async with visiting(at(server.url), at(server.url, "other")) as visitor:
        yield visitor


@pytest.mark.requirement("MCP-3.2-session")
async def test_attack_07_a_session_opens_no_other_door(visitor: Visitor, server: Upstream) -> None:
    await visitor.greet()
    for path in ("/mcp", "/servers/other/mcp"):
        thief = visitor.other(path)
        thief.session = visitor.session
        assert (await thief.call("plain")).status == 404
        assert (await thief.get()).status == 404
        assert (await thief.send("DELETE", thief.session.items())).status == 404
    assert server.of("tools/call") == []
    assert (await visitor.call("plain")).status == 200


@pytest.mark.parametrize(
    "guess",
    ["0" * 32, "", "null", "../", "*", "session-1", "\xff\xfe", "a" * 60_000],
    ids=["zeros", "empty", "null", "path", "star", "the-servers-own", "bytes", "long"],
)
async def test_attack_07_a_guessed_session_is_unknown(visitor: Visitor, guess: str) -> None:
    """Also the name that the server behind gave to its own session with the gateway."""
    await visitor.greet()
    visitor.session["mcp-session-id"] = guess
    reply = await visitor.call("plain")
    assert reply.status == 404
    assert guess not in (await reply.body()).decode() or len(guess) < 5


async def test_attack_07_sessions_cannot_be_foretold(visitor: Visitor) -> None:
    names: set[str] = set()
    for _ in range(20):
        someone = visitor.other()
        await someone.greet()
        names.add(someone.session["mcp-session-id"])
    assert len(names) == 20
    assert all(len(bytes.fromhex(name)) * 8 >= 128 for name in names)


HOSTS = {
    None: 421,
    "evil.example": 421,
    "evil.example:2664": 421,
    "localhost.evil.example": 421,
    "127.0.0.1.evil.example": 421,
    "localhost:evil": 421,
    "127.0.0.1:80@evil.example": 421,
    "[::1].evil.example": 421,
    "localhost": 200,
    "127.0.0.1:1": 200,
    "[::1]:9": 200,
}
ORIGINS = {
    "null": 403,
    "http://evil.example": 403,
    "https://localhost.evil.example": 403,
    "http://127.0.0.1.evil.example": 403,
    "http://evil.example/http://localhost": 403,
    "http://localhost:80@evil.example": 403,
    "file://": 403,
    "": 403,
    "http://localhost:3000": 200,
    "https://127.0.0.1": 200,
    "http://[::1]:1": 200,
}


@pytest.mark.parametrize(("host", "status"), HOSTS.items())
async def test_attack_08_a_host_that_is_not_ours_reaches_nothing(
    visitor: Visitor, server: Upstream, host: str | None, status: int
) -> None:
    peer = await visitor.place.connect()
    line = b"" if host is None else f"host: {host}\r\n".encode()
    peer.say(b"GET /health HTTP/1.1\r\n" + line + b"connection: close\r\n\r\n")
    reply = await peer.until_closed()
    assert int(reply.split()[1]) in ({status, 400} if host is None else {status})
    assert await _calls(visitor, server, [("host", host)] if host else []) == (status == 200)


@pytest.mark.parametrize(("origin", "status"), ORIGINS.items())
async def test_attack_08_a_page_of_another_origin_reaches_nothing(
    visitor: Visitor, server: Upstream, origin: str, status: int
) -> None:
    reply = await visitor.send("GET", [("origin", origin)], path="/ready")
    assert reply.status == status
    assert await _calls(visitor, server, [("origin", origin)]) == (status == 200)


async def _calls(visitor: Visitor, server: Upstream, extra: list[tuple[str, str]]) -> bool:
    """Whether a call with these headers gets through to the server."""
    if not extra:
        return False
    await visitor.greet()
    before = len(server.of("tools/call"))
    headers = [*POST, *visitor.session.items(), *extra]
    reply = await visitor.send("POST", headers, CALL)
    reached = len(server.of("tools/call")) > before
    assert reached == (reply.status == 200)
    return reached


async def test_attack_08_a_page_is_never_told_that_it_may_read(visitor: Visitor) -> None:
    headers = [("origin", "http://localhost:3000"), ("access-control-request-method", "POST")]
    for verb in ("OPTIONS", "GET"):
        reply = await visitor.send(verb, headers)
        assert not [name for name in reply.headers if name.startswith("access-control")]


async def test_attack_08_a_plain_form_cannot_post_a_message(visitor: Visitor) -> None:
    """What a page may send without asking first (CORS) is not taken."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = [("content-type", kind), ("accept", "*/*")]
        reply = await visitor.send("POST", headers, str(request(1, "initialize")).encode())
        assert reply.status == 415
