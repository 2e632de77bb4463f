"""The notifier `email`: one message to each person, over SMTP with TLS.

The messages are few and small, so `smtplib` in two threads of its own is enough, and no package is
needed. (decision 0070)
"""

import asyncio
import hashlib
import re
import smtplib
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from html import escape
from typing import Final

from comity.approvals.model import ApprovalRequest, ApprovalState
from comity.approvals.notifiers.messages import (
    MAX_DIGEST_REQUESTS,
    MAX_TITLE_LENGTH,
    NoticeFact,
    digest_line,
    notice_title,
    request_facts,
    shorten,
    without_links,
)
from comity.approvals.notifiers.model import (
    PERSON_PREFIX,
    ApprovalNotice,
    MailSecurity,
    NoticePhase,
    NotifierSettings,
)
from comity.errors import UPSTREAM_DOWN, Misconfigured, Unavailable

TIMEOUT_SECONDS: Final = 20.0
MAX_CONNECTIONS: Final = 2
_ADDRESS: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,255}")
_LINK_NOTE: Final = "The link asks you to sign in. It is for you only."


class EmailChannel:
    """Sends messages through one SMTP server."""

    is_personal = True
    hears_every_change = False

    def __init__(
        self,
        settings: NotifierSettings,
        password: str,
        page_url: Callable[[ApprovalRequest, str], str],
    ) -> None:
        self._settings = settings
        self._password = password
        self._page_url = page_url
        self._tls = ssl.create_default_context(cafile=settings.ca_file or None)
        # A silent server holds a thread until the timeout, so these are not those of the loop.
        self._threads = ThreadPoolExecutor(MAX_CONNECTIONS, f"mail-{settings.name}")

    def can_reach(self, person: str) -> bool:
        return address_of(person, self._settings.addresses) is not None

    def wants_change(self, request: ApprovalRequest) -> bool:
        return not request.is_open and request.state is not ApprovalState.CONSUMED

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def send(self, notice: ApprovalNotice, reference: str = "") -> str:
        message = self.compose(notice)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads, self._deliver, message)
        except smtplib.SMTPAuthenticationError as refused:
            raise Misconfigured(
                f"{self._settings.host} refused the login with {refused.smtp_code}"
            ) from None
        except smtplib.SMTPResponseException as refused:
            # The text of the server may repeat what we sent, so only its code is told.
            raise Unavailable(
                f"{self._settings.host} refused the message with {refused.smtp_code}", UPSTREAM_DOWN
            ) from None
        except smtplib.SMTPRecipientsRefused:
            raise Unavailable(
                f"{self._settings.host} refused the recipient", UPSTREAM_DOWN
            ) from None
        except (smtplib.SMTPException, OSError) as problem:
            kind = type(problem).__name__
            raise Unavailable(
                f"{self._settings.host} took no message: {kind}", UPSTREAM_DOWN
            ) from None
        return "mail"

    def compose(self, notice: ApprovalNotice) -> EmailMessage:
        """Return the message. Each header is one line, whatever the request says."""
        settings, domain = self._settings, self._settings.sender.rpartition("@")[2]
        address = address_of(notice.recipient, settings.addresses)
        if address is None:
            raise Unavailable(f"there is no address of {notice.recipient:.200}")
        message = EmailMessage(policy=SMTP)
        message["From"] = Address("Comity", addr_spec=settings.sender)
        message["To"] = Address(addr_spec=address)
        message["Subject"] = _subject(notice)
        message["Date"] = format_datetime(notice.at)
        message["List-Id"] = f"Approval requests <{settings.name}.approvals.{domain}>"
        message["Auto-Submitted"] = "auto-generated"
        message["X-Auto-Response-Suppress"] = "All"
        for name, value in _thread_headers(notice, domain).items():
            message[name] = value
        rows, url = self._rows(notice)
        message.set_content(_plain(notice, rows, url))
        message.add_alternative(_html(notice, rows, url), subtype="html")
        return message

    def _rows(self, notice: ApprovalNotice) -> tuple[list[NoticeFact], str]:
        if notice.phase is NoticePhase.TEST:
            return [], ""
        if notice.phase is NoticePhase.DIGEST:
            shown = notice.requests[:MAX_DIGEST_REQUESTS]
            return [
                NoticeFact(self._page_url(each, notice.recipient), without_links(digest_line(each)))
                for each in shown
            ], ""
        request = notice.request
        url = self._page_url(request, notice.recipient) if request.is_open else ""
        facts = request_facts(request)
        return [each._replace(text=without_links(each.text)) for each in facts], url

    def _deliver(self, message: EmailMessage) -> None:
        settings = self._settings
        is_tls = settings.security is MailSecurity.TLS
        connection = (
            smtplib.SMTP_SSL(
                settings.host, settings.port, timeout=TIMEOUT_SECONDS, context=self._tls
            )
            if is_tls
            else smtplib.SMTP(settings.host, settings.port, timeout=TIMEOUT_SECONDS)
        )
        with connection as smtp:
            if settings.security is MailSecurity.STARTTLS:
                # Without STARTTLS of the server this raises, so that nothing is sent in clear.
                smtp.starttls(context=self._tls)
            if settings.username:
                smtp.login(settings.username, self._password)
            smtp.send_message(message)


def address_of(person: str, addresses: Mapping[str, str]) -> str | None:
    """Return the email address of a person, or None without one."""
    found = addresses.get(person, person.removeprefix(PERSON_PREFIX))
    return found if _ADDRESS.fullmatch(found) else None


def _title(notice: ApprovalNotice) -> str:
    return without_links(notice_title(notice))


def _subject(notice: ApprovalNotice) -> str:
    title = shorten(_title(notice), MAX_TITLE_LENGTH)
    is_answer = notice.phase is NoticePhase.CHANGED
    # The titles of all messages about a request are the same, so that they form one thread.
    return f"{'Re: ' if is_answer else ''}[Comity] {title.removeprefix('Not answered yet: ')}"


def _thread_headers(notice: ApprovalNotice, domain: str) -> Mapping[str, str]:
    """Return the headers that put all messages about one request into one thread."""
    moment = int(notice.at.timestamp() * 1000)
    person = hashlib.sha256(notice.recipient.encode()).hexdigest()[:12]
    if not notice.requests or notice.phase is NoticePhase.DIGEST:
        return {"Message-ID": f"<{notice.phase}.{moment}.{person}@{domain}>"}
    first = f"<{notice.request.id}.{person}@{domain}>"
    if notice.phase is NoticePhase.REQUESTED:
        return {"Message-ID": first}
    own = f"<{notice.request.id}.{notice.phase}.{moment}.{person}@{domain}>"
    return {"Message-ID": own, "In-Reply-To": first, "References": first}


def _plain(notice: ApprovalNotice, rows: list[NoticeFact], url: str) -> str:
    lines = [_title(notice), ""]
    lines += [f"{each.label}: {each.text}" for each in rows]
    lines += ["", url, _LINK_NOTE] if url else []
    return "\n".join(lines) + "\n"


def _html(notice: ApprovalNotice, rows: list[NoticeFact], url: str) -> str:
    title = escape(_title(notice))
    if notice.phase is NoticePhase.DIGEST:
        items = "".join(
            f'<li>{escape(each.text)} <a href="{escape(each.label)}">Open</a></li>' for each in rows
        )
        body = f"<ul>{items}</ul>"
    else:
        body = "".join(
            f"<tr><td>{escape(each.label)}</td><td>{escape(each.text)}</td></tr>" for each in rows
        )
        body = f"<table>{body}</table>"
    link = f'<p><a href="{escape(url)}">Open the request</a></p><p>{_LINK_NOTE}</p>' if url else ""
    return f"<!doctype html><html><body><p><strong>{title}</strong></p>{body}{link}</body></html>\n"
