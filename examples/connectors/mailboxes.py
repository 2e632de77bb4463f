"""Where letters are fetched and handed over, and what is remembered of them."""

import imaplib
import logging
import smtplib
import sqlite3
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from email.message import EmailMessage
from typing import Any, Final, cast
from urllib.parse import urlsplit

from letters import Letter, Thread

log = logging.getLogger("mail")

SECONDS: Final = 30.0
MOST_BYTES: Final = 1024 * 1024
_REFUSED: Final = (
    smtplib.SMTPResponseException,
    smtplib.SMTPRecipientsRefused,
    smtplib.SMTPNotSupportedError,
)
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class Box:
    """A mailbox over IMAP: `imaps://HOST[:PORT]`, or `imap://` with STARTTLS."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self._url, self._user, self._password = urlsplit(url), user, password

    def unread(self, at_once: int) -> list[tuple[bytes, bytes]]:
        """The oldest letters that nobody has read; who is too long is cut, and never read whole."""
        with self._open() as box:
            _, found = box.uid("SEARCH", "UNSEEN")
            uids = (found[0] or b"").split()[:at_once]
            return [(uid, self._fetch(box, uid)) for uid in uids]

    def mark_read(self, uid: bytes) -> None:
        with self._open() as box:
            box.uid("STORE", uid.decode(), "+FLAGS", "(\\Seen)")

    def _fetch(self, box: imaplib.IMAP4, uid: bytes) -> bytes:
        _, answer = box.uid("FETCH", uid.decode(), f"(BODY.PEEK[]<0.{MOST_BYTES}>)")
        parts = cast("list[bytes | tuple[bytes, bytes]]", answer)
        return next((part[1] for part in parts if isinstance(part, tuple)), b"")

    @contextmanager
    def _open(self) -> Generator[imaplib.IMAP4]:
        host, context = self._url.hostname or "", ssl.create_default_context()
        try:
            if self._url.scheme == "imaps":
                port = self._url.port or 993
                box: Any = imaplib.IMAP4_SSL(host, port, ssl_context=context, timeout=SECONDS)
            else:
                box = imaplib.IMAP4(host, self._url.port or 143, SECONDS)
            with box:
                if self._url.scheme != "imaps" and host not in _LOOPBACK:
                    box.starttls(context)
                box.login(self._user, self._password)
                box.select("INBOX")
                yield box
        except imaplib.IMAP4.error as problem:
            raise OSError(str(problem)[:200]) from None


class Postman:
    """Hands letters over by SMTP: `smtps://HOST[:PORT]`, or `smtp://` with STARTTLS."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self._url, self._user, self._password = urlsplit(url), user, password

    def send(self, letter: EmailMessage) -> bool:
        """False where it surely was not taken; who cannot know raises OSError."""
        try:
            self._send(letter)
        except (*_REFUSED, ConnectionRefusedError) as problem:
            log.warning("a letter was not taken: %s", problem)
            return False
        return True

    def _send(self, letter: EmailMessage) -> None:
        host, context = self._url.hostname or "", ssl.create_default_context()
        if self._url.scheme == "smtps":
            port = self._url.port or smtplib.SMTP_SSL_PORT
            way: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=SECONDS, context=context)
        else:
            way = smtplib.SMTP(host, self._url.port or 587, timeout=SECONDS)
        with way:
            if self._url.scheme != "smtps" and host not in _LOOPBACK:
                way.starttls(context=context)
            way.ehlo()
            if way.has_extn("auth"):
                way.login(self._user, self._password)
            way.send_message(letter)


class Ledger:
    """What outlives the connector: threads, and which letters were sent."""

    def __init__(self, path: str) -> None:
        self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._file.executescript(
            "CREATE TABLE IF NOT EXISTS threads (key PRIMARY KEY, recipient, subject, last, used);"
            "CREATE TABLE IF NOT EXISTS sent (id PRIMARY KEY, is_done);"
        )

    def begin(self, id: str) -> bool:
        """Whether a letter is to be sent now: only who asks first is told so."""
        made = self._file.execute("INSERT OR IGNORE INTO sent VALUES (?, FALSE)", (id,))
        return made.rowcount == 1

    def is_sent(self, id: str) -> bool:
        found = self._file.execute("SELECT is_done FROM sent WHERE id = ?", (id,)).fetchone()
        return found is not None and bool(found[0])

    def forget(self, id: str) -> None:
        self._file.execute("DELETE FROM sent WHERE id = ?", (id,))

    def sent(self, id: str, thread: Thread) -> None:
        self._file.execute("UPDATE sent SET is_done = TRUE WHERE id = ?", (id,))
        self.add(thread)

    def add(self, thread: Thread) -> None:
        used = "(SELECT coalesce(max(used), 0) + 1 FROM threads)"
        row = (thread.key, thread.to, thread.subject, str(thread.last))
        self._file.execute(f"INSERT OR REPLACE INTO threads VALUES (?, ?, ?, ?, {used})", row)  # noqa: S608  # our own words

    def threads(self, most: int = 500) -> list[Thread]:
        """The last ones."""
        return self._select("ORDER BY used DESC LIMIT ?", most)

    def thread(self, channel: str) -> Thread | None:
        found = self._select("WHERE key = ?", channel.rpartition("/")[2])
        return next((each for each in found if each.channel == channel), None)

    def known(self, letter: Letter) -> Thread | None:
        """The thread that a letter goes on, if the same person writes."""
        for last in reversed(letter.references):
            found = self._select("WHERE last = ? AND recipient = ?", last, letter.sender)
            if found:
                return found[0]
        first = letter.thread()
        return next(
            iter(self._select("WHERE key = ? AND recipient = ?", first.key, first.to)), None
        )

    def _select(self, rest: str, *given: object) -> list[Thread]:
        wanted = f"SELECT key, recipient, subject, last FROM threads {rest}"  # noqa: S608  # our own words
        rows = self._file.execute(wanted, given)
        return [Thread(*row) for row in rows]
