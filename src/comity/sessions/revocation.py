"""Ends what is open when the access of its principal ends or changes.

A request is authenticated when it arrives. Sessions and streams outlast it, so they are checked
again whenever the record of their principal or an API key changes, on every node.
"""

import asyncio
from collections.abc import Callable

from comity.errors import UNAUTHENTICATED, Unavailable
from comity.mcp import jsonrpc
from comity.mcp.actors import Actor
from comity.mcp.protocol import LISTEN
from comity.sessions.calls import ActiveCalls
from comity.sessions.sessions import SessionStore

REVOKED_TEXT = "the credentials of this request were revoked, or have expired"

type RefreshActor = Callable[[Actor], Actor | None]
"""Returns an actor with its current groups, or None if its credentials are no longer valid."""


class AccessMonitor:
    """Checks the sessions, streams and calls of principals whose records have changed.

    Invalid credentials end all of them. Other groups end sessions and streams, because they decided
    what these receive. The client opens them again. A call without a session continues.
    """

    def __init__(
        self, sessions: SessionStore, active_calls: ActiveCalls, refresh_actor: RefreshActor
    ) -> None:
        self._sessions = sessions
        self._active_calls = active_calls
        self._refresh_actor = refresh_actor
        self._changed: set[str] = set()

    def on_principal_changed(self, party: str) -> None:
        """Check what a principal has open. An empty name means every principal."""
        # One check for all changes that were read together.
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._check)
        self._changed.add(party)

    def _check(self) -> None:
        changed, self._changed = self._changed, set()
        for session in self._sessions:
            if "" not in changed and session.party not in changed:
                continue
            if session.actor is not None and self._is_outdated(session.actor):
                self._sessions.end_soon(session)
        for call in self._active_calls:
            actor = call.client_stream.actor
            if "" not in changed and actor.party not in changed:
                continue
            if call.method == LISTEN:
                if self._is_outdated(actor):
                    call.withdraw(None)
            elif self._is_invalid(actor):
                call.cancel_work(jsonrpc.to_raw(REVOKED_TEXT))
                call.refuse(UNAUTHENTICATED, REVOKED_TEXT)

    def _is_invalid(self, actor: Actor) -> bool:
        return self._is_other(actor, lambda fresh: fresh is None)

    def _is_outdated(self, actor: Actor) -> bool:
        return self._is_other(actor, lambda fresh: fresh is None or fresh.groups != actor.groups)

    def _is_other(self, actor: Actor, is_other: Callable[[Actor | None], bool]) -> bool:
        if not actor.party:
            return False
        try:
            return is_other(self._refresh_actor(actor))
        except Unavailable:
            # Nothing is decided for this actor before the records are known again. All records
            # count as changed then.
            return False
