"""The channels of notifiers against real HTTP and SMTP servers: formats, escapes and secrets."""

import asyncio
import hashlib
import hmac
import json
import re
import ssl
import threading
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import SMTP as SMTP_POLICY
from html import unescape
from typing import Any, NamedTuple, cast

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

from comity.approvals.model import (
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.approvals.notifiers.email import EmailChannel, address_of
from comity.approvals.notifiers.messages import notice_text, notice_type
from comity.approvals.notifiers.model import (
    ApprovalNotice,
    LinkMode,
    MailSecurity,
    NoticePhase,
    NotifierKind,
    NotifierSettings,
)
from comity.approvals.notifiers.slack import SlackChannel, escape_mrkdwn
from comity.approvals.notifiers.teams import TeamsChannel
from comity.approvals.notifiers.webhook import WebhookChannel
from comity.approvals.presentation import SIGNATURE_HEADER
from comity.errors import Misconfigured, Unavailable
from tests.events.certificates import a_certificate
from tests.support.http_receiver import Receiver, answer, status
from tests.support.notifier_scene import ANA, NOW, a_request, an_entry, the_posts

SECRET = b"a secret of the webhook's own"
HOSTILE = (
    "<!channel> <https://evil.example|click> [x](https://evil.example) *b* _i_ `c` "
    "<script>alert(1)</script> \r\nBcc: evil@example.org\r\n\r\n<img src=x> {{DATE(2026)}} "
    "https://evil.example/a \u202e\x1b[31m &amp; @here"
)


@pytest.fixture
def receiver() -> Generator[Receiver]:
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()


def page_url(request: ApprovalRequest, person: str) -> str:
    return f"https://comity.example.org/approvals/{request.id}{'?for=' + person if person else ''}"


def a_notice(phase: NoticePhase = NoticePhase.REQUESTED, **changed: Any) -> ApprovalNotice:
    return ApprovalNotice(phase, NOW, (a_request(**changed),), ANA)


def hostile_notice() -> ApprovalNotice:
    about = {"tool": HOSTILE, "risk": "dangerous", "arguments": {HOSTILE: HOSTILE}}
    return a_notice(asker=HOSTILE, server=HOSTILE, tool=HOSTILE, message=HOSTILE, about=about)


# Webhook.


def a_webhook(url: str, timeout: float = 10.0, **said: Any) -> WebhookChannel:
    return WebhookChannel(the_posts(timeout), url, SECRET, page_url, clock=lambda: NOW, **said)


async def test_a_post_is_signed_so_that_its_receiver_can_check_it(receiver: Receiver) -> None:
    notice = replace(a_notice(), approvers=(ANA,))
    await a_webhook(receiver.url).send(notice)
    ((path, headers, body),) = receiver.heard
    assert path == "/hook?team=a"
    assert headers["content-type"] == "application/json"
    signature = headers[SIGNATURE_HEADER.lower()]
    moment, signed = (each.partition("=")[2] for each in signature.split(","))
    over = moment.encode() + b"." + body
    assert signed == hmac.new(SECRET, over, hashlib.sha256).hexdigest()
    said = json.loads(body)
    assert said["type"] == "approval.requested"
    assert said["text"] == (
        "agent:ci wants to call files__write (dangerous); "
        "it can be answered until 2026-11-15 12:15:30 UTC"
    )
    assert said["approval"]["about"]["arguments"] == {"path": "/a"}
    assert said["links"] == [{"principal": ANA, "url": page_url(notice.request, ANA)}]


@pytest.mark.parametrize(
    "reply",
    [
        status(500),
        status(404),
        status(302, b"location: http://127.0.0.1:1/elsewhere\r\n"),
        b"what is this\r\n\r\n",
        b"",
    ],
    ids=["500", "404", "redirected", "no HTTP", "nothing"],
)
async def test_a_refused_post_is_an_error_without_the_path(
    receiver: Receiver, reply: bytes
) -> None:
    receiver.answers.append(reply)
    with pytest.raises(Unavailable) as refused:
        await a_webhook(receiver.url).send(a_notice())
    assert len(receiver.heard) == 1
    assert "team=a" not in str(refused.value)


async def test_a_silent_receiver_is_given_up(receiver: Receiver) -> None:
    receiver.gate = threading.Event()
    with pytest.raises(Unavailable):
        await a_webhook(receiver.url, timeout=0.2).send(a_notice())


async def test_a_long_notice_has_no_arguments(receiver: Receiver) -> None:
    about = {"tool": "files__write", "arguments": {"text": "x" * 100_000}}
    await a_webhook(receiver.url).send(a_notice(about=about))
    assert receiver.heard[0].json["approval"]["is_shortened"] is True
    assert b"xxxx" not in receiver.heard[0].body


async def test_an_answer_and_an_end_have_their_types_and_no_links(receiver: Receiver) -> None:
    word = ApprovalAnswer(ANA, ApprovalDecision.DECLINE, NOW, "no")
    hook = a_webhook(receiver.url)
    await hook.send(a_notice(NoticePhase.CHANGED, state=ApprovalState.DENIED, answers=(word,)))
    await hook.send(a_notice(NoticePhase.CHANGED, state=ApprovalState.EXPIRED))
    first, second = (each.json for each in receiver.heard)
    assert [first["type"], second["type"]] == ["approval.answered", "approval.ended"]
    assert (first["links"], second["links"]) == ([], [])
    assert f"{ANA} denied it: no." in first["text"]


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(Misconfigured):
        WebhookChannel(the_posts(), "https://x.example", b"short", page_url, clock=lambda: NOW)


def test_a_warning_about_links_that_answer_holds_no_path(
    caplog: pytest.LogCaptureFixture,
) -> None:
    a_webhook("http://hooks.example.org/SECRETPATH", links=LinkMode.ANSWER)
    assert "not encrypted" in caplog.text
    assert "SECRETPATH" not in caplog.text


@pytest.mark.parametrize("state", ApprovalState)
def test_every_state_has_a_type_and_a_text(state: ApprovalState) -> None:
    request = a_request(state=state)
    assert notice_type(request) in ("approval.requested", "approval.answered", "approval.ended")
    assert notice_text(request)


# Teams.


def texts_in(value: object) -> Iterator[str]:
    """Every string of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in cast("dict[str, object]", value).values():
            yield from texts_in(each)
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            yield from texts_in(each)


async def test_teams_gets_a_card_with_one_button_that_opens_the_page(receiver: Receiver) -> None:
    await TeamsChannel(the_posts(), receiver.url, page_url).send(a_notice(quorum=2))
    (attachment,) = receiver.heard[0].json["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    assert card["type"] == "AdaptiveCard"
    url = page_url(a_request(), "")
    assert card["actions"] == [{"type": "Action.OpenUrl", "title": "Open the request", "url": url}]
    assert "Approvals: 0 of 2 approved" in list(texts_in(card))
    assert "/a" not in list(texts_in(card)), "the arguments are on the page only"


async def test_hostile_text_is_only_in_plain_runs_of_a_card(receiver: Receiver) -> None:
    await TeamsChannel(the_posts(), receiver.url, page_url).send(hostile_notice())
    card = receiver.heard[0].json["attachments"][0]["content"]
    for block in card["body"]:
        assert block["type"] == "RichTextBlock"
        for run in block["inlines"]:
            assert run["type"] == "TextRun"
            assert "{{" not in run["text"]
            assert "\n" not in run["text"]
            assert "\u202e" not in run["text"]
    assert "evil.example" not in json.dumps(card["actions"])


# Slack.

USERS = {"U111": ANA}


def a_slack(receiver: Receiver, **changed: Any) -> SlackChannel:
    fields: dict[str, Any] = {"channel": "C1", "users": USERS, "api_url": f"{receiver.origin}/api"}
    fields |= changed
    secrets = {"token": "xoxb-token", "signing_secret": b"signing secret"}
    secrets |= {
        name: fields.pop(name) for name in ("token", "url", "signing_secret") if name in fields
    }
    entry = an_entry("ops", kind=NotifierKind.SLACK, **fields)
    return SlackChannel(entry, the_posts(), page_url, **cast("Any", secrets))


POSTED = answer({"ok": True, "channel": "C1", "ts": "17.5"})


async def test_slack_posts_a_message_with_buttons_and_changes_it_later(receiver: Receiver) -> None:
    receiver.usual = POSTED
    slack = a_slack(receiver)
    reference = await slack.send(a_notice(quorum=2))
    (path, headers, _), said = receiver.heard[0], receiver.heard[0].json
    assert (path, headers["authorization"]) == ("/api/chat.postMessage", "Bearer xoxb-token")
    assert (said["channel"], said["unfurl_links"]) == ("C1", False)
    actions = said["blocks"][-1]["elements"]
    assert [each["action_id"] for each in actions][:2] == ["comity_approve", "comity_deny"]
    assert {each["value"] for each in actions[:2]} == {a_request().id}
    assert "confirm" in actions[0]
    assert "Approvals: 0 of 2 approved" in list(texts_in(said))
    assert any('"path": "/a"' in each for each in texts_in(said)), "who answers sees the arguments"
    word = ApprovalAnswer(ANA, ApprovalDecision.ACCEPT, NOW)
    done = a_notice(NoticePhase.CHANGED, state=ApprovalState.APPROVED, answers=(word,))
    await slack.send(done, reference)
    change = receiver.heard[1]
    assert change.path == "/api/chat.update"
    assert (change.json["channel"], change.json["ts"]) == ("C1", "17.5")
    assert "actions" not in {each["type"] for each in change.json["blocks"]}


@pytest.mark.parametrize("length", [3_000, 50_000])
async def test_a_message_that_cuts_the_arguments_offers_no_answer(
    receiver: Receiver, length: int
) -> None:
    receiver.usual = POSTED
    arguments = {"text": "x" * length, "then": "rm -r /"}
    await a_slack(receiver).send(a_notice(about={"tool": "a", "arguments": arguments}))
    said = receiver.heard[0].json
    assert [each["text"]["text"] for each in said["blocks"][-1]["elements"]] == ["Open"]
    assert any("too long for Slack" in each for each in texts_in(said))


async def test_without_a_signing_secret_a_message_has_no_buttons_and_no_arguments(
    receiver: Receiver,
) -> None:
    slack = a_slack(receiver, token="", url=receiver.url, channel="", signing_secret=b"")
    await slack.send(a_notice())
    said = receiver.heard[0].json
    assert [each["text"]["text"] for each in said["blocks"][-1]["elements"]] == ["Open"]
    assert not any("/a" in each and "approvals" not in each for each in texts_in(said["blocks"]))


async def test_slack_sends_direct_messages_to_the_people_it_knows(receiver: Receiver) -> None:
    receiver.usual = POSTED
    slack = a_slack(receiver, channel="")
    assert slack.is_personal
    assert (slack.can_reach(ANA), slack.can_reach("person:other")) == (True, False)
    await slack.send(a_notice())
    assert receiver.heard[0].json["channel"] == "U111"


@pytest.mark.parametrize(
    ("error", "kind"), [("invalid_auth", Misconfigured), ("ratelimited", Unavailable)]
)
async def test_an_error_of_slack_is_lasting_or_not(
    receiver: Receiver, error: str, kind: type[Exception]
) -> None:
    receiver.usual = answer({"ok": False, "error": error})
    with pytest.raises(kind, match=error):
        await a_slack(receiver).send(a_notice())


async def test_hostile_text_is_plain_or_escaped_in_slack(receiver: Receiver) -> None:
    receiver.usual = POSTED
    await a_slack(receiver).send(hostile_notice())
    said = receiver.heard[0].json
    assert "<" not in said["text"]
    assert "://" not in said["text"]
    for kind, text in text_objects(said["blocks"]):
        assert kind in ("plain_text", "text"), text
    assert "mrkdwn" not in json.dumps(said["blocks"])
    links = [each.get("url") for each in said["blocks"][-1]["elements"] if each.get("url")]
    assert links == [page_url(a_request(), ANA)]


def text_objects(value: object) -> Iterator[tuple[str, str]]:
    """The type and the text of each object that has a text."""
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        if isinstance(members.get("text"), str):
            yield str(members["type"]), str(members["text"])
        for each in members.values():
            yield from text_objects(each)
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            yield from text_objects(each)


def test_mentions_links_and_entities_are_escaped() -> None:
    assert escape_mrkdwn("<!here> & https://x") == "&lt;!here&gt; &amp; https:/ /x"


# E-mail.


class Mailbox:
    """Takes mail as a real server does, and keeps it."""

    def __init__(self) -> None:
        self.mail: list[tuple[Envelope, EmailMessage]] = []
        self.were_encrypted: list[bool] = []

    async def handle_DATA(  # noqa: N802  # the name is aiosmtpd's
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        content = cast("bytes", envelope.content)
        parsed = BytesParser(policy=SMTP_POLICY).parsebytes(content)
        self.mail.append((envelope, parsed))
        self.were_encrypted.append(session.ssl is not None)
        return "250 OK"


def check_password(
    server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any
) -> AuthResult:
    is_right = (data.login, data.password) == (b"comity", b"right")
    return AuthResult(success=is_right, handled=False)


class Certificates(NamedTuple):
    """The certificate of a mail server at localhost, and the file that makes it trusted."""

    server: ssl.SSLContext
    authority: str


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("mail")
    made = a_certificate(folder, "localhost")
    return Certificates(made.server, str(folder / "certificate.pem"))


@asynccontextmanager
async def a_mail_server(
    server_tls: ssl.SSLContext | None,
) -> AsyncGenerator[tuple[Mailbox, int]]:
    mailbox = Mailbox()
    with_tls = {} if server_tls is None else {"tls_context": server_tls, "require_starttls": True}
    options: dict[str, Any] = {"authenticator": check_password, **with_tls}
    server = await asyncio.get_running_loop().create_server(
        lambda: SMTP(mailbox, hostname="localhost", **options), "127.0.0.1", 0
    )
    async with server:
        yield mailbox, server.sockets[0].getsockname()[1]


def a_mail_channel(port: int, *, knows_password: bool = True, **changed: Any) -> EmailChannel:
    fields: dict[str, Any] = {
        "host": "localhost",
        "port": port,
        "sender": "comity@example.org",
        "username": "comity",
        **changed,
    }
    return EmailChannel(an_entry("mail", **fields), "right" if knows_password else "no", page_url)


@pytest.mark.timeout(120)
async def test_mail_is_sent_with_starttls_in_a_thread_of_messages(
    certificates: Certificates,
) -> None:
    async with a_mail_server(certificates.server) as (mailbox, port):
        channel = a_mail_channel(port, ca_file=certificates.authority)
        await channel.send(a_notice(quorum=2))
        word = ApprovalAnswer(ANA, ApprovalDecision.ACCEPT, NOW)
        await channel.send(
            a_notice(NoticePhase.CHANGED, state=ApprovalState.APPROVED, answers=(word,)), "mail"
        )
        channel.close()
    (envelope, first), (_, second) = mailbox.mail
    assert mailbox.were_encrypted == [True, True]
    assert envelope.rcpt_tos == ["ana@example.org"]
    assert first["Subject"] == "[Comity] agent:ci wants to call files__write"
    assert first["List-Id"] == "Approval requests <mail.approvals.example.org>"
    assert first["Auto-Submitted"] == "auto-generated"
    assert second["In-Reply-To"] == second["References"] == first["Message-ID"]
    assert second["Message-ID"] != first["Message-ID"]
    plain, html = (cast("EmailMessage", each) for each in first.iter_parts())
    assert page_url(a_request(), ANA) in plain.get_content()
    assert "0 of 2 approved" in plain.get_content()
    assert f'href="{page_url(a_request(), ANA)}"' in html.get_content()
    assert '"/a"' not in plain.get_content(), "the arguments are on the page only"
    assert f"{ANA} approved it" in cast("EmailMessage", next(second.iter_parts())).get_content()


@pytest.mark.timeout(120)
async def test_mail_is_not_sent_without_a_trusted_certificate_or_the_right_password(
    certificates: Certificates,
) -> None:
    async with a_mail_server(certificates.server) as (mailbox, port):
        with pytest.raises(Unavailable, match="SSL"):
            await a_mail_channel(port).send(a_notice())
        wrong = a_mail_channel(port, knows_password=False, ca_file=certificates.authority)
        with pytest.raises(Misconfigured, match="refused the login"):
            await wrong.send(a_notice())
    assert mailbox.mail == []


@pytest.mark.timeout(120)
async def test_mail_is_not_sent_in_clear_to_a_server_without_starttls() -> None:
    async with a_mail_server(None) as (mailbox, port):
        with pytest.raises(Unavailable):
            await a_mail_channel(port, username="").send(a_notice())
        await a_mail_channel(port, username="", security=MailSecurity.NONE).send(a_notice())
    assert len(mailbox.mail) == 1


def test_hostile_text_adds_no_header_and_no_markup_to_mail() -> None:
    channel = a_mail_channel(25)
    message = channel.compose(hostile_notice())
    parsed = BytesParser(policy=SMTP_POLICY).parsebytes(message.as_bytes())
    assert parsed["Bcc"] is None
    assert set(parsed.keys()) == set(message.keys())
    assert [str(each.addr_spec) for each in parsed["To"].addresses] == ["ana@example.org"]
    _, html = (cast("EmailMessage", each) for each in parsed.iter_parts())
    text = html.get_content()
    assert "<script" not in text
    assert "<img" not in text
    assert text.count("<a ") == 1
    assert "\u202e" not in text
    channel.close()


@pytest.mark.parametrize(
    "phase", [NoticePhase.REQUESTED, NoticePhase.ESCALATED, NoticePhase.DIGEST]
)
def test_mail_has_no_link_that_a_server_wrote(phase: NoticePhase) -> None:
    written = "Sign in at https://evil.example/a or WWW.evil.example, HTTP://evil.example"
    asked = a_request(kind=ApprovalKind.INPUT, message=written, tool=written)
    channel = a_mail_channel(25)
    message = channel.compose(ApprovalNotice(phase, NOW, (asked,), ANA))
    channel.close()
    parts = [cast("EmailMessage", each).get_content() for each in message.iter_parts()]
    for text in (str(message["Subject"]), *parts):
        found = re.findall(r"(?i)(?:[a-z]+://|www\.)[^\s<\"]+", text)
        assert {unescape(each).rstrip(":") for each in found} <= {page_url(asked, ANA)}


@pytest.mark.parametrize(
    ("person", "address"),
    [
        (ANA, "ana@example.org"),
        ("person:ben", "ben@example.com"),
        ("person:carl", None),
        ("person:x@y\r\nBcc: z@z", None),
        ("person:a,b@example.org", None),
    ],
)
def test_the_address_of_a_person_is_one_address(person: str, address: str | None) -> None:
    assert address_of(person, {"person:ben": "ben@example.com"}) == address


async def test_a_digest_and_a_test_message_fit_every_channel(receiver: Receiver) -> None:
    receiver.usual = POSTED
    digest = ApprovalNotice(NoticePhase.DIGEST, NOW, (a_request(), a_request(id="b" * 26)), ANA)
    test = ApprovalNotice(NoticePhase.TEST, NOW, recipient=ANA)
    mail = a_mail_channel(25)
    for notice in (digest, test):
        await a_webhook(receiver.url).send(notice)
        await TeamsChannel(the_posts(), receiver.url, page_url).send(notice)
        await a_slack(receiver).send(notice)
        assert mail.compose(notice)["Subject"]
    assert len(receiver.heard) == 6
    assert "2 approval requests can be answered" in mail.compose(digest).as_string()
    mail.close()


def test_a_repr_shows_no_secret() -> None:
    entry: NotifierSettings = an_entry(url="https://hooks.example.org/SECRET")
    assert "SECRET" not in repr(entry)
    assert "SECRET" not in repr(a_webhook("https://hooks.example.org/SECRET"))
