"""What the journal keeps of proposals: by whom each was fulfilled, and by whose word. (D-48, D-56)

Never a word of what was proposed: the entries of the call have that, as far as anybody may read it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from comity.kernel.audit_recorder import kind_of
from comity.kernel.furnished import Furnished
from comity.kernel.journal import Journal
from comity.kernel.proposal_asks import Pending
from comity.wire.audit import Event, Result, Type
from comity.wire.envelope import Envelope

_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


class ProposalNotes:
    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal

    def fulfilled(self, pending: Pending, by: str, told: Mapping[str, object] = _NOTHING) -> None:
        """`told` is what stands behind it: the ask and who approved it, or the grant."""
        proposal = pending.proposal
        details = {
            "topic": pending.place.topic,
            "proposal": proposal.id,
            "proposer": proposal.proposer,
            "envelope": proposal.fulfilment,
            **told,
        }
        self._write(Type.PROPOSAL_FULFILLED, by, Result.SUCCESS, details, pending.trace)

    def repeated(self, place: Furnished, envelope: Envelope, by: str, result: Result) -> str:
        """A proposal is fulfilled once more: the warning of D-56, and its words."""
        details = {
            "topic": place.topic,
            "proposal": envelope.correlation_id,
            "envelope": envelope.id,
            "fulfilled_by": by,
        }
        self._write(Type.PROPOSAL_REPEATED, envelope.sender, result, details)
        return f"this proposal was fulfilled by {by} already; what is proposed once is done once"

    def _write(
        self, type: Type, by: str, result: Result, details: Mapping[str, object], trace: str = ""
    ) -> None:
        if self._journal is not None and self._journal.has_room:
            at = self._journal.clock()
            self._journal.note(
                Event(type, by, at, kind_of(by), result=result, trace=trace, details=details)
            )
