"""One connection to NATS: what it does with a server that says strange things."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator

import pytest
from nats.aio.client import Client

from comity.cluster.nats.addresses import NatsAddressList
from comity.cluster.nats.bus import NatsBus
from comity.cluster.nats.connection import OURS, NatsConnection, usable_version
from comity.errors import Misconfigured
from tests.contracts.nodes import eventually

INFO = b'INFO {"server_id":"x","version":"2.15.1","max_payload":1024,"headers":true}\r\n'


class Script:
    """A server that says what the test has it say."""

    def __init__(self) -> None:
        self.given = bytearray()
        self.writer: asyncio.StreamWriter | None = None
        self.port = 0
        self.answers_pings = True

    def say(self, words: bytes) -> None:
        assert self.writer is not None
        self.writer.write(words)

    info = INFO

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        writer.write(self.info)
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                self.given += data
                if self.answers_pings:
                    writer.write(b"PONG\r\n" * data.count(b"PING\r\n"))
        writer.transport.abort()


@pytest.fixture
async def script() -> AsyncGenerator[Script]:
    script = Script()
    server = await asyncio.start_server(script.accept, "127.0.0.1", 0)
    script.port = server.sockets[0].getsockname()[1]
    yield script
    server.close()


@pytest.fixture
async def link(script: Script) -> AsyncGenerator[NatsConnection]:
    taken.clear()

    def take(sid: int, subject: bytes, reply: bytes, data: bytes) -> None:
        taken.append((sid, subject, reply, data))

    link = NatsConnection(take)
    addresses = NatsAddressList.of([f"nats://127.0.0.1:{script.port}"])
    await link.reach(addresses.servers[0], addresses)
    yield link
    link.lose("the test is over")


taken: list[tuple[int, bytes, bytes, bytes]] = []


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_select_next_server", []),
        ("_process_info", ["info", "initial_connection"]),
        ("_process_op_err", ["e"]),
        ("_process_err", ["err_msg"]),
        ("_process_pong", []),
        ("_process_msg", ["sid", "subject", "reply", "data", "headers"]),
        ("_connect_to_server", ["s"]),
    ],
)
def test_what_is_overridden_or_called_inside_nats_py_is_still_there(
    name: str, parameters: list[str]
) -> None:
    """A release of nats-py that moves its furniture is noticed here first."""
    method = getattr(Client, name)
    assert inspect.iscoroutinefunction(method)
    assert [*inspect.signature(method).parameters][1:] == parameters


def test_what_is_used_inside_nats_py_is_still_there() -> None:
    inside = vars(Client())
    used = ("_pongs", "_pings_outstanding", "_resp_map", "_subs", "_server_pool", "_transport")
    tasks = ("_reading_task", "_ping_interval_task", "_flusher_task", "_public_nkey", "_status")
    assert [name for name in (*used, *tasks) if name not in inside] == []


async def test_what_is_said_in_one_turn_goes_out_in_order(
    script: Script, link: NatsConnection
) -> None:
    link.queue_message(b"PUB a ", b"1")
    link.command(b"SUB b %d\r\n" % OURS)
    link.queue_message(b"PUB a ", b"")
    await link.settled()
    said = bytes(script.given).partition(b"PUB")
    expected = b" a 1\r\n1\r\nSUB b %d\r\nPUB a 0\r\n\r\nPING\r\n" % OURS
    assert said[2] == expected


async def test_a_message_is_given_on_as_it_comes_and_what_nats_says_itself_is_not(
    script: Script, link: NatsConnection
) -> None:
    script.say(b"HMSG a %d 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" % OURS)
    script.say(b"MSG a.b %d re.ply 5\r\nhello\r\n" % OURS)
    await eventually(lambda: bool(taken))
    assert taken == [(OURS, b"a.b", b"re.ply", b"hello")]
    assert link.is_open


async def test_an_answer_to_a_ping_that_nobody_waits_for_harms_nothing(
    script: Script, link: NatsConnection
) -> None:
    script.answers_pings = False
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(link.settled(), 0.05)
    script.say(b"PONG\r\nPONG\r\n")
    script.say(b"MSG a %d 0\r\n\r\n" % OURS)
    await eventually(lambda: bool(taken))
    assert link.is_open


@pytest.mark.parametrize(
    ("words", "because"),
    [
        (b"-ERR 'Slow Consumer'\r\n", "slow consumer"),
        (b"-ERR 'Authorization Violation'\r\n", "authorization violation"),
        (b"-ERR 'Stale Connection'\r\n", "stale connection"),
        (b"-ERR 'User Authentication Expired'\r\n", "user authentication expired"),
        (b"NONSENSE\r\n", "protocol error"),
    ],
)
async def test_a_server_that_will_not_go_on_loses_us_and_whoever_waits_is_let_go(
    script: Script, link: NatsConnection, words: bytes, because: str
) -> None:
    script.answers_pings = False
    waiting = asyncio.create_task(link.settled())
    asking = asyncio.create_task(link.request("a", b"", timeout=30))
    script.say(words)
    assert because in (await asyncio.wait_for(asyncio.shield(link.lost), 20)).lower()
    await asyncio.wait_for(waiting, 20)
    ended = await asyncio.wait_for(asyncio.gather(asking, return_exceptions=True), 20)
    assert isinstance(ended[0], Exception)
    assert not link.is_open


async def test_a_server_that_closes_or_says_nothing_loses_us(
    script: Script, link: NatsConnection
) -> None:
    assert script.writer is not None
    script.writer.transport.abort()
    await asyncio.wait_for(asyncio.shield(link.lost), 20)


async def test_a_server_that_answers_no_pings_loses_us(
    script: Script, link: NatsConnection
) -> None:
    script.answers_pings = False
    await asyncio.wait_for(asyncio.shield(link.lost), 20)


async def test_a_node_does_not_start_with_a_nats_that_is_too_old(script: Script) -> None:
    script.info = INFO.replace(b"2.15.1", b"2.9.10")
    addresses = NatsAddressList.of([f"nats://127.0.0.1:{script.port}"])
    bus = NatsBus(addresses, b"a secret of all nodes of the test")
    reason = "it runs version 2.9.10; nodes need 2.11 or newer"
    with pytest.raises(Misconfigured, match=reason):
        await bus.open()
    assert not bus.is_connected
    # `comity config check` gives the same verdict.
    with pytest.raises(Misconfigured, match=reason):
        await usable_version(addresses.servers[0], addresses)
