"""What follows from a configuration that has changed while the gateway runs."""

from dataclasses import dataclass, replace

from comity.config.settings import ServerSettings, Settings
from comity.config.tables import SETTINGS


@dataclass(frozen=True, slots=True)
class Changes:
    """Servers that come, are other than they were, or go; and what only a restart can change.

    Those that are `decided` anew are the same, and may do something else than before.
    """

    added: tuple[ServerSettings, ...] = ()
    changed: tuple[ServerSettings, ...] = ()
    removed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    decided: tuple[ServerSettings, ...] = ()

    def __str__(self) -> str:
        told = {
            "added": [server.id for server in self.added],
            "changed": [server.id for server in self.changed],
            "removed": self.removed,
            "decided anew of": [server.id for server in self.decided],
        }
        parts = [f"{what} {', '.join(ids)}" for what, ids in told.items() if ids]
        return "; ".join(parts) or "no server is other than it was"


def difference(old: Settings, new: Settings) -> Changes:
    """From one to the other; a server that is disabled is as good as absent."""
    before, after = _enabled(old), _enabled(new)
    other = [server for name, server in after.items() if before.get(name, server) != server]
    decided = [server for server in other if replace(before[server.id], live=server.live) == server]
    return Changes(
        added=tuple(server for name, server in after.items() if name not in before),
        changed=tuple(server for server in other if server not in decided),
        removed=tuple(name for name in before if name not in after),
        needs_restart=tuple(
            f"{setting.table}.{setting.name}" if setting.table else setting.name
            for setting in SETTINGS
            if not setting.is_live and getattr(old, setting.field) != getattr(new, setting.field)
        ),
        decided=tuple(decided),
    )


def _enabled(settings: Settings) -> dict[str, ServerSettings]:
    return {server.id: server for server in settings.servers if not server.disabled}
