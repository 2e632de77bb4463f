"""Posts: to the very address that was looked at, in bounded time, and nowhere else."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from comity.errors import Unavailable
from comity.events.webhooks.model import AllowedHosts, DeliveryProblem, HttpReply, WebhookTarget
from comity.events.webhooks.notifier_posts import NotifierPosts
from comity.events.webhooks.sender import HttpWebhookSender, WebhookTimeouts
from tests.events.certificates import a_certificate
from tests.support.rebinding import PRIVATE, PUBLIC, rebindings

BODY = b'{"a":1}'
QUICK = WebhookTimeouts(0.3, 0.6)
PATIENT = WebhookTimeouts(20, 20)
OPEN: list[asyncio.Server] = []


@pytest.fixture(autouse=True)
async def _closed() -> AsyncGenerator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


class Names:
    """A resolver that answers as it is told, and knows how often it was asked."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class Listener:
    """A server of raw bytes, and how often somebody came."""

    def __init__(self, *said: bytes, stays: bool = False) -> None:
        self._said = said
        self._stays = stays
        self.heard: list[bytes] = []
        self.port = 0

    async def open(self, tls: ssl.SSLContext | None = None) -> "Listener":
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        OPEN.append(server)
        self.port = server.sockets[0].getsockname()[1]
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heard.append(await reader.readuntil(BODY))
            for piece in self._said:
                writer.write(piece)
                await writer.drain()
            if self._stays:
                await reader.read()
            writer.close()
            await writer.wait_closed()
        except OSError:
            writer.transport.abort()

    def place(
        self, host: str = "127.0.0.1", scheme: str = "http", *, named: bool = True
    ) -> WebhookTarget:
        return WebhookTarget(scheme, host, self.port, "/x?y=z", named)


async def post(
    listener: Listener,
    place: WebhookTarget,
    most: int = 0,
    names: Names | None = None,
    deadlines: WebhookTimeouts = PATIENT,
) -> HttpReply | DeliveryProblem:
    sender = HttpWebhookSender(names or Names(["127.0.0.1"]), deadlines)
    async with asyncio.timeout(30):
        return await sender.post(place, {"webhook-id": "e1"}, BODY, most)


async def test_a_post_says_what_it_is_and_gives_the_status() -> None:
    listener = await Listener(b"HTTP/1.1 204 No Content\r\n\r\n").open()
    assert await post(listener, listener.place("hooks.internal")) == HttpReply(204)
    (heard,) = listener.heard
    lines = heard.decode().split("\r\n")
    assert lines[0] == "POST /x?y=z HTTP/1.1"
    assert lines[1] == f"host: hooks.internal:{listener.port}"
    assert "webhook-id: e1" in lines
    assert lines[-1] == BODY.decode()


@pytest.mark.parametrize(
    "body",
    [
        b"content-length: 5\r\n\r\nhello",
        b"transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
        b"\r\nhello",
        b"content-length: 99\r\n\r\nhello and more than was asked for",
    ],
    ids=["measured", "in chunks", "until the end", "longer"],
)
async def test_a_body_is_read_as_far_as_was_asked(body: bytes) -> None:
    listener = await Listener(b"HTTP/1.1 200 OK\r\n" + body).open()
    assert await post(listener, listener.place(), 5) == HttpReply(200, body=b"hello")


async def test_a_place_may_say_how_long_to_leave_it_alone() -> None:
    listener = await Listener(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\n\r\n").open()
    assert await post(listener, listener.place()) == HttpReply(503, timedelta(seconds=7))
    vague = await Listener(b"HTTP/1.1 503 Busy\r\nRetry-After: tomorrow\r\n\r\n").open()
    assert await post(vague, vague.place()) == HttpReply(503)


async def test_what_only_announces_an_answer_is_none() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    listener = await Listener(early + b"HTTP/1.1 200 OK\r\n\r\n").open()
    assert await post(listener, listener.place()) == HttpReply(200)


@pytest.mark.parametrize(
    ("said", "stays", "problem"),
    [
        ((b"",), True, DeliveryProblem.TIMEOUT),
        ((b"HTTP/1.1 2",), True, DeliveryProblem.TIMEOUT),
        ((b"HTTP/1.1 200 OK\r\na: b\r\n",), True, DeliveryProblem.TIMEOUT),
        ((b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,), True, DeliveryProblem.NO_HTTP),
        ((b"HTTP/1.1 200 OK\r\na: " + b"x" * 100_000,), True, DeliveryProblem.NO_HTTP),
        ((b"SSH-2.0-what\r\n",), False, DeliveryProblem.NO_HTTP),
        ((b"",), False, DeliveryProblem.NO_HTTP),
    ],
    ids=["silent", "half a status", "half a head", "many", "long", "no HTTP", "nothing"],
)
async def test_who_answers_badly_has_not_answered(
    said: tuple[bytes, ...], stays: bool, problem: DeliveryProblem
) -> None:
    listener = await Listener(*said, stays=stays).open()
    deadlines = QUICK if problem is DeliveryProblem.TIMEOUT else PATIENT
    assert await post(listener, listener.place(), deadlines=deadlines) is problem


async def test_where_nobody_listens_it_is_told() -> None:
    assert (
        await post(Listener(), WebhookTarget("http", "127.0.0.1", 1, "/", True))
        is DeliveryProblem.REFUSED
    )


async def test_the_next_address_is_tried_where_nobody_is_at_the_first() -> None:
    listener = await Listener(b"HTTP/1.1 200 OK\r\n\r\n").open()
    names = Names(["127.0.0.9", "127.0.0.1"])
    assert await post(listener, listener.place("hooks.internal"), 0, names) == HttpReply(200)


@pytest.mark.parametrize(
    "answers",
    [
        ["127.0.0.1"],
        ["93.184.215.14", "10.0.0.1"],
        ["169.254.169.254"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["fe80::1%eth0"],
        ["224.0.0.1"],
        ["0.0.0.0"],
        [],
    ],
)
async def test_attack_9_a_public_name_that_leads_inside_is_not_connected_to(
    answers: list[str],
) -> None:
    listener = await Listener(b"HTTP/1.1 200 OK\r\n\r\n").open()
    place = listener.place("hooks.example.org", named=False)
    assert await post(listener, place, 0, Names(answers)) is DeliveryProblem.FORBIDDEN
    assert listener.heard == []


async def test_attack_9_a_name_that_changes_its_mind_is_asked_once_each_time() -> None:
    """DNS rebinding: what was looked at is what is connected to, for there is no second look."""
    listener = await Listener(b"HTTP/1.1 200 OK\r\n\r\n").open()
    names = Names(["192.0.2.1"], ["127.0.0.1"])
    place = listener.place("hooks.internal")
    # A named one may be anywhere: so it is seen which answer was used.
    first = await post(listener, place, 0, names, QUICK)
    assert first in (DeliveryProblem.TIMEOUT, DeliveryProblem.REFUSED)
    assert names.asked == ["hooks.internal"]
    assert listener.heard == []
    assert await post(listener, place, 0, names) == HttpReply(200)
    assert names.asked == ["hooks.internal"] * 2


@pytest.mark.parametrize("private", PRIVATE)
async def test_attack_9_a_name_that_turns_inside_is_never_dialled(
    private: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Posts to a subscriber and to the push service of a browser, by turns."""
    for rebinding in rebindings(private):
        with monkeypatch.context() as patched:
            loop = asyncio.get_running_loop()
            patched.setattr(loop, "create_connection", rebinding.dial)
            sender = HttpWebhookSender(rebinding.resolve, PATIENT)
            notifiers = NotifierPosts(sender, AllowedHosts())
            for _ in range(3):
                place = WebhookTarget("https", "hooks.example.org", 443, "/x", False)
                found = await sender.post(place, {}, BODY)
                assert found in (DeliveryProblem.FORBIDDEN, DeliveryProblem.REFUSED)
                with pytest.raises(Unavailable):
                    await notifiers.post_public("https://push.example.org/x", {}, BODY)
        assert len(rebinding.asked) == 6
        assert set(rebinding.dialled) <= {PUBLIC}


async def test_attack_9_a_name_that_was_dialled_once_is_checked_again_the_next_time() -> None:
    """No connection and no address of an earlier post is used for a later one."""
    listener = await Listener(b"HTTP/1.1 200 OK\r\nconnection: keep-alive\r\n\r\n").open()
    names = Names(["127.0.0.1"], ["169.254.169.254"], ["127.0.0.1"])
    sender = HttpWebhookSender(names, PATIENT)
    named, unnamed = (listener.place("hooks.internal", named=each) for each in (True, False))
    assert await sender.post(named, {}, BODY) == HttpReply(200)
    assert await sender.post(unnamed, {}, BODY) is DeliveryProblem.FORBIDDEN
    assert await sender.post(unnamed, {}, BODY) is DeliveryProblem.FORBIDDEN
    assert len(listener.heard) == 1


async def test_attack_9_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    made = a_certificate(tmp_path, "hooks.internal")
    listener = await Listener(b"HTTP/1.1 200 OK\r\n\r\n").open(made.server)
    trusting = HttpWebhookSender(Names(["127.0.0.1"]), PATIENT, made.client)
    async with asyncio.timeout(30):
        good = listener.place("hooks.internal", "https")
        assert await trusting.post(good, {}, BODY) == HttpReply(200)
        other = listener.place("other.internal", "https")
        assert await trusting.post(other, {}, BODY) is DeliveryProblem.TLS
        doubting = HttpWebhookSender(Names(["127.0.0.1"]), PATIENT)
        assert await doubting.post(good, {}, BODY) is DeliveryProblem.TLS


async def test_a_proxy_is_used_only_where_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1/")
    listener = await Listener(b"HTTP/1.1 200 OK\r\n\r\n").open()
    assert await post(listener, listener.place()) == HttpReply(200)
