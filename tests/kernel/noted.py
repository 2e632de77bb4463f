"""What parts of the kernel write down, as it is noted and before it is kept."""

from datetime import UTC, datetime, timedelta

from comity.adapters.memory.journal import MemoryJournal
from comity.kernel.audit_recorder import AuditRecorder
from comity.kernel.definition_audit import DefinitionAudit
from comity.kernel.grant_audit import GrantAudit
from comity.kernel.journal import Journal
from comity.kernel.key_audit import KeyAudit
from comity.kernel.permission_audit import PermissionAudit
from comity.kernel.server_audit import ServerAudit
from comity.wire.audit import Event

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECRET = "sk-canary"


def redact(value: object) -> object:
    """As the gateway's own does it, for the one secret of these tests."""
    return str(value).replace(SECRET, "[secret]") if isinstance(value, str) else value


class Noted:
    """A journal that nobody keeps, and all that was noted in it."""

    def __init__(self) -> None:
        self.now = NOON
        self.journal = Journal(MemoryJournal(), "n-1", clock=lambda: self.now)
        self.events: list[Event] = []
        self.journal.noted.append(self.events.append)
        recorder = AuditRecorder(self.journal, redact)
        self.servers = ServerAudit(recorder, lambda _: {})
        self.permissions = PermissionAudit(recorder)
        self.grants = GrantAudit(recorder)
        self.keys = KeyAudit(recorder)
        self.definitions = DefinitionAudit(recorder)

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def take(self) -> list[Event]:
        """What was noted since the last time."""
        taken, self.events[:] = list(self.events), []
        return taken

    def told(self) -> list[tuple[str, str, str]]:
        """The same in short: what, by whom, about which server."""
        return [(event.type, event.actor, event.server) for event in self.take()]
