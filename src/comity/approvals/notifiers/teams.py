"""The notifier `teams`: an Adaptive Card for a Microsoft Teams workflow.

Teams reads a TextBlock as Markdown. A TextRun is plain text, so untrusted text is only in these.
The button opens the page of the request, which asks for sign-in. There is no answer inside Teams.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from comity.approvals.model import ApprovalRequest
from comity.approvals.notifiers.messages import (
    MAX_DIGEST_REQUESTS,
    digest_line,
    notice_title,
    request_facts,
)
from comity.approvals.notifiers.model import ApprovalNotice, NoticePhase, OutgoingPosts
from comity.approvals.notifiers.webhook import demand_success

_CARD_TYPE: Final = "application/vnd.microsoft.card.adaptive"
_SCHEMA: Final = "http://adaptivecards.io/schemas/adaptive-card.json"


class TeamsChannel:
    """Posts an Adaptive Card to one workflow or incoming webhook."""

    is_personal = False
    hears_every_change = False

    def __init__(
        self, posts: OutgoingPosts, url: str, page_url: Callable[[ApprovalRequest, str], str]
    ) -> None:
        self._posts = posts
        self._url = url
        self._page_url = page_url

    def can_reach(self, person: str) -> bool:
        return True

    def wants_change(self, request: ApprovalRequest) -> bool:
        # A workflow cannot change a message that it has posted.
        return False

    def close(self) -> None:
        pass

    async def send(self, notice: ApprovalNotice, reference: str = "") -> str:
        body = msgspec.json.encode(self._message(notice))
        demand_success(self._url, await self._posts.post(self._url, {}, body))
        return ""

    def _message(self, notice: ApprovalNotice) -> dict[str, Any]:
        card = {
            "$schema": _SCHEMA,
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": [_text(notice_title(notice), weight="Bolder", size="Medium"), *_body(notice)],
            "actions": self._actions(notice),
        }
        attachment = {"contentType": _CARD_TYPE, "contentUrl": None, "content": card}
        return {"type": "message", "attachments": [attachment]}

    def _actions(self, notice: ApprovalNotice) -> Sequence[dict[str, Any]]:
        if notice.phase in (NoticePhase.TEST, NoticePhase.DIGEST):
            return []
        url = self._page_url(notice.request, "")
        return [{"type": "Action.OpenUrl", "title": "Open the request", "url": url}]


def _body(notice: ApprovalNotice) -> list[dict[str, Any]]:
    if notice.phase is NoticePhase.DIGEST:
        shown = notice.requests[:MAX_DIGEST_REQUESTS]
        return [_text(f"{digest_line(each)} [{each.id}]") for each in shown]
    if notice.phase is NoticePhase.TEST:
        return []
    return [_text(f"{each.label}: {each.text}") for each in request_facts(notice.request)]


def _text(text: str, **style: str) -> dict[str, Any]:
    # A host replaces {{DATE(…)}} in any text of a card.
    plain = text.replace("{{", "{ {")
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": plain, **style}]}
