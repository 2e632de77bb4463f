"""The entries of `[[approvals.notifiers]]`: how they are read, and what each kind needs."""

import re
from collections.abc import Mapping
from datetime import UTC, time, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from comity.approvals.model import ApprovalKind
from comity.approvals.notifiers.model import (
    PERSON_PREFIX,
    DigestSchedule,
    LinkMode,
    MailSecurity,
    NotifierKind,
    NotifierSettings,
    QuietHours,
)
from comity.config.document import ConfigValue
from comity.config.fields import (
    DURATION,
    TEXT,
    FieldType,
    Members,
    all_of,
    members_of,
    number_type,
    one_of,
    pattern_type,
    table_of,
    text_list_type,
)
from comity.mcp.actors import GROUP_PREFIX
from comity.policy.risk import Risk

MAX_NOTIFIERS: Final = 100
MAX_USERS: Final = 10_000
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_SUBJECT: Final = r"(person|group):[!-~]{1,200}"
_CLOCK: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]"
_ADDRESS: Final = r"[^\s<>@,;:\"()\[\]\\\x00-\x1f\x7f-\x9f]{1,64}@[A-Za-z0-9.-]{1,255}"
_URL: Final = r"https?://[!-~]+"
_RISK: Final = one_of(*Risk)


def _zone(value: ConfigValue) -> tzinfo:
    if value.text() == "UTC":
        return UTC
    try:
        return ZoneInfo(value.text())
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise value.wrong("must be a time zone that this machine knows, as Europe/Berlin") from None


_QUIET: Final[Members] = {
    "start": (pattern_type(_CLOCK, '"22:00"'), "the time at which they begin"),
    "end": (pattern_type(_CLOCK, '"07:00"'), "the time at which they end"),
    "zone": (FieldType(_zone, {"type": "string"}), "the time zone; default: UTC"),
    "passes": (_RISK, "requests of at least this risk are sent at once; default: dangerous"),
}
_DIGEST: Final[Members] = {
    "every": (DURATION, "how often the digest is sent"),
    "max_risk": (_RISK, "the highest risk in a digest; default: moderate"),
}


def _quiet_hours(value: ConfigValue) -> QuietHours:
    said = members_of(value, _QUIET, ("start", "end"))
    start, end = time.fromisoformat(said["start"]), time.fromisoformat(said["end"])
    if start == end:
        raise value.wrong("begins and ends at the same time")
    passes = Risk(said.get("passes", Risk.DANGEROUS))
    return QuietHours(start, end, said.get("zone", UTC), passes)


def _digest(value: ConfigValue) -> DigestSchedule:
    said = members_of(value, _DIGEST, ("every",))
    return DigestSchedule(said["every"], Risk(said.get("max_risk", Risk.MODERATE)))


def _pairs_type(left: str, right: str, example: str) -> FieldType:
    """Return the type of a table whose keys and values match patterns."""

    def read(value: ConfigValue) -> Mapping[str, str]:
        table = value.table()
        if len(table) > MAX_USERS:
            raise value.wrong(f"holds more than {MAX_USERS}")
        for name, each in table.items():
            if not re.fullmatch(left, name) or not re.fullmatch(right, each.text()):
                raise each.wrong(f"must be written as {example}")
        return {name: each.text() for name, each in table.items()}

    return FieldType(read, {"type": "object", "additionalProperties": {"type": "string"}})


_MEMBERS: Final[Members] = {
    "name": (pattern_type(_NAME, "a name, as on-call"), "its name"),
    "kind": (one_of(*NotifierKind), "where it sends messages"),
    "min_risk": (_RISK, "the lowest risk of its requests; default: safe"),
    "servers": (
        text_list_type(r"[^\x00-\x1f]{1,200}", "a server's id, or a pattern"),
        "the servers of its requests, or patterns; default: all",
    ),
    "kinds": (
        FieldType(
            lambda value: tuple(
                ApprovalKind(each.one_of(list(ApprovalKind))) for each in value.items()
            ),
            {"type": "array", "items": {"enum": list(ApprovalKind)}},
        ),
        "the kinds of its requests; default: all",
    ),
    "to": (
        text_list_type(_SUBJECT, "person:ana@example.org or group:sre"),
        "the people and groups that it tells; default: all who may answer",
    ),
    "quiet_hours": (
        FieldType(_quiet_hours, table_of(_QUIET, required=["start", "end"])),
        "the hours in which only risky requests are sent",
    ),
    "digest": (
        FieldType(_digest, table_of(_DIGEST, required=["every"])),
        "how small requests are collected into one message",
    ),
    "escalate_after": (DURATION, "the time without a decision before a message to `escalate_to`"),
    "escalate_to": (
        pattern_type(f"{_SUBJECT}|{_NAME}", "another notifier, group:sre or person:ana"),
        "another notifier; a group or a person if this one sends to people",
    ),
    "url": (pattern_type(_URL, "https://hooks.example.org/x"), "the URL to which it posts"),
    "url_file": (TEXT, "the file of that URL, if the URL is a secret"),
    "secret_file": (TEXT, "for webhook: the file of the secret that signs the posts"),
    "links": (
        one_of(*LinkMode),
        "for webhook: links ask for sign-in (`sign-in`), or answer as the named person (`answer`)",
    ),
    "token_file": (TEXT, "for slack: the file of the bot token"),
    "channel": (
        pattern_type(r"[!-~]{1,100}", "C0123456789"),
        "for slack with a token: the channel; without one, each person gets a direct message",
    ),
    "signing_secret_file": (TEXT, "for slack: the file of the signing secret, for buttons"),
    "users": (
        _pairs_type(r"[A-Z0-9]{2,40}", rf"{PERSON_PREFIX}[!-~]{{1,200}}", 'U123 = "person:ana"'),
        "for slack: the person of each Slack user ID",
    ),
    "api_url": (
        pattern_type(_URL, "https://slack-gov.com/api"),
        "for slack: the address of its API; default: https://slack.com/api",
    ),
    "host": (
        pattern_type(r"[A-Za-z0-9.:-]{1,255}", "smtp.example.org"),
        "for email: the SMTP server",
    ),
    "port": (number_type(1, 65535), "for email: its port; default: 587"),
    "security": (one_of(*MailSecurity), "for email: how it is encrypted; default: starttls"),
    "sender": (
        pattern_type(_ADDRESS, "comity@example.org"),
        "for email: the address of the sender",
    ),
    "username": (TEXT, "for email: the user at the SMTP server"),
    "password_file": (TEXT, "for email: the file of the password"),
    "ca_file": (TEXT, "for email: the file of the authority that signs its certificate"),
    "addresses": (
        _pairs_type(_SUBJECT, _ADDRESS, '"person:ana" = "ana@example.org"'),
        "for email: the addresses of people; default: the ID, if it is an address",
    ),
    "contact": (
        pattern_type(r"(mailto:|https://)[!-~]{1,200}", "mailto:ops@example.org"),
        "for web_push: how a push service reaches the operator",
    ),
}
_COMMON: Final = frozenset(
    {"name", "kind", "min_risk", "servers", "kinds", "to", "quiet_hours", "digest"}
    | {"escalate_after", "escalate_to"}
)
_KEYS_BY_KIND: Final[Mapping[NotifierKind, frozenset[str]]] = {
    NotifierKind.WEBHOOK: frozenset({"url", "url_file", "secret_file", "links"}),
    NotifierKind.SLACK: frozenset(
        {"url", "url_file", "token_file", "channel", "signing_secret_file", "users", "api_url"}
    ),
    NotifierKind.TEAMS: frozenset({"url", "url_file"}),
    NotifierKind.EMAIL: frozenset(
        {"host", "port", "security", "sender", "username", "password_file", "ca_file", "addresses"}
    ),
    NotifierKind.WEB_PUSH: frozenset({"contact"}),
}
_NEEDED: Final[Mapping[NotifierKind, tuple[str, ...]]] = {
    NotifierKind.WEBHOOK: ("secret_file",),
    NotifierKind.SLACK: (),
    NotifierKind.TEAMS: (),
    NotifierKind.EMAIL: ("host", "sender"),
    NotifierKind.WEB_PUSH: ("contact",),
}
_ENUMS: Final[Mapping[str, type[Any]]] = {
    "min_risk": Risk,
    "links": LinkMode,
    "security": MailSecurity,
}


def _entry(entry: ConfigValue) -> NotifierSettings:
    said = members_of(entry, _MEMBERS, ("name", "kind"))
    kind = said["kind"] = NotifierKind(said["kind"])
    foreign = sorted(said.keys() - _COMMON - _KEYS_BY_KIND[kind])
    if foreign:
        raise entry.wrong(f"has {foreign[0]}, which is not a setting of kind {kind}")
    for name in _NEEDED[kind]:
        if name not in said:
            raise entry.wrong(f"needs its {name}: {_MEMBERS[name][1]}")
    if problem := _problem(kind, said):
        raise entry.wrong(problem)
    for name, choices in _ENUMS.items():
        if name in said:
            said[name] = choices(said[name])
    return NotifierSettings(**said)


def _problem(kind: NotifierKind, said: Mapping[str, Any]) -> str | None:
    """Return why the settings of an entry do not fit together, or None."""
    if problem := _place_problem(kind, said):
        return problem
    for one, other in (("username", "password_file"), ("escalate_after", "escalate_to")):
        if (one in said) != (other in said):
            return f"needs {one} and {other} together"
    return None


def _place_problem(kind: NotifierKind, said: Mapping[str, Any]) -> str | None:
    urls = len(said.keys() & {"url", "url_file"})
    has_token = "token_file" in said
    if kind in (NotifierKind.WEBHOOK, NotifierKind.TEAMS) and urls != 1:
        return "needs either url or url_file"
    if kind is not NotifierKind.SLACK:
        return None
    if urls + has_token != 1:
        return "needs one of token_file, url and url_file"
    if not has_token and "channel" in said:
        return "has a channel, which needs a token_file; the URL of a webhook names its channel"
    if has_token and not said.keys() & {"channel", "users"}:
        return "needs a channel, or users to send direct messages to"
    return None


def _escalation_problem(found: Mapping[str, NotifierSettings], one: NotifierSettings) -> str | None:
    target = one.escalate_to
    if not target or target in found:
        return "escalates to itself" if target == one.name else None
    if not target.startswith((GROUP_PREFIX, PERSON_PREFIX)):
        return f"escalates to {target}, which is no notifier"
    return None if is_personal(one) else "escalates to people, but does not send to single people"


def is_personal(settings: NotifierSettings) -> bool:
    """Return whether a notifier sends each person a message of its own."""
    if settings.kind is NotifierKind.SLACK:
        return bool(settings.token_file) and not settings.channel
    return settings.kind in (NotifierKind.EMAIL, NotifierKind.WEB_PUSH)


def _entries(value: ConfigValue) -> tuple[NotifierSettings, ...]:
    found = all_of(_entry, MAX_NOTIFIERS)(value)
    by_name = {each.name: each for each in found}
    if len(by_name) < len(found):
        raise value.wrong("names one notifier twice; rename one")
    for item, each in zip(value.items(), found, strict=True):
        if problem := _escalation_problem(by_name, each):
            raise item.wrong(problem)
    return found


NOTIFIERS: Final = FieldType(
    _entries, {"type": "array", "items": table_of(_MEMBERS, required=["name", "kind"])}
)
