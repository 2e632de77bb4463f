"""The gateway's own life, as a client that speaks MGP sees it: what it uses, and how it ends. (§11)

Rule 1: what it uses is for whoever may administer it; others learn nothing of the machine.
Rule 2: it ends at a client's word only where its operator switched that on, and only for somebody
        who has `admin/write` on everything. To all others nothing happens, and they are told so.
Rule 3: it ends then as at SIGTERM: open requests have its own grace, whatever time was wished for.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from comity.kernel.administration import Administration
from comity.kernel.journal import Journal
from comity.wire.audit import Event, Result, Type
from comity.wire.errors import MalformedMessage
from comity.wire.grants import ADMIN_READ, ADMIN_WRITE
from comity.wire.lifecycle import Reason
from comity.wire.parties import Actor

log = logging.getLogger(__name__)

A_REQUEST: Final = timedelta(seconds=1)
"""How long one that is open is guessed to need."""

type Readings = Callable[[], Mapping[str, int]]


class OwnLife:
    """Who may look into this process, and who may end it."""

    def __init__(
        self,
        administration: Administration,
        journal: Journal,
        readings: Readings,
        grace: timedelta,
        *,
        is_switched_on: bool,
    ) -> None:
        self._administration = administration
        self._journal = journal
        self._readings = readings
        self._grace = grace
        self._is_switched_on = is_switched_on
        # How the process is brought to its end; None where it ends with its client.
        self.end: Callable[[], None] | None = None
        self.reason = Reason.KERNEL_SHUTDOWN

    def resources(self, actor: Actor) -> Mapping[str, int]:
        return self._readings() if self._may(actor, ADMIN_READ) else {}

    def drain_ms(self, pending: int) -> int:
        return min(pending * A_REQUEST, self._grace) // timedelta(milliseconds=1)

    def may_end(self, actor: Actor) -> bool:
        return self._is_switched_on and self.end is not None and self._may(actor, ADMIN_WRITE)

    def begin_end(self, actor: Actor, reason: Reason, trace: str) -> None:
        """Once what is being answered now is on its way."""
        assert self.end is not None
        self.reason = reason
        log.warning("%s ends the gateway: %s", actor.party, reason)
        self._journal.note(
            Event(
                *(Type.GATEWAY_SHUTDOWN, actor.party, datetime.now(UTC), actor.kind),
                *("", "", Result.SUCCESS, trace, "", {"reason": reason}),
            )
        )
        asyncio.get_running_loop().call_soon(self.end)

    def _may(self, actor: Actor, verb: str) -> bool:
        try:
            self._administration.demand(actor, verb, "*")
        except MalformedMessage:
            return False
        return True
