"""The notifier `slack`: Block Kit messages, and buttons whose clicks Slack signs.

Untrusted text is only in `plain_text` objects and in `rich_text`, which Slack does not parse. The
fallback `text` is parsed, so it is escaped there.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, cast
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

from comity.approvals import presentation
from comity.approvals.kinds import RULES_BY_KIND
from comity.approvals.model import ApprovalDecision, ApprovalRequest
from comity.approvals.notifiers.messages import (
    MAX_DIGEST_REQUESTS,
    digest_line,
    notice_title,
    request_facts,
    shorten,
    without_links,
)
from comity.approvals.notifiers.model import (
    ApprovalNotice,
    NoticePhase,
    NotifierSettings,
    OutgoingPosts,
)
from comity.approvals.notifiers.webhook import demand_success, origin_of
from comity.errors import UPSTREAM_DOWN, Misconfigured, Unavailable

MAX_REPLY_BYTES: Final = 64 * 1024
MAX_HEADER_LENGTH: Final = 150
MAX_FIELD_LENGTH: Final = 500
MAX_ARGUMENT_LENGTH: Final = 2500
MAX_SIGNATURE_AGE: Final = timedelta(minutes=5)
RESPONSE_ORIGINS: Final = ("https://hooks.slack.com", "https://hooks.slack-gov.com")
"""Where Slack lets an app answer a click. A click names the address, so others are refused."""

_TOO_LONG_TEXT: Final = "The arguments are too long for Slack: open the request to answer it."
_DECISION_BY_ACTION: Final = {
    "comity_approve": ApprovalDecision.ACCEPT,
    "comity_deny": ApprovalDecision.DECLINE,
}
# Errors that no later attempt can cure without another setting.
_LASTING_ERRORS: Final = frozenset(
    {"invalid_auth", "account_inactive", "token_revoked", "not_authed", "missing_scope"}
    | {"channel_not_found", "not_in_channel", "is_archived", "invalid_blocks"}
)


class SlackClick(Struct, frozen=True):
    """A click on a button: who, on which request, and where to reply."""

    user: str
    request: str
    decision: ApprovalDecision
    response_url: str = ""


class _SlackReference(Struct):
    """A posted message."""

    channel: str = ""
    ts: str = ""


class _SlackReply(Struct):
    ok: bool = False
    error: str = ""
    channel: str = ""
    ts: str = ""


_reply: Final = msgspec.json.Decoder(_SlackReply)
_reference: Final = msgspec.json.Decoder(_SlackReference)


class SlackChannel:
    """Posts messages to a channel, to people, or to an incoming webhook of Slack."""

    hears_every_change = False

    def __init__(
        self,
        settings: NotifierSettings,
        posts: OutgoingPosts,
        page_url: Callable[[ApprovalRequest, str], str],
        *,
        token: str = "",
        url: str = "",
        signing_secret: bytes = b"",
    ) -> None:
        self.name = settings.name
        self.users = settings.users
        self._posts = posts
        self._page_url = page_url
        self._token = token
        self._url = url
        self._signing_secret = signing_secret
        self._api_url = settings.api_url.rstrip("/")
        self._channel = settings.channel
        self._slack_ids = {person: user for user, person in settings.users.items()}

    @property
    def is_personal(self) -> bool:
        return bool(self._token) and not self._channel

    @property
    def is_interactive(self) -> bool:
        """Whether messages have buttons."""
        return bool(self._signing_secret)

    def can_reach(self, person: str) -> bool:
        return not self.is_personal or person in self._slack_ids

    def wants_change(self, request: ApprovalRequest) -> bool:
        # Only a message that was posted with a token can be changed later.
        return bool(self._token)

    def close(self) -> None:
        pass

    async def send(self, notice: ApprovalNotice, reference: str = "") -> str:
        content = self.message(notice)
        if not self._token:
            body = msgspec.json.encode(content)
            demand_success(self._url, await self._posts.post(self._url, {}, body))
            return ""
        if notice.phase is NoticePhase.CHANGED and reference:
            known = _reference.decode(reference)
            await self._call("chat.update", {**content, "channel": known.channel, "ts": known.ts})
            return reference
        where = self._slack_ids[notice.recipient] if self.is_personal else self._channel
        reply = await self._call("chat.postMessage", {**content, "channel": where})
        return msgspec.json.encode(_SlackReference(reply.channel, reply.ts)).decode()

    async def _call(self, method: str, content: Mapping[str, Any]) -> _SlackReply:
        """Call a method of Slack. Raises Unavailable, or Misconfigured for a lasting error."""
        url = f"{self._api_url}/{method}"
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json; charset=utf-8",
        }
        answered = await self._posts.post(
            url, headers, msgspec.json.encode(content), MAX_REPLY_BYTES
        )
        demand_success(url, answered)
        try:
            reply = _reply.decode(answered.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Unavailable(
                "Slack answered with something else than JSON", UPSTREAM_DOWN
            ) from None
        if reply.ok:
            return reply
        error = presentation.one_line(shorten(reply.error, 80))
        if reply.error in _LASTING_ERRORS:
            raise Misconfigured(f"Slack refused the message: {error}")
        raise Unavailable(f"Slack refused the message: {error}", UPSTREAM_DOWN)

    # Messages.

    def message(self, notice: ApprovalNotice) -> dict[str, Any]:
        """Return the content of a message."""
        return {
            "text": escape_mrkdwn(notice_title(notice)),
            "mrkdwn": False,
            "parse": "none",
            "link_names": False,
            "unfurl_links": False,
            "unfurl_media": False,
            "blocks": self._blocks(notice),
        }

    def _blocks(self, notice: ApprovalNotice) -> list[dict[str, Any]]:
        title = {"type": "header", "text": _plain(notice_title(notice), MAX_HEADER_LENGTH)}
        if notice.phase is NoticePhase.TEST:
            return [title]
        if notice.phase is NoticePhase.DIGEST:
            shown = notice.requests[:MAX_DIGEST_REQUESTS]
            return [title, *(self._digest_block(each, notice.recipient) for each in shown)]
        request = notice.request
        fields = [
            _plain(f"{each.label}: {each.text}", MAX_FIELD_LENGTH)
            for each in request_facts(request)
        ]
        blocks = [title, {"type": "section", "fields": fields}]
        if self.is_interactive and request.about.get("arguments") is not None:
            # People who answer here must see what they approve.
            blocks.append(_code(presentation.whole_json(request.about["arguments"])))
            if not self.shows_all(request):
                blocks.append({"type": "section", "text": _plain(_TOO_LONG_TEXT, MAX_FIELD_LENGTH)})
        if request.is_open:
            elements = [
                *self._answer_buttons(request),
                self._open_button(request, notice.recipient),
            ]
            blocks.append({"type": "actions", "elements": elements})
        return blocks

    def shows_all(self, request: ApprovalRequest) -> bool:
        """Return whether a message shows all arguments. Without them, it takes no answer."""
        return presentation.fits_message(request, MAX_ARGUMENT_LENGTH)

    def _digest_block(self, request: ApprovalRequest, person: str) -> dict[str, Any]:
        return {
            "type": "section",
            "text": _plain(digest_line(request), MAX_FIELD_LENGTH),
            "accessory": self._open_button(request, person),
        }

    def _open_button(self, request: ApprovalRequest, person: str) -> dict[str, Any]:
        return {
            "type": "button",
            "text": _plain("Open", 75),
            "action_id": f"comity_open_{request.id}",
            "url": self._page_url(request, person),
        }

    def _answer_buttons(self, request: ApprovalRequest) -> list[dict[str, Any]]:
        can_answer = self.is_interactive and RULES_BY_KIND[request.kind].is_yes_or_no
        if not can_answer or not self.shows_all(request):
            return []
        confirm = {
            "title": _plain("Approve exactly this?", 100),
            "text": _plain(presentation.describe_request(request), 300),
            "confirm": _plain("Approve", 30),
            "deny": _plain("Back", 30),
        }
        approve = {
            "type": "button",
            "text": _plain("Approve", 75),
            "style": "primary",
            "action_id": "comity_approve",
            "value": request.id,
            "confirm": confirm,
        }
        deny = {
            "type": "button",
            "text": _plain("Deny", 75),
            "style": "danger",
            "action_id": "comity_deny",
            "value": request.id,
        }
        return [approve, deny]

    # Clicks.

    def signature_problem(
        self, headers: Mapping[bytes, bytes], body: bytes, now: datetime
    ) -> str | None:
        """Return why a request does not come from Slack just now, or None if it does."""
        moment = headers.get(b"x-slack-request-timestamp", b"")
        shown = headers.get(b"x-slack-signature", b"")
        if not self._signing_secret or not moment.isdigit() or len(moment) > 12:
            return "it is not signed"
        if abs(now.timestamp() - int(moment)) > MAX_SIGNATURE_AGE.total_seconds():
            return "its signature is too old"
        signed = hmac.new(self._signing_secret, b"v0:%b:%b" % (moment, body), hashlib.sha256)
        if not hmac.compare_digest(b"v0=" + signed.hexdigest().encode(), shown):
            return "its signature is wrong"
        return None

    async def reply(self, click: SlackClick, text: str) -> None:
        """Show a text only to the person who clicked. Raises Unavailable."""
        content = {
            "response_type": "ephemeral",
            "replace_original": False,
            "text": escape_mrkdwn(text),
        }
        await self._respond(click, content)

    async def replace(self, click: SlackClick, notice: ApprovalNotice) -> None:
        """Change the message of a click, where no token can change it. Raises Unavailable."""
        if not self._token:
            await self._respond(click, {**self.message(notice), "replace_original": True})

    async def _respond(self, click: SlackClick, content: Mapping[str, Any]) -> None:
        url = click.response_url
        if origin_of(url) not in (*RESPONSE_ORIGINS, origin_of(self._api_url)):
            raise Unavailable("the click names no address of Slack for the reply")
        demand_success(url, await self._posts.post(url, {}, msgspec.json.encode(content)))


def click_in(body: bytes) -> SlackClick | None:
    """Return the click that a verified body describes, or None if it is something else."""
    try:
        payload = parse_qs(body.decode("ascii"), max_num_fields=4)["payload"][0]
        said = cast("object", msgspec.json.decode(payload.encode()))
    except (ValueError, KeyError, msgspec.DecodeError, RecursionError):
        return None
    try:
        found = msgspec.convert(said, _SlackPayload)
    except msgspec.ValidationError:
        return None
    action = found.actions[0] if len(found.actions) == 1 else None
    decision = None if action is None else _DECISION_BY_ACTION.get(action.action_id)
    if found.type != "block_actions" or action is None or decision is None:
        return None
    return SlackClick(found.user.id, action.value, decision, found.response_url)


class _SlackUser(Struct):
    id: str


class _SlackAction(Struct):
    action_id: str
    value: str = ""


class _SlackPayload(Struct):
    type: str
    user: _SlackUser
    actions: Sequence[_SlackAction] = ()
    response_url: str = ""


def escape_mrkdwn(text: str) -> str:
    """Return a text that Slack shows as it is: without mentions, links and channels."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Clients make links even where the message asks for no parsing.
    return without_links(escaped)


def _plain(text: str, maximum: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": shorten(text, maximum), "emoji": False}


def _code(text: str) -> dict[str, Any]:
    run = {"type": "text", "text": shorten(text, MAX_ARGUMENT_LENGTH)}
    return {
        "type": "rich_text",
        "elements": [{"type": "rich_text_preformatted", "elements": [run]}],
    }


def replay_key(headers: Mapping[bytes, bytes]) -> str:
    """Return the key by which a second request with the same signature is recognised."""
    return hashlib.sha256(headers.get(b"x-slack-signature", b"")).hexdigest()
