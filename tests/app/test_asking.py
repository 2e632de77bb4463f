"""The inbox as the settings say: a webhook that fails first, and what an operator got wrong."""

import asyncio
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from comity.app.asking import make_notices
from comity.config import Settings
from comity.wire.asks import ANSWER
from comity.wire.errors import Misconfigured
from comity.wire.grants import Effect, Grant
from comity.wire.parties import Party, PartyKind
from tests.adapters.test_webhooks import Receiver, status
from tests.kernel.test_ask_notices import an_inbox
from tests.surfaces.credentials import GivenOut
from tests.surfaces.inbox_scene import ANA, a_question
from tests.surfaces.visitor import visiting


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
    given_out.parties[ANA] = Party(ANA, PartyKind.PERSON)
    decided: dict[str, Any] = {
        "identity_mode": "required",
        "grants": (Grant(ANA, ANSWER, "files/*", Effect.ALLOW),),
        "ask_webhook": receiver.url,
        "ask_webhook_secret_file": str(secret),
    }
    async with visiting(register=given_out.register, **decided) as visitor:
        approvals = visitor.parts.asking.approvals
        ask = await approvals.open(a_question(approvals))
        await asyncio.to_thread(receiver.wait_for, 3)
        bodies = [body for _, _, body in receiver.heard]
        assert len(set(bodies)) == 1
        whole = bodies[0].decode()
        token = whole.partition("?t=")[2].partition('"')[0]
        form = {"content-type": "application/x-www-form-urlencoded"}
        answer = f"t={token}&verdict=accept".encode()
        reply = await visitor.send("POST", form.items(), answer, f"/asks/{ask.id}")
        assert reply.status == 200
        await asyncio.to_thread(receiver.wait_for, 4)
        assert b'"type":"ask.answered"' in receiver.heard[-1][2]


def test_no_webhook_is_asked_for_by_nobody() -> None:
    inbox, grants = an_inbox()
    assert make_notices(Settings(), inbox, grants) is None


def test_a_webhook_without_a_secret_of_its_own_is_refused(secret: Path, tmp_path: Path) -> None:
    inbox, grants = an_inbox()
    url = "https://hooks.example.org/x"
    with pytest.raises(Misconfigured, match="openssl rand"):
        make_notices(Settings(ask_webhook=url), inbox, grants)
    absent = str(tmp_path / "absent")
    with pytest.raises(Misconfigured, match="cannot be read"):
        make_notices(Settings(ask_webhook=url, ask_webhook_secret_file=absent), inbox, grants)
    secret.chmod(0o644)
    shared = Settings(ask_webhook=url, ask_webhook_secret_file=str(secret))
    with pytest.raises(Misconfigured, match="other users can read"):
        make_notices(shared, inbox, grants)
    secret.chmod(0o600)
    assert make_notices(shared, inbox, grants) is not None
