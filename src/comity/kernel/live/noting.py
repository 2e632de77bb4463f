"""What live servers do and are refused, as entries of the journal. (MCPL §13.2)

Rule 1: an entry names the server, the feature set, the inference and what came of it; of what
        anybody said it has only what it is given, without secrets.
Rule 2: what a server can bring about as often as it likes is bounded; of the rest only the number
        is kept.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from comity.kernel.audit_recorder import LEFT_OUT, Bound, kind_of
from comity.kernel.journal import Journal
from comity.rules.keeping import words
from comity.rules.permissions import SUBJECT
from comity.wire.audit import Event, Result, Type

OK: Final = "ok"
_LONGEST: Final = 200
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})

type Redact = Callable[[object], object]


@dataclass(frozen=True, slots=True)
class Deed:
    """One thing that was done, or was not: by `by`, which is the server itself unless named."""

    server: str
    method: str = ""
    feature: str = ""
    inference: str = ""
    outcome: str = OK
    by: str = ""
    tool: str = ""
    trace: str = ""
    # Whatever else is worth knowing; it is redacted here.
    details: Mapping[str, object] = _NOTHING


class Noting:
    """Writes down what is done. Until it is given a journal, nothing."""

    def __init__(self, journal: Journal | None = None, redact: Redact = lambda said: said) -> None:
        self._bound = Bound(lambda: datetime.now(UTC))
        self.attach(journal, redact)

    def attach(self, journal: Journal | None, redact: Redact) -> None:
        self._journal = journal
        self._redact = redact
        if journal is not None:
            self._bound = Bound(journal.clock)

    def note(self, type: Type, deed: Deed, result: Result = Result.SUCCESS) -> None:
        """Write it down, unless too much of its kind was by this server just now."""
        left_out = self._bound.take(f"{type} {result} {deed.server}")
        if left_out is not None and self._journal is not None and self._journal.has_room:
            more = {LEFT_OUT: left_out} if left_out else {}
            self._journal.note(self._event(self._journal, type, deed, result, more))

    def keep(self, type: Type, deed: Deed, result: Result = Result.SUCCESS) -> None:
        """Write it down in any case: for what happens no more often than it is let."""
        if self._journal is not None:
            self._journal.note(self._event(self._journal, type, deed, result, _NOTHING))

    def forget(self, server: str) -> None:
        """Nobody counts what a server did that is no more."""
        for type in Type:
            for result in Result:
                self._bound.forget(f"{type} {result} {server}")

    def _event(
        self,
        journal: Journal,
        type: Type,
        deed: Deed,
        result: Result,
        more: Mapping[str, object],
    ) -> Event:
        actor = deed.by or SUBJECT + deed.server
        known = {
            "method": deed.method,
            "feature_set": deed.feature,
            "inference_id": deed.inference,
            "outcome": deed.outcome,
        }
        named = {name: words(said[:_LONGEST]) for name, said in known.items() if said}
        said = {name: self._redact(each) for name, each in deed.details.items()}
        details: dict[str, object] = {**said, **named, **more}
        return Event(
            *(type, actor, journal.clock(), kind_of(actor), deed.server, deed.tool, result),
            trace=deed.trace,
            details=details,
        )
