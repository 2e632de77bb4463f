"""Notifications of approval requests to other systems."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec

from comity.approvals import presentation
from comity.approvals.model import ANSWER_VERB, ApprovalRequest, ApprovalState
from comity.approvals.service import ApprovalInbox
from comity.errors import Unavailable
from comity.policy.grants import ANY_SUBJECT, Effect, Grant, GrantSet, GrantSource, verb_covers
from comity.policy.snapshot import GrantSnapshot
from comity.toolkit.background import BackgroundTasks, draw_delay
from comity.toolkit.resilience import RetrySchedule


class NotificationSender(Protocol):
    async def post(self, body: bytes) -> None:
        """Send a notice once. Raises Unavailable if it did not arrive."""
        ...


log = logging.getLogger(__name__)

MAX_CONCURRENT_POSTS: Final = 8
MAX_QUEUED_NOTICES: Final = 1000
MAX_LINKS: Final = 50
MAX_NOTICE_BYTES: Final = 64 * 1024
RETRY_SCHEDULE: Final = RetrySchedule(timedelta(seconds=1), timedelta(seconds=30), max_attempts=5)
_GRANTS_PER_STEP: Final = 500
_ANSWERED_STATES: Final = frozenset(
    {
        ApprovalState.APPROVED,
        ApprovalState.DENIED,
        ApprovalState.CANCELLED,
        ApprovalState.DEFERRED,
    }
)

type Sleep = Callable[[float], Awaitable[None]]


class ApproverDirectory:
    """The principals that have a grant to answer requests."""

    def __init__(self, grants: GrantSnapshot, inbox: ApprovalInbox) -> None:
        self._grants = grants
        self._inbox = inbox
        self._indexed_grants: GrantSet | None = None
        self._principals: list[str] = []

    async def approvers_of(self, request: ApprovalRequest) -> Sequence[str]:
        """Return the principals that may answer a request. Many grants are read in pieces."""
        access = self._grants.latest
        if access is not self._indexed_grants:
            self._principals = await _principals_in(access)
            self._indexed_grants = access
        may = [each for each in self._principals if self._inbox.link_problem(request, each) is None]
        return may[:MAX_LINKS]


async def _principals_in(access: GrantSet) -> list[str]:
    found: list[str] = []
    for place, (subject, entries) in enumerate(access.subjects.items()):
        if place % _GRANTS_PER_STEP == 0:
            await asyncio.sleep(0)
        if subject != ANY_SUBJECT and any(_names_principal(grant) for grant in entries.grants):
            found.append(subject)
    return sorted(found)


def _names_principal(grant: Grant) -> bool:
    is_given = grant.effect is Effect.ALLOW and grant.source is not GrantSource.BUILT_IN
    return is_given and verb_covers(grant.verb, ANSWER_VERB)


class ApprovalNotifier:
    """Sends notices of requests to another system, and keeps those that wait."""

    def __init__(
        self,
        inbox: ApprovalInbox,
        approver_directory: ApproverDirectory,
        sender: NotificationSender,
        sleep: Sleep = asyncio.sleep,
        max_queued: int = MAX_QUEUED_NOTICES,
    ) -> None:
        self._inbox = inbox
        self._approver_directory = approver_directory
        self._sender = sender
        self._sleep = sleep
        self._max_queued = max_queued
        self._background_tasks = BackgroundTasks("approval notices")
        self._send_semaphore = asyncio.Semaphore(MAX_CONCURRENT_POSTS)
        self._is_dropping = False

    def __len__(self) -> int:
        return len(self._background_tasks)

    def on_request_changed(self, request: ApprovalRequest) -> None:
        """Queue a notification of a request that this node opened or changed."""
        if len(self._background_tasks) >= self._max_queued:
            if not self._is_dropping:
                log.warning("Approval notices are dropped: %d are already queued", self._max_queued)
            self._is_dropping = True
            return
        self._is_dropping = False
        self._background_tasks.start(
            self._send_with_retries(request, self._inbox.approvals.clock())
        )

    def stop(self) -> None:
        self._background_tasks.cancel()

    async def _send_with_retries(self, request: ApprovalRequest, at: datetime) -> None:
        async with self._send_semaphore:
            for attempts in itertools.count(1):
                try:
                    await self._sender.post(await self._encode_notice(request, at))
                    return
                except Unavailable as problem:
                    if RETRY_SCHEDULE.is_exhausted(attempts):
                        told = (request.id, attempts, problem)
                        log.warning("The notice of approval request %s failed %d times: %s", *told)
                        return
                await self._sleep(draw_delay(RETRY_SCHEDULE, attempts).total_seconds())

    async def _encode_notice(self, request: ApprovalRequest, at: datetime) -> bytes:
        """Return a notice, without arguments that are too long.

        Raises Unavailable if the approvers are unknown.
        """
        type = notice_type(request)
        links = (
            await self._approver_directory.approvers_of(request)
            if type == "approval.requested"
            else ()
        )
        whole: dict[str, object] = {
            "type": type,
            "id": f"{request.id}.{type}.{request.state}.{len(request.answers)}",
            "at": at,
            "text": notice_text(request),
            "approval": presentation.request_fields(request),
            "url": self._inbox.page_url(request),
            "links": [
                {"principal": party, "url": self._inbox.page_url(request, party)} for party in links
            ],
        }
        body = msgspec.json.encode(whole)
        if len(body) <= MAX_NOTICE_BYTES:
            return body
        shortened = {
            **presentation.request_fields(request),
            "about": None,
            "schema": None,
            "is_shortened": True,
        }
        return msgspec.json.encode({**whole, "approval": shortened})


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
