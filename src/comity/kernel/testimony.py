"""What servers say has happened: kept apart from what we know ourselves. (MGP §6.3, S6)

Rule 1: it is written down as said by its server, under a type of its own, with the server's words
        inside `details.asserted`; nothing of them stands where our own words stand.
Rule 2: it is read strictly, and bounded in size, depth and number: of the rest the number is kept.
Rule 3: it is of the trace of a call only if that call is open at this very server, or was within a
        minute; else it has a trace of its own, and the claim stands among the details.
"""

import logging
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from comity.kernel.audit_recorder import LEFT_OUT, Bound
from comity.kernel.audit_servers import link_of
from comity.kernel.journal import Journal
from comity.kernel.pulse import Pulse, Speaking
from comity.kernel.servers import Servers, Transition
from comity.rules.permissions import SUBJECT
from comity.rules.refusals import trace_named
from comity.wire import jsonrpc
from comity.wire.audit import NOTICE, Event, Result, Type
from comity.wire.errors import MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.lifecycle import State
from comity.wire.parties import PartyKind

log = logging.getLogger(__name__)

MOST_BYTES: Final = 16 * 1024
DEEPEST: Final = 12
LONGEST_WORD: Final = 200
REMEMBERED_FOR: Final = timedelta(seconds=60)
MOST_REMEMBERED: Final = 10_000
CLAIMED: Final = "claimed_trace_id"
_ENDINGS: Final = frozenset({Type.TOOL_EXECUTED, Type.OFFER_USED})

type Redact = Callable[[object], object]


class _Actor(Struct, forbid_unknown_fields=True):
    type: str
    id: str


class _Target(Struct, forbid_unknown_fields=True, omit_defaults=True):
    server_id: str = ""
    tool_name: str = ""


class _Said(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The form of MGP §6.3, and nothing else."""

    timestamp: str
    event_type: str
    actor: _Actor
    target: _Target
    result: str
    details: dict[str, Any] = {}
    trace_id: str = ""
    # In the modern era it says on whose stream the notice came.
    meta: dict[str, Any] = msgspec.field(default_factory=dict[str, Any], name="_meta")


def read(frame: Frame) -> _Said:
    """What a server says has happened. Raises MalformedMessage."""
    raw = frame.params
    if raw is UNSET or len(raw) > MOST_BYTES or jsonrpc.excess(bytes(raw), DEEPEST):
        raise MalformedMessage(f"an audit event is an object of at most {MOST_BYTES} bytes")
    try:
        said = msgspec.convert(jsonrpc.value(raw), _Said)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"no audit event: {error}") from None
    words = (
        *(said.timestamp, said.event_type, said.result, said.trace_id),
        *(said.actor.type, said.actor.id, said.target.server_id, said.target.tool_name),
    )
    if any(len(word) > LONGEST_WORD for word in words) or not said.event_type:
        raise MalformedMessage("no audit event: its words are too long")
    return said


class Testimony:
    """Hears every server that agreed on `audit`."""

    def __init__(self, journal: Journal, redact: Redact, servers: Servers) -> None:
        self._journal = journal
        self._redact = redact
        self._servers = servers
        self._bound = Bound(journal.clock)
        # The traces of calls that have ended of late, oldest first, of each server that is heard.
        self._ended: dict[str, dict[str, datetime]] = {}
        servers.watch(self._stepped)

    def _stepped(self, step: Transition) -> None:
        server = self._servers.get(step.server)
        if server is None or step.state is not State.CONNECTED:
            return
        is_heard = link_of(server) is not None
        if is_heard:
            server.pulse.notices[NOTICE] = partial(self._told, server.pulse)
            self._ended.setdefault(server.name, {})
        else:
            server.pulse.notices.pop(NOTICE, None)
            self._ended.pop(server.name, None)
        if bool(self._ended) is not (self.ended in self._journal.noted):
            # Whoever hears nobody need not know what has ended.
            change = self._journal.noted.append if self._ended else self._journal.noted.remove
            change(self.ended)

    def ended(self, event: Event) -> None:
        """Keep in mind, for a while, which calls a server had."""
        traces = self._ended.get(event.server)
        if traces is None or event.type not in _ENDINGS:
            return
        traces.pop(event.trace, None)
        traces[event.trace] = event.at
        while len(traces) > MOST_REMEMBERED or _is_old(next(iter(traces.values())), event.at):
            del traces[next(iter(traces))]

    def _told(self, pulse: Pulse, link: Speaking, frame: Frame) -> None:
        self.heard(link.server, pulse, frame)

    def heard(self, server: str, pulse: Pulse, frame: Frame) -> None:
        """A server says that something has happened; whatever it says, nothing is raised."""
        left_out = self._bound.take(server) if self._journal.has_room else None
        if left_out is None:
            return
        try:
            said = read(frame)
        except MalformedMessage as error:
            self._bound.leave_out(server, left_out + 1)
            log.info("server %r: %s", server, error)
            return
        trace = trace_named(said.trace_id)
        is_known = trace is not None and self._has(server, pulse, trace)
        asserted = cast("dict[str, object]", msgspec.to_builtins(said))
        for beside in ("trace_id", "_meta"):
            asserted.pop(beside, None)
        details: dict[str, object] = {"asserted": self._redact(asserted)}
        if said.trace_id and not is_known:
            details[CLAIMED] = self._redact(said.trace_id)
        if left_out:
            details[LEFT_OUT] = left_out
        whose = trace if is_known and trace is not None else secrets.token_hex(16)
        self._journal.note(
            Event(
                *(Type.TESTIMONY, f"{SUBJECT}{server}", self._journal.clock(), PartyKind.SERVER),
                *(server, "", Result.UNKNOWN, whose, "", details),
            )
        )

    def _has(self, server: str, pulse: Pulse, trace: str) -> bool:
        ended = self._ended.get(server, {}).get(trace)
        if ended is not None and not _is_old(ended, self._journal.clock()):
            return True
        return any(call.trace == trace for call in pulse.calls)


def _is_old(ended: datetime, now: datetime) -> bool:
    return now - ended > REMEMBERED_FOR
