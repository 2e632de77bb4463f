"""The endpoint to which Slack posts the clicks on the buttons of messages."""

import logging
import re
from collections.abc import Iterable
from typing import Final

from comity.approvals.model import ApprovalDecision, ApprovalRequest
from comity.approvals.notifiers.model import ApprovalNotice, NoticePhase
from comity.approvals.notifiers.service import NotifierService
from comity.approvals.notifiers.slack import SlackChannel, SlackClick, click_in, replay_key
from comity.approvals.service import ApprovalInbox
from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.errors import INVALID_PARAMS, UNAUTHENTICATED, MalformedMessage, Unavailable
from comity.http import asgi
from comity.http.asgi import NOTIFIERS, HttpEndpoint, Receive, Scope, Send
from comity.mcp.actors import GATEWAY, Actor, PrincipalKind
from comity.toolkit.background import BackgroundTasks
from comity.toolkit.jobs import KeyState, OnceKeys
from comity.toolkit.text import start_sentence

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 256 * 1024
MAX_PENDING_REPLIES: Final = 100
_PATH: Final = re.compile(rf"{NOTIFIERS}([A-Za-z0-9][A-Za-z0-9_.-]{{0,63}})/slack")
_UNSIGNED_TEXT: Final = "this request is not signed by Slack, or was used before"
_TOO_LONG_TEXT: Final = "the arguments are too long for Slack; open the request to answer it"
_NO_MESSAGE_TEXT: Final = "this notifier has sent no message about this request"
_UNKNOWN_TEXT: Final = (
    "Comity does not know you. Ask an operator to add your Slack user ID to the notifier"
)


class SlackClicks:
    """Answers approval requests in the name of the people who click."""

    def __init__(
        self,
        channels: Iterable[SlackChannel],
        service: NotifierService,
        inbox: ApprovalInbox,
        seen: OnceKeys,
        audit_log: AuditLog | None = None,
    ) -> None:
        self._channels = {each.name: each for each in channels if each.is_interactive}
        self._service = service
        self._inbox = inbox
        self._seen = seen
        self._audit_log = audit_log
        self._replies = BackgroundTasks("replies to Slack")

    @property
    def endpoints(self) -> dict[str, HttpEndpoint]:
        return {NOTIFIERS: self.serve_click} if self._channels else {}

    def stop(self) -> None:
        self._replies.cancel()

    async def serve_click(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        if scope["method"] != "POST":
            await asgi.send_empty(send, 405, ((b"allow", b"POST"),))
            return
        named = _PATH.fullmatch(scope["path"])
        channel = None if named is None else self._channels.get(named[1])
        body = await asgi.read_body(receive, headers, MAX_BODY_BYTES)
        now = self._inbox.approvals.clock()
        # An unknown name gets the same answer, so that nobody learns the names of notifiers.
        if channel is None or channel.signature_problem(headers, body, now) is not None:
            raise MalformedMessage(_UNSIGNED_TEXT, UNAUTHENTICATED)
        (taken,) = await self._seen.take([replay_key(headers)], channel.name, now, None)
        if taken.state is not KeyState.OURS:
            raise MalformedMessage(_UNSIGNED_TEXT, UNAUTHENTICATED)
        click = click_in(body)
        if click is not None:
            await self._answer(channel, click)
        await asgi.send_empty(send, 200)

    async def _answer(self, channel: SlackChannel, click: SlackClick) -> None:
        actor = self._actor_of(channel, click)
        if actor is None:
            self._refuse(channel, click, _UNKNOWN_TEXT)
            return
        try:
            answered = await self._take(channel, click, actor)
        except (MalformedMessage, Unavailable) as refused:
            self._refuse(channel, click, str(refused), actor)
            return
        self._record(channel, click, actor.party, AuditResult.SUCCESS)
        now = self._inbox.approvals.clock()
        notice = ApprovalNotice(NoticePhase.CHANGED, now, (answered,))
        self._start(channel, click, _done_text(click, answered), notice)

    async def _take(
        self, channel: SlackChannel, click: SlackClick, actor: Actor
    ) -> ApprovalRequest:
        """Answer the request of a click. Raises MalformedMessage and Unavailable."""
        approvals = self._inbox.approvals
        # A click can name any request, whatever messages and buttons there are. Whoever has the
        # signing secret of one notifier must not answer the requests of all others.
        if not await self._service.has_announced(channel.name, click.request):
            raise MalformedMessage(_NO_MESSAGE_TEXT, INVALID_PARAMS)
        if click.decision is ApprovalDecision.ACCEPT:
            request = await approvals.get(actor, click.request)
            if not channel.shows_all(request):
                raise MalformedMessage(_TOO_LONG_TEXT, INVALID_PARAMS)
        return await approvals.answer(actor, click.request, click.decision)

    def _actor_of(self, channel: SlackChannel, click: SlackClick) -> Actor | None:
        """Return the person who clicked; None for an unknown user, or one who is no person."""
        person = channel.users.get(click.user)
        actor = None if person is None else self._inbox.find_actor(person, "")
        return actor if actor is not None and actor.kind is PrincipalKind.PERSON else None

    def _refuse(
        self, channel: SlackChannel, click: SlackClick, reason: str, actor: Actor | None = None
    ) -> None:
        party = GATEWAY if actor is None else actor.party
        self._record(channel, click, party, AuditResult.BLOCKED, reason)
        self._start(channel, click, f"Your answer was not accepted: {reason}.")

    def _start(
        self,
        channel: SlackChannel,
        click: SlackClick,
        text: str,
        notice: ApprovalNotice | None = None,
    ) -> None:
        # Slack waits three seconds for the endpoint, so the reply does not hold it up.
        if len(self._replies) < MAX_PENDING_REPLIES:
            self._replies.start(self._reply(channel, click, text, notice))

    async def _reply(
        self, channel: SlackChannel, click: SlackClick, text: str, notice: ApprovalNotice | None
    ) -> None:
        try:
            if notice is not None:
                await channel.replace(click, notice)
            await channel.reply(click, start_sentence(text))
        except Unavailable as problem:
            log.warning("The reply to a click in Slack failed: %s", problem)

    def _record(
        self,
        channel: SlackChannel,
        click: SlackClick,
        party: str,
        result: AuditResult,
        reason: str = "",
    ) -> None:
        if self._audit_log is None:
            return
        said = {"approval": click.request[:64], "notifier": channel.name}
        said |= {"slack_user": click.user[:64], "verdict": click.decision}
        said |= {"reason": reason[:300]} if reason else {}
        self._audit_log.record(AuditType.NOTICE_ANSWERED, party, result=result, details=said)


def _done_text(click: SlackClick, request: ApprovalRequest) -> str:
    if request.is_open:
        return "Your answer is recorded. More people must approve before the call runs."
    is_approval = click.decision is ApprovalDecision.ACCEPT
    return "You approved it. It may run once." if is_approval else "You denied it. It does not run."
