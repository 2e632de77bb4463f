"""Which tools were looked for and which were shown, written down: tomorrow's evaluation set.

Which of them are called then, stands in the journal anyway, under the same party and trace.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, Protocol

from comity.kernel.call import Call
from comity.wire.audit import Event, Result, Type
from comity.wire.tool_discovery import Outcome, Search, Wanted

MOST_NAMED: Final = 50


class Notes(Protocol):
    """Where it is written down."""

    @property
    def clock(self) -> Callable[[], datetime]: ...
    def note(self, event: Event) -> None: ...


class SearchLog:
    """Writes down searches, where that is wanted, and requests for tools always."""

    def __init__(
        self, notes: Notes, redact: Callable[[object], object], *, searches: bool = True
    ) -> None:
        self._notes = notes
        self._redact = redact
        self._searches = searches

    def searched(self, call: Call, said: Search, strategy: str, shown: Sequence[str]) -> None:
        if self._searches:
            details: dict[str, object] = {
                "queries": self._redact(list(said.queries)),
                "strategy": strategy,
                "shown": list(shown[:MOST_NAMED]),
            }
            self._put(call, Type.TOOLS_SEARCHED, Result.SUCCESS, details)

    def requested(
        self, call: Call, wanted: Wanted, outcome: Outcome, loaded: Sequence[str]
    ) -> None:
        details: dict[str, object] = {
            "reason": self._redact(wanted.reason),
            "capabilities": self._redact(list(wanted.capabilities)),
            "context": self._redact(wanted.context),
            "status": outcome,
            "loaded": list(loaded[:MOST_NAMED]),
        }
        if wanted.task_trace_id is not None:
            details["task_trace_id"] = self._redact(wanted.task_trace_id)
        done = outcome in (Outcome.FULFILLED, Outcome.PARTIAL)
        self._put(call, Type.TOOLS_REQUESTED, Result.SUCCESS if done else Result.PENDING, details)

    def _put(self, call: Call, kind: Type, result: Result, details: Mapping[str, object]) -> None:
        actor = call.outbox.actor
        self._notes.note(
            Event(
                *(kind, actor.party, self._notes.clock(), actor.kind, "", "", result),
                *(call.traced(), "", details),
            )
        )
