"""The connectors of the examples through a whole gateway: words come in and are answered once."""

import asyncio
import imaplib
import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest
from aiosmtpd.controller import Controller

from tests.interop.processes import accepts, free_port, running
from tests.live.end_to_end import Stage, fetch, models, seat, until

pytestmark = pytest.mark.timeout(300)

ADDRESS: Final = "desk@example.org"
PASSWORD: Final = "the password of the desk"
ANSWER: Final = "We are open until six in the evening."


# A mailbox: letters are kept by a real IMAP server, and taken by a real SMTP server.


@dataclass
class Post:
    """Where letters arrive that were sent."""

    letters: list[Any] = field(default_factory=list[Any])
    refuses: int = 0

    async def handle_DATA(  # noqa: N802  # the name that its caller looks for
        self, server: object, session: object, envelope: Any
    ) -> str:
        if self.refuses:
            self.refuses -= 1
            return "451 try again later"
        self.letters.append(envelope)
        return "250 taken"


@contextmanager
def smtp(post: Post) -> Generator[str]:
    controller = Controller(post, hostname="127.0.0.1", port=0)
    controller.port = free_port()
    controller.start()
    try:
        yield f"smtp://127.0.0.1:{controller.port}"
    finally:
        controller.stop()


@contextmanager
def imap() -> Generator[str]:
    port = free_port()
    name = str(Path(sys.executable).with_name("pymap"))
    user = ["dict", "--demo-user", ADDRESS, "--demo-password", PASSWORD]
    command = [name, "--host", "127.0.0.1", "--port", str(port), "--no-tls", *user]
    with running(command) as program:
        program.wait_until(lambda: accepts(port))
        yield f"imap://127.0.0.1:{port}"


def deliver(url: str, text: str, **headers: str) -> None:
    """A letter arrives in the mailbox."""
    letter = EmailMessage()
    usual = {"From": "Ana <ana@example.net>", "To": ADDRESS, "Subject": "Opening hours"}
    for name, value in {**usual, **headers}.items():
        letter[name.replace("_", "-")] = value
    letter.set_content(text)
    with imaplib.IMAP4("127.0.0.1", int(url.rpartition(":")[2]), 30) as box:
        box.login(ADDRESS, PASSWORD)
        box.append("INBOX", "", "", letter.as_bytes())


def unread(url: str) -> int:
    with imaplib.IMAP4("127.0.0.1", int(url.rpartition(":")[2]), 30) as box:
        box.login(ADDRESS, PASSWORD)
        box.select("INBOX")
        found: list[Any] = box.uid("SEARCH", "UNSEEN")[1]
        return len((found[0] or b"").split())


@pytest.mark.requirement("MCPL-14.2-id", "MCPL-14.2-type", "MCPL-14.2-label", "MCPL-14.2-direction")
@pytest.mark.requirement("MCPL-14.2-address", "MCPL-14.3-changed", "MCPL-14.3-publishack")
@pytest.mark.requirement("MCPL-14.3-incoming", "MCPL-14.3-incomingmsg", "MCPL-4.1-chincoming")
@pytest.mark.requirement("MCPL-14.3-open", "MCPL-4.1-chopen", "MCPL-14.6-32024")
@pytest.mark.requirement("MCPL-14.6-32023")
async def test_a_letter_comes_in_and_the_answer_goes_out_once(tmp_path: Path) -> None:
    post = Post()
    with models({"text": ANSWER, "when": "When"}) as served, smtp(post) as out, imap() as box:
        mailbox = {"MAIL_ADDRESS": ADDRESS, "MAIL_IMAP": box, "MAIL_SMTP": out}
        given = {**mailbox, "MAIL_PASSWORD": PASSWORD, "MAIL_EVERY": "0.2"}
        stage = Stage.of("connectors", tmp_path, served, **given)
        with stage.gateway("mail.toml") as origin:
            deliver(box, "When are you open?\n\n> quoted", Message_ID="<1@example.net>")
            deliver(box, "When I am away", Auto_Submitted="auto-replied", Message_ID="<2@a.b>")
            deliver(box, "When we meet", From=ADDRESS, Message_ID="<3@example.org>")
            await until(lambda: post.letters and not unread(box), what="no letter went out")
            (sent,) = post.letters
            assert sent.rcpt_tos == ["ana@example.net"]
            letter = sent.content.decode()
            assert ANSWER in letter
            assert "Subject: Re: Opening hours" in letter
            assert "In-Reply-To: <1@example.net>" in letter
            assert "Auto-Submitted: auto-replied" in letter
            (asked,) = served.asked()
            assert "When are you open?" in str(asked)
            assert "quoted" not in str(asked)

            listed = _channels(origin)
            assert [each["label"] for each in listed] == ["ana@example.net: Opening hours"]
            assert listed[0]["type"] == "mail"
            assert listed[0]["id"].startswith("mail:ana@example.net/")
            assert listed[0]["direction"] == "bidirectional"
            assert listed[0]["address"] == {"to": "ana@example.net", "subject": "Opening hours"}
            assert listed[0]["state"] == "open"
            # The same letter once more, as a mailbox that was restored has it.
            deliver(box, "When are you open?", Message_ID="<1@example.net>")
            await until(lambda: not unread(box))
            # And a thread that we begin ourselves.
            opened = _post(origin, "open", type="mail", address={"to": "bo@example.net"})
            said = _post(origin, "say", channel=opened["id"], text="Good morning.")
            assert said["delivered"]
            assert "channel_not_opened" in _refused(origin, "open", type="fax", address={})
            assert "channel_unknown" in _refused(origin, "say", channel="mail:x/y", text="hi")
            await until(lambda: len(post.letters) == 2)
            assert post.letters[1].rcpt_tos == ["bo@example.net"]
        # After a restart of everything nothing is answered again, and what was refused goes out.
        post.refuses = 1
        with stage.gateway("mail.toml"):
            deliver(box, "When is lunch?", Message_ID="<4@example.net>", Subject="Lunch")
            await until(lambda: len(post.letters) == 3)
        assert [each.rcpt_tos for each in post.letters][2] == ["ana@example.net"]
        assert len(served.asked()) == 2
        assert len(post.letters) == 3


def _post(origin: str, deed: str, server: str = "mail", **body: object) -> dict[str, Any]:
    told = json.dumps({"server": server, **body}).encode()
    status, answer = fetch(f"{origin}/api/channels/{deed}", told)
    assert status == 200, answer
    return json.loads(answer)


def _refused(origin: str, deed: str, **body: object) -> str:
    told = json.dumps({"server": "mail", **body}).encode()
    status, answer = fetch(f"{origin}/api/channels/{deed}", told)
    assert status >= 400, answer
    return answer.decode()


def _channels(origin: str) -> list[dict[str, Any]]:
    return json.loads(fetch(f"{origin}/api/channels")[1])["channels"]


# A chat: it has an incoming webhook, and posts what people write.


@contextmanager
def chat() -> Generator[tuple[str, list[dict[str, Any]]]]:
    posted: list[dict[str, Any]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", "0"))
            posted.append(json.loads(self.rfile.read(length)))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hooks/x", posted
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.requirement("MCPL-14.3-register", "MCPL-4.1-chregister")
@pytest.mark.requirement("MCPL-14.2-metadata", "MCPL-4.1-chpublish", "MCPL-14.3-close")
@pytest.mark.requirement("MCPL-4.1-chclose")
async def test_a_chat_with_webhooks_is_answered_and_is_a_topic_too(tmp_path: Path) -> None:
    port = free_port()
    with models({"text": ANSWER, "when": "open"}) as served, chat() as (url, posted):
        given = {"CHAT_URL": url, "CHAT_TOKEN": "t0ken", "CHAT_PORT": str(port)}
        stage = Stage.of("connectors", tmp_path, served, **given)
        with stage.gateway("webhook_chat.toml") as origin:

            def write(text: str, id: str, **more: str) -> int:
                said = {"token": "t0ken", "channel_name": "town-square", "user_name": "ana"}
                body = json.dumps({**said, "post_id": id, "text": text, **more}).encode()
                return fetch(f"http://127.0.0.1:{port}/", body)[0]

            await until(lambda: accepts(port))
            await until(lambda: [each["state"] for each in _channels(origin)] == ["open"])
            async with seat(origin, "town", "bo") as bo:
                assert await asyncio.to_thread(write, "x", "0", token="wrong") == 401
                await until(lambda: write("Are you open?", "p1") == 200)
                await until(lambda: posted, what=stage.said)
                await until(lambda: len(bo.said()) == 2)
                assert bo.said() == ["ana (chat/chat:town-square): Are you open?", ANSWER]
                # The chat's own webhook tells us of what we posted: nothing comes of it.
                for id in ("p2", "p3"):
                    assert await asyncio.to_thread(write, ANSWER, id) == 200
                assert await asyncio.to_thread(write, "Are you open?", "p1") == 200
                # Who is in the topic is heard in the chat.
                await bo.say("I am here as well.")
                await until(lambda: len(posted) == 2)
                assert posted == [
                    {"channel": "town-square", "text": ANSWER},
                    {"channel": "town-square", "text": f"{bo.me.id}: I am here as well."},
                ]
            assert len(served.asked()) == 1
            (shown,) = json.loads(_comity(origin, "channels", "--json"))["channels"]
            assert shown["address"] == {"channel": "town-square"}
            assert shown["metadata"] == {"delivery": "webhook"}
            assert "#town-square" in _comity(origin, "channels")
            said = _comity(origin, "channels", "say", "chat", "chat:town-square", "Good night.")
            assert said == "It was delivered.\n"
            assert posted[-1] == {"channel": "town-square", "text": "Good night."}
            closed = _comity(origin, "channels", "close", "chat", "chat:town-square")
            assert closed == "chat:town-square of chat is closed.\n"
            assert [each["state"] for each in _channels(origin)] == ["closed"]


def _comity(origin: str, *words: str) -> str:
    command = [str(Path(sys.executable).with_name("comity")), *words, "--url", origin]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done
    return done.stdout
