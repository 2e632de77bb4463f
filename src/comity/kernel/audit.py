"""What was written down, told to the clients that agreed on `audit`. (MGP §6.3)

Rule 1: nothing is told before it is kept, and nobody who listens holds up the journal. (D-34)
Rule 2: a party is told of what it did itself; of what others did only with `admin/read` over what
        that is about, and only while the key by which it came in still counts.
Rule 3: whoever reads too slowly loses notices, and the next one says how many.
Rule 4: what a server says has happened is told to nobody as if it had: it stands in the journal.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from comity.kernel.call import Call
from comity.kernel.grants import Judge
from comity.kernel.outbox import Outbox
from comity.kernel.sessions import Session
from comity.rules.negotiation import Terms, of_request
from comity.wire import jsonrpc, mcp
from comity.wire.audit import NOTICE, Event, Type, params_of
from comity.wire.errors import Unavailable
from comity.wire.grants import ADMIN_READ, Effect
from comity.wire.jsonrpc import Frame
from comity.wire.negotiation import Extension
from comity.wire.parties import Actor

MISSED: Final = "dev.comity/missed"
"""The member of `details` that says how many notices were lost before this one."""

FILTER: Final = "mgp.audit"
"""What a stream of the modern era is acknowledged to tell beside the changes of lists."""

MOST_WAITING: Final = 256
MOST_BYTES: Final = 1024 * 1024
"""What may wait for one reader; beyond it notices are lost, and nothing else of its stream."""


def is_told(event: Event) -> bool:
    """Whether an event is for others to hear; what a server asserts is for those who look it up."""
    return event.type != Type.TESTIMONY


def said_of(event: Event, missed: int = 0) -> dict[str, object]:
    """An event as it is told to somebody who has missed so many before it."""
    said = params_of(event)
    return {**said, "details": {**event.details, MISSED: missed}} if missed else said


def notice_of(event: Event, missed: int = 0) -> Frame:
    return jsonrpc.notification(NOTICE, said_of(event, missed))


def agreed_on(terms: Terms | None) -> bool:
    return terms is not None and Extension.AUDIT in terms.extensions


@dataclass(slots=True)
class _Reader:
    """One who listens: as whom, and what it has lost since it was last told anything."""

    who: Session | Call
    actor: Actor
    missed: int = 0

    def has_room(self) -> bool:
        """Whether one more may wait; where it may not, that one is lost."""
        outbox = self._outbox
        has_room = len(outbox.frames) < MOST_WAITING and outbox.size < MOST_BYTES
        self.missed += not has_room
        return has_room

    def tell(self, event: Event, written: bytes) -> None:
        """`written` is the notice, as it is for all who have lost nothing."""
        if isinstance(self.who, Call):
            # Each notice names the subscription that it belongs to.
            params = said_of(event, self.missed)
            meta = {mcp.SUBSCRIPTION_ID: self.who.asker_id}
            written = jsonrpc.encode(jsonrpc.notification(NOTICE, {**params, "_meta": meta}))
        elif self.missed:
            written = jsonrpc.encode(notice_of(event, self.missed))
        self.missed = 0 if self._outbox.put(written) else self.missed + 1

    @property
    def _outbox(self) -> Outbox:
        return self.who.standalone if isinstance(self.who, Session) else self.who.outbox


class Notices:
    """Everybody at the door of all servers who is told what happens."""

    def __init__(self, judge: Judge, counts: Callable[[Actor], bool] = lambda _: True) -> None:
        self._judge = judge
        self._counts = counts
        self._readers: dict[Session | Call, _Reader] = {}

    def __len__(self) -> int:
        return len(self._readers)

    def attach(self, session: Session, actor: Actor) -> None:
        """Tell a session from now on, if it agreed to that."""
        if agreed_on(session.mgp):
            self._readers[session] = _Reader(session, actor)
            session.farewells[self] = lambda: self.forget(session)

    def listen(self, call: Call, frame: Frame) -> dict[str, object]:
        """Tell a stream of the modern era, if its request agreed to that; gives what was agreed."""
        if not agreed_on(of_request(frame.params)):
            return {}
        self._readers[call] = _Reader(call, call.outbox.actor)
        return {FILTER: True}

    def forget(self, who: Session | Call) -> None:
        self._readers.pop(who, None)

    def happened(self, event: Event) -> None:
        """An event was kept: tell it to those who may know it."""
        if not self._readers or not is_told(event):
            return
        may_know = [each for each in self._readers.values() if self._may_know(each.actor, event)]
        readers = [each for each in may_know if each.has_room()]
        if readers:
            _tell(readers, event)

    def _may_know(self, actor: Actor, event: Event) -> bool:
        if not self._counts(actor):
            return False
        if event.actor == actor.party:
            return True
        try:
            judged = self._judge.judge(actor, ADMIN_READ, event.server, event.tool)
        except Unavailable:
            # While nobody can know what is allowed, nobody is told anything of others.
            return False
        return judged.effect is Effect.ALLOW


def _tell(readers: Iterable[_Reader], event: Event) -> None:
    written = jsonrpc.encode(notice_of(event))
    for reader in readers:
        reader.tell(event, written)
