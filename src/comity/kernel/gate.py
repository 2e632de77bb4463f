"""Decides for every endpoint alike whether a call may go on. (design §1)"""

from collections.abc import Awaitable

from comity.kernel.admission import Admission, Inspection, Limits, Outcome, arguments_in
from comity.kernel.call import Call
from comity.kernel.catalog import Catalog, Offer
from comity.kernel.catalog_access import CatalogAccess, Tools
from comity.kernel.grants import Judge
from comity.kernel.retrying import Retries
from comity.rules.refusals import Refusal
from comity.wire.jsonrpc import Frame


class Gate(CatalogAccess):
    """Checks every call before it leaves, the same for every endpoint."""

    def __init__(
        self,
        catalog: Catalog,
        grants: Judge | None = None,
        tools: Tools | None = None,
        limits: Limits | None = None,
        inspection: Inspection | None = None,
    ) -> None:
        super().__init__(catalog, grants, tools)
        self._limits = limits
        self._inspection = inspection
        self.admission = Admission(tools, limits, inspection, self._grants)
        self.retries: Retries | None = None

    def turns_away(self, call: Call) -> bool:
        """Whether a request is too many, at once or too soon for its key; then it is answered."""
        actor, refusal = call.outbox.actor, None
        if call.beyond is not None:
            refusal = call.beyond.refusal()
        elif actor.is_paced and self._limits is not None:
            refusal = self._limits.arrive(actor)
        if refusal is not None:
            call.turn_down(refusal)
        return refusal is not None

    def examine(self, call: Call, offer: Offer, frame: Frame) -> Outcome | Awaitable[Outcome]:
        """Whether a call of a tool that its actor may use can go on, with these arguments."""
        return self.admission.examine(call, offer, frame)

    def check(
        self, call: Call, offer: Offer, frame: Frame
    ) -> Refusal | Awaitable[Refusal | None] | None:
        """Whether a call with these arguments would pass; it counts as one, and nothing runs."""
        actor, outcome = call.outbox.actor, None
        if self._limits is not None:
            outcome = self._limits.take(actor, offer.server, offer.name, 1)
        return self.inspect(offer, arguments_in(frame)) if outcome is None else outcome

    def inspect(
        self, offer: Offer, arguments: object
    ) -> Refusal | Awaitable[Refusal | None] | None:
        """Whether these arguments can be taken by that tool, whoever may call it."""
        return None if self._inspection is None else self._inspection.inspect(offer, arguments)
