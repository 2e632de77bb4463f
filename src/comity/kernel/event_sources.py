"""What the gateway itself tells: from the journal, from calls that leave and from servers' lives.

Nothing of this is looked at while nobody follows anything. (rules.standard_channels says what is
told.) What is written down is told when it is kept; that a call leaves, at once.
"""

import logging
from collections.abc import Callable, Mapping

from comity.kernel.events import Events
from comity.kernel.journal import Journal
from comity.kernel.recording import Recorder
from comity.kernel.standing import Transition
from comity.kernel.toolbelts import Belt
from comity.rules.standard_channels import (
    BUDGET,
    CONFIG_CHANGED,
    SERVER_STATE,
    STANDARD,
    STARTED,
    alarm,
    channels_of,
    told,
)
from comity.wire import audit
from comity.wire.events import Event

log = logging.getLogger(__name__)

type Redact = Callable[[object], object]


class Sources:
    """Tells the plane of events what happens at this node."""

    def __init__(
        self, events: Events, journal: Journal, recorder: Recorder, redact: Redact
    ) -> None:
        self._events = events
        self._journal = journal
        self._recorder = recorder
        self._redact = redact
        self._is_on = False
        events.switches.append(self._switch)

    def _switch(self, is_followed: bool) -> None:
        if is_followed is self._is_on:
            return
        self._is_on = is_followed
        # A new list: whoever is being told just now goes on through the old one.
        others = [each for each in self._journal.listeners if each != self.happened]
        self._journal.listeners = [*others, self.happened] if is_followed else others
        self._recorder.left = self.left if is_followed else None

    def happened(self, entry: audit.Event) -> None:
        """Something was written down, and is kept."""
        for channel in channels_of(entry):
            self._events.publish(told(entry, channel, self._events.mint()))

    def left(self, entry: audit.Event) -> None:
        """A call leaves for its server; nothing that goes wrong here keeps it from that."""
        try:
            self._events.publish(told(entry, STARTED, self._events.mint()))
        except Exception:
            log.exception("that a call has begun could not be told")

    def stepped(self, step: Transition) -> None:
        """A server went from one state to another."""
        if not self._is_on:
            return
        data: dict[str, object] = {
            "server_id": step.server,
            "previous_state": step.previous,
            "new_state": step.state,
            "reason": self._redact(step.reason),
        }
        data |= {"given_up": True} if step.is_given_up else {}
        severity = alarm(step.state, is_given_up=step.is_given_up)
        name = self._events.mint()
        self._events.publish(Event(name, SERVER_STATE, step.at, severity, data, step.server))

    def budgeted(self, belt: Belt) -> None:
        """The tools in a client's context are other ones, or cost something else."""
        if self._is_on:
            party, tools = belt.actor.party, belt.tools
            data: dict[str, object] = {
                "actor": party,
                "tokens_used": tools.total,
                "tokens_remaining": max(0, tools.budget.max_tokens - tools.total),
                "tools_loaded": tools.count,
            }
            name, at, severity = (
                self._events.mint(),
                self._events.clock(),
                STANDARD[BUDGET].severity,
            )
            self._events.publish(Event(name, BUDGET, at, severity, data, party=party))

    def configured(self, servers: Mapping[str, object]) -> None:
        """The settings were read anew, and these servers are concerned."""
        self._events.tell(CONFIG_CHANGED, {"servers": servers})
