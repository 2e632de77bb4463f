"""Notifiers in a whole gateway: links that ask for sign-in, clicks in Slack, and the API."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from comity.approvals.model import ANSWER_VERB, ApprovalRequest, ApprovalState
from comity.approvals.notifiers.model import LinkMode, NotifierKind, NotifierSettings
from comity.approvals.notifiers.web_push import encode_base64, encode_public_key
from comity.identity.login.model import SignInMethod
from comity.identity.login.sessions import SessionDraft
from comity.policy.grants import Effect, Grant
from tests.conformance.governed import ADMIN, Guest
from tests.support.http_receiver import Receiver, answer, status
from tests.support.inbox_scene import ANA, BEN, Scene, an_inbox
from tests.support.notifier_scene import secret_file
from tests.support.visitor import Reply

EVE = "person:eve@example.org"
SIGNING_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"


@pytest.fixture
def receiver() -> Generator[Receiver]:
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()


@dataclass
class Told:
    """A gateway with notifiers."""

    scene: Scene
    receiver: Receiver
    guests: dict[str, Guest] = field(default_factory=dict[str, Guest])

    async def heard(self, count: int) -> list[dict[str, Any]]:
        await asyncio.to_thread(self.receiver.wait_for, count)
        return [each.json for each in self.receiver.heard]

    async def click(
        self,
        request: ApprovalRequest,
        user: str = "U111",
        action: str = "comity_approve",
        secret: str = SIGNING_SECRET,
        age: float = 0.0,
        name: str = "slack",
    ) -> Reply:
        payload = {
            "type": "block_actions",
            "user": {"id": user, "team_id": "T1"},
            "actions": [{"action_id": action, "value": request.id}],
            "response_url": f"{self.receiver.origin}/response",
        }
        body = urlencode({"payload": json.dumps(payload)}).encode()
        now = self.scene.approvals.clock().timestamp()
        return await self.post(body, f"{int(now - age)}", secret, name)

    async def post(
        self, body: bytes, moment: str, secret: str = SIGNING_SECRET, name: str = "slack"
    ) -> Reply:
        over = f"v0:{moment}:".encode() + body
        signed = hmac.new(secret.encode(), over, hashlib.sha256).hexdigest()
        headers = {
            "content-type": "application/x-www-form-urlencoded",
            "x-slack-request-timestamp": moment,
            "x-slack-signature": f"v0={signed}",
        }
        visitor = self.scene.governed.visitor
        return await visitor.send("POST", headers.items(), body, f"/notifiers/{name}/slack")

    async def sign_in(self, party: str) -> str:
        """Open a session of a person, and return its cookie."""
        sessions = self.scene.governed.visitor.parts.authenticator.sessions
        assert sessions is not None
        header = await sessions.open(SessionDraft(party, SignInMethod.KEY))
        return header.decode().partition(";")[0]

    async def state(self, request: ApprovalRequest) -> ApprovalState:
        found = await self.scene.approvals.store.get(request.id)
        assert found is not None
        return found.state


@asynccontextmanager
async def told_through(receiver: Receiver, *notifiers: NotifierSettings) -> AsyncGenerator[Told]:
    grants = (Grant(BEN, ANSWER_VERB, "files/*", Effect.ALLOW),)
    async with an_inbox(*grants, approvals_notifiers=notifiers) as scene:
        told = Told(scene, receiver)
        told.guests = {party: scene.person(party) for party in (ANA, BEN, EVE)}
        yield told


def a_webhook(receiver: Receiver, folder: Path, **changed: Any) -> NotifierSettings:
    secret = secret_file(folder, "webhook", "0123456789abcdef0123456789abcdef")
    kind = NotifierKind.WEBHOOK
    return NotifierSettings(name="hook", kind=kind, url=receiver.url, secret_file=secret, **changed)


def a_slack(receiver: Receiver, folder: Path) -> NotifierSettings:
    receiver.usual = answer({"ok": True, "channel": "C1", "ts": "1.5"})
    return NotifierSettings(
        name="slack",
        kind=NotifierKind.SLACK,
        token_file=secret_file(folder, "token", "xoxb-1"),
        signing_secret_file=secret_file(folder, "signing", SIGNING_SECRET),
        channel="C1",
        users={"U111": ANA, "U333": EVE, "U444": "agent:ci", "U555": "person:gone"},
        api_url=f"{receiver.origin}/api",
    )


def link_for(notice: dict[str, Any], person: str) -> str:
    (url,) = (each["url"] for each in notice["links"] if each["principal"] == person)
    return "/" + url.split("/", 3)[3]


# Links.


@pytest.mark.timeout(120)
async def test_a_link_asks_for_sign_in_and_only_its_person_can_answer(
    receiver: Receiver, tmp_path: Path
) -> None:
    async with told_through(receiver, a_webhook(receiver, tmp_path)) as told:
        ask, scene = await told.scene.ask(), told.scene
        (notice,) = await told.heard(1)
        path = link_for(notice, ANA)
        assert "?for=" in path
        page = await scene.look(path)
        text = (await page.body()).decode()
        assert page.status == 200
        assert "Your API key" in text
        for secret in ("files__write", "agent:ci", "/reports/1.txt", ANA):
            assert secret not in text
        # Ben may answer this request, but this link is not for him.
        other = await scene.fill_in(path, {"key": told.guests[BEN].key})
        text = (await other.body()).decode()
        assert (other.status, "files__write" in text) == (403, False)
        assert "for another person" in text
        shown = await scene.fill_in(path, {"key": told.guests[ANA].key})
        text = (await shown.body()).decode()
        assert shown.status == 200
        token = text.partition('name="t" value="')[2].partition('"')[0]
        done = await scene.fill_in(path, {"t": token, "verdict": "accept", "word": "write"})
        assert done.status == 200
        assert await told.state(ask) is ApprovalState.APPROVED


@pytest.mark.timeout(120)
async def test_the_session_of_its_person_opens_a_link_and_no_other_session_does(
    receiver: Receiver, tmp_path: Path
) -> None:
    async with told_through(receiver, a_webhook(receiver, tmp_path)) as told:
        ask, scene = await told.scene.ask(), told.scene
        (notice,) = await told.heard(1)
        path = link_for(notice, ANA)
        cookies = {party: await told.sign_in(party) for party in (ANA, BEN)}
        other = await scene.look(path, cookie=cookies[BEN])
        assert (other.status, b"files__write" in await other.body()) == (403, False)
        ended = await scene.look(path, cookie="__Host-comity-session=x")
        assert b"files__write" not in await ended.body()
        shown = await scene.look(path, cookie=cookies[ANA])
        text = (await shown.body()).decode()
        assert (shown.status, "files__write" in text) == (200, True)
        token = text.partition('name="t" value="')[2].partition('"')[0]
        # The form is bound to the session: without its cookie, or with another, it answers nothing.
        form = {"t": token, "verdict": "accept", "word": "write"}
        assert (await scene.fill_in(path, form)).status == 403
        assert (await scene.fill_in(path, form, cookie=cookies[BEN])).status == 403
        assert (await scene.fill_in(path, form, cookie=cookies[ANA])).status == 200
        assert await told.state(ask) is ApprovalState.APPROVED


@pytest.mark.timeout(120)
async def test_a_link_to_sign_in_with_answers_nothing_by_itself(
    receiver: Receiver, tmp_path: Path
) -> None:
    async with told_through(receiver, a_webhook(receiver, tmp_path)) as told:
        ask, scene = await told.scene.ask(), told.scene
        (notice,) = await told.heard(1)
        path = link_for(notice, ANA)
        token = path.partition("?for=")[2]
        for place in (path, f"/approvals/{ask.id}?t={token}", f"/approvals/{ask.id}"):
            reply = await scene.fill_in(place, {"t": token, "verdict": "accept", "word": "write"})
            assert reply.status == 403
        for forged in (token[:-2] + "AA", scene.token(ask), "x"):
            reply = await scene.look(f"/approvals/{ask.id}?for={forged}")
            assert reply.status == 403
            assert b"files__write" not in await reply.body()
        another = await scene.ask(2)
        reply = await scene.look(f"/approvals/{another.id}?for={token}")
        assert reply.status == 403
        assert await told.state(ask) is ApprovalState.PENDING


@pytest.mark.timeout(120)
async def test_a_webhook_that_asks_for_it_gets_links_that_answer(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answers += [status(503)]
    hook = a_webhook(receiver, tmp_path, links=LinkMode.ANSWER)
    async with told_through(receiver, hook) as told:
        ask = await told.scene.ask()
        notice = (await told.heard(2))[-1]
        path = link_for(notice, ANA)
        token = path.partition("?t=")[2]
        reply = await told.scene.fill_in(path, {"t": token, "verdict": "accept", "word": "write"})
        assert reply.status == 200
        assert await told.state(ask) is ApprovalState.APPROVED
        assert (await told.heard(3))[-1]["type"] == "approval.answered"


# Slack.


@pytest.mark.timeout(120)
async def test_a_click_in_slack_answers_as_the_person_and_changes_the_message(
    receiver: Receiver, tmp_path: Path
) -> None:
    async with told_through(receiver, a_slack(receiver, tmp_path)) as told:
        ask = await told.scene.ask()
        await told.heard(1)
        assert (await told.click(ask)).status == 200
        assert await told.state(ask) is ApprovalState.APPROVED
        found = await told.scene.approvals.store.get(ask.id)
        assert found is not None
        assert [each.by for each in found.answers] == [ANA]
        await told.heard(3)
        by_path = {each.path: each.json for each in receiver.heard}
        assert by_path["/api/chat.update"]["ts"] == "1.5"
        assert "actions" not in {each["type"] for each in by_path["/api/chat.update"]["blocks"]}
        assert by_path["/response"]["response_type"] == "ephemeral"
        assert by_path["/response"]["text"].startswith("You approved it.")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("U999", "does not know you"),
        ("U333", "does not exist, or you cannot see it"),
        ("U444", "does not know you"),
        ("U555", "does not know you"),
    ],
    ids=["unmapped", "without a grant", "no person", "unknown principal"],
)
async def test_a_click_of_one_who_may_not_answer_is_refused_in_private(
    receiver: Receiver, tmp_path: Path, user: str, reason: str
) -> None:
    async with told_through(receiver, a_slack(receiver, tmp_path)) as told:
        ask = await told.scene.ask()
        await told.heard(1)
        assert (await told.click(ask, user)).status == 200
        said = (await told.heard(2))[-1]
        assert said["response_type"] == "ephemeral"
        assert reason in said["text"]
        assert await told.state(ask) is ApprovalState.PENDING


@pytest.mark.timeout(120)
async def test_a_click_cannot_approve_arguments_that_slack_does_not_show(
    receiver: Receiver, tmp_path: Path
) -> None:
    async with told_through(receiver, a_slack(receiver, tmp_path)) as told:
        about = {"tool": "files__write", "arguments": {"text": "x" * 3_000}}
        ask = await told.scene.ask(about=about)
        await told.heard(1)
        assert (await told.click(ask)).status == 200
        said = (await told.heard(2))[-1]
        assert "too long for Slack" in said["text"]
        assert await told.state(ask) is ApprovalState.PENDING
        assert (await told.click(ask, action="comity_deny")).status == 200
        assert await told.state(ask) is ApprovalState.DENIED


@pytest.mark.timeout(120)
async def test_a_forged_an_old_and_a_repeated_click_are_refused(
    receiver: Receiver, tmp_path: Path
) -> None:
    async with told_through(receiver, a_slack(receiver, tmp_path)) as told:
        ask = await told.scene.ask(quorum=2)
        await told.heard(1)
        forged: tuple[dict[str, Any], ...] = (
            {"secret": "another"},
            {"age": 301.0},
            {"age": -301.0},
            {"name": "other"},
            {"secret": ""},
        )
        for changed in forged:
            assert (await told.click(ask, **changed)).status == 401
        unsigned = await told.scene.governed.visitor.send(
            "POST", (), b"payload={}", "/notifiers/slack/slack"
        )
        assert unsigned.status == 401
        body = b"payload=%7B%22type%22%3A%22x%22%7D"
        moment = f"{int(told.scene.approvals.clock().timestamp())}"
        assert (await told.post(body, moment)).status == 200
        assert (await told.post(body, moment)).status == 401
        assert await told.state(ask) is ApprovalState.PENDING
        found = await told.scene.approvals.store.get(ask.id)
        assert found is not None
        assert found.answers == ()


@pytest.mark.timeout(120)
async def test_a_forger_with_the_secret_answers_only_what_its_notifier_sent_and_once(
    receiver: Receiver, tmp_path: Path
) -> None:
    """The signing secret of a notifier is worth the answers of its people to its messages."""
    slack = a_slack(receiver, tmp_path)
    narrow = replace(slack, name="narrow", servers=("other*",), users={"U111": ANA})
    async with told_through(receiver, slack, narrow) as told:
        ask = await told.scene.ask(quorum=2)
        await told.heard(1)
        # The secret is right, and Ana may answer. Another notifier sent the message.
        for action in ("comity_approve", "comity_deny"):
            assert (await told.click(ask, action=action, name="narrow")).status == 200
        # Nor does a notifier answer for people whom only another one maps.
        assert (await told.click(ask, "U333", name="narrow")).status == 200
        for age in (301.0, -301.0):
            assert (await told.click(ask, age=age)).status == 401
        found = await told.scene.approvals.store.get(ask.id)
        assert found is not None
        assert found.answers == ()
        # What is left to the forger: one answer for each person that the notifier maps. A signature
        # counts once at all notifiers, so these have another time.
        assert (await told.click(ask, age=60.0)).status == 200
        assert (await told.click(ask, age=90.0)).status == 200
        found = await told.scene.approvals.store.get(ask.id)
        assert found is not None
        assert [each.by for each in found.answers] == [ANA]
        assert found.state is ApprovalState.PENDING
        await told.heard(6)
        refused = [each.json["text"] for each in receiver.heard if each.path == "/response"]
        assert sum("has sent no message" in text for text in refused) == 2


@pytest.mark.timeout(120)
async def test_a_reply_goes_to_slack_only(receiver: Receiver, tmp_path: Path) -> None:
    other = Receiver()
    try:
        async with told_through(receiver, a_slack(receiver, tmp_path)) as told:
            ask = await told.scene.ask()
            await told.heard(1)
            payload = {
                "type": "block_actions",
                "user": {"id": "U999"},
                "actions": [{"action_id": "comity_deny", "value": ask.id}],
                "response_url": other.url,
            }
            body = urlencode({"payload": json.dumps(payload)}).encode()
            moment = f"{int(told.scene.approvals.clock().timestamp())}"
            assert (await told.post(body, moment)).status == 200
            # A later click gets its reply, so the earlier one would have had it too.
            await told.click(ask, "U998")
            await told.heard(2)
        assert other.heard == []
    finally:
        other.close()


# API.


def a_push() -> NotifierSettings:
    return NotifierSettings(
        name="push", kind=NotifierKind.WEB_PUSH, contact="mailto:ops@example.org"
    )


def a_subscription(endpoint: str) -> dict[str, Any]:
    key = encode_public_key(ec.generate_private_key(ec.SECP256R1()).public_key())
    keys = {"p256dh": encode_base64(key), "auth": encode_base64(bytes(16))}
    return {"endpoint": endpoint, "keys": keys}


async def call(guest: Guest, method: str, path: str, body: object = None) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {guest.key}", "content-type": "application/json"}
    sent = b"" if body is None else json.dumps(body).encode()
    reply = await guest.visitor.send(method, headers.items(), sent, path)
    return reply.status, await reply.json()


@pytest.mark.timeout(120)
async def test_a_person_subscribes_its_browser_and_sees_only_its_own(receiver: Receiver) -> None:
    path = "/api/push-subscriptions"
    async with told_through(receiver, a_push()) as told:
        ana, ben = told.guests[ANA], told.guests[BEN]
        wanted = a_subscription("https://push.example.org/send/SECRET")
        state, made = await call(ana, "POST", path, wanted)
        assert state == 200, made
        assert "SECRET" not in json.dumps(made)
        _, listed = await call(ana, "GET", path)
        assert [each["id"] for each in listed["subscriptions"]] == [made["id"]]
        assert len(listed["public_key"]) == 87
        assert (await call(ben, "GET", path))[1]["subscriptions"] == []
        _, theirs = await call(ben, "POST", f"{path}/delete", {"id": made["id"]})
        assert theirs["deleted"] is False
        _, gone = await call(ana, "POST", f"{path}/delete", {"id": made["id"]})
        assert gone["deleted"] is True


@pytest.mark.timeout(120)
async def test_a_browser_cannot_name_a_host_inside_the_network(receiver: Receiver) -> None:
    async with told_through(receiver, a_push()) as told:
        for url in ("http://127.0.0.1:1/x", "https://169.254.169.254/", "https://localhost/x"):
            body = a_subscription(url)
            state, _ = await call(told.guests[ANA], "POST", "/api/push-subscriptions", body)
            assert state == 400
        agent = told.scene.governed.guest("agent:ci")
        body = a_subscription("https://push.example.org/x")
        state, refused = await call(agent, "POST", "/api/push-subscriptions", body)
        assert state == 400
        assert "only people get push messages" in json.dumps(refused)


@pytest.mark.timeout(120)
async def test_operators_list_and_test_notifiers(receiver: Receiver, tmp_path: Path) -> None:
    hook = a_webhook(receiver, tmp_path)
    async with told_through(receiver, hook, a_push()) as told:
        admin = told.scene.person(ADMIN)
        _, listed = await call(admin, "GET", "/api/notifiers")
        assert [each["name"] for each in listed["notifiers"]] == ["hook", "push"]
        assert "team=a" not in json.dumps(listed)
        state, _ = await call(admin, "POST", "/api/notifiers/hook/test", {})
        assert state == 200
        assert (await told.heard(1))[0]["type"] == "test"
        receiver.usual = status(500)
        state, failed = await call(admin, "POST", "/api/notifiers/hook/test", {})
        assert state == 400
        assert "500" in json.dumps(failed)
        state, _ = await call(admin, "POST", "/api/notifiers/push/test", {"principal": ANA})
        assert state == 400
        state, _ = await call(told.guests[ANA], "GET", "/api/notifiers")
        assert state == 403


@pytest.mark.timeout(120)
async def test_sent_and_failed_messages_are_in_the_audit_log_and_the_metrics(
    receiver: Receiver, tmp_path: Path
) -> None:
    async with told_through(receiver, a_slack(receiver, tmp_path)) as told:
        ask = await told.scene.ask()
        await told.heard(1)
        assert (await told.click(ask, "U999")).status == 200
        audit_log = told.scene.governed.visitor.parts.audit_log_components.audit_log
        seen: list[str] = []
        async with asyncio.timeout(30):
            while len(seen) < 2:
                await audit_log.flush()
                _, page = await call(told.scene.person(ADMIN), "GET", "/api/audit")
                text = json.dumps(page)
                seen = [
                    each
                    for each in ("notice_sent", "notice_answered")
                    if f"dev.comity.{each}" in text
                ]
        components = told.scene.governed.visitor.parts.approval_components
        families = {each.name: each for each in components.notifiers.service.metric_families()}
        assert families["comity_notices_total"].samples == [
            ((("notifier", "slack"), ("outcome", "sent")), 1)
        ]
