"""An audit log whose events a test reads as they are recorded."""

from datetime import UTC, datetime, timedelta

from comity.audit.events import AuditEvent
from comity.audit.log import AuditLog
from tests.support.inline_store import inline_journal

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECRET = "sk-canary"


def redact(value: object) -> object:
    """As the gateway's own does it, for the one secret of these tests."""
    return str(value).replace(SECRET, "[secret]") if isinstance(value, str) else value


class Noted:
    """An audit log that is not committed, and the events recorded in it."""

    def __init__(self) -> None:
        self.now = NOON
        self.journal = AuditLog(inline_journal(), "n-1", clock=lambda: self.now, redact=redact)
        self.events: list[AuditEvent] = []
        self.journal.event_listeners.append(self.events.append)

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def take(self) -> list[AuditEvent]:
        """What was noted since the last time."""
        taken, self.events[:] = list(self.events), []
        return taken

    def told(self) -> list[tuple[str, str, str]]:
        """The same in short: what, by whom, about which server."""
        return [(event.type, event.actor, event.server) for event in self.take()]
