"""Letters as they are written and read: who wrote, about what, in which thread, in what words."""

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid, parseaddr, parsedate_to_datetime
from html.parser import HTMLParser
from typing import Final

LONGEST: Final = 20_000
"""Characters of a letter that are brought in."""

_QUOTED: Final = re.compile(r"(\n[^\n]{1,200}:\s*)?(\n>[^\n]*)+\s*\Z")
_IDS: Final = re.compile(r"<[^<>\s]{3,200}>")


@dataclass(frozen=True, slots=True)
class Thread:
    """A correspondence: its key is the id of its first letter, in short."""

    key: str
    to: str
    subject: str = ""
    last: str = ""

    @classmethod
    def begun(cls, address: str, subject: str) -> "Thread":
        return cls(key_of(make_msgid()), address, line(subject))

    @property
    def channel(self) -> str:
        return f"mail:{self.to}/{self.key}"


@dataclass(frozen=True, slots=True)
class Letter:
    id: str
    sender: str
    name: str
    subject: str
    text: str
    at: datetime
    references: tuple[str, ...] = ()
    is_automatic: bool = False

    def thread(self) -> Thread:
        """The one that it begins, or of which it is the first that is known here."""
        first = self.references[0] if self.references else self.id
        return Thread(key_of(first), self.sender, self.subject)


def key_of(id: str) -> str:
    return hashlib.sha256(id.encode()).hexdigest()[:12]


def line(text: str) -> str:
    """One line of what anybody in the world may have written."""
    return " ".join(str(text).split())[:200]


def read_letter(data: bytes) -> Letter | None:
    """None where nobody could answer it, whatever it says."""
    found = message_from_bytes(data, policy=policy.default)
    name, sender = parseaddr(str(found.get("Reply-To") or found.get("From") or ""))
    if "@" not in sender:
        return None
    ids = _IDS.findall(str(found.get("Message-ID", "")))
    before = f"{found.get('References', '')} {found.get('In-Reply-To', '')}"
    return Letter(
        ids[0] if ids else f"<{hashlib.sha256(data).hexdigest()}@nowhere.invalid>",
        sender.lower(),
        line(name),
        line(found.get("Subject", "")),
        _text(found),
        _moment(str(found.get("Date", ""))),
        tuple(_IDS.findall(before))[-50:],
        _is_automatic(found),
    )


def _is_automatic(found: EmailMessage) -> bool:
    """Whether a program wrote it: who answers those talks to programs for ever."""
    said = str(found.get("Auto-Submitted", "no")).strip().lower()
    bulk = str(found.get("Precedence", "")).strip().lower() in ("bulk", "junk", "list")
    is_returned = str(found.get("Return-Path", "")).strip() == "<>"
    return said != "no" or bulk or is_returned or "List-Id" in found


def _text(found: EmailMessage) -> str:
    body = found.get_body(("plain", "html"))
    try:
        text = "" if body is None else str(body.get_content())
    except (LookupError, UnicodeError):
        text = "(this letter is in a script that cannot be read here)"
    if body is not None and body.get_content_type() == "text/html":
        stripper = _Words()
        stripper.feed(text[: 10 * LONGEST])
        text = "".join(stripper.words)
    text = text.replace("\r\n", "\n")[:LONGEST].strip()
    return _QUOTED.sub("", text).strip() or text


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._unseen = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._unseen += tag in ("script", "style")
        self.words.append("\n" if tag in ("br", "p", "div", "tr", "li") else "")

    def handle_endtag(self, tag: str) -> None:
        self._unseen -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        self.words.append("" if self._unseen else data)


def _moment(said: str) -> datetime:
    try:
        at = parsedate_to_datetime(said)
    except (TypeError, ValueError):
        return datetime.now(UTC)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def answer_to(me: str, thread: Thread, text: str, id: str) -> EmailMessage:
    """The next letter of a thread; the same id makes the same letter."""
    letter = EmailMessage()
    domain = me.rpartition("@")[2]
    named = hashlib.sha256(id.encode()).hexdigest()[:32]
    letter["Message-ID"] = f"<{named}@{domain}>" if id else make_msgid(domain=domain)
    letter["From"], letter["To"] = me, thread.to
    subject = thread.subject or "A message"
    letter["Subject"] = subject if subject.lower().startswith("re:") else f"Re: {subject}"
    letter["Date"] = format_datetime(datetime.now(UTC))
    letter["Auto-Submitted"] = "auto-replied"
    if thread.last:
        letter["In-Reply-To"] = letter["References"] = thread.last
    letter.set_content(text)
    return letter
