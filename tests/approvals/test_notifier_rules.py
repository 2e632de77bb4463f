"""Quiet hours, digests, quorum, and the settings of notifiers."""

from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from comity.app.settings_reader import load_settings
from comity.approvals.model import ApprovalAnswer, ApprovalDecision
from comity.approvals.notifiers.model import (
    DigestSchedule,
    NotifierKind,
    NotifierSettings,
    QuietHours,
)
from comity.approvals.notifiers.rules import (
    next_digest,
    plan_delivery,
    quiet_until,
    quorum_text,
    risk_of,
)
from comity.errors import Misconfigured
from comity.policy.risk import Risk
from tests.support.notifier_scene import ANA, NOW, a_request, an_entry

BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = QuietHours(time(22), time(7), BERLIN)


def at(hour: int, minute: int = 0, day: int = 15, month: int = 11) -> datetime:
    return datetime(2026, month, day, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "until"),
    [
        (at(20, 59), None),
        (at(21), at(6, day=16)),
        (at(2), at(6)),
        (at(6), None),
        # The clocks go back in the night of October 25, and forward in that of March 29.
        (at(20, day=24, month=10), at(6, day=25, month=10)),
        (at(21, day=28, month=3), at(5, day=29, month=3)),
    ],
)
def test_quiet_hours_end_by_the_clock_of_their_zone(now: datetime, until: datetime | None) -> None:
    assert quiet_until(NIGHT, now) == until


def test_quiet_hours_within_a_day() -> None:
    lunch = QuietHours(time(12), time(13), UTC)
    assert quiet_until(lunch, at(12)) == at(13)
    assert quiet_until(lunch, at(13)) is None


def test_a_request_without_a_known_risk_counts_as_dangerous() -> None:
    assert risk_of(a_request(about={})) is Risk.DANGEROUS
    assert risk_of(a_request(about={"risk": "whatever"})) is Risk.DANGEROUS


def test_a_digest_of_the_quiet_hours_comes_after_them() -> None:
    entry = an_entry(
        quiet_hours=QuietHours(time(12), time(13), UTC), digest=DigestSchedule(timedelta(hours=1))
    )
    plan = plan_delivery(entry, a_request(about={"risk": "safe"}), at(12, 30))
    assert plan == (at(14), True)
    assert plan_delivery(entry, a_request(), at(12, 30)) == (at(12, 30), False)


def test_a_digest_is_never_due_in_the_past() -> None:
    assert next_digest(DigestSchedule(timedelta(minutes=30)), at(12)) == at(12, 30)


def test_the_quorum_is_shown_where_several_must_approve() -> None:
    word = ApprovalAnswer(ANA, ApprovalDecision.ACCEPT, NOW)
    assert quorum_text(a_request()) == ""
    assert quorum_text(a_request(quorum=2, answers=(word,))) == "1 of 2 approved"


def read(folder: Path, text: str) -> tuple[NotifierSettings, ...]:
    file = folder / "comity.toml"
    file.write_text(text)
    return load_settings(file, {}).approvals.notifiers


WHOLE = """
[[approvals.notifiers]]
name = "ops"
kind = "slack"
token_file = "slack.token"
channel = "C0123456789"
signing_secret_file = "slack.secret"
users = { U123 = "person:ana@example.org" }
min_risk = "moderate"
servers = ["billing", "crm-*"]
kinds = ["confirm"]
quiet_hours = { start = "22:00", end = "07:00", zone = "Europe/Berlin", passes = "dangerous" }
digest = { every = "30m", max_risk = "safe" }
escalate_after = "10m"
escalate_to = "mail"

[[approvals.notifiers]]
name = "mail"
kind = "email"
to = ["group:sre", "person:ben@example.org"]
host = "smtp.example.org"
sender = "comity@example.org"
addresses = { "person:ben" = "ben@example.org" }
"""


def test_the_settings_of_two_notifiers_are_read(tmp_path: Path) -> None:
    slack, mail = read(tmp_path, WHOLE)
    assert (slack.kind, slack.min_risk, slack.escalate_to) == ("slack", Risk.MODERATE, "mail")
    assert slack.quiet_hours == QuietHours(time(22), time(7), BERLIN, Risk.DANGEROUS)
    assert slack.digest == DigestSchedule(timedelta(minutes=30), Risk.SAFE)
    assert (mail.kind, mail.port, mail.to) == (
        NotifierKind.EMAIL,
        587,
        ("group:sre", "person:ben@example.org"),
    )


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ('kind = "webhook"\nurl = "https://x.example"', "needs its secret_file"),
        ('kind = "webhook"\nsecret_file = "x"', "needs either url or url_file"),
        ('kind = "teams"\nurl = "ftp://x"', "must be written as"),
        ('kind = "teams"\nurl = "https://x.example"\nhost = "x"', "not a setting of kind teams"),
        ('kind = "slack"', "needs one of token_file"),
        ('kind = "slack"\ntoken_file = "x"', "needs a channel, or users"),
        ('kind = "slack"\nurl = "https://x.example"\nchannel = "C1"', "which needs a token_file"),
        ('kind = "slack"\ntoken_file = "x"\nusers = { U1 = "agent:x" }', "must be written as"),
        ('kind = "email"\nhost = "x"', "needs its sender"),
        ('kind = "email"\nhost = "x"\nsender = "a@b\\nBcc: c@d"', "must be written as"),
        ('kind = "email"\nhost = "x"\nsender = "a@b"\nusername = "x"', "together"),
        ('kind = "web_push"', "needs its contact"),
        ('kind = "web_push"\ncontact = "mailto:a@b"\nescalate_to = "x"', "together"),
        ('kind = "pigeon"', "must be one of"),
        (
            'kind = "web_push"\ncontact = "mailto:a@b"\nescalate_to = "x"\nescalate_after = "5m"',
            "which is no notifier",
        ),
        (
            (
                'kind = "teams"\nurl = "https://x.example"\nescalate_to = "group:x"\n'
                'escalate_after = "5m"'
            ),
            "does not send to single people",
        ),
        (
            (
                'kind = "web_push"\ncontact = "mailto:a@b"\n'
                'quiet_hours = { start = "22:00", end = "07:00", zone = "Mars/Olympus" }'
            ),
            "must be a time zone",
        ),
        (
            (
                'kind = "web_push"\ncontact = "mailto:a@b"\n'
                'quiet_hours = { start = "22:00", end = "22:00" }'
            ),
            "at the same time",
        ),
    ],
)
def test_an_entry_that_cannot_work_is_refused(tmp_path: Path, entry: str, problem: str) -> None:
    with pytest.raises(Misconfigured, match=problem):
        read(tmp_path, f'[[approvals.notifiers]]\nname = "it"\n{entry}\n')


def test_two_notifiers_of_one_name_are_refused(tmp_path: Path) -> None:
    entry = '[[approvals.notifiers]]\nname = "it"\nkind = "teams"\nurl = "https://x.example"\n'
    with pytest.raises(Misconfigured, match="twice"):
        read(tmp_path, entry * 2)
