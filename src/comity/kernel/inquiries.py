"""What a server asks of people amid a call: kept in the inbox, and ended when the call is.

Rule 1: no deadline of the call runs while somebody is asked. (D-94)
Rule 2: whoever calls is who asks: nobody answers what is asked amid its own call. (D-98)
Rule 3: an answer is for the one question. What was filled in is kept no longer than it takes.
Rule 4: a server can have so much asked and no more, amid one call and in all.
"""

import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from comity.kernel.approvals import Approvals
from comity.kernel.call import Call
from comity.kernel.chores import Chores
from comity.kernel.own_call import OwnCall
from comity.kernel.question import Errand
from comity.kernel.tallies import name_in
from comity.rules.callbacks import MOST_OF_SERVER, MOST_OPEN, quoted
from comity.rules.conversation import Conversation
from comity.rules.permissions import SUBJECT
from comity.wire.asks import Ask, Kind, State
from comity.wire.errors import MalformedMessage, Unavailable

log = logging.getLogger(__name__)

CALL_IS_OVER: Final = "the call amid which it was asked is over"

type Redact = Callable[[object], object]
type Deliver = Callable[[Ask | None], Awaitable[None]]
"""Tells a server what became of its question; None is that nobody could be asked."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a server wants to know, in its own words, and what an answer can be."""

    server: str
    kind: Kind
    words: str
    within: timedelta
    digest: Callable[[str], str]
    """To what the answer is bound, given the name of the call."""
    options: tuple[str, ...] = ()
    schema: Mapping[str, object] | None = None


@dataclass(slots=True, eq=False)
class Inquiry:
    """One question that is open."""

    errand: Call
    call: Call
    server: str
    ask: Ask
    deliver: Deliver
    forsake: Callable[[], None] | None = None
    """What else is to be done where it ends because its call did."""
    opened: Callable[[Ask], None] | None = None
    """Who is to know that it can be answered now."""
    is_over: bool = False


class Inquiries:
    """All that servers ask of people just now."""

    def __init__(
        self,
        approvals: Approvals,
        chores: Chores | None = None,
        redact: Redact = lambda value: value,
    ) -> None:
        self.chores = chores or Chores("what servers ask")
        self.endings: list[Callable[[Errand], None]] = []
        self._approvals = approvals
        self._redact = redact
        self._amid: dict[Errand, list[Inquiry]] = {}
        self._of_server: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._of_server.total()

    def why_full(self, errand: Call, server: str) -> str | None:
        """Why no more can be asked just now; None where it can."""
        if len(self._amid.get(errand, ())) >= MOST_OPEN:
            return f"{MOST_OPEN} questions are open amid this call already"
        if self._of_server[server] >= MOST_OF_SERVER:
            return f"{MOST_OF_SERVER} questions of this server are open already"
        return None

    def follow(self, conversation: Conversation[Errand]) -> None:
        """Hear from now on which calls are over in this conversation."""
        conversation.on_end = self.over

    def ask_of(self, asked: Asked, call: Call) -> Ask:
        """The question as people read it: whose words are whose, and amid what."""
        actor, tool = call.outbox.actor, (call.tool or name_in(call.params))[:200]
        said = self._redact(asked.words)
        words = quoted(said if isinstance(said, str) else asked.words)
        name = secrets.token_hex(16) if call.record is None else call.record.id
        about = {"tool": f"{asked.server}/{tool}", "asked_by": SUBJECT + asked.server, "call": name}
        return self._approvals.new(
            lambda id, at, _: Ask(
                *(id, asked.kind, actor.party, asked.server, tool, asked.digest(name)),
                f"Server {asked.server} asks, amid a call of {tool} by {actor.party}: {words}",
                *(about, at, at + asked.within),
                own=self._approvals.is_own(actor),
                trace=call.traced(),
                options=asked.options,
                schema=asked.schema,
            )
        )

    def begin(self, inquiry: Inquiry) -> None:
        """Ask, and deliver what comes of it."""
        self._amid.setdefault(inquiry.errand, []).append(inquiry)
        self._of_server[inquiry.server] += 1
        inquiry.call.hold()
        self.chores.start(self._run(inquiry))

    def show(self, ask: Ask) -> None:
        """Let people see what they need not answer."""
        self.chores.start(self._show(ask))

    def over(self, errand: Errand) -> None:
        """A call is over: nobody need answer what was asked amid it."""
        for inquiry in list(self._amid.get(errand, ())):
            self.end(inquiry)
            if inquiry.forsake is not None:
                inquiry.forsake()
        for ending in self.endings:
            ending(errand)

    def end(self, inquiry: Inquiry) -> None:
        """Whoever wanted to know does so no longer."""
        inquiry.is_over = True
        self._approvals.changed(inquiry.ask.id)

    async def _show(self, ask: Ask) -> None:
        try:
            await self._approvals.open(ask)
        except (Unavailable, MalformedMessage) as error:
            log.warning("a notice of server %r is lost: %s", ask.server, error)

    async def _run(self, inquiry: Inquiry) -> None:
        ended: Ask | None = None
        try:
            ended = await self._ended(inquiry)
        except (Unavailable, MalformedMessage) as error:
            log.warning("nobody could be asked what server %r wants: %s", inquiry.server, error)
        finally:
            inquiry.call.release()
            self._forget(inquiry)
        if not inquiry.is_over:
            await inquiry.deliver(ended)
        if ended is not None:
            await self._erase(ended)

    async def _ended(self, inquiry: Inquiry) -> Ask:
        approvals = self._approvals
        ask = inquiry.ask = await approvals.open(inquiry.ask)
        if inquiry.opened is not None and ask.is_open:
            inquiry.opened(ask)
        while ask.is_open and ask.expires_at > approvals.clock() and not inquiry.is_over:
            ask = await approvals.until_other(ask)
        if inquiry.is_over:
            await approvals.withdraw(ask, CALL_IS_OVER)
            return ask
        if ask.is_open:
            ask = await approvals.expired(ask)
        if ask.state is State.ACCEPTED:
            return await approvals.use(ask, str(ask.about["call"])) or ask
        return ask

    async def _erase(self, ask: Ask) -> None:
        try:
            await self._approvals.erase(ask)
        except Unavailable as error:
            log.warning("what was filled in to ask %s could not be erased yet: %s", ask.id, error)

    def _forget(self, inquiry: Inquiry) -> None:
        amid = self._amid.get(inquiry.errand, [])
        if inquiry in amid:
            amid.remove(inquiry)
        if not amid:
            self._amid.pop(inquiry.errand, None)
        self._of_server[inquiry.server] -= 1
        if self._of_server[inquiry.server] <= 0:
            del self._of_server[inquiry.server]


def call_of(errand: Errand | None) -> Call | None:
    """The client's call that an errand at a server is made for; None where there is none."""
    if not isinstance(errand, Call) or isinstance(errand, OwnCall):
        return None
    return errand.client_call
