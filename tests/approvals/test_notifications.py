"""Notifications of approval requests to a webhook: content, links, retries and settings."""

import asyncio
import json
import stat
from collections.abc import Generator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from comity.app.settings import Settings
from comity.approvals.model import (
    ANSWER_VERB,
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.approvals.notifications import (
    ApprovalNotifier,
    ApproverDirectory,
    notice_text,
    notice_type,
)
from comity.approvals.presentation import ApprovalLinks
from comity.approvals.service import ApprovalInbox, ApprovalService
from comity.approvals.settings import ApprovalSettings
from comity.approvals.wiring import make_notifier
from comity.errors import Misconfigured, Unavailable
from comity.identity.principals import Principal
from comity.mcp.actors import Actor, PrincipalKind
from comity.policy.grants import Effect, Grant, GrantSet, GrantSource
from comity.policy.snapshot import GrantSnapshot
from tests.events.test_approval_notices import Receiver, status
from tests.support.credentials import GivenOut
from tests.support.inbox_scene import a_question
from tests.support.inline_store import inline_records
from tests.support.visitor import visiting

TRIES = 5
NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
ANA, BEN = "person:ana@example.org", "person:ben@example.org"
GRANTS = [
    Grant(ANA, ANSWER_VERB, "files/*", Effect.ALLOW),
    Grant(BEN, ANSWER_VERB, "mail/*", Effect.ALLOW),
    Grant("agent:helpful", ANSWER_VERB, "*", Effect.ALLOW),
    Grant("person:gone", ANSWER_VERB, "*", Effect.ALLOW),
    Grant("person:local", "*", "*", Effect.ALLOW, source=GrantSource.BUILT_IN),
    Grant("person:denied", ANSWER_VERB, "*", Effect.DENY),
    Grant("*", ANSWER_VERB, "open/*", Effect.ALLOW),
]


class Told:
    """Takes posts, of which the first few fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.tried = 0
        self.bodies: list[dict[str, Any]] = []

    async def post(self, body: bytes) -> None:
        self.tried += 1
        if self.tried <= self.failures:
            raise Unavailable("not now")
        self.bodies.append(json.loads(body))


def named(party: str, key: str) -> Actor | None:
    if party == "person:gone":
        return None
    kind = PrincipalKind.PERSON if party.startswith("person:") else PrincipalKind.AGENT
    return Actor(party, kind, "link")


def an_inbox(grants: Sequence[Grant] = GRANTS) -> tuple[ApprovalInbox, GrantSnapshot]:
    judge = GrantSnapshot(GrantSet.from_grants(grants))
    approvals = ApprovalService(inline_records().approval_requests, judge, clock=lambda: NOW)
    approvals.public_url = "https://comity.example.org"
    return ApprovalInbox(approvals, ApprovalLinks(b"pepper"), named), judge


def an_ask(**changed: Any) -> ApprovalRequest:
    about = {"tool": "files__write", "risk": "dangerous", "arguments": {"path": "/a"}}
    ask = ApprovalRequest(
        *("ask1", ApprovalKind.CONFIRM, "agent:ci", "files", "write", "digest", "message"),
        *(about, NOW, NOW + timedelta(minutes=15)),
    )
    return replace(ask, **changed)


def notices(told: Told, most: int = 10, slept: list[float] | None = None) -> ApprovalNotifier:
    async def sleep(seconds: float) -> None:
        (slept if slept is not None else []).append(seconds)

    inbox, judge = an_inbox()
    return ApprovalNotifier(inbox, ApproverDirectory(judge, inbox), told, sleep, most)


async def until_told(found: ApprovalNotifier) -> None:
    async with asyncio.timeout(20):
        while len(found):
            await asyncio.sleep(0)


async def notified(*asks: ApprovalRequest) -> Told:
    told = Told()
    found = notices(told)
    for ask in asks:
        found.on_request_changed(ask)
    await until_told(found)
    return told


async def test_a_new_ask_is_told_in_words_and_fields_with_a_link_for_each_named_authority() -> None:
    told = await notified(an_ask())
    (body,) = told.bodies
    assert body["type"] == "approval.requested"
    assert body["text"] == (
        "agent:ci wants to call files__write (dangerous); "
        "it can be answered until 2026-11-15 12:15:00 UTC"
    )
    assert body["approval"]["about"]["arguments"] == {"path": "/a"}
    assert body["url"] == "https://comity.example.org/approvals/ask1"
    ((link),) = body["links"]
    assert link["principal"] == ANA
    token = link["url"].partition("?t=")[2]
    sealed = ApprovalLinks(b"pepper").unseal(token, "ask1", NOW)
    assert sealed is not None
    assert (sealed.party, sealed.expires_at) == (ANA, NOW + timedelta(minutes=15))


async def test_an_end_is_told_without_a_link() -> None:
    told = Told()
    found = notices(told)
    word = ApprovalAnswer(ANA, ApprovalDecision.DECLINE, NOW, "no")
    found.on_request_changed(an_ask(state=ApprovalState.DENIED, answers=(word,)))
    found.on_request_changed(an_ask(state=ApprovalState.EXPIRED))
    await until_told(found)
    assert [each["type"] for each in told.bodies] == ["approval.answered", "approval.ended"]
    assert [each["links"] for each in told.bodies] == [[], []]
    assert len({each["id"] for each in told.bodies}) == 2
    assert f"{ANA} denied it: no." in told.bodies[0]["text"]


async def test_what_does_not_arrive_is_tried_again_ever_later() -> None:
    told, slept = Told(failures=TRIES - 1), list[float]()
    found = notices(told, slept=slept)
    found.on_request_changed(an_ask())
    await until_told(found)
    assert (told.tried, len(told.bodies)) == (TRIES, 1)
    assert len(slept) == TRIES - 1
    assert slept[0] >= 0.5
    assert slept[-1] >= 4.0


async def test_it_is_given_up_after_some_tries(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(failures=100)
    found = notices(told)
    found.on_request_changed(an_ask())
    await until_told(found)
    assert told.tried == TRIES
    assert "failed 5 times" in caplog.text


async def test_what_does_not_fit_is_dropped_and_nobody_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told()
    found = notices(told, most=3)
    for _ in range(10):
        found.on_request_changed(an_ask())
    assert len(found) == 3
    await until_told(found)
    assert len(told.bodies) == 3
    assert caplog.text.count("are dropped") == 1
    found.on_request_changed(an_ask())
    await until_told(found)
    assert len(told.bodies) == 4


async def test_what_would_be_too_long_is_told_without_its_arguments() -> None:
    told = await notified(
        an_ask(about={"tool": "files__write", "arguments": {"text": "x" * 100_000}})
    )
    assert told.bodies[0]["approval"]["is_shortened"] is True
    assert "xxxx" not in json.dumps(told.bodies[0])


async def test_it_is_stopped_in_the_midst_of_its_tries() -> None:
    forever = asyncio.Event()

    class Silent:
        async def post(self, body: bytes) -> None:
            await forever.wait()

    inbox, judge = an_inbox()
    found = ApprovalNotifier(inbox, ApproverDirectory(judge, inbox), Silent())
    found.on_request_changed(an_ask())
    await asyncio.sleep(0)
    found.stop()
    await until_told(found)


async def test_whoever_is_named_later_gets_a_link_too() -> None:
    inbox, judge = an_inbox()
    authorities = ApproverDirectory(judge, inbox)
    assert await authorities.approvers_of(an_ask()) == [ANA]
    judge.replace(
        GrantSet.from_grants([*GRANTS, Grant(BEN, "approval/*", "files/write", Effect.ALLOW)])
    )
    assert await authorities.approvers_of(an_ask()) == [ANA, BEN]
    # Nobody gets one for what it asks itself.
    assert await authorities.approvers_of(an_ask(asker=ANA)) == [BEN]


@pytest.mark.parametrize("state", ApprovalState)
def test_every_state_has_a_type_and_words(state: ApprovalState) -> None:
    assert notice_type(an_ask(state=state)) in (
        "approval.requested",
        "approval.answered",
        "approval.ended",
    )
    assert notice_text(an_ask(state=state))


@pytest.fixture
def receiver() -> Generator[Receiver]:
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "webhook.secret"
    file.write_text("0123456789abcdef0123456789abcdef\n")
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return file


@pytest.mark.timeout(120)
async def test_a_link_that_was_posted_after_a_failure_answers_the_ask(
    receiver: Receiver, secret: Path
) -> None:
    receiver.answers += [status(503), status(503)]
    given_out = GivenOut()
    given_out.parties[ANA] = Principal(ANA, PrincipalKind.PERSON)
    decided: dict[str, Any] = {
        "identity_mode": "required",
        "grants": (Grant(ANA, ANSWER_VERB, "files/*", Effect.ALLOW),),
        "approvals_webhook": receiver.url,
        "approvals_webhook_secret_file": str(secret),
    }
    async with visiting(register=given_out.register, **decided) as visitor:
        approvals = visitor.parts.approval_components.approvals
        ask = await approvals.open(a_question(approvals))
        await asyncio.to_thread(receiver.wait_for, 3)
        bodies = [body for _, _, body in receiver.heard]
        assert len(set(bodies)) == 1
        whole = bodies[0].decode()
        token = whole.partition("?t=")[2].partition('"')[0]
        form = {"content-type": "application/x-www-form-urlencoded"}
        answer = f"t={token}&verdict=accept".encode()
        reply = await visitor.send("POST", form.items(), answer, f"/approvals/{ask.id}")
        assert reply.status == 200
        await asyncio.to_thread(receiver.wait_for, 4)
        assert b'"type":"approval.answered"' in receiver.heard[-1][2]


def test_no_webhook_is_asked_for_by_nobody() -> None:
    inbox, grants = an_inbox()
    assert make_notifier(Settings(), inbox, grants) is None


def test_a_webhook_without_a_secret_of_its_own_is_refused(secret: Path, tmp_path: Path) -> None:
    inbox, grants = an_inbox()
    url = "https://hooks.example.org/x"
    with pytest.raises(Misconfigured, match="openssl rand"):
        make_notifier(Settings(approvals=ApprovalSettings(webhook=url)), inbox, grants)
    absent = str(tmp_path / "absent")
    with pytest.raises(Misconfigured, match="cannot be read"):
        make_notifier(
            Settings(approvals=ApprovalSettings(webhook=url, webhook_secret_file=absent)),
            inbox,
            grants,
        )
    secret.chmod(0o644)
    shared = Settings(approvals=ApprovalSettings(webhook=url, webhook_secret_file=str(secret)))
    with pytest.raises(Misconfigured, match="other users can read"):
        make_notifier(shared, inbox, grants)
    secret.chmod(0o600)
    assert make_notifier(shared, inbox, grants) is not None
