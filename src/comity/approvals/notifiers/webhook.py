"""The notifier `webhook`: each change of a request as signed JSON."""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

import msgspec

from comity.approvals import presentation
from comity.approvals.model import ApprovalRequest
from comity.approvals.notifiers.messages import TEST_TITLE, notice_text, notice_title, notice_type
from comity.approvals.notifiers.model import (
    ApprovalNotice,
    LinkMode,
    NoticePhase,
    OutgoingPosts,
    PostReply,
)
from comity.approvals.presentation import SIGNATURE_HEADER, sign_notice
from comity.errors import UPSTREAM_DOWN, Misconfigured, Unavailable

log = logging.getLogger(__name__)

MAX_NOTICE_BYTES: Final = 64 * 1024
MIN_SECRET: Final = 16
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

type PersonalUrl = Callable[[ApprovalRequest, str], str]
"""Returns the page of a request; with a person, a link for this person."""


class WebhookChannel:
    """Posts each change of a request to one URL of the operator."""

    is_personal = False
    hears_every_change = True

    def __init__(
        self,
        posts: OutgoingPosts,
        url: str,
        secret: bytes,
        page_url: PersonalUrl,
        *,
        links: LinkMode = LinkMode.SIGN_IN,
        clock: Callable[[], datetime],
    ) -> None:
        """`page_url` makes the links of the mode `links`."""
        if len(secret) < MIN_SECRET:
            raise Misconfigured(
                f"the secret of the webhook has fewer than {MIN_SECRET} bytes; make one with "
                "`openssl rand -hex 32`"
            )
        self._posts = posts
        self._url = url
        self._secret = secret
        self._page_url = page_url
        self._clock = clock
        parts = urlsplit(url)
        if links is LinkMode.ANSWER and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            log.warning(
                "Posts to %s are not encrypted, and contain links that answer approval requests",
                origin_of(url),
            )

    def can_reach(self, person: str) -> bool:
        return True

    def wants_change(self, request: ApprovalRequest) -> bool:
        return True

    def close(self) -> None:
        pass

    async def send(self, notice: ApprovalNotice, reference: str = "") -> str:
        body = self._encode(notice)
        signed = {SIGNATURE_HEADER: sign_notice(self._secret, self._clock(), body)}
        demand_success(self._url, await self._posts.post(self._url, signed, body))
        return ""

    def _encode(self, notice: ApprovalNotice) -> bytes:
        """Return a notice, without arguments that are too long."""
        if notice.phase is NoticePhase.TEST:
            return msgspec.json.encode({"type": "test", "at": notice.at, "text": TEST_TITLE})
        if notice.phase is NoticePhase.DIGEST:
            return msgspec.json.encode(
                {
                    "type": "approval.digest",
                    "at": notice.at,
                    "text": notice_title(notice),
                    "approvals": [_summary(each, self._page_url) for each in notice.requests],
                }
            )
        whole = self._whole(notice)
        body = msgspec.json.encode(whole)
        if len(body) <= MAX_NOTICE_BYTES:
            return body
        shortened = {
            **presentation.request_fields(notice.request),
            "about": None,
            "schema": None,
            "is_shortened": True,
        }
        return msgspec.json.encode({**whole, "approval": shortened})

    def _whole(self, notice: ApprovalNotice) -> Mapping[str, object]:
        request = notice.request
        type = notice_type(request)
        if notice.phase is NoticePhase.ESCALATED:
            type = "approval.escalated"
        return {
            "type": type,
            "id": f"{request.id}.{type}.{request.state}.{len(request.answers)}",
            "at": notice.at,
            "text": notice_text(request),
            "approval": presentation.request_fields(request),
            "url": self._page_url(request, ""),
            "links": [
                {"principal": party, "url": self._page_url(request, party)}
                for party in (notice.approvers if request.is_open else ())
            ],
        }


def _summary(request: ApprovalRequest, page_url: PersonalUrl) -> dict[str, object]:
    return {
        "id": request.id,
        "text": notice_text(request),
        "expires_at": request.expires_at,
        "url": page_url(request, ""),
    }


def origin_of(url: str) -> str:
    """Return the origin of a URL only, because its path may hold a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def demand_success(url: str, reply: PostReply) -> None:
    """Raise Unavailable unless the receiver accepted a post."""
    if not 200 <= reply.status < 300:
        raise Unavailable(f"{origin_of(url)} answered with status {reply.status}", UPSTREAM_DOWN)
