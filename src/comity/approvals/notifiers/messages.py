"""The text of notices, which every kind of notifier formats in its own way.

Agents and servers wrote most of it. Each kind escapes it for its own format.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from comity.approvals import presentation
from comity.approvals.model import ApprovalRequest, ApprovalState
from comity.approvals.notifiers.model import ApprovalNotice, NoticePhase
from comity.approvals.notifiers.rules import quorum_text
from comity.toolkit.text import count_noun

MAX_TITLE_LENGTH: Final = 300
MAX_FACT_LENGTH: Final = 500
MAX_DIGEST_REQUESTS: Final = 20
_WWW: Final = re.compile(r"\b(www)\.", re.IGNORECASE)
TEST_TITLE: Final = "This is a test message of Comity."
_ANSWERED_STATES: Final = frozenset(
    {
        ApprovalState.APPROVED,
        ApprovalState.DENIED,
        ApprovalState.CANCELLED,
        ApprovalState.DEFERRED,
    }
)


class NoticeFact(NamedTuple):
    """One line of a message: its label is ours, its text is untrusted."""

    label: str
    text: str


def notice_type(request: ApprovalRequest) -> str:
    """Return the last event: opened, answered, or ended otherwise."""
    if request.state in _ANSWERED_STATES or (request.is_open and request.answers):
        return "approval.answered"
    return "approval.requested" if request.is_open else "approval.ended"


def notice_text(request: ApprovalRequest) -> str:
    """Return one line of text, for a chat or a lock screen."""
    risk = f" ({presentation.request_risk(request)})" if presentation.request_risk(request) else ""
    if notice_type(request) == "approval.requested":
        until = presentation.format_moment(request.expires_at)
        return f"{presentation.describe_request(request)}{risk}; it can be answered until {until}"
    return f"{presentation.describe_request(request)}{risk}. {presentation.describe_state(request)}"


def without_links(text: str) -> str:
    """Return an untrusted text of which no client makes a link.

    Clients make one of each URL and of each name with `www`, in plain text too.
    """
    return _WWW.sub(r"\1 .", text.replace("://", ":/ /"))


def shorten(text: str, maximum: int) -> str:
    return text if len(text) <= maximum else f"{text[: maximum - 1]}…"


def notice_title(notice: ApprovalNotice) -> str:
    """Return the message in one line, without a full stop where it is about one request."""
    if notice.phase is NoticePhase.TEST:
        return TEST_TITLE
    if notice.phase is NoticePhase.DIGEST:
        return f"{count_noun(len(notice.requests), 'approval request')} can be answered"
    title = request_title(notice.request)
    if notice.phase is NoticePhase.ESCALATED:
        return f"Not answered yet: {title}"
    return title


def request_title(request: ApprovalRequest) -> str:
    return shorten(presentation.describe_request(request), MAX_TITLE_LENGTH)


def status_text(request: ApprovalRequest) -> str:
    """Return the state with the answers; empty before the first answer."""
    if request.state is ApprovalState.PENDING and not request.answers:
        return ""
    return shorten(presentation.describe_state(request), MAX_FACT_LENGTH)


def request_facts(request: ApprovalRequest) -> Sequence[NoticeFact]:
    """Return the lines about a request, without its arguments."""
    found = [
        NoticeFact("Requested by", presentation.one_line(request.asker)),
        NoticeFact("Server", presentation.one_line(request.server)),
        NoticeFact("Tool", presentation.one_line(request.tool)),
        NoticeFact("Risk", presentation.request_risk(request)),
        NoticeFact("Approvals", quorum_text(request)),
        NoticeFact(
            "Expires",
            presentation.format_moment(request.expires_at) if request.is_open else "",
        ),
        NoticeFact("Status", status_text(request)),
        NoticeFact("ID", request.id),
    ]
    return [
        NoticeFact(each.label, shorten(each.text, MAX_FACT_LENGTH)) for each in found if each.text
    ]


def digest_line(request: ApprovalRequest) -> str:
    """Return one request of a digest in one line."""
    risk = presentation.request_risk(request)
    return f"{request_title(request)}{f' ({risk})' if risk else ''}"
