"""Who shares a link to a server, and to whom of them a message without an address belongs.

A stdio server has one stream for all its callers. What it says outside of a call goes to the one
client it can belong to; where there are two, nobody is guessed at: a question is refused and a
notice dropped, so that no client ever sees what was meant for another. `kernel.apart` gives calls
of tools that ask a process of their client's, so that this is rare.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from comity.kernel.call import Call
from comity.kernel.links import Link
from comity.kernel.question import Client, Question
from comity.kernel.sessions import Session
from comity.kernel.tallies import name_in
from comity.wire import jsonrpc, lifecycle
from comity.wire.errors import EXHAUSTED, MalformedMessage
from comity.wire.jsonrpc import Frame
from comity.wire.mcp import LIST_CHANGES, LOG_LEVELS, MESSAGE, RESOURCE_UPDATED

log = logging.getLogger(__name__)

MOST_FOLLOWED = 4096
MOST_LEVELS = 32
MOST_ASKING = 256
AMBIGUOUS = (
    "calls of several clients are open on this process, and the question names none of them; "
    'make the call again, or set sharing = "session" for this server'
)


class Reader(Protocol):
    """Who is told of a resource that it follows."""

    def tell(self, frame: Frame) -> None: ...


class Sharers:
    """The audience of a link that several sessions use."""

    def __init__(
        self, changed: Callable[[str], None] | None, gone: Callable[[Link, str], None]
    ) -> None:
        self.anew = asyncio.Event()
        self._changed = changed
        self._gone = gone
        self._sessions: set[Session] = set()
        self._readers: dict[str, set[Reader]] = {}
        self._followed: dict[Reader, set[str]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session: object) -> bool:
        return session in self._sessions

    @property
    def sessions(self) -> frozenset[Session]:
        return frozenset(self._sessions)

    def attach(self, session: Session) -> None:
        self._sessions.add(session)

    def detach(self, session: Session) -> list[str]:
        """Forget a session; gives the resources that nobody follows any more."""
        self._sessions.discard(session)
        followed = sorted(self._followed.get(session, ()))
        return [uri for uri in followed if self.unfollow(session, uri)]

    def follow(self, reader: Reader, uri: str) -> None:
        followed = self._followed.setdefault(reader, set())
        if len(followed) >= MOST_FOLLOWED and uri not in followed:
            raise MalformedMessage("too many resources are followed at once", EXHAUSTED)
        followed.add(uri)
        self._readers.setdefault(uri, set()).add(reader)

    def unfollow(self, reader: Reader, uri: str) -> bool:
        """Whether this was the last to follow the resource."""
        readers = self._readers.get(uri)
        if readers is None or reader not in readers:
            return False
        readers.discard(reader)
        self._followed[reader].discard(uri)
        if not self._followed[reader]:
            del self._followed[reader]
        if not readers:
            del self._readers[uri]
        return not readers

    def _readers_of(self, uri: str) -> set[Reader]:
        """Who follows a resource, or one that it is a part of. (MCP §5.2)"""
        found = set(self._readers.get(uri, ()))
        for _ in range(MOST_LEVELS):
            cut = max(uri.rfind("/"), uri.rfind("#"), uri.rfind("?"))
            if cut < 0:
                break
            found.update(self._readers.get(uri[: cut + 1], ()), self._readers.get(uri[:cut], ()))
            uri = uri[:cut]
        return found

    def lowest_level(self) -> str | None:
        """The most talkative level that any session asked for."""
        asked = [session.level for session in self._sessions if session.level in LOG_LEVELS]
        return min(asked, key=LOG_LEVELS.index, default=None)

    def told(self, link: Link, frame: Frame) -> None:
        if frame.method in LIST_CHANGES:
            self._tell_all(frame)
        elif frame.method == RESOURCE_UPDATED:
            for reader in self._readers_of(_uri(frame)):
                reader.tell(frame)
        elif frame.method == lifecycle.CHANGED:
            # How the server itself fares concerns everybody who agreed with it to be told.
            for session in self._sessions:
                if session.speaks_mgp_with_servers:
                    session.tell(frame)
        else:
            self._tell_the_one(link, frame)

    def asked(self, link: Link, question: Question, frame: Frame) -> None:
        call = _asker(link)
        if call is not None:
            if len(link.pulse.asking) < MOST_ASKING:
                link.pulse.asking.add(name_in(call.params))
            call.asked(question, frame)
        elif len(self._sessions) == 1 and not link.callers:
            session = next(iter(self._sessions))
            question.put_to(session, frame, session.standalone)
        else:
            link.pulse.is_crowded = link.pulse.is_crowded or bool(link.callers)
            several = link.callers or self._sessions
            question.decline(frame, AMBIGUOUS if several else "no client is here")

    def renewed(self, link: Link) -> None:
        """The server began anew: all of its lists may have changed."""
        self.forgotten()
        if self._changed is not None:
            for method in LIST_CHANGES:
                self._changed(method)

    def gone(self, link: Link, because: str) -> None:
        self.forgotten()
        self._gone(link, because)

    def forgotten(self) -> None:
        """The server no longer knows what was subscribed to on this link."""
        forgotten, self.anew = self.anew, asyncio.Event()
        forgotten.set()

    def _tell_all(self, frame: Frame) -> None:
        for session in self._sessions:
            if not session.sees_all_servers:
                session.tell(frame)

    def _tell_the_one(self, link: Link, frame: Frame) -> None:
        call = _sole_caller(link)
        if call is not None:
            if _is_wanted(frame, call.client):
                call.told(frame)
        elif len(self._sessions) == 1 and not link.callers:
            session = next(iter(self._sessions))
            if _is_wanted(frame, session):
                session.told(link, frame)
        else:
            log.info("server %r: %s belongs to no one caller", link.server, frame.method)


def client_of(call: Call) -> str:
    """Whose call it is, as far as that can be told: a session's, or else a principal's."""
    return f"{'' if call.client is None else call.client.id} {call.outbox.actor.party}"


def _asker(link: Link) -> Call | None:
    """The call that a question belongs to; None where it may be that of another client.

    Clients of the modern era have no session: of a principal's calls it is the only one that does
    not wait for an answer of its client already.
    """
    calls = link.callers
    if len({client_of(call) for call in calls}) != 1:
        return None
    if calls[-1].client is not None:
        return calls[-1]
    going_on = [call for call in calls if not _waits_for_its_client(call)] or calls
    return going_on[-1] if len(going_on) == 1 else None


def _waits_for_its_client(call: Call) -> bool:
    return call.client_call is None


def _sole_caller(link: Link) -> Call | None:
    """The last call of the only client that waits on this link."""
    calls = link.callers
    return calls[-1] if len({id(call.client or call) for call in calls}) == 1 else None


def _is_wanted(frame: Frame, client: Client | None) -> bool:
    """Whether a log message is loud enough for this client."""
    if frame.method != MESSAGE or not isinstance(client, Session) or client.level is None:
        return True
    params = jsonrpc.params_of(frame)
    level = jsonrpc.text(params.get("level"))
    if level not in LOG_LEVELS or client.level not in LOG_LEVELS:
        return True
    return LOG_LEVELS.index(level) >= LOG_LEVELS.index(client.level)


def _uri(frame: Frame) -> str:
    params = jsonrpc.params_of(frame)
    return jsonrpc.text(params.get("uri")) or ""
