"""Calls that come from a topic, at the step where a person is asked about them.

Rule 1: such a call waits as long as its ask does: nobody holds a connection open for it.
Rule 2: one that a person has approved as a proposal is not asked about again, as long as it is
        exactly that: the same tool, as it was defined, with the same arguments.
"""

from collections.abc import Callable
from dataclasses import dataclass

from comity.kernel.admission import Asking
from comity.kernel.call import Call
from comity.kernel.call_hold import Hold
from comity.kernel.catalog import Offer
from comity.kernel.catalog_access import Standing
from comity.kernel.held import HeldCall
from comity.kernel.outbox import Outbox
from comity.rules import asks
from comity.rules.refusals import Refusal
from comity.wire.asks import Ask
from comity.wire.jsonrpc import Frame


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's yes that came before the call: the ask, and the digest of what it is good for."""

    ask: str
    digest: str


class TopicOutbox(Outbox):
    """Where a call of a topic is answered: whoever reads it tells the topic."""

    approval: Approval | None = None
    on_held: Callable[[Ask], None] | None = None


class InTopics:
    """Who asks people about calls, with what is known of those that come from topics."""

    def __init__(self, asking: Asking, key: bytes) -> None:
        self._asking = asking
        self._key = key

    def hold(
        self, call: Call, offer: Offer, standing: Standing, arguments: object, frame: Frame
    ) -> Hold | Refusal:
        return self._asking.hold(call, offer, standing, arguments, frame)

    def goes_on(
        self, call: Call, offer: Offer, standing: Standing, arguments: object, frame: Frame
    ) -> bool:
        outbox = call.outbox
        if isinstance(outbox, TopicOutbox) and outbox.approval is not None:
            found = good_for(offer.server, offer.name, standing.digest, arguments, self._key)
            if outbox.approval.digest == found:
                call.answered_by = outbox.approval.ask
                return True
        return self._asking.goes_on(call, offer, standing, arguments, frame)

    def taken_out(self, call: Call, frame: Frame) -> Frame:
        return self._asking.taken_out(call, frame)


def good_for(server: str, tool: str, definition: str, arguments: object, key: bytes) -> str:
    """The digest of what a person has approved, whoever then calls it."""
    return asks.digest("", server, tool, definition, arguments, key)


class HeldInTopic:
    """The form for calls of a topic."""

    def take(self, held: HeldCall, ask: Ask) -> bool:
        outbox = held.call.outbox
        if not isinstance(outbox, TopicOutbox):
            return False
        held.patience = None
        if outbox.on_held is not None:
            outbox.on_held(ask)
        return True
