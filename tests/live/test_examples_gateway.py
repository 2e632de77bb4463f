"""The examples through a whole gateway: memory, compliance, GitLab, mail and chat. (MCPL §15)"""

import asyncio
import imaplib
import json
import subprocess
import sys
from collections.abc import Callable, Generator
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
from tests.live.end_to_end import Stage, fetch, models, seat, until, words_in

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
STATED = "The greenhouse extension grows to 8-10 beds."
ASKED = "How's the greenhouse project?"


@pytest.mark.requirement("MCPL-10.1-before", "MCPL-10.2-result", "MCPL-10.5-notification")
@pytest.mark.requirement("MCPL-15.1-memory")
async def test_what_was_said_stands_in_a_prompt_after_all_has_been_restarted(
    tmp_path: Path,
) -> None:
    script = ({"text": "Well.", "when": "project"}, {"text": "I see.", "when": "grows"})
    with models(*script) as served:
        stage = Stage.of("memory_server", tmp_path, served)
        with stage.gateway() as origin:
            async with seat(origin, "home") as ana:
                await ana.say(STATED)
                assert await until(ana.said) == ["I see."]
            await until(lambda: remembered(tmp_path))
        (first,) = served.asked()
        assert "<memories>" not in words_in(first)
        # Another process of everything, and another conversation: only the server knows.
        with stage.gateway():
            turn = await stage.turn(ASKED, "another")
            assert (turn["reply"], turn["state"]) == ("Well.", "done")
            # Which set of which server had a part in it is told to whoever looks at the turn.
            assert "memory" in str(turn["injected"])
            before = await until(lambda: stage.journal("dev.comity.hook_called"))
        prompt = words_in(served.asked()[-1])
        assert STATED in prompt
        assert ASKED in prompt
        hooked = [each for each in before if "beforeInference" in str(each)]
        assert any("memory.retrieval" in str(each) for each in hooked)


@pytest.mark.requirement("MCPL-11.1-request", "MCPL-11.3-result")
@pytest.mark.requirement("MCPL-15.1-memory")
async def test_memories_are_summed_up_by_the_gateways_own_model(tmp_path: Path) -> None:
    summary = "The fair has twelve tents."
    script = ({"text": summary, "when": "^Summarize"}, {"text": "Yes.", "when": "fair"})
    with models(*script) as served:
        stage = Stage.of("memory_server", tmp_path, served)
        with stage.gateway():
            stated = " ".join(f"Tent {each} of the fair is number {each}." for each in range(12))
            await stage.turn(stated, "fair")
            await until(lambda: any("Summarize" in words_in(each) for each in served.asked()))

            async def recalled() -> str:
                await stage.turn("What is at the fair?", "elsewhere")
                return words_in(served.asked()[-1])

            while summary not in (prompt := await recalled()):
                pass
            assert "Tent 3" not in prompt


@pytest.mark.requirement("MCPL-9.1-event", "MCPL-9.3-accepted")
@pytest.mark.requirement("MCPL-15.1-memory")
async def test_a_reminder_is_a_turn_that_is_answered_in_the_topic_once(tmp_path: Path) -> None:
    script = ({"text": "Time to call!", "when": "^(?!.*Remind).*printer"}, {"text": "I will."})
    with models(*script) as served:
        stage = Stage.of("memory_server", tmp_path, served)
        with stage.gateway() as origin:
            async with seat(origin, "home") as ana:
                await ana.say("Remind me in 1 second to call the printer.")
                await until(lambda: "Time to call!" in ana.said())
        with stage.gateway() as origin:
            async with seat(origin, "home") as ana:
                await stage.turn("Nothing more?", "later")
                assert ana.said() == []
            pushed = await until(lambda: stage.journal("dev.comity.push_received"))
            assert len(pushed) == 1


def remembered(folder: Path) -> bool:
    """Whether the server's own file has it."""
    return STATED.encode() in (folder / "data" / "memories.db").read_bytes()


SECRET: Final = "sk-1234567890abcdef"
SAID: Final = f"The API key is {SECRET}, and mail goes to ana@example.org."
SHOWN: Final = "The API key is [REDACTED], and mail goes to [REDACTED]."
BREAKS: Final = 'text, found = redact(turn.answer or "")'


@pytest.mark.requirement(
    *("MCPL-10.5-request", "MCPL-10.5-params", "MCPL-10.5-result", "MCPL-13.2-audit"),
    "MCPL-15.2-compliance",
)
async def test_a_secret_of_the_model_is_redacted_wherever_it_goes_and_that_is_journaled(
    tmp_path: Path,
) -> None:
    with models({"text": SAID, "when": "key"}, {"text": "Nothing new.", "when": "new"}) as served:
        stage = Stage.of("compliance_server", tmp_path, served)
        with stage.gateway() as origin:
            async with seat(origin, "desk") as ana:
                await ana.say("What's the API key?")
                assert await until(ana.said) == [SHOWN]
                turn = await stage.turn("And the API key for me?", "api")
                assert (turn["reply"], turn["text"]) == (SHOWN, SHOWN)
                assert "compliance" in str(turn["rewrote"])
                assert (await stage.turn("What's new?", "api"))["reply"] == "Nothing new."
            rewritten = await until(lambda: stage.journal("dev.comity.response_rewritten"))
            assert len(rewritten) == 2
            assert "compliance.redaction" in str(rewritten[0])
            assert turn["id"] in str(rewritten)
            listed = await stage.api("turns")
            assert SECRET not in str(listed)
            assert SECRET not in str(stage.journal())
        # The model reads its own words as they went out.
        assert not any(SECRET in str(each) for each in served.asked())
        assert SECRET not in stage.said
        assert not [each for each in stored(tmp_path) if SECRET.encode() in each]


@pytest.mark.requirement("MCPL-13.3-failclosed")
async def test_where_it_fails_nothing_goes_out_if_its_operator_said_so(tmp_path: Path) -> None:
    with models({"text": SAID}) as served:
        stage = Stage.of("compliance_server", tmp_path, served)
        stage.rewrite(BREAKS, 'raise RuntimeError("the list of patterns is gone")', "server.py")
        with stage.gateway() as origin:
            async with seat(origin, "desk") as ana:
                await ana.say("What's the API key?")
                await until(ana.said)
                turn = await stage.turn("And for me?", "api")
                assert turn["state"] != "done"
                assert SECRET not in str([ana.said(), turn])
        assert SECRET not in stage.said


@pytest.mark.requirement("MCPL-13.3-failopen")
async def test_where_it_fails_words_go_out_as_they_are_if_its_operator_said_so(
    tmp_path: Path,
) -> None:
    with models({"text": SAID}, {"text": SAID}) as served:
        stage = Stage.of("compliance_server", tmp_path, served)
        stage.rewrite(BREAKS, 'raise RuntimeError("the list of patterns is gone")', "server.py")
        stage.rewrite('on_failure = "closed"', 'on_failure = "open"')
        with stage.gateway():
            turn = await stage.turn("What's the API key?", "api")
            assert turn["state"] == "done"
            assert turn["reply"].startswith("The API key is ")


async def test_a_server_that_cannot_be_started_lets_nothing_out_either(tmp_path: Path) -> None:
    with models({"text": SAID}) as served:
        stage = Stage.of("compliance_server", tmp_path, served)
        (tmp_path / "server.py").write_text("raise SystemExit(1)\n", "utf-8")
        with stage.gateway():
            turn = await stage.turn("What's the API key?", "api")
            assert turn["state"] != "done"
            assert SECRET not in str(turn)


def stored(folder: Path) -> list[bytes]:
    """All that the gateway's store has, also what it has let go of."""
    return [each.read_bytes() for each in folder.glob("comity.db*")]


TOKEN: Final = "a-token-that-gitlab-was-given"
ANSWER: Final = "Somebody should look at the login."
PUSHED: Final = json.dumps(
    {
        "object_kind": "push",
        "ref": "refs/heads/main",
        "user_name": "release-bot",
        "project": {"path_with_namespace": "harbour/tides"},
        "total_commits_count": 1,
        "commits": [{"message": "round at midnight"}],
    }
).encode()
type Post = Callable[..., int]


def posting(url: str) -> Post:
    """Posts as GitLab does; gives the status of the answer."""

    def post(key: str = "0af5", token: str = TOKEN, body: bytes = PUSHED) -> int:
        headers = {
            "X-Gitlab-Event": "Push Hook",
            "X-Gitlab-Token": token,
            "Idempotency-Key": key,
            "X-Gitlab-Event-UUID": f"try-of-{key}",
        }
        return fetch(url, body, headers)[0]

    return post


@pytest.mark.requirement("MCPL-9.4-dedupe", "MCPL-9.3-inferenceId")
async def test_gitlab_needs_no_server_and_what_it_posts_five_times_is_answered_once(
    tmp_path: Path,
) -> None:
    with models({"text": ANSWER, "when": "round at midnight"}) as served:
        stage = Stage.of("gitlab_webhook", tmp_path, served)
        (tmp_path / "gitlab.token").write_text(TOKEN + "\n", "utf-8")
        (tmp_path / "gitlab.token").chmod(0o600)
        with stage.gateway() as origin:
            post = posting(f"{origin}/hooks/gitlab")
            async with seat(origin, "builds") as ana:
                for wrong in ("", "a-token-that-others-were-given"):
                    assert await asyncio.to_thread(post, token=wrong) in (401, 403, 404)
                assert served.asked() == []
                tries = await asyncio.gather(*(asyncio.to_thread(post) for _ in range(5)))
                assert all(200 <= status < 300 for status in tries), tries
                assert await until(ana.said) == [ANSWER]
                # Another event of the same project is in the same conversation.
                assert 200 <= await asyncio.to_thread(post, "0af6") < 300
                assert await until(lambda: ana.said()[1:]) == [ANSWER]
                assert 200 <= await asyncio.to_thread(post) < 300
        with stage.gateway() as origin:
            # What it posts again after a restart it has posted before.
            post = posting(f"{origin}/hooks/gitlab")
            assert 200 <= await asyncio.to_thread(post) < 300
            turns = (await stage.api("turns"))["turns"]
        assert len(turns) == 2
        assert len({each["conversation"] for each in turns}) == 1
        assert len(served.asked()) == 2
        assert "round at midnight" in words_in(served.asked()[0])
        assert TOKEN not in stage.said


@pytest.mark.requirement("MCPL-9.1-event", "MCPL-9.2-eventId", "MCPL-9.4-stable")
async def test_a_server_that_hears_gitlab_itself_pushes_each_event_once(tmp_path: Path) -> None:
    port = free_port()
    with models({"text": ANSWER, "when": "round at midnight"}) as served:
        stage = Stage.of(
            "gitlab_webhook", tmp_path, served, GITLAB_TOKEN=TOKEN, GITLAB_PORT=str(port)
        )
        post = posting(f"http://127.0.0.1:{port}/")
        with stage.gateway("server.toml") as origin:
            await until(lambda: accepts(port))
            async with seat(origin, "builds") as ana:
                assert await asyncio.to_thread(post, token="another") == 401
                assert await until(lambda: post() == 200)
                assert [await asyncio.to_thread(post) for _ in range(4)] == [200] * 4
                assert await until(ana.said) == [ANSWER]
            pushed = await until(lambda: stage.journal("dev.comity.push_received"))
            assert len(pushed) == 1
            assert "gitlab.notifications" in str(pushed)
            turns = (await stage.api("turns"))["turns"]
        assert len(turns) == 1
        assert turns[0]["conversation"] == "gitlab/harbour/tides"
        assert TOKEN not in stage.said


ADDRESS: Final = "desk@example.org"
PASSWORD: Final = "the password of the desk"
CONNECTOR_ANSWER: Final = "We are open until six in the evening."


# A mailbox: letters are kept by a real IMAP server, and taken by a real SMTP server.
@dataclass
class Mailbox:
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
def smtp(post: Mailbox) -> Generator[str]:
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
    post = Mailbox()
    with (
        models({"text": CONNECTOR_ANSWER, "when": "When"}) as served,
        smtp(post) as out,
        imap() as box,
    ):
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
            assert CONNECTOR_ANSWER in letter
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
            said = _post(origin, "send", channel=opened["id"], text="Good morning.")
            assert said["delivered"]
            assert "channel_not_opened" in _refused(origin, "open", type="fax", address={})
            assert "channel_unknown" in _refused(origin, "send", channel="mail:x/y", text="hi")
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
    with models({"text": CONNECTOR_ANSWER, "when": "open"}) as served, chat() as (url, posted):
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
                assert bo.said() == ["ana (chat/chat:town-square): Are you open?", CONNECTOR_ANSWER]
                # The chat's own webhook tells us of what we posted: nothing comes of it.
                for id in ("p2", "p3"):
                    assert await asyncio.to_thread(write, CONNECTOR_ANSWER, id) == 200
                assert await asyncio.to_thread(write, "Are you open?", "p1") == 200
                # Who is in the topic is heard in the chat.
                await bo.say("I am here as well.")
                await until(lambda: len(posted) == 2)
                assert posted == [
                    {"channel": "town-square", "text": CONNECTOR_ANSWER},
                    {"channel": "town-square", "text": f"{bo.me.id}: I am here as well."},
                ]
            assert len(served.asked()) == 1
            (shown,) = json.loads(_comity(origin, "channels", "-o", "json"))["channels"]
            assert shown["address"] == {"channel": "town-square"}
            assert shown["metadata"] == {"delivery": "webhook"}
            assert "#town-square" in _comity(origin, "channels")
            said = _comity(origin, "channels", "send", "chat", "chat:town-square", "Good night.")
            assert said == "Delivered.\n"
            assert posted[-1] == {"channel": "town-square", "text": "Good night."}
            closed = _comity(origin, "channels", "close", "chat", "chat:town-square")
            assert closed == "Closed chat:town-square of chat.\n"
            assert [each["state"] for each in _channels(origin)] == ["closed"]


def _comity(origin: str, *words: str) -> str:
    command = [str(Path(sys.executable).with_name("comity")), *words, "--url", origin]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done
    return done.stdout
