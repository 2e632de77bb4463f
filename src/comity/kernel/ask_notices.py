"""News of asks for somewhere else: each new one, each answer and each end, tried again if need be.

Rule 1: nobody waits for it. What does not fit into a bounded queue is not sent, and that is logged.
Rule 2: of several nodes only the one that did something tells of it. A notice may arrive twice, and
        not in order: each has an id, and says what state the ask was in.
Rule 3: it carries a link for each party that was named to answer such asks, and none for those who
        may because everybody may. Whoever receives it holds what answers in their names.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from comity.kernel.chores import Chores
from comity.kernel.grants import Grants
from comity.kernel.inbox import Inbox
from comity.ports.noticing import Postman
from comity.rules import ask_words
from comity.rules.access import Access
from comity.rules.backoff import Backoff
from comity.rules.patterns import verb_covers
from comity.wire.asks import ANSWER, Ask, State
from comity.wire.errors import Unavailable
from comity.wire.grants import EVERYBODY, Effect, Grant, Source

log = logging.getLogger(__name__)

TRIES: Final = 5
AT_ONCE: Final = 8
MOST_WAITING: Final = 1000
MOST_LINKS: Final = 50
MOST_BYTES: Final = 64 * 1024
AGAIN: Final = Backoff(timedelta(seconds=1), timedelta(seconds=30))
_BETWEEN_LOOKS: Final = 500
_BY_A_PERSON: Final = frozenset({State.ACCEPTED, State.DECLINED, State.CANCELLED, State.DEFERRED})

type Sleep = Callable[[float], Awaitable[None]]


class Authorities:
    """Who was named, by a grant of its own, to answer asks."""

    def __init__(self, grants: Grants, inbox: Inbox) -> None:
        self._grants = grants
        self._inbox = inbox
        self._read: Access | None = None
        self._named: list[str] = []

    async def of(self, ask: Ask) -> Sequence[str]:
        """Those who may answer this one. Grants may be many, so they are gone through in pieces."""
        access = self._grants.latest
        if access is not self._read:
            self._named = await _named_in(access)
            self._read = access
        may = [each for each in self._named if self._inbox.why_no_link(ask, each) is None]
        return may[:MOST_LINKS]


async def _named_in(access: Access) -> list[str]:
    found: list[str] = []
    for place, (subject, entries) in enumerate(access.subjects.items()):
        if place % _BETWEEN_LOOKS == 0:
            await asyncio.sleep(0)
        if subject != EVERYBODY and any(_names(grant) for grant in entries.grants):
            found.append(subject)
    return sorted(found)


def _names(grant: Grant) -> bool:
    is_given = grant.effect is Effect.ALLOW and grant.source is not Source.BUILT_IN
    return is_given and verb_covers(grant.verb, ANSWER)


class Notices:
    """What waits to be told elsewhere, and the telling of it."""

    def __init__(
        self,
        inbox: Inbox,
        authorities: Authorities,
        postman: Postman,
        sleep: Sleep = asyncio.sleep,
        most: int = MOST_WAITING,
    ) -> None:
        self._inbox = inbox
        self._authorities = authorities
        self._postman = postman
        self._sleep = sleep
        self._most = most
        self._chores = Chores("notices of asks")
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._is_dropping = False

    def __len__(self) -> int:
        return len(self._chores)

    def hear(self, ask: Ask) -> None:
        """Something was done here with an ask."""
        if len(self._chores) >= self._most:
            if not self._is_dropping:
                log.warning("notices of asks are not sent: %d wait already", self._most)
            self._is_dropping = True
            return
        self._is_dropping = False
        self._chores.start(self._bring(ask, self._inbox.approvals.clock()))

    def stop(self) -> None:
        self._chores.cancel()

    async def _bring(self, ask: Ask, at: datetime) -> None:
        async with self._turns:
            for failures in range(1, TRIES + 1):
                try:
                    await self._postman.post(await self._notice(ask, at))
                    return
                except Unavailable as problem:
                    if failures == TRIES:
                        told = (ask.id, TRIES, problem)
                        log.warning("a notice of ask %s was tried %d times: %s", *told)
                        return
                delay = AGAIN.delay(failures, secrets.randbelow(1000) / 1000)
                await self._sleep(delay.total_seconds())

    async def _notice(self, ask: Ask, at: datetime) -> bytes:
        """What is told; arguments that would make it too long stay out of it. Raises Unavailable
        where it cannot be known who may answer.
        """
        type = type_of(ask)
        links = await self._authorities.of(ask) if type == "ask.opened" else ()
        whole: dict[str, object] = {
            "type": type,
            "id": f"{ask.id}.{type}.{ask.state}.{len(ask.answers)}",
            "at": at,
            "text": text_of(ask),
            "ask": ask_words.fields(ask),
            "url": self._inbox.url(ask),
            "links": [{"party": party, "url": self._inbox.url(ask, party)} for party in links],
        }
        body = msgspec.json.encode(whole)
        if len(body) <= MOST_BYTES:
            return body
        shortened = {**ask_words.fields(ask), "about": None, "schema": None, "is_shortened": True}
        return msgspec.json.encode({**whole, "ask": shortened})


def type_of(ask: Ask) -> str:
    """What happened last: it was opened, somebody said something, or it ended otherwise."""
    if ask.state in _BY_A_PERSON or (ask.is_open and ask.answers):
        return "ask.answered"
    return "ask.opened" if ask.is_open else "ask.ended"


def text_of(ask: Ask) -> str:
    """One line for people, in a chat or on a lock screen."""
    risk = f" ({ask_words.risk_of(ask)})" if ask_words.risk_of(ask) else ""
    if type_of(ask) == "ask.opened":
        until = ask_words.moment(ask.expires_at)
        return f"{ask_words.what(ask)}{risk}; it can be answered until {until}"
    return f"{ask_words.what(ask)}{risk}. {ask_words.state_of(ask)}"
