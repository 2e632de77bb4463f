"""Posts to an operator's address: signed, bounded in time, and nothing is followed."""

import hashlib
import hmac
import ssl
import threading
import time
from collections.abc import Generator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, override

import pytest

from comity.approvals.presentation import SIGNATURE_HEADER
from comity.errors import Misconfigured, Unavailable
from comity.events.webhooks.approval_notices import ApprovalWebhook
from comity.http.client.client import default_tls
from tests.support.cases import loop_over

SECRET = b"a secret of the webhook's own"
NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


class Receiver:
    """A real HTTP server that answers as it is told, and keeps what it got."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[bytes] = []
        self.arrived = threading.Condition()
        receiver = self

        class Visits(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with receiver.arrived:
                    said = {name.lower(): value for name, value in self.headers.items()}
                    receiver.heard.append((self.path, said, body))
                    answer = receiver.answers.pop(0) if receiver.answers else OK
                    receiver.arrived.notify_all()
                self.wfile.write(answer)
                self.close_connection = True

            @override
            def log_message(self, format: str, *args: object) -> None:
                """Nothing: pytest shows what failed."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Visits)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?team=a"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def wait_for(self, count: int, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        with self.arrived:
            while len(self.heard) < count:
                assert time.monotonic() < deadline, len(self.heard)
                self.arrived.wait(0.5)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(10)


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def status(code: int, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d Whatever\r\n%bcontent-length: 0\r\n\r\n" % (code, more)


@pytest.fixture
def receiver() -> Generator[Receiver]:
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()


def hook(receiver: Receiver, **said: Any) -> ApprovalWebhook:
    return ApprovalWebhook(receiver.url, SECRET, clock=lambda: NOW, **said)


async def test_a_post_is_signed_so_that_its_receiver_can_check_it(receiver: Receiver) -> None:
    await hook(receiver).post(b'{"type":"approval.requested"}')
    ((path, headers, body),) = receiver.heard
    assert (path, body) == ("/hook?team=a", b'{"type":"approval.requested"}')
    assert headers["content-type"] == "application/json"
    moment, signed = (
        each.partition("=")[2] for each in headers[SIGNATURE_HEADER.lower()].split(",")
    )
    over = moment.encode() + b"." + body
    assert signed == hmac.new(SECRET, over, hashlib.sha256).hexdigest()
    assert int(moment) == int(NOW.timestamp())


@pytest.mark.parametrize(
    "answer",
    [
        status(500),
        status(404),
        status(302, b"location: http://127.0.0.1:1/elsewhere\r\n"),
        b"what is this\r\n\r\n",
        b"HTTP/1.1 xyz\r\n\r\n",
        b"",
        b"x" * 5000,
    ],
    ids=["500", "404", "redirected", "no HTTP", "no status", "nothing", "endless"],
)
async def test_what_is_not_taken_is_told_and_nothing_is_followed(
    receiver: Receiver, answer: bytes
) -> None:
    receiver.answers.append(answer)
    with pytest.raises(Unavailable) as refused:
        await hook(receiver).post(b"{}")
    assert len(receiver.heard) == 1
    assert "team=a" not in str(refused.value)


async def test_a_long_answer_is_not_read(receiver: Receiver) -> None:
    receiver.answers.append(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 10_000_000)
    await hook(receiver).post(b"{}")


async def test_nobody_waits_for_long(receiver: Receiver) -> None:
    gate = threading.Event()
    receiver.server.RequestHandlerClass.do_POST = lambda _: gate.wait(60)  # type: ignore[attr-defined]
    try:
        with pytest.raises(Unavailable):
            await hook(receiver, seconds=0.2).post(b"{}")
    finally:
        gate.set()


async def test_a_certificate_is_looked_at(receiver: Receiver) -> None:
    secure = ApprovalWebhook(receiver.url.replace("http:", "https:"), SECRET)
    assert default_tls().verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(Unavailable):
        await secure.post(b"{}")
    assert receiver.heard == []


@loop_over(
    "url",
    [
        "",
        "hooks",
        "ftp://x/",
        "http://",
        "http://a b/",
        "http://x:0/",
        "https://u:p@x/",
        "http://x/\n",
    ],
)
def test_what_is_no_address_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(Misconfigured):
        ApprovalWebhook(url, SECRET)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(Misconfigured):
        ApprovalWebhook("https://hooks.example.org/x", b"short")


def test_what_is_said_of_it_holds_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    webhook = ApprovalWebhook("http://hooks.example.org/services/T0/SECRETPATH?k=v", SECRET)
    assert repr(webhook) == "Webhook(http://hooks.example.org)"
    assert "not encrypted" in caplog.text
    assert "SECRETPATH" not in caplog.text
