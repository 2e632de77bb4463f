"""A request that came to the wrong node is answered by the right one, as if it had come there."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from secrets import token_bytes
from types import MappingProxyType
from typing import Any

import pytest

from comity.errors import BODY_TOO_LARGE, MalformedMessage, Unavailable
from comity.gateway.node_forwarding import FromElsewhere, NodeRequestForwarder
from comity.gateway.remote_servers import SessionRouter
from comity.http.asgi import ACTOR, PROVED, UNSHOWN, Message, Receive, Scope, Send
from comity.identity.authentication import Authenticator
from comity.identity.http_auth import AuthMember
from comity.mcp.actors import ANONYMOUS, Actor, PrincipalKind
from comity.mcp.jsonrpc import FrameLimits
from tests.support.carriers import Clock, settled, until
from tests.support.cases import loop_over
from tests.support.credentials import GivenOut
from tests.support.node_house import OneNode, some_nodes

LIMITS = FrameLimits(frame_bytes=1000)
GIVEN = GivenOut()
IDENTITY = Authenticator(GIVEN.register)

App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass
class Client:
    """One request of a client's, and what comes back on its connection."""

    session: str
    method: str = "POST"
    path: str = "/mcp"
    query: bytes = b""
    body: bytes = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    more: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    actor: Actor = ANONYMOUS
    got: list[Message] = field(default_factory=list[Message])
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    _is_sent: bool = False

    @property
    def headers(self) -> dict[bytes, bytes]:
        named = {b"mcp-session-id": self.session.encode()} if self.session else {}
        named[b"content-length"] = b"%d" % len(self.body)
        usual = {b"host": b"localhost", b"origin": b"http://localhost", b"mcp-param-a": b"1"}
        return {**usual, **named, **self.more}

    @property
    def scope(self) -> Scope:
        return {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "query_string": self.query,
            "headers": list(self.headers.items()),
            "client": ("127.0.0.1", 5),
            ACTOR: self.actor,
        }

    async def receive(self) -> Message:
        if self._is_sent:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        self._is_sent = True
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Message) -> None:
        self.got.append(message)

    async def ask(self, elsewhere: NodeRequestForwarder) -> bool:
        async with asyncio.timeout(10):
            return await elsewhere.forward(self.scope, self.headers, self.receive, self.send)

    @property
    def text(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got)


@asynccontextmanager
async def two(app: App, clock: Clock | None = None) -> AsyncGenerator[tuple[OneNode, OneNode]]:
    async with some_nodes("a", "b", clock=clock) as (a, b):
        SessionRouter(b.peers, b.carrying).set_handler(FromElsewhere(app).answer)
        yield a, b


def elsewhere_of(node: OneNode) -> NodeRequestForwarder:
    return NodeRequestForwarder(
        SessionRouter(node.peers, node.carrying), LIMITS, AuthMember(IDENTITY)
    )


async def answered(scope: Scope, receive: Receive, send: Send) -> None:
    said = f"{scope['method']} {scope['path']} {scope['client']} {sorted(scope['headers'])}"
    body = said.encode() + (await receive())["body"]
    await send({"type": "http.response.start", "status": 201, "headers": [(b"x-b", b"2")]})
    await send({"type": "http.response.body", "body": body})


async def test_a_request_is_answered_at_the_node_of_its_session() -> None:
    async with two(answered) as (a, b):
        session = b.peers.me.session_id(token_bytes(16))
        client = Client(session)
        assert await client.ask(elsewhere_of(a))
        start = {"type": "http.response.start", "status": 201, "headers": [(b"x-b", b"2")]}
        assert client.got[0] == start
        assert client.got[-1] == {"type": "http.response.body", "body": b""}
        assert client.text.startswith(b"POST /mcp ('127.0.0.1', 5)")
        assert client.text.endswith(client.body)
        assert b"mcp-param-a" in client.text
        assert b"origin" not in client.text


async def test_the_old_transport_names_its_session_in_the_query() -> None:
    async with two(answered) as (a, b):
        query = f"session_id={b.peers.me.session_id(token_bytes(16))}".encode()
        posted = Client("", path="/servers/x/messages", query=query)
        assert await posted.ask(elsewhere_of(a))
        assert not await Client("", path="/mcp", query=query).ask(elsewhere_of(a))
        twice = Client("", path="/messages", query=query + b"&" + query)
        assert not await twice.ask(elsewhere_of(a))
        too_many = Client("", path="/messages", query=b"a=1&" * 9)
        with pytest.raises(MalformedMessage):
            await too_many.ask(elsewhere_of(a))


async def test_what_is_for_this_node_or_for_none_is_left_to_the_doors() -> None:
    async with two(answered) as (a, _):
        for session in ("", "nonsense", a.peers.me.session_id(token_bytes(16))):
            client = Client(session)
            assert not await client.ask(elsewhere_of(a))
            assert client.got == []


@loop_over("path", ["/api/keys", "/api/mcp", "/servers/a/b/mcp", "/tools", "/ws"])
async def test_only_requests_to_mcp_endpoints_go_to_another_node(path: str) -> None:
    async with two(answered) as (a, b):
        session = b.peers.me.session_id(token_bytes(16))
        query = f"session_id={session}".encode()
        assert not await Client(session, path=path, query=query).ask(elsewhere_of(a))


HIDDEN = {
    b"authorization": b"Bearer s3cret",
    b"proxy-authorization": b"Basic s3cret",
    b"cookie": b"session=s3cret",
    b"x-api-key": b"s3cret",
    b"x-forwarded-access-token": b"s3cret",
}


@loop_over("path", ["/mcp", "/servers/x/messages"])
async def test_no_credential_goes_to_another_node_and_who_was_proved_does(path: str) -> None:
    """Whatever a client shows, and wherever, is for the node that it came to."""
    proved: list[Actor] = []
    said: list[bytes] = []

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        proved.append(scope[PROVED])
        said.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    now = datetime.now(UTC)
    claims = MappingProxyType({"sub": "ana", "groups": ["a"]})
    bounds = (("tools/call", "files/*"),)
    actor = Actor("person:ana", PrincipalKind.PERSON, "token", bounds, claims, 5, 6, expires_at=now)
    async with two(noting) as (a, b):
        heard: list[bytes] = []
        await b.bus.subscribe(">", lambda each: heard.append(each.data))
        session = b.peers.me.session_id(token_bytes(16))
        query = f"session_id={session}&access_token=s3cret".encode()
        client = Client(session, path=path, query=query, more=HIDDEN, actor=actor)
        assert await client.ask(elsewhere_of(a))
        key = GIVEN.give("agent:ci")
        frame = b'{"jsonrpc":"2.0","id":1,"method":"ping","auth":{"type":"bearer","token":"%s"}}'
        client = Client(session, path=path, query=query, actor=UNSHOWN, body=frame % key.encode())
        assert await client.ask(elsewhere_of(a))
        assert b"s3cret" not in b"".join(heard)
        assert key.rpartition("_")[2].encode() not in b"".join(heard)
    assert proved[0] == actor
    assert (proved[0].claims, proved[0].expires_at) == (dict(claims), now)
    assert (proved[1].party, proved[1].credential) == ("agent:ci", f"key:{key.split('_')[2]}")
    assert said[1] == b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@loop_over(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"ping","auth":{"type":"bearer","token":"s3cret"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","Auth":{"type":"bearer","token":"s3cret"}}',
        b'[{"jsonrpc":"2.0","id":1,"method":"ping","auth":{"type":"bearer","token":"s3cret"}}]',
        b"token=s3cret",
    ],
)
async def test_a_message_whose_credentials_count_nowhere_goes_to_no_other_node(body: bytes) -> None:
    async with two(answered) as (a, b):
        heard: list[bytes] = []
        await b.bus.subscribe(">", lambda each: heard.append(each.data))
        client = Client(b.peers.me.session_id(token_bytes(16)), body=body)
        with pytest.raises(MalformedMessage):
            await client.ask(elsewhere_of(a))
        await settled()
        assert heard == []


async def test_a_stream_comes_through_as_it_grows_and_ends_when_its_client_goes() -> None:
    said, ended = asyncio.Event(), asyncio.Event()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await said.wait()
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        # It is no matter to whom.
        await send({"type": "http.response.body", "body": b"late", "more_body": True})
        ended.set()

    async with two(stream) as (a, b):
        client = Client(b.peers.me.session_id(token_bytes(16)), "GET")
        reading = asyncio.ensure_future(client.ask(elsewhere_of(a)))
        await until(lambda: len(client.got) == 2)
        said.set()
        await until(lambda: client.text == b"data: 1\n\n")
        client.gone.set()
        await until(ended.is_set)
        assert await reading
        assert b"late" not in client.text
        assert len(a.carrying) == len(b.carrying) == 0


async def test_a_node_that_dies_ends_its_streams_and_cuts_its_answers() -> None:
    async def half(scope: Scope, receive: Receive, send: Send) -> None:
        kind = b"text/event-stream" if scope["method"] == "GET" else b"application/json"
        head = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        await asyncio.Event().wait()

    clock = Clock()
    async with two(half, clock) as (a, b):
        clients = [
            Client(b.peers.me.session_id(token_bytes(16)), method) for method in ("GET", "POST")
        ]
        reading = [asyncio.ensure_future(client.ask(elsewhere_of(a))) for client in clients]
        await until(lambda: all(client.text == b"half" for client in clients))
        clock.passes(6 * 3600)
        a.peers.look()
        await asyncio.gather(*reading)
        is_whole: list[Any] = [not client.got[-1].get("more_body") for client in clients]
        assert is_whole == [True, False]


async def test_nothing_is_answered_for_a_node_that_says_nothing() -> None:
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        return

    async with two(silent) as (a, b):
        client = Client(b.peers.me.session_id(token_bytes(16)))
        with pytest.raises(Unavailable, match="gave no answer"):
            await client.ask(elsewhere_of(a))
        assert client.got == []
        large = Client(b.peers.me.session_id(token_bytes(16)), body=bytes(1001))
        with pytest.raises(MalformedMessage) as refused:
            await large.ask(elsewhere_of(a))
        assert refused.value.fault is BODY_TOO_LARGE
        await settled()
